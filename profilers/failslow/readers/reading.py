"""What a line of a log tells of an iteration, and what makes a number an iteration time."""

import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, ClassVar, NamedTuple

from ....schemas.errors import InvalidInputError
from ....schemas.files import STANDARD_STREAM, opened, source_of, unreadable

LONGEST_S = 1e15  # as in the documents (schemas/fields.py)
SECONDS_OF = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class LineReading(NamedTuple):
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


class LineReader(ABC):
    """Reads one format, line by line; it may remember what lines before have said.

    Attributes:
        NAME: of the format.
        per: what the times are of: an iteration, or a token or sample where a log tells throughput only.
        is_over: a line has said that nothing will follow.
    """

    NAME: ClassVar[str]

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False

    @abstractmethod
    def read(self, line: bytes) -> LineReading | None:
        """What a line tells, None where it tells of no iteration.

        Raises:
            InvalidInputError: the line breaks the format; where it stands is for the caller to add.
        """


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


def whole_number_of(value: Any, name: str, fix: str | None = None) -> int:
    """A whole number out of a cell or a JSON value.

    Raises:
        InvalidInputError: it is none, or so large that it counts nothing; `fix` says what to write.
    """
    number = number_of(value, name)
    if not number.is_integer() or abs(number) >= 1e15:
        raise InvalidInputError(f"{name} is no whole number: {value}", fix=fix or f"write {name} as a whole number")
    return int(number)


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


class IterationSample(NamedTuple):
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

    def note(self, reading: LineReading) -> list[IterationSample]:
        """Another row.

        Returns:
            The iterations that are complete with it, in order.

        Raises:
            InvalidInputError: the rank is too far behind the others to be put together with them.
        """
        rank = reading.rank
        assert rank is not None
        iteration = reading.iteration
        if iteration is None:
            iteration = self._counts.get(rank, 0)
            self._counts[rank] = iteration + 1
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

    def finish(self) -> list[IterationSample]:
        """The iterations that are still open: nothing will follow."""
        samples = [_sample(number, self._open[number]) for number in sorted(self._open)]
        self._open = {}
        return samples

    def _complete(self, is_numbered: bool) -> list[IterationSample]:
        self._is_known = self._is_known or len(self._open) > FIRST
        samples = []
        while self._is_known and self._open:
            number = min(self._open)
            rows = self._open[number]
            if len(rows) < len(self._last) and len(self._open) <= MOST_OPEN:
                break
            for rank in [rank for rank, last in self._last.items() if last < number]:
                del self._last[rank]
            del self._open[number]
            self._done = number
            samples.append(_sample(number if is_numbered else None, rows))
        return samples


def _sample(number: int | None, rows: dict[str, float]) -> IterationSample:
    slowest = max(rows, key=rows.__getitem__)
    time_s = rows[slowest]
    others = [other_s for rank, other_s in rows.items() if rank != slowest]
    return (
        IterationSample(time_s, number, slowest, time_s / median(others)) if others else IterationSample(time_s, number)
    )


# The lines of files, of files that still grow, and of standard input: one by one, so that no log is too long.


LONGEST_LINE_BYTES = 4 << 20


class Line(NamedTuple):
    """A line's bytes, with its end if it has one; the last line of a file may lack it, and is then perhaps cut off."""

    data: bytes
    is_cut: bool


def lines_of(path: str, *, is_endless: bool = False) -> Iterator[Line]:
    """The lines of a file; what is compressed with gzip is unpacked, whatever its name. `-` is standard input.

    Args:
        path: the file.
        is_endless: the bound on what is read does not hold.

    Raises:
        InvalidInputError: the file cannot be read, is damaged, binary, or has a line that is none.
    """
    with opened(path, is_endless=is_endless) as stream:
        number = 0
        while data := stream.readline(LONGEST_LINE_BYTES + 1):
            number += 1
            yield Line(_checked(data, source_of(path), number), not data.endswith(b"\n"))


def growing_lines(path: str, wait: Callable[[], bool], say: Callable[[str], None]) -> Iterator[Line]:
    """The lines of a file that somebody still writes, as they come.

    A file that is not there yet is waited for. One that is cut to nothing or replaced by another (as log rotation does)
    is read on from its beginning.

    Args:
        path: `-` is standard input.
        wait: sleeps a little, when there is nothing to read; or says no, and that is the end.
        say: tells people what is waited for, and what has happened to the file.

    Raises:
        InvalidInputError: as for `lines_of`; or the file is compressed.
    """
    try:
        is_special = path == STANDARD_STREAM or not stat.S_ISREG(Path(path).stat().st_mode)
    except OSError:
        is_special = False
    if is_special:
        yield from lines_of(path, is_endless=True)
        return
    if path.endswith(".gz"):
        raise InvalidInputError(
            "a compressed file cannot be followed", where=path, fix="follow the log itself, or leave --follow out"
        )
    for number, data in enumerate(_on_and_on(path, wait, say), start=1):
        yield Line(_checked(data, path, number), not data.endswith(b"\n"))


def _on_and_on(path: str, wait: Callable[[], bool], say: Callable[[str], None]) -> Iterator[bytes]:
    """The lines of all files that bear this name, one after the other."""
    is_told = False
    while True:
        try:
            with Path(path).open("rb") as stream:
                is_told = False
                yield from _until_replaced(stream, path, wait, say)
        except FileNotFoundError as error:
            if not Path(path).parent.is_dir():
                raise unreadable(path, error) from error
            if not is_told:
                say(f"{path}: not there yet, waiting for it")
            is_told = True
        except OSError as error:
            raise unreadable(path, error) from error
        if not wait():
            return


def _until_replaced(
    stream: BinaryIO, path: str, wait: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[bytes]:
    """Whole lines as they come, until another file has the name and nothing more is in this one."""
    part, is_replaced = b"", False
    while True:
        data = stream.readline(LONGEST_LINE_BYTES + 1 - len(part))
        part += data
        if part.endswith(b"\n") or len(part) > LONGEST_LINE_BYTES:
            yield part
            part = b""
        elif data:
            continue
        elif is_replaced:
            break
        elif _is_replaced(stream, path):
            say(f"{path}: replaced by another file, which is read from its beginning")
            is_replaced = True  # what was written to the old one in the meantime is still to be read
        elif os.fstat(stream.fileno()).st_size < stream.tell():
            say(f"{path}: cut off, and read from its beginning again")
            stream.seek(0)
            part = b""
        elif not wait():
            break
    if part:
        yield part


def _is_replaced(stream: BinaryIO, path: str) -> bool:
    """Another file has this name; as long as none has, the old one may go on."""
    try:
        return not os.path.samestat(os.fstat(stream.fileno()), Path(path).stat())
    except OSError:
        return False


def _checked(data: bytes, source: str, number: int) -> bytes:
    if len(data) > LONGEST_LINE_BYTES:
        raise InvalidInputError(
            f"a line is longer than {LONGEST_LINE_BYTES >> 20} MiB",
            where=f"{source}, line {number}",
            fix="give a log of lines, one an iteration",
        )
    if b"\0" in data:
        raise InvalidInputError(
            "the file is binary, or text in UTF-16",
            where=f"{source}, line {number}",
            fix="give a log in UTF-8, or a table whose name ends in .parquet",
        )
    return data
