"""Files of other people, opened whatever they are (`.gz`, `-`) and read up to a bound; and ours, written whole.

One bound holds for what a file unpacks to, so that no small file fills the memory.
"""

import codecs
import gzip
import io
import json
import math
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from .errors import InvalidInputError
from .overwriting import OVERWRITING
from .remedies import folder_error

STANDARD_STREAM = "-"
GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 16
# White space in a row: nobody writes so much, but it packs a thousandfold, and each empty line of it costs time.
MOST_BLANK_BYTES = 1 << 20
_IN_A_NUMBER = ("", ".", "e", "E")  # what stands behind the part of a number that is a number by itself
_BLANK = re.compile(r"[ \t\r\n]*")


@dataclass
class InputBound:
    """How many bytes of a file, unpacked, are read at most; `rtk --max-input` says it."""

    most_bytes: float = 1 << 30


BOUND = InputBound()


def source_of(path: str) -> str:
    """What a file that is read is called in messages."""
    return "standard input" if path == STANDARD_STREAM else path


def read_bytes(path: str) -> bytes:
    """Read all bytes of a file, as `opened` gives them."""
    with opened(path) as stream:
        return stream.read()


@contextmanager
def opened(path: str, *, is_endless: bool = False, is_packed: bool = False) -> Iterator[BufferedReader]:
    """Open a file for one reading: the one way in for whatever rtk reads of other people.

    What ends in `.gz`, or begins as gzip does, is unpacked. No more is read than `BOUND` admits. A
    pipe that nobody writes to is waited for.

    Args:
        path: `-` is standard input.
        is_endless: a log that is followed as it grows has no bound.
        is_packed: give the bytes as they stand there.

    Raises:
        InvalidInputError: it cannot be read, is damaged or too large; also later, while it is read.
    """
    is_gzip = False if is_packed else True if path.endswith(".gz") else None
    if path == STANDARD_STREAM:
        yield bounded(cast(BinaryIO, sys.stdin.buffer), source_of(path), is_gzip=is_gzip, is_endless=is_endless)
        return
    try:
        stream = Path(path).open("rb")  # noqa: SIM115 (what whoever reads it raises is not ours to explain)
    except OSError as error:
        raise unreadable(path, error) from error
    with stream:
        OVERWRITING.note(stream.fileno(), path)
        yield bounded(stream, path, is_gzip=is_gzip, is_endless=is_endless)


def bounded(stream: BinaryIO, source: str, *, is_gzip: bool | None, is_endless: bool = False) -> io.BufferedReader:
    """A stream's bytes, unpacked, up to the bound.

    Whoever reads it raises InvalidInputError, with the file's name, where there is more than the bound, where there is
    nothing but white space for long, or where the gzip data are damaged.

    Args:
        stream: of bytes as they stand in the file; it is not closed.
        source: the file's name, for errors.
        is_gzip: whether to unpack it; None: if it begins as gzip does.
        is_endless: whether it has no bound: a log that is followed as it grows, line by line.
    """
    if is_gzip is None:
        peek = getattr(stream, "peek", None)
        is_gzip = peek is not None and peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
    if is_gzip:
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=stream, mode="rb"))
    return io.BufferedReader(_Bounded(stream, source, math.inf if is_endless else BOUND.most_bytes), CHUNK_BYTES)


class DamagedGzipError(InvalidInputError):
    """The rest of a compressed file cannot be unpacked; what came before it has been."""


class _Bounded(io.RawIOBase):
    """Counts what is read."""

    def __init__(self, stream: BinaryIO, source: str, most_bytes: float) -> None:
        self._stream, self._source, self._most_bytes = stream, source, most_bytes
        self._read_bytes = self._blank_bytes = 0

    def readable(self) -> bool:
        """It is read only."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of any raw stream; raises InvalidInputError where more comes than is allowed, or too much white space."""
        count = self._filled(buffer)
        self._read_bytes += count
        self._blank_bytes = self._blank_bytes + count if bytes(buffer[:count]).isspace() else 0
        if self._read_bytes > self._most_bytes:
            raise InvalidInputError(
                f"there are more than {self._most_bytes:,.0f} bytes in the file, unpacked",
                where=self._source,
                fix="if you trust it, allow more: rtk --max-input 4GiB …",
            )
        if self._blank_bytes > MOST_BLANK_BYTES:
            raise InvalidInputError(
                f"more than {MOST_BLANK_BYTES:,} bytes of white space stand there in a row",
                where=f"{self._source}, byte {self._read_bytes - self._blank_bytes}",
                fix="leave them out: nobody means to write so many",
            )
        return count

    def _filled(self, buffer: Any) -> int:
        try:
            # What a pipe gives is passed on as it comes: readinto would wait until the buffer is full.
            return int(cast(io.BufferedReader, self._stream).readinto1(buffer))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DamagedGzipError(
                f"the gzip data is damaged or cut short after {self._read_bytes:,} bytes ({error})",
                where=self._source,
                fix="compress the file again, or unpack what can be saved (zcat) and give that",
            ) from error
        except OSError as error:
            raise unreadable(self._source, error) from error


