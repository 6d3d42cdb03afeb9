"""When the operations of a plan in force begin and end, operation by operation, worker after worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.plan import Plan
from ..placement.problem import ordered_placed_problem, unpaired
from ..placement.scheduler import SeatScheduler
from ..scheduling.problem import KINDS, Parts, ordered_problem_of, parts_of
from ..scheduling.retime import Retimer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ClockedOperations:
    """A plan's operations in the order of its workers, and the sums that follow them.

    Attributes:
        counts: of each worker, how many it has.
        job, stage, kind: of each; jobs are micro-batches in rank order, stages virtual ones where there are such.
        split: of each, whether its backward is split in I and W.
        start_s, end_s: of each.
        microbatch: of each job, its global number.
        depth: of each job, how many stages there are.
        makespan_s: of all, sums and steps included.
        parts: of the layers.
        group: of each worker, its group there; of a failed one anything.
        live: whether a worker has not failed.
        sums_s: how long the sum of each part takes.
    """

    counts: Sequence[int]
    job: Ints
    stage: Ints
    kind: Ints
    split: Flags
    start_s: Floats
    end_s: Floats
    microbatch: Ints
    depth: Ints
    makespan_s: float
    parts: Parts
    group: Ints
    live: Flags
    sums_s: Sequence[float]

    def summed_s(self) -> list[float]:
        """When the sum of each part has ended."""
        ends_s = np.zeros(len(self.parts.groups))
        np.maximum.at(ends_s, self.group[np.repeat(np.arange(len(self.counts)), self.counts)], self.end_s)
        begun_s = self.parts.begun_s(self.sums_s, ends_s.tolist())
        return [begun + lasts for begun, lasts in zip(begun_s, self.sums_s, strict=True)]


def clocked(plan: Plan) -> ClockedOperations:
    """The times of a plan's operations by its orders.

    Args:
        plan: with what is slow in it; of one template if that has a placement.
    """
    return _placed_times(plan) if plan.is_placed or plan.may_pair else _plain_times(plan)


def _plain_times(plan: Plan) -> ClockedOperations:
    problem, orders = ordered_problem_of(plan)
    retimer, workers = Retimer(problem.with_objective(False)), problem.workers
    makespan_s, counts = retimer.value_s(orders), [len(order) for order in orders]
    job, kind = np.divmod(np.concatenate(orders), KINDS)
    stage = np.repeat(workers.stage, counts)
    reaches = (retimer.reach(number) for number in range(len(counts)))
    places = np.concatenate([np.arange(reach.start, reach.stop) for reach in reaches])
    return ClockedOperations(
        counts, job, stage, kind, problem.split[job, stage],
        np.asarray(retimer.start_s)[places], np.asarray(retimer.end_s)[places],
        np.array(plan.microbatch_offsets)[problem.origin] + problem.microbatch, problem.depth[problem.origin],
        makespan_s, workers.parts, workers.group, workers.live, workers.sums_s,
    )  # fmt: skip


def _placed_times(plan: Plan) -> ClockedOperations:
    problem, orders = ordered_placed_problem(plan)
    scheduler = SeatScheduler(problem.with_objective(False))
    makespan_s = scheduler.value_s(orders)
    start_s, end_s = scheduler.operations_s
    cell, kind = np.divmod(np.concatenate([unpaired(order)[0] for order in orders]), KINDS)
    job, stage = np.divmod(cell, problem.stages)
    live = plan.live_workers()
    parts = parts_of(tuple(stage.layers for stage in plan.stages_of(worker)) for worker in live)
    reduce_s = {stage.layers: stage.allreduce_s for stage in plan.templates[0].stages}
    groups = [0 if worker.failed else parts.group[plan.layers_of(worker)] for worker in plan.workers]
    return ClockedOperations(
        [len(order) for order in orders], job, stage, kind, problem.split[job, stage], start_s, end_s,
        np.array(plan.microbatch_offsets)[problem.origin] + problem.microbatch,
        np.full(problem.jobs, problem.stages), makespan_s, parts, np.array(groups), problem.live,
        parts.lasts_s([reduce_s[layers] for layers in parts.held]),
    )  # fmt: skip
