"""Tied weights: parameters that several layers share, as GPT-2's head has the matrix of its embedding.

Where a plan puts such layers on different workers, each has a copy. Every gradient is summed over all copies, so
that equal ones stay equal: they begin with the same values and the same optimizer takes the same steps. Where a worker
has several of the layers, in whichever stages, they share one parameter there, as in the whole model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from .held_layers import HeldLayers

# Copies are compared by whole numbers below this, of which thousands can be added up exactly in float64.
FINGERPRINTS = 2**40


@dataclass(frozen=True, slots=True)
class Tie:
    """A parameter that stands in several places of a model, mostly of several layers.

    Attributes:
        places: (layer of the model, name in that layer) of each, in the order of the layers.
        is_trained: whether it takes a gradient.
    """

    places: tuple[tuple[int, str], ...]
    is_trained: bool = True

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that share it, ascending."""
        return tuple(dict.fromkeys(layer for layer, _ in self.places))

    @property
    def can_be_cut(self) -> bool:
        """Whether it is trained and stages can have copies of it."""
        return self.is_trained and len(self.layers) > 1


def ties_of(layers: Sequence[nn.Module]) -> tuple[Tie, ...]:
    """The ties of a model, in the order of their first layers.

    Args:
        layers: all of the model, before any of them is copied on its own.
    """
    places: dict[nn.Parameter, list[tuple[int, str]]] = {}
    for number, layer in enumerate(layers):
        for name, parameter in layer.named_parameters(remove_duplicate=False):
            places.setdefault(parameter, []).append((number, name))
    return tuple(Tie(tuple(found), one.requires_grad) for one, found in places.items() if len(found) > 1)


def trained_together(ties: Sequence[Tie]) -> tuple[tuple[int, ...], ...]:
    """The sets of layers that share something which is trained, each once: what `lower` wants to know of the ties."""
    return tuple(dict.fromkeys(tie.layers for tie in ties if tie.can_be_cut))


def tie(layers: Sequence[nn.Module], held: HeldLayers, ties: Sequence[Tie]) -> None:
    """Have held layers share their parameters again, which were made, moved or copied one by one.

    Args:
        layers: those held.
        held: which of the model these are.
        ties: of the model; the value in the first held layer is that of all.
    """
    for one in ties:
        places = _held_places(one, held)
        for number, name in places[1:]:
            path, _, last = name.rpartition(".")
            setattr(layers[held.place(number)].get_submodule(path), last, _parameter(layers, held, places[0]))


def trained_ties(
    layers: Sequence[nn.Module], held: HeldLayers, ties: Sequence[Tie]
) -> dict[tuple[int, ...], list[nn.Parameter]]:
    """What held layers share, with each other or with layers elsewhere, and is trained: by the layers that share it.

    Args:
        layers: those held, tied.
        held: which of the model these are.
        ties: of the model.
    """
    found: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for one in ties:
        places = _held_places(one, held)
        if places and one.can_be_cut:
            found.setdefault(one.layers, []).append(_parameter(layers, held, places[0]))
    return found


def fingerprint(parameters: Sequence[torch.Tensor]) -> int:
    """A whole number, below FINGERPRINTS, of the bits of some parameters; equal ones have the same."""
    # Of 8 bytes each half: a sum of them whole would have most of what matters in a float64 above FINGERPRINTS.
    numbers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
    flat = (one.detach().contiguous().view(-1) for one in parameters)
    sums = [one.view(numbers[one.element_size()]).sum(dtype=torch.int64) for one in flat]
    return sum(int(one) for one in sums) % FINGERPRINTS


def _held_places(one: Tie, held: HeldLayers) -> list[tuple[int, str]]:
    return [place for place in one.places if place[0] in held]


def _parameter(layers: Sequence[nn.Module], held: HeldLayers, place: tuple[int, str]) -> nn.Parameter:
    return layers[held.place(place[0])].get_parameter(place[1])
