"""The list scheduler of what is left: workers run by priorities what is ready, the soonest worker first.

That of `scheduling/list_schedule.py` is for whole iterations, in which every micro-batch runs F up and I down all
stages. Here chains begin and end anywhere, messages are there from the beginning, and activations, too.

A worker that is free runs the F, I or B that has the least priority of those that are ready; an F only if memory admits
it. If there is none it runs W, unless what is more urgent is about to come.

Chains over unlike stages can wait for each other's memory in a circle, and what waits for memory elsewhere keeps its
own. So where memory is limited a micro-batch can be let in as a whole: its first F runs once all the workers that will
run its F have room for them, and then that is kept for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.agenda import decides_at

INFINITY = float("inf")
NONE = -1


class DispatchWork(NamedTuple):
    """What is to be scheduled; arrays over the operations unless it says otherwise.

    Attributes:
        worker: who runs each.
        kind: F, I, W or B.
        next_own: what of the same worker follows; NONE.
        next_other: what takes its message; NONE.
        delay_s: how long that takes.
        awaits: how many operations each has to wait for.
        ready_s: when it could start apart from these.
        duration_s: how long it takes.
        takes_bytes, leaves_bytes: what it adds to memory when it starts, and when it ends.
        start: where each worker's operations stand in queues; array over the workers, and their end.
        held_bytes, limit_bytes: what is there at 0, and what may be; arrays over the workers.
        microbatch: of each operation.
        claim_start: where each micro-batch's claims stand, array over the micro-batches, and their end.
        claim_worker, claim_bytes: what its F take, and where.
    """

    worker: Ints
    kind: Ints
    next_own: Ints
    next_other: Ints
    delay_s: Floats
    awaits: Ints
    ready_s: Floats
    duration_s: Floats
    takes_bytes: Floats
    leaves_bytes: Floats
    start: Ints
    held_bytes: Floats
    limit_bytes: Floats
    microbatch: Ints
    claim_start: Ints
    claim_worker: Ints
    claim_bytes: Floats


class DispatchSpace(NamedTuple):
    """How far a schedule is.

    Attributes:
        missing: how many operations each one waits for still.
        there_s, begin_s: when each can start, and when it does.
        coming: of each worker, what can start at a time that is known and has not come, by these times.
        ready: of each worker, heaps of F, of I and B, and of W that can start, by priority; each kind a run of its own.
        order: what each worker has run.
        counts: of each worker, where `coming` begins and ends, the sizes of the heaps, and how many have run.
        held_bytes, free_s, event_s: of each worker, its memory, with what is claimed of it; its last end; and when it
            decides next.
        heap, at: the workers, a heap by when they decide; and where each is in it.
        is_in: of each micro-batch, whether it has been let in: 1 or 0.
        by_claims: whether micro-batches are let in as a whole, 1 or 0; and how many workers wait for that.
    """

    missing: MutableInts
    there_s: MutableFloats
    begin_s: MutableFloats
    coming: MutableInts
    ready: MutableInts
    order: MutableInts
    counts: MutableInts
    held_bytes: MutableFloats
    free_s: MutableFloats
    event_s: MutableFloats
    heap: MutableInts
    at: MutableInts
    is_in: MutableInts
    by_claims: MutableInts


BEGIN, END, READY, RAN, FIELDS = 0, 1, 2, 5, 6  # fields of `counts`: those of the heaps are READY + kind


@kernel
def measure(given: tuple[Any, ...], after_s: Floats, tail_s: MutableFloats) -> None:
    """The longest chain from the start of each operation to the end of the iteration.

    Args:
        given: `DispatchWork` as a plain tuple; operations stand as in `OperationTable`.
        after_s: of each worker, what follows its last operation.
        tail_s: receives it, in s.
    """
    work = DispatchWork(*given)
    count = len(work.worker)
    # W waits for nobody but for F of what is done again; then I and B upwards, then F downwards.
    for turn in range(4):
        for number in range(count):
            operation = count - 1 - number if turn == 2 else number
            kind = work.kind[operation]
            if (kind == 2) != (turn == 0 or turn == 3) or (kind == 0) != (turn == 2):
                continue
            last_s = after_s[work.worker[operation]]
            own, other = work.next_own[operation], work.next_other[operation]
            if own != NONE:
                last_s = max(last_s, tail_s[own])
            if other != NONE:
                last_s = max(last_s, work.delay_s[operation] + tail_s[other])
            tail_s[operation] = last_s + work.duration_s[operation]


@kernel
def put(heap: MutableInts, begin: int, size: int, operation: int, priority: Floats) -> None:
    """Add to a heap that stands from `begin` on."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        other = heap[begin + above]
        if priority[other] < priority[operation] or (priority[other] == priority[operation] and other < operation):
            break
        heap[begin + at] = other
        at = above
    heap[begin + at] = operation


