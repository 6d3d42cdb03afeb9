"""Lower bounds on the makespan and the period of any orders for a problem.

Argument. Take one worker. Each of its operations j cannot start before its head r_j (the longest chain of operations
and delays that must come first), lasts p_j, and is followed by a chain of at least its tail q_j before the iteration
can end. Whatever the schedule, the worker runs these operations one at a time, so the iteration is no shorter than the
best one-machine schedule of (r_j, p_j, q_j), with pre-emption. The makespan bound is the largest over all workers.

What follows a worker's last operation are the sums of gradients of its layers, part by part, the last layers first
(problem.py). A part's sum begins no earlier than each holder's end, and no earlier than the sum of the part
behind has ended if somebody holds both; it takes what it takes. So the makespan has all of a worker's own parts in its
tails, one after the other. And since somebody holds both of two neighbouring parts of a component, the sums of all
parts ahead wait for them in turn; they are in the tails too.

For the period, the workers of the same layers (a stage's, where all pipelines cut alike) share all their sums, and step
when these are done. Their window runs from their first start to the end of their step; that is, by the argument above,
no less than to the last end over them, with their own sums and the step after it. Drop all stages before it (that can
only shorten the window), let the window start at 0, and the same argument bounds its length: heads are chains from the
window's start, tails chains to the last operation of the window's own stage. F and I of later stages lie inside the
window too, so their workers bound it as well.

Memory limits raise heads and tails where they bind one chain of identical micro-batches (all of a fault-free pipeline),
or one worker with all its micro-batches. What a worker's limit does to one chain because of another one's micro-batches
is known at that worker, but not at the chain's other stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain as chained
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from .forms import Form, pays
from .one_machine import Chain, HeadsAndTails, Machine, Queue, Spot, heads_and_tails, most_binding, routes_of
from .problem import KINDS, NO_WORKER, ROUNDING, WEIGHT, Problem, with_any_split

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
    in_machine_code = pays(raise_heads, cells, INTERPRETED_CELLS)
    return [raised(task, in_machine_code=in_machine_code) for task in tasks]


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


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on the makespan or period, and the worker that proves it.

    The worker's critical operations cannot start before `head_s`, last `work_s`, and at least `tail_s` follows them,
    all-reduce and optimizer step included: the value is the sum. Where a limit does not admit a single micro-batch
    there are no orders: the value is infinite, as is the head.

    Attributes:
        value_s: no orders have a smaller makespan or period, in s.
        worker: number of the worker whose operations are critical.
        window: number of the group (the workers of the same layers) whose window is bounded, from whose first start
            heads are counted; None for the makespan.
        head_s, work_s, tail_s: of the critical operations.
        unlimited_s: what the value would be without memory limits.
    """

    value_s: float
    worker: int
    window: int | None
    head_s: float
    work_s: float
    tail_s: float
    unlimited_s: float

    @property
    def raised_by_memory(self) -> bool:
        """Whether memory limits raise the bound."""
        return self.value_s > self.unlimited_s * (1 + ROUNDING)


def lower_bound(problem: Problem) -> Bound:
    """The bound on the problem's objective: its period where that counts, else its makespan."""
    return period_bound(problem) if problem.staggered else makespan_bound(problem)


def lower_bounds_s(problem: Problem) -> Iterator[float]:
    """Proven lower bounds on the problem's objective, in s, at last `lower_bound`'s; before it what takes less time.

    A makespan has one without memory limits, which orders often reach.
    """
    if not problem.staggered:
        machines, step_s = _makespan_machines(problem)
        yield most_binding(machines.unlimited()).value_s + step_s
    yield lower_bound(problem).value_s


def makespan_bound(problem: Problem) -> Bound:
    """A proven lower bound on the makespan of any orders for a problem."""
    return _larger(_makespan_bound, problem)


def period_bound(problem: Problem) -> Bound:
    """A proven lower bound on the period of any orders for a problem."""
    return _larger(_period_bound, problem)


def _larger(bound: Callable[[Problem], Bound], problem: Problem) -> Bound:
    """The larger of a problem's bound and, where a worker has I and W as well as B, that with B split there too.

    Orders with B remain orders with I and W in its place: its message comes no later, it frees memory no later. So no
    orders of the problem beat that bound either, and there micro-batches are alike that are not in the problem. Where B
    takes less than I and W, these are as short there as it makes them.
    """
    found = bound(problem)
    split = np.bincount(problem.executor[problem.split], minlength=len(problem.job_counts))
    mixed = (split > 0) & (split < problem.job_counts)
    if not mixed.any():
        return found
    split = problem.split | (mixed[problem.executor] & (problem.executor != NO_WORKER))
    apart = bound(replace(problem, workers=with_any_split(problem.workers), split=split))
    unlimited_s = max(found.unlimited_s, apart.unlimited_s)
    return replace(max(found, apart, key=lambda b: b.value_s), unlimited_s=unlimited_s)


