"""The ways to route: who takes a dead worker's micro-batches, and how evenly."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rtk.planners.scheduling.problem import Problem, home_problem
from rtk.planners.slipstream.rerouting import block, by_load, round_robin
from rtk.schemas.plan import Stage, Template

from .equal_pipelines import Cluster, clusters

Route = Callable[[Problem], Problem]

in_turns_or_runs = pytest.mark.parametrize("route", [round_robin, block])
in_any_way = pytest.mark.parametrize("route", [round_robin, block, by_load])


@st.composite
def _slow(draw: st.DrawFn, max_dp: int = 5, max_microbatches: int = 8) -> Problem:
    """Equal pipelines with dead workers, some of the others slow."""
    cluster = draw(clusters(max_pp=3, max_dp=max_dp, max_microbatches=max_microbatches))
    factors = st.sampled_from([None, None, 1.5, 2.0, 3.7])
    workers = tuple(w if w.failed else replace(w, slowdown=draw(factors)) for w in cluster.plan.workers)
    return home_problem(replace(cluster.plan, workers=workers), split=draw(st.booleans()))


def _stages(problem: Problem) -> range:
    return range(problem.executor.shape[1])


def _work_s(problem: Problem) -> np.ndarray:
    """F and the whole backward of one micro-batch on each worker."""
    return problem.workers.forward_s + problem.workers.input_s + problem.workers.weight_s


def _live(problem: Problem, stage: int) -> np.ndarray:
    return np.flatnonzero(problem.workers.live & (problem.workers.stage == stage))


def _busiest_s(problem: Problem, stage: int) -> float:
    """Seconds of work of the busiest worker of a stage."""
    return float((problem.job_counts * _work_s(problem))[_live(problem, stage)].max())


@in_any_way
@given(home=_slow())
def test_every_micro_batch_has_one_live_worker_at_each_stage(route: Route, home: Problem) -> None:
    """So F, I and W stay together; nothing but the routing changes, and without failures of alike workers nothing."""
    routed = route(home)
    assert routed.executor.shape == home.executor.shape
    assert routed.workers.live[routed.executor].all()
    assert (routed.workers.stage[routed.executor] == np.array(_stages(home))).all()
    assert replace(routed, executor=home.executor).split is home.split


@in_any_way
@given(cluster=clusters())
def test_alike_workers_that_all_live_keep_everything(route: Route, cluster: Cluster) -> None:
    """No micro-batch leaves home where none has to, if it takes any time at all."""
    home = replace(cluster, failed=frozenset()).home
    assume(_work_s(home).all())
    assert (route(home).executor == home.executor).all()


@in_turns_or_runs
@given(home=_slow())
def test_live_workers_keep_their_own_and_share_the_rest_evenly(route: Route, home: Problem) -> None:
    """In turns or in runs, only micro-batches of dead workers move, and shares of them differ by at most one."""
    routed = route(home)
    moved = routed.executor != home.executor
    assert (moved == ~home.workers.live[home.executor]).all()
    for stage in _stages(home):
        taken = [int((moved[:, stage] & (routed.executor[:, stage] == worker)).sum()) for worker in _live(home, stage)]
        assert max(taken) - min(taken) <= 1


@given(home=_slow())
def test_turns_and_runs_are_what_they_are_called(home: Problem) -> None:
    """Of a stage's lost micro-batches, neighbours go to different workers in turns, and mostly to one in runs."""
    for stage in _stages(home):
        lost = np.flatnonzero(~home.workers.live[home.executor[:, stage]])
        live = _live(home, stage)
        turns = round_robin(home).executor[lost, stage]
        assert (turns == np.resize(live, len(lost))).all()
        runs = block(home).executor[lost, stage]
        assert (np.diff(runs) >= 0).all()


@given(home=_slow(max_dp=4, max_microbatches=3))
def test_by_load_the_busiest_worker_ends_as_early_as_can_be(home: Problem) -> None:
    """Seconds of work of the busiest worker of each stage are the least of all ways to share its micro-batches."""
    routed = by_load(home)
    for stage in _stages(home):
        work_s = _work_s(home)[_live(home, stage)]
        shares = product(range(home.jobs + 1), repeat=len(work_s))
        least_s = min(float((np.array(share) * work_s).max()) for share in shares if sum(share) == home.jobs)
        assert _busiest_s(routed, stage) == pytest.approx(least_s, rel=1e-12)


@given(home=_slow())
def test_by_load_is_never_worse_than_in_turns(home: Problem) -> None:
    """No stage's busiest worker has more to do by load than in turns or in runs."""
    for stage in _stages(home):
        least_s = min(_busiest_s(round_robin(home), stage), _busiest_s(block(home), stage))
        assert _busiest_s(by_load(home), stage) <= least_s * (1 + 1e-12)


@given(home=_slow())
def test_by_load_workers_keep_as_many_of_their_own_as_they_have_room_for(home: Problem) -> None:
    """A worker that takes others' micro-batches has given none of its own away."""
    routed = by_load(home)
    for stage in _stages(home):
        for worker in _live(home, stage):
            own, has = home.executor[:, stage] == worker, routed.executor[:, stage] == worker
            assert (has <= own).all() or (own <= has).all()


def test_a_slow_peer_gives_some_of_its_own_away() -> None:
    """Of three workers one is dead, one takes three times as long: it keeps 4 of 18, so that all is done after 14 s and
    not after 27."""
    home = _three(slow=3.0)
    assert by_load(home).job_counts.tolist() == [14, 0, 4]
    assert round_robin(home).job_counts.tolist() == [9, 0, 9]


def _three(slow: float) -> Problem:
    """One stage of F + I + W = 1 s, three pipelines of six micro-batches; worker 1/0 is dead, 2/0 is slow."""
    template = Template("t0", (Stage((0, 1), 0.25, 0.25, 0.5),), ())
    plan = Cluster(template, 3, 6, (True,), frozenset({(1, 0)})).plan
    workers = (plan.workers[0], plan.workers[1], replace(plan.workers[2], slowdown=slow))
    return home_problem(replace(plan, workers=workers), split=True)
