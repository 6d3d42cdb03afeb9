"""Plans for failures, in place or normalized, and the entries of an atlas: the method as a whole.

"SlipStream: Adapting Pipelines for Distributed Training of Large DNNs Amid Failures" (ReCycle), sections 3 and 4. The
paper normalizes, then solves a MILP. Here, the slots of slots.py give a plan in a millisecond, with a proof that it is
optimal for these failures wherever it reaches its bound; only what they leave open goes on to the scheduling core.

With planning that quick, the failures can also be planned for where they stand, which moves no parameters: every plan
says what either way gives, and after how many iterations the copies of normalization would have paid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from ...schemas.atlas import Atlas, AtlasEntry, Recipe
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Place, Plan, Prediction, ProofScope, name_of
from ..scheduling.assemble import (
    BrokenPlanError,
    bubble_ratio,
    peaks_bytes,
    prediction_of,
    promise,
    with_orders_and_prediction,
    work_s,
)
from ..scheduling.problem import ROUNDING, Orders, Problem, home_problem
from ..scheduling.solve import Effort
from .cluster import alike, connection_of, effort_of, grid_of, plan_with_failures, single_pipeline
from .normalization import Grid, Placement, Relocation, Vector, relocate
from .rerouting import (
    ReroutedOrders,
    contradiction,
    follow,
    in_rotation,
    require_kept,
    reroute_alike,
    reroute_unlike,
    rotation_recipe,
    slot_recipe,
)
from .rotation import RotationSchedule
from .selective_decoupling import decoupled_and_timed, decoupled_where_it_helps
from .slot_search import SlotSchedule, SlotSearch


def break_even_iterations(copying_s: float | None, before_s: float, after_s: float) -> int | None:
    """After how many iterations copies have paid: None where they never do, or take nobody knows how long.

    Args:
        copying_s: what the copies take, in s; None where that is not known.
        before_s, after_s: what an iteration takes without them and with them, in s.
    """
    if copying_s is None or after_s >= before_s:
        return None
    return ceil(copying_s / (before_s - after_s))


def pays_within(iterations: int, copying_s: float | None, before_s: float, after_s: float) -> bool:
    """Whether copies have paid after so many iterations; the rest as for `break_even_iterations`."""
    needed = break_even_iterations(copying_s, before_s, after_s)
    return needed is not None and needed <= iterations


Units = frozenset[Place]

# Up to so many operations, all placements that may be best are planned in full.
COMPARED_OPERATIONS = 20_000


class Replanner:
    """One job's pipelines, made ready to plan for any failures.

    Args:
        common: the opening of its atlas (cluster.py).
        most: failed units, in the questions to come.
    """

    def __init__(self, common: Atlas, most: int) -> None:
        self.common, self.most = common, most
        self.grid = grid_of(common)

    @cached_property
    def search(self) -> SlotSearch:
        """The slot schedules of these pipelines."""
        return SlotSearch(single_pipeline(self.common), self.common.dp, searches=self.most + 1)

    def in_place(self, failed_units: Units, *, compared: bool = True) -> Plan:
        """A plan for failures where they are.

        Args:
            failed_units: where the failures are.
            compared: whether the plan shall say what normalization would give, which takes as long as planning.

        Raises:
            InfeasibleError: a stage has no live worker left, or a memory limit admits nothing.
        """
        if not self._alike:
            self.grid.require_live_stages(failed_units)
            found = reroute_unlike(self._home(failed_units), self._effort)
            return self._assembled(failed_units, found, None)
        found, said = self._rerouted(failed_units, self._effort), None
        if compared:
            entry, _ = self._entry(len(failed_units), self._quick)
            _, said = compared_with(self.common, failed_units, found.value_s, entry)
        return self._assembled(failed_units, found, said)

    def bound_s(self, column_failures: Vector) -> float:
        """What no routing and no orders undercut with so many failed units in each column, in s."""
        return self.search.bound_s(self.grid.stage_failures(column_failures))

    def entry(self, failures: int) -> tuple[AtlasEntry, Plan | None]:
        """The atlas's entry for so many failed units, and its plan where a search has made it instead of a recipe.

        Large problems under memory limits share schedules between numbers of failures (normalization.py); their plans
        keep what the entry promises or do better. All other plans have the very values of their entries.

        Raises:
            InfeasibleError: so many failures leave a stage without a live worker, or a memory limit admits nothing.
            InvalidInputError: workers of a stage differ.
        """
        return self._entry(failures, self._effort)

    def _entry(self, failures: int, effort: Effort) -> tuple[AtlasEntry, Plan | None]:
        require_alike(self.common)
        rotation = self.search.rotation
        if rotation is not None and rotation.suffices:
            rotated = self._best_rotated(failures, effort)
            if rotated is not None:
                return self._rotated_entry(failures, rotated), None
        contenders = self._placement.contenders(failures)
        vector, slots = contenders[0]
        dead = self.grid.stage_failures(vector)
        shared = self._placement.shares
        if slots.optimal and (shared or is_exact(self.search, dead, slots)):
            return self._slot_entry(failures, dead, slots), None
        rotated = self._best_rotated(failures, effort)
        if rotated is not None and rotated.value_s < slots.value_s * (1 + ROUNDING) and (rotated.optimal or shared):
            return self._rotated_entry(failures, rotated), None
        if shared:
            return self._slot_entry(failures, dead, slots), None
        vector, found = self._best_rerouted([vector for vector, _ in contenders], effort)
        dead, units = self.grid.stage_failures(vector), self.grid.last_units(vector)
        promise = promise_of_orders(found.problem, found.orders, found.bound_s)
        if found.recipe is not None:
            return AtlasEntry(failures, dead, promise, found.recipe), None
        plan = self._assembled(units, found, unplaced(self.common, vector))
        return AtlasEntry(failures, dead, promise, Recipe(stored=digest(plan))), plan

    def outcome(self, column_failures: Vector) -> tuple[float, tuple[float, ...]]:
        """What `in_place` gives for failures in the last rows, without making the plan.

        Args:
            column_failures: failed units of each column, not all of any.

        Returns:
            The iteration time in s, and the most activation bytes that a worker of each stage holds.

        Raises:
            InfeasibleError: a memory limit admits nothing.
        """
        found = self.search.look(self.grid.stage_failures(column_failures))
        if found.optimal:
            return found.value_s, tuple(self.search.peaks_bytes(found.slots, found.rules))
        ordered = self._rerouted(self.grid.last_units(column_failures), self._effort)
        peaks = peaks_bytes(ordered.problem, ordered.orders).tolist()
        return ordered.value_s, by_stage(ordered.problem, peaks)

    def orders(self, failed_units: Units) -> tuple[Problem, Orders]:
        """Those of the plan that `in_place` gives; the rest as for `outcome`."""
        found = self._rerouted(failed_units, self._effort)
        return decoupled_where_it_helps(found.problem, found.orders)

    def rebuilt(self, entry: AtlasEntry, failed_units: Units | None = None) -> Plan:
        """The plan of an entry; for places that are as good where they are, the plan in place.

        Args:
            entry: of an atlas with this opening.
            failed_units: where the failures are, as many as the entry has; None where that is not known. A stored plan
                is for unknown places: its own file is to be read then.

        Raises:
            InvalidInputError: there are more or fewer failures than the entry has, or its plan is not what it promises.
            InfeasibleError: a stage has no live worker left.
        """
        if failed_units is None:
            vector = column_failures_of(entry, self.grid)
            units, said = self.grid.last_units(vector), unplaced(self.common, vector)
        else:
            moved, said = compared_with(
                self.common, failed_units, self._rerouted(failed_units, self._quick).value_s, entry
            )
            units = moved.failed_units
        if entry.recipe.stored is not None or (failed_units is not None and not moved.copies):
            found = self._rerouted(units, self._effort)
            return self._assembled(units, found, said)
        problem, orders = follow(self._home(units), self.search, entry.recipe)
        promised = entry.prediction
        found = ReroutedOrders(problem, orders, promised.iteration_time_s, promised.lower_bound_s, entry.recipe)
        try:
            plan = self._assembled(units, found, said)
        except BrokenPlanError as error:
            raise contradiction(str(error), f"/plans/{entry.failed_units}") from error
        require_kept(entry, plan.predicted)
        return plan

    @cached_property
    def _alike(self) -> bool:
        return alike(self.common)

    @property
    def _effort(self) -> Effort:
        return effort_of(self.common)

    @property
    def _quick(self) -> Effort:
        """Without exact solvers: their time is for the plan, not for what it is compared with."""
        return replace(self._effort, solver="heuristic", time_limit_s=0.0)

    @cached_property
    def _placement(self) -> Placement:
        work_s = np.array([stage.work_s for stage in self.common.template.stages])
        return Placement(self.grid, self.search, work_s, self.most, self.common.planner.options["cost"])

    def _home(self, units: Units) -> Problem:
        failed = {place for unit in units for place in self.grid.places(unit)}
        if not self._alike:
            return self._home_without(failed)
        live = self._whole.workers.live.copy()
        live[[k * self.grid.stages + i for k, i in failed]] = False
        return replace(self._whole, workers=replace(self._whole.workers, live=live))

    @cached_property
    def _whole(self) -> Problem:
        """Of pipelines that are alike, nobody failed: who has differs in nothing else as long as no stage is empty."""
        return self._home_without(())

    def _home_without(self, failed: Collection[Place]) -> Problem:
        return home_problem(plan_with_failures(self.common, failed), split=self.common.split)

    def _rerouted(self, units: Units, effort: Effort) -> ReroutedOrders:
        dead = self.grid.stage_failures(self.grid.column_failures(units))
        return reroute_alike(self._home(units), self.search, dead, effort)

    def _slot_entry(self, failures: int, dead: tuple[int, ...], slots: SlotSchedule) -> AtlasEntry:
        return AtlasEntry(failures, dead, promise_of_slots(self.search, dead, slots), slot_recipe(slots))

    def _rotated_entry(self, failures: int, rotated: RotationSchedule) -> AtlasEntry:
        dead = tuple((self.grid.pipelines - rotated.live).tolist())
        return AtlasEntry(failures, dead, promise_of_rotation(self.search, rotated), rotation_recipe(rotated))

    def _best_rotated(self, failures: int, effort: Effort) -> RotationSchedule | None:
        """The answer of normalization that does best in rotation at first, searched; None where none is tried."""
        rotation, best = self.search.rotation, None
        for vector in self._placement.answers(failures) if rotation is not None and rotation.leads else []:
            dead = self.grid.stage_failures(vector)
            if best is None or self.search.bound_s(dead) < best.value_s * (1 - ROUNDING):
                found = in_rotation(self.search, dead, None)
                if found is not None and (best is None or found.value_s < best.value_s):
                    best = found
        if rotation is None or best is None or best.optimal or not rotation.suffices:
            return best
        return in_rotation(self.search, (self.grid.pipelines - best.live).tolist(), effort)

    def _best_rerouted(self, vectors: Sequence[Vector], effort: Effort) -> tuple[Vector, ReroutedOrders]:
        """The vector of failed units whose orders take least; beyond a size only the first is tried."""
        effort = replace(effort, time_limit_s=effort.time_limit_s / len(vectors))
        best = vectors[0], self._rerouted(self.grid.last_units(vectors[0]), effort)
        for vector in vectors[1:] if best[1].problem.operations <= COMPARED_OPERATIONS else []:
            if self.search.bound_s(self.grid.stage_failures(vector)) < best[1].value_s * (1 - ROUNDING):
                found = self._rerouted(self.grid.last_units(vector), effort)
                best = min(best, (vector, found), key=lambda one: one[1].value_s)
        return best

    def _assembled(self, units: Units, found: ReroutedOrders, said: Mapping[str, Any] | None) -> Plan:
        failed = sorted(place for unit in units for place in self.grid.places(unit))
        plan = plan_with_failures(self.common, set(failed))
        own = {"failed": [name_of(place) for place in failed], "normalization": said}
        plan = replace(plan, planner=replace(plan.planner, options=plan.planner.options | own))
        scope: ProofScope = "all-routings" if self._alike else "routing"
        problem, orders, windows = decoupled_and_timed(found.problem, found.orders, found.windows)
        return with_orders_and_prediction(plan, problem, orders, found.bound_s, scope, windows)


# What every plan says of both ways, in place and normalized.


def require_alike(common: Atlas) -> None:
    """Raise InvalidInputError where workers of a stage differ, so that failures cannot be moved."""
    if not alike(common):
        raise InvalidInputError(
            "failures cannot be moved between workers that differ",
            where="--slow or --link-delay",
            fix="give the places of the failures with --failed, without --failures",
        )


def compared_with(
    common: Atlas, units: Units, in_place_s: float, entry: AtlasEntry
) -> tuple[Relocation, dict[str, Any]]:
    """The swaps that normalize failures, none where they gain nothing; what they give, and when they have paid.

    Args:
        common: the opening of the atlas.
        units: where the failures are.
        in_place_s: what an iteration takes with them there, in s.
        entry: for as many failures.

    Raises:
        InvalidInputError: the entry is for more or fewer.
    """
    if len(units) != entry.failed_units:
        raise InvalidInputError(
            f"{len(units)} dead units are named, --failures says {entry.failed_units}",
            where="--failed",
            fix="name as many as --failures says, or leave that out",
        )
    normalized_s = entry.prediction.iteration_time_s
    if normalized_s < in_place_s * (1 - ROUNDING):
        grid = grid_of(common)
        moved = relocate(grid, units, column_failures_of(entry, grid), common.state_bytes)
    else:
        moved, normalized_s = Relocation(units, ()), in_place_s
    lasts_s = moved.lasts_s(connection_of(common))
    return moved, {
        "iteration_time_in_place_s": in_place_s,
        "iteration_time_normalized_s": normalized_s,
        "copies": [
            {"worker": name_of(copy.mover), "becomes": name_of(copy.place), "from": name_of(copy.source),
             "size_bytes": copy.size_bytes}
            for copy in moved.copies
        ],
        "copied_bytes": moved.size_bytes,
        "copying_s": lasts_s,
        "break_even_iterations": break_even_iterations(lasts_s, in_place_s, normalized_s),
    }  # fmt: skip


def unplaced(common: Atlas, vector: Vector) -> dict[str, Any]:
    """The same where the failures' places are not known: what normalization copies at most."""
    grid, sizes = grid_of(common), common.state_bytes
    columns = [
        grid.unit_pipelines * sum(sizes[c * grid.unit_stages : (c + 1) * grid.unit_stages]) for c in range(grid.columns)
    ]
    return {"most_copies": sum(vector) * grid.unit_pipelines * grid.unit_stages,
            "most_copied_bytes": sum(vector) * max(columns)}  # fmt: skip


