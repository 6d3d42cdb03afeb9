"""Where the workers of an epoch find each other: every worker hosts a board, and any of them can serve an epoch."""

import socket
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import wait
from datetime import timedelta
from functools import cache, partial

from ...schemas.errors import RuntimeFailedError
from ..resilience.addresses import format_address, parse_address
from .connecting import in_thread
from .lost_touch import LostTouchError, reaching
from .notice_board import BoardStore, NoticeBoard, TurnedAwayError

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
            return _greeted(address, secret, epoch, limit)
        except (OSError, RuntimeError) as error:
            if isinstance(error, TurnedAwayError) and time.monotonic() + AGAIN_S < deadline_s:
                time.sleep(AGAIN_S)
                continue
            raise RuntimeFailedError(
                f"cannot reach the worker whose meeting place is {address}: {error}",
                fix="look at that worker's own error; start the run again",
            ) from error


def _greeted(address: str, secret: bytes, epoch: int, limit: timedelta) -> BoardStore:
    store = BoardStore(socket.create_connection(parse_address(address), limit.total_seconds()), secret, epoch, limit)
    store.greet()
    return store


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
        if not answer.done() or answer.exception() is not None:
            raise LostTouchError(rank, f"it does not answer at {addresses[rank]}")
