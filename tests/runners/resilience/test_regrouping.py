"""Where somebody is lost in the midst of an iteration, only what is left of it is done, and all of it if in doubt."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.planners.resumption.plan import plan_rest
from rtk.runners.resilience.events import MakePlan, RestPlanned, Said, Tell, decode_event, encode_event
from rtk.runners.resilience.membership import VoteCounter
from rtk.runners.resilience.protocol import (
    Commit,
    Epoch,
    FromWorker,
    Job,
    LossesTold,
    MicrobatchLoss,
    RankAssignment,
    Ready,
    Regroup,
    StandingTold,
    Vote,
    encode,
    from_coordinator,
    from_worker,
)
from rtk.runners.resilience.regrouping import ANEW, Inventory, LossBook, rehearse
from rtk.runners.resilience.worker_rules import ReduceGradients, Unanswered
from rtk.schemas.check_standing import check_standing
from rtk.schemas.conditions import HEALTHY
from rtk.schemas.errors import InfeasibleError
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Hand
from rtk.schemas.resumption import HeldMessages, LedgerEntry, Rest, Standing, Stash, nothing_of

from .test_rules import check_states, run
from .toy_cluster import ToyCluster, ToyTraining, ToyWorker, toy_plan

ITERATIONS = 6
PLAIN = ToyTraining()


def cluster_of(seed: int, plan: Plan | None = None, training: ToyTraining = PLAIN, **more: Any) -> ToyCluster:
    """A job of six workers, of which everything takes less than the heartbeat limit."""
    job = Job(plan or toy_plan(2, 3, 3, False), iterations=ITERATIONS)
    return ToyCluster(job, random.Random(seed), timers_are_slow=True, training=training, **more)


def until(cluster: ToyCluster, happens: Callable[[], bool], most: int = 3000) -> bool:
    """Let things happen until something has; gives whether it has."""
    for _ in range(most):
        if happens():
            return True
        if not cluster.step():
            break
    return happens()


def is_regrouping(cluster: ToyCluster) -> bool:
    """Whether all are asked what they have of an iteration."""
    return cluster.rules._inventory.message is not None


def announced(cluster: ToyCluster, event: str) -> list[dict[str, Any]]:
    return [one for one in cluster.announced if one["event"] == event]


def said(cluster: ToyCluster, kind: type[Any]) -> list[Any]:
    """What workers have told the coordinator."""
    events = (event for event in map(decode_event, cluster.log) if isinstance(event, Said))
    return [event.message for event in events if isinstance(event.message, kind)]


def interrupted(seed: int, waits: int, **more: Any) -> tuple[ToyCluster, ToyWorker]:
    """A job one of whose workers is killed in the midst of an iteration, and who it was."""
    cluster = cluster_of(seed, **more)
    until(cluster, lambda: cluster.rules.committed >= 1)
    for _ in range(waits):
        cluster.step()
    victim = cluster.rng.choice(cluster.live())
    cluster.kill(victim)
    return cluster, victim


@given(seed=st.integers(0, 2**32), waits=st.integers(0, 80), staggered=st.booleans(), splits=st.booleans())
@settings(max_examples=100, deadline=None)
def test_what_a_survivor_has_done_is_not_done_again(seed: int, waits: int, staggered: bool, splits: bool) -> None:
    """Where all keep their stages, and their messages: every gradient is computed by one survivor, once."""
    cluster, victim = interrupted(seed, waits, plan=toy_plan(2, 3, 3, staggered, splits))
    run(cluster)
    check_states(cluster, ITERATIONS)
    resumed = {one["iteration"] for one in announced(cluster, "resume")}
    assert not announced(cluster, "redo") or not resumed
    done = Counter(one[:3] for one in cluster.offices[0].done if one[3] != victim.name and one[0] in resumed)
    assert {*done.values()} <= {1}
    for one in announced(cluster, "resume"):
        # Only what the dead worker had sent, and nobody had taken, when the sum over its layer had ended.
        assert one["again"] == 0 or one["sealed"]
        assert one["left"] - one["again"] + one["kept"] == 2 * 9 * 2


FAULTS = ["kill", "restart", "late", "join", "complain", "cut off"]


@given(
    seed=st.integers(0, 2**32),
    waits=st.integers(0, 60),
    staggered=st.booleans(),
    faults=st.lists(st.tuples(st.integers(0, 12), st.sampled_from(FAULTS)), min_size=1, max_size=3),
    forgets=st.sampled_from([0, 50, 100]),
)
@settings(max_examples=100, deadline=None)
def test_what_happens_while_all_are_asked_changes_no_sum(
    seed: int, waits: int, staggered: bool, faults: list[tuple[int, str]], forgets: int
) -> None:
    """Another death, a restart of the coordinator, somebody who takes too long, is thought dead, lost touch, or comes:
    nobody waits for ever, and every step is of every micro-batch once."""
    training = ToyTraining(forgets=forgets)
    cluster, victim = interrupted(seed, waits, plan=toy_plan(2, 3, 2, staggered), training=training)
    until(cluster, lambda: is_regrouping(cluster) or cluster.finished is not None)
    for steps, fault in faults:
        for _ in range(steps):
            cluster.step()
        if cluster.finished is None:
            disturb(cluster, fault, victim.name)
    run(cluster)
    assert cluster.finished is not None
    if cluster.finished.exit_code == 0:
        check_states(cluster, ITERATIONS)
    else:
        assert "nobody is left who holds layer" in cluster.finished.reason
    commits = [one["iteration"] for one in announced(cluster, "iteration")]
    assert commits == sorted(set(commits))


def disturb(cluster: ToyCluster, fault: str, dead: str) -> None:
    live = cluster.live()
    if fault == "kill" and len(live) > 3:
        cluster.kill(cluster.rng.choice(live))
    elif fault == "restart":
        cluster.restart_coordinator()
    elif fault == "late" and cluster.patience:
        cluster.lose_patience(cluster.patience[0])
    elif fault == "join" and dead not in [worker.name for worker in live]:
        cluster.start(dead)
    elif fault == "cut off" and len(live) > 3:
        cluster.cut_off(cluster.rng.choice(live))
    elif fault == "complain":
        waiting = [worker for worker in live if isinstance(worker.rules.action, ReduceGradients)]
        if waiting:
            cluster.complain(cluster.rng.choice(waiting), None)


def test_who_takes_too_long_with_its_standing_has_nothing_and_is_not_lost() -> None:
    """It hears of the epoch as all do, drops what it has, and nobody waits for it meanwhile."""
    cluster, victim = interrupted(3, 20)
    until(cluster, lambda: is_regrouping(cluster))
    slow = next(worker for worker in cluster.live() if worker.rules.action.doing == "waiting" or worker is not victim)
    inbox, slow.inbox = slow.inbox, type(slow.inbox)()  # it does not hear of it
    until(cluster, lambda: len(said(cluster, StandingTold)) == 4)
    assert is_regrouping(cluster)
    cluster.lose_patience(cluster.patience[0])
    slow.inbox.extendleft(reversed(inbox))
    run(cluster)
    check_states(cluster, ITERATIONS)
    assert [one["worker"] for one in announced(cluster, "failure")] == [victim.name]
    rest = next(event.rest for event in map(decode_event, cluster.log) if isinstance(event, RestPlanned))
    assert rest is not None
    own = {standing.worker: standing for standing in rest.standings}
    assert own.pop(slow.name).is_empty and not all(standing.is_empty for standing in own.values())


WRONG: dict[str, Callable[[Standing], Standing]] = {
    "it is that of worker": lambda own: replace(own, worker="9/9"),
    "it is of other layers": lambda own: replace(own, layers=(0, 2)),
    "there are gradients of the layers": lambda own: replace(own, ledger=(LedgerEntry((0, 2), (0,)),)),
    "twice": lambda own: replace(own, ledger=(*own.ledger, *own.ledger)),
    "under way twice": lambda own: replace(own, stashes=(Stash("F", (0,)), Stash("F", (0,)))),
    "micro-batch": lambda own: replace(own, messages=(HeldMessages("activation", 1, (9,)),)),
}


@pytest.mark.parametrize("why", WRONG)
def test_who_tells_what_cannot_be_is_expelled(why: str) -> None:
    """What it has counts as lost with it, and all is well without it."""
    cluster, victim = interrupted(5, 24)
    until(cluster, lambda: is_regrouping(cluster))
    told: list[StandingTold] = []

    def holds_one() -> bool:
        for worker in cluster.live():
            mine = [one for one in worker.outbox if isinstance(one, StandingTold) and one.standing.ledger]
            if mine:
                worker.outbox[worker.outbox.index(mine[0])] = replace(mine[0], standing=WRONG[why](mine[0].standing))
                told.append(mine[0])
                return True
        return False

    assert until(cluster, holds_one)
    liar = told[0].standing.worker
    run(cluster)
    check_states(cluster, ITERATIONS)
    reasons = {one["worker"]: one["reason"] for one in announced(cluster, "failure")}
    assert reasons.keys() == {victim.name, liar}
    assert (
        reasons[liar].startswith(f"what it says to have of iteration {told[0].iteration} is wrong")
        and why in reasons[liar]
    )


def test_a_lie_that_can_be_is_found_out_by_the_votes() -> None:
    """Of a micro-batch that nobody has done the sum is not stepped by: all is done anew, without asking again."""
    cluster, _ = interrupted(7, 24)
    until(cluster, lambda: is_regrouping(cluster))

    def lies() -> bool:
        for worker in cluster.live():
            for number, one in enumerate(worker.outbox):
                if isinstance(one, StandingTold) and one.standing.stashes and one.standing.stashes[0].after == "F":
                    first, *others = one.standing.stashes[0].microbatches
                    layers = one.standing.layers
                    assert layers is not None
                    done = {*(m for entry in one.standing.ledger for m in entry.microbatches), first}
                    false = replace(
                        one.standing,
                        ledger=(LedgerEntry(layers, tuple(sorted(done))),),
                        stashes=(Stash("F", tuple(others)),) if others else (),
                    )
                    worker.rules._told = worker.outbox[number] = replace(one, standing=false)
                    worker.lies = True  # so that the wrong step is looked for
                    return True
        return False

    assert until(cluster, lies)
    run(cluster)
    check_states(cluster, ITERATIONS)
    (redo,) = announced(cluster, "redo")
    assert "lost micro-batches [" in redo["reason"]


def test_sums_that_are_not_alike_end_the_job_with_5() -> None:
    """Of a copy, and of what it is a copy of: nobody knows which of them is right."""
    jobs = (interrupted(seed, 30 + seed % 30)[0] for seed in range(200))
    cluster = next(job for job in jobs if until(job, lambda job=job: has_copied(job), 400))  # type: ignore[misc]
    done = next(one for one in said(cluster, Ready) if one.sums)
    wrong = Ready(done.epoch, done.layers, (), tuple((layer, "another") for layer, _ in done.sums))
    sender = next(
        event.connection
        for event in map(decode_event, cluster.log)
        if isinstance(event, Said) and event.message == done
    )
    peer = next(m for c, m in cluster.rules._roster.by_connection.items() if c != sender and m.holds == done.holds)
    assert peer.connection is not None
    cluster._feed(Said(cluster._tick(), peer.connection, wrong))
    assert cluster.finished is not None and cluster.finished.exit_code == 5
    assert "have other sums of layer" in cluster.finished.reason


def has_copied(cluster: ToyCluster) -> bool:
    """Whether somebody has sent a sum, or was sent one."""
    return any(one.sums for one in said(cluster, Ready))


def test_workers_that_cannot_tell_are_not_asked() -> None:
    """As in logs of before: the iteration is done anew, and the next epoch has the next number."""
    cluster, _ = interrupted(2, 30, training=ToyTraining(regroups=False))
    run(cluster)
    check_states(cluster, ITERATIONS)
    assert not said(cluster, StandingTold) and not announced(cluster, "resume")
    assert [one["epoch"] for one in announced(cluster, "epoch")] == [1, 2]


def test_without_anybody_who_plans_what_is_left_all_is_done_anew_and_said() -> None:
    """The reason is announced."""
    cluster, _ = interrupted(2, 30, resume=None)
    run(cluster)
    check_states(cluster, ITERATIONS)
    assert [one["reason"] for one in announced(cluster, "redo")] == ["nobody plans what is left"]


def test_a_rest_that_is_wrong_is_not_told() -> None:
    """The checker of what is left has the last word; what it says is announced."""

    def nothing_left(plan: Plan, seats: Any, iteration: int, standings: Any, conditions: Any) -> Rest:
        rest = plan_rest(plan, seats, iteration, standings, conditions)
        return replace(rest, workers=tuple(replace(one, order="") for one in rest.workers))

    cluster = cluster_of(2)
    cluster.resume = nothing_left
    until(cluster, lambda: cluster.rules.committed >= 1)
    for _ in range(30):
        cluster.step()
    cluster.kill(cluster.live()[0])
    run(cluster)
    check_states(cluster, ITERATIONS)
    (redo,) = announced(cluster, "redo")
    assert redo["reason"].startswith("what was planned is wrong: ")


@pytest.mark.parametrize("problem", [ZeroDivisionError("oh"), None])
def test_a_question_for_what_is_left_has_an_answer_whatever_happens(problem: Exception | None) -> None:
    """A planner that fails, or plans something else, is a reason to do all anew."""
    cluster = cluster_of(1)
    until(cluster, lambda: cluster.rules.committed >= 0)
    cluster.kill(cluster.live()[0])

    def resume(plan: Plan, seats: Any, iteration: int, standings: Any, conditions: Any) -> Rest:
        if problem is not None:
            raise problem
        return Rest(99, (), ())

    cluster.resume = resume
    run(cluster)
    check_states(cluster, ITERATIONS)
    wanted = "the planner failed: ZeroDivisionError('oh')" if problem else "what was planned is left of something else"
    assert {one["reason"] for one in announced(cluster, "redo")} <= {wanted}


def test_a_recovery_says_when_it_had_come_how_far() -> None:
    """In the order in which things are done, all before the commit."""
    cluster, _ = interrupted(4, 25)
    run(cluster)
    recovered = announced(cluster, "recovered")[-1]
    reached = recovered["after_s"]
    assert list(reached) and {"told", "standings", "plan", "rest", "epoch", "ready"} == reached.keys()
    assert reached["told"] <= reached["standings"] <= reached["rest"] <= reached["epoch"] <= reached["ready"]
    assert reached["plan"] <= reached["rest"] and reached["ready"] <= recovered["seconds"]


def test_the_plan_is_asked_for_while_standings_come() -> None:
    """Neither waits for the other."""
    cluster, victim = interrupted(4, 25)
    seen: list[Any] = []
    handle = cluster.rules.handle

    def watch(*events: Any) -> Any:
        instructions = handle(*events)
        seen.append([type(one.message) if isinstance(one, Tell) else type(one) for one in instructions])
        return instructions

    cluster.rules.handle = watch  # type: ignore[method-assign]
    until(cluster, lambda: is_regrouping(cluster))
    assert Regroup in seen[-1] and MakePlan in seen[-1]
    assert victim.name not in [seat.worker for seat in cluster.rules._inventory.message.members]  # type: ignore[union-attr]


# What counts


def vote(layers: tuple[int, int], *done: int, losses: tuple[MicrobatchLoss, ...] = ()) -> Vote:
    return Vote(2, 4, True, done, losses, ledger=(LedgerEntry(layers, done),) if done else ())


def test_votes_on_a_rest_are_counted_by_layer_without_those_that_were_summed_before() -> None:
    """What is in the parts of the sums of this epoch must be every micro-batch once; sealed layers were so before."""
    plan = toy_plan(2, 2, 2, False)
    tally = VoteCounter(plan, Rest(4, (), (), sealed=((1, 2),)))
    for place, own in {(0, 0): (0, 1, 2), (1, 0): (3,), (0, 1): (), (1, 1): ()}.items():
        tally.add(place, vote((place[1], place[1] + 1), *own))
    assert tally.is_complete(4, tally._layers) and tally.miscount(4) is None
    tally.add((1, 0), vote((0, 1), 2, 3))
    assert tally.miscount(4) == "layer 0 lost micro-batches [] and did [2] twice in iteration 4"
    tally = VoteCounter(plan, Rest(4, (), ()))
    for place, own in {(0, 0): (0, 1, 2), (1, 0): (3,), (0, 1): (), (1, 1): (1, 2)}.items():
        tally.add(place, vote((place[1], place[1] + 1), *own))
    assert tally.miscount(4) == "layer 1 lost micro-batches [0, 3] and did [] twice in iteration 4"


@given(
    told=st.dictionaries(st.integers(0, 3), st.floats(-10, 10), min_size=4, max_size=4),
    voted=st.frozensets(st.integers(0, 3)),
    is_sealed=st.booleans(),
)
def test_losses_count_once_whoever_told_them(told: dict[int, float], voted: frozenset[int], is_sealed: bool) -> None:
    """Those of the dead where the sums of the last layer outlive them; elsewhere only what the living have done."""
    before = {(number, 2): ((1, 2), (number, value, 1.0)) for number, value in told.items()}
    tally = VoteCounter(toy_plan(2, 1, 4, False), Rest(4, (), (), sealed=((1, 2),) if is_sealed else ()), before)
    tally.add((0, 0), vote((0, 1), 0, 1, 2, 3))
    losses = tuple((number, 100.0 + number, 1.0) for number in sorted(voted))
    tally.add((0, 1), vote((1, 2), losses=losses))
    assert tally.terms(4, 0).count == (4.0 if is_sealed or not voted else float(len(voted)))
    wanted = [100.0 + n if n in voted else told[n] for n in range(4)] if is_sealed else [100.0 + n for n in voted]
    found = tally.loss(4)
    assert found == (pytest.approx(sum(wanted) / len(wanted)) if wanted else None)


def test_what_layers_add_is_no_loss_of_a_micro_batch() -> None:
    """Stages tell parts of one loss: all count, each once, those of the dead where the sums are that they came with."""
    added, moved = ((0, 1), (0, 0.5, 0.0)), ((0, 1), (1, 4.0, 1.0))  # who has moved tells of the last layer still
    before = {(0, 1): added, (1, 1): moved, (0, 2): ((1, 2), (0, 3.0, 1.0))}
    for sealed, wanted in [(((0, 2),), 7.5), (((1, 2),), 7.0), ((), None)]:
        tally = VoteCounter(toy_plan(2, 1, 2, False), Rest(4, (), (), sealed=sealed), before)
        tally.add((0, 0), vote((0, 1)))
        tally.add((0, 1), vote((1, 2)))
        assert tally.loss(4) == (None if wanted is None else wanted / 2)
    whole = VoteCounter(toy_plan(2, 1, 2, False))
    whole.add((0, 0), vote((0, 1), 0, 1, losses=((0, 0.5, 0.0), (1, 0.5, 0.0))))
    whole.add((0, 1), vote((1, 2), 0, 1, losses=((0, 3.0, 1.0), (1, 4.0, 1.0))))
    assert (whole.loss(4), whole.terms(4, 0).count) == (4.0, 2.0)


def test_what_is_left_is_planned_once_before_anybody_dies() -> None:
    """What the planner and the checker load is there then; what they think of it concerns nobody."""
    plan, asked = toy_plan(2, 2, 2, False), []

    def resume(plan: Plan, seats: Any, iteration: int, standings: Any, conditions: Any) -> Rest:
        asked.append((plan, seats, iteration, standings, conditions))
        raise InfeasibleError("it is only a rehearsal")

    rehearse(plan, resume)
    ((found, seats, _, standings, conditions),) = asked
    assert (found, conditions) == (plan, HEALTHY)
    assert [name for name, _ in seats] == [one.worker for one in standings] == ["0/0", "0/1", "1/0", "1/1"]
    assert [check_standing(2, 4, one) for one in standings] == [None] * 4


def test_who_was_waited_for_before_an_epoch_holds_up_nothing_after_it() -> None:
    """An iteration that is to be done anew waits for no standings: a change between two later ones must not, either."""
    inventory = Inventory()
    inventory.begin(Regroup(2, 0, False, (RankAssignment("0/0", "0/0", "store:1"),)), toy_plan(1, 1, 1, False))
    assert inventory.left(("", (), (), HEALTHY)) is None
    inventory.begin_epoch(2, None)
    assert inventory.left(("", (), (), HEALTHY)) == ANEW


def test_what_a_worker_has_from_before_it_was_lost_is_nothing_and_no_fault() -> None:
    """One that was stopped and has come anew tells of layers of its earlier life before it is ready: it stays."""
    inventory, own = Inventory(), Standing("0/0", (0, 1), ledger=(LedgerEntry((0, 1), (0,)),))
    inventory.begin(Regroup(2, 0, False, (RankAssignment("0/0", "0/0", "store:1"),)), toy_plan(1, 1, 1, False))
    assert inventory.note("0/0", None, StandingTold(2, 0, own)) is None
    assert inventory.is_complete
    assert inventory.standings((Hand("0/0", (0, 0), None),), {"0/0": None}) == (nothing_of("0/0", None),)


def test_losses_of_what_was_dropped_do_not_count() -> None:
    """An epoch that begins an iteration anew forgets them, also those that come later; a rest keeps them."""
    book = LossBook()
    book.add((1, 2), LossesTold(1, 4, ((0, 1.0, 1.0), (1, 2.0, 1.0))), committed=3)
    book.add((1, 2), LossesTold(1, 3, ((0, 9.0, 1.0),)), committed=3)
    book.begin_epoch(2, Rest(4, (), ()))
    book.add((1, 2), LossesTold(1, 4, ((2, 3.0, 1.0),)), committed=3)
    assert sorted(loss for _, loss in book.of(4).values()) == [(0, 1.0, 1.0), (1, 2.0, 1.0), (2, 3.0, 1.0)]
    assert not book.of(3)
    book.begin_epoch(3, None)
    book.add((1, 2), LossesTold(2, 4, ((3, 3.0, 1.0),)), committed=3)
    assert not book.of(4)
    book.add((1, 2), LossesTold(3, 4, ((3, 3.0, 1.0),)), committed=3)
    book.commit(4)
    assert not book.of(4)


def test_what_was_not_answered_is_said_again() -> None:
    """A standing until the epoch that follows from it, losses until their iteration is committed or begun anew."""
    unanswered, own = Unanswered(), StandingTold(2, 4, Standing("0/0", (0, 1)))
    losses = [LossesTold(1, 4, ()), LossesTold(1, 5, ())]
    said: list[FromWorker] = [Vote(1, 4, True, ()), *losses, own]
    for message in said:
        unanswered.say(message)
    unanswered.hear(Regroup(2, 4, False, ()))
    assert unanswered.messages == (*losses, own)
    epoch = Epoch(2, 4, False, 9, "", (), rest=Rest(4, (), ()))
    unanswered.hear(epoch)
    assert unanswered.messages == (*losses,)
    unanswered.hear(Commit(2, 4))
    assert unanswered.messages == (losses[1],)
    unanswered.hear(replace(epoch, epoch=3, rest=None))
    assert not unanswered.messages


def test_what_is_said_of_standings_is_read_again() -> None:
    """As messages, and as lines of the log."""
    standing = Standing(
        "0/0",
        (0, 2),
        False,
        (LedgerEntry((0, 2), (0, 3)),),
        ((1, 2),),
        (Stash("F", (1,)),),
        (HeldMessages("gradient", 1, (0,)),),
    )
    rest = Rest(4, (standing,), (), sealed=((1, 2),))
    told_by_it: list[StandingTold | LossesTold] = [
        StandingTold(2, 4, standing),
        LossesTold(2, 4, ((0, None, 1.0),)),
    ]
    for message in told_by_it:
        assert from_worker(encode(message)) == message
        assert decode_event(encode_event(Said(1.0, 3, message))) == Said(1.0, 3, message)
    told = Regroup(2, 4, False, ())
    assert from_coordinator(encode(told)) == told
    assert decode_event(encode_event(RestPlanned(1.0, 3, rest, ""))) == RestPlanned(1.0, 3, rest, "")
