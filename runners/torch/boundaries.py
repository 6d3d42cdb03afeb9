"""What flows between layers: shape and type at every boundary, found without computing and without asking anybody."""

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ...schemas.errors import InvalidInputError
from ...schemas.text import with_article


@dataclass(frozen=True, slots=True)
class Boundary:
    """The tensor that flows over a boundary between two layers: its shape and its type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def like(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this shape and type, with arbitrary values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def zeros(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this shape and type, all zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def boundary_samples(layers: Sequence[nn.Module], example_input: torch.Tensor) -> list[Boundary]:
    """What flows into every layer, and out of the last.

    Runs a copy of one layer after the other on the meta device, which computes shapes only; a layer that does not work
    there runs on zeros, on its own device, or with zeros as its values where it has none. The layers themselves and the
    random generators stay as they are.

    Args:
        layers: all layers of the model; each maps one tensor to one tensor.
        example_input: a micro-batch's input; only its shape and type count.

    Returns:
        One more than there are layers: the i-th flows into layer i, the last out of the last layer.

    Raises:
        InvalidInputError: a layer's output is not one tensor.
    """
    found = [_boundary(example_input)]
    for index, layer in enumerate(layers):
        found.append(_boundary(_output(index, layer, found[-1])))
    return found


def _boundary(tensor: torch.Tensor) -> Boundary:
    return Boundary(tuple(tensor.shape), tensor.dtype)


def _output(index: int, layer: nn.Module, inputs: Boundary) -> torch.Tensor:
    try:
        output = _run(layer, inputs, torch.device("meta"))
    except Exception:  # whatever a layer that needs values raises; one that is broken raises again
        some = next((one for one in itertools.chain(layer.parameters(), layer.buffers()) if not one.is_meta), None)
        output = _run(layer, inputs, torch.device("cpu") if some is None else some.device)
    if not isinstance(output, torch.Tensor):
        raise InvalidInputError(
            f"a layer's output is {with_article(type(output).__name__)}, not one tensor",
            where=f"layer {index} of the model, {type(layer).__name__}",
            fix="wrap the layer in a module that maps one tensor to one tensor",
        )
    return output


def _run(layer: nn.Module, inputs: Boundary, device: torch.device) -> object:
    generators = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=generators):
        layer = copy.deepcopy(layer)
        if device.type != "meta":
            _give_zeros(layer)
        return layer.to(device)(inputs.zeros(device))


def _give_zeros(layer: nn.Module) -> None:
    """Let parameters without values be zeros, which take no memory."""
    for module in layer.modules():
        for name, one in module._parameters.items():
            if one is not None and one.is_meta:
                zeros = torch.zeros((), dtype=one.dtype).expand(one.shape)
                module._parameters[name] = nn.Parameter(zeros, requires_grad=False)
