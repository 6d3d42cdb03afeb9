"""The coordinator's rules keep every committed iteration, whatever dies when, and never wait for ever."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.announcements import IterationCommitted, JobEnded, JobStarted
from rtk.runners.resilience.events import Announce, Said, Tell, decode_event
from rtk.runners.resilience.membership import VoteCounter
from rtk.runners.resilience.progress import INTERRUPTED
from rtk.runners.resilience.protocol import (
    Commit,
    Job,
    StepTerms,
    Suspect,
    Vote,
    from_coordinator,
    from_worker,
)
from rtk.runners.resilience.rules import CoordinatorRules
from rtk.runners.resilience.worker_rules import JointAction
from rtk.schemas.conditions import Conditions, SlowLink, SlowWorker, pair_of
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Hand, Replanned
from rtk.schemas.resumption import layers_in

from . import toy_cluster
from .toy_cluster import (
    HOPELESS,
    SMALL_NORM,
    TOLERATED_S,
    Hang,
    ToyCluster,
    ToyStep,
    ToyTraining,
    ToyWorker,
    step_of,
    toy_plan,
)

STEPS = 6000
HANGS: list[Hang] = ["computing", "waiting", "mute"]
FAULTS = ["kill", "kill", "join", "leave", "restart", "slow", "touch", *HANGS, "go on", "cut off", "lie", "stop"]


def run(cluster: ToyCluster) -> None:
    """Let everything happen that can; nothing may hang."""
    for _ in range(STEPS):
        if not cluster.step():
            break
    assert cluster.finished is not None, "the job hangs"


def check_states(cluster: ToyCluster, iterations: int, reason: str = "all iterations are done") -> None:
    """Whoever had a place to the end, and heard of it, has taken exactly the steps of the committed iterations."""
    wanted = steps_of(cluster, iterations)
    for worker in cluster.workers:
        if cluster.has_place(worker) and worker.ended is not None and worker.ended.reason == reason:
            if worker.rules.holds is None:
                continue  # all ended before it had the state of its place
            assert worker.state is not None
            assert list(worker.state) == sorted(layers_in(worker.rules.holds)), worker.name
            assert all(steps == wanted for steps in worker.state.values()), worker.name


def steps_of(cluster: ToyCluster, iterations: int) -> list[ToyStep]:
    """Those that one process alone would have taken."""
    told, microbatches = cluster.training, cluster.job.plan.total_microbatches()
    counted = [n for n in range(iterations) if n not in cluster.not_finite]
    norms = [told.norms.get(n, SMALL_NORM) for n in counted]
    terms = [
        StepTerms(told.counts.get(n, 1.0) * microbatches, norm, taken)
        for taken, (n, norm) in enumerate(zip(counted, norms, strict=True))
    ]
    return [step_of(n, one, told.clip_norm) for n, one in zip(counted, terms, strict=True)]


TRAININGS = st.builds(
    ToyTraining,
    counts=st.dictionaries(st.integers(0, 7), st.sampled_from([3.0, 5.0])),
    norms=st.dictionaries(st.integers(0, 7), st.sampled_from([0.4, 0.8, 3.0])),
    clip_norm=st.sampled_from([None, 1.0]),
    evaluates=st.frozensets(st.integers(0, 7), max_size=3),
    evaluates_last=st.booleans(),
    forgets=st.sampled_from([0, 0, 30, 100]),
    regroups=st.sampled_from([True, True, False]),
    is_sharded=st.booleans(),
)


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 3),
    dp=st.integers(1, 3),
    staggered=st.booleans(),
    splits=st.booleans(),
    faults=st.lists(st.sampled_from(FAULTS), max_size=8),
    not_finite=st.frozensets(st.integers(0, 7), max_size=2),
    checkpoint=st.booleans(),
    regroups=st.booleans(),
    networks=st.integers(0, 2),
    training=TRAININGS,
    ranks=st.sampled_from([1, 1, 1, 2, 3]),
)
# The only worker, and nobody answers; somebody hangs at the end.
@example(127, 1, 1, False, False, ["mute"], frozenset(), False, False, 0, ToyTraining(), 1)
@example(
    2337123245, 3, 1, True, False, ["waiting", "kill", "join"], frozenset({3, 7}), True, False, 1, ToyTraining(), 1
)
@settings(max_examples=150, deadline=None)
def test_no_committed_iteration_is_lost_and_nothing_hangs(
    seed: int,
    stages: int,
    dp: int,
    staggered: bool,
    splits: bool,
    faults: list[str],
    not_finite: frozenset[int],
    checkpoint: bool,
    regroups: bool,
    networks: int,
    training: ToyTraining,
    ranks: int,
) -> None:
    """Kills, newcomers, leavers, coordinator restarts, slander, and training threads that hang in processes that live
    and come back, or say to have done what they have not, at any moment: all that finish took exactly the same steps,
    of every micro-batch once, by the terms of one process alone, and every evaluation was of the state of then.

    Whether the dead's work goes to their peers, or whoever is left forms unlike pipelines and copies what it lacks;
    and whether they do what is left of an iteration, or all of it again.
    """
    rng = random.Random(seed)
    plan = toy_plan(stages, dp, 2, staggered and not regroups, splits, ranks)
    job = Job(plan, iterations=8, checkpoint="ckpt" if checkpoint else None, checkpoint_every=3)
    cluster = ToyCluster(job, rng, not_finite, regroups=regroups, networks=networks, training=training)
    live_through(cluster, faults, rng)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, 8)
    elif cluster.finished.exit_code == INTERRUPTED:
        assert "stop" in faults
        check_states(cluster, cluster.rules.committed + 1, cluster.finished.reason)
    else:
        wanted = "nobody is left who holds layer|there is no plan without .*(nobody left|too many pipelines|too slow)"
        assert re.match(f"({wanted}|.* came to nothing)", cluster.finished.reason)
    assert cluster.rules.epoch <= 10 + 4 * len(faults), "a livelock that chance has ended"
    commits = [one["iteration"] for one in cluster.announced if one["event"] == "iteration"]
    assert sorted(set(commits)) == commits
    check_evaluations(cluster, commits)


def check_evaluations(cluster: ToyCluster, commits: list[int]) -> None:
    """Each that was due is announced once, with what was trained until then."""
    assert cluster.finished is not None
    told = [one for one in cluster.announced if one["event"] == "evaluation"]
    due = sorted(cluster.training.evaluates & {*commits})
    is_last = cluster.training.evaluates_last and cluster.finished.exit_code == 0
    before = [one["iteration"] for one in told]
    assert before in ([*due, 8], due) if is_last else before == due
    microbatches = cluster.job.plan.total_microbatches()
    for one in told:
        steps = float(len(steps_of(cluster, one["iteration"])))
        assert (one["loss"], one["count"]) == (steps, microbatches)


def test_logs_of_before_have_losses_without_counts() -> None:
    """Shares of the mean: their sum is the loss, and what was summed was divided already."""
    tally = VoteCounter(toy_plan(2, 1, 2, False))
    old = b'{"epoch":1,"iteration":0,"is_finite":true,"microbatches":[0,1],"losses":[[0,0.25],[1,0.5]],"kind":"vote"}'
    vote = from_worker(old)
    assert isinstance(vote, Vote)
    tally.add((0, 0), Vote(1, 0, True, (0, 1)))
    tally.add((0, 1), vote)
    assert (tally.loss(0), tally.terms(0, 7)) == (0.75, StepTerms(1.0, None, 7))
    assert from_coordinator(b'{"epoch":1,"iteration":0,"last":9,"kind":"commit"}') == Commit(1, 0, last=9)


@given(
    squares=st.lists(st.floats(0, 1e6), min_size=4, max_size=4),
    losses=st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.5, 1e6)), min_size=4, max_size=4),
    deal=st.permutations(range(4)),
    number=st.randoms(use_true_random=False),
)
def test_terms_are_the_same_to_the_last_bit_whoever_told_what(
    squares: list[float], losses: list[tuple[float, float]], deal: list[int], number: random.Random
) -> None:
    """Norms are added in the order of layers, losses exactly."""

    def terms(shares: list[list[int]]) -> tuple[StepTerms, float | None]:
        tally = VoteCounter(toy_plan(4, 1, 4, False))
        for place, share in enumerate(shares):
            told = tuple((n, *losses[n]) for n in share)
            norms = tuple((layer, squares[layer]) for layer in share)
            tally.add((0, place), Vote(1, 0, True, (), told, norms=norms))
        return tally.terms(0, 0), tally.loss(0)

    cut = number.randrange(5)
    assert terms([[0, 1, 2, 3], [], [], []]) == terms([[], deal[:cut], [], deal[cut:]])
    found, loss = terms([[0, 1], [2], [3], []])
    assert found.norm == pytest.approx(sum(squares) ** 0.5 / found.count)
    assert loss == pytest.approx(sum(total for total, _ in losses) / found.count, abs=1e-6)


def live_through(cluster: ToyCluster, faults: list[str], rng: random.Random) -> None:
    """Go on until the end, while these things happen in this order, some steps after each other."""
    dead: list[str] = []
    for fault in faults:
        for _ in range(rng.randrange(150)):
            cluster.step()
        if cluster.finished is not None:
            break
        inject(cluster, fault, rng, dead)
    run(cluster)


def inject(cluster: ToyCluster, fault: str, rng: random.Random, dead: list[str]) -> None:
    started = cluster.rules.phase == "running"
    live: list[ToyWorker] = [w for w in cluster.live() if w.called not in dead]
    if fault in ("kill", "leave") and started and live:
        victim = rng.choice(live)
        (cluster.kill if fault == "kill" else cluster.leave)(victim)
        dead.append(victim.called)
    elif fault == "join" and dead:
        called = dead.pop(0)
        if not any(w.called == called for w in cluster.live()):
            cluster.start(called)
    elif fault in ("restart", "stop"):
        (cluster.restart_coordinator if fault == "restart" else cluster.ask_to_stop)()
    elif fault == "slow" and started:
        cluster.notice(any_conditions(cluster, rng))
    elif fault in (*HANGS, "go on", "cut off", "lie") and started and live:
        stop(cluster, fault, rng.choice(live))
    elif fault == "touch" and started and len(live) > 1:
        one, other = rng.sample(live, 2)
        if one.epoch is not None:
            one.outbox.append(Suspect(one.epoch.epoch, "connection closed", other.name))


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 3),
    staggered=st.booleans(),
    waits=st.integers(0, 400),
    then=st.sampled_from(["", "", "stop", "restart", "kill"]),
    later=st.integers(0, 30),
)
@example(0, 1, False, 2, "restart", 1)  # before it has begun
@settings(max_examples=100, deadline=None)
def test_a_job_that_is_asked_to_stop_ends_with_the_iteration_under_way_and_is_saved(
    seed: int, stages: int, staggered: bool, waits: int, then: str, later: int
) -> None:
    """At most the iteration that was under way is committed after that; everybody has the state after it, which is the
    checkpoint, whole; the end is 130, or 0 where that was the last one; also if somebody dies, or the coordinator does,
    or it is asked again meanwhile."""
    rng = random.Random(seed)
    job = Job(toy_plan(stages, 2, 2, staggered), iterations=9, checkpoint="ckpt")
    cluster = ToyCluster(job, rng, timers_are_slow=True)  # to save takes less than a minute
    for _ in range(waits):
        cluster.step()
    before, had_begun = cluster.rules.committed, cluster.rules.phase == "running"
    is_over = cluster.finished is not None
    cluster.ask_to_stop()
    for _ in range(later):
        cluster.step()
    if cluster.finished is None:
        inject(cluster, then, rng, [])
    run(cluster)
    done = cluster.rules.committed + 1
    assert cluster.finished is not None
    assert cluster.finished.exit_code == (0 if is_over or done == 9 else INTERRUPTED), cluster.finished
    assert done <= before + 2
    check_states(cluster, done, cluster.finished.reason)
    saved = [one for one in cluster.announced if one["event"] == "checkpoint" and one["path"]]
    if done and had_begun and not then:
        assert saved[-1]["iteration"] == done


@given(waits=st.integers(0, 60), every_s=st.floats(1.0, 200.0))
@settings(max_examples=30, deadline=None)
def test_checkpoints_are_due_by_the_clock(waits: int, every_s: float) -> None:
    """The first commit after so much time since the last checkpoint, or the start, brings one; so does the end."""
    job = Job(toy_plan(2, 2, 2, False), iterations=12, checkpoint="ckpt", checkpoint_every_s=every_s)
    cluster = ToyCluster(job, random.Random(waits))
    run(cluster)
    commits = {}
    rules = CoordinatorRules(job)
    for event in map(decode_event, cluster.log):
        for instruction in rules.handle(event):
            if isinstance(instruction, Announce) and isinstance(instruction.what, JobStarted):
                saved_s = event.now_s
            elif isinstance(instruction, Tell) and isinstance(instruction.message, Commit):
                commits[instruction.message.iteration] = (event.now_s, bool(instruction.message.savers))
    for iteration, (now_s, is_saved) in commits.items():
        assert is_saved <= (now_s - saved_s >= every_s or iteration == 11)
        saved_s = now_s if is_saved else saved_s
    if every_s < 5:
        assert sum(is_saved for _, is_saved in commits.values()) >= 4


@given(
    seed=st.integers(0, 2**32),
    stages=st.integers(1, 3),
    dp=st.integers(2, 3),
    staggered=st.booleans(),
    how=st.sampled_from(HANGS),
    is_cut_off=st.booleans(),
    waits=st.integers(0, 400),
)
@settings(max_examples=100, deadline=None)
def test_who_hangs_is_given_up_alone(
    seed: int, stages: int, dp: int, staggered: bool, how: Hang, is_cut_off: bool, waits: int
) -> None:
    """A training thread that hangs in a process that lives, also one that was silent and comes back: whoever the others
    miss, or complain of, the job goes on without that worker, with all the others, over the links that it had.
    """
    rng = random.Random(seed)
    job = Job(toy_plan(stages, dp, 2, staggered), iterations=20)
    cluster = ToyCluster(job, rng, timers_are_slow=True)  # answers take less than the heartbeat limit
    for _ in range(waits):
        cluster.step()
    while cluster.rules.phase == "gathering":
        cluster.step()
    if cluster.finished is None:
        victim = rng.choice(cluster.live())
        cluster.hang(victim, how)
        if is_cut_off:
            cluster.cut_off(victim)
        run(cluster)
        check_states(cluster, 20)
        assert cluster.finished is not None and cluster.finished.exit_code == 0
        assert {one["worker"] for one in cluster.announced if one["event"] == "failure"} <= {victim.name}
        assert not [one for one in cluster.announced if one["event"] == "broken_link"]
        assert cluster.rules.epoch <= 6


def stop(cluster: ToyCluster, fault: str, victim: ToyWorker) -> None:
    """A training thread hangs, or all that do go on, or a worker is cut off and returns, or begins to lie."""
    if fault == "lie":
        victim.lies = True
    elif fault in HANGS:
        cluster.hang(victim, fault)
    elif fault == "cut off":
        cluster.cut_off(victim)
    else:
        for worker in cluster.live():
            cluster.go_on(worker)


def any_conditions(cluster: ToyCluster, rng: random.Random) -> Conditions:
    """Something that is slow among the job's workers, or nothing."""
    names = sorted(worker.name for worker in cluster.job.plan.workers)
    ends = pair_of(*rng.sample(names, 2)) if len(names) > 1 else None
    links = (SlowLink(ends, rng.choice([0.5, 2.0, 3.0])),) if ends and rng.random() < 0.6 else ()
    slow = (SlowWorker(rng.choice(names), rng.choice([2.0, HOPELESS])),) if rng.random() < 0.3 else ()
    return Conditions(links, slow, suspects=any_groups(names, rng))