@kernel
def take(heap: MutableInts, begin: int, size: int, place: int, priority: Floats) -> int:
    """Take what stands at a place of a heap, the first at 0; it is one less then."""
    found = heap[begin + place]
    last = heap[begin + size - 1]
    size -= 1
    if place == size:
        return found
    at = place
    while 2 * at + 1 < size:
        below = 2 * at + 1
        one = heap[begin + below]
        if below + 1 < size:
            other = heap[begin + below + 1]
            if priority[other] < priority[one] or (priority[other] == priority[one] and other < one):
                below += 1
                one = other
        if priority[last] < priority[one] or (priority[last] == priority[one] and last < one):
            break
        heap[begin + at] = one
        at = below
    put(heap, begin, at, last, priority)
    return found


@kernel
def arrive(work: DispatchWork, space: DispatchSpace, operation: int) -> None:
    """Nothing is missing any more: the operation can start at a time that is known."""
    worker = work.worker[operation]
    coming, there_s = space.coming, space.there_s
    at_s = there_s[operation]
    begin = work.start[worker]
    first, at = begin + space.counts[FIELDS * worker + BEGIN], begin + space.counts[FIELDS * worker + END]
    while at > first and there_s[coming[at - 1]] > at_s:
        coming[at] = coming[at - 1]
        at -= 1
    coming[at] = operation
    space.counts[FIELDS * worker + END] += 1
    soon_s = max(space.free_s[worker], at_s)
    if soon_s < space.event_s[worker]:
        decides_at(space.event_s, space.heap, space.at, worker, soon_s)


@kernel
def found(work: DispatchWork, space: DispatchSpace, operation: int, time_s: float) -> None:
    """One of the things that an operation waits for is there from some time on."""
    space.there_s[operation] = max(space.there_s[operation], time_s)
    space.missing[operation] -= 1
    if space.missing[operation] == 0:
        arrive(work, space, operation)


@kernel
def heap_of(kind: int) -> int:
    """In which of a worker's heaps an operation is: B with I."""
    return 1 if kind == 3 else kind


@kernel
def look(work: DispatchWork, space: DispatchSpace, worker: int, now_s: float, priority: Floats) -> None:
    """Put what can start by now into the worker's heaps."""
    counts, begin = space.counts, work.start[worker]
    operations = work.start[len(work.held_bytes)]
    while counts[FIELDS * worker + BEGIN] < counts[FIELDS * worker + END]:
        operation = space.coming[begin + counts[FIELDS * worker + BEGIN]]
        if space.there_s[operation] > now_s:
            return
        counts[FIELDS * worker + BEGIN] += 1
        kind = heap_of(work.kind[operation])
        put(space.ready, kind * operations + begin, counts[FIELDS * worker + READY + kind], operation, priority)
        counts[FIELDS * worker + READY + kind] += 1


