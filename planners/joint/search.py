"""The joint schedule: routings and warm-ups for all that is wrong at once, against every technique on its own.

1. Each stage is filled like vessels (routings.py): who executes how many micro-batches, and which.
2. Slow pairs of workers carry nothing, by swaps (routings.py).
3. Warm-ups are Algorithm 2's, scaled to each worker's load (search.py); then I before F before W, as they arrive.
   Where the period counts, stages that would starve start later (scheduling/local_search.py).
4. This is simulated; where it leaves a gap to what no routing undercuts (bound.py), so are other routings: with
   SlipStream's slots (slipstream/slots.py) at stages whose workers are equal, and with all micro-batches in turns, for
   peers in step wait less for each other; and one without the swaps.
5. What each single technique does is tried as well (search.py), unless its loads alone prove it worse: so a
   joint plan is never worse than any of them. For a running plan, which workers and replays wait for, neither this nor
   the next step is taken where the gap that is left is small: they hardly ever find anything there.
6. Where a gap is left still, micro-batches go from peers that end late to peers that end early (bound.py).

That is nearly all there is to gain, in milliseconds. If there is time, the techniques that have a search of their own
do theirs, and the scheduling core goes on with the best routing and orders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, product
from math import ceil
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...schemas.plan import Link, Plan, Stage, Worker
from ..adaptra.plan import ROUNDING as WARMUP_ROUNDING
from ..adaptra.plan import algorithm_2, own_rules
from ..pipeline import zero_bubble
from ..scheduling.list_schedule import DispatchRules, ListScheduler, Priority, list_schedule, rooms
from ..scheduling.local_search import hold_back, portfolio
from ..scheduling.problem import ROUNDING, Orders, Problem, Proven, alone, home_problem, in_jobs
from ..scheduling.retime import Retimer
from ..scheduling.solve import FIRST_LOOK, Effort, solve
from ..slipstream.rerouting import block, by_load, reroute_alike, round_robin
from ..slipstream.selective_decoupling import decoupled_where_it_helps
from ..slipstream.slot_search import SlotSearch
from ..slipstream.slots import Slots, route
from .bound import JointBound, shifts
from .routings import (
    bypassed,
    crossing,
    handed_out,
    in_turns,
    job_s,
    least_loads,
    routed,
    slow_pairs,
    water_filled,
)

if TYPE_CHECKING:
    from ..scheduling.problem import Flags, Floats, Ints


# What is wrong in a plan of alike pipelines, as problems: as it is, as it was planned for, and with nobody dead.


@dataclass(frozen=True)
class Situation:
    """Alike pipelines, some of whose workers failed or are slow, and some of whose links are.

    Attributes:
        plan: the pipelines; its orders do not matter.
        split: whether backwards are split in I and W.
    """

    plan: Plan
    split: bool

    @property
    def stages(self) -> Sequence[Stage]:
        """The stages of each pipeline."""
        return self.plan.template_of(0).stages

    @cached_property
    def home(self) -> Problem:
        """Every worker runs its own micro-batches, failed ones too."""
        return home_problem(self.plan, split=self.split)

    @cached_property
    def bound(self) -> JointBound:
        """What no routing undercuts."""
        return JointBound(self.home)

    @cached_property
    def usual(self) -> Problem:
        """The same with nobody and nothing slow: what whoever does not adapt reckons with."""
        return home_problem(unslowed(self.plan), split=self.split)

    @cached_property
    def revived(self) -> Problem:
        """The home problem with nobody failed."""
        return home_problem(revived(self.plan), split=self.split)

    @cached_property
    def pipeline(self) -> Problem:
        """One pipeline alone, with nobody failed or slow, and no link."""
        return home_problem(alone(revived(unslowed(self.plan)), 0), split=self.split)

    @property
    def live(self) -> Flags:
        """Who has not failed, pipelines x stages."""
        return self.home.workers.live.reshape(len(self.home.depth), -1)

    @property
    def equal_stages(self) -> Flags:
        """Of each stage, whether none of its live workers is slow."""
        each_s = job_s(self.home)
        equal: Flags = (np.isinf(each_s) | (each_s == job_s(self.usual))).all(axis=0)
        return equal

    @property
    def alike(self) -> bool:
        """Whether the workers of each stage and their links are equal, but for who failed."""
        return bool(self.equal_stages.all() and (self.home.inside_s == self.home.between_s).all())

    @cached_property
    def slow(self) -> Flags:
        """The pairs of workers that are slower than others (`slow_pairs`)."""
        return slow_pairs(self.home)


def unslowed(plan: Plan) -> Plan:
    """The plan with nobody slow, and no links of single pipelines."""
    workers = tuple(replace(worker, slowdown=None) for worker in plan.workers)
    return replace(plan, workers=workers, pipelines=tuple(replace(pipe, links=None) for pipe in plan.pipelines))


def revived(plan: Plan) -> Plan:
    """The plan with nobody failed; it has no orders then."""
    workers = (Worker(*worker.place, "") if worker.failed else worker for worker in plan.workers)
    return replace(plan, workers=tuple(workers))


# What each technique does on its own, and one after the other: what a joint plan must beat.
#
# * **re-routing** (SlipStream): a dead worker's micro-batches in turns to its peers, by orders made as if nothing were
#   slow; by the same rules, but with everybody running what arrives, in the order in which it does; and in slots, as
#   `rtk plan slipstream` does it where nothing is slow (slipstream/rerouting.py).
# * **re-routing, told what is slow**: as it does it where something is: by load, in turns and in blocks.
# * **adapted warm-ups** (Adaptra): re-routing in turns, and Algorithm 2's warm-ups for the links as they are.
# * **uneven pipelines** (Greyhound's S2): slow pipelines give whole micro-batches to quick ones, by how long each takes
#   as it is; orders made as if nothing were slow. Dead workers are re-routed as above, or their pipelines are dropped.
# * **these, one after the other**: uneven pipelines, then re-routing, then Algorithm 2's warm-ups.
# * **each pipeline alone**: where nobody is dead, zero-bubble as if nothing were slow; and by a search for what is, as
#   `rtk plan adaptra` does it.
#
# All of them have the objective, the memory and the split of backwards that the joint plan has.


TechniqueName = Literal[
    "zero-bubble",
    "each pipeline alone, searched",
    "re-routing",
    "re-routing, in arrival order",
    "re-routing, in slots",
    "re-routing, told what is slow",
    "adapted warm-ups",
    "uneven pipelines",
    "uneven pipelines, the dead one dropped",
    "these, one after the other",
]
TOGETHER: TechniqueName = "these, one after the other"
RULES = Effort("rules")
SINGLE_RUNS = 10  # about so many schedules are timed


Made = tuple[Problem, Orders]


@dataclass(frozen=True, eq=False)
class Single:
    """A technique's routing, for the pipelines as they are, and how it orders.

    Attributes:
        name: of the technique.
        problem: the routing.
        ordered: gives the orders for a routing, and with it which backwards it splits.
        fixed: whether it knows the orders for its own routing only.
    """

    name: TechniqueName
    problem: Problem
    ordered: Callable[[Problem], Made]
    fixed: bool = False

    def rerouted(self, problem: Problem) -> Single | None:
        """The technique with another routing; None if its orders are for its own routing only."""
        if self.fixed and (problem.executor != self.problem.executor).any():
            return None
        return replace(self, problem=problem)

    def made(self) -> Made:
        """The technique's orders, and what they order."""
        return self.ordered(self.problem)


def single_techniques(situation: Situation) -> Iterator[Single]:
    """All of them that there are in a situation, by rules."""
    home, everybody_lives = situation.home, situation.home.workers.live.all()
    even = round_robin(home)

    def as_usual(problem: Problem) -> Made:
        return problem, usual_orders(_usual_routing(situation, problem))[0]

    def as_it_arrives(problem: Problem) -> Made:
        return problem, list_schedule(problem, usual_orders(_usual_routing(situation, problem))[1])

    def adapted(problem: Problem) -> Made:
        return problem, list_schedule(problem, adaptra_rules(problem, situation.stages))

    if everybody_lives:
        yield Single("zero-bubble", even, lambda own: (own, zero_bubbles(situation)), fixed=True)
    else:
        yield Single("re-routing", even, as_usual)
        yield Single("re-routing, in arrival order", even, as_it_arrives)
        yield _in_slots(situation, RULES)
    if not situation.alike:
        yield from _told(home, lambda problem: usual_orders(problem)[0])
    yield Single("adapted warm-ups", even, adapted)
    taken_s = paces_s(situation)
    uneven = _of_pipelines(home, least_loads(taken_s, home.jobs))
    if uneven is not None:
        yield Single("uneven pipelines", uneven, as_usual)
        yield Single(TOGETHER, uneven, adapted)
    whole = situation.live.all(axis=1)
    if whole.any() and not everybody_lives:
        dropped = _of_pipelines(home, least_loads(np.where(whole, taken_s, np.inf), home.jobs))
        if dropped is not None:
            yield Single("uneven pipelines, the dead one dropped", dropped, as_usual)


