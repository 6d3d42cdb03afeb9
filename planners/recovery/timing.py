"""What a job's pipelines take and hold under a policy, and their plans, whatever is slow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property

from ... import __version__
from ...schemas.conditions import AS_PLANNED, PlanConditions
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.orders import Schedule
from ...schemas.plan import Pipeline, Place, Plan, Planner, Template, Worker
from ...schemas.profile import Connection
from ...schemas.replay import Checkpointing, TrainingState
from ..scheduling.assemble import with_prediction
from ..scheduling.retimed import Retimed
from ..shape import shape_options, template_of
from .job import (
    CheckpointCosts,
    Seating,
    TrainingJob,
    peak_bytes,
    pipelines_of,
    saved,
    seating_of,
    seats,
    state_bytes,
    whole_rows,
)
from .layout import Layout, PipelineKey, Pipelines


@dataclass(frozen=True)
class TimeAndMemory:
    """What pipelines take and hold.

    Attributes:
        iteration_time_s: as `rtk simulate` of their plan has it.
        peak_memory_bytes: the most that any GPU holds: parameters, state and activations.
    """

    iteration_time_s: float
    peak_memory_bytes: float

    def standing(
        self, formation: Hashable, microbatches: int, nodes: int, checkpointing: Checkpointing | None = None
    ) -> TrainingState:
        """Training goes on with this outcome; the rest as for `TrainingState`."""
        return TrainingState(
            formation, self.iteration_time_s, microbatches, nodes, self.peak_memory_bytes, checkpointing
        )


class JobPipelines(Pipelines):
    """A job's pipelines, all of one shape; their number need not be the job's.

    Args:
        job: its shape says stages, limits and delays; pipelines and micro-batches are asked for.
        schedule: of every pipeline; None: the job's.
        ordered: the orders of each stage of a pipeline of some kind; None: by the schedule.

    Raises:
        InvalidInputError: the shape has delays of single pipelines.
    """

    def __init__(
        self,
        job: TrainingJob,
        schedule: Schedule | None = None,
        ordered: Callable[[PipelineKey], tuple[str, ...]] | None = None,
    ) -> None:
        require_alike(job)
        self._job, self._ordered = job, ordered
        self.template = cache(self._template_among)
        connection = job.profile.network.between_workers or Connection()
        super().__init__(job.profile.layers, connection, lambda shape: self._own, schedule or job.schedule)

    def outcome(self, layout: Layout, conditions: PlanConditions = AS_PLANNED) -> TimeAndMemory:
        """What they hold, and what they take, as `rtk simulate` of their plan under these conditions has it.

        Raises:
            InfeasibleError: as `template`; or a memory limit admits no schedule of this kind.
        """
        time_s = self.seconds(layout, conditions)
        held = map(max, zip(*map(self.activation_bytes, set(layout)), strict=True))
        return TimeAndMemory(time_s, peak_bytes(self._state_bytes, tuple(held)))

    def plan(self, layout: Layout, planner: Planner | None = None) -> Plan:
        """Their plan with nothing slow, checked and with its prediction; the rest as for `outcome`."""
        return with_prediction(self._with_orders(layout, planner))

    def ordered(self, layout: Layout) -> Retimed:
        """The orders of their plan."""
        return Retimed.of(self._with_orders(layout))

    def bare(self, layout: Layout, planner: Planner | None = None) -> Plan:
        """Their plan without orders; by the pipeline planner unless another one is named."""
        template = self.template(len(layout))
        return Plan(
            planner=planner or self._planner(layout),
            inputs=self._inputs,
            templates=(template,),
            pipelines=tuple(Pipeline(template.name, key.microbatches) for key in layout),
            optimizer="synchronous",
            workers=tuple(Worker(k, i, "") for k in range(len(layout)) for i in range(len(template.stages))),
        )

    def alone(self, key: PipelineKey) -> Plan:
        """A pipeline by itself, without orders, as in the job's own shape: by that it is ordered."""
        return replace(self.bare((key,)), templates=(self._own,))

    def _made_orders(self, key: PipelineKey) -> tuple[str, ...]:
        return super()._made_orders(key) if self._ordered is None else self._ordered(key)

    def _with_orders(self, layout: Layout, planner: Planner | None = None) -> Plan:
        orders = [self.orders(key) for key in layout]
        workers = (Worker(k, i, order) for k, row in enumerate(orders) for i, order in enumerate(row))
        return replace(self.bare(layout, planner), workers=tuple(workers))

    def _planner(self, layout: Layout) -> Planner:
        job, counts = self._job, [key.microbatches for key in layout]
        options = shape_options(job.profile, replace(job.shape, dp=len(layout))) | {
            "schedule": self._schedule,
            "microbatches": counts[0] if len(set(counts)) == 1 else counts,
        }
        return Planner("pipeline", __version__, options, job.seed)

    def _template_among(self, pipelines: int) -> Template:
        """The stages of so many pipelines, whose number only sums of gradients depend on.

        Raises:
            InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
            InvalidInputError: a link or limit that the shape does not have.
        """
        return template_of(self._job.profile, replace(self._job.shape, dp=pipelines))

    @property
    def _own(self) -> Template:
        return self.template(self._job.shape.dp)

    @cached_property
    def _state_bytes(self) -> tuple[float, ...]:
        return state_bytes(self._job, self._own)

    @cached_property
    def _inputs(self) -> dict[str, str]:
        return {"profile": digest(self._job.profile)}


class WholeRows(ABC):
    """What policies share whose formations are whole rows of the job's grid, a node on every seat.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._pipelines = job, JobPipelines(job)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan."""
        count = pipelines_of(seating_of(standing), self._job.grid)
        return self._pipelines.plan(self._layout(count)) if count else None

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the pipelines' plan."""
        return self._pipelines.ordered(self._layout(pipelines_of(seating_of(standing), self._job.grid)))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Row after row."""
        return seats(seating_of(standing), self._job.grid)

    @cached_property
    def saved(self) -> CheckpointCosts:
        """What checkpoints hold and cost."""
        return saved(self._job, self._pipelines.template(self._job.shape.dp))

    def _rows(self, nodes: tuple[str, ...]) -> Seating:
        return whole_rows(nodes, self._job.grid.columns, self._job.grid.units)

    @abstractmethod
    def _layout(self, pipelines: int) -> Layout:
        """So many pipelines, with their micro-batches."""


def require_alike(job: TrainingJob) -> None:
    """Raise InvalidInputError if a link of a single pipeline is slow from the beginning: nodes have no places yet."""
    for pipeline, link in job.shape.link_delay_s or {}:
        if pipeline is not None:
            raise InvalidInputError(
                f"link {link} of pipeline {pipeline} alone is slow, and which nodes will hold it nobody knows",
                where="--link-delay",
                fix=f"give it to link {link} of all pipelines, or let the trace make a link between nodes slow",
            )
