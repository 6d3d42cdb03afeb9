"""Pipelines whose nodes compute some of their neighbours' work as well, as Bamboo has it (bamboo.py).

The nodes of a pipeline are a ring. Each keeps the state of the next one's layers beside its own, and repeats its
forwards; the last one does so for the first. When a node is gone, the one before it has both nodes' layers, forward and
backward, and repeats nobody's forwards any more; its GPUs share both nodes' stages, neighbours together. So two
neighbours in the ring must not be gone at once.

In a plan a repeated forward lengthens the stage's own: whether it fits into a bubble is for the schedule to say. A
stage of a plan holds consecutive layers, so the first node's, once it is gone, are joined to the second's there, though
it is the last node that has them: the time is that of two nodes' layers in one, all the same. Activations of repeated
forwards are in the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from ...schemas.errors import InfeasibleError
from ...schemas.plan import Link, Stage
from ..shape import cut_stages
from .job import TrainingJob
from .memory import activation_limit_bytes, gpu_bytes

Gone = tuple[int, ...]  # nodes of a pipeline, by their index, ascending


@dataclass(frozen=True)
class Redundant:
    """The stages and links of a pipeline without some of its nodes, and the state that a GPU of each stage holds."""

    stages: tuple[Stage, ...]
    links: tuple[Link, ...]
    state_bytes: tuple[float, ...]


class Redundancy:
    """One job's pipelines with redundancy; degree of tensor parallelism, memory and network are its own.

    Args:
        job: what it trains.
        nodes: of a pipeline, two at least.

    Raises:
        InfeasibleError: there are fewer layers than stages, or each stage of the job has a limit of its own.
        InvalidInputError: a layer has no cost at the job's tensor-parallel degree.
    """

    def __init__(self, job: TrainingJob, nodes: int) -> None:
        self.job, self.nodes = job, nodes
        unlimited = replace(job.profile, device=replace(job.profile.device, memory_bytes=None))
        self._most_bytes = activation_limit_bytes(job, "Bamboo")
        self._alone = cut_stages(unlimited, nodes * job.workers_per_node, 1, job.shape.tensor_parallel)
        self._known: dict[Gone, Redundant] = {}

    def require_memory(self) -> None:
        """Raise InfeasibleError if a GPU cannot hold two stages and a micro-batch of both, as after a failure."""
        needed_bytes, memory_bytes = self._of_two(self._least_bytes), self.job.profile.device.memory_bytes
        if memory_bytes is not None and needed_bytes > memory_bytes:
            raise InfeasibleError(
                f"with redundancy a GPU holds its own stage and its neighbour's, {needed_bytes:.4g} bytes, "
                f"and it has {memory_bytes:.4g}",
                where="the profile, /device/memory_bytes",
                fix=f"leave Bamboo out: without redundancy a GPU holds {max(self._least_bytes):.4g} bytes",
            )
        needed_bytes = self._of_two([stage.activation_bytes for stage in self._alone.stages])
        if self._most_bytes is not None and needed_bytes > self._most_bytes:
            raise InfeasibleError(
                f"with redundancy a GPU holds activations of its own stage and its neighbour's, {needed_bytes:.4g} "
                f"bytes of a micro-batch, and the limit is {self._most_bytes:.4g}",
                where="--memory-limit",
                fix="leave Bamboo out, or raise the limit",
            )

    def covers(self, gone: Gone) -> bool:
        """Whether a pipeline goes on without these nodes: no two are neighbours, and what others take over fits."""
        if any((node + 1) % self.nodes in gone for node in gone):
            return False
        return all(
            stage.memory_limit_bytes is None or stage.memory_limit_bytes >= stage.activation_bytes
            for stage in self.without(gone).stages
        )

    def without(self, gone: Gone) -> Redundant:
        """A pipeline without nodes of which no two are neighbours."""
        if gone not in self._known:
            rows = [row for node, covered in self._covering(gone) for row in self._node(node, covered, gone)]
            stages = tuple(stage for stage, _ in rows)
            ends = {stage.layers[1]: link for stage, link in zip(self._alone.stages, self._alone.links, strict=False)}
            links = tuple(ends[stage.layers[1]] for stage in stages[:-1])
            self._known[gone] = Redundant(stages, links, tuple(held_bytes for _, held_bytes in rows))
        return self._known[gone]

    @cached_property
    def whole_bytes(self) -> tuple[float, ...]:
        """Parameters and state that a GPU of each stage holds, its neighbour's not counted."""
        return tuple(gpu_bytes(self.job.profile.layers, stage) for stage in self._alone.stages)

    @cached_property
    def _least_bytes(self) -> tuple[float, ...]:
        """What a GPU of each stage holds with one micro-batch, its neighbour's not counted."""
        pairs = zip(self.whole_bytes, self._alone.stages, strict=True)
        return tuple(state_bytes + stage.activation_bytes for state_bytes, stage in pairs)

    def _of_two(self, values: Sequence[float]) -> float:
        """The most of a GPU and the same one of the next node in the ring."""
        width = self.job.workers_per_node
        return max(one + other for one, other in zip(values, (*values[width:], *values[:width]), strict=True))

    def _covering(self, gone: Gone) -> Iterator[tuple[int, range]]:
        """The nodes that are left, each with those whose layers it has."""
        left = [node for node in range(self.nodes) if node not in gone]
        ends = [0, *left[1:], self.nodes]
        return zip(left, (range(first, stop) for first, stop in pairwise(ends)), strict=True)

    def _node(self, node: int, covered: range, gone: Gone) -> Iterator[tuple[Stage, float]]:
        """The stages of a node's workers, and the state that a GPU of each holds."""
        width, each = self.job.workers_per_node, len(covered)
        follows = (node + 1) % self.nodes not in gone
        for first in range(covered.start * width, covered.stop * width, each):
            stages = self._alone.stages[first : first + each]
            state_bytes = sum(self.whole_bytes[first : first + each])
            repeated_s = 0.0
            if each == 1:
                replica = (first + width) % len(self._alone.stages)
                state_bytes += self.whole_bytes[replica]
                repeated_s = self._alone.stages[replica].forward_s if follows else 0.0
            yield _joined(stages, repeated_s, self._limit_bytes(state_bytes)), state_bytes

    def _limit_bytes(self, state_bytes: float) -> float | None:
        """What a GPU has for activations."""
        memory_bytes = self.job.profile.device.memory_bytes
        if memory_bytes is None:
            return self._most_bytes
        room_bytes = max(0.0, memory_bytes - state_bytes)
        return room_bytes if self._most_bytes is None else min(room_bytes, self._most_bytes)


def _joined(stages: Sequence[Stage], repeated_s: float, limit_bytes: float | None) -> Stage:
    """Neighbouring stages as one, which repeats forwards of another as well."""
    return replace(
        stages[0],
        layers=(stages[0].layers[0], stages[-1].layers[1]),
        forward_s=sum(stage.forward_s for stage in stages) + repeated_s,
        backward_input_s=sum(stage.backward_input_s for stage in stages),
        backward_weight_s=sum(stage.backward_weight_s for stage in stages),
        optimizer_s=sum(stage.optimizer_s for stage in stages),
        activation_bytes=sum(stage.activation_bytes for stage in stages),
        weight_stash_bytes=sum(stage.weight_stash_bytes for stage in stages),
        memory_limit_bytes=limit_bytes,
    )
