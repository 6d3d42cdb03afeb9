"""What workers and the coordinator say to each other: one JSON object a line, validated on arrival."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, TypeAdapter, ValidationError

from ...schemas.checkpoint import CheckpointFile
from ...schemas.errors import InvalidInputError
from ...schemas.fields import STRICT, Factor, Index, Name, Seconds
from ...schemas.plan import Layers, Plan, rank_name
from ...schemas.protocols import DegreeFactors, Measured
from ...schemas.resumption import LedgerEntry, Rest, Standing

# Before a worker has shown that it knows the secret, it has nothing long to say.
STRANGER_BYTES = 64 * 1024
MEMBER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Challenge:
    """Coordinator, on connecting: prove that you know the secret."""

    nonce: Name
    kind: Literal["challenge"] = "challenge"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Returning:
    """What a worker that has lost its coordinator knows: its epoch, and the last iteration it knows to be committed."""

    epoch: Index
    committed: int

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Cores:
    """The cores that a worker may use, `usable` by their numbers, of a `machine` by a name that no other one has."""

    machine: Name
    usable: tuple[Index, ...]

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """Where a process can be met: `store`, host:port, and `others`, those on other networks, as of Hello."""

    store: str
    others: tuple[str, ...] = ()

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker, or one rank of a worker of several, warmed up and ready to be seated.

    Attributes:
        proof: HMAC-SHA256 of the challenge's nonce under the job's secret, in hexadecimal.
        worker: the name `k/i` by which it was started; at the start of a job also its place.
        store: host:port of its meeting place, where a new epoch's groups can find each other.
        others: host:port of those that it has on other networks, in the same order for all workers.
        plan: sha256 of the plan it was started with.
        job: settings that must be the same for all workers.
        pid: its process, for people.
        not_before: the first iteration that it wants to take part in.
        returning: set when it comes back to a coordinator that was gone.
        cores: those that it may use, alone or with other workers; None: it does not say.
        evaluates: whether it is to evaluate what was trained after the job's last iteration.
        regroups: whether it keeps what it has done of an iteration when others are lost, and can tell it (`Regroup`).
        rank: which of its worker's ranks the process is.
        ranks: how many ranks its worker has.
        further: where the ranks after the first are met, in the hello of a whole worker (unit_gate.py); a process
            says nothing of others.
        degrees: smaller numbers of ranks that could share what it trains (`Reshape`).
        shape: which rank of how many it has become since (`Reshaped`); None: as it was started.
        slowdown: how many times as long as planned a whole worker's operations take, as far as that is known already.
    """

    proof: str
    worker: Annotated[str, "k/i"]
    store: Name
    plan: Name
    job: dict[str, Any]
    pid: Index = 0
    not_before: Index = 0
    returning: Returning | None = None
    others: tuple[Name, ...] = ()
    cores: Cores | None = None
    evaluates: bool = False
    regroups: bool = False
    rank: Index = 0
    ranks: Annotated[int, Field(ge=1)] = 1
    further: tuple[MeetingPoint, ...] = ()
    degrees: tuple[Index, ...] = ()
    shape: tuple[Index, Index] | None = None
    slowdown: Factor = 1.0
    kind: Literal["hello"] = "hello"

    __pydantic_config__ = STRICT

    @property
    def share(self) -> int:
        """Which of its worker's ranks the process is now."""
        return self.rank if self.shape is None else self.shape[0]

    @property
    def process(self) -> str:
        """What the process is called: `k/i`, or `k/i:r`."""
        return rank_name(self.worker, self.rank, self.ranks)


