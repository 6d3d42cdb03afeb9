"""What a change of a problem is worth, measured.

Three numbers say it: the time of known orders under the change (they exist, so it can be had), the time of orders that
are searched for it, and the lower bound under it (it can give no more). Orders are searched for the unchanged problem
in the same way, and all that are found for one problem are timed on every other that admits them: so a lucky search is
hardly ever taken for a better machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...schemas.errors import InfeasibleError
from ..scheduling.bounds.lower_bound import lower_bound
from ..scheduling.problem import Orders, Problem
from ..scheduling.proof import ROUNDING
from ..scheduling.retime import Retimer, value_s
from ..scheduling.solve import Effort, solve
from .changes import Change, Changed

# How many searches for orders there are at most, and how many operations in all of them: some seconds' worth.
MOST_SEARCHES = 7
BUDGET_OPERATIONS = 20_000
# A problem that is too large for the budget still gets so many, up to so many operations of its own.
FEWEST_SEARCHES = 2
MOST_OPERATIONS = 20_000


@dataclass(frozen=True, slots=True)
class Effect:
    """A change and what it is worth.

    Attributes:
        change: the change.
        same_orders_s: the iteration time of the plan's own orders under it.
        same_orders_saved_s: what that is shorter than without the change.
        iteration_time_s: that of the best orders known under it.
        saved_s: what it is shorter than that of the best orders known without the change.
        lower_bound_s: no orders take less under it.
        bound_saved_s: what the bound without a search is lower than without the change.
        searched: whether orders were searched for it; otherwise known ones were timed, and may be optimal.
    """

    change: Change
    same_orders_s: float
    same_orders_saved_s: float
    iteration_time_s: float
    saved_s: float
    lower_bound_s: float
    bound_saved_s: float
    searched: bool


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What changes are worth.

    Attributes:
        iteration_time_s: of the best orders known without a change: what changes are compared with.
        saved_s: what it is shorter than that of the plan's own orders.
        lower_bound_s: the best bound known without a change.
        searched: the same without a change.
        effects: of the changes that help, the most helpful first; some help only the plan's own orders, and some were
            not searched but lower the bound.
        tried: how many changes were looked at.
    """

    iteration_time_s: float
    saved_s: float
    lower_bound_s: float
    searched: bool
    effects: tuple[Effect, ...]
    tried: int


def what_if(
    problem: Problem, orders: Orders, changes: Sequence[Changed], effort: Effort, searches: int = MOST_SEARCHES
) -> WhatIf:
    """Measure changes; orders are searched for the most promising ones, as far as the problem's size allows.

    Args:
        problem: the unchanged problem.
        orders: valid orders for it.
        changes: what to try, all of them relaxations.
        effort: how hard to search.
        searches: how many problems orders are searched for at most, the unchanged one among them.
    """
    own = _Trial(problem, orders)
    trials = [_Trial(changed, orders) for _, changed in changes]
    searches = min(searches, _affordable(problem.operations))
    if searches and own.open and own.search(effort):
        _share(own, trials)
    promising = sorted((trial for trial in trials if trial.open), key=lambda trial: -trial.promise_s(own))
    for trial in promising[: max(searches - 1, 0)]:
        if trial.search(effort):
            _share(trial, [own, *trials])
    effects = [trial.effect_of(change, own) for trial, (change, _) in zip(trials, changes, strict=True)]
    helpful = [effect for effect in effects if _promise_s(effect) > own.first_s * ROUNDING]
    ranked = sorted(_told_once(helpful), key=lambda effect: (-effect.saved_s, -_promise_s(effect)))
    return WhatIf(own.value_s, own.saved_s, own.bound_s, own.searched, tuple(ranked), len(changes))


def _affordable(operations: int) -> int:
    """How many searches a problem of so many operations gets."""
    return max(BUDGET_OPERATIONS // operations, FEWEST_SEARCHES) if operations <= MOST_OPERATIONS else 0


class _Trial:
    """A problem, and the best orders known for it."""

    def __init__(self, problem: Problem, orders: Orders) -> None:
        self.problem = problem
        self.orders = orders
        self.value_s = self.first_s = value_s(problem, orders)
        self.bound_s = self.simple_bound_s = min(lower_bound(problem).value_s, self.value_s)
        self.searched = False

    @property
    def open(self) -> bool:
        """Whether the bound leaves room for better orders."""
        return self.bound_s < self.value_s * (1 - ROUNDING)

    def promise_s(self, own: _Trial) -> float:
        """How much the change gains by what is known: in the time of known orders, or in the bound."""
        return max(own.value_s - self.value_s, own.simple_bound_s - self.simple_bound_s)

    def search(self, effort: Effort) -> bool:
        """Search for orders; returns whether better ones were found."""
        try:
            found = solve(self.problem, effort)
        except InfeasibleError:  # the checker grants a limit some rounding, the rules do not
            return False
        self.searched = True
        self.bound_s = max(self.bound_s, min(found.bound_s, found.value_s))
        return self.take(found.orders, found.value_s)

    def take(self, orders: Orders, found_s: float) -> bool:
        """Keep orders if they are better."""
        better = found_s < self.value_s
        if better:
            self.orders, self.value_s = orders, found_s
        self.bound_s = min(self.bound_s, self.value_s)
        return better

    @property
    def saved_s(self) -> float:
        """How much shorter than the first orders the best are."""
        return self.first_s - self.value_s

    def effect_of(self, change: Change, own: _Trial) -> Effect:
        """What was found out about the change that made this problem of `own`."""
        return Effect(
            change,
            self.first_s,
            own.first_s - self.first_s,
            self.value_s,
            own.value_s - self.value_s,
            self.bound_s,
            own.simple_bound_s - self.simple_bound_s,
            self.searched,
        )


def _share(found: _Trial, others: Sequence[_Trial]) -> None:
    """Time the orders that were found for one problem on others."""
    for other in others:
        retimer = Retimer(other.problem)
        found_s = retimer.value_s(found.orders)
        if found_s < other.value_s and _fit(retimer, found.orders):
            other.take(found.orders, found_s)


def _fit(retimer: Retimer, orders: Orders) -> bool:
    """Whether the orders that were timed last keep the memory limits."""
    reaches = [(worker, retimer.reach(worker)) for worker, order in enumerate(orders) if len(order)]
    return all(retimer.fits(worker, reach[0], reach[-1]) for worker, reach in reaches)


def _promise_s(effect: Effect) -> float:
    """The most that it saves anyhow: in the time of any orders, or, where none were searched, in the bound, in s."""
    return max(effect.saved_s, effect.same_orders_saved_s, 0.0 if effect.searched else effect.bound_saved_s)


def _told_once(helpful: Sequence[Effect]) -> Iterator[Effect]:
    """Without changes everywhere that give no more than one of the same kind at one place."""
    for effect in helpful:
        rivals = [x for x in helpful if x.change.kind == effect.change.kind and x is not effect]
        if not effect.change.everywhere or all(_beats(effect, rival) for rival in rivals):
            yield effect


def _beats(effect: Effect, other: Effect) -> bool:
    """Whether orders, or the plan's own, take less under one change than under another."""
    return (
        effect.iteration_time_s < other.iteration_time_s * (1 - ROUNDING)
        or effect.same_orders_s < other.same_orders_s * (1 - ROUNDING)
        or (not effect.searched and effect.lower_bound_s < other.lower_bound_s * (1 - ROUNDING))
    )
