"""All ranks of a worker are one member to the coordinator's rules, and each of them can be lost alone."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.events import Arrived, Drop, Elapsed, Event, Lost, Restarted, Said, Tell, decode_event
from rtk.runners.resilience.progress import HUNG
from rtk.runners.resilience.protocol import (
    Cores,
    End,
    Epoch,
    Hello,
    Job,
    Leaving,
    Ready,
    Refused,
    Returning,
    Vote,
)
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.runners.resilience.unit_gate import UnitGate
from rtk.schemas.documents import digest
from rtk.schemas.plan import Plan

from .test_rules import FAULTS, HANGS, check_states, inject, run
from .toy_cluster import Hang, ToyCluster, ToyTraining, toy_plan

ITERATIONS = 12


def begun(seed: int, ranks: int, waits: int, staggered: bool, iterations: int = ITERATIONS) -> ToyCluster:
    """A job of two stages of two pipelines under way; timers elapse after everything else."""
    plan = toy_plan(2, 2, 2, staggered, ranks=ranks)
    cluster = ToyCluster(Job(plan, iterations=iterations), random.Random(seed), timers_are_slow=True)
    for _ in range(waits):
        cluster.step()
    while cluster.rules.phase == "gathering":
        assert cluster.step()
    return cluster


def events_of(cluster: ToyCluster, *kinds: str) -> list[dict[str, Any]]:
    """What was announced of these kinds."""
    return [one for one in cluster.announced if one["event"] in kinds]


def epochs_of(cluster: ToyCluster) -> list[Epoch]:
    """All that were announced, as processes are told."""
    gate = UnitGate(CoordinatorRules(cluster.job))
    told = [one for line in cluster.log for one in gate.handle(decode_event(line))]
    found = {one.message.epoch: one.message for one in told if isinstance(one, Tell) and isinstance(one.message, Epoch)}
    return [found[number] for number in sorted(found)]


def strike(cluster: ToyCluster, faults: list[str], rng: random.Random, most: int) -> list[str]:
    """Faults one after the other, each after fewer than so many steps; gives who is dead then."""
    dead: list[str] = []
    for fault in faults:
        for _ in range(rng.randrange(most)):
            cluster.step()
        if cluster.finished is None:
            inject(cluster, fault, rng, dead)
    return dead


@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 3),
    dp=st.integers(2, 3),
    staggered=st.booleans(),
    faults=st.lists(
        st.sampled_from(["kill", "kill", "kill", "leave", "join", "join", "restart", "cut off"]), max_size=8
    ),
    regroups=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_whatever_ranks_die_and_come_back_each_iteration_is_committed_once(
    seed: int, ranks: int, dp: int, staggered: bool, faults: list[str], regroups: bool
) -> None:
    """Single ranks are killed, leave, come back, and the coordinator dies, at any moment: nothing hangs, every
    iteration is committed once, of every micro-batch once at every rank."""
    rng = random.Random(seed)
    plan = toy_plan(2, dp, 2, staggered and not regroups, ranks=ranks)
    training = ToyTraining(regroups=rng.random() < 0.8)
    cluster = ToyCluster(Job(plan, iterations=ITERATIONS), rng, regroups=regroups, training=training)
    dead = strike(cluster, faults, rng, 150)
    while dead and cluster.finished is None:
        for _ in range(20):
            cluster.step()
        inject(cluster, "join", rng, dead)
    run(cluster)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, ITERATIONS)
    commits = [one["iteration"] for one in events_of(cluster, "iteration")]
    assert sorted(set(commits)) == commits


@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 3), staggered=st.booleans())
@settings(max_examples=4, deadline=None)
def test_orphans_work_again_once_another_process_is_there(seed: int, ranks: int, staggered: bool) -> None:
    """A rank is killed, and started again after its partners were told to wait: its worker joins with all of them."""
    cluster = begun(seed, ranks, 0, staggered, iterations=20)
    victim = cluster.rng.choice(cluster.workers)
    cluster.kill(victim)
    while not events_of(cluster, "orphans"):
        assert cluster.step()
    another = cluster.start(victim.called)
    run(cluster)
    check_states(cluster, 20)
    assert [(one["worker"], one["ranks"]) for one in events_of(cluster, "replaced")] == [(victim.name, (victim.share,))]
    there = [one for one in cluster.workers if one.name == victim.name and one is not victim]
    assert len(there) == ranks and another in there
    assert all(one.rules.rank is not None for one in there)


@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 3),
    waits=st.integers(0, 300),
    staggered=st.booleans(),
    then=st.sampled_from(["", "", "restart", "kill"]),
)
@settings(max_examples=20, deadline=None)
def test_a_standby_takes_the_place_of_a_lost_rank_and_only_its_part_is_copied(
    seed: int, ranks: int, waits: int, staggered: bool, then: str
) -> None:
    """The worker is lost and back in one go; its other ranks have the state of the last commit, and copy nothing."""
    cluster = begun(seed, ranks, 0, staggered)
    victim = cluster.rng.choice(cluster.workers)
    standby = cluster.start(victim.called)
    while standby.outbox:
        cluster.step()
    for _ in range(waits):
        cluster.step()
    if cluster.finished is None:
        cluster.kill(victim)
        if then == "restart":
            cluster.restart_coordinator()
        elif then:
            inject(cluster, "kill", cluster.rng, [victim.called])
    run(cluster)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, ITERATIONS)
    seated = [one for one in epochs_of(cluster) if one.epoch > 1]
    if then == "" and seated and not events_of(cluster, "redo"):
        copies = [copy for copy in seated[0].copies if seated[0].seats[copy.target].worker == victim.name]
        assert {copy.ranks for copy in copies} <= {(victim.share,)}
        assert [one["ranks"] for one in events_of(cluster, "replaced")] == [(victim.share,)]
        assert not events_of(cluster, "orphans")
        assert standby.rules.rank is not None


@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 3), staggered=st.booleans(), at=st.integers(1, 8))
@settings(max_examples=5, deadline=None)
def test_a_worker_is_called_whole_when_it_joins(seed: int, ranks: int, staggered: bool, at: int) -> None:
    """A process is appointed to take a rank's place in a later iteration: until that nothing is said of it."""
    cluster = begun(seed, ranks, 0, staggered, iterations=12)
    victim = cluster.rng.choice(cluster.workers)
    standby = cluster.start(victim.called, not_before=at)
    cluster.kill(victim)
    run(cluster)
    check_states(cluster, 12)
    assert standby.rules.rank is not None
    (replaced,), (joined,) = events_of(cluster, "replaced"), events_of(cluster, "join")
    assert (replaced["worker"], replaced["ranks"]) == (victim.name, (victim.share,))
    assert replaced["iteration"] == joined["iteration"] >= at
    assert replaced["epoch"] == joined["epoch"]


