"""A command that `rtk monitor` watches: what is made of the calls that it notes, and what reaches it meanwhile.

The commands note what torch's calls would: so they need no torch, and their clock is what they say.
"""

import signal
import sys
import threading
from collections.abc import Sequence

import pytest

from rtk.profilers import shim
from rtk.profilers.failslow.monitor.job import Heard
from rtk.profilers.failslow.monitor.watch import monitor
from rtk.profilers.shim.hook import RINGS

from .shell import rtk

CALLS = f"""
import os, sys
sys.path.insert(0, {shim.__path__[0]!r})
from recorder import Writer
writers = [Writer(os.environ[{RINGS!r}], rank) for rank in range(2)]
times = [float(part) for part in sys.argv[2:]]
clocks = [0.0, 0.0]
for number, late_s in enumerate(times):
    for size in (8, 16):
        clocks[1] += late_s
        end_s = max(clocks[0] + 1.0, clocks[1] + 1.0)
        for rank, writer in enumerate(writers):
            names = [writer.place_of(one, **{{one: one, "ranks": [0, 1]}}) for one in ("op", "group", "dtype")]
            at_s = clocks[rank] + 1.0
            call = writer.write(int(1e9 * at_s), size, 2 * number + (size == 16), 0, -1, *names)
            writer.write(int(1e9 * end_s), 0, call, 0, -1, writer.place_of("done", op="done"))
        clocks = [end_s, end_s]
sys.exit(int(sys.argv[1]))
"""


def calling(code: int, late_s: Sequence[float]) -> list[str]:
    """A command of two ranks that sum twice an iteration, every second, and end with a code.

    Args:
        code: the command's exit code.
        late_s: for each iteration, how much later than rank 0 rank 1 comes to each sum.
    """
    return [sys.executable, "-S", "-c", CALLS, str(code), *map(str, late_s)]


SLOW = [0.0] * 40 + [0.5] * 20 + [0.0] * 40


def test_what_a_command_noted_is_found_when_it_has_ended() -> None:
    """Its calls are counted, its iterations told of, and its exit code is handed on."""
    heard: list[Heard] = []
    done = monitor(calling(3, [0.0] * 30), tell=heard.extend)
    assert (done.exit_code, done.ranks, done.calls) == (3, 2, 60)
    (told,) = done.findings.values()
    assert [one.place for one in heard] == list(range(told.samples))
    assert {one.time_s for one in heard} == {2.0}


def test_signals_of_others_are_passed_on() -> None:
    """A signal that this process is sent while the command runs ends the command, and not this process."""
    is_sent = False

    def tell(_: Sequence[Heard]) -> None:
        nonlocal is_sent
        if not is_sent:
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        is_sent = True

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert monitor(["sleep", "60"], tell=tell).exit_code == -signal.SIGTERM
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_slow_rank_is_told_of() -> None:
    """While it runs, each change is a line; at the end there is a table of what was slow, and the command's code."""
    done = rtk("monitor", "--", *calling(5, SLOW))
    assert done.returncode == 5
    assert "iterations, usually 2 s each, 1 fail-slow" in done.stderr
    told = [line for line in done.stderr.splitlines() if "slower since 40" in line]
    assert "(provisional)" in told[0]
    assert "(confirmed): computation, rank 1 (others wait for rank 1" in told[1]
    assert "as usual again since 60" in done.stderr


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["true"], "the command made no process group"),
        (calling(0, []), "no calls were seen in its process groups"),
        (calling(0, [0.0]), "no iterations were found in 2 calls"),
    ],
)
def test_why_nothing_was_found_is_told(command: list[str], why: str) -> None:
    """A command without groups, without calls, or without iterations gets no table but a reason."""
    done = rtk("monitor", "--", *command)
    assert done.returncode == 0
    assert why in done.stderr
    assert "iterations," not in done.stderr


def test_end_by_a_signal_is_told_as_shells_do() -> None:
    """A command that a signal ends gives 128 and its number."""
    done = rtk("monitor", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 128 + signal.SIGKILL
