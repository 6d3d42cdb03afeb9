"""Ctrl-C for solvers that run for long without coming back to Python."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread

POLL_S = 0.05


def run_until_interrupted(run: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Run a solver in a thread of its own, so that the main thread is free to be interrupted.

    Args:
        run: the solver; it must let go of Python's lock.
        stop: asks it to come to an end; may be called before it has begun and more than once.

    Returns:
        Whether Ctrl-C ended it.

    Raises:
        KeyboardInterrupt: a second Ctrl-C, while the solver comes to an end: it is left alone.
    """
    ended: Future[None] = Future()
    Thread(target=_record, args=(run, ended), daemon=True).start()
    interrupted = False
    try:
        _wait(ended)
    except KeyboardInterrupt:
        interrupted = True
        _wait(ended, stop)
    ended.result()
    return interrupted


def _wait(ended: Future[None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait for the end, and do something again and again meanwhile.

    A thread's own `join` will not do: an interrupted one takes the thread for ended (CPython 3.11, bpo-45274).
    """
    while not ended.done():
        meanwhile()
        wait([ended], timeout=POLL_S)


def _record(run: Callable[[], None], ended: Future[None]) -> None:
    try:
        run()
        ended.set_result(None)
    except BaseException as error:
        ended.set_exception(error)
