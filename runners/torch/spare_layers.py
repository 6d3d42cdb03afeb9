"""A model's layers without their values, from which another stage is made without making the whole model again."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ...schemas.plan import Layers
from ...schemas.resumption import layers_in


class SpareLayers:
    """Remembers what layers a model has; takes no memory for what is in them.

    Args:
        layers: all layers of the model; they stay as they are.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers = [_without_values(layer) for layer in layers]

    def of(self, held: Sequence[Layers], device: torch.device | str) -> list[nn.Module] | None:
        """Layers with room for their values, which are arbitrary.

        Args:
            held: ranges [first, stop).
            device: where to make room.

        Returns:
            As many as the model has, only those held with room, each with its own, whatever layers shared (ties.py
            ties them again); None where one of these keeps something that is not part of its state, and so must be
            made as at first.
        """
        found: list[nn.Module] = [nn.Identity() for _ in self._layers]
        for number in sorted(layers_in(held)):
            layer = self._layers[number]
            if layer is None:
                return None
            found[number] = copy.deepcopy(layer).to_empty(device=device)
        return found


def _without_values(layer: nn.Module) -> nn.Module | None:
    """A copy on the meta device; None where not all that the layer keeps is in its state."""
    tensors = {
        *dict(layer.named_parameters(remove_duplicate=False)),
        *dict(layer.named_buffers(remove_duplicate=False)),
    }
    return copy.deepcopy(layer).to("meta") if tensors == set(layer.state_dict()) else None


class LayersToFill:
    """Layers whose parameters have no values, of which stages are made that have some.

    Args:
        layers: all layers of the model, their parameters on the meta device; they stay as they are.
        fill: gives the layers [first, stop) of a copy their values.
    """

    def __init__(self, layers: Sequence[nn.Module], fill: Callable[[Sequence[nn.Module], Layers], None]) -> None:
        self._layers, self._fill = list(layers), fill

    def of(self, held: Sequence[Layers], *, filled: bool) -> list[nn.Module]:
        """All layers anew, those in some ranges with their values, or with room for values that are still to come."""
        layers = copy.deepcopy(self._layers)
        if filled:
            for own in held:
                self._fill(layers, own)
            return layers
        room: dict[nn.Parameter, nn.Parameter] = {}
        for number in sorted(layers_in(held)):
            for one in layers[number].parameters():
                room[one] = nn.Parameter(torch.zeros_like(one, device="cpu"), requires_grad=one.requires_grad)
        for module in (module for layer in layers for module in layer.modules()):
            for name, parameter in module._parameters.items():
                if parameter in room:
                    module._parameters[name] = room[parameter]
        return layers
