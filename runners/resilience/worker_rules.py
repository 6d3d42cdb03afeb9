"""A worker's rules: what its training thread does, one action after the other, without I/O, clock, torch or chance.

They are the other side of the coordinator's (rules.py). In an epoch a worker connects to the others, copies what it
lacks, and iterates: it reduces gradients, votes, and steps its optimizer once the coordinator has committed the
iteration, by the terms that the commit tells. When another epoch is announced it drops what was under way, and enters
that at the iteration after the last commit; unless it was told to regroup before: then it has told what it has of that
iteration, and keeps it where the epoch reckons with it. With a staggered optimizer it steps as soon as its own
gradients are reduced, provided that the step before is committed: one step can be undone, and no more. By then nobody
knows the iteration's terms, so it does that only where it can foresee them: where the loss has counted as much in the
last two iterations, and the last norm was far from being clipped. Else it waits for the commit, as with a synchronous
optimizer.

The rules ask for one action at a time, and whoever executes it says what came of it. Three do: the worker of a real run
(runners/torch/resilient.py), stories on the virtual clock (runners/virtual/job.py), and the toy cluster of the tests,
which lets everything happen in any order. So what is simulated, and what is tested, is what runs.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from ...schemas.documents import parse_document
from ...schemas.plan import Layers, Plan
from ...schemas.protocols import Examined
from ...schemas.resumption import Standing
from .protocol import (
    Commit,
    Doing,
    End,
    Epoch,
    Foreseen,
    FromCoordinator,
    FromWorker,
    Halt,
    Leaving,
    LossesTold,
    MicrobatchLoss,
    Publish,
    Published,
    Ready,
    Regroup,
    Reshape,
    Returning,
    Saved,
    Saver,
    StandingTold,
    StateLost,
    StepTerms,
    Suspect,
    Vote,
)

Turn = Epoch | Regroup | Halt | Reshape | End  # what ends an epoch, whatever is under way in it


@dataclass(frozen=True, slots=True)
class Action:
    """Something for the training thread to do.

    Attributes:
        doing: what a worker says of itself meanwhile (`Whereabouts`); it may be known better while the action lasts.
        what: the same in words.
    """

    doing: ClassVar[Doing] = "computing"
    what: ClassVar[str] = "messages"


@dataclass(frozen=True, slots=True)
class JointAction(Action):
    """One that others take part in: until it is done the epoch may be over, or communication break."""


@dataclass(frozen=True, slots=True)
class Listen(Action):
    """Take the coordinator's next message, in its order; gives it."""

    doing = "listening"
    what = "the coordinator"


@dataclass(frozen=True, slots=True)
class Say(Action):
    """Tell the coordinator something."""

    message: FromWorker


@dataclass(frozen=True, slots=True)
class EnterEpoch(Action):
    """Drop all that is under way, unless it `keeps` what it told to have of the epoch's first iteration, for which
    there is a rest; from now on only what is announced after this epoch interrupts."""

    epoch: Epoch
    keeps: bool = False

    doing = "preparing"
    what = "its stage"


@dataclass(frozen=True, slots=True)
class TellStanding(Action):
    """See what there is of the iteration that is under way, in the state before its step; gives the `Standing`."""

    regroup: Regroup

    what = "its standing"


@dataclass(frozen=True, slots=True)
class UndoStep(Action):
    """Have the state again that was kept before the last step, and the sums of gradients that it was made of."""

    what = "step"


@dataclass(frozen=True, slots=True)
class TakeStep(Action):
    """Step the optimizer with the gradients that were reduced last; where it `can_be_undone`, keep the state before."""

    iteration: int
    can_be_undone: bool
    terms: StepTerms

    what = "step"


@dataclass(frozen=True, slots=True)
class Connect(JointAction):
    """Have the stage of a rank's place, if it is another one without its state, and meet the epoch's other workers.

    Of a rank beyond the seats (`Epoch.givers`): meet them.
    """

    epoch: Epoch
    rank: int

    doing = "joining"
    what = "connecting"


@dataclass(frozen=True, slots=True)
class CopyState(JointAction):
    """Send the layers that others lack, and have those of the place, its own ones or others'; gives `Ready`.

    So with sums that have ended already, where only a rest of the first iteration is left. It gives `StateLost` where
    nobody has a part of what is to be had.

    Where nothing is committed, who has no state (`WorkerRules.holds` is None) makes its own. A rank beyond the seats
    (`Epoch.givers`) sends what others lack of a sharded optimizer's state, and has nothing.
    """

    epoch: Epoch
    rank: int

    doing = "preparing"
    what = "its state"


