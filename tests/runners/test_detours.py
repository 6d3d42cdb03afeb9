"""Pairs of ranks that do not reach each other: who connects, what goes a detour, and how they sum.

In a process of its own this file is one rank in a node of a SlowNetwork (`work`).
"""

import json
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch._C._distributed_c10d import HashStore  # noqa: E402

from rtk.benchmarks.slow_network.network import SlowNetwork, enter, is_usable  # noqa: E402
from rtk.runners.program import RankPair  # noqa: E402
from rtk.runners.resilience.conditions import Ways  # noqa: E402
from rtk.runners.torch import detours as detours_module  # noqa: E402
from rtk.runners.torch import rendezvous  # noqa: E402
from rtk.runners.torch.detours import Detour, Detours  # noqa: E402
from rtk.runners.torch.gloo import (  # noqa: E402
    GlooTransport,
    Sidestep,
    cover,
    groups_for,
    holds_apart,
)
from rtk.runners.torch.rendezvous import MeetingPlace, all_answer, meetings  # noqa: E402
from rtk.runners.torch.transport import (  # noqa: E402
    LostTouchError,
    Transport,
)
from rtk.schemas.conditions import Conditions, pair_of  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402

if __name__ != "worker":  # which knows no package of tests
    from ..warm import fork
    from .test_transport_epochs import SOON_S, assert_back_to, close_all, held, in_background, in_ranks

SECRET = b"a secret for one test only"
LIMIT = timedelta(seconds=5)


def detours_around(size: int, apart: Iterable[RankPair]) -> tuple[Detour, ...]:
    """The ways that the coordinator finds; none for a pair with nobody between."""
    broken = tuple(pair_of(str(one), str(other)) for one, other in sorted(apart))
    return Ways.under(Conditions(broken_links=broken), [str(rank) for rank in range(size)]).detours


def world(
    size: int,
    detours: tuple[Detour, ...],
    groups: Iterable[tuple[int, ...]] = (),
    sidesteps: Collection[RankPair] = (),
) -> list[Detours]:
    """Connected transports of all ranks, each in those of the groups that it belongs to."""
    store, all_groups = HashStore(), [*groups]

    def make(rank: int) -> Detours:
        own = {group for group in all_groups if rank in group}
        apart = {*sidesteps, *((a, b) for a, b, _ in detours)}
        aside = {sum(pair) - rank: Sidestep("127.0.0.2", lambda: store) for pair in sidesteps if rank in pair}
        inner = GlooTransport(
            store, rank, size, own, hostname="127.0.0.1", connect_limit=LIMIT, apart=apart, sidesteps=aside
        )
        return Detours(inner, detours, rank, sidesteps)

    return in_ranks(size, make)


@st.composite
def worlds(draw: st.DrawFn, most: int) -> tuple[int, tuple[RankPair, ...]]:
    """A number of ranks, and pairs of them."""
    size = draw(st.integers(2, most))
    return size, tuple(draw(st.sets(st.sampled_from(list(combinations(range(size), 2))))))


@given(worlds(8))
def test_every_pair_but_those_apart_shares_one_group(case: tuple[int, tuple[RankPair, ...]]) -> None:
    """The groups connect all pairs that may connect, none twice, and no other; with none apart there is one group."""
    size, apart = case
    groups = groups_for(size, apart)
    connected = [pair for group in groups for pair in combinations(group, 2)]
    assert sorted(connected) == sorted(set(combinations(range(size), 2)) - set(apart))
    assert all(cover(apart).intersection(pair) for pair in apart)
    assert not any(holds_apart(group, apart) for group in groups)
    if not apart:
        assert groups == [tuple(range(size))]


