"""The joint schedule where workers hold several virtual stages: one routing for all that is wrong at once.

All is as in `search.py`, with columns for stages, and orders of due times (planners/placement/) for warm-ups:

1. Each column is filled like a vessel: a slow worker takes fewer micro-batches with all their chunks. Where that leaves
   shares uneven, chunk by chunk too: a column's workers share single rounds of its virtual stages.
2. Slow pairs of workers carry nothing, by swaps: on each leg of a V or a loop.
3. SlipStream's slots where the workers of a column are equal, and all micro-batches in turns.
4. What each technique does on its own: re-routing that does not know, or is told, what is slow, pipelines that give
   whole micro-batches away, each pipeline alone. By rules, a joint plan is never worse than any of them.
5. Micro-batches go from peers that end late to peers that end early.

Every routing is ordered by rules, most promising first, unless its bound proves it worse than the best so far. If there
is time the best ones are searched on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.errors import InfeasibleError
from ...schemas.placement import links_crossed
from ...schemas.plan import Plan, name_of
from ..placement.any_routing import routing_bound
from ..placement.bounds import lower_bound, with_any_split
from ..placement.fusing import with_fused_backwards
from ..placement.pipelines import with_placed_pipelines
from ..placement.problem import PlacedProblem, SeatOrders, ordered_placed_problem, placed_problem, work_s
from ..placement.scheduler import SeatScheduler
from ..placement.search import solve
from ..scheduling.problem import ROUNDING, alone
from ..scheduling.solve import Effort
from ..slipstream.placed_rerouting import routings
from .bound import shifts
from .routings import carried, handed_out, least_loads, spread, swapped
from .search import ACROSS, JOINT, RULES, SHIFTED_OPERATIONS, SHIFTS, SLOTS, TURNS, Found, revived, unslowed

if TYPE_CHECKING:
    from ...schemas.plan import Place
    from ..placement.bounds import SeatBound
    from ..placement.problem import Flags, Floats, Ints

APART, UNEVEN, ALONE = "joint, chunks apart", "uneven pipelines", "each pipeline alone"
UNAWARE, TOLD = "re-routing", "re-routing, told what is slow"
SEARCHED = 3  # so many of the routings are tried by all rules


@dataclass(frozen=True)
class PlacedSituation:
    """Alike pipelines with a placement, some of whose workers failed or are slow, and some of whose links are.

    Attributes:
        plan: the pipelines; its orders do not matter.
        split: whether backwards are split in I and W.
    """

    plan: Plan
    split: bool

    @cached_property
    def home(self) -> PlacedProblem:
        """Every worker runs its own micro-batches, failed ones too."""
        return placed_problem(self.plan, split=self.split)

    @cached_property
    def bound(self) -> SeatBound:
        """What no routing undercuts."""
        return routing_bound(self.plan, self.home)

    @cached_property
    def usual(self) -> Plan:
        """The plan with nobody and nothing slow: what whoever does not adapt reckons with."""
        return unslowed(self.plan)

    @property
    def live(self) -> Flags:
        """Who has not failed, pipelines x columns."""
        return self.home.live.reshape(len(self.plan.pipelines), -1)

    @cached_property
    def round_s(self) -> Floats:
        """How long each worker computes for a micro-batch at each of its virtual stages, workers x stages, in s."""
        duration_s = self.home.duration_s
        backward_s = duration_s[:, :, 1] + duration_s[:, :, 2] if self.split else duration_s[:, :, 3]
        found: Floats = duration_s[:, :, 0] + backward_s
        return found

    @cached_property
    def each_s(self) -> Floats:
        """What a micro-batch takes each worker in all, pipelines x columns, in s; infinite where it failed."""
        found: Floats = np.where(self.home.live, self.round_s.sum(axis=1), np.inf).reshape(self.live.shape)
        return found

    @cached_property
    def gains_by_joining(self) -> bool:
        """Whether some B takes less than its I and W, so that orders are worth more once these are joined."""
        apart_s = self.home.duration_s[:, :, 1] + self.home.duration_s[:, :, 2]
        return self.split and bool((self.home.duration_s[:, :, 3] < apart_s * (1 - ROUNDING)).any())

    @property
    def equal_columns(self) -> Flags:
        """Of each column, whether its live workers take equally long."""
        found: Flags = (np.isinf(self.each_s) | (self.each_s == self.each_s.min(axis=0))).all(axis=0)
        return found

    @cached_property
    def slow(self) -> Flags:
        """The hops inside pipelines that take longer than those between; hops x pipelines x pipelines."""
        pipelines = len(self.plan.pipelines)
        inside_s = np.array([[link.delay_s for link in self.plan.links_of(k)] for k in range(pipelines)])
        between_s = np.array([link.delay_s for link in self.plan.template_of(0).links])
        slower = (inside_s.reshape(pipelines, -1) > between_s).T
        return np.asarray(slower[:, :, None] & np.eye(pipelines, dtype=np.bool_))


@dataclass(frozen=True, eq=False)
class PlacedJoint(Found):
    """A schedule of a routing of workers with several virtual stages: its orders as operation codes.

    Its I and W are apart; its value is that of the plan, where those that need not be are joined.
    """

    problem: PlacedProblem
    orders: SeatOrders


def placed_joint_schedule(
    situation: PlacedSituation, avoid: Collection[tuple[Place, Place]], effort: Effort, gap: float = 0.0
) -> PlacedJoint:
    """The best schedule that is found for all that is wrong.

    Args:
        situation: of the pipelines; each column has a live worker.
        avoid: pairs of places of different pipelines whose hops shall carry nothing.
        effort: "rules" tries rules only.
        gap: the joint routings' best schedule is taken if it is by no more than this share above the bound.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
        InvalidInputError: the solver is not installed.
    """
    search = _PlacedJointSearch(situation, _named_hops(situation.plan, avoid))
    search.try_joint()
    best = search.best
    if best is None or best.avoided_jobs or best.value_s > best.bound_s * (1 + gap):
        search.try_singles(effort)
        search.try_shifts()
        search.solve(effort)
    return search.found()


class _PlacedJointSearch:
    """The best so far, and the best of each routing."""

    def __init__(self, situation: PlacedSituation, avoid: Flags) -> None:
        self.situation, self.avoid = situation, avoid
        self.tried: dict[bytes, PlacedJoint] = {}
        self.refusal: InfeasibleError | None = None

    @property
    def best(self) -> PlacedJoint | None:
        """The best so far; None where nothing has been found."""
        found: PlacedJoint | None = None
        for one in self.tried.values():
            if found is None or one.beats(found):
                found = one
        return found

    def found(self) -> PlacedJoint:
        """The best.

        Raises:
            InfeasibleError: memory admits none.
        """
        if self.best is None:
            assert self.refusal is not None
            raise self.refusal
        return self.best

    def try_joint(self) -> None:
        """The joint routings, first without what is slow or to be avoided, as far as that can be."""
        slow = self.situation.slow | self.avoid
        made = list(_joint_routings(self.situation))
        for name, executor in made:
            self._try(name, self._around(executor, slow, in_pairs=True))
        if slow.any():
            self._try(JOINT, self._around(made[0][1], slow))
            self._try(ACROSS, self._around(made[0][1], self.avoid))

    def try_singles(self, effort: Effort) -> None:
        """What each technique does on its own."""
        situation, home = self.situation, self.situation.home
        usual = placed_problem(situation.usual, split=situation.split)
        for executor in routings(home, alike=True):
            with suppress(InfeasibleError):
                orders = solve(usual.routed(situation.usual, executor), RULES).orders
                self._try(UNAWARE, executor, orders)
        for executor in routings(home, alike=False):
            self._try(TOLD, executor)
        with suppress(InfeasibleError):  # chunks of a micro-batch that are apart may fit where they do not together
            uneven = _uneven_pipelines(situation)
            if uneven is not None:
                self._try(UNEVEN, uneven)
        if home.live.all():
            with suppress(InfeasibleError):
                plan = with_placed_pipelines(situation.plan, split=situation.split, effort=_without_solver(effort))
                self._offer(ALONE, *ordered_placed_problem(plan))

    def try_shifts(self) -> None:
        """Micro-batches from peers that end late to peers that end early, as long as that helps."""
        left = min(SHIFTS, SHIFTED_OPERATIONS // self.situation.home.operations)
        start = self.best
        while start is not None and left > 0 and not start.settled:
            loads = _whole_loads(start.problem, self.situation.live.shape)
            if loads is None:
                return
            ends_s = SeatScheduler(start.problem).ends_s(start.orders).reshape(loads.shape)
            better = None
            for other in shifts(loads, ends_s, self.situation.each_s):
                if left == 0 or better is not None:
                    break
                left -= 1
                executor = self._around(_whole(self.situation.home, other), self.situation.slow | self.avoid)
                found = self._try(JOINT, executor)
                better = found if found is not None and found.beats(start) else None
            start = better

    def solve(self, effort: Effort) -> None:
        """All rules for the best routings, and for the best of them all that there is time for."""
        if effort.solver == "rules":
            return
        order = sorted(self.tried.values(), key=lambda one: (one.avoided_jobs, one.value_s))
        for one in order[:SEARCHED]:
            self._search(one, _without_solver(effort), anneals=False)
        if self.best is not None:
            self._search(self.best, effort, anneals=True)

    def _search(self, one: PlacedJoint, effort: Effort, *, anneals: bool) -> None:
        """Other orders for the routing of a schedule."""
        if not self.found().settled:
            bound_s = max(one.bound_s, lower_bound(one.problem).value_s)
            self._offer(
                one.made_by, one.problem, solve(one.problem, effort, bound_s, start=one.orders, anneals=anneals).orders
            )

    def _around(self, executor: Ints, slow: Flags, *, in_pairs: bool = False) -> Ints:
        return swapped(executor, self.situation.home.pipeline, slow, in_pairs=in_pairs)

    def _try(self, name: str, executor: Ints, start: SeatOrders | None = None) -> PlacedJoint | None:
        """The best orders by rules for a routing; None where it cannot be better, or memory does not admit it.

        Nor can one be that has been tried so before: on few workers, or with nothing slow, many routings are the same.
        """
        if start is None and executor.tobytes() in self.tried:
            return None
        situation, best = self.situation, self.best
        problem = situation.home.routed(situation.plan, executor)
        bound_s, avoided = max(situation.bound.value_s, self._busiest_s(problem)), self._avoided(problem)
        if best is not None and (best.settled or (best.avoided_jobs, best.value_s) <= (avoided, bound_s)):
            return None
        try:
            found = solve(problem, RULES, bound_s, start=start)
        except InfeasibleError as error:
            self.refusal = error
            return None
        return self._offer(name, problem, found.orders)

    def _offer(self, name: str, problem: PlacedProblem, orders: SeatOrders) -> PlacedJoint:
        """A schedule, which is that of its routing from now on if it is the best."""
        if self.situation.gains_by_joining:
            fused, joined = with_fused_backwards(problem, orders)
            value_s = SeatScheduler(fused).value_s(joined)
        else:
            value_s = SeatScheduler(problem).value_s(orders)
        found = PlacedJoint(name, self._avoided(problem), value_s, self.situation.bound.value_s, problem, orders)
        known = self.tried.setdefault(problem.executor.tobytes(), found)
        if found.beats(known):
            self.tried[problem.executor.tobytes()] = found
        return found

    def _busiest_s(self, problem: PlacedProblem) -> float:
        """What no orders of a routing undercut, in s, at a glance: all of a worker's work, its sums and its step."""
        least = with_any_split(problem) if self.situation.gains_by_joining else problem
        after_s = problem.allreduce_s + problem.optimizer_s
        return float((work_s(least) + after_s[problem.worker_column] * problem.live).max())

    def _avoided(self, problem: PlacedProblem) -> int:
        return int(carried(problem.pipeline[problem.executor], self.avoid).sum())


