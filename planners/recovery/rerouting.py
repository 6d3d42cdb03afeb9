"""A grid of alike pipelines with empty places: what an iteration takes, what a worker holds, and SlipStream's plan.

The same for a job that is replayed and for one that runs: what they have in common is the opening of an atlas
(`planners/slipstream/cluster.py`), made from the profile or read off the running plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ...schemas.atlas import Atlas, AtlasEntry
from ...schemas.check import require_valid
from ...schemas.conditions import PlacePair
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Place, Plan, Template
from ..placement.retimed import AnyRetimed, retimed_of
from ..scheduling.evaluate import evaluate
from ..scheduling.retimed import Retimed
from ..slipstream.atlas_folder import plan_path, read_atlas, stored_plan
from ..slipstream.cluster import alike, grid_of, opening_of
from ..slipstream.normalization import Relocation, Vector, relocate
from ..slipstream.placed_replanner import AnyReplanner, replanner_of
from ..slipstream.replanner import Replanner, Units
from .job import peak_bytes
from .layout import TimeAndMemory

Empty = frozenset[Place]  # the places without a worker
MOST_PLANS = 64  # that a replay remembers, which may come by thousands of failures


@dataclass(frozen=True)
class AtlasPlans:
    """Plans made ahead: the entries of an atlas, and where those stand that a search has found."""

    folder: str = ""
    entries: tuple[AtlasEntry, ...] = ()


class ReroutedPipelines:
    """A job's pipelines with empty places; answers are remembered.

    Schedules are made by rules, without a search: workers wait for them, and a replay asks for hundreds. Workers of a
    stage are alike, so what pipelines take depends on how many places of each stage are empty; the plan, on which.
    Where workers hold several virtual stages, only a plan says what it takes.

    Args:
        common: the opening of the job's atlas; places become empty in its units, or one by one.
        gpu_bytes: parameters, gradients and optimizer state of a GPU of each column; zeros where nobody knows.
        own: a plan of the job that is given back unchanged for the places that are empty in it, which runs now or at
            first; None: there is none.
        ahead: plans made ahead; what they do not cover is planned on the spot.
    """

    def __init__(
        self, common: Atlas, gpu_bytes: Sequence[float], own: Plan | None = None, ahead: AtlasPlans | None = None
    ) -> None:
        self.common, self.grid, self.gpu_bytes = common, grid_of(common), tuple(gpu_bytes)
        self._own, self._ahead = own, ahead or AtlasPlans()
        self._plans = {} if own is None else {empty_places(own): own}
        self._outcomes: dict[Empty | Vector, TimeAndMemory] = {}
        self._best: dict[int, Vector] = {}
        self.are_alike = alike(common)

    @property
    def template(self) -> Template:
        """The stages of every pipeline."""
        return self.common.template

    def link_delay_s(self, pair: PlacePair) -> float | None:
        """What a message takes between two places, in s; None where their stages send each other nothing.

        Args:
            pair: of one pipeline; between two pipelines it is what the first one's own links take.
        """
        (k, i), (_, j) = pair
        number = self.template.link_between(i, j)
        links = self.template.links if self._own is None else self._own.links_of(k)
        return None if number is None else links[number].delay_s

    @property
    def own_empty(self) -> Empty:
        """The places that are empty in the plan that the job has begun with, if there is one."""
        return frozenset() if self._own is None else empty_places(self._own)

    def outcome(self, empty: Empty) -> TimeAndMemory:
        """What the pipelines take, and hold at most, with these places empty.

        Of a running job, and of a placement, it is what the plan says. Else memory is that of all backwards split, as
        in an atlas; the plan, which splits fewer, may hold less.

        Raises:
            InfeasibleError: a stage has no live worker left; or a memory limit admits nothing.
        """
        key: Empty | Vector = self._vector(empty) if self._goes_by_number else empty
        if key not in self._outcomes:
            if isinstance(key, tuple):
                self._outcomes[key] = self._with_state(*self._of_slots.outcome(key))
            else:
                self._outcomes[key] = self.promised(self.plan(empty))
        return self._outcomes[key]

    def promised(self, plan: Plan) -> TimeAndMemory:
        """What a plan of these pipelines takes and holds, by itself."""
        found = plan.prediction or evaluate(plan)
        held = zip((worker.stage for worker in plan.workers), found.peak_memory_bytes, strict=True)
        most = max(self.gpu_bytes[stage] + size_bytes for stage, size_bytes in held)
        return TimeAndMemory(found.iteration_time_s, most)

    def bound_s(self, empty: Empty) -> float:
        """What an iteration takes at least, in s, whatever the plan; of whole units that are alike."""
        return self._of_units.bound_s(self._vector(empty))

    def plan(self, empty: Empty) -> Plan:
        """Their plan.

        Raises:
            InfeasibleError: as for `outcome`.
            InvalidInputError: there is no such place, or a plan made ahead cannot be read.
        """
        if empty not in self._plans:
            self.grid.require_places(sorted(empty), "the failed workers")
            if self._own is None and len(self._plans) == MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[empty] = self._planned(empty)
        return self._plans[empty]

    def ordered(self, empty: Empty) -> AnyRetimed:
        """The orders of their plan; the rest as for `outcome`."""
        if not self._goes_by_number:
            return retimed_of(self.plan(empty))
        return Retimed(*self._of_slots.orders(self._whole_units(empty) or frozenset()))

    def is_best(self, empty: Empty) -> bool:
        """Whether places are empty where that costs least; for these there is a plan made ahead."""
        units = self._whole_units(empty)
        return units is not None and self.grid.column_failures(units) == self.best(len(units))

    def best(self, units: int) -> Vector:
        """In which columns so many empty units cost least."""
        if units not in self._best:
            ahead = self._ahead.entries
            entry = ahead[units] if units < len(ahead) else self._of_units.entry(units)[0]
            found = tuple(dead // self.grid.unit_pipelines for dead in entry.failures[:: self.grid.unit_stages])
            self._best[units] = found
            if self._goes_by_number:
                promised = entry.prediction
                self._outcomes[found] = self._with_state(promised.iteration_time_s, promised.peak_memory_bytes)
        return self._best[units]

    def relocation(self, empty: Empty) -> Relocation | None:
        """Who moves where to have the empty units where they cost least; None where nobody need, or can, move."""
        units = self._whole_units(empty)
        if units is None or not self.are_alike:
            return None
        self.grid.require_live_stages(units)
        moved = relocate(self.grid, units, self.best(len(units)), self.gpu_bytes)
        return moved if moved.copies else None

    def after(self, moved: Relocation) -> Empty:
        """The empty places once workers have moved."""
        return frozenset(place for unit in moved.failed_units for place in self.grid.places(unit))

    def warm_up(self) -> None:
        """Plan for one more failure, so that what is loaded and made ready once is there when the first worker dies."""
        assert self._own is not None
        dead = self.own_empty
        alive = [worker.place for worker in self._own.workers if worker.place not in dead]
        spare = next((one for one in alive if any(one != peer and one[1] == peer[1] for peer in alive)), None)
        if spare is not None:
            with suppress(InfeasibleError):
                self.plan(dead | {spare})

    def _vector(self, empty: Empty) -> Vector:
        """How many units of each column are empty, of whole units."""
        units = frozenset(map(self.grid.unit_of, empty))
        counts = [0] * self.grid.columns
        for _, column in units:
            counts[column] += 1
        return tuple(counts)

    def _with_state(self, iteration_s: float, activation_bytes: Sequence[float]) -> TimeAndMemory:
        return TimeAndMemory(iteration_s, peak_bytes(self.gpu_bytes, activation_bytes))

    @cached_property
    def _of_units(self) -> AnyReplanner:
        """For places that become empty in units."""
        return _replanner(self.common)

    @property
    def _goes_by_number(self) -> bool:
        """Whether outcomes are known by how many units of each column are empty, before there is a plan."""
        return self._own is None and not self.common.is_placed

    @property
    def _of_slots(self) -> Replanner:
        """The same of a job that is replayed, whose workers hold one stage each."""
        assert isinstance(self._of_units, Replanner)
        return self._of_units

    @cached_property
    def _of_workers(self) -> AnyReplanner:
        """For workers that die one by one."""
        planner = self.common.planner
        planner = replace(planner, options=planner.options | {"failure_unit": [1, 1]})
        return _replanner(replace(self.common, planner=planner, failure_unit=(1, 1)))

    def _planned(self, empty: Empty) -> Plan:
        units = self._whole_units(empty)
        if units is None:  # what is alive of a unit goes on working
            return self._of_workers.in_place(empty, compared=False)
        return self._stored(len(units), empty) or self._of_units.in_place(units, compared=False)

    def _whole_units(self, empty: Empty) -> Units | None:
        """The units that are empty, if these are whole."""
        units = frozenset(map(self.grid.unit_of, empty))
        size = self.grid.unit_pipelines * self.grid.unit_stages
        return units if len(units) * size == len(empty) else None

    def _stored(self, failures: int, empty: Empty) -> Plan | None:
        """The plan that a search has found and that stands beside the atlas, if it leaves just these places empty."""
        entries, folder = self._ahead.entries, self._ahead.folder
        if failures >= len(entries) or entries[failures].recipe.stored is None:
            return None
        units = self.grid.last_units(self.best(failures))
        if empty != {place for unit in units for place in self.grid.places(unit)}:
            return None
        plan = stored_plan(folder, entries[failures])
        require_valid(plan, str(plan_path(Path(folder), failures)))
        return plan


def rerouted_from(plan: Plan, atlas_folder: str | None = None) -> ReroutedPipelines:
    """The pipelines of a running plan.

    Args:
        plan: the running plan, read and found valid; some of its workers may have failed.
        atlas_folder: an atlas of the same job, or None.

    Raises:
        InvalidInputError: the plan's pipelines differ, or the atlas cannot be read or is of another job.
    """
    opening = opening_of(plan)
    if atlas_folder is None:
        return ReroutedPipelines(opening, opening.state_bytes, plan)
    atlas = read_atlas(atlas_folder)
    differences = list(_differences(opening, atlas))
    if differences:
        raise InvalidInputError(
            f"the atlas is of another job than the plan: they differ in {', '.join(differences)}",
            where=atlas_folder,
            fix="make the atlas from the profile and with the options of the plan, or the plan from the atlas: --from",
        )
    # Workers wait for a plan of a running job: a few percent of an iteration are not worth seconds of search.
    common = replace(
        atlas,
        plans=(),
        planner=replace(atlas.planner, options=atlas.planner.options | {"solver": "rules", "time_limit_s": 0.0}),
    )
    return ReroutedPipelines(common, common.state_bytes, plan, AtlasPlans(atlas_folder, atlas.plans))


def _replanner(common: Atlas) -> AnyReplanner:
    """Ready for as many failures as can be borne."""
    grid = grid_of(common)
    return replanner_of(common, grid.columns * (grid.units - 1))


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
    if one.placement != other.placement:
        yield "the placement of stages on workers"
    if one.name != other.name:
        yield f"the template's name ({one.name} and {other.name})"
    for noun in ("stage", "link"):
        pairs = zip(getattr(one, f"{noun}s"), getattr(other, f"{noun}s"), strict=True)
        yield from (f"{noun} {i}" for i, (mine, its) in enumerate(pairs) if mine != its)


def empty_places(plan: Plan) -> frozenset[Place]:
    """The places whose workers have failed in a plan."""
    return frozenset(worker.place for worker in plan.workers if worker.failed)
