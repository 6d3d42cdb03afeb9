"""Checkpoint and restart: what everybody can do who has torchrun.

TorchElastic (torch.distributed.elastic) ends all processes when one of them dies and starts them anew on the nodes that
are left; they read the last checkpoint. So does Varuna, with other pipelines (varuna.py).
"""

from __future__ import annotations

from ...schemas.errors import InfeasibleError
from ...schemas.replay import Fleet, Moment, TrainingState, Transition
from .job import (
    Seating,
    pipelines_of,
    restart_or_grow,
    seating_of,
)
from .layout import Layout, WholeRows, alike, spread


class CheckpointRestart(WholeRows):
    """Any failure restarts the job from its last checkpoint, on as many whole pipelines as the nodes left fill.

    The global batch stays, so each of fewer pipelines has more micro-batches. Nodes without a seat take part in the
    next restart. If they make further pipelines, the job saves a checkpoint and restarts at once where what that gains
    until the next failure is to be expected is more than what it costs. Formations are whole rows of the grid.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def begin(self, fleet: Fleet) -> TrainingState:
        """On as many whole pipelines as there are nodes for.

        Raises:
            InfeasibleError: a GPU cannot hold its part of the job's full shape.
        """
        self._pipelines.outcome(self._layout(self._job.shape.dp))
        return self._standing(self._rows(fleet.nodes))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """A restart if a node at work was lost, or if more pipelines pay, or any are possible at last."""
        following = self._standing(self._rows(moment.fleet.nodes))
        lost = not set(seating_of(standing)).isdisjoint(moment.lost)
        return restart_or_grow(self._job.costs, standing, following, self.saved.loading_s, moment, lost=lost)

    def _layout(self, pipelines: int) -> Layout:
        return alike(spread(self._job.microbatches, pipelines))

    def _standing(self, seating: Seating) -> TrainingState:
        """Training on whole rows; waiting without any, or where so few cannot hold the whole batch (GPipe)."""
        count, microbatches = pipelines_of(seating, self._job.grid), self._job.microbatches
        try:
            outcome = self._pipelines.outcome(self._layout(count)) if count else None
        except InfeasibleError:
            outcome = None
        if outcome is None:
            return TrainingState((), None, 0, 0)
        return outcome.standing(seating, microbatches, len(seating), self.saved.checkpointing)