def _without_solver(effort: Effort) -> Effort:
    """The same but for exact solvers, which are left to the best routing."""
    return effort if effort.solver == "rules" else replace(effort, solver="heuristic", time_limit_s=0.0)


# Routings: who runs which micro-batch at which virtual stage, jobs x stages.


def _joint_routings(situation: PlacedSituation) -> Iterator[tuple[str, Ints]]:
    """Columns filled like vessels: micro-batches whole, or by chunk; in slots; and in turns."""
    home, live = situation.home, situation.live
    loads = np.stack([least_loads(each_s, home.jobs) for each_s in situation.each_s.T], axis=1)
    whole = _whole(home, loads)
    yield JOINT, whole
    yield APART, _apart(situation, whole)
    in_slots = next(routings(home, alike=True))
    equal = situation.equal_columns[home.column]
    if not live.all():
        yield SLOTS, np.where(equal, in_slots, whole)
    turns = [spread(counts) * live.shape[1] + column for column, counts in enumerate(loads.T)]
    yield TURNS, np.stack(turns, axis=1)[:, home.column]


def _whole(home: PlacedProblem, loads: Ints) -> Ints:
    """Each worker runs so many micro-batches with all their chunks in its column, as far as it can its own.

    Args:
        home: in which every worker runs its own.
        loads: of each worker, pipelines x columns; those of a column add up to all jobs.
    """
    taken = [handed_out(home.origin, room) * loads.shape[1] + column for column, room in enumerate(loads.T)]
    return np.stack(taken, axis=1)[:, home.column]


