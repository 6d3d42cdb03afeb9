"""From dead workers to orders: slots where workers are alike and the bound is reached, else the scheduling core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.atlas import Recipe, SlotRules
from ..scheduling.bounds.lower_bound import lower_bound
from ..scheduling.list_schedule import ListScheduler
from ..scheduling.retime import value_s
from ..scheduling.rules import Priority, Rules
from ..scheduling.solve import ROUNDING, Effort, solve
from .expansion import expanded, route
from .routing import block, by_load, round_robin
from .slot_search import FIRST_LOOK, SlotSchedule, SlotSearch
from .slots import Slots

if TYPE_CHECKING:
    from ..scheduling.problem import Orders, Problem

# Up to so many operations, what slots leave open is searched by moves, annealing, and exact solvers if asked for.
SEARCHED_OPERATIONS = 20_000


@dataclass(frozen=True)
class Rerouting:
    """Orders for the live workers, their makespan or period, and the bound on it, in s.

    `recipe` says how they were made; None where a search has found them.
    """

    problem: Problem
    orders: Orders
    value_s: float
    bound_s: float
    recipe: Recipe | None

    @property
    def optimal(self) -> bool:
        """Whether the bound is reached, up to rounding."""
        return self.value_s <= self.bound_s * (1 + ROUNDING)


def reroute_alike(home: Problem, search: SlotSearch, dead: Sequence[int], effort: Effort) -> Rerouting:
    """Orders for equal workers in each stage; the bound is for every routing.

    Args:
        home: equal pipelines in which every worker runs its own micro-batches, failed workers among them.
        search: for one of these pipelines.
        dead: failed workers of each stage.
        effort: how hard to try where slots leave a gap.
    """
    found = search.look(dead)
    best = _in_slots(home, search, found)
    if not best.optimal:
        slots = search.widest(dead)
        best = _by_workers(home, slots, search.candidates(slots)[:FIRST_LOOK], best)
    if not best.optimal and np.isfinite(home.workers.limit_bytes).any():
        best = min(best, _in_slots(home, search, search.search(dead, found, effort.seed)), key=lambda one: one.value_s)
    if not best.optimal and home.operations <= SEARCHED_OPERATIONS:
        routings = [best.problem, round_robin(home), block(home)]
        best = _searched(best, routings if any(dead) else [home], effort)
    return best


def reroute_unlike(home: Problem, effort: Effort) -> Rerouting:
    """Orders for workers that differ within a stage; the bound is for the routing that is taken.

    Args:
        home: as for `reroute_alike`.
        effort: how hard to try.
    """
    start = Rerouting(home, [], inf, 0.0, None)
    routings = [by_load(home), round_robin(home), block(home)]
    share = replace(effort, time_limit_s=effort.time_limit_s / len(routings))
    found = [_searched(start, [routing], share) for routing in routings]
    best = min(found, key=lambda one: one.value_s)
    return replace(best, bound_s=lower_bound(best.problem).value_s)


def slot_recipe(found: SlotSchedule) -> Recipe:
    """What makes a slot schedule again."""
    return Recipe(found.slots.group_sizes, _recorded(found.rules), "slots")


def follow(home: Problem, search: SlotSearch, recipe: Recipe) -> tuple[Problem, Orders]:
    """The routing and orders that a recipe of slots and rules makes, bit for bit."""
    assert recipe.group_sizes is not None and recipe.rules is not None
    slots, rules = Slots(home.jobs, recipe.group_sizes), _rules(recipe.rules)
    if recipe.scheduled == "slots":
        return expanded(home, slots, search.orders(slots, rules))
    problem = _routed(home, slots)
    scheduler = ListScheduler(problem)
    scheduler.run(_of_workers(problem, rules))
    return problem, scheduler.orders()


def _in_slots(home: Problem, search: SlotSearch, found: SlotSchedule) -> Rerouting:
    """A slot schedule's orders; where it leaves a gap they may take less time than the slots."""
    recipe = slot_recipe(found)
    problem, orders = follow(home, search, recipe)
    taken_s = found.value_s if found.optimal else value_s(problem, orders)
    return Rerouting(problem, orders, taken_s, found.bound_s, recipe)


def _by_workers(home: Problem, slots: Slots, candidates: Sequence[Rules], best: Rerouting) -> Rerouting:
    """The same kind of routing, but every worker goes by the rules on its own instead of in step with its peers."""
    problem = _routed(home, slots)
    scheduler = ListScheduler(problem, runs=len(candidates))
    for rules in candidates:
        taken_s = scheduler.run(_of_workers(problem, rules))
        if taken_s < best.value_s:
            recipe = Recipe(slots.group_sizes, _recorded(rules), "workers")
            best = replace(best, problem=problem, orders=scheduler.orders(), value_s=taken_s, recipe=recipe)
            if best.optimal:
                break
    return best


def _searched(best: Rerouting, routings: Sequence[Problem], effort: Effort) -> Rerouting:
    """What the scheduling core finds for these routings."""
    share = replace(effort, time_limit_s=effort.time_limit_s / len(routings))
    for problem in routings:
        solution = solve(problem, share)
        if solution.value_s < best.value_s:
            best = replace(best, problem=problem, orders=solution.orders, value_s=solution.value_s, recipe=None)
            if best.optimal:
                break
    return best


def _routed(home: Problem, slots: Slots) -> Problem:
    live = home.workers.live.reshape(len(home.depth), -1)
    return replace(home, executor=route(live, slots))


def _recorded(rules: Rules) -> SlotRules:
    return SlotRules(
        tuple(int(n) for n in rules.warmup),
        tuple(int(n) for n in rules.in_flight),
        tuple(float(share) for share in rules.weight_wait),
        tuple(int(n) for n in rules.backlog),
        tuple(int(priority) for priority in rules.priority),
    )


def _rules(recorded: SlotRules) -> Rules:
    priority = [Priority(number) for number in recorded.priority]
    return Rules(recorded.warmup, recorded.in_flight, recorded.weight_wait, recorded.backlog, priority)


def _of_workers(problem: Problem, rules: Rules) -> Rules:
    """Rules of stages as rules of workers."""
    stage = problem.workers.stage.tolist()
    columns = (rules.warmup, rules.in_flight, rules.weight_wait, rules.backlog, rules.priority)
    return Rules(*([column[i] for i in stage] for column in columns))
