"""Tensors between ranks over gloo."""

import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Any

import torch

from ...schemas.errors import RuntimeFailedError
from ..program import RankPair
from .groups import (
    SILENCE,
    Gate,
    GroupFactory,
    HashStore,
    PeerGroups,
    PrefixStore,
    ProcessGroupGloo,
    Store,
    StoreAt,
    meeting_of,
    peer_errors,
    poison,
    wake_all,
)
from .rendezvous import in_thread, is_there, when_there
from .transport import LostTouchError, reaching

# Which process groups connect which ranks, where some pairs cannot connect.
#
# A gloo group connects all its ranks with each other when it is made, so one pair without a way makes it impossible.
# Ranks are therefore taken out of the group of all, few of them, until no such pair is left in it; each of these has a
# group of two with every other rank that it does reach. A group of two costs some milliseconds. A pair that reaches
# each other on another network only has a group of two there.


@dataclass(frozen=True, eq=False)
class Sidestep:
    """How a rank is reached on another network.

    Attributes:
        hostname: this process's own address there.
        meet: gives the store where the two meet.
    """

    hostname: str
    meet: Callable[[], Store]


def cover(apart: Collection[RankPair]) -> frozenset[int]:
    """Ranks of which every pair has at least one; always the one in most of the pairs that are left, lowest first."""
    left, found = set(apart), set[int]()
    while left:
        counts = Counter(rank for pair in left for rank in pair)
        most = min(counts, key=lambda rank: (-counts[rank], rank))
        found.add(most)
        left = {pair for pair in left if most not in pair}
    return frozenset(found)


def groups_for(size: int, apart: Collection[RankPair]) -> list[tuple[int, ...]]:
    """Groups that hold every pair of ranks once, but those apart; in the order in which everybody makes its own."""
    outside = cover(apart)
    rest = tuple(rank for rank in range(size) if rank not in outside)
    pairs = [pair for pair in combinations(range(size), 2) if pair not in apart and not outside.isdisjoint(pair)]
    return [group for group in (rest, *pairs) if len(group) > 1]


def holds_apart(group: Iterable[int], apart: Collection[RankPair]) -> bool:
    """Whether a group of ranks holds a pair that is apart."""
    ranks = set(group)
    return any(ranks.issuperset(pair) for pair in apart)


class PairGroups:
    """The process groups over which a rank sends messages to each of the others.

    Args:
        rank: this process.
        places: by rank the group in which another one is reached, and its number there, of those that are there.
        under_way: messages on their way in these groups, which have to live as long.
    """

    def __init__(
        self, rank: int, places: Mapping[int, tuple[Any, int]] = MappingProxyType({}), under_way: Iterable[Any] = ()
    ) -> None:
        self._rank = rank
        self._places = dict(places)
        self._under_way = [*under_way]

    @property
    def groups(self) -> list[Any]:
        """All of them."""
        return list({id(group): group for group, _ in self._places.values()}.values())

    def connect(self, make_group: GroupFactory, store: Store | StoreAt, size: int, apart: Collection[RankPair]) -> None:
        """Connect with all others.

        Args:
            make_group: makes a process group.
            store: where the ranks meet, or the place for a group whose lowest rank is given.
            size: number of ranks.
            apart: pairs that do not connect.
        """
        for ranks in groups_for(size, apart):
            if self._rank in ranks:
                name = "rtk/world" if len(ranks) == size else f"rtk/pairs/{ranks}"
                meeting = PrefixStore(name, meeting_of(store, ranks))
                group = make_group(meeting, ranks.index(self._rank), len(ranks))
                others = ((other, number) for number, other in enumerate(ranks) if other != self._rank)
                self._places.update((other, (group, number)) for other, number in others)

    def connect_aside(self, other: int, make_group: GroupFactory, meet: Callable[[], Store]) -> None:
        """Have a group of two with a rank that is apart otherwise; all ranks do so in the order of the pairs.

        Args:
            other: that rank.
            make_group: makes a process group on the other network.
            meet: gives the store where they meet.

        Raises:
            LostTouchError: it is not reached there either.
        """
        ranks = sorted((self._rank, other))
        with reaching(other):
            store = meet()  # to be kept while the group is made
            meeting = PrefixStore(f"rtk/aside/{ranks}", store)
            self._places[other] = (make_group(meeting, ranks.index(self._rank), 2), ranks.index(other))

    def to(self, other: int) -> tuple[Any, int]:
        """The group in which another rank is reached, and its number there.

        Raises:
            LostTouchError: the pair is apart, or everything has been dropped.
        """
        if other not in self._places:
            raise LostTouchError(other, "there is no connection to it")
        return self._places[other]

    def drop(self) -> None:
        """Let go of all groups."""
        self._places.clear()
        self._under_way.clear()