@dataclass(frozen=True, slots=True)
class DataPosition:
    """Where a checkpoint stands in the data: `iteration` begins with `row`, counted through all passes over `rows`."""

    iteration: Index
    row: Index
    rows: Index | None = None

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Welcome:
    """Coordinator: you are in; beat every heartbeat_s; `now_s` is its clock, on `host`.

    `inject` are the trace events that this worker plays on itself; `spans`: report what you executed and when;
    `data`: where the checkpoint stands that the job began with.
    """

    heartbeat_s: Seconds
    now_s: Seconds
    host: str
    spans: bool = False
    inject: tuple[dict[str, Any], ...] = ()
    data: DataPosition | None = None
    kind: Literal["welcome"] = "welcome"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Refused:
    """Coordinator: you are not in. `retry`: the reason may pass, such as a predecessor that is not known to be dead."""

    reason: str
    retry: bool = False
    kind: Literal["refused"] = "refused"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class RankAssignment:
    """Who plays which place of the plan, and where to meet it; ranks count seats.

    `store` and `others` are those of a worker's first rank, `further` those of its rank 1, 2, …
    """

    place: str
    worker: str
    store: str
    others: tuple[str, ...] = ()
    further: tuple[MeetingPoint, ...] = ()

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Copy:
    """Rank `source` sends the state of some layers, which it holds until now, to rank `target`.

    Where these are workers of several ranks, each of them sends to the one of the same number, or of unlike degrees to
    those that hold something of what it has; `ranks` are those of the target that lack the state, ascending, and the
    only ones to be sent to; None: all are.
    """

    source: Index
    target: Index
    layers: Layers
    ranks: tuple[Index, ...] | None = None

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Saver:
    """A worker that saves the state of some layers as its part of a checkpoint."""

    worker: str
    layers: Layers

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class StepTerms:
    """What the optimizer's step of an iteration depends on beside the gradients; the same for all workers.

    Attributes:
        count: what the loss counted in all micro-batches together; the summed gradients are divided by it.
        norm: of the divided gradients of the whole model; None where nothing is clipped.
        taken: steps taken before this one.
    """

    count: float
    norm: float | None
    taken: int

    __pydantic_config__ = STRICT


CLIP_EPSILON = 1e-6  # torch's clip_grad_norm_ divides by the norm and this


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a worker expects of an iteration's terms that steps before they are known.

    Attributes:
        count: their count.
        clip_norm: their norm is so small that nothing is clipped to this; None: nothing ever is.
    """

    count: float
    clip_norm: float | None

    __pydantic_config__ = STRICT

    def holds(self, terms: StepTerms) -> bool:
        """Whether the step was that of these terms."""
        is_free = self.clip_norm is None or (terms.norm is not None and terms.norm + CLIP_EPSILON <= self.clip_norm)
        return is_free and self.count == terms.count


@dataclass(frozen=True, slots=True)
class Regroup:
    """Coordinator: somebody is gone; be as after the last commit, keep what you have of the iteration under way, say so
    (`StandingTold`), and begin to meet those who are left. An `Epoch` of this or a later number follows.

    Attributes:
        epoch: the number of the epoch to come.
        iteration: the one under way; the one before it is committed.
        skipped: whether that was committed without an optimizer step.
        members: who is left, each with its place so far.
        terms: of the step before; None where there was none.
    """

    epoch: Index
    iteration: Index
    skipped: bool
    members: tuple[RankAssignment, ...]
    terms: StepTerms | None = None
    kind: Literal["regroup"] = "regroup"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Epoch:
    """Coordinator: leave everything as of the last commit, form new groups, and go on at `iteration`.

    Attributes:
        epoch: counts memberships.
        iteration: the first to execute; the one before it is committed.
        skipped: whether the iteration before it was committed without an optimizer step.
        last: do not start an iteration beyond it.
        plan: the plan, as canonical JSON.
        seats: the workers by rank; who has none waits for an epoch that gives it one.
        copies: states to send before training goes on.
        nothing_committed: who has no state makes its own: initial parameters, or the checkpoint `resume`.
        delegated: pairs of ranks, ascending, that send to each other by delegates.
        detours: pairs of ranks that do not reach each other directly, and the rank that passes their messages on.
        sidesteps: pairs of ranks that meet on another network, and its number, counted from 1.
        examine: groups of ranks, ascending, to be examined before the first iteration.
        terms: of the step before; None where there was none.
        taken: steps taken before `iteration`.
        waits: nobody is to step in the first iteration before it is committed: its terms were not foreseen.
        evaluate: what was trained is to be evaluated, and voted on as `iteration`, which comes after the last.
        rest: what is left of the first iteration, where some of it is done; None: all of it, and what there is of it
            is dropped.
        givers: workers that have no seat any more and hold a part of a sharded optimizer's state: they send what others
            need of it, as ranks after those of the seats, and then wait like all without a seat.
    """

    epoch: Index
    iteration: Index
    skipped: bool
    last: int
    plan: str
    seats: tuple[RankAssignment, ...]
    copies: tuple[Copy, ...] = ()
    nothing_committed: bool = False
    resume: str | None = None
    delegated: tuple[tuple[Index, Index], ...] = ()
    detours: tuple[tuple[Index, Index, Index], ...] = ()
    sidesteps: tuple[tuple[Index, Index, Index], ...] = ()
    examine: tuple[tuple[Index, ...], ...] = ()
    reason: str = ""
    terms: StepTerms | None = None
    taken: Index = 0
    waits: bool = False
    evaluate: bool = False
    rest: Rest | None = None
    givers: tuple[RankAssignment, ...] = ()
    kind: Literal["epoch"] = "epoch"

    __pydantic_config__ = STRICT

    @property
    def present(self) -> tuple[RankAssignment, ...]:
        """All who meet, by rank."""
        return (*self.seats, *self.givers)


@dataclass(frozen=True, slots=True)
class Commit:
    """Coordinator: every worker has reduced its gradients of `iteration`; it counts.

    Attributes:
        skip: without an optimizer step, for a gradient is not finite.
        last: do not start an iteration beyond it: the next thing to come is an epoch, or the end.
        save: the folder in which `savers`, who hold all layers together, save the state after this iteration.
        terms: of its step.
        evaluate: it was the job's last, and what was trained is to be evaluated, and voted on as the one after it.
    """

    epoch: Index
    iteration: Index
    skip: bool = False
    last: int = 0
    save: str | None = None
    savers: tuple[Saver, ...] = ()
    terms: StepTerms | None = None
    evaluate: bool = False
    kind: Literal["commit"] = "commit"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Halt:
    """Coordinator: training does not go on; `savers` save the state before `iteration`, all wait for the end.

    `terms` are those of the step before; None where there was none.
    """

    iteration: Index
    skipped: bool
    save: str | None
    savers: tuple[Saver, ...]
    reason: str
    terms: StepTerms | None = None
    kind: Literal["halt"] = "halt"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Publish:
    """Coordinator, to one worker: all parts of a checkpoint are written; make it visible, or with none, discard it.

    `taken` are the steps that were taken until then; None in logs of before.
    """

    folder: Name
    iteration: Index
    parts: tuple[CheckpointFile, ...]
    taken: Index | None = None
    kind: Literal["publish"] = "publish"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Inquiry:
    """Coordinator: nothing is committed any more, or somebody has lost touch; where is your training thread?"""

    number: Index
    kind: Literal["inquiry"] = "inquiry"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Reshape:
    """Coordinator, to a process of a worker that has no place as it is: leave everything, and be this rank of so many.

    It makes its stage anew, and says `Reshaped` once it is ready to be seated.

    Attributes:
        rank: which of the worker's ranks.
        ranks: how many share the worker's layers.
        slowdown: how many times as long as planned its operations last then, for those of a paced run.
    """

    rank: Index
    ranks: Annotated[int, Field(ge=1)]
    slowdown: Factor = 1.0
    kind: Literal["reshape"] = "reshape"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class End:
    """Coordinator: the job is over, or over for this worker."""

    exit_code: Index
    reason: str
    kind: Literal["end"] = "end"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker is alive."""

    kind: Literal["beat"] = "beat"

    __pydantic_config__ = STRICT


