"""Calibrations by measured runs: what was put into made-up runs is found again, and what real logs say."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.calibrating import read_calibration
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.analytic.configuration import known_model
from rtk.profilers.analytic.costs import DecoderShape, MicrobatchShape
from rtk.profilers.analytic.estimate import (
    Calibration,
    Correction,
    Corrections,
    Learned,
    analytic_profile,
    profile_analytic,
    rates_of,
)
from rtk.profilers.analytic.megatron_log import read_megatron_log
from rtk.profilers.analytic.observed import ObservedRun, learn
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.gpus import gpu
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Profile

A100 = gpu("a100-sxm")
LOGS = Path(__file__).parents[2] / "benchmarks" / "measured"


@st.composite
def runs(draw: st.DrawFn) -> ObservedRun:
    """A run of a small GPT in any shape, not measured yet."""
    heads, pp = 8, draw(st.integers(1, 3))
    shape = replace(known_model("gpt3-medium").shape, blocks=draw(st.integers(pp, 6)), heads=heads)
    return ObservedRun(
        shape=shape,
        batch=MicrobatchShape(draw(st.integers(1, 4)), 512, "bf16"),
        is_checkpointing=draw(st.booleans()),
        tensor_parallel=draw(st.sampled_from([1, 2, 4])),
        pp=pp,
        dp=draw(st.integers(1, 2)),
        microbatches=draw(st.integers(1, 5)),
        iterations_s=(),
        source="a test",
    )


def planned(profile: Profile, run: ObservedRun) -> Plan:
    """The run's 1F1B."""
    return plan_pipeline(profile, Shape(run.pp, run.dp, run.microbatches, tensor_parallel=run.tensor_parallel), "1f1b")


