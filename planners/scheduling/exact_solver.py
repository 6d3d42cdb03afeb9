"""The Protocol of exact solvers, and what an attempt of one comes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from math import ceil, floor, lcm
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from ...schemas.check import ROUNDING
from .one_machine import identical_jobs
from .problem import BACKWARD, FORWARD, KINDS, WEIGHT, Orders, Problem
from .retime import value_s

if TYPE_CHECKING:
    from .problem import Flags, Floats, Ints


@dataclass(frozen=True)
class Attempt:
    """What a solver came to.

    Attributes:
        orders: better orders than those it started from, as operation codes; None where it found none.
        bound_s: a value that it proved no orders to beat, in s; 0 where it proved nothing.
        status: "optimal" where the better of start and `orders` is proven optimal, "limit" where time ran out,
            "interrupted" where Ctrl-C ended it, with the best until then.
        solver: the solver and its version, such as "CP-SAT 9.15".
    """

    orders: Orders | None
    bound_s: float
    status: Literal["optimal", "limit", "interrupted"]
    solver: str


class ExactSolver(Protocol):
    """Searches all orders of a problem, from given ones, until a proof or a time limit.

    Attributes:
        most_operations: of larger problems it proves nothing.
    """

    most_operations: int

    def improve(self, problem: Problem, start: Orders, bound_s: float, *, time_limit_s: float, seed: int) -> Attempt:
        """Look for better orders than `start`.

        Args:
            problem: what to order, and whether its makespan or its period counts.
            start: valid orders.
            bound_s: a proven lower bound on the objective, in s.
            time_limit_s: seconds after which the best so far is returned.
            seed: of the solver's random choices.

        Raises:
            InvalidInputError: the solver is not installed.
        """
        ...


# Precedences between numbered operations: arcs, their order, and the longest paths along them.


Arc = tuple[int, int, int]  # (earlier, later, lag): least time from the end of one operation to the start of another


def earliest(durations: Sequence[int], arcs: Iterable[Arc]) -> list[int]:
    """Earliest starts of operations under arcs.

    Raises:
        ValueError: the arcs form a ring.
    """
    followers = followers_of(len(durations), arcs)
    starts = [0] * len(durations)
    for earlier in topological(followers, durations):
        for later, lag in followers[earlier]:
            starts[later] = max(starts[later], starts[earlier] + durations[earlier] + lag)
    return starts


def topological(followers: Sequence[Sequence[tuple[int, int]]], preference: Sequence[int]) -> list[int]:
    """An order of operations that keeps all arcs; of those that may come next, the least by `preference` does.

    Args:
        followers: of each operation, the (later operation, lag) of its arcs.
        preference: of each operation.

    Raises:
        ValueError: the arcs form a ring.
    """
    missing = [0] * len(followers)
    for later, _ in chain.from_iterable(followers):
        missing[later] += 1
    ready = [(preference[o], o) for o, count in enumerate(missing) if count == 0]
    heapify(ready)
    found = []
    while ready:
        found.append(heappop(ready)[1])
        for later, _ in followers[found[-1]]:
            missing[later] -= 1
            if missing[later] == 0:
                heappush(ready, (preference[later], later))
    if len(found) < len(followers):
        raise ValueError("the arcs form a ring")
    return found


def followers_of(count: int, arcs: Iterable[Arc]) -> list[list[tuple[int, int]]]:
    """The (later operation, lag) of the arcs that leave each of `count` operations."""
    followers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for earlier, later, lag in arcs:
        followers[earlier].append((later, lag))
    return followers


# A problem in whole numbers, as exact solvers take it: operations, precedences with lags, memory, overheads.
#
# Identical micro-batches, those with the same executors, delays and backward split, pass every stage first in, first
# out. That loses nothing: sorting the starts of each of their operations relabels any schedule into such a one with the
# same times and the same memory, for the l-th end at a stage cannot come after the l-th start at the next.


class MemoryUse(NamedTuple):
    """A micro-batch on a worker: it holds its activation from F to the end of I (or B), then its stash to that of W.

    Attributes:
        forward, backward, weight: numbers of the operations; None where there is no W.
        activation, stash: in units of memory.
    """

    forward: int
    backward: int
    weight: int | None
    activation: int
    stash: int


@dataclass(frozen=True)
class Memory:
    """All that a worker holds at some time, and the most that it may hold at once."""

    held: tuple[MemoryUse, ...]
    limit: int


@dataclass(frozen=True)
class ObjectiveGroup:
    """What the objective measures of one group of workers: from its first start over its last end.

    Attributes:
        operations: all of the group's.
        firsts, lasts: the first and the last operations of identical micro-batches.
        from_zero: whether it is measured from 0, as always for the makespan.
        overhead: what follows the last end (all-reduce, optimizer step).
    """

    operations: tuple[int, ...]
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    from_zero: bool
    overhead: int


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem in whole numbers. Operations are numbered such that every arc leads to a higher number.

    Attributes:
        staggered: whether the period counts, or the makespan.
        group: of each worker, that whose windows are one.
        from_zero: the groups whose first operations start at 0, so that also their windows are measured from there.
        unit_s: seconds of one unit of time.
        exact: whether all times are multiples of the unit; else they were rounded down.
        workers, codes, durations: of each operation.
        messages: arcs that every schedule keeps: from stage to stage, I after F, W after I.
        implied: arcs that some best schedule keeps besides: FIFO of identical micro-batches, and memory.
        chains: the operations of one kind at one stage of identical micro-batches, in FIFO order.
        overheads: of each group of workers what follows its last end (all-reduce, optimizer step).
        memory: of each worker whose limit can bind.
    """

    staggered: bool
    group: tuple[int, ...]
    from_zero: frozenset[int]
    unit_s: float
    exact: bool
    workers: tuple[int, ...]
    codes: tuple[int, ...]
    durations: tuple[int, ...]
    messages: tuple[Arc, ...]
    implied: tuple[Arc, ...]
    chains: tuple[tuple[int, ...], ...]
    overheads: dict[int, int]
    memory: dict[int, Memory]

    @cached_property
    def arcs(self) -> tuple[Arc, ...]:
        """All arcs."""
        return self.messages + self.implied

    @cached_property
    def number(self) -> dict[tuple[int, int], int]:
        """The number of an operation, by its worker and code."""
        return {place: o for o, place in enumerate(zip(self.workers, self.codes, strict=True))}

    @cached_property
    def operations_of(self) -> dict[int, list[int]]:
        """The operations of each worker that has any."""
        found: dict[int, list[int]] = {}
        for operation, worker in enumerate(self.workers):
            found.setdefault(worker, []).append(operation)
        return found

    @cached_property
    def windows(self) -> tuple[ObjectiveGroup, ...]:
        """One for each group: the objective is the largest of them."""
        return tuple(self._window(group, overhead) for group, overhead in self.overheads.items())

    def _window(self, group: int, overhead: int) -> ObjectiveGroup:
        chains = [members for members in self.chains if self.group[self.workers[members[0]]] == group]
        kinds = [self.codes[members[0]] % KINDS for members in chains]
        return ObjectiveGroup(
            operations=tuple(operation for members in chains for operation in members),
            firsts=tuple(members[0] for members, kind in zip(chains, kinds, strict=True) if kind == FORWARD),
            lasts=tuple(members[-1] for members in chains if self.ends_microbatch(members[-1])),
            from_zero=not self.staggered or group in self.from_zero,
            overhead=overhead,
        )

    def ends_microbatch(self, operation: int) -> bool:
        """Whether an operation is the last of its micro-batch on its worker: W, or B."""
        code = self.codes[operation]
        following = (self.workers[operation], code - code % KINDS + WEIGHT)
        return code % KINDS == WEIGHT or (code % KINDS == BACKWARD and following not in self.number)

    def value(self, starts: Sequence[int]) -> int:
        """The makespan or period of given starts, in units."""
        longest = 0
        for window in self.windows:
            end = max((starts[o] + self.durations[o] for o in window.operations), default=0)
            begin = 0 if window.from_zero else min(starts[o] for o in window.operations)
            longest = max(longest, end - begin + window.overhead)
        return longest

    def most(self, starts: Sequence[int], value_s: float) -> int:
        """What all schedules stay below that are no worse than given starts, and those that are no worse than a value.

        Args:
            starts: a schedule of the instance, in units.
            value_s: the makespan or period that schedules of the problem have at most, in s.
        """
        return self.value(starts) if self.exact else max(self.value(starts), floor(value_s / self.unit_s) + 1)

    def least(self, bound_s: float) -> int:
        """A proven bound in s as one in units; rounded up where times are exact, for all values are whole there."""
        units = bound_s / self.unit_s
        return ceil(units * (1 - ROUNDING / 2)) if self.exact else floor(units)

    def bound_s(self, units: float) -> float:
        """What a bound on the instance, in units, proves of the problem, in s."""
        # Starts rounded down may make a window up to one unit longer than the real one.
        stretched = self.staggered and not self.exact
        return max(0.0, (units - stretched) * self.unit_s)

    def starts(self, orders: Orders) -> list[int]:
        """Starts of given orders as soon as possible, handed on in FIFO order, in units.

        Raises:
            ValueError: the orders deadlock.
        """
        rows = [[self.number[worker, code] for code in order] for worker, order in enumerate(orders)]
        found = earliest(self.durations, (*self.messages, *((a, b, 0) for row in rows for a, b in pairwise(row))))
        for members in self.chains:
            for operation, start in zip(members, sorted(found[o] for o in members), strict=True):
                found[operation] = start
        return found

    def orders(self, starts: Sequence[float]) -> Orders:
        """The orders of given starts.

        Of operations that start at once those without duration come first, and among them the numbers decide: they
        follow the arcs, so that the orders do not deadlock.
        """
        rows: list[list[int]] = [[] for _ in self.group]
        ends = [start + duration for start, duration in zip(starts, self.durations, strict=True)]
        for operation in sorted(range(len(starts)), key=lambda o: (starts[o], ends[o], o)):
            rows[self.workers[operation]].append(self.codes[operation])
        return rows


