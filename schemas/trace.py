"""Trace: the failures and slow-downs of a cluster, as JSON lines or CSV."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

from .documents import pointer, to_tree, type_adapter, unique_keys
from .errors import InvalidInputError
from .fields import STRICT, Factor, Index, Name, Seconds
from .files import read_bytes, source_of
from .plan import Place, Plan, name_of, place_of, rank_name

# `end`: nothing happens; so long the trace goes on.
EventKind = Literal["fail", "stop", "join", "slow_compute", "slow_link", "recover", "end"]
DEADLY = ("fail", "stop")
Gone = dict[tuple[str, int], "TraceEvent | None"]  # ranks of workers that are lost, and by what; None: from the start

_WORKER = re.compile(r"\d+/\d+")
_LINK = re.compile(r"\d+/\d+-\d+/\d+")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event: when (`time_s` or `iteration`), what, to whom (`node`, `worker` k/i or `link` k/i-k/j), how much.

    A `node` with a `peer` is the link between two nodes, or the paths inside of one that is its own peer; with a `gpu`
    it is one of the node's GPUs, counted from 0, while the node itself goes on. A `worker` with a `gpu` is that rank of
    a worker of several.
    """

    kind: EventKind
    time_s: Seconds | None = None
    iteration: Index | None = None
    node: Name | None = None
    peer: Name | None = None
    worker: str | None = None
    link: str | None = None
    factor: Factor | None = None
    delay_s: Seconds | None = None
    gpu: Index | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"time_s", "iteration", "node", "peer", "worker", "link", "factor", "delay_s", "gpu"}
    )
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Trace:
    """Events in the order they happen."""

    events: tuple[TraceEvent, ...]

    FORMAT: ClassVar[str] = "rtk.trace"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Raise InvalidInputError for an event without a time or a place, or before the one ahead of it."""
        for index, event in enumerate(self.events):
            _check_event(event, f"/events/{index}")
        for index, (earlier, event) in enumerate(zip(self.events, self.events[1:], strict=False), start=1):
            if (event.time_s is None) != (earlier.time_s is None):
                raise InvalidInputError("time_s and iteration are mixed in one trace", where=f"/events/{index}")
            if _when(event) < _when(earlier):
                raise InvalidInputError("the event lies before the one ahead of it", where=f"/events/{index}")


def read_trace(path: str) -> Trace:
    """Read a trace: CSV where the name ends in `.csv` (or `.csv.gz`), JSON lines otherwise; `-` is standard input.

    Its `end` is left out: those who read whole traces know themselves how long they go on.

    Raises:
        InvalidInputError: a line is no event; `where` names it as `/events/N`, counted from 0.
    """
    source = source_of(path)
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source) from error
    if path.removesuffix(".gz").endswith(".csv"):
        found = events_of_csv(io.StringIO(text), source)
    else:
        found = events_of_json(enumerate(text.split("\n"), start=1), source)
    trace = Trace(tuple(event for _, event in found if event.kind != "end"))
    try:
        trace.validate()
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=f"{source}, {error.where}", fix=error.fix) from None
    return trace


def print_trace(trace: Trace) -> bytes:
    """The JSON lines of a trace; `read_trace` reads them back."""
    return b"".join(print_event(event) for event in trace.events)


def print_event(event: TraceEvent) -> bytes:
    """The JSON line of an event."""
    return json.dumps(to_tree(event), sort_keys=True, allow_nan=False).encode() + b"\n"


def events_of_json(lines: Iterable[tuple[int, str]], source: str) -> Iterator[tuple[str, TraceEvent]]:
    """The events of JSON lines one by one, each with its place; the order of their times is not looked at.

    Args:
        lines: with their numbers.
        source: names the file in errors.

    Raises:
        InvalidInputError: a line is no event.
    """
    return _events(_json_rows(lines, source), source)


def events_of_csv(lines: Iterable[str], source: str) -> Iterator[tuple[str, TraceEvent]]:
    """The events of CSV one by one, as `events_of_json` has them; the first line names the columns."""
    return _events(_csv_rows(lines, source), source)


def _events(rows: Iterable[Any], source: str) -> Iterator[tuple[str, TraceEvent]]:
    for index, row in enumerate(rows):
        event = _parse_event(row, source, index)
        where = f"{source}, /events/{index}"
        _check_event(event, where)
        yield where, event


def _json_rows(lines: Iterable[tuple[int, str]], source: str) -> Iterator[Any]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            yield json.loads(line, object_pairs_hook=unique_keys)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"not valid JSON: {error}", where=f"{source}, line {number}") from error


def _csv_rows(lines: Iterable[str], source: str) -> Iterator[dict[str, Any]]:
    whole, numeric = {"iteration", "gpu"}, {"time_s", "factor", "delay_s"}
    reader = csv.DictReader(lines, strict=True)
    try:
        names = reader.fieldnames or ()
        if len(set(names)) < len(names):
            raise ValueError("a name stands twice in the first line")
        for row in reader:
            if None in row:
                raise ValueError("the line has more cells than the first line has names")
            yield {
                key: (int(value) if key in whole else float(value) if key in numeric else value)
                for key, value in row.items()
                if value
            }
    except (ValueError, csv.Error) as error:
        where = f"{source}, line {reader.reader.line_num}"
        raise InvalidInputError(
            f"not valid CSV: {error}", where=where, fix="write plain numbers, a cell a name"
        ) from error


def _parse_event(row: Any, source: str, index: int) -> TraceEvent:
    from pydantic import ValidationError

    try:
        event: TraceEvent = type_adapter(TraceEvent).validate_json(json.dumps(row))
        return event
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        known = ", ".join(field.name for field in fields(TraceEvent))
        raise InvalidInputError(
            f"{first['msg'][0].lower()}{first['msg'][1:]}",
            where=f"{source}, {pointer(('events', index, *first['loc']))}",
            fix=f"an event has the keys {known}",
        ) from None


def _check_event(event: TraceEvent, where: str) -> None:
    if (event.time_s is None) == (event.iteration is None):
        raise InvalidInputError("an event needs either time_s or iteration", where=where)
    places = [name for name in ("node", "worker", "link") if getattr(event, name) is not None]
    if event.kind == "end":
        if places:
            raise InvalidInputError("the end happens to nobody", where=where, fix=f"leave {places[0]} out")
    elif len(places) != 1:
        raise InvalidInputError("an event needs exactly one of node, worker and link", where=where)
    _check_place(event, where)
    if event.kind == "slow_compute" and event.factor is None:
        raise InvalidInputError("slow_compute needs a factor", where=where)
    if event.kind == "slow_link" and event.delay_s is None and event.factor is None:
        raise InvalidInputError("slow_link needs a delay_s or a factor", where=where)


def _check_place(event: TraceEvent, where: str) -> None:
    if event.worker is not None and not _WORKER.fullmatch(event.worker):
        raise InvalidInputError(f"{event.worker!r} is no worker", where=f"{where}/worker", fix="write k/i")
    if event.link is not None and not _LINK.fullmatch(event.link):
        raise InvalidInputError(f"{event.link!r} is no link", where=f"{where}/link", fix="write k/i-k/j")
    if event.gpu is not None:
        _check_gpu(event, f"{where}/gpu")
    if event.peer is None:
        return
    if event.node is None:
        raise InvalidInputError("a peer without a node", where=f"{where}/peer", fix="name both ends of the link")
    if event.kind not in ("slow_link", "recover"):
        raise InvalidInputError(f"{event.kind} happens to no link", where=f"{where}/peer", fix="leave it out")


def _check_gpu(event: TraceEvent, where: str) -> None:
    if event.worker is not None:
        return
    if event.node is None or event.peer is not None:
        raise InvalidInputError(
            "a GPU without its node",
            where=where,
            fix="name the node that it is in, or the worker of which it is a rank",
        )
    if event.kind in ("slow_compute", "slow_link"):
        raise InvalidInputError(
            f"{event.kind} happens to no single GPU",
            where=where,
            fix="leave gpu out: who shares a layer with a slow GPU waits for it, so its node is slow",
        )


def _when(event: TraceEvent) -> float:
    return event.time_s if event.time_s is not None else float(event.iteration or 0)


# A trace of what happens to the workers of a plan.


def joins(trace: Trace) -> int:
    """How many replacements wait from the start for their iteration."""
    return sum(event.kind == "join" and event.iteration is not None for event in trace.events)


def link_ends(link: str) -> Sequence[str]:
    """The two workers of a link `k/i-k/j`."""
    return link.split("-")


def read_valid_trace(path: str, plan: Plan) -> Trace:
    """Read a trace and refuse it where it cannot happen to the plan's workers."""
    trace = read_trace(path)
    try:
        check_trace(plan, trace)
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=f"{source_of(path)}, {error.where}", fix=error.fix) from None
    return trace