@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 3),
    staggered=st.booleans(),
    how=st.sampled_from(HANGS),
    waits=st.integers(0, 300),
)
@settings(max_examples=20, deadline=None)
def test_the_rank_that_hangs_is_given_up_alone(seed: int, ranks: int, staggered: bool, how: Hang, waits: int) -> None:
    """Its partners wait for another process in its place, and the job goes on with all other workers."""
    cluster = begun(seed, ranks, waits, staggered)
    if cluster.finished is None:
        victim = cluster.rng.choice(cluster.live())
        cluster.hang(victim, how)
        run(cluster)
        check_states(cluster, ITERATIONS)
        assert cluster.finished is not None and cluster.finished.exit_code == 0
        assert {one["worker"] for one in events_of(cluster, "failure")} <= {victim.name}
        hung = [one.called for one in cluster.workers if one.ended is not None and one.ended.exit_code == HUNG]
        assert set(hung) <= {victim.called}
        assert not events_of(cluster, "broken_link")


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 2),
    dp=st.integers(1, 2),
    faults=st.lists(st.sampled_from(FAULTS), max_size=6),
)
@settings(max_examples=10, deadline=None)
def test_workers_of_one_rank_pass_through_unchanged(seed: int, stages: int, dp: int, faults: list[str]) -> None:
    """Whatever happens, the rules behind the gate hear the same, and what they want done is the same."""
    rng = random.Random(seed)
    cluster = ToyCluster(Job(toy_plan(stages, dp, 2, False), iterations=6), rng)
    strike(cluster, faults, rng, 60)
    run(cluster)
    rules, gate = CoordinatorRules(cluster.job), UnitGate(CoordinatorRules(cluster.job))
    for event in map(decode_event, cluster.log):
        assert gate.handle(event) == rules.handle(event)