# How long the ranks may take to find each other and connect; a peer that died meanwhile never comes.
CONNECT_LIMIT = timedelta(seconds=10)
# What part of the limit there is at least for connecting, though the last rank came only just in time.
CONNECT_SHARE = 0.25
CONNECT_ATTEMPTS = 5  # gloo's own number
# Relays (detours.py) wait for messages that may never come.
NO_LIMIT = timedelta(days=365)


TURNED_S = 2.0  # how long to wait for the last turn of a loop, some 10 ms


class LoopTurner:
    """Keeps the loop of a gloo device turning, as a context, for one or several threads at a time.

    Who closes a connection waits for the loop to turn, which it does when something happens to any of its connections,
    or else every 10 ms. In here something happens all the time: this process sends itself messages.

    Args:
        make_group: makes a process group on that device.
    """

    def __init__(self, make_group: GroupFactory) -> None:
        store = HashStore()
        ends = [in_thread(partial(make_group, store, rank, 2), "connecting") for rank in range(2)]
        self._ends: tuple[Any, ...] = tuple(end.result() for end in ends)
        self._lock = threading.Lock()
        self._inside = 0
        self._is_turning = False
        self._turning: threading.Thread | None = None  # the last one

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if not self._is_turning and self._ends:
                self._is_turning = True
                self._turning = threading.Thread(target=self._turn, name="turning", daemon=True)
                self._turning.start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1

    def close(self) -> None:
        """Let go of the connection; closing others takes its time again.

        Nobody turns the loop any more then: a thread that is inside torch at the interpreter's end aborts the process,
        with 134, which job scripts take for a worker that was killed.
        """
        with self._lock:
            self._ends = ()
            turning = self._turning
        if turning is not None:
            turning.join(TURNED_S)

    def end(self, groups: Iterable[Any]) -> None:
        """Wake everybody who waits in groups on that device: in a moment, so one after the other, without threads."""
        with self:
            for group in groups:
                poison(group)

    def _turn(self) -> None:
        token, room = torch.zeros(1), torch.zeros(1)
        while True:
            with self._lock:
                if self._inside == 0 or not self._ends:
                    self._is_turning = False
                    return
                source, target = self._ends
            received, sent = target.recv([room], 0, 0), source.send([token], 1, 0)
            received.wait()
            sent.wait()
            time.sleep(0.0003)


class GlooDevice:
    """What a process's gloo groups share: an interface, and a thread that serves its connections.

    Args:
        hostname: address or name of the interface; by default loopback or the interface of this host's name, whichever
            MASTER_ADDR asks for.
        turns: have connections closed in a moment (`LoopTurner`), at the price of a connection of its own.
    """

    def __init__(self, hostname: str | None = None, *, turns: bool = False) -> None:
        self._device = _gloo_device(hostname)
        self._turner = LoopTurner(self.factory(CONNECT_LIMIT)) if turns else None
        # Wakes everybody who waits in groups of this device, here and elsewhere, and makes them useless.
        self.end: Callable[[Iterable[Any]], None] = self._turner.end if self._turner else partial(wake_all, poison)

    def close(self) -> None:
        """Make no more groups; those that there are go on."""
        self._device = None
        if self._turner is not None:
            self._turner.close()

    def factory(self, limit: timedelta) -> GroupFactory:
        """Makes groups, which all have to be there when the limit is over."""
        return _group_factory(self._device, limit)


