"""Layouts of pipelines, alike or unlike, and what they take and hold under whatever is slow, without a plan.

Pipelines that run their own micro-batches only do not wait for each other before they sum gradients: each is timed
alone, and a layout of them takes as long as the slowest, and what follows it. That is remembered by what it depends on,
so a replay may ask for thousands of layouts (`Pipelines`); the plan of one is made when somebody wants to see it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple, Protocol

from ... import __version__
from ...schemas.conditions import AS_PLANNED, PlanConditions
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.network import PipelineSeats, Rings
from ...schemas.orders import Schedule
from ...schemas.plan import Layers, Link, Pipeline, Place, Plan, Planner, Stage, Template, Worker
from ...schemas.profile import HoldsBytes
from ...schemas.replay import Checkpointing, TrainingState
from ..batch.exact import Pace
from ..oobleck.pace import reduced_bytes, stage_ends_s, warm_ups_of
from ..pipeline import scheduled
from ..placement.bounds import bound_of
from ..placement.pipelines import with_placed_pipelines
from ..placement.problem import held_bytes, ordered_placed_problem
from ..placement.promise import with_placed_prediction
from ..placement.retimed import AnyRetimed, retimed_of
from ..scheduling.assemble import with_prediction
from ..scheduling.lower_bound import lower_bound
from ..scheduling.problem import ROUNDING, Parts, home_problem, parts_of
from ..scheduling.retimed import Retimed
from ..scheduling.solve import Effort
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


class PipelineKey(NamedTuple):
    """A pipeline of a layout: what its orders depend on.

    Attributes:
        microbatches: that it has.
        shape: by which its stages are known, hashable; None where all pipelines are alike.
        planned: what is slow in it as far as its orders are made for that, as if it were number 0.
    """

    microbatches: int
    shape: Any = None
    planned: PlanConditions = AS_PLANNED


Layout = tuple[PipelineKey, ...]  # its pipelines, which sum gradients together, by their numbers


def spread(microbatches: int, pipelines: int) -> tuple[int, ...]:
    """Micro-batches of each pipeline, as even as can be, the first ones with one more; at least one each."""
    least, more = divmod(microbatches, pipelines)
    return (least + 1,) * more + (least,) * (pipelines - more)


def alike(microbatches: Sequence[int]) -> Layout:
    """The layout of alike pipelines with so many micro-batches each."""
    return tuple(map(PipelineKey, microbatches))


class TemplateLike(Protocol):
    """A template, of a plan or of a Templates document; what its stages say of all-reduce is not asked for."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        ...

    @property
    def links(self) -> tuple[Link, ...]:
        """Between neighbouring stages."""
        ...


FULL, LONG = 3, 6  # micro-batches a stage at which a pipeline's pace is taken


