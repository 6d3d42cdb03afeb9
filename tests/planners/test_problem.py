"""Pipelines one by one: a plan of each alone, and its orders among those of the others."""

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from rtk.planners.pipeline import one_forward_one_backward, plan_pipeline
from rtk.planners.scheduling import assemble
from rtk.planners.scheduling import problem as problem_module
from rtk.planners.scheduling.assemble import peaks_bytes
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.problem import (
    alone,
    coded,
    codes_of,
    home_problem,
    in_jobs,
    problem_of,
    with_orders,
)
from rtk.planners.shape import Shape
from rtk.schemas.conditions import LinkPlace
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..strategies import any_plans

COSTS = Profile((Layer((LayerCost(1.0, 2.0, 3.0),)),) * 4)


def _slow_in(plan: Plan, pipeline: int) -> Plan:
    workers = (replace(one, slowdown=2.0) if one.pipeline == pipeline else one for one in plan.workers)
    return replace(plan, workers=tuple(workers))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6))
def test_orders_of_pipelines_alone_are_those_of_the_plan_of_all(pp: int, dp: int, microbatches: int) -> None:
    """1F1B of each pipeline, put among the jobs of all pipelines, is what the planner writes down for them."""
    plan = plan_pipeline(COSTS, Shape(pp, dp, microbatches), "1f1b")
    problem = home_problem(plan, split=False)
    orders = coded(one_forward_one_backward(plan.templates[0].stages, plan.templates[0].links, microbatches))
    found = [order for k in range(dp) for order in in_jobs(orders, range(k, dp * microbatches, dp))]
    assert with_orders(plan, problem, found).workers == plan.workers


@given(st.integers(1, 4), st.integers(2, 4))
def test_a_pipeline_alone_keeps_its_links_and_its_slow_workers(pp: int, dp: int) -> None:
    """The last of some pipelines, alone, is the first and only one, with what it takes by itself."""
    delays_s: dict[LinkPlace, float] = {(dp - 1, i): 5.0 for i in range(pp - 1)}
    plan = _slow_in(plan_pipeline(COSTS, Shape(pp, dp, 3, link_delay_s=delays_s), "1f1b"), dp - 1)
    one, whole = alone(plan, dp - 1), home_problem(plan, split=True)
    problem = home_problem(one, split=True)
    assert [worker.place for worker in one.workers] == [(0, i) for i in range(pp)]
    assert problem.workers.forward_s.tolist() == whole.workers.forward_s[-pp:].tolist()
    assert problem.hop_s.tolist() == [[5.0] * (pp - 1)] * 3


@given(any_plans(), st.booleans())
def test_orders_are_written_and_weighed_alike_in_both_ways(plan: Plan, by_machine_code: bool) -> None:
    """Codes become the very texts that they were read from, and hold what the evaluator says, by machine code too."""
    problem = problem_of(plan)
    codes = codes_of(plan, problem)
    with (
        patch.object(problem_module, "pays", lambda *_: by_machine_code),
        patch.object(assemble, "pays", lambda *_: by_machine_code),
    ):
        assert with_orders(plan, problem, codes).workers == plan.workers
        assert peaks_bytes(problem, codes).tolist() == list(evaluate(plan).peak_memory_bytes)
