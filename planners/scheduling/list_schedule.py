"""List scheduling: every worker runs by rules what is ready, for any pipelines, routing, delays and memory limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.errors import InfeasibleError
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ...schemas.plan import Stage
from .problem import KINDS, Orders, Problem
from .tables import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray


# How many micro-batches a memory limit admits.


def most_in_flight(stages: Sequence[Stage], microbatches: int) -> list[int]:
    """For each stage, how many micro-batches its memory limit admits at once, at most `microbatches`.

    Raises:
        InfeasibleError: a limit does not admit a single one.
    """
    limits = [inf if stage.memory_limit_bytes is None else stage.memory_limit_bytes for stage in stages]
    found = [_room(stage.activation_bytes, limit, microbatches) for stage, limit in zip(stages, limits, strict=True)]
    for index, (stage, room) in enumerate(zip(stages, found, strict=True)):
        if room < 1:
            raise _too_tight(index, stage.activation_bytes, limits[index])
    return found


def rooms(problem: Problem) -> list[int]:
    """For each worker, how many micro-batches its memory limit admits at once, at most all jobs.

    Raises:
        InfeasibleError: the limit of a worker that has jobs does not admit a single one.
    """
    workers = problem.workers
    sizes = zip(workers.activation_bytes.tolist(), workers.limit_bytes.tolist(), strict=True)
    found = [_room(activation_bytes, limit_bytes, problem.jobs) for activation_bytes, limit_bytes in sizes]
    for worker, room in enumerate(found):
        if room < 1 and problem.job_counts[worker]:
            stage = int(workers.stage[worker])
            raise _too_tight(stage, workers.activation_bytes[worker], workers.limit_bytes[worker])
    return found


def _room(activation_bytes: float, limit_bytes: float, microbatches: int) -> int:
    if microbatches * activation_bytes <= limit_bytes:
        return microbatches
    return int(limit_bytes // activation_bytes)


def _too_tight(stage: int, activation_bytes: float, limit_bytes: float) -> InfeasibleError:
    return InfeasibleError(
        f"stage {stage} holds {activation_bytes:g} bytes a micro-batch, its memory limit is {limit_bytes:g}",
        where="--memory-limit",
        fix="raise the limit, take a smaller micro-batch, or more stages",
    )


# The kernels of the list scheduler: all workers decide by the rules, over exact times, without a global event queue.
#
# A conservative sweep (K. M. Chandy and J. Misra, "Distributed simulation", CACM 24, 1981): the stages are visited in
# turns, and a worker decides for as long as no message that it does not know yet can arrive. How long that is follows
# from the next decisions of all stages: a message that leaves stage j now reaches stage i no sooner than the shortest
# operations and delays between them add up to. Unlike the textbook form there are no null messages, so two idle workers
# never advance each other for ever: a worker that waits for no known moment has no next decision, and when nobody has
# one, it ends. Where operations and delays of no length leave no margin, the worker that decides first goes alone.
#
# Arrays are flat. Those over workers and kinds stand at `3 * worker + kind`; each such pair has a queue of the jobs
# whose F, I or W is known, in order of arrival (ties by job), from `start[3 * worker + kind]` on.


INFINITY = float("inf")
F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters; B stands for I where the backward is not split
NOTHING, LATER = -1, -2
INPUT_FIRST, FORWARD_FIRST, ALTERNATE, UNBLOCK = 0, 1, 2, 3  # rules.Priority, whose members numba does not know


@kernel
def admits(worker: int, done: Ints, known: Ints, held: Floats, rule: Ints, pending: int) -> bool:
    """Whether in-flight limit, backlog and memory let a worker start one more F with `pending` W outstanding."""
    whole = done[3 * worker + F] - done[3 * worker + I]
    if whole >= rule[5 * worker + 1] or pending >= rule[5 * worker + 2]:
        return False
    return (whole + 1) * held[3 * worker] + pending * held[3 * worker + 1] <= held[3 * worker + 2]


@kernel
def next_ready(place: int, done: Ints, known: Ints, start: Ints, ready_s: Floats) -> float:
    """When the next job of a queue is there, in s; infinite while its sender has not decided."""
    return ready_s[start[place] + done[place]] if done[place] < known[place] else INFINITY


@kernel
def forward_ready(worker: int, done: Ints, known: Ints, start: Ints, ready_s: Floats, rule: Ints) -> float:
    """When a worker's next F is there, in s: in arrival order, but the first one is that which it is held back for."""
    place = 3 * worker + F
    number = rule[5 * worker + 4] if done[place] == 0 else done[place]
    return ready_s[start[place] + number] if number < known[place] else INFINITY


