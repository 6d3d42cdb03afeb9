"""What Ctrl-C may not tear apart."""

import os
import signal
import threading

import pytest

from rtk.schemas.pools import uninterrupted


def press() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interruption_waits_until_the_function_has_returned() -> None:
    """Pressed once, Ctrl-C comes afterwards; what was in force before is in force again."""
    done = []

    def start() -> None:
        press()
        done.append(True)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        uninterrupted(start)()
    assert (done, signal.getsignal(signal.SIGINT)) == ([True], before)


def test_pressed_twice_it_does_not_wait() -> None:
    """A function that hangs can be left."""
    done = []

    def hang() -> None:
        press()
        press()
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(hang)()
    assert done == []


def test_what_is_not_interrupted_is_as_it_was() -> None:
    """Arguments and results pass, also in threads, which Ctrl-C never reaches, and so do errors."""
    found = [uninterrupted(divmod)(7, 2)]
    thread = threading.Thread(target=lambda: found.append(uninterrupted(divmod)(9, 4)))
    thread.start()
    thread.join()
    assert found == [(3, 1), (2, 1)]
    with pytest.raises(ZeroDivisionError):
        uninterrupted(divmod)(7, 0)
