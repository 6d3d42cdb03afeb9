"""Local search over rules: simulated annealing on each worker's warm-up, limits, look-ahead and priority.

S. Kirkpatrick et al., "Optimization by simulated annealing", Science 220, 1983. The neighbourhood is ours: one rule of
one worker, or of a run of neighbouring stages, changes by a step; the list scheduler turns rules into orders, so every
state is a valid schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import TypeVar

from .problem import Problem
from .rules import Priority, Rules

T = TypeVar("T")

WAITS = (0.0, 0.3, 0.5, 0.7, 1.0, 1.3)
BACKLOGS = (1, 2, 3, 4, 6, 8)
# Cooling from half a percent of the objective to a hundredth of that: differences between good schedules.
HOTTEST, COLDEST = 5e-3, 5e-5


def anneal(
    problem: Problem,
    start: Rules,
    value_s: Callable[[Rules], float],
    *,
    bound_s: float,
    runs: int,
    chance: random.Random,
) -> tuple[Rules, float]:
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


def _neighbour(problem: Problem, rules: Rules, chance: random.Random) -> Rules:
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
