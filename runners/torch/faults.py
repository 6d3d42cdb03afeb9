"""Faults as data: a worker plays the events of a trace (schemas/trace.py) on itself, and on its ends of links."""

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf, isinf

import torch

from ...schemas.errors import RuntimeFailedError
from ...schemas.profile import ring_steps
from ...schemas.trace import TraceEvent, link_ends
from .transport import LostTouchError, Transport

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
        """An iteration begins, goes on, or is redone: then what has not struck yet does so now.

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


# Links with a delay, imitated, and links that are broken.


DelayTo = Callable[[int], float]  # seconds that a message to a rank takes; `inf` where none arrives; 0 to oneself

BROKEN = inf


class DelayedTransport:
    """Another transport behind links with a delay: a message holds who sends it until it may leave.

    So a link is slow for its sender as one is for NCCL, whose stream is held while a message is on its way. A delegate
    (delegates.py) is held in the computing thread's stead. A sum over a ring of n ranks passes each link 2 (n - 1)
    times, so both ends of a slow link within the ring are held for so many delays.

    For paced runs and injected faults, in which links are faster than they are to seem.

    Args:
        inner: sends really.
        delay_to: the delay of a message to a rank, asked for every message.
        sum_delay_to: that of a part of a sum. What a plan's all-reduce takes is the plan's to say, so the delays of
            its links have no part in it; those that come on top have.
    """

    def __init__(self, inner: Transport, delay_to: DelayTo, sum_delay_to: DelayTo = lambda rank: 0.0) -> None:
        self._inner = inner
        self._delay_to = delay_to
        self._sum_delay_to = sum_delay_to
        self._held: deque[tuple[tuple[int, ...], torch.Tensor]] = deque()  # sums that links hold up
        self._over = threading.Event()

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """As the inner transport."""
        self._inner.post_receive(tag, source, like)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """As the inner transport: the sender has waited already."""
        return self._inner.receive(tag, source)

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Wait for the link's delay, then send.

        Raises:
            LostTouchError: the link is broken.
        """
        self._hold(to, self._delay_to(to))
        self._inner.send(tag, to, tensor)

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Wait for the link's delay, then deliver; errors as `send`."""
        self._hold(to, self._delay_to(to))
        self._inner.deliver(tag, to, tensor)

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Wait as long as the slowest link to a rank of the group holds up a ring, then sum; errors as `send`."""
        self._hold_ring(group)
        self._inner.all_reduce(group, tensor)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As the inner transport, where no link of the group is slow: else `end_sums` waits, and begins it."""
        if any(map(self._sum_delay_to, group)):
            self._held.append((group, tensor))
        else:
            self._inner.begin_sum(group, tensor)

    def end_sums(self) -> None:
        """Begin the sums that are held up, and wait for all; errors as `send`."""
        while self._held:
            group, tensor = self._held.popleft()
            self._hold_ring(group)
            # Only the ends of a link know that it is slow: others of the group have begun this sum, not made it.
            self._inner.begin_sum(group, tensor)
        self._inner.end_sums()

    def flush(self, but: int = 0) -> None:
        """As the inner transport."""
        self._inner.flush(but)

    def interrupt(self) -> None:
        """As the inner transport; who is being held is woken."""
        self._over.set()
        self._inner.interrupt()

    def close(self) -> None:
        """As the inner transport."""
        self._over.set()
        self._inner.close()

    def _hold_ring(self, group: tuple[int, ...]) -> None:
        slowest = max(group, key=self._sum_delay_to)
        self._hold(slowest, ring_steps(len(group)) * self._sum_delay_to(slowest))

    def _hold(self, rank: int, delay_s: float) -> None:
        if isinf(delay_s):
            raise LostTouchError(rank, "the link is broken, as a trace of faults says")
        if delay_s > 0 and self._over.wait(delay_s):
            raise RuntimeFailedError("the connections to the other workers have been interrupted")


def slowest_links(delays_s: Iterable[tuple[int, float]]) -> DelayTo:
    """Delays by rank, the longest of those given for it; 0 for all others."""
    found: dict[int, float] = {}
    for rank, delay_s in delays_s:
        found[rank] = max(delay_s, found.get(rank, 0.0))
    return lambda rank: found.get(rank, 0.0)
