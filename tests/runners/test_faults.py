"""A trace's faults, as a worker plays them on itself."""

import os
import signal

import pytest

from rtk.runners.torch.faults import BROKEN, Injection
from rtk.schemas.trace import TraceEvent


def test_slow_compute_holds_until_the_recovery() -> None:
    """From the beginning of its iteration on; a recovery makes the worker as quick as it was."""
    own = Injection([TraceEvent("slow_compute", iteration=2, worker="0/0", factor=3.0), _recovery(4, worker="0/0")])
    paces = []
    for iteration in range(1, 6):
        own.begin(iteration, 8)
        paces.append(own.slowdown)
    assert paces == [1.0, 3.0, 3.0, 1.0, 1.0]


@pytest.mark.parametrize(("kind", "number"), [("fail", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_deadly_faults_strike_amid_their_iteration(
    kind: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once half of the iteration's operations are done, and once only; not in an iteration that never comes."""
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *told: struck.append(told))
    own = Injection([TraceEvent(kind, iteration=1, worker="0/0")])  # type: ignore[arg-type]
    at: list[tuple[int, int]] = []
    for iteration in range(3):
        own.begin(iteration, 6)
        for operation in range(6):
            own.before(operation)
            at += [(iteration, operation)] * (len(struck) - len(at))
    assert at == [(1, 3)]
    assert struck == [(os.getpid(), number)]
    late = Injection([TraceEvent(kind, iteration=1, worker="0/0")])  # type: ignore[arg-type]
    late.begin(2, 6)
    late.before(5)
    assert len(struck) == 1


def test_links_are_slow_or_broken_until_they_recover() -> None:
    """Only those that end at the worker, whichever end is named first."""
    own = Injection(
        [
            TraceEvent("slow_link", iteration=1, link="0/0-0/1", factor=2.0, delay_s=0.5),
            TraceEvent("fail", iteration=1, link="0/1-1/1"),
            TraceEvent("fail", iteration=1, link="1/0-1/1"),
            _recovery(2, link="0/1-1/1"),
        ],
        "0/1",
    )
    delays_s = []
    for iteration in range(3):
        own.begin(iteration, 4)
        delays_s.append([own.link_delay_s(other, 0.25) for other in ("0/0", "1/1", "1/0")])
    assert delays_s == [[0.25, 0.25, 0.25], [1.0, BROKEN, 0.25], [1.0, 0.25, 0.25]]


def _recovery(iteration: int, worker: str | None = None, link: str | None = None) -> TraceEvent:
    return TraceEvent("recover", iteration=iteration, worker=worker, link=link)
