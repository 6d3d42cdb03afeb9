"""Plans what is left of an iteration in which workers were lost (notes/midway.md, section 3).

It is agreed which sums have ended, found out what is left of the others, and given to those who have least to do; list
schedules order it, and the best one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...schemas.conditions import Conditions
from ...schemas.errors import InfeasibleError
from ...schemas.orders import Kind, Operation
from ...schemas.plan import Layers, Place, Plan
from ...schemas.resumption import (
    MessageKind,
    Resend,
    Rest,
    RestOperation,
    RestPrediction,
    RestWorker,
    Standing,
    print_rest_order,
)
from ..scheduling.evaluate import evaluate
from ..scheduling.forms import Form, pays
from .agreement import AgreedSums, agree
from .bound import bound_s
from .costs import CrewCosts, costs_of
from .crew import Crew
from .dispatch import dispatch
from .operations import OperationTable, operations_of
from .remaining import ACTIVATION, Remaining, remaining
from .routing import route
from .scheduling import Schedule, schedule

KINDS: tuple[Kind, ...] = ("F", "I", "W", "B")
# Plain Python schedules so many operations while the machine code is loaded.
INTERPRETED_OPERATIONS = 20_000


@dataclass(frozen=True, eq=False)
class _Found:
    """What is left for a crew, and how it is done."""

    crew: Crew
    agreement: AgreedSums
    costs: CrewCosts
    left: Remaining
    operations: OperationTable
    schedule: Schedule


def plan_rest(
    plan: Plan,
    seats: tuple[tuple[str, Place], ...],
    iteration: int,
    standings: tuple[Standing, ...],
    conditions: Conditions,
) -> Rest:
    """Who does what is left of an iteration (a `Resume`); arguments and errors as there."""
    found = _found(plan, seats, standings)
    makespan_s = found.schedule.makespan_s
    if not np.isfinite(makespan_s):
        raise InfeasibleError("memory limits leave no room to finish what is under way")
    redo_s = plan.prediction.makespan_s if plan.prediction else evaluate(plan).makespan_s
    if makespan_s >= redo_s:
        raise InfeasibleError("to do all of the iteration again is as quick")
    least_s = min(bound_s(found.costs, found.operations, found.left), makespan_s)
    gap = makespan_s / least_s - 1 if least_s > 0 else 0.0
    cuts = found.left.cuts
    return Rest(
        iteration,
        tuple(standings),
        _workers(found.crew, cuts, found.left.given_up, found.operations, found.schedule),
        found.agreement.sealed,
        found.agreement.copies,
        _sends(found.crew, cuts, found.operations),
        RestPrediction(makespan_s, least_s, gap, redo_s),
    )


def rest_makespan_s(plan: Plan, seats: tuple[tuple[str, Place], ...], standings: tuple[Standing, ...]) -> float:
    """How long what is left takes, in s, without saying who does what; infinite where memory limits let none end.

    The rest as for `Resume`.
    """
    return _found(plan, seats, standings).schedule.makespan_s


def _found(plan: Plan, seats: tuple[tuple[str, Place], ...], standings: tuple[Standing, ...]) -> _Found:
    crew = Crew.seated(plan, seats, standings)
    agreement = agree(crew)
    left = remaining(crew, agreement.sealed)
    costs = costs_of(crew, plan, left.cuts, agreement.sealed)
    cells = int((left.forward | left.backward).sum()) + len(left.weights)
    form = Form(pays(dispatch, 3 * cells, INTERPRETED_OPERATIONS))
    executor = route(crew, costs, left, form)
    operations = operations_of(crew, costs, left, executor)
    return _Found(crew, agreement, costs, left, operations, schedule(costs, operations, form))


def _workers(
    crew: Crew,
    cuts: Sequence[int],
    given_up: Sequence[tuple[Layers, ...]],
    operations: OperationTable,
    found: Schedule,
) -> tuple[RestWorker, ...]:
    units, origin = operations.units, _origins(crew.plan)
    rows = []
    for number, worker in enumerate(crew.workers):
        order = []
        for place in found.orders[number].tolist():
            unit = int(operations.unit[place])
            kind, (pipeline, microbatch) = KINDS[int(operations.kind[place])], origin[int(units.microbatch[unit])]
            layers = cuts[int(units.first[unit])], cuts[int(units.stop[unit])]
            order.append(RestOperation(Operation(kind, pipeline, microbatch), layers, bool(units.counts[unit])))
        text = print_rest_order(tuple(order), worker.pipeline, crew.stages[number].layers)
        rows.append(RestWorker(crew.names[number], crew.standings[number].worker, text, given_up[number]))
    return tuple(rows)


def _origins(plan: Plan) -> list[tuple[int, int]]:
    """The pipeline of each micro-batch, and its number there."""
    return [(k, j) for k, pipeline in enumerate(plan.pipelines) for j in range(pipeline.microbatches)]


def _sends(crew: Crew, cuts: Sequence[int], operations: OperationTable) -> tuple[Resend, ...]:
    sends = operations.sends
    kinds: dict[int, MessageKind] = {ACTIVATION: "activation"}
    columns = (column.tolist() for column in (sends.source, sends.target, sends.kind, sends.microbatch, sends.boundary))
    return tuple(
        Resend(crew.names[source], crew.names[target], kinds.get(kind, "gradient"), microbatch, cuts[boundary])
        for source, target, kind, microbatch, boundary in zip(*columns, strict=True)
    )
