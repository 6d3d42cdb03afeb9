"""What a line of a log tells of an iteration, and what makes a number an iteration time."""

import math
from statistics import median
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


# One series out of what several ranks say: an iteration takes as long as its slowest rank.
#
# All ranks of a job wait for each other, so their own series would tell the same story over and over; what one rank has
# to itself shows in how much longer than the others it takes.


# So many iterations are held back at the beginning, until it is clear which ranks there are ...
FIRST = 8
# ... and so many may be open at a time, while some rank is late with its row.
MOST_OPEN = 64


class Sample(NamedTuple):
    """An iteration of the job.

    Attributes:
        time_s: how long it took, by its slowest rank.
        iteration: its number, where the log says it.
        slowest: that rank, where several told of the iteration.
        excess: its time over the median of the others'; 1 where there are none.
        phase: what the job does; the times of one phase are not those of another.
    """

    time_s: float
    iteration: int | None = None
    slowest: str | None = None
    excess: float = 1.0
    phase: int = 0


class Ranks:
    """Puts together the rows of an iteration; ranks may be up to `MOST_OPEN` iterations apart."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # of rows, for logs that do not number the iterations
        self._begin()

    def _begin(self) -> None:
        """A job starts, for the first time or again."""
        self._last: dict[str, int] = {}  # the newest iteration of each rank
        self._open: dict[int, dict[str, float]] = {}
        self._is_known = False  # which ranks there are
        self._done = -1

    def note(self, reading: Reading) -> list[Sample]:
        """Another row.

        Returns:
            The iterations that are complete with it, in order.

        Raises:
            InvalidInputError: the rank is too far behind the others to be put together with them.
        """
        rank = reading.rank
        assert rank is not None
        iteration = self._number(reading)
        samples = []
        if iteration <= self._last.get(rank, iteration - 1):
            samples = self.finish()
            self._begin()
        if iteration <= self._done:
            raise InvalidInputError(
                f"rank {rank} tells of iteration {iteration} when the others are far beyond it",
                fix=f"sort the rows by iteration (ranks may be up to {MOST_OPEN} apart), or give each rank a file",
            )
        self._last[rank] = iteration
        self._open.setdefault(iteration, {})[rank] = reading.time_s
        return samples + self._complete(reading.iteration is not None)

    def finish(self) -> list[Sample]:
        """The iterations that are still open: nothing will follow."""
        samples = [_sample(number, self._open[number]) for number in sorted(self._open)]
        self._open = {}
        return samples

    def _number(self, reading: Reading) -> int:
        if reading.iteration is not None:
            return reading.iteration
        assert reading.rank is not None
        count = self._counts.get(reading.rank, 0)
        self._counts[reading.rank] = count + 1
        return count

    def _complete(self, is_numbered: bool) -> list[Sample]:
        self._is_known = self._is_known or len(self._open) > FIRST
        samples = []
        while self._is_known and self._open:
            number = min(self._open)
            rows = self._open[number]
            if len(rows) < len(self._last) and len(self._open) <= MOST_OPEN:
                break
            self._drop_the_gone(number)
            del self._open[number]
            self._done = number
            samples.append(_sample(number if is_numbered else None, rows))
        return samples

    def _drop_the_gone(self, number: int) -> None:
        """Ranks that have not told of an iteration when its time is over are not waited for."""
        for rank in [rank for rank, last in self._last.items() if last < number]:
            del self._last[rank]


def _sample(number: int | None, rows: dict[str, float]) -> Sample:
    slowest = max(rows, key=rows.__getitem__)
    time_s = rows[slowest]
    others = [other_s for rank, other_s in rows.items() if rank != slowest]
    return Sample(time_s, number, slowest, time_s / median(others)) if others else Sample(time_s, number)