@settings(max_examples=10, deadline=None)
@given(worlds(5), st.sampled_from([slice(0), slice(None), slice(None, None, 2)]))
def test_all_messages_arrive_and_all_sums_are_alike(case: tuple[int, tuple[RankPair, ...]], aside: slice) -> None:
    """Whoever does not reach whom: everybody has a message for everybody, and sums have the same bits for all.

    Some meet on another network, others have detours, which may lead over that.
    """
    size, sidesteps = case[0], case[1][aside]
    apart = {*case[1]} - {*sidesteps}
    detours = detours_around(size, apart)
    groups = [tuple(range(size)), *((one, (one + 1) % size) for one in range(size - 1))]
    transports = world(size, detours, groups, sidesteps)
    reachable = set(combinations(range(size), 2)) - set(apart) | {(a, b) for a, b, _ in detours}

    def talk(rank: int) -> list[Any]:
        others = [other for pair in reachable if rank in pair for other in pair if other != rank]
        mine, sums = transports[rank], []
        for other in others:
            mine.post_receive(7, other, torch.zeros(2, 3))
        for other in others:
            mine.send(7, other, torch.full((2, 3), 10.0 * rank + other))
        received = [mine.receive(7, other) for other in others]
        assert [one.tolist() for one in received] == [[[10.0 * other + rank] * 3] * 2 for other in others]
        for group in groups:
            if rank in group and reachable.issuperset(combinations(group, 2)):
                total = torch.rand(5, generator=torch.Generator().manual_seed(rank))
                mine.all_reduce(group, total)
                sums.append((group, total.numpy().tobytes()))
                exact = sum(torch.rand(5, generator=torch.Generator().manual_seed(one)).double() for one in group)
                assert torch.allclose(total.double(), exact)
        mine.flush()
        return sums

    said = [one for sums in in_ranks(size, talk) for one in sums]
    assert len(set(said)) == len({group for group, _ in said})
    close_all(transports)


def test_messages_of_any_size_and_type_go_a_detour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of many frames, of no elements and of no dimension come as they were sent, in any order of asking."""
    monkeypatch.setattr(detours_module, "FRAME_BYTES", 64)
    transports = world(3, ((0, 1, 2),))
    sent = [
        torch.randn(1000),
        torch.zeros(0, 4),
        torch.tensor(7, dtype=torch.int64),
        torch.randn(9, 5).bfloat16(),
        torch.randn(4, 4).t(),
    ]
    for tag, tensor in enumerate(sent):
        transports[1].post_receive(tag, 0, torch.zeros_like(tensor))
        delivering = in_background(lambda t=tag, x=tensor: transports[0].deliver(t, 1, x))  # type: ignore[misc]
        assert delivering.exception(SOON_S) is None
        transports[0].send(tag, 1, tensor)
    for tag, tensor in reversed(list(enumerate(sent))):
        for _ in range(2):
            transports[1].post_receive(tag, 0, torch.zeros_like(tensor))
            assert torch.equal(transports[1].receive(tag, 0), tensor)
    transports[0].flush()
    close_all(transports)


def test_a_relay_passes_on_whatever_its_rank_does() -> None:
    """Messages go to and fro, and are taken before anybody asks for them, though the rank between touches nothing."""
    transports = world(3, ((0, 2, 1),))
    for number in range(20):
        transports[0].send(number, 2, torch.full((3,), float(number)))
    assert in_background(transports[0].flush).exception(SOON_S) is None
    for number in reversed(range(20)):
        transports[2].post_receive(number, 0, torch.zeros(3))
        assert transports[2].receive(number, 0).tolist() == [number] * 3
    transports[2].send(1, 0, torch.ones(1))
    transports[0].post_receive(1, 2, torch.zeros(1))
    assert transports[0].receive(1, 2).item() == 1
    close_all(transports)


def test_flush_counts_messages_not_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last message is waited for, however many frames that has, and whatever was sent for sums."""
    monkeypatch.setattr(detours_module, "FRAME_BYTES", 8)
    transports = world(3, ((0, 2, 1),), [(0, 2)])
    transports[0].send(1, 2, torch.ones(100))
    transports[0].send(2, 1, torch.ones(1))  # not taken yet
    sums = [in_background(lambda t=one: t.all_reduce((0, 2), torch.ones(50))) for one in transports[::2]]  # type: ignore[misc]
    assert [one.exception(SOON_S) for one in sums] == [None, None]
    transports[0].flush(1)
    blocked = in_background(transports[0].flush)
    time.sleep(0.05)
    assert not blocked.done()
    transports[1].post_receive(2, 0, torch.zeros(1))
    transports[1].receive(2, 0)
    assert blocked.exception(SOON_S) is None
    close_all(transports)


