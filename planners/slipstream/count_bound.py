"""What memory limits cost a pipeline whose stages have several equal workers, whatever the routing and the orders.

It counts, and forgets which worker does what: the l-th F of a stage is the l-th to start on any of its L live workers.
Heads are times before which nothing of that number starts. The pattern is that of scheduling/bounds/memory_bounds.py,
with L machines instead of one. Counting from 0, with C the activations that all workers of a stage hold together:

* **F_l** starts no earlier than F_(l-1); than F_l of the stage before has ended, and its message come; than F_(l-L) has
  ended, for L workers run L operations at once; and, if l + 1 activations are more than C, than memory admits: when it
  starts, b of the I and w of the W have ended, where the l + 1 - b whole micro-batches and the b - w stashes fit in C.
  Each b gives the fewest w. By then L workers have done these b and w, and all but L of the F: a worker has at most one
  operation under way. The head is the least over b of the latest of these three.
* **I_l** starts no earlier than F_l has ended; than I_l of the stage after has, and its message come; than I_(l-L) has;
  and than the stage has done l + 1 F, all but L of the I, and the W that F_l had to wait for.
* **W_l** starts no earlier than I_l has ended; and than the stage has done l + 1 F and I, and all but L of
  the W.

Time of work: up to any time t only what has a head before t can have been under way, so that at least
`idle = L t - (that work)` is lost. Work that ends later than t ends no sooner than (idle + work) / L.

The whole takes steps of micro-batches times stages. Once memory is full everywhere the heads go on in a straight line:
only so many are made as the stages hold, and some rounds more; what the last one has at least follows from work alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...schemas.check import ROUNDING
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form, pays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# Up to this many micro-batches times stages, plain Python is quicker than to load the machine code.
INTERPRETED_CELLS = 30_000
# So many rounds of all workers are counted after memory is full, and so many micro-batches at least.
ROUNDS, FEWEST = 4, 64
INFINITY = float("inf")


class Counted:
    """A pipeline to count in; arrays over its stages, times in s.

    Args:
        work_s: of F, I (or B) and W, 0 where there is none; kinds x stages.
        hop_s: delay of the links to the next stage and back, 0 after the last stage.
        room: micro-batches that a worker holds at most between F and I; infinite without a limit.
        capacity: activations that a worker holds at most, stashes among them.
        stash: share of an activation that is held between I and W.
    """

    def __init__(self, work_s: Array, hop_s: Array, room: Array, capacity: Array, stash: Array) -> None:
        self._work_s, self._hop_s, self._room, self._capacity, self._stash = work_s, hop_s, room, capacity, stash
        self._cells = 0  # counted so far

    def ends_s(self, live: NDArray[np.int64], jobs: int) -> Array:
        """When the last operation of each stage has ended at the earliest.

        Args:
            live: workers of each stage, 1 or more.
            jobs: micro-batches of all pipelines.
        """
        stages, room = len(live), np.minimum(self._room * live, jobs)
        known = int(min(jobs, max(FEWEST, room[room < jobs].max(initial=0) + ROUNDS * live.max())))
        self._cells += stages * known
        form = Form(pays(raise_counts, self._cells, INTERPRETED_CELLS))
        ends_s = form.float_space(stages)
        form.kernel(raise_counts)(
            stages, jobs, known, form.ints(live), form.floats(self._work_s.ravel()), form.floats(self._hop_s),
            form.ints(room), form.floats(np.minimum(self._capacity, jobs) * live * (1 + ROUNDING)),
            form.floats(self._stash), form.float_space(3 * known * stages), form.floats([-INFINITY] * stages),
            form.int_space(2 * stages), form.float_space(stages), ends_s,
        )  # fmt: skip
        return np.asarray(ends_s)


@kernel
def stashes(before: int, number: int, at: int, capacity: Floats, stash: Floats) -> float:
    """The fewest W that have ended when the F of that number starts at a stage, with so many I before it.

    It is no whole number; as stashes are parts of activations, it falls the more I there are.
    """
    left = capacity[at] - (number + 1 - before)
    if before * stash[at] <= left:
        return 0.0
    return before - left / stash[at]


@kernel
def whole(number: float) -> int:
    """A number rounded up."""
    below = int(number)
    return below + 1 if below < number else below


@kernel
def freed(here: int, kind: int, number: int, at: int, stages: int, live: Ints, lasting: Floats, begin: Floats) -> float:
    """When one of the operations of a kind that all workers of a stage run before this one has ended, at `here`."""
    if number < live[at]:
        return -INFINITY
    return begin[here - live[at] * stages] + lasting[kind * stages + at]


@kernel
def admitted(
    at: int,
    stages: int,
    known: int,
    number: int,
    live: Ints,
    lasting: Floats,
    room: Ints,
    capacity: Floats,
    stash: Floats,
    begin: Floats,
    idle: Floats,
) -> float:
    """The head that memory gives the F of that number: the least over how many I come before it."""
    if number < room[at]:
        return -INFINITY
    second = known * stages + at
    third = second + known * stages
    f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
    ended = max(0, number + 1 - live[at]) * f
    least = INFINITY
    before = number + 1 - room[at]
    while before <= number:
        head = begin[second + (before - 1) * stages] + i
        if head >= least:
            break
        weights = whole(stashes(before, number, at, capacity, stash))
        if weights > 0:
            head = max(head, begin[third + (weights - 1) * stages] + w)
        head = max(head, (idle[at] + (ended + before * i + weights * w)) / live[at])
        least = min(least, head)
        if weights == 0:
            break
        before += 1
    return least


@kernel
def settle(
    at: int,
    stages: int,
    known: int,
    number: int,
    until: float,
    live: Ints,
    lasting: Floats,
    begin: Floats,
    idle: MutableFloats,
    passed: MutableInts,
) -> None:
    """Move `idle` on to a time before which so many F of a stage have their heads, past the I and W before it."""
    second = known * stages + at
    third = second + known * stages
    f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
    inputs, weights = passed[at], passed[stages + at]
    while True:
        next_input = begin[second + inputs * stages] if inputs < number else INFINITY
        next_weight = begin[third + weights * stages] if weights < number else INFINITY
        time = min(until, next_input, next_weight)
        if time < INFINITY:
            idle[at] = max(idle[at], live[at] * time - (number * f + inputs * i + weights * w))
        if time == until:
            break
        if next_input <= next_weight:
            inputs += 1
        else:
            weights += 1
    passed[at] = inputs
    passed[stages + at] = weights


@kernel
def last_forward(
    at: int,
    jobs: int,
    stages: int,
    live: Ints,
    lasting: Floats,
    room: Ints,
    capacity: Floats,
    stash: Floats,
    idle: Floats,
) -> float:
    """What work alone says of the head of a stage's last F."""
    if jobs <= room[at]:
        return -INFINITY
    i, w = lasting[stages + at], lasting[2 * stages + at]
    # Over how many I come before it, what these and the W take is a line that bends once: where no W is needed more.
    fewest = jobs - room[at]
    least = fewest * i + stashes(fewest, jobs - 1, at, capacity, stash) * w
    least = min(least, (jobs - 1) * i + stashes(jobs - 1, jobs - 1, at, capacity, stash) * w)
    if stash[at] < 1:
        bend = (jobs - capacity[at]) / (1 - stash[at])
        if fewest < bend < jobs - 1:
            least = min(least, bend * i)
    return (idle[at] + ((jobs - live[at]) * lasting[at] + least)) / live[at]


