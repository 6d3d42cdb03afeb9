"""What keeps a worker of a torchrun job going: a thin process that starts it, and another one when it dies.

torchrun ends a whole job when one of its processes fails. So its processes are supervisors, which load no torch and do
not fail; the workers are their children, and who may come back is the coordinator's business, as everywhere.

The rule. A worker that dies, by a signal or with an exit code that is not wrong input's, is started again: at once, and
each time that it lived for less than `SETTLED_S` after twice the pause. One that has died so `MOST_DEATHS` times in a
row, or that is wrong input (2, 3) when it is started again, such as a script that was edited, is given up: the job goes
on without it. Before training has begun there is no job to go on; then its supervisor ends at once, with its exit code.
"""

import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from ...schemas.errors import InfeasibleError, InvalidInputError, RuntimeFailedError, remark
from ...schemas.quantities import print_time
from ..addresses import parse_address
from ..processes import WorkerProcesses
from ..training import SECRET
from .progress import FAILED, HUNG
from .protocol import STRANGER_BYTES, Challenge, Dead, encode, from_coordinator
from .wire import prove

if TYPE_CHECKING:
    from ..nursery import Nursery

GIVEN = "RTK_GIVEN_SECRET"  # set where the user has given the secret to all ranks
TELLS = "RTK_TELLS"  # the descriptor on which a worker tells its supervisor of its job
BEGUN, ENDED = "begun", "ended"  # what it tells: it is in an epoch; the coordinator has ended its part, with a code
INTRODUCTION = "rtk.runners.torch.introduction:main"
WRONG_INPUT = (InvalidInputError.exit_code, InfeasibleError.exit_code)

SETTLED_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
MOST_DEATHS = 6
TICK_S = 0.1
LEAVING_S = 20.0  # within which a worker that is told to leave does so; torchrun waits for 30 s
OVER_S = 2.0  # within which a coordinator whose job is over no longer listens
KNOCK_S = 1.0


def tell_supervisor(*words: object) -> None:
    """In a worker: say how the job stands, to a supervisor if there is one."""
    if TELLS in os.environ:
        with suppress(OSError):  # it is gone, and so will we be
            os.write(int(os.environ[TELLS]), f"{' '.join(map(str, words))}\n".encode())


@dataclass(frozen=True)
class Life:
    """One worker's, from its start to its end.

    Attributes:
        code: its exit code, negative for a signal.
        has_begun: it was in an epoch.
        told: the exit code with which the coordinator ended its part in the job; None: it did not.
        lasted_s: how long it lived.
    """

    code: int
    has_begun: bool
    told: int | None
    lasted_s: float

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"

    @property
    def exit_code(self) -> int:
        """As a shell has it."""
        return self.code if self.code >= 0 else 128 - self.code


