"""A log in large pieces of whole lines, whatever its encoding, and with what was cut out of it noted."""

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

from ....schemas.errors import InvalidInputError
from ....schemas.files import DamagedGzipError, opened, source_of
from ...failslow.readers.lines import COLOUR
from ..log_count import LogCount

BLOCK_BYTES = 1 << 21
# So much of what follows a line is there when it is read: a traceback is told by its last line.
AHEAD_BYTES = 1 << 15
MOST_LINE_BYTES = 4 << 20
_HEAD_BYTES = 1 << 12
_CONTROL = re.compile(rb"[\x01-\x07\x0b\x0e-\x1a\x1c-\x1f\x7f]")
_MOST_CONTROL = 0.02  # of the first bytes of a text
_MOST_NULS = 0.3  # of the first bytes, where they are no UTF-16


class LogBlock(NamedTuple):
    """Whole lines, of which those before `end` are to be read; the rest comes again."""

    data: bytes
    end: int


def blocks_of(path: str, count: LogCount) -> Iterator[LogBlock]:
    """The blocks of a file: gzip is unpacked, UTF-16 becomes UTF-8, zero bytes are left out.

    A carriage return ends a line as a line feed does, for progress bars have nothing else. Colours are left out.

    Args:
        path: "-" is standard input.
        count: hears of what is odd.

    Raises:
        InvalidInputError: the file cannot be read, or is binary.
    """
    rest, pieces = b"", _texts(path, count)
    for piece in pieces:
        data = (rest + piece).replace(b"\r\n", b"\n")
        if b"\x1b" in data:  # colours may stand within the words by which lines are known
            data = COLOUR.sub(b"", data)
        horizon = len(data) - AHEAD_BYTES
        end = max(data.rfind(b"\n", 0, max(0, horizon)), data.rfind(b"\r", 0, max(0, horizon))) + 1
        if not end and len(data) > MOST_LINE_BYTES:
            count.remark("a line of more than 4 MiB, read in parts", source_of(path))
            end = len(data)
        if end:
            yield LogBlock(data, end)
        rest = data[end:]
    if rest:
        yield LogBlock(rest, len(rest))


def _texts(path: str, count: LogCount) -> Iterator[bytes]:
    """The bytes of a file, in UTF-8 or in what of Latin letters it has; no carriage return is at the end of one."""
    decoder: codecs.IncrementalDecoder | None = None
    is_first = True
    held = b""
    for piece in _pieces(path, count):
        if is_first:
            decoder, is_first = _decoder(piece[:_HEAD_BYTES], source_of(path)), False
        data = decoder.decode(piece).encode("utf-8", "replace") if decoder else piece
        if b"\0" in data:
            count.remark("zero bytes, left out: the file was cut while somebody wrote to it", source_of(path))
            data = data.replace(b"\0", b"")
        data, held = held + data, b""
        if data.endswith(b"\r"):  # perhaps of a line's end in two characters
            data, held = data[:-1], b"\r"
        yield data
    if held:
        yield held


def _pieces(path: str, count: LogCount) -> Iterator[bytes]:
    with opened(path, is_endless=True) as stream:
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                part = stream.read1(BLOCK_BYTES)
            except DamagedGzipError as error:
                if not size and not parts:
                    raise
                count.remark("the compressed file is cut off or damaged: read up to there", str(error.where))
                part = b""
            parts.append(part)
            size += len(part)
            if size >= BLOCK_BYTES or not part:
                yield b"".join(parts)
                parts, size = [], 0
            if not part:
                return


def _decoder(head: bytes, source: str) -> codecs.IncrementalDecoder | None:
    """Of UTF-16; None: of anything in which ASCII is ASCII.

    Raises:
        InvalidInputError: this is no text.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return codecs.getincrementaldecoder("utf-16")("replace")
    for name, places in (("utf-16-le", slice(1, None, 2)), ("utf-16-be", slice(0, None, 2))):
        others = slice(1 - (places.start or 0), None, 2)
        if head[places].count(0) > 0.6 * len(head[places]) > 0 and head[others].count(0) < 0.1 * len(head[others]):
            return codecs.getincrementaldecoder(name)("replace")
    text = head.lstrip(b"\0")
    if len(_CONTROL.findall(text)) > _MOST_CONTROL * len(text) or text.count(0) > _MOST_NULS * len(text) > 0:
        raise InvalidInputError(
            "the file is binary",
            where=source,
            fix="give a log as text, or compressed with gzip; sacct's and kubectl's as JSON",
        )
    return None
