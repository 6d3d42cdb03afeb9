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
from typing import TYPE_CHECKING, Any, NamedTuple

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
    workers, stages = problem.workers, problem.executor.shape[1]
    counts = np.array([len(order) for order in orders])
    start = np.cumsum(counts) - counts
    count, cells, places = len(orders), problem.executor.size, int(counts.sum())
    by_stage = np.lexsort((np.arange(count), workers.stage))
    deadlines_s = windows.deadlines_s[workers.group]
    costs = DecouplingCosts(
        stages, form.ints(by_stage[counts[by_stage] > 0]), form.ints(workers.stage),
        last_stage=form.ints(problem.depth[problem.origin] - 1), split=form.ints(problem.split.ravel(), np.int8),
        hop_s=form.floats(problem.hops_s.ravel()), duration_s=form.floats(workers.durations_s.ravel()),
        start=form.ints(start), lengths=form.ints(counts), deadline_s=form.floats(deadlines_s),
        order=form.ints(np.concatenate([np.asarray(codes, dtype=np.int32) for codes in orders]), np.int32),
        slack_s=windows.makespan_s * ROUNDING,
    )  # fmt: skip
    late = LatestStarts(
        left=form.ints(counts.copy()), by_s=form.floats(deadlines_s.copy()), sent_s=form.floats(np.full(count, np.inf)),
        forward_s=form.floats(np.full(cells, UNKNOWN)), backward_s=form.floats(np.full(cells, UNKNOWN)),
        message_s=form.float_space(places), end_s=form.float_space(places),
    )  # fmt: skip
    early = EarlyWeights(
        forward_s=form.floats(np.full(cells, UNKNOWN)), backward_s=form.floats(np.full(cells, UNKNOWN)),
        first_s=form.float_space(count), free_s=form.float_space(count), done=form.int_space(count),
        oldest=form.int_space(count), ahead=form.int_space(count), weighed=form.ints(np.zeros(cells), np.int8),
        joined=form.ints(np.zeros(cells), np.int8), found=form.ints(np.zeros(places), np.int32),
        taken=form.int_space(count),
    )  # fmt: skip
    form.kernel(latest)(costs, late)
    form.kernel(pull)(costs, late, early)
    split = problem.split & (np.asarray(early.joined).reshape(problem.split.shape) == 0)
    codes: Any = np.asarray(early.found)
    stops = start + np.asarray(early.taken)
    # Each starts as soon as it can, so these are the times of the new orders.
    after = stage_windows(problem, np.asarray(early.first_s), np.asarray(early.free_s))
    return replace(problem, split=split), [codes[a:b] for a, b in zip(start, stops, strict=True)], after


class DecouplingCosts(NamedTuple):
    """What was ordered.

    Attributes:
        stages: of all pipelines.
        members, stage: the workers that have operations, by stage, and the stage of each worker.
        last_stage: of each job.
        split, hop_s: at `job * stages + stage`.
        duration_s: of F, I, W and B, at `4 * worker`.
        start, lengths, order: worker w's operations are `order[start[w]:][:lengths[w]]`.
        deadline_s: when each worker must have ended.
        slack_s: a start this much too late is rounding.
    """

    stages: int
    members: Ints
    stage: Ints
    last_stage: Ints
    split: Ints
    hop_s: Floats
    duration_s: Floats
    start: Ints
    lengths: Ints
    deadline_s: Floats
    order: Ints
    slack_s: float


class LatestStarts(NamedTuple):
    """How late operations may start.

    Attributes:
        left: how many operations of each worker are not placed yet; all 0 at the end.
        by_s: when each worker must have ended; then the latest start of its next operation by the work left.
        sent_s: infinite for all workers at first; then the latest start of its next operation by messages.
        forward_s, backward_s: the latest starts of F and of I or B, at `job * stages + stage`.
        message_s, end_s: the latest starts by messages and by the work left, at their places in `order`.
    """

    left: MutableInts
    by_s: MutableFloats
    sent_s: MutableFloats
    forward_s: MutableFloats
    backward_s: MutableFloats
    message_s: MutableFloats
    end_s: MutableFloats