PAIR = toy_plan(1, 2, 2, False, ranks=2)


class Room:
    """A gate, its processes, and what they were told."""

    def __init__(self, plan: Plan = PAIR, **more: Any) -> None:
        self.plan = plan
        self.rules = CoordinatorRules(Job(plan, iterations=9, **more))
        self.gate = UnitGate(self.rules)
        self.count = 0

    def come(self, worker: str, rank: int, machine: str | None = None, **more: Any) -> tuple[int, list[Any]]:
        """A process says hello; gives its connection, and what it is told."""
        self.count += 1
        cores = None if machine is None else Cores(machine, (0,))
        hello = {"proof": "", "worker": worker, "store": f"store:{self.count}", "plan": digest(self.plan), "job": {}}
        said = Hello(**{"pid": self.count, "rank": rank, "ranks": 2, "cores": cores, "regroups": True, **hello, **more})
        return self.count, self.told(Arrived(1.0, self.count, said), self.count)

    def come_back(self, pid: int) -> int:
        """A process that has begun says hello to a restarted coordinator; gives its connection."""
        worker, rank = (("0/0", 0), ("0/0", 1), ("1/0", 0), ("1/0", 1))[pid - 1]
        return self.come(worker, rank, None, pid=pid, store=f"store:{pid}", returning=Returning(1, -1))[0]

    def told(self, event: Event, connection: int) -> list[Any]:
        """Something happens; gives what a process is told."""
        return [
            one.message if isinstance(one, Tell) else one
            for one in self.gate.handle(event)
            if isinstance(one, Tell | Drop) and one.connection == connection
        ]

    @property
    def is_running(self) -> bool:
        """Whether the job has begun."""
        return self.rules.phase == "running"

    def begin(self) -> None:
        """All four are there."""
        for worker in ("0/0", "1/0"):
            for rank in (0, 1):
                self.come(worker, rank)
        assert self.is_running


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"rank": 0, "ranks": 4}, "it is one of 4 ranks, and the plan has 2 of worker 0/0"),
        ({"rank": 0, "ranks": 1}, "it is a single GPU, and the plan has 2 of worker 0/0"),
        ({"rank": 2}, "there is no rank 2 among the 2 of worker 0/0"),
        ({"rank": 0}, "rank 0 of worker 0/0 is there already"),
        ({"rank": 1, "machine": "b"}, "it is on another machine than 0/0:0: all ranks of a worker are on one, unless"),
        ({"rank": 1, "plan": "0" * 64}, "its plan .* is not this job's"),
        ({"rank": 1, "job": {"seed": 2}}, "its settings are not this job's: seed"),
    ],
)
def test_who_is_no_rank_of_a_worker_is_refused(hello: dict[str, Any], reason: str) -> None:
    """Another degree than the plan's, a number that there is not, twice the same one, another machine, another job."""
    room = Room()
    room.come("0/0", 0, machine="a", job={"seed": 1})
    connection, told = room.come("0/0", **{"machine": "a", "job": {"seed": 1}, **hello})
    assert isinstance(told[0], Refused) and told[1:] == [Drop(connection)]
    assert re.match(reason, told[0].reason)


def test_ranks_may_be_on_several_machines_where_that_is_wanted() -> None:
    """With `tp_across` the second one is let in."""
    room = Room(tp_across=True)
    room.come("0/0", 0, machine="a")
    assert room.come("0/0", 1, machine="b")[1] == []


def test_a_whole_worker_is_told_of_an_epoch_with_where_each_rank_is_met() -> None:
    """Nobody is told anything before all ranks of all workers are there; then all are, of all meeting places."""
    room = Room()
    for worker, rank in (("0/0", 1), ("1/0", 0), ("1/0", 1)):
        assert room.come(worker, rank)[1] == []
    (epoch,) = room.come("0/0", 0)[1]
    assert [(seat.store, [one.store for one in seat.further]) for seat in epoch.seats] == [
        ("store:4", ["store:1"]),
        ("store:2", ["store:3"]),
    ]


def test_a_job_waits_for_single_ranks_that_are_to_stand_by() -> None:
    """A trace has a rank replaced in iteration 3: its process has to be there before the job begins."""
    room = Room(spare_ranks=1)
    for worker in ("0/0", "1/0"):
        for rank in (0, 1):
            room.come(worker, rank)
    assert not room.is_running
    room.come("0/0", 1, not_before=3)
    assert room.is_running


