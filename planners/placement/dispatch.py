"""The list scheduler of workers with several seats: due times decide what goes first, a reserve that nothing locks up.

A worker that is free runs, of what is ready and admitted, the operation of least key. The key of an operation of job
j at virtual stage v is `due(j) + offset(v, kind)`: with due times a pace apart and the offsets of a micro-batch alone,
this is the building block of P. Qi et al., "Pipeline Parallelism with Controllable Memory" (2024), as a priority and
not as a table, so F, I and W may take any time.

**The reserve rule.** F of a later virtual stage waits for room that F of an earlier one has taken, on the same worker:
without a rule most priorities end in a ring of waits. Let A be the most that one of the jobs routed to a worker needs
there, over all its seats, and o the oldest job (in rank order, over all pipelines) that still has an F to run there.
Then

* an F of o starts whenever it fits;
* an F of a later job starts only if it fits, and what the jobs later than o hold, with it, leaves A.

Proof. That the jobs later than o hold at most limit - A is an invariant: it is tested when such an F starts; an F of o
does not change it; I and W lower it; when o advances fewer are later. Take the first job with an F left anywhere: on
all workers that still need it, it is o. The jobs before it have no F left, so nothing of them waits for memory, and
they end and are gone. Then its next F fits, for all its F together need no more than A. So it ends, and the next. W
run when nothing else can, and what waits for a known time waits no longer. So any limit that admits each job alone is
feasible.

The weaker rule that F of a worker's first seat leaves room for its own later seats locks up where there are three.

Where a worker may run F and a full backward B side by side (`overlap`), it takes what goes first and beside it what
goes first of the other kind, if that is there, or soon is. In an order the F of such a pair stands as `~code`, and its
B behind it. F is admitted while what B gives back is still held, so the proof stands.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.agenda import decides_at

INFINITY = float("inf")
NONE = -1
F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters; B stands for I where the backward is not split


class SeatCosts(NamedTuple):
    """What is to be ordered.

    Cells are `job * stages + stage`, operation codes `3 * cell + kind`, and queues `3 * seat + kind`.

    Attributes:
        stages: how many virtual stages there are.
        executor, split: of each cell, its worker and whether its backward is split.
        hop_s: of each cell, the way to the next stage and back; 0 behind the last.
        duration_s: of F, I, W and B at `4 * (worker * stages + stage)`.
        first_seat: the seats of each worker, and their end.
        seat_of: at `worker * stages + stage`; NONE.
        stage_of, activation_bytes, stash_bytes: of each seat.
        limit_bytes, reserve_bytes: of each worker, what it may hold and the A of the reserve rule.
        first_job, jobs: the jobs that are routed to each worker, in rank order, and where they begin and end.
        first_queued: where each queue stands, and their end.
        start: where each worker's order stands, and their end.
        overlap: what F and B take side by side over the two one after the other; 1: nothing is gained.
    """

    stages: int
    executor: Ints
    split: Ints
    hop_s: Floats
    duration_s: Floats
    first_seat: Ints
    seat_of: Ints
    stage_of: Ints
    activation_bytes: Floats
    stash_bytes: Floats
    limit_bytes: Floats
    reserve_bytes: Floats
    first_job: Ints
    jobs: Ints
    first_queued: Ints
    start: Ints
    overlap: float


class SeatState(NamedTuple):
    """How far a schedule is.

    Attributes:
        there_s: of each operation, when what it waits for is there.
        coming: of each worker, what can start at a time that is known and has not come, by these times.
        coming_from, coming_to: of each worker, where these begin and end.
        queue: the jobs that are ready, by rank, in a queue for each seat and kind.
        queue_from, queue_to: of each queue, where it begins and ends.
        progress: of each cell, 0 before F, 1 after it, 2 after I, 3 after W or B.
        whole, stashed: of each seat, how many activations it holds, and how many stashes of those that await W.
        later_whole, later_stashed: those of jobs later than the oldest with an F left.
        oldest: of each worker, where that job stands in `jobs`.
        order, ran: what each worker has run, and how many.
        free_s, event_s: of each worker, its last end, and when it decides next.
        heap, at: the workers, a heap by when they decide; and where each is in it.
    """

    there_s: MutableFloats
    coming: MutableInts
    coming_from: MutableInts
    coming_to: MutableInts
    queue: MutableInts
    queue_from: MutableInts
    queue_to: MutableInts
    progress: MutableInts
    whole: MutableInts
    stashed: MutableInts
    later_whole: MutableInts
    later_stashed: MutableInts
    oldest: MutableInts
    order: MutableInts
    ran: MutableInts
    free_s: MutableFloats
    event_s: MutableFloats
    heap: MutableInts
    at: MutableInts


class SeatKeys(NamedTuple):
    """What goes first. At one seat and of one kind, jobs go in rank order whatever their keys.

    Attributes:
        key_s: of each operation.
        release_s: of each job, when it may enter; the oldest may always.
        wait: nothing is started if what has a lesser key is known to arrive within this fraction of its duration.
        beside: F and B are run side by side, and wait for each other within this fraction of their duration; negative:
            one after the other.
    """

    key_s: Floats
    release_s: Floats
    wait: float
    beside: float


@kernel
def arrive(space: SeatState, worker: int, operation: int, time_s: float) -> None:
    """What an operation waits for will be there: it comes to its worker."""
    there_s, coming = space.there_s, space.coming
    there_s[operation] = time_s
    first, at = space.coming_from[worker], space.coming_to[worker]
    while at > first and there_s[coming[at - 1]] > time_s:
        coming[at] = coming[at - 1]
        at -= 1
    coming[at] = operation
    space.coming_to[worker] += 1
    soon_s = max(space.free_s[worker], time_s)
    if soon_s < space.event_s[worker]:
        decides_at(space.event_s, space.heap, space.at, worker, soon_s)


@kernel
def look(work: SeatCosts, space: SeatState, worker: int, now_s: float) -> None:
    """Put what has come by now into the worker's queues."""
    queue = space.queue
    while space.coming_from[worker] < space.coming_to[worker]:
        operation = space.coming[space.coming_from[worker]]
        if space.there_s[operation] > now_s:
            return
        space.coming_from[worker] += 1
        job, stage = operation // 3 // work.stages, operation // 3 % work.stages
        number = 3 * work.seat_of[worker * work.stages + stage] + operation % 3
        first, at = space.queue_from[number], space.queue_to[number]
        while at > first and queue[at - 1] > job:
            queue[at] = queue[at - 1]
            at -= 1
        queue[at] = job
        space.queue_to[number] += 1


