"""Read a trace, in whatever format, event by event: a trace may be longer than memory."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import ClassVar

from ...schemas.documents import to_tree
from ...schemas.errors import InvalidInputError
from ...schemas.files import STANDARD_STREAM, written
from ...schemas.replay import Fleet, Gpu, Moment, NodePair
from ...schemas.text import did_you_mean
from ...schemas.trace import DEADLY, TraceEvent, print_event
from .files import Source, Told, source_at
from .formats import (
    SLOW_FAULTS,
    UNITS_S,
    Leaving,
    TraceFormat,
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


@dataclass(frozen=True)
class TraceOptions:
    """What a trace does not say itself.

    Attributes:
        format: its format (a name of `TraceFormat`); None: it is recognised.
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
        gpus_per_node: of every node, so that faults of others are refused; None: nobody knows.
    """

    format: str | None = None
    nodes: int | tuple[str, ...] | None = None
    seed: int = 0
    leaving: Leaving = "random"
    slow_faults: Mapping[str, float] = field(default_factory=dict)
    iteration_time_s: float | None = None
    worker_nodes: Mapping[str, str] | None = None
    usual_link_s: float = 0.0
    gpus_per_node: int | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"gpus_per_node"})  # digests of questions stay as they were

    @property
    def ledger(self) -> "Ledger":
        """An empty one, for traces that are read so."""
        return Ledger(self.usual_link_s, self.gpus_per_node)


def reading_of(
    trace_format: str | None, nodes: int | tuple[str, ...] | None, leaving: Leaving, slow_faults: bool, seed: int
) -> TraceOptions:
    """How a trace is to be read, by the options that all commands share that read one."""
    return TraceOptions(
        format=trace_format, nodes=nodes, seed=seed, leaving=leaving, slow_faults=SLOW_FAULTS if slow_faults else {}
    )


def read_moments(path: str, reading: TraceOptions | None = None) -> Iterator[Moment]:
    """The moments of a trace; the first one, at 0, has the fleet at the start, and nobody as lost or come.

    Args:
        path: the file, through gzip when it ends in `.gz`; `-` is standard input.
        reading: what it does not say itself.

    Raises:
        InvalidInputError: it is no trace; says file and line, or which item.
    """
    reading = reading or TraceOptions()
    return moments(_read(path, reading), reading.ledger)


def read_events(path: str, reading: TraceOptions | None = None) -> Iterator[Told]:
    """The events of a trace from 0 on, those that fill the cluster at the start included, all of nodes and by time.

    Args and errors are those of `read_moments`, which makes moments of these.
    """
    reading = reading or TraceOptions()
    return checked(_read(path, reading), reading.ledger)


def _read(path: str, reading: TraceOptions) -> Iterator[Told]:
    with source_at(path) as source:
        kind = recognised(source) if reading.format is None else named(reading.format)
        found = _told(source, kind, reading)
        if kind is TraceFormat.FAULTS:
            yield from from_start(found, _cluster(path, reading))
        elif kind is TraceFormat.RTK:
            first = next(found, None)
            if first is None:
                raise InvalidInputError("the trace is empty", where=source.name, fix="give one with at least one event")
            says_itself = first.event.kind == "join" and not first.event.time_s
            nodes = () if says_itself or reading.nodes is None else reading.nodes
            names = (f"node{number}" for number in range(1, nodes + 1)) if isinstance(nodes, int) else nodes
            yield from from_start(chain([first], found), names)
        else:
            yield from from_start(found)


def _told(source: Source, kind: TraceFormat, reading: TraceOptions) -> Iterator[Told]:
    """What a file says, in its own time."""
    if kind is TraceFormat.RTK:
        found = own_json(source) if source.head.startswith("{") else own_csv(source)
        return of_nodes(found, reading.iteration_time_s, reading.worker_nodes)
    if kind is TraceFormat.FAULTS:
        return faults(source, reading.slow_faults)
    if kind in UNITS_S:
        return populated(steps(source, UNITS_S[kind]), reading.leaving, reading.seed)
    if kind is TraceFormat.SAMPLES:
        return populated(samples(source), reading.leaving, reading.seed)
    return spot(source) if kind is TraceFormat.SPOT else parcae(source)


def _cluster(path: str, reading: TraceOptions) -> tuple[str, ...]:
    """The nodes of a cluster whose faults are listed; the list is read once more for their names."""
    if path == STANDARD_STREAM:
        raise InvalidInputError(
            "a list of faults is read twice", where="standard input", fix="write it into a file, and give that"
        )
    with source_at(path) as source:
        struck = struck_nodes(source)
        size = reading.nodes if reading.nodes is None or isinstance(reading.nodes, int) else len(reading.nodes)
        return whole_cluster(struck, size, reading.seed, source.name)


# Who is there, and what is slow, after each event; what cannot have happened is refused.


class Ledger:
    """The state of a cluster while its trace is read.

    It grows with the nodes that were ever there, not with the events. A link is slow whoever is at its ends; a node
    that comes back is well, and has all its GPUs.

    Args:
        usual_link_s: what a message between two nodes takes where nothing is slow, for slow links by a factor.
        gpus_per_node: of every node; None: nobody knows.
    """

    def __init__(self, usual_link_s: float = 0.0, gpus_per_node: int | None = None) -> None:
        self._usual_link_s, self._gpus_per_node = usual_link_s, gpus_per_node
        self._nodes: dict[str, None] = {}
        self._gone: set[str] = set()
        self._dead: dict[str, set[int]] = {}
        self._slow: dict[str, float] = {}
        self._slow_links: dict[NodePair, float] = {}
        self._now_s = -math.inf
        self._is_over = False

    def __contains__(self, node: object) -> bool:
        """Whether a node is there."""
        return node in self._nodes

    def dead(self, node: str) -> frozenset[int]:
        """The GPUs that a node lacks."""
        return frozenset(self._dead.get(node, ()))

    def fleet(self) -> Fleet:
        """As it is now."""
        links = {pair: takes_s for pair, takes_s in self._slow_links.items() if self._nodes.keys() >= set(pair)}
        dead = {node: tuple(sorted(gpus)) for node, gpus in sorted(self._dead.items())}
        return Fleet(tuple(self._nodes), dict(self._slow), links, dead_gpus=dead)

    def take(self, one: Told) -> None:
        """Let the next event happen.

        Raises:
            InvalidInputError: it cannot: it lies in the past, or does not fit what there is.
        """
        event = one.event
        assert event.time_s is not None
        if event.time_s < self._now_s:
            raise InvalidInputError(
                "the event lies before the one ahead of it", where=one.where, fix="sort the trace by time"
            )
        if self._is_over:
            raise InvalidInputError("the trace goes on after its end", where=one.where, fix="move the end to the end")
        self._now_s = event.time_s
        self._is_over = event.kind == "end"
        if self._is_over:
            return
        assert event.node is not None
        if event.peer is not None:
            self._change_link(event, (event.node, event.peer), one.where)
        elif event.gpu is not None:
            self._change_gpu(event, event.node, event.gpu, one.where)
        else:
            self._change_node(event, event.node, one.where)

    def _change_node(self, event: TraceEvent, node: str, where: str) -> None:
        is_back = event.kind == "recover" and node in self._gone
        if event.kind == "join" or is_back:
            if node in self._nodes:
                raise InvalidInputError(
                    f"{node} is added, but is there already",
                    where=where,
                    fix="remove the event, or remove the node before",
                )
            self._nodes[node] = None
            self._gone.discard(node)
        elif event.kind in ("fail", "stop"):
            self._require(node, "removed", where)
            del self._nodes[node]
            self._gone.add(node)
            self._slow.pop(node, None)
            self._dead.pop(node, None)
        elif event.kind == "slow_compute":
            self._require(node, "slow", where)
            if event.factor is None or event.factor <= 1:
                raise InvalidInputError(
                    f"a slow node with the factor {event.factor} is not slow",
                    where=f"{where}, factor",
                    fix="give a factor above 1; what is well again recovers",
                )
            self._slow[node] = event.factor
        elif event.kind == "slow_link":
            raise InvalidInputError("a slow link has two ends", where=where, fix="name the other one as `peer`")
        else:
            self._require(node, "well again", where)
            if self._slow.pop(node, None) is None:
                raise InvalidInputError(f"{node} recovers, but is well", where=where, fix="remove the event")

    def _change_gpu(self, event: TraceEvent, node: str, gpu: int, where: str) -> None:
        """One of a node's GPUs dies or is repaired; a node that is whole again counts as the one that came last."""
        self._require(node, "short of a GPU", where)
        if self._gpus_per_node is not None and gpu >= self._gpus_per_node:
            has = f"has the GPUs 0 to {self._gpus_per_node - 1}" if self._gpus_per_node > 1 else "has only the GPU 0"
            raise InvalidInputError(
                f"there is no GPU {gpu} in {node}, which {has}",
                where=f"{where}, gpu",
                fix="count from 0, or say how many GPUs a node has (--cluster)",
            )
        dead = self._dead.get(node, set())
        dies = event.kind in DEADLY
        if dies == (gpu in dead):
            state = "is dead already" if dies else "is well"
            raise InvalidInputError(f"GPU {gpu} of {node} {state}", where=where, fix="remove the event")
        self._dead[node] = dead ^ {gpu}
        if not self._dead[node]:
            del self._dead[node], self._nodes[node]
            self._nodes[node] = None

    def _require(self, node: str, becomes: str, where: str) -> None:
        if node in self._nodes:
            return
        if node in self._gone:
            what, fix = f"{node} is {becomes}, but has gone already", "remove the event, or add the node again before"
        else:
            meant = did_you_mean(node, self._nodes)
            what = f"{node} is {becomes}, but never came" + (f" ({meant})" if meant else "")
            fix = "add it before, or say which nodes there are at the start (--nodes or --cluster)"
        raise InvalidInputError(what, where=where, fix=fix)

    def _change_link(self, event: TraceEvent, ends: NodePair, where: str) -> None:
        for node in ends:
            if node not in self._gone:
                self._require(node, "at an end of a slow link", where)
        pair = (min(ends), max(ends))
        if event.kind == "slow_link":
            # What a message takes in all: the usual time, times the factor, and the delay.
            if event.factor is not None and not self._usual_link_s:
                raise InvalidInputError(
                    "a link is slow by a factor, and nobody says what a message usually takes",
                    where=f"{where}, factor",
                    fix="write delay_s instead",
                )
            self._slow_links[pair] = self._usual_link_s * (event.factor or 1.0) + (event.delay_s or 0.0)
        elif self._slow_links.pop(pair, None) is None:
            raise InvalidInputError(
                f"the link {'-'.join(pair)} recovers, but is well", where=where, fix="remove the event"
            )


