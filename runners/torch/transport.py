"""How tensors travel between ranks: a Protocol. gloo.py and nccl.py have it, slow_links.py and delegates.py wrap it."""

from typing import Protocol

import torch


class Transport(Protocol):
    """Messages between ranks, matched by (source, tag) in any order, and sums over groups of ranks."""

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce that a message of the shape and type of `like` will be taken with `receive`."""
        ...

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message."""
        ...

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send without waiting for the receiver; the tensor must not change until it has been taken."""
        ...

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send and wait until the receiver has the message; for threads other than the computing one.

        `flush` knows nothing of it. Several threads may be in here, and in `receive`, at once.
        """
        ...

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum a tensor over a group of ranks that was announced at the start, in place."""
        ...

    def flush(self, but: int = 0) -> None:
        """Wait until every message sent so far has been taken, except for the last `but`."""
        ...

    def interrupt(self) -> None:
        """Wake every thread that is blocked in this transport; from any thread, any number of times.

        Blocked and later operations raise RuntimeFailedError. The other ranks lose their connections to this one.
        """
        ...

    def close(self) -> None:
        """Interrupt, and let go of all connections, threads and tensors, whatever is still under way."""
        ...
