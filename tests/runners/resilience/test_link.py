"""A worker's connection: in order, thread-safe, beating, and still there when the coordinator is another process."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rtk.runners.resilience.events import Arrived, Restarted, Said
from rtk.runners.resilience.journal import read_events
from rtk.runners.resilience.link import CoordinatorLink
from rtk.runners.resilience.protocol import (
    Commit,
    End,
    Epoch,
    FromCoordinator,
    Leaving,
    Publish,
    Ready,
    Returning,
    Saved,
    Spans,
    Suspect,
    Vote,
)
from rtk.runners.resilience.worker_rules import Unanswered
from rtk.schemas.errors import InvalidInputError, RuntimeFailedError

from ...ports import free_port
from . import toy
from .toy import SECRET, Running, Toy, running

SOON_S = 60.0  # on the busiest machine
TOY = [sys.executable, str(Path(toy.__file__))]


@contextmanager
def link(*addresses: str, worker: str = "0/0", secret: bytes = SECRET, **options: Any) -> Iterator[CoordinatorLink]:
    """A link, not started, and closed in the end."""

    def hello(proof: str, returning: Returning | None) -> Any:
        return toy.hello(proof, worker, returning)

    joined = CoordinatorLink(addresses, secret, hello, **{"patience_s": SOON_S, **options})
    try:
        yield joined
    finally:
        joined.close()


@contextmanager
def coordinator(log: Path, port: int = 0, size: int = 1, heartbeat_s: float = 30.0) -> Iterator[tuple[Any, str]]:
    """A coordinator as a process, and where it listens."""
    arguments = [*TOY, str(log), str(port), str(size), str(heartbeat_s)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            assert read(process) == "waiting"
            yield process, read(process)
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def wait_for(condition: Callable[[], Any], limit_s: float = SOON_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def read(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def cut(joined: CoordinatorLink) -> None:
    assert joined._socket is not None
    joined._socket.shutdown(socket.SHUT_RDWR)


def commit(joined: CoordinatorLink, iteration: int) -> None:
    joined.send(Vote(0, iteration, True, (0,)))
    assert joined.receive(SOON_S) == Commit(0, iteration)


def test_in_order() -> None:
    """Messages arrive in the order in which they were said, in both directions."""
    with running() as server, link(server.address) as joined:
        assert joined.start().heartbeat_s == 30 / 8
        for iteration in range(100):
            joined.send(Vote(0, iteration, True, (0,)))
        assert [joined.receive(SOON_S) for _ in range(100)] == [Commit(0, iteration) for iteration in range(100)]
        assert joined.receive(0.01) is None


def test_many_threads_may_speak() -> None:
    """Lines of several threads do not mix."""
    with running() as server, link(server.address) as joined:
        joined.start()
        spans = Spans("0/0", tuple((f"F{i}", 0.0, 1.0, i) for i in range(2000)))

        def speak() -> None:
            for _ in range(20):
                joined.send(spans)

        threads = [threading.Thread(target=speak) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        commit(joined, 0)
        assert len(server.spans) == 80
        assert not server.toy.losses()


def test_wrong_secret() -> None:
    """A coordinator that refuses for good is an error of the input, at once."""
    known = pytest.raises(InvalidInputError, match="does not know the job's secret")
    with running() as server, link(server.address, secret=b"x" * 16) as joined, known:
        joined.start()


def test_refused_by_the_rules() -> None:
    """A worker that the rules refuse hears why when it starts."""
    known = pytest.raises(InvalidInputError, match="no such place")
    with running() as server, link(server.address, worker="refused") as joined, known:
        joined.start()


def test_refused_for_now() -> None:
    """A worker that is refused for now comes again."""
    with running() as server, link(server.address, worker="later") as joined:
        joined.start()
        assert len(server.toy.arrivals()) == 2


def test_nobody_answers() -> None:
    """Without a coordinator, the search ends when patience does, and says what to do."""
    with link(f"127.0.0.1:{free_port()}", patience_s=0.3) as joined:
        with pytest.raises(RuntimeFailedError, match=r"no coordinator for 300 ms \(.*refused\)") as caught:
            joined.start()
        assert "standby" in str(caught.value.fix)


def test_somebody_else_answers() -> None:
    """A port where another program speaks is no coordinator; the next address is tried."""
    with socket.create_server(("127.0.0.1", 0)) as other, running() as server:

        def speak() -> None:
            connection, _ = other.accept()
            connection.sendall(b"220 mail.example.com ESMTP\r\n")
            connection.close()

        thread = threading.Thread(target=speak)
        thread.start()
        with link(f"127.0.0.1:{other.getsockname()[1]}", server.address) as joined:
            joined.start()
            thread.join()
            commit(joined, 0)


def test_interrupts_come_first() -> None:
    """Epoch, Halt and End interrupt before they can be received; other messages do not."""
    seen: list[FromCoordinator] = []

    def see(message: FromCoordinator) -> None:
        time.sleep(0.05)
        seen.append(message)

    with running() as server, link(server.address, on_interrupt=see) as joined:
        joined.start()
        commit(joined, 0)
        assert not seen
        joined.send(Leaving())
        assert joined.receive(SOON_S) == End(0, "done")
        assert seen == [End(0, "done")]


def test_an_interrupt_that_fails() -> None:
    """What waking the blocked raises reaches whoever receives."""

    def fail(message: FromCoordinator) -> None:
        raise ZeroDivisionError

    with running() as server, link(server.address, on_interrupt=fail) as joined:
        joined.start()
        joined.send(Leaving())
        with pytest.raises(ZeroDivisionError):
            joined.receive(SOON_S)


def test_beats_while_it_computes() -> None:
    """A worker whose main thread computes in Python for long, and says nothing, stays a member."""
    with running(limits={"heartbeat_s": 0.5}) as server, link(server.address) as joined:
        joined.start()
        deadline_s = time.monotonic() + 1.2
        while time.monotonic() < deadline_s:
            sum(range(10_000))
        assert not server.toy.losses()
        commit(joined, 0)


def test_a_lost_connection() -> None:
    """A connection that breaks is made again; the worker says so, and what is unanswered again."""
    with running(Toy(size=2)) as server, link(server.address) as joined:
        joined.start()
        joined._unanswered.hear(Epoch(3, 5, False, 9, "{}", ()))
        joined.send(Ready(3, (0, 1)))
        joined.send(Saved(4, None, "disk full"))
        joined.send(Vote(3, 5, True, (0,)))
        cut(joined)
        wait_for(lambda: sum(isinstance(event, Said) for event in server.toy.heard) == 6)
        assert server.toy.arrivals()[1].hello.returning == Returning(3, 4)
        said = [event.message for event in server.toy.heard if isinstance(event, Said)]
        assert said[3:] == said[:3] == [Ready(3, (0, 1)), Saved(4, None, "disk full"), Vote(3, 5, True, (0,))]


def test_what_is_answered_is_not_said_again() -> None:
    """A commit answers votes and readiness, an epoch earlier votes, a publication what was saved."""
    answers: list[tuple[FromCoordinator, dict[type, int]]] = [
        (Commit(3, 4), {Ready: 0, Vote: 1, Saved: 1}),
        (Commit(3, 5), {Ready: 0, Vote: 0, Saved: 1}),
        (Epoch(3, 5, False, 9, "{}", ()), {Ready: 1, Vote: 1, Saved: 1}),
        (Epoch(4, 5, False, 9, "{}", ()), {Ready: 1, Vote: 0, Saved: 1}),
        (Publish("x", 4, ()), {Ready: 1, Vote: 1, Saved: 0}),
    ]
    unanswered = Unanswered()
    for answer, left in answers:
        for message in (Ready(3, (0, 1)), Vote(3, 5, True, (0,)), Saved(4, None)):
            unanswered.say(message)
        unanswered.hear(answer)
        kept = [type(message) for message in unanswered.messages]
        assert {kind: kept.count(kind) for kind in left} == left


def test_dropped_for_good() -> None:
    """When patience is over, who is blocked is woken, whoever receives hears it each time, and sending does nothing."""
    woken: list[FromCoordinator] = []
    with running() as server, link(server.address, patience_s=0.3, on_interrupt=woken.append) as joined:
        joined.start()
        joined.send(Suspect(0, "fail"))  # the coordinator breaks down
        for _ in range(2):
            with pytest.raises(RuntimeFailedError, match=r"no coordinator for 300 ms"):
                joined.receive(SOON_S)
        joined.send(Vote(0, 0, True, ()))
        (end,) = woken
        assert isinstance(end, End)
        assert end.exit_code == RuntimeFailedError.exit_code


def test_killed_and_restarted(tmp_path: Path) -> None:
    """A coordinator killed between vote and commit: the next one, on its log, commits; all connections are new."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    with link(address) as one, link(address, worker="0/1") as other:
        with coordinator(tmp_path / "log", port, size=2) as (process, _):
            one.start()
            other.start()
            one.send(Vote(0, 0, True, (0,)))
            other.send(Vote(0, 0, True, (1,)))
            assert one.receive(SOON_S) == other.receive(SOON_S) == Commit(0, 0)
            one.send(Vote(0, 1, True, (0,)))
            wait_for(lambda: sum(isinstance(event, Said) for event in read_events(tmp_path / "log")) == 3)
            process.kill()
        other.send(Vote(0, 1, True, (1,)))  # to nobody: said again to the next
        with coordinator(tmp_path / "log", port, size=2) as (process, _):
            assert one.receive(SOON_S) == other.receive(SOON_S) == Commit(0, 1)
            commits = [event.hello.returning for event in read_events(tmp_path / "log") if isinstance(event, Arrived)]
            assert commits == [None, None, Returning(0, 0), Returning(0, 0)]


