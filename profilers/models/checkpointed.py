"""Activation checkpointing: a layer that keeps its input only, and computes the rest again before its backward pass."""

from collections.abc import Container, Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class PromptLinear(nn.Linear):
    """A linear layer whose weight gradient is computed at once: runners put off that of `nn.Linear` only."""


class Checkpointed(nn.Module):
    """A layer whose forward pass is repeated when its backward pass begins, and whose weight gradients come with it.

    The repetition sees the random numbers of the first pass, so dropout is the same. Between F and I only the input is
    held, and nothing from I to W: what weight gradients are made from is many times the input, so to put them off would
    be to hold again what checkpointing saves. I therefore takes an F and a W longer, and W no time.

    Args:
        layer: maps one tensor to one tensor; its linear layers are turned into PromptLinears in place.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for module in layer.modules():
            if type(module) is nn.Linear:
                module.__class__ = PromptLinear
        self.layer = layer
        self.title = title_of(layer)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the layer gives."""
        output: torch.Tensor = checkpoint(self.layer, inputs, use_reentrant=False)
        return output


def with_checkpoints(layers: Sequence[nn.Module], blocks: Container[int]) -> list[nn.Module]:
    """The layers, those at the places `blocks` checkpointed.

    An embedding is left alone, for it keeps token numbers only, and so is a head: the loss keeps its output anyway, and
    computing it again would cost as much as all else that is computed again in a block or several.
    """
    return [Checkpointed(layer) if place in blocks else layer for place, layer in enumerate(layers)]


# What a layer is called in tables.


def title_of(layer: nn.Module) -> str:
    """What the layer says itself, else its class."""
    title = getattr(layer, "title", None)
    return title if isinstance(title, str) else type(layer).__name__
