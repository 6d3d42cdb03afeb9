"""What a run's pipeline lost, beside what its schedule must lose: `rtk bubble`.

It stands at the root because the profilers read what ran, and the planners know what its orders must take.
"""

from statistics import fmean
from typing import TYPE_CHECKING, Any

from .schemas.errors import InvalidInputError, RtkError

if TYPE_CHECKING:
    from .planners.explain.improvements import MeasuredPipeline
    from .profilers.analytic.observed import ObservedRun
    from .profilers.bubbles import IterationParts
    from .profilers.pipeline_run import PipelineRun
    from .schemas.bubble import BubbleBound, BubbleReport
    from .schemas.plan import Plan


def bubble(*traces: str, plan: "Plan | None" = None) -> "BubbleReport":
    """Say where the time of a pipeline's iterations went, what its schedule must take, and what would help most.

    Args:
        traces: files of one run: a timeline, simulated or measured; traces of torch's profiler, a file a rank or the
            folder that holds them; or a log of Megatron-LM with timers.
        plan: that was run; what it promised is told beside.

    Raises:
        InvalidInputError: a file is damaged, or of no pipeline; ranks are missing, or are of different jobs; the plan
            is another one's.
    """
    from .profilers.pipeline_run import is_log, read_run

    if not traces:
        raise InvalidInputError("nothing was given", where="TRACE", fix="give a timeline, traces or a log")
    if len(traces) == 1 and is_log(traces[0]):
        from .profilers.analytic.megatron_log import read_megatron_log

        return _of_log(read_megatron_log(traces[0]), plan)
    return _of_run(read_run(traces), plan)


def _of_run(run: "PipelineRun", plan: "Plan | None") -> "BubbleReport":
    from .planners.explain.improvements import MeasuredPipeline
    from .profilers.bubbles import parts_of
    from .schemas.bubble import BubbleReport
    from .schemas.columns import worker_place
    from .schemas.documents import digest

    if plan is not None and run.timeline.plan not in (None, digest(plan)):
        raise InvalidInputError(
            f"the timeline is of another plan (sha256 {str(run.timeline.plan)[:12]}…)",
            where=f"{run.name}, /plan",
            fix="give the plan that was run: --plan",
        )
    parts, bound = parts_of(run), None
    remarks: tuple[str, ...] = ("micro-batches were re-routed: rtk explain PLAN tells what would help",)
    if not run.is_rerouted:
        slow = {worker_place(one.worker.partition(":")[0]): one.ratio for one in run.readings()[1]}
        measured = MeasuredPipeline(
            run.name, run.profile(), run.orders(), run.placement, run.microbatches, len(run.pipelines), run.sums_s(),
            run.delays_s(), slow, run.is_fused,
        )  # fmt: skip
        bound, remarks = _bound_of(measured)
    mean_s = fmean(one.compute_s for one in parts.stages)
    return BubbleReport(
        source=run.timeline.source, read=run.name, clock=run.clock, microbatches=run.microbatches,
        virtual_stages=max(map(len, run.placement)), pipelines=len(run.pipelines), bound=bound,
        imbalance=max(one.compute_s for one in parts.stages) / mean_s - 1 if mean_s else 0.0,
        planned_s=_promised_s(plan), remarks=(*parts.remarks, *remarks), **_shares(parts),
    )  # fmt: skip


def _of_log(run: "ObservedRun", plan: "Plan | None") -> "BubbleReport":
    from .planners.explain.improvements import MeasuredPipeline
    from .planners.explain.recognised import megatron_orders
    from .profilers.megatron_bubble import parts_of_log, profile_of_log
    from .schemas.bubble import BubbleReport
    from .schemas.placement import loop_placement

    parts, imbalance = parts_of_log(run)
    orders = megatron_orders(run.pp, run.chunks, run.microbatches)
    measured = MeasuredPipeline(
        run.source, profile_of_log(run), orders, loop_placement(run.pp, run.chunks), run.microbatches, run.dp,
        [0.0] * (run.pp * run.chunks), {}, {}, is_fused=True,
    )  # fmt: skip
    bound, remarks = _bound_of(measured)
    return BubbleReport(
        source="measured", read=run.source, clock="timers", microbatches=run.microbatches, virtual_stages=run.chunks,
        pipelines=run.dp, bound=bound, imbalance=imbalance, planned_s=_promised_s(plan),
        remarks=(*parts.remarks, *remarks), **_shares(parts),
    )  # fmt: skip


def _bound_of(measured: "MeasuredPipeline") -> "tuple[BubbleBound | None, tuple[str, ...]]":
    """What the orders must take; None, and why, where no plan can be made of them."""
    from .planners.explain.improvements import bound_of_run

    try:
        return bound_of_run(measured), ()
    except RtkError as error:
        return None, (f"what the schedule must take is not told: {error.what}",)


def _promised_s(plan: "Plan | None") -> float | None:
    return None if plan is None or plan.prediction is None else plan.prediction.iteration_time_s


def _shares(parts: "IterationParts") -> dict[str, Any]:
    """The iteration time, and the shares that workers compute nothing, each worker counted once."""
    workers = sum(one.workers for one in parts.stages)
    compute_s = sum(one.workers * one.compute_s for one in parts.stages) / workers
    idle_s = sum(one.workers * one.idle_s for one in parts.stages) / workers
    return {
        "iterations": parts.iterations,
        "iteration_time_s": parts.iteration_time_s,
        "bubble_ratio": max(0.0, 1 - compute_s / parts.iteration_time_s) if parts.iteration_time_s else 0.0,
        "idle_over_compute": idle_s / compute_s if compute_s else 0.0,
        "stages": parts.stages,
    }
