"""The coordinator's port and clockwork: who is let in, who counts as lost, and in which order things happen."""

import asyncio
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.addresses import format_address, parse_address
from rtk.runners.resilience import server as server_module
from rtk.runners.resilience.announcements import Announcement, IterationRedone, LogLost, PlanKept, WorkerGaveUp
from rtk.runners.resilience.events import Arrived, Lost, Restarted, Said
from rtk.runners.resilience.journal import read_events, take
from rtk.runners.resilience.protocol import (
    STRANGER_BYTES,
    Beat,
    Bye,
    Challenge,
    Commit,
    End,
    Epoch,
    Failed,
    FromWorker,
    Leaving,
    Refused,
    Spans,
    Suspect,
    Vote,
    Welcome,
    encode,
    from_coordinator,
)
from rtk.runners.resilience.server import Finished, Server, Surroundings
from rtk.runners.resilience.supervisor import Supervisor
from rtk.runners.resilience.wire import RationedLog, is_proof, make_secret, prove, read_secret
from rtk.runners.training import SECRET as SECRET_NAME
from rtk.schemas.conditions import HEALTHY, Conditions
from rtk.schemas.errors import InfeasibleError, InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.protocols import Hand, Replanned
from rtk.schemas.resumption import Rest

from .toy import ALONE, JOB, PLAN, SECRET, Running, Toy, hello, running

SOON_S = 60.0  # on the busiest machine


class Member:
    """A worker, byte by byte."""

    def __init__(self, address: str, worker: str = "0/0", secret: bytes = SECRET) -> None:
        self.socket = socket.create_connection(parse_address(address), timeout=SOON_S)
        self.file = self.socket.makefile("rb")
        challenge = self.next()
        assert isinstance(challenge, Challenge)
        self.say(hello(prove(secret, challenge.nonce), worker))
        self.answer = self.next()

    def say(self, message: FromWorker) -> None:
        self.socket.sendall(encode(message))

    def next(self) -> Any:
        line = self.file.readline()
        return from_coordinator(line) if line else None

    def votes(self, iteration: int) -> None:
        """Vote, and be answered."""
        self.say(Vote(0, iteration, True, (0,)))
        assert self.next() == Commit(0, iteration)

    def close(self) -> None:
        self.file.close()
        self.socket.close()


@contextmanager
def member(address: str, worker: str = "0/0", secret: bytes = SECRET) -> Iterator[Member]:
    joined = Member(address, worker, secret)
    try:
        yield joined
    finally:
        joined.close()


def wait_for(condition: Callable[[], Any], limit_s: float = SOON_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def stranger(address: str, data: bytes) -> bytes:
    """Say something, nothing more, and read until the end."""
    said = b""
    with socket.create_connection(parse_address(address), timeout=SOON_S) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                said += piece
        except OSError:
            pass
    return said


def test_a_worker_is_welcomed() -> None:
    """Who knows the secret is told how often to beat and what its worker is to play; the rules hear of it."""
    inject = ({"kind": "fail"},)
    surroundings = {"welcome": lambda hello: Welcome(0.0, 0.0, "", True, inject if hello.worker == "1/0" else ())}
    with running(surroundings=surroundings) as server, member(server.address, "1/0") as worker:
        assert worker.answer.heartbeat_s == 30 / 8
        assert worker.answer.spans
        assert worker.answer.inject == inject
        assert worker.answer.host == socket.gethostname()
        assert worker.answer.now_s == pytest.approx(time.perf_counter(), abs=SOON_S)
        assert [event.hello.worker for event in server.toy.arrivals()] == ["1/0"]


def test_wrong_secret() -> None:
    """A worker with another secret is refused with one log line, which does not say the proof."""
    with running() as server, member(server.address, secret=b"x" * 16) as worker:
        assert worker.answer == Refused("it does not know the job's secret")
        assert worker.next() is None
        assert len(server.lines) == 1
        assert server.lines[0].endswith("it does not know the job's secret")
        assert not server.toy.heard


def test_a_proof_is_good_for_one_connection() -> None:
    """A proof that was overheard does not open another connection."""
    with running() as server:
        with socket.create_connection(parse_address(server.address)) as first:
            nonce = json.loads(first.makefile("rb").readline())["nonce"]
        answer = stranger(server.address, encode(hello(prove(SECRET, nonce))))
        assert b"does not know" in answer


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Running, Member]]:
    """A server with one member, for many strangers."""
    with running(limits={"log_lines": 10**9}) as server, member(server.address) as worker:
        yield server, worker