def _apart(situation: PlacedSituation, whole: Ints) -> Ints:
    """The same where the workers of a column share single rounds, so that only a round's work may be left over."""
    home, columns = situation.home, situation.live.shape[1]
    executor = whole.copy()
    for column, held in enumerate(home.seats):
        own = home.worker_column == column
        each_s = np.where(home.live[own], situation.round_s[own][:, list(held)].mean(axis=1), np.inf)
        shares = spread(least_loads(each_s, home.jobs * len(held))).reshape(len(held), home.jobs)
        for stage, takers in zip(held, shares, strict=True):
            counts = np.bincount(takers, minlength=len(each_s))
            executor[:, stage] = handed_out(home.origin, counts) * columns + column
    return executor


def _uneven_pipelines(situation: PlacedSituation) -> Ints | None:
    """Slow pipelines give whole micro-batches to quick ones, and the dead's go in turns to their peers; None for one.

    How long a pipeline takes is what its usual orders take in it; the dead count as alive.

    Raises:
        InfeasibleError: a memory limit does not admit a micro-batch with all its chunks.
    """
    usual, plan = revived(situation.usual), revived(situation.plan)
    count, columns = situation.live.shape
    if count == 1:
        return None
    ordered = solve(placed_problem(alone(usual, 0), split=situation.split), RULES).orders
    problems = (placed_problem(alone(plan, k), split=situation.split) for k in range(count))
    taken_s = np.array([SeatScheduler(problem).value_s(ordered) for problem in problems])
    home = situation.home
    executor: Ints = handed_out(home.origin, least_loads(taken_s, home.jobs))[:, None] * columns + home.column
    for column, held in enumerate(home.seats):
        peers = np.flatnonzero((home.worker_column == column) & home.live)
        lost = np.flatnonzero(~home.live[executor[:, held[0]]])
        executor[np.ix_(lost, np.array(held))] = peers[np.arange(len(lost)) % len(peers)][:, None]
    return executor