class GlooTransport:
    """Transport over gloo process groups made directly from a store, without torch.distributed's global state.

    Every message has its own tag, so receives can be posted in any order. Tensors on other devices pass through host
    memory.

    Args:
        store: where the ranks meet; not used in a world of one. Where some are apart, what gives the store that a rank
            hosts: each group meets at its lowest rank, whom all the others reach.
        rank: this process.
        world_size: number of ranks.
        groups: the groups of ranks that this rank sums over; with a pair apart in it, a group is not made.
        hostname: as of `GlooDevice`, where `device` is not given.
        connect_limit: how long connecting all groups may take together. It fails a quarter later at the latest, where
            the last rank came just in time and died.
        apart: pairs of ranks that must not connect with each other, ascending, the same for all ranks. What they have
            for each other, and sums over groups that hold such a pair, is for `Detours` to pass on. With any, a wait
            for a silent peer has no end of its own: a coordinator must be there to end it.
        sidesteps: those of the ranks apart from this one that it connects with all the same, on another network, for
            messages; the other does so too.
        device: of the groups; by default one of its own.
        pairs: connections to the other ranks that are there already. The groups for sums are then made in a thread,
            while messages are sent; a sum waits for its group, and raises what has kept it from being made.

    Raises:
        LostTouchError: a rank's store cannot be reached, or a rank not on the other network.
        RuntimeFailedError: not all ranks have connected within the limit.
    """

    def __init__(
        self,
        store: Store | StoreAt,
        rank: int,
        world_size: int,
        groups: Iterable[tuple[int, ...]],
        *,
        hostname: str | None = None,
        connect_limit: timedelta = CONNECT_LIMIT,
        apart: Collection[RankPair] = (),
        sidesteps: Mapping[int, Sidestep] = MappingProxyType({}),
        device: GlooDevice | None = None,
        pairs: PairGroups | None = None,
    ) -> None:
        device = device or GlooDevice(hostname)  # which is to live no longer than its groups
        self._end_groups = device.end
        make_group = device.factory(connect_limit)
        aside = {}
        for other, step in sorted(sidesteps.items()):  # on a network on which that rank is to be reached
            with reaching(other):
                aside[other] = GlooDevice(step.hostname).factory(connect_limit)
        self._silence = NO_LIMIT if apart else SILENCE
        self._rank = rank
        self._gate = Gate()
        self._posted: dict[tuple[int, int], tuple[Any, torch.Tensor, torch.device]] = {}
        self._sent: deque[tuple[Any, torch.Tensor, int]] = deque()
        self._due: deque[tuple[tuple[int, ...], torch.Tensor]] = deque()  # sums to begin once there are groups
        self._begun: deque[tuple[tuple[int, ...], Callable[[], None]]] = deque()
        self._interrupted: Future[None] = Future()
        self._pairs = pairs or PairGroups(rank)
        self._sums: Future[PeerGroups] = Future()
        possible = [group for group in groups if not holds_apart(group, apart)]
        make_sums = partial(PeerGroups, make_group, store, rank, possible, torch.device("cpu"))
        try:
            if pairs is None:
                self._pairs.connect(make_group, store, world_size, apart)
            for other, make_aside in aside.items():
                self._pairs.connect_aside(other, make_aside, sidesteps[other].meet)
            if pairs is None:
                self._sums.set_result(make_sums())
            else:
                self._sums = in_thread(make_sums, "connecting")
        except BaseException:
            self._pairs.drop()  # the error's traceback knows this object, which must not keep the connections
            raise

    def post_receive(self, tag: int, source: int, like: torch.Tensor) -> None:
        """Announce a message; the buffer is in host memory, pinned where `like` is."""
        buffer = torch.empty_like(like, device="cpu", pin_memory=like.is_pinned())
        with self._gate, reaching(source), peer_errors():
            group, number = self._pairs.to(source)
            self._posted[source, tag] = (group.recv([buffer], number, tag), buffer, like.device)

    def receive(self, tag: int, source: int) -> torch.Tensor:
        """Wait for an announced message; it comes on the device of the tensor it was announced with.

        The tensor holds what was sent, and more where it was announced with more: a shorter message ends before it.

        Raises:
            LostTouchError: the connection to its source broke.
        """
        with self._gate:
            work, buffer, device = self._posted.pop((source, tag))
            try:
                with reaching(source), peer_errors():
                    work.wait(self._silence)
            finally:
                del work  # an error's traceback would keep it, and it the connections
        return buffer.to(device)

    def send(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send without waiting."""
        data = tensor.detach().to("cpu").contiguous()
        with self._gate, reaching(to), peer_errors():
            group, number = self._pairs.to(to)
            self._sent.append((group.send([data], number, tag), data, to))

    def deliver(self, tag: int, to: int, tensor: torch.Tensor) -> None:
        """Send and wait: gloo's sends end when the receiver has asked for the message and has it."""
        data = tensor.detach().to("cpu").contiguous()
        with self._gate, reaching(to), peer_errors():
            group, number = self._pairs.to(to)
            work = group.send([data], number, tag)
            try:
                work.wait(self._silence)
            finally:
                del work  # an error's traceback would keep it, and it the connections

    def all_reduce(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Sum in place, in host memory.

        Raises:
            LostTouchError: the connection to the only other rank of the group broke.
            RuntimeFailedError: that to one of several did.
        """
        with self._gate, self._reaching(group):
            self._summing().all_reduce(group, tensor)

    def begin_sum(self, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        """Begin a sum as of `all_reduce`, or have `end_sums` do so where its group is still to be made."""
        with self._gate:
            self._due.append((group, tensor))
            if is_there(self._sums):
                self._begin_due()

    def end_sums(self) -> None:
        """Wait until all sums are there that were begun; errors as of `all_reduce`."""
        with self._gate:
            self._begin_due()
            while self._begun:
                group, end = self._begun.popleft()
                with self._reaching(group):
                    end()

    def flush(self, but: int = 0) -> None:
        """Wait until messages sent so far have been taken (gloo's sends end when they are received).

        Raises:
            LostTouchError: the connection to who should have taken one broke.
        """
        with self._gate:
            for _ in range(len(self._sent) - but):
                with reaching(self._sent[0][2]), peer_errors():
                    self._sent[0][0].wait(self._silence)
                self._sent.popleft()

    def interrupt(self) -> None:
        """Wake every blocked thread by closing the connections."""
        self._gate.shut()
        with suppress(InvalidStateError):  # it is already
            self._interrupted.set_result(None)
        sums = self._sums.result().groups if is_there(self._sums) else []
        self._end_groups([*self._pairs.groups, *sums])

    def close(self) -> None:
        """Interrupt, wait for those who have been woken, and let go of everything."""
        self.interrupt()
        self._gate.wait_until_empty()
        self._posted.clear()
        self._sent.clear()
        self._due.clear()
        self._begun.clear()
        self._pairs.drop()
        when_there(self._sums, lambda groups: groups.drop())
        self._sums = Future()

    @property
    def is_interrupted(self) -> bool:
        """Whether it does nothing any more."""
        return self._interrupted.done()

    def wait_until_connected(self) -> None:
        """Wait until the groups for sums are made, or cannot be, or nobody wants them any more."""
        either: list[Future[Any]] = [self._sums, self._interrupted]
        wait(either, return_when=FIRST_COMPLETED)

    def _begin_due(self) -> None:
        while self._due:
            group, tensor = self._due.popleft()
            with self._reaching(group):
                self._begun.append((group, self._summing().begin(group, tensor)))

    def _reaching(self, group: tuple[int, ...]) -> AbstractContextManager[None]:
        """What fails inside failed with the only other rank of a group, if it has but one."""
        others = [rank for rank in group if rank != self._rank]
        return reaching(others[0]) if len(others) == 1 else nullcontext()

    def _summing(self) -> PeerGroups:
        """The groups for sums, once they are made."""
        self.wait_until_connected()
        if self.is_interrupted:
            raise RuntimeFailedError("the connections to the other workers have been interrupted")
        return self._sums.result()


def _group_factory(device: Any, connect_limit: timedelta) -> GroupFactory:
    """Makes gloo groups that share a device, and all have to be there when the limit is over."""
    limit_s = connect_limit.total_seconds()
    deadline_s = time.monotonic() + limit_s

    def left_s(least_s: float) -> float:
        return max(deadline_s - time.monotonic(), least_s)

    def make_group(store: Store, rank: int, size: int) -> Any:
        """A group of `size` ranks who meet at `store`; raises RuntimeFailedError unless all come in time."""
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
