"""SlipStream (ReCycle): the micro-batches of dead workers run on their peers, in the bubbles.

"SlipStream: Adapting Pipelines for Distributed Training of Large DNNs Amid Failures", sections 3 and 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...schemas.plan import Place, Plan, place_of
from ...schemas.profile import Connection
from ...schemas.replay import Costs, Fleet, Moment, StateChange, TrainingState, Transition
from ..placement.retimed import AnyRetimed
from ..scheduling.solve import Effort
from ..slipstream.cluster import AtlasRequest, connection_of, grid_of, opening
from ..slipstream.normalization import Grid, Relocation
from .job import (
    RUNNING,
    CheckpointCosts,
    Copied,
    Horizon,
    Seating,
    TrainingJob,
    copying_connection,
    empty_seats,
    failing_over,
    from_peers,
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
    unknown_rate,
    without,
)
from .layout import require_alike
from .rerouting import Empty, ReroutedPipelines, rerouted_from


@dataclass(frozen=True, eq=False)
class GridJob:
    """A job on a grid of alike pipelines, as it is replayed or as it runs.

    Attributes:
        pipelines: with empty places.
        grid: its units are taken by a node each.
        costs: what changes cost.
        horizon: until when copies must have paid.
        connection: that state is copied over.
        saved: what a restart needs; None: nothing is saved, and a lost stage ends the job.
        keeps_places: whether nobody takes another place of his stage when others are lost. In a running job everybody
            knows everybody by his place; in a replay, where that costs nothing, empty seats are the last of each stage,
            which makes plans few.
    """

    pipelines: ReroutedPipelines
    grid: Grid
    costs: Costs
    horizon: Horizon
    connection: Connection
    saved: CheckpointCosts | None
    keeps_places: bool

    @classmethod
    def replayed(cls, job: TrainingJob, *, by_worker: bool = False) -> GridJob:
        """A job that is replayed, in its own shape.

        Args:
            job: what it trains.
            by_worker: each worker comes and goes by itself, also where a node holds several.

        Raises:
            InfeasibleError: the profile cannot be cut into that many stages, or a device cannot hold one.
            InvalidInputError: the shape has delays of single pipelines.
        """
        require_alike(job)
        grid = replace(job.grid, unit_pipelines=1, unit_stages=1) if by_worker else job.grid
        unit = grid.unit_pipelines, grid.unit_stages
        effort = Effort("rules", seed=job.seed)
        common = opening(job.profile, AtlasRequest(job.shape, "staggered", unit, effort))
        saves = saved(job, common.template)
        pipelines = ReroutedPipelines(common, saves.gpu_bytes)
        return cls(pipelines, grid, job.costs, Horizon(), copying_connection(job), saves, False)

    @classmethod
    def running(cls, plan: Plan, atlas_folder: str | None, normalize_within: int) -> GridJob:
        """A job that runs a plan; each of its workers comes and goes by itself.

        Args:
            plan: read and found valid; some of its workers may have failed.
            atlas_folder: an atlas of the same job, for plans made ahead and what copies take; or None.
            normalize_within: iterations within which moves must have paid for their copies; 0: nobody moves.

        Raises:
            InvalidInputError: the plan's pipelines differ, or the atlas cannot be read or is of another job.
        """
        pipelines = rerouted_from(plan, atlas_folder)
        grid = replace(grid_of(pipelines.common), unit_pipelines=1, unit_stages=1)
        connection = connection_of(pipelines.common)
        # Where nobody knows how much is copied, or how fast, copying would seem to be free.
        is_known = any(pipelines.gpu_bytes) and connection.bandwidth_bytes_per_s is not None
        return cls(pipelines, grid, RUNNING, Horizon(normalize_within if is_known else 0), connection, None, True)

    @property
    def nodes(self) -> int:
        """Nodes that the grid takes."""
        return self.grid.units * self.grid.columns

    @property
    def microbatches(self) -> int:
        """The global batch, in micro-batches."""
        return self.pipelines.common.dp * self.pipelines.common.microbatches

    def copying_s(self, copies: Iterable[Copied]) -> float:
        """How long copies between workers take, in s; where a running job does not say, nothing."""
        return self.connection.copying_s(copies) or 0.0


class SlipStream:
    """The job keeps its shape and its batch; places may be empty, as long as each stage has a node.

    * A failure empties places, and the others take the micro-batches (section 3.1). Where failures are in bad places,
      live nodes take places of dead ones (normalization, section 4.2.1) if that has paid before the horizon, and if no
      node without a place is there to take them. The paper always normalizes, for its plans are for numbers of failures
      only; here such plans are there at once, and others are made while training pauses.
    * Nodes without a place take empty ones (section 3.4), in a running job those that they are named after: they copy
      state from peers while these train on, and join at an iteration's end. So do nodes beyond the job's grid.
    * A stage without a node has lost its layers. The job restarts from its last checkpoint, on all nodes that there
      are: "an efficient hybrid-parallel scheme for the remaining nodes" (section 3.4) is the re-routed plan of as many
      empty places where they cost least, which has at least the throughput of fewer whole pipelines with a node or more
      left over. It waits where nodes do not even fill a pipeline. A running job that saves nothing ends.

    Formations are seatings. Units of a column hold the same layers, so that what an iteration takes depends on the
    numbers of empty seats by column alone.

    Args:
        job: what it trains.
    """

    def __init__(self, job: GridJob) -> None:
        self.job = self._job = job
        self._pipelines, self._grid = job.pipelines, job.grid

    def begin(self, fleet: Fleet) -> TrainingState:
        """On all nodes, at most as many as the grid has seats.

        Raises:
            InfeasibleError: a GPU cannot hold its part.
            InvalidInputError: nobody says how fast state is copied.
        """
        if self._job.connection.bandwidth_bytes_per_s is None:
            raise unknown_rate()
        self._pipelines.outcome(frozenset())
        return self.seated(self._spread(fleet))

    def resume(self, plan: Plan, seats: Mapping[Place, str]) -> TrainingState:
        """Who holds a worker of a unit has its seat."""
        units = {self._grid.unit_of(place): node for place, node in seats.items()}
        seating = tuple(units.get(divmod(number, self._grid.columns)) for number in range(self._job.nodes))
        return self._pipelines.promised(plan).standing(seating, self._job.microbatches, len(units))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """Re-routes or normalizes what was lost, and lets nodes without a seat join; or restarts.

        Raises:
            InfeasibleError: a stage has no live worker left, and nothing was saved.
        """
        seating, columns = seating_of(standing), self._grid.columns
        left = without(seating, moment.lost)
        lost = left != seating
        if max(empty_seats(left, columns)) == self._grid.units:
            if self._job.saved is None:
                self._grid.require_live_stages(self._empty_units(left))
            assert self._job.saved is not None
            following = self.seated(self._spread(moment.fleet))
            return restart(self._job.costs, following, self._job.saved.loading_s, lost=lost)
        if not lost:
            return self._joined(left, moment.fleet)
        step = self._failed_over(self._settled(left), moment)
        return (step, *self._joined(seating_of(step.standing), moment.fleet, total_s(step.pauses)))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The re-routed plan."""
        return None if standing.iteration_time_s is None else self.program(standing)

    def program(self, standing: TrainingState) -> Plan:
        """The re-routed plan."""
        return self._pipelines.plan(self.empty(seating_of(standing)))

    def ordered(self, standing: TrainingState) -> AnyRetimed:
        """The orders of the re-routed plan."""
        return self._pipelines.ordered(self.empty(seating_of(standing)))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Who sits where."""
        return seats(seating_of(standing), self._grid)

    def moving_s(self, usual_s: float) -> float:
        """Nobody moves because of what is slow."""
        return math.inf

    def warm_up(self) -> None:
        """Plan for one more failure."""
        self._pipelines.warm_up()

    def empty(self, seating: Seating) -> Empty:
        """The places that nobody has."""
        return frozenset(place for unit in self._empty_units(seating) for place in self._grid.places(unit))

    def seated(self, seating: Seating) -> TrainingState:
        """Training goes on in these seats, if there are any."""
        nodes = len(seating) - seating.count(None)
        if not nodes:
            return TrainingState(seating, None, 0, 0)
        outcome, saved = self._pipelines.outcome(self.empty(seating)), self._job.saved
        return outcome.standing(seating, self._job.microbatches, nodes, saved.checkpointing if saved else None)

    def _empty_units(self, seating: Seating) -> frozenset[Place]:
        columns = self._grid.columns
        return frozenset(divmod(number, columns) for number, node in enumerate(seating) if node is None)

    def _failed_over(self, left: Seating, moment: Moment) -> StateChange:
        """Training goes on with the nodes that are left."""
        costs, empty = self._job.costs, self.empty(left)
        if moment.settled and not seatless(left, moment.fleet.nodes) and self._job.horizon != Horizon(0):
            moved = self._pipelines.relocation(empty)
            if moved is not None:
                lasts_s = self._job.copying_s((one.source, one.mover, one.size_bytes) for one in moved.copies)
                if self._pays(empty, self._pipelines.after(moved), lasts_s, moment):
                    pauses = failing_over(costs, copying_s=lasts_s)
                    return StateChange(self.seated(self._moved(left, moved)), "normalize", pauses, interrupts=True)
        planning_s = costs.planning_s and (0.0 if self._pipelines.is_best(empty) else costs.planning_s)
        return StateChange(self.seated(left), "re-route", failing_over(costs, planning_s=planning_s), interrupts=True)

    def _pays(self, empty: Empty, after: Empty, lasts_s: float, moment: Moment) -> bool:
        """Whether copies that take so long have paid before the horizon.

        Nobody needs the plan in place where not even one at its bound, which is there at once, would keep up.
        """
        after_per_s = 1 / self._pipelines.outcome(after).iteration_time_s

        def is_worth_it(before_s: float) -> bool:
            left_s = self._job.horizon.left_s(self._job.costs, moment, before_s)
            return pays(left_s, lasts_s, 1 / before_s, after_per_s)

        return is_worth_it(self._pipelines.bound_s(empty)) or is_worth_it(
            self._pipelines.outcome(empty).iteration_time_s
        )

    def _moved(self, seating: Seating, moved: Relocation) -> Seating:
        """The seating once nodes have moved."""
        grid, found = self._grid, list(seating)
        for mover, place in dict.fromkeys((grid.unit_of(one.mover), grid.unit_of(one.place)) for one in moved.copies):
            (row, column), (new_row, new_column) = mover, place
            found[new_row * grid.columns + new_column] = found[row * grid.columns + column]
            found[row * grid.columns + column] = None
        return self._settled(tuple(found))

    def _settled(self, seating: Seating) -> Seating:
        """Who sits where once the units of each column have been told which place is theirs."""
        return seating if self._job.keeps_places else packed(seating, self._grid.columns)

    def _joined(self, seating: Seating, fleet: Fleet, busy_s: float = 0.0) -> Transition:
        """Nodes without a seat take empty ones; they begin to copy once the others have regrouped."""
        columns, costs = self._grid.columns, self._job.costs
        taken = self._taken(seating, seatless(seating, fleet.nodes)[: seating.count(None)])
        if not taken:
            return ()
        found = list(seating)
        for (row, column), node in taken.items():
            found[row * columns + column] = node
        following = self.seated(tuple(found))
        live = [divmod(number, columns) for number, node in enumerate(seating) if node is not None]
        after_s = busy_s + self._job.copying_s(from_peers(self._grid, live, taken, self._pipelines.gpu_bytes))
        is_there = not costs.planning_s or self._pipelines.is_best(self.empty(tuple(found)))
        pauses = regrouping(costs, planning_s=0.0 if is_there else costs.planning_s)
        return (StateChange(following, "join", pauses, after_s),)

    def _taken(self, seating: Seating, coming: Iterable[str]) -> dict[Place, str]:
        """The empty seats that nodes take: those they are named after; else in columns that have most too many."""
        vacant, taken, nameless = sorted(self._empty_units(seating)), {}, []
        for node in coming:
            home = self._home(node)
            if home in vacant:
                taken[home] = node
                vacant.remove(home)
            else:
                nameless.append(node)
        wanted = self._pipelines.best(len(vacant) - len(nameless)) if nameless else ()
        for node in nameless:
            left = Counter(column for _, column in vacant)
            column = max(left, key=lambda c: (left[c] - wanted[c], left[c], -c))
            unit = next(unit for unit in vacant if unit[1] == column)
            taken[unit] = node
            vacant.remove(unit)
        return taken

    def _home(self, node: str) -> Place | None:
        """The unit of the worker that a node is named after."""
        try:
            return self._grid.unit_of(place_of(node))
        except ValueError:
            return None

    def _spread(self, fleet: Fleet) -> Seating:
        """Nodes without state on the best seats; none if they fill no pipeline."""
        grid, nodes = self._grid, fleet.nodes[: self._job.nodes]
        if len(nodes) < grid.columns:
            return seated((), self._job.nodes)
        empty = grid.last_units(self._pipelines.best(self._job.nodes - len(nodes)))
        coming = iter(nodes)
        units = ((row, column) for row in range(grid.units) for column in range(grid.columns))
        return tuple(None if unit in empty else next(coming) for unit in units)