def measured(run: ObservedRun, corrections: Calibration, *, has_timers: bool) -> ObservedRun:
    """The run as it is measured where computing takes so many times what is computed."""
    rates = rates_of(A100, run.batch.dtype)
    profile = analytic_profile(
        "run", run.shape, run.batch, A100, rates,
        corrections=corrections, is_checkpointing=run.is_checkpointing, degrees=(run.tensor_parallel,),
    )  # fmt: skip
    plan = planned(profile, run)
    assert plan.prediction is not None
    ends = 1 + (run.pp == 1)
    last = [layer.costs[0] for layer in profile.layers[-(run.shape.blocks // run.pp) - ends :]]
    passes_s = ((sum(one.forward_s for one in last), sum(one.full_s for one in last)),) if has_timers else ()
    return replace(run, iterations_s=(plan.prediction.iteration_time_s,), passes_s=passes_s)


def of(forward: float, backward: float) -> Calibration:
    """Corrections, the same for each kind of layer."""
    ahead, back = Correction(forward, forward), Correction(backward, backward)
    return {kind: Corrections(ahead, back, back) for kind in ("embedding", "block", "head")}


FACTORS = st.floats(0.3, 4)


@settings(max_examples=15)
@given(runs(), FACTORS, FACTORS)
def test_timers_tell_what_each_pass_takes(run: ObservedRun, forward: float, backward: float) -> None:
    """Whatever F and the backward pass take of what is computed, timers of the last stage say so, and the iteration
    that they predict is the one that was measured."""
    learned = learn(measured(run, of(forward, backward), has_timers=True), A100, planned)
    found = learned.corrections["block"]
    assert found.forward.matrix == pytest.approx(forward, rel=1e-6)
    assert found.backward_input.rest == pytest.approx(backward, rel=1e-6)
    assert "(+0 %)" in learned.remarks[1] or "(-0 %)" in learned.remarks[1]


@settings(max_examples=15)
@given(runs(), FACTORS)
def test_an_iteration_tells_what_computing_takes(run: ObservedRun, factor: float) -> None:
    """With the one number that an iteration's time says, the iteration takes that time."""
    run = replace(run, tensor_parallel=1)  # sums over a group are not corrected: stages would be cut in other places
    known = measured(run, of(factor, factor), has_timers=False)
    found = learn(known, A100, planned).corrections
    assert measured(run, found, has_timers=False).iterations_s == pytest.approx(known.iterations_s, rel=1e-5)
    assert found["block"].forward.matrix == pytest.approx(factor, rel=1e-3)


def test_an_iteration_that_is_too_short_is_refused() -> None:
    """No correction makes an iteration shorter than its sums and optimizer step: both times are named."""
    run = ObservedRun(
        shape=known_model("gpt3-medium").shape, batch=MicrobatchShape(1, 512, "bf16"), is_checkpointing=False,
        tensor_parallel=1, pp=2, dp=2, microbatches=2, iterations_s=(1e-6,), source="run.yaml",
    )  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"the iteration took 1 µs, less than .* alone"):
        learn(run, A100, planned)


RUN = """\
model: gpt3-6.7b
gpu: a100-sxm
pp: 4
dp: 2
tensor_parallel: 2
global_batch: 64
checkpointing: true
iteration: [2.9s, 2.8s]
"""


def test_a_file_of_one_iteration_calibrates(tmp_path: Path) -> None:
    """What was measured once is learned, said in the profile, and makes other models take longer as well."""
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    learned = read_calibration(str(file), gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert learned.corrections["block"].forward.matrix > 1
    assert "one number for all computing" in learned.remarks[1]
    profile = profile_analytic("gpt3-13b", gpu="a100-sxm", calibrate=learned)
    plain = profile_analytic("gpt3-13b", gpu="a100-sxm")
    assert profile.layers[1].costs[0].forward_s > plain.layers[1].costs[0].forward_s
    assert profile.model["calibration"].endswith("run.yaml: 32 blocks of 4096, 1 x 2048 tokens, 4 stages of 2, "
        "tensor-parallel degree 2")  # fmt: skip
    assert "a model of 6.86 billion parameters" in str(learned.carried(profile))
    assert learned.carried(profile_analytic("gpt3-6.7b", gpu="a100-sxm")) is None
    other = read_calibration(str(file), gpu="h100-sxm")
    assert isinstance(other, Learned)
    assert "measured on a100-sxm, used for h100-sxm" in other.remarks[-1]
    assert other.corrections == learned.corrections


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model: gpt3-6.7b\n", "", "'model' is missing"),
        ("gpt3-6.7b", "gpt9", "no model 'gpt9'"),
        ("global_batch: 64", "global_batch: 63", "63 samples are no whole number"),
        ("a100-sxm", "a1000", "no GPU 'a1000'"),
        ("[2.9s, 2.8s]", "0s", "longer than no time"),
        ("pp:", "stages:", "unknown key 'stages'"),
        ("pp: 4", "pp: 33", "33 stages are more than the 32 blocks"),
        ("iteration: [2.9s, 2.8s]", "", "'iteration' is missing, and so are 'log' and 'trace'"),
        ("pp: 4", "pp: 4\nlog: x.log", "iteration and log cannot go together"),
    ],
)
def test_a_file_that_says_too_little_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """What is missing, unknown or contradictory in the file of an iteration is named, with its line."""
    file = tmp_path / "run.yaml"
    file.write_text(RUN.replace(old, new))
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_calibration(str(file), gpu="a100-sxm")
    assert "line" in str(caught.value.where)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("step: 1 loss: 2 tps: 100\nstep: 2 loss: 2 tps: 100\n", "tells what a token takes"),
        ("nothing of that kind\n", "no line tells an iteration time"),
    ],
)
def test_a_log_of_another_program_calibrates(tmp_path: Path, lines: str, message: str) -> None:
    """Logs that `rtk detect` reads say what iterations took, without the first, where the file has the settings; those
    that do not are refused."""
    file, log = tmp_path / "run.yaml", tmp_path / "train.log"
    file.write_text(RUN.replace("iteration: [2.9s, 2.8s]", "log: train.log"))
    log.write_text("".join(f"iter {n}: loss 3.1, time {time_s}s, mfu 30%\n" for n, time_s in enumerate([9, 2.9, 2.8])))
    from_log = read_calibration(str(file), gpu="a100-sxm")
    file.write_text(RUN)
    by_hand = read_calibration(str(file), gpu="a100-sxm")
    assert isinstance(from_log, Learned)
    assert isinstance(by_hand, Learned)
    assert from_log.corrections == by_hand.corrections
    file.write_text(RUN.replace("iteration: [2.9s, 2.8s]", "log: train.log"))
    log.write_text(lines)
    with pytest.raises(InvalidInputError, match=message):
        read_calibration(str(file), gpu="a100-sxm")


ARGUMENTS = {
    "num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 512, "micro_batch_size": 2,
    "global_batch_size": 16, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
    "data_parallel_size": 2, "padded_vocab_size": 50304, "bf16": True, "swiglu": True, "add_bias_linear": False,
    "group_query_attention": True, "num_query_groups": 4, "normalization": "RMSNorm", "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True, "ffn_hidden_size": 2816, "recompute_granularity": "full",
    "num_layers_per_virtual_pipeline_stage": None, "num_experts": None,
}  # fmt: skip