def searched_techniques(situation: Situation, effort: Effort) -> Iterator[Single]:
    """Those for which rtk has commands with a search of their own, by that search.

    Args:
        situation: what is wrong.
        effort: how hard each tries; exact solvers are left to the joint plan.
    """
    effort = replace(effort, solver="heuristic", time_limit_s=0.0)
    if situation.home.workers.live.all():
        yield Single(
            "each pipeline alone, searched", situation.home, lambda own: (own, _alone(situation, effort)), True
        )
    else:
        yield _in_slots(situation, effort)
    if not situation.alike:
        yield from _told(situation.home, lambda problem: solve(problem, effort).orders)


def singles_s(situation: Situation) -> dict[TechniqueName, float]:
    """What an iteration takes by each technique, with the best of its routings, in s."""
    found: dict[TechniqueName, float] = {}
    for single in single_techniques(situation):
        problem, orders = single.made()
        taken_s = Retimer(problem, SINGLE_RUNS).value_s(orders)
        found[single.name] = min(taken_s, found.get(single.name, np.inf))
    return found


def usual_orders(problem: Problem) -> tuple[Orders, DispatchRules]:
    """The best orders by the first rules of the portfolio, and these rules: what `solve` makes by rules only."""
    scheduler = ListScheduler(problem, runs=FIRST_LOOK)
    best, best_s = None, np.inf
    orders: Orders = []
    for rules in islice(portfolio(problem), FIRST_LOOK):
        found_s = scheduler.run(rules)
        if found_s < best_s:
            best, best_s, orders = rules, found_s, scheduler.orders()
    assert best is not None
    return orders, best


def zero_bubbles(situation: Situation) -> Orders:
    """Zero-bubble's orders for one pipeline, with nothing slow, in all of them."""
    one = situation.pipeline
    orders = zero_bubble(one, [JointBound(one).value_s])
    return _beside_each_other(situation.home, [orders] * len(situation.home.depth))


def paces_s(situation: Situation) -> Floats:
    """How long each pipeline takes as it is, by zero-bubble's orders; the dead count as alive. In s."""
    retimer = Retimer(situation.revived, FIRST_LOOK)
    retimer.value_s(zero_bubbles(situation))
    ends_s: Floats = retimer.spans_s[1].reshape(len(situation.home.depth), -1).max(axis=1)
    return ends_s


def _usual_routing(situation: Situation, problem: Problem) -> Problem:
    """A routing for the pipelines as they are if nothing is slow."""
    return replace(situation.usual, executor=problem.executor)


def _in_slots(situation: Situation, effort: Effort) -> Single:
    """What `rtk plan slipstream` makes for the dead workers, as if nothing were slow."""
    search = SlotSearch(situation.pipeline, len(situation.home.depth))
    dead = (len(situation.live) - situation.live.sum(axis=0)).tolist()
    found = reroute_alike(situation.usual, search, dead, effort)

    def as_usual(problem: Problem) -> Made:
        usual, orders = decoupled_where_it_helps(found.problem, found.orders)
        return replace(problem, split=usual.split), orders

    own = replace(situation.home, executor=found.problem.executor)
    return Single("re-routing, in slots", own, as_usual, fixed=True)


def _told(home: Problem, ordered: Callable[[Problem], Orders]) -> Iterator[Single]:
    """The routings of `rtk plan slipstream` where workers of a stage differ, and what it makes of their orders."""
    for routing in (by_load(home), round_robin(home), block(home)):
        yield Single(
            "re-routing, told what is slow",
            routing,
            lambda problem: decoupled_where_it_helps(problem, ordered(problem)),
        )


def _alone(situation: Situation, effort: Effort) -> Orders:
    """Each pipeline by a search of its own, equal ones once."""
    ones = [alone(situation.plan, k) for k in range(len(situation.home.depth))]
    keys = [(one.pipelines, tuple(worker.slowdown for worker in one.workers)) for one in ones]
    found: dict[object, Orders] = {}
    for key, one in zip(keys, ones, strict=True):
        if key not in found:
            problem = home_problem(one, split=situation.split)
            found[key] = solve(problem, effort, first=own_rules(one, problem.jobs)).orders
    return _beside_each_other(situation.home, [found[key] for key in keys])


