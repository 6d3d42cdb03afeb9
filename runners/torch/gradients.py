"""The gradients of a stage in one flat buffer a type, so that they are summed over peers in one go."""

from collections.abc import Iterable

import torch
from torch import nn


class FlatGradients:
    """Lets every parameter's `grad` be a view into a flat buffer; the buffer carries one more number, the loss.

    Args:
        parameters: the stage's; those that take no gradient are left alone.
        device: where the loss is kept.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        by_type: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.requires_grad:
                by_type.setdefault(parameter.dtype, []).append(parameter)
        self.buffers = [_attach(held, device) for held in by_type.values()] or [torch.zeros(1, device=device)]

    def clear(self) -> None:
        """Set the gradients and the loss to zero."""
        for buffer in self.buffers:
            buffer.zero_()

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add to the loss that travels with the gradients."""
        self.buffers[0][-1] += loss.to(self.buffers[0].dtype)

    def loss(self) -> float:
        """The loss: this worker's own, or after the all-reduce that of all its peers together."""
        return float(self.buffers[0][-1])


def _attach(parameters: list[nn.Parameter], device: torch.device) -> torch.Tensor:
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters) + 1, dtype=parameters[0].dtype, device=device)
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat
