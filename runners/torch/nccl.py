"""Transport for ranks that have a GPU each: NCCL, which knows no tags, with one process group a direction of each pair.

A group of its own for every direction keeps a late message from holding up others, and messages of one direction are
matched in the order they are sent, which is why receives must be posted in that order (runners/program.py,
`posting_order`). Kernels are queued, never waited for, by the computing thread.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..program import Program, Send
from .groups import (
    SILENCE,
    Gate,
    GroupFactory,
    PeerGroups,
    PrefixStore,
    ProcessGroupNCCL,
    Store,
    abort,
    peer_errors,
    wake_all,
)

Channel = tuple[int, int]  # (source, to)


def nccl_group(store: Store, rank: int, size: int) -> Any:
    """An NCCL process group made directly from a store."""
    options = ProcessGroupNCCL.Options()
    options._timeout = SILENCE
    return ProcessGroupNCCL(store, rank, size, options)


def has_gpu_of_its_own() -> bool:
    """Whether every rank of this host can have a GPU to itself, without which NCCL refuses to connect."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()


def channels(program: Program) -> set[Channel]:
    """All (source, to) pairs between which a program sends."""
    return {
        (source, one.to)
        for source, instructions in enumerate(program.instructions)
        for one in instructions
        if isinstance(one, Send)
    }


class NcclTransport:
    """Messages in the order of sending, and sums over groups, on the device.

    Args:
        store: where the ranks meet.
        rank: this process.
        groups: the groups of ranks that this rank sums over.
        channels: all channels of all ranks; this rank takes part in its own.
        device: this rank's GPU.
        make_group: makes a process group of a kind without tags.
        wake: ends all that waits in such a group, here, and makes it useless.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        groups: Iterable[tuple[int, ...]],
        channels: Iterable[Channel],
        device: torch.device,
        make_group: GroupFactory = nccl_group,
        wake: Callable[[Any], None] = abort,
    ) -> None:
        self._wake = wake
        self._rank = rank
        self._device = device
        self._gate = Gate()
        self._posted: dict[tuple[int, int], tuple[Any, torch.Tensor]] = {}
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self._begun: deque[Callable[[], None]] = deque()
        sums = sorted(groups)
        self._groups = PeerGroups(make_group, store, rank, sums, device)
        self._channels = {
            channel: make_group(PrefixStore(f"rtk/channel/{channel[0]}-{channel[1]}", store), channel.index(rank), 2)
            for channel in sorted(channels)
            if rank in channel
        }
        # NCCL connects ranks at their first message or sum and blocks them until then: all open theirs in one order. A
        # sum that is begun amid an order must not be the first, for its ranks may wait for our messages.
        token = torch.zeros(1, device=self._device)
        for (source, _), channel in self._channels.items():
            with peer_errors():
                (channel.send([token], 1, 0) if source == self._rank else channel.recv([token], 0, 0)).wait()
        for group in sums:
            self._groups.begin(group, token)()

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce the next message of a source; the tag only names it here."""
        buffer = torch.empty_like(like, device=self._device)
        with self._gate, peer_errors():
            self._posted[source, tag] = (self._channels[source, self._rank].recv([buffer], 0, 0), buffer)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Let the current stream wait for an announced message."""
        with self._gate:
            work, buffer = self._posted.pop((source, tag))
            try:
                with peer_errors():
                    work.wait()
            finally:
                del work  # an error's traceback would keep it
        return buffer

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Queue a message behind those of this direction."""
        data = tensor.detach().contiguous()
        with self._gate, peer_errors():
            self._sent.append((self._channels[self._rank, to].send([data], 1, 0), data))

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Queue a message behind those of this direction, and wait until it has left."""
        self.send(tag, to, tensor)
        self.flush()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, on the device."""
        with self._gate:
            self._groups.all_reduce(group, tensor)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Queue a sum behind what the current stream has been given so far."""
        with self._gate:
            self._begun.append(self._groups.begin(group, tensor))

    def end_sums(self) -> None:
        """Let the current stream wait for the sums that were begun."""
        with self._gate:
            while self._begun:
                self._begun.popleft()()

    def flush(self, but: int = 0) -> None:
        """Let the current stream wait until messages sent so far have left."""
        with self._gate, peer_errors():
            while len(self._sent) > but:
                self._sent[0][0].wait()
                self._sent.popleft()

    def interrupt(self) -> None:
        """Abort all communicators, which ends their kernels and wakes those who wait for them."""
        self._gate.shut()
        wake_all(self._wake, [*self._channels.values(), *self._groups.groups])

    def close(self) -> None:
        """Interrupt, wait for those who have been woken, and let go of everything."""
        self.interrupt()
        self._gate.wait_until_empty()
        self._posted.clear()
        self._sent.clear()
        self._begun.clear()
        self._channels.clear()
        self._groups.drop()