@kernel
def is_oldest(work: SeatCosts, space: SeatState, worker: int, job: int) -> bool:
    """Whether a job is the first in rank order that still has an F to run at a worker."""
    return work.jobs[space.oldest[worker]] == job


@kernel
def admits(work: SeatCosts, space: SeatState, worker: int, seat: int, job: int) -> bool:
    """Whether the reserve rule lets an F of a job start at a seat of a worker. Seats are counted, so nothing drifts."""
    limit_bytes = work.limit_bytes[worker]
    if limit_bytes == INFINITY:
        return True
    used_bytes = 0.0
    later_bytes = work.reserve_bytes[worker]
    for one in range(work.first_seat[worker], work.first_seat[worker + 1]):
        more = 1 if one == seat else 0
        activation_bytes, stash_bytes = work.activation_bytes[one], work.stash_bytes[one]
        used_bytes += (space.whole[one] + more) * activation_bytes + space.stashed[one] * stash_bytes
        later_bytes += (space.later_whole[one] + more) * activation_bytes + space.later_stashed[one] * stash_bytes
    return used_bytes <= limit_bytes and (later_bytes <= limit_bytes or is_oldest(work, space, worker, job))


@kernel
def pick(work: SeatCosts, space: SeatState, keys: SeatKeys, worker: int, now_s: float) -> int:
    """The queue whose first job a worker takes next; NONE: it could run nothing now."""
    chosen, first_job = NONE, 0
    least_s = INFINITY
    for seat in range(work.first_seat[worker], work.first_seat[worker + 1]):
        stage = work.stage_of[seat]
        for kind in range(3):
            number = 3 * seat + kind
            if space.queue_from[number] == space.queue_to[number]:
                continue
            job = space.queue[space.queue_from[number]]
            key_s = keys.key_s[3 * (job * work.stages + stage) + kind]
            if chosen != NONE and (key_s > least_s or (key_s == least_s and job >= first_job)):
                continue
            if kind == F:
                early = stage == 0 and keys.release_s[job] > now_s and not is_oldest(work, space, worker, job)
                if early or not admits(work, space, worker, seat, job):
                    continue
            chosen, first_job, least_s = number, job, key_s
    return chosen


