"""RCUSUM: a two-sided CUSUM of log times against a healthy reference, verified at three scales.

Where the paper (section 4.2) compares the segments on both sides of a change-point, this compares with a reference that
only a verified drop or 200 healthy samples move, and only downwards. So small steps and ramps add up, and cannot hide.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import log, sqrt

from .detector import RELIEVED, SLOW, Detector

DRIFT = SLOW / 2
CLIP = 1.5 * DRIFT  # no single sample says more
CAP = 60 * CLIP  # evidence beyond the trigger that is kept
LEAST_EVIDENCE = 20.0  # nats
WINDOW = 400
HEALTHY_WINDOW = 200
WARM_UP = 10
BARS = (DRIFT, 3 * DRIFT, 8 * DRIFT)  # how often healthy samples are above each of them is learned
LONGEST_BURST = 30
MODES = 1.5  # noises that a drop must exceed: two modes look like noise as large as their distance
LONGER = 3  # than any burst that there was


class Rcusum(Detector):
    """Follows a series by what adds up above and below its level.

    Args:
        shortest: how many slow samples confirm, as long as no bursts teach better.
    """

    KEPT = 2 * WINDOW

    def __init__(self, shortest: int) -> None:
        super().__init__()
        self._needed = shortest
        self._noise = 0.0
        # Healthy samples, and those of them above each bar; and the same while it is open whether they are healthy.
        self._usual, self._open = [0] * (1 + len(BARS)), [0] * (1 + len(BARS))
        self._reset()

    def _reset(self) -> None:
        """Begin a state or a level: nothing speaks for leaving it yet."""
        self._up = self._down = 0.0  # the sums
        self._up_age = self._down_age = 0  # samples since they left 0
        self._stay = 0  # samples since the state or the level began
        self._healthy_for = 0
        self._streak, self._is_suspect, self._doubts = 0, False, 0
        self._open = [0] * len(self._open)

    def _follow(self, y: float, place: int) -> None:
        away = y - self._level
        self._stay += 1
        trigger = self._needed * DRIFT
        up = min(self._up + min(max(away - DRIFT, -CLIP), CLIP), trigger + CAP)
        down = min(self._down + min(max(-away - DRIFT, -CLIP), CLIP), trigger + CAP)
        self._up, self._up_age = (up, self._up_age + 1) if up > 0.0 else (0.0, 0)
        self._down, self._down_age = (down, self._down_age + 1) if down > 0.0 else (0.0, 0)
        needed, is_healthy = self._needed, not self.is_slow
        if is_healthy:
            if away > SLOW or self._streak > 0 or self._is_suspect:
                self._suspect(y, place)
            self._count_healthy(y)
        if up >= trigger and away > DRIFT:
            level = self._verified(self._up_age, 1, needed)
            if level != self._level:
                self._go_up(level, place)
                return
        if down >= trigger and away < -DRIFT:
            level = self._verified(self._down_age, -1, 3 * needed if is_healthy else needed)
            if level != self._level:
                self._go_down(level, place)
                return
        if is_healthy and up < trigger:
            self._learn_reference()

    def _suspect(self, y: float, place: int) -> None:
        if y <= self.reference + SLOW:
            self._needed = max(self._needed, min(self._streak + LONGER, LONGEST_BURST))
        super()._suspect(y, place)

    def _count_healthy(self, y: float) -> None:
        """How usual slow samples are; those of a suspicion count only once it has come to nothing."""
        self._open[0] += 1
        for place, bar in enumerate(BARS, start=1):
            if y <= self.reference + bar:
                break
            self._open[place] += 1
        if self._up_age == 0:
            for place, count in enumerate(self._open):
                self._usual[place] += count
                self._open[place] = 0

    def _learn_reference(self) -> None:
        """Every 200 healthy samples: their noise, and half of the way down to their median."""
        self._healthy_for += 1
        if self._healthy_for < HEALTHY_WINDOW:
            return
        self._healthy_for = 0
        window = sorted(self._logs[-HEALTHY_WINDOW:])
        middle = window[HEALTHY_WINDOW // 2]
        self._noise = middle - window[HEALTHY_WINDOW * 16 // 100]
        if middle < self.reference:
            self.reference = self._level = (self.reference + middle) / 2
        if self._usual[0] > 10 * HEALTHY_WINDOW:
            self._usual = [count // 2 for count in self._usual]

    def _verified(self, age: int, sign: int, fewest: int) -> float:
        """The level that is verified at any of three scales: since the sum left 0, the last 4 n, and the last n + 2."""
        needed = self._needed
        longest = min(self._stay, len(self._logs))
        for scale, size in enumerate((min(age, WINDOW), 4 * needed, needed + 2)):
            if size > longest or size < fewest or (scale > 0 and size > age + 2):
                continue
            if scale < 2 and age > 4 * needed and age % (size // 16 + 1):
                continue  # a long suspicion is not looked at in full with each sample
            window = sorted(self._logs[-size:])
            level = self._shift_up(window) if sign > 0 else self._shift_down(window)
            if level != self._level:
                return level
        return self._level

    def _shift_up(self, window: Sequence[float]) -> float:
        """The level of a window of samples, in order of size, if it is verified to be a step up; else the old one."""
        size = len(window)
        middle, quarter = window[size // 2], window[size // 4]
        base = self._level
        border = (base + middle) / 2 if size > 4 * self._needed else max((base + middle) / 2, base + 0.7 * SLOW)
        if quarter <= border or not _is_far_enough(middle - base, size, self._noise):
            return base
        pauses = 0 if size < 2 * self._needed else size // 10
        if size < 4 * self._needed and self._noise < (middle - base) / 4 and window[pauses] <= (base + middle) / 2:
            return base  # bursts, and pauses between them: where so little noise is, slowness has none
        return middle if self.is_slow or self._is_no_chance(window) else base

    def _shift_down(self, window: Sequence[float]) -> float:
        """The level of a window of samples, in order of size, if it is verified to be a step down; else the old one."""
        size = len(window)
        middle, quarter = window[size // 2], window[size - 1 - size // 4]
        base = self._level
        if quarter >= (base + middle) / 2:
            return base
        if self.is_slow and middle < self.reference + RELIEVED:
            return middle
        if not self.is_slow and base - middle < MODES * self._noise:
            return base  # it was there before, as the lower of two modes
        return middle if _is_far_enough(base - middle, size, self._noise) else base

    def _is_no_chance(self, window: Sequence[float]) -> bool:
        """Whether more of a window's samples are above one of the bars than is usual in a healthy job."""
        size, seen = len(window), self._usual[0]
        for bar, usual in zip(BARS, self._usual[1:], strict=True):
            share = (size - bisect_right(window, self.reference + bar)) / size
            most = (1 + usual + sqrt(usual)) / (10 + seen)  # as many as may be usual
            if share > most:
                rest = (1.0 - share) * log((1.0 - share) / (1.0 - most)) if share < 1.0 else 0.0
                if size * (share * log(share / most) + rest) >= LEAST_EVIDENCE:
                    return True
        return False

    def _go_up(self, level: float, place: int) -> None:
        """It is slow, or slower than it was."""
        base = self._level
        length = self._length_beyond(max((base + level) / 2, base + 0.85 * SLOW), 1)
        self._tell("level" if self.is_slow else "confirmed", place - length + 1, level - self.reference)
        self.is_slow, self._level = True, level
        self._reset()
        self._stay = length

    def _go_down(self, level: float, place: int) -> None:
        """It is as usual again, less slow than it was, or was slow all the time."""
        base = self._level
        length = self._length_beyond(min((base + level) / 2, base - 0.5 * SLOW), -1)
        begun, severity = place - length + 1, level - self.reference
        if not self.is_slow:
            self.reference = level
            self._tell("hindsight", begun, -severity)
        elif severity < RELIEVED:
            self.is_slow, level = False, self.reference
            self._tell("relief", begun, severity)
        else:
            self._tell("level", begun, severity)
        self._level = level
        self._reset()
        self._stay = length

    def _length_beyond(self, border: float, sign: int) -> int:
        """How many of the last samples belong to a shift across a border: from where they speak for it most."""
        total = best = 0.0
        length = 1
        for back in range(1, min(self._stay, len(self._logs), WINDOW) + 1):
            total += min(max(sign * (self._logs[-back] - border), -CLIP), CLIP)
            if total >= best:
                best, length = total, back
        return length

    def _learn(self, logs: Sequence[float]) -> int:
        """Reference, noise and share of slow samples, out of the first ones, a part of which may be slow already."""
        first = min(WARM_UP, len(logs) // 5)
        warm = logs[first:]
        size, by_size = len(warm), sorted(warm)
        steps = sorted(abs(after - before) for before, after in pairwise(warm))
        middle, noise = by_size[size // 2], steps[len(steps) // 2] / 0.954 if steps else 0.0
        off = 0.8 * noise  # what the least median of a block is below the others
        block = max(len(warm) // 4, 1)
        starts = range(0, len(warm) - block + 1, max(block // 2, 1))
        least = min(sorted(warm[start : start + block])[block // 2] for start in starts)
        is_mixed = middle - least > SLOW / 3 + off
        self.reference = self._level = min(middle, least + off)
        self._noise = noise if is_mixed else max(noise, middle - by_size[size * 16 // 100])
        borders = [self.reference + bar for bar in BARS]
        # Twice those of the half that has fewer: the other may be slow already.
        halves = warm[: size // 2], warm[size // 2 :]
        fewer = (min(sum(y > border for y in half) for half in halves) for border in borders)
        self._usual = [size, *(2 * count for count in fewer)]
        return first


def _is_far_enough(shift: float, size: int, noise: float) -> bool:
    """Whether a median that is so far from the reference is 10 % away, not by chance of its own noise."""
    return shift >= SLOW + 2.25 * 1.2533 * noise / sqrt(size)
