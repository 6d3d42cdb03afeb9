"""The destructive bound: propagation refutes no makespan that some orders reach."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import edge_finding
from rtk.planners.scheduling.edge_finding import Refuter
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.list_schedule import list_schedule
from rtk.planners.scheduling.local_search import portfolio
from rtk.planners.scheduling.problem import problem_of
from rtk.planners.scheduling.retime import value_s
from rtk.schemas.plan import Plan

from ..strategies import hand_plan, limited_to_its_peaks, plans

ROUNDING = 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(plans(), st.floats(1.0, 3.0), st.booleans())
def test_no_makespan_of_valid_orders_is_refuted(plan: Plan, above: float, tight: bool) -> None:
    """Whatever routing, costs, delays, overheads and limits, what random valid orders reach is above the bound."""
    plan = replace(limited_to_its_peaks(plan) if tight else plan, optimizer="synchronous")
    makespan_s = evaluate(plan).makespan_s
    assert Refuter(problem_of(plan)).bound_s(0.0, above * makespan_s) <= makespan_s * ROUNDING


@settings(max_examples=30, deadline=None)
@given(plans(max_pp=3, max_dp=2, max_microbatches=4))
def test_no_makespan_of_listed_orders_is_refuted(plan: Plan) -> None:
    """The good schedules of the portfolio, under limits that some orders just keep, are above the bound too."""
    plan = replace(limited_to_its_peaks(plan), optimizer="synchronous")
    problem = problem_of(plan)
    best_s = min(value_s(problem, list_schedule(problem, rules)) for rules in portfolio(problem))
    assert Refuter(problem).bound_s(0.0, 2 * best_s) <= best_s * ROUNDING


@settings(max_examples=30, deadline=None)
@given(plans())
def test_machine_code_refutes_what_plain_python_does(plan: Plan) -> None:
    """Interpreted and compiled, the bound is the same to the last bit."""
    problem = problem_of(replace(plan, optimizer="synchronous"))
    found = []
    for machine_code in (False, True):
        with patch.object(edge_finding, "pays", lambda *_, answer=machine_code: answer):
            found.append(Refuter(problem).bound_s(0.0, 2 * evaluate(plan).makespan_s))
    assert found[0] == found[1]


@pytest.mark.parametrize(("limit_bytes", "least_s"), [(None, 10.0), (1.0, 15.0)])
def test_a_memory_limit_raises_the_bound(limit_bytes: float | None, least_s: float) -> None:
    """Three micro-batches one at a time through two stages take five slots each; without a limit they overlap."""
    plan = hand_plan({f"0/{i}": "F0 I0 W0 F1 I1 W1 F2 I2 W2" for i in range(2)}, 3, limit_bytes=limit_bytes)
    template = plan.templates[0]
    stages = tuple(replace(stage, weight_stash_bytes=1.0) for stage in template.stages)
    problem = problem_of(replace(plan, templates=(replace(template, stages=stages),)))
    assert Refuter(problem).bound_s(0.0, least_s) == least_s
    assert Refuter(problem).bound_s(0.0, 30.0) == pytest.approx(least_s, rel=1e-4)
