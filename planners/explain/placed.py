"""What binds a plan whose workers hold several virtual stages, and what changes of it are worth.

The bounds and the searches are those of `planners/placement/`, which know one template; of a plan with pipelines of
unlike templates the critical path is told, and who is busiest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..placement.bounds import SeatBound, lower_bound
from ..placement.problem import PlacedProblem, SeatOrders, ordered_placed_problem, work_s
from ..placement.scheduler import SeatScheduler, fits
from ..placement.search import solve
from ..scheduling.evaluate import OrderEvaluation
from ..scheduling.problem import ROUNDING
from ..scheduling.solve import Effort
from .binding import BindingBound, BindingLimit
from .what_if import FASTER, HALF, Alike, Change, Means, WhatIfReport, stages_of, what_if

if TYPE_CHECKING:
    from ..placement.problem import Ints

EVERY_COLUMN, EVERY_LINK = "every column", "every link"
# A search takes seconds where it does not reach its bound: that for the plan itself, and for the likeliest change.
MOST_SEARCHES = 2

PlacedChange = tuple[Change, PlacedProblem]


def weigh_placed(
    alike: Alike, evaluation: OrderEvaluation, names: Sequence[str], effort: Effort, searches: int
) -> tuple[BindingBound, WhatIfReport]:
    """The argument behind the bound of a plan with a placement, and what changes are worth.

    Args:
        alike: the plan, with one of each kind of pipelines.
        evaluation: its times.
        names: what to call its workers.
        effort: how hard to search for other orders.
        searches: how often at most.

    Returns:
        Of pipelines of unlike templates the work of the busiest worker, and no changes.
    """
    plan = alike.plan
    used = {pipeline.template for pipeline in plan.pipelines}
    if len(used) > 1:
        works_s = [
            math.fsum(timed.end_s - timed.start_s for timed in row if not timed.is_beside)
            for row in evaluation.operations
        ]
        most_s = max(works_s)
        busiest = BindingBound(most_s, 0.0, most_s, 0.0, names[works_s.index(most_s)], most_s, None, 0.0, ())
        return busiest, WhatIfReport(evaluation.iteration_time_s, 0.0, most_s, False, (), 0)
    plan = replace(plan, templates=tuple(template for template in plan.templates if template.name in used))
    problem, orders = ordered_placed_problem(plan)
    bound = _binding_bound(alike, problem, orders, names)
    changes = list(_changes_of(alike, problem))
    return bound, what_if(problem, orders, changes, effort, min(searches, MOST_SEARCHES), SEATS)


def _value_s(problem: PlacedProblem, orders: SeatOrders) -> float:
    return SeatScheduler(problem).value_s(orders)


def _bound_s(problem: PlacedProblem) -> float:
    return lower_bound(problem).value_s


def _valid_s(problem: PlacedProblem, orders: SeatOrders, below_s: float) -> float:
    found_s = _value_s(problem, orders)
    return found_s if found_s < below_s and fits(problem, orders) else math.inf


SEATS = Means(_value_s, _bound_s, lambda problem, effort: solve(problem, effort, _bound_s(problem)), _valid_s)


def _binding_bound(alike: Alike, problem: PlacedProblem, orders: SeatOrders, names: Sequence[str]) -> BindingBound:
    bound = lower_bound(problem)
    return BindingBound(
        value_s=bound.value_s,
        head_s=bound.head_s,
        work_s=bound.work_s,
        tail_s=bound.tail_s,
        worker=names[bound.worker],
        worker_s=float(work_s(problem)[bound.worker]),
        window=bound.window,
        memory_s=bound.value_s - bound.unlimited_s if bound.raised_by_memory else 0.0,
        limits=tuple(_binding_limits(alike, problem, bound)) if bound.raised_by_memory else (),
        argument=bound.argument,
    )


def _largest_bytes(problem: PlacedProblem, column: int) -> float:
    """The activation of a micro-batch at the virtual stage of a column that holds most."""
    return float(problem.activation_bytes[list(problem.seats[column])].max())


def _binding_limits(alike: Alike, problem: PlacedProblem, bound: SeatBound) -> Iterator[BindingLimit]:
    for where, column, members in stages_of(alike.plan):
        if _is_short(problem, members):
            limit_bytes = problem.limit_bytes.copy()
            limit_bytes[members] = np.inf
            without_s = _bound_s(replace(problem, limit_bytes=limit_bytes))
            if without_s < bound.value_s * (1 - ROUNDING):
                room = float(problem.limit_bytes[members].min()) / _largest_bytes(problem, column)
                yield BindingLimit(where, column, math.floor(room * (1 + ROUNDING)), None, without_s)


def _is_short(problem: PlacedProblem, members: Sequence[int]) -> bool:
    """Whether one of these workers cannot hold all that it runs at once."""
    held = [
        float(((problem.executor == worker) * problem.activation_bytes).sum()) > problem.limit_bytes[worker]
        for worker in members
    ]
    return any(held)


# The changes that can be tried: each is a relaxation, as those of what_if.py are.


def _changes_of(alike: Alike, problem: PlacedProblem) -> Iterator[PlacedChange]:
    yield from _memory(alike, problem)
    for where, column, members in stages_of(alike.plan):
        yield Change("compute", where, stages=(column,)), _with_times(problem, members, FASTER)
    for number, worker in enumerate(alike.plan.workers):
        if worker.slowdown is not None and worker.slowdown > 1 and not worker.failed:
            workers = alike.names_of(number)
            where = f"worker{'s' if len(workers) > 1 else ''} {', '.join(workers)}"
            change = Change("slowdown", where, workers=workers)
            yield change, _with_times(problem, [number], 1 / worker.slowdown)
    yield from _links(problem)
    if problem.allreduce_s.any():
        yield Change("allreduce", EVERY_COLUMN), replace(problem, allreduce_s=problem.allreduce_s * HALF)
    if problem.optimizer_s.any():
        yield Change("optimizer", EVERY_COLUMN), replace(problem, optimizer_s=problem.optimizer_s * HALF)


def _memory(alike: Alike, problem: PlacedProblem) -> Iterator[PlacedChange]:
    """One more activation, of its largest virtual stage, for each column that is short, and for all of these."""
    everywhere = problem.limit_bytes.copy()
    for where, column, members in stages_of(alike.plan):
        if _is_short(problem, members):
            extra_bytes = _largest_bytes(problem, column)
            limit_bytes = problem.limit_bytes.copy()
            limit_bytes[members] += extra_bytes
            everywhere[members] += extra_bytes
            change = Change("memory", where, stages=(column,), extra_bytes=extra_bytes)
            yield change, replace(problem, limit_bytes=limit_bytes)
    if (everywhere > problem.limit_bytes).any():
        yield Change("memory", EVERY_COLUMN), replace(problem, limit_bytes=everywhere)


def _with_times(problem: PlacedProblem, members: Sequence[int], factor: float) -> PlacedProblem:
    """Some workers' operation times multiplied."""
    duration_s = problem.duration_s.copy()
    duration_s[list(members)] *= factor
    return replace(problem, duration_s=duration_s)


def _links(problem: PlacedProblem) -> Iterator[PlacedChange]:
    """Half the delay between two columns, whatever passes there, and between all."""
    slow = sorted({_columns_of(problem.column, int(hop)) for hop in np.flatnonzero(problem.hop_s.any(axis=0))})
    pairs = np.array([_columns_of(problem.column, hop) for hop in range(problem.stages - 1)]).reshape(-1, 2)
    for pair in slow:
        hops = (pairs == pair).all(axis=1)
        where = f"the link between columns {pair[0]} and {pair[1]}"
        change = Change("link", where, links=tuple(np.flatnonzero(hops).tolist()))
        yield change, replace(problem, hop_s=problem.hop_s * np.where(hops, HALF, 1.0))
    if slow:
        yield Change("link", EVERY_LINK), replace(problem, hop_s=problem.hop_s * HALF)


def _columns_of(column: Ints, hop: int) -> tuple[int, int]:
    one, other = sorted(column[hop : hop + 2].tolist())
    return one, other