def checked(found: Iterable[Told], ledger: Ledger | None = None) -> Iterator[Told]:
    """Events as they come, each of which can have happened by an empty ledger."""
    ledger = ledger or Ledger()
    for one in found:
        ledger.take(one)
        yield one


# Events become moments: what a policy is asked about.


def moments(found: Iterable[Told], ledger: Ledger | None = None) -> Iterator[Moment]:
    """The moments of a trace, one for all events of a time.

    The first one, at the first event's time, has the fleet after all events of that time, and nobody as lost or come.
    A node that goes and comes back in the same instant is both lost and come (it lost what it held); one that comes and
    goes was never there; so with the GPUs of nodes that stay. Events that change nothing for the nodes that are there
    are no moments; the end of the trace is one, with the fleet of the moment before and nobody lost or come.

    Args:
        found: events in time order.
        ledger: that is kept, empty yet; None: one that knows nothing of links and GPUs.

    Raises:
        InvalidInputError: an event cannot have happened; there are none, or no nodes are there at the beginning.
    """
    ledger, failures = ledger or Ledger(), 0
    before: Fleet | None = None
    for time_s, group in groupby(found, key=_time_s):
        changed, where = _pass(ledger, group)
        fleet = ledger.fleet()
        if before is None:
            if not fleet.nodes:
                raise InvalidInputError(
                    "at the beginning no nodes are there",
                    where=where,
                    fix="say which there are at the start (--nodes or --cluster)",
                )
            yield Moment(time_s, fleet)
        elif changed.is_any or fleet != before:
            failures += bool(changed.lost or changed.lost_gpus)
            yield replace(changed.moment(time_s, fleet), failures=failures)
        elif changed.is_end:
            fleet = before
            yield Moment(time_s, before, failures=failures)
        before = fleet
    if before is None:
        raise InvalidInputError("the trace has no events", fix="give one that says which nodes there are")


