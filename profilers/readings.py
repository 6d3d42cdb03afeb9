"""Readings of layers' times: which layers are alike and share theirs, medians, and how far readings lie apart."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import nn

from ..schemas.profile import LayerCost, Spread
from .rehearsal import Times
from .spreads import FEWEST_FOR_A_SPREAD, half_width

# Attributes by which a layer knows its own place, as those of transformers do.
OWN_PLACE = frozenset({"layer_idx", "layer_id", "layer_number", "layer_index"})

Likeness = tuple[object, ...]


@dataclass(slots=True)
class Readings:
    """The times of layers over rounds; those of layers that are alike are readings of one thing.

    Like layers do the same arithmetic on the same shapes, and each is measured at its own place, right after its
    neighbour and with all others in memory. So their readings differ by chance only, and one median of them all is
    steadier than one each.

    Attributes:
        likenesses: one a layer; equal ones pool.
    """

    likenesses: Sequence[Likeness]
    _times_s: dict[Likeness, list[Times]] = field(default_factory=dict)

    def add(self, round_: Iterable[Times]) -> None:
        """One round: F, I, W and step of each layer, in s."""
        for likeness, times_s in zip(self.likenesses, round_, strict=True):
            self._times_s.setdefault(likeness, []).append(times_s)

    def costs(self, degree: int = 1) -> list[LayerCost]:
        """Each layer's medians at a tensor-parallel degree, with their spread."""
        found = {likeness: _cost(times_s, degree) for likeness, times_s in self._times_s.items()}
        return [found[likeness] for likeness in self.likenesses]


def likeness_of(layer: nn.Module, takes: tuple[torch.Size, torch.dtype], is_last: bool) -> Likeness:
    """What layers that do the same work have in common.

    Args:
        layer: any module: the classes and settings in it and the shapes of its parameters count, their values do not.
        takes: shape and type of its input.
        is_last: whether the loss follows.
    """
    modules = tuple((name, type(module), _settings(module)) for name, module in layer.named_modules())
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    shapes = tuple((name, tuple(one.shape), one.dtype, one.requires_grad) for name, one in tensors)
    return takes, is_last, modules, shapes


def _settings(module: nn.Module) -> Likeness:
    """The numbers and words among a module's attributes, such as the width of a sliding window."""
    return tuple(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, bool | int | float | str | None) and not name.startswith("_") and name not in OWN_PLACE
    )


def _cost(times_s: Sequence[Times], degree: int) -> LayerCost:
    columns = list(zip(*times_s, strict=True))
    spread = Spread(*(half_width(column) for column in columns)) if len(times_s) >= FEWEST_FOR_A_SPREAD else None
    forward_s, input_s, weight_s, step_s = (median(column) for column in columns)
    return LayerCost(forward_s, input_s, weight_s, step_s, tensor_parallel=degree, spread=spread)