def any_groups(names: list[str], rng: random.Random) -> tuple[tuple[str, ...], ...]:
    """Up to two groups, who may have members in common."""
    sizes = [rng.randint(2, len(names)) for _ in range(rng.randrange(3))] if len(names) > 1 else []
    return tuple(sorted({tuple(sorted(rng.sample(names, size))) for size in sizes}))


@given(seed=st.integers(0, 2**32), found=st.lists(st.sampled_from([0.0, 0.5, 2.0, 3.0]), max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_slow_link_changes_the_plan_between_two_iterations_and_relief_changes_it_back(
    seed: int, found: list[float]
) -> None:
    """Nothing is redone for it, both ends send by delegates, and the last plan is the one for the last finding."""
    rng = random.Random(seed)
    cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=20), rng)
    for delay_s in found:
        for _ in range(rng.randrange(60, 120)):
            cluster.step()
        if cluster.rules.phase != "running" or cluster.rules.committed > 12:
            break
        cluster.notice(Conditions((SlowLink(("0/0", "0/1"), delay_s),) if delay_s else ()))
        last_s = delay_s
    run(cluster)
    check_states(cluster, 20)
    votes = [event for event in map(decode_event, cluster.log) if isinstance(event, Said)]
    numbers = [event.message.iteration for event in votes if isinstance(event.message, Vote)]
    assert sorted(numbers) == sorted(4 * list(range(20)))
    epoch = [one for one in cluster.announced if one["event"] == "epoch"][-1]
    heard = [one for one in cluster.announced if one["event"] in ("slow_link", "relief")]
    if heard:
        assert epoch["delegated"] == (("0/0-0/1",) if last_s else ())
        assert ("slow" in cluster.rules.plan.planner.options) == (last_s > TOLERATED_S)