@kernel
def next_s(work: SeatCosts, space: SeatState, keys: SeatKeys, worker: int, now_s: float) -> float:
    """When there is something new for a worker, as far as that is known: an arrival, or a job that may enter."""
    time_s = INFINITY
    if space.coming_from[worker] < space.coming_to[worker]:
        time_s = space.there_s[space.coming[space.coming_from[worker]]]
    seat = work.seat_of[worker * work.stages]
    if seat != NONE and space.queue_from[3 * seat] < space.queue_to[3 * seat]:
        enters_s = keys.release_s[space.queue[space.queue_from[3 * seat]]]
        if enters_s > now_s:
            time_s = min(time_s, enters_s)
    return time_s


@kernel
def urgent_s(work: SeatCosts, space: SeatState, keys: SeatKeys, worker: int, number: int) -> float:
    """When something is known to come to a worker that it would run rather than the first of a queue."""
    stage = work.stage_of[number // 3]
    chosen = 3 * (space.queue[space.queue_from[number]] * work.stages + stage) + number % 3
    for at in range(space.coming_from[worker], space.coming_to[worker]):
        operation = space.coming[at]
        if keys.key_s[operation] >= keys.key_s[chosen]:
            continue
        job, stage = operation // 3 // work.stages, operation // 3 % work.stages
        if operation % 3 != F or admits(work, space, worker, work.seat_of[worker * work.stages + stage], job):
            return space.there_s[operation]
    return INFINITY


@kernel
def pair_s(work: SeatCosts, one_s: float, other_s: float) -> float:
    """What two passes take side by side: no less than the longer one."""
    return max(one_s, other_s, work.overlap * (one_s + other_s))


@kernel
def pass_s(work: SeatCosts, worker: int, number: int) -> float:
    """What the first of a queue takes as one of a pair, in s."""
    stage, kind = work.stage_of[number // 3], number % 3
    return work.duration_s[4 * (worker * work.stages + stage) + (B if kind == I else kind)]


@kernel
def partner(work: SeatCosts, space: SeatState, keys: SeatKeys, worker: int, number: int, now_s: float) -> int:
    """The queue whose first job may run beside the first of another one; NONE."""
    kind = number % 3
    cell = space.queue[space.queue_from[number]] * work.stages + work.stage_of[number // 3]
    if kind == W or (kind == I and work.split[cell] == 1):
        return NONE
    chosen = NONE
    least_s = INFINITY
    for seat in range(work.first_seat[worker], work.first_seat[worker + 1]):
        stage, other = work.stage_of[seat], 3 * seat + (I if kind == F else F)
        if space.queue_from[other] == space.queue_to[other]:
            continue
        job = space.queue[space.queue_from[other]]
        key_s = keys.key_s[3 * (job * work.stages + stage) + other % 3]
        if key_s >= least_s:
            continue
        if kind == F:
            if work.split[job * work.stages + stage] == 1:
                continue
        else:
            early = stage == 0 and keys.release_s[job] > now_s and not is_oldest(work, space, worker, job)
            if early or not admits(work, space, worker, seat, job):
                continue
        chosen, least_s = other, key_s
    if chosen != NONE:
        one_s, other_s = pass_s(work, worker, number), pass_s(work, worker, chosen)
        if pair_s(work, one_s, other_s) >= one_s + other_s:
            return NONE
    return chosen


@kernel
def partner_s(work: SeatCosts, space: SeatState, worker: int, number: int) -> float:
    """When something is known to come to a worker that may run beside the first of a queue; infinite: nothing is."""
    kind = number % 3
    cell = space.queue[space.queue_from[number]] * work.stages + work.stage_of[number // 3]
    if kind == W or (kind == I and work.split[cell] == 1):
        return INFINITY
    for at in range(space.coming_from[worker], space.coming_to[worker]):
        operation = space.coming[at]
        job, stage = operation // 3 // work.stages, operation // 3 % work.stages
        if kind == F and operation % 3 == I and work.split[operation // 3] == 0:
            return space.there_s[operation]
        seat = work.seat_of[worker * work.stages + stage]
        if kind == I and operation % 3 == F and admits(work, space, worker, seat, job):
            return space.there_s[operation]
    return INFINITY


@kernel
def advance(work: SeatCosts, space: SeatState, worker: int) -> None:
    """Find the oldest job with an F left at a worker; the last one stands for none."""
    last = work.first_job[worker + 1] - 1
    while space.oldest[worker] < last:
        job = work.jobs[space.oldest[worker]]
        for seat in range(work.first_seat[worker], work.first_seat[worker + 1]):
            cell = job * work.stages + work.stage_of[seat]
            if work.executor[cell] == worker and space.progress[cell] == 0:
                return
        space.oldest[worker] += 1
        job = work.jobs[space.oldest[worker]]
        for seat in range(work.first_seat[worker], work.first_seat[worker + 1]):
            cell = job * work.stages + work.stage_of[seat]
            if work.executor[cell] == worker:
                space.later_whole[seat] -= 1 if space.progress[cell] == 1 else 0
                space.later_stashed[seat] -= 1 if space.progress[cell] == 2 else 0


@kernel
def account(work: SeatCosts, space: SeatState, worker: int, seat: int, job: int, kind: int) -> None:
    """Count what an operation takes and leaves."""
    cell = job * work.stages + work.stage_of[seat]
    later = 1 if job > work.jobs[space.oldest[worker]] else 0
    if kind == F:
        space.progress[cell] = 1
        space.whole[seat] += 1
        space.later_whole[seat] += later
        if later == 0:
            advance(work, space, worker)
    elif kind == I:
        split = work.split[cell]
        space.progress[cell] = 2 if split == 1 else 3
        space.whole[seat] -= 1
        space.later_whole[seat] -= later
        space.stashed[seat] += split
        space.later_stashed[seat] += later * split
    else:
        space.progress[cell] = 3
        space.stashed[seat] -= 1
        space.later_stashed[seat] -= later


@kernel
def complete(work: SeatCosts, space: SeatState, worker: int, number: int, end_s: float) -> None:
    """The first of a queue runs until then."""
    job = space.queue[space.queue_from[number]]
    space.queue_from[number] += 1
    seat, kind = number // 3, number % 3
    stage = work.stage_of[seat]
    cell = job * work.stages + stage
    split = work.split[cell]
    space.order[work.start[worker] + space.ran[worker]] = 3 * cell + kind
    space.ran[worker] += 1
    space.free_s[worker] = end_s
    account(work, space, worker, seat, job, kind)
    decides_at(space.event_s, space.heap, space.at, worker, end_s)
    if kind == F:
        if stage + 1 < work.stages:
            arrive(space, work.executor[cell + 1], 3 * cell + 3 + F, end_s + work.hop_s[cell])
        else:
            arrive(space, worker, 3 * cell + I, end_s)
    elif kind == I:
        if stage > 0:
            arrive(space, work.executor[cell - 1], 3 * cell - 3 + I, end_s + work.hop_s[cell - 1])
        if split == 1:
            arrive(space, worker, 3 * cell + W, end_s)


@kernel
def run(work: SeatCosts, space: SeatState, worker: int, number: int, now_s: float) -> None:
    """Run the first of a queue, and tell those that wait for it."""
    kind, stage = number % 3, work.stage_of[number // 3]
    cell = space.queue[space.queue_from[number]] * work.stages + stage
    taken = B if kind == I and work.split[cell] == 0 else kind
    complete(work, space, worker, number, now_s + work.duration_s[4 * (worker * work.stages + stage) + taken])


@kernel
def run_pair(work: SeatCosts, space: SeatState, worker: int, one: int, other: int, now_s: float) -> None:
    """Run the first of two queues side by side, and tell those that wait for them."""
    end_s = now_s + pair_s(work, pass_s(work, worker, one), pass_s(work, worker, other))
    forward, backward = (one, other) if one % 3 == F else (other, one)
    place = work.start[worker] + space.ran[worker]
    complete(work, space, worker, forward, end_s)
    space.order[place] = ~space.order[place]
    complete(work, space, worker, backward, end_s)


@kernel
def begin(work: SeatCosts, space: SeatState) -> None:
    """The state at time 0: all jobs are ready to enter."""
    for cell in range(len(work.executor)):
        space.progress[cell] = 0
    for number in range(len(work.first_queued) - 1):
        space.queue_from[number] = work.first_queued[number]
        space.queue_to[number] = work.first_queued[number]
    for seat in range(len(work.stage_of)):
        space.whole[seat] = 0
        space.stashed[seat] = 0
        space.later_whole[seat] = 0
        space.later_stashed[seat] = 0
    for worker in range(len(work.limit_bytes)):
        space.coming_from[worker] = work.start[worker]
        space.coming_to[worker] = work.start[worker]
        space.oldest[worker] = work.first_job[worker]
        space.ran[worker] = 0
        space.free_s[worker] = 0.0
        space.event_s[worker] = 0.0
        space.heap[worker] = worker
        space.at[worker] = worker
    for job in range(len(work.executor) // work.stages):
        number = 3 * work.seat_of[work.executor[job * work.stages] * work.stages]
        space.queue[space.queue_to[number]] = job
        space.queue_to[number] += 1


@kernel
def dispatch(given: tuple[Any, ...], taken: tuple[Any, ...], ranking: tuple[Any, ...]) -> None:
    """Schedule everything; `SeatState.order` then holds it.

    Args:
        given, taken, ranking: `SeatCosts`, `SeatState` and `SeatKeys` as plain tuples, whose types numba finds at once.
    """
    work, space, keys = SeatCosts(*given), SeatState(*taken), SeatKeys(*ranking)
    begin(work, space)
    while True:
        worker = space.heap[0]
        now_s = space.event_s[worker]
        if now_s == INFINITY:
            return
        look(work, space, worker, now_s)
        number = pick(work, space, keys, worker, now_s)
        if number == NONE:
            decides_at(space.event_s, space.heap, space.at, worker, next_s(work, space, keys, worker, now_s))
            continue
        if keys.wait > 0:
            kind, stage = number % 3, work.stage_of[number // 3]
            soon_s = urgent_s(work, space, keys, worker, number)
            if soon_s <= now_s + keys.wait * work.duration_s[4 * (worker * work.stages + stage) + kind]:
                decides_at(space.event_s, space.heap, space.at, worker, soon_s)
                continue
        if keys.beside >= 0:
            other = partner(work, space, keys, worker, number, now_s)
            if other != NONE:
                run_pair(work, space, worker, number, other, now_s)
                continue
            soon_s = partner_s(work, space, worker, number)
            if soon_s <= now_s + keys.beside * pass_s(work, worker, number):
                decides_at(space.event_s, space.heap, space.at, worker, soon_s)
                continue
        run(work, space, worker, number, now_s)
