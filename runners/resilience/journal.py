"""The coordinator's log on disk: every event, written before anything that follows from it is done.

One JSON object a line: a header that says which job it is, then the events. The log must survive the death of the
coordinator's process, not of its host: what `write` has given to the kernel outlives the process, so no event is
synced to the disk (that would cost milliseconds an iteration). When the host dies, the workers' states are checkpoints.
"""

import errno
import fcntl
import json
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...schemas.errors import InvalidInputError, RtkError
from .events import Event, Instruction, decode_event, encode_event

FORMAT = "rtk.journal"
FORMAT_VERSION = "1.0"


class LockedError(InvalidInputError):
    """Another coordinator, which is alive, writes this log."""


class Journal:
    """The log of one job, held by this process alone; made by `take`."""

    def __init__(self, path: Path, lock: int, file: int) -> None:
        self.path = path
        self._lock = lock
        self._file = file
        _HELD.add(self)

    def append(self, event: Event) -> None:
        """Write an event down: all of it or nothing.

        Raises:
            OSError: the disk is full or broken.
        """
        line = encode_event(event)
        # One call for the whole line, and nothing kept back in this process: when it returns, the event is safe.
        written = os.write(self._file, line)
        if written < len(line):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def events(self) -> Iterator[Event]:
        """The events from the first on.

        Raises:
            InvalidInputError: a line is none.
        """
        return read_events(self.path)

    def replayed(
        self, handle: Callable[[Event], Sequence[Instruction]]
    ) -> Iterator[tuple[Event, Sequence[Instruction]]]:
        """The events from the first on, each with what follows from it.

        Args:
            handle: the rules.

        Raises:
            InvalidInputError: a line is no event, or tells what cannot have happened after those before it.
        """
        for number, event in enumerate(self.events(), 2):
            try:
                found = handle(event)
            except Exception as error:
                # Lines are missing, doubled or changed: whatever the rules stumble over follows from that.
                why = error.what if isinstance(error, RtkError) else f"{type(error).__name__}: {error}"
                what = f"that cannot have happened then ({why})"
                raise damaged(what, self.path, number) from error
            yield event, found

    def abandon(self) -> None:
        """Mark the log as one from which no coordinator can go on, for an event is missing; append no more."""
        self.path.rename(_incomplete(self.path))

    def close(self) -> None:
        """Let the next coordinator have the log."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1
        _HELD.discard(self)


def take(path: str | Path, *, plan: str, job: dict[str, Any], wait: bool = False) -> Journal:
    """The log of a job, new or of a coordinator that is gone; a last line that a kill has cut short is removed.

    Args:
        path: the log; `path.lock` beside it belongs to whoever writes it, and stays.
        plan: sha256 of the plan that the job was started with.
        job: the settings that make it this job; JSON.
        wait: whether to wait, as a standby does, until the coordinator that has the log is gone.

    Raises:
        LockedError: another coordinator has it, and we do not wait.
        InvalidInputError: it cannot be opened, is of another job, misses events or is no log.
    """
    path = Path(path)
    fields = {"format": FORMAT, "format_version": FORMAT_VERSION, "plan": plan, "job": job}
    header = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    try:
        lock = _locked(path, wait)
        try:
            return Journal(path, lock, _opened(path, header))
        except BaseException:
            os.close(lock)
            raise
    except OSError as error:
        raise InvalidInputError(
            f"the coordinator's log cannot be opened: {error.strerror}",
            where=str(path),
            fix="name a file in a folder that you can write to",
        ) from None


def read_events(path: str | Path) -> Iterator[Event]:
    """The events of a log, which need not be ours; a last line without an end is not there yet.

    Raises:
        InvalidInputError: a line is no event.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 or not line.endswith(b"\n"):
                continue
            try:
                yield decode_event(line)
            except ValidationError as error:
                raise damaged(error.errors(include_url=False)[0]["msg"], path, number) from None


def damaged(what: str, path: str | Path, line: int) -> InvalidInputError:
    """The error for a log that no coordinator has written so."""
    return InvalidInputError(
        f"the coordinator's log is damaged: {what}",
        where=f"{path}, line {line}",
        fix="remove it and start the job again from its last checkpoint (--resume)",
    )


def _locked(path: Path, wait: bool) -> int:
    # A file of its own: who waits for it must not open, let alone change, what the other one writes.
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise LockedError(
            "another coordinator has this log", where=str(path), fix="wait for it with --standby, or end it"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _opened(path: Path, header: bytes) -> int:
    if _incomplete(path).exists():
        raise InvalidInputError(
            "the coordinator's log misses events, for the disk was full",
            where=str(_incomplete(path)),
            fix="remove it and start the job again from its last checkpoint (--resume)",
        )
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        length = _whole_lines(path, header)
        os.ftruncate(file, length)
        if length == 0:
            os.write(file, header)
            os.fsync(file)
    except BaseException:
        os.close(file)
        raise
    return file


def _whole_lines(path: Path, header: bytes) -> int:
    # The bytes of the log up to the end of its last whole line; 0 where not even the header is whole.
    with path.open("rb") as file:
        first = file.readline()
        # A file that holds the start of our own header can only be a log whose coordinator was killed that early.
        if not first.endswith(b"\n") and header.startswith(first):
            return 0
        _check_header(path, first, header)
        return len(first) + sum(len(line) for line in file if line.endswith(b"\n"))


def _check_header(path: Path, first: bytes, header: bytes) -> None:
    if first == header:
        return
    try:
        theirs = json.loads(first)
        is_log = theirs["format"] == FORMAT
    except (ValueError, TypeError, KeyError, RecursionError):
        is_log = False
    if not is_log:
        raise InvalidInputError("this file is no coordinator's log", where=f"{path}, line 1", fix="name another file")
    ours = json.loads(header)
    different = sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
    if not different:  # written in another way
        return
    if different == ["job"] and isinstance(theirs.get("job"), dict):
        mine, other = ours["job"], theirs["job"]
        different = sorted(f"job/{key}" for key in mine.keys() | other.keys() if mine.get(key) != other.get(key))
    raise InvalidInputError(
        f"this is the log of another job: {', '.join(different)} differ",
        where=f"{path}, line 1",
        fix="start with the plan and settings of that job, or name another log",
    )


def _incomplete(path: Path) -> Path:
    return path.with_name(path.name + ".incomplete")


# A process that is forked off without exec, such as a planner's helper, would go on holding the lock after our death.
_HELD: "weakref.WeakSet[Journal]" = weakref.WeakSet()


def _let_go() -> None:
    for journal in list(_HELD):
        journal.close()


os.register_at_fork(after_in_child=_let_go)
