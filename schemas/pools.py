"""Processes that share work, and end with the one that started them."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .errors import RuntimeFailedError
from .files import BOUND

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from types import FrameType

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def process_pool(
    jobs: int, prepare: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> "Iterator[Executor]":
    """An executor of so many processes, which an error or an interruption ends at once, whatever they are at.

    Args:
        jobs: processes.
        prepare: what each does first, with these arguments.
        arguments: of that.

    Raises:
        RuntimeFailedError: a process has ended by itself.
    """
    from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
    from multiprocessing import get_context

    context = get_context("spawn")
    # Closed by us or by our death, this pipe ends the processes at once: an executor waits for what they are at.
    lifeline, ours = context.Pipe(duplex=False)
    with ours, lifeline:
        ready = (lifeline, BOUND.most_bytes, prepare, arguments)
        pool = ProcessPoolExecutor(jobs, context, _make_ready, ready)
        try:
            yield pool
        except BaseException as error:
            # In this order, for CPython 3.11's executor stumbles over cancelled work when its processes end.
            pool.shutdown(wait=False, cancel_futures=True)
            ours.close()
            if isinstance(error, BrokenExecutor):
                raise _ended() from error
            raise
        pool.shutdown()


def uninterrupted(call: Callable[P, T]) -> Callable[P, T]:
    """The same function, but Ctrl-C waits until it has returned: for what starts processes, or ends them.

    Pressed once more, it does not wait.
    """

    def undisturbed(*arguments: P.args, **named: P.kwargs) -> T:
        usual = signal.getsignal(signal.SIGINT)
        if not callable(usual) or threading.current_thread() is not threading.main_thread():
            return call(*arguments, **named)
        pressed: list[int] = []

        def remember(number: int, frame: "FrameType | None") -> None:
            pressed.append(number)
            if len(pressed) > 1:
                usual(number, frame)

        signal.signal(signal.SIGINT, remember)
        try:
            found = call(*arguments, **named)
        finally:
            signal.signal(signal.SIGINT, usual)
        if pressed:
            raise KeyboardInterrupt
        return found

    return undisturbed


def _make_ready(
    lifeline: "Connection", most_bytes: float, prepare: Callable[..., None] | None, arguments: tuple[Any, ...]
) -> None:
    """Ready a process of the pool, which ends with the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other one decides what an interruption means
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    BOUND.most_bytes = most_bytes
    if prepare is not None:
        prepare(*arguments)


def _end_with(lifeline: "Connection") -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()
    os._exit(1)


def _ended() -> RuntimeFailedError:
    return RuntimeFailedError(
        "a process ended in the midst of its work",
        where="--jobs",
        fix="see what it said above; it may have been short of memory: take fewer --jobs",
    )
