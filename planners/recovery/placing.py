"""The placement that a replayed job starts with: the one that is asked for, or the best of several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...schemas.plan import Plan
from ..choosing import OPTION, PlacementChoice, plan_chosen
from ..shape import Shape
from .job import TrainingJob
from .slipstream import GridJob


def placed_job(job: TrainingJob, choice: PlacementChoice) -> tuple[TrainingJob, list[dict[str, Any]]]:
    """The job in a placement.

    Under `best` placements are compared by what an iteration of the whole job takes as SlipStream plans it, for that is
    how the policies go on that re-route by chunk; under the delays of the job's network and the limits of its memory.

    Args:
        job: as it is asked for, one stage a worker.
        choice: of the placement.

    Returns:
        The job, and what each placement was worth, as `plan_chosen` has it; nothing where none were compared.

    Raises:
        InfeasibleError: the job cannot be trained in any of them; says why one stage a worker cannot.
    """
    if choice.name != "best":
        (shape,) = choice.shapes(job.shape)
        return replace(job, shape=shape), []

    def made(shape: Shape) -> Plan:
        return GridJob.replayed(replace(job, shape=shape)).pipelines.plan(frozenset())

    told: list[dict[str, Any]] = plan_chosen(job.shape, choice, made).planner.options[OPTION]
    number = next(number for number, row in enumerate(told) if row.get("chosen"))
    return replace(job, shape=choice.shapes(job.shape)[number]), told
