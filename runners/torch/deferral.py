"""Linear layers' weight gradients can be put off: that splits a backward pass into I and W.

Almost all weights of a transformer sit in linear layers, and the gradient of a linear layer's weight is one matrix
product that nothing else waits for. So I runs the ordinary autograd graph while every linear layer queues that product
instead of computing it, and W runs the queue. Other modules' parameter gradients stay in I. Compared with two passes
through the graph this costs no second traversal and keeps nothing alive but the operands of the queued products.
Deferred gradients reach `parameter.grad` without autograd's knowledge: hooks on parameters do not fire for them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, slots=True, eq=False)
class DeferredGradient:
    """One queued product: the operands from which a linear layer's weight and bias gradients follow.

    Args:
        module: the layer, whose parameters' `grad` receives the result.
        inputs: the layer's input, of shape (n, in_features).
        gradient: the gradient of its output, of shape (n, out_features).
    """

    module: nn.Linear
    inputs: torch.Tensor | None
    gradient: torch.Tensor

    def accumulate(self) -> None:
        """Add the gradients to those that are there; an existing `grad` tensor is kept and written in place."""
        with torch.no_grad():  # or the additions to `grad` build a graph that outlives the iteration
            if self.inputs is not None:
                weight = self.module.weight
                if weight.grad is not None and weight.grad.dtype == self.inputs.dtype:
                    weight.grad.addmm_(self.gradient.t(), self.inputs)
                else:
                    _add(weight, self.gradient.t().mm(self.inputs))
            if self.module.bias is not None and self.module.bias.requires_grad:
                _add(self.module.bias, self.gradient.sum(0))


def _add(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a parameter's gradient, which may be of a larger type."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.grad_dtype or gradient.dtype)
    else:
        parameter.grad.add_(gradient)


class GradientStore:
    """Where the linear layers of one stage queue their weight gradients while an I runs.

    Attributes:
        queue: the queue while the store collects, else None.
        is_in_use: whether the store will collect at all; where not, its layers run at the speed of an `nn.Linear`.
    """

    def __init__(self) -> None:
        self.queue: list[DeferredGradient] | None = None
        self.is_in_use = True

    @contextmanager
    def collecting(self) -> Iterator[list[DeferredGradient]]:
        """Put weight gradients off while the context is open; yields the queue they go to."""
        self.queue = []
        try:
            yield self.queue
        finally:
            self.queue = None


class DeferredLinear(nn.Linear):
    """An `nn.Linear` that queues its weight gradient in `store` while the store collects."""

    title = "Linear"  # what it was, and is to its user
    store: GradientStore

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), as `nn.Linear` does."""
        # Computed weights (weight_norm, pruning) put other operations between the product and the leaf.
        is_leaf = self.weight.is_leaf and (self.bias is None or self.bias.is_leaf)
        if not (self.store.is_in_use and is_leaf):
            return super().forward(inputs)
        device = inputs.device.type
        if torch.is_autocast_enabled(device) and inputs.is_floating_point() and inputs.dtype != torch.float64:
            inputs = inputs.to(torch.get_autocast_dtype(device))  # here: what is saved for W is what it computes with
        output: torch.Tensor = _Linear.apply(inputs, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return output


def defer_linears(layers: Iterable[nn.Module], store: GradientStore) -> None:
    """Turn the linear layers among modules and their children into DeferredLinears, in place.

    Of subclasses of `nn.Linear` those are turned that leave its `forward` alone, as torchtitan does: others may compute
    something else. Parameters, their names and the state dictionary stay as they are. A layer that belongs
    to another store moves to this one.

    Args:
        layers: the modules to search.
        store: where the layers found are to queue their weight gradients.
    """
    for layer in layers:
        for module in layer.modules():
            if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
                module.__class__ = _deferred(type(module))  # type: ignore[arg-type]
            if isinstance(module, DeferredLinear):
                module.store = store


@cache
def _deferred(kind: type[nn.Linear]) -> type[DeferredLinear]:
    """What a linear layer of some class becomes."""
    return (
        DeferredLinear if kind is nn.Linear else type(kind.__name__, (DeferredLinear, kind), {"title": kind.__name__})
    )


class _Linear(torch.autograd.Function):
    """x W^T + b, whose backward may leave the gradients of W and b to the module's store."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, module: DeferredLinear
    ) -> torch.Tensor:
        needs_inputs, needs_weight, _, _ = ctx.needs_input_grad
        ctx.module = module
        ctx.save_for_backward(inputs if needs_weight else None, weight if needs_inputs else None)
        return F.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        """The gradients of input, W and b; those of W and b are queued, and None here, while the store collects."""
        inputs, weight = ctx.saved_tensors
        _, needs_weight, needs_bias, _ = ctx.needs_input_grad
        # Under autocast the weight was converted on the way; it is again here, for a copy would be kept until now.
        input_gradient = None if weight is None else gradient.matmul(weight.to(gradient.dtype))
        if not (needs_weight or needs_bias):
            return input_gradient, None, None, None
        rows = gradient.reshape(-1, gradient.shape[-1])
        input_rows = None if inputs is None else inputs.reshape(-1, inputs.shape[-1])
        if ctx.module.store.queue is not None:
            ctx.module.store.queue.append(DeferredGradient(ctx.module, input_rows, rows))
            return input_gradient, None, None, None
        weight_gradient = None if input_rows is None else rows.t().mm(input_rows).to(ctx.module.weight.dtype)
        bias_gradient = rows.sum(0).to(ctx.module.bias.dtype) if needs_bias else None
        return input_gradient, weight_gradient, bias_gradient, None
