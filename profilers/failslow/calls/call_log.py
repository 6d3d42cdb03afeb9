"""A call log of one's own: JSON lines `{"t": …, "rank": 0, "op": "all_reduce", "group": "0", "bytes": 4096}`.

`t` is in s or ns, whatever clock it is by; which of them, its size says: beyond `MOST_S` it is ns. Optional are
`dtype`, `dur_us` (how long the call took, in µs), `seq` (its place among the group's calls) and, of a `send` or `recv`,
`peer`: the other rank, if the group is not `sender->receiver` by itself. One file may hold several ranks.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....schemas.errors import InvalidInputError
from ..readers.lines import lines_of
from .call import LINK, Call, CallLog
from .words import LARGEST, plain_op

KIND = "call log"
MOST_S = 1e10  # the year 2286, or 10 s after a host's start in ns
MOST_LINES = 10_000_000  # each of them takes some 200 bytes of memory


def read_call_log(path: Path) -> tuple[CallLog, ...]:
    """The calls of each rank in a file, in the order of ranks.

    Raises:
        InvalidInputError: a line is no call, or has its time in another unit than those before.
    """
    calls: dict[int, list[Call]] = {}
    is_ns: bool | None = None
    for number, row in rows_of(path):
        where = f"{path}, line {number}"
        time = _number(row, "t", where)
        if is_ns is not None and is_ns != (time > MOST_S):
            raise _mixed(where)
        is_ns = time > MOST_S
        call = _call(row, time / 1e9 if is_ns else time, where)
        calls.setdefault(call.rank, []).append(call)
    for one in calls.values():
        one.sort(key=lambda call: call.t_s)
    return tuple(CallLog(str(path), KIND, rank, tuple(calls[rank]), {}) for rank in sorted(calls))


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, with the numbers of their lines; a last line that is cut off is left out.

    Raises:
        InvalidInputError: a line is no object, or there are more than `MOST_LINES`.
    """
    for number, line in enumerate(lines_of(str(path)), start=1):
        if not line.data.strip():
            continue
        if number > MOST_LINES:
            raise InvalidInputError(
                f"the file has more than {MOST_LINES:,} lines", where=str(path), fix="split it, or give a part of it"
            )
        try:
            row = json.loads(line.data)
        except (ValueError, RecursionError) as error:
            if line.is_cut:
                return
            raise _no_object(f"{path}, line {number}") from error
        if not isinstance(row, dict):
            raise _no_object(f"{path}, line {number}")
        yield number, row


def _call(row: dict[str, Any], t_s: float, where: str) -> Call:
    rank, size = int(_number(row, "rank", where, -1)), int(_number(row, "bytes", where, 0))
    op, group = row.get("op"), row.get("group", "")
    if not isinstance(op, str) or not isinstance(group, str | int):
        raise InvalidInputError(
            "the call has no operation, or a group that is no name", where=where, fix='write "op" and "group" as texts'
        )
    op = plain_op(op)
    took_us = _number(row, "dur_us", where, -1.0)
    return Call(
        t_s=t_s,
        rank=rank,
        op=op,
        group=_link(op, rank, row.get("peer")) or str(group),
        bytes=size,
        dtype=str(row.get("dtype") or ""),
        duration_s=took_us / 1e6 if took_us >= 0 else None,
        number=int(_number(row, "seq", where, -1)),
    )


def _link(op: str, rank: int, peer: Any) -> str | None:
    if not isinstance(peer, int) or op not in ("send", "recv"):
        return None
    return f"{rank}{LINK}{peer}" if op == "send" else f"{peer}{LINK}{rank}"


def _number(row: dict[str, Any], key: str, where: str, missing: float | None = None) -> float:
    value = row.get(key, missing)
    if value is None and key in row:
        value = missing
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise InvalidInputError(
            f"{key!r} is {repr(value)[:40]} instead of a number", where=where, fix=f"write {key} as a number"
        )
    return value


def _mixed(where: str) -> InvalidInputError:
    return InvalidInputError(
        "the time is in another unit than in the lines before: one is in s, the other in ns",
        where=where,
        fix="write all times in s, or all in ns",
    )


def _no_object(where: str) -> InvalidInputError:
    return InvalidInputError("the line is no JSON object", where=where, fix="write one object a line")
