"""Nonuniform tensor parallelism: a pipeline that has lost GPUs goes on with the others, and with fewer micro-batches.

D. Arfeen et al., "Nonuniform-Tensor-Parallelism: Mitigating GPU failure impact for Scaled-up LLM Training",
arXiv 2504.06095, without its racks whose power goes to the GPUs that are left (NTP-PW). A pipeline works at the degree
of its smallest worker, in all stages; it contributes as much as the share of its GPUs that work. Nodes that lack GPUs
are put into as few pipelines as can be. For all that the job restarts, for ranks change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from ...schemas.conditions import AS_PLANNED, PlanConditions
from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, TrainingState, Transition
from ..placement.retimed import AnyRetimed, retimed_of
from ..scheduling.problem import ROUNDING
from .job import Seating, TrainingJob, pipelines_of, restart_or_grow, saved, seats, whole_rows
from .layout import JobPipelines, PipelineKey, alike


@dataclass(frozen=True)
class NonuniformLayout:
    """Who sits where, in whole rows of the job's grid; and of each pipeline the degree and the micro-batches."""

    seating: Seating
    degrees: tuple[int, ...]
    microbatches: tuple[int, ...]


class NonuniformDegrees:
    """What an iteration commits is not the job's global batch, as with elastic batching, and nobody waits for others.

    A degree need not be one that the profile has costs at: what T GPUs do, fewer do in T times as long over their
    number, as the paper has it. Their memory must hold so many times as much; nodes where it does not are left out.
    What gradients between unlike degrees cost more is left out (the paper measured less than 1 %).

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._pipelines = job, JobPipelines(job)

    def begin(self, fleet: Fleet) -> TrainingState:
        """On as many pipelines as there are nodes for.

        Raises:
            InfeasibleError: a GPU cannot hold its part of the job's full shape.
        """
        return self._standing(fleet)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """A restart if a node or a GPU at work was lost, or if what is there now pays for one."""
        at_work = set(_layout(standing).seating)
        hit = (*moment.lost, *(node for node, _ in moment.lost_gpus))
        following, lost = self._standing(moment.fleet), not at_work.isdisjoint(hit)
        reading_s = saved(self._job, self._pipelines.template(self._job.shape.dp)).loading_s
        return restart_or_grow(self._job.costs, standing, following, reading_s, moment, lost=lost)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan, in which those of smaller degrees are slow."""
        layout = _layout(standing)
        if not layout.seating:
            return None
        return self._slow(layout.degrees).under(self._pipelines.plan(alike(layout.microbatches)))

    def ordered(self, standing: TrainingState) -> AnyRetimed:
        """The orders of that plan."""
        return retimed_of(cast("Plan", self.plan(standing)))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Row after row."""
        return seats(_layout(standing).seating, self._job.grid)

    def _standing(self, fleet: Fleet) -> TrainingState:
        """Training on whole rows, those nodes first that lack no GPU; waiting where there are too few."""
        job, grid, lacking = self._job, self._job.grid, _Lacking(self._job, fleet)
        able = [node for node in fleet.nodes if self._least_degree <= job.shape.degree - max(lacking.by_worker(node))]
        able.sort(key=lambda node: max(lacking.by_worker(node)))
        seating = whole_rows(able, grid.columns, grid.units)
        if not seating:
            return TrainingState(NonuniformLayout((), (), ()), None, 0, 0)
        degrees = tuple(job.shape.degree - lacks for lacks in lacking.by_pipeline(seating))
        counts = self._shared(degrees)
        outcome = self._pipelines.outcome(alike(counts), self._slow(degrees))
        return TrainingState(
            NonuniformLayout(seating, degrees, counts),
            outcome.iteration_time_s,
            sum(counts),
            sum(degrees) / job.shape.degree * job.shape.pp / job.workers_per_node,
            outcome.peak_memory_bytes * job.shape.degree / min(degrees),
            saved(job, self._pipelines.template(job.shape.dp)).checkpointing,
        )

    def _shared(self, degrees: Sequence[int]) -> tuple[int, ...]:
        """The most micro-batches of each pipeline with which it takes no longer than the largest one with all of its.

        At least one; where even that takes longer, the others wait.
        """
        usual, most = max(degrees), self._job.shape.microbatches
        limit_s = self._takes_s(most, usual) * (1 + ROUNDING)
        counts = {}
        for degree in set(degrees):
            fits = (count for count in range(most, 0, -1) if self._takes_s(count, degree) <= limit_s)
            counts[degree] = next(fits, 1)
        return tuple(counts[degree] for degree in degrees)

    def _takes_s(self, microbatches: int, degree: int) -> float:
        """A pipeline alone."""
        return max(self._pipelines.ends_s(PipelineKey(microbatches), self._slow((degree,))))

    def _slow(self, degrees: Sequence[int]) -> PlanConditions:
        """What is slow where pipelines have these degrees."""
        usual = self._job.shape.degree
        factors = (
            ((k, i), usual / degree)
            for k, degree in enumerate(degrees)
            if degree < usual
            for i in range(self._job.shape.pp)
        )
        return PlanConditions(tuple(factors)) if min(degrees) < usual else AS_PLANNED

    @cached_property
    def _least_degree(self) -> float:
        """At which a GPU holds what it has to hold then.

        Raises:
            InfeasibleError: not even at the job's own.
        """
        memory_bytes = self._job.profile.device.memory_bytes
        most = self._pipelines.outcome(alike([self._job.shape.microbatches] * self._job.shape.dp)).peak_memory_bytes
        return 1.0 if memory_bytes is None else max(1.0, self._job.shape.degree * most / memory_bytes)


class _Lacking:
    """How many GPUs workers lack."""

    def __init__(self, job: TrainingJob, fleet: Fleet) -> None:
        self._job, self._fleet = job, fleet

    def by_worker(self, node: str) -> list[int]:
        """Of each of a node's workers."""
        numbers = [gpu // self._job.shape.degree for gpu in self._fleet.dead_gpus.get(node, ())]
        return [numbers.count(worker) for worker in range(self._job.workers_per_node)]

    def by_pipeline(self, seating: Seating) -> list[int]:
        """The most that a worker of each pipeline lacks, of whole rows."""
        grid, found = self._job.grid, [0] * pipelines_of(seating, self._job.grid)
        for number, node in enumerate(seating):
            unit = divmod(number, grid.columns)
            for (k, _), lacks in zip(grid.places(unit), self.by_worker(node or ""), strict=True):
                found[k] = max(found[k], lacks)
        return found


def _layout(standing: TrainingState) -> NonuniformLayout:
    return cast("NonuniformLayout", standing.formation)
