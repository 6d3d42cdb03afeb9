"""Where the workers of an epoch find each other: every worker hosts a board, and any of them can serve an epoch."""

import asyncio
import json
import socket
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Annotated, Any, Literal, Protocol, TypeVar

from annotated_types import MaxLen
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.fields import Index
from ...schemas.quantities import print_bytes, print_time
from ..addresses import format_address, parse_address
from ..resilience.protocol import Challenge, Refused, encode, from_coordinator
from ..resilience.wire import LineConnection, Lines, PeerRole, Strangers, prove
from .groups import Store
from .transport import LostTouchError, reaching

# Keys and values that workers leave for each other, and wait for: what gloo needs of a store, over one connection.
#
# Torch's own TCPStore asks the name server about every address that connects to it, also on loopback, where one that is
# silent costs 5 s each time; it cannot be told to give up a wait, and prints a stack trace where a host dies. This one
# knows addresses only as numbers, and listens only to those who know the job's secret, proven as to a coordinator.


PURPOSE = "notice board "  # of a worker's proof, which would be no good at the coordinator
BOARDS_KEPT = 8  # epochs whose keys are still of use to a worker that is late
LINE_BYTES = 1024 * 1024
# A value of gloo's has 154 bytes, and 8 for each rank of its group.
VALUE_BYTES = 64 * 1024
KEY_LENGTH = 16 * 1024
KEYS_AT_ONCE = 16 * 1024
HELD_BYTES = 256 * 1024 * 1024
UNREAD_BYTES = 1024 * 1024
LINGER_S = 1.0


def _each_once(keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(keys)) < len(keys):
        raise ValueError("a key is asked for twice")
    return keys


Key = Annotated[str, MaxLen(KEY_LENGTH)]
Keys = Annotated[tuple[Key, ...], MaxLen(KEYS_AT_ONCE), AfterValidator(_each_once)]
Value = Annotated[str, MaxLen(2 * VALUE_BYTES), Field(pattern="^([0-9a-f]{2})*$")]

# What a visitor may say, the first of it first and once. `get` waits for the key and is answered with its value; `see`
# and `wait`, for all of them, with which keys are there.
Proving = tuple[Literal["prove"], Annotated[str, MaxLen(64)]]
Setting = tuple[Literal["set"], Index, Key, Value]
Getting = tuple[Literal["get"], Index, Key]
Looking = tuple[Literal["see", "wait"], Index, Keys]
_SAYING: TypeAdapter[Any] = TypeAdapter(Proving | Setting | Getting | Looking, config=ConfigDict(strict=True))


@dataclass
class _Page:
    # The notices of an epoch.
    notices: dict[str, str] = field(default_factory=dict)
    size_bytes: int = 0

    def put(self, key: str, value: str) -> None:
        self.size_bytes += len(key) + len(value) - len(self.notices.get(key, ""))
        self.notices[key] = value


class TurnedAwayError(RuntimeError):
    """A board has parted with us before it knew us: with many at once it may have no room, and another try has."""


