"""The formats of traces, and how a file is recognised by its first line."""

import json
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import count
from pathlib import PurePath
from typing import Any, Literal

from ...schemas.documents import unique_keys
from ...schemas.errors import InvalidInputError
from ...schemas.fields import MOST_NODES
from ...schemas.text import did_you_mean
from ...schemas.trace import EventKind, TraceEvent, events_of_csv, events_of_json
from .files import Source, Told, checked_time_s, parse_time_s


class TraceFormat(StrEnum):
    """What a trace may be read as."""

    RTK = "rtk"
    SPOT = "spot"
    PARCAE = "parcae"
    SAMPLES = "samples"
    COUNTS_MS = "counts-ms"
    COUNTS_S = "counts-s"
    COUNTS_H = "counts-h"
    FAULTS = "faults"


UNITS_S = {TraceFormat.COUNTS_MS: 1e-3, TraceFormat.COUNTS_S: 1.0, TraceFormat.COUNTS_H: 3600.0}

_NUMBER = r"\s*-?\d+(\.\d+)?\s*"
_LOOKS = {
    TraceFormat.RTK: re.compile(r'\{.*|(?=.*\bkind\b)[\w"]+(\s*,\s*[\w"]+)+'),
    TraceFormat.PARCAE: re.compile(rf'\[{_NUMBER},\s*".*'),
    TraceFormat.FAULTS: re.compile(r"\[\s*(\{.*|\])?"),
    TraceFormat.SAMPLES: re.compile(r"\d{4}-\d\d-\d\d\s*,.*"),
    TraceFormat.SPOT: re.compile(rf"{_NUMBER},[^,]*,[^,]*"),
}
_COUNTS = re.compile(f"{_NUMBER},{_NUMBER}")
# Files that everybody has by these names, and whose unit stands in no line: Bamboo's figures and Parcae's P3 trace.
_NAMED = {
    "aws-spot-instances-p2-": TraceFormat.COUNTS_H,
    "aws-spot-instances-g4dn-": TraceFormat.COUNTS_S,
    "p3.csv": TraceFormat.COUNTS_MS,
}


def named(name: str) -> TraceFormat:
    """The format of a name; raises InvalidInputError with a suggestion where there is none."""
    try:
        return TraceFormat(name)
    except ValueError:
        fix = did_you_mean(name, TraceFormat, f"the formats are {', '.join(TraceFormat)}")
        raise InvalidInputError(f"traces have no format {name!r}", where="--trace-format", fix=fix) from None


def recognised(source: Source) -> TraceFormat:
    """The format of a file.

    Raises:
        InvalidInputError: it is empty, or none of these; or counts, in nobody knows which unit of time.
    """
    head = source.head
    if not head:
        raise InvalidInputError("the trace is empty", where=source.name, fix="give one with at least one event")
    found = next((kind for kind, looks in _LOOKS.items() if looks.fullmatch(head)), None)
    if found is not None:
        return found
    if _COUNTS.fullmatch(head) is None:
        raise InvalidInputError(
            f"a trace does not begin with {head[:60]!r}",
            where=source.at_line(1),
            fix=f"say its --trace-format: {', '.join(TraceFormat)}",
        )
    name = PurePath(source.name).name
    by_name = next((kind for start, kind in _NAMED.items() if name.startswith(start)), None)
    if by_name is None:
        raise InvalidInputError(
            "these are counts over time, and the unit of time is not said",
            where=source.name,
            fix="say --trace-format counts-ms, counts-s or counts-h",
        )
    return by_name


# Our own traces (`rtk.trace`), as JSON lines or CSV, turned into events of nodes by time.


def own_json(source: Source) -> Iterator[Told]:
    """JSON lines, an event each."""
    return (Told(event, where) for where, event in events_of_json(source.lines(), source.name))


def own_csv(source: Source) -> Iterator[Told]:
    """CSV whose first line names the columns."""
    return (
        Told(event, where) for where, event in events_of_csv((line + "\n" for _, line in source.lines()), source.name)
    )


