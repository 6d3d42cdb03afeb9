"""What an entry of an atlas promises: memory by stage, the most that one of its workers holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.plan import Prediction
from ..scheduling.assemble import bubble_ratio, prediction_of, promise, work_s
from ..scheduling.proof import ROUNDING
from .rotation_search import RotationSchedule
from .slot_search import SlotSchedule, SlotSearch

if TYPE_CHECKING:
    from ..scheduling.problem import Orders, Problem


def promise_of_slots(search: SlotSearch, dead: Sequence[int], found: SlotSchedule) -> Prediction:
    """What slots promise: their orders take no longer, and just as long where makespan and period are at their bounds.

    Args:
        search: that has made the schedule.
        dead: workers of each stage.
        found: the schedule.
    """
    live = search.pipelines - np.array(dead)
    values_s = (found.times.makespan_s, found.times.period_s)
    whole_work_s = work_s(search.of_pipeline) * search.pipelines
    bubbles = bubble_ratio(whole_work_s, int(live.sum()), values_s[search.staggered])
    peaks = search.peaks_bytes(found.slots, found.rules)
    made = promise(values_s, search.staggered, found.bound_s, bubbles, peaks)
    return replace(made, proof_scope="all-routings")


def promise_of_rotation(search: SlotSearch, found: RotationSchedule) -> Prediction:
    """What workers in rotation promise; `search` as for slots."""
    assert search.rotation is not None
    scheduler = search.rotation.scheduler
    scheduler.run(found.live, found.targets)
    whole_work_s = work_s(search.of_pipeline) * search.pipelines
    bubbles = bubble_ratio(whole_work_s, int(found.live.sum()), found.value_s)
    made = promise(scheduler.times_s, search.staggered, found.bound_s, bubbles, scheduler.peaks_bytes)
    return replace(made, proof_scope="all-routings")


def is_exact(search: SlotSearch, dead: Sequence[int], found: SlotSchedule) -> bool:
    """Whether makespan and period of slots are both at their bounds; the arguments are those of `promise_of_slots`."""
    live = search.pipelines - np.array(dead)
    values_s = (found.times.makespan_s, found.times.period_s)
    bounds_s = (search.bound.value_s(live, staggered) for staggered in (False, True))
    return all(value_s <= bound_s * (1 + ROUNDING) for value_s, bound_s in zip(values_s, bounds_s, strict=True))


def promise_of_orders(problem: Problem, orders: Orders, bound_s: float) -> Prediction:
    """What orders promise.

    Args:
        problem: with their routing.
        orders: operation codes of each worker.
        bound_s: on the iteration time.
    """
    whole = prediction_of(problem, orders, bound_s)
    peaks = by_stage(problem, whole.peak_memory_bytes)
    return replace(whole, peak_memory_bytes=peaks, proof_scope="all-routings")


def by_stage(problem: Problem, peaks_bytes: Sequence[float]) -> tuple[float, ...]:
    """The most that a worker of each stage holds, given what each worker holds."""
    peaks = np.zeros(int(problem.workers.stage.max()) + 1)
    np.maximum.at(peaks, problem.workers.stage, peaks_bytes)
    return tuple(peaks.tolist())
