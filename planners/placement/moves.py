"""Orders of small problems made better by moving single operations: what keys of whole kinds and stages cannot say.

Simulated annealing: an operation goes some places further or back in its worker's order. What locks up, or does not fit
in memory, is taken back.
"""

from __future__ import annotations

from itertools import accumulate
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.problem import BACKWARD, FORWARD, KINDS, ROUNDING, WEIGHT
from .scheduler import SeatScheduler

if TYPE_CHECKING:
    import random

    from .problem import PlacedProblem, SeatOrders

# How many moves are tried, a quarter of a second; and the most operations for which these are of any use.
MOVES = 20_000
MOVED_OPERATIONS = 400
# Cooling, relative to the objective; and how far an operation moves.
HOTTEST, COLDEST = 1e-3, 1e-4
PLACES = (1, 1, 1, 2, 2, 3, 4, 6)


def with_moves(problem: PlacedProblem, start: SeatOrders, bound_s: float, chance: random.Random) -> SeatOrders:
    """The best orders found on the way from some on, which fit if these do; these where there are too many operations.

    Args:
        problem: whose operations.
        start: orders that do not deadlock.
        bound_s: what no orders undercut, in s; the search ends there.
        chance: the source of randomness.
    """
    if problem.operations > MOVED_OPERATIONS:
        return start
    scheduler = SeatScheduler(problem, runs=MOVES)
    orders = [list(order) for order in start]
    best, best_s = [list(order) for order in start], scheduler.value_s(start)
    current_s = best_s
    more_bytes, limit_bytes = _more_bytes(problem), (problem.limit_bytes * (1 + ROUNDING)).tolist()
    busy = [worker for worker, order in enumerate(orders) if len(order) > 1]
    for move in range(MOVES):
        if best_s <= bound_s * (1 + ROUNDING):
            break
        worker = chance.choice(busy)
        order = orders[worker]
        at = chance.randrange(len(order))
        to = min(max(0, at + chance.choice(PLACES) * chance.choice((-1, 1))), len(order) - 1)
        order.insert(to, order.pop(at))
        held_bytes = max(accumulate(map(more_bytes.__getitem__, order)))
        other_s = scheduler.value_s(orders) if held_bytes <= limit_bytes[worker] else np.inf
        heat_s = best_s * HOTTEST * (COLDEST / HOTTEST) ** (move / MOVES)
        if other_s <= current_s or chance.random() < exp((current_s - other_s) / heat_s):
            current_s = other_s
        else:
            order.insert(at, order.pop(to))
        if current_s < best_s * (1 - ROUNDING):
            best, best_s = [list(one) for one in orders], current_s
    return best


def _more_bytes(problem: PlacedProblem) -> list[float]:
    """What each operation adds to what its worker holds, by its code."""
    stash_bytes = np.where(problem.split, problem.stash_bytes, 0.0)
    found = np.zeros((*problem.executor.shape, KINDS))
    found[..., FORWARD] = problem.activation_bytes
    found[..., BACKWARD] = stash_bytes - problem.activation_bytes
    found[..., WEIGHT] = -stash_bytes
    more: list[float] = found.ravel().tolist()
    return more
