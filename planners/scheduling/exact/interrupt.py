"""Ctrl-C for solvers that run for long without coming back to Python."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
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
    thread = Thread(target=_record, args=(run, ended), daemon=True)
    thread.start()
    interrupted = False
    try:
        while thread.is_alive():
            thread.join(POLL_S)
    except KeyboardInterrupt:
        interrupted = True
        while thread.is_alive():
            stop()
            thread.join(POLL_S)
    ended.result()
    return interrupted


def _record(run: Callable[[], None], ended: Future[None]) -> None:
    try:
        run()
        ended.set_result(None)
    except BaseException as error:
        ended.set_exception(error)