def of_nodes(
    found: Iterable[Told], iteration_time_s: float | None = None, worker_nodes: Mapping[str, str] | None = None
) -> Iterator[Told]:
    """Events by time and of nodes.

    What happens to a worker happens to its node: it is down while any of its workers is, and of several slow workers
    the slowest counts.

    Args:
        found: events by time or iteration, of nodes, workers or links.
        iteration_time_s: how long an iteration takes: one by iteration n happens at n times that.
        worker_nodes: the node of each worker k/i.

    Raises:
        InvalidInputError: an event needs one of the two, which is not there.
    """
    troubles: defaultdict[str, _Troubles] = defaultdict(_Troubles)
    for one in found:
        event = one.event
        if event.iteration is not None:
            if iteration_time_s is None:
                raise InvalidInputError(
                    "the event happens in an iteration, and nobody says how long those take",
                    where=one.where,
                    fix="write time_s, or give the time of an iteration",
                )
            event = replace(event, iteration=None, time_s=round(event.iteration * iteration_time_s, 6))
        if event.worker is not None:
            node = _node(event.worker, worker_nodes, one.where)
            to_node = troubles[node].of_node(replace(event, worker=None, node=node), event.worker)
            if to_node is None:
                continue
            event = to_node
        elif event.link is not None:
            ends = (_node(worker, worker_nodes, one.where) for worker in event.link.split("-"))
            event = replace(event, link=None, node=next(ends), peer=next(ends))
        elif event.peer is None and event.gpu is None and event.kind != "slow_compute":
            troubles.pop(event.node or "", None)
        yield Told(event, one.where)


def _node(worker: str, worker_nodes: Mapping[str, str] | None, where: str) -> str:
    if worker_nodes is None:
        raise InvalidInputError(
            f"nobody says on which node the worker {worker} runs",
            where=where,
            fix="name nodes instead of workers, or give the nodes of all workers",
        )
    if worker not in worker_nodes:
        raise InvalidInputError(
            f"no node that is there at the start has a worker {worker}",
            where=where,
            fix="name another one, or take a larger job or more nodes",
        )
    return worker_nodes[worker]


@dataclass
class _Troubles:
    """What is wrong with a node's workers: who is down, and by which factors who is slow."""

    down: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)

    def of_node(self, event: TraceEvent, worker: str) -> TraceEvent | None:
        """What an event of a worker is to its node; None: nothing."""
        if self.down and worker not in self.down and event.kind in ("slow_compute", "recover"):
            return None
        if event.kind == "slow_compute":
            self.slow[worker] = event.factor or 1.0
            return replace(event, factor=max(self.slow.values()))
        if event.kind in ("fail", "stop"):
            self.slow.clear()
            self.down.add(worker)
            return event if len(self.down) == 1 else None
        if worker in self.down:
            self.down.remove(worker)
            return None if self.down else event
        if event.kind == "recover" and self.slow.pop(worker, None) is not None and self.slow:
            return replace(event, kind="slow_compute", factor=max(self.slow.values()))
        return event


# Logs of spot instances: who was added and removed, as Bamboo and Oobleck publish them, and as Parcae does.


MS_S = 1e-3
OPERATIONS: dict[str, EventKind] = {"add": "join", "remove": "fail"}


def spot(source: Source) -> Iterator[Told]:
    """Lines `t_ms,add|remove,node`, with either kind of line end; who is removed is gone without a notice.

    Raises:
        InvalidInputError: a line is none.
    """
    for number, line in source.lines():
        where = source.at_line(number)
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 3 or not cells[2]:
            raise InvalidInputError(
                f"{line[:60]!r} is no event", where=where, fix="write a line as `t_ms,add,node1` or `t_ms,remove,node1`"
            )
        kind = _kind(cells[1], where)
        yield Told(TraceEvent(kind, time_s=parse_time_s(cells[0], MS_S, where), node=cells[2]), where)


def parcae(source: Source) -> Iterator[Told]:
    """JSON lines `[t_ms, "add|remove|no-op", {"nodes": [...], "duration": ms}]`, up to the end of the last one.

    The strategies that Parcae took are left out.

    Raises:
        InvalidInputError: a line is none.
    """
    end_s, where = 0.0, source.name
    for number, line in source.lines():
        where = source.at_line(number)
        try:
            row = json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"not valid JSON: {error}", where=where) from error
        match row:
            case [int() | float() as time_ms, str() as operation, dict() as told]:
                pass
            case _:
                fix = 'write [t_ms, "add", {"nodes": ["node-0"]}]'
                raise InvalidInputError(f"{line[:60]!r} is no event", where=where, fix=fix)
        time_s = checked_time_s(time_ms, MS_S, where)
        end_s = time_s + checked_time_s(told.get("duration", 0), MS_S, where)
        nodes = told.get("nodes")
        if not isinstance(nodes, list) or not all(isinstance(node, str) and node for node in nodes):
            raise InvalidInputError("`nodes` is no list of names", where=where, fix='write {"nodes": ["node-0"]}')
        if operation == "no-op" and nodes:
            raise InvalidInputError("a no-op has nodes", where=where, fix="write add or remove")
        for node in nodes:
            yield Told(TraceEvent(_kind(operation, where), time_s=time_s, node=node), where)
    yield Told(TraceEvent("end", time_s=end_s), where)


