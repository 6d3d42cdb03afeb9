"""The bound on all routings: no plan undercuts it, however its micro-batches are routed and ordered."""

from dataclasses import replace
from itertools import product
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.list_schedule import DispatchRules, ListScheduler
from rtk.planners.scheduling.lower_bound import lower_bound
from rtk.planners.scheduling.problem import Problem
from rtk.planners.scheduling.retime import value_s
from rtk.planners.scheduling.solve import Effort, solve
from rtk.planners.slipstream import bounds
from rtk.planners.slipstream.bounds import RoutingBound, arrival_bound_s
from rtk.planners.slipstream.rerouting import block, round_robin
from rtk.planners.slipstream.slot_search import SlotSearch
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Link, Plan, Stage, Template

from .equal_pipelines import Cluster, clusters, routed
from .every_order import ROUNDING, all_orders

Time = tuple[float, float, float]


def _bound_s(cluster: Cluster, staggered: bool) -> float:
    """What no routing of a cluster undercuts: both bounds."""
    live = np.array(cluster.live)
    found_s = RoutingBound(cluster.pipeline, cluster.jobs).value_s(live, staggered)
    return found_s if staggered else max(found_s, arrival_bound_s(cluster.pipeline, cluster.jobs, live))


def _cluster(
    times: list[Time], dp: int, microbatches: int, failed: set[tuple[int, int]], *, split: bool = True, **after: float
) -> Cluster:
    """A cluster of stages with these times, and `after` (optimizer_s, allreduce_s) at the last of them."""
    stages = [Stage((i, i + 1), *row, activation_bytes=1.0) for i, row in enumerate(times)]
    stages[-1] = replace(stages[-1], **after)  # type: ignore[arg-type]
    template = Template("t0", tuple(stages), (Link(0.0),) * (len(times) - 1))
    return Cluster(template, dp, microbatches, (split,) * len(times), frozenset(failed))


def _routings(cluster: Cluster) -> list[Problem]:
    """All ways to share the micro-batches of each stage among its live workers, dead and alive alike."""
    peers = [
        [k * cluster.stages + i for k in range(cluster.dp) if (k, i) not in cluster.failed]
        for i in range(cluster.stages)
    ]
    shares = [list(product(live, repeat=cluster.jobs)) for live in peers]
    return [replace(cluster.home, executor=np.array(columns).T) for columns in product(*shares)]


def _with_any_orders(cluster: Cluster, problem: Problem) -> Plan:
    """A cluster's plan with this routing of its single micro-batches; its orders are any."""
    kinds = ["FIW" if split else "FB" for split in cluster.split]
    orders = (
        " ".join(f"{kind}{problem.origin[job]}.0" for job in jobs for kind in kinds[stage])
        for jobs, stage in zip(problem.jobs_of, problem.workers.stage.tolist(), strict=True)
    )
    workers = [w if w.failed else replace(w, order=o) for w, o in zip(cluster.plan.workers, orders, strict=True)]
    return replace(cluster.plan, workers=tuple(workers))


@settings(max_examples=40)
@given(routed())
def test_no_rules_undercut_the_bound_whatever_the_routing(case: tuple[Cluster, Problem, DispatchRules]) -> None:
    """Makespan and period of any list schedule of any routing are no less than the bound, memory limits or not."""
    cluster, problem, by = case
    scheduler = ListScheduler(problem)
    scheduler.run(by)
    for staggered in (False, True):
        taken_s = value_s(problem.with_objective(staggered), scheduler.orders())
        assert taken_s >= _bound_s(cluster, staggered) * (1 - ROUNDING)


@settings(max_examples=25)
@given(clusters(max_pp=3, max_dp=3, max_microbatches=3), st.booleans())
def test_no_search_undercuts_the_bound(cluster: Cluster, turns: bool) -> None:
    """Neither do the orders that the scheduling core finds for the usual routings."""
    problem = (round_robin if turns else block)(cluster.home)
    bound_s = _bound_s(cluster, cluster.staggered)
    assert solve(problem, Effort("heuristic")).value_s >= bound_s * (1 - ROUNDING)


@settings(max_examples=40)
@given(clusters())
def test_no_slots_undercut_the_bound(cluster: Cluster) -> None:
    """Neither do slot schedules, of which most have the bound's very value."""
    search = SlotSearch(cluster.pipeline, cluster.dp)
    times = search.look(cluster.dead).times
    assert times.makespan_s >= _bound_s(cluster, False) * (1 - ROUNDING)
    assert times.period_s >= _bound_s(cluster, True) * (1 - ROUNDING)


