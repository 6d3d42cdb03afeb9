"""A connection of the coordinator's, from bytes to lines, and what keeps strangers from doing harm."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

from ...schemas.errors import InvalidInputError
from .addresses import format_address
from .lines import Lines
from .messages import STRANGER_BYTES


class Phase(Enum):
    """What somebody who has connected is to us."""

    STRANGER = 1
    MEMBER = 2
    GONE = 3  # what it still says is not listened to


class Host(Protocol):
    """Who is told what happens on a connection."""

    def met(self, connection: "Connection") -> None:
        """Somebody has connected."""
        ...

    def said(self, connection: "Connection", line: bytes) -> None:
        """Somebody has said a line."""
        ...

    def lose(self, connection: "Connection", reason: str) -> None:
        """Somebody said something that cannot be read."""
        ...

    def hung_up(self, connection: "Connection") -> None:
        """Somebody will say nothing more."""
        ...

    def closed(self, connection: "Connection") -> None:
        """A connection is closed on both sides."""
        ...


class Connection(asyncio.Protocol):
    """One connection: bytes into lines, and a timer.

    Args:
        host: hears of everything.
        loop: that it lives in.
    """

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._lines = Lines(STRANGER_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self.phase = Phase.STRANGER
        self.peer = "somebody"
        self.nonce = ""
        self.number = -1
        self.worker = ""
        self.heard_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # asyncio does so only for sockets that it has made itself.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = format_address(*peer[:2])
        self._host.met(self)

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        self.heard_s = self._loop.time()
        if self.is_gone:
            return
        try:
            for line in self._lines.feed(data):
                self._host.said(self, line)
                if self.is_gone:
                    return
        except InvalidInputError as error:
            self._host.lose(self, f"said {error.what}")

    def eof_received(self) -> bool:
        """As asyncio says."""
        # Without this, what is still to be written to somebody who does not read would keep the connection open.
        self._host.hung_up(self)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """As asyncio says."""
        if self._timer is not None:
            self._timer.cancel()
        self._host.closed(self)

    @property
    def is_gone(self) -> bool:
        """Whether nobody listens to it any more."""
        return self.phase is Phase.GONE

    @property
    def unread_bytes(self) -> int:
        """What was written and not taken yet."""
        return self._transport.get_write_buffer_size()

    def admit(self, limit_bytes: int) -> None:
        """From now on this connection is a member's, which may say longer lines."""
        self.phase = Phase.MEMBER
        self._lines.limit_bytes = limit_bytes
        if self._timer is not None:
            self._timer.cancel()

    def after(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call something after a while, instead of what was to be called before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, function)

    def write(self, data: bytes) -> None:
        """Write, without waiting for anybody to read."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def part(self, linger_s: float) -> None:
        """Say nothing more, and close once the last words are read, or after `linger_s`."""
        # Closing at once, with something unread on our side, could destroy our last words on their way.
        self.phase = Phase.GONE
        if not self._transport.is_closing():
            with suppress(OSError):
                self._transport.write_eof()
            self.after(linger_s, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


class RationedLog:
    """Lines that strangers cause: a flood of them fills no disk.

    Args:
        log: takes a line.
        lines: how many there can be at once.
        every_s: how long it takes until there can be another one.
    """

    def __init__(self, log: Callable[[str], None], lines: int, every_s: float) -> None:
        self._log = log
        self._most = lines
        self._left = float(lines)
        self._every_s = every_s
        self._refilled_s = time.monotonic()
        self._withheld = 0

    def __call__(self, line: str) -> None:
        now_s = time.monotonic()
        self._left = min(self._most, self._left + (now_s - self._refilled_s) / self._every_s)
        self._refilled_s = now_s
        if self._left < 1:
            self._withheld += 1
            return
        self._left -= 1
        more = f" (and {self._withheld} more that were not written down)" if self._withheld else ""
        self._withheld = 0
        self.always(line + more)

    def always(self, line: str) -> None:
        """A line that does not count."""
        with suppress(OSError):
            self._log(line)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 for any free one.

    Raises:
        InvalidInputError: nobody can listen there.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        raise InvalidInputError(
            f"the coordinator cannot listen: {error.strerror or error}",
            where=format_address(host, port),
            fix="name an address of this machine and a free port",
        ) from None
