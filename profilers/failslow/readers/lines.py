"""The lines of files, of files that still grow, and of standard input: one by one, so that no log is too long."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ....schemas.errors import InvalidInputError
from ....schemas.files import STANDARD_STREAM, opened, source_of, unreadable

LONGEST_LINE_BYTES = 4 << 20


class Line(NamedTuple):
    """A line's bytes, with its end if it has one; the last line of a file may lack it, and is then perhaps cut off."""

    data: bytes
    is_cut: bool


def lines_of(path: str, *, is_endless: bool = False) -> Iterator[Line]:
    """The lines of a file; what is compressed with gzip is unpacked, whatever its name. `-` is standard input.

    Args:
        path: the file.
        is_endless: the bound on what is read does not hold.

    Raises:
        InvalidInputError: the file cannot be read, is damaged, binary, or has a line that is none.
    """
    with opened(path, is_endless=is_endless) as stream:
        number = 0
        while data := stream.readline(LONGEST_LINE_BYTES + 1):
            number += 1
            yield Line(_checked(data, source_of(path), number), not data.endswith(b"\n"))


def growing_lines(path: str, wait: Callable[[], bool], say: Callable[[str], None]) -> Iterator[Line]:
    """The lines of a file that somebody still writes, as they come.

    A file that is not there yet is waited for. One that is cut to nothing or replaced by another (as log rotation does)
    is read on from its beginning.

    Args:
        path: `-` is standard input.
        wait: sleeps a little, when there is nothing to read; or says no, and that is the end.
        say: tells people what is waited for, and what has happened to the file.

    Raises:
        InvalidInputError: as for `lines_of`; or the file is compressed.
    """
    if path == STANDARD_STREAM or _is_special(path):
        yield from lines_of(path, is_endless=True)
        return
    if path.endswith(".gz"):
        raise InvalidInputError(
            "a compressed file cannot be followed", where=path, fix="follow the log itself, or leave --follow out"
        )
    for number, data in enumerate(_on_and_on(path, wait, say), start=1):
        yield Line(_checked(data, path, number), not data.endswith(b"\n"))


def _on_and_on(path: str, wait: Callable[[], bool], say: Callable[[str], None]) -> Iterator[bytes]:
    """The lines of all files that bear this name, one after the other."""
    is_told = False
    while True:
        try:
            with Path(path).open("rb") as stream:
                is_told = False
                yield from _until_replaced(stream, path, wait, say)
        except FileNotFoundError as error:
            if not Path(path).parent.is_dir():
                raise unreadable(path, error) from error
            if not is_told:
                say(f"{path}: not there yet, waiting for it")
            is_told = True
        except OSError as error:
            raise unreadable(path, error) from error
        if not wait():
            return


def _until_replaced(
    stream: BinaryIO, path: str, wait: Callable[[], bool], say: Callable[[str], None]
) -> Iterator[bytes]:
    """Whole lines as they come, until another file has the name and nothing more is in this one."""
    part, is_replaced = b"", False
    while True:
        data = stream.readline(LONGEST_LINE_BYTES + 1 - len(part))
        part += data
        if part.endswith(b"\n") or len(part) > LONGEST_LINE_BYTES:
            yield part
            part = b""
        elif data:
            continue
        elif is_replaced:
            break
        elif _is_replaced(stream, path):
            say(f"{path}: replaced by another file, which is read from its beginning")
            is_replaced = True  # what was written to the old one in the meantime is still to be read
        elif os.fstat(stream.fileno()).st_size < stream.tell():
            say(f"{path}: cut off, and read from its beginning again")
            stream.seek(0)
            part = b""
        elif not wait():
            break
    if part:
        yield part


def _is_replaced(stream: BinaryIO, path: str) -> bool:
    """Another file has this name; as long as none has, the old one may go on."""
    try:
        return not os.path.samestat(os.fstat(stream.fileno()), Path(path).stat())
    except OSError:
        return False


def _is_special(path: str) -> bool:
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode)


def _checked(data: bytes, source: str, number: int) -> bytes:
    if len(data) > LONGEST_LINE_BYTES:
        raise InvalidInputError(
            f"a line is longer than {LONGEST_LINE_BYTES >> 20} MiB",
            where=f"{source}, line {number}",
            fix="give a log of lines, one an iteration",
        )
    if b"\0" in data:
        raise InvalidInputError(
            "the file is binary, or text in UTF-16",
            where=f"{source}, line {number}",
            fix="give a log in UTF-8, or a table whose name ends in .parquet",
        )
    return data
