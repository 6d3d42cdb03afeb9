"""Which layers share a matrix, as an embedding and a head do whose weights are tied."""

from collections.abc import Sequence

from torch import nn


def tied(layers: Sequence[nn.Module]) -> dict[int, tuple[int, int]]:
    """The layers with parameters that an earlier one has too: place -> (place of the earlier one, bytes they share).

    Where a layer shares with several earlier ones, the first of them counts, with all that is shared with any of them.
    """
    owner: dict[nn.Parameter, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for place, layer in enumerate(layers):
        parameters = list(layer.parameters())
        shared = [parameter for parameter in parameters if parameter in owner]
        if shared:
            first = min(owner[parameter] for parameter in shared)
            found[place] = (first, sum(parameter.nbytes for parameter in shared))
        for parameter in parameters:
            owner.setdefault(parameter, place)
    return found
