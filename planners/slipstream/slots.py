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
(rotation.py) begins and ends with slots of one grid at all stages, as narrow as the narrowest stage's.

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

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.atlas import NarrowSlots
from ...schemas.kernels import Ints as Numbers
from ...schemas.kernels import MutableInts, kernel
from ...schemas.kernels import pays as kernel_pays
from ..scheduling.forms import Form, pays
from ..scheduling.list_schedule import ListCosts, ListState, sweep
from ..scheduling.problem import INTERPRETED_OPERATIONS, KINDS

if TYPE_CHECKING:
    from ..scheduling.list_schedule import DispatchRules
    from ..scheduling.problem import Flags, Floats, Ints, Orders, Problem


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


# From a slot schedule to explicit orders: which worker executes which micro-batch when (slots.py has the argument).


# Plain Python fills so many cells while the machine code is loaded.
INTERPRETED_CELLS = 200_000


def expanded(home: Problem, slots: Slots, stage_orders: Sequence[Ints]) -> tuple[Problem, Orders]:
    """Give every micro-batch a worker at every stage, and every live worker its order.

    Args:
        home: equal pipelines in which every worker runs its own micro-batches, failed workers among them.
        slots: how the ranks are cut; at each stage no more in a group than it has live workers.
        stage_orders: of each stage, `3 * slot + kind` of its operations.

    Returns:
        The problem with that routing, and operation codes of each worker.
    """
    live = home.workers.live.reshape(len(home.depth), -1)
    executor = route(live, slots)
    orders: list[Sequence[int]] = [[] for _ in home.workers.live]
    for stage, order in enumerate(stage_orders):
        for worker, codes in _played(executor[:, stage], slots.slot_of(np.arange(slots.jobs), stage), order):
            orders[worker] = codes
    return replace(home, executor=executor), orders


def route(live: Flags, slots: Slots) -> Ints:
    """The worker of each micro-batch at each stage, `jobs x stages`.

    Args:
        live: whether worker i of pipeline k has not failed, `pipelines x stages`.
        slots: how the ranks are cut.
    """
    pipelines, stages = live.shape
    form = Form(pays(fill, slots.jobs * stages, INTERPRETED_CELLS))
    executor = form.ints(np.zeros(slots.jobs * stages))
    form.kernel(fill)(
        pipelines, stages, form.ints(live.ravel(), np.int8), form.ints(slots.counts), form.ints(slots.ends.ravel()),
        form.int_space(pipelines), executor,
    )  # fmt: skip
    found: Ints = np.asarray(executor).reshape(slots.jobs, stages)
    return found


@kernel
def fill(
    pipelines: int,
    stages: int,
    live: Sequence[int],
    counts: Sequence[int],
    ends: Sequence[int],
    taken: MutableSequence[int],
    executor: MutableSequence[int],
) -> None:
    """Fill in the worker of each micro-batch (by rank) at each stage, at `rank * stages + stage`.

    Those of dead workers go in turns to live ones that have none in the slot. `counts` and `ends` are those of `Slots`;
    `taken` is work space over pipelines.
    """
    for stage in range(stages):
        for pipeline in range(pipelines):
            taken[pipeline] = -1
        turn = 0
        first = 0
        for slot in range(counts[stage]):
            stop = ends[slot * stages + stage]
            for rank in range(first, stop):
                home = rank % pipelines
                if live[home * stages + stage]:
                    taken[home] = first
                    executor[rank * stages + stage] = home * stages + stage
            for rank in range(first, stop):
                if not live[rank % pipelines * stages + stage]:
                    while taken[turn] == first or not live[turn * stages + stage]:
                        turn = (turn + 1) % pipelines
                    taken[turn] = first
                    executor[rank * stages + stage] = turn * stages + stage
            first = stop


def _played(executor: Ints, slot_of: Ints, order: Ints) -> list[tuple[int, Any]]:
    """The order of each worker of a stage that has micro-batches: the stage's, without the slots it skips."""
    workers = np.flatnonzero(np.bincount(executor))
    row_of = np.zeros(int(workers[-1]) + 1, dtype=np.int64)
    row_of[workers] = np.arange(len(workers))
    row = row_of[executor]
    job = np.full((len(workers), int(slot_of[-1]) + 1), -1)
    job[row, slot_of] = np.arange(len(executor))
    slot, kind = np.divmod(order, KINDS)
    played = job[:, slot]
    codes = KINDS * played + kind
    return [(int(worker), codes[at][played[at] >= 0]) for at, worker in enumerate(workers)]


# List scheduling of slots: the kernels of the scheduling core, on one pipeline whose stages have unequal slots.


@dataclass(frozen=True, eq=False)
class SlotTimes:
    """What a slot schedule comes to, in s; `end_s` are the last ends of the stages."""

    makespan_s: float
    period_s: float
    end_s: Floats


# A slot that waits for two of the stage before never gets them where a limit admits only one.
STUCK = SlotTimes(inf, inf, np.empty(0))