STAGE = ("0/1", "1/1", "2/1")


def suspicious(seed: int, staggered: bool = False) -> ToyCluster:
    """A job of six workers, three of which have just come under suspicion."""
    cluster = ToyCluster(Job(toy_plan(2, 3, 2, staggered), iterations=12), random.Random(seed))
    while cluster.rules.committed < 3:
        cluster.step()
    cluster.notice(Conditions(suspects=(STAGE,)))
    return cluster


@given(seed=st.integers(0, 2**32), staggered=st.booleans(), found=st.booleans(), waits=st.integers(0, 150))
@settings(max_examples=40, deadline=None)
def test_who_is_under_suspicion_is_examined_once_between_two_iterations(
    seed: int, staggered: bool, found: bool, waits: int
) -> None:
    """All of a group are, in an epoch with the same plan and seats, and nothing is redone for it; they are examined
    again only once the suspicion was dropped, and came up again. What was found is said."""
    cluster = suspicious(seed, staggered)
    while not [one for one in cluster.announced if one["event"] == "iteration" and one["epoch"] == 2]:
        cluster.step()
    for _ in range(waits):
        cluster.step()
    assert sorted(cluster.examined) == [(2, name) for name in STAGE]
    assert (cluster.rules.epoch, cluster.rules.plan) == (2, cluster.job.plan)
    cluster.notice(Conditions((SlowLink(("0/1", "2/1"), 0.5),) if found else ()))
    cluster.notice(Conditions(suspects=(STAGE,)))
    run(cluster)
    check_states(cluster, 12)
    (said,) = (one for one in cluster.announced if one["event"] == "examined")
    assert (said["workers"], said["found"]) == (STAGE, ("0/1-2/1",) if found else ())
    assert sorted(cluster.examined)[3:] in ([], [(cluster.rules.epoch, name) for name in STAGE])
    votes = [event.message for event in map(decode_event, cluster.log) if isinstance(event, Said)]
    numbers = [vote.iteration for vote in votes if isinstance(vote, Vote)]
    assert sorted(numbers) == sorted(6 * list(range(12)))


