"""Greyhound: the longer something is slow, the dearer the remedy.

T. Wu et al., "GREYHOUND: Hunting Fail-Slows in Hybrid-Parallel Training at Scale" (USENIX ATC 2025), section 5, with
the real planners (`planners/greyhound/`, `planners/batch/`):

* S1, nothing. What is slow is found after so many iterations as the job's costs say.
* S2, other micro-batches: the planner's time, at an iteration's end.
* S3, other places, with S2 where that is best: the state of those who change their stage is copied, then groups are
  formed anew. Both ways count: what is moved goes back on relief (docs/greyhound.md).
* S4, a checkpoint and a restart without slow nodes, and without an end of each slow link: on others, or with fewer
  pipelines.

When (Algorithm 1, `planners/greyhound/mitigate.py`): each once the time lost by iterations that take longer than usual,
added up from the first one, has reached its cost; those that gain less than 5 % of the slow-down are left out. Of
several that are due at once, at the detection, the dearest is taken and no others. A slow-down below 10 % is not found
(section 4.2). If something else turns slow or is relieved, the reckoning begins anew from how things stand. Once
nothing is slow any more, which also has to be found, everybody goes back to the first plan, unless it is no faster.

To failures Greyhound has no answer: they are checkpoint-restart's, which here leaves out whom S4 has left out, as long
as they are slow and are not needed for a single pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

from ... import __version__
from ...schemas.conditions import AS_PLANNED, PlanConditions, pair_of
from ...schemas.plan import Place, Plan, Planner, name_of, place_of
from ...schemas.replay import Fleet, Moment, Pause, StateChange, TrainingState, Transition
from ..greyhound.mitigate import StrategySwitch, plan_switches
from ..greyhound.topology import Assignment, best_assignment
from ..scheduling.problem import ROUNDING
from ..shape import shape_options
from .checkpoint_restart import CheckpointRestart
from .detecting import paced
from .job import (
    Copied,
    TrainingJob,
    begins_s,
    copying_s,
    finding_s,
    planning,
    regrouping,
    require_rate,
    saved_and_restarting,
    seating_of,
    seats,
    total_s,
)
from .layout import JobPipelines, alike, spread

Nodes = tuple[str, ...]

# So much longer than usual an iteration takes before anybody notices.
NOTICED = 0.1
# What is free costs at least so much, in s: Algorithm 1 orders strategies by what they cost.
LEAST_COST_S = 1e-6


@dataclass(frozen=True)
class Measures:
    """The node at each place, pipeline after pipeline, and the micro-batches of each pipeline."""

    nodes: Nodes = ()
    microbatches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reckoning:
    """How much a slow-down has cost so far.

    Attributes:
        start: how things stood when it began.
        since_s: the time at which `lost_s` was reckoned, in s of the trace.
        lost_s: what iterations took longer than usual until then, in s.
        found_s: when it is found, in s of the trace.
        taken: the last strategy that was taken.
    """

    start: Measures
    since_s: float
    lost_s: float
    found_s: float
    taken: str = "S1"

    def lost_by_s(self, time_s: float, iteration_s: float, usual_s: float) -> float:
        """What was lost until a time, with iterations that take so long instead of as long as usual."""
        return self.lost_s + max(0.0, time_s - self.since_s) * (1 - usual_s / iteration_s)


NOTHING = Reckoning(Measures(), 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class GreyhoundLayout:
    """Who sits where, and since when it is slow.

    Attributes:
        base: checkpoint-restart's standing.
        now: the measures that are in force.
        troubles: what is slow there.
        reckoning: of what is slow.
        left_out: nodes that S4 has left out.
    """

    base: TrainingState
    now: Measures
    troubles: PlanConditions
    reckoning: Reckoning
    left_out: Nodes = ()


@dataclass(frozen=True)
class _Option:
    """A strategy: the standing that it leads to, but for when, and what it pauses for."""

    strategy: str
    standing: TrainingState
    pauses: tuple[Pause, ...]

    @property
    def cost_s(self) -> float:
        return max(LEAST_COST_S, total_s(self.pauses))


class Greyhound:
    """Checkpoint-restart's pipelines under remedies; formations say which, and what slowness has cost so far.

    For replays only: `rtk run` cannot obey it.

    Args:
        job: what it trains.
    """

    def __init__(self, job: TrainingJob) -> None:
        self._job, self._restarts = job, CheckpointRestart(job)
        self._pipelines = JobPipelines(job)
        self._remedies = RemedyPlanner(self._pipelines, job.seed)

    def begin(self, fleet: Fleet) -> TrainingState:
        """As checkpoint-restart; what is slow already is answered from the next moment on.

        Raises:
            InfeasibleError: as checkpoint-restart.
            InvalidInputError: nobody says how fast state is copied.
        """
        require_rate(self._job)
        return self._first(self._restarts.begin(fleet), fleet, 0.0, ())

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As checkpoint-restart where that has an answer; else remedies for what is slow, as they become due."""
        restarted = self._restarted(_formation(standing), moment)
        if restarted:
            return (*restarted, *self._pending(restarted[-1].standing, moment.fleet, moment.time_s))
        if standing.iteration_time_s is None:
            return ()
        same = self._same(standing, moment)
        pace = () if same == standing else (paced(same),)
        return (*pace, *self._pending(same, moment.fleet, moment.time_s))

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines' plan, with uneven micro-batches and what is slow."""
        formation = _formation(standing)
        if standing.iteration_time_s is None:
            return None
        counts = formation.now.microbatches
        shape = replace(self._job.shape, dp=len(counts))
        options = shape_options(self._job.profile, shape) | {
            "schedule": self._job.schedule,
            "microbatches": list(counts),
        }
        planner = Planner("greyhound", __version__, options, self._job.seed)
        return formation.troubles.felt().under(self._pipelines.plan(alike(counts), planner))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Who sits where."""
        return self._seats(_formation(standing).now.nodes)

    def _restarted(self, formation: GreyhoundLayout, moment: Moment) -> Transition:
        """What checkpoint-restart does without those who are left out; with them if there is no pipeline otherwise."""
        left_out = tuple(node for node in formation.left_out if _is_slow(node, moment.fleet))
        steps = self._restarts.react(formation.base, replace(moment, fleet=_without(moment.fleet, left_out)))
        waits = any(step.standing.iteration_time_s is None for step in steps)
        if left_out and waits:
            left_out = ()
            steps = self._restarts.react(formation.base, moment)
        return tuple(
            replace(step, standing=self._first(step.standing, moment.fleet, moment.time_s + begins_s(step), left_out))
            for step in steps
        )

    def _first(self, base: TrainingState, fleet: Fleet, at_s: float, left_out: Nodes) -> TrainingState:
        """A standing of checkpoint-restart, from a time on, with what is slow."""
        if base.iteration_time_s is None:
            return replace(base, formation=GreyhoundLayout(base, Measures(), AS_PLANNED, NOTHING))
        return self._beginning(GreyhoundLayout(base, self._usual(base), AS_PLANNED, NOTHING, left_out), fleet, at_s)

    def _same(self, standing: TrainingState, moment: Moment) -> TrainingState:
        """The same measures with what is slow now; reckoned anew if that changes the pace."""
        formation = _formation(standing)
        troubles = self._troubles(formation.now, moment.fleet)
        if troubles == formation.troubles:
            return standing
        same = self._beginning(formation, moment.fleet, moment.time_s)
        if same.iteration_time_s != standing.iteration_time_s:
            return same
        return replace(same, formation=replace(formation, troubles=troubles))

    def _beginning(self, formation: GreyhoundLayout, fleet: Fleet, at_s: float) -> TrainingState:
        """The reckoning begins at a time."""
        begun = self._standing(replace(formation, troubles=self._troubles(formation.now, fleet)))
        found_s = at_s + finding_s(self._job.costs, begun)
        reckoning = Reckoning(formation.now, at_s, 0.0, found_s)
        return replace(begun, formation=replace(_formation(begun), reckoning=reckoning))

    def _standing(self, formation: GreyhoundLayout) -> TrainingState:
        outcome = self._pipelines.outcome(alike(formation.now.microbatches), formation.troubles)
        return replace(
            formation.base,
            formation=formation,
            iteration_time_s=outcome.iteration_time_s,
            peak_memory_bytes=outcome.peak_memory_bytes,
        )

    def _pending(self, standing: TrainingState, fleet: Fleet, time_s: float) -> Iterator[StateChange]:
        """What is still to be done about a slow-down, or its end."""
        if standing.iteration_time_s is None:
            return iter(())
        relieved = not _formation(standing).troubles
        return self._reverted(standing, fleet, time_s) if relieved else self._switches(standing, fleet, time_s)

    def _reverted(self, standing: TrainingState, fleet: Fleet, time_s: float) -> Iterator[StateChange]:
        """All is well again: back to the first plan, once that is known, if it is any faster."""
        formation = _formation(standing)
        usual, usual_s = self._usual(formation.base), formation.base.iteration_time_s or 0.0
        if formation.now != usual and (standing.iteration_time_s or 0.0) > usual_s * (1 + ROUNDING):
            after_s = max(0.0, formation.reckoning.found_s - time_s)
            pauses = self._moving(formation.now.nodes, usual.nodes)
            at_s = time_s + after_s + total_s(pauses)
            back = self._first(formation.base, fleet, at_s, formation.left_out)
            yield StateChange(back, "relief", pauses, after_s)

    def _switches(self, standing: TrainingState, fleet: Fleet, time_s: float) -> Iterator[StateChange]:
        """Algorithm 1: the strategies that are still to come, each when the loss has reached its cost."""
        formation, reckoning = _formation(standing), _formation(standing).reckoning
        usual_s, switches = formation.base.iteration_time_s or 0.0, self._planned(formation, fleet)
        if reckoning.taken != "S1":
            names = [option.strategy for _, option in switches]
            switches = switches[names.index(reckoning.taken) + 1 :] if reckoning.taken in names else []
        now_s, now = max(time_s, reckoning.found_s), standing
        for number, (switch, option) in enumerate(switches):
            reckoning, iteration_s = _formation(now).reckoning, now.iteration_time_s or 0.0
            lost_s = reckoning.lost_by_s(now_s, iteration_s, usual_s)
            if number + 1 < len(switches) and switches[number + 1][0].after_s <= lost_s:
                continue
            if lost_s < switch.after_s:
                if iteration_s <= usual_s:
                    return
                now_s += (switch.after_s - lost_s) / (1 - usual_s / iteration_s)
                lost_s = switch.after_s
            due_s, now_s = now_s, now_s + total_s(option.pauses)
            now = self._taken(option, replace(reckoning, since_s=now_s, lost_s=lost_s, taken=option.strategy))
            yield StateChange(now, option.strategy, option.pauses, due_s - time_s)

    def _taken(self, option: _Option, reckoning: Reckoning) -> TrainingState:
        formation = _formation(option.standing)
        if option.strategy == "S4":
            reckoning = replace(reckoning, start=formation.now)
        return replace(option.standing, formation=replace(formation, reckoning=reckoning))

    def _planned(self, formation: GreyhoundLayout, fleet: Fleet) -> list[tuple[StrategySwitch, _Option]]:
        """The switching plan of a slow-down, from its start on; nothing for one that nobody notices."""
        start, usual_s = formation.reckoning.start, formation.base.iteration_time_s or 0.0
        troubles = self._troubles(start, fleet)
        slow_s = self._pipelines.seconds(alike(start.microbatches), troubles)
        if formation.reckoning.taken == "S4" or slow_s <= usual_s * (1 + NOTICED):
            return []
        options = {one.strategy: one for one in self._options(formation, troubles, fleet)}
        if not options:
            return []
        left = {
            name: max(0.0, (one.standing.iteration_time_s or 0.0) - usual_s) / (slow_s - usual_s)
            for name, one in options.items()
        }
        back_s = total_s(options["S3"].pauses) if "S3" in options else 0.0
        costs_s = {name: one.cost_s for name, one in options.items()}
        return [(one, options[one.strategy]) for one in plan_switches(costs_s, left, back_s).switches]

    def _options(self, formation: GreyhoundLayout, troubles: PlanConditions, fleet: Fleet) -> Iterator[_Option]:
        """The strategies that there are, from the start of a slow-down on."""
        start = formation.reckoning.start
        place_number = {place: number for number, place in enumerate(self._seats(start.nodes))}
        for name, found in self._remedies.of(start.microbatches, troubles).items():
            nodes = tuple(start.nodes[place_number[place]] for place in found.came_from)
            measures = Measures(nodes, found.microbatches)
            following = self._standing(replace(formation, now=measures, troubles=self._troubles(measures, fleet)))
            if name == "S2":
                yield _Option(name, following, planning(self._job.costs))
            elif name == "S3":
                yield _Option(name, following, self._moving(start.nodes, nodes, self._job.costs.planning_s))
        left_out = _slow_nodes(fleet)
        base = self._restarts.begin(_without(fleet, left_out))
        restarted = self._first(base, fleet, 0.0, left_out)
        if restarted.iteration_time_s is not None:
            saved, costs = self._restarts.saved, self._job.costs
            pauses = saved_and_restarting(costs, saved.checkpointing.pause_s, saved.loading_s)
            yield _Option("S4", restarted, pauses)

    def _moving(self, before: Nodes, after: Nodes, planning_s: float = 0.0) -> tuple[Pause, ...]:
        """Who changes his stage copies its state from whoever had the place; then all form new groups."""
        if before == after:
            return ()
        depth, gpu_bytes = self._job.shape.pp, self._restarts.saved.gpu_bytes
        lasts_s = copying_s(self._job, _copies(before, after, depth, gpu_bytes))
        return regrouping(self._job.costs, planning_s=planning_s, copying_s=lasts_s)

    def _usual(self, base: TrainingState) -> Measures:
        """The measures while all is well."""
        held = seats(seating_of(base), self._job.grid)
        nodes = tuple(held[place] for place in sorted(held))
        return Measures(nodes, spread(self._job.microbatches, len(nodes) // self._job.shape.pp))

    def _troubles(self, measures: Measures, fleet: Fleet) -> PlanConditions:
        return fleet.at(self._seats(measures.nodes)) if fleet.is_slow else AS_PLANNED

    def _seats(self, nodes: Nodes) -> dict[Place, str]:
        return {divmod(number, self._job.shape.pp): node for number, node in enumerate(nodes)}


def _formation(standing: TrainingState) -> GreyhoundLayout:
    return cast("GreyhoundLayout", standing.formation)


def _without(fleet: Fleet, nodes: Nodes) -> Fleet:
    return replace(fleet, nodes=tuple(node for node in fleet.nodes if node not in nodes))


def _is_slow(node: str, fleet: Fleet) -> bool:
    return node in fleet.slow or any(node in pair for pair in fleet.slow_links)


def _slow_nodes(fleet: Fleet) -> Nodes:
    """Slow nodes, and of each slow link between others the end with the most of them; of equal ones the later."""
    found = set(fleet.slow)
    while left := [pair for pair in fleet.slow_links if found.isdisjoint(pair)]:
        ends = [node for pair in left for node in set(pair)]
        found.add(max(ends, key=lambda node: (ends.count(node), node)))
    return tuple(node for node in fleet.nodes if node in found)


def _copies(before: Nodes, after: Nodes, depth: int, gpu_bytes: Sequence[float]) -> Iterator[Copied]:
    """What workers copy when nodes change places; those of one node take the places of their own stages first."""
    leaves: defaultdict[str, list[Place]] = defaultdict(list)
    takes: defaultdict[str, list[Place]] = defaultdict(list)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            leaves[old].append(divmod(number, depth))
            takes[new].append(divmod(number, depth))
    for node, places in takes.items():
        for place in places:
            own = min(leaves[node], key=lambda one: (one[1] != place[1], one))
            leaves[node].remove(own)
            if own[1] != place[1]:
                yield place, own, gpu_bytes[place[1]]


# Greyhound's S2 and S3 for the pipelines of a job: which micro-batches and which places they give, and what they take.
#
# By the planner of `rtk plan topology` (`planners/greyhound/topology.py`), which reckons with 1F1B; each answer is then
# timed by the job's own schedule, and counts only if it is faster than what it replaces.


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

    def __init__(self, pipelines: JobPipelines, seed: int) -> None:
        self._pipelines, self._seed = pipelines, seed
        self._found: dict[tuple[tuple[int, ...], PlanConditions], dict[Remedy, Arrangement]] = {}

    def of(self, microbatches: tuple[int, ...], troubles: PlanConditions) -> Mapping[Remedy, Arrangement]:
        """S1, which is as it is, and those of S2 and S3 that are faster than what comes before them.

        Args:
            microbatches: that the pipelines have now.
            troubles: where it is slow now.
        """
        key = microbatches, troubles
        if key not in self._found:
            self._found[key] = dict(self._faster(microbatches, troubles))
        return self._found[key]

    def uneven(self, microbatches: tuple[int, ...], troubles: PlanConditions) -> Arrangement:
        """S2, whether or not it is faster."""
        plan = self._plan(microbatches)
        answer = _assignments(plan, troubles, self._seed)(most_moves=0)
        return self._timed(answer.microbatches, _home(plan), troubles)

    def _faster(self, microbatches: tuple[int, ...], troubles: PlanConditions) -> Iterator[tuple[Remedy, Arrangement]]:
        plan = self._plan(microbatches)
        now = self._timed(microbatches, _home(plan), troubles)
        yield "S1", now
        uneven = self.uneven(microbatches, troubles)
        if uneven.iteration_time_s < now.iteration_time_s:
            yield "S2", uneven
        moved = min(self._moved(plan, microbatches, troubles), key=lambda one: one.iteration_time_s, default=now)
        if moved.iteration_time_s < min(now.iteration_time_s, uneven.iteration_time_s):
            yield "S3", moved

    def _moved(self, plan: Plan, microbatches: tuple[int, ...], troubles: PlanConditions) -> Iterator[Arrangement]:
        """S3 alone, with S2 by one search for both, and S2 after it: the search's model is rough for slow hops."""
        if len(troubles.places) * len(plan.workers) > MOST_SWAPS:
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
        return self._pipelines.bare(alike(microbatches))

    def _timed(
        self, microbatches: tuple[int, ...], came_from: tuple[Place, ...], troubles: PlanConditions
    ) -> Arrangement:
        return Arrangement(microbatches, came_from, self._pipelines.seconds(alike(microbatches), troubles))


def _home(plan: Plan) -> tuple[Place, ...]:
    return tuple(worker.place for worker in plan.workers)


def _assignments(plan: Plan, troubles: PlanConditions, seed: int) -> Callable[..., Assignment]:
    """`best_assignment`, from where everybody is."""
    home = {worker.name: worker.place for worker in plan.workers}
    slow = {name_of(place): factor for place, factor in troubles.factors}
    links = {pair_of(name_of(one), name_of(other)): delay_s for (one, other), delay_s in troubles.links_s}
    return partial(best_assignment, plan, home, slow, links, seed=seed)