def _makespan_bound(problem: Problem) -> Bound:
    return _largest(problem, *_makespan_machines(problem))


def _makespan_machines(problem: Problem) -> tuple[OneMachineProblems, float]:
    """Each worker's operations, and the longest optimizer step, which follows them all."""
    routes = routes_of(problem)
    step_s = max(float(problem.workers.optimizer_s[list(route.workers)].max()) for route in routes)
    # Heads from 0, tails to the end of the last all-reduce.
    workers = problem.workers
    follows_s = workers.parts.following_s(workers.sums_s)
    reduce_s = [follows_s[group] for group in workers.group.tolist()]
    machines = OneMachineProblems()
    for route in routes:
        kind = machines.kind(route.chain, tuple(reduce_s[worker] for worker in route.workers))
        for stage, worker in enumerate(route.workers):
            machines.add((None, worker), RouteJobs(kind, stage, route.count))
    return machines, step_s


def _period_bound(problem: Problem) -> Bound:
    # Heads from the first start of a group, tails to the end of its optimizer step. The window of a group contains F
    # and I at all later stages. So what one says of later workers, one before it says too, with longer heads and tails,
    # unless what follows its own last operation takes longer.
    workers = problem.workers
    after_s = [sum(both) for both in zip(workers.parts.own_s(workers.sums_s), workers.steps_s, strict=True)]
    group = workers.group.tolist()
    machines = OneMachineProblems()
    views: dict[tuple[Chain, tuple[float, ...]], list[tuple[int, int]]] = {}
    for route in routes_of(problem):
        ends_s = tuple(after_s[group[worker]] for worker in route.workers)
        if (route.chain, ends_s) not in views:
            views[route.chain, ends_s] = list(_views(machines, route.chain, ends_s))
        for first, (kind, stages) in enumerate(views[route.chain, ends_s]):
            window = group[route.workers[first]]
            for stage, worker in enumerate(route.workers[first : first + stages]):
                machines.add((window, worker), RouteJobs(kind, stage, route.count))
    return _largest(problem, machines, 0.0)


def _views(machines: OneMachineProblems, chain: Chain, ends_s: tuple[float, ...]) -> Iterator[tuple[int, int]]:
    """From each stage's window on: the kind of the chain's micro-batches from there, and how many stages it says most
    of."""
    longest_s = -inf
    for first, end_s in enumerate(ends_s):
        rest = chain.depth - first
        kind = machines.kind(chain.from_stage(first), (end_s, *[-inf] * (rest - 1)))
        yield kind, rest if end_s > longest_s else 1
        longest_s = max(longest_s, end_s)


def _largest(problem: Problem, machines: OneMachineProblems, step_s: float) -> Bound:
    """The bound of the machine that gives the largest one, followed by `step_s`."""
    found = unlimited = most_binding(machines.unlimited())
    unlimited_s = unlimited.value_s + step_s
    full = _without_room(problem)
    if full is not None:
        return Bound(inf, full, None, inf, 0.0, 0.0, unlimited_s)
    limited = machines.limited()
    if limited:
        found = max(unlimited, most_binding(limited), key=lambda machine: machine.value_s)
    (window, worker), (head_s, work_s, tail_s) = found.spot, found.critical
    return Bound(found.value_s + step_s, worker, window, head_s, work_s, tail_s + step_s, unlimited_s)


def _without_room(problem: Problem) -> int | None:
    """The first worker whose limit does not admit a single micro-batch."""
    workers = problem.workers
    for worker in np.flatnonzero(problem.job_counts).tolist():
        activation_bytes, limit_bytes = float(workers.activation_bytes[worker]), float(workers.limit_bytes[worker])
        if not fits(1, 0, activation_bytes=activation_bytes, stash_bytes=0.0, limit_bytes=limit_bytes):
            return int(worker)
    return None


# Workers as one-machine problems: which micro-batches each has, and their heads and tails with and without limits.


Kind = tuple["Chain", tuple[float, ...]]  # micro-batches that cost the same, and what follows the stages' last ones


class RouteJobs(NamedTuple):
    """Some micro-batches of a worker: number of their kind, the worker's stage among their chain's, and how many."""

    kind: int
    stage: int
    jobs: int


