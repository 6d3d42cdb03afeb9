"""Steps of a training out of traces of torch's profiler: which part took what, on a GPU and on a CPU."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from rtk.profilers.analytic.configuration import known_model
from rtk.profilers.analytic.costs import MicrobatchShape, block_work, head_work
from rtk.profilers.analytic.step_trace import read_step_trace
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import PRESETS
from rtk.schemas.errors import InvalidInputError

from .kineto_steps import BACKWARD, STEP, Kernel, product_kernel, steps_of, write_trace

TIMES_US = st.integers(1, 1000)


@st.composite
def stepping(draw: st.DrawFn) -> tuple[list[Kernel], dict[str, float]]:
    """Kernels of a step, and what each part takes, in µs: `F products`, `B gaps`, …, `step`, `sums`."""
    kernels: list[Kernel] = []
    expected: dict[str, float] = {}

    def put(kernel: Kernel, *parts: str) -> None:
        kernels.append(kernel)
        for part in parts:
            expected[part] = expected.get(part, 0) + (kernel.gap_us if part.endswith("gaps") else kernel.time_us)

    for pass_, around in (("F", ()), ("B", (BACKWARD + "SomeBackward0", "SomeBackward0"))):
        put(product_kernel(64, 32, 16, draw(TIMES_US), *around), f"{pass_} products")
        for _ in range(draw(st.integers(0, 4))):
            gap_us = draw(st.integers(0, 50))
            part, inner, name = draw(
                st.sampled_from(
                    [
                        ("attention", "aten::_scaled_dot_product_flash_attention", "flash_fwd_kernel"),
                        ("attention", "aten::bmm", "ampere_bf16_s16816gemm"),
                        ("attention", "_AttentionFunction", "cudnn_generated_fort_native_sdpa"),
                        ("products", "_LayerNormLinear", "nvjet_hsh_256x128"),
                        ("rest", "aten::native_layer_norm", "vectorized_layer_norm_kernel"),
                        ("rest", "aten::copy_", "Memcpy DtoD (Device -> Device)"),
                    ]
                )
            )
            put(Kernel((*around, inner), draw(TIMES_US), gap_us, name), f"{pass_} {part}", f"{pass_} gaps")
        if draw(st.booleans()):
            hidden = draw(st.integers(1, int(kernels[-1].time_us)))
            put(Kernel((*around, "c10d::_allgather_base_"), hidden, 0, "ncclDevKernel_AllGather_RING_LL", beside=True))
        if draw(st.booleans()):
            put(Kernel((*around, "c10d::allreduce_"), draw(TIMES_US), 0, "ncclDevKernel_AllReduce_Sum_bf16"), "sums")
    put(Kernel(("aten::_foreach_norm",), draw(TIMES_US), 0, "lpnorm_cleanup"), "step")
    put(Kernel(("aten::empty",), draw(TIMES_US), 0, "multi_tensor_apply_kernel"), "step")  # apex's, scaling gradients
    put(Kernel((STEP, "aten::_fused_adamw_"), draw(TIMES_US), 5, "multi_tensor_apply_kernel"), "step", "step gaps")
    return kernels, expected


@settings(max_examples=60)
@given(stepping(), st.integers(1, 3))
def test_each_kernel_is_counted_where_it_belongs(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[list[Kernel], dict[str, float]], count: int
) -> None:
    """Products, attention, all else, gaps, the step, and sums that nothing hides: each as long as it was made, whoever
    launched it, in every step."""
    kernels, expected = made
    path = write_trace(tmp_path_factory.getbasetemp() / "steps.json", steps_of(kernels, count))
    trace = read_step_trace(str(path))
    assert (len(trace.steps), trace.gpu) == (count, "a100-sxm")
    for step in trace.steps:
        stepping = step.passes["step"]
        found = {"step": stepping.total_s - stepping.gaps_s, "step gaps": stepping.gaps_s, "sums": step.sums_s}
        for letter, pass_ in (("F", step.passes["forward"]), ("B", step.passes["backward"])):
            for part in ("products", "attention", "rest", "gaps"):
                found[f"{letter} {part}"] = getattr(pass_, f"{part}_s")
        assert found == pytest.approx({name: expected.get(name, 0) / 1e6 for name in found}, abs=1e-9)
        assert step.passes["forward"].flops == 2 * 64 * 32 * 16


def test_a_real_trace_has_the_products_that_are_computed(tmp_path: Path) -> None:
    """The products in a trace that torch recorded here are, in FLOPs, those of rtk's account of the model: F once, the
    backward pass twice, and in the second step blocks' F again, which is computed again there."""
    config, batch = PRESETS["gpt-tiny"].config, MicrobatchShape(2, 32, "fp32")
    embedding, *blocks, head = gpt_layers(config)[:3] + gpt_layers(config)[-1:]
    tokens = torch.zeros(batch.microbatch_size, batch.sequence_length, dtype=torch.int64)
    optimizer = torch.optim.SGD([one for layer in (embedding, *blocks, head) for one in layer.parameters()])
    path = str(tmp_path / "trace.json.gz")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recording:
        for is_checkpointing in (False, True):
            with torch.profiler.record_function(f"ProfilerStep#{is_checkpointing:d}"):
                stream = embedding(tokens)
                for block in blocks:
                    stream = checkpoint(block, stream, use_reentrant=False) if is_checkpointing else block(stream)
                torch.autograd.backward(language_model_loss(head(stream), tokens))
                optimizer.step()
    recording.export_chrome_trace(path)
    trace = read_step_trace(path)
    shape = known_model("gpt-tiny").shape
    of_blocks = len(blocks) * block_work(shape, batch, 1).forward.matrix_flops
    whole = of_blocks + head_work(shape, batch, 1).forward.matrix_flops
    assert trace.gpu == "cpu"
    assert [step.passes["forward"].flops for step in trace.steps] == [whole, whole]
    assert [step.passes["backward"].flops for step in trace.steps] == [2 * whole, 2 * whole + of_blocks]
    for step in trace.steps:
        assert step.time_s is not None
        assert min(step.passes["forward"].attention_s, step.passes["step"].total_s) > 0
        assert sum(one.total_s for one in step.passes.values()) <= step.time_s


