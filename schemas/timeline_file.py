"""Timelines of millions of spans, read straight into columns, part by part, in the form that rtk writes.

Read as any document is, each span is an object, and before that one of JSON: 16 GB for 3 million of them.
"""

import json
from typing import BinaryIO

from .columns import SpanReading, TimelineColumns
from .documents import parse_document
from .fields import LONGEST_S
from .files import STANDARD_STREAM, opened, source_of
from .orders import NONE
from .timeline import Timeline

CHUNK_BYTES = 1 << 22
MOST_ITERATIONS = 10**9  # as `fields.Index`
# Line breaks are nowhere in the strings of a document, so these stand where they mean what they say.
BEGINS = b'{\n  "events": ['
SPANS, NEXT, LAST = b'\n  "spans": [\n', b"\n    },\n", b"\n    }\n  ],\n"
FIELDS = ("worker", "op", "start_s", "end_s", "iteration")
TYPES = (str, str, float, float, int)


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
    reading = SpanReading()
    while LAST not in text:
        whole, _, text = text.rpartition(NEXT)
        more = stream.read(CHUNK_BYTES)
        if not more or (whole and not _add(reading, whole + b"}")):
            return None
        text += more
    whole, _, tail = text.partition(LAST)
    if not _add(reading, whole + b"}"):
        return None
    rest = head + b'\n  "spans": [],\n' + tail + stream.read()
    columns = reading.columns(parse_document(rest, Timeline, source))
    is_placed = columns.stage is not None and bool((columns.stage != NONE).any())
    is_plain = json.loads(rest)["format_version"].startswith("1.")
    return None if is_placed and is_plain else columns


def _add(reading: SpanReading, spans: bytes) -> bool:
    """Take a part's spans, if all are valid."""
    from pydantic_core import from_json

    try:
        rows = from_json(b"[" + spans + b"]", allow_inf_nan=False)
        columns = [[row[name] for row in rows] for name in FIELDS]
    except (KeyError, TypeError, ValueError):
        return False
    typed = all(set(map(type, column)) == {kind} for column, kind in zip(columns, TYPES, strict=True))
    if not typed or {len(row) for row in rows} != {len(FIELDS)}:
        return False
    workers, ops, starts_s, ends_s, iterations = columns
    in_time = min(starts_s) >= 0 and max(ends_s) < LONGEST_S and not any(map(float.__gt__, starts_s, ends_s))
    if not (in_time and all(ops) and min(iterations) >= 0 and max(iterations) < MOST_ITERATIONS):
        return False
    reading.add(workers, ops, starts_s, ends_s, iterations)
    return True
