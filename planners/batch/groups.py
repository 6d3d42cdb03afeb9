"""The unknowns of a distribution: groups of pipelines that get equal numbers, counted in units of micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .pace import Pace

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
