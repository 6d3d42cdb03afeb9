"""What a command may overwrite: none of the files that it reads, and no file of another kind than it writes.

So no slip of the pen costs a profile that took hours to measure. `rtk` guards its commands (`OVERWRITING`), and
`--force` lifts that; a program that imports rtk overwrites what it likes.
"""

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InvalidInputError

HEAD_BYTES = 1 << 24  # of a file, unpacked: what says its kind stands there
FIX = "write to another file, or add --force"
# What files begin with, in lower case, and what they are.
BEGINNINGS = {b"\x89png": "a PNG picture", b"%pdf": "a PDF picture", b"<svg": "an SVG picture"} | {
    b"<!doctype html": "a web page",
    b"<html": "a web page",
}
_PERFETTO = re.compile(rb"\n[\x80-\xff]*[\x00-\x7f]\x92\x03")  # a packet of compressed packets (viz/perfetto.py)
_FORMAT = re.compile(rb'"format"\s*:\s*"(rtk\.[a-z_.-]{1,40})"')


@dataclass
class Overwriting:
    """What the running command has read.

    Attributes:
        is_guarded: whether it must not overwrite that, nor anything of another kind.
        read: the names of the files, by device and inode: links lead to the same.
    """

    is_guarded: bool = False
    read: dict[tuple[int, int], str] = field(default_factory=dict)

    def note(self, descriptor: int, path: str) -> None:
        """A file is read."""
        if self.is_guarded:
            state = os.fstat(descriptor)
            if stat.S_ISREG(state.st_mode):
                self.read[state.st_dev, state.st_ino] = path

    def require_allowed(self, target: Path, new: Path) -> None:
        """Raise InvalidInputError unless a new file may take the place of whatever is there."""
        if not self.is_guarded or not target.is_file():
            return
        state = target.stat()
        source = self.read.get((state.st_dev, state.st_ino))
        if source is not None:
            raise refused(str(target), f"the command reads {source}, and would overwrite it")
        require_kind(str(target), kind_of(new), str(target))


OVERWRITING = Overwriting()


@contextmanager
def guarded(is_guarded: bool) -> Iterator[None]:
    """A command, which overwrites only what it may, or with --force anything."""
    OVERWRITING.is_guarded = is_guarded
    OVERWRITING.read.clear()
    try:
        yield
    finally:
        OVERWRITING.is_guarded = False
        OVERWRITING.read.clear()


def require_kind(path: str, kind: str | None, where: str) -> None:
    """Raise InvalidInputError if there is a file of another kind already; None: no kind that is known."""
    there = kind_of(Path(path)) if Path(path).is_file() else None
    if kind is not None and there is not None and there != kind:
        raise refused(where, f"the file is {there}, which {kind} would overwrite")


def refused(where: str, what: str) -> InvalidInputError:
    """The error for what is not overwritten."""
    return InvalidInputError(what, where=where, fix=FIX)


def kind_of(path: Path) -> str | None:
    """What a file is, by its beginning: `an rtk.plan`, `a web page`, `JSON`; None if it is empty or cannot be read."""
    head = head_of(path)
    start = head.lstrip()[:512].lower()
    if not start:
        return None
    if _PERFETTO.match(head):
        return "a Perfetto trace"
    named = next((kind for beginning, kind in BEGINNINGS.items() if start.startswith(beginning)), None)
    if named is None and start.startswith(b"<?xml"):
        named = "an SVG picture" if b"<svg" in start else "XML"
    return named or (_json_kind(head) if start[:1] in b"{[" else "text")


def _json_kind(head: bytes) -> str:
    format_ = format_in(head)
    if format_ is not None:
        return f"an {format_}"
    if b'"traceEvents"' in head or b'"ph"' in head:
        return "a Chrome trace"
    first, _, rest = head.lstrip().partition(b"\n")
    try:
        line = json.loads(first)
    except ValueError:
        return "JSON"
    # A line by itself is one of ours if it tells an event.
    return "JSON lines" if rest.strip() or (isinstance(line, dict) and {"kind", "event"} & line.keys()) else "JSON"


def format_in(head: bytes) -> str | None:
    """The format of ours that a file says it has, by its beginning: `rtk.plan`; None where it says none."""
    found = _FORMAT.search(head)
    return None if found is None else found[1].decode()


def head_of(path: Path, most_bytes: int = HEAD_BYTES) -> bytes:
    """A file's beginning, unpacked; nothing where it cannot be read, which whoever reads or writes it says.

    Args:
        path: the file.
        most_bytes: of it, and of what they unpack to.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(most_bytes)
    except OSError:
        return b""
    try:
        return zlib.decompressobj(wbits=31).decompress(raw, most_bytes) if raw.startswith(b"\x1f\x8b") else raw
    except zlib.error:
        return raw
