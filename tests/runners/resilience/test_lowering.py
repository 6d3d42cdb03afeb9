"""A worker that has lost a rank goes on at a smaller degree where that is predicted to be faster, and comes back."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.announcements import DegreeChosen
from rtk.runners.resilience.conditions import Circumstances
from rtk.runners.resilience.events import decode_event
from rtk.runners.resilience.membership import Member, leavers
from rtk.runners.resilience.protocol import Epoch, Job, Leaving
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.runners.resilience.unit_gate import UnitGate
from rtk.schemas.conditions import HEALTHY, Conditions, SlowLink, SlowWorker
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import DegreeFactors, Hand, Replanned

from .test_rules import HANGS, check_states, inject, run
from .test_unit_gate import epochs_of, events_of, strike
from .toy_cluster import Rerouting, ToyCluster, ToyTraining, toy_plan

ITERATIONS, LONG = 12, 24
FAULTS = ["kill", "kill", "kill", "leave", "join", "join", "restart", "cut off", "slow", "touch"]


def lowering(plan: Plan, iterations: int = ITERATIONS, **more: Any) -> Job:
    """A job whose workers may go on at any smaller degree, slower by the number of ranks."""
    factors = {one.name: {d: plan.gpus_of(one) / d for d in range(1, plan.gpus_of(one))} for one in plan.workers}
    return Job(plan, iterations=iterations, lower=DegreeFactors(factors), **more)


def story(
    seed: int, ranks: int, dp: int, staggered: bool, faults: list[str], regroups: bool, checkpoint: bool = False
) -> ToyCluster:
    """Faults at random moments; all that are dead are started again at last."""
    rng = random.Random(seed)
    plan = toy_plan(2, dp, 2, staggered and not regroups, ranks=ranks)
    training = ToyTraining(regroups=rng.random() < 0.8, degrees=tuple(range(1, ranks)))
    job = lowering(plan, checkpoint="ckpt" if checkpoint else None, checkpoint_every=3)
    cluster = ToyCluster(job, rng, regroups=regroups, training=training)
    dead = strike(cluster, faults, rng, 150)
    while dead and cluster.finished is None:
        for _ in range(20):
            cluster.step()
        inject(cluster, "join", rng, dead)
    run(cluster)
    return cluster


@given(
    seed=st.integers(0, 2**32),
    ranks=st.integers(2, 4),
    dp=st.integers(2, 3),
    staggered=st.booleans(),
    faults=st.lists(st.sampled_from([*FAULTS, *HANGS]), max_size=8),
    regroups=st.booleans(),
    checkpoint=st.booleans(),
)
@example(5075, 2, 2, True, ["join", "kill", "kill", "mute"], True, True)  # one comes while others regroup
@settings(max_examples=25, deadline=None)
def test_at_whatever_degrees_workers_go_on_each_iteration_is_committed_once(
    seed: int, ranks: int, dp: int, staggered: bool, faults: list[str], regroups: bool, checkpoint: bool
) -> None:
    """Single ranks die, hang, leave and come back, and the coordinator dies, at any moment, also while others become
    something else: nothing hangs, and every iteration is committed once, of every micro-batch once at every rank."""
    cluster = story(seed, ranks, dp, staggered, faults, regroups, checkpoint)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, ITERATIONS)
    else:
        wanted = "nobody is left who holds layer|there is no plan without .*nobody left|.* came to nothing"
        assert re.match(wanted, cluster.finished.reason)
    commits = [one["iteration"] for one in events_of(cluster, "iteration")]
    assert sorted(set(commits)) == commits


class Predicting(Rerouting):
    """What a plan takes depends on how many workers there are; notes which workers it was told to be slow."""

    def __init__(self, plan: Plan, time_s: Sequence[float]) -> None:
        super().__init__(plan)
        self.time_s, self.slow = time_s, set[tuple[str, float]]()

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions = HEALTHY) -> Replanned:
        self.slow |= {(one.worker, one.factor) for one in conditions.slow_workers}
        return replace(super().__call__(plan, crew, conditions), iteration_time_s=self.time_s[len(crew)])


FASTER_WITH, FASTER_WITHOUT = (9.0, 9.0, 4.0, 3.0, 2.0), (9.0, 9.0, 2.0, 3.0, 4.0)  # by the number of workers


def hurt(
    ranks: int, degrees: Sequence[int], time_s: Sequence[float], seed: int = 0, is_sharded: bool = False
) -> tuple[ToyCluster, Predicting]:
    """Two stages of two pipelines, of which worker 1/0 has lost rank 1, and the job has gone on."""
    plan = toy_plan(2, 2, 2, False, ranks=ranks)
    training = ToyTraining(degrees=tuple(degrees), is_sharded=is_sharded)
    cluster = ToyCluster(lowering(plan, LONG), random.Random(seed), timers_are_slow=True, training=training)
    replan = cluster.replan = Predicting(plan, time_s)
    while cluster.rules.committed < 1:
        assert cluster.step()
    cluster.kill(next(one for one in cluster.workers if one.called == "1/0:1"))
    wait_for(cluster, "lowered")
    return cluster, replan


def wait_for(cluster: ToyCluster, *kinds: str) -> dict[str, Any]:
    """Let things happen until one of these kinds was announced; gives the last one."""
    count = len(events_of(cluster, *kinds))
    while len(events_of(cluster, *kinds)) <= count:
        assert cluster.step() and cluster.finished is None
    return events_of(cluster, *kinds)[-1]


def ranks_at(epoch: Epoch) -> dict[str, int]:
    """How many ranks each worker of an epoch has."""
    return {seat.worker: 1 + len(seat.further) for seat in epoch.seats}


@pytest.mark.parametrize("seed", range(3))
def test_the_smaller_predicted_iteration_time_wins_and_both_are_told(seed: int) -> None:
    """Where iterations with the slow worker are shorter it goes on with the rank that is left, and the planner knows
    how slow it is when it comes; where they are longer it waits; either way the event says both times."""
    cluster, replan = hurt(2, [1], FASTER_WITH, seed)
    (told,) = events_of(cluster, "lowered")
    said = ("worker", "degree", "of", "factor", "lowered_s", "without_s", "is_lowered")
    assert [told[name] for name in said] == ["1/0", 1, 2, 2.0, 2.0, 3.0, True]
    assert wait_for(cluster, "join")["worker"] == "1/0"
    assert replan.slow == {("1/0", 2.0)}
    assert ranks_at(epochs_of(cluster)[-1]) == {"0/0": 2, "0/1": 2, "1/0": 1, "1/1": 2}
    run(cluster)
    check_states(cluster, LONG)
    cluster, _ = hurt(2, [1], FASTER_WITHOUT, seed)
    (told,) = events_of(cluster, "lowered")
    assert [told[name] for name in said[4:]] == [4.0, 3.0, False]
    run(cluster)
    check_states(cluster, LONG)
    assert not events_of(cluster, "join") and ranks_at(epochs_of(cluster)[-1]) == {"0/0": 2, "0/1": 2, "1/1": 2}


def test_as_many_orphans_go_on_as_the_largest_degree_takes_that_the_cuts_allow() -> None:
    """Of four ranks three are left, the model can be shared by one, two or four: two go on, and one waits; with a
    process in place of the dead one all four share the layers again, and nobody but the dead one has ended."""
    cluster, _ = hurt(4, [1, 2], FASTER_WITH)
    wait_for(cluster, "join")
    assert ranks_at(epochs_of(cluster)[-1])["1/0"] == 2
    cluster.start("1/0:1")
    assert wait_for(cluster, "raised") | {"worker": "1/0", "degree": 2, "of": 4} == events_of(cluster, "raised")[-1]
    assert len(events_of(cluster, "raised")) == 1
    wait_for(cluster, "join")
    assert ranks_at(epochs_of(cluster)[-1])["1/0"] == 4
    assert [one["ranks"] for one in events_of(cluster, "replaced")] == [(1,)]
    assert not events_of(cluster, "leave")
    run(cluster)
    check_states(cluster, LONG)
    assert [(one["worker"], one["reason"]) for one in events_of(cluster, "failure")] == [
        ("1/0", "rank 1: connection closed")
    ]


@pytest.mark.parametrize(
    ("degrees", "is_sharded", "reason"),
    [
        ([], False, "1 GPU cannot share its layers"),
        ([], True, "its peers and it share the optimizer's state"),
    ],
)
def test_who_has_no_smaller_degree_waits_and_the_reason_is_told_once(
    degrees: list[int], is_sharded: bool, reason: str
) -> None:
    """No cut of the model takes what is left, or an optimizer whose blocks are of what a rank has."""
    cluster, _ = hurt(2, degrees, FASTER_WITH, is_sharded=is_sharded)
    run(cluster)
    (told,) = events_of(cluster, "lowered")
    assert (told["degree"], told["reason"], told["is_lowered"]) == (None, reason, False)
    check_states(cluster, LONG)


@pytest.mark.parametrize("then", ["peer", "coordinator"])
def test_who_cannot_be_spared_stays_at_its_smaller_degree(then: str) -> None:
    """The only other holder of its layers is lost: a process in place of the dead rank waits until there is another
    holder, and a coordinator that is restarted knows all that."""
    cluster, _ = hurt(2, [1], FASTER_WITH)
    wait_for(cluster, "join")
    wait_for(cluster, "iteration")
    for share in (0, 1):
        cluster.kill(next(one for one in cluster.live() if (one.name, one.share) == ("0/0", share)))
    while "0/0" in cluster.rules.members or cluster.rules.must_change:
        assert cluster.step()
    cluster.start("1/0:1")
    if then == "coordinator":
        cluster.restart_coordinator()
    committed = cluster.rules.committed
    while cluster.rules.committed < committed + 5:
        assert cluster.step() and not events_of(cluster, "raised")
    for share in (0, 1):
        cluster.start(f"0/0:{share}")
    wait_for(cluster, "raised")
    run(cluster)
    check_states(cluster, LONG)
    assert set(ranks_at(epochs_of(cluster)[-1]).values()) == {2}


def test_the_log_leads_to_the_same_choices() -> None:
    """The events of processes, replayed through a new gate, tell them the same."""
    cluster, _ = hurt(3, [1, 2], FASTER_WITH)
    wait_for(cluster, "join")
    cluster.start("1/0:1")
    run(cluster)
    assert events_of(cluster, "raised")
    gate = UnitGate(CoordinatorRules(cluster.job))
    told = [one for line in cluster.log for one in gate.handle(decode_event(line))]
    again = [one.what.as_json() for one in told if hasattr(one, "what")]
    assert again == cluster.announced


def test_what_is_known_of_a_worker_holds_until_a_monitor_finds_it_slow() -> None:
    """A monitor that has found something else does not take it away; what it finds of the worker does, for good."""
    known, link = Circumstances(), SlowLink(("0/0", "0/1"), 1.0)
    known.expect("1/0", 2.0)
    list(known.note(Conditions((link,))))
    assert known.now == Conditions((link,), (SlowWorker("1/0", 2.0),))
    list(known.note(Conditions(slow_workers=(SlowWorker("1/0", 1.7),))))
    assert known.now.slow_workers == (SlowWorker("1/0", 1.7),)
    list(known.note(HEALTHY))
    assert known.now == HEALTHY
    known.expect("1/0", 2.0)
    known.forget("1/0")
    list(known.note(HEALTHY))
    assert known.now == HEALTHY


@pytest.mark.parametrize(
    ("lowered_s", "cost_s", "is_lowered"),
    [(2.0, None, True), (3.0, None, False), (None, None, False), (2.0, 9.9, True), (2.0, 10.0, False)],
)
def test_copies_must_have_paid_within_so_many_iterations(
    lowered_s: float | None, cost_s: float | None, is_lowered: bool
) -> None:
    """Ten iterations that are shorter by 1 s are worth copies of less than 10 s; what nobody knows does not count."""
    told = DegreeChosen(
        worker="1/0", degree=1, of=2, lowered_s=lowered_s, without_s=3.0, cost_s=cost_s, within=10, factor=2.0
    )
    assert told.is_lowered == is_lowered
    assert told.as_json()["is_lowered"] == is_lowered


@pytest.mark.parametrize(
    ("others", "leaves"),
    [
        ({"0/0": (0, 2)}, True),
        ({"0/0": (0, 1)}, False),
        ({"0/0": (0, 2), "lost": None}, False),
        ({"0/0": (0, 2), "leaving": (0, 1)}, False),
    ],
)
def test_who_goes_only_if_it_is_spared(others: dict[str, Any], leaves: bool) -> None:
    """Others hold all its layers, nobody is lost, and nobody else goes."""
    members = {name: Member(name, 1, "", (0, 0), (held,)) for name, held in others.items() if held is not None}
    for one in members.values():
        one.leaving = Leaving() if one.name == "leaving" else None
    members["1/0"] = Member("1/0", 1, "", (1, 0), ((0, 2),), Leaving(if_spared=True))
    assert ("1/0" in leavers(members, ["1/0", *others], is_sharded=False)) == leaves
