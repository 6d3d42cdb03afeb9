"""The learning curve of a run: its losses, however many, and a drawing of them in a few lines of text."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Kept = TypeVar("Kept")

MOST_POINTS = 4096  # beyond that, neighbours are put together

# A braille character has dots in two columns and four rows; bits by column, and row from above (Unicode, U+2800).
_BRAILLE = 0x2800
_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
ACROSS, DOWN = 2, 4
RULE, FAILED, EVALUATED = "─", "✗", "○"


@dataclass(frozen=True)
class DrawnCurve:
    """A curve as text.

    Attributes:
        lines: from above, all equally long.
        axis: the line below them, on which failures are crosses.
        evaluations: in which line and column there is an evaluation's loss.
        least, most: the losses of the lowest and highest dots.
        first, last: the iterations at the left and right end.
    """

    lines: tuple[str, ...]
    axis: str
    evaluations: frozenset[tuple[int, int]]
    least: float
    most: float
    first: int
    last: int


class LearningCurve:
    """Losses by iteration, in a bounded amount of memory."""

    def __init__(self) -> None:
        self._points: list[tuple[float, float]] = []  # iteration, loss
        self._each = 1  # so many iterations make a point
        self._gathered: list[tuple[float, float]] = []
        self.evaluations: list[tuple[int, float]] = []
        self._failures: list[int] = []

    def add(self, iteration: int, loss: float) -> None:
        """Take the loss of the next iteration."""
        self._gathered.append((iteration, loss))
        if len(self._gathered) == self._each:
            self._points.append(_mean(self._gathered))
            self._gathered.clear()
        if len(self._points) == MOST_POINTS:
            self._points = [_mean(self._points[at : at + 2]) for at in range(0, MOST_POINTS, 2)]
            self._each *= 2

    def add_evaluation(self, iteration: int, loss: float) -> None:
        """Take the loss of an evaluation."""
        self.evaluations = _thinned([*self.evaluations, (iteration, loss)])

    def mark(self, iteration: int) -> None:
        """Something has failed in this iteration."""
        self._failures = _thinned([*self._failures, iteration])

    def __len__(self) -> int:
        return len(self._points) + bool(self._gathered)

    def drawn(self, width: int, height: int) -> DrawnCurve:
        """The curve of all that there is, two points or more.

        Args:
            width: characters.
            height: lines above the axis.
        """
        points = [*self._points, *([_mean(self._gathered)] if self._gathered else [])]
        first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
        values = _columns(points, width * ACROSS, first, last)
        evaluations = [(at, loss) for at, loss in self.evaluations if first <= at <= last + 1]
        losses = [*values, *(loss for _, loss in evaluations)]
        least, most = min(losses), max(losses)
        # Halves: the spread of the largest floats is beyond them.
        half = most / 2 - least / 2 or 1.0

        def row(loss: float, rows: int) -> int:
            return round((most / 2 - loss / 2) / half * (rows - 1))

        def column(iteration: float) -> int:
            return min(width - 1, round((iteration - first) / (last - first) * (width - 1)))

        cells = [[0] * width for _ in range(height)]
        before = row(values[0], height * DOWN)
        for x, loss in enumerate(values):
            here = row(loss, height * DOWN)
            # From the last column's dot to this one's, so that a steep curve stays one.
            start = before + (here > before) - (here < before)
            for y in range(min(start, here), max(start, here) + 1):
                cells[y // DOWN][x // ACROSS] |= _BITS[x % ACROSS][y % DOWN]
            before = here
        axis = [RULE] * width
        for iteration in self._failures:
            if first <= iteration <= last + 1:
                axis[column(iteration)] = FAILED
        places = frozenset((row(loss, height), column(at)) for at, loss in evaluations)
        lines = [[chr(_BRAILLE + bits) if bits else " " for bits in line] for line in cells]
        for y, x in places:
            lines[y][x] = EVALUATED
        drawn = tuple("".join(line) for line in lines)
        return DrawnCurve(drawn, "".join(axis), places, least, most, round(first), round(last))


def _mean(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    count = len(points)
    return sum(at / count for at, _ in points), sum(loss / count for _, loss in points)


def _thinned(kept: list[Kept]) -> list[Kept]:
    """Of very many every second one."""
    return kept[::2] if len(kept) > MOST_POINTS else kept


def _columns(points: Sequence[tuple[float, float]], count: int, first: float, last: float) -> list[float]:
    """The losses of so many columns: the mean of a column's points, or what lies between its neighbours."""
    places = [at for at, _ in points]
    step = (last - first) / (count - 1)
    return [_column(points, places, first + step * x, step / 2) for x in range(count)]


def _column(points: Sequence[tuple[float, float]], places: Sequence[float], at: float, around: float) -> float:
    start, stop = bisect_left(places, at - around), bisect_left(places, at + around)
    if stop > start:
        return _mean(points[start:stop])[1]
    if start == 0 or start == len(points):
        return points[min(start, len(points) - 1)][1]
    (left, before), (right, after) = points[start - 1], points[start]
    share = (at - left) / (right - left)
    return before * (1 - share) + after * share
