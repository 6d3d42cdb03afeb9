"""Files that are read as a whole, with a limit, and big JSON documents that are read part by part."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....schemas.documents import opened
from ....schemas.errors import InvalidInputError

MOST_BYTES = 256 << 20  # of a file that is read as a whole, and of one part of a document
CHUNK_BYTES = 1 << 20
PEEKED_BYTES = 4096
_AFTER_A_VALUE = tuple(" \t\r\n,:]}")


def beginning_of(path: Path, most: int) -> bytes:
    """The first bytes of a file; fewer where it is shorter or damaged."""
    data = b""
    with opened(str(path)) as stream, suppress(InvalidInputError):
        while len(data) < most and (part := stream.read1(PEEKED_BYTES)):
            data += part
    return data


def whole_of(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file.

    Raises:
        InvalidInputError: it is damaged, or larger than `most`.
    """
    with opened(str(path)) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise InvalidInputError(
            f"the file is larger than {most >> 20} MiB",
            where=str(path),
            fix="record fewer calls (TORCH_FR_BUFFER_SIZE)",
        )
    return data


class Document:
    """A JSON document of which one list is too long to be held: read from its beginning to its end, once.

    Args:
        path: of the file.
        listed: the key of the list in the document; a document that is a list by itself is this list.

    Attributes:
        rest: all other keys and their values, as far as they were read.
    """

    def __init__(self, path: Path, listed: str) -> None:
        self.rest: dict[str, Any] = {}
        self._path, self._listed = path, listed
        self._decoder = json.JSONDecoder()
        self._text, self._at = "", 0
        self._is_at_end = False
        self._left = b""

    def items(self) -> Iterator[Any]:
        """The items of the list.

        Raises:
            InvalidInputError: the file is damaged, is no JSON, or one item or one other value is too large.
        """
        with opened(str(self._path)) as self._stream:
            if self._next() == "[":
                yield from self._list()
                return
            self._expect("{")
            while self._next() != "}":
                key = self._value()
                self._expect(":")
                if key == self._listed and self._next() == "[":
                    yield from self._list()
                else:
                    self.rest[str(key)] = self._value()
                if self._next() == ",":
                    self._at += 1

    def _list(self) -> Iterator[Any]:
        self._expect("[")
        while self._next() != "]":
            yield self._value()
            if self._next() == ",":
                self._at += 1
        self._at += 1

    def _next(self) -> str:
        """The next character that is no white space, left where it is."""
        while True:
            while self._at < len(self._text):
                if not self._text[self._at].isspace():
                    return self._text[self._at]
                self._at += 1
            if not self._more():
                raise self._damage("the document ends too early")

    def _expect(self, character: str) -> None:
        if self._next() != character:
            raise self._damage(f"no {character!r} where one should be")
        self._at += 1

    def _value(self) -> Any:
        self._next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:  # also a number of more digits than Python reads
                if not isinstance(error, json.JSONDecodeError) or not self._more():
                    raise self._damage("a value is no JSON, or cut short") from error
                continue
            if self._text[end : end + 1] in _AFTER_A_VALUE or not self._more():  # a number may go on in the next part
                self._at = end
                return value

    def _more(self) -> bool:
        """Read on; forgets what has been used."""
        if self._is_at_end:
            return False
        grown = max(CHUNK_BYTES, len(self._text) - self._at)  # doubles, so that a long value is not tried too often
        data = self._left + self._stream.read(grown)
        self._is_at_end = len(data) - len(self._left) < grown
        text = self._decoded(data)
        self._text, self._at = self._text[self._at :] + text, 0
        if len(self._text) > MOST_BYTES:
            raise self._damage(f"one value is larger than {MOST_BYTES >> 20} MiB")
        return bool(text) or not self._is_at_end

    def _decoded(self, data: bytes) -> str:
        """The text of bytes, less what may be the first part of a character."""
        try:
            text, self._left = data.decode(), b""
        except UnicodeDecodeError as error:
            if self._is_at_end or error.start < len(data) - 4:
                raise self._damage("the file is no text in UTF-8") from error
            text, self._left = data[: error.start].decode(), data[error.start :]
        return text

    def _damage(self, what: str) -> InvalidInputError:
        return InvalidInputError(what, where=str(self._path), fix="record the file again; it is cut short, or no JSON")