LONE = Kernel(("aten::add",), 5)
ODD_SHAPES = {"Input Dims": [[1, "x"], [2, 3]], "Input type": ["float", "float"]}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "no training step"),
        (steps_of([LONE]), "no training step"),
        (steps_of([product_kernel(2, 2, 2, 5)]), "no training step"),
        ([one for one in steps_of([LONE]) if one["cat"] == "kernel"], "which operation launched which kernel"),
        ([{"ph": "X", "cat": "kernel", "ts": "soon"}], "another form"),
        ([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "args": ODD_SHAPES}], "another form"),
    ],
)
def test_traces_without_a_step_are_refused(tmp_path: Path, events: list[dict[str, object]], message: str) -> None:
    """What holds no forward and backward pass, or does not tell one from the other, is refused, with what to record."""
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_step_trace(str(write_trace(tmp_path / "trace.json", events)))
    assert "trace.json" in str(caught.value.where)


def test_a_trace_that_was_told_of_no_steps_is_one(tmp_path: Path) -> None:
    """Without `prof.step()` all that was recorded is one step, whose length is not known."""
    events = steps_of([product_kernel(2, 2, 2, 5), product_kernel(2, 2, 2, 7, BACKWARD + "MmBackward0")])
    path = write_trace(tmp_path / "t.json", [one for one in events if not one["name"].startswith("ProfilerStep")])
    (step,) = read_step_trace(str(path)).steps
    assert step.time_s is None
    assert step.passes["backward"].products_s == pytest.approx(7e-6)
    assert json.loads(path.read_text())["schemaVersion"] == 1
