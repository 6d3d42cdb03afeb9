"""Pipelines of unlike shapes: what an iteration takes and what a GPU holds, without making the plan.

1F1B in every pipeline, then each layer is summed over all of them, and all step. The times at which the stages of one
shape have done so many micro-batches are remembered, and added up here as docs/semantics.md has it (makespan). The plan
of 400 nodes takes 0.3 s to make; this takes microseconds once the numbers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Generic, Protocol, TypeVar

from ...schemas.plan import Layers, Link, Stage
from ...schemas.profile import Connection, HoldsBytes, held_bytes
from ..oobleck.pace import stage_ends_s, warm_ups_of


class Shape(Protocol):
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

    def __init__(self, layers: Sequence[HoldsBytes], connection: Connection, shape_of: Callable[[Name], Shape]) -> None:
        self._layers, self._connection, self._shape_of = layers, connection, shape_of
        self.iteration_time_s = cache(self._iteration_time_s)
        self.activation_bytes = cache(self._activation_bytes)
        self._ends_s = cache(self._stage_ends_s)
        self._parts = cache(self._common_parts)

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
            more_s: how much longer the sum of some layers takes; None: none does.
        """
        names = frozenset(name for name, _ in ends)
        reduced_s = max(
            max(self._end_s(*each, part) for each in ends)
            + self._connection.ring_s(most_bytes, pipelines)
            + (more_s(part) if more_s else 0.0)
            for part, most_bytes in self._parts(names)
        )
        return reduced_s + max(stage.optimizer_s for name in names for stage in self._shape_of(name).stages)

    def _activation_bytes(self, name: Name, microbatches: int) -> tuple[float, ...]:
        """The most that a GPU of each stage holds of activations."""
        stages = self._shape_of(name).stages
        held = zip(warm_ups_of(stages), stages, strict=True)
        return tuple(min(most, microbatches) * stage.activation_bytes for most, stage in held)

    def _end_s(self, name: Name, ends_s: Ends, part: Layers) -> float:
        """When the stages of these layers are done in a pipeline of that shape."""
        pairs = zip(self._shape_of(name).stages, ends_s, strict=True)
        return max(end_s for stage, end_s in pairs if part[0] <= stage.layers[0] < part[1])

    def _stage_ends_s(self, name: Name, microbatches: int) -> Ends:
        shape = self._shape_of(name)
        return stage_ends_s(shape.stages, shape.links, microbatches)

    def _common_parts(self, names: frozenset[Name]) -> list[tuple[Layers, float]]:
        """The components of pipelines of these shapes: their layers, and the most bytes that one GPU sums."""
        shapes = [self._shape_of(name).stages for name in names]
        found = []
        for first, stop in _between([[stage.layers[1] for stage in stages] for stages in shapes]):
            inside = (stage for stages in shapes for stage in stages if first <= stage.layers[0] < stop)
            found.append(((first, stop), max(summed_bytes(self._layers, stage) for stage in inside)))
        return found


def summed_bytes(layers: Sequence[HoldsBytes], stage: Stage) -> float:
    """What a GPU of a stage sums with others: gradients, as many bytes as parameters."""
    return held_bytes(layers, *stage.layers)[0] / stage.tensor_parallel


def _between(ends: Sequence[Sequence[int]]) -> Iterable[Layers]:
    """The layers between one place where all pipelines cut them and the next."""
    first = 0
    for stop in sorted(set.intersection(*map(set, ends))):
        yield first, stop
        first = stop
