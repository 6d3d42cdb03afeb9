"""The one-machine problem: operations with heads and tails on one worker, and Jackson's pre-emptive schedule of them.

Operation j cannot start before its head r_j, lasts p_j, and at least its tail q_j passes after its end. The machine
executes one at a time, so all of it lasts no less than the best schedule, and that no less than the best one with
pre-emption, which Jackson's rule finds: always run the released operation with the largest tail (J. Carlier, "The
one-machine sequencing problem", EJOR 11, 1982). Its value is min r_j + sum p_j + min q_j over some set of operations,
the critical ones: they say why it lasts so long.

Operations come in queues of equal durations, heads ascending and tails descending: of a queue only the first that is
not done competes, so no heap is needed.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from itertools import accumulate
from itertools import chain as chained
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....schemas.kernels import compiled, kernel

if TYPE_CHECKING:
    from ..problem import Floats

INFINITY = float("inf")
ROUNDING = 1e-12  # sums of the same times in another order differ by less, relatively
# Up to this many comparisons of queues, plain Python is quicker than to load the machine code (about half a second).
INTERPRETED_STEPS = 2_000_000


class Queue(NamedTuple):
    """Operations of one duration: heads ascending, tails descending, in s; a tail of -inf is one that need not end."""

    heads_s: Floats
    duration_s: float
    tails_s: Floats


Spot = tuple[int | None, int]  # the window that is looked at (None: the whole iteration), and the worker


class Machine(NamedTuple):
    """The operations of a worker, and which worker that is, in which window."""

    spot: Spot
    queues: Sequence[Queue]


class Value(NamedTuple):
    """The value of a pre-emptive problem, in s, and the least tail of its critical operations."""

    value_s: float
    tail_s: float


class Critical(NamedTuple):
    """The critical operations: their least head, their work and their least tail, in s."""

    head_s: float
    work_s: float
    tail_s: float


class Solved(NamedTuple):
    """A machine's spot, the value of its pre-emptive problem, in s, and what decides it."""

    spot: Spot
    value_s: float
    critical: Critical


def most_binding(machines: Sequence[Machine]) -> Solved:
    """The machine whose pre-emptive problem has the largest value; of several the one with the most critical work."""
    steps = sum(len(queues) * sum(len(queue.heads_s) for queue in queues) for _, queues in machines)
    values = [jackson_preemptive(queues, in_machine_code=steps > INTERPRETED_STEPS) for _, queues in machines]
    largest_s = max(value_s for value_s, _ in values)
    solved = [
        Solved(spot, largest_s, critical(queues, value))
        for (spot, queues), value in zip(machines, values, strict=True)
        if value.value_s >= largest_s * (1 - ROUNDING)
    ]
    return max(solved, key=lambda machine: machine.critical.work_s)


def critical(queues: Sequence[Queue], value: Value) -> Critical:
    """What decides a machine's value: all operations from some head on, if these reach it, else only urgent ones.

    Operations with smaller tails than that of the value never delay the others in Jackson's schedule. So these run as
    they are released, and are all critical from the start of their last busy period on.
    """
    least_s = min(float(queue.tails_s[queue.tails_s > -INFINITY][-1]) for queue in queues)
    found = _with_tails_from(least_s, queues)
    return found if sum(found) >= value.value_s * (1 - ROUNDING) else _with_tails_from(value.tail_s, queues)


def _with_tails_from(tail_s: float, queues: Sequence[Queue]) -> Critical:
    """Of the operations with at least a given tail, those whose heads and work bound their ends most."""
    urgent = [queue.heads_s[queue.tails_s >= tail_s] for queue in queues]
    heads_s = np.concatenate(urgent)
    work_s = np.concatenate([np.full(len(h), queue.duration_s) for h, queue in zip(urgent, queues, strict=True)])
    order = np.argsort(heads_s, kind="stable")
    left_s = np.cumsum(work_s[order][::-1])[::-1]
    first = int(np.argmax(heads_s[order] + left_s))
    return Critical(float(heads_s[order][first]), float(left_s[first]), tail_s)


def jackson_preemptive(queues: Sequence[Queue], *, in_machine_code: bool = False) -> Value:
    """The value of a pre-emptive problem: the largest end plus tail; -inf where nothing needs to end."""
    first = [0, *accumulate(len(queue.heads_s) for queue in queues)]
    durations_s = [queue.duration_s for queue in queues]
    front, left = [0] * len(queues), [0.0] * len(queues)
    if in_machine_code:
        run: Any = compiled(jackson)
        heads_s = np.concatenate([queue.heads_s for queue in queues])
        tails_s = np.concatenate([queue.tails_s for queue in queues])
        fixed = np.array(first), heads_s, np.array(durations_s), tails_s
        return Value(*run(*fixed, np.array(front), np.array(left)))
    heads = list(chained.from_iterable(queue.heads_s.tolist() for queue in queues))
    tails = list(chained.from_iterable(queue.tails_s.tolist() for queue in queues))
    return Value(*jackson(first, heads, durations_s, tails, front, left))


@kernel
def most_urgent(
    time: float, first: Sequence[int], heads: Sequence[float], tails: Sequence[float], front: Sequence[int]
) -> tuple[int, float]:
    """The queue with the largest tail at its front among those released (-1: none), and the next release of another."""
    chosen = -1
    urgency = -INFINITY
    release = INFINITY
    for q in range(len(front)):
        at = front[q]
        if at < first[q + 1]:
            if heads[at] > time:
                release = min(release, heads[at])
            elif tails[at] > urgency:
                urgency = tails[at]
                chosen = q
    return chosen, release


@kernel
def jackson(
    first: Sequence[int],
    heads: Sequence[float],
    durations: Sequence[float],
    tails: Sequence[float],
    front: MutableSequence[int],
    left: MutableSequence[float],
) -> tuple[float, float]:
    """Value and critical tail of Jackson's schedule.

    Queue q is at `first[q]` to `first[q + 1]` of `heads` and `tails`; `front` and `left` are work space.
    """
    for q in range(len(durations)):
        front[q] = first[q]
        left[q] = durations[q]
    time = 0.0
    value = -INFINITY
    tail = -INFINITY
    while True:
        chosen, release = most_urgent(time, first, heads, tails, front)
        if chosen < 0:
            if release == INFINITY:
                return value, tail
            time = release
        elif release < time + left[chosen]:
            left[chosen] -= release - time
            time = release
        else:
            time += left[chosen]
            if time + tails[front[chosen]] > value:
                tail = tails[front[chosen]]
                value = time + tail
            front[chosen] += 1
            left[chosen] = durations[chosen]
