"""List scheduling: every worker runs by rules what is ready, for any pipelines, routing, delays and memory limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.errors import NoRoomError
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ...schemas.plan import Stage
from ...schemas.quantities import print_bytes
from .problem import KINDS, Orders, Problem
from .retime import Tables

if TYPE_CHECKING:
    from numpy.typing import NDArray


# How many micro-batches a memory limit admits.


def most_in_flight(stages: Sequence[Stage], microbatches: int) -> list[int]:
    """For each stage, how many micro-batches its memory limit admits at once, at most `microbatches`.

    Raises:
        NoRoomError: a limit does not admit a single one.
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
        NoRoomError: the limit of a worker that has jobs does not admit a single one.
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


def _too_tight(stage: int, activation_bytes: float, limit_bytes: float) -> NoRoomError:
    limit = f"its memory limit is {print_bytes(limit_bytes)}"
    return NoRoomError(
        f"stage {stage} holds {print_bytes(activation_bytes)} a micro-batch, {limit}",
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


class ListCosts(NamedTuple):
    """What is to be scheduled, and by which rules.

    Attributes:
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
        start: where the queues begin, as above.
        rule: warm-up, in-flight limit, backlog, priority and how many F to be held back for, at `5 * worker`.
        wait_s: a W does not start if an F or I arrives sooner than this, of each worker.
    """

    stages: int
    jobs: int
    stage_start: Ints
    members: Ints
    up_s: Floats
    down_s: Floats
    last_stage: Ints
    executor: Ints
    opens_up: Ints
    opens_down: Ints
    split: Ints
    hop_s: Floats
    duration_s: Floats
    held: Floats
    start: Ints
    rule: MutableInts
    wait_s: MutableFloats


class ListState(NamedTuple):
    """How far a list schedule is.

    Attributes:
        done, known: how many operations of each worker and kind have run, and are in its queue.
        ready_s, queue: the queues: when a job is there, and which.
        free_s, first_s: of each worker, the end of its last operation and the start of its first.
        event_s: when each worker decides next.
        last: the kind of each worker's last operation.
        order: what each worker has executed, `3 * job + kind`, from `start[3 * worker]` on.
        above_s: work space of `stages + 1`.
    """

    done: MutableInts
    known: MutableInts
    ready_s: MutableFloats
    queue: MutableInts
    free_s: MutableFloats
    first_s: MutableFloats
    event_s: MutableFloats
    last: MutableInts
    order: MutableInts
    above_s: MutableFloats


@kernel
def admits(costs: ListCosts, state: ListState, worker: int, pending: int) -> bool:
    """Whether in-flight limit, backlog and memory let a worker start one more F with `pending` W outstanding."""
    done, rule, held = state.done, costs.rule, costs.held
    whole = done[3 * worker + F] - done[3 * worker + I]
    if whole >= rule[5 * worker + 1] or pending >= rule[5 * worker + 2]:
        return False
    return (whole + 1) * held[3 * worker] + pending * held[3 * worker + 1] <= held[3 * worker + 2]


@kernel
def input_ready(costs: ListCosts, state: ListState, worker: int) -> float:
    """When a worker's next I is there, in s; infinite while its sender has not decided."""
    place = 3 * worker + I
    done = state.done[place]
    return state.ready_s[costs.start[place] + done] if done < state.known[place] else INFINITY


@kernel
def forward_ready(costs: ListCosts, state: ListState, worker: int) -> float:
    """When a worker's next F is there, in s: in arrival order, but the first one is that which it is held back for."""
    place = 3 * worker + F
    done = state.done[place]
    number = costs.rule[5 * worker + 4] if done == 0 else done
    return state.ready_s[costs.start[place] + number] if number < state.known[place] else INFINITY


@kernel
def bring_forward(costs: ListCosts, state: ListState, worker: int) -> None:
    """Let the F that a worker is held back for become the first of its queue, and those ahead of it follow."""
    first = costs.start[3 * worker + F]
    number = costs.rule[5 * worker + 4]
    job, at_s = state.queue[first + number], state.ready_s[first + number]
    for at in range(first + number, first, -1):
        state.queue[at] = state.queue[at - 1]
        state.ready_s[at] = state.ready_s[at - 1]
    state.queue[first] = job
    state.ready_s[first] = at_s


@kernel
def pick(costs: ListCosts, state: ListState, worker: int, now_s: float, seen_s: float) -> int:
    """The kind of operation that a worker starts now: NOTHING until something arrives, LATER until more is known."""
    done, rule = state.done, costs.rule
    forward_s = forward_ready(costs, state, worker)
    input_s = input_ready(costs, state, worker)
    pending = state.known[3 * worker + W] - done[3 * worker + W]
    priority = rule[5 * worker + 3]
    admitted = admits(costs, state, worker, pending)
    if input_s <= now_s:
        if forward_s > now_s:
            return I
        if not admitted:
            frees = priority == UNBLOCK and pending > 0 and admits(costs, state, worker, pending - 1)
            return W if frees else I
        warming_up = done[3 * worker + F] < rule[5 * worker]
        turn = priority == FORWARD_FIRST or (priority == ALTERNATE and state.last[worker] != F)
        return F if warming_up or turn else I
    if admitted and forward_s <= now_s:
        return F
    if pending == 0:
        return NOTHING
    wait_s = costs.wait_s[worker]
    if wait_s > 0:
        soon_s = min(input_s, forward_s) if admitted else input_s
        if soon_s - now_s < wait_s:
            return NOTHING
        if seen_s < now_s:
            return LATER
    return W


@kernel
def push(costs: ListCosts, state: ListState, worker: int, kind: int, job: int, at_s: float) -> None:
    """Put a job that is there at `at_s` into a queue, and bring the worker's next decision forward to it."""
    queue, ready_s, event_s = state.queue, state.ready_s, state.event_s
    place = 3 * worker + kind
    begin = costs.start[place]
    first, at = begin + state.done[place], begin + state.known[place]
    while at > first and (ready_s[at - 1] > at_s or (ready_s[at - 1] == at_s and queue[at - 1] > job)):
        ready_s[at] = ready_s[at - 1]
        queue[at] = queue[at - 1]
        at -= 1
    ready_s[at] = at_s
    queue[at] = job
    state.known[place] += 1
    event_s[worker] = min(event_s[worker], max(state.free_s[worker], at_s))


@kernel
def execute(costs: ListCosts, state: ListState, worker: int, stage: int, kind: int, now_s: float) -> None:
    """Run an operation now: record it, and send what follows from it."""
    done, start, stages, executor = state.done, costs.start, costs.stages, costs.executor
    count = done[3 * worker] + done[3 * worker + 1] + done[3 * worker + 2]
    job = state.queue[start[3 * worker + kind] + done[3 * worker + kind]]
    cell = job * stages + stage
    whole = kind == I and costs.split[cell] == 0
    end_s = now_s + costs.duration_s[4 * worker + (B if whole else kind)]
    if count == 0:
        state.first_s[worker] = now_s
    state.order[start[3 * worker] + count] = 3 * job + kind
    done[3 * worker + kind] += 1
    state.free_s[worker] = end_s
    state.event_s[worker] = end_s
    state.last[worker] = kind
    if kind == F:
        if stage == costs.last_stage[job]:
            push(costs, state, worker, I, job, end_s)
        else:
            at_s = end_s + costs.hop_s[cell]
            opens = costs.opens_up
            first, stop = (job, job + 1) if len(opens) == 0 else (opens[cell], opens[cell + stages])
            for other in range(first, stop):
                push(costs, state, executor[other * stages + stage + 1], F, other, at_s)
    elif kind == I:
        if not whole:
            push(costs, state, worker, W, job, end_s)
        if stage > 0:
            at_s = end_s + costs.hop_s[cell - 1]
            opens = costs.opens_down
            first, stop = (job, job + 1) if len(opens) == 0 else (opens[cell], opens[cell + stages])
            for other in range(first, stop):
                push(costs, state, executor[other * stages + stage - 1], I, other, at_s)


@kernel
def visit(
    costs: ListCosts, state: ListState, worker: int, stage: int, until_s: float, seen_s: float, forced: bool
) -> int:
    """Let a worker decide up to `until_s`, or once if `forced`; returns how often it did."""
    event_s = state.event_s
    decisions = 0
    while event_s[worker] < until_s or forced:
        now_s = event_s[worker]
        kind = pick(costs, state, worker, now_s, seen_s)
        if kind == LATER:
            break
        forced = False
        decisions += 1
        if kind == NOTHING:
            pending = state.known[3 * worker + W] - state.done[3 * worker + W]
            event_s[worker] = input_ready(costs, state, worker)
            if admits(costs, state, worker, pending):
                event_s[worker] = min(event_s[worker], forward_ready(costs, state, worker))
        else:
            if kind == F and state.done[3 * worker + F] == 0:
                bring_forward(costs, state, worker)
            execute(costs, state, worker, stage, kind, now_s)
    return decisions


@kernel
def earliest(costs: ListCosts, state: ListState, stage: int) -> float:
    """The next decision of any worker of a stage, in s."""
    stage_start, members, event_s = costs.stage_start, costs.members, state.event_s
    least = INFINITY
    for at in range(stage_start[stage], stage_start[stage + 1]):
        least = min(least, event_s[members[at]])
    return least


@kernel
def reset(costs: ListCosts, state: ListState) -> None:
    """The state at time 0: all jobs are there at the first stage."""
    for place in range(len(state.done)):
        state.done[place] = 0
        state.known[place] = 0
    for worker in range(len(state.free_s)):
        state.free_s[worker] = 0.0
        state.first_s[worker] = 0.0
        state.event_s[worker] = INFINITY
        state.last[worker] = NOTHING
    for job in range(costs.jobs):
        push(costs, state, costs.executor[job * costs.stages], F, job, 0.0)


@kernel
def look_above(costs: ListCosts, state: ListState) -> None:
    """The earliest decision at each stage that known decisions there and at later stages lead to, in s."""
    above_s = state.above_s
    above_s[costs.stages] = INFINITY
    for stage in range(costs.stages - 1, -1, -1):
        above_s[stage] = min(earliest(costs, state, stage), above_s[stage + 1] + costs.down_s[stage])


@kernel
def foremost(costs: ListCosts, state: ListState) -> int:
    """The place among `members` of the worker that decides first; NOTHING where none has anything to decide."""
    found = NOTHING
    least_s = INFINITY
    for at in range(len(costs.members)):
        if state.event_s[costs.members[at]] < least_s:
            found = at
            least_s = state.event_s[costs.members[at]]
    return found


@kernel
def sweep(given: tuple[Any, ...], space: tuple[Any, ...]) -> None:
    """Schedule everything; the state then holds the orders, first starts and last ends.

    Args:
        given, space: `ListCosts` and `ListState` as plain tuples, whose types numba finds out at once.
    """
    costs, state = ListCosts(*given), ListState(*space)
    above_s, up_s, down_s = state.above_s, costs.up_s, costs.down_s
    reset(costs, state)
    while True:
        decisions = 0
        look_above(costs, state)
        below_s = INFINITY
        for stage in range(costs.stages):
            own_s = min(earliest(costs, state, stage), above_s[stage + 1] + down_s[stage])
            if stage > 0:
                own_s = min(own_s, below_s + up_s[stage - 1])
                below_s = min(below_s, own_s + down_s[stage - 1])
            beyond_s = min(above_s[stage + 1], own_s + up_s[stage])
            until_s = beyond_s + down_s[stage]
            if stage > 0:
                until_s = min(until_s, below_s + up_s[stage - 1])
            seen_s = min(below_s, beyond_s)
            for at in range(costs.stage_start[stage], costs.stage_start[stage + 1]):
                decisions += visit(costs, state, costs.members[at], stage, until_s, seen_s, False)
            least_s = earliest(costs, state, stage)
            below_s = min(least_s, below_s + up_s[stage - 1]) if stage > 0 else least_s
        if decisions == 0:
            at = foremost(costs, state)
            if at == NOTHING:
                return
            stage = 0
            while costs.stage_start[stage + 1] <= at:
                stage += 1
            visit(costs, state, costs.members[at], stage, 0.0, INFINITY, True)


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
        held = tables.floats(problem.workers.held_bytes.ravel())
        self._sweep = tables.kernel(sweep)
        self._objective = tables.objective()
        nothing: Ints = tables.ints([])
        self._costs = ListCosts(
            tables.stages, problem.jobs, tables.stage_start, tables.members, tables.up_s, tables.down_s,
            tables.last_stage, tables.executor, opens_up=nothing, opens_down=nothing, split=tables.split,
            hop_s=tables.hop_s, duration_s=tables.duration_s, held=held, start=tables.start,
            rule=tables.int_space(5 * workers), wait_s=tables.float_space(workers),
        )  # fmt: skip
        self._state = ListState(
            done=tables.int_space(KINDS * workers), known=tables.int_space(KINDS * workers),
            ready_s=tables.float_space(cells), queue=tables.int_space(cells), free_s=tables.float_space(workers),
            first_s=tables.float_space(workers), event_s=tables.float_space(workers), last=tables.int_space(workers),
            order=tables.int_space(cells), above_s=tables.float_space(tables.stages + 1),
        )  # fmt: skip
        self._weight_s, self._job_counts = problem.workers.weight_s, problem.job_counts
        self._operations = problem.operations

    def run(self, rules: DispatchRules) -> float:
        """Schedule by these rules; returns the makespan, or period, in s; infinite if what is held back never comes."""
        columns = rules.columns
        columns[:, 4] = np.clip(columns[:, 4], 0, np.maximum(self._job_counts - 1, 0))
        self._costs.rule[:] = self._tables.ints(columns.ravel())
        self._costs.wait_s[:] = self._tables.floats(np.asarray(rules.weight_wait) * self._weight_s)
        self._sweep(tuple(self._costs), tuple(self._state))
        if int(np.sum(self._state.done)) < self._operations:
            return float("inf")
        return float(self._objective(self._state.first_s, self._state.free_s))

    @property
    def spans_s(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """First start and last end of each worker in the last run, in s; 0 without operations."""
        return np.asarray(self._state.first_s), np.asarray(self._state.free_s)

    def orders(self) -> Orders:
        """The orders of the last run, as operation codes of each worker."""
        return self._tables.orders(self._state.order)
