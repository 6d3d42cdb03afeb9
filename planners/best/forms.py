"""In what forms a model can be trained: micro-batch sizes, recomputation, each with a profile; what a GPU then holds.

A profile is of one micro-batch size, with or without recomputation. Sharding the optimizer's state over the pipelines
(ZeRO's first stage: Rajbhandari et al., SC 2020) divides what is neither parameter nor gradient, and the step with it.
Its reduce-scatter and all-gather send what a ring all-reduce sends, so an iteration never takes longer for it.
`rtk run` gives each part two holders, and gathers parameters after an all-reduce: stages are cut with what that takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...schemas.errors import NoRoomError
from ...schemas.network import seated_in
from ...schemas.plan import Template
from ...schemas.profile import Device, Layer, Profile, SideBySide, activations_held
from ..gpu_memory import FRAGMENTS, FRAMEWORK_BYTES, GpuMemory, gpu_memory


@dataclass(frozen=True)
class CostedForm:
    """A profile, and the form of training that it is of.

    Attributes:
        profile: the costs of a micro-batch, at one tensor-parallel degree or several, on the cluster's machines.
        source: the profile as it was read or computed, for the plan to name.
        microbatch_size: samples of a micro-batch.
        recomputes: whether blocks keep their input only (activation checkpointing).
    """

    profile: Profile
    source: Profile
    microbatch_size: int
    recomputes: bool

    def trained(self, shards: float, side_by_side: SideBySide = "stages") -> Profile:
        """The profile as planners are to see it: limits are given to them with the shape.

        Args:
            shards: by what a step is shorter, such as the pipelines over which the state is sharded; 1: it is not.
            side_by_side: whose GPUs sit in a node.
        """
        layers = self.profile.layers if shards == 1 else tuple(_sharded(layer, shards) for layer in self.profile.layers)
        network = seated_in(self.profile.network, side_by_side)
        return replace(self.profile, layers=layers, device=Device(self.profile.device.name), network=network)

    def whole(self, degree: int) -> GpuMemory:
        """What a GPU holds of all layers, with one micro-batch under way and an optimizer that is not sharded."""
        layers = self.profile.layers
        return gpu_memory(self.profile, [(0, len(layers))], activations_held(layers, degree), [0], degree=degree)

    def of_column(
        self, template: Template, column: Sequence[int], shards: float, activation_bytes: float, sent: Sequence[int]
    ) -> GpuMemory:
        """What a GPU of a worker holds.

        Args:
            template: of its pipeline.
            column: its virtual stages.
            shards: by what it holds less than the whole of the optimizer's state.
            activation_bytes: the most that it holds of them.
            sent: of each stage, how many micro-batches are between F and the end of I at most.
        """
        held = [template.stages[stage].layers for stage in column]
        degree = template.stages[column[0]].tensor_parallel
        return gpu_memory(self.profile, held, activation_bytes, sent, degree=degree, shards=shards)

    def with_one(self, template: Template, column: Sequence[int], shards: float) -> GpuMemory:
        """The same with a single micro-batch under way."""
        activation_bytes = sum(template.stages[stage].activation_bytes for stage in column)
        return self.of_column(template, column, shards, activation_bytes, [1] * len(column))

    def limits_bytes(self, template: Template, shards: float) -> list[float] | None:
        """What a GPU of each column has for activations.

        What a stage has sent on stays as long as its activations do; so it takes its share of what is left beside
        parameters, state and what is computed again.

        Returns:
            None where nobody knows what GPUs have.

        Raises:
            NoRoomError: a column does not fit with a single micro-batch.
        """
        memory_bytes = self.profile.device.memory_bytes
        if memory_bytes is None:
            return None
        usable_bytes, limits = (memory_bytes - FRAMEWORK_BYTES) / (1 + FRAGMENTS), []
        for column in template.columns:
            one = self.with_one(template, column, shards)
            if one.total_bytes > memory_bytes:
                raise NoRoomError("a worker does not fit", where="--cluster")
            none = self.of_column(template, column, shards, 0.0, [0] * len(column))
            moving_bytes = one.activations_bytes + one.buffers_bytes - none.buffers_bytes
            fixed_bytes = handed_out_bytes(none)
            share = one.activations_bytes / moving_bytes if moving_bytes else 1.0
            limits.append(max((usable_bytes - fixed_bytes) * share, one.activations_bytes))
        return limits


def handed_out_bytes(memory: GpuMemory) -> float:
    """What torch has handed out of a GPU's memory."""
    return memory.total_bytes - memory.framework_bytes


def _sharded(layer: Layer, shards: float) -> Layer:
    costs = tuple(replace(cost, optimizer_s=cost.optimizer_s / shards) for cost in layer.costs)
    return replace(layer, costs=costs)
