"""Calibrations by traces of training steps: what was put into made-up traces is found again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk import read_calibration
from rtk.profilers.analytic.configuration import known_model
from rtk.profilers.analytic.costs import WORKS, Kind, MicrobatchShape, product
from rtk.profilers.analytic.estimate import Correction, Learned, profile_analytic, rates_of, step_work
from rtk.profilers.analytic.observed_file import read_observed_run
from rtk.profilers.analytic.software import Software
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.gpus import gpu, gpu_of_device

from .kineto_steps import BACKWARD, STEP, Kernel, product_kernel, steps_of, write_trace

A100, SHAPE = gpu("a100-sxm"), replace(known_model("gpt3-medium").shape, blocks=4)
CONFIG = {
    "model_type": "gpt2", "n_layer": 4, "n_embd": 1024, "n_head": 16, "vocab_size": 50257, "n_positions": 2048,
    "activation_function": "gelu", "tie_word_embeddings": False,
}  # fmt: skip
BATCH = MicrobatchShape(2, 512, "bf16")
MICROBATCHES = 3
FACTORS = st.floats(0.5, 3)
RUN = """\
model: {model}
gpu: a100-sxm
tensor_parallel: 2
pp: {pp}
dp: {dp}
microbatch_size: 2
sequence_length: 512
global_batch: {batch}
checkpointing: {checkpointing}
trace: rank.json
"""


def write_run(folder: Path, **settings: object) -> str:
    """A file of a job of that small GPT, beside which its trace is."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "run.yaml").write_text(RUN.format(model=folder / "config.json", **settings))
    return str(folder / "run.yaml")


def kernels_of(
    works: list[Kind], ahead: tuple[float, float], back: tuple[float, float], step: float, again: bool
) -> list[Kernel]:
    """A step's kernels: for each layer its products and all else, which take so many times what is computed."""
    rates, kernels = rates_of(A100, "bf16"), []
    around = (BACKWARD + "LayerBackward0", "LayerBackward0")
    for kind in works:
        work = WORKS[kind](SHAPE, BATCH, 2)
        forward_us = 1e6 * ahead[0] * rates.matrix_s(work.forward), 1e6 * ahead[1] * rates.rest_s(work.forward)
        rows, flops = BATCH.tokens, work.forward.matrix_flops
        dims = [[rows, 1], [1, round(flops / rows / 2)]]
        kernels += [Kernel(("aten::mm",), forward_us[0], dims=dims), Kernel(("aten::add",), forward_us[1])]
        passes = work.backward_input, work.backward_weight
        backward_us = [
            1e6 * back[0] * sum(rates.matrix_s(one) for one in passes),
            1e6 * back[1] * sum(rates.rest_s(one) for one in passes),
        ]
        if again and kind == "block":
            backward_us = [own + more for own, more in zip(backward_us, forward_us, strict=True)]
        kernels += [
            Kernel((*around, "aten::mm"), backward_us[0], dims=dims),
            Kernel((*around, "aten::mul"), backward_us[1]),
        ]
        step_us = 1e6 * step * rates.pass_s(step_work(work.parameters, BATCH), Correction(), 0.0)
        kernels.append(Kernel((STEP, "aten::_fused_adamw_"), step_us / MICROBATCHES))
    return kernels * MICROBATCHES


