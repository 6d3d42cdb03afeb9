"""From a placed problem to orders: rules, published orders, and annealing of due times.

Each part stops at the proven lower bound, so most problems never see the next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING

from ..scheduling.problem import Proven
from ..scheduling.solve import Effort
from .published import published_orders
from .rules import pace_s, portfolio
from .scheduler import DueTimes, SeatScheduler, fits

if TYPE_CHECKING:
    from .problem import PlacedProblem, SeatOrders

# How many rules are tried before machine code may be worth loading.
FIRST_LOOK = 8
# Up to so many operations published orders are tried; to write them down takes as long as some rules.
PUBLISHED_OPERATIONS = 50_000
# Operations that rules may schedule in all, and annealing: a second or two of machine code each.
RULES_OPERATIONS = 15_000_000
ANNEALED_OPERATIONS = 30_000_000
# From how many of the best rules annealing begins.
STARTS = 3
FEWEST_RUNS = 50
# Cooling, relative to the objective; and steps of offsets, in paces.
HOTTEST, COLDEST = 5e-3, 5e-5
STEPS = (0.2, 1.0)


@dataclass(frozen=True)
class PlacedSolution(Proven):
    """Orders as operation codes, their objective, and the proven bound on it (s); `found_by` names the part."""

    orders: SeatOrders
    value_s: float
    bound_s: float
    found_by: str


def solve(
    problem: PlacedProblem, effort: Effort, bound_s: float = 0.0, *, start: SeatOrders | None = None
) -> PlacedSolution:
    """Order a placed problem's operations for the least makespan, or period.

    Args:
        problem: what to order.
        effort: how hard to try: "rules" tries a few rules, in milliseconds, for whoever waits.
        bound_s: what no orders undercut, in s; the search ends there.
        start: orders that are known already; what is found is no worse.

    Raises:
        InfeasibleError: a limit does not admit what one micro-batch needs.
    """
    rules = list(portfolio(problem))
    best = PlacedSolution([], float("inf"), bound_s, "nothing")
    if start is not None:
        best = _better(best, SeatScheduler(problem).value_s(start), start, "start")
    parts: tuple[Callable[[PlacedSolution], PlacedSolution], ...] = (
        lambda best: _try_rules(problem, rules[:FIRST_LOOK], best),
        lambda best: _try_published(problem, best),
        lambda best: _try_rules(problem, rules[FIRST_LOOK:], best),
        lambda best: _anneal(problem, rules, best, effort.seed),
    )
    for part in parts[:1] if effort.solver == "rules" else parts:
        best = part(best)
        if best.optimal:
            break
    return best


def _try_rules(problem: PlacedProblem, rules: Sequence[DueTimes], best: PlacedSolution) -> PlacedSolution:
    """The best by these rules, as far as the budget goes."""
    tried = rules[: max(FIRST_LOOK, RULES_OPERATIONS // problem.operations)]
    scheduler = SeatScheduler(problem, runs=len(tried))
    for one in tried:
        found_s = scheduler.run(one)
        if found_s < best.value_s:
            best = _better(best, found_s, scheduler.orders(), "portfolio")
            if best.optimal:
                break
    return best


def _try_published(problem: PlacedProblem, best: PlacedSolution) -> PlacedSolution:
    """The best published order that memory admits, where there is any for the placement and few enough operations."""
    if problem.operations > PUBLISHED_OPERATIONS:
        return best
    scheduler = SeatScheduler(problem)
    for name, orders in published_orders(problem):
        if fits(problem, orders):
            best = _better(best, scheduler.value_s(orders), orders, name)
    return best


def _anneal(problem: PlacedProblem, rules: Sequence[DueTimes], best: PlacedSolution, seed: int) -> PlacedSolution:
    """Simulated annealing of due times from the best rules, as far as the budget goes."""
    runs = ANNEALED_OPERATIONS // problem.operations // STARTS
    if runs < FEWEST_RUNS:
        return best
    scheduler = SeatScheduler(problem, runs=len(rules) + STARTS * runs)
    chance = random.Random(seed)
    for current in sorted(rules, key=scheduler.run)[:STARTS]:
        current_s = scheduler.run(current)
        for run in range(runs):
            if best.optimal:
                return best
            other = _neighbour(problem, current, chance)
            other_s = scheduler.run(other)
            heat_s = best.value_s * HOTTEST * (COLDEST / HOTTEST) ** (run / runs)
            if other_s <= current_s or chance.random() < exp((current_s - other_s) / heat_s):
                current, current_s = other, other_s
            if other_s < best.value_s:
                best = _better(best, other_s, scheduler.orders(), "annealing")
    return best


def _neighbour(problem: PlacedProblem, rules: DueTimes, chance: random.Random) -> DueTimes:
    """The rules with some offsets changed, or those of a kind over a run of stages, or the pace, or the entry."""
    whole_s = pace_s(problem)
    what = chance.random()
    if what < 0.08:
        return replace(rules, pace_s=abs(rules.pace_s + chance.gauss(0.0, 0.1 * whole_s)))
    if what < 0.16:
        burst = chance.uniform(0.5, 1.5 * len(problem.allreduce_s))
        return replace(rules, burst=chance.choice((None, burst)), entry_s=whole_s * chance.uniform(0.9, 1.02))
    if what < 0.2:
        return replace(rules, wait=chance.choice((0.0, 0.3, 0.5, 0.7, 1.0)))
    offset_s = list(rules.offset_s)
    size_s = chance.choice(STEPS) * whole_s
    if what < 0.6:
        for _ in range(chance.randint(1, 4)):
            offset_s[chance.randrange(len(offset_s))] += chance.gauss(0.0, size_s)
    else:
        first, stop = sorted((chance.randrange(problem.stages), chance.randrange(problem.stages)))
        step_s = chance.gauss(0.0, size_s)
        for at in range(3 * first + chance.randrange(3), 3 * stop + 3, 3):
            offset_s[at] += step_s
    return replace(rules, offset_s=offset_s)


def _better(best: PlacedSolution, found_s: float, orders: SeatOrders, found_by: str) -> PlacedSolution:
    return replace(best, orders=orders, value_s=found_s, found_by=found_by) if found_s < best.value_s else best
