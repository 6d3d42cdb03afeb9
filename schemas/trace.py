"""Trace: the failures and slow-downs of a cluster, as JSON lines or CSV."""

import csv
import io
import json
import re
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from .documents import canonical_json, pointer, read_bytes, source_of, to_tree, type_adapter, unique_keys
from .errors import InvalidInputError
from .fields import STRICT, Factor, Index, Seconds

EventKind = Literal["fail", "stop", "join", "slow_compute", "slow_link", "recover"]

_WORKER = re.compile(r"\d+/\d+")
_LINK = re.compile(r"\d+/\d+-\d+/\d+")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One event: when (`time_s` or `iteration`), what, to whom (`node`, `worker` k/i or `link` k/i-k/j), how much."""

    kind: EventKind
    time_s: Seconds | None = None
    iteration: Index | None = None
    node: str | None = None
    worker: str | None = None
    link: str | None = None
    factor: Factor | None = None
    delay_s: Seconds | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset(
        {"time_s", "iteration", "node", "worker", "link", "factor", "delay_s"}
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

    Raises:
        InvalidInputError: a line is no event; `where` names it as `/events/N`, counted from 0.
    """
    source = source_of(path)
    text = _decode(read_bytes(path), source)
    rows = _csv_rows(text, source) if path.removesuffix(".gz").endswith(".csv") else _json_rows(text, source)
    trace = Trace(tuple(_parse_event(row, source, index) for index, row in enumerate(rows)))
    try:
        trace.validate()
    except InvalidInputError as error:
        raise InvalidInputError(error.what, where=f"{source}, {error.where}", fix=error.fix) from None
    return trace


def print_trace(trace: Trace) -> bytes:
    """The JSON lines of a trace; `read_trace` reads them back."""
    return b"".join(
        json.dumps(json.loads(canonical_json(to_tree(event))), sort_keys=True).encode() + b"\n"
        for event in trace.events
    )


def _decode(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"the file is not UTF-8 text (byte {error.start})", where=source) from error


def _json_rows(text: str, source: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line, object_pairs_hook=unique_keys))
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"not valid JSON: {error}", where=f"{source}, line {number}") from error
    return rows


def _csv_rows(text: str, source: str) -> list[dict[str, Any]]:
    numeric = {"time_s", "factor", "delay_s"}
    rows = []
    reader = csv.DictReader(io.StringIO(text))
    try:
        for row in reader:
            if None in row:
                raise ValueError("the line has more cells than the first line has names")
            rows.append({key: _number(key, value, numeric) for key, value in row.items() if value})
    except (ValueError, csv.Error) as error:
        where = f"{source}, line {reader.reader.line_num}"
        raise InvalidInputError(
            f"not valid CSV: {error}", where=where, fix="write plain numbers, a cell a name"
        ) from error
    return rows


def _number(key: str, value: str, numeric: set[str]) -> Any:
    if key == "iteration":
        return int(value)
    return float(value) if key in numeric else value


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
    if len(places) != 1:
        raise InvalidInputError("an event needs exactly one of node, worker and link", where=where)
    if event.worker is not None and not _WORKER.fullmatch(event.worker):
        raise InvalidInputError(f"{event.worker!r} is no worker", where=f"{where}/worker", fix="write k/i")
    if event.link is not None and not _LINK.fullmatch(event.link):
        raise InvalidInputError(f"{event.link!r} is no link", where=f"{where}/link", fix="write k/i-k/j")
    if event.kind == "slow_compute" and event.factor is None:
        raise InvalidInputError("slow_compute needs a factor", where=where)
    if event.kind == "slow_link" and event.delay_s is None and event.factor is None:
        raise InvalidInputError("slow_link needs a delay_s or a factor", where=where)


def _when(event: TraceEvent) -> float:
    return event.time_s if event.time_s is not None else float(event.iteration or 0)