@kernel
def bring_forward(worker: int, number: int, start: Ints, ready_s: MutableFloats, queue: MutableInts) -> None:
    """Let the F of that number in a worker's queue become the first, and those ahead of it follow."""
    first = start[3 * worker + F]
    job, at_s = queue[first + number], ready_s[first + number]
    for at in range(first + number, first, -1):
        queue[at] = queue[at - 1]
        ready_s[at] = ready_s[at - 1]
    queue[first] = job
    ready_s[first] = at_s


@kernel
def pick(
    worker: int,
    now_s: float,
    seen_s: float,
    done: Ints,
    known: Ints,
    start: Ints,
    ready_s: Floats,
    held: Floats,
    rule: Ints,
    wait_s: Floats,
    last: Ints,
) -> int:
    """The kind of operation that a worker starts now: NOTHING until something arrives, LATER until more is known."""
    forward_s = forward_ready(worker, done, known, start, ready_s, rule)
    input_s = next_ready(3 * worker + I, done, known, start, ready_s)
    pending = known[3 * worker + W] - done[3 * worker + W]
    priority = rule[5 * worker + 3]
    admitted = admits(worker, done, known, held, rule, pending)
    if input_s <= now_s:
        if forward_s > now_s:
            return I
        if not admitted:
            frees = priority == UNBLOCK and pending > 0 and admits(worker, done, known, held, rule, pending - 1)
            return W if frees else I
        warming_up = done[3 * worker + F] < rule[5 * worker]
        turn = priority == FORWARD_FIRST or (priority == ALTERNATE and last[worker] != F)
        return F if warming_up or turn else I
    if admitted and forward_s <= now_s:
        return F
    if pending == 0:
        return NOTHING
    if wait_s[worker] > 0:
        soon_s = min(input_s, forward_s) if admitted else input_s
        if soon_s - now_s < wait_s[worker]:
            return NOTHING
        if seen_s < now_s:
            return LATER
    return W


@kernel
def push(
    worker: int,
    kind: int,
    job: int,
    at_s: float,
    done: Ints,
    known: MutableInts,
    start: Ints,
    ready_s: MutableFloats,
    queue: MutableInts,
    free_s: Floats,
    event_s: MutableFloats,
) -> None:
    """Put a job that is there at `at_s` into a queue, and bring the worker's next decision forward to it."""
    place = 3 * worker + kind
    first = start[place] + done[place]
    at = start[place] + known[place]
    while at > first and (ready_s[at - 1] > at_s or (ready_s[at - 1] == at_s and queue[at - 1] > job)):
        ready_s[at] = ready_s[at - 1]
        queue[at] = queue[at - 1]
        at -= 1
    ready_s[at] = at_s
    queue[at] = job
    known[place] += 1
    event_s[worker] = min(event_s[worker], max(free_s[worker], at_s))


@kernel
def execute(
    worker: int,
    stage: int,
    kind: int,
    now_s: float,
    stages: int,
    last_stage: Ints,
    executor: Ints,
    opens_up: Ints,
    opens_down: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    done: MutableInts,
    known: MutableInts,
    start: Ints,
    ready_s: MutableFloats,
    queue: MutableInts,
    free_s: MutableFloats,
    event_s: MutableFloats,
    first_s: MutableFloats,
    last: MutableInts,
    order: MutableInts,
) -> None:
    """Run an operation now: record it, and send what follows from it."""
    count = done[3 * worker] + done[3 * worker + 1] + done[3 * worker + 2]
    job = queue[start[3 * worker + kind] + done[3 * worker + kind]]
    cell = job * stages + stage
    whole = kind == I and split[cell] == 0
    end_s = now_s + duration_s[4 * worker + (B if whole else kind)]
    if count == 0:
        first_s[worker] = now_s
    order[start[3 * worker] + count] = 3 * job + kind
    done[3 * worker + kind] += 1
    free_s[worker] = end_s
    event_s[worker] = end_s
    last[worker] = kind
    if kind == F:
        if stage == last_stage[job]:
            push(worker, I, job, end_s, done, known, start, ready_s, queue, free_s, event_s)
        else:
            at_s = end_s + hop_s[cell]
            first, stop = (job, job + 1) if len(opens_up) == 0 else (opens_up[cell], opens_up[cell + stages])
            for other in range(first, stop):
                to = executor[other * stages + stage + 1]
                push(to, F, other, at_s, done, known, start, ready_s, queue, free_s, event_s)
    elif kind == I:
        if not whole:
            push(worker, W, job, end_s, done, known, start, ready_s, queue, free_s, event_s)
        if stage > 0:
            at_s = end_s + hop_s[cell - 1]
            first, stop = (job, job + 1) if len(opens_down) == 0 else (opens_down[cell], opens_down[cell + stages])
            for other in range(first, stop):
                to = executor[other * stages + stage - 1]
                push(to, I, other, at_s, done, known, start, ready_s, queue, free_s, event_s)