def blocked_receive(transport: Transport) -> Any:
    transport.post_receive(1, 1, torch.zeros(2))
    return transport.receive(1, 1)


def blocked_sum(transport: Transport) -> None:
    transport.all_reduce((0, 1), torch.zeros(2))


def blocked_sum_of_all(transport: Transport) -> None:
    transport.all_reduce((0, 1, 2), torch.zeros(2))


@pytest.mark.parametrize("operation", [blocked_receive, blocked_sum, blocked_sum_of_all])
def test_an_interrupt_wakes_whoever_waits_for_what_goes_a_detour(operation: Callable[[Transport], Any]) -> None:
    """Of peers that live and do nothing; the others lose touch with who was interrupted, and nothing is left."""
    before = held()
    transports = world(3, ((0, 1, 2),), [(0, 1), (0, 1, 2)])
    blocked = in_background(lambda: operation(transports[0]))
    time.sleep(0.05)
    assert not blocked.done()
    transports[0].interrupt()
    assert isinstance(blocked.exception(SOON_S), RuntimeFailedError)
    with pytest.raises(RuntimeFailedError, match="interrupted"):
        transports[0].send(1, 1, torch.zeros(1))
    close_all(transports)
    transports.clear()
    del blocked
    assert_back_to(before)


def test_5_epochs_with_messages_under_way_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays in the midst of messages end with their transports, threads and sockets included, but for gloo's race.

    On a busy machine one epoch in a hundred leaves a relay asleep for ever (see docs/developing.md), and with it its
    transport: 3 threads, 4 descriptors. A relay that did not end by itself would be left behind by every epoch.
    """
    monkeypatch.setattr(detours_module, "FRAME_BYTES", 1024)
    close_all(world(4, ((0, 1, 2), (2, 3, 0))))
    threads, descriptors = held()
    for _ in range(5):
        transports = world(4, ((0, 1, 2), (2, 3, 0)))
        for rank, transport in enumerate(transports):
            transport.send(1, rank ^ 1, torch.zeros(10_000))
        in_ranks(4, lambda rank, transports=transports: transports[rank].close())  # type: ignore[misc]
    del transports, transport
    assert_back_to((threads + 3, descriptors + 4))


def test_errors_name_the_rank_that_was_lost() -> None:
    """A receive names its source, a flush who should take the message, a sum of two the other, a relay who."""
    transports = world(4, ((0, 1, 2),), [(0, 3)])
    transports[3].post_receive(1, 0, torch.zeros(1))
    transports[2].send(1, 0, torch.zeros(1))
    waiting: list[Future[Any]] = [
        in_background(lambda: transports[3].receive(1, 0)),
        in_background(transports[2].flush),
        in_background(lambda: transports[3].all_reduce((0, 3), torch.zeros(1))),
    ]
    time.sleep(0.05)
    transports[0].close()
    for one in waiting:
        error = one.exception(SOON_S)
        assert isinstance(error, LostTouchError) and error.peer == 0
    deadline_s = time.monotonic() + SOON_S
    with pytest.raises(LostTouchError) as caught:
        while time.monotonic() < deadline_s:
            transports[2].post_receive(1, 3, torch.zeros(1))
            time.sleep(0.01)
    assert caught.value.peer == 0
    close_all(transports)


def test_ranks_meet_where_they_reach_each_other() -> None:
    """Every group meets at its lowest rank's place, so nobody asks at a place that it does not reach."""
    places, asked = [MeetingPlace(SECRET) for _ in range(4)], []
    detours = detours_around(4, [(0, 1), (2, 3)])
    assert len(detours) == 2

    def make(rank: int) -> Detours:
        at = meetings([place.address for place in places], SECRET, 1)

        def noted(other: int) -> Any:
            asked.append((min(rank, other), max(rank, other)))
            return at(other)

        own = {group for group in ((0, 1), (0, 2), (1, 3)) if rank in group}
        inner = GlooTransport(noted, rank, 4, own, hostname="127.0.0.1", apart={(0, 1), (2, 3)})
        return Detours(inner, detours, rank)

    transports = in_ranks(4, make)
    assert not {(0, 1), (2, 3)}.intersection(asked)
    close_all(transports)
    for place in places:
        place.close()