@settings(max_examples=40)
@given(clusters(max_pp=2, max_dp=2, max_microbatches=1))
def test_no_order_of_any_routing_undercuts_the_bound(cluster: Cluster) -> None:
    """Two pipelines of one micro-batch: all routings, and all orders of each, one by one."""
    bounds_s = [_bound_s(cluster, staggered) for staggered in (False, True)]
    for problem in _routings(cluster):
        for found in all_orders(_with_any_orders(cluster, problem)):
            assert found.makespan_s >= bounds_s[0] * (1 - ROUNDING)
            assert found.period_s >= bounds_s[1] * (1 - ROUNDING)


@given(clusters(whole=False))
def test_without_failures_it_claims_no_more_than_the_bound_on_one_pipeline(cluster: Cluster) -> None:
    """Equal pipelines that need no re-routing are bounded by lower_bound() of one of them; this is no larger."""
    alive = replace(cluster, failed=frozenset())
    bound = RoutingBound(alive.pipeline, alive.jobs)
    for staggered in (False, True):
        alone_s = lower_bound(alive.pipeline.with_objective(staggered)).value_s
        assert bound.value_s(np.array(alive.live), staggered) <= alone_s * (1 + ROUNDING)


@given(clusters(), st.booleans())
def test_what_stages_say_alone_is_part_of_the_bound(cluster: Cluster, staggered: bool) -> None:
    """No stage alone says more than all together, and for the period without limits all together say no more than the
    worst stage."""
    bound, live = RoutingBound(cluster.pipeline, cluster.jobs), np.array(cluster.live)
    alone_s, all_s = bound.alone_s(live, staggered).max(), bound.value_s(live, staggered)
    assert alone_s <= all_s
    if staggered and all(stage.memory_limit_bytes is None for stage in cluster.template.stages):
        assert alone_s == all_s


@given(clusters(), st.booleans(), st.data())
def test_more_failures_never_lower_what_stages_say_alone(
    cluster: Cluster, staggered: bool, data: st.DataObject
) -> None:
    """With a worker fewer somewhere each stage says as much or more."""
    bound, live = RoutingBound(cluster.pipeline, cluster.jobs), np.array(cluster.live)
    fewer = np.maximum(
        live - np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(live), max_size=len(live)))), 1
    )
    assert (bound.alone_s(fewer, staggered) >= bound.alone_s(live, staggered)).all()


def test_late_stages_do_not_wait_for_what_ends_before_their_own_all_reduce() -> None:
    """Two micro-batches share the one worker of stage 0, whose B (1 s) lies inside the all-reduce of stage 1 (5 s)."""
    cluster = _cluster([(0.0, 1.0, 0.0), (1.0, 1.0, 1.0)], 2, 1, {(1, 0)}, split=False, allreduce_s=5.0)
    assert _bound_s(cluster, False) == 8.0
    assert SlotSearch(cluster.pipeline, 2).look(cluster.dead).times.makespan_s == 8.0


@pytest.mark.parametrize(
    ("split", "staggered", "failed_s", "whole_s"), [(False, False, 33, 27), (True, False, 29, 21), (True, True, 27, 19)]
)
def test_the_running_example(split: bool, staggered: bool, failed_s: float, whole_s: float) -> None:
    """SlipStream's example, worker 1/2 of PP 4 x DP 3 dead: 33, 29, 27, and 27, 21, 19 without the failure."""
    times = [(1.0, 1.0, 1.0)] * 4
    assert _bound_s(_cluster(times, 3, 6, {(1, 2)}, split=split), staggered) == failed_s
    assert _bound_s(_cluster(times, 3, 6, set(), split=split), staggered) == whole_s


