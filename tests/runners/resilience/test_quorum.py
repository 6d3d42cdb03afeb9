"""A job may begin with some of its workers; who comes later is a newcomer. It may end as each of them does."""

import random
from collections.abc import Collection
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.events import Elapsed, Said
from rtk.runners.resilience.membership import Newcomer
from rtk.runners.resilience.protocol import Job, Leaving
from rtk.runners.resilience.quorum import Quorum
from rtk.runners.training import JobConfig
from rtk.running import controller_of
from rtk.schemas.errors import InvalidInputError

from .test_lowering import wait_for
from .test_rules import STEPS, check_states, run
from .test_unit_gate import events_of
from .toy_cluster import ToyCluster, toy_plan


def gathered(job: Job, absent: Collection[str], rng: random.Random) -> ToyCluster:
    """A job some of whose workers are not started yet."""
    cluster = ToyCluster(job, rng, timers_are_slow=True)
    cluster.workers = [worker for worker in cluster.workers if worker.name not in absent]
    return cluster


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 2),
    dp=st.integers(2, 4),
    absent=st.sets(st.sampled_from(["0/0", "1/0", "2/0", "3/0", "1/1", "2/1"])),
    least=st.integers(1, 8),
    faults=st.lists(st.sampled_from(["kill", "join", "restart", "come", "come"]), max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_a_job_that_begins_with_some_is_as_any_other(
    seed: int, stages: int, dp: int, absent: set[str], least: int, faults: list[str]
) -> None:
    """Whoever is there at the beginning, comes, dies, or comes back, and whether the coordinator lives through that:
    once all or enough are there all iterations are committed, and whoever finishes has taken the same steps."""
    rng = random.Random(seed)
    plan = toy_plan(stages, dp, dp, False)
    job = Job(plan, iterations=6, min_workers=min(least, stages * dp))
    cluster = gathered(job, absent, rng)
    late = sorted(absent & {worker.name for worker in plan.workers})
    for fault in faults:
        if fault != "come":
            live_through_one(cluster, fault, rng)
        elif late:
            cluster.start(late.pop())
    for _ in range(STEPS):
        if cluster.finished is not None or not cluster.step():
            break
    if cluster.rules.phase == "gathering":  # for whom it still waits
        for name in sorted({worker.name for worker in plan.workers} - {one.name for one in cluster.live()}):
            cluster.start(name)
    run(cluster)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, 6)
    else:
        assert cluster.finished.reason.startswith(("nobody is left who holds", "there is no plan without"))
    commits = [one["iteration"] for one in events_of(cluster, "iteration")]
    assert sorted(set(commits)) == commits


def live_through_one(cluster: ToyCluster, fault: str, rng: random.Random) -> None:
    """Some steps, and then something happens."""
    for _ in range(rng.randrange(60)):
        cluster.step()
    if cluster.finished is not None:
        return
    if fault == "restart":
        cluster.restart_coordinator()
    elif fault == "kill" and cluster.live():
        cluster.kill(rng.choice(cluster.live()))
    elif fault == "join":
        gone = [one.name for one in cluster.workers if not one.is_alive]
        if gone and not any(one.name == gone[0] for one in cluster.live()):
            cluster.start(gone[0])


def test_the_others_of_a_job_join_it_later() -> None:
    """Two of three begin; the third one copies their state and has a place; all take the same steps."""
    plan = toy_plan(1, 3, 3, False)
    cluster = gathered(Job(plan, iterations=9, min_workers=2), ["1/0"], random.Random(4))
    started = wait_for(cluster, "start")
    assert started["live_workers"] == 2
    assert events_of(cluster, "epoch")[0]["failed"] == ("1/0",)
    wait_for(cluster, "iteration")
    cluster.start("1/0")
    assert wait_for(cluster, "join")["worker"] == "1/0"
    run(cluster)
    check_states(cluster, 9)
    assert [one["live_workers"] for one in events_of(cluster, "epoch")] == [2, 3]


def test_too_few_begin_nothing_and_neither_do_those_who_make_no_pipeline() -> None:
    """One of three where two are asked for waits; so do two first stages without a second one, until one comes."""
    alone = gathered(Job(toy_plan(1, 3, 3, False), iterations=3, min_workers=2), ["1/0", "2/0"], random.Random(1))
    while alone.step():
        pass
    assert alone.rules.phase == "gathering" and not alone.announced
    lame = gathered(Job(toy_plan(2, 2, 2, False), iterations=3, min_workers=2), ["0/1", "1/1"], random.Random(1))
    while lame.step():
        pass
    assert lame.rules.phase == "gathering" and not lame.announced
    lame.start("1/1")
    run(lame)
    check_states(lame, 3)
    assert events_of(lame, "start")[0]["live_workers"] == 3


def newcomers(*names: str) -> dict[int, Newcomer]:
    """Who waits."""
    return {number: Newcomer(name, "", 0, 0.0) for number, name in enumerate(names)}