def _kind(operation: str, where: str) -> EventKind:
    if operation not in OPERATIONS:
        raise InvalidInputError(f"{operation!r} is nothing that happens", where=where, fix="write add or remove")
    return OPERATIONS[operation]


# Counts over time: how many nodes there were, but not which.
#
# Nodes get names as they come, node1, node2, …, and never the same again. Who leaves when the count drops nobody says:
# by default anybody with equal probability, as the market does not care what runs on a machine; or the newest.


Leaving = Literal["random", "newest"]

OVERLAP_S = 600.0  # so far may a sampling begin before the end of the one ahead of it


@dataclass(frozen=True, slots=True)
class NodeCount:
    """So many nodes at a time, and where it says so."""

    time_s: float
    count: int
    where: str


def steps(source: Source, unit_s: float) -> Iterator[NodeCount]:
    """Lines `t,count`, one a change or two a step (before and after).

    Args:
        source: the file.
        unit_s: what 1 of `t` stands for.

    Raises:
        InvalidInputError: a line is none, or its count is below zero.
    """
    for number, line in source.lines():
        where = source.at_line(number)
        cells = line.split(",")
        if len(cells) != 2:
            raise InvalidInputError(f"{line[:60]!r} is no count", where=where, fix="write a line as `t,count`")
        yield NodeCount(parse_time_s(cells[0], unit_s, where), _count(cells[1], where), where)


def samples(source: Source) -> Iterator[NodeCount]:
    """Lines `YYYY-MM-DD, HH:MM:SS, count`, in time order, from 0 at the first.

    Samplings may overlap, as in `v100x1-east1c.txt`: with a change begins a new one of three lines, a minute apart, and
    the one before it may still have a line or two for a later time. What stands further down was known later, so a line
    overrules all lines ahead of it that speak of the same or a later time, up to `OVERLAP_S`. Each change then counts
    once: 120 of them, 518 nodes lost; sorted by time they would be 134 and 533.

    Raises:
        InvalidInputError: a line is none, its count is below zero, or it lies further back than that.
    """
    held: deque[NodeCount] = deque()
    latest_s = 0.0
    for sample in _dated(source):
        latest_s = max(latest_s, sample.time_s)
        if sample.time_s < latest_s - OVERLAP_S:
            raise InvalidInputError(
                f"the time lies more than {OVERLAP_S / 60:.0f} minutes before that of a line ahead of it",
                where=sample.where,
                fix="sort the lines by time",
            )
        while held and held[-1].time_s >= sample.time_s:
            held.pop()
        held.append(sample)
        while held[0].time_s < sample.time_s - OVERLAP_S:
            yield held.popleft()
    yield from held


def populated(found: Iterable[NodeCount], leaving: Leaving, seed: int) -> Iterator[Told]:
    """The nodes that come and go with the counts, and the end, which is the last sample's time.

    Args:
        found: in time order, or nobody minds (`Ledger` does).
        leaving: who goes when a count drops.
        seed: of that.
    """
    draw, names, here = random.Random(seed), (f"node{number}" for number in count(1)), list[str]()
    last = None
    for last in found:
        while len(here) < last.count:
            here.append(next(names))
            yield Told(TraceEvent("join", time_s=last.time_s, node=here[-1]), last.where)
        while len(here) > last.count:
            index = int(draw.random() * len(here)) if leaving == "random" else -1
            yield Told(TraceEvent("fail", time_s=last.time_s, node=here.pop(index)), last.where)
    if last is not None:
        yield Told(TraceEvent("end", time_s=last.time_s), last.where)


def _dated(source: Source) -> Iterator[NodeCount]:
    first = None
    for number, line in source.lines():
        where = source.at_line(number)
        cells = [cell.strip() for cell in line.split(",")]
        try:
            date, time, counted = cells
            moment = datetime.strptime(f"{date} {time}", "%Y-%m-%d %H:%M:%S")
        except ValueError:
            raise InvalidInputError(
                f"{line[:60]!r} is no sample", where=where, fix="write a line as `2021-12-11, 11:11:30, 55`"
            ) from None
        first = first or moment
        yield NodeCount((moment - first).total_seconds(), _count(counted, where), where)


