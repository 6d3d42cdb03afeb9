"""What a change of a problem is worth, measured.

Three numbers say it: the time of known orders under the change (they exist, so it can be had), the time of orders that
are searched for it, and the lower bound under it (it can give no more). Orders are searched for the unchanged problem
in the same way, and all that are found for one problem are timed on every other that admits them: so a lucky search is
hardly ever taken for a better machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np

from ...schemas.errors import InfeasibleError
from ...schemas.orders import Operation, print_order
from ...schemas.plan import Plan, Worker, name_of
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import ROUNDING, Orders, Problem
from ..scheduling.retime import Retimer, value_s
from ..scheduling.solve import Effort, solve

# Changes that could make an iteration shorter, one at a time: more memory, faster links, faster stages.
#
# Each is a relaxation: under it no orders take longer, or hold more than they may.


Kind = Literal["memory", "link", "compute", "slowdown", "allreduce", "optimizer"]
Members = list[int]  # workers, or pipelines, by number
LinkUse = tuple[int, Members, Members]  # a link, the pipelines that use it inside, those whose messages use it between

# What operation times, and delays, are multiplied by.
FASTER, HALF = 0.9, 0.5
EVERY_STAGE, EVERY_LINK = "every stage", "every link"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a plan's conditions.

    Attributes:
        kind: "memory" admits one more activation, "link" halves a delay, "compute" makes operations 10 % faster,
            "slowdown" ends one, "allreduce" and "optimizer" halve these times.
        where: the place in words, such as "stage 2", "every link", "worker 0/3".
        stages, links, workers: the place as numbers and names; empty for every one.
        extra_bytes: what "memory" adds to the limit of each worker of the stage; None for others.
    """

    kind: Kind
    where: str
    stages: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()
    extra_bytes: float | None = None

    @property
    def everywhere(self) -> bool:
        """Whether it is made at every place."""
        return not (self.stages or self.links or self.workers)


Changed = tuple[Change, Problem]  # with the problem as the change makes it


def changes_of(alike: Alike, problem: Problem) -> list[Changed]:
    """The changes that can be tried on a plan.

    Args:
        alike: the plan, with one of each kind of pipelines.
        problem: its problem.
    """
    workers, found = problem.workers, list(_memory(alike, problem))
    for where, stage, members in stages_of(alike.plan):
        found.append((Change("compute", where, stages=(stage,)), _with_times(problem, members, FASTER)))
    for number, worker in enumerate(alike.plan.workers):
        if worker.slowdown is not None and worker.slowdown > 1 and not worker.failed:
            names = alike.names_of(number)
            change = Change("slowdown", _listed("worker", names), workers=names)
            found.append((change, _with_times(problem, [number], 1 / worker.slowdown)))
    found += _links(alike, problem)
    if workers.allreduce_s.any():
        half = replace(workers, allreduce_s=workers.allreduce_s * HALF)
        found.append((Change("allreduce", EVERY_STAGE), replace(problem, workers=half)))
    if workers.optimizer_s.any():
        half = replace(workers, optimizer_s=workers.optimizer_s * HALF)
        found.append((Change("optimizer", EVERY_STAGE), replace(problem, workers=half)))
    return found


def stages_of(plan: Plan) -> Iterator[tuple[str, int, Members]]:
    """Each stage, or column, of each template that is in use: what to call it, its number, and its live workers."""
    found: dict[tuple[str, int], Members] = {}
    for number, worker in enumerate(plan.workers):
        if not worker.failed:
            found.setdefault((plan.pipelines[worker.pipeline].template, worker.stage), []).append(number)
    several = len({template for template, _ in found}) > 1
    noun = "column" if plan.is_placed else "stage"
    for (template, stage), members in found.items():
        yield f"{noun} {stage}" + (f" of template {template}" if several else ""), stage, members


