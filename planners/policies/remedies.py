"""Greyhound's S2 and S3 for the pipelines of a job: which micro-batches and which places they give, and what they take.

By the planner of `rtk plan topology` (`planners/greyhound/topology.py`), which reckons with 1F1B; each answer is then
timed by the job's own schedule, and counts only if it is faster than what it replaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ...schemas.conditions import pair_of
from ...schemas.plan import Place, Plan, name_of, place_of
from ..greyhound.topology import Assignment, best_assignment
from .separate_pipelines import PipelineKey, SeparatePipelines
from .slowness import PlanSlowness

Remedy = Literal["S1", "S2", "S3"]

# Beyond so many places times (places that are slow, or an end of a slow link) a search of places takes longer than a
# few seconds: then nobody moves.
MOST_SWAPS = 100_000


@dataclass(frozen=True)
class Arrangement:
    """Who sits where, and the micro-batches of each pipeline.

    Attributes:
        microbatches: of each pipeline.
        came_from: where the worker at each place sat before, by places in order.
        iteration_time_s: of its plan, as `rtk simulate` has it.
    """

    microbatches: tuple[int, ...]
    came_from: tuple[Place, ...]
    iteration_time_s: float


class RemedyPlanner:
    """What S2 and S3 make of troubles; every answer is remembered.

    Args:
        pipelines: of the job.
        seed: of the search.
    """

    def __init__(self, pipelines: SeparatePipelines, seed: int) -> None:
        self._pipelines, self._seed = pipelines, seed
        self._found: dict[tuple[tuple[int, ...], PlanSlowness], dict[Remedy, Arrangement]] = {}

    def of(self, microbatches: tuple[int, ...], troubles: PlanSlowness) -> Mapping[Remedy, Arrangement]:
        """S1, which is as it is, and those of S2 and S3 that are faster than what comes before them.

        Args:
            microbatches: that the pipelines have now.
            troubles: where it is slow now.
        """
        key = microbatches, troubles
        if key not in self._found:
            self._found[key] = dict(self._faster(microbatches, troubles))
        return self._found[key]

    def uneven(self, microbatches: tuple[int, ...], troubles: PlanSlowness) -> Arrangement:
        """S2, whether or not it is faster."""
        plan = self._plan(microbatches)
        answer = _assignments(plan, troubles, self._seed)(most_moves=0)
        return self._timed(answer.microbatches, _home(plan), troubles)

    def _faster(self, microbatches: tuple[int, ...], troubles: PlanSlowness) -> Iterator[tuple[Remedy, Arrangement]]:
        plan = self._plan(microbatches)
        now = self._timed(microbatches, _home(plan), troubles)
        yield "S1", now
        uneven = self.uneven(microbatches, troubles)
        if uneven.iteration_time_s < now.iteration_time_s:
            yield "S2", uneven
        moved = min(self._moved(plan, microbatches, troubles), key=lambda one: one.iteration_time_s, default=now)
        if moved.iteration_time_s < min(now.iteration_time_s, uneven.iteration_time_s):
            yield "S3", moved

    def _moved(self, plan: Plan, microbatches: tuple[int, ...], troubles: PlanSlowness) -> Iterator[Arrangement]:
        """S3 alone, with S2 by one search for both, and S2 after it: the search's model is rough for slow hops."""
        if len(_concerned(troubles)) * len(plan.workers) > MOST_SWAPS:
            return
        assigned = _assignments(plan, troubles, self._seed)
        for answer in (assigned(keep_microbatches=True), assigned()):
            goes_to = {place_of(name): place for name, place in answer.places.items()}
            came_from = {place: start for start, place in goes_to.items()}
            sources, moved = tuple(came_from[place] for place in _home(plan)), troubles.moved(goes_to)
            yield self._timed(answer.microbatches, sources, moved)
            if answer.microbatches == microbatches:
                yield replace(self.uneven(microbatches, moved), came_from=sources)

    def _plan(self, microbatches: tuple[int, ...]) -> Plan:
        return self._pipelines.bare([PipelineKey(count) for count in microbatches])

    def _timed(
        self, microbatches: tuple[int, ...], came_from: tuple[Place, ...], troubles: PlanSlowness
    ) -> Arrangement:
        outcome = self._pipelines.outcome([PipelineKey(count) for count in microbatches], troubles)
        return Arrangement(microbatches, came_from, outcome.iteration_time_s)


def _home(plan: Plan) -> tuple[Place, ...]:
    return tuple(worker.place for worker in plan.workers)


def _concerned(troubles: PlanSlowness) -> set[Place]:
    """The places that are slow, or an end of a slow link."""
    return {place for place, _ in troubles.factors} | {place for pair, _ in troubles.links_s for place in pair}


def _assignments(plan: Plan, troubles: PlanSlowness, seed: int) -> Callable[..., Assignment]:
    """`best_assignment`, from where everybody is."""
    home = {worker.name: worker.place for worker in plan.workers}
    slow = {name_of(place): factor for place, factor in troubles.factors}
    links = {pair_of(name_of(one), name_of(other)): delay_s for (one, other), delay_s in troubles.links_s}
    return partial(best_assignment, plan, home, slow, links, seed=seed)