WHOLE = "whole "  # before the checksum of a layer that is the same whatever ranks share it


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has joined an epoch's groups and holds its stage's state.

    Attributes:
        layers: [first, stop) of that stage, or of the first of several ranges that the worker holds.
        checksums: (layer, sha256 of its state) of the layers that it has sent or been sent; of all that it holds where
            nothing is committed, for each has made them for itself. Where workers are of unlike degrees it is that of a
            whole layer, after `WHOLE`, and all ranks of a worker say the same.
        sums: (layer, sha256 of the sum over its gradients) of the layers whose sums it has sent or been sent
            (`Rest.copies`).
        further: the other ranges.
    """

    epoch: Index
    layers: Layers
    checksums: tuple[tuple[Index, str], ...] = ()
    sums: tuple[tuple[Index, str], ...] = ()
    further: tuple[Layers, ...] = ()
    kind: Literal["ready"] = "ready"

    __pydantic_config__ = STRICT

    @property
    def holds(self) -> tuple[Layers, ...]:
        """All layers that the worker holds."""
        return (self.layers, *self.further)


# A micro-batch's number, the sum that is its loss, and what it is a sum of; the sum is None where it is not finite.
MicrobatchLoss = tuple[int, float | None, float]
StageLosses = tuple[Layers, tuple[MicrobatchLoss, ...]]  # those of some layers that a worker holds, or did


@dataclass(frozen=True, slots=True)
class StateLost:
    """A worker of an epoch knows that nobody in it has the optimizer's state of a part of some layers, ascending.

    It waits for another epoch, which nobody needs what is lost for. Instead of `Ready`.
    """

    epoch: Index
    layers: tuple[Index, ...]
    kind: Literal["state-lost"] = "state-lost"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Vote:
    """A worker has reduced its stage's gradients of an iteration.

    Attributes:
        is_finite: whether all of them are.
        microbatches: global numbers of those whose backward pass it executed.
        ledger: of an iteration of which only a rest was left: what is in its own part of the sums that this epoch has
            made, from before and from now; of a worker that holds several stages, what it executed of each; None:
            `microbatches`, of all its layers.
        losses: at a last stage; in logs of before without counts, each a share of the mean loss.
        measured: what it has measured meanwhile.
        norms: by number, the squared norms of the gradients, not yet divided, of those layers that no worker of a lower
            rank holds; None for one that is not finite.
        learning_rate: of its step, in the optimizer's first group; None where there is nothing to step.
        ahead: what it will take for granted when it steps before the commit; None: it waits for it.
        evaluated: losses of held-out micro-batches before this iteration, by numbers of their own.
        evaluation_s: how long that took.
        stages: of a worker that holds several stages, and whose `losses` are none, the losses of each.
    """

    epoch: Index
    iteration: Index
    is_finite: bool
    microbatches: tuple[int, ...]
    losses: tuple[MicrobatchLoss | tuple[int, float | None], ...] = ()
    measured: Measured | None = None
    norms: tuple[tuple[Index, float | None], ...] = ()
    learning_rate: float | None = None
    ahead: Foreseen | None = None
    evaluated: tuple[MicrobatchLoss, ...] = ()
    evaluation_s: Seconds = 0.0
    ledger: tuple[LedgerEntry, ...] | None = None
    stages: tuple[StageLosses, ...] = ()
    kind: Literal["vote"] = "vote"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class StandingTold:
    """A worker has left its groups, and this is what it has of the iteration that `Regroup` names."""

    epoch: Index
    iteration: Index
    standing: Standing
    kind: Literal["standing"] = "standing"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class LossesTold:
    """The losses of a worker's micro-batches of an iteration, told before it sums gradients, for those outlive it.

    `losses` and `stages` as in Vote: those whose gradients are in its own part of the sums.
    """

    epoch: Index
    iteration: Index
    losses: tuple[MicrobatchLoss, ...]
    stages: tuple[StageLosses, ...] = ()
    kind: Literal["losses"] = "losses"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker's communication broke; usually the coordinator knows the reason already. `peer`: with that worker.

    `of_some`: only some of the worker's ranks have said something in this epoch yet (unit_gate.py).
    """

    epoch: Index
    reason: str
    peer: str | None = None
    of_some: bool = False
    kind: Literal["suspect"] = "suspect"

    __pydantic_config__ = STRICT


