"""Faults as data: a worker plays the events of a trace (schemas/trace.py) on itself."""

import os
import signal
from collections.abc import Sequence

from ...schemas.trace import TraceEvent

DEADLY = {"fail": signal.SIGKILL, "stop": signal.SIGSTOP}


class Injection:
    """The events of one worker.

    A `fail` or `stop` strikes once half of the worker's operations of its iteration are done; a slow-down holds from
    the beginning of its iteration until a `recover`.

    Args:
        events: of this worker, by iteration.
    """

    def __init__(self, events: Sequence[TraceEvent]) -> None:
        self._events = list(events)
        self._strikes: tuple[int, int, signal.Signals] | None = None  # in which iteration, before which operation
        self.slowdown = 1.0

    def begin(self, iteration: int, operations: int) -> None:
        """An iteration begins, or is redone: then what has not struck yet does so now.

        Args:
            iteration: its number.
            operations: how many this worker executes in it.
        """
        if self._strikes is not None and self._strikes[0] < iteration:
            self._strikes = None
        while self._events and (self._events[0].iteration or 0) <= iteration:
            event = self._events.pop(0)
            if event.kind == "slow_compute":
                self.slowdown = event.factor or 1.0
            elif event.kind == "recover":
                self.slowdown = 1.0
            elif event.kind in DEADLY and event.iteration == iteration:
                self._strikes = (iteration, operations // 2, DEADLY[event.kind])

    def before(self, operation: int) -> None:
        """Operation number `operation` of the iteration is about to begin."""
        if self._strikes is not None and operation >= self._strikes[1]:
            strike, self._strikes = self._strikes[2], None
            os.kill(os.getpid(), strike)
