"""Local search over rules: simulated annealing on each worker's warm-up, limits, look-ahead and priority.

S. Kirkpatrick et al., "Optimization by simulated annealing", Science 220, 1983. The neighbourhood is ours: one rule of
one worker, or of a run of neighbouring stages, changes by a step; the list scheduler turns rules into orders, so every
state is a valid schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, exp, floor, isfinite
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .list_schedule import DispatchRules, Priority, rooms
from .problem import NO_WORKER, Orders, Problem, stage_windows
from .retime import Retimer

if TYPE_CHECKING:
    from .list_schedule import ListScheduler
    from .problem import Floats, Ints


T = TypeVar("T")

WAITS = (0.0, 0.3, 0.5, 0.7, 1.0, 1.3)
BACKLOGS = (1, 2, 3, 4, 6, 8)
# Cooling from half a percent of the objective to a hundredth of that: differences between good schedules.
HOTTEST, COLDEST = 5e-3, 5e-5


def anneal(
    problem: Problem,
    start: DispatchRules,
    value_s: Callable[[DispatchRules], float],
    *,
    bound_s: float,
    runs: int,
    chance: random.Random,
) -> tuple[DispatchRules, float]:
    """Improve rules.

    Args:
        problem: what is ordered.
        start: rules to start from.
        value_s: schedules by rules and returns the objective, in s.
        bound_s: the search ends at a schedule this good.
        runs: how many rules to try.
        chance: the source of randomness.

    Returns:
        The best rules and their objective in s.
    """
    current, current_s = start, value_s(start)
    best, best_s = current, current_s
    for run in range(runs):
        if best_s <= bound_s:
            break
        heat_s = best_s * HOTTEST * (COLDEST / HOTTEST) ** (run / runs)
        other = _neighbour(problem, current, chance)
        other_s = value_s(other)
        if other_s <= current_s or chance.random() < exp((current_s - other_s) / heat_s):
            current, current_s = other, other_s
        if other_s < best_s:
            best, best_s = other, other_s
    return best, best_s


def _neighbour(problem: Problem, rules: DispatchRules, chance: random.Random) -> DispatchRules:
    """The rules with one kind of rule changed for one worker, or for a run of them."""
    count = len(rules.warmup)
    first = chance.randrange(count)
    stop = first + 1 if chance.random() < 0.6 else min(count, first + chance.randint(1, count))
    chosen = range(first, stop)
    match chance.randrange(5):
        case 0:
            step = chance.choice((-2, -1, 1, 2))
            return replace(rules, warmup=_with(rules.warmup, chosen, lambda x: min(max(x + step, 1), problem.jobs)))
        case 1:
            limits = _with(rules.in_flight, chosen, _new_limit(problem, rules.warmup[first], chance))
            return replace(rules, in_flight=limits)
        case 2:
            wait = chance.choice(WAITS)
            return replace(rules, weight_wait=_with(rules.weight_wait, chosen, lambda _: wait))
        case 3:
            backlog = chance.choice((*BACKLOGS, problem.jobs))
            return replace(rules, backlog=_with(rules.backlog, chosen, lambda _: backlog))
        case _:
            priority = chance.choice(list(Priority))
            return replace(rules, priority=_with(rules.priority, chosen, lambda _: priority))


def _new_limit(problem: Problem, warmup: int, chance: random.Random) -> Callable[[int], int]:
    """Another in-flight limit: none, the warm-up or one more, or a step from the present one."""
    if chance.random() < 0.5:
        limit = chance.choice((problem.jobs, warmup, warmup + 1))
        return lambda _: limit
    step = chance.choice((-1, 1))
    return lambda x: min(max(x + step, 1), problem.jobs)


def _with(values: Sequence[T], chosen: range, change: Callable[[T], T]) -> list[T]:
    return [change(value) if at in chosen else value for at, value in enumerate(values)]


# The portfolio: rules worth trying on any problem, the most promising first.


FIRST_WAITS = (0.0, 0.5, 1.0)


def portfolio(problem: Problem) -> Iterator[DispatchRules]:
    """All combinations of warm-ups, in-flight limits, look-ahead, backlog and priorities, each once.

    Only W can wait or pile up, so a problem without split backwards has fewer; in-flight limits and backlogs matter
    where memory is limited, and come only there.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    room = rooms(problem)
    tight = any(most < count for most, count in zip(room, problem.job_counts.tolist(), strict=True))
    split = bool(problem.split.any())
    waits = FIRST_WAITS if split else (0.0,)
    backlogs = (problem.jobs, 1, 2, 4) if split and tight else (problem.jobs,)
    margins = (None, 0, 1) if tight or not split else (None,)
    priorities = [p for p in Priority if p != Priority.UNBLOCK or (split and tight)]
    seen = set()
    for backlog, margin, wait, priority, warmup in product(backlogs, margins, waits, priorities, warmups(problem)):
        capped = tuple(min(x, most) for x, most in zip(warmup, room, strict=True))
        in_flight = tuple(problem.jobs if margin is None else min(x + margin, problem.jobs) for x in capped)
        key = (backlog, in_flight, wait, priority, capped)
        if key not in seen:
            seen.add(key)
            count = len(capped)
            yield DispatchRules(capped, in_flight, [wait] * count, [backlog] * count, [priority] * count)