def short_of_memory(problem: Problem, members: Sequence[int]) -> bool:
    """Whether one of these workers cannot hold all its micro-batches at once."""
    workers, chosen = problem.workers, np.asarray(members)
    return bool((problem.job_counts * workers.activation_bytes > workers.limit_bytes)[chosen].any())


def without_limits(problem: Problem, members: Sequence[int]) -> Problem:
    """The problem without the memory limits of some workers."""
    limit_bytes = problem.workers.limit_bytes.astype(np.float64)
    limit_bytes[members] = np.inf
    return replace(problem, workers=replace(problem.workers, limit_bytes=limit_bytes))


def _memory(alike: Alike, problem: Problem) -> Iterator[Changed]:
    """One more activation, for each stage that cannot hold all its micro-batches, and for all of these."""
    limited: Members = []
    for where, stage, members in stages_of(alike.plan):
        if short_of_memory(problem, members):
            extra_bytes = float(problem.workers.activation_bytes[members[0]])
            yield Change("memory", where, stages=(stage,), extra_bytes=extra_bytes), _with_room(problem, members)
            limited += members
    if limited:
        yield Change("memory", EVERY_STAGE), _with_room(problem, limited)


def _with_room(problem: Problem, members: Members) -> Problem:
    """One more activation for some workers, and not a rounding less."""
    workers, limit_bytes = problem.workers, problem.workers.limit_bytes.astype(np.float64)
    one_bytes = workers.activation_bytes[members]
    held = np.floor(limit_bytes[members] / one_bytes * (1 + 1e-9))
    limit_bytes[members] = np.maximum(limit_bytes[members] + one_bytes, (held + 1) * one_bytes)
    return replace(problem, workers=replace(workers, limit_bytes=limit_bytes))


def _with_times(problem: Problem, members: Members, factor: float) -> Problem:
    """Some workers' operation times multiplied."""
    workers = problem.workers
    factors = np.ones(len(workers.stage))
    factors[members] = factor
    times = {name: getattr(workers, name) * factors for name in ("forward_s", "input_s", "weight_s", "full_s")}
    return replace(problem, workers=replace(workers, **times))


def _links(alike: Alike, problem: Problem) -> Iterator[Changed]:
    """Half the delay, of each link, and of all."""
    places = list(_delays(alike, problem))
    for link, inside, between in places:
        pipelines = sorted(k for member in inside for k in alike.pipelines[member])
        where = f"link {link} of {_listed('pipeline', pipelines)}" if inside else f"link {link} between pipelines"
        everyone = len(inside) == len(alike.pipelines)
        change = Change("link", f"link {link}" if everyone else where, links=(link,))
        yield change, _with_delays(problem, [(link, inside, between)])
    if places:
        yield Change("link", EVERY_LINK), _with_delays(problem, places)


def _delays(alike: Alike, problem: Problem) -> Iterator[LinkUse]:
    """The links with a delay; of a template's pipelines those with the same delay together."""
    for link in range(problem.inside_s.shape[1]):
        found: dict[tuple[str, float], tuple[Members, Members]] = {}
        for k, pipeline in enumerate(alike.plan.pipelines):
            found.setdefault((pipeline.template, problem.inside_s[k, link]), ([], []))[0].append(k)
            if alike.rerouted:
                found.setdefault((pipeline.template, problem.between_s[k, link]), ([], []))[1].append(k)
        for (_, delay_s), (inside, between) in found.items():
            if delay_s > 0:
                yield link, inside, between


def _with_delays(problem: Problem, places: Sequence[LinkUse]) -> Problem:
    inside_s, between_s = problem.inside_s.copy(), problem.between_s.copy()
    for link, inside, between in places:
        inside_s[inside, link] *= HALF
        between_s[between, link] *= HALF
    return replace(problem, inside_s=inside_s, between_s=between_s)


def _listed(noun: str, names: Sequence[object]) -> str:
    """`worker 0/1`, or `workers 0/1, 2/1`."""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(map(str, names))}"


