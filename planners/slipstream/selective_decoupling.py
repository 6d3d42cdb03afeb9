"""Decoupled back-propagation only where it helps: W as early as slack allows, and one B where that is free.

"SlipStream", section 3.2: "SlipStream applies Decoupled BackProp selectively only when it can mitigate the overheads".
The paper leaves open how. Here, schedules are made with all backwards split and W put off. Then

1. from the last operation to the first, each is put as late as the makespan and the longest window allow. For each
   that gives the latest end by the messages that wait for it or for what its worker does after it, and the latest end
   by the work that its worker has left until it must end itself;
2. from the first to the last, each worker executes its F and I in the old order, but a pending W goes before the next
   of them wherever that leaves it within both; the work left is then less by that W. I and W become one B where also
   the I that waits for its message still is in time. A W that has found no such place goes where it was.

So every message is sent in time and every worker ends in time: neither the makespan nor any stage's last end gets later
than allowed. W come earlier, none later, and F and I keep their order, so no worker holds more than before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form, pays
from ..scheduling.problem import INTERPRETED_OPERATIONS, stage_windows
from ..scheduling.retime import windows_of

if TYPE_CHECKING:
    from ..scheduling.problem import Orders, Problem, Windows


F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters
UNKNOWN = -1e300
INFINITY = float("inf")
# A start is no later than another if it is so but for the rounding of sums.
ROUNDING = 1e-12


def decoupled_where_it_helps(problem: Problem, orders: Orders) -> tuple[Problem, Orders]:
    """Let W come early, and join I and W to B, wherever neither makespan nor period suffers.

    Args:
        problem: what was ordered.
        orders: operation codes of each worker; without a deadlock.

    Returns:
        The problem with fewer split backwards, and its orders.
    """
    return decoupled_and_timed(problem, orders)[:2]


def decoupled_and_timed(
    problem: Problem, orders: Orders, windows: Windows | None = None
) -> tuple[Problem, Orders, Windows]:
    """What `decoupled_where_it_helps` gives, and its windows; `windows` are by `orders`, where they have been timed."""
    before = windows or windows_of(problem, orders)
    if not problem.split.any():
        return problem, orders, before
    coupled, found, after = _with_early_weights(problem, orders, before)
    # What starts a window may start earlier now, where a W was ahead of it: then the period would be longer.
    worse = after.makespan_s > before.makespan_s * (1 + ROUNDING) or after.period_s > before.period_s * (1 + ROUNDING)
    return (problem, orders, before) if worse else (coupled, found, after)


def _with_early_weights(problem: Problem, orders: Orders, windows: Windows) -> tuple[Problem, Orders, Windows]:
    """The two passes: latest starts, then W before whatever can wait for it."""
    form = Form(pays(latest, problem.operations, INTERPRETED_OPERATIONS))
    counts = np.array([len(order) for order in orders])
    start = np.cumsum(counts) - counts
    tables = _tables(form, problem, orders, counts, start)
    workers, cells, places = len(orders), problem.executor.size, int(counts.sum())
    deadlines_s = windows.deadlines_s[problem.workers.group]
    late_s = [form.floats(np.full(cells, UNKNOWN)) for _ in range(2)]
    limits_s = [form.float_space(places) for _ in range(2)]
    form.kernel(latest)(
        *tables, form.ints(counts.copy()), form.floats(deadlines_s.copy()), form.floats(np.full(workers, np.inf)),
        *late_s, *limits_s,
    )  # fmt: skip
    ends_s = [form.floats(np.full(cells, UNKNOWN)) for _ in range(2)]
    first_s, free_s = form.float_space(workers), form.float_space(workers)
    numbers = [form.int_space(workers) for _ in range(3)]
    weighed, joined = (form.ints(np.zeros(cells), np.int8) for _ in range(2))
    found, taken = form.ints(np.zeros(places), np.int32), form.int_space(workers)
    form.kernel(pull)(
        *tables, form.ints(counts), form.floats(deadlines_s), *limits_s, windows.makespan_s * ROUNDING, *late_s,
        *ends_s, first_s, free_s, *numbers, weighed, joined, found, taken,
    )  # fmt: skip
    split = problem.split & (np.asarray(joined).reshape(problem.split.shape) == 0)
    codes: Any = np.asarray(found)
    stops = start + np.asarray(taken)
    # Each starts as soon as it can, so these are the times of the new orders.
    after = stage_windows(problem, np.asarray(first_s), np.asarray(free_s))
    return replace(problem, split=split), [codes[a:b] for a, b in zip(start, stops, strict=True)], after


def _tables(form: Form, problem: Problem, orders: Orders, counts: Any, start: Any) -> tuple[Any, ...]:
    """What both kernels begin with."""
    workers, stages = problem.workers, problem.executor.shape[1]
    by_stage = np.lexsort((np.arange(len(counts)), workers.stage))
    hop_s = np.zeros(problem.executor.shape)
    hop_s[:, :-1] = problem.hop_s
    durations = np.stack((workers.forward_s, workers.input_s, workers.weight_s, workers.full_s), axis=1)
    order = np.concatenate([np.asarray(codes, dtype=np.int32) for codes in orders])
    return (
        stages, form.ints(by_stage[counts[by_stage] > 0]), form.ints(workers.stage),
        form.ints(problem.depth[problem.origin] - 1), form.ints(problem.split.ravel(), np.int8),
        form.floats(hop_s.ravel()), form.floats(durations.ravel()), form.ints(start), form.ints(order, np.int32),
    )  # fmt: skip


@kernel
def message_by_s(
    job: int,
    stage: int,
    kind: int,
    stages: int,
    last_stage: Ints,
    hop_s: Floats,
    forward_s: Floats,
    backward_s: Floats,
) -> float:
    """When an operation must have ended for the one that waits for it elsewhere; UNKNOWN if that is not placed."""
    cell = job * stages + stage
    if kind == F and stage < last_stage[job]:
        return forward_s[cell + 1] - hop_s[cell] if forward_s[cell + 1] != UNKNOWN else UNKNOWN
    if kind == I and stage > 0:
        return backward_s[cell - 1] - hop_s[cell - 1] if backward_s[cell - 1] != UNKNOWN else UNKNOWN
    return INFINITY


@kernel
def message_at_s(
    job: int,
    stage: int,
    kind: int,
    stages: int,
    last_stage: Ints,
    hop_s: Floats,
    forward_s: Floats,
    backward_s: Floats,
) -> float:
    """When the message is there that an operation waits for, given the ends of F and I; UNKNOWN if it is not sent."""
    cell = job * stages + stage
    if kind == F and stage > 0:
        return forward_s[cell - 1] + hop_s[cell - 1] if forward_s[cell - 1] != UNKNOWN else UNKNOWN
    if kind == I and stage < last_stage[job]:
        return backward_s[cell + 1] + hop_s[cell] if backward_s[cell + 1] != UNKNOWN else UNKNOWN
    return 0.0


@kernel
def latest(
    stages: int,
    members: Ints,
    stage: Ints,
    last_stage: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    start: Ints,
    order: Ints,
    left: MutableInts,
    by_s: MutableFloats,
    sent_s: MutableFloats,
    forward_s: MutableFloats,
    backward_s: MutableFloats,
    message_s: MutableFloats,
    end_s: MutableFloats,
) -> None:
    """The latest start of every operation, by the messages that wait for it or what follows it, and by the work left.

    Args:
        stages: of all pipelines.
        members, stage: the workers that have operations, by stage, and the stage of each worker.
        last_stage: of each job.
        split, hop_s: at `job * stages + stage`.
        duration_s: of F, I, W and B, at `4 * worker`.
        start, order: worker w's operations begin at `start[w]`.
        left: how many operations of each worker are not placed yet; all 0 at the end.
        by_s: when each worker must have ended; then the latest start of its next operation by the work left.
        sent_s: infinite for all workers at first; then the latest start of its next operation by messages.
        forward_s, backward_s: receive the latest starts of F and of I or B, at `job * stages + stage`.
        message_s, end_s: receive the latest starts by messages and by the work left, at their places in `order`.
    """
    moved = True
    downwards = False
    while moved:
        moved = False
        for step in range(len(members)):
            worker = members[len(members) - 1 - step if downwards else step]
            while left[worker] > 0:
                at = start[worker] + left[worker] - 1
                job, kind = order[at] // 3, order[at] % 3
                cell = job * stages + stage[worker]
                own_s = message_by_s(job, stage[worker], kind, stages, last_stage, hop_s, forward_s, backward_s)
                if own_s == UNKNOWN:
                    break
                whole = kind == I and split[cell] == 0
                length_s = duration_s[4 * worker + (B if whole else kind)]
                sent_s[worker] = min(sent_s[worker], own_s) - length_s
                by_s[worker] -= length_s
                message_s[at] = sent_s[worker]
                end_s[at] = by_s[worker]
                if kind == F:
                    forward_s[cell] = min(sent_s[worker], by_s[worker])
                elif kind == I:
                    backward_s[cell] = min(sent_s[worker], by_s[worker])
                left[worker] -= 1
                moved = True
        downwards = not downwards


@kernel
def skip_weighed(
    first: int, at: int, stop: int, stages: int, stage: int, split: Ints, weighed: Ints, order: Ints
) -> int:
    """The next place from `at` on, before `stop`, of an I whose W is pending, in an order that begins at `first`."""
    while at < stop:
        code = order[first + at]
        cell = code // 3 * stages + stage
        if code % 3 == I and split[cell] == 1 and weighed[cell] == 0:
            break
        at += 1
    return at


@kernel
def next_by_s(
    first: int,
    at: int,
    stop: int,
    deadline_s: float,
    spared_s: float,
    weight_s: float,
    stages: int,
    stage: int,
    weighed: Ints,
    order: Ints,
    message_s: Floats,
    end_s: Floats,
) -> float:
    """When the I at a place must have ended if its W is done with it: for what its worker does next, and then.

    Args:
        first, stop: the worker's order begins at `first` and has `stop` operations.
        deadline_s: when the worker must have ended.
        spared_s: how long the W take that are done already though their places are ahead, that of this I included.
        weight_s: of a W.
        The rest is as for `pull`.
    """
    for following in range(at + 1, stop):
        code = order[first + following]
        if code % 3 != W or (code != order[first + at] + 1 and weighed[code // 3 * stages + stage] == 0):
            return min(message_s[first + following], end_s[first + following] + spared_s)
        spared_s -= weight_s
    return deadline_s


@kernel
def record(
    kind: int, cell: int, end_s: float, forward_s: MutableFloats, backward_s: MutableFloats, weighed: MutableInts
) -> None:
    """That an operation ends at `end_s`."""
    if kind == F:
        forward_s[cell] = end_s
    elif kind == I:
        backward_s[cell] = end_s
    else:
        weighed[cell] = 1


@kernel
def pull(
    stages: int,
    members: Ints,
    stage: Ints,
    last_stage: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    start: Ints,
    order: Ints,
    count: Ints,
    deadline_s: Floats,
    message_s: Floats,
    end_s: Floats,
    slack_s: float,
    late_forward_s: Floats,
    late_backward_s: Floats,
    forward_s: MutableFloats,
    backward_s: MutableFloats,
    first_s: MutableFloats,
    free_s: MutableFloats,
    done: MutableInts,
    oldest: MutableInts,
    ahead: MutableInts,
    weighed: MutableInts,
    joined: MutableInts,
    found: MutableInts,
    taken: MutableInts,
) -> None:
    """New orders, in which W come as early as latest starts allow.

    Args:
        count, deadline_s: operations of each worker, and when it must have ended.
        message_s, end_s, late_forward_s, late_backward_s: what `latest` has found.
        slack_s: a start this much too late is rounding.
        forward_s, backward_s: receive the ends of F and of I or B, at `job * stages + stage`.
        first_s, free_s: receive when each worker starts, and ends; 0 at first.
        done: how many places of its old order a worker is through with; 0 at first.
        oldest: the place in its old order before which a worker has no pending W; 0 at first.
        ahead: how many W a worker has done whose places are ahead; 0 at first.
        weighed: whether the W of a cell is done; 0 at first.
        joined: receives 1 for cells whose I and W are one B.
        found, taken: receive the new orders, from `start[w]` on, and their lengths.
        The rest is as for `latest`.
    """
    moved = True
    downwards = False
    while moved:
        moved = False
        for step in range(len(members)):
            worker = members[len(members) - 1 - step if downwards else step]
            place, first, weight_s = stage[worker], start[worker], duration_s[4 * worker + W]
            while done[worker] < count[worker]:
                code = order[first + done[worker]]
                job, kind = code // 3, code % 3
                cell = job * stages + place
                if kind == W and weighed[cell] == 1:
                    done[worker] += 1
                    ahead[worker] -= 1
                    continue
                oldest[worker] = skip_weighed(first, oldest[worker], done[worker], stages, place, split, weighed, order)
                spared_s = (ahead[worker] + 1) * weight_s
                by_s = min(message_s[first + done[worker]], end_s[first + done[worker]] + spared_s)
                begin_s = free_s[worker]
                early = kind != W and oldest[worker] < done[worker] and begin_s + weight_s <= by_s + slack_s
                whole = kind == I and split[cell] == 0
                if early:
                    code = order[first + oldest[worker]] + 1
                    cell = code // 3 * stages + place
                    kind = W
                else:
                    ready_s = message_at_s(job, place, kind, stages, last_stage, hop_s, forward_s, backward_s)
                    if ready_s == UNKNOWN:
                        break
                    begin_s = max(begin_s, ready_s)
                if kind == I and not whole:
                    by_s = next_by_s(
                        first, done[worker], count[worker], deadline_s[worker], spared_s, weight_s, stages, place,
                        weighed, order, message_s, end_s,
                    )  # fmt: skip
                    by_s = min(
                        by_s, message_by_s(job, place, I, stages, last_stage, hop_s, late_forward_s, late_backward_s)
                    )
                    whole = begin_s + duration_s[4 * worker + B] <= by_s + slack_s
                    if whole:
                        joined[cell] = 1
                        weighed[cell] = 1
                        ahead[worker] += 1
                if taken[worker] == 0:
                    first_s[worker] = begin_s
                free_s[worker] = begin_s + duration_s[4 * worker + (B if whole and kind == I else kind)]
                record(kind, cell, free_s[worker], forward_s, backward_s, weighed)
                found[first + taken[worker]] = code
                taken[worker] += 1
                ahead[worker] += 1 if early else 0
                done[worker] += 0 if early else 1
                moved = True
        downwards = not downwards
