"""Hot spares: nodes that wait with their processes running, to take the seats of dead ones."""

from __future__ import annotations

from dataclasses import replace

from ...schemas.replay import Moment, StateChange, TrainingState, Transition
from .checkpoint_restart import CheckpointRestart
from .job import failing_over, filled, seating_of, seatless, without


class Spares(CheckpointRestart):
    """As checkpoint-restart, but while nodes without a seat can replace the dead ones, nothing else changes.

    Then no process starts anew: all form new groups and read the last checkpoint, the spares among them. Nodes without
    a seat are those beyond the job's grid, and those that make no whole pipeline. Without enough of them, and to grow,
    the job restarts as checkpoint-restart does.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """Spares on the seats of the dead, or what checkpoint-restart does."""
        left = without(seating_of(standing), moment.lost)
        spares = seatless(left, moment.fleet.nodes)
        if not 0 < left.count(None) <= len(spares):
            return super().react(standing, moment)
        pauses = failing_over(self._job.costs, copying_s=self.saved.loading_s)
        same = replace(standing, formation=filled(left, spares))
        return (StateChange(same, "spare", pauses, interrupts=True, rolls_back=True),)
