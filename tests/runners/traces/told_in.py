"""Traces as text, read as the readers do, for tests."""

from collections.abc import Callable, Iterator
from io import BytesIO

from rtk.runners.traces.files import Source, Told, told
from rtk.runners.traces.read import from_start, moments
from rtk.schemas.replay import Moment
from rtk.schemas.trace import EventKind, TraceEvent

NAME = "a.csv"

Reader = Callable[[Source], Iterator[Told]]


def source(text: str) -> Source:
    """A file with this text."""
    return Source(NAME, BytesIO(text.encode()))


def events(reader: Reader, text: str) -> list[TraceEvent]:
    """What a reader makes of it, in the file's own time."""
    return [one.event for one in reader(source(text))]


def moments_in(reader: Reader, text: str) -> list[Moment]:
    """The moments that a reader's events come to."""
    return list(moments(from_start(reader(source(text)))))


def story(*found: TraceEvent, nodes: tuple[str, ...] = ()) -> list[Moment]:
    """The moments of these events, with nodes that are there at the start."""
    return list(moments(from_start(told(found), nodes)))


def at(time_s: float, kind: EventKind, node: str | None = None, **more: object) -> TraceEvent:
    """An event of a node."""
    return TraceEvent(kind, time_s=float(time_s), node=node, **more)  # type: ignore[arg-type]