# What is decided about the order of operations once a value is to be reached, and what is left to decide.
#
# The arcs of an instance and their transitive closure decide many pairs of operations of a worker. An upper bound
# decides more: a window of the objective has room for so much only, and a pair that fits into it in one order alone has
# this one. Decided pairs raise heads and tails, and so it goes on until nothing changes (J. Carlier and E. Pinson, "An
# algorithm for solving the job-shop problem", Management Science 35, 1989: immediate selection).


Pair = tuple[int, int]
NEVER = -(2**60)  # the head or tail of an operation without a path from, or to, a frame


class Precedences:
    """Decided and undecided pairs of an instance, for schedules of at most `most` units.

    Heads and tails are measured in frames: the makespan has one, from 0 to the end of all, the period has one for each
    window. A head is the least time from the frame's begin to an operation's start, a tail that from its end to the
    frame's, with the overhead of the window in it; NEVER where no path leads there.

    Attributes:
        arcs: those of the instance, and decided pairs that do not follow from them.
        undecided: pairs of operations of one worker that may come in either order, each once.
        before: whether an operation comes before another, `operations x operations`.
        frame: of each operation, that of its window.
        heads, tails: `frames x operations`, in units.
    """

    def __init__(self, instance: Instance, most: int) -> None:
        self.instance, self.most = instance, most
        self.arcs: list[Arc] = list(instance.arcs)
        self.undecided: list[Pair] = []
        self._members = [np.array(members) for members in instance.operations_of.values()]
        self._workmates = {o: members for members in self._members for o in members.tolist()}
        self._durations: Ints = np.array(instance.durations)
        self.frame = np.zeros(len(instance.codes), dtype=np.int64)
        # Heads and tails of each operation on its own.
        staggered, windows = self.instance.staggered, self.instance.windows
        shape = len(windows) if staggered else 1, len(self.frame)
        heads, tails = np.full(shape, NEVER), np.full(shape, NEVER)
        for number, window in enumerate(windows):
            operations = list(window.operations)
            frame = number if staggered else 0
            self.frame[operations] = frame
            heads[frame, operations] = 0
            tails[frame, operations] = window.overhead
        self._own_heads, self._own_tails = heads, tails
        self._measure()
        while decided := list(self._decide()):
            self.arcs += decided
            self._measure()

    def slack(self, earlier: int, later: int) -> int:
        """How much the later operation can start before the end of the earlier one if their order is the other."""
        return int((self.most - self.tails[:, earlier] - self.heads[:, later]).min())

    def following(self, members: Sequence[int]) -> dict[int, list[int]]:
        """Which of some operations come directly after each of them, with none of them in between."""
        known = self.before[np.ix_(members, members)]
        direct = known & ~(known.astype(np.float32) @ known.astype(np.float32) > 0)
        return {one: [members[j] for j in np.flatnonzero(direct[i]).tolist()] for i, one in enumerate(members)}

    def _measure(self) -> None:
        """Closure, heads and tails under the arcs."""
        count = len(self.frame)
        after = followers_of(count, self.arcs)
        order = topological(after, range(count))
        self.before: Flags = np.zeros((count, count), dtype=np.bool_)
        for operation in reversed(order):
            for later, _ in after[operation]:
                self.before[operation] |= self.before[later]
                self.before[operation, later] = True
        reversed_ = followers_of(count, [(b, a, lag) for a, b, lag in self.arcs])
        self.heads = self._longest(self._own_heads, order, after, self.before)
        self.tails = self._longest(self._own_tails, order[::-1], reversed_, self.before.T)

    def _longest(
        self, own: Ints, order: Sequence[int], followers: Sequence[Sequence[tuple[int, int]]], before: Flags
    ) -> Ints:
        """Longest paths from the frames, on which what comes before an operation on its worker goes one by one."""
        found = own.copy()
        for operation in order:
            mates, frame = self._workmates[operation], self.frame[operation]
            earlier = mates[before[mates, operation]]
            # When those are done, one by one, each when it is ready or later.
            ready = found[frame, earlier]
            done = NEVER
            if len(ready):
                by_ready = np.argsort(ready, kind="stable")
                left = np.cumsum(self._durations[earlier][by_ready][::-1])[::-1]
                done = int((ready[by_ready] + left).max())
            found[frame, operation] = max(found[frame, operation], done)
            leaving = found[:, operation] + self._durations[operation]
            for later, lag in followers[operation]:
                found[:, later] = np.maximum(found[:, later], leaving + lag)
        return found

    def _decide(self) -> Iterator[Arc]:
        """The pairs that fit in one order only; the others become the undecided ones."""
        self.undecided = []
        for members in self._members:
            known = self.before[np.ix_(members, members)]
            # Whether one operation can come before another as far as room goes, `members x members`.
            lengths = self._durations[members]
            fits = np.ones((len(members), len(members)), dtype=np.bool_)
            for heads, tails in zip(self.heads[:, members], self.tails[:, members], strict=True):
                fits &= (heads + lengths)[:, None] + (lengths + tails)[None, :] <= self.most
            for i, j in np.argwhere(np.triu(~(known | known.T), 1)).tolist():
                a, b = int(members[i]), int(members[j])
                if fits[i, j] and fits[j, i]:
                    self.undecided.append((a, b))
                else:
                    yield (a, b, 0) if fits[i, j] else (b, a, 0)


