"""A problem in whole numbers, as exact solvers take it: operations, precedences with lags, memory, overheads.

Identical micro-batches, those with the same executors, delays and backward split, pass every stage first in, first out.
That loses nothing: sorting the starts of each of their operations relabels any schedule into such a one with the same
times and the same memory, for the l-th end at a stage cannot come after the l-th start at the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil, floor

from ....schemas.check import ROUNDING
from ..problem import BACKWARD, FORWARD, KINDS, WEIGHT, Orders, Problem
from .arcs import Arc, earliest


@dataclass(frozen=True)
class Memory:
    """What a micro-batch holds on a worker between F and I (or B), between I and W, and the most that may be held."""

    activation: int
    stash: int
    limit: int


@dataclass(frozen=True)
class Window:
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
        problem: what it was made from.
        unit_s: seconds of one unit of time.
        exact: whether all times are multiples of the unit; else they were rounded down.
        workers, codes, durations: of each operation.
        messages: arcs that every schedule keeps: from stage to stage, I after F, W after I.
        implied: arcs that some best schedule keeps besides: FIFO of identical micro-batches, and memory.
        chains: the operations of one kind at one stage of identical micro-batches, in FIFO order.
        overheads: of each group of workers what follows its last end (all-reduce, optimizer step).
        memory: of each worker whose limit can bind.
    """

    problem: Problem
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
    def windows(self) -> tuple[Window, ...]:
        """One for each group: the objective is the largest of them."""
        return tuple(self._window(group, overhead) for group, overhead in self.overheads.items())

    def _window(self, group: int, overhead: int) -> Window:
        held = self.problem.workers
        chains = [members for members in self.chains if held.group[self.workers[members[0]]] == group]
        kinds = [self.codes[members[0]] % KINDS for members in chains]
        stages = {int(held.stage[self.workers[members[0]]]) for members in chains}
        return Window(
            operations=tuple(operation for members in chains for operation in members),
            firsts=tuple(members[0] for members, kind in zip(chains, kinds, strict=True) if kind == FORWARD),
            lasts=tuple(members[-1] for members in chains if self.ends_microbatch(members[-1])),
            from_zero=not self.problem.staggered or 0 in stages,
            overhead=overhead,
        )

    def ends_microbatch(self, operation: int) -> bool:
        """Whether an operation is the last of its micro-batch on its worker: W, or B."""
        code = self.codes[operation]
        following = (self.workers[operation], code - code % KINDS + WEIGHT)
        return code % KINDS == WEIGHT or (code % KINDS == BACKWARD and following not in self.number)

    def value(self, starts: Sequence[int]) -> int:
        """The makespan or period of given starts, in units."""
        return max((self._value(window, starts) for window in self.windows), default=0)

    def _value(self, window: Window, starts: Sequence[int]) -> int:
        end = max((starts[o] + self.durations[o] for o in window.operations), default=0)
        begin = 0 if window.from_zero else min(starts[o] for o in window.operations)
        return end - begin + window.overhead

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
        stretched = self.problem.staggered and not self.exact
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
        rows: list[list[int]] = [[] for _ in self.problem.workers.stage]
        ends = [start + duration for start, duration in zip(starts, self.durations, strict=True)]
        for operation in sorted(range(len(starts)), key=lambda o: (starts[o], ends[o], o)):
            rows[self.workers[operation]].append(self.codes[operation])
        return rows
