"""A training command, unchanged, watched for fail-slows: what notes its calls comes in by PYTHONPATH."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import IO

from ....schemas.detection import FileFindings
from ....schemas.errors import InvalidInputError
from ..tracker import Mode
from .job import Heard, WatchedJob

POLL_S = 0.25
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells say it
SHARED_MEMORY = Path("/dev/shm")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FROM_THE_KERNEL = 0x80  # si_code of what the terminal sends, to the whole group of processes


@dataclass(frozen=True)
class WatchedCommand:
    """What a command did while it was watched.

    Attributes:
        findings: by the phase of its iterations.
        ranks: how many were seen.
        calls: how many of their communication calls were.
        exit_code: its own, negative for a signal.
    """

    findings: dict[int, FileFindings]
    ranks: int
    calls: int
    exit_code: int


def monitor(
    command: Sequence[str],
    *,
    mode: Mode = "robust",
    stdout: IO[str] | None = None,
    tell: Callable[[Sequence[Heard]], None] = lambda heard: None,
) -> WatchedCommand:
    """Run a training command and watch how long its iterations take, by the communication calls that torch makes.

    To be called in the main thread; signals that this process is sent meanwhile are passed on to the command.

    Args:
        command: its words.
        mode: "robust", or "paper" for the published methods.
        stdout: where its standard output goes; None: where this process's goes.
        tell: hears of every iteration, and of what is slow, as it is found.

    Raises:
        InvalidInputError: the command cannot be started; with the exit code that a shell has then.
    """
    # Where files never touch a disk, if the system has that.
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rtk-monitor-", dir=memory) as folder:
        watch = WatchedJob(Path(folder), mode)
        process = _started(command, Path(folder), stdout)
        for _ in _while_it_runs(process):
            tell(watch.poll())
        tell(watch.finish())
        return WatchedCommand(watch.findings(join(command)), len(watch.ranks), watch.calls, process.returncode)


class CommandNotFoundError(InvalidInputError):
    """There is no such command."""

    exit_code = NOT_FOUND


class CommandNotExecutableError(InvalidInputError):
    """The command cannot be started."""

    exit_code = NOT_EXECUTABLE


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command that is watched: the shim's folder is in front of its path."""
    from ...shim import entrance, hook

    paths = [str(Path(entrance.__path__[0]).resolve()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), hook.RINGS: str(folder)}


def _started(command: Sequence[str], folder: Path, stdout: IO[str] | None) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, env=environment(folder), stdout=stdout)
    except FileNotFoundError as error:
        raise CommandNotFoundError(
            f"the command {command[0]!r} is not there", where=f"COMMAND: {join(command)}", fix="check its name and PATH"
        ) from error
    except OSError as error:
        raise CommandNotExecutableError(
            f"the command cannot be started: {error.strerror}", where=f"COMMAND: {join(command)}"
        ) from error


def _while_it_runs(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Again and again while the command runs; what rtk is told by signals is passed on to it."""
    with _signals_held():
        while process.poll() is None:
            yield
            caught = signal.sigtimedwait((*PASSED_ON, signal.SIGCHLD), POLL_S)
            if caught is not None and caught.si_signo != signal.SIGCHLD and caught.si_code != FROM_THE_KERNEL:
                process.send_signal(caught.si_signo)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait until they are asked for. What Ctrl-C sends reaches the command by itself, and ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD))
    try:
        yield
    finally:
        while signal.sigtimedwait(PASSED_ON, 0) is not None:
            pass  # the command has it, and has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
