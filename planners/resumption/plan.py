"""Plans what is left of an iteration in which workers were lost (notes/midway.md, section 3).

It is agreed which sums have ended, found out what is left of the others, and given to those who have least to do; list
schedules order it, and the best one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ...schemas.conditions import AS_PLANNED, Conditions, PlanConditions, slow_at
from ...schemas.errors import InfeasibleError
from ...schemas.orders import KINDS
from ...schemas.plan import Place, Plan
from ...schemas.resumption import Resend, Rest, RestPrediction, RestWorker, Standing, nothing_of
from ..scheduling.evaluate import evaluate
from ..scheduling.forms import Form, pays
from ..scheduling.problem import ROUNDING
from .agreement import AgreedSums, agree
from .bound import bound_s
from .costs import CrewCosts, costs_of
from .crew import Crew
from .dispatch import dispatch
from .operations import OperationTable, at_costs, operations_of
from .remaining import MESSAGE_KINDS, Remaining, remaining
from .routing import route
from .scheduling import RestSchedule, schedule, timed

# Plain Python schedules so many operations while the machine code is loaded.
INTERPRETED_OPERATIONS = 20_000


@dataclass(frozen=True, eq=False)
class _Found:
    """What is left for a crew, and how it is done where nothing is slow but what the plan says; `felt_s`: as it is."""

    crew: Crew
    agreement: AgreedSums
    costs: CrewCosts
    left: Remaining
    operations: OperationTable
    schedule: RestSchedule
    bound_s: float
    felt_s: float


def plan_rest(
    plan: Plan,
    seats: tuple[tuple[str, Place], ...],
    iteration: int,
    standings: tuple[Standing, ...],
    conditions: Conditions,
) -> Rest:
    """Who does what is left of an iteration (a `Resume`); arguments and errors as there.

    What is slow is reckoned with, but predictions are as those of plans: of what the plan says.
    """
    slow = slow_at(
        {place: name for name, place in seats},
        {one.worker: one.factor for one in conditions.slow_workers},
        {one.ends: one.delay_s for one in conditions.slow_links},
    )
    found = _found(plan, seats, standings, slow)
    makespan_s = found.schedule.makespan_s
    if not np.isfinite(makespan_s):
        raise InfeasibleError("memory limits leave no room to finish what is under way")
    redo_s = plan.prediction.makespan_s if plan.prediction else evaluate(plan).makespan_s
    # What is slow makes all take longer, so there is no need to know how much if what is left is shorter anyway.
    if found.felt_s >= redo_s and (not slow or found.felt_s >= evaluate(slow.under(plan)).makespan_s):
        raise InfeasibleError("to do all of the iteration again is as quick")
    least_s = found.bound_s
    if makespan_s <= least_s * (1 + ROUNDING):
        least_s = makespan_s
    gap = makespan_s / least_s - 1 if least_s > 0 else 0.0
    return Rest(
        iteration,
        tuple(standings),
        _workers(found),
        found.agreement.sealed,
        found.agreement.copies,
        _sends(found),
        RestPrediction(makespan_s, least_s, gap, redo_s),
    )


def rest_makespan_s(plan: Plan, seats: tuple[tuple[str, Place], ...], standings: tuple[Standing, ...]) -> float:
    """How long what is left takes, in s, without saying who does what; infinite where memory limits let none end.

    The rest as for `Resume`.
    """
    return _found(plan, seats, standings, AS_PLANNED).schedule.makespan_s


def warm_up(plan: Plan) -> None:
    """Load now, in some seconds, the machine code that a large plan's rests need; small ones do without.

    Args:
        plan: one that is like those to follow.
    """
    operations = sum(1 + worker.order.count(" ") for worker in plan.live_workers() if worker.order)
    if operations > INTERPRETED_OPERATIONS:
        seats = tuple((worker.name, worker.place) for worker in plan.live_workers())
        nothing = tuple(nothing_of(worker.name, plan.layers_of(worker)) for worker in plan.live_workers())
        rest_makespan_s(plan, seats, nothing)


def _found(
    plan: Plan, seats: tuple[tuple[str, Place], ...], standings: tuple[Standing, ...], slow: PlanConditions
) -> _Found:
    crew = Crew.seated(plan, seats, standings)
    agreement = agree(crew)
    left = remaining(crew, agreement.sealed)
    cells = int((left.forward | left.backward).sum()) + len(left.weights)
    form = Form(pays(dispatch, 3 * cells, INTERPRETED_OPERATIONS))
    costs = costs_of(crew, plan, left.cuts, agreement.sealed)
    felt = costs_of(crew, slow.under(plan), left.cuts, agreement.sealed) if slow else costs
    executor = route(crew, felt, left, form)
    operations = operations_of(crew, felt, left, executor)
    least_s = bound_s(crew, felt, left)
    found = schedule(felt, operations, least_s * (1 + ROUNDING), form)
    felt_s = found.makespan_s
    if slow and np.isfinite(felt_s):
        operations = at_costs(costs, operations)
        found, least_s = timed(costs, operations, found, form), bound_s(crew, costs, left)
    return _Found(crew, agreement, costs, left, operations, found, least_s, felt_s)


def _workers(found: _Found) -> tuple[RestWorker, ...]:
    """What each worker runs: mostly all layers of a stage, whose operations are written at once."""
    crew, costs, operations, cuts = found.crew, found.costs, found.operations, np.array(found.left.cuts)
    units, starts = operations.units, [0, *accumulate(map(len, found.schedule.orders))]
    order = np.concatenate(found.schedule.orders)
    unit, worker = operations.unit[order], operations.worker[order]
    microbatch = units.microbatch[unit]
    number = len(KINDS) * microbatch + operations.kind[order]
    own, foreign = _tokens(tuple(pipeline.microbatches for pipeline in crew.plan.pipelines))
    is_own = costs.origin[microbatch] == costs.pipeline[worker]
    tokens = np.where(is_own, own[number], foreign[number]).tolist()
    seat = units.seat[unit]
    layers = np.array([one.costs.layers for one in crew.seats])[seat]
    first, stop = cuts[units.first[unit]], cuts[units.stop[unit]]
    is_part = (layers[:, 0] != first) | (layers[:, 1] != stop)
    for at in np.flatnonzero(is_part | ~units.counts[unit]).tolist():
        tokens[at] += f":{first[at]}-{stop[at]}" * bool(is_part[at]) + "~" * (not units.counts[unit[at]])
    for at in np.flatnonzero(np.array([one.stage is not None for one in crew.seats])[seat]).tolist():
        tokens[at] = f"{crew.seats[seat[at]].stage}{tokens[at]}"
    rows = zip(crew.names, crew.standings, pairwise(starts), found.left.given_up, strict=True)
    return tuple(
        RestWorker(place, standing.worker, " ".join(tokens[begin:end]), dropped)
        for place, standing, (begin, end), dropped in rows
    )


@lru_cache(maxsize=2)  # a running job asks again and again for the same pipelines
def _tokens(microbatches: tuple[int, ...]) -> tuple[Any, Any]:
    """How F, I, W and B of all micro-batches are written, in orders of their own pipeline and of others."""
    places = [(k, j) for k, count in enumerate(microbatches) for j in range(count)]
    own = [f"{kind}{j}" for _, j in places for kind in KINDS]
    foreign = [f"{kind}{k}.{j}" for k, j in places for kind in KINDS]
    return np.array(own, dtype=object), np.array(foreign, dtype=object)


def _sends(found: _Found) -> tuple[Resend, ...]:
    """What is sent again, what is needed first ahead."""
    names, cuts, sends = found.crew.names, found.left.cuts, found.operations.sends
    order = np.lexsort((sends.taker, found.schedule.begin_s[sends.taker]))
    columns = (sends.source, found.operations.worker[sends.taker], sends.kind, sends.microbatch, sends.boundary)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    return tuple(
        Resend(names[source], names[target], MESSAGE_KINDS[kind], microbatch, cuts[boundary])
        for source, target, kind, microbatch, boundary in rows
    )
