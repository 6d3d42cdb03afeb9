"""From a slot schedule to explicit orders: which worker executes which micro-batch when (slots.py has the argument)."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.kernels import kernel
from ..scheduling.forms import Form, pays
from ..scheduling.problem import KINDS
from .slots import Slots

if TYPE_CHECKING:
    from ..scheduling.problem import Flags, Ints, Orders, Problem

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
