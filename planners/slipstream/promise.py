"""What an entry of an atlas promises, without its orders being written out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.atlas import AtlasPrediction
from ..scheduling.assemble import peaks_bytes, work_s
from ..scheduling.retime import Retimer
from ..scheduling.solve import ROUNDING
from ..scheduling.windows import stage_windows
from .slot_search import SlotSchedule, SlotSearch

if TYPE_CHECKING:
    from ..scheduling.problem import Orders, Problem


def promise_of_slots(search: SlotSearch, dead: Sequence[int], found: SlotSchedule) -> AtlasPrediction | None:
    """What slots promise; None unless makespan and period are both at their bounds, and so those of the orders.

    Args:
        search: that has made the schedule.
        dead: workers of each stage.
        found: the schedule.
    """
    live = search.pipelines - np.array(dead)
    values_s = (found.times.makespan_s, found.times.period_s)
    bounds_s = [search.bound.value_s(live, staggered) for staggered in (False, True)]
    if any(value_s > bound_s * (1 + ROUNDING) for value_s, bound_s in zip(values_s, bounds_s, strict=True)):
        return None
    peaks = search.peaks_bytes(found.slots, found.rules)
    busy_s = work_s(search.of_pipeline) * search.pipelines
    return _promise(values_s, found.bound_s, busy_s, int(live.sum()), search.staggered, peaks)


def promise_of_orders(problem: Problem, orders: Orders, bound_s: float) -> AtlasPrediction:
    """What orders promise.

    Args:
        problem: with their routing.
        orders: operation codes of each worker.
        bound_s: on the iteration time.
    """
    retimer = Retimer(problem)
    retimer.value_s(orders)
    windows = stage_windows(problem, *retimer.spans_s)
    peaks = np.zeros(int(problem.workers.stage.max()) + 1)
    np.maximum.at(peaks, problem.workers.stage, peaks_bytes(problem, orders))
    values_s = windows.makespan_s, windows.period_s
    live = int(problem.workers.live.sum())
    return _promise(values_s, bound_s, work_s(problem), live, problem.staggered, peaks.tolist())


def _promise(
    values_s: tuple[float, float],
    bound_s: float,
    busy_s: float,
    live: int,
    staggered: bool,
    peaks: Sequence[float],
) -> AtlasPrediction:
    iteration_s = values_s[staggered]
    if abs(iteration_s - bound_s) <= ROUNDING * iteration_s:
        bound_s = iteration_s
    return AtlasPrediction(
        iteration_time_s=iteration_s,
        makespan_s=values_s[0],
        period_s=values_s[1],
        lower_bound_s=bound_s,
        gap=iteration_s / bound_s - 1 if bound_s else 0.0,
        proof="optimal" if iteration_s == bound_s else "bound",
        bubble_ratio=max(0.0, 1 - busy_s / (live * iteration_s)) if iteration_s else 0.0,
        peak_memory_bytes=tuple(peaks),
    )
