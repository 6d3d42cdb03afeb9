"""Faults as data: a worker plays the events of a trace (schemas/trace.py) on itself, and on its ends of links."""

import os
import signal
from collections.abc import Sequence

from ...schemas.trace import TraceEvent
from ..cast import link_ends
from .slow_links import BROKEN

DEADLY = {"fail": signal.SIGKILL, "stop": signal.SIGSTOP}


class Injection:
    """The events of one worker and of its links.

    A `fail` or `stop` of the worker strikes once half of its operations of its iteration are done; a slow-down holds
    from the beginning of its iteration until a `recover`. So do a `slow_link`, and a `fail` of a link, until a
    `recover` of that link.

    Args:
        events: of this worker and of links that end at it, by iteration.
        name: the worker's.
    """

    def __init__(self, events: Sequence[TraceEvent], name: str = "") -> None:
        self._events = list(events)
        self._name = name
        self._links: dict[str, TraceEvent] = {}  # the fault of the link to a worker
        self._strikes: tuple[int, int, signal.Signals] | None = None  # in which iteration, before which operation
        self.slowdown = 1.0
        self.has_links = any(event.link is not None for event in events)

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
            if event.link is not None:
                self._change_link(event.link, event)
            elif event.kind == "slow_compute":
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

    def link_delay_s(self, other: str, own_s: float) -> float:
        """The delay of the link to a worker; infinite where it is broken.

        Args:
            other: the worker's name.
            own_s: the link's delay without faults.
        """
        event = self._links.get(other)
        if event is None:
            return own_s
        if event.kind == "fail":
            return BROKEN
        return own_s * (event.factor or 1.0) + (event.delay_s or 0.0)

    def _change_link(self, link: str, event: TraceEvent) -> None:
        ends = link_ends(link)
        if self._name not in ends:
            return
        other = ends[1 - ends.index(self._name)]
        if event.kind == "recover":
            self._links.pop(other, None)
        else:
            self._links[other] = event
