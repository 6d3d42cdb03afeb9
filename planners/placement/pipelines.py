"""Orders for pipelines whose workers hold several virtual stages: each is ordered on its own, equal ones once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.problem import ROUNDING, alone
from ..scheduling.solve import Effort
from .bounds import lower_bound, with_any_split
from .pairs import neighbours_joined, with_others_split
from .problem import placed_problem, with_placed_orders
from .promise import with_placed_prediction
from .published import published_orders
from .scheduler import SeatScheduler, fits
from .search import PlacedSolution, solve

if TYPE_CHECKING:
    from ...schemas.plan import Plan
    from .problem import Floats, PlacedProblem


def with_placed_pipelines(plan: Plan, *, split: bool, effort: Effort) -> Plan:
    """A plan with orders in which every pipeline runs its own micro-batches, and with its prediction.

    Args:
        plan: of one template with a placement, all its workers alive; without orders.
        split: whether backwards are split in I and W, each where it is best, or are full ones. Where its template says
            what pairs of passes take, full ones are tried beside split ones, for only these run beside a forward.
        effort: how hard to try.

    Returns:
        A checked plan. Where backwards are full workers hold no more than in interleaved 1F1B; where they are split, no
        more than in 1F1B, unless that makes the iteration shorter; with pairs likewise.

    Raises:
        InfeasibleError: a limit does not admit what one micro-batch needs.
    """
    slow: list[list[float | None]] = [[] for _ in plan.pipelines]
    for worker in plan.workers:
        slow[worker.pipeline].append(worker.slowdown)
    kinds = [(each.microbatches, plan.links_of(k), tuple(slow[k])) for k, each in enumerate(plan.pipelines)]
    found = {one: _ordered(alone(plan, kinds.index(one)), split, effort) for one in dict.fromkeys(kinds)}
    orders = [found[one].orders for one in kinds]
    workers = tuple(replace(worker, order=orders[worker.pipeline][worker.stage]) for worker in plan.workers)
    return with_placed_prediction(replace(plan, workers=workers), max(one.bound_s for one in found.values()))


@dataclass(frozen=True)
class _PlacedOrders:
    """One pipeline's orders as text, and a proven bound on its iteration time in s."""

    orders: Sequence[str]
    bound_s: float


def _ordered(one: Plan, split: bool, effort: Effort) -> _PlacedOrders:
    if placed_problem(one).overlap < 1:
        return _ordered_with_pairs(one, split, effort)
    problem = placed_problem(one, split=split)
    modest = replace(problem, limit_bytes=np.minimum(problem.limit_bytes, _usual_bytes(problem, split)))
    bound_s = lower_bound(problem).value_s
    if bool((modest.limit_bytes == problem.limit_bytes).all()):
        solution = solve(problem, effort, bound_s)
        bound_s = solution.bound_s
    else:
        solution = solve(modest, effort, lower_bound(modest).value_s, anneals=not split)
        if split and solution.value_s > bound_s * (1 + ROUNDING):
            solution = solve(problem, effort, bound_s, start=solution.orders)
            bound_s = solution.bound_s
    workers = with_placed_orders(one, problem, solution.orders).workers
    return _PlacedOrders([worker.order or "" for worker in workers], bound_s)


def _ordered_with_pairs(one: Plan, split: bool, effort: Effort) -> _PlacedOrders:
    """The shortest of: full backwards with pairs; where nothing is side by side; and pairs with all else split."""
    full, apart = placed_problem(one, split=False), placed_problem(one)
    bound_s = lower_bound(with_any_split(apart) if split else full).value_s
    found = [(full, _within_usual(full, effort, bound_s, split))]
    if split and not found[0][1].optimal:
        alone = _within_usual(replace(apart, overlap=1.0), effort, bound_s, split)
        found.append((apart, alone))
        starts = [
            (apart, alone.orders),
            *((apart, orders) for _, orders in published_orders(apart) if fits(apart, orders)),
        ]
        mixed = [with_others_split(full, found[0][1].orders), *(neighbours_joined(*start) for start in starts)]
        problem, start = min(mixed, key=lambda pair: SeatScheduler(pair[0]).value_s(pair[1]))
        found.append((problem, solve(problem, effort, bound_s, start=start)))
    problem, best = min(found, key=lambda pair: pair[1].value_s)
    workers = with_placed_orders(one, problem, best.orders).workers
    return _PlacedOrders([worker.order or "" for worker in workers], bound_s)


def _within_usual(problem: PlacedProblem, effort: Effort, bound_s: float, split: bool) -> PlacedSolution:
    """Orders that hold no more than usual, unless more makes them shorter."""
    usual = replace(problem, limit_bytes=np.minimum(problem.limit_bytes, _usual_bytes(problem, split)))
    found = solve(usual, effort, bound_s)
    if found.optimal or bool((usual.limit_bytes == problem.limit_bytes).all()):
        return found
    return solve(problem, effort, bound_s, start=found.orders)


def _usual_bytes(problem: PlacedProblem, split: bool) -> Floats:
    """What each worker holds by 1F1B: S times what a micro-batch needs there; for full backwards by interleaved 1F1B.

    That warms up with (C - 1) S + 2 (S - 1 - c) + 1 chunks (Narayanan et al., 2021).
    """
    columns, sizes = len(problem.seats), problem.activation_bytes
    held = [sizes[list(seats)] for seats in problem.seats]
    if split:
        found = [columns * size.sum() for size in held]
    else:
        ahead = (((len(size) - 1) * columns + 2 * (columns - 1 - c) + 1, size) for c, size in enumerate(held))
        found = [count * size.max() for count, size in ahead]
    usual: Floats = np.array(found)[problem.worker_column] * (1 + ROUNDING)
    return usual
