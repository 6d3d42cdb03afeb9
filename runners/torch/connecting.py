"""Connecting to the other workers of an epoch, which can be given up at once when the epoch is superseded.

A transport's constructor waits for peers in C++, where nothing wakes it, and a peer that died meanwhile never comes.
It therefore runs in a thread of its own, which is left to itself when nobody wants its result any more.
"""

import threading
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol, TypeVar

from ...schemas.errors import RuntimeFailedError

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
        construction.add_done_callback(_close_result)
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


def _close_result(construction: "Future[C]") -> None:
    if construction.exception() is None:
        construction.result().close()