class SlotScheduler:
    """Equal pipelines made ready for slot schedules, for any numbers of dead workers.

    Args:
        pipeline: one pipeline alone, all its workers alive; its micro-batches do not matter.
        most_slots: of any stage in the slots to come.
        runs: about how many schedules will follow: decides whether machine code is worth its while.
    """

    def __init__(self, pipeline: Problem, most_slots: int, runs: int = 1) -> None:
        workers, stages = pipeline.workers, len(pipeline.workers.stage)
        self._form = form = Form(kernel_pays(sweep, KINDS * stages * most_slots * runs, INTERPRETED_OPERATIONS))
        self._stages, self.most_slots = stages, most_slots
        self._weight_s = workers.weight_s
        self._hop_s = pipeline.hop_s[0]
        self.head_s = np.concatenate([[0.0], np.cumsum(workers.forward_s[:-1] + self._hop_s)])
        self._endings = [times.tolist() for times in (self.head_s, workers.allreduce_s, workers.optimizer_s)]
        self._longest_step_s = float(workers.optimizer_s.max())
        up_s, down_s = workers.forward_s[:-1] + self._hop_s, workers.input_s[1:] + self._hop_s
        nothing: Numbers = form.ints([])
        self._costs = ListCosts(
            stages, 0, form.ints(np.arange(stages + 1)), form.ints(np.arange(stages)),
            form.floats(np.append(up_s, np.inf)), form.floats(np.append(down_s, np.inf)),
            last_stage=form.ints(np.full(most_slots, stages - 1)),
            executor=form.ints(np.tile(np.arange(stages), most_slots), np.int32), opens_up=nothing, opens_down=nothing,
            split=form.ints(np.tile(pipeline.split[0], most_slots), np.int8),
            hop_s=form.floats(np.tile(pipeline.hops_s[0], most_slots)),
            duration_s=form.floats(workers.durations_s.ravel()), held=form.floats(workers.held_bytes.ravel()),
            start=form.ints(np.arange(KINDS * stages) * most_slots), rule=form.int_space(5 * stages),
            wait_s=form.float_space(stages),
        )  # fmt: skip
        self._kinds = np.where(pipeline.split[0], KINDS, KINDS - 1)
        cells = KINDS * stages * most_slots
        self._state = ListState(
            done=form.int_space(KINDS * stages), known=form.int_space(KINDS * stages),
            ready_s=form.float_space(cells), queue=form.int_space(cells), free_s=form.float_space(stages),
            first_s=form.float_space(stages), event_s=form.float_space(stages), last=form.int_space(stages),
            order=form.int_space(cells), above_s=form.float_space(stages + 1),
        )  # fmt: skip
        self._sweep = form.kernel(sweep)
        self._be_cut(Slots(1, (1,) * stages))

    @property
    def compiled(self) -> bool:
        """Whether machine code schedules."""
        return self._form.compiled

    def run(self, slots: Slots, rules: DispatchRules) -> SlotTimes:
        """Schedule slots by rules, one entry a stage; infinite times where limits stop it for ever."""
        if slots is not self._slots:
            self._be_cut(slots)
        self._costs.rule[:] = self._form.ints(rules.columns.ravel())
        self._costs.wait_s[:] = self._form.floats(np.asarray(rules.weight_wait) * self._weight_s)
        self._sweep(tuple(self._costs), tuple(self._state))
        if int(np.sum(self._state.done)) < self._operations:
            return STUCK
        # Windows begin with the first F of rank 0, which waits for nothing but its own F at the stages before.
        end_s = np.array(self._state.free_s)
        rows = list(zip(end_s.tolist(), *self._endings, strict=True))
        makespan_s = max(last_s + reduce_s for last_s, _, reduce_s, _ in rows) + self._longest_step_s
        period_s = max(last_s - head_s + reduce_s + step_s for last_s, head_s, reduce_s, step_s in rows)
        return SlotTimes(makespan_s, period_s, end_s)

    def _be_cut(self, slots: Slots) -> None:
        """What runs need to know of these slots, which many of them may have."""
        form = self._form
        self._slots = slots
        self._operations = int((slots.counts * self._kinds).sum())
        up, down = form.int_space(0), form.int_space(0)
        if not slots.alike:
            counts, ends, open_all = form.ints(slots.counts), form.ints(slots.ends.ravel()), form.kernel(open_slots)
            up, down = (form.int_space(self._stages * (len(slots.ends) + 1)) for _ in range(2))
            open_all(self._stages, 1, counts, ends, up)
            open_all(self._stages, -1, counts, ends, down)
        self._costs = self._costs._replace(jobs=int(slots.counts[0]), opens_up=up, opens_down=down)

    def orders(self) -> Sequence[Ints]:
        """The orders of the last run: of each stage, `3 * slot + kind` of its operations."""
        starts = np.arange(self._stages) * KINDS * self.most_slots
        counts = (self._slots.counts * self._kinds).tolist()
        order = np.asarray(self._state.order)
        return [order[at : at + count].copy() for at, count in zip(starts.tolist(), counts, strict=True)]

    def peaks_bytes(self) -> list[float]:
        """The most that a worker of each stage which has something in every slot holds at once, in the last run."""
        form, counts = self._form, self._slots.counts * self._kinds
        found = form.float_space(self._stages)
        form.kernel(peaks)(
            self._stages, self.most_slots, form.ints(counts), form.ints(self._kinds - 2), self._state.order,
            self._costs.held, found,
        )  # fmt: skip
        return [float(peak) for peak in found]


@kernel
def peaks(
    stages: int,
    most_slots: int,
    counts: Sequence[int],
    split: Sequence[int],
    order: Sequence[int],
    held: Sequence[float],
    found: MutableSequence[float],
) -> None:
    """Peak memory by the orders of stages.

    Args:
        stages, most_slots: the order of stage i begins at `3 * most_slots * i`.
        counts: operations of each stage.
        split: 1 where its backwards are split, else 0.
        order: `3 * slot + kind` of each operation.
        held: activation bytes, stash bytes and limit of each stage.
        found: receives the peaks, in bytes.
    """
    for stage in range(stages):
        whole = 0
        stashed = 0
        peak = 0.0
        for at in range(3 * most_slots * stage, 3 * most_slots * stage + counts[stage]):
            kind = order[at] % 3
            if kind == 0:
                whole += 1
                peak = max(peak, whole * held[3 * stage] + stashed * held[3 * stage + 1])
            elif kind == 1:
                whole -= 1
                stashed += split[stage]
            else:
                stashed -= 1
        found[stage] = peak
