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
from ...schemas.conditions import AS_PLANNED, LinkPlace, PlanConditions
from ...schemas.plan import Place, Plan, Planner
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState, Transition
from ..adaptra.plan import plan_adaptra
from ..scheduling.solve import Effort
from ..shape import shape_options
from .checkpoint_restart import CheckpointRestart
from .detecting import paced
from .job import TrainingJob, begins_s, finding_s, pipelines_of, planning, seating_of
from .layout import JobPipelines, Layout, PipelineKey, spread

# Orders that take at most so much longer than adapted ones stay.
KEPT_WITHIN = 0.02


@dataclass(frozen=True)
class AdaptraLayout:
    """Who sits where, and which orders they have.

    Attributes:
        base: checkpoint-restart's standing.
        planned: of each pipeline, the slow links that its orders are made for; its first orders where there are none.
        troubles: what is slow.
        found_s: when what is slow, or slow no more, is found, in s of the trace.
    """

    base: TrainingState
    planned: tuple[PlanConditions, ...]
    troubles: PlanConditions
    found_s: float


class Adaptra:
    """Checkpoint-restart's pipelines in Adaptra's orders; formations say which, and what is slow.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._restarts = CheckpointRestart(replace(job, schedule="zero-bubble"))
        self._pipelines = JobPipelines(job, "zero-bubble", self._orders)

    def begin(self, fleet: Fleet) -> TrainingState:
        """As checkpoint-restart; what is slow already is answered from the next moment on.

        Raises:
            InfeasibleError: as checkpoint-restart.
        """
        return self._first(self._restarts.begin(fleet), fleet, 0.0)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As checkpoint-restart where that has an answer; else other orders for links that are slow."""
        formation = _formation(standing)
        restarts = self._restarts.react(formation.base, moment)
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
        layout = self._layout(formation.planned)
        shape = replace(self._job.shape, dp=len(layout))
        options = shape_options(self._job.profile, shape) | {"microbatches": [key.microbatches for key in layout]}
        plan = self._pipelines.plan(layout, Planner("adaptra", __version__, options, self._job.seed))
        return formation.troubles.under(plan)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As checkpoint-restart."""
        return self._restarts.seats(_formation(standing).base)

    def _first(self, base: TrainingState, fleet: Fleet, at_s: float) -> TrainingState:
        """A standing of checkpoint-restart, from a time on, with the first orders and what is slow."""
        if base.iteration_time_s is None:
            return replace(base, formation=AdaptraLayout(base, (), AS_PLANNED, 0.0))
        count = pipelines_of(seating_of(base), self._job.grid)
        troubles = self._troubles(base, fleet)
        return self._found_after(self._standing(AdaptraLayout(base, (AS_PLANNED,) * count, troubles, 0.0)), at_s)

    def _same(self, standing: TrainingState, moment: Moment) -> TrainingState:
        """The same orders with what is slow now; it has to be found anew if that changes the pace."""
        formation = _formation(standing)
        troubles = self._troubles(formation.base, moment.fleet)
        if troubles == formation.troubles:
            return standing
        same = self._standing(replace(formation, troubles=troubles))
        return same if same.iteration_time_s == standing.iteration_time_s else self._found_after(same, moment.time_s)

    def _found_after(self, standing: TrainingState, at_s: float) -> TrainingState:
        found_s = at_s + finding_s(self._job.costs, standing)
        return replace(standing, formation=replace(_formation(standing), found_s=found_s))

    def _adapted(self, standing: TrainingState, time_s: float) -> Iterator[StateChange]:
        """Other orders, once it is known for what, if they are worth it."""
        formation = _formation(standing)
        if standing.iteration_time_s is None:
            return
        after_s, relieved = max(0.0, formation.found_s - time_s), not formation.troubles.hops_s
        planned = self._best(formation.troubles, len(formation.planned))
        following = self._standing(replace(formation, planned=planned))
        if relieved and planned != formation.planned:
            yield StateChange(following, "relief", (), after_s)
        elif standing.iteration_time_s > (following.iteration_time_s or 0.0) * (1 + KEPT_WITHIN):
            yield StateChange(following, "adapt", planning(self._job.costs), after_s)

    def _best(self, troubles: PlanConditions, pipelines: int) -> tuple[PlanConditions, ...]:
        """The slow links that each pipeline's orders should be made for: its own, where that helps."""
        found, counts = [AS_PLANNED] * pipelines, self._counts(pipelines)
        for k, own in troubles.by_pipeline().items():
            tried = (AS_PLANNED, PlanConditions(links_s=own.links_s)) if own.links_s else (AS_PLANNED,)
            keys = (PipelineKey(counts[k], planned=planned) for planned in tried)
            found[k] = min(keys, key=lambda key: max(self._pipelines.ends_s(key, own))).planned
        return tuple(found)

    def _standing(self, formation: AdaptraLayout) -> TrainingState:
        outcome = self._pipelines.outcome(self._layout(formation.planned), formation.troubles)
        return replace(
            formation.base,
            formation=formation,
            iteration_time_s=outcome.iteration_time_s,
            peak_memory_bytes=outcome.peak_memory_bytes,
        )

    def _troubles(self, base: TrainingState, fleet: Fleet) -> PlanConditions:
        return fleet.at(self._restarts.seats(base)).felt() if fleet.is_slow else AS_PLANNED

    def _counts(self, pipelines: int) -> tuple[int, ...]:
        return spread(self._job.microbatches, pipelines)

    def _layout(self, planned: tuple[PlanConditions, ...]) -> Layout:
        counts = self._counts(len(planned))
        return tuple(PipelineKey(count, None, own) for count, own in zip(counts, planned, strict=True))

    def _orders(self, key: PipelineKey) -> tuple[str, ...]:
        """The orders of a pipeline alone: Algorithm 1's warm-ups, or Algorithm 2's for slow links."""
        shape, hops_s = replace(self._job.shape, dp=1, microbatches=key.microbatches), key.planned.hops_s
        if hops_s:
            links = self._pipelines.template(1).links
            delays_s: dict[LinkPlace, float] = {
                (None, i): max(link.delay_s, hops_s.get((0, i), 0.0)) for i, link in enumerate(links)
            }
            shape = replace(shape, link_delay_s=delays_s)
        plan = plan_adaptra(self._job.profile, shape, "adapted" if hops_s else "initial", Effort("rules"))
        return tuple(worker.order or "" for worker in plan.workers)


def _formation(standing: TrainingState) -> AdaptraLayout:
    return cast("AdaptraLayout", standing.formation)
