"""What each technique does on its own, and one after the other: what a joint plan must beat.

* **re-routing** (SlipStream): a dead worker's micro-batches in turns to its peers, by orders made as if nothing were
  slow; by the same rules, but with everybody running what arrives, in the order in which it does; and in slots, as
  `rtk plan slipstream` does it where nothing is slow (slipstream/rerouting.py).
* **re-routing, told what is slow**: as it does it where something is: by load, in turns and in blocks.
* **adapted warm-ups** (Adaptra): re-routing in turns, and Algorithm 2's warm-ups for the links as they are.
* **uneven pipelines** (Greyhound's S2): slow pipelines give whole micro-batches to quick ones, by how long each takes
  as it is; orders made as if nothing were slow. Dead workers are re-routed as above, or their pipelines are dropped.
* **these, one after the other**: uneven pipelines, then re-routing, then Algorithm 2's warm-ups.
* **each pipeline alone**: where nobody is dead, zero-bubble as if nothing were slow; and by a search for what is, as
  `rtk plan adaptra` does it.

All of them have the objective, the memory and the split of backwards that the joint plan has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..adaptra.plan import own_rules
from ..pipeline.zero_bubble import zero_bubble
from ..scheduling.list_schedule import ListScheduler, list_schedule
from ..scheduling.portfolio import portfolio
from ..scheduling.problem import Orders, Problem, alone, home_problem, in_jobs
from ..scheduling.retime import Retimer
from ..scheduling.rules import Rules
from ..scheduling.solve import FIRST_LOOK, Effort, solve
from ..slipstream.rerouting import reroute_alike
from ..slipstream.routing import block, by_load, round_robin
from ..slipstream.selective_decoupling import decoupled_where_it_helps
from ..slipstream.slot_search import SlotSearch
from .bound import JointBound
from .situation import Situation
from .warmups import adaptra_rules
from .water_fill import handed_out, least_loads

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints

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
RUNS = 10  # about so many schedules are timed


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
        return problem, usual_orders(_usual(situation, problem))[0]

    def as_it_arrives(problem: Problem) -> Made:
        return problem, list_schedule(problem, usual_orders(_usual(situation, problem))[1])

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
        taken_s = Retimer(problem, RUNS).value_s(orders)
        found[single.name] = min(taken_s, found.get(single.name, np.inf))
    return found


def usual_orders(problem: Problem) -> tuple[Orders, Rules]:
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
    orders = zero_bubble(one, JointBound(one).value_s)
    return _beside_each_other(situation.home, [orders] * len(situation.home.depth))


def paces_s(situation: Situation) -> Floats:
    """How long each pipeline takes as it is, by zero-bubble's orders; the dead count as alive. In s."""
    retimer = Retimer(situation.revived, FIRST_LOOK)
    retimer.value_s(zero_bubbles(situation))
    ends_s: Floats = retimer.spans_s[1].reshape(len(situation.home.depth), -1).max(axis=1)
    return ends_s


def _usual(situation: Situation, problem: Problem) -> Problem:
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
