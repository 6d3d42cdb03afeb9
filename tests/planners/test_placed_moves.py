"""Moves of single operations: never worse, never beyond a limit, and better where keys of kinds cannot say what is."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.placement import moves
from rtk.planners.placement.bounds import lower_bound
from rtk.planners.placement.moves import with_moves
from rtk.planners.placement.problem import held_bytes, ordered_placed_problem
from rtk.planners.placement.published import column_of_v
from rtk.planners.placement.scheduler import SeatScheduler, fits
from rtk.planners.placement.search import solve
from rtk.planners.scheduling.solve import Effort
from rtk.schemas.plan import Plan

from ..placed_plans import placed_plans
from .placed_orders import placed, timing

ROUNDING = 1e-9


@settings(max_examples=20, deadline=None)
@given(placed_plans(max_columns=3, max_dp=2, max_microbatches=3), st.booleans(), st.integers(0, 9))
def test_moves_keep_every_operation_within_memory_and_are_no_worse(plan: Plan, staggered: bool, seed: int) -> None:
    """From random plans with limits that they just keep: the same operations on the same workers, which fit."""
    if len(plan.templates) > 1:
        return
    problem, start = ordered_placed_problem(plan)
    limited = replace(problem, limit_bytes=held_bytes(problem, start)).with_objective(staggered)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moves, "MOVES", 200)
        found = with_moves(limited, start, 0.0, random.Random(seed))
    assert [sorted(order) for order in found] == [sorted(order) for order in start]
    assert fits(limited, found)
    run = timing(limited, found)
    assert run is not None
    value_s = run.period_s if staggered else run.makespan_s
    assert value_s <= SeatScheduler(limited).value_s(start) * (1 + ROUNDING)


def test_moves_end_at_the_bound_and_leave_large_problems_alone() -> None:
    """Nothing is moved where nothing can be gained, or where there is too much to move."""
    small, large = (placed(column_of_v(4, 2), (count,), limit=4) for count in (8, 64))
    for problem in (small, large):
        orders = solve(problem, Effort("rules"), 0.0).orders
        value_s = SeatScheduler(problem).value_s(orders)
        assert with_moves(problem, orders, value_s, random.Random(0)) == [list(order) for order in orders]


def test_unlike_costs_at_half_the_memory_come_within_three_percent() -> None:
    """F, I and W of 1, 1.2 and 0.8 on a V of four workers, at 2.5 activations: 60 by rules and annealing, bound 58."""
    problem = placed(column_of_v(4, 2), (8,), limit=2.5, times_s=[(1.0, 1.2, 0.8)])
    bound_s = lower_bound(problem).value_s
    assert solve(problem, Effort("heuristic"), bound_s).value_s <= 1.03 * bound_s
