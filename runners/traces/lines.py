"""Files as streams: their lines, or the items of one JSON array, one by one, so that no trace is too long."""

import codecs
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from ...schemas.documents import opened, source_of, unique_keys
from ...schemas.errors import InvalidInputError

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
        chunks, decoder = self._chunks(), json.JSONDecoder(object_pairs_hook=unique_keys)
        text = _fed(chunks, _fed(chunks, "", self.name).removeprefix("["), self.name)
        index = 0
        while index or not text.startswith("]"):
            where = f"{self.name}, /{index}"
            item, text = _decoded_item(decoder, chunks, text, where)
            yield where, item
            index += 1
            text = _fed(chunks, text, self.name)
            if text.startswith("]"):
                break
            if not text.startswith(","):
                raise InvalidInputError("not valid JSON: a comma is missing", where=where)
            text = _fed(chunks, text.removeprefix(","), self.name)
        if text[1:].strip() or any(chunk.strip() for chunk in chunks):
            raise InvalidInputError("not valid JSON: something follows the array", where=self.name)

    def _raw(self) -> Iterator[bytes]:
        """The next lines as they stand there."""
        while line := self._stream.readline(LONGEST_BYTES + 1):
            self._number += 1
            if len(line) > LONGEST_BYTES and not self._is_array_start(line):
                raise InvalidInputError(
                    f"a line is longer than {LONGEST_BYTES >> 20} MiB", where=self.at_line(self._number)
                )
            yield line.removeprefix(_BOM) if self._number == 1 else line

    def _is_array_start(self, line: bytes) -> bool:
        """Whether an array begins here that may well stand in one line."""
        return self._number == 1 and line.removeprefix(_BOM).lstrip().startswith(b"[")

    def _chunks(self) -> Iterator[str]:
        """All of the file, the first line included, in pieces."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for start in range(0, len(self._head), CHUNK_BYTES):
                yield decoder.decode(self._head[start : start + CHUNK_BYTES])
            while data := self._stream.read(CHUNK_BYTES):
                yield decoder.decode(data)
            yield decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise _no_text(self.name) from error


@contextmanager
def source_at(path: str) -> Iterator[Source]:
    """Open a file for one reading; `-` is standard input.

    Raises:
        InvalidInputError: it cannot be read, is damaged or too large; also later, while it is read.
    """
    with opened(path) as stream:
        yield Source(source_of(path), stream)


def _fed(chunks: Iterator[str], text: str, name: str) -> str:
    """The text without white space ahead, and more of it where nothing is left."""
    while not (text := text.lstrip()):
        chunk = next(chunks, None)
        if chunk is None:
            raise InvalidInputError("the array is cut short", where=name, fix="fetch the file again")
        text = chunk
    return text


def _decoded_item(decoder: json.JSONDecoder, chunks: Iterator[str], text: str, where: str) -> tuple[Any, str]:
    """The next item, and the text after it; more of the file is fetched until it is whole."""
    while True:
        try:
            item, end = decoder.raw_decode(text)
            return item, text[end:]
        except json.JSONDecodeError as error:
            chunk = next(chunks, None)
            if chunk is None or len(text) > LONGEST_BYTES:
                raise InvalidInputError(f"not valid JSON: {error.msg}", where=where) from error
            text += chunk
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"not valid JSON: {error}", where=where) from error


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_text(where) from error


def _no_text(where: str) -> InvalidInputError:
    return InvalidInputError("the file is not UTF-8 text", where=where, fix="unpack it, or convert it to UTF-8")
