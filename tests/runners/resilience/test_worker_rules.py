"""A worker's rules, on their own: whatever it is told and whenever, it steps what counts, once, and votes once."""

import random
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.protocol import (
    Commit,
    End,
    Epoch,
    FromCoordinator,
    FromWorker,
    Halt,
    RankAssignment,
    Ready,
    Regroup,
    Saved,
    Saver,
    StandingTold,
    StepTerms,
    Suspect,
    Vote,
)
from rtk.runners.resilience.worker_rules import (
    Action,
    Connect,
    CopyState,
    EnterEpoch,
    ExamineGroups,
    FlushMessages,
    JointAction,
    LeaveGroups,
    Listen,
    ReduceGradients,
    Retire,
    SavePart,
    Say,
    TakeStep,
    TellStanding,
    Turn,
    UndoStep,
    WorkerRules,
)
from rtk.schemas.documents import canonical
from rtk.schemas.protocols import Examined, Measured
from rtk.schemas.resumption import LedgerEntry, Rest, Standing

from .toy_cluster import toy_plan

ITERATIONS = 12
NOTHING = Standing("1/0", (0, 1))


def epoch(
    number: int,
    iteration: int,
    staggered: bool = False,
    not_finite: frozenset[int] = frozenset(),
    seated: bool = True,
) -> Epoch:
    """One of a job of two peers, the second of whom is the worker, or the first alone."""
    plan = canonical(toy_plan(1, 2, 2, staggered)).decode()
    seats = tuple(RankAssignment(name, name, "store:1") for name in (("0/0", "1/0") if seated else ("0/0",)))
    terms = terms_of(iteration - 1, not_finite) if iteration else None
    taken = len({*range(iteration)} - not_finite)
    return Epoch(
        *(number, iteration, iteration - 1 in not_finite, ITERATIONS - 1, plan, seats),
        nothing_committed=iteration == 0,
        terms=terms,
        taken=taken,
    )


def terms_of(iteration: int, not_finite: frozenset[int] = frozenset()) -> StepTerms:
    """Of the iteration's step: one that counts micro-batches, and nothing is clipped."""
    return StepTerms(4.0, None, len({*range(iteration)} - not_finite))


def commit(number: int, iteration: int, not_finite: frozenset[int] = frozenset(), **more: Any) -> Commit:
    """That of an iteration."""
    terms, last = terms_of(iteration, not_finite), more.pop("last", ITERATIONS - 1)
    return Commit(number, iteration, iteration in not_finite, last, terms=terms, **more)


@dataclass
class Shell:
    """Executes what the rules want, in a mind of its own: the iterations whose step is in the state.

    Attributes:
        said: to the coordinator.
        did: all actions but those.
        not_finite: iterations whose gradients are not.
        reduced: the iteration whose gradients are there.
        standing: what it says to have of an iteration.
    """

    rules: WorkerRules = field(default_factory=lambda: WorkerRules("1/0"))
    state: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    said: list[FromWorker] = field(default_factory=list)
    did: list[Action] = field(default_factory=list)
    not_finite: frozenset[int] = frozenset()
    reduced: int | None = None
    standing: Standing = NOTHING

    def do(self, message: FromCoordinator | None = None) -> None:
        """The action at hand, which may be to take a message."""
        action = self.rules.action
        result: object = None
        if isinstance(action, Say):
            self.said.append(action.message)
        else:
            self.did.append(action)
        match action:
            case Listen():
                result = message
            case TakeStep(iteration, can_be_undone, terms):
                assert self.reduced == iteration, "these gradients are not there"
                assert terms == StepTerms(4.0, None, len(self.state))
                self.kept = [*self.state] if can_be_undone else self.kept
                self.state.append(iteration)
                self.reduced = None
            case UndoStep():
                self.state = [*self.kept]
            case EnterEpoch() | TellStanding():
                self.reduced, result = None, self.standing  # of which the one gives nothing
            case CopyState():
                result = Ready(action.epoch.epoch, (0, 1))
            case ReduceGradients(iteration):
                self.reduced = iteration
                assert self.rules.epoch is not None
                is_finite = iteration not in self.not_finite
                result = Vote(self.rules.epoch.epoch, iteration, is_finite, (0, 1), (), measured(iteration))
            case ExamineGroups():
                result = Examined(1.0, ())
            case SavePart(iteration=iteration):
                result = Saved(iteration, None, f"{self.state}")
        self.rules.go_on(result)

    def until(self, *kinds: type[Action]) -> None:
        """Do what comes, up to an action of one of these kinds."""
        while not isinstance(self.rules.action, kinds):
            self.do()

    def hear(self, *messages: FromCoordinator) -> None:
        """Take messages, once the rules listen, and do what is to be done about them at once."""
        for message in messages:
            self.until(Listen)
            self.do(message)
        self.until(JointAction, Listen, Retire)

    def votes(self) -> list[tuple[int, int]]:
        """On which iterations of which epochs."""
        return [(one.epoch, one.iteration) for one in self.said if isinstance(one, Vote)]


