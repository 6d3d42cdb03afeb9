"""Reading a trace, in whatever format, event by event: a trace may be longer than memory."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from ...schemas.errors import InvalidInputError
from ...schemas.files import STANDARD_STREAM
from ...schemas.replay import Moment
from .files import Source, Told, source_at
from .formats import (
    UNITS_S,
    Format,
    Leaving,
    faults,
    named,
    of_nodes,
    own_csv,
    own_json,
    parcae,
    populated,
    recognised,
    samples,
    spot,
    steps,
    struck_nodes,
    whole_cluster,
)
from .ledger import checked, from_start, moments


@dataclass(frozen=True)
class Reading:
    """What a trace does not say itself.

    Attributes:
        format: its format (a name of `Format`); None: it is recognised.
        nodes: that are there at the start, where the trace does not say: their names, or how many (node1, node2, …). A
            list of faults needs the number; our own traces need them unless they begin with a `join` at 0. Other traces
            say it, and this is not looked at.
        seed: of who leaves when a count drops, and of where a cluster's nodes with faults are.
        leaving: who leaves when a count drops.
        slow_faults: descriptions of faults that slow a node down instead of taking it down, with factors; such as
            `SLOW_FAULTS` (`runners/traces/formats.py`).
        iteration_time_s: for events by iteration.
        worker_nodes: the node of each worker k/i, for events of workers and of links between them.
        usual_link_s: what a message between two nodes takes where nothing is slow, for links slow by a factor.
    """

    format: str | None = None
    nodes: int | tuple[str, ...] | None = None
    seed: int = 0
    leaving: Leaving = "random"
    slow_faults: Mapping[str, float] = field(default_factory=dict)
    iteration_time_s: float | None = None
    worker_nodes: Mapping[str, str] | None = None
    usual_link_s: float = 0.0


def read_moments(path: str, reading: Reading | None = None) -> Iterator[Moment]:
    """The moments of a trace; the first one, at 0, has the fleet at the start, and nobody as lost or come.

    Args:
        path: the file, through gzip when it ends in `.gz`; `-` is standard input.
        reading: what it does not say itself.

    Raises:
        InvalidInputError: it is no trace; says file and line, or which item.
    """
    reading = reading or Reading()
    return moments(_read(path, reading), reading.usual_link_s)


def read_events(path: str, reading: Reading | None = None) -> Iterator[Told]:
    """The events of a trace from 0 on, those that fill the cluster at the start included, all of nodes and by time.

    Args and errors are those of `read_moments`, which makes moments of these.
    """
    reading = reading or Reading()
    return checked(_read(path, reading), reading.usual_link_s)


def _read(path: str, reading: Reading) -> Iterator[Told]:
    with source_at(path) as source:
        kind = recognised(source) if reading.format is None else named(reading.format)
        found = _told(source, kind, reading)
        if kind is Format.FAULTS:
            yield from from_start(found, _cluster(path, reading))
        elif kind is Format.RTK:
            yield from _own(found, reading, source.name)
        else:
            yield from from_start(found)


def _told(source: Source, kind: Format, reading: Reading) -> Iterator[Told]:
    """What a file says, in its own time."""
    if kind is Format.RTK:
        found = own_json(source) if source.head.startswith("{") else own_csv(source)
        return of_nodes(found, reading.iteration_time_s, reading.worker_nodes)
    if kind is Format.FAULTS:
        return faults(source, reading.slow_faults)
    if kind in UNITS_S:
        return populated(steps(source, UNITS_S[kind]), reading.leaving, reading.seed)
    if kind is Format.SAMPLES:
        return populated(samples(source), reading.leaving, reading.seed)
    return spot(source) if kind is Format.SPOT else parcae(source)


def _own(found: Iterator[Told], reading: Reading, name: str) -> Iterator[Told]:
    first = next(found, None)
    if first is None:
        raise InvalidInputError("the trace is empty", where=name, fix="give one with at least one event")
    says_itself = first.event.kind == "join" and not first.event.time_s
    nodes = () if says_itself or reading.nodes is None else _names(reading.nodes)
    yield from from_start(chain([first], found), nodes)


def _names(nodes: int | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"node{number}" for number in range(1, nodes + 1)) if isinstance(nodes, int) else nodes


def _cluster(path: str, reading: Reading) -> tuple[str, ...]:
    """The nodes of a cluster whose faults are listed; the list is read once more for their names."""
    if path == STANDARD_STREAM:
        raise InvalidInputError(
            "a list of faults is read twice", where="standard input", fix="write it into a file, and give that"
        )
    with source_at(path) as source:
        struck = struck_nodes(source)
        size = reading.nodes if reading.nodes is None or isinstance(reading.nodes, int) else len(reading.nodes)
        return whole_cluster(struck, size, reading.seed, source.name)
