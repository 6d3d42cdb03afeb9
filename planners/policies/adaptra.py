"""Adaptra: schedules with slack for slow links, and with more of it where a link has become slow.

T. Wu et al., "Adaptra: Straggler-Resilient Hybrid-Parallel Training with Pipeline Adaptation", section 4, with the real
planner (`planners/adaptra/`):

* While all is well each pipeline runs Algorithm 1's warm-ups, which absorb small delays of any link.
* A delay between two stages is found after so many iterations as the job's costs say, and answered by Algorithm 2's
  warm-ups for the links of that pipeline: at an iteration's end, for as long as planning takes. Orders that take at
  most 2 % longer stay, as in `rtk run` (docs/adaptra.md).
* Once no link is slow any more, which also has to be found, all go back to their first orders.

Slow nodes are not heeded. Nor are slow links between peers, which the paper moves between two stages: that is
Greyhound's S3 here. Failures are checkpoint-restart's. Backwards are split, whatever the job's schedule is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from ... import __version__
from ...schemas.plan import Place, Plan, Planner
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState
from ..adaptra.plan import plan_adaptra
from ..scheduling.solve import Effort
from ..shape import shape_options
from .checkpoint_restart import CheckpointRestart
from .job import TrainingJob, begins_s, pipelines_of, planning, seating_of
from .timing import HEALTHY, Delays, PipelineKey, PlanSlowness, SeparatePipelines, spread, troubles_of, under_troubles
from .unheeding import paced

# Orders that take at most so much longer than adapted ones stay.
KEPT_WITHIN = 0.02


@dataclass(frozen=True)
class AdaptraLayout:
    """Who sits where, and which orders they have.

    Attributes:
        base: checkpoint-restart's standing.
        planned_s: of each pipeline, the delays of its links that its orders are made for; None: its first orders.
        troubles: what is slow.
        found_s: when what is slow, or slow no more, is found, in s of the trace.
    """

    base: TrainingState
    planned_s: tuple[Delays | None, ...]
    troubles: PlanSlowness
    found_s: float


class Adaptra:
    """Checkpoint-restart's pipelines in Adaptra's orders; formations say which, and what is slow.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._restarts = CheckpointRestart(replace(job, schedule="zero-bubble"))
        self._pipelines = SeparatePipelines(job, self._orders)

    def begin(self, fleet: Fleet) -> TrainingState:
        """As checkpoint-restart; what is slow already is answered from the next moment on.

        Raises:
            InfeasibleError: as checkpoint-restart.
        """
        return self._first(self._restarts.begin(fleet), fleet, 0.0)

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """As checkpoint-restart where that has an answer; else other orders for links that are slow."""
        formation = _formation(standing)
        restarts = self._restarts.answer(formation.base, moment)
        if restarts:
            steps = tuple(
                replace(step, standing=self._first(step.standing, moment.fleet, moment.time_s + begins_s(step)))
                for step in restarts
            )
            return (*steps, *self._adapted(steps[-1].standing, moment.time_s))
        if standing.iteration_time_s is None:
            return ()
        same = self._same(standing, moment)
        pace = () if same == standing else (paced(same),)
        return (*pace, *self._adapted(same, moment.time_s))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan, each with its own orders, and what is slow."""
        formation = _formation(standing)
        if standing.iteration_time_s is None:
            return None
        kinds = self._kinds(formation.planned_s)
        shape = replace(self._job.shape, dp=len(kinds))
        options = shape_options(self._job.profile, shape) | {"microbatches": [kind.microbatches for kind in kinds]}
        plan = self._pipelines.plan(kinds, Planner("adaptra", __version__, options, self._job.seed))
        return under_troubles(plan, formation.troubles)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As checkpoint-restart."""
        return self._restarts.seats(_formation(standing).base)

    def _first(self, base: TrainingState, fleet: Fleet, at_s: float) -> TrainingState:
        """A standing of checkpoint-restart, from a time on, with the first orders and what is slow."""
        if base.iteration_time_s is None:
            return replace(base, formation=AdaptraLayout(base, (), HEALTHY, 0.0))
        count = pipelines_of(seating_of(base), self._job.grid)
        troubles = self._troubles(base, fleet)
        return self._found_after(self._standing(AdaptraLayout(base, (None,) * count, troubles, 0.0)), at_s)

    def _same(self, standing: TrainingState, moment: Moment) -> TrainingState:
        """The same orders with what is slow now; it has to be found anew if that changes the pace."""
        formation = _formation(standing)
        troubles = self._troubles(formation.base, moment.fleet)
        if troubles == formation.troubles:
            return standing
        same = self._standing(replace(formation, troubles=troubles))
        return same if same.iteration_time_s == standing.iteration_time_s else self._found_after(same, moment.time_s)

    def _found_after(self, standing: TrainingState, at_s: float) -> TrainingState:
        found_s = at_s + self._job.costs.slow_detection_iterations * (standing.iteration_time_s or 0.0)
        return replace(standing, formation=replace(_formation(standing), found_s=found_s))

    def _adapted(self, standing: TrainingState, time_s: float) -> Iterator[StateChange]:
        """Other orders, once it is known for what, if they are worth it."""
        formation = _formation(standing)
        if standing.iteration_time_s is None:
            return
        after_s, relieved = max(0.0, formation.found_s - time_s), not formation.troubles.hops_s
        planned_s = self._best(formation.troubles, len(formation.planned_s))
        following = self._standing(replace(formation, planned_s=planned_s))
        if relieved and planned_s != formation.planned_s:
            yield StateChange(following, "relief", (), after_s)
        elif standing.iteration_time_s > (following.iteration_time_s or 0.0) * (1 + KEPT_WITHIN):
            yield StateChange(following, "adapt", planning(self._job.costs), after_s)

    def _best(self, troubles: PlanSlowness, pipelines: int) -> tuple[Delays | None, ...]:
        """The delays that each pipeline's orders should be made for: those of its links, where that helps."""
        found: list[Delays | None] = [None] * pipelines
        counts, links = self._counts(pipelines), self._pipelines.template(pipelines).links
        for k, own in troubles.by_pipeline().items():
            delays_s = tuple(max(link.delay_s, own.hops_s.get((0, i), 0.0)) for i, link in enumerate(links))
            tried = (
                (PipelineKey(counts[k]), PipelineKey(counts[k], delays_s)) if own.hops_s else (PipelineKey(counts[k]),)
            )
            found[k] = min(tried, key=lambda kind: self._pipelines.alone_s(kind, own)).delays_s
        return tuple(found)

    def _standing(self, formation: AdaptraLayout) -> TrainingState:
        outcome = self._pipelines.outcome(self._kinds(formation.planned_s), formation.troubles)
        return replace(
            formation.base,
            formation=formation,
            iteration_time_s=outcome.iteration_time_s,
            peak_memory_bytes=outcome.peak_memory_bytes,
        )

    def _troubles(self, base: TrainingState, fleet: Fleet) -> PlanSlowness:
        return troubles_of(fleet, self._restarts.seats(base)).felt() if fleet.is_slow else HEALTHY

    def _counts(self, pipelines: int) -> tuple[int, ...]:
        return spread(self._job.microbatches, pipelines)

    def _kinds(self, planned_s: tuple[Delays | None, ...]) -> list[PipelineKey]:
        return [PipelineKey(*one) for one in zip(self._counts(len(planned_s)), planned_s, strict=True)]

    def _orders(self, kind: PipelineKey) -> tuple[str, ...]:
        """The orders of a pipeline alone: Algorithm 1's warm-ups, or Algorithm 2's for some delays."""
        shape = replace(self._job.shape, dp=1, microbatches=kind.microbatches)
        if kind.delays_s is None:
            plan = plan_adaptra(self._job.profile, shape, "initial", Effort("rules"))
        else:
            shape = replace(shape, link_delay_s={(None, i): delay_s for i, delay_s in enumerate(kind.delays_s)})
            plan = plan_adaptra(self._job.profile, shape, "adapted", Effort("rules"))
        return tuple(worker.order or "" for worker in plan.workers)


def _formation(standing: TrainingState) -> AdaptraLayout:
    return cast("AdaptraLayout", standing.formation)