# How many searches for orders there are at most, and how many operations in all of them: some seconds' worth.
MOST_SEARCHES = 7
BUDGET_OPERATIONS = 20_000
# A problem that is too large for the budget still gets so many, up to so many operations of its own.
FEWEST_SEARCHES = 2
MOST_OPERATIONS = 20_000


@dataclass(frozen=True, slots=True)
class ChangeEffect:
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
class WhatIfReport:
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
    effects: tuple[ChangeEffect, ...]
    tried: int


class Means(NamedTuple):
    """What orders of problems of a kind are weighed by; P is such a problem, O are orders for it.

    Attributes:
        value_s: (P, O): the makespan, or period, in s.
        bound_s: (P): what no orders undercut, without a search.
        solve: (P, effort): orders, with `orders`, `value_s` and `bound_s`; raises InfeasibleError.
        valid_s: (P, O, below_s): the value of orders that were found for another problem; infinite where they are
            beyond a memory limit, or where their value is not below `below_s`.
    """

    value_s: Callable[[Any, Any], float]
    bound_s: Callable[[Any], float]
    solve: Callable[[Any, Effort], Any]
    valid_s: Callable[[Any, Any, float], float]


def _valid_s(problem: Problem, orders: Orders, below_s: float) -> float:
    retimer = Retimer(problem)
    found_s = retimer.value_s(orders)
    reaches = [(worker, retimer.reach(worker)) for worker, order in enumerate(orders) if len(order)]
    fits = found_s < below_s and all(retimer.fits(worker, reach[0], reach[-1]) for worker, reach in reaches)
    return found_s if fits else math.inf


PLAIN = Means(
    value_s, lambda problem: lower_bound(problem).value_s, lambda problem, effort: solve(problem, effort), _valid_s
)


