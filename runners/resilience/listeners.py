"""Functions of a user's that are told what happens to a job, each in a thread of its own beside the coordinator."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Full, Queue
from typing import Any

from ...schemas.errors import InvalidInputError, remark
from ...schemas.quantities import print_time
from ...schemas.text import known

MOST_WAITING = 10_000  # events that nobody has heard yet; more are lost to a listener that blocks
SLOW_S = 30.0  # a call that takes longer is told of
LAST_WORDS_S = 10.0  # for what is still to be heard when the job is over


def require_events(names: Sequence[str]) -> None:
    """Raise InvalidInputError unless there are events of these names."""
    from .announcements import Announcement

    every = sorted({kind.event for kind in _kinds(Announcement) if hasattr(kind, "event")})
    for name in names:
        if not isinstance(name, str):
            raise InvalidInputError(
                f"{name!r} is the name of no event", where="Training.on", fix='write @training.on("iteration")'
            )
        known(name, every, "Training.on")


def _kinds(of: type[Any]) -> Iterator[type[Any]]:
    for kind in of.__subclasses__():
        yield kind
        yield from _kinds(kind)


class Listeners:
    """All listeners of a training: a log (log_writers.py) that is kept by functions.

    Args:
        listeners: names of events, none for all, with the function that hears of them.
    """

    def __init__(self, listeners: Sequence[tuple[Sequence[str], Callable[[dict[str, Any]], Any]]]) -> None:
        self._each = [_Listener(names, function) for names, function in listeners]

    def write(self, said: Mapping[str, Any], words: str | None) -> None:
        """Tell everybody whom an event concerns; never waits."""
        for one in self._each:
            one.tell(said)

    def close(self) -> None:
        """Wait until everything is heard, but not for long; again does nothing."""
        deadline_s = time.monotonic() + LAST_WORDS_S
        for one in self._each:
            one.close(max(0.0, deadline_s - time.monotonic()))
        self._each = []


class _Listener:
    """One function, its events that are still to be heard, and its thread."""

    def __init__(self, names: Sequence[str], function: Callable[[dict[str, Any]], Any]) -> None:
        self._names, self._function = frozenset(names), function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._waiting: Queue[dict[str, Any] | None] = Queue(MOST_WAITING)
        self._said: set[str] = set()
        self._since_s: float | None = None  # when the call under way began
        self._thread = threading.Thread(target=self._run, name=f"listener {self._name}", daemon=True)
        self._thread.start()

    def tell(self, event: Mapping[str, Any]) -> None:
        if self._names and event["event"] not in self._names:
            return
        since_s = self._since_s
        if since_s is not None and time.monotonic() > since_s + SLOW_S:
            self._say_once("slow", f"does not return since {print_time(SLOW_S)}: training goes on")
        try:
            self._waiting.put_nowait(dict(event))
        except Full:
            self._say_once("full", "is too slow: it does not hear of all events")

    def close(self, limit_s: float) -> None:
        """Wait until everything is heard, but no longer than so."""
        with suppress(Full):
            self._waiting.put(None, timeout=limit_s)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self._say_once("late", "has not heard the last events: it does not return")

    def _run(self) -> None:
        while (event := self._waiting.get()) is not None:
            self._since_s = time.monotonic()
            try:
                self._function(event)
            except BaseException as error:  # whatever a user's code raises, exits included
                frame = error.__traceback__.tb_next if error.__traceback__ is not None else None
                where = f" (line {frame.tb_lineno} of {frame.tb_frame.f_code.co_filename})" if frame is not None else ""
                self._say_once("error", f"has failed{where}: {type(error).__name__}: {error}; training goes on")
            self._since_s = None

    def _say_once(self, what: str, words: str) -> None:
        if what not in self._said:
            self._said.add(what)
            remark(f"warning: the listener {self._name} {words}")
