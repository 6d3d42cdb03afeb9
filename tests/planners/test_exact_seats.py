"""The exact solver of placed problems: what it proves is true, and it proves what the design note knows."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from rtk.planners.placement.bounds import lower_bound
from rtk.planners.placement.exact_seats import SeatCpSat, seat_instance_of
from rtk.planners.placement.problem import PlacedProblem, SeatOrders
from rtk.planners.placement.published import column_of_v, published_orders
from rtk.planners.scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT

from .placed_orders import keeps_limits, least_value_s, placed, timing
from .test_placed_bounds import tiny_problems

pytest.importorskip("ortools")

ROUNDING = 1e-9


def _first(problem: PlacedProblem) -> SeatOrders:
    """Valid orders under any limits that admit a micro-batch alone: one micro-batch after the other."""
    orders: list[list[int]] = [[] for _ in range(problem.workers)]
    for job, stages in product(range(problem.jobs), [range(problem.stages), range(problem.stages)[::-1]]):
        for stage in stages:
            kinds = [FORWARD] if stages.step > 0 else [BACKWARD, WEIGHT] if problem.split[job, stage] else [BACKWARD]
            codes = [(job * problem.stages + stage) * KINDS + kind for kind in kinds]
            orders[problem.executor[job, stage]] += codes
    return orders


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(tiny_problems())
def test_it_finds_and_proves_the_least_value(problem: PlacedProblem) -> None:
    """On tiny problems it proves no more than what all orders together show, and finds a makespan that is the least."""
    stash_bytes = np.minimum(problem.stash_bytes, problem.activation_bytes)
    problem = replace(problem, stash_bytes=stash_bytes)
    assume(lower_bound(problem).value_s < np.inf)
    least_s = least_value_s(problem, most_states=1000)
    assume(least_s is not None)
    assert least_s is not None
    start = _first(problem)
    attempt = SeatCpSat().improve(problem, start, 0.0, time_limit_s=20.0, seed=0)
    assert attempt.bound_s <= least_s * (1 + ROUNDING)
    found = timing(problem, attempt.orders or start)
    assert found is not None
    assert keeps_limits(problem, attempt.orders or start)
    if not problem.staggered:
        assert found.makespan_s == pytest.approx(least_s)
        assert attempt.status == "optimal"


@pytest.mark.parametrize(
    ("columns", "microbatches", "limit", "value", "staggered"),
    [
        (2, 4, 1.5, 27, False),
        (2, 4, 1.5, 27, True),
        (2, 4, 1, 33, False),
        (2, 4, 1, 33, True),
        (4, 8, 3, 53, False),
        (4, 4, 1.5, 46, True),
    ],
)
def test_it_proves_what_the_note_knows(
    columns: int, microbatches: int, limit: float, value: float, staggered: bool
) -> None:
    """Vs whose memory is so tight that bounds stay open for the period: it is the least makespan all the same."""
    problem = placed(column_of_v(columns, 2), (microbatches,), limit=limit, staggered=staggered)
    start = dict(published_orders(problem))["V-Half"] if limit == 3 else _first(problem)
    attempt = SeatCpSat().improve(problem, start, lower_bound(problem).value_s, time_limit_s=60.0, seed=0)
    assert attempt.status == "optimal"
    assert attempt.bound_s == pytest.approx(value)


def test_whole_numbers_take_as_long() -> None:
    """In units an instance's schedule takes as long as the problem's, and holds no more than its limits."""
    problem = placed(column_of_v(4, 2), (8,), times_s=[(1.0, 1.2, 0.8)], limit=4)
    orders = dict(published_orders(problem))["ZB-V"]
    run = timing(problem, orders)
    assert run is not None
    instance = seat_instance_of(problem, run.makespan_s)
    starts = instance.starts(orders)
    assert instance.exact
    assert instance.value(starts) * instance.unit_s == pytest.approx(run.makespan_s)
    assert instance.orders(starts) == [list(order) for order in orders]
    assert {memory.limit for memory in instance.memory.values()} == {8}