@kernel
def settle_ends(
    stages: int,
    jobs: int,
    live: Ints,
    lasting: Floats,
    begin: Floats,
    idle: MutableFloats,
    passed: MutableInts,
    ends: MutableFloats,
) -> None:
    """The last ends where the heads of all jobs are known; arguments as for `raise_counts`."""
    for at in range(stages):
        f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
        settle(at, stages, jobs, jobs, INFINITY, live, lasting, begin, idle, passed)
        end = begin[(2 * jobs - 1) * stages + at] + (i + w)
        ends[at] = max(end, (idle[at] + jobs * (f + i + w)) / live[at])


@kernel
def foresee_ends(
    stages: int,
    jobs: int,
    known: int,
    live: Ints,
    lasting: Floats,
    hop: Floats,
    room: Ints,
    capacity: Floats,
    stash: Floats,
    begin: Floats,
    idle: Floats,
    last: MutableFloats,
    ends: MutableFloats,
) -> None:
    """What the heads of the first jobs say of the last ends; arguments as for `raise_counts`."""
    for at in range(stages):
        head = begin[(known - 1) * stages + at] + (jobs - known) // live[at] * lasting[at]
        head = max(head, last_forward(at, jobs, stages, live, lasting, room, capacity, stash, idle))
        last[at] = max(head, last[at - 1] + (lasting[at - 1] + hop[at - 1])) if at > 0 else head
    after = -INFINITY
    for at in range(stages - 1, -1, -1):
        f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
        weights = whole(stashes(jobs - 1, jobs - 1, at, capacity, stash))
        head = (idle[at] + (jobs * f + max(0, jobs - live[at]) * i + weights * w)) / live[at]
        head = max(head, last[at] + f, after)
        ends[at] = max(head + (i + w), (idle[at] + jobs * (f + i + w)) / live[at])
        if at > 0:
            after = head + (i + hop[at - 1])


