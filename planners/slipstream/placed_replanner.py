"""Plans for failures, in place or normalized, and the entries of an atlas, where workers hold several virtual stages.

All is as in `replanner.py` with columns for stages, but that every schedule is searched for (`placed_rerouting.py`): an
entry of an atlas has its plan beside it instead of a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from ...schemas.atlas import Atlas, AtlasEntry, Recipe
from ...schemas.documents import digest
from ...schemas.plan import Plan, name_of
from ..placement.any_routing import routing_bound
from ..placement.problem import placed_problem
from ..scheduling.problem import ROUNDING
from .cluster import alike, effort_of, grid_of, plan_with_failures
from .normalization import Vector, bubble_costs, columns, least_worst, marginal_greedy
from .placed_rerouting import reroute_placed, rerouted_plan
from .replanner import Replanner, Units, column_failures_of, compared_with, require_alike, unplaced

if TYPE_CHECKING:
    from ...schemas.plan import Prediction
    from ..placement.scheduler import DueTimes

# From so many micro-batches at virtual stages on, the numbers of failures with equally many live workers in the column
# with the fewest share a search: that column's work decides what an iteration takes.
SHARED_CELLS = 1500


class PlacedReplanner:
    """One job's pipelines, made ready to plan for any failures; as `Replanner`, and plans are remembered.

    Args:
        common: the opening of its atlas (cluster.py), whose template has a placement.
        most: failed units, in the questions to come.
    """

    def __init__(self, common: Atlas, most: int) -> None:
        self.common, self.most = common, most
        self.grid = grid_of(common)
        self._made: dict[Units, Plan] = {}
        self._bounds_s: dict[Vector, float] = {}
        self._donors: dict[int, tuple[Plan, DueTimes]] = {}

    def in_place(self, failed_units: Units, *, compared: bool = True) -> Plan:
        """As `Replanner.in_place`.

        Raises:
            InfeasibleError: a column has no live worker left, or a memory limit admits nothing.
        """
        self.grid.require_live_stages(failed_units)
        found = self._rerouted(failed_units)
        if not compared or not alike(self.common):
            return _saying(found, None)
        entry, _ = self.entry(len(failed_units))
        return _saying(found, compared_with(self.common, failed_units, found.predicted.iteration_time_s, entry)[1])

    def entry(self, failures: int) -> tuple[AtlasEntry, Plan]:
        """The atlas's entry for so many failed units, and its plan.

        Raises:
            InfeasibleError: so many failures leave a column without a live worker, or a memory limit admits nothing.
            InvalidInputError: workers of a column differ.
        """
        require_alike(self.common)
        self.grid.require_feasible(failures, "--failures")
        vector, best = self._shared(failures) if self._shares else self._least(failures)
        plan = _saying(best, unplaced(self.common, vector))
        failed = self.grid.stage_failures(vector)
        return AtlasEntry(failures, failed, self._by_column(best), Recipe(stored=digest(plan))), plan

    def _least(self, failures: int) -> tuple[Vector, Plan]:
        """The answer whose plan takes least, each searched for that may."""
        vector: Vector = ()
        best: Plan | None = None
        for other in sorted(self._answers(failures), key=self.bound_s):
            if best is None or self.bound_s(other) < best.predicted.iteration_time_s * (1 - ROUNDING):
                found = self._rerouted(self.grid.last_units(other))
                if best is None or found.predicted.iteration_time_s < best.predicted.iteration_time_s * (1 - ROUNDING):
                    vector, best = other, found
        assert best is not None
        return vector, best

    @property
    def _shares(self) -> bool:
        """Whether numbers of failures share what a search has found: where it takes seconds."""
        stages, jobs = len(self.common.template.stages), self.common.microbatches * self.common.dp
        return effort_of(self.common).solver != "rules" and stages * jobs >= SHARED_CELLS

    def _shared(self, failures: int) -> tuple[Vector, Plan]:
        """The answer of least bound, by the rules that come of a search for more failures, if there are any."""
        vector, donor = self._promising(failures), failures
        while donor < self.most and max(self._promising(donor + 1)) == max(vector):
            donor += 1
        if donor == failures:
            return vector, self._donated(failures)[0]
        plan = self._without(self.grid.last_units(vector))
        known = [self._donated(donor)[1]]
        return vector, reroute_placed(plan, self.common.split, effort_of(self.common), known).planned(plan)

    def _donated(self, failures: int) -> tuple[Plan, DueTimes]:
        """The plan that a search finds for so many failures, and the rules of its orders."""
        if failures not in self._donors:
            plan = self._without(self.grid.last_units(self._promising(failures)))
            found = reroute_placed(plan, self.common.split, effort_of(self.common))
            self._donors[failures] = found.planned(plan), found.rules
        return self._donors[failures]

    def _promising(self, failures: int) -> Vector:
        return min(self._answers(failures), key=self.bound_s)

    def rebuilt(self, entry: AtlasEntry, failed_units: Units | None = None) -> Plan:
        """The plan for an entry's failures, where they are known once those have moved that normalization moves.

        Args:
            entry: of an atlas with this opening.
            failed_units: where the failures are, as many as the entry has; None where that is not known.

        Raises:
            InvalidInputError: there are more or fewer failures than the entry has.
            InfeasibleError: a column has no live worker left.
        """
        if failed_units is None:
            vector = column_failures_of(entry, self.grid)
            return _saying(self._rerouted(self.grid.last_units(vector)), unplaced(self.common, vector))
        self.grid.require_live_stages(failed_units)
        moved, said = compared_with(
            self.common, failed_units, self._rerouted(failed_units).predicted.iteration_time_s, entry
        )
        return _saying(self._rerouted(moved.failed_units), said)

    def bound_s(self, column_failures: Vector) -> float:
        """What no routing and no orders undercut with so many failed units in each column, in s."""
        if column_failures not in self._bounds_s:
            units = self.grid.last_units(column_failures)
            plan = self._without(units)
            home = placed_problem(plan, split=self.common.split)
            self._bounds_s[column_failures] = routing_bound(plan, home).value_s
        return self._bounds_s[column_failures]

    def _answers(self, failures: int) -> list[Vector]:
        """The failed units of each column by each aim and end, none twice."""
        return list(dict.fromkeys(answers[failures] for answers in self._all_answers))

    @cached_property
    def _all_answers(self) -> list[list[Vector]]:
        """For each aim and end the answers for every number of failures: least costs, and least work of the busiest."""
        template, dp, each = self.common.template, self.common.dp, self.common.microbatches
        works_s = [sum(template.stages[v].work_s for v in held) for held in template.columns]
        whole_s = self.bound_s((0,) * self.grid.columns)
        costs = [bubble_costs(work_s, whole_s - each * work_s, dp, each) for work_s in works_s]
        loads = [[*(work_s * each * dp / (dp - dead) for dead in range(dp)), inf] for work_s in works_s]
        tables = columns(costs, loads, self.grid.unit_stages, self.grid.unit_pipelines)
        return [
            answer
            for later_first in (False, True)
            for answer in (
                least_worst(tables[1], self.most, later_first=later_first),
                marginal_greedy(*tables, self.most, later_first=later_first),
            )
        ]

    def _rerouted(self, units: Units) -> Plan:
        """The plan with these units dead, wherever that may be best."""
        if units not in self._made:
            self._made[units] = rerouted_plan(self._without(units), self.common.split, effort_of(self.common))
        return self._made[units]

    def _without(self, units: Units) -> Plan:
        """The plan without orders in which these units are dead."""
        failed = sorted(place for unit in units for place in self.grid.places(unit))
        plan = plan_with_failures(self.common, set(failed))
        options = plan.planner.options | {"failed": list(map(name_of, failed))}
        return replace(plan, planner=replace(plan.planner, options=options))

    def _by_column(self, plan: Plan) -> Prediction:
        """What a plan promises, with the most that a worker of each column holds."""
        peaks = [0.0] * self.grid.stages
        for worker, size_bytes in zip(plan.workers, plan.predicted.peak_memory_bytes, strict=True):
            peaks[worker.stage] = max(peaks[worker.stage], size_bytes)
        return replace(plan.predicted, peak_memory_bytes=tuple(peaks))


AnyReplanner = Replanner | PlacedReplanner


def replanner_of(common: Atlas, most: int) -> AnyReplanner:
    """Who plans for any failures of a job.

    Args:
        common: the opening of its atlas (cluster.py).
        most: failed units, in the questions to come.
    """
    return Replanner(common, most) if common.template.placement is None else PlacedReplanner(common, most)


def _saying(plan: Plan, normalization: Mapping[str, Any] | None) -> Plan:
    """The plan, whose options say what normalization gives."""
    options = plan.planner.options | {"normalization": normalization}
    return replace(plan, planner=replace(plan.planner, options=options))
