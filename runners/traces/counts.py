"""Counts over time: how many nodes there were, but not which.

Nodes get names as they come, node1, node2, …, and never the same again. Who leaves when the count drops nobody says: by
default anybody with equal probability, as the market does not care what runs on a machine; or the newest.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Literal

from ...schemas.errors import InvalidInputError
from ...schemas.fields import MOST_NODES
from ...schemas.trace import TraceEvent
from .lines import Source
from .told import Told, parse_time_s

Leaving = Literal["random", "newest"]

OVERLAP_S = 600.0  # so far may a sampling begin before the end of the one ahead of it


@dataclass(frozen=True, slots=True)
class Sample:
    """So many nodes at a time, and where it says so."""

    time_s: float
    count: int
    where: str


def steps(source: Source, unit_s: float) -> Iterator[Sample]:
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
        yield Sample(parse_time_s(cells[0], unit_s, where), _count(cells[1], where), where)


def samples(source: Source) -> Iterator[Sample]:
    """Lines `YYYY-MM-DD, HH:MM:SS, count`, in time order, from 0 at the first.

    Samplings may overlap, as in `v100x1-east1c.txt`: with a change begins a new one of three lines, a minute apart, and
    the one before it may still have a line or two for a later time. What stands further down was known later, so a line
    overrules all lines ahead of it that speak of the same or a later time, up to `OVERLAP_S`. Each change then counts
    once: 120 of them, 518 nodes lost; sorted by time they would be 134 and 533.

    Raises:
        InvalidInputError: a line is none, its count is below zero, or it lies further back than that.
    """
    return _in_order(_dated(source))


def populated(found: Iterable[Sample], leaving: Leaving, seed: int) -> Iterator[Told]:
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


def _in_order(found: Iterable[Sample]) -> Iterator[Sample]:
    held: deque[Sample] = deque()
    latest_s = 0.0
    for sample in found:
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


def _dated(source: Source) -> Iterator[Sample]:
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
        yield Sample((moment - first).total_seconds(), _count(counted, where), where)


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