def unreadable(source: str, error: OSError) -> InvalidInputError:
    """The error for a file that the system does not let us read."""
    if isinstance(error, IsADirectoryError) and (ours := folder_error(source)) is not None:
        return ours
    fix = "give the files in it" if isinstance(error, IsADirectoryError) else "check the path"
    return InvalidInputError(f"cannot read the file: {error.strerror or error}", where=source, fix=fix)


class JsonStream:
    """A JSON document of which one list is too long to be held: read from its beginning to its end, once.

    Args:
        chunks: the bytes of the file.
        source: the file's name, for errors.
        most_bytes: of one item of the list, or one other value, about.
        fix: what to do about a file that is damaged.
        hook: what becomes of an object's keys and values, as for `json.loads`; None: a dict.

    Attributes:
        rest: all other keys and their values, as far as they were read.
    """

    def __init__(
        self,
        chunks: Iterable[bytes],
        source: str,
        *,
        most_bytes: int,
        fix: str,
        hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
    ) -> None:
        self.rest: dict[str, Any] = {}
        self._chunks = codecs.iterdecode(chunks, "utf-8")
        self._source, self._most_bytes, self._fix = source, most_bytes, fix
        self._decoder = json.JSONDecoder(object_pairs_hook=hook)
        self._text, self._at = "", 0
        self._place = ""  # of what is being read, a JSON pointer

    def items(self, listed: str | None = None) -> Iterator[Any]:
        """The items of the list.

        Args:
            listed: the list's key, where the document is an object; a document that is a list is this list.

        Raises:
            InvalidInputError: the file is no JSON, or damaged, or a value is too large; says the place.
        """
        if listed is None or self._next() == "[":
            yield from self._list("")
        else:
            self._take("{")
            if self._next() != "}":
                while True:
                    key = self._value()
                    self._take(":")
                    if key == listed and self._next() == "[":
                        yield from self._list(f"/{key}")
                    else:
                        self.rest[str(key)] = self._value()
                    if self._next() == "}":
                        break
                    self._take(",")
            self._take("}")
        if self._next():
            raise self._damage("not valid JSON: something follows the document")

    def _list(self, place: str) -> Iterator[Any]:
        self._take("[")
        if self._next() != "]":
            for index in count():
                self._place = f"{place}/{index}"
                yield self._value()
                if self._next() == "]":
                    break
                self._take(",")
        self._take("]")
        self._place = ""

    def _next(self) -> str:
        """The next character that is no white space, left where it is; empty at the end."""
        while True:
            self._at = cast(re.Match[str], _BLANK.match(self._text, self._at)).end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _take(self, expected: str) -> None:
        found = self._next()
        if found != expected:
            missing = "a comma" if expected == "," else repr(expected)
            raise self._damage(f"not valid JSON: {missing} is missing" if found else "the file is cut short")
        self._at += 1

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._more():
                    continue
                raise self._damage(f"not valid JSON, or cut short: {error.msg}") from error
            except (ValueError, RecursionError) as error:  # such as a number of more digits than Python reads
                raise self._damage(f"not valid JSON: {error}") from error
            if self._text[end : end + 1] not in _IN_A_NUMBER or not self._more():
                self._at = end
                return value

    def _more(self) -> bool:
        """Read on; forgets what has been used."""
        held = len(self._text) - self._at
        if held > self._most_bytes:
            raise self._damage(f"one value is larger than {self._most_bytes >> 20} MiB")
        parts, fetched = [self._text[self._at :]], 0
        try:
            while fetched <= held and (text := next(self._chunks, "")):  # doubles: a long value is not tried too often
                parts.append(text)
                fetched += len(text)
        except UnicodeDecodeError as error:
            raise self._damage("the file is not UTF-8 text") from error
        if fetched:
            self._text, self._at = "".join(parts), 0
        return fetched > 0

    def _damage(self, what: str) -> InvalidInputError:
        where = f"{self._source}, {self._place}" if self._place else self._source
        return InvalidInputError(what, where=where, fix=self._fix)


def write_bytes(path: str, data: bytes, *, in_own_folder: bool = False) -> None:
    """Write bytes; what `path` and `in_own_folder` may be, and the errors, as for `written`."""
    with written(path, in_own_folder=in_own_folder) as stream:
        stream.write(data)


@contextmanager
def written(path: str, *, in_own_folder: bool = False) -> Iterator[BinaryIO]:
    """A new file under a temporary name, which takes the path's place once it is whole: no reader sees half a file.

    Pipes and devices, such as /dev/stdout and /dev/null, cannot be renamed over: they are written straight away.

    Args:
        path: where to; compressed when it ends in `.gz`, with no time stamp in it, so equal data are equal bytes;
            `-` is standard output.
        in_own_folder: the file belongs to a folder that is all rtk's, such as an atlas: it may take the place of any.

    Raises:
        InvalidInputError: the place cannot be written, or what is there must not be overwritten (`overwriting.py`).
    """
    if path == STANDARD_STREAM:
        yield cast(BinaryIO, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    try:
        with (
            target.open("wb") if target.exists() and not target.is_file() else _renamed(target, in_own_folder) as stream
        ):
            if path.endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield stream
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidInputError(
            f"cannot write the file: {reason}", where=path, fix="check the path and its permissions"
        ) from error


@contextmanager
def _renamed(target: Path, may_overwrite: bool) -> Iterator[BinaryIO]:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        if not may_overwrite:
            OVERWRITING.require_allowed(target, Path(temporary))
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
