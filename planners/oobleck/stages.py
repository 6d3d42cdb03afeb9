"""Every stage that a pipeline may have: consecutive layers on so many GPUs of a node, with its times and bytes.

At tensor-parallel degree d the times are the profile's at that degree, and each GPU holds one d-th of the parameters,
state and activations of its layers. All sums run over the layers in order, so that equal layers make equal stages to
the last bit, wherever they stand, and a stage's time is one number for whoever asks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Stage
from ...schemas.profile import Layer, LayerCost, Profile, added_bytes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stages:
    """Tables over (degree index i, first layer u, end v); what does not depend on the degree has no i.

    Attributes:
        degrees: tensor-parallel degrees up to M that all layers have, ascending.
        forward_s, backward_input_s, backward_weight_s, optimizer_s: sums over the layers.
        static_bytes, activation_bytes, weight_stash_bytes: of all GPUs of the stage together.
        memory_bytes: of a GPU; infinite where there is no limit.
    """

    degrees: tuple[int, ...]
    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    optimizer_s: Floats
    static_bytes: Floats
    activation_bytes: Floats
    weight_stash_bytes: Floats
    memory_bytes: float

    @property
    def layers(self) -> int:
        """L."""
        return len(self.static_bytes)

    def times_s(self) -> Floats:
        """t = F + I + W of each stage; infinite where u >= v."""
        some_layers = np.tri(self.layers, self.layers + 1, dtype=bool)
        return np.where(some_layers, inf, self.forward_s + self.backward_input_s + self.backward_weight_s)

    def time_s(self, stage: tuple[int, int, int]) -> float:
        """t of the stage with that index of its degree, first layer and end, as in the table."""
        return float(self.forward_s[stage] + self.backward_input_s[stage] + self.backward_weight_s[stage])

    def room(self) -> Floats:
        """Micro-batches whose activations fit each stage's GPUs at once, whole numbers; below 1 where it cannot be."""
        degrees = np.array(self.degrees)[:, None, None]
        limit, activation = self.memory_bytes - self.static_bytes / degrees, self.activation_bytes / degrees
        with np.errstate(all="ignore"):
            room = np.floor(limit / activation)
            room += (room + 1) * activation <= limit
            room -= room * activation > limit
        room[np.isnan(room) | (activation == 0)] = inf
        return np.where(limit >= 0, room, 0.0)

    def stage(self, degree: int, first: int, stop: int) -> Stage:
        """A stage as plans have it, seen from one of its GPUs.

        Args:
            degree: its index.
            first, stop: its layers.
        """
        gpus, at = self.degrees[degree], (degree, first, stop)
        limit = self.memory_bytes - float(self.static_bytes[first, stop]) / gpus
        return Stage(
            layers=(first, stop),
            tensor_parallel=gpus,
            forward_s=float(self.forward_s[at]),
            backward_input_s=float(self.backward_input_s[at]),
            backward_weight_s=float(self.backward_weight_s[at]),
            optimizer_s=float(self.optimizer_s[at]),
            activation_bytes=float(self.activation_bytes[first, stop]) / gpus,
            weight_stash_bytes=float(self.weight_stash_bytes[first, stop]) / gpus,
            memory_limit_bytes=None if limit == inf else limit,
        )


def stages_of(profile: Profile, gpus_per_node: int, memory_limit_bytes: float | None = None) -> Stages:
    """Tabulate the stages that a profile allows on nodes of so many GPUs.

    Args:
        profile: the model's costs.
        gpus_per_node: M; larger degrees are left out.
        memory_limit_bytes: of a GPU, parameters and state included, instead of the device's.

    Raises:
        InvalidInputError: with the degrees that all layers have, a node's GPUs cannot all be used.
    """
    layers = profile.layers
    degrees = [degree for degree in _common_degrees(layers) if degree <= gpus_per_node]
    if fill_of(degrees, gpus_per_node) == inf:
        raise InvalidInputError(
            f"stages of {' or '.join(map(str, degrees))} GPUs, the tensor-parallel degrees that all layers have, do "
            f"not fill a node of {gpus_per_node}"
            if degrees
            else f"there is no tensor-parallel degree up to {gpus_per_node}, the GPUs of a node, that all layers have",
            where="the profile, /layers",
            fix=missing_degree(profile, gpus_per_node, gpus_per_node),
        )
    costs = [[_cost(layer, degree) for layer in layers] for degree in degrees]
    memory_bytes = profile.device.memory_bytes if memory_limit_bytes is None else memory_limit_bytes
    return Stages(
        degrees=tuple(degrees),
        forward_s=_sums([[cost.forward_s for cost in row] for row in costs]),
        backward_input_s=_sums([[cost.backward_input_s for cost in row] for row in costs]),
        backward_weight_s=_sums([[cost.backward_weight_s for cost in row] for row in costs]),
        optimizer_s=_sums([[cost.optimizer_s for cost in row] for row in costs]),
        static_bytes=_static_bytes(layers),
        activation_bytes=_sums([layer.activation_bytes for layer in layers]),
        weight_stash_bytes=_sums([layer.weight_stash_bytes for layer in layers]),
        memory_bytes=inf if memory_bytes is None else memory_bytes,
    )


def fill_of(degrees: Iterable[int], gpus_per_node: int) -> float:
    """The fewest stages that use up a node of M GPUs; infinite where none do."""
    degrees = tuple(degrees)
    fewest = [0.0]
    for used in range(1, gpus_per_node + 1):
        fewest.append(1 + min((fewest[used - degree] for degree in degrees if degree <= used), default=inf))
    return fewest[gpus_per_node]


def missing_degree(profile: Profile, gpus_per_node: int, most: int) -> str:
    """What to profile so that at most `most` stages fill a node: the degree that the fewest layers lack."""
    layers, common = profile.layers, _common_degrees(profile.layers)
    useful = (
        d for d in range(1, gpus_per_node + 1) if d not in common and fill_of([*common, d], gpus_per_node) <= most
    )
    lacking = {d: [i for i, layer in enumerate(layers) if d not in _degrees(layer)] for d in useful}
    degree = min(lacking, key=lambda d: (len(lacking[d]), d))
    first, others = lacking[degree][0], len(lacking[degree]) - 1
    lack = f"and {others} more lack" if others else "lacks"
    return f"profile tensor_parallel {degree} for every layer: layer {first} {lack} it"


def _common_degrees(layers: Sequence[Layer]) -> list[int]:
    return sorted(set.intersection(*(_degrees(layer) for layer in layers)))


def _degrees(layer: Layer) -> set[int]:
    return {cost.tensor_parallel for cost in layer.costs}


def _cost(layer: Layer, degree: int) -> LayerCost:
    return next(cost for cost in layer.costs if cost.tensor_parallel == degree)


def _static_bytes(layers: Sequence[Layer]) -> Floats:
    """Parameters and state of layers u to v - 1 at [u, v], a matrix that two of them share once; zero where u >= v."""
    count = len(layers)
    sums = np.zeros((count, count + 1))
    for first in range(count):
        sums[first, first + 1 :] = np.add.accumulate([sum(added_bytes(layer, first)) for layer in layers[first:]])
    return sums


def _sums(values: Any) -> Floats:
    """Sums of values u to v - 1 at [..., u, v], each added up from u on; zero where u >= v."""
    row = np.array(values, dtype=np.float64)
    count = row.shape[-1]
    sums = np.zeros((*row.shape[:-1], count, count + 1))
    for first in range(count):
        sums[..., first, first + 1 :] = np.add.accumulate(row[..., first:], axis=-1)
    return sums