class NoticeBoard:
    """Hosts keys and values on a listening socket, in a thread of its own, until it is closed.

    Args:
        listener: bound and listening; taken over.
        secret: the job's, which visitors are to know.
    """

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self._listener = listener
        self._pages: dict[int, _Page] = {}
        self._open: set[LineConnection] = set()
        self._strangers = Strangers(secret, partial(self._refuse, retry=True), purpose=PURPOSE)
        self._waiting: dict[
            LineConnection, tuple[int, set[str], Getting | Looking]
        ] = {}  # epoch, what is not there, what for
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="notice board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and part with everybody."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: LineConnection(self, self._loop), sock=self._listener)
        await self._over.wait()
        server.close()
        for visitor in list(self._open):
            self.hung_up(visitor)
        await asyncio.sleep(0)  # the loop closes the sockets in its next round
        await asyncio.sleep(0)

    # Who comes and goes.

    def met(self, connection: LineConnection) -> None:
        """Somebody connects."""
        self._open.add(connection)
        self._strangers.challenge(connection)

    def lose(self, connection: LineConnection, reason: str) -> None:
        """Part with one that is none of us, at once."""
        connection.phase = PeerRole.GONE
        connection.abort()

    def hung_up(self, connection: LineConnection) -> None:
        """Somebody will say nothing more."""
        self.lose(connection, "connection closed")

    def closed(self, connection: LineConnection) -> None:
        """Somebody is gone."""
        self._strangers.forget(connection)
        self._waiting.pop(connection, None)
        self._open.discard(connection)

    def _refuse(self, stranger: LineConnection, reason: str, *, retry: bool = False) -> None:
        stranger.write(encode(Refused(reason, retry)))
        stranger.part(LINGER_S)

    # What is said.

    def said(self, connection: LineConnection, line: bytes) -> None:
        """Somebody says something; who says anything else is none of us."""
        try:
            self._heed(connection, _SAYING.validate_json(line))
        except ValidationError:
            self.lose(connection, "said something that is no message")

    def _heed(self, connection: LineConnection, saying: Proving | Setting | Getting | Looking) -> None:
        match saying:
            case ("prove", proof) if connection in self._strangers:
                if self._strangers.has_proven(connection, proof):
                    self._strangers.forget(connection)
                    connection.admit(LINE_BYTES)
                else:
                    self._refuse(connection, "it does not know the job's secret")
            case _ if connection.phase is not PeerRole.MEMBER:
                self._refuse(connection, "it has not shown that it knows the job's secret")
            case ("set", epoch, key, value):
                self._set(connection, epoch, key, value)
            case ("see", _, _):
                self._answer(connection, saying)
            case ("get" | "wait", epoch, names):
                missing = {names} if isinstance(names, str) else set(names)
                self._waiting[connection] = epoch, missing.difference(self._of(epoch)), saying
                self._look(connection)
            case _:
                self.lose(connection, "said who it is twice")

    def _set(self, visitor: LineConnection, epoch: int, key: str, value: str) -> None:
        """Put up a notice, and tell those who wait for it."""
        if not self._has_room(epoch, len(key) + len(value)):
            self.lose(visitor, "there is no room for more")
        elif epoch > max(self._pages, default=epoch) - BOARDS_KEPT:
            self._pages.setdefault(epoch, _Page()).put(key, value)
        for other, (awaited, missing, _) in list(self._waiting.items()):
            if awaited == epoch:
                missing.discard(key)
                self._look(other)

    def _has_room(self, epoch: int, size_bytes: int) -> bool:
        """Whether there is room, once the notices of much older epochs, and if need be of all older ones, are gone."""
        for old in sorted(self._pages):
            held_bytes = sum(page.size_bytes for page in self._pages.values())
            if old <= epoch - BOARDS_KEPT or (old < epoch and held_bytes + size_bytes > HELD_BYTES):
                del self._pages[old]
        return sum(page.size_bytes for page in self._pages.values()) + size_bytes <= HELD_BYTES

    def _look(self, visitor: LineConnection) -> None:
        """Answer somebody who waits, once it is all there."""
        _, missing, saying = self._waiting[visitor]
        if not missing:
            del self._waiting[visitor]
            self._answer(visitor, saying)

    def _answer(self, visitor: LineConnection, saying: Getting | Looking) -> None:
        notices, names = self._of(saying[1]), saying[2]
        answer = notices[names] if isinstance(names, str) else [key in notices for key in names]
        visitor.write(json.dumps(answer).encode() + b"\n")
        if visitor.unread_bytes > UNREAD_BYTES:
            self.lose(visitor, "does not read its messages")

    def _of(self, epoch: int) -> dict[str, str]:
        return self._pages[epoch].notices if epoch in self._pages else {}


