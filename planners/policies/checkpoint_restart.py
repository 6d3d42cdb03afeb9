"""Checkpoint and restart: what everybody can do who has torchrun.

TorchElastic (torch.distributed.elastic) ends all processes when one of them dies and starts them anew on the nodes that
are left; they read the last checkpoint. So does Varuna, with other pipelines (varuna.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState
from .job import (
    CheckpointCosts,
    Seating,
    TrainingJob,
    pipelines_of,
    restart_or_grow,
    saved,
    seating_of,
    seats,
    whole_rows,
)
from .timing import JobPipelines, Retimed


class CheckpointRestart:
    """Any failure restarts the job from its last checkpoint, on as many whole pipelines as the nodes left fill.

    The global batch stays, so each of fewer pipelines has more micro-batches. Nodes without a seat take part in the
    next restart. If they make further pipelines, the job saves a checkpoint and restarts at once where what that gains
    until the next failure is to be expected is more than what it costs. Formations are whole rows of the grid.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._pipelines = job, JobPipelines(job)

    def begin(self, fleet: Fleet) -> TrainingState:
        """On as many whole pipelines as there are nodes for.

        Raises:
            InfeasibleError: a GPU cannot hold its part of the job's full shape.
        """
        self._pipelines.outcome(self._job.shape.dp, self._job.microbatches)
        return self._standing(self._rows(fleet))

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """A restart if a node at work was lost, or if more pipelines pay, or any are possible at last."""
        following = self._standing(self._rows(moment.fleet))
        lost = not set(seating_of(standing)).isdisjoint(moment.lost)
        return restart_or_grow(self._job.costs, standing, following, self.saved.loading_s, moment, lost=lost)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan."""
        count = pipelines_of(seating_of(standing), self._job.grid)
        return self._pipelines.plan(count, self._job.microbatches) if count else None

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the pipelines' plan."""
        return self._pipelines.ordered(pipelines_of(seating_of(standing), self._job.grid), self._job.microbatches)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Row after row."""
        return seats(seating_of(standing), self._job.grid)

    @cached_property
    def saved(self) -> CheckpointCosts:
        """What checkpoints hold and cost."""
        return saved(self._job, self._pipelines.template(self._job.shape.dp))

    def _rows(self, fleet: Fleet) -> Seating:
        return whole_rows(fleet.nodes, self._job.grid.columns, self._job.grid.units)

    def _standing(self, seating: Seating) -> TrainingState:
        """Training on whole rows; waiting without any, or where so few cannot hold the whole batch (GPipe)."""
        count, microbatches = pipelines_of(seating, self._job.grid), self._job.microbatches
        try:
            outcome = self._pipelines.outcome(count, microbatches) if count else None
        except InfeasibleError:
            outcome = None
        if outcome is None:
            return TrainingState((), None, 0, 0)
        return outcome.standing(seating, microbatches, len(seating), self.saved.checkpointing)