@kernel
def visit(
    worker: int,
    stage: int,
    until_s: float,
    seen_s: float,
    forced: bool,
    stages: int,
    last_stage: Ints,
    executor: Ints,
    opens_up: Ints,
    opens_down: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    held: Floats,
    rule: Ints,
    wait_s: Floats,
    done: MutableInts,
    known: MutableInts,
    start: Ints,
    ready_s: MutableFloats,
    queue: MutableInts,
    free_s: MutableFloats,
    event_s: MutableFloats,
    first_s: MutableFloats,
    last: MutableInts,
    order: MutableInts,
) -> int:
    """Let a worker decide up to `until_s`, or once if `forced`; returns how often it did."""
    decisions = 0
    while event_s[worker] < until_s or forced:
        now_s = event_s[worker]
        kind = pick(worker, now_s, seen_s, done, known, start, ready_s, held, rule, wait_s, last)
        if kind == LATER:
            break
        forced = False
        decisions += 1
        if kind == NOTHING:
            pending = known[3 * worker + W] - done[3 * worker + W]
            event_s[worker] = next_ready(3 * worker + I, done, known, start, ready_s)
            if admits(worker, done, known, held, rule, pending):
                event_s[worker] = min(event_s[worker], forward_ready(worker, done, known, start, ready_s, rule))
        else:
            if kind == F and done[3 * worker + F] == 0:
                bring_forward(worker, rule[5 * worker + 4], start, ready_s, queue)
            execute(
                worker, stage, kind, now_s, stages, last_stage, executor, opens_up, opens_down, split, hop_s,
                duration_s, done, known, start, ready_s, queue, free_s, event_s, first_s, last, order,
            )  # fmt: skip
    return decisions


@kernel
def earliest(stage: int, stage_start: Ints, members: Ints, event_s: Floats) -> float:
    """The next decision of any worker of a stage, in s."""
    least = INFINITY
    for at in range(stage_start[stage], stage_start[stage + 1]):
        least = min(least, event_s[members[at]])
    return least


@kernel
def reset(
    stages: int,
    jobs: int,
    executor: Ints,
    done: MutableInts,
    known: MutableInts,
    start: Ints,
    ready_s: MutableFloats,
    queue: MutableInts,
    free_s: MutableFloats,
    event_s: MutableFloats,
    first_s: MutableFloats,
    last: MutableInts,
) -> None:
    """The state at time 0: all jobs are there at the first stage."""
    for place in range(len(done)):
        done[place] = 0
        known[place] = 0
    for worker in range(len(free_s)):
        free_s[worker] = 0.0
        first_s[worker] = 0.0
        event_s[worker] = INFINITY
        last[worker] = NOTHING
    for job in range(jobs):
        push(executor[job * stages], F, job, 0.0, done, known, start, ready_s, queue, free_s, event_s)


@kernel
def look_above(
    stages: int, stage_start: Ints, members: Ints, down_s: Floats, event_s: Floats, above_s: MutableFloats
) -> None:
    """The earliest decision at each stage that known decisions there and at later stages lead to, in s."""
    above_s[stages] = INFINITY
    for stage in range(stages - 1, -1, -1):
        least_s = earliest(stage, stage_start, members, event_s)
        above_s[stage] = min(least_s, above_s[stage + 1] + down_s[stage])


@kernel
def foremost(members: Ints, event_s: Floats) -> int:
    """The place among `members` of the worker that decides first; NOTHING where none has anything to decide."""
    found = NOTHING
    least_s = INFINITY
    for at in range(len(members)):
        if event_s[members[at]] < least_s:
            found = at
            least_s = event_s[members[at]]
    return found


