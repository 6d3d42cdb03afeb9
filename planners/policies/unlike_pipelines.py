"""Pipelines of unlike shapes: what an iteration takes and what a GPU holds, without making the plan.

1F1B in every pipeline, then each layer is summed over all of them, the last ones first, and all step. The times at
which the stages of one shape have done so many micro-batches are remembered, and added up here as docs/semantics.md has
it (makespan). The plan of 400 nodes takes 0.3 s to make; this takes microseconds once the numbers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Generic, Protocol, TypeVar

from ...schemas.plan import Layers, Link, Stage
from ...schemas.profile import Connection, HoldsBytes, held_bytes
from ..oobleck.pace import stage_ends_s, warm_ups_of
from ..scheduling.sums import Parts, parts_of


class TemplateLike(Protocol):
    """A template, of a plan or of a Templates document; what its stages say of all-reduce is not asked for."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In order."""
        ...

    @property
    def links(self) -> tuple[Link, ...]:
        """Between neighbouring stages."""
        ...


Name = TypeVar("Name")  # of a shape
Ends = tuple[float, ...]  # when each stage of a pipeline is done, in s


class UnlikePipelines(Generic[Name]):
    """Shapes, made ready to say what pipelines of them take and hold.

    Args:
        layers: of the model.
        connection: that gradients are summed over.
        shape_of: a shape by its name, which is hashable.
    """

    def __init__(
        self, layers: Sequence[HoldsBytes], connection: Connection, shape_of: Callable[[Name], TemplateLike]
    ) -> None:
        self._layers, self._connection, self._shape_of = layers, connection, shape_of
        self.iteration_time_s = cache(self._iteration_time_s)
        self.activation_bytes = cache(self._activation_bytes)
        self._ends_s = cache(self._stage_ends_s)
        self._summing = cache(self._parts_summed)

    def _iteration_time_s(self, kinds: frozenset[tuple[Name, int]], pipelines: int) -> float:
        """How long an iteration takes, as `rtk simulate` of the plan has it.

        Args:
            kinds: of the pipelines: shape and micro-batches.
            pipelines: how many there are.

        Raises:
            InfeasibleError: a memory limit does not admit a single micro-batch.
        """
        return self.summed_s([(kind[0], self._ends_s(*kind)) for kind in kinds], pipelines)

    def summed_s(
        self, ends: Sequence[tuple[Name, Ends]], pipelines: int, more_s: Callable[[Layers], float] | None = None
    ) -> float:
        """What an iteration takes whose stages are done at some times: gradients are summed, then all step.

        Args:
            ends: of pipelines, each kind once: the shape, and when its stages are done.
            pipelines: how many there are.
            more_s: how much longer the all-reduce of a stage takes, by its layers; None: none does.
        """
        names = frozenset(name for name, _ in ends)
        parts, most_bytes, step_s = self._summing(names)
        ends_s = [0.0] * len(parts.held)
        for name, own in ends:
            for stage, end_s in zip(self._shape_of(name).stages, own, strict=True):
                number = parts.number[stage.layers]
                ends_s[number] = max(ends_s[number], end_s)
        rings_s = [self._connection.ring_s(one, pipelines) for one in most_bytes]
        if more_s:
            rings_s = [ring_s + more_s(layers) for ring_s, layers in zip(rings_s, parts.held, strict=True)]
        lasts_s = parts.lasts_s(rings_s)
        summed_s = (begun_s + last_s for begun_s, last_s in zip(parts.begun_s(lasts_s, ends_s), lasts_s, strict=True))
        return max(summed_s) + step_s

    def _activation_bytes(self, name: Name, microbatches: int) -> tuple[float, ...]:
        """The most that a GPU of each stage holds of activations."""
        stages = self._shape_of(name).stages
        held = zip(warm_ups_of(stages), stages, strict=True)
        return tuple(min(most, microbatches) * stage.activation_bytes for most, stage in held)

    def _stage_ends_s(self, name: Name, microbatches: int) -> Ends:
        shape = self._shape_of(name)
        return stage_ends_s(shape.stages, shape.links, microbatches)

    def _parts_summed(self, names: frozenset[Name]) -> tuple[Parts, list[float], float]:
        """The parts of these shapes, the most bytes that one GPU of each stage sums, and the longest step."""
        stages = [stage for name in names for stage in self._shape_of(name).stages]
        parts = parts_of(stage.layers for stage in stages)
        most_bytes = [0.0] * len(parts.held)
        for stage in stages:
            number = parts.number[stage.layers]
            most_bytes[number] = max(most_bytes[number], summed_bytes(self._layers, stage))
        return parts, most_bytes, max(stage.optimizer_s for stage in stages)


def summed_bytes(layers: Sequence[HoldsBytes], stage: Stage) -> float:
    """What a GPU of a stage sums with others: gradients, as many bytes as parameters."""
    return held_bytes(layers, *stage.layers)[0] / stage.tensor_parallel