def _beside_each_other(home: Problem, orders: Sequence[Orders]) -> Orders:
    """The orders of each pipeline alone as orders of all."""
    # Micro-batch j of pipeline k is job j * pipelines + k: they have as many each.
    jobs, pipelines = range(home.jobs), len(orders)
    return [order for k, own in enumerate(orders) for order in in_jobs(own, jobs[k::pipelines])]


def _of_pipelines(home: Problem, room: Ints) -> Problem | None:
    """The routing in which pipeline k runs `room[k]` micro-batches from end to end, but for dead workers' peers.

    None where all pipelines that have something to run lack a worker of the same stage.
    """
    stages = np.arange(home.executor.shape[1])
    executor = handed_out(home.origin, room)[:, None] * len(stages) + stages
    if not home.workers.live[executor].any(axis=0).all():
        return None
    return round_robin(replace(home, executor=executor))


JOINT, SLOTS, TURNS, ACROSS = "joint", "joint, in slots", "joint, in turns", "joint, across slow links"
# About how many schedules a search makes of one routing; how many rules are tried on each routing before any are on
# another; and how many schedules may hold stages back.
RUNS, FIRST_RULES, HELD_RUNS = 40, 6, 12
# How often loads are changed at most, and so many operations' worth.
SHIFTS, SHIFTED_OPERATIONS = 20, 1_000_000


@dataclass(frozen=True, eq=False)
class Found(Proven):
    """What a schedule is worth.

    Attributes:
        made_by: what has made it.
        avoided_jobs: how many micro-batches cross a pair all the same that was to be avoided.
        value_s, bound_s: makespan or period, and what no routing and no orders undercut.
    """

    made_by: str
    avoided_jobs: int
    value_s: float
    bound_s: float

    @property
    def settled(self) -> bool:
        """Whether nothing can be better."""
        return self.optimal and not self.avoided_jobs

    def beats(self, other: Found) -> bool:
        """Whether it crosses fewer pairs that were to be avoided, or as many in less time."""
        return (self.avoided_jobs, self.value_s) < (other.avoided_jobs, other.value_s * (1 - ROUNDING))


@dataclass(frozen=True, eq=False)
class Joint(Found):
    """A schedule.

    Attributes:
        problem: the routing.
        orders: operation codes of each worker.
        ends_s: the last end of each worker, in s.
    """

    problem: Problem
    orders: Orders
    ends_s: Floats


def joint_schedule(situation: Situation, avoid: Flags, effort: Effort, gap: float = 0.0) -> Joint:
    """The best schedule that is found for all that is wrong.

    Args:
        situation: of the pipelines; each stage has a live worker.
        avoid: further pairs of workers that shall carry nothing (`bypass.named_pairs`).
        effort: "rules" tries rules only, the single techniques' among them, in milliseconds.
        gap: the joint routings' best schedule is taken if it is by no more than this share above the bound.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
        InvalidInputError: the solver is not installed.
    """
    search = _JointSearch(situation, avoid)
    search.try_joint()
    if not search.best.avoided_jobs and search.best.value_s <= search.best.bound_s * (1 + gap):
        return search.best
    search.try_singles(single_techniques(situation))
    search.try_shifts()
    if effort.solver != "rules":
        search.solve(effort)
    return search.best


def in_slots(situation: Situation) -> Ints:
    """Who executes each job at each stage, jobs x stages, if peers keep in step: runs of as many jobs as are live."""
    return route(situation.live, Slots(situation.home.jobs, tuple(situation.live.sum(axis=0).tolist())))


@dataclass
class _JointSearch:
    """The best so far."""

    situation: Situation
    avoid: Flags
    best: Joint = field(init=False)

    def __post_init__(self) -> None:
        home = self.situation.home
        self._bound, self._starts = self.situation.bound, dict[str, Joint]()
        worst = home.jobs * home.executor.shape[1]
        self.best = Joint("", worst, np.inf, self._bound.value_s, home, [], np.zeros(0))

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

    def _rules(self, problem: Problem) -> Iterator[DispatchRules]:
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
        found = Joint(name, crossed, found_s, self._bound.value_s, problem, orders, retimer.spans_s[1].copy())
        if found.beats(self.best):
            self.best = found
        return found


