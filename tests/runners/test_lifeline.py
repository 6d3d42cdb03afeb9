"""A process's death is told at once (rtk/runners/lifeline.py)."""

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rtk.runners.lifeline import LIFELINE, Lifeline, lifeline_if_any

SOON_S = 60.0
PROGRAM = """
import os, socket, sys, threading, time
from rtk.runners.lifeline import hold_lifeline
hold_lifeline()
assert "RTK_LIFELINE" not in os.environ
def touch(size):
    held = bytearray(size << 20)
    for page in range(0, len(held), 4096):
        held[page] = 1
    return held
what, port, *more = sys.argv[1:]
connection = socket.create_connection(("127.0.0.1", int(port)))
held = touch(300) if what == "large" else None
threading.Thread(target=lambda: None).start()  # its end is not the process's
if os.fork() == 0:
    os._exit(0)  # nor is a child's
os.wait()
connection.sendall(b"here")
if what == "end":
    connection.recv(1)
    sys.exit(3)
time.sleep(600)
"""

pytestmark = pytest.mark.skipif(lifeline_if_any() is None, reason="no robust locks on this system")


class Watched:
    """A process that holds a lifeline, and what is heard of it."""

    def __init__(self, what: str) -> None:
        self.told: queue.SimpleQueue[float] = queue.SimpleQueue()
        line = Lifeline()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            command = [sys.executable, "-c", PROGRAM, what, str(listener.getsockname()[1])]
            environment = {**os.environ, LIFELINE: str(line.file)}
            self.process = subprocess.Popen(command, env=environment, pass_fds=[line.file])
            os.close(line.file)
            line.watch(lambda: self.process.poll() is not None, lambda: self.told.put(time.monotonic()))
            self.connection = listener.accept()[0]
        assert self.connection.recv(4) == b"here"


@contextmanager
def watched(what: str) -> Iterator[Watched]:
    """The same, gone at the end."""
    one = Watched(what)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        one.connection.close()


def test_a_kill_is_told_before_the_connection_ends() -> None:
    """The connection ends only once the kernel has taken 300 MB apart; of three kills it is so for two at least."""
    earlier = []
    for _ in range(3):
        with watched("large") as one:
            time.sleep(0.1)
            assert one.told.empty()
            one.process.send_signal(signal.SIGKILL)
            assert one.connection.recv(1) == b""
            ended_s = time.monotonic()
            earlier.append(one.told.get(timeout=SOON_S) < ended_s)
    assert sum(earlier) >= 2


def test_an_end_is_told_too() -> None:
    """A process that ends by itself, with whatever code, is told; not before, though a thread and a child of it end."""
    with watched("end") as one:
        time.sleep(0.1)
        assert one.told.empty()
        one.connection.sendall(b"x")
        one.told.get(timeout=SOON_S)
        assert one.process.wait() == 3


def test_a_stopped_process_is_not_dead() -> None:
    """It holds its line until it is killed."""
    with watched("small") as one:
        one.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        assert one.told.empty()
        one.process.send_signal(signal.SIGKILL)
        one.told.get(timeout=SOON_S)


def test_one_that_never_held_it_is_not_told() -> None:
    """Nobody waits for a process that has ended before it held its line, and nothing is left of the line."""
    before = len(list(Path("/proc/self/task").iterdir()))
    line = Lifeline()
    os.close(line.file)
    told: list[int] = []
    line.watch(lambda: True, lambda: told.append(1))
    deadline_s = time.monotonic() + SOON_S
    while len(list(Path("/proc/self/task").iterdir())) > before:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert not told
