"""A transport lives for one epoch: it is woken, thrown away and built anew whenever a worker comes or goes.

In a process of its own this file is a small cluster of real processes (`cluster`).
"""

import gc
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

torch = pytest.importorskip("torch")

from torch._C._distributed_c10d import HashStore  # noqa: E402

from rtk.runners.torch.delegates import Delegates  # noqa: E402
from rtk.runners.torch.detours import Detours  # noqa: E402
from rtk.runners.torch.faults import DelayedTransport  # noqa: E402
from rtk.runners.torch.gloo import GlooTransport  # noqa: E402
from rtk.runners.torch.groups import PrefixStore, ProcessGroupGloo, Store  # noqa: E402
from rtk.runners.torch.nccl import NcclTransport  # noqa: E402
from rtk.runners.torch.rendezvous import MeetingPlace, SupersededError, connect, meet  # noqa: E402  # noqa: E402
from rtk.runners.torch.transport import Transport  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402

if __name__ != "worker":  # which knows no package of tests
    from ..warm import fork

SECRET = b"a secret for one test only"
SOON_S = 60.0  # on the busiest machine; a blocked wait would last longer than a test may
SHORT = timedelta(seconds=2)


def in_ranks(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work` returns for each rank, all at the same time."""
    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(work, range(size), timeout=30))


def world(size: int, store: Store | None = None, **options: Any) -> list[GlooTransport]:
    """Connected transports of all ranks, each of them in one group of all and one of two neighbours."""
    meeting = store or HashStore()

    def make(rank: int) -> GlooTransport:
        pair = (rank & ~1, rank | 1)
        groups = {tuple(range(size)), pair if pair[1] < size else (rank,)}
        return GlooTransport(meeting, rank, size, groups, hostname="127.0.0.1", **options)

    return in_ranks(size, make)


def in_background(work: Callable[[], Any]) -> "Future[Any]":
    """What comes of a call that blocks; the thread is known to have started."""
    result: Future[Any] = Future()
    started = threading.Event()

    def run() -> None:
        started.set()
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    assert started.wait(SOON_S)
    return result


def close_all(transports: Iterable[Transport]) -> None:
    for transport in transports:
        transport.close()


def held() -> tuple[int, int]:
    """Threads, those of C++ included, and open descriptors of this process."""
    gc.collect()
    return len(list(Path("/proc/self/task").iterdir())), len(list(Path("/proc/self/fd").iterdir()))


def is_back_to(before: Sequence[int], now: Sequence[int]) -> bool:
    """Whether there are no more threads and descriptors than before, give or take one and two."""
    return now[0] <= before[0] + 1 and now[1] <= before[1] + 2


def assert_back_to(before: tuple[int, int]) -> None:
    """Soon there are no more threads and descriptors than before."""
    deadline = time.monotonic() + SOON_S
    while not is_back_to(before, now := held()):
        assert time.monotonic() < deadline, (before, now)
        time.sleep(0.02)


def blocked_receive(transport: Transport) -> Any:
    transport.post_receive(1, 1, torch.zeros(2))
    return transport.receive(1, 1)


def blocked_flush(transport: Transport) -> None:
    transport.send(2, 1, torch.zeros(2))
    transport.flush()


def blocked_send(transport: Transport) -> None:
    transport.send(3, 1, torch.zeros(2))


def blocked_sum_of_all(transport: Transport) -> None:
    transport.all_reduce((0, 1, 2), torch.zeros(2))


def blocked_sum_of_peers(transport: Transport) -> None:
    transport.all_reduce((0, 1), torch.zeros(2))


def blocked_begun_sum(transport: Transport) -> None:
    transport.begin_sum((0, 1), torch.zeros(2))
    transport.end_sums()


def no_delay(rank: int) -> float:
    return 0.0


def a_minute(rank: int) -> float:
    return 60.0


BLOCKED = [blocked_receive, blocked_flush, blocked_sum_of_all, blocked_sum_of_peers, blocked_begun_sum]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("operation", BLOCKED)
def test_an_interrupt_wakes_whoever_is_blocked(operation: Callable[[Transport], Any], slow: bool) -> None:
    """A receive, a flush and sums over either group, of peers that live and do nothing, end with our error."""
    transports: list[Transport] = [DelayedTransport(one, no_delay) if slow else one for one in world(3)]
    blocked = in_background(lambda: operation(transports[0]))
    time.sleep(0.05)
    assert not blocked.done()
    transports[0].interrupt()
    assert isinstance(blocked.exception(SOON_S), RuntimeFailedError)
    close_all(transports)


def gloo_group(store: Store, rank: int, size: int) -> Any:
    """A group to be used as NCCL's are."""
    options = ProcessGroupGloo._Options()
    options._threads = 1
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return ProcessGroupGloo(store, rank, size, options)


class LateGroup:
    """A group whose first sum blocks its ranks until all are in it, as NCCL's does, which connects them by it."""

    def __init__(self, group: Any) -> None:
        self._group, self._is_connected = group, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, *arguments: Any) -> Any:
        work = self._group.allreduce(*arguments)
        if not self._is_connected:
            work.wait()
        self._is_connected = True
        return work


def late_group(store: Store, rank: int, size: int) -> LateGroup:
    return LateGroup(gloo_group(store, rank, size))


def nccl_world(size: int) -> list[NcclTransport]:
    """Transports for GPUs, over gloo, of which each sends to the next one."""
    store, everyone = HashStore(), tuple(range(size))
    ways = {(rank, rank + 1) for rank in range(size - 1)}
    device = torch.device("cpu")
    return in_ranks(size, lambda rank: NcclTransport(store, rank, {everyone}, ways, device, make_group=late_group))


def delayed_world(size: int) -> list[Transport]:
    """The link between the first two ranks is slow, of which the others know nothing."""

    def behind_link(rank: int, inner: Transport) -> Transport:
        return DelayedTransport(inner, no_delay, lambda other: 0.001 if {rank, other} == {0, 1} else 0.0)

    return list(map(behind_link, range(size), world(size)))


def apart_world(size: int) -> list[Transport]:
    """The first rank and the last one reach each other over the one between."""
    return [Detours(one, [(0, size - 1, 1)], rank) for rank, one in enumerate(world(size, apart=[(0, size - 1)]))]


WORLDS: dict[str, Callable[[int], Sequence[Transport]]] = {
    "gloo": world,
    "nccl": nccl_world,
    "delayed": delayed_world,
    "delegates": lambda size: [Delegates(one, one, ()) for one in world(size)],
    "detours": apart_world,
}


@pytest.mark.parametrize("kind", WORLDS)
def test_sums_that_are_begun_hold_nobody_up(kind: str) -> None:
    """A rank that has begun two sums goes on, and only a message that it sends then lets the others begin theirs;
    all have the sums at the end, and one that is still under way, where it can be woken, leaves nothing behind."""
    before = held()
    transports = list(WORLDS[kind](3))

    def work(rank: int) -> list[float]:
        mine, everyone = transports[rank], (0, 1, 2)
        if rank:
            mine.post_receive(1, rank - 1, torch.zeros(1))
            mine.receive(1, rank - 1)
        sums = [torch.tensor([10.0**n * (rank + 1)]) for n in range(2)]
        for one in sums:
            mine.begin_sum(everyone, one)
        if rank < 2:
            mine.send(1, rank + 1, torch.zeros(1))
        mine.end_sums()
        mine.flush()
        if rank == 0 and kind != "nccl":  # whose `abort` does nothing over gloo
            mine.begin_sum(everyone, torch.zeros(1))
        return [float(one) for one in sums]

    assert in_ranks(3, work) == [[6.0, 60.0]] * 3
    close_all(transports)
    transports.clear()
    assert_back_to(before)


def test_operations_after_an_interrupt_fail_and_a_second_one_does_nothing() -> None:
    """An interrupted transport does nothing any more, not even with a peer that was not interrupted."""
    transports = world(2)
    transports[0].interrupt()
    transports[0].interrupt()
    for operation in (blocked_receive, blocked_flush, blocked_sum_of_peers):
        with pytest.raises(RuntimeFailedError, match="interrupted"):
            operation(transports[0])
    with pytest.raises(RuntimeFailedError, match="broke"):
        transports[1].all_reduce((0, 1), torch.zeros(1))
    close_all(transports)
    transports[0].interrupt()
    transports[0].close()


def test_an_interrupt_wakes_a_receive_though_another_peer_is_gone() -> None:
    """The receive that expires to wake others is tried with every rank: one from a rank that is gone only fails."""
    transports = world(3)
    transports[1].close()
    transports[0].post_receive(5, 2, torch.zeros(1))
    blocked = in_background(lambda: transports[0].receive(5, 2))
    time.sleep(0.05)
    assert not blocked.done()
    transports[0].interrupt()
    assert isinstance(blocked.exception(SOON_S), RuntimeFailedError)
    close_all(transports)


@pytest.mark.parametrize("operation", [blocked_send, blocked_sum_of_peers])
def test_delayed_messages_do_not_hold_up_an_interrupt(operation: Callable[[Transport], Any]) -> None:
    """Who is held by a slow link is woken, and later messages are refused."""
    before = held()
    slow = [DelayedTransport(one, a_minute, a_minute) for one in world(2)]
    blocked = in_background(lambda: operation(slow[0]))
    time.sleep(0.05)
    assert not blocked.done()
    slow[0].interrupt()
    assert isinstance(blocked.exception(SOON_S), RuntimeFailedError)
    with pytest.raises(RuntimeFailedError):
        operation(slow[0])
    close_all(slow)
    assert_back_to(before)


def test_waits_last_longer_than_the_limit_for_connecting() -> None:
    """With two seconds for connecting, a receive, a flush and a sum wait for a peer that comes later."""
    transports = world(2, connect_limit=SHORT)
    transports[0].post_receive(1, 1, torch.zeros(1))
    transports[0].send(2, 1, torch.ones(1))
    total = torch.ones(1)
    waiting = [
        in_background(lambda: transports[0].receive(1, 1)),
        in_background(transports[0].flush),
        in_background(lambda: transports[0].all_reduce((0, 1), total)),
    ]
    time.sleep(SHORT.total_seconds() + 0.3)
    transports[1].send(1, 0, torch.ones(1))
    transports[1].post_receive(2, 0, torch.zeros(1))
    transports[1].receive(2, 0)
    transports[1].all_reduce((0, 1), torch.ones(1))
    assert [one.exception(SOON_S) for one in waiting] == [None] * 3
    assert total.item() == 2
    close_all(transports)


def test_connecting_fails_after_its_limit() -> None:
    """A rank that never comes costs the limit, not less, and leaves nothing behind."""
    before, store = held(), HashStore()
    start = time.monotonic()
    with pytest.raises(RuntimeFailedError):
        GlooTransport(store, 0, 2, [(0, 1)], connect_limit=timedelta(seconds=0.3))
    assert time.monotonic() - start > 0.2
    assert_back_to(before)


def test_a_world_of_one_has_nothing_to_connect() -> None:
    """A single worker sums over itself, meets nobody, and can be interrupted and closed."""
    before = held()
    transport = DelayedTransport(GlooTransport(HashStore(), 0, 1, [(0,)], connect_limit=timedelta(0)), no_delay)
    total = torch.full((1,), 3.0)
    transport.all_reduce((0,), total)
    transport.flush()
    assert total.item() == 3
    transport.interrupt()
    with pytest.raises(RuntimeFailedError):
        transport.all_reduce((0,), total)
    transport.close()
    assert_back_to(before)


def test_25_epochs_leave_nothing_behind() -> None:
    """Worlds that are interrupted and closed with messages under way leave no thread and no descriptor."""
    close_all(world(3))
    before = held()
    for _ in range(25):
        slow = [DelayedTransport(one, a_minute) for one in world(3)]
        transports: list[Transport] = [Delegates(one, one, {(rank + 1) % 3}) for rank, one in enumerate(slow)]
        for rank, transport in enumerate(transports):
            transport.post_receive(1, (rank + 1) % 3, torch.zeros(100))
            transport.post_receive(1, (rank + 2) % 3, torch.zeros(100))
            transport.send(2, (rank + 1) % 3, torch.zeros(100))
            transport.send(3, (rank + 1) % 3, torch.zeros(100))
        in_ranks(3, lambda rank, transports=transports: transports[rank].close())  # type: ignore[misc]
    assert_back_to(before)


def test_the_transport_for_gpus_closes_too() -> None:
    """Its groups are aborted (which does nothing over gloo), its operations refused, its groups let go."""
    before, store = held(), HashStore()
    device = torch.device("cpu")
    transports = in_ranks(2, lambda rank: NcclTransport(store, rank, {(0, 1)}, {(0, 1)}, device, make_group=gloo_group))
    transports[1].post_receive(1, 0, torch.zeros(1))
    transports[0].interrupt()
    with pytest.raises(RuntimeFailedError):
        transports[0].send(1, 1, torch.zeros(1))
    close_all(transports)
    del transports
    assert_back_to(before)


def test_a_connection_that_is_made_in_time_is_used() -> None:
    """`connect` gives what was made, or its error."""
    store, never = HashStore(), Future[None]()
    made = in_ranks(2, lambda rank: connect(lambda: GlooTransport(store, rank, 2, [(0, 1)]), never))
    sums = [torch.ones(1), torch.ones(1)]
    in_ranks(2, lambda rank: made[rank].all_reduce((0, 1), sums[rank]))
    assert [total.item() for total in sums] == [2, 2]
    close_all(made)
    with pytest.raises(RuntimeFailedError):
        connect(lambda: GlooTransport(store, 0, 2, [], connect_limit=timedelta(seconds=0.1)), never)


def test_a_superseded_build_is_given_up_at_once() -> None:
    """The next epoch ends the wait while the build goes on, which ends by itself later and leaves nothing behind."""
    before, store, superseded = held(), HashStore(), Future[None]()
    may_end = threading.Event()

    def late() -> GlooTransport:
        try:
            return GlooTransport(PrefixStore("late", store), 0, 2, [(0, 1)], connect_limit=timedelta(seconds=0.3))
        finally:
            may_end.wait(SOON_S)

    waiting = in_background(lambda: connect(late, superseded))
    time.sleep(0.1)
    superseded.set_result(None)
    assert isinstance(waiting.exception(SOON_S), SupersededError)
    may_end.set()
    del waiting
    assert_back_to(before)


def test_a_superseded_build_does_not_disturb_the_others() -> None:
    """A build that was given up still connects for its peers, and what it made is closed afterwards."""
    before, store, superseded = held(), HashStore(), Future[None]()
    closed = threading.Event()

    class Noticed(GlooTransport):
        def close(self) -> None:
            super().close()
            closed.set()

    given_up = in_background(lambda: connect(lambda: Noticed(store, 0, 2, [(0, 1)]), superseded))
    time.sleep(0.1)
    superseded.set_result(None)
    assert isinstance(given_up.exception(SOON_S), SupersededError)
    peer = GlooTransport(store, 1, 2, [(0, 1)])
    assert closed.wait(SOON_S)
    peer.close()
    del given_up
    assert_back_to(before)


# ---- A cluster of real processes -------------------------------------------------------------------------------------

SIZE = 6
LIMIT = timedelta(seconds=3)  # of builds that come to nothing; the others have time


class Member:
    """One process: follows the parent's epochs, and says what it sees as lines of JSON."""

    def __init__(self, me: int, commands: IO[str], answers: IO[str]) -> None:
        self.me, self.commands, self.answers = me, commands, answers
        self.superseded: Future[None] = Future()
        self.transport: Transport | None = None
        self.orders: queue.SimpleQueue[tuple[dict[str, Any], Future[None]]] = queue.SimpleQueue()
        self.interrupted_s = 0.0

    def answer(self, **what: Any) -> None:
        self.answers.write(json.dumps({"me": self.me, **what}) + "\n")
        self.answers.flush()

    def control(self) -> None:
        """Every new epoch supersedes a build, and interrupts a transport, before the main thread hears of it."""
        for line in self.commands:
            self.superseded.set_result(None)
            self.superseded = Future()
            self.interrupted_s = time.monotonic()
            if self.transport:
                self.transport.interrupt()
            self.orders.put((json.loads(line), self.superseded))
        os._exit(0)

    def run(self) -> None:
        place = MeetingPlace(SECRET)
        threading.Thread(target=self.control, daemon=True).start()
        self.answer(address=place.address, held=held())
        while True:
            order, superseded = self.orders.get()
            if self.transport:
                self.transport.close()
                self.transport = None
            if order.get("report"):
                self.answer(held=held(), report=True)
                continue
            try:
                self.epoch(order, superseded)
            except RuntimeFailedError as error:
                self.answer(epoch=order["epoch"], failed=type(error).__name__, woke=self.since())
                del error

    def epoch(self, order: dict[str, Any], superseded: "Future[None]") -> None:
        members, epoch = order["members"], order["epoch"]
        rank, everyone = members.index(self.me), tuple(range(len(members)))
        limit = timedelta(seconds=order.get("limit_s", SOON_S))
        self.transport = transport = connect(
            lambda: GlooTransport(
                meet(order["address"], SECRET, epoch, limit),
                rank,
                len(members),
                {everyone},
                hostname="127.0.0.1",
                connect_limit=limit,
            ),
            superseded,
        )
        total = torch.ones(1)
        transport.all_reduce(everyone, total)
        self.answer(epoch=epoch, total=total.item(), built=self.since())
        following = (rank + 1) % len(members)
        transport.post_receive(1, following, total)
        transport.receive(1, following)  # a message that never comes

    def since(self) -> float:
        return time.monotonic() - self.interrupted_s


class Cluster:
    """The parent's side: forked processes, that have torch already."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.pids: list[int] = []
        self.commands: list[IO[str]] = []
        for me in range(SIZE):
            theirs, ours = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ours)
                for command in self.commands:
                    command.close()
                Member(me, os.fdopen(theirs), os.fdopen(writing, "w")).run()
            os.close(theirs)
            self.pids.append(pid)
            self.commands.append(os.fdopen(ours, "w"))
        self.answers = os.fdopen(reading)
        self.heard: list[dict[str, Any]] = []
        first = self.expect(SIZE, "address")
        self.addresses = [one["address"] for one in sorted(first, key=lambda one: one["me"])]
        self.held = {one["me"]: one["held"] for one in first}

    def tell(self, to: Iterable[int], /, **order: Any) -> None:
        for member in to:
            self.commands[member].write(json.dumps(order) + "\n")
            self.commands[member].flush()

    def expect(self, count: int, key: str, epoch: int | None = None, but: int | None = None) -> list[dict[str, Any]]:
        """The first answers with this key (of an epoch, not of a member), read as they come; others wait their turn."""

        def fits(one: dict[str, Any]) -> bool:
            return key in one and one.get("epoch") == epoch and one["me"] != but

        while sum(map(fits, self.heard)) < count:
            self.heard.append(json.loads(self.answers.readline()))
        found = [one for one in self.heard if fits(one)]
        self.heard = [one for one in self.heard if not fits(one)]
        return found

    def held_in_the_end(self, members: Sequence[int]) -> list[Any]:
        """What each held at first, and holds once it holds no more than that, or else after `SOON_S`."""
        deadline_s = time.monotonic() + SOON_S
        while True:
            self.tell(members, report=True)
            found = [(self.held[one["me"]], one["held"]) for one in self.expect(len(members), "report")]
            if all(is_back_to(*one) for one in found) or time.monotonic() > deadline_s:
                return found
            time.sleep(0.1)

    def kill(self, member: int) -> None:
        os.kill(self.pids[member], signal.SIGKILL)
        os.waitpid(self.pids[member], 0)


def cluster() -> Iterator[tuple[str, Any]]:
    """The whole story, step by step; the tests below say what each step has to show."""
    there = Cluster()
    epoch = {"epoch": 1, "address": there.addresses[0], "members": [*range(6)]}
    there.tell(range(6), **epoch)
    yield "first", there.expect(6, "total", 1)

    there.kill(5)
    yield "neighbour", there.expect(1, "failed", 1)
    time.sleep(0.1)
    there.tell(range(5), **epoch | {"epoch": 2, "members": [*range(5)]})
    yield "woken", there.expect(4, "failed", 1)
    yield "second", there.expect(5, "total", 2)

    # Member 4 finds the others there, publishes where it listens, and dies before any of them connects.
    meeting = meet(there.addresses[0], SECRET, 3)
    third = PrefixStore("rtk/world", meeting)
    for rank in range(5):
        third.set(f"here/{rank}", "")
    vain = {"limit_s": LIMIT.total_seconds()}
    there.tell([4], **epoch | vain | {"epoch": 3, "members": [*range(5)]})
    while not third.check(["0/4"]):
        time.sleep(0.005)
    there.kill(4)
    there.tell(range(4), **epoch | vain | {"epoch": 3, "members": [*range(5)]})
    yield "left alone", there.expect(4, "failed", 3, but=4)

    there.tell(range(4), **epoch | vain | {"epoch": 4, "members": [*range(5)]})
    time.sleep(0.3)
    there.tell(range(4), **epoch | {"epoch": 5, "members": [*range(4)]})
    yield "abandoned", there.expect(4, "failed", 4)
    yield "third", there.expect(4, "total", 5)

    yield "held", there.held_in_the_end(range(4))

    there.tell([1, 2], **epoch | {"epoch": 6, "members": [1, 2, 3]})
    time.sleep(0.3)
    there.kill(0)
    yield "without a host", there.expect(2, "failed", 6)
    there.tell([1, 2, 3], **epoch | {"epoch": 7, "members": [1, 2, 3], "address": there.addresses[2]})
    yield "new host", there.expect(3, "total", 7)
    for command in there.commands[1:4]:
        command.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the processes of the cluster said at each step."""
    file = tmp_path_factory.mktemp("cluster") / "story.json"
    parent = fork(__file__, file)
    parent.join(150)
    parent.kill()
    assert parent.exitcode == 0
    result: dict[str, Any] = json.loads(file.read_text())
    return result


def test_processes_that_live_wake_at_once(story: dict[str, Any]) -> None:
    """After a SIGKILL the dead worker's neighbour fails by itself, those who wait for the living when interrupted."""
    assert [one["me"] for one in story["neighbour"]] == [4]
    assert sorted(one["me"] for one in story["woken"]) == [0, 1, 2, 3]
    failed = {one["failed"] for one in story["woken"]}
    assert failed <= {"RuntimeFailedError", "LostTouchError"}
    assert all(one["woke"] < SOON_S for one in story["woken"])


def test_survivors_build_a_new_world(story: dict[str, Any]) -> None:
    """Six, then five, then four processes sum over all of them, each time with new groups."""
    for step, size in (("first", 6), ("second", 5), ("third", 4)):
        assert [one["total"] for one in story[step]] == [size] * size


def test_a_peer_that_dies_between_publishing_and_connecting_ends_the_build(story: dict[str, Any]) -> None:
    """Connecting to an address that a dead process left behind fails with the limit, though gloo tries again."""
    assert [one["failed"] for one in story["left alone"]] == ["RuntimeFailedError"] * 4


def test_processes_give_up_a_build_that_waits_for_a_dead_peer(story: dict[str, Any]) -> None:
    """A newer epoch ends the wait before the limit does, and after the limit nothing is left of the old build."""
    assert [one["failed"] for one in story["abandoned"]] == ["SupersededError"] * 4
    assert all(is_back_to(before, after) for before, after in story["held"]), story["held"]


def test_the_death_of_the_hosting_worker_ends_waits_in_its_store(story: dict[str, Any]) -> None:
    """Who waits at a dead worker's meeting place fails before any limit, and the next epoch meets at another one."""
    failed = story["without a host"]
    assert [one["failed"] for one in failed] == ["RuntimeFailedError"] * 2
    assert all(one["woke"] < SOON_S / 2 for one in failed)
    assert [one["total"] for one in story["new host"]] == [3] * 3


if __name__ == "worker":
    globals()["ARGUMENTS"][0].write_text(json.dumps(dict(cluster())))