def log_of(arguments: dict[str, object], *lines: str) -> str:
    """A log as Megatron-LM prints it."""
    said = [f"[default0]:  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    return "\n".join(["- arguments -", *said, "-- end of arguments --", *lines, ""]).replace("- arg", "------ arg", 1)


def iteration(number: int, time_ms: float) -> str:
    """A line of a log."""
    return f" iteration {number}/ 500 | elapsed time per iteration (ms): {time_ms} | global batch size: 16 |"


def test_arguments_say_the_shape(tmp_path: Path) -> None:
    """A Llama's log gives a Llama's shape, and its times without the first."""
    file = tmp_path / "job.log"
    file.write_text(log_of(ARGUMENTS, iteration(1, 9000), iteration(2, 500), iteration(3, 502)))
    run = read_megatron_log(str(file))
    assert run.shape == DecoderShape(
        blocks=4, width=1024, heads=16, key_value_heads=4, head_size=64, inner=2816, vocabulary=50304, positions=512,
        norm="rms", activation="silu", is_gated=True, is_fused=True,
    )  # fmt: skip
    assert (run.pp, run.dp, run.tensor_parallel, run.microbatches, run.chunks) == (2, 2, 2, 4, 1)
    assert run.is_checkpointing
    assert run.iterations_s == pytest.approx([0.5, 0.502])
    learned = read_calibration(str(file), gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert "does not say on which GPU" in learned.remarks[-1]


@pytest.mark.parametrize(
    ("said", "hidden"),
    [
        ({}, False),
        ({"async_tensor_model_parallel_allreduce": False}, False),
        ({"async_tensor_model_parallel_allreduce": True}, True),
        ({"async_tensor_model_parallel_allreduce": False, "sequence_parallel": True}, True),
    ],
)
def test_arguments_say_whether_sums_are_hidden(tmp_path: Path, said: dict[str, object], hidden: bool) -> None:
    """Where Megatron sums while it computes weight gradients its log says so; older ones have no such argument."""
    file = tmp_path / "job.log"
    file.write_text(log_of({**ARGUMENTS, **said}, iteration(1, 9000), iteration(2, 500)))
    assert read_megatron_log(str(file)).batch.software.hidden_sums is hidden


Timers = dict[str, list[float]]  # what each rank took in an iteration, in ms


def block_of(timers: Timers, option: str) -> list[str]:
    """Timers as Megatron-LM has printed them since 2023 (megatron/core/timers.py)."""
    heads = {"minmax": "(min, max) time", "max": "max time", "all": "times"}
    lines = [f"{heads[option]} across ranks (ms):"]
    for name, times_ms in timers.items():
        padded = f"{name} ".ljust(48, ".")
        if option == "all":
            lines += [f"  {name}:", *(f"     rank {rank:2d}: {time_ms:.5f}" for rank, time_ms in enumerate(times_ms))]
        elif option == "max":
            lines.append(f"    {padded}: {max(times_ms):.5f}")
        else:
            lines.append(f"    {padded}: ({min(times_ms):.5f}, {max(times_ms):.5f})")
    return lines


@settings(max_examples=12)
@given(st.sampled_from(["minmax", "max", "all"]), FACTORS, FACTORS, FACTORS, st.booleans())
def test_timers_over_ranks_tell_each_pass(
    tmp_path_factory: pytest.TempPathFactory, option: str, forward: float, backward: float, step: float, shares: bool
) -> None:
    """However Megatron-LM prints its timers since 2023, what each rank took by its stage says what F, the backward pass
    and the step take of what is computed; a first reading of a job that warms up changes nothing."""
    file = tmp_path_factory.mktemp("timers") / "job.log"
    arguments = {**ARGUMENTS, "use_distributed_optimizer": shares, "timing_log_option": option}
    file.write_text(log_of(arguments, iteration(1, 500)))
    run = read_megatron_log(str(file))
    made = analytic_profile(
        "run", run.shape, run.batch, A100, rates_of(A100, run.batch.dtype, software=run.batch.software),
        corrections=of(forward, backward), is_checkpointing=run.is_checkpointing, degrees=(run.tensor_parallel,),
    )  # fmt: skip
    stages = [made.layers[: run.shape.blocks // 2 + 1], made.layers[run.shape.blocks // 2 + 1 :]]
    costs = [[layer.costs[0] for layer in stage] for stage in stages for _ in range(run.dp * run.tensor_parallel)]
    ranks = run.dp if shares else 1
    steps_ms = [1e3 * step * sum(cost.optimizer_s for cost in own) / ranks for own in costs]
    timers: Timers = {
        "forward-backward": [400.0] * len(costs),
        "forward-compute": [1e3 * run.microbatches * sum(cost.forward_s for cost in own) for own in costs],
        "backward-compute": [1e3 * run.microbatches * sum(cost.full_s for cost in own) for own in costs],
        "optimizer-clip-main-grad": [0.1 * step_ms for step_ms in steps_ms],
        "optimizer-inner-step": [0.9 * step_ms for step_ms in steps_ms],
    }
    warming = {name: [9 * time_ms for time_ms in times_ms] for name, times_ms in timers.items()}
    lines = [iteration(1, 9000), *block_of(warming, option), iteration(2, 500), *block_of(timers, option)]
    loaded = ["(min, max) time across ranks (ms):", "    load-checkpoint ...: (4.10, 4.20)"]
    file.write_text(log_of(arguments, *loaded, *lines))
    learned = read_calibration(str(file), gpu="a100-sxm")
    assert isinstance(learned, Learned)
    found = learned.corrections["block"]
    assert found.forward.matrix == pytest.approx(forward, rel=1e-3)
    assert found.backward_input.rest == pytest.approx(backward, rel=1e-3)
    assert found.optimizer.matrix == pytest.approx(step, rel=1e-3)
    assert any("the ranks that take least and most" in remark for remark in learned.remarks) == (option != "max")
    del timers["forward-compute"]  # --timing-log-level 1: the step is known, and of computing the iteration only
    file.write_text(log_of(arguments, iteration(1, 5000), *block_of(timers, option)))
    learned = read_calibration(str(file), gpu="a100-sxm")
    assert isinstance(learned, Learned)
    assert learned.corrections["block"].optimizer.matrix == pytest.approx(step, rel=1e-3)
    assert "one number for all computing" in learned.remarks[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": None, "seq_length": None}, "does not say hidden_size and seq_length"),
        ({"num_experts": 8}, "num_experts is 8"),
        ({"decoder_last_pipeline_num_layers": 1}, "decoder_last_pipeline_num_layers is 1"),
        ({"account_for_loss_in_pipeline_split": True}, "account_for_loss_in_pipeline_split is True"),
        ({"num_layers": "many"}, "num_layers is many"),
        ({"num_layers": "9" * 400}, "no whole number"),
        ({"num_layers": 10**9}, "1000000000 layers and 2 stages"),
        ({"pipeline_model_parallel_size": 5}, "4 layers and 5 stages"),
        ({"global_batch_size": 1}, "no micro-batch for each pipeline"),
    ],
)
def test_logs_without_settings_are_refused(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    """Arguments that are missing, foreign or no numbers are named."""
    file = tmp_path / "job.log"
    file.write_text(log_of({**ARGUMENTS, **changed}, iteration(1, 500)))
    with pytest.raises(InvalidInputError, match=message):
        read_megatron_log(str(file))


def test_a_log_of_times_alone_is_refused(tmp_path: Path) -> None:
    """Iteration times without arguments calibrate nothing, and arguments without times neither."""
    file = tmp_path / "job.log"
    file.write_text(iteration(1, 500))
    with pytest.raises(InvalidInputError, match="does not say num_layers"):
        read_megatron_log(str(file))
    file.write_text(log_of(ARGUMENTS))
    with pytest.raises(InvalidInputError, match="tells of no iteration"):
        read_megatron_log(str(file))


@pytest.mark.checkout
def test_real_logs_are_read() -> None:
    """The settings, iterations and timers of a job on 16 V100, as they stand in its log."""
    run = read_megatron_log(str(LOGS / "meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out.gz"))
    assert (run.shape.blocks, run.shape.width, run.shape.vocabulary) == (40, 6144, 50688)
    assert (run.pp, run.dp, run.tensor_parallel, run.microbatches) == (4, 1, 4, 4)
    assert run.is_checkpointing
    assert sorted(run.iterations_s)[len(run.iterations_s) // 2] == pytest.approx(1.38, abs=0.03)
    assert run.passes_s[0] == pytest.approx((0.17639 / 4, 0.51482 / 4))
