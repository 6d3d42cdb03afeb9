"""Workers in rotation: whatever their targets, what comes to an end is a valid plan that takes what was said."""

from dataclasses import replace
from math import inf, isfinite
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rtk.planners.scheduling.assemble import peaks_bytes, with_orders_and_prediction
from rtk.planners.scheduling.evaluate import evaluate
from rtk.planners.scheduling.problem import Orders, Problem
from rtk.planners.slipstream import rotation
from rtk.planners.slipstream.bounds import RoutingBound
from rtk.planners.slipstream.rotation import (
    WIDTH,
    RotationSchedule,
    RotationScheduler,
    RotationSearch,
    as_recorded,
    recorded,
)
from rtk.schemas.check import check_plan
from rtk.schemas.plan import Link, Stage, Template

from .equal_pipelines import Cluster, clusters

Floats = NDArray[np.float64]

EXACT = 1e-9


@st.composite
def _cases(draw: st.DrawFn, *, whole: bool = True) -> tuple[Cluster, Floats]:
    """A cluster, and any targets of its stages."""
    cluster = draw(clusters(whole=whole))
    halves = st.integers(0, 16).map(lambda number: number / 2)
    rows = st.tuples(*[halves.map(lambda half: max(half, 1.0))] * 4, *[halves] * 4, st.sampled_from([0.0, 1.0]), halves)
    return cluster, np.array(draw(st.lists(rows, min_size=cluster.stages, max_size=cluster.stages)))


def _run(cluster: Cluster, targets: Floats, limit_s: float = inf) -> tuple[float, Problem, Orders]:
    """What the targets come to, with the routing and the orders that they make."""
    scheduler = RotationScheduler(cluster.pipeline, cluster.jobs, cluster.dp)
    value_s = scheduler.run(np.array(cluster.live), targets, limit_s)
    return value_s, *scheduler.orders(cluster.home)


@settings(max_examples=60)
@given(_cases(whole=False))
def test_targets_make_a_valid_plan_that_takes_what_they_say_within_all_limits(case: tuple[Cluster, Floats]) -> None:
    """The independent checker accepts the plan, the evaluator gives the same value, and no worker holds too much."""
    cluster, targets = case
    value_s, problem, orders = _run(cluster, targets)
    assume(isfinite(value_s))
    plan = with_orders_and_prediction(cluster.plan, problem, orders, 0.0)
    found = evaluate(plan)
    assert check_plan(plan) == []
    assert value_s == (found.period_s if cluster.staggered else found.makespan_s)
    assert (peaks_bytes(problem, orders) <= problem.workers.limit_bytes).all()


@settings(max_examples=40)
@given(_cases())
def test_rotation_spreads_the_micro_batches_evenly_over_live_workers(case: tuple[Cluster, Floats]) -> None:
    """Worker number m mod L executes rank m, so two workers of a stage differ by one micro-batch at most."""
    cluster, targets = case
    _, problem, _ = _run(cluster, targets)
    live = cluster.home.workers.live
    for stage, number in enumerate(cluster.live):
        workers = [k * cluster.stages + stage for k in range(cluster.dp) if live[k * cluster.stages + stage]]
        assert problem.executor[:, stage].tolist() == [workers[rank % number] for rank in range(cluster.jobs)]


@settings(max_examples=40)
@given(_cases())
def test_nothing_undercuts_the_bound_on_all_routings(case: tuple[Cluster, Floats]) -> None:
    """The bound knows no routing, so it holds for this one."""
    cluster, targets = case
    value_s, _, _ = _run(cluster, targets)
    bound_s = RoutingBound(cluster.pipeline, cluster.jobs).value_s(np.array(cluster.live), cluster.staggered)
    assert value_s >= bound_s * (1 - EXACT)


