"""The rank-group quotient: re-routing over equal workers is one pipeline whose stages have unequal numbers of slots.

Number the M micro-batches of all pipelines by rank: micro-batch j of every pipeline before j + 1 of any. Let stage i
have L_i live workers. Cut the ranks in groups of g_i <= L_i consecutive ones: the slots of stage i, ceil(M / g_i) of
them. (The first group may be smaller where the last one has room: then it need not wait for a second slot of a stage
before that has fewer workers.) In a slot every micro-batch whose own worker lives stays there; those of dead workers go
to live workers that have none in this slot. Now schedule **one** pipeline in which stage i executes its slots instead
of micro-batches: F of a slot waits for the slot of stage i - 1 that holds its highest rank, I for that of stage i + 1.
Every live worker of stage i then plays the slots of stage i in their order, skipping those in which it has nothing.

Under memory limits slots of unlike widths lose time in two places (and nowhere else, for in between there is a stash of
W to run): at the start, where the first I of a wide stage waits for the second slot of a narrower one after it, and at
the end, where the last two slots of a narrow stage both wait for the last one of a wide stage. An **aligned** cut
(aligned_cut.py) begins and ends with slots of one grid at all stages, as narrow as the narrowest stage's.

Why that is a plan of the whole cluster, no slower than the one pipeline:

* A group of g_i <= L_i <= DP consecutive ranks holds each pipeline at most once, so no worker has two micro-batches of
  a slot; and as g_i <= L_i the workers that have none suffice for the rest. So a worker's slots never overlap.
* Slots start in order of rank, so when the slot with the highest rank has ended at the neighbouring stage, all that the
  group needs are there. Every operation can thus start when its slot starts: all times of the one pipeline hold.
* F, I and W of a micro-batch are in the same slot, so on one worker; a worker holds what the one pipeline's stage
  holds, or less where it skips slots.

Why it costs nothing: a live worker executes at most ceil(M / g_i) micro-batches. With g_i = L_i that is the least that
the busiest worker of stage i must execute, whatever the routing, for L_i workers share M micro-batches. So a bound on
stages with that load bounds all routings, and where the slots reach it, nothing is lost. Only the number of dead
workers of each stage matters, not their places. Live workers keep all their own micro-batches: the fewest possible
move.

Where the slots do not reach their bound, the orders they give may start a little earlier than the slots do, because a
worker that skips a slot need not wait for it: the one pipeline's times are then upper bounds, and exact ones come from
timing the expanded orders.

It needs equal durations, limits and links for all workers of a stage, and as many micro-batches in every pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.atlas import NarrowSlots
from ...schemas.kernels import Ints as Numbers
from ...schemas.kernels import MutableInts, kernel

if TYPE_CHECKING:
    from ..scheduling.problem import Ints


@dataclass(frozen=True)
class Slots:
    """How the ranks are cut at each stage.

    Attributes:
        jobs: micro-batches of all pipelines, M.
        group_sizes: g_i of each stage, from 1 to M.
        remainder_first: whether the group that is not full is the first one, instead of the last. Then the workers that
            start late, for their first micro-batches arrive late, execute fewer: better where they need not keep step.
        narrow: the slots of one grid that an aligned cut begins and ends with; between them the first one is not full.
    """

    jobs: int
    group_sizes: tuple[int, ...]
    remainder_first: bool = False
    narrow: NarrowSlots | None = None

    @cached_property
    def counts(self) -> Ints:
        """Slots of each stage."""
        sizes = np.array(self.group_sizes)
        if self.narrow is None:
            return -(-self.jobs // sizes)
        narrow = np.array(self.narrow.first) + np.array(self.narrow.last)
        found: Ints = narrow - (narrow * self.narrow.grid - self.jobs) // sizes
        return found

    @cached_property
    def ends(self) -> Ints:
        """At `[m, i]`: the rank before which slot m of stage i ends; M after its last slot. `most slots x stages`."""
        slot = np.arange(int(self.counts.max()))[:, None]
        sizes = np.array(self.group_sizes)
        if self.narrow is None:
            found: Ints = np.array(self._first_sizes()) + slot * sizes
        else:
            grid, first, last = self.narrow.grid, np.array(self.narrow.first), np.array(self.narrow.last)
            # The last slot between the narrow ones is full, and those before it, up to what is left for the first.
            full = self.jobs - last * grid - (self.counts - last - 1 - slot) * sizes
            found = np.where(slot < first, (slot + 1) * grid, full)
            found = np.where(slot >= self.counts - last, self.jobs - (self.counts - 1 - slot) * grid, found)
        return np.minimum(found, self.jobs)

    @cached_property
    def alike(self) -> bool:
        """Whether all stages cut the ranks in the same way: slot m of one is slot m of the next."""
        if self.narrow is None:
            return len(set(self.group_sizes)) == 1
        return bool((self.ends == self.ends[:, :1]).all())

    def slot_of(self, ranks: Ints, stage: int) -> Ints:
        """The slot that holds each rank at a stage."""
        return np.searchsorted(self.ends[: self.counts[stage], stage], ranks, side="right")

    def _first_sizes(self) -> list[int]:
        """Ranks in each stage's first slot: no more than in that of the stage before, if that makes no more slots."""
        if self.remainder_first:
            return [(self.jobs - 1) % size + 1 for size in self.group_sizes]
        found: list[int] = []
        for size in self.group_sizes:
            small = min(found[-1], size) if found else size
            found.append(small if (size - self.jobs) % size >= size - small else size)
        return found


@kernel
def open_slots(stages: int, shift: int, counts: Numbers, ends: Numbers, opened: MutableInts) -> None:
    """How many slots of a neighbouring stage wait for those of a stage before slot m, at `m * stages + stage`.

    A slot waits for the first slot of the other stage that ends at its own highest rank or later. So the slots before m
    suffice for those that end where slot m - 1 ends, or earlier.

    Args:
        stages: how many.
        shift: 1 for F, which the next stage waits for, -1 for I.
        counts: slots of each stage.
        ends: where they end, at `slot * stages + stage`.
        opened: receives the numbers.
    """
    for stage in range(max(0, -shift), stages - max(0, shift)):
        other = stage + shift
        number = 0
        for slot in range(counts[stage]):
            end = ends[slot * stages + stage]
            while number < counts[other] and ends[number * stages + other] <= end:
                number += 1
            opened[(slot + 1) * stages + stage] = number
