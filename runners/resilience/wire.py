"""A connection of the coordinator's, from bytes to lines, and what keeps strangers from doing harm."""

import asyncio
import hashlib
import hmac
import os
import secrets
import shlex
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Protocol

from ...schemas.errors import InvalidInputError
from ...schemas.quantities import print_bytes
from ..addresses import format_address
from ..training import SECRET
from .protocol import STRANGER_BYTES, Challenge, encode


class PeerRole(Enum):
    """What somebody who has connected is to us."""

    STRANGER = 1
    MEMBER = 2
    GONE = 3  # what it still says is not listened to


class Host(Protocol):
    """Who is told what happens on a connection."""

    def met(self, connection: "LineConnection") -> None:
        """Somebody has connected."""
        ...

    def said(self, connection: "LineConnection", line: bytes) -> None:
        """Somebody has said a line."""
        ...

    def lose(self, connection: "LineConnection", reason: str) -> None:
        """Somebody said something that cannot be read."""
        ...

    def hung_up(self, connection: "LineConnection") -> None:
        """Somebody will say nothing more."""
        ...

    def closed(self, connection: "LineConnection") -> None:
        """A connection is closed on both sides."""
        ...


class LineConnection(asyncio.Protocol):
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
        self.phase = PeerRole.STRANGER
        self.peer = "somebody"
        self.nonce = ""
        self.number = -1
        self.worker = ""  # the process, as it is called
        self.is_first = True  # of its worker's ranks
        self.pid: int | None = None
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
        return self.phase is PeerRole.GONE

    @property
    def unread_bytes(self) -> int:
        """What was written and not taken yet."""
        return self._transport.get_write_buffer_size()

    def admit(self, limit_bytes: int) -> None:
        """From now on this connection is a member's, which may say longer lines."""
        self.phase = PeerRole.MEMBER
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
        self.phase = PeerRole.GONE
        if not self._transport.is_closing():
            with suppress(OSError):
                self._transport.write_eof()
            self.after(linger_s, self.abort)

    def take_for_ended(self) -> None:
        """What has come counts, and behind it the connection ends, for nobody is there to end it."""
        with suppress(OSError):
            self._transport.get_extra_info("socket").shutdown(socket.SHUT_RD)

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


# A stream of bytes, cut into lines of limited length.


class Lines:
    """Bytes in, lines out.

    Args:
        limit_bytes: the longest line to accept; may be changed between lines.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._searched = 0  # so that a long line that comes in many pieces is searched once

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, without their ends.

        Raises:
            InvalidInputError: a line, complete or not, is longer than the limit.
        """
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            self._check(end)
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(self._buffer)
        self._check(self._searched)

    def _check(self, length: int) -> None:
        if length > self.limit_bytes:
            raise InvalidInputError(f"a line of more than {print_bytes(self.limit_bytes)}")


# The job's secret, and the proof of knowing it that does not give it away.


SHORTEST_BYTES = 16
LONGEST_BYTES = 64 * 1024  # what is longer is cut off
OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def make_secret() -> bytes:
    """A new secret of 256 bits, as hexadecimal characters, so that it fits into a file or an environment variable."""
    return secrets.token_hex(32).encode()


def read_secret(file: str | Path) -> bytes:
    """The secret in a file, without the white space around it.

    Args:
        file: its path.

    Raises:
        InvalidInputError: the file cannot be read, is open to others than its owner, or holds less than 16 bytes.
    """
    try:
        with Path(file).open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            secret = stream.read(LONGEST_BYTES).strip()
    except OSError as error:
        raise InvalidInputError(
            f"the job's secret cannot be read: {error.strerror}", where=str(file), fix="name a file that you can read"
        ) from None
    if mode & OTHERS:
        raise InvalidInputError(
            f"others than its owner can read or change the job's secret (mode {stat.S_IMODE(mode):03o})",
            where=str(file),
            fix=f"chmod 600 {shlex.quote(str(file))}, or remove it and have `rtk coordinate` make another one",
        )
    if len(secret) < SHORTEST_BYTES:
        raise InvalidInputError(
            f"a secret of {len(secret)} bytes is too easy to guess",
            where=str(file),
            fix="make one with: (umask 077; openssl rand -hex 32 > FILE)",
        )
    return secret


def secret_of(file: str | None) -> bytes:
    """The job's secret: from a file, else from the environment.

    Raises:
        InvalidInputError: there is none, or it is too short.
    """
    if file is not None:
        return read_secret(file)
    secret = os.environ.get(SECRET, "").strip().encode()
    if len(secret) < SHORTEST_BYTES:
        raise InvalidInputError(
            f"the job's secret is missing, or shorter than {SHORTEST_BYTES} bytes",
            where=f"--secret-file or {SECRET}",
            fix="give a file; `rtk coordinate` makes one where there is none, and its workers need the same",
        )
    return secret


def prove(secret: bytes, nonce: str, purpose: str = "") -> str:
    """The proof of knowing a secret that a challenge asks for.

    Args:
        secret: the job's.
        nonce: the challenge's.
        purpose: what the proof is for, so that whoever is shown it cannot show it elsewhere: empty at a coordinator.

    Returns:
        HMAC-SHA256 of purpose and nonce under the secret, in hexadecimal.
    """
    return hmac.new(secret, (purpose + nonce).encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_proof(proof: str, secret: bytes, nonce: str, purpose: str = "") -> bool:
    """Whether whoever said `proof` knows the secret (see `prove`); takes the same time for every wrong one."""
    # Bytes, for compare_digest refuses to compare strings that are not ASCII, and strangers say what they like.
    return hmac.compare_digest(proof.encode("utf-8", "surrogatepass"), prove(secret, nonce, purpose).encode())


# Those who have connected and not shown yet that they know the job's secret, and what keeps them from doing harm.


HELLO_S = 10.0
MOST = 256


class Strangers:
    """Who is challenged, by arrival; nobody else is listened to beyond one line of `STRANGER_BYTES`.

    Args:
        secret: the job's, which they are to know.
        refuse: tells one why it is not let in, and parts with it.
        purpose: what the proof is for (see `prove`).
        hello_s: how long one may take to show it.
        most: how many there may be at a time; the one that has been here longest makes room.
        nonce: what one has to sign; never the same twice.
    """

    def __init__(
        self,
        secret: bytes,
        refuse: Callable[[LineConnection, str], None],
        *,
        purpose: str = "",
        hello_s: float = HELLO_S,
        most: int = MOST,
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._secret, self._purpose = secret, purpose
        self._refuse = refuse
        self._hello_s, self._most, self._nonce = hello_s, most, nonce
        self._here: dict[LineConnection, None] = {}  # by arrival

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, connection: LineConnection) -> bool:
        return connection in self._here

    def challenge(self, stranger: LineConnection) -> None:
        """Somebody has connected, and is to prove that it knows the secret."""
        if len(self._here) >= self._most:
            oldest = next(iter(self._here))
            if oldest.phase is PeerRole.STRANGER:
                self._refuse(oldest, "too many others are waiting to say hello")
            self.forget(oldest)
            oldest.abort()
        self._here[stranger] = None
        stranger.nonce = self._nonce()
        stranger.write(encode(Challenge(stranger.nonce)))
        stranger.after(self._hello_s, lambda: self._refuse(stranger, "it said nothing in time"))

    def has_proven(self, stranger: LineConnection, proof: str) -> bool:
        """Whether `proof` answers the challenge of this connection."""
        return is_proof(proof, self._secret, stranger.nonce, self._purpose)

    def forget(self, connection: LineConnection) -> None:
        """It is gone, or no stranger any more."""
        self._here.pop(connection, None)
