"""Elastic batching: a pipeline with a dead node is dropped, and the global batch is smaller by its micro-batches.

So do torchft (replicas that leave and join a quorum at an iteration's end) and Horovod Elastic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState
from .copies import copying_s, from_peers, require_rate
from .job import (
    CheckpointCosts,
    Seating,
    TrainingJob,
    failing_over,
    pipelines_of,
    regrouping,
    restart,
    saved,
    seating_of,
    seatless,
    seats,
    total_s,
    whole_rows,
)
from .timing import JobPipelines, Retimed


class ElasticBatching:
    """Pipelines come and go, each with its own micro-batches: what an iteration commits is not the job's global batch.

    That changes what the optimizer does, which nothing here accounts for; a policy that keeps the batch does more for
    the same micro-batches a second. After a failure the pipelines without a dead node go on once they know. Nodes
    without a seat, those of broken pipelines that live among them, form new pipelines: they copy state from live ones
    while these train, and join at an iteration's end. Once no pipeline is whole, the job restarts from its last
    checkpoint, on as many as the nodes fill. Formations are whole rows of the grid.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._pipelines = job, JobPipelines(job)

    def begin(self, fleet: Fleet) -> TrainingState:
        """On as many whole pipelines as there are nodes for.

        Raises:
            InfeasibleError: a GPU cannot hold its part.
            InvalidInputError: nobody says how fast state is copied.
        """
        require_rate(self._job)
        self._pipelines.outcome(self._job.shape.dp, self._job.microbatches)
        return self._standing(self._rows(fleet.nodes))

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """Pipelines dropped at once, and others formed as soon as they have their state; a restart if none is whole."""
        seating = seating_of(standing)
        whole = self._whole(seating, frozenset(moment.lost))
        if not whole:
            following = self._standing(self._rows(moment.fleet.nodes))
            return restart(self._job.costs, following, self._saved.loading_s, lost=bool(seating))
        dropped = self._dropped(whole) if len(whole) < len(seating) else ()
        return (*dropped, *self._formed(whole, moment.fleet, sum(total_s(step.pauses) for step in dropped)))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan."""
        count = pipelines_of(seating_of(standing), self._job.grid)
        return self._pipelines.plan(count, standing.microbatches) if count else None

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the pipelines' plan."""
        count = pipelines_of(seating_of(standing), self._job.grid)
        return self._pipelines.ordered(count, standing.microbatches)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Row after row."""
        return seats(seating_of(standing), self._job.grid)

    def _dropped(self, whole: Seating) -> tuple[StateChange, ...]:
        return (StateChange(self._standing(whole), "drop", failing_over(self._job.costs), interrupts=True),)

    def _formed(self, whole: Seating, fleet: Fleet, busy_s: float) -> tuple[StateChange, ...]:
        """New rows beside whole ones, if nodes fill any; they begin to copy once others have regrouped."""
        columns = self._job.grid.columns
        rows = len(whole) // columns
        new = whole_rows(seatless(whole, fleet.nodes), columns, self._job.grid.units - rows)
        if not new:
            return ()
        after_s = busy_s + self._copying_s(rows, len(new) // columns)
        return (StateChange(self._standing(whole + new), "form", regrouping(self._job.costs), after_s),)

    def _rows(self, nodes: tuple[str, ...]) -> Seating:
        return whole_rows(nodes, self._job.grid.columns, self._job.grid.units)

    def _whole(self, seating: Seating, lost: frozenset[str]) -> Seating:
        """The rows without a lost node."""
        columns = self._job.grid.columns
        rows = (seating[first : first + columns] for first in range(0, len(seating), columns))
        return tuple(node for row in rows if lost.isdisjoint(row) for node in row)

    def _standing(self, seating: Seating) -> TrainingState:
        count = pipelines_of(seating, self._job.grid)
        if not count:
            return TrainingState((), None, 0, 0)
        microbatches = count * self._job.shape.microbatches
        outcome = self._pipelines.outcome(count, microbatches)
        return outcome.standing(seating, microbatches, len(seating), self._saved.checkpointing)

    def _copying_s(self, rows: int, new_rows: int) -> float:
        """How long new rows copy their state from those that have theirs."""
        grid = self._job.grid
        units = [(row, column) for row in range(rows + new_rows) for column in range(grid.columns)]
        first_new = rows * grid.columns
        return copying_s(self._job, from_peers(grid, units[:first_new], units[first_new:], self._saved.gpu_bytes))

    @cached_property
    def _saved(self) -> CheckpointCosts:
        return saved(self._job, self._pipelines.template(self._job.shape.dp))
