"""The rank-group quotient: re-routing over equal workers is one pipeline whose stages have unequal numbers of slots.

Number the M micro-batches of all pipelines by rank: micro-batch j of every pipeline before j + 1 of any. Let stage i
have L_i live workers. Cut the ranks in groups of g_i <= L_i consecutive ones: the slots of stage i, ceil(M / g_i) of
them. (The first group may be smaller where the last one has room: then it need not wait for a second slot of a stage
before that has fewer workers.) In a slot every micro-batch whose own worker lives stays there; those of dead workers go
to live workers that have none in this slot. Now schedule **one** pipeline in which stage i executes its slots instead
of micro-batches: F of a slot waits for the slot of stage i - 1 that holds its highest rank, I for that of stage i + 1.
Every live worker of stage i then plays the slots of stage i in their order, skipping those in which it has nothing.

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
    """

    jobs: int
    group_sizes: tuple[int, ...]
    remainder_first: bool = False

    @cached_property
    def first_sizes(self) -> tuple[int, ...]:
        """Ranks in each stage's first slot: no more than in that of the stage before, if that makes no more slots."""
        if self.remainder_first:
            return tuple((self.jobs - 1) % size + 1 for size in self.group_sizes)
        found: list[int] = []
        for size in self.group_sizes:
            small = min(found[-1], size) if found else size
            found.append(small if (size - self.jobs) % size >= size - small else size)
        return tuple(found)

    @cached_property
    def counts(self) -> Ints:
        """Slots of each stage."""
        sizes = np.array(self.group_sizes)
        return -(-self.jobs // sizes)

    @cached_property
    def alike(self) -> bool:
        """Whether all stages cut the ranks in the same way: slot m of one is slot m of the next."""
        return len(set(self.group_sizes)) == 1

    def slot_of(self, ranks: Ints, stage: int) -> Ints:
        """The slot that holds each rank at a stage."""
        size = self.group_sizes[stage]
        return (ranks + size - self.first_sizes[stage]) // size

    @cached_property
    def opens_up(self) -> Ints:
        """At `[m, i]`: how many slots of stage i + 1 wait for slots of stage i before m, `(slots + 1) x stages`.

        A slot of stage i + 1 waits for the first slot of stage i that ends at its own highest rank or later. So slots
        before m suffice for those that end where slot m - 1 ends, or earlier.
        """
        return self._opens(-1)

    @cached_property
    def opens_down(self) -> Ints:
        """The same for I: at `[m, i]`, how many slots of stage i - 1 wait for slots of stage i before m."""
        return self._opens(1)

    def _opens(self, shift: int) -> Ints:
        cuts = list(zip(self.group_sizes, self.first_sizes, self.counts.tolist(), strict=True))
        pairs = list(zip(cuts, (*cuts[-shift:], *cuts[:-shift]), strict=True))
        # Few pairs of neighbours are unlike, so a column is made once for each.
        column = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        (sizes, first, _), (other_sizes, other_first, other_counts) = np.array(list(column)).transpose(1, 2, 0)
        ends = np.arange(-1, int(self.counts.max()))[:, None] * sizes + first
        ends[0] = 0
        ended = (ends + other_sizes - other_first) // other_sizes
        opened: Ints = np.where(ends >= self.jobs, other_counts, ended)[:, [column[pair] for pair in pairs]]
        return opened
