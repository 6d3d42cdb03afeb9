"""One iteration of a plan as columns: what `simulate` gives without jitter, to the last bit, for millions of spans.

Times of operations are those that the plan was judged by (schemas/check.py); all-reduces and steps follow here.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schemas.check import timed_operations
from ..schemas.columns import TimelineColumns
from ..schemas.documents import digest
from ..schemas.orders import KINDS, NONE
from ..schemas.plan import Plan
from ..schemas.timeline import memory_of_workers
from .program import AllReduce, reductions, step_s
from .simulator import pace_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

OTHERS = ("allreduce", "step")
ALLREDUCE, STEP = len(KINDS), len(KINDS) + 1


def columns_of_plan(plan: Plan) -> TimelineColumns:
    """A valid plan, simulated: two iterations if its optimizers are staggered, for they overlap."""
    live = plan.live_workers()
    rank_of = np.full(len(plan.workers), -1)
    rank_of[[not worker.failed for worker in plan.workers]] = np.arange(len(live))
    operations, start_s, end_s = timed_operations(plan)
    rank = rank_of[np.repeat(np.arange(len(operations.counts)), operations.counts)]
    counts = np.bincount(rank, minlength=len(live))
    stop = np.cumsum(counts)
    begun_s = np.where(counts > 0, np.append(end_s, 0.0)[stop - 1], 0.0)
    first_s = np.where(counts > 0, np.append(start_s, 0.0)[stop - counts], np.inf)
    several = np.array([len(plan.seats_of(worker)) > 1 for worker in live])
    named = np.where(several[rank], operations.stage, NONE)
    sums = list(reductions(plan, live))
    tail_rank, tail_kind, tail_start_s, tail_end_s = _sums_and_steps(plan, sums, begun_s)
    home = np.array([worker.pipeline for worker in live], dtype=np.int64)
    rank = np.concatenate((rank, tail_rank))
    start_s = np.concatenate((start_s, tail_start_s))
    # In the order of a timeline: by start, and of equal ones by worker.
    order = np.argsort(rank, kind="stable")
    order = order[np.argsort(start_s[order], kind="stable")]
    columns = TimelineColumns(
        source="simulated",
        names=tuple(worker.name for worker in live),
        others=OTHERS,
        worker=rank[order],
        kind=np.concatenate((operations.kind, tail_kind))[order],
        pipeline=np.concatenate((operations.pipeline, home[tail_rank]))[order],
        microbatch=np.concatenate((operations.microbatch, np.zeros_like(tail_rank)))[order],
        stage=np.concatenate((named, np.full_like(tail_rank, NONE)))[order] if plan.is_placed else None,
        start_s=start_s[order],
        end_s=np.concatenate((end_s, tail_end_s))[order],
        iteration=np.zeros(len(order), dtype=np.int64),
        workers=memory_of_workers(plan),
        plan=digest(plan),
        layers={worker.name: tuple(one.layers for one in plan.stages_of(worker)) for worker in plan.workers},
        **_said_of(plan),
    )
    if plan.optimizer != "staggered":
        return columns
    _, period_s = pace_of(plan, sums, first_s.tolist(), begun_s.tolist())
    return _twice(columns, period_s)


def _said_of(plan: Plan) -> dict[str, Any]:
    """Model and schedule, as far as the planner has been told them, and what the plan promises."""
    options = plan.planner.options
    model, schedule = options.get("model"), options.get("schedule")
    return {
        "model": model if isinstance(model, str) else None,
        "schedule": schedule if isinstance(schedule, str) else plan.planner.name,
        "prediction": plan.prediction,
    }


def _sums_and_steps(plan: Plan, sums: list[AllReduce], begun_s: "Floats") -> "tuple[Ints, Ints, Floats, Floats]":
    """Rank, kind, start and end of what follows the operations, each rank's in their order.

    All ranks sum the last layers first, so part after part can be done for all its ranks at once.
    """
    rows: list[tuple[int, int, float, float]] = []
    now_s = begun_s.copy()
    parts = {part for one in sums for part in one.parts}
    for part in sorted(parts, key=lambda one: one.layers, reverse=True):
        ranks = list(part.ranks)
        start_s = float(now_s[ranks].max())
        now_s[ranks] = start_s + part.duration_s
        if part.duration_s:
            rows += [(rank, ALLREDUCE, start_s, start_s + part.duration_s) for rank in ranks]
    if plan.optimizer == "synchronous":
        now_s[:] = now_s.max(initial=0.0)
    for rank, worker in enumerate(plan.live_workers()):
        optimizer_s = step_s(plan, worker)
        if optimizer_s:
            rows.append((rank, STEP, float(now_s[rank]), float(now_s[rank]) + optimizer_s))
    ranks_, kinds, starts_s, ends_s = zip(*rows, strict=True) if rows else ((), (), (), ())
    return (
        np.array(ranks_, dtype=np.int64),
        np.array(kinds, dtype=np.int64),
        np.array(starts_s, dtype=np.float64),
        np.array(ends_s, dtype=np.float64),
    )


def _twice(columns: TimelineColumns, shift_s: float) -> TimelineColumns:
    """Two iterations, the second one a period later."""
    n = len(columns)
    both = columns.taken(np.tile(np.arange(n), 2))
    later = np.repeat([0.0, shift_s], n)
    start_s = both.start_s + later
    order = np.argsort(start_s, kind="stable")
    number = np.repeat(np.arange(2), n)
    return replace(both, start_s=start_s, end_s=both.end_s + later, iteration=number).taken(order)
