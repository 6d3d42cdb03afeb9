"""Times of given orders: the longest path, and which neighbours on it could change places.

For that, a problem is flat sequences that kernels take (`Tables`), with its objective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from .problem import KINDS, Orders, Problem, Windows, stage_windows

if TYPE_CHECKING:
    from numpy.typing import NDArray


from collections.abc import Callable, MutableSequence, Sequence
from itertools import accumulate, pairwise
from typing import Any

from .forms import Form, pays
from .problem import INTERPRETED_OPERATIONS

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


F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters; B stands for I where the backward is not split
NONE = -1


def value_s(problem: Problem, orders: Orders, runs: int = 1) -> float:
    """The makespan, or period, of given orders in s; infinite where they deadlock. About so many `runs` are to come."""
    return Retimer(problem, runs).value_s(orders)


def windows_of(problem: Problem, orders: Orders) -> Windows:
    """The windows of a problem's components, by orders without a deadlock."""
    return timed(problem, orders)[1]


def timed(problem: Problem, orders: Orders, runs: int = 1) -> tuple[float, Windows]:
    """What `value_s` gives, and the windows of the problem's components; they mean nothing where orders deadlock."""
    retimer = Retimer(problem, runs)
    return retimer.value_s(orders), stage_windows(problem, *retimer.spans_s)


