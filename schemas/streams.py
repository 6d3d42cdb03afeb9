"""How much of a file is read at most: one bound on what it unpacks to, so that no small file fills the memory."""

import gzip
import io
import math
import zlib
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from .errors import InvalidInputError

GZIP_MAGIC = b"\x1f\x8b"
CHUNK_BYTES = 1 << 16
# White space in a row: nobody writes so much, but it packs a thousandfold, and each empty line of it costs time.
MOST_BLANK_BYTES = 1 << 20


@dataclass
class InputBound:
    """How many bytes of a file, unpacked, are read at most; `rtk --max-input` says it."""

    most_bytes: float = 1 << 30


BOUND = InputBound()


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


class _Bounded(io.RawIOBase):
    """Counts what is read."""

    def __init__(self, stream: BinaryIO, source: str, most_bytes: float) -> None:
        self._stream, self._source, self._most_bytes = stream, source, most_bytes
        self._read_bytes = self._blank_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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
            raise InvalidInputError(
                f"the gzip data is damaged or cut short after {self._read_bytes:,} bytes ({error})",
                where=self._source,
                fix="compress the file again, or unpack what can be saved (zcat) and give that",
            ) from error
        except OSError as error:
            raise unreadable(self._source, error) from error


def unreadable(source: str, error: OSError) -> InvalidInputError:
    """The error for a file that the system does not let us read."""
    fix = "give the files in it" if isinstance(error, IsADirectoryError) else "check the path"
    return InvalidInputError(f"cannot read the file: {error.strerror or error}", where=source, fix=fix)