def test_each_arrival_begins_the_wait_anew() -> None:
    """Timers of before count no more; who goes again leaves too few, and the wait is off."""
    quorum = Quorum(Job(toy_plan(1, 4, 4, False), iterations=1, min_workers=2, join_wait_s=7.0))
    assert quorum.see(newcomers("0/0")) is None
    first = quorum.see(newcomers("0/0", "1/0"))
    assert first is not None and first.after_s == 7.0
    assert quorum.see(newcomers("0/0", "1/0")) is None
    second = quorum.see(newcomers("0/0", "1/0", "2/0"))
    assert second is not None
    quorum.elapse(first.timer.partition("/")[2])
    assert not quorum.is_enough
    quorum.elapse(second.timer.partition("/")[2])
    assert quorum.is_enough and [hand.worker for hand in quorum.crew] == ["0/0", "1/0", "2/0"]
    assert quorum.see(newcomers("0/0")) is None
    assert not quorum.is_enough


def test_a_plan_has_so_many_workers() -> None:
    """With more than those no job can begin, nor with none; that is said at once."""
    plan = toy_plan(1, 3, 3, False)
    for wrong in (0, 4):
        with pytest.raises(InvalidInputError, match="has 3 live workers") as raised:
            controller_of(plan, JobConfig(min_workers=wrong))
        assert raised.value.where == "--min-workers"


@pytest.mark.parametrize("killed", [False, True])
def test_a_job_is_over_once_all_its_workers_are(killed: bool) -> None:
    """Who comes to its own end is no failure, and the others go on; after the last one the job has ended well, also
    where one was killed before."""
    cluster = ToyCluster(Job(toy_plan(1, 3, 3, False), iterations=10**6), random.Random(2), timers_are_slow=True)
    wait_for(cluster, "iteration")
    for number, worker in enumerate(cluster.workers):
        if number == 0 and killed:
            cluster.kill(worker)
            wait_for(cluster, "failure")
        else:
            cluster._say(worker, Leaving(at_once=True))
            while len(events_of(cluster, "leave")) < number + 1 - killed:
                assert cluster.step()
        if number < 2:
            wait_for(cluster, "iteration")
    while cluster.finished is None:
        assert cluster.step()
    assert (cluster.finished.exit_code, cluster.finished.reason) == (0, "all workers are at their own end")
    assert len(events_of(cluster, "failure")) == killed
    assert {one["reason"] for one in events_of(cluster, "leave")} == {"it is at its own end"}


def test_who_has_just_come_and_finds_nobody_to_have_its_state_from_does_not_make_a_good_end_a_failure() -> None:
    """The last one that has state is at its own end, while a replica that was killed is back and about to copy it."""
    cluster = ToyCluster(Job(toy_plan(1, 2, 2, False), iterations=10**6), random.Random(5), timers_are_slow=True)
    wait_for(cluster, "iteration")
    last, killed = cluster.workers
    cluster.kill(killed)
    wait_for(cluster, "failure")
    wait_for(cluster, "iteration")
    cluster.start(killed.name)
    wait_for(cluster, "join")
    cluster._feed(Said(cluster.now_s, last.connection, Leaving(at_once=True)))
    assert cluster.finished is not None
    assert (cluster.finished.exit_code, cluster.finished.reason) == (0, "all workers are at their own end")


def test_who_leaves_before_the_first_commit_leaves_the_others_to_begin() -> None:
    """Nobody has state yet, and everybody can make it: the other two train."""
    cluster = ToyCluster(Job(toy_plan(1, 3, 3, False), iterations=4), random.Random(6), timers_are_slow=True)
    wait_for(cluster, "epoch")
    cluster._feed(Said(cluster.now_s, cluster.workers[1].connection, Leaving(at_once=True)))
    cluster.workers[1].is_alive = False
    run(cluster)
    check_states(cluster, 4)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_job_whose_last_worker_is_lost_has_failed(leaves: bool) -> None:
    """Also where the others were at their own end: what was trained since is gone."""
    cluster = ToyCluster(Job(toy_plan(1, 2, 2, False), iterations=10**6), random.Random(7), timers_are_slow=True)
    wait_for(cluster, "iteration")
    first, last = cluster.workers
    if leaves:
        cluster._feed(Said(cluster.now_s, first.connection, Leaving(at_once=True)))
        first.is_alive = False
    else:
        cluster.kill(first)
        wait_for(cluster, "failure")
    wait_for(cluster, "iteration")
    cluster.kill(last)
    while cluster.finished is None:
        assert cluster.step()
    assert (cluster.finished.exit_code, cluster.finished.reason) == (5, "nobody is left who holds layer 0")


def test_an_old_timer_is_of_no_use_in_a_job_that_runs() -> None:
    """All came before it: nothing begins a second time."""
    cluster = gathered(Job(toy_plan(1, 2, 2, False), iterations=3, min_workers=1), ["1/0"], random.Random(3))
    while not any(isinstance(one, Elapsed) for one in cluster.to_coordinator):
        assert cluster.step()
    cluster.start("1/0")
    timer = replace(next(one for one in cluster.to_coordinator if isinstance(one, Elapsed)), now_s=0.0)
    cluster.to_coordinator.clear()
    wait_for(cluster, "start")
    cluster.to_coordinator.append(timer)
    run(cluster)
    assert len(events_of(cluster, "start")) == 1
    check_states(cluster, 3)
