"""The joint schedule: routings and warm-ups for all that is wrong at once, against every technique on its own.

1. Each stage is filled like vessels (water_fill.py): who executes how many micro-batches, and which.
2. Slow pairs of workers carry nothing, by swaps (bypass.py).
3. Warm-ups are Algorithm 2's, scaled to each worker's load (warmups.py); then I before F before W, as they arrive.
   Where the period counts, stages that would starve start later (scheduling/hold_back.py).
4. This is simulated; where it leaves a gap to what no routing undercuts (bound.py), so are other routings: with
   SlipStream's slots (slipstream/slots.py) at stages whose workers are equal, and with all micro-batches in turns, for
   peers in step wait less for each other; and one without the swaps.
5. What each single technique does is tried as well (single_techniques.py), unless its loads alone prove it worse: so a
   joint plan is never worse than any of them.
6. Where a gap is left still, micro-batches go from peers that end late to peers that end early (shifting.py).

That is nearly all there is to gain, in milliseconds. If there is time, the techniques that have a search of their own
do theirs, and the scheduling core goes on with the best routing and orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.hold_back import hold_back
from ..scheduling.list_schedule import ListScheduler
from ..scheduling.problem import Orders, Problem
from ..scheduling.proof import ROUNDING, Proven
from ..scheduling.retime import Retimer
from ..scheduling.rules import Rules
from ..scheduling.solve import Effort, solve
from ..slipstream.expansion import route
from ..slipstream.slots import Slots
from .bound import JointBound
from .bypass import bypassed, crossing
from .shifting import shifts
from .single_techniques import Single, searched_techniques, single_techniques
from .situation import Situation
from .warmups import joint_rules
from .water_fill import in_turns, job_s, routed, water_filled

if TYPE_CHECKING:
    from ..scheduling.problem import Flags, Floats, Ints

JOINT, SLOTS, TURNS, ACROSS = "joint", "joint, in slots", "joint, in turns", "joint, across slow links"
# About how many schedules a search makes of one routing; how many rules are tried on each routing before any are on
# another; and how many schedules may hold stages back.
RUNS, FIRST_RULES, HELD_RUNS = 40, 6, 12
# How often loads are changed at most, and so many operations' worth.
SHIFTS, SHIFTED_OPERATIONS = 20, 1_000_000


@dataclass(frozen=True, eq=False)
class Joint(Proven):
    """A schedule.

    Attributes:
        made_by: what has made it.
        problem: the routing.
        orders: operation codes of each worker.
        ends_s: the last end of each worker, in s.
        avoided_jobs: how many micro-batches cross a pair all the same that was to be avoided.
        value_s, bound_s: makespan or period, and what no routing and no orders undercut.
    """

    made_by: str
    problem: Problem
    orders: Orders
    ends_s: Floats
    avoided_jobs: int
    value_s: float
    bound_s: float

    @property
    def settled(self) -> bool:
        """Whether nothing can be better."""
        return self.optimal and not self.avoided_jobs

    def beats(self, other: Joint) -> bool:
        """Whether it crosses fewer pairs that were to be avoided, or as many in less time."""
        return (self.avoided_jobs, self.value_s) < (other.avoided_jobs, other.value_s * (1 - ROUNDING))


def joint_schedule(situation: Situation, avoid: Flags, effort: Effort) -> Joint:
    """The best schedule that is found for all that is wrong.

    Args:
        situation: of the pipelines; each stage has a live worker.
        avoid: further pairs of workers that shall carry nothing (`bypass.named_pairs`).
        effort: "rules" tries rules only, the single techniques' among them, in milliseconds.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
        InvalidInputError: the solver is not installed.
    """
    search = _Search(situation, avoid)
    search.try_joint()
    search.try_singles(single_techniques(situation))
    search.try_shifts()
    if effort.solver != "rules":
        search.solve(effort)
    return search.best


def in_slots(situation: Situation) -> Ints:
    """Who executes each job at each stage, jobs x stages, if peers keep in step: runs of as many jobs as are live."""
    return route(situation.live, Slots(situation.home.jobs, tuple(situation.live.sum(axis=0).tolist())))


@dataclass
class _Search:
    """The best so far."""

    situation: Situation
    avoid: Flags
    best: Joint = field(init=False)

    def __post_init__(self) -> None:
        home = self.situation.home
        self._bound, self._starts = JointBound(home), dict[str, Joint]()
        self.best = Joint("", home, [], np.zeros(0), home.jobs * home.executor.shape[1], np.inf, self._bound.value_s)

    def try_joint(self) -> None:
        """The routings for all that is wrong, each by a few rules; then by all, but for the hardly ever best one."""
        tried = []
        for name, problem in self._routings():
            if self._promising(problem):
                self._start(self._try_rules(name, problem, slice(FIRST_RULES)))
                tried.append((name, problem))
        for name, problem in tried:
            if name != ACROSS and self._promising(problem):
                self._start(self._try_rules(name, problem, slice(FIRST_RULES, None)))

    def _start(self, found: Joint | None) -> None:
        """Remember the best schedule of a routing."""
        if found is not None:
            known = self._starts.setdefault(found.made_by, found)
            if found.beats(known):
                self._starts[found.made_by] = found

    def _routings(self) -> Iterator[tuple[str, Problem]]:
        """Who executes what, until the best can be no better."""
        filled, slow = water_filled(self.situation.home), self.situation.slow
        yield JOINT, bypassed(filled, slow | self.avoid)
        if not self.best.settled and not self.situation.home.workers.live.all():
            mixed = np.where(self.situation.equal_stages, in_slots(self.situation), filled.executor)
            yield SLOTS, bypassed(replace(filled, executor=mixed), slow | self.avoid)
        if not self.best.settled:
            loads = filled.job_counts.reshape(self.situation.live.shape)
            yield TURNS, bypassed(in_turns(filled, loads), slow | self.avoid)
        if not self.best.settled and crossing(filled, slow).any():
            yield ACROSS, bypassed(filled, self.avoid)

    def try_singles(self, singles: Iterator[Single]) -> None:
        """What each of some techniques does on its own, where its loads do not prove it worse."""
        for single in singles:
            found = single.rerouted(bypassed(single.problem, self.avoid))
            if found is not None and self._promising(found.problem):
                self._offer(found.name, *found.made())
            if self.best.settled:
                return

    def try_shifts(self) -> None:
        """Other loads, as far as each is better than those before, from those of the water on."""
        for name, assign in ((JOINT, routed), (TURNS, in_turns)):
            start = self._starts.get(name)
            left = min(SHIFTS, SHIFTED_OPERATIONS // (RUNS * self.situation.home.operations))
            while start is not None and left and not self.best.settled:
                start, left = self._shifted(start, assign, left)

    def _shifted(self, start: Joint, assign: Callable[[Problem, Ints], Problem], left: int) -> tuple[Joint | None, int]:
        """The first of some loads that is better than others, if there is one; and how many may still be tried."""
        home, each_s = self.situation.home, job_s(self.situation.home)
        loads, ends_s = start.problem.job_counts.reshape(each_s.shape), start.ends_s.reshape(each_s.shape)
        for other in islice(shifts(loads, ends_s, each_s), left):
            left -= 1
            problem = bypassed(assign(home, other), self.situation.slow | self.avoid)
            found = self._try_rules(start.made_by, problem, slice(None))
            if found is not None and found.beats(start):
                return found, left
        return None, left

    def solve(self, effort: Effort) -> None:
        """What the techniques' own searches find, and what the scheduling core makes of the best."""
        if not self.best.settled:
            self.try_singles(searched_techniques(self.situation, effort))
        best = self.best
        if not best.settled:
            rules = [*self._rules(best.problem)]
            self._offer(best.made_by, best.problem, solve(best.problem, effort, first=rules, start=best.orders).orders)

    def _promising(self, problem: Problem) -> bool:
        """Whether a routing may be better than the best so far: by its loads, and what it carries across pairs."""
        if self.best.settled:
            return False
        crossed = int(crossing(problem, self.avoid).sum())
        return (crossed, self._bound.of_loads_s(problem.job_counts)) < (self.best.avoided_jobs, self.best.value_s)

    def _rules(self, problem: Problem) -> Iterator[Rules]:
        return joint_rules(problem, self.situation.stages, self.situation.slow)

    def _try_rules(self, name: str, problem: Problem, part: slice) -> Joint | None:
        """The best by a part of the rules, until one reaches the bound; for the period with stages held back."""
        scheduler, best, best_s = ListScheduler(problem, RUNS), None, np.inf
        for rules in islice(self._rules(problem), part.start, part.stop):
            found_s = scheduler.run(rules)
            if best is None or found_s < best_s:
                best, best_s, orders = rules, found_s, scheduler.orders()
            if best_s <= self.best.goal_s:
                break
        if best is None:
            return None
        found = self._offer(name, problem, orders)
        if not problem.staggered or self.best.settled:
            return found
        held, _ = hold_back(problem, scheduler, best, goal_s=self.best.goal_s, runs=HELD_RUNS)
        scheduler.run(held)
        return min(found, self._offer(name, problem, scheduler.orders()), key=lambda one: one.value_s)

    def _offer(self, name: str, problem: Problem, orders: Orders) -> Joint:
        """A schedule, which is the best from now on if it is."""
        crossed, retimer = int(crossing(problem, self.avoid).sum()), Retimer(problem, RUNS)
        found_s = retimer.value_s(orders)
        found = Joint(name, problem, orders, retimer.spans_s[1].copy(), crossed, found_s, self._bound.value_s)
        if found.beats(self.best):
            self.best = found
        return found
