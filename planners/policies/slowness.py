"""What slow nodes and slow links do to a plan: of a fleet, of nodes with seats, and of the plan's workers and links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

from ...schemas.conditions import LinkPlace, under_conditions
from ...schemas.plan import Layers, Place, Plan, Stage, name_of
from ...schemas.replay import Fleet
from ..greyhound.topology import PlacePair, are_neighbours
from ..scheduling.problem import components


@dataclass(frozen=True, slots=True)
class PlanSlowness:
    """What is slow, by places of a plan, in their order.

    Attributes:
        factors: of slow workers.
        links_s: what a message between two workers takes in all, in s, where that is slow, whether or not they have
            anything to send to each other.
    """

    factors: tuple[tuple[Place, float], ...] = ()
    links_s: tuple[tuple[PlacePair, float], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is slow."""
        return bool(self.factors or self.links_s)

    @property
    def hops_s(self) -> dict[Place, float]:
        """The delays between neighbouring stages of a pipeline, by the place of the first."""
        return {pair[0]: delay_s for pair, delay_s in self.links_s if are_neighbours(pair)}

    @property
    def across_s(self) -> dict[PlacePair, float]:
        """The delays between workers of different pipelines, who may sum gradients together."""
        return {pair: delay_s for pair, delay_s in self.links_s if pair[0][0] != pair[1][0]}

    def felt(self) -> PlanSlowness:
        """Without links between workers who have nothing to send to each other, as long as all stay where they are."""
        links_s = (one for one in self.links_s if are_neighbours(one[0]) or one[0][0][0] != one[0][1][0])
        return PlanSlowness(self.factors, tuple(links_s))

    def by_pipeline(self) -> dict[int, PlanSlowness]:
        """What is felt inside each pipeline in which something is slow, as if it were the only one."""
        factors, links_s = defaultdict(list), defaultdict(list)
        for (k, i), factor in self.factors:
            factors[k].append(((0, i), factor))
        for (k, i), delay_s in self.hops_s.items():
            links_s[k].append((((0, i), (0, i + 1)), delay_s))
        return {k: PlanSlowness(tuple(factors[k]), tuple(links_s[k])) for k in factors.keys() | links_s.keys()}

    def moved(self, places: Mapping[Place, Place]) -> PlanSlowness:
        """The same once workers have gone to other places, each with what is slow of it."""
        factors = ((places.get(place, place), factor) for place, factor in self.factors)
        ends = ((places.get(one, one), places.get(other, other), delay_s) for (one, other), delay_s in self.links_s)
        links_s = (((min(one, other), max(one, other)), delay_s) for one, other, delay_s in ends)
        return PlanSlowness(tuple(sorted(factors)), tuple(sorted(links_s)))


HEALTHY = PlanSlowness()


def troubles_of(fleet: Fleet, seats: Mapping[Place, str]) -> PlanSlowness:
    """What of a fleet's slow nodes and links there is in a plan whose workers the nodes hold: of all their workers."""
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for place, node in sorted(seats.items()):
        places[node].append(place)
    factors = ((place, factor) for node, factor in fleet.slow.items() for place in places.get(node, ()))
    links_s = {
        (min(ends), max(ends)): delay_s
        for (one, other), delay_s in fleet.slow_links.items()
        for ends in product(places.get(one, ()), places.get(other, ()))
        if ends[0] != ends[1]
    }
    return PlanSlowness(tuple(sorted(factors)), tuple(sorted(links_s.items())))


def under_troubles(plan: Plan, troubles: PlanSlowness) -> Plan:
    """The plan as it is with these troubles, its orders as they are.

    A slow link between two workers who sum gradients delays each of the 2 (n - 1) steps of the ring, as in
    `greyhound/mitigate.py`: so much longer takes the all-reduce of both stages, of which each part has its share. One
    between stages of different pipelines, which only re-routed micro-batches take, no plan can express: it does no harm
    here.

    Args:
        plan: nothing in it is slow.
        troubles: of its live workers.
    """
    if not troubles:
        return plan
    hops_s: dict[LinkPlace, float] = {
        (k, i): max(delay_s, plan.links_of(k)[i].delay_s) for (k, i), delay_s in troubles.hops_s.items()
    }
    factors = {name_of(place): factor for place, factor in troubles.factors}
    summed = replace(_with_sums(plan, _sums_s(plan, troubles)), prediction=None)
    return under_conditions(summed, factors, hops_s)


def share_layers(one: Layers, other: Layers) -> bool:
    """Whether some layers are in both stages."""
    return one[0] < other[1] and other[0] < one[1]


def _sums_s(plan: Plan, troubles: PlanSlowness) -> dict[Layers, float]:
    """How much longer the all-reduces of stages take, by their layers."""
    layers = {worker.place: plan.stage_of(worker).layers for worker in plan.live_workers()}
    component_of = components(layers.values())
    pipelines: defaultdict[Layers, set[int]] = defaultdict(set)
    for (k, _), found in layers.items():
        pipelines[component_of[found]].add(k)
    slowest_s: dict[Layers, float] = {}
    for (one, other), delay_s in troubles.across_s.items():
        held = layers[one], layers[other]
        if share_layers(*held):
            steps = 2 * (len(pipelines[component_of[held[0]]]) - 1)
            slowest_s |= {stage: max(steps * delay_s, slowest_s.get(stage, 0.0)) for stage in held}
    return slowest_s


def _with_sums(plan: Plan, more_s: Mapping[Layers, float]) -> Plan:
    """The plan with all-reduces that take longer, by the layers of stages."""

    def longer(stage: Stage) -> Stage:
        added_s = more_s.get(stage.layers, 0.0)
        return replace(stage, allreduce_s=stage.allreduce_s + added_s) if added_s else stage

    templates = (replace(one, stages=tuple(map(longer, one.stages))) for one in plan.templates)
    return replace(plan, templates=tuple(templates))
