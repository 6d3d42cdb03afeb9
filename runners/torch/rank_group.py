"""The ranks that share the layers of one worker: what autograd knows of the sums between them.

Two functions are enough (Shoeybi et al., 2019, "Megatron-LM", section 3, where they are called f and g): one whose
forward pass does nothing and whose backward pass sums, before matrices that are cut by columns, and one the other way
round, behind matrices that are cut by rows. So all sums of a backward pass are in I: what W queues are products of what
a rank has itself, and nobody waits for anybody in it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ...schemas.slices import TensorCut


class RankGroup:
    """The ranks of one worker (schemas/protocols.py, `TensorGroup`).

    Args:
        degree: how many.
        rank: this one, from 0.
        reduce: sums a tensor over them in place; may be set once the ranks are connected.
    """

    def __init__(self, degree: int, rank: int, reduce: Callable[[torch.Tensor], None] = lambda tensor: None) -> None:
        self.degree, self.rank, self.reduce = degree, rank, reduce

    def enter(self, tensor: torch.Tensor) -> torch.Tensor:
        """What all have, whose gradient is summed."""
        if not (torch.is_grad_enabled() and tensor.requires_grad):
            return tensor
        entered: torch.Tensor = _Enter.apply(tensor, self)  # type: ignore[no-untyped-call]
        return entered

    def leave(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' parts."""
        whole: torch.Tensor = _Leave.apply(part, self)  # type: ignore[no-untyped-call]
        return whole

    def gather(self, part: torch.Tensor, size: int) -> torch.Tensor:
        """The last dimension whole: a sum of what has zeros for what others have, as one that adds nothing else."""
        whole: torch.Tensor = _Gather.apply(part, self, size)  # type: ignore[no-untyped-call]
        return whole

    def total(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks; the tensor stays, which may be an expanded one or somebody's."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.reduce(total)
        return total


class _Enter(torch.autograd.Function):
    """F: the identity; I: the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, group: RankGroup) -> torch.Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.group.total(gradient), None


class _Leave(torch.autograd.Function):
    """F: the sum of the ranks' parts; I: the identity."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: RankGroup) -> torch.Tensor:
        return group.total(part)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _Gather(torch.autograd.Function):
    """F: all ranks' parts side by side; I: the own part of the gradient, which all ranks have whole."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, group: RankGroup, size: int) -> torch.Tensor:
        ((first, stop),) = TensorCut(part.dim() - 1, size).spans(group.degree, group.rank)
        ctx.span = first, stop
        whole = part.new_zeros(*part.shape[:-1], size)
        whole[..., first:stop] = part
        return group.total(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        first, stop = ctx.span
        return gradient[..., first:stop], None, None