@given(seed=st.integers(0, 2**32), staggered=st.booleans(), waits=st.integers(0, 100), fault=st.booleans())
@settings(max_examples=60, deadline=None)
def test_an_examination_that_is_interrupted_begins_anew(seed: int, staggered: bool, waits: int, fault: bool) -> None:
    """Whoever dies meanwhile, or if the coordinator does: those of a group who are all there are examined, once to the
    end; and where one of them is gone nobody is waited for."""
    cluster = suspicious(seed, staggered)
    for _ in range(waits):
        cluster.step()
    if fault:
        cluster.restart_coordinator()
    else:
        cluster.kill(cluster.rng.choice(cluster.workers))
    run(cluster)
    check_states(cluster, 12)
    examined = {one["epoch"] for one in cluster.announced if one["event"] == "examine"}
    committed = {one["epoch"] for one in cluster.announced if one["event"] == "iteration"}
    lost = {one["worker"] for one in cluster.announced if one["event"] == "failure"}
    assert cluster.finished is not None
    assert len(examined & committed) == 1 or lost & {*STAGE} or cluster.finished.exit_code == 5
    for epoch in examined & committed:
        assert {name for number, name in cluster.examined if number == epoch} == {*STAGE}


def test_a_suspicion_of_somebody_who_is_not_there_changes_nothing() -> None:
    """A group is examined when all of it are there: no epoch begins before that."""
    cluster = ToyCluster(Job(toy_plan(1, 3, 2, False), iterations=20), random.Random(3))
    while cluster.rules.committed < 3:
        cluster.step()
    cluster.kill(cluster.workers[2])
    while cluster.rules.committed < 6:
        cluster.step()
    epoch = cluster.rules.epoch
    cluster.notice(Conditions(suspects=(("0/0", "1/0", "2/0"),)))
    while cluster.rules.committed < 12:
        cluster.step()
    assert (cluster.rules.epoch, cluster.examined) == (epoch, [])
    run(cluster)
    check_states(cluster, 20)


