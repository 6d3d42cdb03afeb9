"""One clock for a job: lines without a clock, clocks that are put back or forward, and lines that come too late."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from .happenings import Happening, LogPlace

US = 1_000_000  # microseconds a second: times are whole ones, so that sums are exact
LATE_US = 60 * US  # a line of another rank may be so much behind; more is a clock that was put back
COARSE_US = 1_500_000  # many logs have whole seconds
FINE_US = 100_000  # others have milliseconds, written a moment later
YEAR_US = 365 * 24 * 3600 * US  # no log goes on after so long: a clock that was not set yet, or is wrong
HALF_HOUR_US = 1800 * US  # time zones and summer time go by such


def us_of(time_s: float) -> int:
    """A time in whole microseconds."""
    return round(time_s * US)


def coarseness_us(happening: Happening) -> int:
    """How far a line's clock may be from what it tells of."""
    return COARSE_US if happening.time_s is None or happening.time_s % 1 == 0 else FINE_US


def believable(happenings: Iterable[Happening]) -> Iterator[Happening]:
    """All of them, but a single line whose clock lies far ahead of its neighbours' loses it."""
    before_s: float | None = None
    held: Happening | None = None
    for happening in happenings:
        if held is not None:
            time_s, next_s = held.time_s, happening.time_s
            if (
                time_s is not None
                and next_s is not None
                and before_s is not None
                and time_s - before_s > LATE_US / US
                and time_s - next_s > LATE_US / US
                and next_s >= before_s
            ):
                held = replace(held, time_s=None)
            elif time_s is not None:
                before_s = time_s
            yield held
        held = happening
    if held is not None:
        yield held


class JobClock:
    """How much time has passed, in microseconds, over all lines of a job.

    It never goes back, and every microsecond that it goes on is given to the caller once. A line that is behind by up
    to a minute is another rank's, or another host's clock, and takes no time; one further behind has a clock that was
    put back, and one a year ahead of all before a clock that was put forward.

    Attributes:
        begin_s: Unix time of the beginning, by the first line that has a clock; None: none had.
        elapsed_us: since the beginning.
        changes: lines at which the clock was put back or forward.
    """

    def __init__(self) -> None:
        self.begin_s: float | None = None
        self.elapsed_us = 0
        self.changes: list[LogPlace] = []
        self._begin_us = 0
        self._offset_us = 0  # elapsed time of a line minus its clock

    def advance(self, happening: Happening, own_us: int, *, counts_alone: bool, least_us: int = 0) -> int:
        """Time from what has happened before to this.

        Args:
            happening: what has happened; without a clock it is now, or `own_us` later.
            own_us: how long it took, as far as known.
            counts_alone: `own_us` passes even if the line has no clock, or one that was put back.
            least_us: so much must have passed; if it is far less, the clock was put back.
        """
        if happening.time_s is None:
            passed_us = own_us if counts_alone else 0
            self.elapsed_us += passed_us
            return passed_us
        clock_us = us_of(happening.time_s)
        if self.begin_s is None:
            # What went before had no clock: it ended, at the latest, when this began.
            passed_us = own_us
            self._begin_us = clock_us - self.elapsed_us - own_us
            self.begin_s = self._begin_us / US
            self._offset_us = -self._begin_us
            self.elapsed_us += own_us
            return passed_us
        passed_us = clock_us + self._offset_us - self.elapsed_us
        if passed_us < least_us - least_us // 10 - LATE_US or passed_us > YEAR_US:
            own_us = own_us if counts_alone else 0
            self._put(own_us - passed_us, happening)
            passed_us = own_us
        passed_us = max(passed_us, 0)
        self.elapsed_us += passed_us
        return passed_us

    def begin_earlier(self, by_us: int) -> None:
        """The first thing that happened had begun so much before its line."""
        self.elapsed_us += by_us
        self._offset_us += by_us
        self._begin_us -= by_us
        if self.begin_s is not None:
            self.begin_s = self._begin_us / US

    def sign(self, happening: Happening) -> int | None:
        """When a line says that somebody lives, in elapsed time; None: it does not say."""
        if happening.time_s is None or self.begin_s is None:
            return None
        return us_of(happening.time_s) + self._offset_us

    def put_forward(self, surplus_us: int, expected_us: int, happening: Happening) -> int:
        """How much of time that nothing explains is no time, but a clock that was put forward.

        That is the case for whole half-hours, as of summer time, and for as much as it was put back before.

        Args:
            surplus_us: time that nothing explains; as much as is returned has not passed.
            expected_us: what was to pass.
            happening: at whose line it was noticed.
        """
        slack_us = COARSE_US + expected_us // 50
        halves = round(surplus_us / HALF_HOUR_US)
        for jump_us in (halves * HALF_HOUR_US, self._offset_of_changes):
            if jump_us > 0 and abs(surplus_us - jump_us) <= slack_us:
                jump_us = min(jump_us, surplus_us)
                self._put(-jump_us, happening)
                self.elapsed_us -= jump_us
                return jump_us
        return 0

    @property
    def _offset_of_changes(self) -> int:
        """By how much the clock has been put back by now."""
        return self._offset_us + self._begin_us

    def _put(self, by_us: int, happening: Happening) -> None:
        self._offset_us += by_us
        self.changes.append(happening.where)