def column_failures_of(entry: AtlasEntry, grid: Grid) -> Vector:
    """The failed units of each column."""
    return tuple(n // grid.unit_pipelines for n in entry.failures[:: grid.unit_stages])


# What an entry of an atlas promises: memory by stage, the most that one of its workers holds.


def promise_of_slots(search: SlotSearch, dead: Sequence[int], found: SlotSchedule) -> Prediction:
    """What slots promise: their orders take no longer, and just as long where makespan and period are at their bounds.

    Args:
        search: that has made the schedule.
        dead: workers of each stage.
        found: the schedule.
    """
    live = search.pipelines - np.array(dead)
    values_s = (found.times.makespan_s, found.times.period_s)
    whole_work_s = work_s(search.of_pipeline) * search.pipelines
    bubbles = bubble_ratio(whole_work_s, int(live.sum()), values_s[search.staggered])
    peaks = search.peaks_bytes(found.slots, found.rules)
    made = promise(values_s, search.staggered, found.bound_s, bubbles, peaks)
    return replace(made, proof_scope="all-routings")


def promise_of_rotation(search: SlotSearch, found: RotationSchedule) -> Prediction:
    """What workers in rotation promise; `search` as for slots."""
    assert search.rotation is not None
    scheduler = search.rotation.scheduler
    scheduler.run(found.live, found.targets)
    whole_work_s = work_s(search.of_pipeline) * search.pipelines
    bubbles = bubble_ratio(whole_work_s, int(found.live.sum()), found.value_s)
    made = promise(scheduler.times_s, search.staggered, found.bound_s, bubbles, scheduler.peaks_bytes)
    return replace(made, proof_scope="all-routings")


def is_exact(search: SlotSearch, dead: Sequence[int], found: SlotSchedule) -> bool:
    """Whether makespan and period of slots are both at their bounds; the arguments are those of `promise_of_slots`."""
    live = search.pipelines - np.array(dead)
    values_s = (found.times.makespan_s, found.times.period_s)
    bounds_s = (search.bound.value_s(live, staggered) for staggered in (False, True))
    return all(value_s <= bound_s * (1 + ROUNDING) for value_s, bound_s in zip(values_s, bounds_s, strict=True))


def promise_of_orders(problem: Problem, orders: Orders, bound_s: float) -> Prediction:
    """What orders promise.

    Args:
        problem: with their routing.
        orders: operation codes of each worker.
        bound_s: on the iteration time.
    """
    whole = prediction_of(problem, orders, bound_s)
    peaks = by_stage(problem, whole.peak_memory_bytes)
    return replace(whole, peak_memory_bytes=peaks, proof_scope="all-routings")


def by_stage(problem: Problem, peaks_bytes: Sequence[float]) -> tuple[float, ...]:
    """The most that a worker of each stage holds, given what each worker holds."""
    peaks = np.zeros(int(problem.workers.stage.max()) + 1)
    np.maximum.at(peaks, problem.workers.stage, peaks_bytes)
    return tuple(peaks.tolist())
