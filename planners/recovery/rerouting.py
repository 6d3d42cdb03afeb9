"""SlipStream for a job that runs: re-routing behind the coordinator's `Replan`, with an atlas where one is given."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...schemas.atlas import Atlas, AtlasEntry
from ...schemas.check import require_valid
from ...schemas.conditions import Conditions
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Place, Plan, Template, place_of
from ...schemas.protocols import Hand, Replanned
from ..break_even import pays_within
from ..slipstream.atlas_folder import plan_path, read_atlas, stored_plan
from ..slipstream.cluster import alike, opening_of
from ..slipstream.replanner import Replanner, Units


@dataclass(frozen=True)
class ReroutedPlan:
    """A plan for the failures that are there.

    Attributes:
        plan: its failed workers are the places that stay empty: those asked about, unless workers move.
        moves: who moves, as (the mover's place, the dead one's that it takes over), the former empty from then on; no
            place is in two of them. Empty where failures stay where they are.
    """

    plan: Plan
    moves: tuple[tuple[Place, Place], ...] = ()


class ReroutingPlanner:
    """Plans for one job's failures, each made and checked once (a `Replan`).

    Workers stay at their places, and newcomers take vacant ones. Failures stay where they are unless moving workers
    soon pays; the job's own plan is given back unchanged for the failures that it has.

    Args:
        plan: the running plan.
        common: the opening of an atlas that the plan belongs to.
        normalize_within: iterations within which copies must have paid; 0: nobody moves.
        atlas_folder: where the atlas stands.
        entries: of that atlas; what they do not cover is planned on the spot.

    Attributes:
        plan, common: as given.
    """

    def __init__(
        self,
        plan: Plan,
        common: Atlas,
        normalize_within: int,
        atlas_folder: str = "",
        entries: tuple[AtlasEntry, ...] = (),
    ) -> None:
        self.plan, self.common, self._folder, self._entries = plan, common, atlas_folder, entries
        # Where nobody knows how much is copied, copying would seem to be free; and only alike workers are moved.
        self._normalize_within = normalize_within if any(common.state_bytes) and alike(common) else 0
        self._own = empty_places(plan)
        self._known = {(self._own, may_move): ReroutedPlan(plan) for may_move in (False, True)}

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        """The plan for who is there, whatever plan is running.

        Raises:
            InfeasibleError: a stage has no live worker left.
        """
        places = _places(self.common)
        seats = with_newcomers(crew, places)
        # Who moves gives up one stage's state for another's: not while somebody waits for his.
        may_move = all(hand.place is not None and hand.layers is not None for hand in crew)
        found = self.without(frozenset(places).difference(seats), may_move)
        moves = dict(found.moves)
        return Replanned(found.plan, tuple((name, moves.get(place, place)) for place, name in seats.items()))

    def without(self, failed: frozenset[Place], may_move: bool = True) -> ReroutedPlan:
        """The plan for when all of these places, and no others, are without a worker.

        Args:
            failed: the places.
            may_move: whether workers may change places.

        Raises:
            InfeasibleError: a stage has no live worker left.
            InvalidInputError: there is no such place, or a stored plan cannot be read.
        """
        if (failed, may_move) not in self._known:
            self._of_units.grid.require_places(sorted(failed), "the failed workers")
            self._known[failed, may_move] = self._replanned(failed, may_move)
        return self._known[failed, may_move]

    def moving_s(self, usual_s: float) -> float:
        """Nobody moves because of what is slow."""
        return math.inf

    def warm_up(self) -> None:
        """Plan for one more failure, so that what is loaded and made ready once is there when the first worker dies."""
        alive = [place for place in _places(self.common) if place not in self._own]
        spare = next((one for one in alive if any(one != peer and one[1] == peer[1] for peer in alive)), None)
        if spare is not None:
            with suppress(InfeasibleError):
                self.without(self._own | {spare})

    @cached_property
    def _of_units(self) -> Replanner:
        """For workers that die together, as the atlas says."""
        return _replanner(self.common)

    @cached_property
    def _of_workers(self) -> Replanner:
        """For workers that die one by one."""
        planner = self.common.planner
        planner = replace(planner, options=planner.options | {"failure_unit": [1, 1]})
        return _replanner(replace(self.common, planner=planner, failure_unit=(1, 1)))

    def _replanned(self, failed: frozenset[Place], may_move: bool) -> ReroutedPlan:
        units = self._whole_units(failed)
        if units is None:  # what is alive of a unit goes on working
            return ReroutedPlan(self._of_workers.in_place(failed, compared=False))
        stored = self._stored(len(units), failed)
        if stored is not None:
            return ReroutedPlan(stored)
        if self._normalize_within and may_move:
            found = self._of_units.rebuilt(self._entry(units), units)
            moves = _moves(found)
            if not moves or self._pays(found):
                return ReroutedPlan(self._stored(len(units), empty_places(found)) or found, moves)
        return ReroutedPlan(self._of_units.in_place(units, compared=False))

    def _whole_units(self, failed: frozenset[Place]) -> Units | None:
        """The units that have failed, if these are whole."""
        grid = self._of_units.grid
        units = frozenset(map(grid.unit_of, failed))
        return units if sum(1 for unit in units for _ in grid.places(unit)) == len(failed) else None

    def _entry(self, units: Units) -> AtlasEntry:
        """The atlas's entry for so many failures, or one made now."""
        if len(units) < len(self._entries):
            return self._entries[len(units)]
        self._of_units.grid.column_failures(units)  # a lost stage has a message of its own
        return self._of_units.entry(len(units))[0]

    def _stored(self, failures: int, empty: frozenset[Place]) -> Plan | None:
        """The plan that a search has found and that stands beside the atlas, if it leaves just these places empty."""
        if failures >= len(self._entries) or self._entries[failures].recipe.stored is None:
            return None
        entry, grid = self._entries[failures], self._of_units.grid
        units = grid.last_units([number // grid.unit_pipelines for number in entry.failures[:: grid.unit_stages]])
        if empty != {place for unit in units for place in grid.places(unit)}:
            return None
        plan = stored_plan(self._folder, entry)
        require_valid(plan, str(plan_path(Path(self._folder), failures)))
        return plan

    def _pays(self, moved: Plan) -> bool:
        """Whether the copies have paid soon enough, by what the plan itself takes: a search may miss the entry's."""
        assert moved.prediction is not None
        said = _said(moved)
        before_s, after_s = said["iteration_time_in_place_s"], moved.prediction.iteration_time_s
        return pays_within(self._normalize_within, said["copying_s"], before_s, after_s)


def with_newcomers(crew: Iterable[Hand], places: Sequence[Place]) -> dict[Place, str]:
    """Give every newcomer a vacant place: the one it is named after, where that is free, else the first.

    Args:
        crew: who is there, newcomers in the order of their arrival.
        places: all places.
    """
    filled = {hand.place: hand.worker for hand in crew if hand.place is not None}
    seated = set(filled)
    newcomers = [hand.worker for hand in crew if hand.place is None]
    for name in [name for name in newcomers if place_of(name) in places and place_of(name) not in seated]:
        filled[place_of(name)] = name
        newcomers.remove(name)
    vacant = [place for place in places if place not in filled]
    return filled | dict(zip(vacant, newcomers, strict=False))


def replan_from(plan: Plan, atlas_folder: str | None, normalize_within: int) -> ReroutingPlanner:
    """What plans for the failures of a running plan.

    Args:
        plan: the running plan, read and found valid; some of its workers may have failed.
        atlas_folder: an atlas of the same job, or None.
        normalize_within: iterations within which moving workers must have paid for its copies; 0: nobody moves.

    Raises:
        InvalidInputError: the plan's pipelines differ, or the atlas cannot be read or is of another job.
    """
    opening = opening_of(plan)
    if atlas_folder is None:
        return ReroutingPlanner(plan, opening, normalize_within)
    atlas = read_atlas(atlas_folder)
    differences = list(_differences(opening, atlas))
    if differences:
        raise InvalidInputError(
            f"the atlas is of another job than the plan: they differ in {', '.join(differences)}",
            where=atlas_folder,
            fix="make the atlas from the profile and with the options of the plan, or the plan from the atlas: --from",
        )
    common = replace(atlas, plans=(), planner=replace(atlas.planner, options=_without_search(atlas.planner.options)))
    return ReroutingPlanner(plan, common, normalize_within, atlas_folder, atlas.plans)


def _replanner(common: Atlas) -> Replanner:
    """Ready for as many failures as can be borne."""
    down, across = common.dp // common.failure_unit[0], len(common.template.stages) // common.failure_unit[1]
    return Replanner(common, across * (down - 1))


def _without_search(options: dict[str, Any]) -> dict[str, Any]:
    """Workers wait for a plan of a running job: a few percent of an iteration are not worth seconds of search."""
    return options | {"solver": "rules", "time_limit_s": 0.0}


def _differences(opening: Atlas, atlas: Atlas) -> Iterator[str]:
    """In what a running plan and an atlas differ, in words."""
    for name, noun in (("dp", "pipelines"), ("microbatches", "micro-batches"), ("optimizer", "optimizer")):
        one, other = getattr(opening, name), getattr(atlas, name)
        if one != other:
            yield f"{noun} ({one} and {other})"
    yield from _template_differences(opening.template, atlas.template)
    if not (alike(opening) and alike(atlas)):
        yield "slow workers or links of single pipelines (an atlas is for workers that are alike)"


def _template_differences(one: Template, other: Template) -> Iterator[str]:
    if len(one.stages) != len(other.stages):
        yield f"stages ({len(one.stages)} and {len(other.stages)})"
        return
    if one.name != other.name:
        yield f"the template's name ({one.name} and {other.name})"
    for noun in ("stage", "link"):
        pairs = zip(getattr(one, f"{noun}s"), getattr(other, f"{noun}s"), strict=True)
        yield from (f"{noun} {i}" for i, (mine, its) in enumerate(pairs) if mine != its)


def _said(plan: Plan) -> dict[str, Any]:
    """What a plan's maker has said of normalization."""
    return dict(plan.planner.options["normalization"])


def _moves(plan: Plan) -> tuple[tuple[Place, Place], ...]:
    """Who takes over which place in a normalized plan."""
    return tuple((place_of(copy["worker"]), place_of(copy["becomes"])) for copy in _said(plan)["copies"])


def _places(common: Atlas) -> list[Place]:
    return [(k, i) for k in range(common.dp) for i in range(len(common.template.stages))]


def empty_places(plan: Plan) -> frozenset[Place]:
    """The places whose workers have failed in a plan."""
    return frozenset((worker.pipeline, worker.stage) for worker in plan.workers if worker.failed)
