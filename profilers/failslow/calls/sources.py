"""Files that are read as a whole, with a limit, and traces of any size, event by event."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ....schemas.errors import InvalidInputError
from ....schemas.files import JsonStream, opened

MOST_BYTES = 256 << 20  # of a file that is read as a whole, and of one part of a document
CHUNK_BYTES = 1 << 20
PEEKED_BYTES = 4096
ODD = (LookupError, TypeError, ValueError, AttributeError)  # what a value of another form than expected raises


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


def read_trace(path: Path, note: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Read a Chrome trace of any size.

    Args:
        path: of the file.
        note: is given every event, one after the other; what it raises about one becomes an error with its place.

    Returns:
        What the trace says beside its events; `distributedInfo` is a mapping in any case.

    Raises:
        InvalidInputError: the file is damaged or no trace, or an event lacks what its kind has.
    """
    with opened(str(path)) as stream:
        chunks = iter(lambda: stream.read(CHUNK_BYTES), b"")
        fix = "record the file again; it is cut short, or no JSON"
        trace = JsonStream(chunks, str(path), most_bytes=MOST_BYTES, fix=fix)
        for place, event in enumerate(trace.items("traceEvents")):
            try:
                note(event)
            except ODD as error:
                raise odd(f"an event lacks {error}", f"{path}, /traceEvents/{place}") from error
    job = trace.rest.get("distributedInfo")
    return trace.rest | {"distributedInfo": job if isinstance(job, dict) else {}}


def odd(what: str, where: str) -> InvalidInputError:
    """The error for a trace that says something in another form than torch's profiler."""
    fix = "give a trace as torch's profiler wrote it"
    return InvalidInputError(f"{what}, or has it in another form", where=where, fix=fix)
