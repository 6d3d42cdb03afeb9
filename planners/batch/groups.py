"""The unknowns of a distribution: groups of pipelines that get equal numbers, counted in units of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

# How long a pipeline works on a number of micro-batches.


@dataclass(frozen=True)
class Pace:
    """The time of a pipeline: of few micro-batches as it was timed, of more by a straight line; in seconds.

    The paper (Oobleck, section 4.2) takes `microbatches * per_microbatch_s`; the fixed part is the filling and draining
    of the pipeline, which that leaves out. A pipeline that is not full, or whose links let micro-batches through in
    bursts, is on no line: `first_s` says so.

    Attributes:
        fixed_s, per_microbatch_s: the line.
        first_s: the times of 1, 2, ... micro-batches, rising, and none above the line's next; beyond them the line
            holds. None are given where it always holds.
    """

    fixed_s: float
    per_microbatch_s: float
    first_s: tuple[float, ...] = ()

    def time_s(self, microbatches: int) -> float:
        """The time of one iteration, in seconds, with this number of micro-batches (at least one)."""
        if microbatches <= len(self.first_s):
            return self.first_s[microbatches - 1]
        return self.fixed_s + microbatches * self.per_microbatch_s


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Groups of alike pipelines, each of which has one number of micro-batches; most often a group is one pipeline.

    A unit is `multiple_of` micro-batches. An answer is the units of each group, at least one, so that the sum over all
    groups of `counts[g] * units[g]` is what there is.

    Args:
        paces: of each group; all its pipelines have it.
        counts: the pipelines of each group.
        multiple_of: micro-batches of a unit.
    """

    paces: Sequence[Pace]
    counts: Sequence[int]
    multiple_of: int

    def __len__(self) -> int:
        return len(self.paces)

    def time_s(self, group: int, units: int) -> float:
        """The time of a pipeline of a group with so many units, in seconds."""
        return self.paces[group].time_s(units * self.multiple_of)

    def fixed_s(self) -> Floats:
        """The fixed part of each group's time; shape (groups,)."""
        return np.array([pace.fixed_s for pace in self.paces])

    def per_microbatch_s(self) -> Floats:
        """What a micro-batch adds to each group's time; shape (groups,)."""
        return np.array([pace.per_microbatch_s for pace in self.paces])

    def balanced_s(self, units: int) -> float:
        """The time that all pipelines would need if micro-batches could be split: the same for all of them."""
        speeds = np.array(self.counts) / self.per_microbatch_s()
        return float((units * self.multiple_of + self.fixed_s() @ speeds) / speeds.sum())


# The times of many pipelines at once, as their paces have them, to the last bit.


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