def test_what_the_running_plan_serves_as_well_changes_nothing() -> None:
    """A slow worker that the planner makes nothing of begins no epoch; one it has no plan for is said once."""
    for factor, kept in ((2.0, 0), (HOPELESS, 1)):
        cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=9), random.Random(5))
        while cluster.rules.committed < 3:
            cluster.step()
        cluster.notice(Conditions((), (SlowWorker("0/1", factor),)))
        run(cluster)
        said = [one["event"] for one in cluster.announced]
        assert (said.count("epoch"), said.count("slow_worker"), said.count("kept")) == (1, 1, kept)


def test_who_misses_each_other_goes_on_over_a_third() -> None:
    """Both live and have lost their connection: the next epoch has a detour, nobody is lost, and it says so."""
    cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=9), random.Random(7))
    while cluster.rules.committed < 3:
        cluster.step()
    one, other = (next(w for w in cluster.workers if w.name == name) for name in ("0/0", "0/1"))
    assert one.epoch is not None
    one.outbox.append(Suspect(one.epoch.epoch, "connection closed", other.name))
    other.outbox.append(Suspect(one.epoch.epoch, "connection closed", one.name))
    run(cluster)
    check_states(cluster, 9)
    epoch = [fields for fields in cluster.announced if fields["event"] == "epoch"][-1]
    assert (epoch["detours"], epoch["live_workers"]) == ({"0/0-0/1": "1/0"}, 4)
    assert [fields["link"] for fields in cluster.announced if fields["event"] == "broken_link"] == ["0/0-0/1"]


