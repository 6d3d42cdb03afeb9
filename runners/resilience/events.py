"""What happens to a coordinator, and what it then wants done: the two sides of its rules.

Events carry the time at which they happened, so that the rules need no clock; written down in order, they are the log
from which a coordinator that died is brought back (journal.py).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, TypeAdapter

from ...schemas.conditions import Conditions
from ...schemas.documents import canonical
from ...schemas.fields import STRICT, Index, Seconds
from ...schemas.plan import Plan, name_of
from ...schemas.protocols import Hand, Replanned
from ...schemas.resumption import Rest, Standing
from .announcements import Announcement
from .protocol import (
    FromCoordinator,
    Hello,
    Leaving,
    LossesTold,
    Published,
    Ready,
    Reshaped,
    Saved,
    StandingTold,
    StateLost,
    Suspect,
    Vote,
    Whereabouts,
)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A worker that knows the secret said hello on a connection."""

    now_s: float
    connection: Index
    hello: Hello
    kind: Literal["arrived"] = "arrived"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Lost:
    """A connection was closed, or has been silent for too long."""

    now_s: float
    connection: Index
    reason: str
    kind: Literal["lost"] = "lost"

    __pydantic_config__ = STRICT


# What a worker says that the rules hear; the server has answers of its own to the rest.
Heard = (
    Ready
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
)


@dataclass(frozen=True, slots=True)
class Said:
    """A worker said something."""

    now_s: float
    connection: Index
    message: Annotated[Heard, Discriminator("kind")]
    kind: Literal["said"] = "said"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan that was asked for under a `number` was made, or, where `plan` is None, cannot be, for the `reason`.

    `plan` is canonical JSON; `seats` are (worker, its place), those without a place left out; `restart`: why the job
    should be saved and start again on other workers instead, or empty; `iteration_time_s`: what an iteration takes by
    it, as things are, if anybody says.
    """

    now_s: float
    number: Index
    plan: str | None
    seats: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    restart: str = ""
    iteration_time_s: Seconds | None = None
    kind: Literal["planned"] = "planned"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class RestPlanned:
    """What is left, asked for under a `number`, was planned; with no `rest` all is to be redone, for the `reason`."""

    now_s: float
    number: Index
    rest: Rest | None
    reason: str = ""
    kind: Literal["rest_planned"] = "rest_planned"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Noticed:
    """A monitor has found out what is slow from now on."""

    now_s: float
    conditions: Conditions
    kind: Literal["noticed"] = "noticed"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Elapsed:
    """A time that a Wake asked for has passed."""

    now_s: float
    timer: str
    kind: Literal["elapsed"] = "elapsed"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Restarted:
    """The coordinator is another process than before; all connections are gone, the workers need not be."""

    now_s: float
    kind: Literal["restarted"] = "restarted"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Somebody wants the job to end after the iteration under way, with all that is done saved: Ctrl-C."""

    now_s: float
    kind: Literal["stop"] = "stop"

    __pydantic_config__ = STRICT


Event = Arrived | Lost | Said | Planned | RestPlanned | Noticed | Elapsed | Restarted | StopAsked


@dataclass(frozen=True, slots=True)
class Tell:
    """Say something to the worker at a connection."""

    connection: int
    message: FromCoordinator


@dataclass(frozen=True, slots=True)
class Drop:
    """Close a connection, after what has been told to it."""

    connection: int


@dataclass(frozen=True, slots=True)
class MakePlan:
    """Have the plan that follows a running one made for these workers, and give it back as Planned."""

    number: int
    plan: Plan
    crew: tuple[Hand, ...]
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class PlanRest:
    """Have what is left of an iteration planned, for a plan and who takes its places; give it back as RestPlanned."""

    number: int
    plan: Plan
    seats: tuple[tuple[str, str], ...]
    iteration: int
    standings: tuple[Standing, ...]
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class Wake:
    """Give back Elapsed after some time."""

    after_s: float
    timer: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Something for people and for metrics."""

    what: Announcement


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over."""

    exit_code: int
    reason: str


Instruction = Tell | Drop | MakePlan | PlanRest | Wake | Announce | Finish

_EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[Event, Discriminator("kind")])


def planned(number: int, found: Replanned | None, reason: str = "", now_s: float = 0.0) -> Planned:
    """The answer to a question for a plan: what was found, or why there is none."""
    if found is None:
        return Planned(now_s, number, None, (), reason)
    seats = tuple((worker, name_of(place)) for worker, place in sorted(found.seats, key=lambda seat: seat[1]))
    plan, time_s = canonical(found.plan).decode(), found.iteration_time_s
    return Planned(now_s, number, plan, seats, restart=found.restart, iteration_time_s=time_s)


def encode_event(event: Event) -> bytes:
    """An event as a line of the log."""
    return bytes(_EVENT.dump_json(event)) + b"\n"


def decode_event(line: bytes) -> Event:
    """An event from a line of the log.

    Raises:
        pydantic.ValidationError: the line is none.
    """
    return _EVENT.validate_json(line)  # type: ignore[no-any-return]
