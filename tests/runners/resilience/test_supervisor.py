"""How often a worker of a torchrun job is started again, and when its supervisor ends."""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rtk.runners.resilience import supervisor
from rtk.runners.resilience.supervisor import BEGUN, ENDED, TELLS, Supervisor, dying_with_parent, tell_supervisor


class Ended:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        """Its exit code."""
        return self._code

    def send_signal(self, number: int) -> None:
        """It does not hear it."""


class Lives:
    """A nursery whose processes tell something, and end at once with a code, one after the other."""

    def __init__(self, *lives: tuple[int, Sequence[str]]) -> None:
        self._lives = iter(lives)
        self.begun = 0

    def fork(
        self, target: str, arguments: Sequence[str], environment: Mapping[str, str], files: Mapping[int, int]
    ) -> Any:
        """One life."""
        self.begun += 1
        code, words = next(self._lives)
        for word in words:
            os.write(int(environment[TELLS]), f"{word}\n".encode())
        return Ended(code)


class Noted(threading.Event):
    """An event that is never set, and for which nobody waits; how long it would have been is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        """No."""
        self.pauses.append(timeout)
        return False


@pytest.fixture(autouse=True)
def nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody coordinates any more, but where a test says so."""
    monkeypatch.setattr(supervisor, "_listens", lambda address: False)


def supervised(lives: Lives) -> tuple[tuple[int, bool], list[float | None]]:
    """What comes of such lives, and the pauses between them."""
    one, pauses = Supervisor(lives, "0/0", [], {}, ["127.0.0.1:9"]), Noted()  # type: ignore[arg-type]
    one._is_told = pauses
    return one.run(), pauses.pauses


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ([(0, [BEGUN, f"{ENDED} 0"])], (0, True)),
        ([(-9, [BEGUN]), (0, [BEGUN, f"{ENDED} 0"])], (0, True)),
        ([(137, [BEGUN, f"{ENDED} 137"]), (0, [f"{ENDED} 0"])], (137, False)),  # nobody listens: the job is over
        ([(130, [BEGUN, f"{ENDED} 130"])], (130, False)),
        ([(5, [BEGUN, f"{ENDED} 5"])], (5, False)),
        ([(2, [])], (2, False)),  # before training has begun, wrong input is everybody's
        ([(-9, []), (2, [])], (2, False)),
        ([(-9, [BEGUN]), (2, [])], (2, True)),  # an edited script: the job goes on without it
        ([(70, [])] * 6, (70, False)),
        ([(70, [BEGUN])] + [(70, [])] * 5, (70, True)),
    ],
)
def test_what_comes_of_a_worker(lives: list[tuple[int, list[str]]], expected: tuple[int, bool]) -> None:
    """The exit code is the job's, or that of a worker that cannot begin; who has trained may be done without."""
    assert supervised(Lives(*lives))[0] == expected


def test_an_expelled_worker_is_started_again_while_somebody_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was told to end for its own sake, such as one that hung, comes back as long as the job is there."""
    monkeypatch.setattr(supervisor, "_listens", lambda address: True)
    monkeypatch.setattr(supervisor, "OVER_S", 0.01)
    lives = Lives((137, [BEGUN, f"{ENDED} 137"]), (0, [BEGUN, f"{ENDED} 0"]))
    assert supervised(lives)[0] == (0, True)
    assert lives.begun == 2


def test_pauses_double() -> None:
    """The first time a worker is started again at once; if it dies at once, time and again, the pauses double."""
    assert supervised(Lives(*[(-9, [BEGUN])] * 6))[1] == [0.0, 1.0, 2.0, 4.0, 8.0]


def test_words_reach_a_supervisor_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker tells goes to its descriptor; where there is none, or nobody reads, nothing happens."""
    hears, tells = os.pipe()
    tell_supervisor(BEGUN)
    monkeypatch.setenv(TELLS, str(tells))
    tell_supervisor(ENDED, 5)
    assert os.read(hears, 100) == b"ended 5\n"
    os.close(hears)
    tell_supervisor(BEGUN)
    os.close(tells)
    tell_supervisor(BEGUN)


def test_it_ends_with_whoever_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its parent is another one, which is what becomes of an orphan, it ends."""
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    ended: list[bool] = []
    with dying_with_parent(lambda: ended.append(True)):
        for thread in threading.enumerate():
            if thread.name == "watching torchrun":
                thread.join(10)
    assert ended == [True]