@kernel
def sweep(
    stages: int,
    jobs: int,
    stage_start: Ints,
    members: Ints,
    up_s: Floats,
    down_s: Floats,
    last_stage: Ints,
    executor: Ints,
    opens_up: Ints,
    opens_down: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    held: Floats,
    rule: Ints,
    wait_s: Floats,
    above_s: MutableFloats,
    done: MutableInts,
    known: MutableInts,
    start: Ints,
    ready_s: MutableFloats,
    queue: MutableInts,
    free_s: MutableFloats,
    event_s: MutableFloats,
    first_s: MutableFloats,
    last: MutableInts,
    order: MutableInts,
) -> None:
    """Schedule everything; `order`, `first_s` and `free_s` hold the orders, first starts and last ends.

    Args:
        stages, jobs: how many there are.
        stage_start, members: the workers of stage i are `members[stage_start[i]:stage_start[i + 1]]`.
        up_s, down_s: least time between a decision at stage i and an F's arrival at i+1, at i+1 and an I's at i.
        last_stage: of each job.
        executor, split, hop_s: at `job * stages + stage`; the hop is that to the next stage and back.
        opens_up, opens_down: where jobs are slots (slipstream/slots.py), F of a cell is what those of the next stage
            from `opens_up[cell]` up to `opens_up[cell + stages]` wait for, and I the same of the stage before. Empty
            where each job waits for itself.
        duration_s: of F, I, W and B, at `4 * worker`.
        held: activation bytes, stash bytes and limit, at `3 * worker`.
        rule: warm-up, in-flight limit, backlog, priority and how many F to be held back for, at `5 * worker`.
        wait_s: a W does not start if an F or I arrives sooner than this, of each worker.
        above_s: work space of `stages + 1`.
        done, known, start, ready_s, queue, free_s, event_s, first_s, last, order: the state, as the module says.
    """
    reset(stages, jobs, executor, done, known, start, ready_s, queue, free_s, event_s, first_s, last)
    while True:
        decisions = 0
        look_above(stages, stage_start, members, down_s, event_s, above_s)
        below_s = INFINITY
        for stage in range(stages):
            own_s = min(earliest(stage, stage_start, members, event_s), above_s[stage + 1] + down_s[stage])
            if stage > 0:
                own_s = min(own_s, below_s + up_s[stage - 1])
                below_s = min(below_s, own_s + down_s[stage - 1])
            beyond_s = min(above_s[stage + 1], own_s + up_s[stage])
            until_s = beyond_s + down_s[stage]
            if stage > 0:
                until_s = min(until_s, below_s + up_s[stage - 1])
            seen_s = min(below_s, beyond_s)
            for at in range(stage_start[stage], stage_start[stage + 1]):
                decisions += visit(
                    members[at], stage, until_s, seen_s, False, stages, last_stage, executor, opens_up, opens_down,
                    split, hop_s, duration_s, held, rule, wait_s, done, known, start, ready_s, queue, free_s, event_s,
                    first_s, last, order,
                )  # fmt: skip
            least_s = earliest(stage, stage_start, members, event_s)
            below_s = min(least_s, below_s + up_s[stage - 1]) if stage > 0 else least_s
        if decisions == 0:
            at = foremost(members, event_s)
            if at == NOTHING:
                return
            stage = 0
            while stage_start[stage + 1] <= at:
                stage += 1
            visit(
                members[at], stage, 0.0, INFINITY, True, stages, last_stage, executor, opens_up, opens_down,
                split, hop_s, duration_s, held, rule, wait_s, done, known, start, ready_s, queue, free_s, event_s,
                first_s, last, order,
            )  # fmt: skip


# The parts that a list schedule is composed of: warm-up, in-flight limits, W look-ahead, backlog and priorities.


class Priority(IntEnum):
    """What a worker prefers after its warm-up, when both an F and an I (or B) are ready; W comes last.

    `UNBLOCK` is `INPUT_FIRST` that also runs a W before an I where that makes the room an F waits for.
    """

    INPUT_FIRST = 0
    FORWARD_FIRST = 1
    ALTERNATE = 2
    UNBLOCK = 3


@dataclass(frozen=True)
class DispatchRules:
    """What a worker runs next; one entry a worker in each.

    Attributes:
        warmup: forwards that it prefers to backwards at first.
        in_flight: most micro-batches between F and I; `problem.jobs` or more is no limit.
        weight_wait: a W is not started if an F or I arrives within this fraction of its duration.
        backlog: so many pending W go before a further F, unless an I is ready.
        priority: what it prefers after the warm-up.
        held_back: so many F arrive before the first one starts, and go after it; empty is none.
    """

    warmup: Sequence[int]
    in_flight: Sequence[int]
    weight_wait: Sequence[float]
    backlog: Sequence[int]
    priority: Sequence[Priority]
    held_back: Sequence[int] = ()

    @property
    def columns(self) -> NDArray[np.int64]:
        """Warm-ups, in-flight limits, backlogs, priorities and hold-backs as whole numbers, workers x 5."""
        held_back = self.held_back or [0] * len(self.warmup)
        columns = (self.warmup, self.in_flight, self.backlog, self.priority, held_back)
        return np.array(columns, dtype=np.int64).T


def list_schedule(problem: Problem, rules: DispatchRules) -> Orders:
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

    def run(self, rules: DispatchRules) -> float:
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
