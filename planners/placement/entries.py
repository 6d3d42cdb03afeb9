"""When micro-batches should enter under a tight limit, decided one after the other.

Where memory binds, good orders have micro-batches that enter at uneven times and then go through with nothing that
waits but W: whoever waits on the way keeps its activations, and others out. So priorities are greedy, and all that is
chosen are the times from one entry to the next. A beam search does that: of the first n micro-batches alone the best
few choices are kept, and each is tried with some ways to let the next one in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .rules import greedy, pace_s
from .scheduler import DueTimes, SeatScheduler

if TYPE_CHECKING:
    from .problem import Floats, PlacedProblem

# From one entry to the next, in paces. With equal costs these are even numbers of operations: in a V whatever enters an
# odd number later meets the one before on some worker.
APART = (1 / 3, 2 / 3, 1.0, 4 / 3, 2.0, 7 / 3)
# How many choices are kept, and the most operations that may be scheduled in all: half a second of machine code.
WIDTH = 32
ENTRIES_OPERATIONS = 5_000_000


class _Entries(NamedTuple):
    """When the first micro-batches enter, how long they take by that, and the sum of all ends, in s."""

    value_s: float
    ends_s: float
    enters_s: tuple[float, ...]


def one_by_one(problem: PlacedProblem, worth_s: float = np.inf) -> DueTimes | None:
    """Greedy priorities with the entries found; None without limits, and where there are too many operations.

    Args:
        problem: what to order, for the makespan or the period.
        worth_s: given up with None once micro-batches at the pace of the busiest worker would bring it here, in s.
    """
    tries = WIDTH * len(APART) * max(1, problem.jobs // 2)
    if tries * problem.operations > ENTRIES_OPERATIONS or not np.isfinite(problem.limit_bytes).any():
        return None
    offset_s, whole_s = greedy(problem.with_objective(False))[0].offset_s, pace_s(problem)
    kept = [_Entries(0.0, 0.0, (0.0,))]
    for count in range(2, problem.jobs + 1):
        kept = _next_entries(_first_jobs(problem, count), offset_s, kept, whole_s)
        if kept[0].value_s + (problem.jobs - count) * whole_s >= worth_s:
            return None
    return DueTimes(np.zeros(problem.jobs), offset_s, np.array(kept[0].enters_s))


def _next_entries(problem: PlacedProblem, offset_s: Floats, kept: list[_Entries], whole_s: float) -> list[_Entries]:
    """The best entries of one micro-batch more; of those with equal values and ends only one."""
    # Few operations, but there are as many such searches as micro-batches.
    scheduler = SeatScheduler(problem, runs=len(kept) * len(APART) * problem.jobs)
    due_s = np.zeros(problem.jobs)
    found: dict[tuple[float, float], _Entries] = {}
    for before in kept:
        for apart in APART:
            enters_s = (*before.enters_s, before.enters_s[-1] + apart * whole_s)
            value_s = scheduler.run(DueTimes(due_s, offset_s, np.array(enters_s)))
            ends_s = float(scheduler.operations_s[1].sum())
            found.setdefault((value_s, ends_s), _Entries(value_s, ends_s, enters_s))
    return sorted(found.values())[:WIDTH]


def _first_jobs(problem: PlacedProblem, count: int) -> PlacedProblem:
    """The problem with its first jobs only."""
    return replace(
        problem,
        origin=problem.origin[:count],
        microbatch=problem.microbatch[:count],
        executor=problem.executor[:count],
        split=problem.split[:count],
        hop_s=problem.hop_s[:count],
    )