def check_trace(plan: Plan, trace: Trace) -> None:
    """Refuse a trace that cannot happen to a plan's workers.

    Raises:
        InvalidInputError: an event names nobody that the plan has, or happens to one who is dead, or the like; `where`
            is `/events/N`, counted from 0.
    """
    ranks = {worker.name: plan.gpus_of(worker) for worker in plan.workers}
    dead = (worker.name for worker in plan.workers if worker.failed)
    gone: Gone = {(name, rank): None for name in dead for rank in range(ranks[name])}
    for number, event in enumerate(trace.events):
        where = f"/events/{number}"
        _check_place_in(plan, event, where)
        if event.worker is not None:
            _check_rank(event, ranks[event.worker], where)
            _check_life(event, ranks[event.worker], gone, where)


def _check_place_in(plan: Plan, event: TraceEvent, where: str) -> None:
    """The event's place exists, and is of the event's kind."""
    names = [worker.name for worker in plan.workers]
    wanted = {"slow_link": ("link",), "recover": ("worker", "link"), "fail": ("worker", "link")}.get(
        event.kind, ("worker",)
    )
    place = next(name for name in ("node", "worker", "link") if getattr(event, name) is not None)
    if place == "node":
        raise InvalidInputError(
            "a plan does not say which workers run on a node",
            where=f"{where}/node",
            fix="give an event for each of its workers, as worker k/i",
        )
    if place not in wanted:
        raise InvalidInputError(
            f"{event.kind} does not happen to a {place}", where=f"{where}/{place}", fix=f"name a {wanted[0]}"
        )
    ends = [event.worker] if event.worker is not None else link_ends(event.link or "")
    for name in ends:
        if name not in names:
            raise InvalidInputError(
                f"the plan has no worker {name}", where=f"{where}/{place}", fix=f"workers run from 0/0 to {names[-1]}"
            )
    if place == "link" and not _may_exchange(plan, *map(place_of, ends)):
        raise InvalidInputError(
            f"there is no link {event.link}", where=f"{where}/link", fix="name workers of neighbouring stages, or peers"
        )


