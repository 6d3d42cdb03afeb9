"""Following a series of iteration times: when it becomes slow, how slow, and when it is as usual again.

Slow is what takes 10 % longer than usual (section 4.2). Two tiers: three slow iterations in a row are a suspicion,
which costs nothing (*provisional*, and *dismissed* when it goes away); what persists longer than bursts of jitter do,
and by more than chance, is *confirmed*. `robust` is `rcusum.py`; `paper` is `bocd.py`.
"""

from collections.abc import Sequence
from math import exp, inf, log
from typing import Any, Literal

from ...schemas.detection import Episode
from ...schemas.errors import InvalidInputError
from ...schemas.kernels import compiled, pays
from .bocd import BOCD
from .medians import GrowingSeries, WholeSeries
from .method import Method
from .rcusum import IS_LEARNING, RCUSUM, REFERENCE, STATE, WIDTH
from .telling import Change as Change
from .telling import Story

Mode = Literal["robust", "paper"]

METHODS: dict[Mode, Method] = {"robust": RCUSUM, "paper": BOCD}
SHORTEST = 10
ROOM = 256  # things that may happen before somebody asks


class Tracker:
    """Follows a series of times in bounded memory (beside the episodes themselves), in constant time a sample.

    Args:
        mode: `robust`, or `paper` for the published detector.
        shortest: how many slow iterations it takes to confirm; more than the longest burst that is no fail-slow.

    Attributes:
        samples: how many were noted.

    Raises:
        InvalidInputError: `shortest` is below 3.
    """

    def __init__(self, mode: Mode = "robust", shortest: int = SHORTEST) -> None:
        self._method = _method_of(mode)
        self._n = [0] * self._method.counts
        self._x = [0.0] * self._method.numbers
        self._buffer = [0.0] * self._method.buffered
        self._out = [0.0] * (ROOM * WIDTH)
        self._method.set_up(self._n, _checked(shortest))
        self._take = self._method.take
        self._series = GrowingSeries()
        self._story = Story(self._series)
        self.samples = 0

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow; None: too few were seen to say."""
        return None if self._n[STATE] == IS_LEARNING else exp(self._x[REFERENCE])

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What was found so far in the order of onset, what is not over (and a suspicion) included."""
        return self._story.episodes

    def note(self, time_s: float) -> tuple[Change, ...]:
        """Another iteration's time.

        Returns:
            What changed with it, mostly nothing.

        Raises:
            InvalidInputError: the time is not a finite number above 0; it is as if it had not been noted.
        """
        if not 0.0 < time_s < inf:
            raise _no_time(self.samples, time_s)
        y = log(time_s)
        self._series.note(y)
        told = self._take(y, self._n, self._x, self._buffer, self._out, 0)
        self.samples += 1
        return self._story.tell(self._out, told) if told else ()

    def finish(self) -> tuple[Change, ...]:
        """The series is over: a short one is judged by what there is, and a suspicion comes to nothing."""
        told = self._method.finish(self._n, self._x, self._buffer, self._out)
        return self._story.tell(self._out, told) + self._story.dismiss()


def track(times_s: Sequence[float], mode: Mode = "robust", shortest: int = SHORTEST) -> tuple[Episode, ...]:
    """All episodes of a whole series: what a `Tracker` finds, in machine code where that pays.

    Raises:
        InvalidInputError: a time is not a finite number above 0, or `shortest` is below 3.
    """
    method = _method_of(mode)
    if pays(method.take_all, len(times_s), method.most_interpreted):
        return track_compiled(times_s, mode, shortest)
    tracker = Tracker(mode, shortest)
    for time_s in times_s:
        tracker.note(time_s)
    tracker.finish()
    return tracker.episodes


def track_compiled(times_s: Sequence[float], mode: Mode = "robust", shortest: int = SHORTEST) -> tuple[Episode, ...]:
    """What `track` finds, in machine code in any case; needs numba."""
    import numpy as np

    method, logs = _method_of(mode), np.array(_logs(times_s))
    story = Story(WholeSeries(logs))
    n: Any = np.zeros(method.counts, dtype=np.int64)
    x: Any = np.zeros(method.numbers)
    buffer: Any = np.zeros(method.buffered)
    out: Any = np.zeros(ROOM * WIDTH)
    method.set_up(n, _checked(shortest))
    take_all = compiled(method.take_all)
    place = 0
    while place < len(logs):
        place, told = take_all(logs, place, n, x, buffer, out, ROOM)
        story.tell(out, told)
    story.tell(out, method.finish(n, x, buffer, out))
    story.dismiss()
    return story.episodes


def _method_of(mode: Mode) -> Method:
    if mode in METHODS:
        return METHODS[mode]
    raise InvalidInputError(f"there is no mode {mode!r}", fix="choose robust or paper")


def _checked(shortest: int) -> int:
    if shortest >= 3:
        return shortest
    raise InvalidInputError(
        f"{shortest} slow iterations cannot confirm anything", fix="ask for 3 at least; 10 to 15 keep usual bursts out"
    )


def _logs(times_s: Sequence[float]) -> list[float]:
    """The logs of times, as Python computes them: numpy's may differ in the last bit."""
    times = [float(time_s) for time_s in times_s]
    for place, time_s in enumerate(times):
        if not 0.0 < time_s < inf:
            raise _no_time(place, time_s)
    return list(map(log, times))


def _no_time(place: int, time_s: Any) -> InvalidInputError:
    return InvalidInputError(
        f"{time_s} is no iteration time",
        where=f"sample {place}, counted from 0",
        fix="times are finite numbers above 0, in seconds",
    )
