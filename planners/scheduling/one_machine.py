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
from dataclasses import dataclass
from itertools import accumulate
from itertools import chain as chained
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.kernels import compiled, kernel
from .forms import pays
from .problem import BACKWARD, FORWARD, KINDS, NO_WORKER, WEIGHT, Problem

if TYPE_CHECKING:
    from .problem import Flags, Floats, Ints


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


class PreemptiveValue(NamedTuple):
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
    in_machine_code = pays(jackson, steps, INTERPRETED_STEPS)
    values = [jackson_preemptive(queues, in_machine_code=in_machine_code) for _, queues in machines]
    largest_s = max(value_s for value_s, _ in values)
    solved = [
        Solved(spot, largest_s, critical(queues, value))
        for (spot, queues), value in zip(machines, values, strict=True)
        if value.value_s >= largest_s * (1 - ROUNDING)
    ]
    return max(solved, key=lambda machine: machine.critical.work_s)


def critical(queues: Sequence[Queue], value: PreemptiveValue) -> Critical:
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


def jackson_preemptive(queues: Sequence[Queue], *, in_machine_code: bool = False) -> PreemptiveValue:
    """The value of a pre-emptive problem: the largest end plus tail; -inf where nothing needs to end."""
    first = [0, *accumulate(len(queue.heads_s) for queue in queues)]
    durations_s = [queue.duration_s for queue in queues]
    front, left = [0] * len(queues), [0.0] * len(queues)
    if in_machine_code:
        run: Any = compiled(jackson)
        heads_s = np.concatenate([queue.heads_s for queue in queues])
        tails_s = np.concatenate([queue.tails_s for queue in queues])
        fixed = np.array(first), heads_s, np.array(durations_s), tails_s
        return PreemptiveValue(*run(*fixed, np.array(front), np.array(left)))
    heads = list(chained.from_iterable(queue.heads_s.tolist() for queue in queues))
    tails = list(chained.from_iterable(queue.tails_s.tolist() for queue in queues))
    return PreemptiveValue(*jackson(first, heads, durations_s, tails, front, left))


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


# Heads and tails: what must come before each operation of a chain and what after, whatever the orders.
#
# The k-th F, I and W of a stage are those of the chain's k-th micro-batch, as identical ones may be taken first in,
# first out. The **head** of an operation is a time before which it cannot start, the **tail** a time that passes at
# least between its end and that of the iteration (or of what else `ends_s` is counted to); tails of -inf say that
# nothing need follow. An operation's head is the largest of
#
# * the end of the same operation of the micro-batch before: one worker executes all of a stage;
# * the arrival of its message: F's end at the stage below, I's at the stage above, each plus the delay of the link; and
#   the end of its own micro-batch's F, for I, or I, for W;
# * for I and W the work that is done before on its worker: k + 1 F and k I before I_k, k + 1 F, k + 1 I and k W before
#   W_k (counted from 0), none of which starts before the stage's first F.
#
# Tails are heads in reversed time, with the last micro-batch first, W in the place of F and F in the place of W.


@dataclass(frozen=True, eq=False)
class HeadsAndTails:
    """Heads and tails in s; arrays kinds x stages x micro-batches, heads ascending and tails descending in the last."""

    heads_s: Floats
    tails_s: Floats

    def part(self, stage: int, count: int) -> HeadsAndTails:
        """Those of one stage for `count` micro-batches: heads of the first, tails of the last."""
        start = self.tails_s.shape[2] - count
        return HeadsAndTails(self.heads_s[:, stage : stage + 1, :count], self.tails_s[:, stage : stage + 1, start:])


def heads_and_tails(chain: Chain, count: int, ends_s: Sequence[float]) -> HeadsAndTails:
    """Heads and tails of identical micro-batches, without regard to memory limits.

    The heads of the first n are those of n micro-batches in all, and so are the tails of the last n.

    Args:
        chain: what each micro-batch costs.
        count: how many there are.
        ends_s: what follows the last operation of each stage at least; -inf for nothing.
    """
    return HeadsAndTails(_heads(chain, count), _tails(chain, count, ends_s))


def _heads(chain: Chain, count: int) -> Floats:
    heads = np.zeros((KINDS, chain.depth, count))
    for i in range(chain.depth):
        arrival = heads[FORWARD, i - 1] + (chain.forward_s[i - 1] + chain.delay_s[i - 1]) if i else heads[FORWARD, i]
        heads[FORWARD, i] = _in_sequence(arrival, chain.forward_s[i])
    for i in reversed(range(chain.depth)):
        f, b, w = chain.forward_s[i], chain.backward_s[i], chain.weight_s[i]
        arrival = np.maximum(heads[FORWARD, i] + f, _after_work(heads[FORWARD, i, 0], f, b, count))
        if i < chain.depth - 1:
            arrival = np.maximum(arrival, heads[BACKWARD, i + 1] + (chain.backward_s[i + 1] + chain.delay_s[i]))
        heads[BACKWARD, i] = _in_sequence(arrival, b)
        arrival = np.maximum(heads[BACKWARD, i] + b, _after_work(heads[FORWARD, i, 0], f + b, w, count))
        heads[WEIGHT, i] = _in_sequence(arrival, w)
    return heads