@kernel
def admits(work: DispatchWork, space: DispatchSpace, worker: int, operation: int) -> bool:
    """Whether there is memory for an F: at its worker, or at all that its micro-batch needs."""
    if space.by_claims[0] == 0:
        return space.held_bytes[worker] + work.takes_bytes[operation] <= work.limit_bytes[worker]
    microbatch = work.microbatch[operation]
    if space.is_in[microbatch] == 1:
        return True
    for claim in range(work.claim_start[microbatch], work.claim_start[microbatch + 1]):
        one = work.claim_worker[claim]
        if space.held_bytes[one] + work.claim_bytes[claim] > work.limit_bytes[one]:
            return False
    return True


@kernel
def pick(work: DispatchWork, space: DispatchSpace, worker: int, priority: Floats) -> tuple[int, int]:
    """The heap and the place in it that a worker takes its next operation from; NONE: it could run nothing now."""
    counts, begin = space.counts, work.start[worker]
    operations = work.start[len(work.held_bytes)]
    size = FIELDS * worker + READY
    forward, place = NONE, 0
    for at in range(counts[size] if space.by_claims[0] == 1 else min(counts[size], 1)):
        operation = space.ready[begin + at]
        if forward != NONE and priority[forward] <= priority[operation]:
            continue
        if admits(work, space, worker, operation):
            forward, place = operation, at
    if counts[size + 1] > 0:
        backward = space.ready[operations + begin]
        if forward == NONE or priority[backward] <= priority[forward]:
            return 1, 0
    if forward != NONE:
        return 0, place
    return (2, 0) if counts[size + 2] > 0 else (NONE, 0)


@kernel
def next_arrival_s(work: DispatchWork, space: DispatchSpace, worker: int) -> float:
    """When something comes that a worker can run then, as far as that is known."""
    begin = work.start[worker]
    for at in range(space.counts[FIELDS * worker + BEGIN], space.counts[FIELDS * worker + END]):
        operation = space.coming[begin + at]
        if work.kind[operation] != 0 or admits(work, space, worker, operation):
            return space.there_s[operation]
    return INFINITY


@kernel
def let_in(work: DispatchWork, space: DispatchSpace, microbatch: int) -> None:
    """Keep the memory for all that a micro-batch needs."""
    if space.is_in[microbatch] == 0:
        space.is_in[microbatch] = 1
        for claim in range(work.claim_start[microbatch], work.claim_start[microbatch + 1]):
            space.held_bytes[work.claim_worker[claim]] += work.claim_bytes[claim]


@kernel
def wake(space: DispatchSpace, now_s: float) -> None:
    """There is more memory: who waits may have some."""
    space.by_claims[1] = 0
    for worker in range(len(space.event_s)):
        if space.counts[FIELDS * worker + READY] > 0 and space.event_s[worker] > now_s:
            decides_at(space.event_s, space.heap, space.at, worker, max(space.free_s[worker], now_s))


@kernel
def run(
    work: DispatchWork, space: DispatchSpace, worker: int, heap: int, place: int, now_s: float, priority: Floats
) -> None:
    """Run what stands at a place of a heap, and tell those that wait for it."""
    counts, begin = space.counts, work.start[worker]
    operations = work.start[len(work.held_bytes)]
    size = FIELDS * worker + READY + heap
    operation = take(space.ready, heap * operations + begin, counts[size], place, priority)
    counts[size] -= 1
    end_s = now_s + work.duration_s[operation]
    space.begin_s[operation] = now_s
    space.order[begin + counts[FIELDS * worker + RAN]] = operation
    counts[FIELDS * worker + RAN] += 1
    if space.by_claims[0] == 0:
        space.held_bytes[worker] += work.takes_bytes[operation]
    elif work.takes_bytes[operation] > 0:
        let_in(work, space, work.microbatch[operation])
    space.held_bytes[worker] += work.leaves_bytes[operation]
    space.free_s[worker] = end_s
    decides_at(space.event_s, space.heap, space.at, worker, end_s)
    if work.next_own[operation] != NONE:
        found(work, space, work.next_own[operation], end_s)
    if work.next_other[operation] != NONE:
        found(work, space, work.next_other[operation], end_s + work.delay_s[operation])
    if space.by_claims[1] > 0 and work.leaves_bytes[operation] < 0:
        wake(space, end_s)


