"""A worker's connections to the others, over all epochs: the next ones are made while the present ones are in use.

Gloo wakes a thread that waits for a message only by closing all connections of its group, and what was announced or
sent and not taken stays in a group for as long as that lives. So no group serves two epochs: what is of one epoch
cannot come in another. But a group of many survives the death of any of them, for whoever is left. So while an epoch
runs, its workers make another group of all of them beside it, over which nothing is sent (a `Mesh`). When one dies, the
others go on over that: of all connections only those with the dead one are gone.

Whether all who are left have that group, they ask each other at a meeting place, as soon as they know who is left
(`expect`), while the coordinator plans and they still end what they are at. If one lacks it they make another one.
Either way each has then heard from all others over it, and it counts as connected.
"""

import resource
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Literal
from weakref import WeakSet

import torch

from ...schemas.errors import RuntimeFailedError
from ..program import RankPair
from .gloo import CONNECT_LIMIT, NO_LIMIT, GlooDevice, GlooTransport, PairGroups, Sidestep
from .groups import PrefixStore, peer_errors
from .rendezvous import BoardStore, in_thread, is_there, meetings

# Above the tags of all messages of a program, below those of relays (detours.py); one for each time that it is used.
GREETING_TAG, GREETINGS = 0x7D000000, 0x10000
# What part of the descriptors that a process may have the connections of one group may take, beyond those in use.
SHARE = 1 / 8
GREETING_S = 0.02
# How long to wait for what was begun when membership was told, before meeting once more.
EXPECTED_S = 2.0
ENDING_S = 0.3  # how long `close` waits for what is being made, and again once it was broken off

Occasion = Literal["regroup", "epoch", "beside"]  # what a mesh is made or looked for at: once for each number


@dataclass(frozen=True, eq=False)
class Mesh:
    """A process group that no epoch has used yet.

    Attributes:
        made: the epoch beside which it was made, or for which.
        places: the meeting places of those in it, by which they are known, in the order of their numbers.
        number: this process's.
        group: over gloo.
        under_way: greetings that are on their way, or may still come.
    """

    made: int
    places: tuple[str, ...]
    number: int
    group: Any
    under_way: list[Any] = field(default_factory=list)

    def greet(self, occasion: int, places: Collection[str]) -> None:
        """Hear from some of them, who all do the same; waits for as long as that takes, or until the group is ended.

        Args:
            occasion: another number each time.
            places: theirs, this one among them.

        Raises:
            RuntimeFailedError: one is gone, or the group was ended.
        """
        tag, token = GREETING_TAG + occasion % GREETINGS, torch.zeros(1)
        others = [number for number, place in enumerate(self.places) if place in places and number != self.number]
        with peer_errors():
            heard = []
            for other in others:
                heard.append(self.group.recv([torch.zeros(1)], other, tag))
                # Where one of them is gone the others' greetings still come: gloo reads nothing more of a connection
                # over which comes what there is no room for any more, and nobody would be heard over this mesh again.
                self.under_way.append(heard[-1])
            for other in others:
                self.under_way.append(self.group.send([token], other, tag))
            while heard:
                heard.pop().wait(NO_LIMIT)  # a limit here would end the connections to all others with this one

    def pairs(self, rank: int, places: Sequence[str]) -> PairGroups:
        """The connections to other ranks, whose meeting places are given by rank."""
        numbers = {place: number for number, place in enumerate(self.places)}
        others = {other: (self.group, numbers[place]) for other, place in enumerate(places) if other != rank}
        return PairGroups(rank, others, self.under_way)


@dataclass(frozen=True, eq=False)
class ExpectedMesh:
    """Those who are to be connected, by their meeting places, for an epoch of this number or a later one, and how."""

    number: int
    places: tuple[str, ...]
    mesh: Future[Mesh]


