"""When the operations of given orders run: the longest path, from the start and, for latest starts, from the end.

And which I and W may be one B: those where that leaves all that comes after in time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from .dispatch import INFINITY, NONE, B, F, I, SeatCosts, W, pair_s

UNKNOWN = -1e300


class SeatTimes(NamedTuple):
    """When operations run, by given orders.

    Attributes:
        start_s, end_s: of each operation, at its place in the orders.
        sent_s: at `2 * cell` when F ends, behind it when I or B does; negative before.
        first_s, free_s: of each worker, its first start and last end; 0 without operations.
        ran: of each worker, how many operations have run.
        pile, is_in: workers to look at, and whether each is among them.
    """

    start_s: MutableFloats
    end_s: MutableFloats
    sent_s: MutableFloats
    first_s: MutableFloats
    free_s: MutableFloats
    ran: MutableInts
    pile: MutableInts
    is_in: MutableInts


@kernel
def message_s(work: SeatCosts, times: SeatTimes, operation: int) -> float:
    """When what an operation waits for is there, in s; negative while it is not known."""
    cell, kind = operation // 3, operation % 3
    stage = cell % work.stages
    if kind == F:
        if stage == 0:
            return 0.0
        sent_s = times.sent_s[2 * cell - 2]
        return sent_s + work.hop_s[cell - 1] if sent_s >= 0 else -1.0
    if kind == W:
        return times.sent_s[2 * cell + 1]
    if times.sent_s[2 * cell] < 0 or stage + 1 == work.stages:
        return times.sent_s[2 * cell]
    sent_s = times.sent_s[2 * cell + 3]
    return sent_s + work.hop_s[cell] if sent_s >= 0 else -1.0


@kernel
def begin_again(times: SeatTimes) -> int:
    """The state at time 0, in which all workers are to be looked at; returns how many."""
    for place in range(len(times.sent_s)):
        times.sent_s[place] = -1.0
    for worker in range(len(times.free_s)):
        times.ran[worker] = 0
        times.first_s[worker] = 0.0
        times.free_s[worker] = 0.0
        times.pile[worker] = worker
        times.is_in[worker] = 1
    return len(times.free_s)


@kernel
def length_s(work: SeatCosts, worker: int, operation: int) -> float:
    """How long an operation takes, in s."""
    cell, kind = operation // 3, operation % 3
    taken_as = B if kind == I and work.split[cell] == 0 else kind
    return work.duration_s[4 * (worker * work.stages + cell % work.stages) + taken_as]


@kernel
def settle(
    work: SeatCosts, times: SeatTimes, worker: int, place: int, operation: int, begins_s: float, ends_s: float
) -> int:
    """An operation runs from then until then; returns the worker that waits for its message, or NONE."""
    cell, kind = operation // 3, operation % 3
    stage = cell % work.stages
    if place == work.start[worker]:
        times.first_s[worker] = begins_s
    times.start_s[place] = begins_s
    times.end_s[place] = ends_s
    times.free_s[worker] = ends_s
    if kind == W:
        return NONE
    times.sent_s[2 * cell + kind] = ends_s
    if kind == F:
        return work.executor[cell + 1] if stage + 1 < work.stages else NONE
    return work.executor[cell - 1] if stage > 0 else NONE


@kernel
def execute(work: SeatCosts, times: SeatTimes, worker: int, place: int, operation: int, ready_s: float) -> int:
    """Run an operation once what it waits for is there; returns the worker that waits for its message, or NONE."""
    begins_s = max(ready_s, times.free_s[worker])
    return settle(work, times, worker, place, operation, begins_s, begins_s + length_s(work, worker, operation))


@kernel
def tell(times: SeatTimes, worker: int, other: int, size: int) -> int:
    """Have the worker that a message is for looked at, if there is one; returns how many are to be looked at."""
    if other != NONE and other != worker and times.is_in[other] == 0:
        times.is_in[other] = 1
        times.pile[size] = other
        size += 1
    return size


@kernel
def follow_pair(
    work: SeatCosts, times: SeatTimes, worker: int, place: int, forward: int, backward: int, size: int
) -> tuple[int, bool]:
    """Run F and B side by side once both may; returns how many workers are to be looked at, and whether they ran."""
    forward_s, backward_s = message_s(work, times, forward), message_s(work, times, backward)
    if forward_s < 0 or backward_s < 0:
        return size, False
    begins_s = max(forward_s, backward_s, times.free_s[worker])
    ends_s = begins_s + pair_s(work, length_s(work, worker, forward), length_s(work, worker, backward))
    size = tell(times, worker, settle(work, times, worker, place, forward, begins_s, ends_s), size)
    size = tell(times, worker, settle(work, times, worker, place + 1, backward, begins_s, ends_s), size)
    return size, True


@kernel
def follow(given: tuple[Any, ...], taken: tuple[Any, ...], order: Ints) -> bool:
    """Run given orders, every operation as soon as can be.

    Args:
        given, taken: `SeatCosts` and `SeatTimes` as plain tuples.
        order: as `SeatState.order`.

    Returns:
        Whether all ran: False where the orders deadlock.
    """
    work, times = SeatCosts(*given), SeatTimes(*taken)
    size = begin_again(times)
    left = len(order)
    while size > 0:
        size -= 1
        worker = times.pile[size]
        times.is_in[worker] = 0
        place = work.start[worker] + times.ran[worker]
        while place < work.start[worker + 1]:
            if order[place] < 0:  # the forward of a pair
                size, ran = follow_pair(work, times, worker, place, ~order[place], order[place + 1], size)
                if not ran:
                    break
                place += 2
                left -= 2
                continue
            ready_s = message_s(work, times, order[place])
            if ready_s < 0:
                break
            other = execute(work, times, worker, place, order[place], ready_s)
            place += 1
            left -= 1
            size = tell(times, worker, other, size)
        times.ran[worker] = place - work.start[worker]
    return left == 0


@kernel
def objective_s(
    staggered: bool,
    column: Ints,
    start: Ints,
    allreduce_s: Floats,
    optimizer_s: Floats,
    first_s: Floats,
    free_s: Floats,
    begin_s: MutableFloats,
    end_s: MutableFloats,
) -> float:
    """The makespan, or the period, in s.

    Args:
        staggered: which of them.
        column: of each worker.
        start: as of `SeatCosts`.
        allreduce_s, optimizer_s: of each column.
        first_s, free_s: as of `SeatTimes`.
        begin_s, end_s: work space, one for each column.
    """
    for number in range(len(begin_s)):
        begin_s[number] = INFINITY
        end_s[number] = 0.0
    for worker in range(len(column)):
        if start[worker] < start[worker + 1]:
            begin_s[column[worker]] = min(begin_s[column[worker]], first_s[worker])
            end_s[column[worker]] = max(end_s[column[worker]], free_s[worker])
    longest_s = 0.0
    last_step_s = 0.0
    for number in range(len(begin_s)):
        if staggered:
            window_s = end_s[number] - begin_s[number]
            longest_s = max(longest_s, window_s + allreduce_s[number] + optimizer_s[number])
        else:
            longest_s = max(longest_s, end_s[number] + allreduce_s[number])
            last_step_s = max(last_step_s, optimizer_s[number])
    return longest_s + last_step_s


class LatestTimes(NamedTuple):
    """How late operations may start.

    Attributes:
        message_s, end_s: of each operation, at its place in the orders: by the messages that wait for it or for what
            its worker does after it; and by the work that its worker has left until it must have ended.
        start_s: the least of both, at `2 * cell` of F, behind it of I or B; UNKNOWN at first.
        left: of each worker, how many operations have no latest start yet.
        pile, is_in: as of `SeatTimes`.
    """

    message_s: MutableFloats
    end_s: MutableFloats
    start_s: MutableFloats
    left: MutableInts
    pile: MutableInts
    is_in: MutableInts


@kernel
def sent_by_s(work: SeatCosts, late: LatestTimes, operation: int) -> float:
    """When an operation must have ended for what waits for it elsewhere; UNKNOWN while that has no latest start."""
    cell, kind = operation // 3, operation % 3
    stage, worker = cell % work.stages, work.executor[cell]
    if kind == F and stage + 1 < work.stages and work.executor[cell + 1] != worker:
        by_s = late.start_s[2 * cell + 2]
        return by_s - work.hop_s[cell] if by_s != UNKNOWN else UNKNOWN
    if kind == I and stage > 0 and work.executor[cell - 1] != worker:
        by_s = late.start_s[2 * cell - 1]
        return by_s - work.hop_s[cell - 1] if by_s != UNKNOWN else UNKNOWN
    return INFINITY


@kernel
def delay(
    work: SeatCosts, late: LatestTimes, worker: int, place: int, operation: int, by_s: float, deadline_s: float
) -> int:
    """Start an operation as late as can be; returns the worker whose message it waits for, or NONE."""
    takes_s = length_s(work, worker, operation)
    if place + 1 < work.start[worker + 1]:
        by_s = min(by_s, late.message_s[place + 1])
        deadline_s = late.end_s[place + 1]
    late.message_s[place] = by_s - takes_s
    late.end_s[place] = deadline_s - takes_s
    cell, kind = operation // 3, operation % 3
    stage = cell % work.stages
    if kind == W:
        return NONE
    late.start_s[2 * cell + kind] = min(late.message_s[place], late.end_s[place])
    if kind == F:
        return work.executor[cell - 1] if stage > 0 else NONE
    return work.executor[cell + 1] if stage + 1 < work.stages else NONE


@kernel
def latest(given: tuple[Any, ...], taken: tuple[Any, ...], order: Ints, deadline_s: Floats) -> None:
    """Latest starts of all operations of orders without a deadlock.

    Args:
        given, taken: `SeatCosts` and `LatestTimes` as plain tuples.
        order: as `SeatState.order`.
        deadline_s: when each worker must have ended.
    """
    work, late = SeatCosts(*given), LatestTimes(*taken)
    for place in range(len(late.start_s)):
        late.start_s[place] = UNKNOWN
    size = len(deadline_s)
    for worker in range(size):
        late.left[worker] = work.start[worker + 1] - work.start[worker]
        late.pile[worker] = worker
        late.is_in[worker] = 1
    while size > 0:
        size -= 1
        worker = late.pile[size]
        late.is_in[worker] = 0
        while late.left[worker] > 0:
            place = work.start[worker] + late.left[worker] - 1
            by_s = sent_by_s(work, late, order[place])
            if by_s == UNKNOWN:
                break
            other = delay(work, late, worker, place, order[place], by_s, deadline_s[worker])
            late.left[worker] -= 1
            if other != NONE and other != worker and late.is_in[other] == 0:
                late.is_in[other] = 1
                late.pile[size] = other
                size += 1


@kernel
def followed_by_s(
    work: SeatCosts, late: LatestTimes, order: Ints, fused: Ints, worker: int, place: int, spared_s: float
) -> float:
    """When the I at a place must have ended, its W with it, for what its worker does next; INFINITY for nothing.

    Args:
        spared_s: how long the W take that stand ahead and are in a B already, that of this I included.
    """
    for following in range(place + 1, work.start[worker + 1]):
        cell = order[following] // 3
        if order[following] % 3 != W or (fused[cell] == 0 and cell != order[place] // 3):
            return min(late.message_s[following], late.end_s[following] + spared_s)
        spared_s -= length_s(work, worker, order[following])
    return INFINITY


@kernel
def join(
    work: SeatCosts,
    times: SeatTimes,
    late: LatestTimes,
    order: Ints,
    fused: MutableInts,
    spared_s: MutableFloats,
    worker: int,
    place: int,
    end_by_s: float,
) -> None:
    """Have the I that its worker has run last be a B, where that is in time; arguments as of `fuse`."""
    operation = order[place]
    cell = operation // 3
    more_s = spared_s[worker] + length_s(work, worker, operation + W - I)
    next_s = followed_by_s(work, late, order, fused, worker, place, more_s)
    stage = cell % work.stages
    whole_s = times.start_s[place] + work.duration_s[4 * (worker * work.stages + stage) + B]
    if whole_s <= min(next_s, sent_by_s(work, late, operation), end_by_s):
        fused[cell] = 1
        spared_s[worker] = more_s
        times.free_s[worker] = whole_s
        times.sent_s[2 * cell + I] = whole_s


@kernel
def fuse(
    given: tuple[Any, ...],
    taken: tuple[Any, ...],
    limits: tuple[Any, ...],
    order: Ints,
    deadline_s: Floats,
    slack_s: float,
    fused: MutableInts,
    spared_s: MutableFloats,
) -> None:
    """Join I and W to B wherever all that comes after is in time: at its latest start or before.

    Args:
        given, taken, limits: `SeatCosts`, `SeatTimes` and `LatestTimes` as plain tuples.
        order, deadline_s: as of `latest`.
        slack_s: what is this much too late is so by rounding.
        fused: receives 1 for cells whose I and W are one B; 0 at first.
        spared_s: of each worker, how long the W take that are in a B but stand ahead in its order; 0 at first.
    """
    work, times, late = SeatCosts(*given), SeatTimes(*taken), LatestTimes(*limits)
    size = begin_again(times)
    while size > 0:
        size -= 1
        worker = times.pile[size]
        times.is_in[worker] = 0
        place = work.start[worker] + times.ran[worker]
        while place < work.start[worker + 1]:
            operation = order[place]
            if operation % 3 == W and fused[operation // 3] == 1:
                spared_s[worker] -= length_s(work, worker, operation)
                place += 1
                continue
            ready_s = message_s(work, times, operation)
            if ready_s < 0:
                break
            other = execute(work, times, worker, place, operation, ready_s)
            if operation % 3 == I and work.split[operation // 3] == 1:
                join(work, times, late, order, fused, spared_s, worker, place, deadline_s[worker] + slack_s)
            place += 1
            size = tell(times, worker, other, size)
        times.ran[worker] = place - work.start[worker]
