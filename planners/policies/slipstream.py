"""SlipStream (ReCycle): the micro-batches of dead workers run on their peers, in the bubbles.

"SlipStream: Adapting Pipelines for Distributed Training of Large DNNs Amid Failures", sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from ...schemas.plan import Place, Plan
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState
from ..slipstream.normalization import Relocation, Vector, relocate
from .copies import copying_s, from_peers, require_rate
from .job import (
    CheckpointCosts,
    Seating,
    TrainingJob,
    empty_seats,
    failing_over,
    packed,
    pays,
    regrouping,
    restart,
    saved,
    seated,
    seating_of,
    seatless,
    seats,
    total_s,
    until_next_failure_s,
    without,
)
from .timing import ReroutedPipelines, Retimed


class SlipStream:
    """The job keeps its shape and its batch; seats may be empty, as long as each column has a node.

    * A failure empties seats, and the others take the micro-batches (section 3.1). Where failures are in bad places,
      live nodes take seats of dead ones (normalization, section 4.2.1) if that has paid before the next failure is to
      be expected, and if no node without a seat is there to take them. The paper always normalizes, for its plans are
      for numbers of failures only; here such plans are there at once, and others are made while training pauses.
    * Nodes without a seat take empty ones (section 3.4): they copy state from peers while these train on, and join at
      an iteration's end. So do nodes beyond the job's grid.
    * A column without a node has lost its layers. The job restarts from its last checkpoint, on all nodes that there
      are: "an efficient hybrid-parallel scheme for the remaining nodes" (section 3.4) is the re-routed plan of as many
      empty seats in the best places, which has at least the throughput of fewer whole pipelines with a node or more
      left over. It waits where nodes do not even fill a pipeline.

    Formations are seatings whose empty seats are the last of each column: units of a column hold the same layers, so
    which is called the first costs nothing, and a plan for every number of empty seats by column is enough.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._rerouted = job, ReroutedPipelines(job)

    def begin(self, fleet: Fleet) -> TrainingState:
        """On all nodes, at most as many as the grid has seats.

        Raises:
            InfeasibleError: a GPU cannot hold its part.
            InvalidInputError: nobody says how fast state is copied.
        """
        require_rate(self._job)
        self._rerouted.outcome((0,) * self._job.grid.columns)
        return self._standing(self._spread(fleet))

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """Re-routes or normalizes what was lost, and lets nodes without a seat join; or restarts."""
        seating, columns = seating_of(standing), self._job.grid.columns
        left = without(seating, moment.lost)
        lost = left != seating
        if max(empty_seats(left, columns)) == self._job.grid.units:
            following = self._standing(self._spread(moment.fleet))
            return restart(self._job.costs, following, self._saved.loading_s, lost=lost)
        if not lost:
            return self._joined(left, moment.fleet)
        step = self._failed_over(packed(left, columns), moment)
        return (step, *self._joined(seating_of(step.standing), moment.fleet, total_s(step.pauses)))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The re-routed plan."""
        if standing.iteration_time_s is None:
            return None
        return self._rerouted.plan(empty_seats(seating_of(standing), self._job.grid.columns))

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the re-routed plan."""
        return self._rerouted.ordered(empty_seats(seating_of(standing), self._job.grid.columns))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Who sits where."""
        return seats(seating_of(standing), self._job.grid)

    def _failed_over(self, left: Seating, moment: Moment) -> StateChange:
        """Training goes on with the nodes that are left."""
        empty = empty_seats(left, self._job.grid.columns)
        if not seatless(left, moment.fleet.nodes):
            moved = self._normalization(empty)
            lasts_s = copying_s(self._job, [(one.source, one.mover, one.size_bytes) for one in moved.copies])
            if moved.copies and self._pays(empty, lasts_s, moment):
                pauses = failing_over(self._job.costs, copying_s=lasts_s)
                return StateChange(self._standing(self._moved(left, moved)), "normalize", pauses, interrupts=True)
        planning_s = 0.0 if empty == self._rerouted.best(sum(empty)) else self._job.costs.planning_s
        return StateChange(
            self._standing(left), "re-route", failing_over(self._job.costs, planning_s=planning_s), interrupts=True
        )

    def _normalization(self, empty: Vector) -> Relocation:
        """Which nodes move to put so many empty seats where they cost least."""
        grid = self._job.grid
        return relocate(grid, grid.last_units(empty), self._rerouted.best(sum(empty)), self._saved.gpu_bytes)

    def _pays(self, empty: Vector, lasts_s: float, moment: Moment) -> bool:
        """Whether copies that take so long have paid before the next failure.

        Nobody needs the plan in place where not even one at its bound, which is there at once, would keep up.
        """
        left_s = until_next_failure_s(self._job.costs, moment)
        after_per_s = 1 / self._rerouted.outcome(self._rerouted.best(sum(empty))).iteration_time_s
        return pays(left_s, lasts_s, 1 / self._rerouted.bound_s(empty), after_per_s) or pays(
            left_s, lasts_s, 1 / self._rerouted.outcome(empty).iteration_time_s, after_per_s
        )

    def _moved(self, seating: Seating, moved: Relocation) -> Seating:
        """The seating once nodes have moved."""
        grid, found = self._job.grid, list(seating)
        for mover, place in dict.fromkeys((grid.unit_of(one.mover), grid.unit_of(one.place)) for one in moved.copies):
            (row, column), (new_row, new_column) = mover, place
            found[new_row * grid.columns + new_column] = found[row * grid.columns + column]
            found[row * grid.columns + column] = None
        return packed(tuple(found), grid.columns)

    def _joined(self, seating: Seating, fleet: Fleet, busy_s: float = 0.0) -> tuple[StateChange, ...]:
        """Nodes without a seat take empty ones; they begin to copy once the others have regrouped."""
        columns = self._job.grid.columns
        coming = seatless(seating, fleet.nodes)[: seating.count(None)]
        if not coming:
            return ()
        taken = self._taken(empty_seats(seating, columns), len(coming))
        found = list(seating)
        for (row, column), node in zip(taken, coming, strict=True):
            found[row * columns + column] = node
        following = self._standing(tuple(found))
        live = [divmod(number, columns) for number, node in enumerate(seating) if node is not None]
        after_s = busy_s + copying_s(self._job, from_peers(self._job.grid, live, taken, self._saved.gpu_bytes))
        planned = empty_seats(tuple(found), columns) == self._rerouted.best(found.count(None))
        pauses = regrouping(self._job.costs, planning_s=0.0 if planned else self._job.costs.planning_s)
        return (StateChange(following, "join", pauses, after_s),)

    def _taken(self, empty: Vector, coming: int) -> list[Place]:
        """The empty seats that so many nodes take: in columns that have more of them than would be best."""
        wanted, left, taken = self._rerouted.best(sum(empty) - coming), list(empty), []
        for _ in range(coming):
            column = max(range(len(left)), key=lambda c: (left[c] > 0, left[c] - wanted[c], left[c], -c))
            taken.append((self._job.grid.units - left[column], column))
            left[column] -= 1
        return taken

    def _spread(self, fleet: Fleet) -> Seating:
        """Nodes without state on the best seats; none if they fill no pipeline."""
        grid, nodes = self._job.grid, fleet.nodes[: self._job.nodes]
        if len(nodes) < grid.columns:
            return seated((), self._job.nodes)
        empty = grid.last_units(self._rerouted.best(self._job.nodes - len(nodes)))
        coming = iter(nodes)
        units = ((row, column) for row in range(grid.units) for column in range(grid.columns))
        return tuple(None if unit in empty else next(coming) for unit in units)

    def _standing(self, seating: Seating) -> TrainingState:
        nodes = len(seating) - seating.count(None)
        if not nodes:
            return TrainingState(seating, None, 0, 0)
        outcome = self._rerouted.outcome(empty_seats(seating, self._job.grid.columns))
        return outcome.standing(seating, self._job.microbatches, nodes, self._saved.checkpointing)

    @cached_property
    def _saved(self) -> CheckpointCosts:
        return saved(self._job, self._rerouted.template)