def from_start(found: Iterable[Told], nodes: Iterable[str] = ()) -> Iterator[Told]:
    """A trace from time 0 on: nodes that are there at the start come then.

    Without nodes that are there at the start, the trace begins with its first event, and that is time 0: what passes
    until the first nodes come is no training. With them, times are as they are.
    """
    first = [Told(TraceEvent("join", time_s=0.0, node=node), "the nodes at the start") for node in nodes]
    if first:
        yield from chain(first, found)
        return
    start_s = None
    for one in found:
        start_s = _time_s(one) if start_s is None else start_s
        yield Told(replace(one.event, time_s=round(_time_s(one) - start_s, 6)), one.where) if start_s else one


@dataclass
class _Changes:
    """Who is lost, and who has come, in an instant, in the order in which that happened; and whether it is the end."""

    lost: dict[str, None] = field(default_factory=dict)
    came: dict[str, None] = field(default_factory=dict)
    lost_gpus: dict[Gpu, None] = field(default_factory=dict)
    came_gpus: dict[Gpu, None] = field(default_factory=dict)
    is_end: bool = False

    @property
    def is_any(self) -> bool:
        """Whether anybody is lost or has come."""
        return bool(self.lost or self.came or self.lost_gpus or self.came_gpus)

    def note_node(self, node: str, was_there: bool, is_there: bool) -> None:
        """An event has happened to a node as a whole."""
        if was_there and not is_there:
            for gpus in (self.lost_gpus, self.came_gpus):
                for gpu in [gpu for gpu in gpus if gpu[0] == node]:
                    del gpus[gpu]
            if node in self.came:
                del self.came[node]
            else:
                self.lost[node] = None
        elif is_there and not was_there:
            self.came[node] = None

    def note_gpu(self, gpu: Gpu, was_dead: bool) -> None:
        """An event has happened to a GPU of a node that is there; one that comes and goes was never there."""
        if gpu[0] in self.came:
            return
        if was_dead:
            self.came_gpus[gpu] = None
        elif gpu in self.came_gpus and gpu not in self.lost_gpus:
            del self.came_gpus[gpu]
        else:
            self.came_gpus.pop(gpu, None)
            self.lost_gpus[gpu] = None

    def moment(self, time_s: float, fleet: Fleet) -> Moment:
        """What a policy is told of them."""
        lost_gpus, came_gpus = tuple(self.lost_gpus), tuple(self.came_gpus)
        return Moment(time_s, fleet, tuple(self.lost), tuple(self.came), lost_gpus=lost_gpus, came_gpus=came_gpus)