# Warm-ups for unlike loads: Adaptra's Algorithm 2, scaled to what each worker executes.
#
# A worker that executes n micro-batches where its pipeline has N of its own warms up with n / N times as many forwards:
# its peers' micro-batches come in between its own, so the same time is filled with as many more. Links that carry
# nothing have no delay to absorb. Two deviations from Algorithm 2 (adaptra/plan.py): the slackness of a link may be 2
# whatever N is, and warm-ups need not fall towards the last stage. Here they are preferences: a worker that has no
# forward at hand runs a backward.


# More micro-batches than any problem has.
UNLIMITED = 1 << 40
# Where memory is limited: F beyond the warm-up that may be in flight (None: any), and what goes first.
TIGHT = (
    (None, Priority.INPUT_FIRST),
    (None, Priority.ALTERNATE),
    (0, Priority.FORWARD_FIRST),
    (None, Priority.UNBLOCK),
)


def joint_rules(problem: Problem, stages: Sequence[Stage], slow: Flags) -> Iterator[DispatchRules]:
    """Rules worth trying on a routing, the scaled warm-ups with I before F before W first.

    Args:
        problem: alike pipelines, and who executes what.
        stages: of each pipeline.
        slow: pairs that a routing may avoid (`slow_pairs`).

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    adapted = warmups_of(stages, remaining_delays_s(problem, slow), problem.jobs)
    room, counts = rooms(problem), problem.job_counts.tolist()
    if all(most >= count for most, count in zip(room, counts, strict=True)):
        scaled = _scaled(adapted, problem)
        yield from (_rules(scaled, None, wait, Priority.INPUT_FIRST, room) for wait in (0.0, 0.5, 1.0))
        yield _rules(scaled, None, 0.0, Priority.ALTERNATE, room)
        return
    classic = [len(stages) - i for i in problem.workers.stage.tolist()]
    shapes = (_scaled(adapted, problem), _scaled(classic, problem), classic)
    for wait, (margin, priority), shape in product((0.0, 0.5), TIGHT, shapes):
        yield _rules(shape, margin, wait, priority, room)


def adaptra_rules(problem: Problem, stages: Sequence[Stage]) -> DispatchRules:
    """Algorithm 2's warm-ups for the fault-free pipelines, with I before F before W: Adaptra on its own."""
    warmup = warmups_of(stages, problem.inside_s, problem.jobs)
    return _rules(warmup, None, 0.0, Priority.INPUT_FIRST, rooms(problem))


def warmups_of(stages: Sequence[Stage], delay_s: Floats, jobs: int) -> list[int]:
    """Algorithm 2's warm-up of each worker.

    Args:
        stages: of each pipeline.
        delay_s: of each pipeline's links, pipelines x links.
        jobs: of all pipelines.
    """
    rows = list(map(tuple, delay_s.tolist()))
    most = max(jobs // len(rows) - 2 * len(stages), 2)
    found = {row: algorithm_2(stages, [Link(c_s) for c_s in row], most) for row in dict.fromkeys(rows)}
    return [x for row in rows for x in found[row]]


def remaining_delays_s(problem: Problem, slow: Flags) -> Floats:
    """The delay of each link inside each pipeline, where its slow pair carries nothing that between pipelines."""
    own = np.arange(len(problem.depth))
    unused = (slow & (crossing(problem, slow) == 0))[:, own, own].T
    return np.where(unused, problem.between_s, problem.inside_s)


def _scaled(warmup: Sequence[int], problem: Problem) -> list[int]:
    share = problem.jobs / len(problem.depth)
    return [ceil(x * n / share - WARMUP_ROUNDING) for x, n in zip(warmup, problem.job_counts.tolist(), strict=True)]


def _rules(
    shape: Sequence[int], margin: int | None, wait: float, priority: Priority, room: Sequence[int]
) -> DispatchRules:
    """Rules with this warm-up, as far as there is room; `margin` as in TIGHT."""
    warmup = [max(min(x, most), 1) for x, most in zip(shape, room, strict=True)]
    count = len(warmup)
    in_flight = [UNLIMITED if margin is None else x + margin for x in warmup]
    return DispatchRules(warmup, in_flight, [wait] * count, [UNLIMITED] * count, [priority] * count)
