"""List scheduling: every worker runs by rules what is ready, for any pipelines, routing, delays and memory limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .problem import KINDS, Orders, Problem
from .rules import Rules
from .sweep import sweep
from .tables import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray


def list_schedule(problem: Problem, rules: Rules) -> Orders:
    """Orders by one set of rules.

    A limit on memory or on micro-batches in flight only holds F back, so the last stage can always take a micro-batch
    all the way and, stage by stage from there, so can all others: the schedule never deadlocks, whatever the rules, if
    each worker's limits admit one micro-batch.

    Args:
        problem: what to order.
        rules: what each worker runs next.

    Returns:
        Operation codes of each worker, in order.
    """
    scheduler = ListScheduler(problem)
    scheduler.run(rules)
    return scheduler.orders()


class ListScheduler:
    """A problem made ready for many runs under different rules.

    Args:
        problem: what to order.
        runs: about how many runs will follow: decides whether machine code is worth its while.
    """

    def __init__(self, problem: Problem, runs: int = 1) -> None:
        self._tables = tables = Tables(problem, sweep, runs)
        workers = len(problem.workers.stage)
        cells = KINDS * int((problem.executor >= 0).sum())
        bounds = (problem.workers.activation_bytes, problem.workers.stash_bytes, problem.workers.limit_bytes)
        held = tables.floats(np.stack(bounds, axis=1).ravel())
        self._sweep = tables.kernel(sweep)
        self._objective = tables.objective()
        self._order = tables.int_space(cells)
        self._done = tables.int_space(KINDS * workers)
        self._first_s, self._free_s = tables.float_space(workers), tables.float_space(workers)
        self._problem = (
            tables.stages, problem.jobs, tables.stage_start, tables.members, tables.up_s, tables.down_s,
            tables.last_stage, tables.executor, tables.ints([]), tables.ints([]), tables.split, tables.hop_s,
            tables.duration_s, held,
        )  # fmt: skip
        self._state = (
            tables.float_space(tables.stages + 1), self._done,
            tables.int_space(KINDS * workers), tables.start, tables.float_space(cells), tables.int_space(cells),
            self._free_s, tables.float_space(workers), self._first_s, tables.int_space(workers), self._order,
        )  # fmt: skip
        self._weight_s, self._job_counts = problem.workers.weight_s, problem.job_counts
        self._operations = problem.operations

    def run(self, rules: Rules) -> float:
        """Schedule by these rules; returns the makespan, or period, in s; infinite if what is held back never comes."""
        columns = rules.columns
        columns[:, 4] = np.clip(columns[:, 4], 0, np.maximum(self._job_counts - 1, 0))
        rule = self._tables.ints(columns.ravel())
        wait_s = self._tables.floats(np.asarray(rules.weight_wait) * self._weight_s)
        self._sweep(*self._problem, rule, wait_s, *self._state)
        if int(np.sum(self._done)) < self._operations:
            return float("inf")
        return float(self._objective(self._first_s, self._free_s))

    @property
    def spans_s(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """First start and last end of each worker in the last run, in s; 0 without operations."""
        return np.asarray(self._first_s), np.asarray(self._free_s)

    def orders(self) -> Orders:
        """The orders of the last run, as operation codes of each worker."""
        return self._tables.orders(self._order)