class Connections:
    """Makes a worker's transports, one for each epoch.

    Args:
        secret: the job's.
        hostname: address or name of the interface, as of `GlooDevice`.
        connect_limit: how long it may take to make connections, as of `GlooTransport`.
    """

    def __init__(self, secret: bytes, hostname: str | None = None, connect_limit: timedelta = CONNECT_LIMIT) -> None:
        self._secret, self._limit = secret, connect_limit
        self._device = GlooDevice(hostname, turns=True)
        self._lock = threading.Lock()
        self._unused: Mesh | None = None
        self._expected: ExpectedMesh | None = None
        self._newest = -1  # of the numbers with which membership was told
        self._under_way: list[Future[Any]] = []
        self._stores: WeakSet[BoardStore] = WeakSet()  # all that may be in use
        self._is_closed = False

    def expect(self, number: int, places: Sequence[str], rank: int) -> None:
        """Begin to meet those who are left, before there is a plan; returns at once.

        All of them do so. An epoch of just these ranks, in any order, goes on with what comes of it.

        Args:
            number: of the epoch to come, as the message says that names them; another one each time.
            places: their meeting places, in the same order for all.
            rank: this worker's place among them.
        """
        with self._lock:
            self._newest = max(self._newest, number)
        if len(places) > 1:
            mesh = self._begin(lambda: self._agree("regroup", number, places, rank))
            with self._lock:
                self._expected = ExpectedMesh(number, tuple(places), mesh)

    def transport(
        self,
        number: int,
        places: Sequence[str],
        rank: int,
        groups: Collection[tuple[int, ...]],
        apart: Collection[RankPair] = (),
        sidesteps: Mapping[int, Sidestep] = MappingProxyType({}),
    ) -> GlooTransport:
        """Connect the ranks of an epoch; then connections for the next one are made in the background.

        Args:
            number: the epoch's.
            places: the ranks' meeting places.
            rank: this worker's.
            groups: as of `GlooTransport`.
            apart: as of `GlooTransport`; with any all connections are made anew.
            sidesteps: as of `GlooTransport`.

        Raises:
            LostTouchError: a rank's meeting place is not reached.
            RuntimeFailedError: not all ranks have connected within the limit.
        """
        self._check(number)
        make = partial(
            GlooTransport,
            rank=rank,
            world_size=len(places),
            groups=groups,
            connect_limit=self._limit,
            device=self._device,
        )
        if apart or len(places) == 1:
            self._end(self._taken(number))  # it may hold pairs that have lost each other, and do not know it yet
            return make(self._stores_at(places, number), apart=apart, sidesteps=sidesteps)
        mesh = self._awaited(number, places) or self._agree("epoch", number, places, rank)
        before = self._taken(number)
        if before is not mesh:
            self._end(before)
        transport = make(self._stores_at(places, number), pairs=mesh.pairs(rank, places))
        if len(places) < SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            self._begin(lambda: self._make_ahead(transport, number, places, rank))
        return transport

    def team(self, number: int, places: Sequence[str], share: int) -> GlooTransport:
        """Connect the ranks of one worker for sums alone; returns at once, and the first sum waits for the others.

        Args:
            number: the epoch's.
            places: the meeting places of the worker's ranks, in their order.
            share: which of them this process is.
        """
        self._check(number)
        at = self._stores_at(places, number)
        return GlooTransport(
            lambda rank: PrefixStore("rtk/team", at(rank)),
            share,
            len(places),
            [tuple(range(len(places)))],
            connect_limit=self._limit,
            device=self._device,
            pairs=PairGroups(share),
        )

    def close(self) -> None:
        """Let go of what no epoch has used; the transports are others' to close."""
        with self._lock:
            self._is_closed = True
        # What all others have begun as well is soon there; one who is left alone in it would wait where nothing wakes.
        wait(self._under_way, ENDING_S)
        with self._lock:
            stores = [*self._stores]
        for store in stores:
            store.end()
        self._end(self._taken(None))
        wait(self._under_way, ENDING_S)
        self._device.close()

    def _awaited(self, number: int, places: Sequence[str]) -> Mesh | None:
        """What was begun when membership was told, if that is what it was; None: they have to meet once more."""
        with self._lock:
            expected = self._expected
        if expected is None or expected.number > number or {*places} != {*expected.places}:
            return None
        # One who has missed that message waits for us elsewhere.
        wait([expected.mesh], EXPECTED_S)
        return expected.mesh.result() if is_there(expected.mesh) else None

    def _agree(self, occasion: Occasion, number: int, places: Sequence[str], rank: int) -> Mesh:
        """Have a mesh of all these: the unused one, if they all have that, else a new one.

        They greet each other over it. Who lacks it greets nobody, so that nobody is greeted by all, and puts up a
        notice; whoever is not greeted by all in a moment looks for that.

        Raises:
            RuntimeFailedError: not all others have answered within the limit.
        """
        unused = self._unused if self._unused is not None and {*places} <= {*self._unused.places} else None
        if unused is not None:
            greeting = in_thread(partial(unused.greet, 2 * number + (occasion == "epoch"), places), "greeting")
            wait([greeting], GREETING_S)
            if is_there(greeting):
                return unused
        store, notice = self._stores_at(places, number)(0), f"{occasion}/lacks"
        with peer_errors():
            if unused is not None and self._is_answered(greeting, lambda: store.check([notice]), number):
                return unused
            store.set(notice, "")
        mesh = self._make(store, occasion, number, places, rank)
        self._keep(mesh)
        return mesh

    def _is_answered(self, greeting: "Future[None]", is_lacking: Callable[[], bool], number: int) -> bool:
        """Whether all others have answered a greeting; else there is one that cannot.

        Raises:
            RuntimeFailedError: they have not within the limit, or nobody wants to know any more.
        """
        deadline_s = time.monotonic() + self._limit.total_seconds()
        while not greeting.done() and not is_lacking():
            self._check(number)
            if time.monotonic() > deadline_s:
                raise RuntimeFailedError("not all workers answer over the connections that were made ahead")
            wait([greeting], GREETING_S)
        return is_there(greeting)

    def _make_ahead(self, transport: GlooTransport, number: int, places: Sequence[str], rank: int) -> None:
        """Make the mesh beside an epoch, once its groups for sums are there, which are needed earlier."""
        transport.wait_until_connected()
        if not transport.is_interrupted:
            self._keep(self._make(self._stores_at(places, number)(0), "beside", number, places, rank))

    def _make(self, store: BoardStore, occasion: Occasion, number: int, places: Sequence[str], rank: int) -> Mesh:
        make_group = self._device.factory(self._limit)
        group = make_group(PrefixStore(f"rtk/mesh/{occasion} {number}", store), rank, len(places))
        return Mesh(number, tuple(places), rank, group)

    def _stores_at(self, places: Sequence[str], number: int) -> Callable[[int], BoardStore]:
        """The stores of meeting places, each connected to when it is first asked for."""
        at = meetings(places, self._secret, number)

        def store_at(rank: int) -> BoardStore:
            if self._is_closed:
                raise RuntimeFailedError("this worker connects with nobody any more")
            store = at(rank)
            with self._lock:
                self._stores.add(store)
            return store

        return store_at

    def _keep(self, mesh: Mesh) -> None:
        """Have a mesh for what comes, unless a newer one is there."""
        with self._lock:
            before = self._unused
            is_late = self._is_closed or (before is not None and before.made > mesh.made)
            self._unused = before if is_late else mesh
        self._end(mesh if is_late else before)

    def _check(self, number: int) -> None:
        if number < self._newest:
            raise RuntimeFailedError("the epoch was over before its workers were connected")

    def _taken(self, number: int | None) -> Mesh | None:
        """The unused mesh, for an epoch or for none; there is none after it.

        Raises:
            RuntimeFailedError: the epoch is over, and those who are left may have gone on with that mesh.
        """
        with self._lock:
            if number is not None:
                self._check(number)
            unused, self._unused, self._expected = self._unused, None, None
        return unused

    def _end(self, mesh: Mesh | None) -> None:
        if mesh is not None:
            self._device.end([mesh.group])
            mesh.under_way.clear()

    def _begin(self, make: Callable[[], Any]) -> "Future[Any]":
        begun = in_thread(make, "connecting")
        with self._lock:
            self._under_way = [*(one for one in self._under_way if not one.done()), begun]
        return begun