def test_workers_of_one_rank_are_no_single_ranks_that_a_job_waits_for() -> None:
    """A worker is on two GPUs, the next one on one: the job begins with all three processes and the one to stand by."""
    plan = toy_plan(2, 1, 2, False, ranks=2)
    first, second = plan.templates[0].stages
    unlike = replace(plan.templates[0], stages=(first, replace(second, tensor_parallel=1)))
    room = Room(replace(plan, templates=(unlike,)), spare_ranks=1)
    room.come("0/0", 0)
    room.come("0/0", 1)
    room.come("0/1", 0, ranks=1)
    assert not room.is_running
    room.come("0/0", 1, not_before=3)
    assert room.is_running


def test_a_second_worker_that_is_appointed_waits_as_a_whole() -> None:
    """All ranks of a worker that is to join in iteration 3 are one newcomer, while the worker of its name is there."""
    room = Room(newcomers=1)
    for rank in (0, 1):
        room.come("0/0", rank, not_before=3)
    for worker in ("0/0", "1/0"):
        for rank in (0, 1):
            room.come(worker, rank)
    assert room.is_running
    assert [one.not_before for one in room.rules._roster.newcomers.values()] == [3]


def test_an_orphan_hears_of_the_epoch_without_it_and_of_nothing_more() -> None:
    """Rank 1 is lost, and rank 0 is told to regroup; what it then says nobody listens to."""
    room = Room()
    room.begin()
    (regroup,) = room.told(Lost(2.0, 2, "connection closed"), 1)
    assert {one.worker for one in regroup.members} == {"1/0"}
    assert room.told(Said(3.0, 1, Ready(1, (0, 1))), 1) == []


def test_an_orphan_that_was_asked_to_leave_does_so() -> None:
    """Rank 0 was to leave with its worker, of which rank 1 is lost before: rank 0 does not wait for another one."""
    room = Room()
    room.begin()
    assert room.told(Said(2.0, 1, Leaving()), 1) == []
    end, drop = room.told(Lost(3.0, 2, "connection closed"), 1)
    assert isinstance(end, End) and end.exit_code == 0 and drop == Drop(1)


def test_what_a_rank_says_again_before_its_partner_is_back_counts() -> None:
    """The coordinator is restarted while all vote: each rank is back with its vote, and the iteration is committed."""
    room = Room()
    room.begin()
    for connection in range(1, 5):
        room.gate.handle(Said(2.0, connection, Ready(1, (0, 1))))
    room.gate.handle(Restarted(3.0))
    for pid in range(1, 5):
        room.gate.handle(Said(4.0, room.come_back(pid), Vote(1, 0, True, (0, 1) if pid < 3 else (2, 3))))
    assert room.rules.committed == 0


@pytest.mark.parametrize("is_back", [True, False])
def test_a_rank_may_leave_while_its_worker_is_awaited(is_back: bool) -> None:
    """After a restart of the coordinator rank 0 says again that it leaves: it does so with its worker, once rank 1 is
    back, and alone where that never comes."""
    room = Room()
    room.begin()
    room.gate.handle(Restarted(2.0))
    back = room.come_back(1)
    assert room.told(Said(3.0, back, Leaving()), back) == []
    if is_back:
        room.come_back(2)
        assert room.rules.members["0/0"].is_leaving
    else:
        room.come_back(3)
        room.come_back(4)
        *_, end, drop = room.told(Elapsed(9.0, "return"), back)
        assert isinstance(end, End) and end.exit_code == 0 and drop == Drop(back)


def test_ranks_that_did_not_do_the_same_are_given_up_together() -> None:
    """Who has executed other micro-batches than its partner is no rank of the same worker."""
    room = Room()
    room.begin()
    for rank in (0, 1):
        room.gate.handle(Said(2.0, 1 + rank, Ready(1, (0, 1))))
    room.gate.handle(Said(3.0, 1, Vote(1, 0, True, (0, 1))))
    end, drop = room.told(Said(3.0, 2, Vote(1, 0, True, (0,))), 2)
    assert isinstance(end, End) and "did not do the same in iteration 0" in end.reason and drop == Drop(2)
    assert "0/0" not in room.rules.members
