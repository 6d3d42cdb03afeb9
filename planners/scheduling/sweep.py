"""The kernels of the list scheduler: all workers decide by the rules, over exact times, without a global event queue.

A conservative sweep (K. M. Chandy and J. Misra, "Distributed simulation", CACM 24, 1981): the stages are visited in
turns, and a worker decides for as long as no message that it does not know yet can arrive. How long that is follows
from the next decisions of all stages: a message that leaves stage j now reaches stage i no sooner than the shortest
operations and delays between them add up to. Unlike the textbook form there are no null messages, so two idle workers
never advance each other for ever: a worker that waits for no known moment has no next decision, and when nobody has
one, it ends. Where operations and delays of no length leave no margin, the worker that decides first goes alone.

Arrays are flat. Those over workers and kinds stand at `3 * worker + kind`; each such pair has a queue of the jobs whose
F, I or W is known, in order of arrival (ties by job), from `start[3 * worker + kind]` on.
"""

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel

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
