"""Writing a trace event by event."""

import csv
import gzip
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from ...schemas.documents import to_tree
from ...schemas.files import STANDARD_STREAM, whole_file
from ...schemas.trace import TraceEvent, print_event

COLUMNS = ("time_s", "kind", "node", "peer", "factor", "delay_s")  # of events by time and of nodes


def write_events(path: str, events: Iterable[TraceEvent]) -> int:
    """Write events as they come, under a temporary name that is changed at the end: nobody ever sees half a trace.

    Args:
        path: where to: CSV if it ends in `.csv`, else JSON lines; `.gz` compresses, with equal bytes for equal events;
            `-` is standard output.
        events: by time and of nodes.

    Returns:
        How many.

    Raises:
        InvalidInputError: the place cannot be written, or whatever the events raise.
    """
    rows = _csv_rows(events) if path.removesuffix(".gz").endswith(".csv") else map(print_event, events)
    count = 0
    with _stream(path) as stream:
        for row in rows:
            stream.write(row)
            count += 1
    return count - path.removesuffix(".gz").endswith(".csv")


def _csv_rows(events: Iterable[TraceEvent]) -> Iterator[bytes]:
    yield (",".join(COLUMNS) + "\n").encode()
    for event in events:
        line = io.StringIO()
        tree = to_tree(event)
        csv.writer(line, lineterminator="\n").writerow([tree.get(name, "") for name in COLUMNS])
        yield line.getvalue().encode()


@contextmanager
def _stream(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD_STREAM:
        yield cast(BinaryIO, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    with whole_file(path) as stream:
        if path.endswith(".gz"):
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield stream