@settings(max_examples=30)
@given(_cases(whole=False), st.floats(0.5, 1.5))
def test_a_run_is_given_up_only_where_it_does_not_stay_below_the_limit(
    case: tuple[Cluster, Floats], share: float
) -> None:
    """With a limit a run gives the same value, or none where that would have been no less than the limit."""
    cluster, targets = case
    value_s, _, orders = _run(cluster, targets)
    assume(isfinite(value_s))
    limited_s, _, limited = _run(cluster, targets, share * value_s)
    if isfinite(limited_s):
        assert (limited_s, limited) == (value_s, orders)
    else:
        assert value_s >= share * value_s * (1 - EXACT)


@settings(max_examples=25)
@given(_cases(whole=False), st.integers(0, 3))
def test_machine_code_and_plain_python_agree_bit_for_bit(case: tuple[Cluster, Floats], seed: int) -> None:
    """Values, orders and what a search finds are the same in both forms."""
    cluster, targets = case
    found = []
    for compiled in (False, True):
        with patch.object(rotation, "pays", lambda *_, compiled=compiled: compiled):
            value_s, _, orders = _run(cluster, targets)
            found.append((value_s, orders if isfinite(value_s) else None, _searched(cluster, seed)))
    (*plain, plain_best), (*compiled_run, compiled_best) = found
    assert plain == compiled_run
    assert (plain_best is None) == (compiled_best is None)
    if plain_best is not None and compiled_best is not None:
        assert plain_best.value_s == compiled_best.value_s
        assert (plain_best.targets == compiled_best.targets).all()


def _searched(cluster: Cluster, seed: int = 0) -> RotationSchedule | None:
    bound_s = RoutingBound(cluster.pipeline, cluster.jobs).value_s(np.array(cluster.live), cluster.staggered)
    search = RotationSearch(cluster.pipeline, cluster.dp)
    with patch.object(rotation, "MOST_RUNS", 20):
        return search.search(np.array(cluster.live), bound_s, seed) if bound_s > 0 else None


@settings(max_examples=40)
@given(clusters(whole=False), st.integers(0, 3))
def test_what_a_search_finds_is_made_again_from_its_recorded_targets(cluster: Cluster, seed: int) -> None:
    """Recorded and read back, targets are the same numbers, and their run gives the value that was promised."""
    found = _searched(cluster, seed)
    assume(found is not None)
    assert found is not None
    again = as_recorded(recorded(found.targets))
    assert again.shape == (cluster.stages, WIDTH)
    assert (again == found.targets).all()
    assert _run(cluster, again)[0] == found.value_s


def _at_1f1b(depth: int, failures: tuple[int, ...], dp: int, microbatches: int) -> Cluster:
    """Equal stages at the memory of 1F1B, staggered."""
    stages = tuple(
        Stage((i, i + 1), 1.0, 1.0, 1.0, activation_bytes=1.0, weight_stash_bytes=0.5, memory_limit_bytes=depth - i)
        for i in range(depth)
    )
    failed = frozenset((k, stage) for stage, dead in enumerate(failures) for k in range(dead))
    template = Template("t0", stages, (Link(0.0),) * (depth - 1))
    return Cluster(template, dp, microbatches, (True,) * depth, failed, staggered=True)


@pytest.mark.parametrize("failures", [(1, 1, 1, 1), (2, 1, 1, 0)])
def test_alike_stages_at_the_memory_of_1f1b_reach_the_bound(failures: tuple[int, ...]) -> None:
    """Four stages of sixteen pipelines with 32 micro-batches each."""
    cluster = _at_1f1b(4, failures, 16, 32)
    found = _searched(cluster)
    assert found is not None
    assert found.optimal


def test_a_limit_that_admits_no_micro_batch_ends_without_a_schedule() -> None:
    """Nobody can begin, which is said by infinity instead of waiting for ever."""
    cluster = _at_1f1b(2, (1, 0), 2, 2)
    stages = tuple(replace(stage, activation_bytes=3.0) for stage in cluster.template.stages)
    cluster = replace(cluster, template=replace(cluster.template, stages=stages))
    assert _run(cluster, np.ones((2, WIDTH)))[0] == inf