def test_a_standby_takes_over(tmp_path: Path) -> None:
    """A standby waits for the log, and has the workers as soon as the coordinator is killed."""
    port = free_port()
    with coordinator(tmp_path / "log") as (first, address), link(address, f"127.0.0.1:{port}") as joined:
        joined.start()
        commit(joined, 0)
        arguments = [*TOY, str(tmp_path / "log"), str(port), "1", "30"]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as standby:
            assert read(standby) == "waiting"
            first.kill()
            commit(joined, 1)
            assert sum(isinstance(event, Restarted) for event in read_events(tmp_path / "log")) == 1
            joined.send(Leaving())
            assert joined.receive(SOON_S) == End(0, "done")
            joined.close()
            assert standby.wait(SOON_S) == 0


def test_all_stopped_and_continued(tmp_path: Path) -> None:
    """A coordinator that is stopped for longer than the limit, and continued, has lost nobody."""
    with coordinator(tmp_path / "log", heartbeat_s=1.5) as (process, address), link(address) as joined:
        joined.start()
        commit(joined, 0)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        commit(joined, 1)
        time.sleep(0.2)
        assert [type(event) for event in read_events(tmp_path / "log")] == [Arrived, Said, Said]


def test_nothing_is_left() -> None:
    """Hundred reconnections and a close leave no thread and no descriptor."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with running() as server:
        commit_in_turn(server, 1)
        threads, open_before = threading.active_count(), descriptors()
        commit_in_turn(server, 100)
        # Not equal: the first connection's thread may not have ended when they were counted.
        wait_for(lambda: threading.active_count() <= threads and descriptors() <= open_before)


def commit_in_turn(server: Running, times: int) -> None:
    with link(server.address) as joined:
        joined.start()
        for _ in range(times):
            commit(joined, server.toy.committed + 1)
            reconnect(server, joined)


def reconnect(server: Running, joined: CoordinatorLink) -> None:
    arrivals = len(server.toy.arrivals())
    cut(joined)
    wait_for(lambda: len(server.toy.arrivals()) > arrivals and joined._socket is not None)


@pytest.mark.parametrize(("is_stopped", "limit_s"), [(False, 2 * SOON_S), (True, 0.2)])
def test_closing_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool, limit_s: float) -> None:
    """A link closes at once when the coordinator answers, and after its limit when that is stopped."""
    monkeypatch.setattr("rtk.runners.resilience.link.CLOSING_S", limit_s)
    with coordinator(tmp_path / "log") as (process, address), link(address) as joined:
        joined.start()
        if is_stopped:
            process.send_signal(signal.SIGSTOP)
        start_s = time.monotonic()
        joined.close()
        assert time.monotonic() - start_s < SOON_S
