"""Search over orders: simulated annealing that moves operations over their neighbours on a longest path.

The neighbourhood is that of P. van Laarhoven, E. Aarts and J. Lenstra, "Job shop scheduling by simulated annealing",
Operations Research 40, 1992, in which two operations that follow each other on a longest path change places: only a
change there can shorten it. We deviate where memory limits are tight and admit no such change by itself: half of the
moves are made anywhere, and an operation may move over several others. The search reaches orders that no rules give.
"""

from __future__ import annotations

import random
from math import exp

import numpy as np

from .problem import Orders, Problem
from .retime import Retimer

# Cooling, relative to the objective.
HOTTEST, COLDEST = 2e-3, 1e-4
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
        source, target = _move(retimer.reach(worker), place, chance)
        retimer.move(source, target)
        fitting = retimer.fits(worker, min(source, target), max(source, target))
        other_s = retimer.again_s() if fitting else float("inf")
        heat_s = best_s * HOTTEST * (COLDEST / HOTTEST) ** (run / runs)
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


def _move(reach: range, place: int, chance: random.Random) -> tuple[int, int]:
    """From where to where: the operation at a place forward in time, or the one before it back, mostly by one."""
    distance = 1
    while chance.random() < FURTHER:
        distance += 1
    if chance.random() < 0.5:
        return place, max(place - distance, reach[0])
    return place - 1, min(place - 1 + distance, reach[-1])