def _tails(chain: Chain, count: int, ends_s: Sequence[float]) -> Floats:
    """As `_heads`, from the last micro-batch back."""
    tails = np.empty((KINDS, chain.depth, count))
    for i in range(chain.depth):
        b, w = chain.backward_s[i], chain.weight_s[i]
        tails[WEIGHT, i] = _in_sequence(np.full(count, ends_s[i]), w)
        tail = np.maximum(tails[WEIGHT, i] + w, _after_work(tails[WEIGHT, i, 0], w, b, count))
        if i:
            tail = np.maximum(tail, tails[BACKWARD, i - 1] + (chain.backward_s[i - 1] + chain.delay_s[i - 1]))
        tails[BACKWARD, i] = _in_sequence(tail, b)
    for i in reversed(range(chain.depth)):
        f, b, w = chain.forward_s[i], chain.backward_s[i], chain.weight_s[i]
        tail = np.maximum(tails[BACKWARD, i] + b, _after_work(tails[WEIGHT, i, 0], b + w, f, count))
        if i < chain.depth - 1:
            tail = np.maximum(tail, tails[FORWARD, i + 1] + (chain.forward_s[i + 1] + chain.delay_s[i]))
        tails[FORWARD, i] = _in_sequence(tail, f)
    return tails[:, :, ::-1]


def _after_work(start: float, before_s: float, own_s: float, count: int) -> Floats:
    """When k + 1 times `before_s` and k times `own_s` are done after `start`, for each k."""
    number = np.arange(count)
    found: Floats = start + (number + 1) * before_s + number * own_s
    return found


def _in_sequence(ready: Floats, duration: float) -> Floats:
    """Starts of operations of equal duration that are ready at `ready`, one after the other."""
    shift = np.arange(len(ready)) * duration
    starts: Floats = np.maximum.accumulate(ready - shift) + shift
    return starts


# Identical micro-batches: the chains of operations and delays that bounds argue about.
#
# Micro-batches are identical where they have the same executors, delays and backward split. They may then be taken
# first in, first out, whatever is counted: sort the starts of each of their operations at each stage, and give the l-th
# start to the l-th micro-batch. Of its messages none comes late, for the l-th end at a stage cannot come after the l-th
# start of the operation that needs it; and each worker executes the same kinds at the same times, so holds the same
# memory.


@dataclass(frozen=True)
class Chain:
    """What one micro-batch costs on its way up the stages and back down; one entry a stage, but one a link in delays.

    All times in s, with the executing workers' slow-downs in them. Where the backward is not split, `backward_s` is
    B's duration, `weight_s` is 0, and nothing is stashed: W is then an operation that costs nothing.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    split: tuple[bool, ...]
    delay_s: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    stash_bytes: tuple[float, ...]
    limit_bytes: tuple[float, ...]

    @property
    def depth(self) -> int:
        """How many stages there are."""
        return len(self.forward_s)

    def from_stage(self, first: int) -> Chain:
        """The chain without the stages before `first`."""
        return self._cut(slice(first, None), slice(first, None))

    def at_stage(self, stage: int) -> Chain:
        """The chain of one stage only."""
        return self._cut(slice(stage, stage + 1), slice(0, 0))

    def round_trip_s(self, stage: int) -> float:
        """Least time between F's end and I's start at a stage: down all later stages and back."""
        return sum(self.forward_s[stage + 1 :]) + sum(self.backward_s[stage + 1 :]) + 2 * sum(self.delay_s[stage:])

    def _cut(self, stages: slice, links: slice) -> Chain:
        return Chain(
            self.forward_s[stages],
            self.backward_s[stages],
            self.weight_s[stages],
            self.split[stages],
            self.delay_s[links],
            self.activation_bytes[stages],
            self.stash_bytes[stages],
            self.limit_bytes[stages],
        )


@dataclass(frozen=True)
class Route:
    """Identical micro-batches: what each costs, who executes them at each stage, and their jobs in rank order."""

    chain: Chain
    workers: tuple[int, ...]
    jobs: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.jobs)


def routes_of(problem: Problem) -> list[Route]:
    """The micro-batches of a problem, identical ones together, in the order of their first ones."""
    return [_route(problem, alike) for alike in identical_jobs(problem.executor, problem.split, problem.hop_s)]


def identical_jobs(executor: Ints, split: Flags, hop_s: Floats) -> list[list[int]]:
    """The jobs with the same executors, backward split and delays (a row each), each class in rank order."""
    jobs: dict[tuple[bytes, bytes, bytes], list[int]] = {}
    rows = zip(executor, split, hop_s, strict=True)
    for job, (executors, split, hops_s) in enumerate(rows):
        jobs.setdefault((executors.tobytes(), split.tobytes(), hops_s.tobytes()), []).append(job)
    return list(jobs.values())


def _route(problem: Problem, alike: list[int]) -> Route:
    job = alike[0]
    executors = problem.executor[job]
    workers = executors[executors != NO_WORKER]
    held, split = problem.workers, problem.split[job, : len(workers)]
    columns = (
        held.forward_s[workers],
        np.where(split, held.input_s[workers], held.full_s[workers]),
        np.where(split, held.weight_s[workers], 0.0),
        split,
        problem.hop_s[job, : len(workers) - 1],
        held.activation_bytes[workers],
        np.where(split, held.stash_bytes[workers], 0.0),
        held.limit_bytes[workers],
    )
    return Route(Chain(*(tuple(column.tolist()) for column in columns)), tuple(workers.tolist()), tuple(alike))