@dataclass(frozen=True, slots=True)
class ExamineGroups(JointAction):
    """Have this rank's part in the examination of suspicious groups; gives `Examined`, None where it is in no group."""

    epoch: Epoch
    rank: int

    doing = "waiting"
    what = "the examination"


@dataclass(frozen=True, slots=True)
class ReduceGradients(JointAction):
    """Execute an iteration but for the optimizer's step; gives the `Vote` on it."""

    iteration: int

    what = "data"


@dataclass(frozen=True, slots=True)
class EvaluateModel(JointAction):
    """Run held-out micro-batches forward before an iteration; gives their losses, of last stages, and its seconds."""

    iteration: int

    what = "an evaluation"


@dataclass(frozen=True, slots=True)
class FlushMessages(JointAction):
    """Wait until others have what was sent to them; if `but_last`, all but the last iteration's messages."""

    but_last: bool

    doing = "waiting"
    what = "messages sent"


@dataclass(frozen=True, slots=True)
class LeaveGroups(Action):
    """Let go of all connections of the epoch."""

    what = "the epoch's end"


@dataclass(frozen=True, slots=True)
class SavePart(Action):
    """Write some layers' state after so many iterations, as a part of a checkpoint; gives `Saved`.

    `together` are the workers that save these layers, where they are several; `is_last`: nothing comes after it, so
    that each of them better saves all that it has.
    """

    folder: str
    iteration: int
    layers: Layers
    together: tuple[str, ...] = ()
    is_last: bool = False

    doing = "preparing"
    what = "its part of a checkpoint"


@dataclass(frozen=True, slots=True)
class PublishWhole(Action):
    """Make a checkpoint visible whose parts are there, or discard it; gives `Published`."""

    message: Publish

    doing = "preparing"
    what = "a checkpoint"


@dataclass(frozen=True, slots=True)
class Retire(Action):
    """The job, or this worker's part in it as it is, is over; nothing comes after it."""

    end: End | Reshape


Acting = Generator[Action, Any, None]

Evaluated = tuple[tuple[MicrobatchLoss, ...], float]  # the losses of held-out micro-batches, and seconds
NO_EVALUATION: Evaluated = ((), 0.0)


class _EpochOverError(Exception):
    """Something else has been announced."""


class _TouchLostError(Exception):
    """Communication with others broke, with `peer` if that is known."""

    def __init__(self, reason: str, peer: str | None) -> None:
        super().__init__(reason)
        self.reason, self.peer = reason, peer


@lru_cache(maxsize=8)
def plan_of(text: str) -> Plan:
    """The plan of an epoch's message, which is canonical JSON; the same object for all who ask for it."""
    return parse_document(text.encode(), Plan, "the coordinator's plan")


def may_begin(iteration: int, committed: int, is_ahead: bool) -> bool:
    """Whether all steps before an iteration are final once `committed` is; all but the last where that `is_ahead`."""
    return committed >= iteration - 1 - is_ahead


# Norms grow by less than this from one iteration to the next, but for the rare spike.
FAR_FROM_CLIPPED = 0.5


