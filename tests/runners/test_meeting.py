"""Where the workers of an epoch find each other."""

import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rtk.runners.addresses import format_address, parse_address  # noqa: E402
from rtk.runners.resilience.protocol import Challenge, Refused, encode, from_coordinator  # noqa: E402
from rtk.runners.resilience.wire import prove  # noqa: E402
from rtk.runners.torch import rendezvous  # noqa: E402
from rtk.runners.torch.gloo import GlooTransport  # noqa: E402
from rtk.runners.torch.rendezvous import KEY_LENGTH, KEYS_AT_ONCE, PURPOSE, VALUE_BYTES, MeetingPlace, NoticeBoard, meet  # noqa: E402
from rtk.schemas.errors import RuntimeFailedError  # noqa: E402

SECRET = b"a secret for one test only"
SOON_S = 60.0  # on the busiest machine


@pytest.fixture
def place() -> Iterator[MeetingPlace]:
    """A meeting place on loopback."""
    place = MeetingPlace(SECRET)
    yield place
    place.close()


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_workers_of_an_epoch_see_each_others_keys(place: MeetingPlace) -> None:
    """What one client sets another one gets, unless they came for different epochs."""
    one, other, later = meet(place.address, SECRET, 1), meet(place.address, SECRET, 1), meet(place.address, SECRET, 2)
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
    meet(place.address, SECRET, 0)
    before = descriptors()
    for epoch in range(20):
        meet(place.address, SECRET, epoch).set("key", "value")
    deadline = time.monotonic() + SOON_S
    while descriptors() > before + 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_worker_that_is_gone_is_noticed_at_once() -> None:
    """Nobody listens there any more: an error of ours, without waiting for the limit."""
    place = MeetingPlace(SECRET)
    place.close()
    start = time.monotonic()
    with pytest.raises(RuntimeFailedError, match="refused"):
        meet(place.address, SECRET, 1, timedelta(seconds=2 * SOON_S))
    assert time.monotonic() - start < SOON_S


def test_a_worker_that_does_not_answer_is_given_up() -> None:
    """A stopped process's socket still accepts; waiting for its answer ends with the limit."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = format_address("127.0.0.1", mute.getsockname()[1])
        with pytest.raises(RuntimeFailedError, match="no answer"):
            meet(address, SECRET, 1, timedelta(seconds=0.3))


def test_waits_at_a_closed_meeting_place_fail() -> None:
    """A wait for a key ends when its host goes away."""
    place = MeetingPlace(SECRET)
    store = meet(place.address, SECRET, 1, timedelta(seconds=2 * SOON_S))
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
        place = MeetingPlace(SECRET, "::1")
    except RuntimeFailedError:
        pytest.skip("no IPv6 on this machine")
    one = meet(place.address, SECRET, 1)
    one.set("key", "value")
    assert meet(place.address, SECRET, 1).get("key") == b"value"


def test_an_interface_of_another_machine_is_refused() -> None:
    """A meeting place is on this machine."""
    with pytest.raises(RuntimeFailedError, match="cannot listen"):
        MeetingPlace(SECRET, "192.0.2.1")


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"a": 1}\n', bytes(range(256)) * 8192])
def test_garbage_ends_its_own_connection_only(place: MeetingPlace, data: bytes) -> None:
    """Whatever a stranger says, the workers of an epoch still find each other."""
    one, other = meet(place.address, SECRET, 1), meet(place.address, SECRET, 1)
    with socket.create_connection(parse_address(place.address), SOON_S) as stranger:
        with suppress(OSError):
            stranger.sendall(data)
        with suppress(ConnectionResetError):
            assert stranger.makefile("rb").read().count(b"\n") == 1  # the challenge
    threading.Timer(0.05, lambda: one.set("key", b"\0\xff")).start()
    other.wait(["key"], timedelta(seconds=SOON_S))
    assert other.get("key") == b"\0\xff"


def test_keys_of_old_epochs_are_thrown_away(place: MeetingPlace) -> None:
    """A meeting place that serves many epochs keeps the keys of the latest; those of a moment ago are still there."""
    early = meet(place.address, SECRET, 1)
    early.set("key", "value")
    for epoch in range(2, 6):
        meet(place.address, SECRET, epoch).set("key", "")
    assert early.check(["key"])
    later = meet(place.address, SECRET, 50)
    later.check(["key"])
    assert early.check(["key"])
    later.set("key", "later")
    assert later.check(["key"])
    assert not early.check(["key"])
    early.set("key", "too late")
    assert not early.check(["key"])
    assert later.get("key") == b"later"


class Visitor:
    """Somebody who speaks to a meeting place line by line."""

    def __init__(self, place: MeetingPlace, secret: bytes | None = None, purpose: str = PURPOSE) -> None:
        self.socket = socket.create_connection(parse_address(place.address), SOON_S)
        self.file = self.socket.makefile("rb")
        challenge = from_coordinator(self.file.readline())
        assert isinstance(challenge, Challenge)
        self.nonce = challenge.nonce
        if secret is not None:
            self.say("prove", prove(secret, self.nonce, purpose))

    def say(self, *words: object) -> None:
        """One line."""
        with suppress(OSError):
            self.socket.sendall(json.dumps(words).encode() + b"\n")

    def hears(self) -> object:
        """The next line; None where it was hung up."""
        with suppress(OSError):
            line = self.file.readline()
            return json.loads(line) if line else None
        return None

    def close(self) -> None:
        """Go."""
        self.file.close()
        self.socket.close()


STRANGE = [
    ("set", 1, "key", "00"),
    ("set", 10**8, "key", "00"),
    ("see", 10**8, ["key"]),
    ("wait", 1, ["key"]),
    ("get", 1, "key"),
    ("prove", "0" * 64),
]


@pytest.mark.parametrize("saying", STRANGE)
def test_strangers_leave_no_trace(place: MeetingPlace, saying: tuple[object, ...]) -> None:
    """Who has not shown that it knows the secret is refused, puts up nothing, and ages nothing."""
    member = meet(place.address, SECRET, 1)
    member.set("key", "value")
    stranger = Visitor(place)
    stranger.say(*saying)
    refusal = stranger.hears()
    assert isinstance(refusal, dict) and refusal["kind"] == "refused"
    assert stranger.hears() is None
    assert member.get("key") == b"value"
    assert not meet(place.address, SECRET, 10**8).check(["key"])
    stranger.close()


@pytest.mark.parametrize(("secret", "purpose"), [(b"another secret altogether", PURPOSE), (SECRET, "")])
def test_a_proof_of_something_else_is_none(place: MeetingPlace, secret: bytes, purpose: str) -> None:
    """Another job's secret opens nothing, nor does what a worker has shown to a coordinator."""
    stranger = Visitor(place, secret, purpose)
    refusal = stranger.hears()
    assert isinstance(refusal, dict) and refusal["reason"] == "it does not know the job's secret"
    with pytest.raises(RuntimeFailedError, match="refuses this worker: it does not know the job's secret"):
        meet(place.address, b"another secret altogether", 1)
    stranger.close()