class BoardStore(Store):
    """A NoticeBoard's keys of one epoch, as a store of torch's, for one thread; it ends when it is dropped.

    Who makes process groups from it must keep it until they are made.

    Args:
        connection: to the board; taken over.
        secret: the job's.
        epoch: whose keys.
        limit: for waits that bring no limit of their own.
    """

    def __init__(self, connection: socket.socket, secret: bytes, epoch: int, limit: timedelta) -> None:
        super().__init__()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._secret, self._epoch, self._limit = connection, secret, epoch, limit
        self._lines = Lines(LINE_BYTES)

    def greet(self) -> None:
        """Show that this worker knows the secret, and see that the board answers.

        Raises:
            TurnedAwayError: it has parted with us.
            RuntimeError: it does not answer within the limit, or refuses.
        """
        try:
            said = from_coordinator(self._hear(self._limit))
            if isinstance(said, Challenge):
                self._say("prove", prove(self._secret, said.nonce, PURPOSE))
                self._say("see", self._epoch, [])
                answer = self._hear(self._limit)
                if answer == b"[]":
                    return
                said = from_coordinator(answer)
        except InvalidInputError:
            raise RuntimeError("this is no meeting place") from None
        if isinstance(said, Refused):
            raise (TurnedAwayError if said.retry else RuntimeError)(f"it refuses this worker: {said.reason}")
        raise RuntimeError("this is no meeting place")

    def end(self) -> None:
        """From any thread: have waits in this store fail, the one under way and all to come."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def set(self, key: str, value: str | bytes) -> None:
        """Put up a notice.

        Raises:
            RuntimeError: it is longer than a board takes, or the board is gone.
        """
        data = value.encode() if isinstance(value, str) else value
        if len(data) > VALUE_BYTES or len(key) > KEY_LENGTH:
            raise RuntimeError(
                f"a notice of {print_bytes(len(data))}: a meeting place takes {print_bytes(VALUE_BYTES)}"
            )
        self._say("set", self._epoch, key, data.hex())

    def get(self, key: str) -> bytes:
        """A key's value, once it is there.

        Raises:
            RuntimeError: it is not within the limit, or the board is gone.
        """
        return bytes.fromhex(self._ask(self._limit, "get", self._epoch, key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            RuntimeError: they are not within the limit, or the board is gone.
        """
        self._ask(timeout or self._limit, "wait", self._epoch, list(dict.fromkeys(keys)))

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(self._ask(self._limit, "see", self._epoch, list(dict.fromkeys(keys))))

    def _say(self, *words: Any) -> None:
        try:
            self._connection.sendall(json.dumps(words).encode() + b"\n")
        except OSError as error:
            raise TurnedAwayError(f"the meeting place is gone: {error.strerror or error}") from None

    def _ask(self, limit: timedelta, *words: Any) -> Any:
        self._say(*words)
        try:
            return json.loads(self._hear(limit))
        except (ValueError, InvalidInputError) as error:
            raise RuntimeError(f"this is no meeting place: {error}") from None

    def _hear(self, limit: timedelta) -> bytes:
        """The next line; there is none beyond the answer to what was asked."""
        self._connection.settimeout(max(limit.total_seconds(), 0.001))
        try:
            while True:
                data = self._connection.recv(65536)
                if not data:
                    raise TurnedAwayError("the meeting place is gone")
                for line in self._lines.feed(data):
                    return line
        except TimeoutError:
            # What is answered later would be taken for the answer to something else.
            self._connection.close()
            raise RuntimeError(f"no answer in {print_time(limit.total_seconds())}") from None
        except OSError as error:
            raise TurnedAwayError(f"the meeting place is gone: {error.strerror or error}") from None


# How long a living meeting place may take to answer; one that is gone refuses at once, whatever this limit.
MEET_LIMIT = timedelta(seconds=10)
PROBE_LIMIT = timedelta(seconds=1)
# How soon to knock again at one that has parted with us: where it is gone, that fails at once.
AGAIN_S = 0.05


class MeetingPlace:
    """A board that this process hosts on one interface, for as long as the object lives or until it is closed.

    Args:
        secret: the job's, which visitors are to know.
        host: name or address of the interface, as the peers reach it.

    Raises:
        RuntimeFailedError: this machine cannot listen there.
    """

    def __init__(self, secret: bytes, host: str = "127.0.0.1") -> None:
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise RuntimeFailedError(
                f"cannot listen on {host}: {error}", fix="give an address of this machine"
            ) from error
        self._address = format_address(host, listener.getsockname()[1])
        self._board = NoticeBoard(listener, secret)

    @property
    def address(self) -> str:
        """`host:port`, or `[host]:port` where the host is an IPv6 address."""
        return self._address

    def close(self) -> None:
        """Stop listening; workers that wait here fail."""
        self._board.close()


def meet(address: str, secret: bytes, epoch: int, limit: timedelta = MEET_LIMIT) -> BoardStore:
    """Connect to a meeting place, with keys of one epoch alone.

    Every call makes a connection of its own, which ends when the store is dropped; keep it until all groups are made.

    Args:
        address: `MeetingPlace.address` of a worker, this one included.
        secret: the job's.
        epoch: which one; its keys are apart from those of all others.
        limit: for connecting, and for waits in the store that bring no limit of their own.

    Raises:
        RuntimeFailedError: nobody answers there, or another secret is wanted.
        InvalidInputError: not an address.
    """
    deadline_s = time.monotonic() + limit.total_seconds()
    while True:
        try:
            connection = socket.create_connection(parse_address(address), limit.total_seconds())
            store = BoardStore(connection, secret, epoch, limit)
            store.greet()
            return store
        except (OSError, RuntimeError) as error:
            if isinstance(error, TurnedAwayError) and time.monotonic() + AGAIN_S < deadline_s:
                time.sleep(AGAIN_S)
                continue
            raise RuntimeFailedError(
                f"cannot reach the worker whose meeting place is {address}: {error}",
                fix="look at that worker's own error; start the run again",
            ) from error


