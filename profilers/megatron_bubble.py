"""The bubble of a job of Megatron-LM by the timers in its log: what ranks computed, and what an iteration took.

`forward-compute` and `backward-compute` (`--timing-log-level 2`) are summed over the micro-batches of an iteration, so
what is left of the iteration is the bubble with all messages, sums and the step. Timers of every rank
(`--timing-log-option all`) tell each stage; the least and the most of all ranks tell how far stages lie apart, and
their middle stands for each; those of the last stage alone stand for all.
"""

from collections.abc import Sequence
from statistics import fmean, median

from ..schemas.bubble import StageBubble
from ..schemas.errors import InvalidInputError
from ..schemas.profile import Layer, LayerCost, Profile
from .analytic.observed import Extremes, ObservedRun
from .bubbles import IterationParts


def passes_of(run: ObservedRun) -> tuple[list[tuple[float, float]], str]:
    """F and the backward pass of each stage, for a micro-batch, in s, and what is to be known of them.

    Raises:
        InvalidInputError: the log has no timers.
    """
    if run.stages_s:
        readings = list(zip(*run.stages_s, strict=True))
        return [(median(f for f, _ in one), median(b for _, b in one)) for one in readings], ""
    if run.ranges_s:
        ahead_s, back_s = (median(_middle(one[place]) for one in run.ranges_s) for place in (0, 1))
        return [(ahead_s, back_s)] * run.pp, "the log has the least and the most of all ranks: each stage is the middle"
    if run.passes_s:
        ahead_s, back_s = (median(one[place] for one in run.passes_s) for place in (0, 1))
        return [
            (ahead_s, back_s)
        ] * run.pp, "the log has timers of the last stage only: each stage is taken to be alike"
    raise InvalidInputError(
        "the log has no timers, so it does not say what was computed",
        where=run.source,
        fix="train with --timing-log-level 2 --timing-log-option all",
    )


def _middle(extremes: Extremes) -> float:
    least, most = extremes
    return most if least is None else (least + most) / 2


def parts_of_log(run: ObservedRun) -> tuple[IterationParts, float]:
    """Divide the iterations of a log, stage by stage; and the imbalance that its timers tell.

    Raises:
        InvalidInputError: it has no timers, or does not say what iterations took.
    """
    if not run.iterations_s:
        raise InvalidInputError(
            "the log does not say what iterations took", where=run.source, fix="give one with --log-interval"
        )
    passes, remark = passes_of(run)
    iteration_s, step_s = fmean(run.iterations_s), _step_s(run)
    stages = []
    for stage, (ahead_s, back_s) in enumerate(passes):
        compute_s = min(run.microbatches * (ahead_s + back_s), iteration_s)
        stepped_s = min(step_s, iteration_s - compute_s)
        left_s = iteration_s - compute_s - stepped_s
        stages.append(StageBubble(stage, run.dp * run.tensor_parallel, compute_s, stepped_s, 0.0, left_s, 0.0))
    between = "timers do not say when a rank waited: all that is idle counts as between operations"
    said = (between, remark) if remark else (between,)
    return IterationParts(iteration_s, len(run.iterations_s), tuple(stages), said), _imbalance(run, stages)


def _step_s(run: ObservedRun) -> float:
    return median(most for _, most in run.steps_s) if run.steps_s else 0.0


def _imbalance(run: ObservedRun, stages: Sequence[StageBubble]) -> float:
    """The busiest stage over the mean, less 1; of the least and the most of ranks, the most over their middle."""
    if run.ranges_s and not run.stages_s:
        most_s = median(ahead[1] + back[1] for ahead, back in run.ranges_s)
        middle_s = median(_middle(ahead) + _middle(back) for ahead, back in run.ranges_s)
        return most_s / middle_s - 1 if middle_s else 0.0
    mean_s = fmean(one.compute_s for one in stages)
    return max(one.compute_s for one in stages) / mean_s - 1 if mean_s else 0.0


def profile_of_log(run: ObservedRun) -> Profile:
    """Its virtual stages as layers: a stage's divided evenly among its chunks, a backward pass into halves."""
    passes, _ = passes_of(run)
    step_s = _step_s(run) / run.chunks
    costs = [(f / run.chunks, b / 2 / run.chunks) for f, b in passes]
    return Profile(tuple(Layer((LayerCost(f, half, half, step_s),)) for _ in range(run.chunks) for f, half in costs))
