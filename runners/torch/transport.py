"""How tensors travel between ranks: a Protocol, and its implementation over gloo."""

import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from .c10d import PrefixStore, ProcessGroupGloo, Store
from .groups import SILENCE, PeerGroups, peer_errors


class Transport(Protocol):
    """Messages between ranks, matched by (source, tag) in any order, and sums over groups of ranks."""

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce that a message of the shape and type of `like` will be taken with `receive`."""
        ...

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message."""
        ...

    def send(self, tag: int, to: int, tensor: torch.Tensor, delay_s: float) -> None:
        """Send without waiting; `delay_s` is for transports that imitate slow links. The tensor must not change."""
        ...

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum a tensor over a group of ranks that was announced at the start, in place."""
        ...

    def flush(self) -> None:
        """Wait until every message sent so far has been taken."""
        ...


class GlooTransport:
    """Transport over gloo process groups made directly from a store, without torch.distributed's global state.

    Every message has its own tag, so receives can be posted in any order. Tensors on other devices pass through host
    memory.

    Args:
        store: where the ranks meet.
        rank: this process.
        world_size: number of ranks.
        groups: the groups of ranks that this rank sums over.
    """

    def __init__(self, store: Store, rank: int, world_size: int, groups: Iterable[tuple[int, ...]]) -> None:
        device = _gloo_device()

        def make_group(store: Store, rank: int, size: int) -> Any:
            options = ProcessGroupGloo._Options()
            options._threads = 1
            options._timeout = SILENCE
            options._devices = [device]
            with peer_errors():
                return ProcessGroupGloo(store, rank, size, options)

        self._world = make_group(PrefixStore("rtk/world", store), rank, world_size)
        self._groups = PeerGroups(make_group, store, rank, groups, torch.device("cpu"))
        self._posted: dict[tuple[int, int], tuple[Any, torch.Tensor, torch.device]] = {}
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce a message; the buffer is in host memory."""
        buffer = torch.empty_like(like, device="cpu")
        with peer_errors():
            self._posted[source, tag] = (self._world.recv([buffer], source, tag), buffer, like.device)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message; it comes on the device of the tensor it was announced with."""
        work, buffer, device = self._posted.pop((source, tag))
        with peer_errors():
            work.wait()
        return buffer.to(device)

    def send(self, tag: int, to: int, tensor: torch.Tensor, delay_s: float) -> None:
        """Send without waiting; a real link has its own delay."""
        data = tensor.detach().to("cpu").contiguous()
        with peer_errors():
            self._sent.append((self._world.send([data], to, tag), data))

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, in host memory."""
        self._groups.all_reduce(group, tensor)

    def flush(self) -> None:
        """Wait until every message sent so far has been taken (gloo's sends end when they are received)."""
        with peer_errors():
            for work, _ in self._sent:
                work.wait()
        self._sent.clear()


class SlowLinks:
    """Another transport behind links with a delay: a message leaves when its delay is over, and nobody waits for it.

    For paced runs, in which all ranks share a machine and no link has the plan's delay.
    """

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self._due: list[tuple[float, int, int, int, torch.Tensor]] = []
        self._number = itertools.count()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        threading.Thread(target=self._deliver, name="slow links", daemon=True).start()

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """As the inner transport."""
        self._inner.post_receive(tag, source, like)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """As the inner transport."""
        return self._inner.receive(tag, source)

    def send(self, tag: int, to: int, tensor: torch.Tensor, delay_s: float) -> None:
        """Hand a message to the delivering thread, or on at once where there is no delay."""
        if not delay_s:
            with self._changed:
                self._inner.send(tag, to, tensor, delay_s)
            return
        with self._changed:
            entry = (time.perf_counter() + delay_s, next(self._number), tag, to, tensor)
            heapq.heappush(self._due, entry)
            self._changed.notify_all()

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """As the inner transport."""
        self._inner.all_reduce(group, tensor)

    def flush(self) -> None:
        """Wait until the delayed messages have left and all have been taken."""
        with self._changed:
            self._changed.wait_for(lambda: not self._due or self._failure)
            if self._failure:
                raise self._failure
        self._inner.flush()

    def _deliver(self) -> None:
        with self._changed:
            while self._failure is None:
                wait_s = self._due[0][0] - time.perf_counter() if self._due else None
                if wait_s is None or wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                _, _, tag, to, tensor = heapq.heappop(self._due)
                try:
                    self._inner.send(tag, to, tensor, 0.0)
                except BaseException as error:
                    self._failure = error
                self._changed.notify_all()


def _gloo_device() -> Any:
    """Loopback where the ranks meet on loopback, else the interface that this host's name leads to.

    Connections are made at once: with `lazy_init` a second process group on a device never connects (torch 2.13).
    """
    meeting = os.environ.get("MASTER_ADDR", "127.0.0.1")
    local = meeting in ("localhost", socket.gethostname()) or meeting.startswith("127.") or meeting == "::1"
    if local:
        return ProcessGroupGloo.create_device(hostname="127.0.0.1")
    return ProcessGroupGloo.create_default_device()
