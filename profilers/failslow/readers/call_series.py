"""A log of communication calls that grows, as a series of iteration times, call by call (`calls/iterations.py`).

Only the calls of the rank that comes first are looked at: the others wait for it in every iteration. Whole files are
better read as such (`calls/files.py`), which compares the ranks with each other.
"""

import json
from typing import TYPE_CHECKING, Any

from ....schemas.errors import InvalidInputError
from .ranks import Sample
from .reading import number_of
from .rows import parsed_object

if TYPE_CHECKING:
    from ..calls.call import Call

KIND = "call log"
_NS_FROM = 1e10  # greater times are in ns, as `calls/call_log.py` has it


def is_call(line: bytes) -> bool:
    """Whether a line is a JSON object that tells of a communication call."""
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "op" in row and "t" in row


class CallSeries:
    """The iteration times that one rank's calls tell; in the same way as `Series`.

    Args:
        source: what the log is called in messages.

    Attributes:
        lines: how many were read.
    """

    def __init__(self, source: str) -> None:
        from ..calls.iterations import Periods

        self.lines = 0
        self.kind, self.per, self.is_over = KIND, "iteration", False
        self._source = source
        self._periods = Periods()
        self._rank: int | None = None

    def read(self, line: bytes, is_cut: bool = False) -> list[Sample]:
        """The next line.

        Args:
            line: a call.
            is_cut: it is the last one and has no end: if it makes no sense it was cut off, which is no error.

        Returns:
            The iterations that are complete with it, in order.

        Raises:
            InvalidInputError: the line is no call.
        """
        self.lines += 1
        try:
            call = _call(parsed_object(line)) if line.strip() else None
        except InvalidInputError as error:
            if is_cut:
                return []
            where = f"{self._source}, line {self.lines}"
            raise InvalidInputError(error.what, where=where, fix=error.fix) from None
        if call is None:
            return []
        self._rank = call.rank if self._rank is None else self._rank
        if call.rank != self._rank:
            return []
        return [Sample(one.time_s, phase=one.phase) for one in self._periods.note(call) if one.time_s > 0]

    def finish(self) -> list[Sample]:
        """The log is over: what was too short to be looked at is looked at."""
        return [Sample(one.time_s, phase=one.phase) for one in self._periods.finish() if one.time_s > 0]


def _call(row: dict[str, Any]) -> "Call":
    from ..calls.call import Call
    from ..calls.words import plain_op

    if "op" not in row:
        raise InvalidInputError("the call has no operation", fix='write "op" as a text')
    time = number_of(row.get("t"), "t")
    if not abs(time) < float("inf"):
        raise InvalidInputError(f"the clock t is {time}", fix="write times in s or ns")
    group = f"{row.get('group', '')} {row.get('peer', '')}".strip()
    rank, size = (_whole(row, key, missing) for key, missing in (("rank", -1), ("bytes", 0)))
    t_s = time / 1e9 if time > _NS_FROM else time
    return Call(t_s, rank, plain_op(str(row["op"])), group, size, str(row.get("dtype") or ""))


def _whole(row: dict[str, Any], key: str, missing: int) -> int:
    value = row.get(key)
    number = float(missing) if value is None else number_of(value, key)
    if not number.is_integer():
        raise InvalidInputError(f"{key} is no whole number: {value}", fix=f"write {key} as a whole number")
    return int(number)
