"""Hot spares: nodes that wait with their processes running, to take the seats of dead ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState
from .checkpoint_restart import CheckpointRestart
from .job import TrainingJob, failing_over, filled, seating_of, seatless, without
from .timing import Retimed


class Spares:
    """As checkpoint-restart, but while nodes without a seat can replace the dead ones, nothing else changes.

    Then no process starts anew: all form new groups and read the last checkpoint, the spares among them. Nodes without
    a seat are those beyond the job's grid, and those that make no whole pipeline. Without enough of them, and to grow,
    the job restarts as checkpoint-restart does.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._restarts = job, CheckpointRestart(job)

    def begin(self, fleet: Fleet) -> TrainingState:
        """As checkpoint-restart."""
        return self._restarts.begin(fleet)

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """Spares on the seats of the dead, or what checkpoint-restart does."""
        left = without(seating_of(standing), moment.lost)
        spares = seatless(left, moment.fleet.nodes)
        if not 0 < left.count(None) <= len(spares):
            return self._restarts.answer(standing, moment)
        pauses = failing_over(self._job.costs, copying_s=self._restarts.saved.loading_s)
        same = replace(standing, formation=filled(left, spares))
        return (StateChange(same, "spare", pauses, interrupts=True, rolls_back=True),)

    def plan(self, standing: TrainingState) -> Plan | None:
        """As checkpoint-restart."""
        return self._restarts.plan(standing)

    def ordered(self, standing: TrainingState) -> Retimed:
        """As checkpoint-restart."""
        return self._restarts.ordered(standing)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As checkpoint-restart, but for the spares."""
        return self._restarts.seats(standing)
