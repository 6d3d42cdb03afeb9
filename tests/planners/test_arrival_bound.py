"""The bound that knows how micro-batches arrive: no plan undercuts it, and it sees starving that the other does not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from rtk.planners.scheduling.list_schedule import DispatchRules, ListScheduler
from rtk.planners.scheduling.problem import Problem
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import Effort, solve
from rtk.planners.slipstream.bounds import RoutingBound, arrival_bound_s
from rtk.schemas.plan import Link, Stage, Template

from .equal_pipelines import Cluster, clusters, routed
from .every_order import ROUNDING


def _bound_s(cluster: Cluster) -> float:
    return arrival_bound_s(cluster.pipeline, cluster.jobs, np.array(cluster.live))


@settings(max_examples=60)
@given(routed())
def test_no_rules_undercut_the_bound_whatever_the_routing(case: tuple[Cluster, Problem, DispatchRules]) -> None:
    """The makespan of any list schedule of any routing is no less than the bound."""
    cluster, routing, by = case
    problem = routing.with_objective(False)
    scheduler = ListScheduler(problem)
    scheduler.run(by)
    assert value_s(problem, scheduler.orders()) >= _bound_s(cluster) * (1 - ROUNDING)


@settings(max_examples=25)
@given(clusters(max_pp=4, max_dp=2, max_microbatches=5, limits=False))
def test_no_search_undercuts_the_bound(cluster: Cluster) -> None:
    """Neither do the orders that the scheduling core finds for pipelines that need no re-routing."""
    alive = replace(cluster, failed=frozenset(), staggered=False)
    assert solve(alive.home, Effort("heuristic")).value_s >= _bound_s(alive) * (1 - ROUNDING)


@given(clusters(limits=False, overheads=False))
def test_it_knows_the_load_of_the_busiest_worker(cluster: Cluster) -> None:
    """It is no less than the first head and the whole micro-batches of the busiest worker of any stage."""
    pipeline = cluster.pipeline
    rounds = -(-cluster.jobs // np.array(cluster.live))
    costs = pipeline.workers
    backward_s = np.where(pipeline.split[0], costs.input_s + costs.weight_s, costs.full_s)
    reach_s = np.concatenate([[0.0], np.cumsum(costs.forward_s[:-1] + pipeline.hop_s[0])])
    loads_s = reach_s + rounds * (costs.forward_s + backward_s)
    assert _bound_s(cluster) >= loads_s.max() * (1 - ROUNDING)


def test_a_quick_stage_behind_a_slow_one_starves_at_first() -> None:
    """F of 3 s after F of 4 s: the second stage idles until I are there; 76 s are proven and reached, not only 74 s."""
    times = [(4.0, 1.0, 1.0), (3.0, 4.0, 3.0), (1.0, 5.0, 2.0)]
    stages = tuple(Stage((i, i + 1), *row) for i, row in enumerate(times))
    cluster = Cluster(Template("t0", stages, (Link(0.0), Link(0.0))), 1, 7, (True,) * 3, frozenset())
    assert RoutingBound(cluster.pipeline, 7).value_s(np.ones(3, dtype=np.int64), False) == 74.0
    assert _bound_s(cluster) == pytest.approx(76.0)
    assert solve(cluster.home).value_s == 76.0
