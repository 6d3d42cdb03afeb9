"""The list scheduler: whatever the rules, costs, routing and limits, its orders are complete and never deadlock."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import retime
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.list_schedule import DispatchRules, ListScheduler, Priority, list_schedule
from rtk.planners.scheduling.problem import Problem, codes_of, problem_of, with_orders
from rtk.planners.scheduling.retime import Retimer, value_s
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Plan, Stage

from ..strategies import plans


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Plan, DispatchRules]:
    """A random plan, of which routing and split count, with limits that admit one micro-batch, and random rules."""
    plan = draw(plans(max_pp=4, max_microbatches=6))
    plan = replace(
        plan,
        templates=tuple(
            replace(template, stages=tuple(draw(_limited(stage)) for stage in template.stages))
            for template in plan.templates
        ),
        prediction=None,
    )
    return plan, draw(_rules(problem_of(plan)))


@st.composite
def _limited(draw: st.DrawFn, stage: Stage) -> Stage:
    """The stage with sizes and a limit that admits one micro-batch at least."""
    held, stash = draw(st.sampled_from([(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (1.0, 1.0), (0.3, 0.1)]))
    limit = draw(st.sampled_from([None, 1.0, 1.6, 3.0]))
    return replace(stage, activation_bytes=held, weight_stash_bytes=stash, memory_limit_bytes=limit)


@st.composite
def _rules(draw: st.DrawFn, problem: Problem) -> DispatchRules:
    workers = len(problem.workers.stage)

    def each(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=workers, max_size=workers))

    waits = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=workers, max_size=workers))
    priorities = draw(st.lists(st.sampled_from(Priority), min_size=workers, max_size=workers))
    counts = st.integers(1, 9)
    return DispatchRules(each(counts), each(counts), waits, each(counts), priorities)


@settings(max_examples=40)
@given(_cases())
def test_orders_are_valid_under_any_rules_routing_and_limits(case: tuple[Plan, DispatchRules]) -> None:
    """Every order is complete, deadlock-free, under its memory limit, and no worker has more in flight than it may."""
    plan, rules = case
    problem = problem_of(plan)
    orders = list_schedule(problem, rules)
    assert check_plan(with_orders(plan, problem, orders)) == []
    for order, most in zip(orders, rules.in_flight, strict=True):
        flight = [sum((1, -1, 0)[code % 3] for code in order[: n + 1]) for n in range(len(order))]
        assert max(flight, default=0) <= most


@settings(max_examples=40)
@given(_cases())
def test_the_kernels_predict_what_the_evaluator_does(case: tuple[Plan, DispatchRules]) -> None:
    """Retimed orders have the evaluator's makespan and period to the last bit; the sweep, which waits for nothing
    where no W does, has the same."""
    plan, rules = case
    problem = problem_of(plan)
    scheduler = ListScheduler(problem)
    promised = scheduler.run(rules)
    planned = with_orders(plan, problem, scheduler.orders())
    assert value_s(problem, scheduler.orders()) == evaluate(planned).iteration_time_s <= promised
    if not any(rules.weight_wait):
        assert promised == evaluate(planned).iteration_time_s
    other = problem.with_objective(not problem.staggered)
    evaluation = evaluate(planned)
    expected = evaluation.period_s if other.staggered else evaluation.makespan_s
    assert value_s(other, scheduler.orders()) == expected


@settings(max_examples=40, deadline=None)
@given(_cases())
def test_machine_code_equals_plain_python_bit_for_bit(case: tuple[Plan, DispatchRules]) -> None:
    """Interpreted and compiled, the same rules give the same orders and the same times."""
    plan, rules = case
    problem = problem_of(plan)
    found = []
    for machine_code in (False, True):
        with patch.object(retime, "pays", lambda *_, answer=machine_code: answer):
            scheduler = ListScheduler(problem)
            promised = scheduler.run(rules)
            found.append((promised, scheduler.orders(), value_s(problem, codes_of(plan, problem))))
    assert found[0] == found[1]


@settings(max_examples=40)
@given(plans())
def test_orders_survive_the_way_to_codes_and_back(plan: Plan) -> None:
    """A plan's orders as codes, put back into it, are its orders."""
    problem = problem_of(plan)
    assert with_orders(plan, problem, codes_of(plan, problem)).workers == plan.workers


@pytest.mark.parametrize("orders", [[[1, 0, 2], [0, 1, 2]], [[0, 1, 2], [1, 0, 2]], [[0, 2, 1], [0, 1, 2]]])
def test_orders_that_deadlock_take_for_ever(orders: list[list[int]]) -> None:
    """An operation before one that it needs is no schedule: its time is infinite."""
    from ..strategies import hand_plan

    problem = problem_of(hand_plan({"0/0": "F0 I0 W0", "0/1": "F0 I0 W0"}, 1))
    assert Retimer(problem).value_s([[0, 1, 2], [0, 1, 2]]) == 5
    assert Retimer(problem).value_s(orders) == float("inf")