def _pass(ledger: Ledger, group: Iterable[Told]) -> tuple[_Changes, str]:
    """Let an instant's events happen: what they change, and where the last one stands."""
    found, where = _Changes(), ""
    for one in group:
        node, gpu = one.event.node or "", one.event.gpu
        was_there, was_dead = node in ledger, gpu in ledger.dead(node)
        ledger.take(one)
        found.is_end, where = one.event.kind == "end", one.where
        if gpu is None:
            found.note_node(node, was_there, node in ledger)
        else:
            found.note_gpu((node, gpu), was_dead)
    return found, where


def _time_s(one: Told) -> float:
    assert one.event.time_s is not None
    return one.event.time_s


# What a trace is like, in numbers.


@dataclass(frozen=True)
class Summary:
    """A trace in numbers; times without a loss are between two moments at which nodes, or GPUs of some, were lost.

    Attributes:
        lasts_s: from the first nodes to the end.
        nodes_at_start: how many are there at 0.
        nodes_min: the fewest.
        nodes_max: the most.
        nodes_mean: over time.
        events: by kind; the nodes that are there at the start have a `join` each.
        failures: moments at which nodes were lost, or GPUs.
        nodes_lost: all in all; one that is lost twice counts twice.
        distinct_nodes_lost: one that is lost twice counts once.
        most_lost_at_once: in one moment.
        most_slow_at_once: nodes.
        gpus_lost: of nodes that stayed; one that is lost twice counts twice.
        most_dead_gpus: at once, of nodes that are there.
        mean_time_between_failures_s: lasts_s by failures; None where there are none.
        longest_without_loss_s: the longest time between losses, the start and the end.
    """

    lasts_s: float
    nodes_at_start: int
    nodes_min: int
    nodes_max: int
    nodes_mean: float
    events: dict[str, int]
    failures: int
    nodes_lost: int
    distinct_nodes_lost: int
    most_lost_at_once: int
    most_slow_at_once: int
    mean_time_between_failures_s: float | None
    longest_without_loss_s: float
    gpus_lost: int = 0
    most_dead_gpus: int = 0


