"""Conditions: what is slow, or broken, while everybody lives; and a plan under them, its orders as they are.

`Conditions` follow workers, by the names they were started with, wherever they sit: a monitor finds them, a journal
keeps them. `PlanConditions` are the same at the places of a plan, once it is known who sits where: a plan is put under
them, or timed. What a user says of a plan's own workers and links (`--slow`, `--link-delay`) takes the place of what
stands in it (`under_conditions`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

from .errors import InvalidInputError
from .fields import STRICT, Factor, Index, Seconds
from .placement import linked_columns, links_crossed
from .plan import Layers, Link, Pipeline, Place, Placement, Plan, Stage, Template, name_of
from .profile import ring_steps

LinkPlace = tuple[int | None, int]  # (pipeline, link); pipeline None means all of them
Pair = tuple[str, str]  # two workers by the names they were started with, in ascending order
PlacePair = tuple[Place, Place]  # ascending


@dataclass(frozen=True, slots=True)
class SlowLink:
    """Two workers whose messages to each other take `delay_s`, in all: the mean of both directions."""

    ends: Pair
    delay_s: Seconds

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class SlowWorker:
    """A worker whose operations take `factor` times as long as planned."""

    worker: str
    factor: Factor

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is wrong with workers that live and with the links between them, wherever they sit in the plan.

    Attributes:
        slow_links: in the order of their ends.
        slow_workers: in the order of their names.
        broken_links: pairs of workers that do not reach each other directly, in order.
        suspects: groups of workers in which somebody, or a link, is slow, though nobody knows which; each in the order
            of names. They are to be examined.
        level: which costly remedies what is slow has been worth by now (Greyhound's S2, S3, S4 are 0, 1, 2).
    """

    slow_links: tuple[SlowLink, ...] = ()
    slow_workers: tuple[SlowWorker, ...] = ()
    broken_links: tuple[Pair, ...] = ()
    suspects: tuple[tuple[str, ...], ...] = ()
    level: Index = 0

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def is_slow(self) -> bool:
        """Whether something is slow, known or suspected; what is broken is not."""
        return bool(self.slow_links or self.slow_workers or self.suspects)

    def without(self, worker: str) -> "Conditions":
        """What is left of them when a worker is gone; where nothing is slow any more, no remedy is worth its cost."""
        left = Conditions(
            tuple(link for link in self.slow_links if worker not in link.ends),
            tuple(one for one in self.slow_workers if one.worker != worker),
            tuple(pair for pair in self.broken_links if worker not in pair),
            tuple(group for group in self.suspects if worker not in group),
        )
        return replace(left, level=self.level) if left.is_slow else left


HEALTHY = Conditions()


