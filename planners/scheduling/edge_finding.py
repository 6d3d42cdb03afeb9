"""A destructive lower bound: which makespans propagation refutes.

Suppose a makespan of T. Every operation then has a head (it cannot start earlier) and a tail (what must follow it), and
must fit between head and T - tail. Heads and tails grow along the dependencies, the FIFO of identical micro-batches and
the memory gates, and by edge-finding on each worker (J. Carlier and E. Pinson, "Adjustment of heads and tails for the
job-shop problem", EJOR 78, 1994; in the quadratic form of P. Baptiste, C. Le Pape and W. Nuijten, "Constraint-Based
Scheduling", 2001, section 2.3.2): if a set of operations and one more cannot all end in time unless that one comes
last, it comes last. When something does not fit, no schedule has makespan T, so T is a lower bound (R. Klein and
A. Scholl, "Computing lower bounds by destructive improvement", EJOR 112, 1999).

Memory gates: with `whole` micro-batches between F and I, and `stashed` ones between I and W, a worker holds
whole * A + stashed * G. Where all its jobs are identical, and so in FIFO, F of its job k (from 0) comes after the I of
job b - 1, with b the least count for which (k + 1 - b) * A fits, as even with every W done that many I must be; and
after the W of job w - 1, with w the least count for which A + (k - w) * G fits, as even with every I done so many W
must be.

Arrays over operations stand at `3 * (job * stages + stage) + kind`.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from .forms import Form, pays
from .lower_bound import NO_ROOM, Limited, limit_binds, raise_by_memory, stash_room
from .one_machine import Route, heads_and_tails, routes_of
from .problem import BACKWARD, FORWARD, KINDS, WEIGHT, Problem

INFINITY = float("inf")
NONE = -1
F, I, W = 0, 1, 2  # noqa: E741 - the field's letters; I stands for B too, where the backward is not split
# Sums of the same times in another order differ by less than this, relatively.
ROUNDING = 1e-10
# Bisection stops when it knows the greatest refuted makespan this well, relatively.
PRECISION = 1e-6
# Edge-finding is quadratic in the operations of a worker, and quick below this many in all.
MOST_OPERATIONS = 20_000
# Plain Python takes up to so large a sum of squares while the machine code is loaded.
INTERPRETED_STEPS = 20_000


class Refuter:
    """A problem made ready to test makespans; it remembers what it found out.

    Args:
        problem: what is ordered. Of a period nothing is refuted, nor of problems beyond `MOST_OPERATIONS`.
    """

    def __init__(self, problem: Problem) -> None:
        self._refuted_s, self._open_s = 0.0, INFINITY
        self._able = not problem.staggered and problem.operations <= MOST_OPERATIONS
        self._problem = problem

    def bound_s(self, below_s: float, value_s: float) -> float:
        """The greatest makespan that propagation refutes, as a lower bound.

        Args:
            below_s: a proven lower bound.
            value_s: a makespan that orders reach.

        Returns:
            A lower bound between the two, `value_s` itself where everything shorter is refuted, in s.
        """
        if not self._able:
            return below_s
        if self._refutes(value_s * (1 - 5 * ROUNDING)):
            return value_s
        low_s, high_s = max(below_s, self._refuted_s), min(value_s, self._open_s)
        while high_s - low_s > PRECISION * value_s:
            middle_s = (low_s + high_s) / 2
            if self._refutes(middle_s):
                low_s = middle_s
            else:
                high_s = middle_s
        return low_s

    def _refutes(self, makespan_s: float) -> bool:
        """Whether no schedule is as short as this, in s."""
        if self._refuted_s < makespan_s < self._open_s:
            if self._test(makespan_s):
                self._refuted_s = makespan_s
            else:
                self._open_s = makespan_s
        return makespan_s <= self._refuted_s

    @cached_property
    def _test(self) -> Callable[[float], bool]:
        """The kernel over this problem; made ready when first asked for, as most problems never ask."""
        problem = self._problem
        per_worker = KINDS * problem.job_counts
        form = Form(pays(refutes, int(per_worker @ per_worker), INTERPRETED_STEPS))
        kernel_ = form.kernel(refutes)
        workers, routes = problem.workers, problem.executor
        live = workers.live
        step_s = float(np.max(workers.optimizer_s[live], initial=0.0))
        cells = [np.flatnonzero(routes.ravel() == worker) for worker in range(len(workers.stage))]
        members = [
            np.sort(np.concatenate([KINDS * c, KINDS * c + 1, KINDS * c[problem.split.ravel()[c]] + 2])) for c in cells
        ]
        duration_s = np.zeros((*routes.shape, KINDS))
        duration_s[..., FORWARD] = workers.forward_s[routes]
        duration_s[..., BACKWARD] = np.where(problem.split, workers.input_s[routes], workers.full_s[routes])
        duration_s[..., WEIGHT] = workers.weight_s[routes]
        alike = routes_of(problem)
        previous, input_gate, weight_gate = _gates(problem, alike)
        least_head_s, least_tail_s = _floors(problem, alike)
        costs = EdgeCosts(
            routes.shape[1], problem.jobs, form.ints(problem.depth[problem.origin]),
            form.floats(problem.hops_s.ravel()), form.ints(problem.split.ravel()), form.floats(duration_s.ravel()),
            form.floats(least_head_s), form.floats(least_tail_s), form.ints(previous),
            form.ints(input_gate), form.ints(weight_gate),
            form.ints([0, *accumulate(len(m) for m in members)]), form.ints(np.concatenate(members)),
        )  # fmt: skip
        most = max(len(m) for m in members)
        space = EdgeSpace(
            head_s=form.float_space(duration_s.size), tail_s=form.float_space(duration_s.size),
            release_s=form.float_space(most), length_s=form.float_space(most), due_s=form.float_space(most),
            later_s=form.float_space(most), reach_s=form.float_space(most), by_release=form.int_space(most),
        )  # fmt: skip
        return lambda makespan_s: bool(kernel_(costs, space, makespan_s - step_s, makespan_s * ROUNDING))


def _floors(problem: Problem, routes: Sequence[Route]) -> tuple[Any, Any]:
    """Heads and tails that hold whatever the makespan: those of chains, with their memory limits."""
    shape = (*problem.executor.shape, KINDS)
    heads_s, tails_s = np.zeros(shape), np.zeros(shape)
    for route in routes:
        chain, count = route.chain, len(route.jobs)
        known = heads_and_tails(chain, count, problem.workers.allreduce_s[list(route.workers)].tolist())
        if limit_binds(chain, count):
            (known,) = raise_by_memory([Limited(known, chain, [0.0] * chain.depth)])
        for stage in range(chain.depth):
            heads_s[route.jobs, stage] = known.heads_s[:, stage].T
            tails_s[route.jobs, stage] = known.tails_s[:, stage].T
    return heads_s.ravel(), tails_s.ravel()


def _gates(problem: Problem, routes: Sequence[Route]) -> tuple[list[int], list[int], list[int]]:
    """The identical job before each, and at each cell the jobs whose I and W come before its F; or NONE."""
    stages = problem.executor.shape[1]
    previous = [NONE] * problem.jobs
    input_gate, weight_gate = [NONE] * (problem.jobs * stages), [NONE] * (problem.jobs * stages)
    for route in routes:
        for earlier, later in pairwise(route.jobs):
            previous[later] = earlier
        for stage, worker in enumerate(route.workers):
            if problem.job_counts[worker] == len(route.jobs):
                chain, jobs = route.chain, route.jobs
                sizes = chain.activation_bytes[stage], chain.stash_bytes[stage], chain.limit_bytes[stage]
                room = stash_room(len(jobs), *sizes)
                most_whole = sum(stashed != NO_ROOM for stashed in room) - 1
                for k, job in enumerate(jobs):
                    cell = job * stages + stage
                    if k >= most_whole:
                        input_gate[cell] = jobs[k - most_whole]
                    if chain.split[stage] and k > room[1]:
                        weight_gate[cell] = jobs[k - room[1] - 1]
    return previous, input_gate, weight_gate


class EdgeCosts(NamedTuple):
    """What is to be refuted.

    Attributes:
        stages, jobs: how many there are.
        depth, previous: of each job, its stages and the identical job before it.
        hop_s, split, input_gate, weight_gate: at `job * stages + stage`.
        duration_s, least_head_s, least_tail_s: of operations; heads and tails that hold for any makespan.
        first, members: the operations of worker w are `members[first[w]:first[w + 1]]`.
    """

    stages: int
    jobs: int
    depth: Ints
    hop_s: Floats
    split: Ints
    duration_s: Floats
    least_head_s: Floats
    least_tail_s: Floats
    previous: Ints
    input_gate: Ints
    weight_gate: Ints
    first: Ints
    members: Ints


class EdgeSpace(NamedTuple):
    """Heads and tails of operations so far; the rest is work space over the operations of a worker."""

    head_s: MutableFloats
    tail_s: MutableFloats
    release_s: MutableFloats
    length_s: MutableFloats
    due_s: MutableFloats
    later_s: MutableFloats
    reach_s: MutableFloats
    by_release: MutableInts


@kernel
def raised(values: MutableFloats, at: int, value: float, slack: float) -> bool:
    """Raise an entry to a value; tells whether that changed it by more than rounding."""
    if value > values[at] + slack:
        values[at] = value
        return True
    return False


@kernel
def end_of(costs: EdgeCosts, head_s: Floats, job: int, stage: int, kind: int) -> float:
    """The earliest end of an operation in s; for no job, NONE, the beginning of time."""
    if job < 0:
        return -INFINITY
    at = 3 * (job * costs.stages + stage) + kind
    return head_s[at] + costs.duration_s[at]


@kernel
def pull_heads(costs: EdgeCosts, head_s: MutableFloats, slack: float) -> None:
    """Let heads grow along dependencies, FIFO and gates, which all lead from lower ranks or within a job."""
    for job in range(costs.jobs):
        before = costs.previous[job]
        for stage in range(costs.depth[job]):
            cell = job * costs.stages + stage
            early_s = end_of(costs, head_s, before, stage, F)
            if stage > 0:
                early_s = max(early_s, end_of(costs, head_s, job, stage - 1, F) + costs.hop_s[cell - 1])
            early_s = max(early_s, end_of(costs, head_s, costs.input_gate[cell], stage, I))
            early_s = max(early_s, end_of(costs, head_s, costs.weight_gate[cell], stage, W))
            raised(head_s, 3 * cell + F, early_s, slack)
        for stage in range(costs.depth[job] - 1, -1, -1):
            cell = job * costs.stages + stage
            early_s = end_of(costs, head_s, job, stage, F)
            early_s = max(early_s, end_of(costs, head_s, before, stage, I))
            if stage < costs.depth[job] - 1:
                early_s = max(early_s, end_of(costs, head_s, job, stage + 1, I) + costs.hop_s[cell])
            raised(head_s, 3 * cell + I, early_s, slack)
            if costs.split[cell]:
                early_s = end_of(costs, head_s, job, stage, I)
                early_s = max(early_s, end_of(costs, head_s, before, stage, W))
                raised(head_s, 3 * cell + W, early_s, slack)


@kernel
def hand(costs: EdgeCosts, tail_s: MutableFloats, job: int, stage: int, kind: int, late_s: float, slack: float) -> None:
    """Tell an operation what must follow it, in s; no job, NONE, does not mind."""
    if job >= 0:
        raised(tail_s, 3 * (job * costs.stages + stage) + kind, late_s, slack)


@kernel
def push_tails(costs: EdgeCosts, tail_s: MutableFloats, slack: float) -> None:
    """Let tails grow, job by job from the last rank: each operation hands its own on to those that must precede it."""
    for job in range(costs.jobs - 1, -1, -1):
        before = costs.previous[job]
        for stage in range(costs.depth[job]):
            cell = job * costs.stages + stage
            if costs.split[cell]:
                late_s = end_of(costs, tail_s, job, stage, W)
                hand(costs, tail_s, job, stage, I, late_s, slack)
                hand(costs, tail_s, before, stage, W, late_s, slack)
            if stage > 0:
                late_s = end_of(costs, tail_s, job, stage - 1, I) + costs.hop_s[cell - 1]
                hand(costs, tail_s, job, stage, I, late_s, slack)
            late_s = end_of(costs, tail_s, job, stage, I)
            hand(costs, tail_s, job, stage, F, late_s, slack)
            hand(costs, tail_s, before, stage, I, late_s, slack)
        for stage in range(costs.depth[job] - 1, -1, -1):
            cell = job * costs.stages + stage
            if stage < costs.depth[job] - 1:
                late_s = end_of(costs, tail_s, job, stage + 1, F) + costs.hop_s[cell]
                hand(costs, tail_s, job, stage, F, late_s, slack)
            late_s = end_of(costs, tail_s, job, stage, F)
            hand(costs, tail_s, before, stage, F, late_s, slack)
            hand(costs, tail_s, costs.input_gate[cell], stage, I, late_s, slack)
            hand(costs, tail_s, costs.weight_gate[cell], stage, W, late_s, slack)


@kernel
def sort_releases(count: int, release_s: Floats, by_release: MutableInts) -> None:
    """Sort operations by release (by insertion: they mostly are in order)."""
    for at in range(count):
        place = at
        while place > 0 and release_s[by_release[place - 1]] > release_s[at]:
            by_release[place] = by_release[place - 1]
            place -= 1
        by_release[place] = at


@kernel
def find_edges(space: EdgeSpace, count: int, slack: float) -> bool:
    """Edge-finding on one worker: raise the releases of `count` operations that must come after sets of others.

    For each due date d, with the set of operations due by then: if an operation outside the set cannot be done before
    the set's end at d, it comes after all of the set, or after that part of it that is released from some moment on.

    Returns:
        False where they cannot all end in time.
    """
    release_s, length_s, due_s, later_s, reach_s, by_release = (
        space.release_s, space.length_s, space.due_s, space.later_s, space.reach_s, space.by_release,
    )  # fmt: skip
    sort_releases(count, release_s, by_release)
    for at in range(count):
        later_s[at] = release_s[at]
    for chosen in range(count):
        last_s = due_s[chosen]
        work_s = 0.0
        end_s = -INFINITY
        for place in range(count - 1, -1, -1):
            one = by_release[place]
            if due_s[one] <= last_s:
                work_s += length_s[one]
                end_s = max(end_s, release_s[one] + work_s)
            reach_s[place] = end_s
        if end_s > last_s + slack:
            return False
        before_s = -INFINITY
        for place in range(count):
            one = by_release[place]
            if due_s[one] <= last_s:
                before_s = max(before_s, release_s[one] + work_s)
                work_s -= length_s[one]
            elif before_s + length_s[one] > last_s + slack:
                later_s[one] = max(later_s[one], end_s)
            elif release_s[one] + work_s + length_s[one] > last_s + slack:
                later_s[one] = max(later_s[one], reach_s[place])
    return True


@kernel
def squeeze(costs: EdgeCosts, space: EdgeSpace, worker: int, mirrored: int, makespan_s: float, slack: float) -> int:
    """Raise the heads of a worker's operations, or, `mirrored`, their tails, which are heads backwards in time.

    Returns:
        -1 where they do not fit, else whether one grew.
    """
    head_s, tail_s = (space.tail_s, space.head_s) if mirrored else (space.head_s, space.tail_s)
    first, count = costs.first[worker], costs.first[worker + 1] - costs.first[worker]
    for at in range(count):
        one = costs.members[first + at]
        space.release_s[at] = head_s[one]
        space.length_s[at] = costs.duration_s[one]
        space.due_s[at] = makespan_s - tail_s[one]
        if head_s[one] + costs.duration_s[one] > space.due_s[at] + slack:
            return -1
    if not find_edges(space, count, slack):
        return -1
    grew = 0
    for at in range(count):
        if raised(head_s, costs.members[first + at], space.later_s[at], slack):
            grew = 1
    return grew


@kernel
def refutes(costs: EdgeCosts, space: EdgeSpace, makespan_s: float, slack: float) -> bool:
    """Whether propagation finds that no schedule ends by `makespan_s`; differences up to `slack` are rounding, in s."""
    head_s, tail_s = space.head_s, space.tail_s
    for at in range(len(head_s)):
        head_s[at] = costs.least_head_s[at]
        tail_s[at] = costs.least_tail_s[at]
    while True:
        pull_heads(costs, head_s, slack)
        push_tails(costs, tail_s, slack)
        grew = 0
        for worker in range(len(costs.first) - 1):
            for mirrored in range(2):
                found = squeeze(costs, space, worker, mirrored, makespan_s, slack)
                if found < 0:
                    return True
                grew += found
        if grew == 0:
            return False
