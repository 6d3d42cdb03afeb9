"""What iterations that somebody measured say about computed times: by how much computing takes longer, or shorter.

An iteration is computing, messages between stages, sums, and waits. Its settings say what each of these takes as
computed; computing is then corrected until the iteration, planned as 1F1B, takes what it took. So one number is learned
from one time, and errors of the network go into it. Where timers tell what a stage's passes take, F has a number of its
own and I with W another, neither of which the network touches; the whole iteration is then left to check them by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isclose
from statistics import median

from ...schemas.errors import InvalidInputError
from ...schemas.gpus import Gpu
from ...schemas.gpus import gpu as known_gpu
from ...schemas.plan import Plan
from ...schemas.profile import FEWEST_FOR_A_SPREAD, Profile, half_width
from ...schemas.quantities import print_change, print_percent, print_share, print_time
from ...schemas.text import counted
from .costs import WORKS, DecoderShape, MicrobatchShape
from .estimate import Calibration, Correction, Corrections, Learned, analytic_profile, rates_of

CLOSE = 1e-6  # of a solved iteration's time
MOST_STEPS = 40
# Beyond it the part of an iteration that is not computing is not as computed.
DOUBTFUL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    """Iterations that somebody measured, and the settings they were measured with.

    Attributes:
        shape: of the model.
        batch: of a micro-batch, and by what kind of program it was computed.
        is_checkpointing: blocks kept their inputs only.
        tensor_parallel: the degree.
        pp: stages of a pipeline.
        dp: pipelines.
        microbatches: of each pipeline.
        chunks: virtual stages of a worker, interleaved where there are several.
        iterations_s: what iterations took, in s; without those that warm up.
        passes_s: what F, and the backward pass with all that it computes again, take of a micro-batch of the last
            stage, in s, a pair for each reading; empty where nobody says.
        gpu: on which they ran; None where nobody says.
        source: whence it is known.
    """

    shape: DecoderShape
    batch: MicrobatchShape
    is_checkpointing: bool
    tensor_parallel: int
    pp: int
    dp: int
    microbatches: int
    chunks: int = 1
    iterations_s: Sequence[float]
    passes_s: Sequence[tuple[float, float]] = ()
    gpu: str | None = None
    source: str

    @property
    def words(self) -> str:
        """Model, micro-batch and shape, for people."""
        tokens = f"{self.batch.microbatch_size} x {self.batch.sequence_length} tokens"
        pipelines = f" of {self.dp}" if self.dp > 1 else ""
        stages = f"{counted(self.pp, 'stage')}{pipelines}, tensor-parallel degree {self.tensor_parallel}"
        return f"{self.shape.blocks} blocks of {self.shape.width}, {tokens}, {stages}"


PlanOf = Callable[[Profile, ObservedRun], Plan]


def learn(run: ObservedRun, device: Gpu, plan_of: PlanOf) -> Learned:
    """What a run says about times that are computed for a GPU.

    Args:
        run: that was measured.
        device: that is computed for; where the run names another one, what it says about that one is taken for this.
        plan_of: plans a profile's 1F1B in the run's shape, on its machines.

    Raises:
        InvalidInputError: it took less than messages and sums alone, as computed.
    """
    measured_on = device if run.gpu is None else known_gpu(run.gpu)
    if run.passes_s:
        corrections, remarks = _from_passes(run, measured_on, plan_of)
    else:
        corrections, remarks = _from_iterations(run, measured_on, plan_of)
    if measured_on.name != device.name:
        remarks.append(
            f"measured on {measured_on.name}, used for {device.name}: by how much computed times are wrong is taken to "
            "be the same on both"
        )
    elif run.gpu is None:
        remarks.append(f"{run.source} does not say on which GPU: it is taken to be {device.name}")
    words = f"{run.source}: {run.words}"
    return Learned(corrections, run.shape, run.batch, words, tuple(remarks))


def _from_passes(run: ObservedRun, device: Gpu, plan_of: PlanOf) -> tuple[Calibration, list[str]]:
    """One number for F and one for I and W, by timers of the last stage; the iteration is what they are checked by."""
    forward_s, backward_s = (median(times) for times in zip(*run.passes_s, strict=True))
    # Each time of a stage is linear in the corrections: two of them say what it is without any computing.
    once, twice = (_last_stage_s(run, device, factor, factor) for factor in (1.0, 2.0))
    forward = 1 + (forward_s - once[0]) / (twice[0] - once[0])
    _require(forward, run, forward_s, "forward pass of the last stage", 2 * once[0] - twice[0])
    once, twice = (_last_stage_s(run, device, forward, factor) for factor in (1.0, 2.0))
    backward = 1 + (backward_s - once[1]) / (twice[1] - once[1])
    _require(backward, run, backward_s, "backward pass of the last stage", 2 * once[1] - twice[1])
    corrections = _corrected(forward, backward)
    sure = [_sure([pair[place] for pair in run.passes_s]) for place in (0, 1)]
    remarks = [
        f"learned from {counted(len(run.passes_s), 'reading')} of {run.source} ({run.words}): F takes {forward:.3f} of "
        f"what is computed{sure[0]}, the backward pass {backward:.3f}{sure[1]}"
    ]
    if run.iterations_s:
        measured_s = median(run.iterations_s)
        computed_s = _iteration_s(run, device, plan_of, corrections)
        off = computed_s / measured_s - 1
        told = f"an iteration then takes {print_time(computed_s)} as computed, {print_time(measured_s)} as measured"
        doubt = "check the network (--cluster)" if abs(off) > DOUBTFUL else "messages, sums and waits fit"
        remarks.append(f"{told} ({print_change(off)}): {doubt}")
    return corrections, remarks


def _from_iterations(run: ObservedRun, device: Gpu, plan_of: PlanOf) -> tuple[Calibration, list[str]]:
    """One number for all computing, with which an iteration takes what it took."""
    measured_s = median(run.iterations_s)

    def iteration_s(factor: float) -> float:
        return _iteration_s(run, device, plan_of, _corrected(factor, factor))

    idle_s, as_computed_s = iteration_s(0.0), iteration_s(1.0)
    _require(measured_s - idle_s, run, measured_s, "iteration", idle_s)
    low, high, high_s = 0.0, 1.0, as_computed_s
    while high_s < measured_s:
        low, high = high, 2 * high
        high_s = iteration_s(high)
    factor = high
    for _ in range(MOST_STEPS):  # the time only grows with the factor, piece by piece linearly
        factor = (low + high) / 2
        time_s = iteration_s(factor)
        if isclose(time_s, measured_s, rel_tol=CLOSE):
            break
        low, high = (factor, high) if time_s < measured_s else (low, factor)
    share = 1 - idle_s / measured_s
    return _corrected(factor, factor), [
        f"learned from {counted(len(run.iterations_s), 'iteration')} of {run.source} ({run.words}): computing takes "
        f"{factor:.3f} of what is computed{_sure(run.iterations_s)}",
        f"one number for all computing, which is {print_percent(share)} of the iteration; whatever is wrong with the "
        "rest, messages and sums as computed, is in it",
    ]


def _require(is_above_zero: float, run: ObservedRun, measured_s: float, what: str, idle_s: float) -> None:
    if is_above_zero <= 0:
        raise InvalidInputError(
            f"the {what} took {print_time(measured_s)}, less than its messages and sums alone, {print_time(idle_s)} as "
            "computed",
            where=run.source,
            fix="say what network it had, with --cluster, and check the settings",
        )


def _corrected(forward: float, backward: float) -> Calibration:
    """The same for all layers; the optimizer step stays as computed."""
    ahead, back = Correction(forward, forward), Correction(backward, backward)
    return {kind: Corrections(ahead, back, back) for kind in WORKS}


def _profile(run: ObservedRun, device: Gpu, corrections: Calibration) -> Profile:
    return analytic_profile(
        run.source,
        run.shape,
        run.batch,
        device,
        rates_of(device, run.batch.dtype, software=run.batch.software),
        corrections=corrections,
        is_checkpointing=run.is_checkpointing,
        degrees=(run.tensor_parallel,),
    )


def _iteration_s(run: ObservedRun, device: Gpu, plan_of: PlanOf, corrections: Calibration) -> float:
    prediction = plan_of(_profile(run, device, corrections), run).prediction
    assert prediction is not None
    return prediction.iteration_time_s


def _last_stage_s(run: ObservedRun, device: Gpu, forward: float, backward: float) -> tuple[float, float]:
    """F and the backward pass of a micro-batch in the last stage, which has as many blocks as any other, and the head.

    So Megatron shares them out, whatever they take. Of several chunks of a worker it is all together.
    """
    layers = _profile(run, device, _corrected(forward, backward)).layers[-(run.shape.blocks // run.pp) - 1 :]
    costs = [layer.costs[0] for layer in layers]
    return sum(cost.forward_s for cost in costs), sum(cost.full_s for cost in costs)


def _sure(times_s: Sequence[float]) -> str:
    """How far readings lie apart, where there are enough of them to say so."""
    if len(times_s) < FEWEST_FOR_A_SPREAD:
        return "" if len(times_s) > 1 else " (one reading: how sure that is, it cannot say)"
    return f" (± {print_share(half_width(times_s) / median(times_s))})"
