"""Logs of spot instances: who was added and removed, as Bamboo and Oobleck publish them, and as Parcae does."""

import json
from collections.abc import Iterator
from typing import Any

from ...schemas.documents import unique_keys
from ...schemas.errors import InvalidInputError
from ...schemas.trace import EventKind, TraceEvent
from .lines import Source
from .told import Told, checked_time_s, parse_time_s

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
        time_ms, operation, told = _row(line, where)
        time_s = checked_time_s(time_ms, MS_S, where)
        end_s = time_s + checked_time_s(told.get("duration", 0), MS_S, where)
        nodes = _nodes(told.get("nodes"), where)
        if operation == "no-op" and nodes:
            raise InvalidInputError("a no-op has nodes", where=where, fix="write add or remove")
        for node in nodes:
            yield Told(TraceEvent(_kind(operation, where), time_s=time_s, node=node), where)
    yield Told(TraceEvent("end", time_s=end_s), where)


def _kind(operation: str, where: str) -> EventKind:
    if operation not in OPERATIONS:
        raise InvalidInputError(f"{operation!r} is nothing that happens", where=where, fix="write add or remove")
    return OPERATIONS[operation]


def _row(line: str, where: str) -> tuple[float, str, dict[str, Any]]:
    try:
        row = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"not valid JSON: {error}", where=where) from error
    match row:
        case [int() | float() as time_ms, str() as operation, dict() as told]:
            return time_ms, operation, told
    raise InvalidInputError(f"{line[:60]!r} is no event", where=where, fix='write [t_ms, "add", {"nodes": ["node-0"]}]')


def _nodes(nodes: Any, where: str) -> list[str]:
    if not isinstance(nodes, list) or not all(isinstance(node, str) and node for node in nodes):
        raise InvalidInputError("`nodes` is no list of names", where=where, fix='write {"nodes": ["node-0"]}')
    return nodes
