"""Lower bounds on the makespan and the period of any orders for a problem.

Argument. Take one worker. Each of its operations j cannot start before its head r_j (the longest chain of operations
and delays that must come first), lasts p_j, and is followed by a chain of at least its tail q_j before the iteration
can end. Whatever the schedule, the worker runs these operations one at a time, so the iteration is no shorter than the
best one-machine schedule of (r_j, p_j, q_j), with pre-emption. The makespan bound is the largest over all workers.

What follows a worker's last operation are the sums of gradients of its layers, part by part, the last layers first
(scheduling/sums.py). A part's sum begins no earlier than each holder's end, and no earlier than the sum of the part
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
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from .memory_bounds import Limited, fits, limit_binds, raise_by_memory
from .one_machine import Chain, HeadsAndTails, Machine, Queue, Spot, heads_and_tails, most_binding, routes_of
from .problem import KINDS, NO_WORKER, ROUNDING, WEIGHT, Problem


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


def makespan_bound(problem: Problem) -> Bound:
    """A proven lower bound on the makespan of any orders for a problem."""
    return _larger(_makespan_bound, problem)


def period_bound(problem: Problem) -> Bound:
    """A proven lower bound on the period of any orders for a problem."""
    return _larger(_period_bound, problem)


def _larger(bound: Callable[[Problem], Bound], problem: Problem) -> Bound:
    """The larger of a problem's bound and, where a worker has I and W as well as B, that with B split there too.

    Orders with B remain orders with I and W in its place: its message comes no later, it frees memory no later. So no
    orders of the problem beat that bound either, and there micro-batches are alike that are not in the problem.
    """
    found = bound(problem)
    split = np.bincount(problem.executor[problem.split], minlength=len(problem.job_counts))
    mixed = (split > 0) & (split < problem.job_counts)
    if not mixed.any():
        return found
    apart = bound(replace(problem, split=problem.split | (mixed[problem.executor] & (problem.executor != NO_WORKER))))
    unlimited_s = max(found.unlimited_s, apart.unlimited_s)
    return replace(max(found, apart, key=lambda b: b.value_s), unlimited_s=unlimited_s)


def _makespan_bound(problem: Problem) -> Bound:
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
    return _largest(problem, machines, step_s)


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
