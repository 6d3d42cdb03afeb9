"""Files as streams: their lines, or the items of one JSON array, one by one, so that no trace is too long."""

import codecs
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO

from ...schemas.documents import unique_keys
from ...schemas.errors import InvalidInputError
from ...schemas.files import JsonStream, opened, source_of
from ...schemas.trace import TraceEvent

LONGEST_BYTES = 1 << 20  # of a line, or of an item of an array
CHUNK_BYTES = 1 << 16
_BOM = codecs.BOM_UTF8


class Source:
    """A file that is being read: its name for messages, and its first line that is not empty."""

    def __init__(self, name: str, stream: BinaryIO) -> None:
        self.name = name
        self._stream = stream
        self._number = 0
        self._head = next((line for line in self._raw() if line.strip()), b"")

    @property
    def head(self) -> str:
        """The first line that is not empty, without its end; the empty text where there is none."""
        return _decoded(self._head, self.at_line(self._number)).strip()

    def at_line(self, number: int) -> str:
        """A place in the file."""
        return f"{self.name}, line {number}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """All lines that are not empty, with their numbers, from 1 on."""
        yield self._number, self.head
        for line in self._raw():
            if line.strip():
                yield self._number, _decoded(line, self.at_line(self._number)).strip()

    def items(self) -> Iterator[tuple[str, Any]]:
        """The items of the one JSON array that the file is, each with its place."""
        stream = JsonStream(
            chain([self._head], iter(lambda: self._stream.read(CHUNK_BYTES), b"")),
            self.name,
            most_bytes=LONGEST_BYTES,
            fix="fetch the file again",
            hook=unique_keys,
        )
        for index, item in enumerate(stream.items()):
            yield f"{self.name}, /{index}", item

    def _raw(self) -> Iterator[bytes]:
        """The next lines as they stand there."""
        while line := self._stream.readline(LONGEST_BYTES + 1):
            self._number += 1
            if len(line) > LONGEST_BYTES and not (
                self._number == 1 and line.removeprefix(_BOM).lstrip().startswith(b"[")
            ):
                raise InvalidInputError(
                    f"a line is longer than {LONGEST_BYTES >> 20} MiB", where=self.at_line(self._number)
                )
            yield line.removeprefix(_BOM) if self._number == 1 else line


@contextmanager
def source_at(path: str) -> Iterator[Source]:
    """Open a file for one reading; `-` is standard input.

    Raises:
        InvalidInputError: it cannot be read, is damaged or too large; also later, while it is read.
    """
    with opened(path) as stream:
        yield Source(source_of(path), stream)


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            "the file is not UTF-8 text", where=where, fix="unpack it, or convert it to UTF-8"
        ) from error


# What a reader makes of a line: an event, and the place in the file where it stands, for errors that come later.


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