class WorkerRules:
    """What one worker knows of the job, and what it has to do next.

    Args:
        name: `k/i`, by which it was started.
        clip_norm: to which gradients are clipped; None: they are not.
        evaluates: whether held-out micro-batches are run before an iteration.

    Attributes:
        action: what to do now; then call `go_on`, or of a JointAction that does not come to its end, `supersede` or
            `lose_touch`.
        epoch: that it is in; None before the first.
        rank: its own there; None where there is no place for it.
        holds: the layers, ranges [first, stop), whose state it holds, as of the last step; None where it has none.
        voted: the last iteration of this epoch that it has voted on.
        committed: the last one that it knows to be committed.
        last: the epoch's last one, as far as that is known.
    """

    def __init__(
        self, name: str, clip_norm: float | None = None, evaluates: Callable[[int], bool] = lambda iteration: False
    ) -> None:
        self.name, self._clip_norm, self._evaluates = name, clip_norm, evaluates
        self.epoch: Epoch | None = None
        self.rank: int | None = None
        self.holds: tuple[Layers, ...] | None = None
        self.voted = self.committed = self.last = -1
        self._reduced: int | None = None  # the iteration voted on whose gradients are there for its step
        self._undoable: int | None = None  # the iteration whose step can be undone
        self._is_staggered = False
        self._terms: StepTerms | None = None  # of the iteration that is known, the last to be committed
        self._known = -1
        self._is_steady = True  # the losses of the one before that counted as much, or, if unknown, micro-batches
        self._microbatches = 0  # of an iteration
        self._taken = 0  # steps until then
        self._must_evaluate = False  # all iterations are done
        self._turn: Turn | None = None  # heard, and not obeyed yet
        self._told: StandingTold | None = None  # since it was told to regroup
        self._thread = self._live()
        self.action: Action = next(self._thread)

    @property
    def taken(self) -> int:
        """Steps in the state that it holds, one that can be undone included."""
        return self._taken + (self._undoable is not None and self._undoable > self.committed)

    def go_on(self, result: Any = None) -> None:
        """The action is done.

        Args:
            result: what it gives, as its class says.
        """
        self.action = self._thread.send(result)

    def supersede(self) -> None:
        """The action will not be done, for an epoch, a halt or the end has been announced, and waits to be taken."""
        assert isinstance(self.action, JointAction)
        self.action = self._thread.throw(_EpochOverError())

    def lose_touch(self, reason: str, peer: str | None = None) -> None:
        """The action will not be done, for communication broke: with that worker, if it is known with whom."""
        assert isinstance(self.action, JointAction)
        self.action = self._thread.throw(_TouchLostError(reason, peer))

    def _live(self) -> Acting:
        while not isinstance(turn := (yield from self._next_turn()), End | Reshape):
            if isinstance(turn, Epoch):
                yield from self._live_through(turn)
            elif isinstance(turn, Regroup):
                yield from self._regroup(turn)
            else:
                yield from self._settle(turn.iteration, turn.skipped, turn.terms)
                yield from self._save(turn.savers, turn.save, turn.iteration, is_last=True)
        yield Retire(turn)

    def _next_turn(self) -> Generator[Action, Any, Turn]:
        """Wait for what comes after this epoch; commits that were on their way still count."""
        while self._turn is None:
            yield from self._hear()
        turn, self._turn = self._turn, None
        return turn

    def _regroup(self, regroup: Regroup) -> Acting:
        """Say what there is of the iteration under way."""
        if self._told is None or self._told.epoch < regroup.epoch:
            if self.epoch is not None:
                yield from self._settle(regroup.iteration, regroup.skipped, regroup.terms)
            standing: Standing = yield TellStanding(regroup)
            self._told = StandingTold(regroup.epoch, regroup.iteration, standing)
        # else a coordinator that was restarted says it again, and hears the same
        yield Say(self._told)

    def _live_through(self, epoch: Epoch) -> Acting:
        """Wait for a place, connect, copy, then iterate, vote and commit until the epoch is over."""
        self._microbatches = plan_of(epoch.plan).total_microbatches()
        yield from self._settle(epoch.iteration, epoch.skipped, epoch.terms)
        self.rank = next((rank for rank, seat in enumerate(epoch.present) if seat.worker == self.name), None)
        yield EnterEpoch(epoch, self._keeps(epoch))
        self._told = None
        self.epoch, self.last, self.voted = epoch, epoch.last, epoch.iteration - 1
        self._taken, self._must_evaluate = epoch.taken, epoch.evaluate
        if self.rank is None:
            self.holds = None
            return
        if self.rank >= len(epoch.seats):
            yield from self._give(epoch, self.rank)
            return
        self._is_staggered = plan_of(epoch.plan).optimizer == "staggered"
        try:
            yield Connect(epoch, self.rank)
            ready: Ready | StateLost = yield CopyState(epoch, self.rank)
            yield from self._begin(ready)
            examined: Examined | None = (yield ExamineGroups(epoch, self.rank)) if epoch.examine else None
            while self.voted < self.last:
                yield from self._iterate(self.voted + 1, examined)
                examined = None
            while self.committed < self.last:
                yield from self._hear_more()
            yield FlushMessages(but_last=False)
            if self._must_evaluate:
                yield from self._evaluate_last()
            while True:
                yield from self._hear_more()
        except _EpochOverError:
            pass
        except _TouchLostError as lost:
            yield Say(Suspect(epoch.epoch, lost.reason, lost.peer))
        yield LeaveGroups()

    def _give(self, epoch: Epoch, rank: int) -> Acting:
        """Send others what they lack of what this worker holds, which has no seat; it is kept for the case that another
        epoch begins before they have it. Connections are kept, too: of all who are here the next ones are made."""
        try:
            yield Connect(epoch, rank)
            yield CopyState(epoch, rank)
            while True:
                yield from self._hear_more()
        except (_EpochOverError, _TouchLostError):
            pass  # whoever has a seat says so
        yield LeaveGroups()

    def _begin(self, ready: Ready | StateLost) -> Acting:
        """Say that all state is there; or that it never will be, and wait for an epoch that does without."""
        if isinstance(ready, StateLost):
            yield Say(ready)
            while True:
                yield from self._hear_more()
        if ready.holds != self.holds:  # what was kept is another stage's
            self.holds, self._undoable = ready.holds, None
        yield Say(ready)

    def _keeps(self, epoch: Epoch) -> bool:
        """Whether an epoch reckons with what this worker has told to have; not where it has told that too late."""
        if self.rank is None or self.rank >= len(epoch.seats) or self._told is None or epoch.rest is None:
            return False
        told = self._told.standing
        return not told.is_empty and any(told.covers(one) for one in epoch.rest.standings)

    def _iterate(self, iteration: int, examined: Examined | None) -> Acting:
        """Reduce, vote, and step as soon as that is final, or can be undone."""
        self._reduced = None
        evaluation: Evaluated = (yield EvaluateModel(iteration)) if self._evaluates(iteration) else NO_EVALUATION
        vote: Vote = yield ReduceGradients(iteration)
        self._reduced = self.voted = iteration
        if vote.measured is not None and examined is not None:
            vote = replace(vote, measured=replace(vote.measured, examined=examined))
        evaluated, evaluation_s = evaluation
        ahead = self._foreseen(iteration) if vote.is_finite else None
        yield Say(replace(vote, ahead=ahead, evaluated=evaluated, evaluation_s=evaluation_s))
        while not may_begin(iteration + 1, self.committed, ahead is not None):
            yield from self._hear_more()
        if ahead is not None and self._reduced == iteration:
            self._reduced, self._undoable = None, iteration
            terms = StepTerms(ahead.count, None, self._taken)
            yield TakeStep(iteration, can_be_undone=True, terms=terms)
        # Messages of a committed iteration have been taken; those of one that is not need not be yet.
        yield FlushMessages(but_last=ahead is not None)

    def _foreseen(self, iteration: int) -> Foreseen | None:
        """What can be taken for granted of an iteration's terms, before it is committed; None: too little."""
        assert self.epoch is not None
        if not self._is_staggered or not self._is_steady or (self.epoch.waits and iteration == self.epoch.iteration):
            return None
        norm = None if self._terms is None else self._terms.norm
        if self._clip_norm is not None and (norm is None or norm > FAR_FROM_CLIPPED * self._clip_norm):
            return None
        return Foreseen(self._usual_count, self._clip_norm)

    @property
    def _usual_count(self) -> float:
        """What losses have counted together last; before that is known, means, each of which counts as one."""
        return float(self._microbatches) if self._terms is None else self._terms.count

    def _evaluate_last(self) -> Acting:
        """Evaluate what was trained, once all iterations are committed."""
        assert self.epoch is not None
        after = self.committed + 1
        evaluated, evaluation_s = yield EvaluateModel(after)
        vote = Vote(self.epoch.epoch, after, True, (), evaluated=evaluated, evaluation_s=evaluation_s)
        self.voted = after
        yield Say(vote)
        yield FlushMessages(but_last=False)

    def _hear_more(self) -> Acting:
        """Obey the next message of this epoch.

        Raises:
            _EpochOverError: it is of another one, or an iteration counts without a step that others have taken already.
        """
        message = yield from self._hear()
        if self._turn is not None or (isinstance(message, Commit) and message.skip and self._is_staggered):
            raise _EpochOverError

    def _hear(self) -> Generator[Action, Any, FromCoordinator]:
        """Obey the next message, but for what ends the epoch, which is the next turn."""
        message: FromCoordinator = yield Listen()
        match message:
            case Epoch() | Regroup() | Halt() | Reshape() | End():
                self._turn = message
            case Commit(number, done) if (
                self.epoch and number == self.epoch.epoch and self.committed < done <= self.voted
            ):
                self.committed, self.last, self._must_evaluate = done, message.last, message.evaluate
                yield from self._be_as_after(done, message.skip, message.terms)
                yield from self._save(message.savers, message.save, done + 1)
            case Publish():
                published: Published = yield PublishWhole(message)
                yield Say(published)
        return message

    def _settle(self, iteration: int, skipped: bool, terms: StepTerms | None) -> Acting:
        """Be as before an iteration, whose predecessor is committed; what is under way is worth nothing."""
        if iteration <= self.committed:  # all go back to a checkpoint, and will load what they are to have
            self._reduced = self._undoable = self._terms = None
            self._known, self._is_steady = -1, True
        self.committed = iteration - 1
        yield from self._be_as_after(iteration - 1, skipped, terms)
        self._reduced = None

    def _be_as_after(self, done: int, skipped: bool, terms: StepTerms | None) -> Acting:
        """Have taken the step of the last committed iteration, unless it was skipped, and none after it.

        A step that is missing is one that this worker has voted on: it may hear of the commit late, or, from a
        coordinator that was restarted, not at all. One that it has taken already had these terms.
        """
        if terms is not None and done != self._known:
            self._is_steady = terms.count == self._usual_count
            self._terms, self._known, self._taken = terms, done, terms.taken + (not skipped)
        if self._undoable is not None and self._undoable > done - skipped:
            self._undoable = None
            yield UndoStep()
        if self._reduced == done:
            self._reduced = None
            if not skipped:
                assert terms is not None, "what is committed has terms"
                yield TakeStep(done, can_be_undone=False, terms=terms)

    def _save(self, savers: tuple[Saver, ...], folder: str | None, iteration: int, is_last: bool = False) -> Acting:
        for saver in savers:
            if folder is not None and saver.worker == self.name:
                together = tuple(other.worker for other in savers if other.layers == saver.layers)
                together = together if len(together) > 1 else ()
                saved: Saved = yield SavePart(folder, iteration, saver.layers, together, is_last)
                yield Say(saved)


