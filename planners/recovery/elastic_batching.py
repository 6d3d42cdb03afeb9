"""Elastic batching: a pipeline with a dead node is dropped, and the global batch is smaller by its micro-batches.

So do torchft (replicas that leave and join a quorum at an iteration's end) and Horovod Elastic.
"""

from __future__ import annotations

from ...schemas.replay import Fleet, Moment, StateChange, TrainingState, Transition
from .job import (
    Seating,
    copying_s,
    failing_over,
    from_peers,
    pipelines_of,
    regrouping,
    require_rate,
    restart,
    rows_of,
    seating_of,
    seatless,
    total_s,
    whole_rows,
)
from .layout import Layout, WholeRows, alike


class ElasticBatching(WholeRows):
    """Pipelines come and go, each with its own micro-batches: what an iteration commits is not the job's global batch.

    That changes what the optimizer does, which nothing here accounts for; a policy that keeps the batch does more for
    the same micro-batches a second. After a failure the pipelines without a dead node go on once they know. Nodes
    without a seat, those of broken pipelines that live among them, form new pipelines: they copy state from live ones
    while these train, and join at an iteration's end. Once no pipeline is whole, the job restarts from its last
    checkpoint, on as many as the nodes fill. Formations are whole rows of the grid.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def begin(self, fleet: Fleet) -> TrainingState:
        """On as many whole pipelines as there are nodes for.

        Raises:
            InfeasibleError: a GPU cannot hold its part.
            InvalidInputError: nobody says how fast state is copied.
        """
        require_rate(self._job)
        self._pipelines.outcome(self._layout(self._job.shape.dp))
        return self._standing(self._rows(fleet.nodes))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """Pipelines dropped at once, and others formed as soon as they have their state; a restart if none is whole."""
        seating = seating_of(standing)
        lost = frozenset(moment.lost)
        whole = tuple(node for row in rows_of(seating, self._job.grid.columns) if lost.isdisjoint(row) for node in row)
        if not whole:
            following = self._standing(self._rows(moment.fleet.nodes))
            return restart(self._job.costs, following, self.saved.loading_s, lost=bool(seating))
        dropped = self._dropped(whole) if len(whole) < len(seating) else ()
        return (*dropped, *self._formed(whole, moment.fleet, sum(total_s(step.pauses) for step in dropped)))

    def _dropped(self, whole: Seating) -> Transition:
        return (StateChange(self._standing(whole), "drop", failing_over(self._job.costs), interrupts=True),)

    def _formed(self, whole: Seating, fleet: Fleet, busy_s: float) -> Transition:
        """New rows beside whole ones, if nodes fill any; they begin to copy once others have regrouped."""
        columns = self._job.grid.columns
        rows = len(whole) // columns
        new = whole_rows(seatless(whole, fleet.nodes), columns, self._job.grid.units - rows)
        if not new:
            return ()
        units = [divmod(number, columns) for number in range(len(whole) + len(new))]
        copies = from_peers(self._job.grid, units[: len(whole)], units[len(whole) :], self.saved.gpu_bytes)
        after_s = busy_s + copying_s(self._job, copies)
        return (StateChange(self._standing(whole + new), "form", regrouping(self._job.costs), after_s),)

    def _layout(self, pipelines: int) -> Layout:
        return alike([self._job.shape.microbatches] * pipelines)

    def _standing(self, seating: Seating) -> TrainingState:
        count = pipelines_of(seating, self._job.grid)
        if not count:
            return TrainingState((), None, 0, 0)
        outcome = self._pipelines.outcome(self._layout(count))
        return outcome.standing(seating, count * self._job.shape.microbatches, len(seating), self.saved.checkpointing)
