"""A worker's connection to its coordinator, which outlives the coordinator's process.

Two threads: one reads, and looks for a coordinator when it has lost its own; one beats. Whoever computes only puts
messages in and takes messages out. Whether a worker lives is so a matter of its process, not of what it is doing.
"""

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from ...schemas.errors import InvalidInputError, RtkError, RuntimeFailedError
from ...schemas.quantities import print_time
from ..addresses import format_address, parse_address
from .protocol import (
    MEMBER_BYTES,
    Beat,
    Bye,
    Challenge,
    End,
    FromCoordinator,
    FromWorker,
    Hello,
    Inquiry,
    Refused,
    Returning,
    Welcome,
    Whereabouts,
    encode,
    from_coordinator,
)
from .wire import Lines, prove
from .worker_rules import Turn, Unanswered

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.25
CONNECT_S = 3.0
ANSWER_S = 10.0
# A coordinator whose host is gone answers nothing, not even with a reset.
UNANSWERED_MS = 10_000
CLOSING_S = 1.0


class CoordinatorLink:
    """A worker's connection to its coordinator.

    Args:
        addresses: host:port of the coordinator and of those that may take over, tried in turn.
        secret: the job's.
        hello: (proof, what it knows if it was in an epoch before) -> its Hello; called anew for each connection, in
            the thread that reads.
        patience_s: how long to look for a coordinator.
        on_interrupt: called in the thread that reads, before the message can be received; wakes who is blocked. Where
            no coordinator is found, or it refuses us, it is given an End that `receive` does not give.
        on_inquiry: called in the thread that reads; says where the training thread is.

    Raises:
        InvalidInputError: an address is none.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        secret: bytes,
        hello: Callable[[str, Returning | None], Hello],
        *,
        patience_s: float = 60.0,
        on_interrupt: Callable[[Turn], None] = lambda message: None,
        on_inquiry: Callable[[Inquiry], Whereabouts] | None = None,
    ) -> None:
        self._addresses = [parse_address(address) for address in addresses]
        self._secret = secret
        self._hello = hello
        self._patience_s = patience_s
        self._on_interrupt = on_interrupt
        self._on_inquiry = on_inquiry
        self._inbox: queue.SimpleQueue[FromCoordinator | Exception] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of writing, and of the next two
        self._socket: socket.socket | None = None
        self._unanswered = Unanswered()
        self._knocking: socket.socket | None = None
        self._heartbeat_s = 1.0
        self._is_over = False
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> Welcome:
        """Find the coordinator and be let in.

        Raises:
            InvalidInputError: it does not want us.
            RuntimeFailedError: none was found within `patience_s`.
        """
        wire, welcome = self._find()
        self._take_up(wire, welcome)
        self._threads = [
            threading.Thread(target=self._read, args=(wire,), name="coordinator", daemon=True),
            threading.Thread(target=self._beat, name="heartbeat", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return welcome

    def send(self, message: FromWorker) -> None:
        """Say something, from any thread; without a connection it is lost.

        Votes and losses are not, nor are the latest Ready, StandingTold, Saved, Published and Leaving: the next
        coordinator hears them, unless its predecessor has answered them.
        """
        data = encode(message)
        with self._lock:
            self._unanswered.say(message)
            self._write(data)

    def receive(self, timeout_s: float | None = None) -> FromCoordinator | None:
        """The next message, in order, or None when there is none within `timeout_s`; nothing comes after End.

        Raises:
            InvalidInputError: a coordinator has refused us for good.
            RuntimeFailedError: no coordinator was found within `patience_s`, or the job is over.
            Exception: what `on_interrupt` has raised.
        """
        try:
            item = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(item, Exception):
            self._inbox.put(item)
            raise item
        return item

    def close(self) -> None:
        """Say that we go as we were told to, and let go of threads and descriptors; after it, nothing is sent."""
        if self._closed.is_set():
            return
        # A thread that hangs in writing to a stopped coordinator may have the lock.
        if self._lock.acquire(timeout=CLOSING_S):
            self._write(encode(Bye()))
            self._lock.release()
        self._closed.set()
        # The coordinator closes in answer; to close before could destroy what it has not read yet.
        _shut(self._socket, socket.SHUT_WR)
        _shut(self._knocking, socket.SHUT_RDWR)
        if self._threads:
            self._threads[0].join(CLOSING_S)
        _shut(self._socket, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    # What is read.

    def _read(self, wire: "_Wire") -> None:
        try:
            while True:
                self._listen(wire)
                if self._is_over:
                    raise RuntimeFailedError("the job is over")
                wire, welcome = self._find()
                self._take_up(wire, welcome)
        except Exception as error:
            try:
                if isinstance(error, RtkError) and not (self._is_over or self._closed.is_set()):
                    # Nothing more will be heard: who computes must not wait for others that hear nothing, either.
                    self._on_interrupt(End(error.exit_code, error.what))
            finally:
                self._inbox.put(error)

    def _listen(self, wire: "_Wire") -> None:
        # Until the connection is lost.
        try:
            while True:
                message = wire.next()
                if isinstance(message, Refused):
                    _heed(message)
                if isinstance(message, Inquiry):
                    if self._on_inquiry is not None:
                        self.send(self._on_inquiry(message))
                    continue
                with self._lock:
                    self._unanswered.hear(message)
                self._is_over = self._is_over or isinstance(message, End)
                if isinstance(message, Turn):
                    self._on_interrupt(message)
                self._inbox.put(message)
        except (OSError, _NotAdmittedError):
            pass
        finally:
            wire.shut()  # wakes who is writing and has the lock
            with self._lock:
                self._socket = None
            wire.close()

    # What is written.

    def _write(self, data: bytes) -> None:
        # With the lock. Who reads finds out about a broken connection.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.sendall(data)

    def _beat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            self.send(Beat())

    # The connection.

    def _take_up(self, wire: "_Wire", welcome: Welcome) -> None:
        self._heartbeat_s = welcome.heartbeat_s
        with self._lock:
            self._socket = wire.socket
            for message in self._unanswered.messages:
                self._write(encode(message))
        if self._closed.is_set():  # too late for `close` to have seen it
            wire.shut()

    def _find(self) -> "tuple[_Wire, Welcome]":
        deadline_s = time.monotonic() + self._patience_s
        pause_s = FIRST_PAUSE_S
        reason = "nobody answers"
        while not self._closed.is_set():
            for host, port in self._addresses:
                try:
                    return self._knock(host, port, max(0.1, deadline_s - time.monotonic()))
                except (OSError, _NotAdmittedError) as error:
                    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
                    reason = f"{format_address(host, port)}: {words}"
            if time.monotonic() + pause_s > deadline_s:
                break
            self._closed.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        raise RuntimeFailedError(
            f"no coordinator for {print_time(self._patience_s)} ({reason})",
            where=", ".join(format_address(*address) for address in self._addresses),
            fix="start `rtk coordinate` again with the same log, or have a standby (`rtk coordinate --standby`)",
        )

    def _knock(self, host: str, port: int, most_s: float) -> "tuple[_Wire, Welcome]":
        wire = _Wire(socket.create_connection((host, port), timeout=min(CONNECT_S, most_s)))
        self._knocking = wire.socket
        try:
            wire.socket.settimeout(min(ANSWER_S, most_s))
            welcome = self._introduce(wire)
            wire.socket.settimeout(None)
        except BaseException:
            self._knocking = None
            wire.close()
            raise
        self._knocking = None
        return wire, welcome

    def _introduce(self, wire: "_Wire") -> Welcome:
        challenge = wire.next()
        if isinstance(challenge, Refused):
            _heed(challenge)
        if not isinstance(challenge, Challenge):
            raise _NotAdmittedError("this is no coordinator")
        hello = self._hello(prove(self._secret, challenge.nonce), self._unanswered.returning)
        wire.socket.sendall(encode(hello))
        answer = wire.next()
        if isinstance(answer, Refused):
            _heed(answer)
        if not isinstance(answer, Welcome):
            raise _NotAdmittedError("this is no coordinator")
        return answer


class _NotAdmittedError(Exception):
    # Not now, or not there; another attempt may succeed.
    pass


class _Wire:
    # A connection, as messages.

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lines = Lines(MEMBER_BYTES)
        self._waiting: deque[bytes] = deque()
        try:
            # Where nobody listens on a loopback port, a search for it can meet itself, and then keeps the port taken.
            if connection.getsockname() == connection.getpeername():
                raise _NotAdmittedError("nobody answers")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS)
        except BaseException:
            connection.close()
            raise

    def next(self) -> FromCoordinator:
        """What the coordinator says next; waits for it, and raises _NotAdmittedError where nothing more will come."""
        try:
            while not self._waiting:
                data = self.socket.recv(65536)
                if not data:
                    raise _NotAdmittedError("connection closed")
                self._waiting.extend(self._lines.feed(data))
            return from_coordinator(self._waiting.popleft())
        except InvalidInputError as error:
            raise _NotAdmittedError(f"this is no coordinator: it said {error.what}") from None

    def shut(self) -> None:
        _shut(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def _heed(refused: Refused) -> None:
    if refused.retry:
        raise _NotAdmittedError(refused.reason)
    raise InvalidInputError(
        f"the coordinator refuses this worker: {refused.reason}",
        fix="start it with the secret, plan and settings of the running job",
    )


def _shut(connection: socket.socket | None, how: int) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.shutdown(how)