class EarlyWeights(NamedTuple):
    """New orders, in which W come early, as far as they are made.

    Attributes:
        forward_s, backward_s: the ends of F and of I or B, at `job * stages + stage`.
        first_s, free_s: when each worker starts, and ends.
        done: how many places of its old order a worker is through with.
        oldest: the place in its old order before which a worker has no pending W.
        ahead: how many W a worker has done whose places are ahead.
        weighed: whether the W of a cell is done.
        joined: 1 for cells whose I and W are one B.
        found, taken: the new orders, from `start[w]` on, and their lengths.
    """

    forward_s: MutableFloats
    backward_s: MutableFloats
    first_s: MutableFloats
    free_s: MutableFloats
    done: MutableInts
    oldest: MutableInts
    ahead: MutableInts
    weighed: MutableInts
    joined: MutableInts
    found: MutableInts
    taken: MutableInts


@kernel
def message_by_s(costs: DecouplingCosts, late: LatestStarts, job: int, stage: int, kind: int) -> float:
    """When an operation must have ended for the one that waits for it elsewhere; UNKNOWN if that is not placed."""
    cell = job * costs.stages + stage
    if kind == F and stage < costs.last_stage[job]:
        return late.forward_s[cell + 1] - costs.hop_s[cell] if late.forward_s[cell + 1] != UNKNOWN else UNKNOWN
    if kind == I and stage > 0:
        return late.backward_s[cell - 1] - costs.hop_s[cell - 1] if late.backward_s[cell - 1] != UNKNOWN else UNKNOWN
    return INFINITY


@kernel
def message_at_s(costs: DecouplingCosts, early: EarlyWeights, job: int, stage: int, kind: int) -> float:
    """When the message is there that an operation waits for, given the ends of F and I; UNKNOWN if it is not sent."""
    cell = job * costs.stages + stage
    if kind == F and stage > 0:
        return early.forward_s[cell - 1] + costs.hop_s[cell - 1] if early.forward_s[cell - 1] != UNKNOWN else UNKNOWN
    if kind == I and stage < costs.last_stage[job]:
        return early.backward_s[cell + 1] + costs.hop_s[cell] if early.backward_s[cell + 1] != UNKNOWN else UNKNOWN
    return 0.0


@kernel
def latest(costs: DecouplingCosts, late: LatestStarts) -> None:
    """Latest starts of all operations, by the messages that wait for them or what follows, and by the work left."""
    members, stage, order, duration_s = costs.members, costs.stage, costs.order, costs.duration_s
    left, by_s, sent_s = late.left, late.by_s, late.sent_s
    moved = True
    downwards = False
    while moved:
        moved = False
        for step in range(len(members)):
            worker = members[len(members) - 1 - step if downwards else step]
            while left[worker] > 0:
                at = costs.start[worker] + left[worker] - 1
                job, kind = order[at] // 3, order[at] % 3
                cell = job * costs.stages + stage[worker]
                own_s = message_by_s(costs, late, job, stage[worker], kind)
                if own_s == UNKNOWN:
                    break
                whole = kind == I and costs.split[cell] == 0
                length_s = duration_s[4 * worker + (B if whole else kind)]
                sent_s[worker] = min(sent_s[worker], own_s) - length_s
                by_s[worker] -= length_s
                late.message_s[at] = sent_s[worker]
                late.end_s[at] = by_s[worker]
                if kind == F:
                    late.forward_s[cell] = min(sent_s[worker], by_s[worker])
                elif kind == I:
                    late.backward_s[cell] = min(sent_s[worker], by_s[worker])
                left[worker] -= 1
                moved = True
        downwards = not downwards


