"""Where the workers of an epoch find each other: every worker hosts a store, and any of them can serve an epoch."""

import socket
from datetime import timedelta

from ...schemas.errors import InvalidInputError, RuntimeFailedError
from .c10d import PrefixStore, Store, TCPStore
from .connecting import in_thread

# How long a living meeting place may take to answer. Torch asks the name server about every address it connects to, and
# one that does not answer costs 5 s; a meeting place that is gone refuses at once, whatever this limit.
MEET_LIMIT = timedelta(seconds=10)


class MeetingPlace:
    """A store that this process hosts on one interface, for as long as the object lives or until it is closed.

    Args:
        host: name or address of the interface, as the peers reach it.

    Raises:
        RuntimeFailedError: this machine cannot listen there.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        # Torch's store listens on every interface unless it is handed a socket.
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, 0), family=family)
        except OSError as error:
            raise RuntimeFailedError(
                f"cannot listen on {host}: {error}", fix="give an address of this machine"
            ) from error
        port = listener.getsockname()[1]
        self._address = format_address(host, port)
        self._store: Store | None = TCPStore(
            host, port, None, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )

    @property
    def address(self) -> str:
        """`host:port`, or `[host]:port` where the host is an IPv6 address."""
        return self._address

    def close(self) -> None:
        """Stop listening; workers that wait here fail."""
        self._store = None


def meet(address: str, epoch: int, limit: timedelta = MEET_LIMIT) -> Store:
    """Connect to a meeting place, with keys of one epoch alone.

    Every call makes a connection of its own, which ends when the store, and all groups made from it, are dropped.

    Args:
        address: `MeetingPlace.address` of a worker, this one included.
        epoch: which one; its keys are apart from those of all others.
        limit: for connecting, and for waits in the store that bring no limit of their own.

    Raises:
        RuntimeFailedError: nobody answers there.
        InvalidInputError: not an address.
    """
    host, port = parse_address(address)
    try:
        _knock(host, port, limit)
        # Torch's limit does not hold for the first answer of a host that accepts and then says nothing, such as a
        # stopped process. That thread is lost until the host answers or dies.
        client = in_thread(lambda: _client(host, port, limit), "meeting").result(limit.total_seconds())
    except (OSError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0] or f"no answer in {limit.total_seconds():g} s"
        raise RuntimeFailedError(
            f"cannot reach the worker whose meeting place is {address}: {reason}",
            fix="look at that worker's own error; start the run again",
        ) from error
    return PrefixStore(f"rtk/epoch/{epoch}", client)


def format_address(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """The host and the port of `host:port` or `[host]:port`.

    Raises:
        InvalidInputError: not an address.
    """
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not bare or bracketed != (":" in bare) or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise InvalidInputError(f"not an address: {address}", fix="write host:port, or [host]:port for IPv6")
    return bare, int(port)


def _knock(host: str, port: int, limit: timedelta) -> None:
    # A plain connection is refused at once where nobody listens; torch tries for longer than its limit, and loudly.
    socket.create_connection((host, port), limit.total_seconds()).close()


def _client(host: str, port: int, limit: timedelta) -> Store:
    return TCPStore(host, port, None, is_master=False, wait_for_workers=False, timeout=limit)