def warmups(problem: Problem) -> list[tuple[int, ...]]:
    """Warm-ups of each worker: of zero bubble, of 1F1B, none, half more than 1F1B, a round trip's worth, and all."""
    after = problem.depth[problem.workers.pipeline] - problem.workers.stage
    # How many F fit between an F and the return of its I, at the pace of the worker's own F and I, and one more.
    workers = problem.workers
    pace_s = workers.forward_s + workers.input_s
    longest = np.ones(len(pace_s), dtype=np.int64)
    for route, hops in zip(*_distinct_routes(problem), strict=True):
        back_s = 0.0
        for stage in reversed(range(len(route))):
            worker = route[stage]
            back_s += pace_s[worker] + (2 * hops[stage] if stage + 1 < len(route) else 0.0)
            trips = floor(min(back_s / pace_s[worker], problem.jobs)) + 1 if pace_s[worker] > 0 else problem.jobs
            longest[worker] = max(longest[worker], trips)
    shapes: Sequence[Sequence[int]] = (
        [2 * n - 1 for n in after.tolist()],
        [1] * len(after),
        after.tolist(),
        [ceil(1.5 * n) for n in after.tolist()],
        [int(n) for n in longest],
        [problem.jobs] * len(after),
    )
    return list(dict.fromkeys(tuple(shape) for shape in shapes))


def _distinct_routes(problem: Problem) -> tuple[list[list[int]], list[list[float]]]:
    """Each route with its hops' delays once."""
    found = {}
    for route, hops in zip(problem.executor.tolist(), problem.hop_s.tolist(), strict=True):
        found[tuple(route), tuple(hops)] = ([worker for worker in route if worker != NO_WORKER], hops)
    return [route for route, _ in found.values()], [hops for _, hops in found.values()]


# Search over orders: simulated annealing that moves operations over their neighbours on a longest path.
#
# The neighbourhood is that of P. van Laarhoven, E. Aarts and J. Lenstra, "Job shop scheduling by simulated annealing",
# Operations Research 40, 1992, in which two operations that follow each other on a longest path change places: only a
# change there can shorten it. We deviate where memory limits are tight and admit no such change by itself: half of the
# moves are made anywhere, and an operation may move over several others. The search reaches orders that no rules give.


# Cooling, relative to the objective.
ORDER_HOTTEST, ORDER_COLDEST = 2e-3, 1e-4
# The chance that a move is made anywhere, and that it goes further by one more place.
ANYWHERE, FURTHER = 0.5, 0.5


def improve_orders(
    problem: Problem, start: Orders, *, bound_s: float, runs: int, chance: random.Random
) -> tuple[Orders, float]:
    """Improve orders, operation by operation.

    Args:
        problem: what is ordered.
        start: valid orders to start from.
        bound_s: the search ends at orders this good.
        runs: how many moves to try.
        chance: the source of randomness.

    Returns:
        The best orders and their objective in s.
    """
    retimer = Retimer(problem, runs=runs)
    current_s = best_s = retimer.value_s(start)
    best, pairs = start, retimer.critical_pairs()
    busy = np.flatnonzero(problem.job_counts).tolist()
    for run in range(runs):
        if best_s <= bound_s:
            break
        worker, place = _place(retimer, busy, pairs, chance)
        # From where to where: the operation at a place forward in time, or the one before it back, mostly by one.
        reach = retimer.reach(worker)
        distance = 1
        while chance.random() < FURTHER:
            distance += 1
        if chance.random() < 0.5:
            source, target = place, max(place - distance, reach[0])
        else:
            source, target = place - 1, min(place - 1 + distance, reach[-1])
        retimer.move(source, target)
        fitting = retimer.fits(worker, min(source, target), max(source, target))
        other_s = retimer.again_s() if fitting else float("inf")
        heat_s = best_s * ORDER_HOTTEST * (ORDER_COLDEST / ORDER_HOTTEST) ** (run / runs)
        if other_s > current_s and chance.random() >= exp((current_s - other_s) / heat_s):
            retimer.move(target, source)
            continue
        current_s, pairs = other_s, retimer.critical_pairs()
        if other_s < best_s:
            best, best_s = retimer.orders(), other_s
    return best, best_s


def _place(retimer: Retimer, busy: list[int], pairs: list[tuple[int, int]], chance: random.Random) -> tuple[int, int]:
    """A worker, and a place of its order that has one before it: on a longest path, or anywhere."""
    if pairs and chance.random() >= ANYWHERE:
        return pairs[chance.randrange(len(pairs))]
    worker = busy[chance.randrange(len(busy))]
    reach = retimer.reach(worker)
    return worker, chance.randrange(reach[1], reach[-1] + 1)


# Holding stages back: a period is shorter if a stage that would starve starts later.
#
# For the period a stage's window counts, from its first start to its last end. A stage whose F are quicker than those
# of the stages before it waits between its first ones; had it started later, its window would be shorter by that.
# Orders cannot say "wait", but they can say what comes first: a worker whose first F is not the first to arrive but,
# say, the fifth, starts when that is there, and then has the others at hand. So each stage is held back for some number
# of F, as long as that shortens the longest windows. It delays the stages after it, and I's way back, so how far is
# found by trying.


# Windows this close to the longest one are shortened with it, relatively; so often without gain before it ends.
NEAR = 5e-3
PATIENCE = 8


def hold_back(
    problem: Problem, scheduler: ListScheduler, rules: DispatchRules, *, goal_s: float, runs: int
) -> tuple[DispatchRules, float]:
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
    # About how far apart F arrive at each group's workers, in s: as the slowest F of this stage and those before.
    workers = problem.workers
    slowest_s = np.zeros(int(workers.stage.max()) + 1)
    np.maximum.at(slowest_s, workers.stage, workers.forward_s)
    stage: Ints = np.zeros(int(workers.group.max()) + 1, dtype=np.int64)
    stage[workers.group] = workers.stage
    apart_s: Floats = np.maximum.accumulate(slowest_s)[stage]
    pace_s = np.where(apart_s > 0, apart_s, np.inf)  # where F take no time, all are there at once
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
