"""What a coordinator announces: what has happened to a job, for people, for metrics and for a Timeline.

An announcement has the name by which JSON lines call it (`event`), its fields as JSON, a sentence for people, and what
a Timeline says of it beside its kind and place. Real and simulated runs announce the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import groupby
from typing import Any, ClassVar

from ...schemas.checkpoint import print_layers
from ...schemas.plan import Plan
from ...schemas.quantities import print_time
from ...schemas.resumption import Rest
from ...schemas.text import counted, joined
from ...schemas.timeline import Event as TimelineEvent
from .protocol import (
    Epoch,
)

NAMES_TOLD = 4  # of a list of workers, and the last one
OMITTED_IF_NONE = {"omitted if None": True}  # of a field, in JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """Something that has happened to a job.

    Attributes:
        epoch: in which; None: the one that the job is in.
        iteration: before which, or of which; None where that says nothing.
    """

    event: ClassVar[str]
    is_drawn: ClassVar[bool] = True  # it belongs in a picture
    is_change: ClassVar[bool] = False  # an epoch has to answer it

    epoch: int | None = None
    iteration: int | None = field(default=None, metadata=OMITTED_IF_NONE)

    def as_json(self) -> dict[str, Any]:
        """Its fields, `event` first."""
        said = {one.name: getattr(self, one.name) for one in fields(self)}
        unsaid = {one.name for one in fields(self) if one.metadata and said[one.name] is None}
        return {"event": self.event, **{name: value for name, value in said.items() if name not in unsaid}}

    @property
    def is_bad(self) -> bool:
        """Whether it costs something."""
        return False

    @property
    def sentence(self) -> str:
        """For people; empty where only those who know the whole run can say it."""
        return ""

    @property
    def detail(self) -> str:
        """What a timeline says of it beside its kind and its place: the reason, where it has one."""
        return str(getattr(self, "reason", self.sentence))

    def place_among(self, seats: Mapping[str, str]) -> str | None:
        """The place whose event it is, if it is one place's.

        Args:
            seats: workers by their places, as the running epoch has them.
        """
        return None


# Training


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(Announcement):
    """All workers are there; `iteration` is the first one.

    Attributes:
        live_workers: how many they are.
        iterations: how many there are to be.
    """

    event = "start"
    is_drawn = False

    live_workers: int
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCommitted(Announcement):
    """An iteration counts.

    Attributes:
        loss: None where nobody knows it.
        iteration_time_s: since the commit before, or since the epoch was formed.
        live_workers: that worked on it.
        skipped: a gradient was not finite, and nobody has stepped.
        count: what the mean is taken over: micro-batches, or whatever the loss counts, such as tokens.
        grad_norm: of the gradients of the mean, before they are clipped; None where it is not finite or not known.
        learning_rate: of the step, in the optimizer's first group, at the first worker that has one.
    """

    event = "iteration"
    is_drawn = False

    loss: float | None
    iteration_time_s: float | None
    live_workers: int
    skipped: bool = False
    count: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEvaluated(Announcement):
    """The model was evaluated on held-out data, as it is before `iteration`.

    Attributes:
        loss: None where it is not finite.
        count: as of an iteration.
        seconds: what it took, of the slowest worker.
    """

    event = "evaluation"
    is_drawn = False

    loss: float | None
    count: float
    seconds: float

    @property
    def sentence(self) -> str:
        """When, and how good."""
        loss = "not finite" if self.loss is None else f"{self.loss:.4f}"
        return f"evaluation before iteration {self.iteration}: loss {loss}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegun(Announcement):
    """The job goes on with these workers, from `iteration` on.

    Attributes:
        live_workers: how many they are.
        workers: who they are, by their places.
        failed: places that nobody has.
        reason: why it had to begin.
        delegated: links whose messages go by delegates.
        detours: who passes on the messages of which link.
        sidesteps: by which interface the messages of which link go.
        predicted_iteration_time_s: by its plan.
    """

    event = "epoch"

    live_workers: int
    workers: Mapping[str, str]
    failed: tuple[str, ...] = ()
    reason: str = ""
    delegated: tuple[str, ...] = ()
    detours: Mapping[str, str] = field(default_factory=dict)
    sidesteps: Mapping[str, int] = field(default_factory=dict)
    predicted_iteration_time_s: float | None = None

    @property
    def detail(self) -> str:
        """From when on, how many, and which messages go other ways."""
        parts = [
            f"{self.epoch}, from iteration {self.iteration} on: {self.live_workers} workers",
            f"by delegates {', '.join(self.delegated)}" if self.delegated else "",
            *(f"{via} passes on what {link} have for each other" for link, via in self.detours.items()),
            *(f"{link} goes by interface {number}" for link, number in self.sidesteps.items()),
        ]
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Announcement):
    """The first iteration after a change is done.

    Attributes:
        seconds: since the change was noticed.
        lost_s: between two commits, less what an iteration usually takes.
        reason: what the change was.
        after_s: when it had come how far, in s since it was noticed: all `told` to regroup; all `standings` told; the
            `plan` there; the `rest` of the iteration planned; the `epoch` announced; its last worker `ready`. What did
            not happen is not there.
    """

    event = "recovered"
    is_drawn = False

    seconds: float
    lost_s: float
    reason: str = ""
    after_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResumed(Announcement):
    """The iteration in which workers were lost goes on where it was.

    Attributes:
        kept: forward and backward passes, each of a micro-batch at a worker, whose work stays: what is in the workers'
            parts of the sums, in sums of whole stages that have ended, or under way where somebody goes on with it.
        left: passes that are yet to be run.
        again: those of them that are run again, only for the messages that come of them.
        resent: messages that are sent again.
        copied: sums of gradients that go to workers that lack them.
        sealed: layers whose sums have ended already, in words; empty where there are none.
    """

    event = "resume"

    kept: int
    left: int
    again: int
    resent: int
    copied: int
    sealed: str = ""

    @property
    def sentence(self) -> str:
        """How much is kept, and what is left."""
        again = f", {self.again} of them again" if self.again else ""
        sealed = f"; of {self.sealed} the sums are there" if self.sealed else ""
        kept = f"{self.kept} passes kept, {self.left} left"
        return f"iteration {self.iteration} goes on: {kept}{again}{sealed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRedone(Announcement):
    """The iteration in which workers were lost is done anew, for this `reason`."""

    event = "redo"

    reason: str

    @property
    def sentence(self) -> str:
        """Why."""
        return f"iteration {self.iteration} is done anew: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded(Announcement):
    """The job is over.

    Attributes:
        exit_code, reason: how, and why.
        iterations: that were committed.
        iteration_time_s: the job's (schemas/timeline.py: `iteration_time_s`).
        epochs: that it took.
    """

    event = "end"
    is_drawn = False

    exit_code: int
    reason: str
    iterations: int
    iteration_time_s: float | None = None
    epochs: int = 0


# Who comes and goes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent(Announcement):
    """What has happened to a worker.

    Attributes:
        worker: its name.
        place: where it was or will be; None: nowhere.
    """

    worker: str
    place: str | None = None

    def place_among(self, seats: Mapping[str, str]) -> str | None:
        """Its own."""
        return self.place

    @property
    def _at(self) -> str:
        return f" at {self.place}" if self.place not in (None, self.worker) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(WorkerEvent):
    """A worker is lost; `reason` says how."""

    event = "failure"
    is_change = True

    reason: str

    @property
    def is_bad(self) -> bool:
        """It does."""
        return True

    @property
    def sentence(self) -> str:
        """Who, and how."""
        return f"worker {self.worker}{self._at} failed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersCopied(WorkerEvent):
    """A worker that was there already takes over `layers` (in words) from `source`."""

    event = "copy"
    is_change = True

    source: str
    layers: str

    @property
    def sentence(self) -> str:
        """Who took what from whom."""
        return f"worker {self.worker} took {self.layers} from {self.source}"

    @property
    def detail(self) -> str:
        """What, from whom."""
        moved = "" if self.worker == self.place else f"worker {self.worker}, "
        return f"{moved}{self.layers} from {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(LayersCopied):
    """A worker that was not there has a place, and takes its state from `source`."""

    event = "join"

    @property
    def sentence(self) -> str:
        """Who, where, from whom."""
        return f"worker {self.worker} joined{self._at}, state from {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWaiting(WorkerEvent):
    """A worker has no place as things are."""

    event = "wait"
    is_change = True

    @property
    def sentence(self) -> str:
        """Who."""
        return f"worker {self.worker} waits for a place"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksOrphaned(WorkerEvent):
    """Some of a worker's ranks are lost; the others, whose worker it was, wait until there are others in their place.

    Attributes:
        missing: the ranks that are lost.
        waiting: the ranks that wait.
    """

    event = "orphans"

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    missing: tuple[int, ...]
    waiting: tuple[int, ...]

    @property
    def sentence(self) -> str:
        """Who waits for whom."""
        verb = "waits" if len(self.waiting) == 1 else "wait"
        return f"{_ranks(self.waiting)} of worker {self.worker} {verb} for {_ranks(self.missing)}"

    @property
    def detail(self) -> str:
        """Which ranks."""
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksReplaced(WorkerEvent):
    """A worker that had lost some of its ranks is whole again.

    Attributes:
        ranks: those that other processes have taken.
        lacking: those that lack the worker's state, as far as they will copy it.
    """

    event = "replaced"

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    ranks: tuple[int, ...]
    lacking: tuple[int, ...]

    @property
    def sentence(self) -> str:
        """Which ranks, and who has to copy."""
        verb = "was" if len(self.ranks) == 1 else "were"
        return f"{_ranks(self.ranks)} of worker {self.worker} {verb} replaced: the worker is whole again"

    @property
    def detail(self) -> str:
        """Which ranks, and who has to copy."""
        return f"{self.sentence}; {_ranks(self.lacking)} to copy its state" if self.lacking else self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeChosen(WorkerEvent):
    """A worker that has lost ranks goes on at a smaller degree, as a slow one, or waits for others in their place.

    Attributes:
        degree: the largest one that is possible; None: there is none.
        of: the plan's.
        factor: how many times as long as planned its operations take at that degree.
        is_profiled: whether a profile says so; else it is the number of GPUs that does.
        lowered_s: what an iteration is predicted to take with it, slow; None: there is no plan, or no prediction.
        without_s: what one is predicted to take without it, as its peers do its work.
        cost_s: what copies of its state take, there and back; None: nobody knows, and they do not count.
        within: iterations within which these must have paid.
        reason: why there is no plan with it, where that is so.
    """

    event = "lowered"

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    degree: int | None
    of: int
    factor: float | None = field(default=None, metadata=OMITTED_IF_NONE)
    is_profiled: bool = False
    lowered_s: float | None = None
    without_s: float | None = None
    cost_s: float | None = field(default=None, metadata=OMITTED_IF_NONE)
    within: int = 0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Its fields, and what was chosen."""
        return {**Announcement.as_json(self), "is_lowered": self.is_lowered}

    @property
    def is_lowered(self) -> bool:
        """Whether it goes on: iterations with it are predicted to be shorter, by what the copies cost and more."""
        if self.lowered_s is None or self.without_s is None or self.lowered_s >= self.without_s:
            return False
        return not self.cost_s or self.within * (self.without_s - self.lowered_s) > self.cost_s

    @property
    def sentence(self) -> str:
        """What was chosen, and by which predictions."""
        if not self.is_lowered:
            return f"worker {self.worker} waits until it has {self.of} ranks again: {self._why_not}"
        by = "by the profile" if self.is_profiled else "by the number of GPUs"
        slow = "" if self.factor is None else f", {self.factor:.3g} times as slow {by}"
        return f"worker {self.worker} goes on at {self.degree} of {self.of} GPUs{slow}: {self._predicted}"

    @property
    def detail(self) -> str:
        """The same."""
        return self.sentence

    @property
    def _why_not(self) -> str:
        is_said = self.lowered_s is not None and self.without_s is not None
        at = f"at {self.degree} of {self.of} GPUs "
        return at + self._predicted if is_said else self.reason or "nobody predicts iterations"

    @property
    def _predicted(self) -> str:
        with_s, without_s = print_time(self.lowered_s or 0.0), print_time(self.without_s or 0.0)
        cost = f", copies of {print_time(self.cost_s)}" if self.cost_s else ""
        return f"iterations of {with_s} are predicted with it, of {without_s} without it{cost}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeRaised(WorkerEvent):
    """A worker that had gone on at a smaller `degree` has a process for each of its ranks, and becomes whole again."""

    event = "raised"
    is_change = True

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    degree: int
    of: int

    @property
    def sentence(self) -> str:
        """Who."""
        return f"worker {self.worker} goes back from {self.degree} to {self.of} GPUs"

    @property
    def detail(self) -> str:
        """The same."""
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft(WorkerEvent):
    """A worker has gone because it was asked to.

    Attributes:
        reason: why else it has; None: it was asked.
    """

    event = "leave"
    is_change = True

    reason: str | None = field(default=None, metadata=OMITTED_IF_NONE)

    @property
    def sentence(self) -> str:
        """Who."""
        return f"worker {self.worker}{self._at} left{' as asked' if self.reason is None else f': {self.reason}'}"

    @property
    def detail(self) -> str:
        """Nothing beside that."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRefused(WorkerEvent):
    """A process that would join may not; `reason` says why."""

    event = "refused"

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    reason: str

    @property
    def sentence(self) -> str:
        """Who, and why."""
        return f"worker {self.worker} was refused: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReturned(WorkerEvent):
    """A worker has found the coordinator that was restarted."""

    event = "returned"
    is_drawn = False

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)

    @property
    def sentence(self) -> str:
        """Who."""
        return f"worker {self.worker} is back"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGaveUp(WorkerEvent):
    """A worker has said what is wrong, and ends with an exit code."""

    event = "failed"
    is_drawn = False

    place: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    exit_code: int
    message: str


# What is slow or broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstance(Announcement):
    """A link or a worker is slow, broken, or well again.

    Attributes:
        link: its ends, `0/0-0/1`; None where it is a worker.
        worker: its name; None where it is a link.
    """

    link: str | None = field(default=None, metadata=OMITTED_IF_NONE)
    worker: str | None = field(default=None, metadata=OMITTED_IF_NONE)

    @property
    def who(self) -> str:
        """The link, or the worker."""
        return self.link or str(self.worker)

    def place_among(self, seats: Mapping[str, str]) -> str | None:
        """Where the worker is."""
        return next((place for place, worker in seats.items() if worker == self.worker), None)

    @property
    def _subject(self) -> str:
        return f"{'link' if self.link else 'worker'} {self.who}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded(Circumstance):
    """A link or a worker is not as it should be."""

    @property
    def is_bad(self) -> bool:
        """It does."""
        return True

    @property
    def degree(self) -> str:
        """How slow it is, or that it is broken."""
        return "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSlowed(Degraded):
    """Messages of a link take `delay_s`."""

    event = "slow_link"

    delay_s: float

    @property
    def degree(self) -> str:
        """The delay."""
        return print_time(self.delay_s)

    @property
    def sentence(self) -> str:
        """Which link, and how slow."""
        return f"{self._subject} is slow: {self.degree}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlowed(Degraded):
    """A worker's operations take `factor` times as long as planned."""

    event = "slow_worker"

    factor: float

    @property
    def degree(self) -> str:
        """The factor."""
        return f"x {self.factor:.3g}"

    @property
    def sentence(self) -> str:
        """Who, and how slow."""
        return f"{self._subject} is slow: {self.factor:.3g} times as long as planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relieved(Circumstance):
    """What was slow is well again."""

    event = "relief"

    @property
    def sentence(self) -> str:
        """What."""
        return f"{self._subject} is well again"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkBroken(Degraded):
    """Two workers that live have lost each other."""

    event = "broken_link"
    is_change = True

    @property
    def sentence(self) -> str:
        """Which link."""
        return f"{self._subject} is broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminationBegun(Announcement):
    """One of a group, or a link between them, is slow: before `iteration` its members examine themselves."""

    event = "examine"

    workers: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Who."""
        return f"one of {_some(self.workers)}, or a link between them, is slow: they are examined"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExamined(Announcement):
    """A group has been examined, and these workers and links were `found` slow."""

    event = "examined"

    workers: tuple[str, ...]
    found: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Who, and what was found."""
        slow = ", ".join(f"{'link' if '-' in one else 'worker'} {one}" for one in self.found)
        return f"{_some(self.workers)} were examined: {f'{slow} is slow' if slow else 'nothing is slow'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanKept(Announcement):
    """The running plan goes on though something is slow, for this `reason`."""

    event = "kept"

    reason: str

    @property
    def sentence(self) -> str:
        """Why."""
        return f"the plan is kept: {self.reason}"