def measured(iteration: int) -> Measured:
    return Measured("1/0", iteration, 1.0, (), (), None, (), None, 1.0)


class Coordinator:
    """Says epochs and commits as it may: an iteration is committed only once the worker has voted on it.

    Attributes:
        mail: what it has said, and the worker not heard.
        committed: the last iteration that counts.
    """

    def __init__(self, chance: random.Random, staggered: bool, skipped: frozenset[int]) -> None:
        self.mail = deque[FromCoordinator]()
        self.committed = -1
        self._number = 0
        self._chance, self._staggered, self._skipped = chance, staggered, skipped

    def announce(self) -> None:
        """Another epoch, in which there is mostly a place; all may be told to regroup before."""
        self._number += 1
        while self._chance.random() < 0.4:
            is_skipped = self.committed in self._skipped
            terms = terms_of(self.committed, self._skipped) if self.committed >= 0 else None
            self.mail.append(Regroup(self._number, self.committed + 1, is_skipped, (), terms))
            self._number += self._chance.random() < 0.5
        is_seated = self._chance.random() < 0.9
        self.mail.append(epoch(self._number, self.committed + 1, self._staggered, self._skipped, is_seated))

    def may_commit(self, votes: list[tuple[int, int]]) -> bool:
        """Whether the worker, and with it everybody, has voted on the next iteration."""
        return (self._number, self.committed + 1) in votes

    def commit(self) -> None:
        """The next iteration counts; what says so may be lost, and with a new coordinator something later comes."""
        self.committed += 1
        skip = self.committed in self._skipped
        if self._chance.random() < 0.9:
            self.mail.append(commit(self._number, self.committed, self._skipped))
        if skip and self._staggered:
            self.announce()