SAYINGS: list[FromWorker] = [Beat(), Vote(0, 1, True, ()), Bye(), hello("\u00e9"), Failed(2, "x")]
GARBAGE = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=50).map(str.encode),
    st.sampled_from([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\n" * 1000, b""]),
    st.sampled_from([encode(saying) for saying in SAYINGS]),
    st.integers(STRANGER_BYTES - 1, STRANGER_BYTES + 2).map(lambda size: b"[" * size + b"\n"),
    st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(
        lambda value: json.dumps({"kind": "hello", "job": value}).encode() + b"\n"
    ),
)


@settings(max_examples=80)
@given(data=GARBAGE)
def test_garbage(shared: tuple[Running, Member], data: bytes) -> None:
    """Whatever strangers say costs one printable log line each; the rules and the members notice nothing."""
    server, worker = shared
    lines, events = len(server.lines), len(server.toy.heard)
    stranger(server.address, data)
    wait_for(lambda: len(server.lines) > lines)
    assert len(server.toy.heard) == events
    worker.votes(server.toy.committed + 1)
    assert len(server.lines) == lines + 1
    assert server.lines[-1].startswith("refused 127.0.0.1:")
    assert server.lines[-1].isprintable()
    assert server.lines[-1].isascii()
    assert len(server.lines[-1]) < 300


def test_an_endless_line() -> None:
    """A stranger's line without an end is cut off at 64 KiB."""
    with running() as server:
        stranger(server.address, b"x" * 10 * STRANGER_BYTES)
        wait_for(lambda: server.lines)
        assert "more than 64 KiB" in server.lines[0]


def test_a_flood_of_the_silent() -> None:
    """Hundreds of connections that say nothing: members go on, newcomers get in, the log stays short."""
    limits = {"strangers": 20, "log_lines": 5}
    with running(limits=limits) as server, member(server.address) as worker:
        silent = [socket.create_connection(parse_address(server.address)) for _ in range(200)]
        worker.votes(0)
        with member(server.address, "0/1") as newcomer:
            assert isinstance(newcomer.answer, Welcome)
        assert len(server.server._strangers) <= 20
        for connection in silent:
            connection.close()
        wait_for(lambda: not server.server._strangers)
        worker.votes(1)
        assert len(server.lines) == 5


def test_withheld_lines_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """When strangers may cause a line again, it says how many were not written down."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines: list[str] = []
    log = RationedLog(lines.append, 1, 10.0)
    for text in "abc":
        log(text)
    now[0] = 10.5
    log("d")
    assert lines == ["a", "d (and 2 more that were not written down)"]


def test_who_says_nothing_is_sent_away() -> None:
    """A stranger that does not say hello in time may come again, but is not waited for."""
    with running(limits={"hello_s": 0.05}) as server:
        with socket.create_connection(parse_address(server.address), timeout=SOON_S) as connection:
            said = connection.makefile("rb").read()
        assert b'"retry":true' in said
        assert len(server.lines) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{}\n", "said something that is no message"),
        (encode(Challenge("x")), "said something that is no message"),
        (b"x" * 2_000_000, "said a line of more than 976.6 KiB"),
        (encode(hello("p")), "said hello twice"),
        (encode(Bye()), "said bye"),
        (encode(Failed(5, "no memory")), "no memory"),
    ],
)
def test_lost_for_what_was_said(data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that says what it must not, or that it goes, is lost once, with the reason."""
    monkeypatch.setattr(server_module, "MEMBER_BYTES", 1_000_000)
    with running() as server, member(server.address) as worker:
        try:
            worker.socket.sendall(data)
            worker.file.read()
        except ConnectionError:
            pass
        wait_for(server.toy.losses)
    assert server.toy.losses() == [reason]


@pytest.mark.parametrize("reset", [False, True])
def test_a_closed_connection(reset: bool) -> None:
    """A connection that ends, cleanly or not, is a loss at once."""
    with running() as server:
        worker = Member(server.address)
        if reset:
            worker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        worker.close()
        wait_for(server.toy.losses)
        assert server.toy.losses() == ["connection closed"]


def test_a_death_that_is_told_before_the_connection_ends() -> None:
    """What the worker has said before counts; then it is lost, and only the process that is meant."""
    with running() as server, member(server.address, "0/0") as worker, member(server.address, "1/0") as other:
        server.server.mourn("0/0", 1_000_000)
        server.server.mourn("1/1", 0)
        worker.votes(0)
        worker.say(Vote(0, 1, True, (0,)))
        server.server.mourn("0/0", 0)
        wait_for(server.toy.losses)
        assert server.toy.losses() == ["connection closed"]
        assert worker.next() == Commit(0, 1)
        other.votes(0)


def test_a_supervisor_tells_of_a_death() -> None:
    """It has to know the secret, and nothing comes of a process that no member is."""
    for secret, pid, is_lost in ((b"another one, as long", 0, False), (SECRET, 1_000_000, False), (SECRET, 0, True)):
        with running() as server, member(server.address, "0/0") as worker:
            one = Supervisor(None, "0/0", [], {SECRET_NAME: secret.decode()}, [server.address])  # type: ignore[arg-type]
            one._tell_of_death("0/0", pid)
            if is_lost:
                wait_for(server.toy.losses)
            else:
                worker.votes(0)
            assert len(server.toy.losses()) == is_lost


@pytest.fixture
def forward_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how much the clock of event loops is put forward, in s."""
    ahead_s = [0.0]
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda loop: time.monotonic() + ahead_s[0])
    return ahead_s


def test_silence(forward_s: list[float]) -> None:
    """A member that is silent for longer than the limit is lost, within twice the limit; one that speaks is not."""
    with (
        running(limits={"heartbeat_s": 40.0}) as server,
        member(server.address),
        member(server.address, "0/1") as lively,
    ):
        for second in range(80):
            forward_s[0] += 1.0
            lively.votes(second)
        (reason,) = server.toy.losses()
        assert 40 < float(reason.removeprefix("silent for ").removesuffix(" s")) < 80
        assert list(server.toy.live.values()) == ["0/1"]


def test_the_coordinators_own_stall(forward_s: list[float]) -> None:
    """Time in which the coordinator itself did not run is not counted as a member's silence."""

    def stall(what: Announcement) -> None:
        forward_s[0] += 1000.0

    surroundings = {"announce": stall}
    with (
        running(limits={"heartbeat_s": 40.0}, surroundings=surroundings) as server,
        member(server.address),
        member(server.address, "0/1") as lively,
    ):
        lively.say(Suspect(0, "stall"))
        for second in range(30):
            forward_s[0] += 1.0
            lively.votes(second)
        assert not server.toy.losses()
        for second in range(30, 80):
            forward_s[0] += 1.0
            lively.votes(second)
        assert len(server.toy.losses()) == 1


def test_who_does_not_read() -> None:
    """A member that leaves more unread than the limit is lost; the others are served meanwhile."""
    with running(limits={"unread_bytes": 2_000_000}) as server, member(server.address) as deaf:
        with member(server.address, "0/1") as other:
            deaf.say(Suspect(0, "big"))
            wait_for(server.toy.losses)
            other.votes(0)
        assert server.toy.losses()[0] == "does not read its messages"


def test_dropped() -> None:
    """Who is dropped still hears what it was told, and the rules hear no more of it."""
    with running() as server, member(server.address) as worker:
        worker.say(Suspect(0, "drop"))
        worker.say(Beat())
        assert worker.next() == Commit(0, 7)
        assert worker.next() is None
        worker.close()
        time.sleep(0.05)
        assert not server.toy.losses()


def test_refused_by_the_rules() -> None:
    """A worker that the rules refuse is not welcomed first."""
    with running() as server, member(server.address, "refused") as worker:
        assert worker.answer == Refused("no such place")


@pytest.mark.parametrize(
    ("error", "reason"),
    [(InfeasibleError("nobody is left"), "nobody is left"), (ValueError("x"), "the planner failed: ValueError('x')")],
)
def test_plans(error: Exception, reason: str) -> None:
    """Plans are made beside the loop; a planner that fails says why there is no plan."""
    go = threading.Event()

    def make_plan(plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Any:
        assert (plan, crew) == (ALONE, (Hand("0/0", None, None),))
        go.wait(SOON_S)
        raise error

    with running(surroundings={"make_plan": make_plan}) as server, member(server.address) as worker:
        worker.say(Suspect(0, "plan"))
        worker.votes(0)  # while the planner works
        go.set()
        wait_for(lambda: server.announced)
        assert server.announced == [PlanKept(reason=reason)]


@pytest.mark.parametrize(
    ("resume", "reason"),
    [
        (None, "nobody plans what is left"),
        (InfeasibleError("it is as quick"), "it is as quick"),
        (ValueError("x"), "the planner failed: ValueError('x')"),
        (Rest(3, (), ()), "what was planned is left of something else"),
        (Rest(4, (), ()), "what was planned is for other workers"),
    ],
)
def test_what_is_left_is_planned_in_the_same_thread(resume: Any, reason: str) -> None:
    """Whatever comes of it, it has an answer: what is left, or why all is to be done anew."""
    threads: list[str] = []

    def planned(plan: Plan, seats: Any, iteration: int, standings: Any, conditions: Conditions) -> Any:
        assert (plan, seats, iteration, standings, conditions) == (ALONE, (("0/0", (0, 0)),), 4, (), HEALTHY)
        threads.append(threading.current_thread().name)
        if isinstance(resume, Exception):
            raise resume
        return resume

    with (
        running(surroundings={"resume": planned if resume else None}) as server,
        member(server.address) as worker,
    ):
        worker.say(Suspect(0, "rest"))
        wait_for(lambda: server.announced)
        assert server.announced == [IterationRedone(reason=reason)]
        assert threads == ["planner"] * (resume is not None)


def test_timers() -> None:
    """A wake-up that was asked for comes back."""
    with running() as server, member(server.address) as worker:
        worker.say(Suspect(0, "wake"))
        wait_for(lambda: server.announced)
        assert server.announced == [LogLost(reason="snooze")]


def test_spans_do_not_reach_the_rules() -> None:
    """What was executed when goes to who draws it."""
    with running() as server, member(server.address) as worker:
        worker.say(Spans("0/0", (("F0", 1.0, 2.0, 3),)))
        worker.votes(0)
        assert server.spans == [("0/0", "0/0", (("F0", 1.0, 2.0, 3),))]
        assert [type(event) for event in server.toy.heard] == [Arrived, Said]


def test_done() -> None:
    """When the rules finish, workers hear it, are waited for, and the server returns how it ended."""
    with running(limits={"finish_s": 2 * SOON_S}) as server, member(server.address) as worker:
        worker.say(Leaving())
        assert worker.next() == End(0, "done")
        worker.say(Spans("0/0", ()))
        with member(server.address, "late") as late:
            assert isinstance(late.answer, Welcome)
            assert late.next() == End(0, "done")
        start_s = time.monotonic()
        worker.say(Bye())
        assert worker.next() is None
        worker.close()
        assert server.join() == Finished(0, "done")
        assert time.monotonic() - start_s < SOON_S
        assert len(server.spans) == 1
        assert not server.toy.losses()


def test_wrong_input_ends_the_job() -> None:
    """A worker that finds the input wrong (exit code 2) ends the job for all with its message."""
    with running() as server, member(server.address) as worker, member(server.address, "0/1") as other:
        worker.say(Failed(2, "no such file"))
        assert other.next() == End(2, "no such file")
        other.close()
        worker.close()
        assert server.join() == Finished(2, "no such file")
        assert server.announced[0] == WorkerGaveUp(worker="0/0", exit_code=2, message="no such file")


def test_wrong_input_of_one_that_comes_later_ends_nothing() -> None:
    """What is wrong where a worker joins a job that has begun is wrong there only."""
    with running() as server, member(server.address) as worker, member(server.address, "0/1") as late:
        worker.say(Suspect(0, "place"))
        assert isinstance(worker.next(), Epoch)
        late.say(Failed(2, "no such file"))
        late.close()
        wait_for(server.toy.losses)
        worker.say(Suspect(0, "place"))
        assert isinstance(worker.next(), Epoch)
        worker.say(Failed(2, "no such row"))
        worker.close()
        assert server.join() == Finished(2, "no such row")


def test_an_end_from_outside() -> None:
    """`finish` from another thread tells all workers."""
    with running() as server, member(server.address) as worker:
        server.server.finish(130, "interrupted")
        assert worker.next() == End(130, "interrupted")
        worker.close()
        assert server.join() == Finished(130, "interrupted")


def test_rules_that_fail() -> None:
    """An error in the rules leaves the server as it is, and closes everything."""
    with running() as server, member(server.address) as worker:
        worker.say(Suspect(0, "fail"))
        assert isinstance(server.join(), ZeroDivisionError)
        assert worker.next() is None


def test_restart(tmp_path: Path) -> None:
    """A coordinator on the log of another knows what that one knew, says that it is another, and counts on."""
    for turn in range(2):
        journal = take(tmp_path / "log", plan=PLAN, job=JOB)
        with running(journal=journal) as server, member(server.address) as worker:
            assert server.toy.committed == turn - 1
            worker.votes(turn)
            events = list(read_events(tmp_path / "log"))
            assert events == server.toy.heard
        journal.close()
    kinds = [type(event) for event in events if not isinstance(event, Lost)]
    assert kinds == [Arrived, Said, Restarted, Arrived, Said]
    assert [event.connection for event in events if isinstance(event, Arrived)] == [0, 1]
    times = [event.now_s for event in events]
    assert times == sorted(times)


def test_a_restart_after_the_end(tmp_path: Path) -> None:
    """A coordinator that died before it could say that the job is over says so when it is back."""
    journal = take(tmp_path / "log", plan=PLAN, job=JOB)
    journal.append(Arrived(1.0, 0, hello("p")))
    journal.append(Said(2.0, 0, Leaving()))
    with running(journal=journal) as server, member(server.address) as worker:
        assert isinstance(worker.answer, Welcome)
        assert worker.next() == End(0, "done")
        worker.close()
        assert server.join() == Finished(0, "done")
    journal.close()


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the log cannot be written, training goes on, one line says so, and no other coordinator trusts the log."""
    journal = take(tmp_path / "log", plan=PLAN, job=JOB)
    with running(journal=journal) as server, member(server.address) as worker:
        monkeypatch.setattr(journal, "append", lambda event: (_ for _ in ()).throw(OSError(28, "No space left")))
        worker.votes(0)
        worker.votes(1)
        assert len(server.lines) == 1
        assert [one.event for one in server.announced] == ["log_lost"]
    journal.close()
    with pytest.raises(InvalidInputError, match="misses events"):
        take(tmp_path / "log", plan=PLAN, job=JOB)


def test_a_taken_port() -> None:
    """A port that is in use is named."""
    with running() as server, pytest.raises(InvalidInputError, match="cannot listen") as caught:
        port = parse_address(server.address)[1]
        Server(Toy(), None, SECRET, Surroundings(lambda plan, crew, conditions: Replanned(plan, ())), port=port)
    assert caught.value.where == server.address


@pytest.mark.parametrize("address", [("127.0.0.1", 80), ("node-3.cluster", 65535), ("::1", 1), ("fe80::1%eth0", 9)])
def test_addresses_round_trip(address: tuple[str, int]) -> None:
    """Hosts, IPv4 and IPv6 addresses are read as they are written."""
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize(
    "text", ["", "x", "x:", ":1", "::1:80", "x:0", "x:65536", "x:-1", "a b:1", "[::1]", "http://x:1"]
)
def test_no_addresses(text: str) -> None:
    """What is no address is refused with its place."""
    with pytest.raises(InvalidInputError, match="is no address") as caught:
        parse_address(text, where="--coordinator")
    assert caught.value.where == "--coordinator"


def test_secrets(tmp_path: Path) -> None:
    """A secret is read back without its line end; a missing or short one is refused; a proof fits one secret."""
    file = tmp_path / "secret"
    secret = make_secret()
    assert secret != make_secret()
    file.touch(0o600)
    file.write_bytes(secret + b"\n")
    assert read_secret(file) == secret
    assert is_proof(prove(secret, "n"), secret, "n")
    assert not is_proof(prove(secret, "n"), make_secret(), "n")
    assert not is_proof("\u00e9\ud800", secret, "n")
    file.write_bytes(b"short\n")
    with pytest.raises(InvalidInputError, match="too easy"):
        read_secret(file)
    with pytest.raises(InvalidInputError, match="cannot be read"):
        read_secret(tmp_path / "none")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o777])
def test_a_secret_that_others_can_read_is_none(mode: int, tmp_path: Path) -> None:
    """Group or others may neither read nor write it: refused, and what to do is a command."""
    file = tmp_path / "the secret"
    file.write_bytes(make_secret())
    for allowed in (0o600, 0o400, 0o700, 0o611):
        file.chmod(allowed)
        assert read_secret(file)
    file.chmod(mode)
    with pytest.raises(InvalidInputError, match="others than its owner") as refused:
        read_secret(file)
    assert refused.value.fix is not None
    subprocess.run(refused.value.fix.partition(",")[0], shell=True, check=True)
    assert read_secret(file)
