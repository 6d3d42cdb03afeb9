"""The joint bound: no plan undercuts it, however its micro-batches are routed and ordered."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.joint.bound import JointBound
from rtk.planners.scheduling.list_schedule import DispatchRules, ListScheduler
from rtk.planners.scheduling.problem import Problem, with_orders
from rtk.planners.scheduling.retime import value_s
from rtk.schemas.plan import Plan

from .equal_pipelines import rules
from .every_order import ROUNDING, all_orders
from .troubled import alike, situation, troubled, troubled_plans


@st.composite
def routed(draw: st.DrawFn) -> tuple[Problem, Problem, DispatchRules]:
    """Pipelines at home; their micro-batches sent to any live workers; and any rules."""
    home = situation(draw(troubled_plans())).home
    executor = home.executor.copy()
    for stage in range(executor.shape[1]):
        live = [int(w) for w in np.unique(executor[:, stage]) if home.workers.live[w]]
        executor[:, stage] = draw(st.lists(st.sampled_from(live), min_size=home.jobs, max_size=home.jobs))
    return home, replace(home, executor=executor), draw(rules(len(home.workers.stage)))


@settings(max_examples=30)
@given(routed())
def test_no_rules_undercut_the_bound_whatever_the_routing(case: tuple[Problem, Problem, DispatchRules]) -> None:
    """Nor the bound for the loads of that routing, which is no smaller."""
    home, problem, by = case
    scheduler, bound = ListScheduler(problem), JointBound(home)
    scheduler.run(by)
    of_loads_s = bound.of_loads_s(problem.job_counts)
    assert value_s(problem, scheduler.orders()) >= of_loads_s * (1 - ROUNDING)
    assert of_loads_s >= bound.value_s * (1 - ROUNDING)


@settings(max_examples=15)
@given(troubled_plans(max_pp=2, max_dp=2, max_microbatches=1))
def test_no_order_of_any_routing_undercuts_the_bound(plan: Plan) -> None:
    """All routings of one micro-batch a pipeline, and all orders of each, one by one."""
    home = situation(plan).home
    bound_s = JointBound(home).value_s
    live = [[int(w) for w in np.unique(column) if home.workers.live[w]] for column in home.executor.T]
    for columns in product(*(product(peers, repeat=home.jobs) for peers in live)):
        problem = replace(home, executor=np.array(columns).T)
        any_order = [[3 * job + kind for job in jobs for kind in range(3)] for jobs in problem.jobs_of]
        for found in all_orders(with_orders(plan, problem, any_order)):
            assert found.iteration_time_s >= bound_s * (1 - ROUNDING)


def test_it_counts_whole_micro_batches_of_unlike_workers() -> None:
    """32 jobs of 30 ms, a worker dead, another takes 45 ms: 12 + 12 + 8 of them in 360 ms; one job more, 390 ms."""
    plan = troubled(alike(1, 4, 8), frozenset({(0, 0)}), {(1, 0): 1.5})
    assert JointBound(situation(plan).home).value_s == pytest.approx(0.36, rel=ROUNDING)
    more = replace(plan, pipelines=(replace(plan.pipelines[0], microbatches=11),) * 3, workers=plan.workers[1:])
    more = replace(more, workers=tuple(replace(w, pipeline=w.pipeline - 1) for w in more.workers))
    assert JointBound(situation(more).home).value_s == pytest.approx(0.39, rel=ROUNDING)