def _may_exchange(plan: Plan, one: Place, other: Place) -> bool:
    """Whether two workers may have messages for each other, or sum gradients."""
    templates = map(plan.template_of, (one[0], other[0]))
    are_linked = any(template.link_between(one[1], other[1]) is not None for template in templates)
    return one != other and (one[1] == other[1] or are_linked)


def _check_rank(event: TraceEvent, ranks: int, where: str) -> None:
    """The worker has such a rank."""
    if event.gpu is not None and event.gpu >= ranks:
        raise InvalidInputError(
            f"worker {event.worker} is on {ranks} GPUs, from 0 on"
            if ranks > 1
            else f"worker {event.worker} is on one GPU",
            where=f"{where}/gpu",
            fix=f"take one from 0 to {ranks - 1}" if ranks > 1 else "leave gpu out",
        )


def _check_life(event: TraceEvent, ranks: int, gone: Gone, where: str) -> None:
    """Whom it happens to lives, or is gone, as the event needs it; `gone` says by what, and is kept."""
    assert event.worker is not None
    everyone = [(event.worker, rank) for rank in (range(ranks) if event.gpu is None else (event.gpu,))]
    name = rank_name(event.worker, event.gpu or 0, 1 if event.gpu is None else ranks)
    lost = [one for one in everyone if one in gone]
    stopped = [one for one in lost if (by := gone[one]) is not None and by.kind == "stop"]
    returns = event.kind == "join" or (event.kind == "recover" and bool(stopped))
    concerned = (lost if event.kind == "join" else stopped) if returns else [one for one in everyone if one not in gone]
    if event.kind == "join" and not lost:
        raise InvalidInputError(
            f"worker {name} lives, nobody can join in its place", where=where, fix="let it fail or stop earlier"
        )
    if not concerned:
        raise InvalidInputError(f"worker {name} is gone by then", where=where, fix="let it join again before")
    stands_by = event.kind == "join" and event.gpu is not None and ranks > 1  # and takes over at once
    midst = [by for one in concerned if returns and (by := gone[one]) is not None and by.iteration is not None]
    if not stands_by and any(by.iteration == event.iteration for by in midst):
        raise InvalidInputError(
            f"worker {name} is gone only in the midst of iteration {event.iteration}",
            where=f"{where}/iteration",
            fix="let it come back in a later one",
        )
    for one in concerned:
        if event.kind in DEADLY:
            gone[one] = event
        else:
            gone.pop(one, None)


def failing(plan: Plan, failed: Sequence[Place], then: Callable[[Plan], Trace | None]) -> Trace:
    """What happens: workers fail at the start, all at once, and then whatever is said for the plan that is left."""
    names = [name_of(place) for place in failed]
    left = (replace(worker, order=None, failed=True) if worker.name in names else worker for worker in plan.workers)
    rest = then(replace(plan, workers=tuple(left)))
    return Trace((*(TraceEvent("fail", time_s=0.0, worker=name) for name in names), *(rest.events if rest else ())))