@dataclass(frozen=True, slots=True)
class PlanConditions:
    """What is slow, by the places of a plan, in their order.

    Attributes:
        factors: of slow workers: their operations take so many times as long as the plan has it.
        links_s: what a message between two workers takes in all, in s, where that is slow, whether or not they have
            anything to send to each other.
    """

    factors: tuple[tuple[Place, float], ...] = ()
    links_s: tuple[tuple[PlacePair, float], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is slow."""
        return bool(self.factors or self.links_s)

    @property
    def places(self) -> set[Place]:
        """The places that are slow, or an end of a slow link."""
        return {place for place, _ in self.factors} | {place for pair, _ in self.links_s for place in pair}

    @property
    def hops_s(self) -> dict[Place, float]:
        """The delays between neighbouring stages of a pipeline, by the place of the first."""
        return {pair[0]: delay_s for pair, delay_s in self.links_s if are_neighbours(pair)}

    def inside(self) -> "PlanConditions":
        """Without links between pipelines."""
        return PlanConditions(self.factors, tuple(one for one in self.links_s if are_of_one_pipeline(one[0])))

    def felt(self, placement: Placement | None = None) -> "PlanConditions":
        """Without links between workers who have nothing to send to each other, as long as all stay where they are.

        Args:
            placement: of the pipelines, for a loop's way back is a link, too; None: workers hold one stage each.
        """
        linked = None if placement is None else linked_columns(placement)

        def are_linked(pair: PlacePair) -> bool:
            return are_neighbours(pair) if linked is None else (pair[0][1], pair[1][1]) in linked

        links_s = (one for one in self.links_s if not are_of_one_pipeline(one[0]) or are_linked(one[0]))
        return PlanConditions(self.factors, tuple(links_s))

    def by_pipeline(self) -> dict[int, "PlanConditions"]:
        """What is felt inside each pipeline in which something is slow, as if it were the only one."""
        factors, links_s = defaultdict(list), defaultdict(list)
        for (k, i), factor in self.factors:
            factors[k].append(((0, i), factor))
        for (k, i), delay_s in self.hops_s.items():
            links_s[k].append((((0, i), (0, i + 1)), delay_s))
        return {k: PlanConditions(tuple(factors[k]), tuple(links_s[k])) for k in factors.keys() | links_s.keys()}

    def moved(self, places: Mapping[Place, Place]) -> "PlanConditions":
        """The same once workers have gone to other places, each with what is slow of it."""
        factors = ((places.get(place, place), factor) for place, factor in self.factors)
        links_s = ((ascending(*(places.get(end, end) for end in pair)), delay_s) for pair, delay_s in self.links_s)
        return PlanConditions(tuple(sorted(factors)), tuple(sorted(links_s)))

    def sums_s(self, held: Mapping[Place, Sequence[Layers]]) -> dict[Layers, float]:
        """How much longer the all-reduces of stages take, in s, by the stages' layers; others take as long as ever.

        A slow link between two workers who sum gradients delays each step of the ring (`ring_steps`), and so the sums
        of both stages, of which each part has its share. In the ring are all pipelines that hold layers of the same
        component: those that are summed one after the other (docs/semantics.md).

        Args:
            held: the layers of the stages of all live workers.
        """
        across = [(pair, delay_s) for pair, delay_s in self.links_s if pair[0][0] != pair[1][0]]
        if not across:
            return {}
        component_of = components(layers for stages in held.values() for layers in stages)
        pipelines: defaultdict[Layers, set[int]] = defaultdict(set)
        for (k, _), stages in held.items():
            for layers in stages:
                pipelines[component_of[layers]].add(k)
        more_s: dict[Layers, float] = {}
        for (one, other), delay_s in across:
            for ends in product(held[one], held[other]):
                if ends[0][0] < ends[1][1] and ends[1][0] < ends[0][1]:  # some layers are in both
                    longer_s = ring_steps(len(pipelines[component_of[ends[0]]])) * delay_s
                    more_s |= {layers: max(longer_s, more_s.get(layers, 0.0)) for layers in ends}
        return more_s

    def under(self, plan: Plan) -> Plan:
        """The plan as it is under them, its orders as they are; its prediction, which no longer holds, is dropped.

        Factors come on top of slow-downs that the plan knows; a link takes the larger of both delays. A slow link
        between stages of different pipelines, which only re-routed micro-batches take, no plan can express: it does no
        harm here.

        Args:
            plan: in which the places are those of live workers.
        """
        live = plan.live_workers()
        known = {worker.place: worker.slowdown or 1.0 for worker in live}
        slow = {name_of(place): factor * known[place] for place, factor in self.factors if factor != 1}
        hops_s: dict[LinkPlace, float] = {
            (k, links_crossed(plan.template_of(k))[link]): delay_s
            for ((k, i), (_, j)), delay_s in self.inside().links_s
            for link in [plan.template_of(k).link_between(i, j)]
            if link is not None and delay_s > plan.links_of(k)[link].delay_s
        }
        more_s = self.sums_s({worker.place: [one.layers for one in plan.stages_of(worker)] for worker in live})
        if more_s:
            plan = replace(plan, templates=tuple(_with_sums(one, more_s) for one in plan.templates), prediction=None)
        return under_conditions(plan, slow, hops_s)


AS_PLANNED = PlanConditions()


def slow_at(seats: Mapping[Place, str], slow: Mapping[str, float], links_s: Mapping[Pair, float]) -> PlanConditions:
    """What is slow at the places of a plan, by who holds them: of a node it is slow at all places that it holds.

    Args:
        seats: who holds which place; who holds none does not count.
        slow: factors of workers, or of nodes.
        links_s: what a message between two of them takes in all, in s; of a node named twice, between its own places.
    """
    places: defaultdict[str, list[Place]] = defaultdict(list)
    for place, name in sorted(seats.items()):
        places[name].append(place)
    factors = ((place, factor) for name, factor in slow.items() for place in places.get(name, ()))
    found_s = {
        ascending(*ends): delay_s
        for (one, other), delay_s in links_s.items()
        for ends in product(places.get(one, ()), places.get(other, ()))
        if ends[0] != ends[1]
    }
    return PlanConditions(tuple(sorted(factors)), tuple(sorted(found_s.items())))


def ascending(one: Place, other: Place) -> PlacePair:
    """Two places as the ends of a link."""
    return (one, other) if one <= other else (other, one)


def are_peers(pair: PlacePair) -> bool:
    """Whether two places are of one stage."""
    return pair[0][1] == pair[1][1]


def are_of_one_pipeline(pair: PlacePair) -> bool:
    """Whether two places are of one pipeline."""
    return pair[0][0] == pair[1][0]


def are_neighbours(pair: PlacePair) -> bool:
    """Whether two places follow each other in one pipeline."""
    (k, i), (other, j) = pair
    return k == other and abs(i - j) == 1


def components(held: Iterable[Layers]) -> dict[Layers, Layers]:
    """The component of each stage, both by their layers; in ascending order.

    A component is stages that share layers, chained, and so end an iteration together (docs/semantics.md); its layers
    are consecutive, as those of each stage are. Where all pipelines cut the layers alike it is one stage.

    Args:
        held: the layers of all live workers' stages.
    """
    found: list[tuple[Layers, list[Layers]]] = []
    for first, stop in sorted(set(held)):
        if found and first < found[-1][0][1]:
            (begin, end), members = found.pop()
            found.append(((begin, max(end, stop)), [*members, (first, stop)]))
        else:
            found.append(((first, stop), [(first, stop)]))
    return {stage: component for component, members in found for stage in members}


def _with_sums(template: Template, more_s: Mapping[Layers, float]) -> Template:
    """A template whose all-reduces take longer, by the layers of stages."""

    def longer(stage: Stage) -> Stage:
        return replace(stage, allreduce_s=stage.allreduce_s + more_s.get(stage.layers, 0.0))

    return replace(template, stages=tuple(map(longer, template.stages)))


def pair_of(one: str, other: str) -> Pair:
    """Two workers as the ends of a link."""
    return (one, other) if one <= other else (other, one)


def under_conditions(plan: Plan, slow: Mapping[str, float], link_delay_s: Mapping[LinkPlace, float]) -> Plan:
    """The plan as it is under slow workers and links; its prediction, which no longer holds, is dropped.

    Args:
        plan: the plan.
        slow: slow-down factor by worker name `k/i`, instead of the plan's own.
        link_delay_s: delay in s by (pipeline or None for all, link), instead of the plan's own. Where stages are placed
            link i is that between columns i and i+1, and each hop over it takes so long; the way back of a loop, from
            the last column to the first, is the link behind them.

    Raises:
        InvalidInputError: the plan has no such worker or link, or the worker has failed.
    """
    if not slow and not link_delay_s:
        return plan
    _check_workers(plan, slow)
    _check_links(plan, link_delay_s)
    workers = tuple(replace(w, slowdown=slow.get(w.name, w.slowdown)) for w in plan.workers)
    # Hops between pipelines take the template's delay, so a delay for all pipelines belongs there.
    common = {link: delay for (pipeline, link), delay in link_delay_s.items() if pipeline is None}
    templates = tuple(
        replace(template, links=_replaced(template, template.links, common)) if template.links else template
        for template in plan.templates
    )
    pipelines = tuple(_pipeline(plan, k, link_delay_s) for k in range(len(plan.pipelines)))
    return replace(plan, workers=workers, templates=templates, pipelines=pipelines, prediction=None)


def _pipeline(plan: Plan, number: int, link_delay_s: Mapping[LinkPlace, float]) -> Pipeline:
    pipeline = plan.pipelines[number]
    own = {link: delay for (k, link), delay in link_delay_s.items() if k == number}
    common = {link: delay for (k, link), delay in link_delay_s.items() if k is None}
    if not own and pipeline.links is None:
        return pipeline
    return replace(pipeline, links=_replaced(plan.template_of(number), plan.links_of(number), {**common, **own}))


def _replaced(template: Template, links: tuple[Link, ...], delays_s: Mapping[int, float]) -> tuple[Link, ...]:
    """Links with other delays, which are given by the numbers of links between columns."""
    numbers = links_crossed(template)
    return tuple(Link(delays_s.get(i, link.delay_s)) for i, link in zip(numbers, links, strict=True))


def _check_workers(plan: Plan, slow: Mapping[str, float]) -> None:
    names = [worker.name for worker in plan.live_workers()]
    for name in slow:
        if name not in names:
            raise InvalidInputError(
                f"there is no live worker {name}", where="--slow", fix=f"workers run from 0/0 to {names[-1]}"
            )


def _check_links(plan: Plan, link_delay_s: Mapping[LinkPlace, float]) -> None:
    for pipeline, link in link_delay_s:
        chosen = range(len(plan.pipelines)) if pipeline is None else [pipeline]
        crossed = (links_crossed(plan.template_of(k)) for k in chosen if 0 <= k < len(plan.pipelines))
        if link < 0 or not any(link in numbers for numbers in crossed):
            place = f"{link}" if pipeline is None else f"{pipeline}/{link}"
            raise InvalidInputError(
                f"there is no link {place}", where="--link-delay", fix="link i lies between stages i and i+1"
            )