def test_a_proof_that_was_overheard_opens_nothing(place: MeetingPlace) -> None:
    """Every connection is asked something else."""
    one, stranger = Visitor(place, SECRET), Visitor(place)
    stranger.say("prove", prove(SECRET, one.nonce, PURPOSE))
    assert isinstance(stranger.hears(), dict)
    one.say("see", 1, [])
    assert one.hears() == []
    one.close()
    stranger.close()


@pytest.mark.parametrize("said", [b"", encode(Refused("too many others are waiting to say hello", retry=True))])
def test_who_is_turned_away_knocks_again(said: bytes) -> None:
    """Where many come at once, those who wait make room for each other; the next try finds some."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = format_address(*listener.getsockname())

    boards: list[NoticeBoard] = []

    def turn_two_away() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            connection.sendall(said)
            connection.close()
        boards.append(NoticeBoard(listener, SECRET))

    threading.Thread(target=turn_two_away).start()
    assert meet(address, SECRET, 1).check([])
    boards[0].close()


TOO_MUCH = [
    ("set", 1, "key", "00" * (VALUE_BYTES + 1)),
    ("set", 1, "key", "no hexadecimal"),
    ("set", 1, "k" * (KEY_LENGTH + 1), "00"),
    ("set", -1, "key", "00"),
    ("see", 1, ["key", "key"]),
    ("wait", 1, [f"{n}" for n in range(KEYS_AT_ONCE + 1)]),
    ("see", 10**12, []),
    ("prove", "again"),
]


@pytest.mark.parametrize("saying", TOO_MUCH)
def test_what_is_too_much_ends_its_own_connection(place: MeetingPlace, saying: tuple[object, ...]) -> None:
    """Also of one who knows the secret: values, keys and how many there are have their bounds, and none comes twice."""
    member = meet(place.address, SECRET, 1)
    member.set("key", b"x" * VALUE_BYTES)
    visitor = Visitor(place, SECRET)
    visitor.say(*saying)
    assert visitor.hears() is None
    assert member.get("key") == b"x" * VALUE_BYTES
    visitor.close()


def test_a_notice_that_no_board_takes_is_not_sent(place: MeetingPlace) -> None:
    """It is an error of who would put it up."""
    with pytest.raises(RuntimeError, match="a meeting place takes 64 KiB"):
        meet(place.address, SECRET, 1).set("key", b"x" * (VALUE_BYTES + 1))


def test_answers_that_nobody_reads_do_not_pile_up(place: MeetingPlace) -> None:
    """Who asks on and on and reads nothing is parted with; what has been written for it stays small."""
    meet(place.address, SECRET, 1).set("key", b"x" * VALUE_BYTES)
    deaf = Visitor(place, SECRET)
    asking = b'["get", 1, "key"]\n' * 100
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        for _ in range(1000):
            deaf.socket.sendall(asking)
            time.sleep(0.01)
    meet(place.address, SECRET, 1)
    deaf.close()


def test_a_full_board_keeps_the_notices_of_the_newest_epoch(
    place: MeetingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no room those of older epochs go; a newest one that alone is too much ends who puts it up."""
    monkeypatch.setattr(rendezvous, "HELD_BYTES", 10_000)
    one, other = meet(place.address, SECRET, 1), meet(place.address, SECRET, 2)
    one.set("key", b"x" * 2_000)
    assert one.check(["key"])
    other.set("first", b"x" * 2_000)
    other.set("second", b"x" * 2_000)
    assert other.check(["first", "second"])
    assert not one.check(["key"])
    other.set("third", b"x" * 2_000)
    with pytest.raises(RuntimeError):
        other.check(["third"])
    assert meet(place.address, SECRET, 2).check(["first", "second"])


def test_gloo_meets_here_without_asking_for_names(place: MeetingPlace) -> None:
    """Two ranks connect over a meeting place that knows its visitors by their numbers only."""
    sums = {}

    def work(rank: int) -> None:
        store = meet(place.address, SECRET, 1)
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
