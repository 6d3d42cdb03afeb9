"""Pairs in given orders: a forward and a full backward that follow each other on a worker, run side by side.

DeepSeek's DualPipe and DualPipeV (2025) pair them in their steady phase; here it is wherever orders have them as
neighbours, and wherever that makes the iteration shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.problem import BACKWARD, FORWARD, KINDS, ROUNDING
from .scheduler import SeatScheduler, fits

if TYPE_CHECKING:
    from .problem import PlacedProblem, SeatOrders

# Operations that are timed in all to find out which neighbours are better off side by side: some tenths of a second.
TIMED_OPERATIONS = 4_000_000


def neighbours_paired(problem: PlacedProblem, orders: SeatOrders) -> SeatOrders:
    """Orders in which each F runs beside the full backward behind it, if there is one.

    Args:
        problem: what was ordered.
        orders: operation codes of each worker, without pairs.
    """
    return [_paired(problem, order) for order in orders]


def _paired(problem: PlacedProblem, order: Sequence[int]) -> list[int]:
    found, place = list(order), 0
    while place + 1 < len(found):
        if may_pair(problem, found[place], found[place + 1]):
            found[place] = ~found[place]
            place += 1
        place += 1
    return found


def may_pair(problem: PlacedProblem, one: int, other: int) -> bool:
    """Whether an operation is an F and another one a full backward, of unlike micro-batches."""
    if one % KINDS != FORWARD or other % KINDS != BACKWARD:
        return False
    job, stage = divmod(other // KINDS, problem.stages)
    return one // KINDS // problem.stages != job and not problem.split[job, stage]


def other_pairs(problem: PlacedProblem, orders: SeatOrders, bound_s: float) -> tuple[SeatOrders, float]:
    """Orders with neighbours paired, or parted, as long as that makes them shorter and they fit.

    Args:
        problem: what was ordered.
        orders: operation codes of each worker; an F of a pair as `~code`.
        bound_s: what no orders undercut, in s; the search ends there.

    Returns:
        The orders, and their makespan or period in s.
    """
    scheduler = SeatScheduler(problem, runs=TIMED_OPERATIONS // problem.operations)
    best, best_s = [list(order) for order in orders], scheduler.value_s(orders)
    left = TIMED_OPERATIONS // problem.operations
    is_better = True
    while is_better and left > 0:
        is_better = False
        for order in best:
            place = 0
            while place + 1 < len(order) and left > 0 and best_s > bound_s * (1 + ROUNDING):
                kept = order[place : place + 2]
                for other in _otherwise(problem, kept):
                    order[place : place + 2] = other
                    left -= 1
                    found_s = scheduler.value_s(best)
                    if found_s < best_s * (1 - ROUNDING) and fits(problem, best):
                        best_s, kept, is_better = found_s, list(other), True
                order[place : place + 2] = kept
                place += 2 if order[place] < 0 else 1
    return best, best_s


def _otherwise(problem: PlacedProblem, both: Sequence[int]) -> list[list[int]]:
    """Two neighbours side by side, if they may; a pair one after the other, either first."""
    one, other = both
    if one < 0:
        return [[~one, other], [other, ~one]]
    if other < 0:
        return []
    if may_pair(problem, one, other):
        return [[~one, other]]
    return [[~other, one]] if may_pair(problem, other, one) else []


def with_others_split(problem: PlacedProblem, orders: SeatOrders) -> tuple[PlacedProblem, SeatOrders]:
    """The problem in which only backwards that run beside a forward are full ones, and orders for it that last as long.

    Args:
        problem: of full backwards.
        orders: operation codes of each worker; an F of a pair as `~code`.
    """
    split = np.ones(problem.executor.size, dtype=np.bool_)
    for order in orders:
        split[[other // KINDS for one, other in pairwise(order) if one < 0]] = False
    found = []
    for order in orders:
        alone = (one >= 0 and one % KINDS == BACKWARD and split[one // KINDS] for one in order)
        parts = ([one, one + 1] if is_split else [one] for one, is_split in zip(order, alone, strict=True))
        found.append(list(chain.from_iterable(parts)))
    return replace(problem, split=split.reshape(problem.split.shape)), found


def neighbours_joined(problem: PlacedProblem, orders: SeatOrders) -> tuple[PlacedProblem, SeatOrders]:
    """Split orders in which each F runs beside the I and W behind it: a problem in which these are a B, and its orders.

    So DualPipeV has it: pairs of F and B, and B in halves where no F is left to run beside it.

    Args:
        problem: with all backwards split.
        orders: operation codes of each worker, without pairs.
    """
    split = problem.split.ravel().copy()
    found = []
    for order in orders:
        joined, place = [], 0
        while place < len(order):
            ahead, *halves = (*order[place : place + 3], -1, -1)[:3]
            cell = halves[0] // KINDS
            is_whole = halves[0] % KINDS == BACKWARD and halves[1] == halves[0] + 1
            if ahead % KINDS == FORWARD and is_whole and ahead // KINDS // problem.stages != cell // problem.stages:
                joined += [~ahead, halves[0]]
                split[cell] = False
                place += 3
            else:
                joined.append(ahead)
                place += 1
        found.append(joined)
    return replace(problem, split=split.reshape(problem.split.shape)), found
