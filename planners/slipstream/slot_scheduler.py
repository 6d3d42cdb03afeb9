"""List scheduling of slots: the kernels of the scheduling core, on one pipeline whose stages have unequal slots."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.kernels import kernel, pays
from ..scheduling.forms import Form
from ..scheduling.problem import INTERPRETED_OPERATIONS, KINDS
from ..scheduling.sweep import sweep
from .slots import Slots, open_slots

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem
    from ..scheduling.rules import Rules


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
        self._form = form = Form(pays(sweep, KINDS * stages * most_slots * runs, INTERPRETED_OPERATIONS))
        self._stages, self.most_slots = stages, most_slots
        self._weight_s = workers.weight_s
        self._hop_s = pipeline.hop_s[0]
        self.head_s = np.concatenate([[0.0], np.cumsum(workers.forward_s[:-1] + self._hop_s)])
        self._endings = [times.tolist() for times in (self.head_s, workers.allreduce_s, workers.optimizer_s)]
        self._longest_step_s = float(workers.optimizer_s.max())
        hops_s = np.append(self._hop_s, 0.0)
        up_s, down_s = workers.forward_s[:-1] + self._hop_s, workers.input_s[1:] + self._hop_s
        durations = np.stack((workers.forward_s, workers.input_s, workers.weight_s, workers.full_s), axis=1)
        held = np.stack((workers.activation_bytes, workers.stash_bytes, workers.limit_bytes), axis=1)
        self._fixed = (
            form.ints(np.arange(stages + 1)), form.ints(np.arange(stages)),
            form.floats(np.append(up_s, np.inf)), form.floats(np.append(down_s, np.inf)),
            form.ints(np.full(most_slots, stages - 1)), form.ints(np.tile(np.arange(stages), most_slots), np.int32),
        )  # fmt: skip
        split = np.tile(pipeline.split[0], most_slots)
        self._held = form.floats(held.ravel())
        self._costs = (
            form.ints(split, np.int8), form.floats(np.tile(hops_s, most_slots)),
            form.floats(durations.ravel()), self._held,
        )  # fmt: skip
        self._kinds = np.where(pipeline.split[0], KINDS, KINDS - 1)
        cells = KINDS * stages * most_slots
        self._free_s, self._first_s = form.float_space(stages), form.float_space(stages)
        self._order, self._done = form.int_space(cells), form.int_space(KINDS * stages)
        self._state = (
            form.float_space(stages + 1), self._done, form.int_space(KINDS * stages),
            form.ints(np.arange(KINDS * stages) * most_slots), form.float_space(cells), form.int_space(cells),
            self._free_s, form.float_space(stages), self._first_s, form.int_space(stages), self._order,
        )  # fmt: skip
        self._sweep = form.kernel(sweep)
        self._be_cut(Slots(1, (1,) * stages))

    @property
    def compiled(self) -> bool:
        """Whether machine code schedules."""
        return self._form.compiled

    def run(self, slots: Slots, rules: Rules) -> SlotTimes:
        """Schedule slots by rules, one entry a stage; infinite times where limits stop it for ever."""
        if slots is not self._slots:
            self._be_cut(slots)
        form = self._form
        rule = form.ints(rules.columns.ravel())
        wait_s = form.floats(np.asarray(rules.weight_wait) * self._weight_s)
        self._sweep(
            self._stages, self._first_count, *self._fixed, *self._opens, *self._costs, rule, wait_s, *self._state
        )
        if int(np.sum(self._done)) < self._operations:
            return STUCK
        return self._times()

    def _be_cut(self, slots: Slots) -> None:
        """What runs need to know of these slots, which many of them may have."""
        self._slots, self._first_count = slots, int(slots.counts[0])
        self._operations = int((slots.counts * self._kinds).sum())
        self._opens = [self._form.ints([])] * 2
        if not slots.alike:
            form, counts = self._form, self._form.ints(slots.counts)
            ends, open_all = form.ints(slots.ends.ravel()), form.kernel(open_slots)
            self._opens = [form.int_space(self._stages * (len(slots.ends) + 1)) for _ in range(2)]
            for shift, opened in zip((1, -1), self._opens, strict=True):
                open_all(self._stages, shift, counts, ends, opened)

    def orders(self) -> Sequence[Ints]:
        """The orders of the last run: of each stage, `3 * slot + kind` of its operations."""
        starts = np.arange(self._stages) * KINDS * self.most_slots
        counts = (self._slots.counts * self._kinds).tolist()
        order = np.asarray(self._order)
        return [order[at : at + count].copy() for at, count in zip(starts.tolist(), counts, strict=True)]

    def peaks_bytes(self) -> list[float]:
        """The most that a worker of each stage which has something in every slot holds at once, in the last run."""
        form, counts = self._form, self._slots.counts * self._kinds
        found = form.float_space(self._stages)
        form.kernel(peaks)(
            self._stages, self.most_slots, form.ints(counts), form.ints(self._kinds - 2), self._order, self._held, found
        )
        return [float(peak) for peak in found]

    def _times(self) -> SlotTimes:
        """Windows begin with the first F of rank 0, which waits for nothing but its own F at the stages before."""
        end_s = np.array(self._free_s)
        rows = list(zip(end_s.tolist(), *self._endings, strict=True))
        makespan_s = max(last_s + reduce_s for last_s, _, reduce_s, _ in rows) + self._longest_step_s
        period_s = max(last_s - head_s + reduce_s + step_s for last_s, head_s, reduce_s, step_s in rows)
        return SlotTimes(makespan_s, period_s, end_s)


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
