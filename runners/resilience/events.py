"""What happens to a coordinator, and what it then wants done: the two sides of its rules.

Events carry the time at which they happened, so that the rules need no clock; written down in order, they are the log
from which a coordinator that died is brought back (journal.py).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, TypeAdapter

from ...schemas.fields import STRICT, Index
from .messages import FromCoordinator, Hello, Leaving, Published, Ready, Saved, Suspect, Vote


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


@dataclass(frozen=True, slots=True)
class Said:
    """A worker said something."""

    now_s: float
    connection: Index
    message: Annotated[Ready | Vote | Suspect | Leaving | Saved | Published, Discriminator("kind")]
    kind: Literal["said"] = "said"

    __pydantic_config__ = STRICT


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan without the `failed` places was made, or, where `plan` is None, cannot be, for the `reason`.

    `plan` is canonical JSON; `moves` are (place, place that its worker takes over).
    """

    now_s: float
    failed: tuple[str, ...]
    may_move: bool
    plan: str | None
    moves: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    kind: Literal["planned"] = "planned"

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


Event = Arrived | Lost | Said | Planned | Elapsed | Restarted


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
    """Have the plan without these places made, and give it back as Planned; `may_move`: workers may change places."""

    failed: tuple[str, ...]
    may_move: bool


@dataclass(frozen=True, slots=True)
class Wake:
    """Give back Elapsed after some time."""

    after_s: float
    timer: str


@dataclass(frozen=True, slots=True)
class Announce:
    """Something for people and for metrics: one JSON line, with an `event`."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over."""

    exit_code: int
    reason: str


Instruction = Tell | Drop | MakePlan | Wake | Announce | Finish

_EVENT: TypeAdapter[Any] = TypeAdapter(Annotated[Event, Discriminator("kind")])


def encode_event(event: Event) -> bytes:
    """An event as a line of the log."""
    return bytes(_EVENT.dump_json(event)) + b"\n"


def decode_event(line: bytes) -> Event:
    """An event from a line of the log.

    Raises:
        pydantic.ValidationError: the line is none.
    """
    return _EVENT.validate_json(line)  # type: ignore[no-any-return]