# From a problem in floats to an instance in whole numbers.
#
# Times are counted in a unit that all of them are multiples of, where there is one; then the solver's values are those
# of the problem. Otherwise they are rounded down to a grid so fine that it costs less than `ROUNDING`: no orders take
# longer in the instance than in the problem, so what is proven of the instance bounds the problem. Bytes are counted
# such that whatever fits into the problem's memory fits into the instance's.


FLOAT_ERROR = 4e-15  # relative error that a few operations on floats may make
GRID = 2**40  # units of the horizon where no unit divides all times; a thousand roundings down are less than ROUNDING
LARGEST_DENOMINATOR = 10**6  # of one time as a fraction of another
LARGEST_RATIO = 1000  # of bytes: what a solver counts memory in may not be much smaller than an activation


def instance_of(problem: Problem, horizon_s: float) -> Instance:
    """A problem in whole numbers.

    Args:
        problem: what to order.
        horizon_s: a value that orders of it reach, in s.
    """
    costs, staggered = problem.workers, problem.staggered
    table = InstanceTable(problem.hop_s, *unit_of(_times_s(problem), horizon_s))
    for job, depth in enumerate(problem.depth[problem.origin].tolist()):
        for stage in range(depth):
            worker, split = int(problem.executor[job, stage]), bool(problem.split[job, stage])
            seconds = [costs.forward_s[worker], problem.backward_s(worker, split), costs.weight_s[worker]]
            for kind in [FORWARD, BACKWARD, WEIGHT] if split else [FORWARD, BACKWARD]:
                table.add((job, stage, kind), worker, KINDS * job + kind, seconds[kind])
    # What follows the last end of each group that has operations or, for the makespan, a live worker.
    groups = costs.group[table.workers if staggered else costs.live]
    step_s = costs.optimizer_s[costs.live].max(initial=0.0)
    overheads_s = {}
    for group in sorted(set(groups.tolist())):
        mine = costs.live & (costs.group == group)
        overheads_s[group] = costs.allreduce_s[mine].max(), costs.optimizer_s[mine].max() if staggered else step_s
    return table.instance(
        staggered=staggered,
        group=costs.group.tolist(),
        overheads_s=overheads_s,
        classes=identical_jobs(problem.executor, problem.split, problem.hop_s),
        rooms=_rooms(problem),
    )