class Unanswered:
    """What a worker has told a coordinator that may have died since, and tells the next one again.

    That is the latest of each kind, and of each iteration's votes and losses, in the order in which they were said, but
    for what the coordinator has answered.

    Attributes:
        returning: what it knows of the job; None before the first epoch.
    """

    def __init__(self) -> None:
        self.returning: Returning | None = None
        self._kept: dict[tuple[type, int], FromWorker] = {}

    @property
    def messages(self) -> tuple[FromWorker, ...]:
        """What to say again."""
        return tuple(self._kept.values())

    def say(self, message: FromWorker) -> None:
        """A message is said, whether it arrives or not."""
        if isinstance(message, Ready | StateLost | Vote | StandingTold | LossesTold | Leaving | Saved | Published):
            # With a staggered optimizer two votes may be unanswered, and of a checkpoint several parts.
            number = message.iteration if isinstance(message, Vote | LossesTold) else 0
            if isinstance(message, Saved) and message.part is not None:
                number = message.part.layers[1]
            key = type(message), number
            self._kept.pop(key, None)
            self._kept[key] = message

    def hear(self, message: FromCoordinator) -> None:
        """A message has come, obeyed or not."""
        match message:
            case Epoch():
                self.returning = Returning(message.epoch, message.iteration - 1)
            case Commit():
                self.returning = Returning(message.epoch, message.iteration)
            case Reshape():  # it has no part any more in what it has said
                self._kept = {key: kept for key, kept in self._kept.items() if isinstance(kept, Leaving)}
        self._kept = {key: kept for key, kept in self._kept.items() if not _answers(message, kept)}


def _answers(message: FromCoordinator, kept: FromWorker) -> bool:
    match message, kept:
        case Epoch() | Regroup(), Vote() | StateLost():
            return kept.epoch < message.epoch
        case Epoch(), StandingTold():
            return kept.epoch <= message.epoch
        case Epoch(rest=None), LossesTold():
            return kept.epoch < message.epoch
        case Commit(), LossesTold():
            return kept.iteration <= message.iteration
        case Commit(), Ready():
            return kept.epoch <= message.epoch
        case Commit(), Vote():
            return (kept.epoch, kept.iteration) <= (message.epoch, message.iteration)
        case Publish(), Saved():
            return kept.iteration <= message.iteration
    return False