@kernel
def start_over(work: DispatchWork, space: DispatchSpace, by_claims: int) -> None:
    """The state at time 0."""
    for worker in range(len(work.held_bytes)):
        for field in range(FIELDS):
            space.counts[FIELDS * worker + field] = 0
        space.held_bytes[worker] = work.held_bytes[worker]
        space.free_s[worker] = 0.0
        space.event_s[worker] = INFINITY
        space.heap[worker] = worker
        space.at[worker] = worker
    for microbatch in range(len(space.is_in)):
        space.is_in[microbatch] = 0
    space.by_claims[0] = by_claims
    space.by_claims[1] = 0
    for operation in range(len(work.worker)):
        space.missing[operation] = work.awaits[operation]
        space.there_s[operation] = work.ready_s[operation]
        space.begin_s[operation] = INFINITY
    for operation in range(len(work.worker)):
        if work.awaits[operation] == 0:
            arrive(work, space, operation)


@kernel
def dispatch(given: tuple[Any, ...], taken: tuple[Any, ...], priority: Floats, by_claims: int) -> None:
    """Schedule everything; `DispatchSpace.order` and `DispatchSpace.free_s` then hold it.

    Args:
        given, taken: `DispatchWork` and `DispatchSpace` as plain tuples, whose types numba finds out at once.
        priority: of each operation; the least goes first.
        by_claims: 1: micro-batches are let in as a whole; 0: each F for itself.
    """
    work, space = DispatchWork(*given), DispatchSpace(*taken)
    start_over(work, space, by_claims)
    while len(space.heap) > 0:
        worker = space.heap[0]
        now_s = space.event_s[worker]
        if now_s == INFINITY:
            return
        look(work, space, worker, now_s, priority)
        heap, place = pick(work, space, worker, priority)
        if by_claims == 1 and heap != 0 and space.counts[FIELDS * worker + READY] > 0:
            space.by_claims[1] += 1
        if heap == NONE:
            decides_at(space.event_s, space.heap, space.at, worker, next_arrival_s(work, space, worker))
        else:
            run(work, space, worker, heap, place, now_s, priority)


@kernel
def follow(given: tuple[Any, ...], taken: tuple[Any, ...]) -> None:
    """Run what `DispatchSpace.order` says, every operation as soon as can be.

    Args:
        given, taken: as of `dispatch`.
    """
    work, space = DispatchWork(*given), DispatchSpace(*taken)
    workers = len(work.held_bytes)
    for worker in range(workers):
        space.counts[FIELDS * worker + RAN] = 0
        space.free_s[worker] = 0.0
        space.at[worker] = 1  # it is in the heap, which is only a pile here
        space.heap[worker] = worker
    for operation in range(len(work.worker)):
        space.missing[operation] = work.awaits[operation]
        space.there_s[operation] = work.ready_s[operation]
        space.begin_s[operation] = INFINITY
    size = workers
    while size > 0:
        size -= 1
        worker = space.heap[size]
        space.at[worker] = 0
        begin, ran = work.start[worker], space.counts[FIELDS * worker + RAN]
        while begin + ran < work.start[worker + 1]:
            operation = space.order[begin + ran]
            if space.missing[operation] > 0:
                break
            ran += 1
            space.begin_s[operation] = max(space.free_s[worker], space.there_s[operation])
            end_s = space.begin_s[operation] + work.duration_s[operation]
            space.free_s[worker] = end_s
            own, other = work.next_own[operation], work.next_other[operation]
            if own != NONE:
                space.missing[own] -= 1
                space.there_s[own] = max(space.there_s[own], end_s)
            if other != NONE:
                space.missing[other] -= 1
                space.there_s[other] = max(space.there_s[other], end_s + work.delay_s[operation])
                taker = work.worker[other]
                if space.at[taker] == 0 and taker != worker:
                    space.at[taker] = 1
                    space.heap[size] = taker
                    size += 1
        space.counts[FIELDS * worker + RAN] = ran