def test_a_place_that_does_not_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several meeting places, the first that is gone is named, and ends a wait for connections that do not come."""
    places = [MeetingPlace(SECRET) for _ in range(3)]
    addresses = [place.address for place in places]
    all_answer(addresses, SECRET)
    places[1].close()
    monkeypatch.setattr(rendezvous, "DOUBT_S", 0.1)
    short = timedelta(seconds=0.5)
    with pytest.raises(LostTouchError) as caught:
        rendezvous.connect(
            lambda: GlooTransport(HashStore(), 0, 2, [], connect_limit=short),
            Future(),
            lambda: all_answer(addresses, SECRET),
        )
    assert caught.value.peer == 1
    all_answer(addresses, SECRET, but={1})
    for place in places:
        place.close()


# ---- Real links that are cut -----------------------------------------------------------------------------------------

SIZE, CUT = 4, ((0, 1), (0, 3))
GROUPS = ((0, 1), (0, 1, 2, 3), (1, 2))


def work(namespace: str, host: str, rank: int, folder: Path) -> None:
    """One rank in its node: connect, exchange messages with everybody, sum, and write down what came of it."""
    enter(namespace)
    torch.set_num_threads(1)
    place = MeetingPlace(SECRET, host)
    (folder / f"part-{rank}").write_text(place.address)
    (folder / f"part-{rank}").rename(folder / f"address-{rank}")
    files = [folder / f"address-{other}" for other in range(SIZE)]
    while not all(file.exists() for file in files):
        time.sleep(0.01)
    own = [group for group in GROUPS if rank in group]
    at = meetings([file.read_text() for file in files], SECRET, 1)
    inner = GlooTransport(at, rank, SIZE, own, hostname=host, connect_limit=LIMIT, apart=CUT)
    transport = Detours(inner, ((0, 1, 2), (0, 3, 2)), rank)
    others = [other for other in range(SIZE) if other != rank]
    for other in others:
        transport.post_receive(1, other, torch.zeros(1))
        transport.send(1, other, torch.tensor([10.0 * rank + other]))
    heard = [transport.receive(1, other).item() for other in others]
    sums = [torch.tensor([float(rank), 0.1]) for _ in own]
    for group, total in zip(own, sums, strict=True):
        transport.all_reduce(group, total)
    (folder / f"result-{rank}").write_text(json.dumps([heard, [total.tolist() for total in sums]]))
    transport.flush()
    place.close()


@pytest.mark.skipif(__name__ == "worker" or not is_usable(), reason="needs root, TUN devices and network namespaces")
def test_ranks_whose_links_are_cut_work_together(tmp_path: Path) -> None:
    """Real processes, each in its own node, talk and sum though rank 0 reaches only one of the others."""
    names = [str(rank) for rank in range(SIZE)]
    with SlowNetwork(names) as network:
        for one, other in CUT:
            network.cut(names[one], names[other])
            network.cut(names[other], names[one])
        ranks = [
            fork(__file__, network.namespace(name), network.address(name), rank, tmp_path)
            for rank, name in enumerate(names)
        ]
        for process in ranks:
            process.join(30)
    for rank in range(SIZE):
        heard, sums = json.loads((tmp_path / f"result-{rank}").read_text())
        assert heard == [10.0 * other + rank for other in range(SIZE) if other != rank]
        assert sums == [[sum(group), pytest.approx(0.1 * len(group))] for group in GROUPS if rank in group]


if __name__ == "worker":
    work(*globals()["ARGUMENTS"])
