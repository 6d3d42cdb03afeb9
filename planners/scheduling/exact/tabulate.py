"""From a problem in floats to an instance in whole numbers.

Times are counted in a unit that all of them are multiples of, where there is one; then the solver's values are those of
the problem. Otherwise they are rounded down to a grid so fine that it costs less than `ROUNDING`: no orders take longer
in the instance than in the problem, so what is proven of the instance bounds the problem. Bytes are counted such that
whatever fits into the problem's memory fits into the instance's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import floor, lcm
from typing import TYPE_CHECKING

from ....schemas.check import ROUNDING
from ..bounds.chains import identical_jobs
from ..problem import BACKWARD, FORWARD, KINDS, WEIGHT, Problem
from .arcs import Arc, followers_of, topological
from .instance import Instance, Memory

if TYPE_CHECKING:
    from ..problem import Flags

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
    unit_s = common_unit(_times_s(problem), horizon_s / GRID)
    table = _Table(problem, unit_s or horizon_s / GRID, unit_s is not None)
    return table.instance()


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


class _Table:
    """The operations of a problem before they are numbered: `cells` holds them by job, stage and kind."""

    def __init__(self, problem: Problem, unit_s: float, exact: bool) -> None:
        self.problem, self.unit_s, self.exact = problem, unit_s, exact
        self.cells: dict[tuple[int, int, int], int] = {}
        self.workers: list[int] = []
        self.durations: list[int] = []
        for job, depth in enumerate(problem.depth[problem.origin].tolist()):
            for stage in range(depth):
                self._add(job, stage, int(problem.executor[job, stage]), bool(problem.split[job, stage]))

    def _add(self, job: int, stage: int, worker: int, split: bool) -> None:
        costs = self.problem.workers
        seconds = [costs.forward_s[worker], self.problem.backward_s(worker, split), costs.weight_s[worker]]
        for kind in [FORWARD, BACKWARD, WEIGHT] if split else [FORWARD, BACKWARD]:
            self.cells[job, stage, kind] = len(self.workers)
            self.workers.append(worker)
            self.durations.append(self.whole(seconds[kind]))

    def whole(self, seconds: float) -> int:
        """A time in units: exactly, or rounded down."""
        units = float(seconds) / self.unit_s
        return round(units) if self.exact else floor(units)

    def instance(self) -> Instance:
        """The instance, its operations numbered along the arcs; of those that may come next, W and I go before F."""
        memory = _memory(self.problem)
        classes = identical_jobs(self.problem)
        chains = [members for jobs in classes for members in self._chains(jobs)]
        messages = list(self._messages())
        implied = [(a, b, 0) for members in chains for a, b in pairwise(members)]
        implied += [arc for jobs in classes for arc in self._memory_arcs(jobs, memory)]
        kinds = [kind for _, _, kind in self.cells]
        order = topological(followers_of(len(kinds), messages + implied), [-kind for kind in kinds])
        new = {old: number for number, old in enumerate(order)}
        codes = [KINDS * job + kind for job, _, kind in self.cells]
        return Instance(
            problem=self.problem,
            unit_s=self.unit_s,
            exact=self.exact,
            workers=tuple(self.workers[old] for old in order),
            codes=tuple(codes[old] for old in order),
            durations=tuple(self.durations[old] for old in order),
            messages=tuple((new[a], new[b], lag) for a, b, lag in messages),
            implied=tuple((new[a], new[b], lag) for a, b, lag in implied),
            chains=tuple(tuple(new[old] for old in members) for members in chains),
            overheads=self._overheads(),
            memory=memory,
        )

    def _messages(self) -> Iterator[Arc]:
        """From stage to stage, from F to I or B at the last one, from I to W."""
        cells, hop_s = self.cells, self.problem.hop_s
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

    def _chains(self, jobs: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """The operations of each stage and kind of identical jobs."""
        for stage, kind in product(range(self._depth(jobs)), range(KINDS)):
            if (jobs[0], stage, kind) in self.cells:
                yield tuple(self.cells[job, stage, kind] for job in jobs)

    def _memory_arcs(self, jobs: Sequence[int], memory: dict[int, Memory]) -> Iterator[Arc]:
        """What must have ended before a further F for the identical jobs alone to fit, at each stage.

        Before the l-th F starts, at most `most` others are whole, and so many are stashed at most even if none is.
        """
        for stage in range(self._depth(jobs)):
            held = memory.get(int(self.problem.executor[jobs[0], stage]))
            if held is not None:
                frees = [(BACKWARD, held.limit // held.activation)]
                if self.problem.split[jobs[0], stage] and held.stash:
                    frees.append((WEIGHT, (held.limit - held.activation) // held.stash + 1))
                for kind, most in frees:
                    for earlier, later in zip(jobs, jobs[most:], strict=False):
                        yield self.cells[earlier, stage, kind], self.cells[later, stage, FORWARD], 0

    def _depth(self, jobs: Sequence[int]) -> int:
        return int(self.problem.depth[self.problem.origin[jobs[0]]])

    def _overheads(self) -> dict[int, int]:
        """What follows the last end of each group that has operations or, for the makespan, a live worker."""
        workers, staggered = self.problem.workers, self.problem.staggered
        groups = workers.group[self.workers if staggered else workers.live]
        step_s = workers.optimizer_s[workers.live].max(initial=0.0)
        found = {}
        for group in sorted(set(groups.tolist())):
            mine = workers.live & (workers.group == group)
            own_s = workers.optimizer_s[mine].max() if staggered else step_s
            found[group] = self.whole(workers.allreduce_s[mine].max()) + self.whole(own_s)
        return found


def _memory(problem: Problem) -> dict[int, Memory]:
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
            found[worker] = Memory(ratio.denominator, ratio.numerator, most)
    return found
