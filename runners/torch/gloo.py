"""Tensors between ranks over gloo."""

import os
import socket
import time
from collections import deque
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch

from .c10d import PrefixStore, ProcessGroupGloo, Store
from .groups import SILENCE, Gate, GroupFactory, PeerGroups, peer_errors, poison, wake_all

# How long the ranks may take to find each other and connect; a peer that died meanwhile never comes.
CONNECT_LIMIT = timedelta(seconds=10)
# What part of the limit there is at least for connecting, though the last rank came only just in time.
CONNECT_SHARE = 0.25
CONNECT_ATTEMPTS = 5  # gloo's own number


class GlooTransport:
    """Transport over gloo process groups made directly from a store, without torch.distributed's global state.

    Every message has its own tag, so receives can be posted in any order. Tensors on other devices pass through host
    memory.

    Args:
        store: where the ranks meet; not used in a world of one.
        rank: this process.
        world_size: number of ranks.
        groups: the groups of ranks that this rank sums over.
        hostname: address or name of the interface to use; by default loopback or the interface of this host's name,
            whichever MASTER_ADDR asks for.
        connect_limit: how long connecting all groups may take together. It fails a quarter later at the latest, where
            the last rank came just in time and died.

    Raises:
        RuntimeFailedError: not all ranks have connected within the limit.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        groups: Iterable[tuple[int, ...]],
        *,
        hostname: str | None = None,
        connect_limit: timedelta = CONNECT_LIMIT,
    ) -> None:
        make_group = _group_factory(hostname, connect_limit)
        self._gate = Gate()
        self._posted: dict[tuple[int, int], tuple[Any, torch.Tensor, torch.device]] = {}
        self._sent: deque[tuple[Any, torch.Tensor, int]] = deque()
        self._awaited: int | None = None  # the rank that the latest wait is for
        self._world: Any = None
        try:
            if world_size > 1:
                self._world = make_group(PrefixStore("rtk/world", store), rank, world_size)
            self._groups = PeerGroups(make_group, store, rank, groups, torch.device("cpu"))
        except BaseException:
            # The error's traceback knows this object; it must not keep the connections.
            self._world = None
            raise

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce a message; the buffer is in host memory."""
        buffer = torch.empty_like(like, device="cpu")
        with self._gate, peer_errors():
            self._posted[source, tag] = (self._world.recv([buffer], source, tag), buffer, like.device)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message; it comes on the device of the tensor it was announced with."""
        with self._gate:
            work, buffer, device = self._posted.pop((source, tag))
            self._awaited = source
            try:
                with peer_errors():
                    work.wait(SILENCE)
            finally:
                del work  # an error's traceback would keep it, and it the connections
        return buffer.to(device)

    def send(self, tag: int, to: int, tensor: torch.Tensor, delay_s: float) -> None:
        """Send without waiting; a real link has its own delay."""
        data = tensor.detach().to("cpu").contiguous()
        with self._gate, peer_errors():
            self._sent.append((self._world.send([data], to, tag), data, to))

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, in host memory."""
        with self._gate:
            self._groups.all_reduce(group, tensor)

    def flush(self, but: int = 0) -> None:
        """Wait until messages sent so far have been taken (gloo's sends end when they are received)."""
        with self._gate, peer_errors():
            while len(self._sent) > but:
                self._awaited = self._sent[0][2]
                self._sent[0][0].wait(SILENCE)
                self._sent.popleft()

    def interrupt(self) -> None:
        """Wake every blocked thread by closing the connections, which takes about 10 ms for each other rank."""
        self._gate.shut()
        first = self._awaited
        wake_all(lambda group: poison(group, first if group is self._world else None), self._all_groups())

    def close(self) -> None:
        """Interrupt, wait for those who have been woken, and let go of everything."""
        self.interrupt()
        self._gate.wait_until_empty()
        self._posted.clear()
        self._sent.clear()
        self._world = None
        self._groups.drop()

    def _all_groups(self) -> list[Any]:
        world = self._world
        return ([] if world is None else [world]) + self._groups.groups


def _group_factory(hostname: str | None, connect_limit: timedelta) -> GroupFactory:
    """Makes gloo groups that share a device, and all have to be there when the limit is over."""
    device = _gloo_device(hostname)
    limit_s = connect_limit.total_seconds()
    deadline_s = time.monotonic() + limit_s

    def left_s(least_s: float) -> float:
        return max(deadline_s - time.monotonic(), least_s)

    def make_group(store: Store, rank: int, size: int) -> Any:
        options = ProcessGroupGloo._Options()
        options._threads = 1
        options._devices = [device]
        with peer_errors():
            # Gloo has one limit for a peer that is not there yet and for each of five attempts to connect to one that
            # is, or was. So we wait for the peers ourselves, and leave gloo a fifth of the time for an attempt.
            store.set(f"here/{rank}", "")
            store.wait([f"here/{other}" for other in range(size)], timedelta(seconds=left_s(0.001)))
            options._timeout = timedelta(seconds=left_s(limit_s * CONNECT_SHARE) / CONNECT_ATTEMPTS)
            return ProcessGroupGloo(store, rank, size, options)

    return make_group


def _gloo_device(hostname: str | None) -> Any:
    """The given interface, else loopback where the ranks meet on it, else the one that this host's name leads to.

    Connections are made at once: with `lazy_init` a second process group on a device never connects (torch 2.13).
    """
    if hostname is not None:
        with peer_errors():
            return ProcessGroupGloo.create_device(hostname=hostname)
    meeting = os.environ.get("MASTER_ADDR", "127.0.0.1")
    local = meeting in ("localhost", socket.gethostname()) or meeting.startswith("127.") or meeting == "::1"
    if local:
        return ProcessGroupGloo.create_device(hostname="127.0.0.1")
    return ProcessGroupGloo.create_default_device()