@kernel
def skip_weighed(costs: DecouplingCosts, early: EarlyWeights, worker: int) -> int:
    """The first place in a worker's old order, of those it is through with, of an I whose W is pending."""
    at = early.oldest[worker]
    while at < early.done[worker]:
        code = costs.order[costs.start[worker] + at]
        cell = code // 3 * costs.stages + costs.stage[worker]
        if code % 3 == I and costs.split[cell] == 1 and early.weighed[cell] == 0:
            break
        at += 1
    return at


@kernel
def next_by_s(costs: DecouplingCosts, late: LatestStarts, early: EarlyWeights, worker: int, spared_s: float) -> float:
    """When a worker's next I must have ended if its W is done with it: for what its worker does next, and then.

    Args:
        spared_s: how long the W take that are done already though their places are ahead, that of this I included.
    """
    first, at = costs.start[worker], costs.start[worker] + early.done[worker]
    for following in range(at + 1, first + costs.lengths[worker]):
        code = costs.order[following]
        cell = code // 3 * costs.stages + costs.stage[worker]
        if code % 3 != W or (code != costs.order[at] + 1 and early.weighed[cell] == 0):
            return min(late.message_s[following], late.end_s[following] + spared_s)
        spared_s -= costs.duration_s[4 * worker + W]
    return costs.deadline_s[worker]


@kernel
def record(early: EarlyWeights, kind: int, cell: int, end_s: float) -> None:
    """That an operation ends at `end_s`."""
    if kind == F:
        early.forward_s[cell] = end_s
    elif kind == I:
        early.backward_s[cell] = end_s
    else:
        early.weighed[cell] = 1


@kernel
def pull(costs: DecouplingCosts, late: LatestStarts, early: EarlyWeights) -> None:
    """New orders, in which W come as early as latest starts allow."""
    members, lengths, split, order, slack_s = costs.members, costs.lengths, costs.split, costs.order, costs.slack_s
    duration_s, message_s, end_s = costs.duration_s, late.message_s, late.end_s
    done, oldest, ahead, taken, weighed = early.done, early.oldest, early.ahead, early.taken, early.weighed
    free_s = early.free_s
    moved = True
    downwards = False
    while moved:
        moved = False
        for step in range(len(members)):
            worker = members[len(members) - 1 - step if downwards else step]
            place, first, weight_s = costs.stage[worker], costs.start[worker], duration_s[4 * worker + W]
            while done[worker] < lengths[worker]:
                code = order[first + done[worker]]
                job, kind = code // 3, code % 3
                cell = job * costs.stages + place
                if kind == W and weighed[cell] == 1:
                    done[worker] += 1
                    ahead[worker] -= 1
                    continue
                oldest[worker] = skip_weighed(costs, early, worker)
                spared_s = (ahead[worker] + 1) * weight_s
                by_s = min(message_s[first + done[worker]], end_s[first + done[worker]] + spared_s)
                begin_s = free_s[worker]
                pending = oldest[worker] < done[worker]
                sooner = kind != W and pending and begin_s + weight_s <= by_s + slack_s
                whole = kind == I and split[cell] == 0
                if sooner:
                    code = order[first + oldest[worker]] + 1
                    cell = code // 3 * costs.stages + place
                    kind = W
                else:
                    ready_s = message_at_s(costs, early, job, place, kind)
                    if ready_s == UNKNOWN:
                        break
                    begin_s = max(begin_s, ready_s)
                if kind == I and not whole:
                    by_s = next_by_s(costs, late, early, worker, spared_s)
                    by_s = min(by_s, message_by_s(costs, late, job, place, I))
                    whole = begin_s + duration_s[4 * worker + B] <= by_s + slack_s
                    if whole:
                        early.joined[cell] = 1
                        weighed[cell] = 1
                        ahead[worker] += 1
                if taken[worker] == 0:
                    early.first_s[worker] = begin_s
                free_s[worker] = begin_s + duration_s[4 * worker + (B if whole and kind == I else kind)]
                record(early, kind, cell, free_s[worker])
                early.found[first + taken[worker]] = code
                taken[worker] += 1
                ahead[worker] += 1 if sooner else 0
                done[worker] += 0 if sooner else 1
                moved = True
        downwards = not downwards
