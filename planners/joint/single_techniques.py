"""What each technique does on its own, and one after the other: what a joint plan must beat.

* **re-routing** (SlipStream): a dead worker's micro-batches in turns to its peers, by orders made as if nothing were
  slow; and by the same rules, but with everybody running what arrives, in the order in which it does.
  Where nothing is slow, also rtk's own way, in slots (slipstream/slots.py).
* **adapted warm-ups** (Adaptra): the same routing, Algorithm 2's warm-ups for the links as they are.
* **uneven pipelines** (Greyhound's S2): slow pipelines give whole micro-batches to quick ones, by how long each takes
  as it is; orders made as if nothing were slow. Dead workers are re-routed as above, or their pipelines are dropped.
* **these, one after the other**: uneven pipelines, then re-routing, then Algorithm 2's warm-ups.
* **zero-bubble**: where nobody is dead, doing nothing: every pipeline as if it were alone and nothing slow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..pipeline.zero_bubble import zero_bubble
from ..scheduling.list_schedule import ListScheduler, list_schedule
from ..scheduling.portfolio import portfolio
from ..scheduling.problem import Orders, Problem, in_jobs
from ..scheduling.retime import Retimer
from ..scheduling.rules import Rules
from ..slipstream.expansion import expanded
from ..slipstream.routing import round_robin
from ..slipstream.slot_search import SlotSearch
from .bound import JointBound
from .situation import Situation
from .warmups import adaptra_rules
from .water_fill import handed_out, least_loads

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints

TechniqueName = Literal[
    "zero-bubble",
    "re-routing",
    "re-routing, in arrival order",
    "re-routing, in slots",
    "adapted warm-ups",
    "uneven pipelines",
    "uneven pipelines, the dead one dropped",
    "these, one after the other",
]
TOGETHER: TechniqueName = "these, one after the other"
# Rules that are tried for orders made as if nothing were slow.
USUAL_RULES = 12


@dataclass(frozen=True, eq=False)
class Single:
    """A technique's routing, for the pipelines as they are, and how it orders.

    Attributes:
        name: of the technique.
        problem: the routing.
        ordered: by orders made as if nothing were slow, by the same rules in arrival order, by Algorithm 2's warm-ups,
            each pipeline alone by zero-bubble, or all peers in step.
    """

    name: TechniqueName
    problem: Problem
    ordered: Literal["frozen", "arrival", "adapted", "alone", "slots"]

    def rerouted(self, problem: Problem) -> Single | None:
        """The technique with another routing; None if its orders are for its own routing only."""
        if (problem.executor != self.problem.executor).any() and self.ordered in ("alone", "slots"):
            return None
        return replace(self, problem=problem)

    def orders(self, situation: Situation) -> Orders:
        """The technique's orders."""
        if self.ordered == "adapted":
            return list_schedule(self.problem, adaptra_rules(self.problem, situation.stages))
        if self.ordered == "alone":
            return zero_bubbles(situation)
        if self.ordered == "slots":
            return _in_slots(situation)[1]
        frozen, rules = usual_orders(replace(situation.usual, executor=self.problem.executor))
        return frozen if self.ordered == "frozen" else list_schedule(self.problem, rules)


def single_techniques(situation: Situation) -> Iterator[Single]:
    """All of them that there are in a situation."""
    home = situation.home
    even = round_robin(home)
    if home.workers.live.all():
        yield Single("zero-bubble", even, "alone")
    else:
        yield Single("re-routing", even, "frozen")
        yield Single("re-routing, in arrival order", even, "arrival")
        if situation.equal_stages.all() and not situation.slow.any():
            yield Single("re-routing, in slots", _in_slots(situation)[0], "slots")
    yield Single("adapted warm-ups", even, "adapted")
    taken_s = paces_s(situation)
    uneven = _of_pipelines(home, least_loads(taken_s, home.jobs))
    if uneven is not None:
        yield Single("uneven pipelines", uneven, "frozen")
        yield Single(TOGETHER, uneven, "adapted")
    whole = home.workers.live.reshape(len(taken_s), -1).all(axis=1)
    if whole.any() and not whole.all():
        dropped = _of_pipelines(home, least_loads(np.where(whole, taken_s, np.inf), home.jobs))
        if dropped is not None:
            yield Single("uneven pipelines, the dead one dropped", dropped, "frozen")


def usual_orders(problem: Problem) -> tuple[Orders, Rules]:
    """The best orders by the first rules of the portfolio, and these rules."""
    scheduler = ListScheduler(problem, runs=USUAL_RULES)
    best, best_s = None, np.inf
    orders: Orders = []
    for rules in islice(portfolio(problem), USUAL_RULES):
        found_s = scheduler.run(rules)
        if found_s < best_s:
            best, best_s, orders = rules, found_s, scheduler.orders()
    assert best is not None
    return orders, best


def zero_bubbles(situation: Situation) -> Orders:
    """Zero-bubble's orders for one pipeline, with nothing slow, in all of them."""
    pipelines, alone = len(situation.home.depth), situation.pipeline
    orders = zero_bubble(alone, JointBound(alone).value_s)
    # Micro-batch j of pipeline k is job j * pipelines + k: they have as many each.
    jobs = range(situation.home.jobs)
    return [order for k in range(pipelines) for order in in_jobs(orders, jobs[k::pipelines])]


def _in_slots(situation: Situation) -> tuple[Problem, Orders]:
    """SlipStream's slots for the dead workers: the routing and its orders."""
    search = SlotSearch(situation.pipeline, len(situation.home.depth))
    found = search.look((len(situation.home.depth) - situation.live.sum(axis=0)).tolist())
    return expanded(situation.home, found.slots, search.orders(found.slots, found.rules))


def paces_s(situation: Situation) -> Floats:
    """How long each pipeline takes as it is, by zero-bubble's orders; the dead count as alive. In s."""
    retimer = Retimer(situation.revived, USUAL_RULES)
    retimer.value_s(zero_bubbles(situation))
    ends_s: Floats = retimer.spans_s[1].reshape(len(situation.home.depth), -1).max(axis=1)
    return ends_s


def _of_pipelines(home: Problem, room: Ints) -> Problem | None:
    """The routing in which pipeline k runs `room[k]` micro-batches from end to end, but for dead workers' peers.

    None where all pipelines that have something to run lack a worker of the same stage.
    """
    stages = np.arange(home.executor.shape[1])
    executor = handed_out(home.origin, room)[:, None] * len(stages) + stages
    if not home.workers.live[executor].any(axis=0).all():
        return None
    return round_robin(replace(home, executor=executor))