@kernel
def raise_counts(
    stages: int,
    jobs: int,
    known: int,
    live: Ints,
    lasting: Floats,
    hop: Floats,
    room: Ints,
    capacity: Floats,
    stash: Floats,
    begin: MutableFloats,
    idle: MutableFloats,
    passed: MutableInts,
    last: MutableFloats,
    ends: MutableFloats,
) -> None:
    """Heads of the first F, I and W of each stage, and what they say of the last ends.

    Args:
        stages, jobs, known: how many; heads are made for the first `known` jobs.
        live: workers of each stage.
        lasting: of F, I and W, at `kind * stages + stage`.
        hop: delay to the next stage and back, of each stage.
        room: whole micro-batches that a stage holds at most, of each stage.
        capacity: activations that a stage holds at most, of each stage.
        stash: share of an activation between I and W, of each stage.
        begin: receives the heads, at `(kind * known + number) * stages + stage`.
        idle: -INFINITY of each stage; receives what is lost.
        passed: zeros, two of each stage; work space.
        last: work space of each stage.
        ends: receives the least last end of each stage.
    """
    kind = known * stages
    for number in range(known):
        for at in range(stages):
            here = number * stages + at
            head = max(0.0, admitted(at, stages, known, number, live, lasting, room, capacity, stash, begin, idle))
            if number > 0:
                head = max(head, begin[here - stages])
            head = max(head, freed(here, 0, number, at, stages, live, lasting, begin))
            if at > 0:
                head = max(head, begin[here - 1] + (lasting[at - 1] + hop[at - 1]))
            begin[here] = head
            settle(at, stages, known, number, head, live, lasting, begin, idle, passed)
        for at in range(stages - 1, -1, -1):
            here = kind + number * stages + at
            f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
            begun = max(0, number + 1 - live[at])
            weights = whole(stashes(number, number, at, capacity, stash))
            head = (idle[at] + ((number + 1) * f + begun * i + weights * w)) / live[at]
            head = max(head, begin[here - kind] + f)
            head = max(head, freed(here, 1, number, at, stages, live, lasting, begin))
            if at + 1 < stages:
                head = max(head, begin[here + 1] + (lasting[stages + at + 1] + hop[at]))
            begin[here] = head
            head = max(head + i, (idle[at] + ((number + 1) * (f + i) + begun * w)) / live[at])
            begin[here + kind] = max(head, freed(here + kind, 2, number, at, stages, live, lasting, begin))
    if known == jobs:
        settle_ends(stages, jobs, live, lasting, begin, idle, passed, ends)
    else:
        foresee_ends(stages, jobs, known, live, lasting, hop, room, capacity, stash, begin, idle, last, ends)
