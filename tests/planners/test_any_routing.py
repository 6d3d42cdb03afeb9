"""The bound over all routings by virtual stage: none beats it, and the design note's example comes out as it says."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rtk.planners.placement.any_routing import routing_bound
from rtk.planners.placement.bounds import lower_bound
from rtk.planners.placement.problem import PlacedProblem, ordered_placed_problem, placed_problem
from rtk.planners.placement.published import column_of_loop, column_of_v
from rtk.schemas.plan import Plan

from ..placed_plans import placed_plans
from ..strategies import hand_plan
from .placed_orders import least_value_s, peaks_bytes, placed, timing

ROUNDING = 1e-9


@settings(max_examples=20, deadline=None)
@given(placed_plans(max_columns=3, max_microbatches=4), st.booleans())
def test_no_random_routing_beats_the_bound(plan: Plan, staggered: bool) -> None:
    """Random plans whose dead workers' chunks go to any peers, at the limits that they just keep, are no better."""
    assume(len(plan.templates) == 1)
    problem, orders = ordered_placed_problem(plan)
    assume(problem.split.all() or not problem.split.any())
    limited = replace(problem, limit_bytes=np.array(peaks_bytes(problem, orders))).with_objective(staggered)
    home = replace(placed_problem(plan, split=bool(problem.split.all())), limit_bytes=limited.limit_bytes)
    run = timing(limited, orders)
    assert run is not None
    value_s = run.period_s if staggered else run.makespan_s
    bound = routing_bound(plan, home.with_objective(staggered))
    assert bound.value_s <= value_s * (1 + ROUNDING)
    assert bound.head_s + bound.work_s + bound.tail_s == pytest.approx(bound.value_s)


@settings(max_examples=8, deadline=None)
@given(placed_plans(max_columns=2, max_chunks=2, max_dp=2, max_microbatches=1), st.data())
def test_no_routing_of_a_tiny_problem_beats_the_bound(plan: Plan, data: st.DataObject) -> None:
    """Of all routings of two micro-batches, and all orders of each, none is better."""
    assume(len(plan.templates) == 1 and len(plan.pipelines) == 2)
    home = placed_problem(plan, split=data.draw(st.booleans())).with_objective(data.draw(st.booleans()))
    widest = np.array([home.activation_bytes[home.column == c].sum() for c in home.worker_column])
    home = replace(home, limit_bytes=widest * data.draw(st.sampled_from([1.0, 1.5, np.inf])))
    bound = routing_bound(plan, home)
    columns = len(home.seats)
    choices = product(*([w for w in (0, columns) if home.live[w + c]] for _ in range(home.jobs) for c in home.column))
    for chosen in list(choices)[:: data.draw(st.integers(1, 5))][:40]:
        executor = np.array(chosen).reshape(home.executor.shape) + home.column
        routed = home.routed(plan, executor)
        if lower_bound(routed).value_s < bound.value_s * (1 - ROUNDING):
            least_s = least_value_s(routed, most_states=300)
            assert least_s is None or bound.value_s <= least_s * (1 + ROUNDING)


def _dead(column: tuple[int, ...], each: int, dead: tuple[int, ...], limit: float = np.inf) -> PlacedProblem:
    share = (max(column) + 1) / len(column)
    problem = placed(column, (each,) * 3, times_s=[(share, share, share)], limit=limit)
    return replace(problem, live=np.array([worker not in dead for worker in range(problem.workers)]))


@pytest.mark.parametrize(
    ("column", "each", "dead", "limit", "makespan", "period"),
    [
        (column_of_v(4, 2), 6, (4,), 4, 27, 27),
        (column_of_v(4, 2), 6, (5,), 4, 27.5, 27),
        (column_of_v(4, 2), 6, (6,), 4, 28, 27),
        (column_of_v(4, 2), 6, (7,), 4, 28.5, 27),
        (column_of_loop(4, 2), 6, (4,), 4, 28.5, 28.5),
        (column_of_loop(4, 2), 6, (5,), 4, 28, 27.5),
        (column_of_v(4, 2), 5, (6,), 4, 23.5, 22.5),
        (column_of_v(4, 2), 3, (7,), 4, 15, 13.5),
        (column_of_v(4, 2), 6, (5, 11), 6, 28.5, 27),
    ],
)
def test_the_notes_example(
    column: tuple[int, ...], each: int, dead: tuple[int, ...], limit: float, makespan: float, period: float
) -> None:
    """Four columns, three pipelines, a dead worker or two: rounds are shared one by one, not micro-batches."""
    home = _dead(column, each, dead, limit)
    plan = _plain_links(home)
    assert routing_bound(plan, home).value_s == pytest.approx(makespan)
    assert routing_bound(plan, home.with_objective(True)).value_s == pytest.approx(period)


def test_nobody_left_in_a_column_has_no_orders() -> None:
    """Where all workers of a column are dead, or none of its limits holds a chunk, the bound is infinite."""
    home = _dead((0, 1, 1, 0), 2, (1, 3, 5))
    assert routing_bound(_plain_links(home), home).value_s == np.inf
    tight = _dead((0, 1, 1, 0), 2, (), limit=0.4)
    assert routing_bound(_plain_links(tight), tight).argument == "no room"


def _plain_links(home: PlacedProblem) -> Plan:
    """A plan with as many links as the problem's virtual stages have, without delays."""
    order = "F0 B0"
    plan = hand_plan({f"0/{v}": order for v in range(home.stages)}, 1)
    (template,) = plan.templates
    links = tuple(replace(link, delay_s=0.0) for link in template.links)
    return replace(plan, templates=(replace(template, links=links),))
