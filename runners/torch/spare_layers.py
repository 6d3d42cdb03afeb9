"""A model's layers without their values, from which another stage is made without making the whole model again."""

import copy
from collections import Counter
from collections.abc import Sequence

import torch
from torch import nn


class SpareLayers:
    """Remembers what layers a model has; takes no memory for what is in them.

    Args:
        layers: all layers of the model; they stay as they are.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        owners = Counter(parameter for layer in layers for parameter in set(layer.parameters()))
        self._layers = [
            _without_values(layer) if all(owners[parameter] == 1 for parameter in layer.parameters()) else None
            for layer in layers
        ]

    def of(self, stage: tuple[int, int], device: torch.device | str) -> list[nn.Module] | None:
        """The layers of a stage with room for their values, which are arbitrary.

        Args:
            stage: layers [first, stop).
            device: where to make room.

        Returns:
            As many as the model has, only those of the stage with room; None where one of these shares a parameter
            with another layer, or keeps something that is not part of its state, and so must be made as at first.
        """
        wanted = self._layers[slice(*stage)]
        if any(layer is None for layer in wanted):
            return None
        found: list[nn.Module] = [nn.Identity() for _ in self._layers]
        found[slice(*stage)] = [copy.deepcopy(layer).to_empty(device=device) for layer in wanted if layer is not None]
        return found


def _without_values(layer: nn.Module) -> nn.Module | None:
    """A copy on the meta device; None where not all that the layer keeps is in its state."""
    tensors = {
        *dict(layer.named_parameters(remove_duplicate=False)),
        *dict(layer.named_buffers(remove_duplicate=False)),
    }
    return copy.deepcopy(layer).to("meta") if tensors == set(layer.state_dict()) else None
