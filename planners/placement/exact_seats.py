"""CP-SAT for placed problems: the model of `scheduling/cp_sat.py`, with a worker's memory over all its seats."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import floor
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.cp_sat import MOST_OPERATIONS, search, solver_name
from ..scheduling.exact_solver import (
    LARGEST_RATIO,
    Attempt,
    BestOrders,
    Instance,
    InstanceTable,
    Room,
    common_unit,
    unit_of,
)
from ..scheduling.one_machine import identical_jobs
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, ROUNDING, WEIGHT
from .scheduler import SeatScheduler, fits

if TYPE_CHECKING:
    from .problem import PlacedProblem, SeatOrders


class SeatCpSat:
    """CP-SAT for placed problems, in the shape of an ExactSolver; with one thread, so equal seeds give equal orders
    unless time runs out."""

    most_operations = MOST_OPERATIONS

    def improve(
        self, problem: PlacedProblem, start: SeatOrders, bound_s: float, *, time_limit_s: float, seed: int
    ) -> Attempt:
        """Look for better orders than `start`; as ExactSolver says."""
        deadline = monotonic() + time_limit_s
        name = solver_name()
        best = BestOrders(SeatScheduler(problem).value_s, partial(fits, problem), start)
        best.prove(bound_s)
        if problem.operations > MOST_OPERATIONS:
            return best.attempt("limit", name)
        try:
            ended = search(seat_instance_of(problem, best.value_s), best, start, deadline, seed)
        except KeyboardInterrupt:
            ended = "interrupted"
        return best.attempt(ended, name)


def seat_instance_of(problem: PlacedProblem, horizon_s: float) -> Instance:
    """A placed problem in whole numbers.

    Args:
        problem: what to order.
        horizon_s: a value that orders of it reach, in s.
    """
    table = InstanceTable(problem.hop_s, *unit_of(_times_s(problem), horizon_s))
    for job, stage in np.ndindex(problem.executor.shape):
        worker, split = int(problem.executor[job, stage]), bool(problem.split[job, stage])
        costs = problem.duration_s[worker, stage].tolist()
        seconds = costs if split else [costs[FORWARD], costs[KINDS]]
        for kind in [FORWARD, BACKWARD, WEIGHT] if split else [FORWARD, BACKWARD]:
            table.add((job, stage, kind), worker, (job * problem.stages + stage) * KINDS + kind, seconds[kind])
    # Every column has operations: each micro-batch passes all of them.
    step_s = problem.optimizer_s if problem.staggered else np.full(len(problem.seats), problem.optimizer_s.max())
    return table.instance(
        staggered=problem.staggered,
        group=problem.worker_column.tolist(),
        overheads_s=dict(enumerate(zip(problem.allreduce_s.tolist(), step_s.tolist(), strict=True))),
        classes=identical_jobs(problem.executor, problem.split, problem.hop_s),
        rooms=_rooms(problem),
    )


def _times_s(problem: PlacedProblem) -> Iterator[float]:
    """Every time in s that a value is a sum of."""
    for stage in range(problem.stages):
        workers, split = problem.executor[:, stage], problem.split[:, stage]
        yield from np.unique(problem.duration_s[workers, stage, FORWARD]).tolist()
        yield from np.unique(problem.duration_s[workers[split], stage, BACKWARD : WEIGHT + 1]).tolist()
        yield from np.unique(problem.duration_s[workers[~split], stage, KINDS]).tolist()
    yield from np.unique(problem.hop_s).tolist()
    yield from problem.allreduce_s.tolist()
    yield from problem.optimizer_s.tolist()


def _rooms(problem: PlacedProblem) -> dict[int, Room]:
    """The memory of every worker whose limit can bind, counted so that nothing that fits is shut out."""
    found = {}
    for worker in np.unique(problem.executor).tolist():
        limit_bytes = float(problem.limit_bytes[worker]) * (1 + ROUNDING)
        held = (problem.executor == worker).sum(axis=0)
        if float((held * np.maximum(problem.activation_bytes, problem.stash_bytes)).sum()) > limit_bytes:
            stages = np.flatnonzero(held).tolist()
            sizes = [(float(problem.activation_bytes[v]), float(problem.stash_bytes[v])) for v in stages]
            largest = max(map(max, sizes))
            unit = common_unit([size for both in sizes for size in both], largest / LARGEST_RATIO)
            # Where none divides them all, each is rounded down: a sum of them is no more than the sum rounded down.
            whole = round if unit else floor
            unit = unit or largest / LARGEST_RATIO
            counted = {v: (whole(a / unit), whole(s / unit)) for v, (a, s) in zip(stages, sizes, strict=True)}
            found[worker] = Room(counted, floor(limit_bytes / unit))
    return found