def test_an_operation_that_takes_no_time_holds_its_memory_in_its_order() -> None:
    """One micro-batch fits at stage 1, whose F and I take no time: the second waits for the W of the first.

    All orders of all routings say so, and the checker counts memory as they do.
    """
    cluster = _cluster([(0.0, 3.0, 2.0), (0.0, 0.0, 1.0)], 2, 1, {(0, 1)})
    stages = [
        replace(stage, weight_stash_bytes=0.5, memory_limit_bytes=limit)
        for stage, limit in zip(cluster.template.stages, (2.0, 1.0), strict=True)
    ]
    cluster = replace(cluster, template=replace(cluster.template, stages=tuple(stages)))
    found = [run for problem in _routings(cluster) for run in all_orders(_with_any_orders(cluster, problem))]
    assert min(run.makespan_s for run in found) == _bound_s(cluster, False) == 6.0
    assert not any(check_plan(run.plan) for run in found)
    quick = _with_any_orders(cluster, round_robin(cluster.home))
    late = "F0.0 I0.0 F1.0 I1.0 W0.0 W1.0"
    workers = [replace(worker, order=late) if worker.place == (1, 1) else worker for worker in quick.workers]
    refused = replace(quick, workers=tuple(workers))
    assert evaluate(refused).makespan_s == 5.0
    assert ["holds up to 1.5 B" in problem.message for problem in check_plan(refused)] == [True]


def test_a_stash_that_just_fits_beside_a_whole_micro_batch_fits() -> None:
    """In binary 1.4 - 1 is less than 0.4: still, the worker of stage 1 is never idle, as its orders can have it."""
    stages = (
        Stage((0, 1), 1.0, 1.0, 1.0, activation_bytes=1.0, weight_stash_bytes=0.4, memory_limit_bytes=3.0),
        Stage((1, 2), 2.0, 2.0, 2.0, activation_bytes=1.0, weight_stash_bytes=0.4, memory_limit_bytes=1.5),
    )
    cluster = Cluster(Template("t0", stages, (Link(0.0),)), 1, 4, (True, True), frozenset())
    orders = ("F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3", "F0 I0 W0 F1 I1 F2 I2 W1 F3 I3 W2 W3")
    workers = [replace(worker, order=order) for worker, order in zip(cluster.plan.workers, orders, strict=True)]
    plan = replace(cluster.plan, workers=tuple(workers))
    assert check_plan(plan) == []
    assert _bound_s(cluster, True) <= evaluate(plan).period_s == 24


@pytest.mark.checkout  # the model is that of benchmarks/
@settings(max_examples=25)
@given(st.integers(0, 2**32))
@example(532)  # F and I of a stage take no time: the model has to count their memory in their order
def test_no_optimum_is_below_the_bound(seed: int) -> None:
    """Nor are the exact optima over all routings and orders of small clusters with random limits."""
    from rtk.benchmarks.routing_bound import Model, drawn_cluster

    case = drawn_cluster(Random(seed), most_jobs=4)
    value_s, _ = Model(case).solve()
    assert value_s >= case.bound_s * (1 - ROUNDING)


@settings(max_examples=30)
@given(clusters(max_microbatches=6), st.integers(1, 8))
def test_counting_a_part_says_no_more_than_counting_all(cluster: Cluster, fewest: int) -> None:
    """Heads of the first micro-batches and work alone give no later ends than the heads of all."""
    counted, live = RoutingBound(cluster.pipeline, cluster.jobs)._counted, np.array(cluster.live)
    whole_s = counted.ends_s(live, cluster.jobs)
    with patch.multiple(bounds, ROUNDS=1, FEWEST=fewest):
        part_s = counted.ends_s(live, cluster.jobs)
    assert (part_s <= whole_s * (1 + ROUNDING)).all()


@settings(max_examples=40)
@given(clusters(whole=False))
def test_machine_code_counts_as_plain_python_does(cluster: Cluster) -> None:
    """Interpreted and compiled, the counts are the same to the last bit."""
    counted, live = RoutingBound(cluster.pipeline, cluster.jobs)._counted, np.array(cluster.live)
    found = []
    for machine_code in (False, True):
        with patch.object(bounds, "pays", lambda *_, answer=machine_code: answer):
            found.append(counted.ends_s(live, cluster.jobs).tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize("unit_s", [1.0, 0.01, 0.1 + 0.2, 1 / 3])
def test_what_counting_finds_is_rounded_up_to_what_sums_of_the_times_can_be(unit_s: float) -> None:
    """SlipStream's 8 x 32 x 32 with one worker of the last stage dead and 1F1B's memory takes 116 units, not 110.1."""
    stages = tuple(
        Stage((i, i + 1), *(unit_s,) * 3, activation_bytes=1.0, weight_stash_bytes=0.5, memory_limit_bytes=8.0 - i)
        for i in range(8)
    )
    cluster = Cluster(Template("t0", stages, (Link(0.0),) * 7), 32, 32, (True,) * 8, frozenset({(0, 7)}))
    assert _bound_s(cluster, True) == pytest.approx(116 * unit_s, rel=ROUNDING)
