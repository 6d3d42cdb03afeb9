"""What a line of a log tells of an iteration, and what makes a number an iteration time."""

import math
from typing import Any, ClassVar, NamedTuple, Protocol

from ....schemas.errors import InvalidInputError

LONGEST_S = 1e15  # as in the documents (schemas/fields.py)
SECONDS_OF = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class Reading(NamedTuple):
    """What one line tells.

    Attributes:
        time_s: how long the iteration took, in s (or whatever the reader's `per` names took).
        iteration: its number, where the line says it.
        rank: who measured it, where the line says so.
        size: how much was computed in it, in tokens or samples, where the line says so.
    """

    time_s: float
    iteration: int | None = None
    rank: str | None = None
    size: float | None = None


class Reader(Protocol):
    """Reads one format, line by line; it may remember what lines before have said.

    Attributes:
        NAME: of the format.
        per: what the times are of: an iteration, or a token or sample where a log tells throughput only.
        is_over: a line has said that nothing will follow.
    """

    NAME: ClassVar[str]
    per: str
    is_over: bool

    def read(self, line: bytes) -> Reading | None:
        """What a line tells, None where it tells of no iteration.

        Raises:
            InvalidInputError: the line breaks the format; where it stands is for the caller to add.
        """
        ...


def checked_time(value: float, words: str) -> float:
    """A time in s, if it can be one.

    Args:
        value: in s.
        words: as they stand in the log, for the message.

    Raises:
        InvalidInputError: no iteration takes so long: it is not a number, negative, zero or without end.
    """
    if 0 < value < LONGEST_S:
        return value
    flaw = "not a number" if math.isnan(value) else "zero" if value == 0 else "negative" if value < 0 else "too large"
    raise InvalidInputError(
        f"an iteration time is {flaw}: {words}",
        fix="remove the line, or leave the time out where it is not known",
    )


def number_of(value: Any, name: str) -> float:
    """A number out of a cell or a JSON value.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    shown = repr(value)
    raise InvalidInputError(
        f"{name} is no number: {shown if len(shown) <= 60 else shown[:57] + '...'}",
        fix="write plain numbers with a point, such as 0.512",
    )


def printed(line: bytes) -> str:
    """The beginning of a line, fit for a message."""
    text = line[:60].decode("utf-8", "replace").strip()
    return repr(text + ("..." if len(line) > 60 else ""))
