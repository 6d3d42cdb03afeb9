"""Holding stages back: an order may start with an F that arrives later, which shortens a starving stage's window."""

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling import retime
from rtk.planners.scheduling.list_schedule import DispatchRules, ListScheduler
from rtk.planners.scheduling.local_search import hold_back, portfolio
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.problem import with_orders
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import solve
from rtk.planners.slipstream.rerouting import round_robin
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Link, Stage, Template

from .equal_pipelines import Cluster, clusters, rules


@st.composite
def _held(draw: st.DrawFn) -> tuple[Cluster, DispatchRules]:
    """A cluster, and any rules that hold its workers back."""
    cluster = draw(clusters(max_pp=4, max_dp=3, max_microbatches=5))
    count = cluster.dp * cluster.stages
    held = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    return cluster, replace(draw(rules(count)), held_back=held)


@settings(max_examples=60)
@given(_held())
def test_orders_are_valid_however_far_workers_are_held_back(case: tuple[Cluster, DispatchRules]) -> None:
    """Orders are valid and take what the scheduler says, interpreted or compiled; or the value is infinite, for limits
    keep what a worker waits for from ever coming."""
    cluster, by = case
    problem = round_robin(cluster.home)
    with patch.object(retime, "pays", lambda *_: False):
        scheduler = ListScheduler(problem)
        found_s = scheduler.run(by)
    with patch.object(retime, "pays", lambda *_: True):
        assert ListScheduler(problem).run(by) == found_s
    if found_s < float("inf"):
        orders = scheduler.orders()
        assert check_plan(with_orders(cluster.plan, problem, orders)) == []
        assert value_s(problem, orders) == found_s


@given(_held())
def test_workers_without_limits_are_never_stuck(case: tuple[Cluster, DispatchRules]) -> None:
    """Without limits on memory and micro-batches in flight every F comes in the end."""
    cluster, by = case
    stages = tuple(replace(stage, memory_limit_bytes=None) for stage in cluster.template.stages)
    free = replace(cluster, template=replace(cluster.template, stages=stages))
    most = [free.jobs] * len(by.warmup)
    assert ListScheduler(round_robin(free.home)).run(replace(by, in_flight=most, backlog=most)) < float("inf")


@settings(max_examples=50)
@given(clusters(max_pp=4, max_dp=3, max_microbatches=6, limits=False))
def test_holding_back_never_makes_it_worse(cluster: Cluster) -> None:
    """What comes out is a period of these rules, no longer than without holding back."""
    problem = round_robin(replace(cluster, staggered=True).home)
    scheduler = ListScheduler(problem)
    by = next(portfolio(problem))
    before_s = scheduler.run(by)
    found, found_s = hold_back(problem, scheduler, by, goal_s=0.0, runs=10)
    assert found_s <= before_s
    assert scheduler.run(found) == found_s


def test_a_starving_stage_starts_later() -> None:
    """F of 3 s after F of 4 s: the second stage starts with its second F, and its window takes 70 s instead of 72 s."""
    times = [(4.0, 1.0, 1.0), (3.0, 4.0, 3.0), (1.0, 5.0, 2.0)]
    stages = tuple(Stage((i, i + 1), *row) for i, row in enumerate(times))
    cluster = Cluster(Template("t0", stages, (Link(0.0), Link(0.0))), 1, 7, (True,) * 3, frozenset(), staggered=True)
    problem = cluster.home
    scheduler = ListScheduler(problem)
    by = next(portfolio(problem))
    assert scheduler.run(by) == 72.0
    found, found_s = hold_back(problem, scheduler, by, goal_s=lower_bound(problem).value_s, runs=20)
    assert (found_s, found.held_back) == (70.0, [0, 1, 0])
    assert solve(problem).optimal