def meetings(
    addresses: Sequence[str], secret: bytes, epoch: int, limit: timedelta = MEET_LIMIT
) -> Callable[[int], BoardStore]:
    """The stores of all ranks' meeting places, each connected to when it is first asked for, and kept.

    For ranks of which some do not reach each other, so that there is no one place for all.

    Args:
        addresses: the meeting places, by rank.
        secret: as for `meet`.
        epoch: as for `meet`.
        limit: as for `meet`.

    Raises:
        LostTouchError: from what is given back, of the rank that does not answer.
    """

    @cache
    def at(rank: int) -> BoardStore:
        with reaching(rank):
            return meet(addresses[rank], secret, epoch, limit)

    return at


def all_answer(
    addresses: Sequence[str], secret: bytes, but: Collection[int] = (), limit: timedelta = PROBE_LIMIT
) -> None:
    """See that the ranks' meeting places can be reached from here; it takes a round trip, or the limit.

    For a worker that cannot connect, or has lost touch, and does not know with whom: gloo does not say it.

    Args:
        addresses: the meeting places, by rank.
        secret: as for `meet`.
        but: the ranks that are known not to be reached.
        limit: for all of them together.

    Raises:
        LostTouchError: of the first rank that is not reached.
    """
    ranks = [rank for rank in range(len(addresses)) if rank not in but]
    answers = [in_thread(partial(meet, addresses[rank], secret, 0, limit), "probing") for rank in ranks]
    wait(answers, limit.total_seconds())
    for rank, answer in zip(ranks, answers, strict=True):
        if not is_there(answer):
            raise LostTouchError(rank, f"it does not answer at {addresses[rank]}")


# Connecting to the other workers of an epoch, which can be given up at once when the epoch is superseded.
#
# A transport's constructor waits for peers in C++, where nothing wakes it, and a peer that died meanwhile never comes.
# It therefore runs in a thread of its own, which is left to itself when nobody wants its result any more.


# Workers that live and reach each other are connected in a fraction of a second.
DOUBT_S = 2.0


class Closable(Protocol):
    """What holds connections, threads or memory until it is closed."""

    def close(self) -> None:
        """Let go of everything."""
        ...


T = TypeVar("T")
C = TypeVar("C", bound=Closable)


class SupersededError(RuntimeFailedError):
    """The epoch is over before this worker was connected in it; the next one has been announced."""

    def __init__(self) -> None:
        super().__init__("the epoch was superseded while its workers were connecting")


def connect(make: Callable[[], C], superseded: "Future[Any]", doubt: Callable[[], None] = lambda: None) -> C:
    """Make a transport in a helper thread and wait for it, unless its epoch is superseded.

    A construction that is given up ends by itself, at the latest when its own limit for connecting is over, and what it
    made is closed. It disturbs no rank: to peers that still build in the old epoch it looks as if nothing had happened.

    Args:
        make: meets the peers and makes the transport; everything it needs should be made in it (the store's client
            cannot be used by two threads at once).
        superseded: done as soon as there is a newer epoch, whatever its result.
        doubt: called once if it takes longer than DOUBT_S; what it raises ends the wait (`meeting.all_answer`).

    Raises:
        SupersededError: the epoch was superseded first, or at the same time.
    """
    construction = in_thread(make, "connecting")
    try:
        if not wait({construction, superseded}, DOUBT_S, FIRST_COMPLETED).done:
            doubt()
        wait({construction, superseded}, return_when=FIRST_COMPLETED)
        if superseded.done():
            raise SupersededError
        return construction.result()
    except BaseException:
        when_there(construction, lambda made: made.close())
        raise
    finally:
        del construction  # it knows the error, whose traceback knows this frame


def in_thread(make: Callable[[], T], name: str) -> "Future[T]":
    """Run something in a daemon thread of this name.

    An error comes without the local variables of its frames, which would keep sockets for as long as the error is kept.
    """
    future: Future[T] = Future()
    threading.Thread(target=_run, args=(make, future), name=name, daemon=True).start()
    return future


def _run(make: Callable[[], T], future: "Future[T]") -> None:
    try:
        result = make()
    except BaseException as error:
        _forget_frames(error)
        del make
        future.set_exception(error)
    else:
        del make
        future.set_result(result)
    finally:
        del future


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def is_there(future: "Future[Any]") -> bool:
    """Whether it has come to something: it is done, and without an error."""
    return future.done() and future.exception() is None


def when_there(future: "Future[T]", act: Callable[[T], None]) -> None:
    """Act on what a future comes to, now or as soon as it is there; nobody waits for it, and an error is left alone."""

    def done(future: "Future[T]") -> None:
        if is_there(future):
            act(future.result())

    future.add_done_callback(done)
