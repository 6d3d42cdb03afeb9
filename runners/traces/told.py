"""What a reader makes of a line: an event, and the place in the file where it stands, for errors that come later."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...schemas.errors import InvalidInputError
from ...schemas.trace import TraceEvent

LONGEST_S = 1e11  # in days, too, it is below what `Seconds` of schemas/fields.py allows


@dataclass(frozen=True, slots=True)
class Told:
    """An event by time, and where somebody says that it happened."""

    event: TraceEvent
    where: str


def told(events: Iterable[TraceEvent]) -> Iterator[Told]:
    """Events that come from no file; their places are counted from 0."""
    return (Told(event, f"/events/{index}") for index, event in enumerate(events))


def parse_time_s(text: str, unit_s: float, where: str) -> float:
    """A time that a file says in digits, in s.

    Args:
        text: a number, 0 or more.
        unit_s: what 1 stands for.
        where: the place in the file.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        return checked_time_s(float(text), unit_s, where)
    except ValueError:
        raise _no_time(text.strip(), where) from None


def checked_time_s(value: Any, unit_s: float, where: str) -> float:
    """A time that is a number in other units, in s; raises InvalidInputError where it is none, or cannot be."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < LONGEST_S:
        raise _no_time(value, where)
    return round(value * unit_s, 6)  # without the last bits of the multiplication


def _no_time(value: Any, where: str) -> InvalidInputError:
    return InvalidInputError(f"{value!r} is no time", where=where, fix="write a plain number, 0 or more")