def lose_touch(cluster: ToyCluster, one: str, other: str) -> None:
    """Two workers miss each other, as soon as both are in the epoch; then the next one begins."""
    epoch, ends = cluster.rules.epoch, [next(w for w in cluster.workers if w.name == name) for name in (one, other)]
    while not all(
        end.groups and end.groups.epoch == epoch and isinstance(end.rules.action, JointAction) for end in ends
    ):
        cluster.step()
    for end, peer in zip(ends, (other, one), strict=True):
        cluster.complain(end, peer)
    while cluster.rules.epoch == epoch:
        assert cluster.step()


def test_who_misses_each_other_meets_on_another_network_while_there_is_one() -> None:
    """First one network, then the other, then a detour; who plans hears of the last only; the log tells the same."""
    job = Job(toy_plan(2, 2, 2, False), iterations=30)
    cluster = ToyCluster(job, random.Random(7), timers_are_slow=True, networks=2)
    asked: list[Conditions] = []
    replan = cluster.replan

    def noted(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        asked.append(conditions)
        return replan(plan, crew, conditions)

    cluster.replan = noted
    while cluster.rules.committed < 3:
        cluster.step()
    for _ in range(3):
        lose_touch(cluster, "0/1", "0/0")
    run(cluster)
    check_states(cluster, 30)
    epochs = [fields for fields in cluster.announced if fields["event"] == "epoch"]
    assert [one["sidesteps"] for one in epochs] == [{}, {"0/0-0/1": 1}, {"0/0-0/1": 2}, {}]
    assert [one["detours"] for one in epochs] == [{}, {}, {}, {"0/0-0/1": "1/0"}]
    assert {one["live_workers"] for one in epochs} == {4}
    assert [one.broken_links for one in asked] == [(), (), (("0/0", "0/1"),)]
    worker = next(w for w in cluster.workers if w.epoch is not None)
    assert worker.epoch is not None and worker.epoch.seats[0].others == ("store:0", "store:1")
    again = CoordinatorRules(job)
    instructions = [one for line in cluster.log for one in again.handle(decode_event(line))]
    assert [one.what.as_json() for one in instructions if isinstance(one, Announce)] == cluster.announced


def test_where_no_way_is_left_one_of_the_two_is_given_up() -> None:
    """Two peers that do not reach each other, and nobody between them: the second is sent away, the first goes on."""
    cluster = ToyCluster(Job(toy_plan(1, 2, 2, False), iterations=9), random.Random(7))
    while cluster.rules.committed < 3:
        cluster.step()
    one = cluster.workers[0]
    assert one.epoch is not None
    one.outbox.append(Suspect(one.epoch.epoch, "connection closed", "1/0"))
    run(cluster)
    assert cluster.finished is not None and cluster.finished.exit_code == 0
    assert [fields["worker"] for fields in cluster.announced if fields["event"] == "failure"] == ["1/0"]


def test_the_log_replays_to_the_same_state() -> None:
    """Rules that are fed the log of others are in the same state, to the last field."""
    cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=5), random.Random(1))
    for _ in range(60):
        cluster.step()
    cluster.kill(cluster.workers[0])
    run(cluster)
    again = CoordinatorRules(cluster.job)
    for line in cluster.log:
        again.handle(decode_event(line))
    parts = ("phase", "epoch", "committed", "plan", "_last", "_chronicle", "_commit_message")
    assert {name: vars(again)[name] for name in parts} == {name: vars(cluster.rules)[name] for name in parts}
    assert vars(again._roster) == vars(cluster.rules._roster)


