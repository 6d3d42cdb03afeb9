"""Which endings pipelines can have: boxes of the most bytes that any of them reduces, and of the longest step.

A multiset's ending (`ending.py`) is as long as its heaviest templates say, in two ways: by what a stage reduces, and by
its optimizer step. A box holds the multisets whose heaviest lie between two limits, each way. Its ending is no shorter
than the lower limits say; and the lower the upper limits, the fewer templates there are, and the later the deadline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .ending import Ending

if TYPE_CHECKING:
    from .knapsack import Bools, Ints


class Span(NamedTuple):
    """From a place in a list of ascending burdens to another; both are in it."""

    low: int
    high: int


class Box(NamedTuple):
    """Multisets by their heaviest templates."""

    reduced: Span
    steps: Span


class Burdens:
    """The endings of templates.

    Args:
        ending: of each template.
        sizes: of those that there may be.
    """

    def __init__(self, ending: Ending, sizes: Ints) -> None:
        self._sizes, self._connection = sizes, ending.connection
        self._reduced_bytes, self._reduced = np.unique(ending.reduced_bytes[: len(sizes)], return_inverse=True)
        self._steps_s, self._steps = np.unique(ending.optimizer_s[: len(sizes)], return_inverse=True)

    def all(self, nodes: int, pipelines: int) -> Box:
        """What so many pipelines with so many nodes together can have; one at least is no larger than the mean."""
        small = self._sizes * pipelines <= nodes
        return Box(
            Span(int(self._reduced[small].min()), len(self._reduced_bytes) - 1),
            Span(int(self._steps[small].min()), len(self._steps_s) - 1),
        )

    def least_s(self, box: Box, pipelines: int) -> float:
        """The shortest ending in a box, between so many pipelines."""
        return self._reduce_s(box.reduced.low, pipelines) + float(self._steps_s[box.steps.low])

    def allowed(self, box: Box) -> Bools:
        """The templates that multisets of a box can be of."""
        found: Bools = (self._reduced <= box.reduced.high) & (self._steps <= box.steps.high)
        return found

    def lighter(self, box: Box, sizes: Sequence[int], pipelines: int) -> Iterator[Box]:
        """The rest of a box, without what ends no sooner than these sizes; the heavier half of each part first."""
        used = np.isin(self._sizes, sizes)
        reduced, steps = int(self._reduced[used].max()), int(self._steps[used].max())
        parts = (
            Box(Span(max(reduced, box.reduced.low), box.reduced.high), Span(box.steps.low, steps - 1)),
            Box(Span(box.reduced.low, reduced - 1), box.steps),
        )
        halves = [self._halves(part, pipelines) for part in parts if all(span.low <= span.high for span in part)]
        for heavier in (True, False):
            yield from (pair[heavier] for pair in halves if len(pair) > heavier)

    def _halves(self, box: Box, pipelines: int) -> list[Box]:
        """The lighter half and the heavier, by the burden that makes the ending differ most."""
        (low, high), (first, last) = box
        if low == high and first == last:
            return [box]
        reduce_s = self._reduce_s(high, pipelines) - self._reduce_s(low, pipelines)
        if low < high and (first == last or reduce_s >= self._steps_s[last] - self._steps_s[first]):
            middle = (low + high) // 2
            return [Box(Span(low, middle), box.steps), Box(Span(middle + 1, high), box.steps)]
        middle = (first + last) // 2
        return [Box(box.reduced, Span(first, middle)), Box(box.reduced, Span(middle + 1, last))]

    def _reduce_s(self, place: int, pipelines: int) -> float:
        return self._connection.ring_s(float(self._reduced_bytes[place]), pipelines)
