"""Keys and values that workers leave for each other, and wait for: what gloo needs of a store, over one connection.

Torch's own TCPStore asks the name server about every address that connects to it, also on loopback, where one that is
silent costs 5 s each time; it cannot be told to give up a wait, and prints a stack trace where a host dies. This one
knows addresses only as numbers.
"""

import asyncio
import json
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

from ...schemas.errors import InvalidInputError
from ..resilience.lines import Lines
from .c10d import Store

LINE_BYTES = 1024 * 1024
BOARDS_KEPT = 8  # epochs whose keys are still of use to a worker that is late


class NoticeBoard:
    """Hosts keys and values on a listening socket, in a thread of its own, until it is closed.

    Args:
        listener: bound and listening; taken over.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._notices: dict[int, dict[str, str]] = {}
        self._visitors: set[_Visitor] = set()
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="notice board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and part with everybody."""
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def of(self, epoch: int) -> dict[str, str]:
        """The notices of an epoch; those of much older ones are thrown away."""
        for old in [one for one in self._notices if one <= epoch - BOARDS_KEPT]:
            del self._notices[old]
        return self._notices.setdefault(epoch, {})

    def post(self, epoch: int, key: str, value: str) -> None:
        """Put up a notice, and tell those who wait for it."""
        self.of(epoch)[key] = value
        for visitor in list(self._visitors):
            visitor.look()

    def enter(self, visitor: "_Visitor") -> None:
        """Somebody connects."""
        self._visitors.add(visitor)

    def leave(self, visitor: "_Visitor") -> None:
        """Somebody is gone."""
        self._visitors.discard(visitor)

    def _run(self) -> None:
        with suppress(OSError):
            self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await self._loop.create_server(lambda: _Visitor(self), sock=self._listener)
        await self._over.wait()
        server.close()
        for visitor in list(self._visitors):
            visitor.abort()
        await asyncio.sleep(0)  # the loop closes the sockets in its next round
        await asyncio.sleep(0)


class _Visitor(asyncio.Protocol):
    # One connection, which says [epoch, "set", key, value], or [epoch, "see" or "await", keys] and gets the values.

    def __init__(self, board: NoticeBoard) -> None:
        self._board = board
        self._lines = Lines(LINE_BYTES)
        self._awaits: tuple[int, list[str]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._board.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._board.leave(self)

    def data_received(self, data: bytes) -> None:
        try:
            for line in self._lines.feed(data):
                self._do(*json.loads(line))
        except (InvalidInputError, ValueError, TypeError, OverflowError, RecursionError):
            self.abort()  # it is none of us

    def abort(self) -> None:
        self._transport.abort()

    def look(self) -> None:
        # Answer what is waited for, once it is all there.
        if self._awaits is not None and self._board.of(self._awaits[0]).keys() >= set(self._awaits[1]):
            (epoch, keys), self._awaits = self._awaits, None
            self._answer(epoch, keys)

    def _do(self, epoch: int, what: str, name: Any, value: str = "") -> None:
        if what == "set":
            self._board.post(int(epoch), str(name), str(value))
        elif what == "await":
            self._awaits = int(epoch), [str(key) for key in name]
            self.look()
        else:
            self._answer(int(epoch), [str(key) for key in name])

    def _answer(self, epoch: int, keys: list[str]) -> None:
        notices = self._board.of(epoch)
        self._transport.write(json.dumps([notices.get(key) for key in keys]).encode() + b"\n")


class BoardStore(Store):
    """A NoticeBoard's keys of one epoch, as a store of torch's, for one thread; it ends when it is dropped.

    Who makes process groups from it must keep it until they are made.

    Args:
        connection: to the board; taken over.
        epoch: whose keys.
        limit: for waits that bring no limit of their own.
    """

    def __init__(self, connection: socket.socket, epoch: int, limit: timedelta) -> None:
        super().__init__()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection, self._epoch, self._limit = connection, epoch, limit
        self._lines = Lines(LINE_BYTES)

    def greet(self) -> None:
        """See that the board answers.

        Raises:
            RuntimeError: it does not, within the limit.
        """
        self._ask("see", [], self._limit)

    def set(self, key: str, value: str | bytes) -> None:
        """Put up a notice."""
        data = value.encode() if isinstance(value, str) else value
        self._say("set", key, data.hex())

    def get(self, key: str) -> bytes:
        """A key's value, once it is there.

        Raises:
            RuntimeError: it is not within the limit, or the board is gone.
        """
        return bytes.fromhex(self._ask("await", [key], self._limit)[0] or "")

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            RuntimeError: they are not within the limit, or the board is gone.
        """
        self._ask("await", keys, timeout or self._limit)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return None not in self._ask("see", keys, self._limit)

    def _say(self, *words: Any) -> None:
        try:
            self._connection.sendall(json.dumps([self._epoch, *words]).encode() + b"\n")
        except OSError as error:
            raise RuntimeError(f"the meeting place is gone: {error.strerror or error}") from None

    def _ask(self, what: str, keys: list[str], limit: timedelta) -> list[str | None]:
        self._connection.settimeout(max(limit.total_seconds(), 0.001))
        self._say(what, keys)
        try:
            while True:
                data = self._connection.recv(65536)
                if not data:
                    raise RuntimeError("the meeting place is gone")
                for line in self._lines.feed(data):
                    return list(json.loads(line))
        except TimeoutError:
            # What is answered later would be taken for the answer to something else.
            self._connection.close()
            raise RuntimeError(f"no answer in {limit.total_seconds():g} s") from None
        except (OSError, ValueError, InvalidInputError) as error:
            raise RuntimeError(f"the meeting place is gone: {error}") from None