class Supervisor:
    """Keeps one worker of a job going.

    Args:
        nursery: forks its processes.
        name: the worker's.
        arguments: its command line behind `rtk`.
        environment: what it finds in its environment beside ours.
        addresses: of the coordinator, and of standbys.
        keep: descriptors that it inherits.
    """

    def __init__(
        self,
        nursery: "Nursery",
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        addresses: Sequence[str],
        keep: Sequence[int] = (),
    ) -> None:
        self._nursery, self.name = nursery, name
        self._arguments, self._environment = list(arguments), dict(environment)
        self._addresses, self._keep = [parse_address(one) for one in addresses], tuple(keep)
        self._is_told = threading.Event()  # to leave

    def leave(self) -> None:
        """From any thread, and from a signal's handler: have the worker leave, and start no other."""
        self._is_told.set()

    def run(self) -> tuple[int, bool]:
        """Keep the worker going until its job is over, or it is given up.

        Returns:
            The exit code, and whether training may go on without the worker.
        """
        has_begun, deaths = False, 0
        for number in count():
            life = self._live()
            has_begun |= life.has_begun
            if self._is_told.is_set() or life.code == 0:
                return (life.told or 0) if life.code in (0, -signal.SIGTERM) else life.exit_code, True
            if life.told is not None and (life.told not in (FAILED, HUNG) or self._is_over()):
                return life.told, False
            deaths = 0 if life.has_begun and life.lasted_s >= SETTLED_S else deaths + 1
            if life.code in WRONG_INPUT or deaths >= MOST_DEATHS:
                if has_begun:
                    remark(f"worker {self.name} {life.how} and is not started again: the job goes on without it")
                return life.exit_code, has_begun
            pause_s = 0.0 if deaths < 2 else min(FIRST_PAUSE_S * 2 ** (deaths - 2), LONGEST_PAUSE_S)
            later = f" in {print_time(pause_s)}" if pause_s else ""
            remark(f"worker {self.name} {life.how}: start {number + 2}{later}")
            if self._is_told.wait(pause_s):
                return life.exit_code, True
        raise AssertionError("unreachable")

    def outlast(self) -> None:
        """Wait until nobody coordinates any more, or we are told to leave."""
        while not self._is_told.wait(TICK_S) and not self._is_over():
            pass

    def _is_over(self) -> bool:
        """Whether nobody coordinates any more; one whose job is over may still listen for a moment."""
        deadline_s = time.monotonic() + OVER_S
        while time.monotonic() < deadline_s:
            if not any(map(_listens, self._addresses)):
                return True
            time.sleep(TICK_S)
        return False

    def _tell_of_death(self, worker: str, pid: int) -> None:
        """In the lifeline's thread: have the coordinator know, which sees no end of the connection for long."""
        secret = self._environment.get(SECRET, "").encode()
        for address in self._addresses:
            with suppress(OSError, InvalidInputError), socket.create_connection(address, KNOCK_S) as connection:
                challenge = from_coordinator(connection.makefile("rb").readline(STRANGER_BYTES))
                if isinstance(challenge, Challenge):
                    connection.sendall(encode(Dead(prove(secret, challenge.nonce), worker, pid)))

    def _live(self) -> Life:
        """Start a worker, and see it to its end."""
        begun_s = time.monotonic()
        hears, tells = os.pipe()
        os.set_blocking(hears, False)
        with WorkerProcesses(self._nursery, [*self._keep, tells], self._tell_of_death) as processes:
            try:
                process = processes.start(self.name, self._arguments, {**self._environment, TELLS: str(tells)})
            finally:
                os.close(tells)
            told_s = None
            while (code := process.poll()) is None:
                select.select([], [], [], TICK_S)
                if self._is_told.is_set() and told_s is None:
                    told_s = time.monotonic()
                    process.send_signal(signal.SIGTERM)
                if told_s is not None and time.monotonic() > told_s + LEAVING_S:
                    process.send_signal(signal.SIGKILL)
        words = _heard(hears)
        ends = [int(word) for what, *rest in words for word in rest if what == ENDED]
        has_begun = any(what == BEGUN for what, *_ in words)
        return Life(code, has_begun, ends[-1] if ends else None, time.monotonic() - begun_s)


def _heard(hears: int) -> list[list[str]]:
    """All that a worker has told, line by line."""
    data = b""
    with suppress(BlockingIOError):
        while more := os.read(hears, 4096):
            data += more
    os.close(hears)
    return [line.split() for line in data.decode().splitlines() if line]


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, KNOCK_S).close()
    except OSError:
        return False
    return True


def introduce(nursery: "Nursery", told: Mapping[str, str], is_told: threading.Event) -> dict[str, str]:
    """Have all ranks of a torchrun job know what its first one tells, through torchrun's own store.

    Args:
        nursery: forks the process that reaches the store, which needs torch.
        told: by rank 0, for its environment; nothing on others.
        is_told: to leave: then it is broken off.

    Returns:
        What was told; nothing where it is broken off.

    Raises:
        RuntimeFailedError: the store, or a rank, does not answer.
    """
    hears, tells = os.pipe()
    os.set_blocking(hears, False)
    with WorkerProcesses(nursery) as processes:
        try:
            process = processes.start("introduction", [], dict(told), INTRODUCTION, {1: tells})
        finally:
            os.close(tells)
        while (code := process.poll()) is None:
            if is_told.wait(TICK_S):
                process.send_signal(signal.SIGKILL)
                os.close(hears)
                return {}
    with os.fdopen(hears) as answer:
        text = answer.read()
    if code or not text:
        raise RuntimeFailedError(
            "the ranks of this job do not find each other through torchrun's store",
            where="MASTER_ADDR, MASTER_PORT",
            fix="see what rank 0 says; or start `rtk coordinate`, and give all ranks RTK_COORDINATOR and RTK_SECRET",
        )
    found: dict[str, str] = json.loads(text)
    return found


@contextmanager
def dying_with_parent(end: Callable[[], None]) -> Iterator[None]:
    """In here, have `end` called once whoever has started this process is gone: torchrun's agent."""
    parent, is_over = os.getppid(), threading.Event()

    def watch() -> None:
        while not is_over.wait(TICK_S):
            if os.getppid() != parent:
                end()
                return

    threading.Thread(target=watch, name="watching torchrun", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
