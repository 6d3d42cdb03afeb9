"""When a quantity that scatters counts as too large, and when as good again, without going to and fro.

* Too large three times in a row (`BAD_IN_A_ROW`), by more than `least`: found, with the median of the three.
* Good `GOOD` times, above its usual value by less than half of `least`, and never three others in a row in between:
  relieved. A machine that is busy for a moment does not put it off.
* While it is too large, another value is taken only where it has been further than `MOVED` of the old one and than
  `least` from it three times in a row.
* A quantity that is found again within `FLAPPING_WITHIN` iterations of its relief flaps: each time twice as many good
  ones are needed for the next relief, up to `MOST_GOOD`. So one that comes and goes every few iterations is relieved a
  few times (the logarithm of the period), and then stays found until it has been good for long. After `QUIET`
  iterations without being found all of this is forgotten.
* Iterations without a measurement say nothing and interrupt nothing. But what is not used any more cannot show that
  it is good: after `UNSEEN` times as many iterations without one as good ones are needed, it is relieved on trial. If
  it is still bad, it is found again after three, and the next trial comes later.
"""

from collections import deque
from statistics import median

BAD_IN_A_ROW = 3
GOOD = 5
MOST_GOOD = 40
MOVED = 0.25
FLAPPING_WITHIN = 30
QUIET = 200
UNSEEN = 10


class Hysteresis:
    """One quantity over the iterations.

    Attributes:
        found: its value where it is too large, else None.
    """

    def __init__(self) -> None:
        self.found: float | None = None
        self._bad: deque[float] = deque(maxlen=BAD_IN_A_ROW)  # in a row: beyond the limit, or far from what was found
        self._good = self._not_good = 0
        self._needed = GOOD
        self._seen = 0
        self._relieved: int | None = None

    def note(self, iteration: int, value: float, usual: float, least: float) -> None:
        """A measurement.

        Args:
            iteration: its iteration, no earlier than any before.
            value: what was measured.
            usual: what is expected of it.
            least: how much more is too much.
        """
        self._seen = iteration
        if self.found is None:
            self._look_for(iteration, value, value > usual + least)
        elif value < usual + least / 2:
            self._bad.clear()
            self._good, self._not_good = self._good + 1, 0
            if self._good >= self._needed:
                self._relieve(iteration)
        else:
            self._not_good += 1
            self._good = 0 if self._not_good >= BAD_IN_A_ROW else self._good
            self._follow(value, least)

    def pass_by(self, iteration: int) -> None:
        """An iteration without a measurement; relieves on trial what has not been seen for long."""
        if self.found is not None and iteration - self._seen >= UNSEEN * self._needed:
            self._relieve(iteration)

    def settle(self, iteration: int, value: float | None) -> None:
        """It has been found out otherwise: how large it is, if it is too large, or None if it is good."""
        if value is None:
            if self.found is not None:
                self._relieve(iteration)
            return
        if self.found is None:
            self._needed = self._needed_after(iteration)
        self.found, self._seen = value, iteration
        self._good = self._not_good = 0
        self._bad.clear()

    def _look_for(self, iteration: int, value: float, is_bad: bool) -> None:
        if not is_bad:
            self._bad.clear()
            return
        self._bad.append(value)
        if len(self._bad) == BAD_IN_A_ROW:
            self._needed = self._needed_after(iteration)
            self.found = median(self._bad)
            self._good = self._not_good = 0
            self._bad.clear()

    def _needed_after(self, iteration: int) -> int:
        """How many good ones the next relief needs, if it is found now."""
        if self._relieved is None:
            return GOOD
        quiet = iteration - self._relieved
        if quiet <= FLAPPING_WITHIN:
            return min(2 * self._needed, MOST_GOOD)
        return self._needed if quiet <= QUIET else GOOD

    def _follow(self, value: float, least: float) -> None:
        assert self.found is not None
        if abs(value - self.found) <= max(MOVED * self.found, least):
            self._bad.clear()
            return
        self._bad.append(value)
        if len(self._bad) == BAD_IN_A_ROW:
            self.found = median(self._bad)
            self._bad.clear()

    def _relieve(self, iteration: int) -> None:
        self.found, self._relieved = None, iteration
        self._bad.clear()