# The rest


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRestarting(Announcement):
    """The job is saved, and is to start again on other workers, for this `reason`."""

    event = "restart"

    reason: str

    @property
    def is_bad(self) -> bool:
        """It does."""
        return True

    @property
    def sentence(self) -> str:
        """Why."""
        return f"the job is saved and starts again: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRolledBack(Announcement):
    """State is lost, for this `reason`; everybody loads the checkpoint `path`, and `iteration` is the next to run."""

    event = "rollback"

    reason: str
    path: str

    @property
    def is_bad(self) -> bool:
        """What was done since then is to be done again."""
        return True

    @property
    def sentence(self) -> str:
        """Why, and what is done again."""
        return f"{self.reason}; all go back to iteration {self.iteration}: {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceExplained(Announcement):
    """Iterations take longer, or less long, than planned, and why; JSON lines have it in `end` only.

    Attributes:
        planned_s, measured_s: an iteration.
        why: what the difference is due to, the costliest first, in words.
    """

    event = "pace"
    is_drawn = False

    planned_s: float
    measured_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsTimed(Announcement):
    """What the worker at `place` has executed since it last said so: for live pages, JSON lines have none of it.

    Attributes:
        spans: operations, start and end in s by the coordinator's clock, and iterations.
    """

    event = "spans"
    is_drawn = False

    place: str
    spans: tuple[tuple[str, float, float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStopping(Announcement):
    """The job was asked to stop, and does so after `iteration`, which is under way."""

    event = "stop"

    @property
    def sentence(self) -> str:
        """After which iteration, and what stops it sooner."""
        return f"asked to stop: ends after iteration {self.iteration}; Ctrl-C again ends it at once"

    @property
    def detail(self) -> str:
        """After which iteration."""
        return f"after iteration {self.iteration}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved(Announcement):
    """A checkpoint is there, or could not be made; `iteration` is the next one to run after loading it.

    Attributes:
        path: where; None where there is none.
        seconds: how long it took.
        error: what went wrong, if anything did.
    """

    event = "checkpoint"
    is_drawn = False

    path: str | None
    seconds: float
    error: str | None = field(default=None, metadata=OMITTED_IF_NONE)

    @property
    def is_bad(self) -> bool:
        """Where it could not be made."""
        return self.error is not None

    @property
    def sentence(self) -> str:
        """After how many iterations, and where it is, or why not."""
        after = f"checkpoint after {counted(self.iteration or 0, 'iteration')}"
        return f"{after} failed: {self.error}" if self.error else f"{after} in {print_time(self.seconds)}: {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorRestarted(Announcement):
    """Another coordinator has taken over from its log."""

    event = "restarted"
    is_drawn = False

    @property
    def sentence(self) -> str:
        """When."""
        return f"the coordinator was restarted, before iteration {self.iteration}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLost(Announcement):
    """The coordinator cannot write its log any more, for this `reason`."""

    event = "log_lost"
    is_drawn = False

    reason: str


def announcements_of(message: Epoch, plan: Plan, joining: Collection[str]) -> Iterator[Announcement]:
    """What is to be announced of an epoch: who joins, who copies which layers from whom, itself, and who is examined.

    Args:
        message: that announces it to the workers.
        plan: its plan.
        joining: the names of those who were not there before.
    """
    seats = message.seats
    for target, own in groupby(message.copies, key=lambda copy: copy.target):
        received = list(own)
        kind = WorkerJoined if seats[target].worker in joining else LayersCopied
        yield kind(
            worker=seats[target].worker,
            place=seats[target].place,
            source=", ".join(dict.fromkeys(seats[copy.source].worker for copy in received)),
            layers=print_layers(copy.layers for copy in received),
            iteration=message.iteration,
        )
    yield EpochBegun(
        iteration=message.iteration,
        live_workers=len(seats),
        workers={seat.place: seat.worker for seat in seats},
        failed=tuple(worker.name for worker in plan.workers if worker.failed),
        reason=message.reason,
        delegated=tuple("-".join(seats[rank].worker for rank in pair) for pair in message.delegated),
        detours={f"{seats[a].worker}-{seats[b].worker}": seats[via].worker for a, b, via in message.detours},
        sidesteps={f"{seats[a].worker}-{seats[b].worker}": number for a, b, number in message.sidesteps},
        predicted_iteration_time_s=plan.prediction.iteration_time_s if plan.prediction else None,
    )
    if message.rest is not None:
        yield _resumed(message.rest, plan)
    for group in message.examine:
        yield ExaminationBegun(workers=tuple(seats[rank].worker for rank in group), iteration=message.iteration)


def _resumed(rest: Rest, plan: Plan) -> IterationResumed:
    orders = [one.order for one in rest.workers]
    return IterationResumed(
        iteration=rest.iteration,
        kept=rest.passes_kept(plan),
        left=sum(order.count(kind) for order in orders for kind in "FIB"),
        again=sum(order.count("~") for order in orders),
        resent=len(rest.sends),
        copied=len(rest.copies),
        sealed=print_layers(rest.sealed) if rest.sealed else "",
    )


def timeline_events(announced: Iterable[tuple[float, Announcement]]) -> tuple[TimelineEvent, ...]:
    """What a coordinator has announced, as the events of a timeline: who failed, joined and left, and new epochs.

    Args:
        announced: times in s, in order, and what was announced then.
    """
    events: list[TimelineEvent] = []
    seats: Mapping[str, str] = {}
    for at_s, one in announced:
        is_first = isinstance(one, EpochBegun) and one.epoch == 1
        has_failed = isinstance(one, JobEnded) and one.exit_code != 0
        if (one.is_drawn and not is_first) or has_failed:
            events.append(TimelineEvent(at_s, one.event, one.place_among(seats), one.detail))
        if isinstance(one, EpochBegun):
            former, seats = seats, one.workers
            now_at = {worker: place for place, worker in seats.items()}
            events += [
                TimelineEvent(at_s, "leave", place, f"worker {worker} moves to {now_at[worker]}")
                for place, worker in former.items()
                if place not in seats and worker in now_at
            ]
    return tuple(events)


def _some(workers: tuple[str, ...]) -> str:
    return ", ".join(workers[:NAMES_TOLD]) + (f", … {workers[-1]}" if len(workers) > NAMES_TOLD else "")


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {joined(map(str, ranks))}"
