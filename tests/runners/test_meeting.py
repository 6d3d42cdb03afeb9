"""Where the workers of an epoch find each other."""

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rtk.runners.resilience.addresses import format_address, parse_address  # noqa: E402
from rtk.runners.torch.gloo import GlooTransport  # noqa: E402
from rtk.runners.torch.meeting import MeetingPlace, meet  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402

SOON_S = 60.0  # on the busiest machine


@pytest.fixture
def place() -> Iterator[MeetingPlace]:
    """A meeting place on loopback."""
    place = MeetingPlace()
    yield place
    place.close()


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_workers_of_an_epoch_see_each_others_keys(place: MeetingPlace) -> None:
    """What one client sets another one gets, unless they came for different epochs."""
    one, other, later = meet(place.address, 1), meet(place.address, 1), meet(place.address, 2)
    one.set("key", "value")
    assert other.get("key") == b"value"
    assert not later.check(["key"])


def test_nothing_listens_on_other_interfaces(place: MeetingPlace) -> None:
    """The port is open on the given address only."""
    host, port = parse_address(place.address)
    assert host == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 1)


def test_epochs_leave_no_connection(place: MeetingPlace) -> None:
    """A client ends with its epoch, on both sides."""
    meet(place.address, 0)
    before = descriptors()
    for epoch in range(20):
        meet(place.address, epoch).set("key", "value")
    deadline = time.monotonic() + SOON_S
    while descriptors() > before + 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_that_is_gone_is_noticed_at_once() -> None:
    """Nobody listens there any more: an error of ours, without waiting for the limit."""
    place = MeetingPlace()
    place.close()
    start = time.monotonic()
    with pytest.raises(RuntimeFailedError, match="refused"):
        meet(place.address, 1, timedelta(seconds=2 * SOON_S))
    assert time.monotonic() - start < SOON_S


def test_a_worker_that_does_not_answer_is_given_up() -> None:
    """A stopped process's socket still accepts; waiting for its answer ends with the limit."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = format_address("127.0.0.1", mute.getsockname()[1])
        with pytest.raises(RuntimeFailedError, match="no answer"):
            meet(address, 1, timedelta(seconds=0.3))


def test_waits_at_a_closed_meeting_place_fail() -> None:
    """A wait for a key ends when its host goes away."""
    place = MeetingPlace()
    store = meet(place.address, 1, timedelta(seconds=2 * SOON_S))
    threading.Timer(0.2, place.close).start()
    start = time.monotonic()
    with pytest.raises(RuntimeError):
        store.get("never set")
    assert time.monotonic() - start < SOON_S


def test_ipv6_addresses_are_written_in_brackets() -> None:
    """An address with colons of its own can be told from its port, in text and on the wire."""
    assert format_address("::1", 80) == "[::1]:80"
    assert parse_address("[fe80::1%eth0]:80") == ("fe80::1%eth0", 80)
    assert parse_address("node-1.cluster:29500") == ("node-1.cluster", 29500)
    try:
        place = MeetingPlace("::1")
    except RuntimeFailedError:
        pytest.skip("no IPv6 on this machine")
    one = meet(place.address, 1)
    one.set("key", "value")
    assert meet(place.address, 1).get("key") == b"value"


def test_an_interface_of_another_machine_is_refused() -> None:
    """A meeting place is on this machine."""
    with pytest.raises(RuntimeFailedError, match="cannot listen"):
        MeetingPlace("192.0.2.1")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"a": 1}\n', bytes(range(256)) * 8192])
def test_garbage_ends_its_own_connection_only(place: MeetingPlace, data: bytes) -> None:
    """Whatever a stranger says, the workers of an epoch still find each other."""
    one, other = meet(place.address, 1), meet(place.address, 1)
    with socket.create_connection(parse_address(place.address), SOON_S) as stranger:
        with suppress(OSError):
            stranger.sendall(data)
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    threading.Timer(0.05, lambda: one.set("key", b"\0\xff")).start()
    other.wait(["key"], timedelta(seconds=SOON_S))
    assert other.get("key") == b"\0\xff"


def test_keys_of_old_epochs_are_thrown_away(place: MeetingPlace) -> None:
    """A meeting place that serves many epochs keeps the keys of the latest; those of a moment ago are still there."""
    early = meet(place.address, 1)
    early.set("key", "value")
    for epoch in range(2, 6):
        meet(place.address, epoch)
    assert early.check(["key"])
    meet(place.address, 50).check(["key"])
    assert not early.check(["key"])


def test_gloo_meets_here_without_asking_for_names(place: MeetingPlace) -> None:
    """Two ranks connect over a meeting place that knows its visitors by their numbers only."""
    sums = {}

    def work(rank: int) -> None:
        store = meet(place.address, 1)
        transport = GlooTransport(store, rank, 2, {(0, 1)}, hostname="127.0.0.1")
        value = torch.ones(3)
        transport.all_reduce((0, 1), value)
        sums[rank] = value.tolist()
        transport.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert sums == {0: [2.0] * 3, 1: [2.0] * 3}