def _whole_loads(problem: PlacedProblem, shape: tuple[int, ...]) -> Ints | None:
    """How many micro-batches each worker runs, pipelines x columns; None where chunks of a column are apart."""
    first = [held[0] for held in problem.seats]
    if (problem.executor != problem.executor[:, first][:, problem.column]).any():
        return None
    return np.bincount(problem.executor[:, first].ravel(), minlength=problem.workers).reshape(shape)


# Pairs of workers whose hops carry nothing.


def _named_hops(plan: Plan, pairs: Collection[tuple[Place, Place]]) -> Flags:
    """The hops between pairs of places; hops x pipelines x pipelines."""
    template, count = plan.template_of(0), len(plan.pipelines)
    found = np.zeros((len(template.links), count, count), dtype=np.bool_)
    for (k, i), (other, j) in pairs:
        for hop, ends in enumerate(pairwise(template.column_of)):
            if ends == (i, j):
                found[hop, k, other] = True
            elif ends == (j, i):
                found[hop, other, k] = True
    return found


def bypassed_links(situation: PlacedSituation, problem: PlacedProblem) -> list[str]:
    """The slow links of single pipelines, `k/i`, over which no hop carries anything."""
    jobs = carried(problem.pipeline[problem.executor], situation.slow)
    numbers = links_crossed(situation.plan.template_of(0))
    hops = np.argwhere(situation.slow).tolist()
    used = {(k, numbers[hop]) for hop, k, _ in hops if jobs[hop, k, k]}
    slow = {(k, numbers[hop]) for hop, k, _ in hops}
    return [name_of(link) for link in sorted(slow - used)]


def loads_of(plan: Plan, problem: PlacedProblem) -> dict[str, Sequence[int]]:
    """How many micro-batches each worker runs at each of its virtual stages."""
    counts = np.stack([np.bincount(column, minlength=problem.workers) for column in problem.executor.T], axis=1)
    return {
        worker.name: [int(counts[number, stage]) for stage in plan.seats_of(worker)]
        for number, worker in enumerate(plan.workers)
    }
