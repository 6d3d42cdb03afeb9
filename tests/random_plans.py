"""Random plans for a crew of which some die while others come: of pipelines that are cut alike, or formed anew."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TypeVar

from rtk.schemas.plan import Layers, Link, Pipeline, Place, Placement, Plan, Stage, Template, Worker

from .runners.placed import placed_plan
from .strategies import BY_HAND

Who = TypeVar("Who")
Own = list[tuple[int, int]]  # micro-batches that a worker runs: their pipelines, and their numbers there


class RandomPlans:
    """The plans of one job, each for those who are left of the crew of the one before.

    Pipelines that are cut alike stay, and peers do what the dead would have; else pipelines are formed anew, cut
    elsewhere.

    Args:
        rng: makes all choices.
        layers: of the model.
        stage: makes a stage of some of them.
        order: makes the order of a worker, of what it runs and its pipeline.
        delay_s: of all links.
        leaves_out: how likely pipelines that are formed anew are fewer than there are workers for.

    Attributes:
        plan: the present one, once there is a first.
    """

    plan: Plan

    def __init__(
        self,
        rng: Random,
        layers: int,
        stage: Callable[[Layers], Stage],
        order: Callable[[Own, int], str],
        *,
        delay_s: float = 0.0,
        leaves_out: float = 0.0,
    ) -> None:
        self._rng, self._layers, self._stage, self._order = rng, layers, stage, order
        self._delay_s, self._leaves_out = delay_s, leaves_out
        self._shared = self._template("all", least=2)
        self._dead: set[Place] = set()

    def begin_alike(self, dp: int, microbatches: int) -> None:
        """The first plan: so many pipelines, cut alike, each of so many micro-batches."""
        self._dp, self._total, self._is_alike = dp, dp * microbatches, True
        self.plan = self._alike()

    def begin_unlike(self, workers: int, total: int) -> None:
        """The first plan: pipelines cut anyhow, of so many workers at most, and so many micro-batches together."""
        self._total, self._is_alike = total, False
        self.plan = self._unlike(workers)

    def follow(self, crew: Sequence[Who], victims: Collection[int], coming: Sequence[Who]) -> list[Who] | None:
        """Make the next plan.

        Args:
            crew: who takes which place of the present plan, in the order of its live workers.
            victims: whom of them it loses, by their numbers.
            coming: others.

        Returns:
            Who takes which place of the next plan; None: there is none, for nobody is left at a stage.
        """
        if not self._is_alike:
            everybody = [*(one for number, one in enumerate(crew) if number not in victims), *coming]
            self.plan = self._unlike(len(everybody))
            self._rng.shuffle(everybody)
            return everybody[: len(self.plan.live_workers())]
        places = [worker.place for worker in self.plan.live_workers()]
        seats = {places[number]: one for number, one in enumerate(crew) if number not in victims}
        waiting = list(coming)
        for worker in self.plan.workers:
            if worker.place not in seats and waiting:
                seats[worker.place] = waiting.pop()
        self._dead = {worker.place for worker in self.plan.workers} - set(seats)
        if len({stage for _, stage in seats}) < len(self._shared.stages):
            return None
        self.plan = self._alike()
        return [seats[worker.place] for worker in self.plan.live_workers()]

    def _template(self, name: str, least: int = 1, most: int = 4) -> Template:
        count = self._rng.randint(least, max(least, min(most, self._layers)))
        cuts = [0, *sorted(self._rng.sample(range(1, self._layers), count - 1)), self._layers]
        stages = tuple(map(self._stage, pairwise(cuts)))
        return Template(name, stages, tuple(Link(self._delay_s) for _ in stages[1:]))

    def _alike(self) -> Plan:
        own: dict[Place, Own] = {}
        for i in range(len(self._shared.stages)):
            live = [k for k in range(self._dp) if (k, i) not in self._dead]
            own |= {(k, i): [] for k in live}
            for number in range(self._total):
                j, k = divmod(number, self._dp)
                own[k if k in live else live[j % len(live)], i].append((k, j))
        return self._plan_of([self._shared] * self._dp, [self._total // self._dp] * self._dp, own)

    def _unlike(self, workers: int) -> Plan:
        templates: list[Template] = []
        while workers > 0 and len(templates) < self._total:
            templates.append(self._template(f"t{len(templates)}", most=min(4, workers)))
            workers -= len(templates[-1].stages)
            if self._leaves_out and len(templates) > 1 and self._rng.random() < self._leaves_out:
                break
        count = len(templates)
        shares = [self._total // count + (k < self._total % count) for k in range(count)]
        own = {
            (k, i): [(k, j) for j in range(shares[k])]
            for k, template in enumerate(templates)
            for i in range(len(template.stages))
        }
        return self._plan_of(templates, shares, own)

    def _plan_of(self, templates: Sequence[Template], shares: Sequence[int], own: dict[Place, Own]) -> Plan:
        workers = tuple(
            Worker(k, i, self._order(own[k, i], k)) if (k, i) in own else Worker(k, i, failed=True)
            for k, template in enumerate(templates)
            for i in range(len(template.stages))
        )
        pipelines = tuple(Pipeline(one.name, share) for one, share in zip(templates, shares, strict=True))
        return Plan(BY_HAND, tuple(dict.fromkeys(templates)), pipelines, "synchronous", workers)


class PlacedPlans:
    """As `RandomPlans` that are cut alike, where workers hold several virtual stages.

    Args:
        rng: makes all choices.
        layers: of the model.
        stage: makes a stage of some of them.
        placement: of all pipelines.
        kinds: what each micro-batch runs: FIW, or FB.
        delay_s: of all links between columns that are not one.
        limit_bytes: what each worker may hold, which the orders do not keep.
    """

    plan: Plan

    def __init__(
        self,
        rng: Random,
        layers: int,
        stage: Callable[[Layers], Stage],
        placement: Placement,
        kinds: str,
        *,
        delay_s: float = 0.0,
        limit_bytes: float | None = None,
    ) -> None:
        count, columns = sum(map(len, placement)), {v: c for c, held in enumerate(placement) for v in held}
        cuts = [0, *sorted(rng.sample(range(1, layers), count - 1)), layers]
        links = tuple(Link(delay_s if columns[v] != columns[v + 1] else 0.0) for v in range(count - 1))
        limits = None if limit_bytes is None else (limit_bytes,) * len(placement)
        self._template = Template("v", tuple(map(stage, pairwise(cuts))), links, placement, limits)
        self._layers, self._kinds = layers, kinds
        self._dead: set[Place] = set()

    def begin(self, dp: int, microbatches: int) -> None:
        """The first plan: so many pipelines, each of so many micro-batches."""
        self._shares = (microbatches,) * dp
        self.plan = self._rerouted()

    def follow(self, crew: Sequence[Who], victims: Collection[int], coming: Sequence[Who]) -> list[Who] | None:
        """Make the next plan, as that of `RandomPlans`."""
        places = [worker.place for worker in self.plan.live_workers()]
        seats = {places[number]: one for number, one in enumerate(crew) if number not in victims}
        waiting = list(coming)
        for worker in self.plan.workers:
            if worker.place not in seats and waiting:
                seats[worker.place] = waiting.pop()
        if len({column for _, column in seats}) < len(self._template.columns):
            return None
        self._dead = {worker.place for worker in self.plan.workers} - set(seats)
        self.plan = self._rerouted()
        return [seats[worker.place] for worker in self.plan.live_workers()]

    def _rerouted(self) -> Plan:
        placement = self._template.columns
        plan = placed_plan(placement, self._layers, self._shares, self._kinds, self._dead)
        return replace(plan, templates=(self._template,))