def test_logs_of_before_inquiries_are_read() -> None:
    """A log of rules that asked nobody where he is (4b2d519) leads to the same broken link, losses and end."""
    rules = CoordinatorRules(Job(toy_plan(2, 2, 2, False), iterations=16))
    lines = (Path(__file__).parent / "before_inquiries.jsonl").read_bytes().splitlines()
    out = [one for line in lines for one in rules.handle(decode_event(line))]
    said = [one.what for one in out if isinstance(one, Announce) and not isinstance(one.what, IterationCommitted)]
    assert [(one.event, one.epoch) for one in said] == [
        ("start", 0),
        ("epoch", 1),
        ("broken_link", 1),
        ("epoch", 2),
        ("recovered", 2),
        ("restarted", 2),
        ("returned", 2),
        *[("failure", 2)] * 3,
        ("end", 2),
    ]
    assert isinstance(said[-1], JobEnded) and said[-1].reason == "nobody is left who holds layer 0"


def test_the_last_that_holds_a_layer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose training thread hangs, and without whom nobody could go on, is not given up for minutes; it may go on."""
    monkeypatch.setattr(toy_cluster, "AGES_S", 60.0)
    cluster = ToyCluster(Job(toy_plan(2, 1, 2, False), iterations=9), random.Random(2), timers_are_slow=True)
    while cluster.rules.committed < 3:
        cluster.step()
    cluster.hang(cluster.workers[0], "computing")
    for _ in range(STEPS):
        cluster.step()
    assert cluster.finished is None and not [one for one in cluster.announced if one["event"] == "failure"]
    cluster.go_on(cluster.workers[0])
    run(cluster)
    check_states(cluster, 9)
    assert cluster.finished is not None and cluster.finished.exit_code == 0


def test_a_notice_loses_nothing() -> None:
    """A worker that was asked to leave goes between two iterations: every iteration is executed once."""
    cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=9), random.Random(3))
    for _ in range(80):
        cluster.step()
    leaver = cluster.workers[3]
    cluster.leave(leaver)
    run(cluster)
    assert leaver.ended is not None and leaver.ended.reason == "left as asked"
    for steps in (leaver.state or {}).values():
        assert steps == steps_of(cluster, len(steps))
    check_states(cluster, 9)


def test_workers_that_begin_with_other_values_are_told_so() -> None:
    """No step is taken from values that are not those of a peer: the job ends with 2, and says whose they are."""
    cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=5), random.Random(5), timers_are_slow=True)
    cluster.made["1/1"] = "by chance"
    run(cluster)
    assert cluster.finished is not None
    assert cluster.finished.exit_code == 2
    assert "begin with other values of layer 1" in cluster.finished.reason
    assert cluster.rules.committed == -1


@pytest.mark.parametrize("staggered", [False, True])
def test_the_last_worker_of_a_stage_ends_the_job_with_5(staggered: bool) -> None:
    """With nobody left at a stage, the others save their parts and the job ends with 5 and its reason."""
    job = Job(toy_plan(2, 2, 2, staggered), iterations=50, checkpoint="ckpt")
    cluster = ToyCluster(job, random.Random(5), timers_are_slow=True)
    while cluster.rules.committed < 3:
        cluster.step()
    for worker in cluster.workers:
        if worker.place is not None and worker.place[1] == 1:
            cluster.kill(worker)
    run(cluster)
    assert cluster.finished is not None
    assert (cluster.finished.exit_code, cluster.finished.reason) == (5, "nobody is left who holds layer 1")
    saved = [one for one in cluster.announced if one["event"] == "checkpoint"]
    assert saved and saved[-1]["path"] is not None, saved


@pytest.mark.parametrize("staggered", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_newcomer_that_dies_before_it_is_seated_leaves_nobody_waiting(staggered: bool, seed: int) -> None:
    """The epoch that was announced for a newcomer begins also when the newcomer is gone: workers wait for it."""
    cluster = ToyCluster(Job(toy_plan(1, 2, 2, staggered), iterations=20), random.Random(seed))
    while cluster.rules.committed < 2:
        cluster.step()
    cluster.kill(cluster.workers[0])
    while "0/0" in cluster.rules.members or cluster.rules.epoch < 2:
        cluster.step()
    newcomer = cluster.start("0/0")
    while not cluster.rules._roster.newcomers and cluster.finished is None:
        cluster.step()
    for _ in range(seed):
        cluster.step()
    cluster.kill(newcomer)
    run(cluster)
    assert cluster.finished is not None and cluster.finished.exit_code == 0


def test_workers_that_know_more_than_the_log_are_not_kept_waiting() -> None:
    """A log whose end was lost with its host ends the job clearly: it would wait for votes that nobody repeats."""
    cluster = ToyCluster(Job(toy_plan(2, 2, 2, False), iterations=50), random.Random(2), timers_are_slow=True)
    while min(worker.rules.committed for worker in cluster.workers) < 5:
        cluster.step()
    lines = len(cluster.log)
    while min(worker.rules.committed for worker in cluster.workers) < 9:
        cluster.step()
    del cluster.log[lines:]
    cluster.restart_coordinator()
    run(cluster)
    assert all(worker.refused for worker in cluster.workers)
    assert cluster.finished is not None
    assert cluster.finished.exit_code == 5