class OneMachineProblems:
    """One-machine problems, made of routes; of equal ones (peers without re-routing) only the first is looked at."""

    def __init__(self) -> None:
        self._number: dict[Kind, int] = {}
        self._counts: list[int] = []
        self._parts: dict[Spot, list[RouteJobs]] = {}

    def kind(self, chain: Chain, ends_s: tuple[float, ...]) -> int:
        """The number of a kind of micro-batches.

        Args:
            chain: what each costs, from the stage on that heads are counted from.
            ends_s: what follows the last operation of each of these stages at least; -inf for nothing.
        """
        number = self._number.setdefault((chain, ends_s), len(self._number))
        self._counts.extend([0] * (number + 1 - len(self._counts)))
        return number

    def add(self, spot: Spot, part: RouteJobs) -> None:
        """Give a worker micro-batches."""
        if part.jobs > self._counts[part.kind]:
            self._counts[part.kind] = part.jobs
        self._parts.setdefault(spot, []).append(part)

    def unlimited(self) -> list[Machine]:
        """The problems without memory limits."""
        return [Machine(spot, self._queues(parts, self._unlimited)) for parts, spot in self._distinct.items()]

    def limited(self) -> list[Machine]:
        """Those that memory limits change, with the limits; each must admit a micro-batch."""
        # As `_unlimited`, the same objects where no limit binds.
        known = list(self._unlimited)
        binding = [n for n, chain in enumerate(self._chains) if limit_binds(chain, self._counts[n])]
        raised = raise_by_memory([Limited(known[n], self._chains[n], [0.0] * self._chains[n].depth) for n in binding])
        for n, times in zip(binding, raised, strict=True):
            known[n] = times
        changed = [a is not b for a, b in zip(known, self._unlimited, strict=True)]
        found = [
            Machine(spot, self._queues(parts, known))
            for parts, spot in self._distinct.items()
            if any(changed[part.kind] for part in parts)
        ]
        return found + self._shared(known)

    @cached_property
    def _chains(self) -> list[Chain]:
        return [chain for chain, _ in self._number]

    @cached_property
    def _distinct(self) -> dict[tuple[RouteJobs, ...], Spot]:
        found: dict[tuple[RouteJobs, ...], Spot] = {}
        for spot, parts in self._parts.items():
            found.setdefault(tuple(sorted(parts)), spot)
        return found

    @cached_property
    def _unlimited(self) -> list[HeadsAndTails]:
        kinds = zip(self._number, self._counts, strict=True)
        return [heads_and_tails(chain, count, ends_s) for (chain, ends_s), count in kinds]

    def _queues(self, parts: Sequence[RouteJobs], known: Sequence[HeadsAndTails]) -> list[Queue]:
        return [
            queue
            for part in parts
            for queue in _queues(self._alone(part), known[part.kind].part(part.stage, part.jobs))
        ]

    def _shared(self, known: Sequence[HeadsAndTails]) -> list[Machine]:
        """Workers that have micro-batches of several chains, as one queue for each kind of operation."""
        found: list[tuple[Spot, Limited]] = []
        for parts, spot in self._distinct.items():
            alone = self._alone(parts[0])
            enough = len(parts) == 1 or not limit_binds(alone, sum(part.jobs for part in parts))
            # Their memory is too little for all, whose operations have the same durations.
            if not enough and all(self._alone(part) == alone for part in parts):
                columns = [known[part.kind].part(part.stage, part.jobs) for part in parts]
                heads_s = np.sort(np.concatenate([times.heads_s for times in columns], axis=2))
                tails_s = np.sort(np.concatenate([times.tails_s for times in columns], axis=2))[:, :, ::-1]
                turn_s = min(self._chains[part.kind].round_trip_s(part.stage) for part in parts)
                found.append((spot, Limited(HeadsAndTails(heads_s, tails_s), alone, [turn_s])))
        raised = raise_by_memory([task for _, task in found])
        return [Machine(spot, _queues(task.chain, times)) for (spot, task), times in zip(found, raised, strict=True)]

    def _alone(self, part: RouteJobs) -> Chain:
        return self._chains[part.kind].at_stage(part.stage)


def _queues(chain: Chain, times: HeadsAndTails) -> list[Queue]:
    """The operations of a chain of one stage, without those that need not end."""
    durations_s = (*chain.forward_s, *chain.backward_s, *chain.weight_s)
    heads_s, tails_s = times.heads_s[:, 0], times.tails_s[:, 0]
    kinds = [kind for kind in range(KINDS) if tails_s[kind, 0] > -inf and (kind != WEIGHT or chain.split[0])]
    return [Queue(heads_s[kind], durations_s[kind], tails_s[kind]) for kind in kinds]
