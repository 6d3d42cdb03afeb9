"""Pipelines of one shape, any number of them: what an iteration takes, what a GPU holds, and the plan.

Alike pipelines do not wait for each other before they sum gradients, so an iteration takes as long as the slowest of
them takes alone. That is remembered by numbers of pipelines and micro-batches; the plan of all is made when it is asked
for, and takes as long.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ... import __version__
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Pipeline, Plan, Planner, Stage, Template, Worker
from ...schemas.replay import Checkpointing, TrainingState
from ..oobleck.pace import stage_ends_s, warm_ups_of
from ..pipeline import Schedule, scheduled
from ..scheduling.assemble import with_prediction
from ..scheduling.evaluate import evaluate
from ..shape import shape_options, template_of
from .job import TrainingJob
from .memory import peak_memory_bytes
from .retimed import Retimed

NOBODY = Planner("pipeline", __version__, {})


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


@dataclass(frozen=True)
class _PipelineRun:
    """When each stage of a pipeline has done its micro-batches, and the most activations that a GPU of it held."""

    ends_s: tuple[float, ...]
    activation_bytes: tuple[float, ...]


class JobPipelines:
    """A job's pipelines; their number need not be the job's.

    Args:
        job: its shape says stages, limits and delays; pipelines and micro-batches are asked for.
        schedule: of every pipeline; None: the job's.

    Raises:
        InvalidInputError: the shape has delays of single pipelines.
    """

    def __init__(self, job: TrainingJob, schedule: Schedule | None = None) -> None:
        require_alike(job)
        self._job, self._schedule = job, schedule or job.schedule
        self._templates: dict[int, Template] = {}
        self._runs: dict[int, _PipelineRun] = {}  # by micro-batches
        self._outcomes: dict[tuple[int, int], TimeAndMemory] = {}  # of one: how many sum with it, and its micro-batches

    def template(self, pipelines: int) -> Template:
        """The stages of so many pipelines, whose number only sums of gradients depend on.

        Raises:
            InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
            InvalidInputError: a link or limit that the shape does not have.
        """
        if pipelines not in self._templates:
            self._templates[pipelines] = template_of(self._job.profile, replace(self._job.shape, dp=pipelines))
        return self._templates[pipelines]

    def outcome(self, pipelines: int, microbatches: int) -> TimeAndMemory:
        """What so many pipelines take and hold with so many micro-batches in all, spread evenly.

        Raises:
            InfeasibleError: as `template`; or a memory limit admits no schedule of this kind.
        """
        each = [self._alone(pipelines, count) for count in set(spread(microbatches, pipelines))]
        return TimeAndMemory(max(one.iteration_time_s for one in each), max(one.peak_memory_bytes for one in each))

    def plan(self, pipelines: int, microbatches: int) -> Plan:
        """Their plan, checked and with its prediction; the rest as for `outcome`."""
        return with_prediction(self._scheduled(pipelines, microbatches))

    def ordered(self, pipelines: int, microbatches: int) -> Retimed:
        """The orders of their plan."""
        return Retimed.of(self._scheduled(pipelines, microbatches))

    def _scheduled(self, pipelines: int, microbatches: int) -> Plan:
        job, counts = self._job, spread(microbatches, pipelines)
        options = shape_options(job.profile, replace(job.shape, dp=pipelines)) | {
            "schedule": self._schedule,
            "microbatches": counts[0] if len(set(counts)) == 1 else list(counts),
        }
        planner = Planner("pipeline", __version__, options, job.seed)
        return scheduled(self.bare(pipelines, counts, planner), self._schedule)

    def bare(self, pipelines: int, counts: Sequence[int], planner: Planner = NOBODY) -> Plan:
        """A plan without orders of some pipelines.

        Args:
            pipelines: that sum their gradients.
            counts: micro-batches of those in the plan.
            planner: who makes it.
        """
        template = self.template(pipelines)
        return Plan(
            planner=planner,
            inputs=self._inputs,
            templates=(template,),
            pipelines=tuple(Pipeline(template.name, count) for count in counts),
            optimizer="synchronous",
            workers=tuple(Worker(k, i, "") for k in range(len(counts)) for i in range(len(template.stages))),
        )

    @cached_property
    def _inputs(self) -> dict[str, str]:
        return {"profile": digest(self._job.profile)}

    def _alone(self, pipelines: int, microbatches: int) -> TimeAndMemory:
        """One of so many pipelines, with its own micro-batches."""
        key = pipelines, microbatches
        if key not in self._outcomes:
            stages, run = self.template(pipelines).stages, self._run(microbatches)
            held = peak_memory_bytes(self._job, self.template(pipelines), run.activation_bytes)
            self._outcomes[key] = TimeAndMemory(iteration_s(stages, run.ends_s), held)
        return self._outcomes[key]

    def _run(self, microbatches: int) -> _PipelineRun:
        """A pipeline of so many micro-batches, whatever sums of gradients take."""
        if microbatches not in self._runs:
            self._runs[microbatches] = self._timed(microbatches)
        return self._runs[microbatches]

    def _timed(self, microbatches: int) -> _PipelineRun:
        """By the kernel where there is one, else by the evaluator."""
        template = self.template(self._job.shape.dp)
        if self._schedule == "1f1b":
            held = zip(warm_ups_of(template.stages), template.stages, strict=True)
            held_bytes = tuple(min(most, microbatches) * stage.activation_bytes for most, stage in held)
            return _PipelineRun(stage_ends_s(template.stages, template.links, microbatches), held_bytes)
        found = evaluate(scheduled(self.bare(self._job.shape.dp, (microbatches,)), self._schedule))
        return _PipelineRun(tuple(row[-1].end_s for row in found.operations), found.peak_memory_bytes)


def require_alike(job: TrainingJob) -> None:
    """Raise InvalidInputError if a link of a single pipeline is slow from the beginning: nodes have no places yet."""
    for pipeline, link in job.shape.link_delay_s or {}:
        if pipeline is not None:
            raise InvalidInputError(
                f"link {link} of pipeline {pipeline} alone is slow, and which nodes will hold it nobody knows",
                where="--link-delay",
                fix=f"give it to link {link} of all pipelines, or let the trace make a link between nodes slow",
            )


def iteration_s(stages: Sequence[Stage], ends_s: Sequence[float], more_s: Sequence[float] | None = None) -> float:
    """What alike pipelines take once the last worker of each stage is done: gradients are summed, then all step.

    Args:
        stages: with what sums and steps take.
        ends_s: when the last worker of each is done.
        more_s: how much longer the sum of each takes; None: none does.
    """
    times_s = zip(ends_s, stages, more_s or [0.0] * len(stages), strict=True)
    reduced_s = max(end_s + stage.allreduce_s + slower_s for end_s, stage, slower_s in times_s)
    return reduced_s + max(stage.optimizer_s for stage in stages)


def spread(microbatches: int, pipelines: int) -> tuple[int, ...]:
    """Micro-batches of each pipeline, as even as can be, the first ones with one more; at least one each."""
    least, more = divmod(microbatches, pipelines)
    return (least + 1,) * more + (least,) * (pipelines - more)