def unit_of(times_s: Iterable[float], horizon_s: float) -> tuple[float, bool]:
    """The unit in s that times are counted in up to a horizon, and whether they are multiples of it."""
    unit_s = common_unit(times_s, horizon_s / GRID)
    return unit_s or horizon_s / GRID, unit_s is not None


def common_unit(values: Iterable[float], least: float) -> float | None:
    """The largest number of which all values are multiples, up to the rounding of floats.

    Args:
        values: zeros among them are multiples of anything.
        least: what the unit may not be smaller than.

    Returns:
        The unit, or None where it is too small.
    """
    positive = sorted({value for value in values if value > 0})
    if not positive:
        return 1.0
    parts = 1
    for value in positive:
        quotient = value / positive[0]
        fraction = Fraction(quotient).limit_denominator(LARGEST_DENOMINATOR)
        parts = lcm(parts, fraction.denominator)
        if abs(fraction / Fraction(quotient) - 1) > FLOAT_ERROR or positive[0] / parts < least:
            return None
    return positive[0] / parts


def _times_s(problem: Problem) -> Iterator[float]:
    """Every time in s that a value is a sum of."""
    workers = problem.workers
    for number, jobs in enumerate(problem.jobs_of):
        if jobs:
            yield float(workers.forward_s[number])
            yield from {problem.backward_s(number, bool(split)) for split in _splits(problem, number)}
            if _splits(problem, number).any():
                yield float(workers.weight_s[number])
    yield from problem.hop_s.ravel().tolist()
    yield from workers.allreduce_s[workers.live].tolist()
    yield from workers.optimizer_s[workers.live].tolist()


