"""A problem as the flat sequences that the kernels take, and its objective."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ...schemas.kernels import kernel
from .forms import Form, pays
from .problem import INTERPRETED_OPERATIONS, KINDS, Orders, Problem

INFINITY = float("inf")


class Tables(Form):
    """A problem as flat sequences: lists where kernels are interpreted, arrays where they are compiled.

    Args:
        problem: what to order.
        main: the kernel that does the work.
        runs: about how many times it will be called: decides whether machine code is worth its while.
    """

    def __init__(self, problem: Problem, main: Callable[..., Any], runs: int) -> None:
        super().__init__(pays(main, problem.operations * runs, INTERPRETED_OPERATIONS))
        self.problem = problem
        workers = problem.workers
        self.stages = problem.executor.shape[1]
        sizes = problem.job_counts
        by_stage = [np.flatnonzero((sizes > 0) & (workers.stage == i)).tolist() for i in range(self.stages)]
        self.members = self.ints([w for members in by_stage for w in members])
        self.stage_start = self.ints([0, *accumulate(len(members) for members in by_stage)])
        self.stage = self.ints(workers.stage)
        self.last_stage = self.ints(problem.depth[problem.origin] - 1)
        self.executor = self.ints(problem.executor.ravel(), np.int32)
        self.split = self.ints(problem.split.ravel(), np.int8)
        self.hop_s = self.floats(problem.hops_s.ravel())
        self.duration_s = self.floats(workers.durations_s.ravel())
        # Least time from a decision at stage i to F's arrival at i+1, and from one at i+1 to I's arrival at i.
        up, down = [], []
        least_s = np.where(problem.executor[:, 1:] >= 0, problem.hop_s, np.inf).min(axis=0, initial=np.inf).tolist()
        for delay_s, (below, above) in zip(least_s, pairwise(by_stage), strict=True):
            up.append(float(workers.forward_s[below].min(initial=np.inf)) + delay_s)
            down.append(float(workers.input_s[above].min(initial=np.inf)) + delay_s)
        self.up_s, self.down_s = self.floats([*up, np.inf]), self.floats([*down, np.inf])
        self.start = self.ints(np.concatenate([[0], np.cumsum(np.repeat(sizes, KINDS))])[:-1])
        self.count = self.ints(2 * sizes + np.bincount(problem.executor[problem.split], minlength=len(sizes)))
        self.group = self.ints(workers.group)

    def orders(self, order: Any) -> Orders:
        """The order of each worker, cut from the flat one."""
        starts, counts = list(self.start)[::KINDS], list(self.count)
        parts = (order[at : at + count] for at, count in zip(starts, counts, strict=True))
        return [part.tolist() for part in parts] if self.compiled else list(parts)

    def objective(self) -> Any:
        """A function of first starts and last ends that gives the makespan or period in s."""
        workers, parts = self.problem.workers, self.problem.workers.parts
        function = self.kernel(objective)
        fixed = (
            self.problem.staggered, self.group, self.count, self.ints(parts.foremost), self.ints(parts.hindmost),
            self.ints(parts.linked), self.floats(workers.sums_s), self.floats(workers.steps_s),
        )  # fmt: skip
        space = self.float_space(len(parts.held)), self.float_space(len(parts.linked))
        return lambda first_s, free_s: float(function(*fixed, first_s, free_s, *space))


@kernel
def objective(
    staggered: bool,
    group: Sequence[int],
    count: Sequence[int],
    foremost: Sequence[int],
    hindmost: Sequence[int],
    linked: Sequence[int],
    sum_s: Sequence[float],
    step_s: Sequence[float],
    first_s: Sequence[float],
    free_s: Sequence[float],
    begin_s: MutableSequence[float],
    begun_s: MutableSequence[float],
) -> float:
    """The makespan, or the period, in s.

    Args:
        staggered: which of them.
        group, count: of each worker, its group and how many operations it has.
        foremost, hindmost: of each group, its first and its last part.
        linked: whether a part's sum waits for that of the part behind it.
        sum_s: how long each part's sum takes.
        step_s: how long each group's optimizer step takes.
        first_s, free_s: first start and last end of each worker.
        begin_s, begun_s: work space, one for each group and for each part.
    """
    for number in range(len(begin_s)):
        begin_s[number] = INFINITY
    for part in range(len(begun_s)):
        begun_s[part] = 0.0
    for worker in range(len(group)):
        number = group[worker]
        if count[worker] > 0:
            begin_s[number] = min(begin_s[number], first_s[worker])
            begun_s[hindmost[number]] = max(begun_s[hindmost[number]], free_s[worker])
    for part in range(len(begun_s) - 2, -1, -1):
        if linked[part]:
            begun_s[part] = max(begun_s[part], begun_s[part + 1] + sum_s[part + 1])
    longest_s = 0.0
    last_step_s = 0.0
    for number in range(len(begin_s)):
        part = foremost[number]
        if staggered:
            longest_s = max(longest_s, begun_s[part] - begin_s[number] + sum_s[part] + step_s[number])
        else:
            longest_s = max(longest_s, begun_s[part] + sum_s[part])
            last_step_s = max(last_step_s, step_s[number])
    return longest_s + last_step_s