@settings(max_examples=15)
@given(
    st.tuples(FACTORS, FACTORS),
    st.tuples(FACTORS, FACTORS),
    FACTORS,
    st.integers(1, 2),
    st.booleans(),
    st.integers(0, 7),
)
def test_a_trace_tells_each_part(
    tmp_path_factory: pytest.TempPathFactory,
    ahead: tuple[float, float],
    back: tuple[float, float],
    step: float,
    pp: int,
    again: bool,
    rank: int,
) -> None:
    """Whatever products, all else and the step take of what is computed, in F and in the backward pass, a trace of any
    rank with its settings says so, with recomputation and without."""
    folder = tmp_path_factory.mktemp("trace")
    stage = rank * pp // 8
    works: list[Kind] = ["block"] * (SHAPE.blocks // pp)
    works = ["embedding", *works] if stage == 0 else works
    works = [*works, "head"] if stage == pp - 1 else works
    write_trace(folder / "rank.json", steps_of(kernels_of(works, ahead, back, step, again), 2), rank=rank, world_size=8)
    dp = 4 // pp
    file = write_run(folder, pp=pp, dp=dp, batch=2 * dp * MICROBATCHES, checkpointing=str(again).lower())
    learned = read_calibration(file, gpu="a100-sxm")
    assert isinstance(learned, Learned)
    found = learned.corrections["block"]
    assert (found.forward.matrix, found.forward.rest) == pytest.approx(ahead, rel=1e-4)
    assert (found.backward_weight.matrix, found.backward_input.rest) == pytest.approx(back, rel=1e-4)
    assert found.optimizer.matrix == pytest.approx(step, rel=1e-4)
    assert "learned from 2 steps of" in learned.remarks[0]
    assert "as computed" in learned.remarks[2]


def products_only(factor: float, numbers: str = "c10::BFloat16") -> list[dict[str, object]]:
    """A step of products which take so many times what their shapes are computed to take on an A100."""
    rates, kernels = rates_of(A100, "bf16"), []
    for rows, inputs, outputs in ((2048, 4096, 12288), (2048, 4096, 4096)):
        time_us = 1e6 * factor * rates.matrix_s(product(rows, inputs, outputs, 2))
        kernels.append(product_kernel(rows, inputs, outputs, time_us))
        kernels.append(product_kernel(rows, inputs, outputs, 2 * time_us, BACKWARD + "MmBackward0"))
    return steps_of(kernels, 5, numbers)


def test_a_trace_without_settings_tells_products(tmp_path: Path) -> None:
    """The shapes in a trace of any model say what products take, in F and in the backward pass; nothing else is
    corrected, and that is said; so is the GPU it ran on, if it is another one."""
    path = str(write_trace(tmp_path / "t.json", products_only(1.25)))
    learned = read_calibration(path, gpu="a100-sxm")
    assert isinstance(learned, Learned)
    found = learned.corrections["head"]
    assert (found.forward.matrix, found.backward_input.matrix) == pytest.approx((1.25, 2.5))
    assert found.forward.rest == found.optimizer.matrix == 1
    assert "does not say of what model it is" in learned.remarks[2]
    assert "(± 0.0 %)" in learned.remarks[0]
    other = read_calibration(path, gpu="h100-sxm")
    assert isinstance(other, Learned)
    assert other.corrections == learned.corrections
    assert "measured on a100-sxm, used for h100-sxm" in other.remarks[-1]
    write_trace(Path(path), products_only(1.25), "NVIDIA H100")
    unknown = read_calibration(path, gpu="a100-sxm")
    assert isinstance(unknown, Learned)
    assert "is of NVIDIA H100, which rtk lacks: it is taken to be a100-sxm" in unknown.remarks[-1]
    profile = profile_analytic("gpt3-13b", gpu="a100-sxm", calibrate=learned)
    plain = profile_analytic("gpt3-13b", gpu="a100-sxm")
    assert 1 < profile.layers[1].costs[0].forward_s / plain.layers[1].costs[0].forward_s < 1.25
    assert learned.carried(profile) is None


def test_a_trace_of_another_model_is_used_for_its_products(tmp_path: Path) -> None:
    """Where its FLOPs are not those of the settings both are named, and only products are learned, shape by shape."""
    write_trace(tmp_path / "rank.json", products_only(1.5))
    learned = read_calibration(write_run(tmp_path, pp=1, dp=1, batch=2, checkpointing="false"), gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert "it is of another model or job" in learned.remarks[0]
    forward = learned.corrections["block"].forward
    assert forward.matrix == pytest.approx(1.5)
    assert forward.rest == 1.0


def test_shapes_of_some_products_do_not_make_another_model(tmp_path: Path) -> None:
    """Where other libraries launch products, whose shapes nobody notes, a trace is believed to be of its settings."""
    blocks: list[Kind] = ["block"] * SHAPE.blocks
    works: list[Kind] = ["embedding", *blocks, "head"]
    kernels = kernels_of(works, (1.0, 1.0), (1.0, 1.0), 1.0, False)
    hidden = [
        replace(one, within=("_LayerNormLinear",), name="nvjet_hsh_128x256", dims=None)
        if one.within == ("aten::mm",) and place % 2
        else one
        for place, one in enumerate(kernels)
    ]
    assert hidden != kernels
    write_trace(tmp_path / "rank.json", steps_of(hidden, 2))
    file = write_run(tmp_path, pp=1, dp=1, batch=2 * MICROBATCHES, checkpointing="false")
    learned = read_calibration(file, gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert learned.corrections["block"].forward.matrix == pytest.approx(1)


def test_products_are_those_of_the_program(tmp_path: Path) -> None:
    """A trace by itself is compared with what the program is computed to take that it is used for: long trainings reach
    less of the peak, and what the trace took is the same."""
    path = str(write_trace(tmp_path / "t.json", products_only(1.25)))
    program = Software(sustained=True)
    usual, sustained = (read_calibration(path, gpu="a100-sxm", software=one) for one in (None, program))
    assert isinstance(usual, Learned)
    assert isinstance(sustained, Learned)
    assert sustained.corrections["block"].forward.matrix < usual.corrections["block"].forward.matrix
    work = product(2048, 4096, 12288, 2)
    (usual_s, sustained_s) = (
        learned.corrections["block"].forward.matrix * rates_of(A100, "bf16", software=software).matrix_s(work)
        for learned, software in ((usual, Software()), (sustained, program))
    )
    assert sustained_s == pytest.approx(usual_s, rel=0.01)


def test_numbers_that_the_settings_do_not_say_are_the_gpus(tmp_path: Path) -> None:
    """Settings without a GPU are of the trace's, and of the numbers that suit it; where products are in others, the
    trace is of another job, and only they are used."""
    file = Path(write_run(tmp_path, pp=1, dp=1, batch=2, checkpointing="false"))
    file.write_text(file.read_text().replace("gpu: a100-sxm\n", ""))
    write_trace(tmp_path / "rank.json", products_only(1, "c10::Half"), "Tesla V100-SXM2-32GB")
    run, trace = read_observed_run(str(file))
    assert (run.gpu, run.batch.dtype) == ("v100-sxm", "fp16")
    assert trace is not None
    write_trace(tmp_path / "rank.json", products_only(1, "float"))
    learned = read_calibration(str(file), gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert "products of F are of fp32 in the trace, and of bf16 by the settings" in learned.remarks[0]
    assert learned.dtype == "fp32"


def test_a_trace_without_an_optimizer_step(tmp_path: Path) -> None:
    """Where nothing was stepped the step stays as computed, and that is said; where a pass has products alone, the
    trace cannot be of its settings."""
    blocks: list[Kind] = ["block"] * SHAPE.blocks
    works: list[Kind] = ["embedding", *blocks, "head"]
    kernels = [one for one in kernels_of(works, (1.0, 1.0), (1.0, 1.0), 1.0, False) if STEP not in one.within]
    file = write_run(tmp_path, pp=1, dp=1, batch=2 * MICROBATCHES, checkpointing="false")
    write_trace(tmp_path / "rank.json", steps_of(kernels))
    learned = read_calibration(file, gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert learned.corrections["block"].optimizer == Correction()
    assert "no optimizer step is in it" in learned.remarks[0]
    write_trace(tmp_path / "rank.json", steps_of([one for one in kernels if "aten::add" not in one.within]))
    with pytest.raises(InvalidInputError, match="all but products takes 0 s of a step's forward pass in the trace"):
        read_calibration(file, gpu="a100-sxm")


@pytest.mark.parametrize(
    ("numbers", "has_shapes", "pp", "message"),
    [
        ("c10::BFloat16", True, 3, "4 blocks are not as many for each of 3 stages"),
        ("c10::BFloat16", False, 0, "neither what model it is of nor the shapes"),
        ("c10::BFloat16", True, 2, "which rank it is of"),
        ("c10::BFloat16", True, 0, "v100-sxm does not compute in bf16"),
    ],
)
def test_traces_that_say_too_little_are_refused(
    tmp_path: Path, numbers: str, has_shapes: bool, pp: int, message: str
) -> None:
    """Without shapes and settings, without a rank where there are stages, of stages with unlike numbers of blocks, or
    in numbers that the GPU does not have."""
    events = products_only(1, numbers)
    for event in events:
        if not has_shapes:
            event["args"].pop("Input Dims", None)  # type: ignore[attr-defined]
    path = tmp_path / "rank.json"
    write_trace(path, events, "Tesla V100-SXM2-32GB" if "v100" in message else "NVIDIA A100-SXM4-80GB")
    if pp:
        path = Path(write_run(tmp_path, pp=pp, dp=1, batch=2, checkpointing="false"))
    with pytest.raises(InvalidInputError, match=message):
        read_calibration(str(path), gpu="a100-sxm")


def test_gpus_are_known_by_their_drivers_names() -> None:
    """A trace's GPU is found in the table by what the driver calls it; others are none of it."""
    names = {
        "NVIDIA A100-SXM4-80GB": "a100-sxm", "NVIDIA A100-SXM4-40GB": "a100-sxm-40gb", "NVIDIA H200": "h200-sxm",
        "NVIDIA A100 80GB PCIe": "a100-pcie", "NVIDIA H100 80GB HBM3": "h100-sxm", "NVIDIA H100 PCIe": "h100-pcie",
        "Tesla T4": "t4", "Tesla V100-SXM2-16GB": "v100-sxm", "NVIDIA L4": "l4", "NVIDIA L40S": "l40s",
        "NVIDIA GB200": "gb200", "NVIDIA GH200 480GB": None,
        "NVIDIA B200": "b200", "NVIDIA GeForce RTX 4090": "rtx-4090", "cpu": "cpu", "NVIDIA GeForce GTX 1080": None,
    }  # fmt: skip
    assert {name: gpu_of_device(name) for name in names} == names


def test_a_real_trace_of_a_gpu(tmp_path: Path) -> None:
    """Two bf16 steps of a GPT on an H200, kernel by kernel: with it the step is computed to a tenth, and other sizes
    that were measured on that GPU (benchmarks/results/traced-h200.json) as well."""
    trace = Path(__file__).parent / "traces" / "h200-steps.json.gz"
    sizes = {"n_layer": 4, "n_embd": 2048, "n_head": 16, "vocab_size": 50304, "n_positions": 1024}
    kind = {"model_type": "gpt2", "activation_function": "gelu", "tie_word_embeddings": False}
    (tmp_path / "model.json").write_text(json.dumps({**kind, **sizes}))
    (tmp_path / "run.yaml").write_text(
        f"model: {tmp_path / 'model.json'}\npp: 1\ndtype: bf16\nmicrobatch_size: 8\nsequence_length: 1024\n"
        f"global_batch: 8\ntrace: {trace}\n"
    )
    learned = read_calibration(str(tmp_path / "run.yaml"), gpu="h200-sxm")
    for blocks, width, heads, words, batch, length, measured_s in (
        (4, 2048, 16, 50304, 8, 1024, 0.0360),
        (12, 1024, 16, 50304, 8, 1024, 0.0306),
        (6, 2560, 20, 50304, 4, 2048, 0.0619),
        (4, 4096, 32, 50304, 4, 2048, 0.0985),
        (8, 2048, 16, 131072, 8, 512, 0.0451),
    ):
        sizes = {"n_layer": blocks, "n_embd": width, "n_head": heads, "vocab_size": words, "n_positions": length}
        (tmp_path / "other.json").write_text(json.dumps({**kind, **sizes}))
        made = profile_analytic(
            str(tmp_path / "other.json"),
            gpu="h200-sxm",
            microbatch_size=batch,
            sequence_length=length,
            calibrate=learned,
        )
        costs = [layer.costs[0] for layer in made.layers]
        assert sum(cost.work_s + cost.optimizer_s for cost in costs) == pytest.approx(measured_s, rel=0.1)
