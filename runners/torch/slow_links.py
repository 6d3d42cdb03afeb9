"""Links with a delay, imitated, and links that are broken."""

import threading
from collections.abc import Callable, Iterable
from math import inf, isinf

import torch

from ...schemas.errors import RuntimeFailedError
from .lost_touch import LostTouchError
from .transport import Transport

DelayTo = Callable[[int], float]  # seconds that a message to a rank takes; `inf` where none arrives; 0 to oneself

BROKEN = inf


class SlowLinks:
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
        slowest = max(group, key=self._sum_delay_to)
        self._hold(slowest, 2 * (len(group) - 1) * self._sum_delay_to(slowest))
        self._inner.all_reduce(group, tensor)

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
