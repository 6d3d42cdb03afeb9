"""In what forms a model can be trained: micro-batch sizes and recomputation, each with a profile; sharded optimizers.

A profile is of one micro-batch size, with or without recomputation. Sharding the optimizer's state over the pipelines
(ZeRO's first stage: Rajbhandari et al., SC 2020) changes a profile by arithmetic: what is neither parameter nor
gradient is divided, and the step with it. Its reduce-scatter and all-gather send what a ring all-reduce sends, so an
iteration never takes longer for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...schemas.plan import Layers
from ...schemas.profile import Layer, Profile, held_by


@dataclass(frozen=True)
class CostedForm:
    """A profile, and the form of training that it is of.

    Attributes:
        profile: the costs of a micro-batch, at one tensor-parallel degree or several, on the cluster's machines.
        microbatch_size: samples of a micro-batch.
        recomputes: whether blocks keep their input only (activation checkpointing).
    """

    profile: Profile
    microbatch_size: int
    recomputes: bool

    @property
    def recomputed_bytes(self) -> float:
        """What a worker must leave free beside its stashes while a block is computed again, all its GPUs together."""
        return float(self.profile.model.get("recomputed_bytes", 0.0))

    def degrees(self) -> list[int]:
        """The tensor-parallel degrees for which every layer has costs, ascending."""
        known = ({cost.tensor_parallel for cost in layer.costs} for layer in self.profile.layers)
        return sorted(set.intersection(*known))

    def trained(self, degree: int, pipelines: int) -> Profile:
        """The profile as planners are to see it.

        Args:
            degree: tensor-parallel.
            pipelines: over which the optimizer's state is sharded; 1: it is not.

        Returns:
            What is sharded is divided, and a device has the less memory for what recomputation needs.
        """
        layers = self.profile.layers if pipelines == 1 else tuple(_sharded(x, pipelines) for x in self.profile.layers)
        memory_bytes = self.profile.device.memory_bytes
        if memory_bytes is not None:
            memory_bytes = max(0.0, memory_bytes - self.recomputed_bytes / degree)
        return replace(self.profile, layers=layers, device=replace(self.profile.device, memory_bytes=memory_bytes))


class GpuMemory(NamedTuple):
    """What a GPU holds at most, by part, in bytes."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    recomputed: float

    @property
    def total(self) -> float:
        """All of it."""
        return sum(self)


def memory_of(
    form: CostedForm, held: Sequence[Layers], degree: int, pipelines: int, activation_bytes: float
) -> GpuMemory:
    """What each GPU of a worker holds.

    Args:
        form: of training.
        held: ranges of layers that the worker has.
        degree: tensor-parallel.
        pipelines: over which the optimizer's state is sharded; 1: it is not.
        activation_bytes: the most that each of its GPUs holds of them at once.
    """
    layers = form.profile.layers
    parameters, state = held_by(layers, held)
    _, kept = held_by(tuple(replace(one, state_bytes=_gradient_bytes(one)[0], tied_state_bytes=_gradient_bytes(one)[1])
        for one in layers), held)  # fmt: skip
    return GpuMemory(
        parameters / degree,
        kept / degree,
        (state - kept) / degree / pipelines,
        activation_bytes,
        form.recomputed_bytes / degree,
    )


def _gradient_bytes(layer: Layer) -> tuple[float, float | None]:
    """What of a layer's state are gradients, of all and of a tied matrix: a number as long as the parameter's.

    A profile says so where they are kept in other numbers.
    """
    known = getattr(layer, "gradient_bytes", None)
    whole = min(layer.parameter_bytes, layer.state_bytes) if known is None else known
    if layer.tied_bytes is None or layer.tied_state_bytes is None:
        return whole, layer.tied_state_bytes
    share = layer.tied_bytes / layer.parameter_bytes if layer.parameter_bytes else 0.0
    return whole, min(whole * share, layer.tied_state_bytes)


def _sharded(layer: Layer, pipelines: int) -> Layer:
    gradients, tied_gradients = _gradient_bytes(layer)
    tied = layer.tied_state_bytes
    if tied is not None and tied_gradients is not None:
        tied = tied_gradients + (tied - tied_gradients) / pipelines
    return replace(
        layer,
        costs=tuple(replace(cost, optimizer_s=cost.optimizer_s / pipelines) for cost in layer.costs),
        state_bytes=gradients + (layer.state_bytes - gradients) / pipelines,
        tied_state_bytes=tied,
    )