class Retimer:
    """A problem made ready to time many orders, or many small changes of some.

    Args:
        problem: whose orders will come.
        runs: about how many.
    """

    def __init__(self, problem: Problem, runs: int = 1) -> None:
        self._tables = tables = Tables(problem, retime, runs)
        workers, cells = problem.workers, problem.jobs * tables.stages
        count, places = len(workers.stage), KINDS * int(problem.job_counts.sum())
        self._workers = workers
        self._objective = tables.objective()
        self._retime, self._fits, self._move = (tables.kernel(function) for function in (retime, fits, move))
        self._critical_pairs = tables.kernel(critical_pairs)
        self._first_s, self._free_s = tables.float_space(count), tables.float_space(count)
        self._start_s, self._end_s = tables.float_space(places), tables.float_space(places)
        self._order, self._found = tables.int_space(places), tables.int_space(places)
        self._place_of = tables.int_space(2 * cells)
        self._problem = (
            tables.stages, tables.members, tables.stage, tables.last_stage, tables.split,
            tables.hop_s, tables.duration_s, tables.start, tables.count,
        )  # fmt: skip
        self._state = (
            tables.int_space(count), tables.float_space(cells), tables.float_space(cells), self._place_of,
            self._start_s, self._end_s, self._first_s, self._free_s,
        )  # fmt: skip

    def value_s(self, orders: Orders) -> float:
        """The makespan, or period, of orders in s; infinite where they deadlock."""
        for worker, order in enumerate(orders):
            at = self._tables.start[KINDS * worker]
            self._order[at : at + len(order)] = self._tables.ints(order)
        return self.again_s()

    def again_s(self) -> float:
        """The objective of the present orders in s; infinite where they deadlock."""
        if not self._retime(*self._problem, self._order, *self._state):
            return float("inf")
        return float(self._objective(self._first_s, self._free_s))

    @property
    def start_s(self) -> MutableFloats:
        """When each of the present orders' operations starts, in s, once timed: those of worker w in `reach(w)`."""
        return self._start_s  # type: ignore[no-any-return]

    @property
    def end_s(self) -> MutableFloats:
        """When each ends, in s; as `start_s`."""
        return self._end_s  # type: ignore[no-any-return]

    @property
    def spans_s(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """First start and last end of each worker, in s, once timed; 0 without operations."""
        return np.asarray(self._first_s), np.asarray(self._free_s)

    def orders(self) -> Orders:
        """The present orders, as operation codes of each worker."""
        return self._tables.orders(self._order)

    def critical_pairs(self) -> list[tuple[int, int]]:
        """(worker, place) of operations that directly follow another on a longest path and could change places with it.

        Only after the present orders were timed.
        """
        tables, ends_s = self._tables, np.asarray(self._free_s) + self._workers.allreduce_s
        if self._tables.problem.staggered:
            ends_s = ends_s - np.asarray(self._first_s)
        count = self._critical_pairs(
            int(np.argmax(ends_s)), tables.stages, tables.stage, tables.last_stage, tables.executor, tables.start,
            tables.count, self._order, self._place_of, self._start_s, self._end_s, self._found,
        )  # fmt: skip
        return [divmod(int(code), len(self._order)) for code in self._found[:count]]

    def move(self, source: int, target: int) -> None:
        """Let the operation at a place move to another, and those between make room."""
        self._move(self._order, source, target)

    def reach(self, worker: int) -> range:
        """The places of a worker's operations."""
        first = int(self._tables.start[KINDS * worker])
        return range(first, first + int(self._tables.count[worker]))

    def fits(self, worker: int, first: int, last: int) -> bool:
        """Whether a worker keeps its memory limit from one place of its order to another."""
        tables, workers = self._tables, self._workers
        sizes = workers.activation_bytes[worker], workers.stash_bytes[worker], workers.limit_bytes[worker]
        stage = tables.stages, int(workers.stage[worker])
        return bool(self._fits(tables.start[KINDS * worker], first, last, *stage, tables.split, self._order, *sizes))


@kernel
def message_s(
    worker_stage: int,
    job: int,
    kind: int,
    stages: int,
    last_stage: Ints,
    hop_s: Floats,
    forward_s: Floats,
    backward_s: Floats,
) -> float:
    """When the message is there that an operation waits for, in s; negative while it has not been sent."""
    cell = job * stages + worker_stage
    if kind == F and worker_stage > 0:
        return forward_s[cell - 1] + hop_s[cell - 1] if forward_s[cell - 1] >= 0 else -1.0
    if kind == I and forward_s[cell] < 0:
        return -1.0
    if kind == I and worker_stage < last_stage[job]:
        return backward_s[cell + 1] + hop_s[cell] if backward_s[cell + 1] >= 0 else -1.0
    if kind == W and backward_s[cell] < 0:
        return -1.0
    return 0.0


@kernel
def clear(
    count: Ints,
    place: MutableInts,
    forward_s: MutableFloats,
    backward_s: MutableFloats,
    first_s: MutableFloats,
    free_s: MutableFloats,
) -> int:
    """The state before anything ran; returns how many operations are left."""
    for cell in range(len(forward_s)):
        forward_s[cell] = -1.0
        backward_s[cell] = -1.0
    left = 0
    for worker in range(len(place)):
        place[worker] = 0
        free_s[worker] = 0.0
        first_s[worker] = 0.0
        left += count[worker]
    return left


@kernel
def retime(
    stages: int,
    members: Ints,
    stage: Ints,
    last_stage: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    start: Ints,
    count: Ints,
    order: Ints,
    done: MutableInts,
    forward_s: MutableFloats,
    backward_s: MutableFloats,
    place_of: MutableInts,
    start_s: MutableFloats,
    end_s: MutableFloats,
    first_s: MutableFloats,
    free_s: MutableFloats,
) -> bool:
    """Times of given orders: each operation starts when its worker is free and its message is there.

    Args:
        members, stage: the workers by stage, and the stage of each worker.
        start, count, order: worker w's operations are `order[start[3 * w]:][:count[w]]`.
        done: work space, over workers.
        forward_s, backward_s: receive the ends of F and of I (or B), at `job * stages + stage`.
        place_of: receives the places in `order` of F and of I, at twice that, and at one more.
        start_s, end_s: receive the times of each operation, at its place in `order`.
        first_s, free_s: receive first starts and last ends, over workers.
        The rest is as for `sweep`.

    Returns:
        Whether all ran: False where the orders deadlock.
    """
    left = clear(count, done, forward_s, backward_s, first_s, free_s)
    upwards = True
    while left > 0:
        before = left
        for step in range(len(members)):
            worker = members[step if upwards else len(members) - 1 - step]
            while done[worker] < count[worker]:
                at = start[3 * worker] + done[worker]
                job, kind = order[at] // 3, order[at] % 3
                ready_s = message_s(stage[worker], job, kind, stages, last_stage, hop_s, forward_s, backward_s)
                if ready_s < 0:
                    break
                cell = job * stages + stage[worker]
                start_s[at] = max(free_s[worker], ready_s)
                end_s[at] = start_s[at] + duration_s[4 * worker + (B if kind == I and split[cell] == 0 else kind)]
                free_s[worker] = end_s[at]
                if done[worker] == 0:
                    first_s[worker] = start_s[at]
                if kind != W:
                    ended = forward_s if kind == F else backward_s
                    ended[cell] = end_s[at]
                    place_of[2 * cell + kind] = at
                done[worker] += 1
                left -= 1
        if left == before:
            return False
        upwards = not upwards
    return True


@kernel
def critical_pairs(
    worker: int,
    stages: int,
    stage: Ints,
    last_stage: Ints,
    executor: Ints,
    start: Ints,
    count: Ints,
    order: Ints,
    place_of: Ints,
    start_s: Floats,
    end_s: Floats,
    found: MutableInts,
) -> int:
    """Walk a longest path back from a worker's last operation.

    Args:
        found: receives `worker * len(order) + place` of each operation on the path that directly follows another kind
            of operation of another job.
        The rest is as for `retime`.

    Returns:
        How many were found.
    """
    number = 0
    at = start[3 * worker] + count[worker] - 1
    while at >= 0:
        job, kind = order[at] // 3, order[at] % 3
        if at > start[3 * worker] and end_s[at - 1] == start_s[at]:
            if order[at - 1] // 3 != job and order[at - 1] % 3 != kind:
                found[number] = worker * len(order) + at
                number += 1
            at -= 1
        else:
            cell = job * stages + stage[worker]
            at = NONE
            if kind == F and stage[worker] > 0:
                at = place_of[2 * cell - 2]
                worker = executor[cell - 1]
            elif kind == I and stage[worker] < last_stage[job]:
                at = place_of[2 * cell + 3]
                worker = executor[cell + 1]
    return number


@kernel
def fits(
    begin: int,
    first: int,
    last: int,
    stages: int,
    stage: int,
    split: Ints,
    order: Ints,
    activation_bytes: float,
    stash_bytes: float,
    limit_bytes: float,
) -> bool:
    """Whether the worker whose order begins at `begin` is within its limit at its F from place `first` to `last`."""
    whole = 0
    stashed = 0
    for at in range(begin, last + 1):
        kind = order[at] % 3
        if kind == F:
            whole += 1
            if at >= first and whole * activation_bytes + stashed * stash_bytes > limit_bytes:
                return False
        elif kind == W:
            stashed -= 1
        else:
            whole -= 1
            stashed += split[order[at] // 3 * stages + stage]
    return True


@kernel
def move(order: MutableInts, source: int, target: int) -> None:
    """Move an entry to another place; those between make room."""
    moved = order[source]
    step = 1 if target > source else -1
    at = source
    while at != target:
        order[at] = order[at + step]
        at += step
    order[target] = moved