def summary_of(found: Iterable[Told], ledger: Ledger | None = None) -> Summary:
    """The numbers of a trace, read once and not held.

    Args:
        found: events from 0 on, in time order.
        ledger: as for `moments`.

    Raises:
        InvalidInputError: an event cannot have happened.
    """
    kinds: Counter[str] = Counter()

    def counted() -> Iterator[Told]:
        for one in found:
            kinds[one.event.kind] += 1
            yield one

    passing = moments(counted(), ledger)
    tally = TraceCounter(next(passing))
    for moment in passing:
        tally.note(moment)
    return tally.summary(kinds=kinds)


class TraceCounter:
    """What is counted while a trace passes.

    Args:
        first: the moment at 0.
    """

    def __init__(self, first: Moment) -> None:
        nodes = len(first.fleet.nodes)
        self._last = first
        self._at_start = self._min = self._max = nodes
        self._most_slow = len(first.fleet.slow)
        self._lost: Counter[str] = Counter()
        self._most_lost = self._gpus_lost = 0
        self._most_dead = first.fleet.dead_gpu_count
        self._node_s = self._loss_s = self._longest_s = 0.0

    def note(self, moment: Moment) -> None:
        """The next moment."""
        self._node_s += len(self._last.fleet.nodes) * (moment.time_s - self._last.time_s)
        self._last = moment
        self._min = min(self._min, len(moment.fleet.nodes))
        self._max = max(self._max, len(moment.fleet.nodes))
        self._most_slow = max(self._most_slow, len(moment.fleet.slow))
        self._longest_s = max(self._longest_s, moment.time_s - self._loss_s)
        self._gpus_lost += len(moment.lost_gpus)
        self._most_dead = max(self._most_dead, moment.fleet.dead_gpu_count)
        if moment.lost or moment.lost_gpus:
            self._loss_s = moment.time_s
            self._lost.update(moment.lost)
            self._most_lost = max(self._most_lost, len(moment.lost))

    def summary(self, lasts_s: float | None = None, kinds: Mapping[str, int] | None = None) -> Summary:
        """All of it.

        Args:
            lasts_s: when the trace ends, not before the last moment; None: with it.
            kinds: of events, where they were counted.
        """
        last, failures = self._last, self._last.failures
        lasts_s = last.time_s if lasts_s is None else lasts_s
        node_s = self._node_s + len(last.fleet.nodes) * (lasts_s - last.time_s)
        return Summary(
            lasts_s=lasts_s,
            nodes_at_start=self._at_start,
            nodes_min=self._min,
            nodes_max=self._max,
            nodes_mean=node_s / lasts_s if lasts_s else float(self._at_start),
            events=dict(sorted((kinds or {}).items())),
            failures=failures,
            nodes_lost=self._lost.total(),
            distinct_nodes_lost=len(self._lost),
            most_lost_at_once=self._most_lost,
            most_slow_at_once=self._most_slow,
            mean_time_between_failures_s=lasts_s / failures if failures else None,
            longest_without_loss_s=self._longest_s,
            gpus_lost=self._gpus_lost,
            most_dead_gpus=self._most_dead,
        )


# Writing a trace event by event.


COLUMNS = ("time_s", "kind", "node", "peer", "factor", "delay_s", "gpu")  # of events by time and of nodes


def write_events(path: str, events: Iterable[TraceEvent]) -> int:
    """Write events as they come, under a temporary name that is changed at the end: nobody ever sees half a trace.

    Args:
        path: where to: CSV if it ends in `.csv`, else JSON lines; `.gz` compresses, with equal bytes for equal events;
            `-` is standard output.
        events: by time and of nodes.

    Returns:
        How many.

    Raises:
        InvalidInputError: the place cannot be written, or whatever the events raise.
    """
    is_csv, count = path.removesuffix(".gz").endswith(".csv"), 0
    with written(path) as stream:
        if is_csv:
            stream.write((",".join(COLUMNS) + "\n").encode())
        for event in events:
            stream.write(_csv_row(event) if is_csv else print_event(event))
            count += 1
    return count


def _csv_row(event: TraceEvent) -> bytes:
    line, tree = io.StringIO(), to_tree(event)
    csv.writer(line, lineterminator="\n").writerow([tree.get(name, "") for name in COLUMNS])
    return line.getvalue().encode()