@given(
    seed=st.integers(0, 2**32),
    staggered=st.booleans(),
    not_finite=st.frozensets(st.integers(0, ITERATIONS), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_what_counts_is_stepped_once_whatever_comes_when(
    seed: int, staggered: bool, not_finite: frozenset[int]
) -> None:
    """Epochs at any moment, commits that come late, or are lost with a coordinator, broken connections: where an epoch
    is entered exactly what is committed has been stepped, nothing is voted on twice, nor in an epoch that is over."""
    chance = random.Random(seed)
    # A peer may find a gradient that is not finite where this worker does not.
    shell = Shell(not_finite=frozenset(n for n in not_finite if n % 2))
    coordinator = Coordinator(chance, staggered, not_finite)
    coordinator.announce()
    for _ in range(chance.randrange(300)):
        if chance.random() < 0.03:
            coordinator.announce()
        elif coordinator.may_commit(shell.votes()) and chance.random() < 0.5:
            coordinator.commit()
        else:
            move(shell, coordinator.mail, chance)
        check(shell, staggered, not_finite)
    coordinator.mail.append(End(0, "enough"))
    while not isinstance(shell.rules.action, Retire):
        move(shell, coordinator.mail, chance)
    entered = [one for one in shell.did if isinstance(one, EnterEpoch) and len(one.epoch.seats) == 2]
    assert shell.did.count(LeaveGroups()) == len(entered)


def move(shell: Shell, mail: deque[FromCoordinator], chance: random.Random) -> None:
    """One thing that the worker can do."""
    rules = shell.rules
    if isinstance(rules.action, Listen):
        if mail:
            shell.do(mail.popleft())
    elif isinstance(rules.action, JointAction) and chance.random() < 0.03:
        rules.lose_touch("connection closed")
    elif isinstance(rules.action, JointAction) and any(isinstance(message, Turn) for message in mail):
        if chance.random() < 0.8:
            rules.supersede()
        else:  # it was as good as done
            shell.do()
    else:
        shell.do()


def check(shell: Shell, staggered: bool, not_finite: frozenset[int]) -> None:
    """What holds at any moment."""
    rules = shell.rules
    votes = shell.votes()
    assert votes == sorted(set(votes)), "no vote twice, and none in an epoch of before"
    running = rules.epoch
    if running is None:
        return
    assert not votes or votes[-1][0] <= running.epoch
    assert len(shell.state) == len(set(shell.state))
    if isinstance(rules.action, Connect):
        assert shell.state == [n for n in range(running.iteration) if n not in not_finite] or rules.holds is None
    if isinstance(rules.action, ReduceGradients):
        iteration = rules.action.iteration
        assert running.iteration <= iteration <= rules.last
        assert rules.committed >= iteration - 1 - staggered
    assert rules.committed <= rules.voted


def test_a_worker_that_missed_a_commit_catches_up_with_the_next() -> None:
    """Staggered, two votes may be under way when a coordinator dies: its successor says the later commit only."""
    shell = Shell()
    shell.hear(epoch(1, 0, staggered=True))
    while shell.votes() != [(1, 0), (1, 1)]:
        shell.do()
    shell.hear(commit(1, 1))
    assert shell.state == [0, 1]
    shell.until(ReduceGradients)
    assert (shell.did[-1], shell.rules.action) == (FlushMessages(but_last=True), ReduceGradients(2))


def test_a_commit_of_another_epoch_or_of_nothing_that_was_voted_on_does_not_count() -> None:
    """Whoever says it."""
    shell = Shell()
    shell.hear(epoch(3, 0))
    shell.until(Listen)
    shell.hear(commit(2, 0), commit(3, 1), commit(4, 0))
    assert (shell.state, shell.rules.committed) == ([], -1)
    shell.hear(commit(3, 0), commit(3, 0))
    assert (shell.state, shell.rules.committed) == ([0], 0)


def test_the_course_of_an_epoch() -> None:
    """Wait, connect, copy, examine, iterate, vote, commit; what was examined goes along with the first vote."""
    shell = Shell()
    first = epoch(1, 0, seated=False)
    shell.hear(first)
    assert (shell.did, shell.rules.holds) == ([Listen(), EnterEpoch(first)], None)
    shell.did.clear()
    second = replace(epoch(2, 0), last=1, examine=((0, 1),))
    shell.hear(second)
    shell.until(Listen)
    shell.hear(commit(2, 0, last=1, save="folder", savers=(Saver("1/0", (0, 1)),)))
    shell.until(Listen)
    shell.hear(commit(2, 1, frozenset({1}), last=1))
    shell.until(Listen)
    shell.hear(Halt(2, True, None, (), "over"), End(5, "over"))
    step = TakeStep(0, False, terms_of(0))
    iterate = [ReduceGradients(0), Listen(), step, SavePart("folder", 1, (0, 1)), FlushMessages(False)]
    assert shell.did == [
        *(Listen(), EnterEpoch(second), Connect(second, 1), CopyState(second, 1)),
        *(ExamineGroups(second, 1), *iterate, ReduceGradients(1), Listen(), FlushMessages(False)),
        *(FlushMessages(False), Listen(), LeaveGroups(), Listen()),
    ]
    ready, one, saved, two = shell.said
    assert (ready, saved) == (Ready(2, (0, 1)), Saved(1, None, "[0]"))
    assert isinstance(one, Vote) and one.measured and one.measured.examined == Examined(1.0, ())
    assert isinstance(two, Vote) and two.measured and two.measured.examined is None
    assert shell.rules.action == Retire(End(5, "over"))


def test_who_loses_touch_says_with_whom_and_leaves() -> None:
    """In any part of an epoch; then it listens, and a commit that still comes for what it voted on counts."""
    for kind in (Connect, CopyState, ReduceGradients):
        shell = Shell()
        shell.hear(epoch(1, 0))
        shell.until(kind)
        shell.rules.lose_touch("connection closed", "0/0")
        shell.until(Listen)
        assert shell.said[-1] == Suspect(1, "connection closed", "0/0")
        assert shell.did[-1] == LeaveGroups()
    shell = Shell()
    shell.hear(epoch(1, 0, staggered=True))
    while shell.votes() != [(1, 0), (1, 1)]:
        shell.do()
    shell.hear(commit(1, 0))
    assert isinstance(shell.rules.action, FlushMessages)
    shell.rules.lose_touch("connection closed")
    shell.hear(commit(1, 1))
    assert shell.state == [0, 1]


def standing(*done: int) -> Standing:
    """What the worker has of an iteration."""
    return Standing("1/0", (0, 1), ledger=(LedgerEntry((0, 1), done),) if done else ())


def regroup(number: int, iteration: int) -> Regroup:
    terms = terms_of(iteration - 1) if iteration else None
    return Regroup(number, iteration, False, (), terms)


def test_the_course_of_a_regrouping() -> None:
    """It leaves, says what it has, meets others, and keeps that only where the next epoch reckons with just that."""
    for rest, keeps in [
        (None, False),
        (Rest(0, (standing(0, 1),), ()), True),
        (Rest(0, (standing(),), ()), False),  # its standing came too late
    ]:
        shell = Shell(standing=standing(0, 1))
        shell.hear(epoch(1, 0))
        shell.until(ReduceGradients)
        shell.did.clear()
        shell.rules.supersede()
        call = regroup(2, 0)
        shell.hear(call, call)  # a coordinator that was restarted says it again
        assert shell.did == [LeaveGroups(), Listen(), TellStanding(call), Listen()]
        assert shell.said[-2:] == 2 * [StandingTold(2, 0, standing(0, 1))]
        shell.did.clear()
        following = replace(epoch(2, 0), rest=rest)
        shell.hear(following)
        assert shell.did == [Listen(), EnterEpoch(following, keeps)]
        assert shell.rules.action == Connect(following, 1)


def test_who_has_nothing_or_no_place_keeps_nothing() -> None:
    """Though an epoch may reckon with just that: what is not in a standing is of no use."""
    for own, seated in [(standing(), True), (standing(0), False)]:
        shell = Shell(standing=own)
        shell.hear(epoch(1, 0))
        shell.until(ReduceGradients)
        shell.rules.supersede()
        following = replace(epoch(2, 0, seated=seated), rest=Rest(0, (own,), ()))
        shell.hear(regroup(2, 0), following)
        assert EnterEpoch(following, False) in shell.did


def test_a_step_ahead_is_undone_before_the_standing_is_told() -> None:
    """What there is belongs to the state before the step, and a commit that it missed counts first."""
    shell = Shell()
    shell.hear(epoch(1, 0, staggered=True))
    while shell.votes() != [(1, 0), (1, 1)]:
        shell.do()
    shell.hear(commit(1, 0))
    shell.until(ReduceGradients)
    shell.rules.supersede()
    assert shell.state == [0, 1]
    shell.hear(regroup(2, 1))
    assert (shell.state, shell.did[-2:]) == ([0], [UndoStep(), TellStanding(regroup(2, 1))])
    other = Shell()
    other.hear(epoch(1, 0))
    while not other.votes():
        other.do()
    other.hear(regroup(2, 1))
    assert (other.state, other.rules.committed) == ([0], 0)


def test_a_newcomer_that_is_told_to_regroup_says_that_it_has_nothing() -> None:
    """Before its first epoch it has no state that anything could be settled in."""
    shell = Shell(standing=Standing("1/0", None))
    call = regroup(5, 3)
    shell.hear(call, epoch(5, 3))
    assert shell.did[:3] == [Listen(), TellStanding(call), Listen()]
    assert shell.rules.action == Connect(epoch(5, 3), 1)
