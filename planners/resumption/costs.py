"""What the operations and messages of what is left cost: by workers, pieces of layers and boundaries between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.conditions import components
from ...schemas.plan import Layers, Link, Plan, Stage, merged_ranges
from ..scheduling.problem import Parts, parts_of
from .crew import Crew

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .remaining import Flags, Ints

    Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CrewCosts:
    """Times in s, with slow-downs in them; arrays over the seats of the live workers unless it says otherwise.

    Attributes:
        owner: the number of the worker that has each seat.
        length: layers of each piece.
        first, stop: the pieces of each seat.
        held: how many layers these are.
        duration_s: of F, I, W and B of all its layers, seats x 4.
        bytes: an activation, and a stash after I, seats x 2.
        limit_bytes: of each worker, all its seats together.
        pipeline: of each worker.
        origin: the pipeline of each micro-batch.
        rank: of each micro-batch, by its number in its pipeline, then by pipelines.
        inside_s: delay over each boundary within each pipeline, pipelines x boundaries.
        between_s: the same between pipelines, by that of the micro-batch.
        parts: in which gradients are still summed, as if there were no sealed layers.
        group: each worker's layers among those of the parts.
        sum_s: how long the sum of each part takes.
        step_s: what the slowest optimizer step takes.
    """

    owner: Ints
    length: Ints
    first: Ints
    stop: Ints
    held: Ints
    duration_s: Floats
    bytes: Floats
    limit_bytes: Floats
    pipeline: Ints
    origin: Ints
    rank: Ints
    inside_s: Floats
    between_s: Floats
    parts: Parts
    group: Ints
    sum_s: Floats
    step_s: float

    @property
    def workers(self) -> int:
        """How many live workers there are."""
        return len(self.limit_bytes)

    def share(self, seat: Ints, first: Ints, stop: Ints) -> Floats:
        """Which part of their layers seats run in the pieces from `first` to before `stop`; arrays alike."""
        before = np.concatenate(([0], np.cumsum(self.length)))
        found: Floats = (before[stop] - before[first]) / self.held[seat]
        return found

    def delay_s(self, microbatch: Ints, boundary: Ints, sender: Ints, receiver: Ints) -> Floats:
        """How long messages take between workers; arrays alike."""
        inside = self.inside_s[self.pipeline[receiver], boundary]
        between = self.between_s[self.origin[microbatch], boundary]
        home = self.pipeline[sender] == self.pipeline[receiver]
        found: Floats = np.where(sender == receiver, 0.0, np.where(home, inside, between))
        return found

    @cached_property
    def holds(self) -> Flags:
        """Which seat has which piece; seats x pieces."""
        pieces = np.arange(len(self.length))
        found: Flags = (self.first[:, None] <= pieces) & (pieces < self.stop[:, None])
        return found

    @cached_property
    def has(self) -> Flags:
        """Which worker holds which piece; workers x pieces."""
        found = np.zeros((self.workers, len(self.length)), dtype=np.bool_)
        np.logical_or.at(found, self.owner, self.holds)
        return found

    @cached_property
    def component(self) -> Ints:
        """The component of each worker: those that share layers with each other, chained."""
        held = list(zip(self.first.tolist(), self.stop.tolist(), strict=True))
        component_of = components(held)
        number = {ends: n for n, ends in enumerate(sorted(set(component_of.values())))}
        of_seat = [number[component_of[ends]] for ends in held]
        return np.array(_joined(of_seat, self.owner.tolist(), self.workers))

    @cached_property
    def following_s(self) -> Floats:
        """What follows the last operation of each worker at least."""
        after_s = np.array(self.parts.following_s(self.sum_s.tolist()))
        found: Floats = after_s[self.group] + self.step_s
        return found

    def makespan_s(self, ends_s: Floats) -> float:
        """When all is over, if the workers end their operations then: at 0 where there are none."""
        last_s = np.zeros(len(self.parts.groups))
        np.maximum.at(last_s, self.group, ends_s)
        sums_s = self.sum_s.tolist()
        begun_s = self.parts.begun_s(sums_s, last_s.tolist())
        return max(map(float.__add__, begun_s, sums_s)) + self.step_s


def costs_of(crew: Crew, plan: Plan, cuts: Sequence[int], sealed: Sequence[Layers]) -> CrewCosts:
    """What a crew's operations cost.

    Args:
        crew: the workers.
        plan: that of the crew, or the same under what is slow.
        cuts: where pieces begin, and the number of layers.
        sealed: layers whose sums are there.
    """
    place = {layer: number for number, layer in enumerate(cuts)}
    workers = plan.live_workers()
    # Workers of a template's column are alike but for their slow-downs.
    starts = accumulate((len(template.stages) for template in plan.templates[:-1]), initial=0)
    begins = dict(zip((template.name for template in plan.templates), starts, strict=True))
    of_pipeline = [begins[pipeline.template] for pipeline in plan.pipelines]
    owner = np.repeat(np.arange(len(workers)), list(map(len, crew.columns)))
    number = np.array(
        [
            of_pipeline[worker.pipeline] + stage
            for worker, column in zip(workers, crew.columns, strict=True)
            for stage in column
        ]
    )
    every = [stage for template in plan.templates for stage in template.stages]
    stages = [every[n] for n in np.unique(number).tolist()]
    slow = np.array([worker.slowdown or 1.0 for worker in workers])
    durations_s = np.array([[stage.duration_s(kind) for kind in "FIWB"] for stage in every])
    limits = map(plan.limit_bytes, workers)
    sizes = [(stage.activation_bytes, stage.weight_stash_bytes) for stage in every]
    held = np.array([stage.layers for stage in every])
    parts, sums_s, group_of = _sums(stages, crew.stages, sealed)
    live = {stage.layers for stage in stages}  # nobody may live who holds the layers of some stage
    ends = [[place[layer] if stage.layers in live else 0 for layer in stage.layers] for stage in every]
    counts = [pipeline.microbatches for pipeline in plan.pipelines]
    return CrewCosts(
        owner=owner,
        length=np.diff(np.array(cuts)),
        first=np.array(ends)[number, 0],
        stop=np.array(ends)[number, 1],
        held=(held[:, 1] - held[:, 0])[number],
        duration_s=durations_s[number] * slow[owner][:, None],
        bytes=np.array(sizes, dtype=np.float64)[number],
        limit_bytes=np.array([np.inf if limit is None else limit for limit in limits], dtype=np.float64),
        pipeline=np.array([worker.pipeline for worker in workers]),
        origin=np.repeat(np.arange(len(counts)), counts),
        rank=np.argsort(np.argsort(np.concatenate([np.arange(count) for count in counts]), kind="stable")),
        inside_s=_over(plan, [plan.links_of(k) for k in range(len(counts))], cuts),
        between_s=_over(plan, [plan.template_of(k).links for k in range(len(counts))], cuts),
        parts=parts,
        group=np.array([group_of[own] for own in crew.stages]),
        sum_s=sums_s,
        step_s=max(sum(stage.optimizer_s for stage in own) for own in {*map(plan.stages_of, workers)}),
    )


def _joined(of_seat: Sequence[int], owner: Sequence[int], workers: int) -> list[int]:
    """The number of each worker's component, where seats are in components, which their workers join."""
    found = list(range(max(of_seat) + 1))

    def root(number: int) -> int:
        while found[number] != number:
            number = found[number]
        return number

    first = dict(reversed(list(zip(owner, of_seat, strict=True))))
    for worker, number in zip(owner, of_seat, strict=True):
        one, other = sorted((root(first[worker]), root(number)))
        found[other] = one
    numbers = {number: n for n, number in enumerate(sorted({root(number) for number in of_seat}))}
    return [numbers[root(first[worker])] for worker in range(workers)]