class Pipelines:
    """Pipelines of some shapes, made ready to say what layouts of them take and hold.

    Args:
        layers: of the model.
        reducing: the rings in which gradients are summed.
        shape_of: stages and links of a pipeline, by `PipelineKey.shape`.
        schedule: of every pipeline.
    """

    def __init__(
        self,
        layers: Sequence[HoldsBytes],
        reducing: Rings,
        shape_of: Callable[[Any], TemplateLike],
        schedule: Schedule = "1f1b",
    ) -> None:
        self._layers, self._rings, self._shape_of, self._schedule = layers, reducing, shape_of, schedule
        self.orders = cache(self._made_orders)
        self.ends_s = cache(self._stage_ends_s)
        self.activation_bytes = cache(self._most_held_bytes)
        self._retimed = cache(self._ready)
        self._summing = cache(self._parts_summed)
        self._lasts_s = cache(self._summed_s)

    def seconds(self, layout: Layout, conditions: PlanConditions = AS_PLANNED) -> float:
        """How long an iteration takes, in s, as `rtk simulate` of the layout's plan under these conditions has it.

        Raises:
            InfeasibleError: a memory limit does not admit a single micro-batch.
        """
        if not conditions:
            return self._lasts_s(frozenset((key, AS_PLANNED) for key in set(layout)), len(layout))
        own, sums_s = conditions.by_pipeline(), {}
        if conditions.links_s:
            shapes = (self._shape_of(key.shape) for key in layout)
            held = {(k, i): [stage.layers] for k, shape in enumerate(shapes) for i, stage in enumerate(shape.stages)}
            sums_s = conditions.sums_s(held)
        runs = frozenset((key, own.get(k, AS_PLANNED)) for k, key in enumerate(layout))
        return self._lasts_s(runs, len(layout), tuple(sums_s.items()))

    def pace(self, shape: Any, conditions: PlanConditions = AS_PLANNED) -> Pace:
        """The time of a pipeline as a line: exact at `FULL`, and for more wherever its orders are optimal there.

        Args:
            shape: of the pipeline.
            conditions: in it, as if it were number 0; its orders are made for them.
        """
        stages, factors = self._shape_of(shape).stages, {place[1]: factor for place, factor in conditions.factors}
        full = PipelineKey(FULL * len(stages), shape, conditions)
        full_s = max(self.ends_s(full, conditions))
        # What the pipeline alone takes at least under what it is planned for, backwards split.
        bound_s = lower_bound(home_problem(full.planned.under(self.alone(full)), split=True)).value_s
        each_s = max(stage.work_s * factors.get(i, 1.0) for i, stage in enumerate(stages))
        if full_s > bound_s * (1 + ROUNDING):
            long = full._replace(microbatches=LONG * len(stages))
            each_s = (max(self.ends_s(long, conditions)) - full_s) / (long.microbatches - full.microbatches)
        return Pace(max(0.0, full_s - full.microbatches * each_s), each_s)

    def alone(self, key: PipelineKey) -> Plan:
        """A pipeline by itself with nothing slow, without orders, and without what follows its last operation."""
        shape = self._shape_of(key.shape)
        stages = tuple(replace(stage, allreduce_s=0.0, optimizer_s=0.0) for stage in shape.stages)
        return Plan(
            planner=Planner("pipeline", __version__, {}),
            templates=(Template("alone", stages, shape.links),),
            pipelines=(Pipeline("alone", key.microbatches),),
            optimizer="synchronous",
            workers=tuple(Worker(0, i, "") for i in range(len(stages))),
        )

    def _made_orders(self, key: PipelineKey) -> tuple[str, ...]:
        """Of each stage, written as of pipeline 0."""
        plan = scheduled(key.planned.under(self.alone(key)), self._schedule)
        return tuple(worker.order or "" for worker in plan.workers)

    def _ready(self, key: PipelineKey) -> Retimed:
        plan = self.alone(key)
        workers = (Worker(0, i, order) for i, order in enumerate(self.orders(key)))
        return Retimed.of(replace(plan, workers=tuple(workers)))

    def _stage_ends_s(self, key: PipelineKey, own: PlanConditions = AS_PLANNED) -> tuple[float, ...]:
        """When each stage of a pipeline that is number 0 is done, with what is slow in it."""
        if self._schedule == "1f1b" and not own:
            shape = self._shape_of(key.shape)
            return stage_ends_s(shape.stages, shape.links, key.microbatches)
        return tuple(self._retimed(key).ends_s(own).tolist())

    def _most_held_bytes(self, key: PipelineKey) -> tuple[float, ...]:
        """The most that a GPU of each stage holds of activations."""
        if self._schedule != "1f1b":
            return tuple(self._retimed(key).peaks_bytes().tolist())
        stages = self._shape_of(key.shape).stages
        held = zip(warm_ups_of(stages), stages, strict=True)
        return tuple(min(most, key.microbatches) * stage.activation_bytes for most, stage in held)

    def _summed_s(
        self,
        runs: frozenset[tuple[PipelineKey, PlanConditions]],
        pipelines: int,
        more_s: tuple[tuple[Layers, float], ...] = (),
    ) -> float:
        """What an iteration takes: stages are done, gradients are summed, the last ones first, then all step.

        As docs/semantics.md has it (makespan).

        Args:
            runs: each kind of pipeline once, and what is slow in it.
            pipelines: how many there are.
            more_s: how much longer the all-reduces of stages take, by their layers.
        """
        parts, most_bytes, step_s = self._summing(frozenset(key.shape for key, _ in runs))
        ends_s = [0.0] * len(parts.held)
        for key, own in runs:
            for stage, end_s in zip(self._shape_of(key.shape).stages, self.ends_s(key, own), strict=True):
                number = parts.number[stage.layers]
                ends_s[number] = max(ends_s[number], end_s)
        rings_s = [self._rings.ring_s(one, pipelines) for one in most_bytes]
        for layers, longer_s in more_s:
            rings_s[parts.number[layers]] += longer_s
        lasts_s = parts.lasts_s(rings_s)
        summed_s = (begun_s + last_s for begun_s, last_s in zip(parts.begun_s(lasts_s, ends_s), lasts_s, strict=True))
        return max(summed_s) + step_s

    def _parts_summed(self, shapes: frozenset[Any]) -> tuple[Parts, list[float], float]:
        """The parts of these shapes, the most bytes that one GPU of each stage sums, and the longest step."""
        stages = [stage for shape in shapes for stage in self._shape_of(shape).stages]
        parts = parts_of((stage.layers,) for stage in stages)
        most_bytes = [0.0] * len(parts.held)
        for stage in stages:
            number = parts.number[stage.layers]
            most_bytes[number] = max(most_bytes[number], reduced_bytes(self._layers, stage))
        return parts, most_bytes, max(stage.optimizer_s for stage in stages)


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
    """A job's pipelines, all of one shape, one stage a worker; their number need not be the job's.

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
        own = PipelineSeats(job.shape.pp, job.shape.dp, job.shape.degree).rings(job.profile.network, 0)
        super().__init__(job.profile.layers, own, lambda shape: self._own, schedule or job.schedule)

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

    def ordered(self, layout: Layout) -> AnyRetimed:
        """The orders of their plan."""
        return retimed_of(self._with_orders(layout))

    def bare(self, layout: Layout, planner: Planner | None = None) -> Plan:
        """Their plan without orders; by the pipeline planner unless another one is named."""
        template = self.template(len(layout))
        return Plan(
            planner=planner or self._planner(layout),
            inputs=self._inputs,
            templates=(template,),
            pipelines=tuple(Pipeline(template.name, key.microbatches) for key in layout),
            optimizer="synchronous",
            workers=tuple(Worker(k, i, "") for k in range(len(layout)) for i in range(len(template.columns))),
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


class PlacedJobPipelines(JobPipelines):
    """A job's pipelines where workers hold several virtual stages, each pipeline in the best orders found by rules.

    Layouts are timed as plans: what a worker's stages are summed for does not follow from one pipeline alone.
    """

    def seconds(self, layout: Layout, conditions: PlanConditions = AS_PLANNED) -> float:
        """As `Pipelines.seconds`."""
        return self._timed(layout).iteration_time_s(conditions)

    def plan(self, layout: Layout, planner: Planner | None = None) -> Plan:
        """As `JobPipelines.plan`."""
        plan = self._with_orders(layout, planner)
        return with_placed_prediction(plan, bound_of(plan))

    @cached_property
    def _timed(self) -> Callable[[Layout], AnyRetimed]:
        return cache(self.ordered)

    def _made_orders(self, key: PipelineKey) -> tuple[str, ...]:
        """Of each column, written as of pipeline 0."""
        split = self._schedule == "zero-bubble"
        plan = with_placed_pipelines(self.alone(key), split=split, effort=Effort("rules"))
        return tuple(worker.order or "" for worker in plan.workers)

    def _most_held_bytes(self, key: PipelineKey) -> tuple[float, ...]:
        """The most that a GPU of each column holds of activations."""
        return tuple(held_bytes(*ordered_placed_problem(self._with_orders((key,)))).tolist())


def pipelines_by(job: TrainingJob, schedule: Schedule | None = None) -> JobPipelines:
    """A job's pipelines, by its placement.

    Args:
        job, schedule: as for `JobPipelines`.
    """
    return (JobPipelines if job.shape.columns is None else PlacedJobPipelines)(job, schedule)


class WholeRows(ABC):
    """What policies share whose formations are whole rows of the job's grid, a node on every seat.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._pipelines = job, pipelines_by(job)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan."""
        count = pipelines_of(seating_of(standing), self._job.grid)
        return self._pipelines.plan(self._layout(count)) if count else None

    def ordered(self, standing: TrainingState) -> AnyRetimed:
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
