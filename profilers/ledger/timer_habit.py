"""What timers of iterations leave out, and clocks tell: a little at every line, and pauses."""

from collections import deque
from statistics import median

from .clock import COARSE_US

MOST_SHARES = 15  # lines, of which it is known what their timers leave out
FEWEST_SHARES = 3  # of them are needed to tell what is usual
USUAL_SHARE = 0.1  # more is a pause, however often it comes


class TimerHabit:
    """Divides time between lines of iterations that say how long these took.

    What a timer leaves out again and again, such as the writing of the line itself, is part of the iterations; what is
    more is a pause. Clocks of whole seconds are told from timers by what is left to the next line: it comes back within
    some lines.
    """

    def __init__(self) -> None:
        self._left_us = 0  # by the line before
        self._shares: deque[float] = deque(maxlen=MOST_SHARES)  # what was left out, over what was told

    def note_exact(self, lines: int) -> None:
        """So many lines had no clock that could say more than their timers."""
        self._left_us = 0
        self._shares.extend([0.0] * min(lines, MOST_SHARES))

    def divide(
        self, passed_us: int, took_us: int, *, open_us: int, coarse_us: int, has_evaluated: bool
    ) -> tuple[int, int, int]:
        """The iterations' time, a pause's, and what is left to the next line: less than 0 where the clock is behind.

        Args:
            passed_us: by the clock, with what the line before left.
            took_us: by the timer.
            open_us: of `passed_us`, what had passed before the line before.
            coarse_us: how far the clock may be off.
            has_evaluated: there was an evaluation of which nobody knows how long it took: all that is more is its.
        """
        surplus_us = passed_us - took_us
        if surplus_us < -COARSE_US:
            self._left_us = 0
            return passed_us, 0, 0
        fresh_us, pause_us = surplus_us - min(self._left_us, open_us), 0
        if fresh_us > (0 if has_evaluated else coarse_us):
            usual_us, most_us = self._usual_us(took_us)
            if has_evaluated or fresh_us > most_us + coarse_us:
                pause_us = max(fresh_us - usual_us, 0)
        share = fresh_us / max(took_us, 1)
        if share <= USUAL_SHARE:
            self._shares.append(share)
        left_us = min(surplus_us - pause_us, coarse_us)
        self._left_us = max(left_us, 0)
        return passed_us - pause_us - left_us, pause_us, left_us

    def _usual_us(self, took_us: int) -> tuple[int, int]:
        """What is left out of so much as a rule, and at the most."""
        if len(self._shares) < FEWEST_SHARES:
            return 0, round(USUAL_SHARE * took_us)
        usual = median(self._shares)
        spread = median(abs(share - usual) for share in self._shares)
        usual_us = max(round(usual * took_us), 0)
        return usual_us, usual_us + round(3 * spread * took_us)
