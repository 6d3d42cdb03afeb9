"""From a placed problem to orders: rules, published orders, annealing of due times, entries one by one, and moves.

Each part stops at the proven lower bound, so most problems never see the next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain, islice
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.problem import Proven
from ..scheduling.solve import Effort
from .entries import one_by_one
from .exact_seats import SeatCpSat
from .moves import with_moves
from .pairs import neighbours_paired, other_pairs
from .published import published_orders
from .rules import BESIDES, pace_s, paced_greedy, portfolio, side_by_side
from .scheduler import DueTimes, SeatScheduler, fits

if TYPE_CHECKING:
    from .problem import Floats, PlacedProblem, SeatOrders

# How many rules are tried before machine code may be worth loading.
FIRST_LOOK = 8
# Up to so many operations published orders are tried; to write them down takes as long as some rules.
PUBLISHED_OPERATIONS = 120_000
# Operations that rules may schedule in all, and annealing: a second or two of machine code each; and rules for whoever
# waits, a fifth of a second.
RULES_OPERATIONS = 10_000_000
HURRIED_OPERATIONS = 600_000
ANNEALED_OPERATIONS = 12_000_000
# By what factor the best must lie above the bound for entries to be chosen one by one, and for single moves.
WIDE_GAP = 1.01
# From how many of the best rules annealing begins, and how many others each tries at most.
STARTS = 3
ANNEALING_RUNS = 6000
FEWEST_RUNS = 50
# Cooling, relative to the objective; and steps of offsets, and of entries, in paces.
HOTTEST, COLDEST = 5e-3, 5e-5
STEPS = (0.2, 1.0)
ENTRY_STEPS = (0.2, 0.5, 1.0)
# How often keys are moved for some jobs only, and for how long a worker may wait for what is more urgent.
PARTLY = 0.3
TOGETHER = 0.05  # how often passes run side by side in another way
WAITS = (0.0, 0.3, 0.5, 0.7, 1.0)


@dataclass(frozen=True)
class PlacedSolution(Proven):
    """Orders as operation codes, their objective, and the proven bound on it (s); `found_by` names the part."""

    orders: SeatOrders
    value_s: float
    bound_s: float
    found_by: str


def solve(
    problem: PlacedProblem,
    effort: Effort,
    bound_s: float = 0.0,
    *,
    start: SeatOrders | None = None,
    known: Sequence[DueTimes] = (),
    anneals: bool = True,
) -> PlacedSolution:
    """Order a placed problem's operations for the least makespan, or period.

    Args:
        problem: what to order.
        effort: how hard to try: "rules" tries published orders and as many rules as a fifth of a second is enough for,
            for whoever waits.
        bound_s: what no orders undercut, in s; the search ends there.
        start: orders that are known already; what is found is no worse.
        known: what a search has found for a problem much like this one: it goes on from there, with fewer other rules.
        anneals: whether to search on by chance where no rule reaches the bound: for seconds.

    Raises:
        InfeasibleError: a limit does not admit what one micro-batch needs.
    """
    is_hurried = effort.solver == "rules"
    most = HURRIED_OPERATIONS if is_hurried or known else RULES_OPERATIONS
    tried = portfolio(problem) if problem.overlap == 1 else side_by_side(portfolio(problem))
    rules = list(islice(chain(known, tried), max(FIRST_LOOK, most // problem.operations)))
    best = PlacedSolution([], float("inf"), bound_s, "nothing")
    if start is not None:
        best = _better(best, SeatScheduler(problem).value_s(start), start, "start")
    parts: tuple[Callable[[PlacedSolution], PlacedSolution], ...] = (
        lambda best: _try_rules(problem, rules[:FIRST_LOOK], best),
        lambda best: _try_published(problem, best),
        lambda best: _try_rules(problem, rules[FIRST_LOOK:], best),
        lambda best: _anneal(problem, known or rules, best, effort.seed) if anneals and not is_hurried else best,
        lambda best: _try_entries(problem, best, effort.seed) if anneals and not is_hurried else best,
        lambda best: _try_moves(problem, best, effort.seed) if anneals and not is_hurried else best,
        lambda best: _polish(problem, best, effort) if problem.overlap == 1 else _repaired(problem, best),
    )
    for part in parts:
        best = part(best)
        if best.optimal:
            break
    return best


def _try_rules(
    problem: PlacedProblem, rules: Sequence[DueTimes], best: PlacedSolution, found_by: str = "portfolio"
) -> PlacedSolution:
    """The best by these rules."""
    scheduler = SeatScheduler(problem, runs=len(rules))
    for one in rules:
        found_s = scheduler.run(one)
        if found_s < best.value_s:
            best = _better(best, found_s, scheduler.orders(), found_by)
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
            if problem.overlap < 1:
                beside = neighbours_paired(problem, orders)
                best = _better(best, scheduler.value_s(beside), beside, name)
        if best.optimal:
            break
    return best


def _anneal(problem: PlacedProblem, rules: Sequence[DueTimes], best: PlacedSolution, seed: int) -> PlacedSolution:
    """Annealing of due times: from the best rules, and at last from the best orders, as far as the budget goes.

    Under limits one of the starts has greedy priorities with paced entries, even if others are better as they are: from
    there moves of entries alone lead far.
    """
    runs = _annealing_runs(problem)
    if runs < FEWEST_RUNS:
        return best
    scheduler = SeatScheduler(problem, runs=len(rules) + (STARTS + 1) * runs)
    chance = random.Random(seed)
    starts = sorted(paced_greedy(problem), key=scheduler.run)[:1]
    starts = sorted(rules, key=scheduler.run)[: STARTS - len(starts)] + starts
    for start in starts:
        best = _anneal_from(scheduler, start, best, runs, chance)
    return _anneal_from(scheduler, scheduler.rules_of(best.orders), best, runs, chance)


def _annealing_runs(problem: PlacedProblem) -> int:
    """How many rules annealing tries from each of its starts."""
    return min(ANNEALING_RUNS, ANNEALED_OPERATIONS // problem.operations // (STARTS + 1))


def _try_entries(problem: PlacedProblem, best: PlacedSolution, seed: int) -> PlacedSolution:
    """Entries that are chosen one by one, where a limit leaves a gap that is worth it; if they are better, annealing
    goes on from there."""
    if best.value_s <= best.bound_s * WIDE_GAP:
        return best
    rules = one_by_one(problem, best.value_s)
    if rules is None:
        return best
    better = _try_rules(problem, [rules], best, "entries")
    runs = _annealing_runs(problem)
    if better is best or runs < FEWEST_RUNS:
        return better
    return _anneal_from(SeatScheduler(problem, runs=runs), rules, better, runs, random.Random(seed))


def _anneal_from(
    scheduler: SeatScheduler, current: DueTimes, best: PlacedSolution, runs: int, chance: random.Random
) -> PlacedSolution:
    """Simulated annealing from some rules, until the bound is reached or so many others were tried."""
    whole_s, current_s = pace_s(scheduler.problem), scheduler.run(current)
    for run in range(runs):
        if best.optimal:
            break
        if scheduler.problem.overlap < 1 and chance.random() < TOGETHER:
            other = replace(current, beside=chance.choice(BESIDES))
        else:
            other = _neighbour(current, whole_s, chance)
        other_s = scheduler.run(other)
        heat_s = best.value_s * HOTTEST * (COLDEST / HOTTEST) ** (run / runs)
        if other_s <= current_s or chance.random() < exp((current_s - other_s) / heat_s):
            current, current_s = other, other_s
        if other_s < best.value_s:
            best = _better(best, other_s, scheduler.orders(), "annealing")
    return best


def _try_moves(problem: PlacedProblem, best: PlacedSolution, seed: int) -> PlacedSolution:
    """The best orders that moves of single operations lead to, where a gap is left that is worth it and no passes run
    side by side: pairs would be torn apart."""
    if problem.overlap < 1 or best.value_s <= best.bound_s * WIDE_GAP:
        return best
    orders = with_moves(problem, best.orders, best.bound_s, random.Random(seed))
    return _better(best, SeatScheduler(problem).value_s(orders), orders, "moves")


def _neighbour(rules: DueTimes, whole_s: float, chance: random.Random) -> DueTimes:
    """The rules with another pace, other entries or another wait; or with keys moved.

    Args:
        rules: to change.
        whole_s: the pace of the busiest worker.
        chance: the source of randomness.
    """
    what = chance.random()
    if what < 0.05:
        return replace(rules, due_s=rules.due_s + chance.gauss(0.0, 0.1 * whole_s) * np.arange(len(rules.due_s)))
    if what < 0.35:
        return replace(rules, enters_s=_other_entries(rules, whole_s, chance))
    if what < 0.4:
        return replace(rules, wait=chance.choice(WAITS))
    return replace(rules, offset_s=_other_offsets(rules, whole_s, chance))


def _other_entries(rules: DueTimes, whole_s: float, chance: random.Random) -> Floats:
    """All entries further apart, or less; or those of one job, or of a run of them, later or sooner."""
    jobs = len(rules.due_s)
    enters_s = np.broadcast_to(rules.enters_s, jobs).copy()
    what = chance.random()
    if what < 0.25:
        return enters_s * exp(chance.gauss(0.0, 0.05))
    first = chance.randrange(jobs)
    size = 1 if what < 0.6 else chance.randint(1, jobs)
    enters_s[first : first + size] += chance.gauss(0.0, chance.choice(ENTRY_STEPS) * whole_s)
    return enters_s


def _other_offsets(rules: DueTimes, whole_s: float, chance: random.Random) -> Floats:
    """Some keys of a kind moved, of single stages or a run of them, of all jobs or a run of them."""
    jobs, (stages, kinds) = len(rules.due_s), rules.offset_s.shape[-2:]
    offset_s = np.broadcast_to(rules.offset_s, (jobs, stages, kinds)).copy()
    size_s = chance.choice(STEPS) * whole_s
    some = slice(None)
    if chance.random() < PARTLY:
        first = chance.randrange(jobs)
        some = slice(first, first + chance.randint(1, jobs))
    if chance.random() < 0.5:
        for _ in range(chance.randint(1, 4)):
            offset_s[some, chance.randrange(stages), chance.randrange(kinds)] += chance.gauss(0.0, size_s)
    else:
        first, last = sorted((chance.randrange(stages), chance.randrange(stages)))
        offset_s[some, first : last + 1, chance.randrange(kinds)] += chance.gauss(0.0, size_s)
    return offset_s


def _repaired(problem: PlacedProblem, best: PlacedSolution) -> PlacedSolution:
    """The best orders with neighbours run side by side, or no longer so, wherever that alone is shorter."""
    orders, found_s = other_pairs(problem, best.orders, best.bound_s)
    return _better(best, found_s, orders, best.found_by)


def _polish(problem: PlacedProblem, best: PlacedSolution, effort: Effort) -> PlacedSolution:
    """What CP-SAT makes of it, if it is asked for, or is there and has time."""
    asked = effort.solver == "cp-sat" or (effort.solver == "auto" and find_spec("ortools") is not None)
    if not asked or effort.time_limit_s <= 0:
        return best
    attempt = SeatCpSat().improve(
        problem, best.orders, best.bound_s, time_limit_s=effort.time_limit_s, seed=effort.seed
    )
    best = replace(best, bound_s=max(best.bound_s, attempt.bound_s))
    if attempt.orders is None:
        return best
    return _better(best, SeatScheduler(problem).value_s(attempt.orders), attempt.orders, attempt.solver)


def _better(best: PlacedSolution, found_s: float, orders: SeatOrders, found_by: str) -> PlacedSolution:
    return replace(best, orders=orders, value_s=found_s, found_by=found_by) if found_s < best.value_s else best