Doing = Literal["computing", "waiting", "joining", "preparing", "listening"]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a worker's training thread is; another thread answers for it, whatever it is in.

    Attributes:
        inquiry: the number of the Inquiry.
        epoch: that the training thread is in; 0 before the first.
        doing: `computing`; `waiting` for others' messages or sums; `joining` an epoch: connecting, and copying state;
            `preparing`, which may take minutes: building a stage, reading or writing a checkpoint; or `listening` to
            the coordinator, with nothing else to do.
        what: the operation, or the instruction, for people.
        idle_s: for how long it has been there; while the process was stopped no time has passed.
        peers: the workers that it waits for.
    """

    inquiry: Index
    epoch: Index
    doing: Doing
    what: str
    idle_s: Seconds
    peers: tuple[str, ...] = ()
    kind: Literal["whereabouts"] = "whereabouts"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Reshaped:
    """A process has become another rank of its worker, as it was told to (`Reshape`), and is ready to be seated."""

    rank: Index
    ranks: Annotated[int, Field(ge=1)]
    kind: Literal["reshaped"] = "reshaped"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Leaving:
    """A worker was told to go (SIGTERM) and will, at the next commit.

    `if_spared`: only where others have all that it holds, and nobody else is lost or goes. `at_once`: it is at its own
    end, and waits for no commit; the job has ended well once all have said so.
    """

    if_spared: bool = False
    at_once: bool = False
    kind: Literal["leaving"] = "leaving"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Saved:
    """A saver has written its part of a checkpoint, or could not.

    `further` are those of a worker's ranks after the first, which are each written by the rank itself.
    """

    iteration: Index
    part: CheckpointFile | None
    error: str | None = None
    further: tuple[CheckpointFile, ...] = ()
    kind: Literal["saved"] = "saved"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint is visible, under this path, or could not be made so."""

    iteration: Index
    path: str | None
    error: str | None = None
    kind: Literal["published"] = "published"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Spans:
    """What a worker executed since it last said so: (operation, start in s, end in s, iteration)."""

    place: str
    spans: tuple[tuple[str, float, float, int], ...]
    kind: Literal["spans"] = "spans"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker found something wrong that concerns the whole job, and ends."""

    exit_code: Index
    message: str
    kind: Literal["failed"] = "failed"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Bye:
    """A worker ends as it was told to."""

    kind: Literal["bye"] = "bye"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Dead:
    """Who has started a worker says, on a connection of its own, that its process is dead.

    Attributes:
        proof: as of Hello.
        worker: what the process is called, `k/i` or `k/i:r`.
        pid: the process, as of its Hello.
    """

    proof: str
    worker: Name
    pid: Index
    kind: Literal["dead"] = "dead"

    __pydantic_config__ = STRICT


# What a coordinator reads.
FromWorker = (
    Hello
    | Dead
    | Beat
    | Ready
    | StateLost
    | Vote
    | StandingTold
    | LossesTold
    | Suspect
    | Whereabouts
    | Reshaped
    | Leaving
    | Saved
    | Published
    | Spans
    | Failed
    | Bye
)
# What a worker reads.
FromCoordinator = Challenge | Welcome | Refused | Regroup | Epoch | Commit | Halt | Publish | Inquiry | Reshape | End

_FROM_WORKER: TypeAdapter[Any] = TypeAdapter(Annotated[FromWorker, Discriminator("kind")])
_FROM_COORDINATOR: TypeAdapter[Any] = TypeAdapter(Annotated[FromCoordinator, Discriminator("kind")])


def encode(message: FromWorker | FromCoordinator) -> bytes:
    """A message as a line."""
    adapter = _FROM_WORKER if isinstance(message, FromWorker) else _FROM_COORDINATOR
    return bytes(adapter.dump_json(message)) + b"\n"


def from_worker(line: bytes) -> FromWorker:
    """What a worker said.

    Raises:
        InvalidInputError: the line is none of our messages.
    """
    return _decoded(_FROM_WORKER, line)  # type: ignore[no-any-return]


def from_coordinator(line: bytes) -> FromCoordinator:
    """What the coordinator said.

    Raises:
        InvalidInputError: the line is none of our messages.
    """
    return _decoded(_FROM_COORDINATOR, line)  # type: ignore[no-any-return]


def _decoded(adapter: TypeAdapter[Any], line: bytes) -> Any:
    try:
        return adapter.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidInputError(f"a line that is no message of ours: {first['msg']}") from None


# What a coordinator is there for.


@dataclass(frozen=True)
class Job:
    """What the coordinator is there for.

    Attributes:
        plan: the plan that the job starts with; its workers' names are those that workers may have.
        iterations: where to stop, counted from the first iteration of all.
        first_iteration: where to begin; more than 0 after a checkpoint.
        resume: the checkpoint to begin with.
        data: where that stands in the data; None: it does not say.
        heartbeat_limit_s: how long a worker may be silent.
        checkpoint: the folder for checkpoints.
        checkpoint_every: iterations between them; 0: it is not for their number that one is due.
        checkpoint_every_s: time after which the next commit brings one; None: never.
        taken: steps that were taken before it; None: as many as iterations.
        stall_limit_s: how long nothing may be committed until all are asked where they are; None: what the plan's
            iterations, and those so far, say (progress.py).
        newcomers: workers that must wait for a place before the job starts (those that a scripted trace will need).
        spare_ranks: processes of workers of several ranks that must wait before the job starts, beside those who begin;
            those of `newcomers` are among them.
        tp_across: whether ranks of a worker may be on several machines.
        lower: at which smaller degrees workers may go on that have lost a rank (lowering.py); None: they wait.
        min_workers: with how many workers it may begin; None: with all of the plan.
        join_wait_s: how long nobody may have come before it begins without the others.
    """

    plan: Plan
    iterations: int
    first_iteration: int = 0
    resume: str | None = None
    data: DataPosition | None = None
    heartbeat_limit_s: float = 2.0
    checkpoint: str | None = None
    checkpoint_every: int = 0
    checkpoint_every_s: float | None = None
    newcomers: int = 0
    stall_limit_s: float | None = None
    taken: int | None = None
    spare_ranks: int = 0
    tp_across: bool = False
    lower: DegreeFactors | None = None
    min_workers: int | None = None
    join_wait_s: float = 10.0

    @property
    def steps(self) -> int:
        """How many steps were taken before its first iteration."""
        return self.first_iteration if self.taken is None else self.taken
