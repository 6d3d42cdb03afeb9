"""Workers that share cores are slow by turns, whatever is well or not; nobody is to be accused of it."""

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from ...schemas.conditions import Conditions
from ...schemas.protocols import Measured, Monitor
from .messages import Cores, Hello

# Containers of one machine have names of their own, and this in common.
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def cores_here() -> Cores:
    """The cores that this process may use, and which machine's they are."""
    machine = socket.gethostname()
    with suppress(OSError):
        machine = BOOT_ID.read_text().strip()
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Cores(machine, tuple(sorted(usable)))


def are_crowded(workers: Collection[frozenset[int]]) -> bool:
    """Whether some workers of a machine have fewer cores than they are.

    Args:
        workers: the cores that each may use. Of two that share some, one may use all that the other may.
    """
    wholes = {*workers, frozenset[int]().union(*workers)}
    return any(sum(cores <= whole for cores in workers) > len(whole) for whole in wholes)


class Crowding:
    """A monitor that sees nothing as long as workers without a pace share cores.

    Args:
        monitor: looks otherwise.
        tell: hears of it in words, once.
    """

    def __init__(self, monitor: Monitor, tell: Callable[[str], None]) -> None:
        self._monitor = monitor
        self._tell = tell
        self._cores: dict[str, Cores] = {}
        self._is_crowded = self._is_told = False

    def arrive(self, hello: Hello) -> None:
        """A worker is there; one that keeps a pace, or does not say which cores it has, crowds nobody."""
        if hello.cores is not None and not hello.job.get("paced"):
            self._cores[hello.worker] = hello.cores
        self._look()

    def note(self, measured: Measured) -> Conditions | None:
        """As the monitor says, where workers have cores of their own."""
        return None if self._is_crowded else self._monitor.note(measured)

    def forget(self, worker: str) -> None:
        """As the monitor does."""
        self._cores.pop(worker, None)
        self._look()
        self._monitor.forget(worker)

    def _look(self) -> None:
        machines = defaultdict[str, list[frozenset[int]]](list)
        for cores in self._cores.values():
            machines[cores.machine].append(frozenset(cores.usable))
        self._is_crowded = any(are_crowded(workers) for workers in machines.values())
        if self._is_crowded and not self._is_told:
            self._is_told = True
            self._tell(
                "there are more workers than cores, and they take turns: expect longer than predicted, and nobody to "
                "look for what is slow"
            )
