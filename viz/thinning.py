"""A long series as few points that show it: the least, the middle and the greatest value of each stretch."""

from dataclasses import dataclass, field
from statistics import median

MOST_POINTS = 1200
# Of each stretch, so many values are looked at for its middle, and so many are kept once it is over.
LOOKED_AT, KEPT = 256, 15


@dataclass(frozen=True, slots=True)
class Point:
    """A stretch of a series: its first place, how many values it has, and the least, middle and greatest of them."""

    first: int
    count: int
    low: float
    middle: float
    high: float


@dataclass(slots=True)
class _Stretch:
    first: int
    count: int
    low: float
    high: float
    values: list[float] = field(default_factory=list)

    def note(self, value: float, is_kept: bool) -> None:
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)
        if is_kept:
            self.values.append(value)

    def close(self) -> None:
        """Keep only some values, evenly from the least to the greatest, the middle one among them."""
        if len(self.values) > KEPT:
            self.values.sort()
            last = len(self.values) - 1
            self.values = [self.values[round(index * last / (KEPT - 1))] for index in range(KEPT)]


class Thinned:
    """Takes values one by one and keeps at most `MOST_POINTS` stretches of equal length, in bounded memory."""

    def __init__(self) -> None:
        self._width = 1
        self._stretches: list[_Stretch] = []

    def note(self, value: float) -> None:
        """The next value."""
        if not self._stretches or self._stretches[-1].count == self._width:
            self._begin(value)
        stretch = self._stretches[-1]
        stretch.note(value, stretch.count % max(1, self._width // LOOKED_AT) == 0)

    def points(self) -> list[Point]:
        """The series so far; the middles are exact as long as a stretch is no longer than `KEPT` values."""
        return [Point(one.first, one.count, one.low, median(one.values), one.high) for one in self._stretches]

    def _begin(self, value: float) -> None:
        if self._stretches:
            self._stretches[-1].close()
        if len(self._stretches) == MOST_POINTS:
            self._stretches = [
                _joined(left, right) for left, right in zip(self._stretches[::2], self._stretches[1::2], strict=True)
            ]
            self._width *= 2
        before = self._stretches[-1] if self._stretches else None
        first = before.first + before.count if before else 0
        self._stretches.append(_Stretch(first, 0, value, value))


def _joined(left: _Stretch, right: _Stretch) -> _Stretch:
    both = _Stretch(
        left.first,
        left.count + right.count,
        min(left.low, right.low),
        max(left.high, right.high),
        left.values + right.values,
    )
    both.close()
    return both