def _count(text: str, where: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise InvalidInputError(
            f"{text.strip()!r} is no count of nodes", where=where, fix="write a whole number"
        ) from None
    if value < 0:
        raise InvalidInputError(f"the count {value} is below zero", where=where, fix="write how many nodes there are")
    if value > MOST_NODES:
        raise InvalidInputError(f"{text.strip()} nodes are too many", where=where, fix=f"up to {MOST_NODES}")
    return value


# Lists of hardware faults, as StepFun publishes one: which node, from when to when, and what was wrong.


DAY_S = 86_400.0
# What a node can live with, and how many times as long its operations take meanwhile: assumptions. The list says
# neither how slow such nodes were nor whether they were used meanwhile.
SLOW_FAULTS = {
    "GPU Temperature High": 1.3,
    "GPU PCI link width low": 1.3,
    "GPU P2P Bandwidth Low": 1.5,
    "NIC PCI link Width low": 1.5,
    "NIC Link Speed low": 2.0,
}


@dataclass
class _Node:
    """A node's faults that are not over: so many take it down, and descriptions of those that slow it down."""

    open: Counter[str] = field(default_factory=Counter)

    def factor(self, slow: Mapping[str, float]) -> float | None:
        """How slow it is, 1 where it is well, None where it is down."""
        current = [description for description, number in self.open.items() if number]
        if any(description not in slow for description in current):
            return None
        return max((slow[description] for description in current), default=1.0)


def faults(source: Source, slow: Mapping[str, float]) -> Iterator[Told]:
    """The list's events; of faults of one node that overlap, the worst counts.

    A fault takes its node down from its start to its end, when the node comes back.

    Args:
        source: one JSON array of `node_id`, `event_time` in days, `event_type` (`fault_start`, `fault_end`) and
            `fault_type` with `Desc`.
        slow: descriptions of faults that slow a node down instead, by factors above 1.

    Raises:
        InvalidInputError: an item is none, or an end has no beginning.
    """
    nodes: dict[str, _Node] = {}
    for where, item in source.items():
        name, time_s, begins, description = _fault(item, where)
        node = nodes.setdefault(name, _Node())
        before = node.factor(slow)
        if not begins and not node.open[description]:
            raise InvalidInputError(
                f"{description!r} ends at {name}, but never began", where=where, fix="add its fault_start"
            )
        node.open[description] += 1 if begins else -1
        for event in _changes(name, time_s, before, node.factor(slow)):
            yield Told(event, where)


def struck_nodes(source: Source) -> tuple[str, ...]:
    """The nodes that a list names, as they appear."""
    return tuple(dict.fromkeys(_fault(item, where)[0] for where, item in source.items()))


def whole_cluster(struck: tuple[str, ...], size: int | None, seed: int, name: str) -> tuple[str, ...]:
    """All nodes of a cluster in which some have faults and nobody names the others: these are called node1, node2, ….

    Which of them sits where nobody says, so they are shuffled: the healthy ones would else be all together.

    Args:
        struck: the nodes with faults.
        size: of the cluster.
        seed: of the shuffling.
        name: the file's.

    Raises:
        InvalidInputError: nobody says how large the cluster is, or it is too small.
    """
    if size is None or size < len(struck):
        said = f"names {len(struck)} nodes" + (", and not how many there are" if size is None else f", not {size}")
        fix = "say how many nodes the cluster has: --nodes 400, or a --cluster"
        raise InvalidInputError(f"the list of faults {said}", where=name, fix=fix)
    fresh = (f"node{number}" for number in count(1))
    taken = set(struck)
    healthy = [next(one for one in fresh if one not in taken) for _ in range(size - len(struck))]
    draw = random.Random(seed)
    return tuple(sorted((*struck, *healthy), key=lambda _: draw.random()))


def _changes(node: str, time_s: float, before: float | None, after: float | None) -> Iterator[TraceEvent]:
    """What happens to a node that was so slow (None: down) and now is so slow."""
    if before == after:
        return
    if after is None:
        yield TraceEvent("fail", time_s=time_s, node=node)
        return
    if before is None:
        yield TraceEvent("join", time_s=time_s, node=node)
    if after > 1:
        yield TraceEvent("slow_compute", time_s=time_s, node=node, factor=after)
    elif before is not None:
        yield TraceEvent("recover", time_s=time_s, node=node)


def _fault(item: Any, where: str) -> tuple[str, float, bool, str]:
    """Node, time in s, whether it begins, and what it is."""
    match item:
        case {
            "node_id": str() as node,
            "event_time": int() | float() as days,
            "event_type": "fault_start" | "fault_end" as kind,
            "fault_type": {"Desc": str() as description},
        } if node:
            return node, checked_time_s(days, DAY_S, where), kind == "fault_start", description
    raise InvalidInputError(
        "this is no fault",
        where=where,
        fix="give node_id, event_time in days, event_type (fault_start or fault_end), and fault_type with Desc",
    )
