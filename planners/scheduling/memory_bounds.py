"""What memory limits add to heads and tails.

Count a stage's F, I and W each in its order, from 0, and let `room[x]` be how many micro-batches may be stashed
(between I and W) beside x whole ones (between F and I). When F_k starts, with b of the I and w of the W before it,
k + 1 - b are whole and b - w stashed, so b - w <= room[k + 1 - b]. On one worker, with b <= k and w <= b, that gives:

* **F_k** comes after {F < k, I < b, W < w} for some b with room, where w = max(0, b - room[k + 1 - b]) is the fewest W
  that do. Its head is the least time that such a set takes, over all b.
* **I_k** comes after {F <= k, I < k, W < k - room[1]}. For F_k is before it, and at F_k w >= b - room[k + 1 - b], which
  is no less than k - room[1]: room falls by one or more with each whole micro-batch.
* **W_k** comes after {F <= k, I <= k, W < k}, whatever the memory.
* After **W_k** come {W > k} and F_m, I_m for all m > k + room[1]: were W_k to come at F_m, w <= k, but as above
  m - w <= room[1].
* After **I_k** come {I > k, W >= k} and F_m for all m >= k + r, where r whole micro-batches fit and no more: were I_k
  to come at F_m, m + 1 - k or more would be whole.
* After **F_k** come {F > k, I >= k, W >= k}, whatever the memory.

Time of a set S. Operations with heads take one machine at least until t plus the work of those with heads from t on,
for any t up to the largest head. Let `idle` be the largest t - (work of all operations known so far with heads before
t) over all t up to the head of the last F known. All sets contain that F; so none ends before idle + (work of S), nor
before the last operation of each kind in it. That is, but for rare cases, as much as the best t for S gives.

What comes after is the same in reversed time, with tails for heads, W in the place of F and F in that of W. The kernels
go from the first micro-batch on, up the stages for F and down for I and W; in reversed time up for W and I, down for F.

All this holds for any part of a worker's micro-batches, which holds but a part of its memory: for those of one chain,
whose heads go on to other stages, and for all of several chains together. In the latter the k-th F and the k-th I may
belong to different micro-batches; yet k + 1 I have started only when k + 1 F have ended the least round trip before.
Their k-th head is the k-th least of all heads, and their k-th tail the k-th largest of all tails: of the k + 1
operations with the largest tails at least one is not among the first k.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain as chained
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.check import ROUNDING
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from .forms import Form
from .one_machine import HeadsAndTails

if TYPE_CHECKING:
    from .one_machine import Chain
    from .problem import Floats as FloatArray


INFINITY = float("inf")
# Up to this many micro-batches times stages, plain Python is quicker than to load the machine code.
INTERPRETED_CELLS = 30_000


class Limited(NamedTuple):
    """Heads and tails that memory limits may raise.

    Attributes:
        known: those without limits.
        chain: what each micro-batch costs.
        turn_s: least time between F's end and I's start at each stage, as far as `chain` does not say it.
    """

    known: HeadsAndTails
    chain: Chain
    turn_s: Sequence[float]


def limit_binds(chain: Chain, count: int) -> bool:
    """Whether a stage cannot hold all micro-batches at once."""
    sizes = zip(chain.activation_bytes, chain.limit_bytes, strict=True)
    return not all(fits(count, 0, activation_bytes=a, stash_bytes=0.0, limit_bytes=limit) for a, limit in sizes)


def raise_by_memory(tasks: Sequence[Limited]) -> list[HeadsAndTails]:
    """Heads and tails, raised by what memory limits imply; each limit must admit a micro-batch."""
    cells = sum(task.known.heads_s[0].size for task in tasks)
    return [raised(task, in_machine_code=cells > INTERPRETED_CELLS) for task in tasks]


def raised(task: Limited, *, in_machine_code: bool) -> HeadsAndTails:
    """Heads and tails, raised by a kernel that is compiled or interpreted."""
    known, chain, turn_s = task
    sizes = zip(chain.activation_bytes, chain.stash_bytes, chain.limit_bytes, strict=True)
    rooms = [stash_room(known.heads_s.shape[2], *size) for size in sizes]
    whole = [sum(stashed != NO_ROOM for stashed in room) - 1 for room in rooms]
    form = Form(in_machine_code)
    kinds, stages, count = known.heads_s.shape
    common = (form.floats(chain.delay_s), form.floats(turn_s), form.ints(list(chained(*rooms))), form.ints(whole))

    def raised_by(function: Any, begin_s: FloatArray, costs_s: Sequence[Sequence[float]]) -> FloatArray:
        costs = MemoryCosts(stages, count, form.floats(list(chained(*costs_s))), *common)
        begin = form.floats(begin_s.flatten())
        form.kernel(function)(costs, MemoryState(begin, form.floats([-INFINITY] * stages), form.int_space(2 * stages)))
        return np.array(begin).reshape(kinds, stages, count)

    costs_s = (chain.forward_s, chain.backward_s, chain.weight_s)
    heads_s = raised_by(raise_heads, known.heads_s, costs_s)
    tails_s = raised_by(raise_tails, known.tails_s[::-1, :, ::-1], costs_s[::-1])
    return HeadsAndTails(heads_s, tails_s[::-1, :, ::-1])


class MemoryCosts(NamedTuple):
    """A chain; its kinds of operations are F, I and W for heads, and W, I and F for tails.

    Attributes:
        stages, jobs: how many stages and micro-batches there are.
        lasting: of each kind, at `kind * stages + stage`.
        hop: delay of the link to the next stage.
        turn: least time between F's end and I's start at each stage.
        room: stashes beside each number of whole micro-batches, at `stage * (jobs + 1) + number`.
        whole: most micro-batches between F and I, of each stage.
    """

    stages: int
    jobs: int
    lasting: Floats
    hop: Floats
    turn: Floats
    room: Ints
    whole: Ints


class MemoryState(NamedTuple):
    """Heads (or tails) at `(kind * stages + stage) * jobs + number`; and work space."""

    begin: MutableFloats
    idle: MutableFloats
    passed: MutableInts


@kernel
def completion(costs: MemoryCosts, state: MemoryState, at: int, x: int, y: int, z: int) -> float:
    """A time before which stage `at` cannot have ended x, y and z operations of its three kinds; x > 0, all known."""
    stages, count, begin, lasting = costs.stages, costs.jobs, state.begin, costs.lasting
    first = at * count
    second = first + stages * count
    third = second + stages * count
    a, b, c = lasting[at], lasting[stages + at], lasting[2 * stages + at]
    time = max(state.idle[at] + (x * a + y * b + z * c), begin[first + x - 1] + a)
    if y > 0:
        time = max(time, begin[second + y - 1] + b)
    if z > 0:
        time = max(time, begin[third + z - 1] + c)
    return time


@kernel
def settle(costs: MemoryCosts, state: MemoryState, at: int, k: int) -> None:
    """Move `idle` on to operation k of the first kind, past those of the others before it; k of each are known."""
    stages, count, begin, lasting, idle = costs.stages, costs.jobs, state.begin, costs.lasting, state.idle
    first = at * count
    second = first + stages * count
    third = second + stages * count
    a, b, c = lasting[at], lasting[stages + at], lasting[2 * stages + at]
    y, z = state.passed[at], state.passed[stages + at]
    until = begin[first + k]
    while True:
        next_y = begin[second + y] if y < k else INFINITY
        next_z = begin[third + z] if z < k else INFINITY
        time = min(until, next_y, next_z)
        idle[at] = max(idle[at], time - (k * a + y * b + z * c))
        if time == until:
            break
        if next_y <= next_z:
            y += 1
        else:
            z += 1
    state.passed[at] = y
    state.passed[stages + at] = z


@kernel
def admitted(costs: MemoryCosts, state: MemoryState, at: int, k: int) -> float:
    """The head that memory gives the k-th F of a stage: the least over how many I come before it."""
    whole = costs.whole[at]
    if k < whole:
        return -INFINITY
    count = costs.jobs
    least = INFINITY
    second = (costs.stages + at) * count
    b = k + 1 - whole
    while b <= k and state.begin[second + b - 1] + costs.lasting[costs.stages + at] < least:
        stashes = max(0, b - costs.room[at * (count + 1) + k + 1 - b])
        least = min(least, completion(costs, state, at, k, b, stashes))
        b = b + 1 if stashes > 0 else k + 1
    return least


@kernel
def raise_heads(costs: MemoryCosts, state: MemoryState) -> None:
    """Raise the heads of F, I and W."""
    stages, count, begin, lasting = costs.stages, costs.jobs, state.begin, costs.lasting
    kind = stages * count
    for k in range(count):
        for i in range(stages):
            here = i * count + k
            head = max(begin[here], admitted(costs, state, i, k))
            if k > 0:
                head = max(head, begin[here - 1] + lasting[i])
            if i > 0:
                head = max(head, begin[here - count] + (lasting[i - 1] + costs.hop[i - 1]))
            begin[here] = head
            settle(costs, state, i, k)
        for i in range(stages - 1, -1, -1):
            here = kind + i * count + k
            stashes = max(0, k - costs.room[i * (count + 1) + 1])
            head = max(begin[here], completion(costs, state, i, k + 1, k, stashes))
            head = max(head, begin[here - kind] + (lasting[i] + costs.turn[i]))
            if i + 1 < stages:
                head = max(head, begin[here + count] + (lasting[stages + i + 1] + costs.hop[i]))
            begin[here] = head
            here += kind
            begin[here] = max(begin[here], completion(costs, state, i, k + 1, k + 1, k))


@kernel
def raise_tails(costs: MemoryCosts, state: MemoryState) -> None:
    """Raise the tails of W, I and F, last micro-batch first, as `raise_heads` does; k counts from the end."""
    stages, count, begin, lasting = costs.stages, costs.jobs, state.begin, costs.lasting
    kind = stages * count
    for k in range(count):
        for i in range(stages):
            here = i * count + k
            later = max(0, k - costs.room[i * (count + 1) + 1])
            if k > 0:
                begin[here] = max(begin[here], completion(costs, state, i, k, later, later))
            settle(costs, state, i, k)
            here += kind
            later = max(0, k + 1 - costs.whole[i])
            tail = max(begin[here], completion(costs, state, i, k + 1, k, later))
            if i > 0:
                tail = max(tail, begin[here - count] + (lasting[stages + i - 1] + costs.hop[i - 1]))
            begin[here] = tail
        for i in range(stages - 1, -1, -1):
            here = 2 * kind + i * count + k
            tail = max(begin[here], completion(costs, state, i, k + 1, k + 1, k))
            tail = max(tail, begin[here - kind] + (lasting[stages + i] + costs.turn[i]))
            if i + 1 < stages:
                tail = max(tail, begin[here + count] + (lasting[2 * stages + i + 1] + costs.hop[i]))
            begin[here] = tail


# How many micro-batches fit under a memory limit, as the checker counts.


NO_ROOM = -1


def fits(whole: int, stashed: int, *, activation_bytes: float, stash_bytes: float, limit_bytes: float) -> bool:
    """Whether a limit admits so many micro-batches between F and I, and so many between I and W."""
    return not whole * activation_bytes + stashed * stash_bytes > limit_bytes * (1 + ROUNDING)


@lru_cache(maxsize=256)
def stash_room(count: int, activation_bytes: float, stash_bytes: float, limit_bytes: float) -> tuple[int, ...]:
    """How many micro-batches may be stashed beside each number of whole ones, from 0 to `count`, or more than may.

    It falls by one or more with each whole micro-batch, as that holds no less than its stash. Where rounded sums say
    otherwise, the larger number is taken. NO_ROOM stands where the whole ones do not fit; 2 `count` is no limit.
    """
    room = []
    stashed = 2 * count
    for whole in range(count + 1):
        while stashed > NO_ROOM and not fits(
            whole, stashed, activation_bytes=activation_bytes, stash_bytes=stash_bytes, limit_bytes=limit_bytes
        ):
            stashed -= 1
        room.append(stashed)
    for whole in reversed(range(count)):
        if room[whole + 1] > NO_ROOM:
            room[whole] = max(room[whole], room[whole + 1] + 1)
    return tuple(room)