def _over(plan: Plan, links: Sequence[tuple[Link, ...]], cuts: Sequence[int]) -> Floats:
    """The delay over each boundary by links of each pipeline: `Plan.boundary_delay_s`; pipelines x boundaries."""
    known: dict[tuple[str, tuple[Link, ...]], list[float]] = {}
    for pipeline, own in zip(plan.pipelines, links, strict=True):
        if (pipeline.template, own) not in known:
            ends = [stage.layers[1] for stage in plan.template_by_name[pipeline.template].stages]
            behind = np.minimum(np.searchsorted(ends, cuts), max(len(own) - 1, 0)).tolist()
            known[pipeline.template, own] = [own[n].delay_s if own else 0.0 for n in behind]
    return np.array([known[pipeline.template, own] for pipeline, own in zip(plan.pipelines, links, strict=True)])


def _sums(
    stages: Sequence[Stage], held: Sequence[tuple[Layers, ...]], sealed: Sequence[Layers]
) -> tuple[Parts, Floats, dict[tuple[Layers, ...], int]]:
    """The parts in which gradients are still summed, how long each sum takes, and which group each worker's layers are.

    Layers are counted without the sealed ones, for whose sums nobody waits: what is on both sides of them stands side
    by side. A stage all of which is sealed stands behind the others, with nothing to sum; where it is not its worker's
    only one, that one does without it.

    Args:
        stages: all of them.
        held: the layers of each live worker's stages.
        sealed: layers whose sums are there.
    """
    reduce_s: dict[Layers, float] = {}
    counted: dict[Layers, Layers] = {}
    behind = max(stage.layers[1] for stage in stages)
    for stage in stages:
        first, stop = (end - sum(min(end, hi) - min(end, lo) for lo, hi in sealed) for end in stage.layers)
        share = (stop - first) / (stage.layers[1] - stage.layers[0])
        if first == stop:
            first, stop = behind + stage.layers[0], behind + stage.layers[1]
        counted[stage.layers] = first, stop
        reduce_s[first, stop] = max(reduce_s.get((first, stop), 0.0), stage.allreduce_s * share)
    ranges = {own: _without_ended(tuple(counted[layers] for layers in own), behind) for own in held}
    parts = parts_of(ranges.values())
    sums_s = np.array(parts.lasts_s([reduce_s[layers] for layers in parts.held]))
    return parts, sums_s, {own: parts.group[merged_ranges(counted_)] for own, counted_ in ranges.items()}


def _without_ended(held: tuple[Layers, ...], behind: int) -> tuple[Layers, ...]:
    """Of a worker's stages those that are not all sealed, if there are such: others stand from `behind` on."""
    return tuple(layers for layers in held if layers[0] < behind) or held