def what_if(
    problem: Any,
    orders: Any,
    changes: Sequence[tuple[Change, Any]],
    effort: Effort,
    searches: int = MOST_SEARCHES,
    means: Means = PLAIN,
) -> WhatIfReport:
    """Measure changes; orders are searched for the most promising ones, as far as the problem's size allows.

    Args:
        problem: the unchanged problem.
        orders: valid orders for it.
        changes: what to try, all of them relaxations.
        effort: how hard to search.
        searches: how many problems orders are searched for at most, the unchanged one among them.
        means: what problems of this kind are weighed by.
    """
    own = _Trial(problem, orders, means)
    trials = [_Trial(changed, orders, means) for _, changed in changes]
    affordable = max(BUDGET_OPERATIONS // problem.operations, FEWEST_SEARCHES)
    searches = min(searches, affordable if problem.operations <= MOST_OPERATIONS else 0)
    if searches and own.open and own.search(effort):
        _share(own, trials)
    promising = sorted((trial for trial in trials if trial.open), key=lambda trial: -trial.promise_s(own))
    for trial in promising[: max(searches - 1, 0)]:
        if trial.search(effort):
            _share(trial, [own, *trials])
    effects = [trial.effect_of(change, own) for trial, (change, _) in zip(trials, changes, strict=True)]
    helpful = [effect for effect in effects if _promise_s(effect) > own.first_s * ROUNDING]
    ranked = sorted(_told_once(helpful), key=lambda effect: (-effect.saved_s, -_promise_s(effect)))
    return WhatIfReport(own.value_s, own.saved_s, own.bound_s, own.searched, tuple(ranked), len(changes))


class _Trial:
    """A problem, and the best orders known for it."""

    def __init__(self, problem: Any, orders: Any, means: Means) -> None:
        self.problem = problem
        self.orders = orders
        self._means = means
        self.value_s = self.first_s = means.value_s(problem, orders)
        self.bound_s = self.simple_bound_s = min(means.bound_s(problem), self.value_s)
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
            found = self._means.solve(self.problem, effort)
        except InfeasibleError:  # the checker grants a limit some rounding, the rules do not
            return False
        self.searched = True
        self.bound_s = max(self.bound_s, min(found.bound_s, found.value_s))
        return self.take(found.orders, found.value_s)

    def valid_s(self, orders: Any) -> float:
        """The time of orders of another problem, if they are better; else infinite."""
        return self._means.valid_s(self.problem, orders, self.value_s)

    def take(self, orders: Any, found_s: float) -> bool:
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

    def effect_of(self, change: Change, own: _Trial) -> ChangeEffect:
        """What was found out about the change that made this problem of `own`."""
        return ChangeEffect(
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
        other.take(found.orders, other.valid_s(found.orders))


def _promise_s(effect: ChangeEffect) -> float:
    """The most that it saves anyhow: in the time of any orders, or, where none were searched, in the bound, in s."""
    return max(effect.saved_s, effect.same_orders_saved_s, 0.0 if effect.searched else effect.bound_saved_s)


def _told_once(helpful: Sequence[ChangeEffect]) -> Iterator[ChangeEffect]:
    """Without changes everywhere that give no more than one of the same kind at one place."""
    for effect in helpful:
        rivals = [x for x in helpful if x.change.kind == effect.change.kind and x is not effect]
        if not effect.change.everywhere or all(
            effect.iteration_time_s < rival.iteration_time_s * (1 - ROUNDING)
            or effect.same_orders_s < rival.same_orders_s * (1 - ROUNDING)
            or (not effect.searched and effect.lower_bound_s < rival.lower_bound_s * (1 - ROUNDING))
            for rival in rivals
        ):
            yield effect


# Pipelines that are alike in all that counts, and the plan with one of each kind.


WorkerOrders = Sequence[tuple[Worker, tuple[Operation, ...]]]  # of one pipeline's workers


@dataclass(frozen=True)
class Alike:
    """A plan with one pipeline of each kind: it takes as long as the whole plan, and the same changes improve it.

    Attributes:
        plan: the pipelines that are kept, numbered anew; without a prediction.
        pipelines: for each of them those of the whole plan that it stands for, itself first.
        rerouted: whether a micro-batch is executed by another pipeline than its own.
    """

    plan: Plan
    pipelines: tuple[tuple[int, ...], ...]
    rerouted: bool

    def names_of(self, worker: int) -> tuple[str, ...]:
        """The workers of the whole plan that one of the plan's workers stands for, itself first."""
        found = self.plan.workers[worker]
        return tuple(name_of((k, found.stage)) for k in self.pipelines[found.pipeline])


def one_of_each(plan: Plan) -> Alike:
    """Keep one of the pipelines that have the same template, links, slow-downs and orders.

    Where any micro-batch is executed by another pipeline than its own, all are kept.
    """
    orders = [(worker, worker.operations()) for worker in plan.workers]
    if any(op.pipeline != worker.pipeline for worker, operations in orders for op in operations):
        return Alike(replace(plan, prediction=None), tuple((k,) for k in range(len(plan.pipelines))), rerouted=True)
    found: dict[object, list[int]] = {}
    kept: list[WorkerOrders] = []
    for k, members in groupby(orders, lambda pair: pair[0].pipeline):
        pipeline = list(members)
        slow = tuple(worker.slowdown or 1.0 for worker, _ in pipeline)
        tokens = tuple(tuple((op.kind, op.microbatch, op.stage) for op in operations) for _, operations in pipeline)
        beside = tuple(worker.pairs() for worker, _ in pipeline)
        alike = found.setdefault((plan.pipelines[k].template, plan.links_of(k), slow, tokens, beside), [])
        if not alike:
            kept.append(pipeline)
        alike.append(k)
    smaller = replace(
        plan,
        pipelines=tuple(plan.pipelines[members[0]] for members in found.values()),
        workers=tuple(
            replace(
                worker,
                pipeline=k,
                order=print_order((op._replace(pipeline=k) for op in operations), k, worker.pairs()),
            )
            for k, pipeline in enumerate(kept)
            for worker, operations in pipeline
        ),
        prediction=None,
    )
    return Alike(smaller, tuple(map(tuple, found.values())), rerouted=False)
