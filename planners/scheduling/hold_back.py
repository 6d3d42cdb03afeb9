"""Holding stages back: a period is shorter if a stage that would starve starts later.

For the period a stage's window counts, from its first start to its last end. A stage whose F are quicker than those of
the stages before it waits between its first ones; had it started later, its window would be shorter by that. Orders
cannot say "wait", but they can say what comes first: a worker whose first F is not the first to arrive but, say, the
fifth, starts when that is there, and then has the others at hand. So each stage is held back for some number of F, as
long as that shortens the longest windows. It delays the stages after it, and I's way back, so how far is found by
trying.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from .windows import stage_windows

if TYPE_CHECKING:
    from .list_schedule import ListScheduler
    from .problem import Floats, Ints, Problem
    from .rules import Rules

# Windows this close to the longest one are shortened with it, relatively; so often without gain before it ends.
NEAR = 5e-3
PATIENCE = 8


def hold_back(
    problem: Problem, scheduler: ListScheduler, rules: Rules, *, goal_s: float, runs: int
) -> tuple[Rules, float]:
    """Rules that hold stages back for a shorter period.

    Args:
        problem: what is ordered; its period counts.
        scheduler: of this problem.
        rules: to start from.
        goal_s: the search ends at a period this short.
        runs: how many schedules to try at most.

    Returns:
        The best rules and their period in s.
    """
    group = problem.workers.group
    pace_s = _pace_s(problem)
    held = np.zeros(len(pace_s), dtype=np.int64)
    best, best_s, waited = rules, scheduler.run(rules), 0
    by_worker = list(rules.held_back) or [0] * len(group)
    while runs > 1 and best_s > goal_s and waited < PATIENCE:
        windows = stage_windows(problem, *scheduler.spans_s)
        beyond_s = windows.lengths_s - max(goal_s, best_s * (1 - NEAR))
        steps = np.where(beyond_s > 0, np.clip(beyond_s // pace_s, 1, problem.jobs), 0).astype(np.int64)
        held = np.where(windows.begin_s > 0, held + steps, 0)
        last, by_worker = by_worker, held[group].tolist()
        if by_worker == last:
            break  # nothing would change any more
        found = replace(rules, held_back=by_worker)
        found_s = scheduler.run(found)
        if not isfinite(found_s):
            break
        waited = 0 if found_s < best_s else waited + 1
        best, best_s = min((best, best_s), (found, found_s), key=lambda pair: pair[1])
        runs -= 1
    return best, best_s


def _pace_s(problem: Problem) -> Floats:
    """About how far apart F arrive at each group's workers, in s: as the slowest F of this stage and those before."""
    workers = problem.workers
    slowest_s = np.zeros(int(workers.stage.max()) + 1)
    np.maximum.at(slowest_s, workers.stage, workers.forward_s)
    stage: Ints = np.zeros(int(workers.group.max()) + 1, dtype=np.int64)
    stage[workers.group] = workers.stage
    pace_s: Floats = np.maximum.accumulate(slowest_s)[stage]
    return np.where(pace_s > 0, pace_s, np.inf)  # where F take no time, all are there at once