def _splits(problem: Problem, worker: int) -> Flags:
    """Whether the backward of each job of a worker is split."""
    found: Flags = problem.split[list(problem.jobs_of[worker]), int(problem.workers.stage[worker])]
    return found


@dataclass(frozen=True)
class Room:
    """What a worker's memory admits, in units: of each of its stages activation and stash, and the limit."""

    sizes: dict[int, tuple[int, int]]
    limit: int


class InstanceTable:
    """The operations of a problem before they are numbered: `cells` holds them by job, stage and kind.

    Args:
        hop_s: of each job from each stage to the next.
        unit_s: seconds of one unit.
        exact: whether all times are multiples of it.
    """

    def __init__(self, hop_s: Floats, unit_s: float, exact: bool) -> None:
        self.hop_s, self.unit_s, self.exact = hop_s, unit_s, exact
        self.cells: dict[tuple[int, int, int], int] = {}
        self.workers: list[int] = []
        self.codes: list[int] = []
        self.durations: list[int] = []

    def add(self, cell: tuple[int, int, int], worker: int, code: int, seconds: float) -> None:
        """Add an operation of a job, stage and kind."""
        self.cells[cell] = len(self.workers)
        self.workers.append(worker)
        self.codes.append(code)
        self.durations.append(self.whole(seconds))

    def whole(self, seconds: float) -> int:
        """A time in units: exactly, or rounded down."""
        units = float(seconds) / self.unit_s
        return round(units) if self.exact else floor(units)

    def instance(
        self,
        *,
        staggered: bool,
        group: Sequence[int],
        overheads_s: Mapping[int, tuple[float, float]],
        classes: Sequence[Sequence[int]],
        rooms: Mapping[int, Room],
    ) -> Instance:
        """The instance, its operations numbered along the arcs; of those that may come next, W and I go before F.

        Args:
            staggered: whether the period counts.
            group: of each worker.
            overheads_s: of each group, all-reduce and optimizer step.
            classes: identical jobs, in rank order.
            rooms: of each worker whose limit can bind.
        """
        # The operations of each stage and kind of identical jobs.
        places = sorted({(stage, kind) for _, stage, kind in self.cells})
        chains = [
            tuple(self.cells[job, stage, kind] for job in jobs)
            for jobs in classes
            for stage, kind in places
            if (jobs[0], stage, kind) in self.cells
        ]
        messages = list(self._messages())
        implied = [(a, b, 0) for members in chains for a, b in pairwise(members)]
        implied += [arc for jobs in classes for arc in self._memory_arcs(jobs, rooms)]
        kinds = [kind for _, _, kind in self.cells]
        order = topological(followers_of(len(kinds), messages + implied), [-kind for kind in kinds])
        new = {old: number for number, old in enumerate(order)}
        firsts = [self.workers[operation] for (_, stage, _), operation in self.cells.items() if stage == 0]
        return Instance(
            staggered=staggered,
            group=tuple(group),
            from_zero=frozenset(group[worker] for worker in firsts),
            unit_s=self.unit_s,
            exact=self.exact,
            workers=tuple(self.workers[old] for old in order),
            codes=tuple(self.codes[old] for old in order),
            durations=tuple(self.durations[old] for old in order),
            messages=tuple((new[a], new[b], lag) for a, b, lag in messages),
            implied=tuple((new[a], new[b], lag) for a, b, lag in implied),
            chains=tuple(tuple(new[old] for old in members) for members in chains),
            overheads={number: self.whole(a) + self.whole(b) for number, (a, b) in overheads_s.items()},
            memory=self._memory(rooms, new),
        )

    def _messages(self) -> Iterator[Arc]:
        """From stage to stage, from F to I or B at the last one, from I to W."""
        cells, hop_s = self.cells, self.hop_s
        for (job, stage, kind), operation in cells.items():
            last = (job, stage + 1, FORWARD) not in cells
            if kind == WEIGHT:
                yield cells[job, stage, BACKWARD], operation, 0
            elif last and kind == BACKWARD:
                yield cells[job, stage, FORWARD], operation, 0
            elif kind == BACKWARD:
                yield cells[job, stage + 1, BACKWARD], operation, self.whole(hop_s[job, stage])
            elif not last:
                yield operation, cells[job, stage + 1, FORWARD], self.whole(hop_s[job, stage])

    def _memory_arcs(self, jobs: Sequence[int], rooms: Mapping[int, Room]) -> Iterator[Arc]:
        """What must have ended before a further F for the identical jobs alone to fit, at each stage.

        Before the l-th F starts, at most `most` others are whole, and so many are stashed at most even if none is.
        """
        for (job, stage, kind), operation in self.cells.items():
            room = rooms.get(self.workers[operation])
            if job == jobs[0] and kind == FORWARD and room is not None:
                activation, stash = room.sizes[stage]
                frees = [(BACKWARD, room.limit // activation)] if activation else []
                if (job, stage, WEIGHT) in self.cells and stash:
                    frees.append((WEIGHT, (room.limit - activation) // stash + 1))
                for freeing, most in frees:
                    for earlier, later in zip(jobs, jobs[most:], strict=False):
                        yield self.cells[earlier, stage, freeing], self.cells[later, stage, FORWARD], 0

    def _memory(self, rooms: Mapping[int, Room], new: Mapping[int, int]) -> dict[int, Memory]:
        """What each of these workers holds, by the new numbers of operations."""
        held: dict[int, list[MemoryUse]] = {worker: [] for worker in rooms}
        for (job, stage, kind), forward in self.cells.items():
            worker = self.workers[forward]
            if kind == FORWARD and worker in rooms:
                backward, weight = self.cells[job, stage, BACKWARD], self.cells.get((job, stage, WEIGHT))
                last = None if weight is None else new[weight]
                held[worker].append(MemoryUse(new[forward], new[backward], last, *rooms[worker].sizes[stage]))
        return {worker: Memory(tuple(held[worker]), room.limit) for worker, room in rooms.items()}


def _rooms(problem: Problem) -> dict[int, Room]:
    """The memory of every worker whose limit can bind, counted so that nothing that fits is shut out."""
    workers, found = problem.workers, {}
    for worker, jobs in enumerate(problem.jobs_of):
        activation, stash = float(workers.activation_bytes[worker]), float(workers.stash_bytes[worker])
        limit = float(workers.limit_bytes[worker]) * (1 + ROUNDING)
        if len(jobs) * activation > limit:
            ratio = Fraction(stash / activation).limit_denominator(LARGEST_RATIO)
            most = 0
            for whole in range(1, int(limit // activation) + 1):
                stashed = int((limit - whole * activation) // stash) if stash else 0
                most = max(most, whole * ratio.denominator + min(stashed, len(jobs) - whole) * ratio.numerator)
            found[worker] = Room({int(workers.stage[worker]): (ratio.denominator, ratio.numerator)}, most)
    return found


# The best that a solver has so far: orders that are checked and timed exactly, and what is proven.


class BestOrders:
    """The best orders and the bound, both in s and both only ever better.

    Args:
        measured_s: the makespan, or period, of complete orders.
        kept: whether they keep all limits.
        start: valid orders to begin with.
    """

    def __init__(self, measured_s: Callable[[Any], float], kept: Callable[[Any], bool], start: Any) -> None:
        self._measured_s, self._kept = measured_s, kept
        self.orders: Any = None
        self.value_s = measured_s(start)
        self.bound_s = 0.0

    @property
    def proven(self) -> bool:
        """Whether nothing is better."""
        return self.value_s <= self.bound_s * (1 + ROUNDING)

    def offer(self, *candidates: Any) -> None:
        """Take complete orders, if they are valid and better."""
        for orders in candidates:
            found_s = self._measured_s(orders)
            if found_s < self.value_s and self._kept(orders):
                self.orders, self.value_s = orders, found_s

    def prove(self, bound_s: float) -> None:
        """Take a proven bound, if it is better."""
        self.bound_s = max(self.bound_s, bound_s)

    def attempt(self, ended: Literal["limit", "interrupted"], solver: str) -> Attempt:
        """What it all came to; `ended` says why the search did, where there is no proof."""
        return Attempt(self.orders, min(self.bound_s, self.value_s), "optimal" if self.proven else ended, solver)


class Best(BestOrders):
    """The best orders of a problem."""

    def __init__(self, problem: Problem, start: Orders) -> None:
        super().__init__(partial(value_s, problem), partial(keeps_limits, problem), start)
        self.problem = problem


def keeps_limits(problem: Problem, orders: Orders) -> bool:
    """Whether every worker stays within its memory limit, up to rounding, if it executes these operation codes."""
    workers = problem.workers
    for worker, order in enumerate(orders):
        codes = np.array(order, dtype=np.int64)
        split = problem.split[codes // KINDS, int(workers.stage[worker])]
        kinds = codes % KINDS
        whole = np.cumsum((kinds == FORWARD).astype(np.int64) - (kinds == BACKWARD))
        stashed = np.cumsum((split & (kinds == BACKWARD)).astype(np.int64) - (kinds == WEIGHT))
        held = whole * workers.activation_bytes[worker] + stashed * workers.stash_bytes[worker]
        if held.max(initial=0.0) > workers.limit_bytes[worker] * (1 + ROUNDING):
            return False
    return True


# Ctrl-C for solvers that run for long without coming back to Python.


POLL_S = 0.05


def run_until_interrupted(run: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Run a solver in a thread of its own, so that the main thread is free to be interrupted.

    Args:
        run: the solver; it must let go of Python's lock.
        stop: asks it to come to an end; may be called before it has begun and more than once.

    Returns:
        Whether Ctrl-C ended it.

    Raises:
        KeyboardInterrupt: a second Ctrl-C, while the solver comes to an end: it is left alone.
    """
    ended: Future[None] = Future()
    Thread(target=_record, args=(run, ended), daemon=True).start()
    interrupted = False
    try:
        _wait(ended)
    except KeyboardInterrupt:
        interrupted = True
        _wait(ended, stop)
    ended.result()
    return interrupted


def _wait(ended: Future[None], meanwhile: Callable[[], None] = lambda: None) -> None:
    """Wait for the end, and do something again and again meanwhile.

    A thread's own `join` will not do: an interrupted one takes the thread for ended (CPython 3.11, bpo-45274).
    """
    while not ended.done():
        meanwhile()
        wait([ended], timeout=POLL_S)


def _record(run: Callable[[], None], ended: Future[None]) -> None:
    try:
        run()
        ended.set_result(None)
    except BaseException as error:
        ended.set_exception(error)
