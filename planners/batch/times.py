"""The times of many pipelines at once, as their paces have them, to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .pace import Pace

if TYPE_CHECKING:
    from .groups import Floats, Integers


class Times:
    """Rising sequences of times: one a pace, the n-th of n micro-batches.

    Args:
        fixed_s, each_s: the lines of the paces; shape (paces,).
        first_s: of each pace the times before its line holds; nothing where no pace has any.
    """

    def __init__(self, fixed_s: Floats, each_s: Floats, first_s: Sequence[Sequence[float]] = ()) -> None:
        self.fixed_s, self.each_s, self._first_s = fixed_s, each_s, first_s
        tables = {id(table): table for table in first_s}  # many pipelines are of one template
        lengths = [len(table) for table in tables.values()]
        starts = dict(zip(tables, np.cumsum([0, *lengths]).tolist(), strict=False))
        self._starts = np.array([starts[id(table)] for table in first_s] or [0] * len(fixed_s))
        self.known = np.array([len(table) for table in first_s] or [0] * len(fixed_s))
        self._flat = np.concatenate([np.array(table, float) for table in tables.values()] or [np.empty(0)])

    @classmethod
    def of(cls, paces: Sequence[Pace]) -> Times:
        """Of some paces."""
        fixed_s = np.array([pace.fixed_s for pace in paces])
        each_s = np.array([pace.per_microbatch_s for pace in paces])
        return cls(fixed_s, each_s, [pace.first_s for pace in paces])

    def at(self, microbatches: Integers, paces: Integers | slice = slice(None)) -> Floats:
        """The times of so many micro-batches, one at least each.

        Args:
            microbatches: of each pace; shape (paces,).
            paces: by their numbers, where it is not each of them once.
        """
        times_s: Floats = self.fixed_s[paces] + microbatches * self.each_s[paces]
        if len(self._flat):
            few = microbatches <= self.known[paces]
            times_s[few] = self._flat[(self._starts[paces] + microbatches - 1)[few]]
        return times_s

    def one_s(self, pace: int, microbatches: int) -> float:
        """The time of so many micro-batches of one pace; quicker than `at`."""
        if self._first_s and microbatches <= len(self._first_s[pace]):
            return self._first_s[pace][microbatches - 1]
        fixed_s, each_s = self._lines
        return fixed_s[pace] + microbatches * each_s[pace]

    @cached_property
    def _lines(self) -> tuple[list[float], list[float]]:
        return self.fixed_s.tolist(), self.each_s.tolist()
