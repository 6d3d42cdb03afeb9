"""Worker processes on this machine, started and ended together."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from .lifeline import LIFELINE, lifeline_if_any

if TYPE_CHECKING:
    from .nursery import Forked, Nursery

# How long a worker may take to end by itself, once the job is over, before it is killed.
GRACE_S = 5.0
LAUNCHED = "RTK_LAUNCHED"
LED = "RTK_LED"  # set where whoever leads the job is of the same command and machine, and says why it ends
MEETING = "RTK_PROBE_MEETING"  # a file on which ranks meet that were started without torchrun: nobody listens on a port
PROGRAM = "rtk.cli.main:main"  # what they are
M_ARENA_MAX = -8  # of malloc.h


class WorkerProcesses:
    """`rtk ARGUMENTS` in processes of their own, whose standard output and error are the caller's.

    When this process dies, they notice and end; Ctrl-C is for this process alone. Use as a context: at its end they are
    waited for, and then killed.

    Args:
        nursery: that forks them.
        keep: descriptors that they inherit, under the same numbers.
        on_death: called, in a thread, with the name and the process number of a worker that is dead, where the system
            tells it before all that the worker had open is closed (lifeline.py).
    """

    def __init__(
        self,
        nursery: "Nursery",
        keep: Sequence[int] = (),
        on_death: Callable[[str, int], None] | None = None,
    ) -> None:
        self._nursery, self._keep, self._on_death = nursery, tuple(keep), on_death
        self._processes: list[tuple[str, Forked]] = []
        self._leashes: list[int] = []  # the other ends of their standard inputs

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        program: str = PROGRAM,
        files: Mapping[int, int] | None = None,
    ) -> "Forked":
        """Start one more process.

        Args:
            name: of the worker.
            arguments: the command line behind `rtk`.
            environment: what it finds in its environment beside ours.
            program: `module:function`, where it is not `rtk`.
            files: its descriptors that are other ones of ours.

        Raises:
            RuntimeFailedError: it cannot be started.
        """
        variables = {**os.environ, **environment, LAUNCHED: "1"}
        end, leash = os.pipe()
        self._leashes.append(leash)
        ends = [end]
        kept = {number: number for number in (1, 2, *self._keep) if _is_open(number)} | dict(files or {})
        on_death = self._on_death
        line = None if on_death is None else lifeline_if_any()
        if line is not None:
            ends.append(line.file)
            kept[line.file] = line.file
            variables[LIFELINE] = str(line.file)
        try:
            process = self._nursery.fork(program, arguments, variables, {0: end, **kept})
        finally:
            for one in ends:
                os.close(one)
        self._processes.append((name, process))
        if line is not None and on_death is not None:
            line.watch(lambda: process.poll() is not None, lambda: on_death(name, process.pid))
        return process

    def resume(self, name: str) -> None:
        """Let a stopped worker go on."""
        for other, process in self._processes:
            if other == name:
                process.send_signal(signal.SIGCONT)

    def ended(self) -> tuple[str, int] | None:
        """A worker that has ended without success, and its exit code, negative for a signal; None while all is well."""
        found = [(name, process.poll()) for name, process in self._processes]
        codes = [(name, code) for name, code in found if code]
        # Invalid input on one worker shows on the others as a broken connection (5): the lower code is the cause.
        killed = [one for one in codes if one[1] < 0]
        return killed[0] if killed else min(codes, key=lambda one: one[1], default=None)

    def are_over(self) -> bool:
        """Whether all have ended."""
        return all(process.poll() is not None for _, process in self._processes)

    def __enter__(self) -> "WorkerProcesses":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._wait(GRACE_S if error is None else 0.0)
        for _, process in self._processes:
            process.send_signal(signal.SIGKILL)
        self._wait(GRACE_S)
        for leash in self._leashes:
            os.close(leash)

    def _wait(self, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        while not self.are_over() and time.monotonic() < deadline_s:
            time.sleep(0.01)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def die_with_launcher() -> None:
    """In a worker that `WorkerProcesses` started: end with the launcher; elsewhere do nothing."""
    if LAUNCHED not in os.environ:
        return

    def watch() -> None:
        # The launcher holds the other end of our standard input and never writes to it. Python's own stream object
        # would be locked by this read when the interpreter shuts down.
        os.read(0, 1)
        os._exit(RuntimeFailedError.exit_code)

    threading.Thread(target=watch, name="launcher watch", daemon=True).start()


def keep_one_arena() -> None:
    """Have glibc allocate for all threads in one place.

    Every epoch has threads of its own; with an arena each, what they leave behind grew by 20 MB in 100 epochs.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def be_rank(command: str) -> None:
    """Make sure that this process is a rank of a job, which ends with whoever started it.

    Args:
        command: what the user calls, such as `rtk probe`.

    Raises:
        InvalidInputError: it is none.
    """
    if "RANK" not in os.environ:
        raise InvalidInputError(
            f"{command} runs on every rank of a job, and this process is none",
            where="RANK",
            fix=f"start it as `torchrun --nproc-per-node 8 --no-python {command}`, or here with --processes N",
        )
    die_with_launcher()


def main(training: Callable[[], object]) -> None:
    """Run a script's training under torchrun, and end with one message where it fails, in place of a traceback a rank.

    Args:
        training: without arguments.

    Raises:
        SystemExit: with the error's exit code.
    """
    try:
        training()
    except RtkError as error:
        # Wrong input is as wrong for all ranks; which of them lost touch with whom only each can say.
        if os.environ.get("RANK", "0") == "0" or not isinstance(error, InvalidInputError):
            print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def several(ranks: int) -> int:
    """So many ranks; raises InvalidInputError where it is one, which has no links."""
    if ranks < 2:
        raise InvalidInputError(
            "there are no links in a job of one rank", where="--processes, or torchrun", fix="start two ranks or more"
        )
    return ranks


def arguments_of(options: Mapping[str, object]) -> list[str]:
    """Options with their values as a command line has them: of what is True only the name, of None and False nothing;
    a list is repeated."""
    given = [(name, one) for name, value in options.items() for one in (value if isinstance(value, tuple) else [value])]
    named = [[name] if one is True else [name, str(one)] for name, one in given if one is not None and one is not False]
    return [text for pair in named for text in pair]


def available_cores() -> int:
    """The cores that this process, and so the workers it starts, may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
