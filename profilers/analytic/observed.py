"""What iterations that somebody measured say about computed times: by how much computing takes longer, or shorter.

An iteration is computing, messages between stages, sums, and waits. Its settings say what each of these takes as
computed; computing is then corrected until the iteration, planned as 1F1B, takes what it took. So one number is learned
from one time, and errors of the network go into it. Where timers tell what a stage's passes take, F has a number of its
own and I with W another, neither of which the network touches; the whole iteration is then left to check them by.

Timers of the last stage say what that stage takes. Of timers over all ranks the least is that of the stage that is
computed to take least, and the most that of the one that takes most; each gives a number, and their middle counts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isclose
from statistics import median

from ...schemas.errors import InvalidInputError
from ...schemas.gpus import Gpu
from ...schemas.gpus import gpu as known_gpu
from ...schemas.plan import Plan
from ...schemas.profile import FEWEST_FOR_A_SPREAD, Layer, Profile, half_width
from ...schemas.quantities import print_change, print_percent, print_share, print_time
from ...schemas.text import counted
from .costs import WORKS, DecoderShape, MicrobatchShape
from .estimate import UNCALIBRATED, Calibration, Correction, Corrections, Learned, analytic_profile, rates_of

Extremes = tuple[float | None, float]  # of all ranks, the least (None: nobody says) and the most, in s
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
        ranges_s: extremes of F, and of the backward pass, over all ranks, a pair for each reading.
        steps_s: extremes of the optimizer step over all ranks, one for each reading.
        stages_s: F and the backward pass of each stage, medians over its ranks, a list for each reading; empty where
            no rank's own times are told.
        shards_optimizer: each pipeline steps its share of a stage's parameters, as in ZeRO-1.
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
    ranges_s: Sequence[tuple[Extremes, Extremes]] = ()
    steps_s: Sequence[Extremes] = ()
    stages_s: Sequence[Sequence[tuple[float, float]]] = ()
    shards_optimizer: bool = False
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
    is_timed = bool(run.passes_s or run.ranges_s)
    corrections, remarks = (_from_passes if is_timed else _from_iterations)(run, measured_on, plan_of)
    return learned_of(run, device, corrections, remarks)


def learned_of(
    run: ObservedRun, device: Gpu, corrections: Calibration, remarks: Sequence[str], called: str | None = None
) -> Learned:
    """What was learned from a run, with how far it goes for a GPU; `called` as for `about_gpus`."""
    words = f"{run.source}: {run.words}"
    told = (*remarks, *about_gpus(run.gpu, device, run.source, called))
    return Learned(corrections, run.batch.dtype, run.shape.parameters, run.batch.tokens, words, told)


def about_gpus(measured_on: str | None, device: Gpu, source: str, called: str | None = None) -> list[str]:
    """What is to be said of the GPU that was measured, where it is not surely the one that is computed for.

    Args:
        measured_on: its name in rtk's table; None where nobody says, or it is not there.
        device: that is computed for.
        source: whence the times are known.
        called: what the driver calls it; None where nobody says.
    """
    if measured_on is None:
        what = f"{source} does not say on which GPU" if called is None else f"{source} is of {called}, which rtk lacks"
        return [f"{what}: it is taken to be {device.name}"]
    if measured_on == device.name:
        return []
    return [
        f"measured on {measured_on}, used for {device.name}: by how much computed times are wrong is taken to "
        "be the same on both"
    ]


@dataclass(frozen=True, slots=True)
class _Factor:
    """Measured over computed, by the stage that takes least (None: nobody says) and by the one that takes most.

    `sure` says for people how far readings lie apart.
    """

    least: float | None
    most: float
    sure: str

    @property
    def middle(self) -> float:
        """What counts."""
        return self.most if self.least is None else (self.least + self.most) / 2


def _from_passes(run: ObservedRun, device: Gpu, plan_of: PlanOf) -> tuple[Calibration, list[str]]:
    """One number for F and one for I and W, by timers of stages; the iteration is what they are checked by."""
    readings = run.ranges_s or [((ahead_s, ahead_s), (back_s, back_s)) for ahead_s, back_s in run.passes_s]
    timed = slice(None) if run.ranges_s else slice(-1, None)
    what = "" if run.ranges_s else " of the last stage"
    ahead, back = ([one[place] for one in readings] for place in (0, 1))

    def stages_s(forward: float, backward: float, place: int) -> list[float]:
        return [one[place] for one in _passes_of_stages(run, device, forward, backward)[timed]]

    forward = _factor(run, f"forward pass{what}", ahead, lambda one: stages_s(one, one, 0))
    backward = _factor(run, f"backward pass{what}", back, lambda one: stages_s(forward.middle, one, 1))
    step = _step_factor(run, device)
    corrections = _corrected(forward.middle, backward.middle, step.middle if step else 1.0)
    remarks = [
        f"learned from {counted(len(readings), 'reading')} of {run.source} ({run.words}): "
        f"F takes {forward.middle:.3f} of what is computed{forward.sure}, "
        f"the backward pass {backward.middle:.3f}{backward.sure}"
    ]
    if forward.least is not None and backward.least is not None and run.ranges_s:
        remarks.append(
            f"by the ranks that take least and most: F {forward.least:.3f} and {forward.most:.3f}, the backward pass "
            f"{backward.least:.3f} and {backward.most:.3f}; the middle counts"
        )
    return corrections, [*remarks, *_told_step(step), *compared(run, device, plan_of, corrections)]


def compared(run: ObservedRun, device: Gpu, plan_of: PlanOf, corrections: Calibration) -> list[str]:
    """What an iteration takes with these corrections, and as measured, for people."""
    if not run.iterations_s:
        return []
    measured_s = median(run.iterations_s)
    computed_s = _iteration_s(run, device, plan_of, corrections)
    off = computed_s / measured_s - 1
    told = f"an iteration then takes {print_time(computed_s)} as computed, {print_time(measured_s)} as measured"
    doubt = "check the network (--cluster)" if abs(off) > DOUBTFUL else "messages, sums and waits fit"
    return [f"{told} ({print_change(off)}): {doubt}"]


def _factor(
    run: ObservedRun, what: str, readings: Sequence[Extremes], stages_s: Callable[[float], Sequence[float]]
) -> _Factor:
    """By what the computing of stages must be multiplied for the least and the most of them to be as measured.

    Each stage's time is linear in that. As it grows stages reach a time one after the other: all are above it with the
    last of them, and one is with the first.
    """
    idle_s = stages_s(0.0)
    computing_s = [once - idle for once, idle in zip(stages_s(1.0), idle_s, strict=True)]
    leasts, mosts = [least for least, _ in readings if least is not None], [most for _, most in readings]

    def factors(measured_s: float) -> list[float]:
        return [(measured_s - idle) / computing for idle, computing in zip(idle_s, computing_s, strict=True)]

    most = min(factors(median(mosts)))
    least = max(factors(median(leasts))) if leasts else None
    _require(most if least is None else min(least, most), run, median(leasts or mosts), what, max(idle_s))
    return _Factor(least, most, sure(mosts))


def _step_factor(run: ObservedRun, device: Gpu) -> _Factor | None:
    """Of the optimizer step, where its timers are there."""
    if not run.steps_s:
        return None
    ranks = run.dp if run.shards_optimizer else 1
    steps_s = [
        sum(layer.costs[0].optimizer_s for layer in stage) / ranks
        for stage in _stages(run, _profile(run, device, UNCALIBRATED))
    ]
    return _factor(run, "optimizer step", run.steps_s, lambda factor: [factor * step_s for step_s in steps_s])


def _told_step(step: _Factor | None) -> list[str]:
    return [f"the optimizer step takes {step.middle:.3f} of what is computed{step.sure}"] if step else []


def _from_iterations(run: ObservedRun, device: Gpu, plan_of: PlanOf) -> tuple[Calibration, list[str]]:
    """One number for all computing, with which an iteration takes what it took."""
    measured_s, step = median(run.iterations_s), _step_factor(run, device)

    def corrected(factor: float) -> Calibration:
        return _corrected(factor, factor, step.middle if step else 1.0)

    def iteration_s(factor: float) -> float:
        return _iteration_s(run, device, plan_of, corrected(factor))

    idle_s, as_computed_s = iteration_s(0.0), iteration_s(1.0)
    _require(measured_s - idle_s, run, measured_s, "iteration", idle_s)
    low, low_s, high, high_s = 0.0, idle_s, 1.0, as_computed_s
    while high_s < measured_s:
        low, low_s, high = high, high_s, 2 * high
        high_s = iteration_s(high)
    factor = high
    for step_number in range(MOST_STEPS):  # the time only grows with the factor, piece by piece linearly
        along = (measured_s - low_s) / (high_s - low_s) if step_number % 2 == 0 else 0.5
        factor = low + along * (high - low)
        time_s = iteration_s(factor)
        if isclose(time_s, measured_s, rel_tol=CLOSE):
            break
        if time_s < measured_s:
            low, low_s = factor, time_s
        else:
            high, high_s = factor, time_s
    share = 1 - idle_s / measured_s
    return corrected(factor), [
        f"learned from {counted(len(run.iterations_s), 'iteration')} of {run.source} ({run.words}): computing takes "
        f"{factor:.3f} of what is computed{sure(run.iterations_s)}",
        f"one number for all computing, which is {print_percent(share)} of the iteration; whatever is wrong with the "
        "rest, messages and sums as computed, is in it",
        *_told_step(step),
    ]


def _require(is_above_zero: float, run: ObservedRun, measured_s: float, what: str, idle_s: float) -> None:
    if is_above_zero <= 0:
        raise InvalidInputError(
            f"the {what} took {print_time(measured_s)}, less than its messages and sums alone, {print_time(idle_s)} as "
            "computed",
            where=run.source,
            fix="say what network it had, with --cluster, and check the settings",
        )


def _corrected(forward: float, backward: float, step: float = 1.0) -> Calibration:
    """The same for all layers."""
    ahead, back, stepping = (Correction(factor, factor) for factor in (forward, backward, step))
    return {kind: Corrections(ahead, back, back, stepping) for kind in WORKS}


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
    ranks = run.dp if run.shards_optimizer else 1
    shared = {
        kind: replace(one, optimizer=Correction(one.optimizer.matrix / ranks, one.optimizer.rest / ranks))
        for kind, one in corrections.items()
    }
    return plan_of(_profile(run, device, shared), run).predicted.iteration_time_s


def _stages(run: ObservedRun, profile: Profile) -> list[tuple[Layer, ...]]:
    """Each stage's layers as Megatron shares them out: as many blocks for each, whatever they and the ends take.

    Of several chunks of a worker it is all together.
    """
    share, blocks = run.shape.blocks // run.pp, profile.layers[1:-1]
    stages = [blocks[share * stage : share * (stage + 1)] for stage in range(run.pp)]
    stages[0] = profile.layers[:1] + stages[0]
    stages[-1] += profile.layers[-1:]
    return stages


def _passes_of_stages(run: ObservedRun, device: Gpu, forward: float, backward: float) -> list[tuple[float, float]]:
    """F and the backward pass of a micro-batch in each stage."""
    found = []
    for stage in _stages(run, _profile(run, device, _corrected(forward, backward))):
        costs = [layer.costs[0] for layer in stage]
        found.append((sum(cost.forward_s for cost in costs), sum(cost.full_s for cost in costs)))
    return found


def sure(times_s: Sequence[float]) -> str:
    """How far readings lie apart, where there are enough of them to say so."""
    if len(times_s) < FEWEST_FOR_A_SPREAD:
        return "" if len(times_s) > 1 else " (one reading: how sure that is, it cannot say)"
    return f" (± {print_share(half_width(times_s) / median(times_s))})"
