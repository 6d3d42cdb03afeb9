"""Timelines of millions of spans, read straight into columns, part by part, in the form that rtk writes.

Read as any document is, each span is an object, and before that one of JSON: 16 GB for 3 million of them. Here
lines are compared all at once, by numpy, and of the values between them JSON lists are made, one a field.
"""

import json
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .columns import SpanReading, TimelineColumns
from .documents import parse_document
from .fields import LONGEST_S
from .files import STANDARD_STREAM, opened, source_of
from .orders import NONE
from .timeline import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Flags = NDArray[np.bool_]

CHUNK_BYTES = 1 << 20
MOST_ITERATIONS = 10**9  # as `fields.Index`
LONGEST_VALUE = 256  # bytes of one: a longer one is left to the reader of documents
# Line breaks are nowhere in the strings of a document, so these stand where they mean what they say.
BEGINS = b'{\n  "events": ['
SPANS, NEXT, LAST = b'\n  "spans": [\n', b"\n    },\n", b"\n    }\n  ],\n"
# What stands before the values of a span, and behind the last one.
SEPARATORS = (
    b'    {\n      "end_s": ', b',\n      "iteration": ', b',\n      "op": ', b',\n      "start_s": ',
    b',\n      "worker": ', b"\n    },\n",
)  # fmt: skip
BREAKS = b"".join(SEPARATORS).count(b"\n")
WORD = 8  # bytes that are compared at once: no separator is shorter


def read_columns(path: str) -> TimelineColumns | None:
    """Read a timeline's file into columns.

    Args:
        path: of the file; `.gz` is unpacked.

    Returns:
        The columns, as `columns_of` gives them of the document; None where the file is not a valid timeline in
        canonical form (`documents.canonical`): whoever reads it whole gets it, or is told what is wrong. Standard
        input, which is read once only, is such a file.

    Raises:
        InvalidInputError: the file cannot be read, or is damaged.
    """
    if path == STANDARD_STREAM:
        return None
    with opened(path) as stream:
        return _columns(stream, source_of(path)) if stream.peek(len(BEGINS)).startswith(BEGINS) else None


def _columns(stream: BinaryIO, source: str) -> TimelineColumns | None:
    text = b""
    while SPANS not in text:
        if not (more := stream.read(CHUNK_BYTES)):
            return None
        text += more
    head, _, text = text.partition(SPANS)
    reading = _SpanLines()
    while LAST not in text:
        whole, _, text = text.rpartition(NEXT)
        more = stream.read(CHUNK_BYTES)
        if not more or (whole and not reading.take(whole + NEXT)):
            return None
        text += more
    whole, _, tail = text.partition(LAST)
    if not reading.take(whole + NEXT):
        return None
    rest = head + b'\n  "spans": [],\n' + tail + stream.read()
    columns = reading.spans.columns(parse_document(rest, Timeline, source))
    is_placed = columns.stage is not None and bool((columns.stage != NONE).any())
    is_plain = json.loads(rest)["format_version"].startswith("1.")
    return None if is_placed and is_plain else columns


class _SpanLines:
    """Spans so far, and the numbers of the texts that stood there for workers and ops."""

    def __init__(self) -> None:
        self.spans = SpanReading()
        self._workers, self._ops = _Texts(self.spans.workers), _Texts(self.spans.ops)

    def take(self, text: bytes) -> bool:
        """Take whole spans, if all are valid."""
        values = _values(text)
        if values is None:
            return False
        end, iteration, op, start, worker = values
        try:
            ends_s, iterations, starts_s = _numbers(*end, float), _numbers(*iteration, int), _numbers(*start, float)
            ops, workers = self._ops.numbers(*op), self._workers.numbers(*worker)
        except (OverflowError, ValueError):
            return False
        in_time = starts_s.min() >= 0 and ends_s.max() < LONGEST_S and (starts_s <= ends_s).all()
        if not (in_time and iterations.min() >= 0 and iterations.max() < MOST_ITERATIONS):
            return False
        self.spans.add(workers, ops, starts_s, ends_s, iterations)
        return True


class _Texts(dict[bytes, int]):
    """The number of each text, by the JSON that stands for it."""

    def __init__(self, known: dict[str, int]) -> None:
        self._known = known

    def __missing__(self, raw: bytes) -> int:
        from pydantic_core import from_json

        text = from_json(raw)
        if not isinstance(text, str) or not text:
            raise ValueError("no name")
        self[raw] = found = self._known[text]
        return found

    def numbers(self, raw: "Bytes", kept: "Flags") -> list[int]:
        """Those of values; ValueError where one is no text."""
        return [self[one] for one in np.where(kept, raw, 0).view(f"S{raw.shape[1]}")[:, 0].tolist()]


def _numbers(raw: "Bytes", kept: "Flags", kind: type) -> "NDArray[Any]":
    """Values as numbers; ValueError where one is none of that kind."""
    from pydantic_core import from_json

    listed = np.where(kept, raw, ord(" "))
    listed[:, -1] = ord(",")
    found = from_json(b"[" + listed.tobytes()[:-1] + b"]", allow_inf_nan=False)
    if len(found) != len(raw) or set(map(type, found)) != {kind}:
        raise ValueError("other values")
    return np.array(found)


def _values(text: bytes) -> "list[tuple[Bytes, Flags]] | None":
    """The five values of each span, as rows of bytes, and which of these belong to it: not the last one.

    None where the text is not made of spans, each with the SEPARATORS in their places.
    """
    lines = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
    if len(lines) % BREAKS or b"\0" in text:
        return None
    breaks = lines.reshape(-1, BREAKS)
    # Separators begin where a span does, at the comma before a break, and at the last break but one.
    begins = np.concatenate((np.zeros((len(breaks), 1), dtype=np.int64), breaks[:, 1:-2] - 1, breaks[:, -2:-1]), axis=1)
    begins[1:, 0] = breaks[:-1, -1] + 1
    lengths = np.array([len(one) for one in SEPARATORS])
    widths = begins[:, 1:] - begins[:, :-1] - lengths[:-1]
    if widths.min() < 1 or widths.max() > LONGEST_VALUE or (begins[:, -1] + lengths[-1] > len(text)).any():
        return None
    padded = text + bytes(LONGEST_VALUE + 1)
    words = np.ndarray(len(text), dtype="<u8", buffer=padded, strides=(1,))
    for separator, begin in zip(SEPARATORS, begins.T, strict=True):
        for at in (*range(0, len(separator) - WORD, WORD), len(separator) - WORD):
            if (words[begin + at] != int.from_bytes(separator[at : at + WORD], "little")).any():
                return None
    found = []
    for length, begin, width in zip(lengths, begins.T, widths.T, strict=False):
        most = int(width.max()) + 1
        rows = np.ndarray(len(text), dtype=f"V{most}", buffer=padded, strides=(1,))[begin + length]
        found.append((rows.view(np.uint8).reshape(-1, most), np.arange(most) < width[:, None]))
    return found
