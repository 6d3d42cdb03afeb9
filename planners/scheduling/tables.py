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
        hop_s = np.zeros(problem.executor.shape)
        hop_s[:, :-1] = problem.hop_s
        self.hop_s = self.floats(hop_s.ravel())
        durations = (workers.forward_s, workers.input_s, workers.weight_s, workers.full_s)
        self.duration_s = self.floats(np.stack(durations, axis=1).ravel())
        self.up_s, self.down_s = self._margins(by_stage, problem.hop_s)
        self.start = self.ints(np.concatenate([[0], np.cumsum(np.repeat(sizes, KINDS))])[:-1])
        self.count = self.ints(self._operations())
        self.groups = int(workers.group.max()) + 1
        self.group = self.ints(workers.group)
        self.allreduce_s = self.floats(np.where(workers.live, workers.allreduce_s, 0.0))
        self.optimizer_s = self.floats(np.where(workers.live, workers.optimizer_s, 0.0))

    def orders(self, order: Any) -> Orders:
        """The order of each worker, cut from the flat one."""
        starts, counts = list(self.start)[::KINDS], list(self.count)
        parts = (order[at : at + count] for at, count in zip(starts, counts, strict=True))
        return [part.tolist() for part in parts] if self.compiled else list(parts)

    def objective(self) -> Any:
        """A function of first starts and last ends that gives the makespan or period in s."""
        function, window = self.kernel(objective), self.float_space(4 * self.groups)
        fixed = (self.problem.staggered, self.groups, self.group, self.count, self.allreduce_s, self.optimizer_s)
        return lambda first_s, free_s: float(function(*fixed, first_s, free_s, window))

    def _operations(self) -> Any:
        """Operations of each worker."""
        split = self.problem.executor[self.problem.split]
        return 2 * self.problem.job_counts + np.bincount(split, minlength=len(self.problem.job_counts))

    def _margins(self, by_stage: Sequence[Sequence[int]], hop_s: Any) -> tuple[Any, Any]:
        """Least time from a decision at stage i to F's arrival at i+1, and from one at i+1 to I's arrival at i."""
        workers = self.problem.workers
        up, down = [], []
        least_s = np.where(self.problem.executor[:, 1:] >= 0, hop_s, np.inf).min(axis=0, initial=np.inf).tolist()
        for delay_s, (below, above) in zip(least_s, pairwise(by_stage), strict=True):
            up.append(float(workers.forward_s[below].min(initial=np.inf)) + delay_s)
            down.append(float(workers.input_s[above].min(initial=np.inf)) + delay_s)
        return self.floats([*up, np.inf]), self.floats([*down, np.inf])


@kernel
def objective(
    staggered: bool,
    groups: int,
    group: Sequence[int],
    count: Sequence[int],
    allreduce_s: Sequence[float],
    optimizer_s: Sequence[float],
    first_s: Sequence[float],
    free_s: Sequence[float],
    window: MutableSequence[float],
) -> float:
    """The makespan, or the period, in s; `window` is work space of 4 a group, `count` the operations of each worker."""
    for number in range(groups):
        window[4 * number] = INFINITY
        window[4 * number + 1] = 0.0
        window[4 * number + 2] = 0.0
        window[4 * number + 3] = 0.0
    for worker in range(len(group)):
        at = 4 * group[worker]
        if count[worker] > 0:
            window[at] = min(window[at], first_s[worker])
            window[at + 1] = max(window[at + 1], free_s[worker])
        window[at + 2] = max(window[at + 2], allreduce_s[worker])
        window[at + 3] = max(window[at + 3], optimizer_s[worker])
    longest_s = 0.0
    step_s = 0.0
    for number in range(groups):
        begin_s, end_s, reduce_s, own_step_s = (
            window[4 * number], window[4 * number + 1], window[4 * number + 2], window[4 * number + 3],
        )  # fmt: skip
        if staggered:
            longest_s = max(longest_s, end_s - begin_s + reduce_s + own_step_s)
        else:
            longest_s = max(longest_s, end_s + reduce_s)
            step_s = max(step_s, own_step_s)
    return longest_s + step_s
