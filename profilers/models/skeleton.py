"""A copy of a module that holds only a part of it: elsewhere stand stubs, which know what was given there."""

import copy
from collections.abc import Collection, Container, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten
from torch.utils.checkpoint import checkpoint

_OWN = tuple(vars(nn.Module()))


class Values(nn.Module):
    """Arguments or outputs that are the same for all data; their tensors move with the module, and are not its state.

    Args:
        leaves: the values, flat.
        spec: how they were put together.
        varying: places of tensors that depend on the data: of these the shape is kept, and zeros stand in for them.
        hole: the place that is left to `filled`; None: there is none.
    """

    def __init__(self, leaves: Sequence[Any], spec: TreeSpec, varying: Collection[int] = (), hole: int | None = None):
        super().__init__()

        def put_together(leaves: Sequence[Any]) -> Any:
            return tree_unflatten(leaves, spec)

        # A function is not copied with the module: a spec never changes, and torch warns when one is copied.
        self._put_together = put_together
        self._hole = hole
        self._shapes: dict[int, torch.Size] = {}
        self._leaves: list[Any] = []
        for place, leaf in enumerate(leaves):
            is_kept = isinstance(leaf, torch.Tensor) and place != hole
            self._leaves.append(None if is_kept or place == hole else leaf)
            if is_kept:
                value = torch.zeros((), dtype=leaf.dtype, device=leaf.device) if place in varying else leaf.detach()
                self.register_buffer(f"value_{place}", value, persistent=False)
                self._shapes[place] = leaf.shape

    def filled(self, value: torch.Tensor | None = None) -> Any:
        """The values as they were put together, with `value` in the hole."""
        leaves = list(self._leaves)
        for place, shape in self._shapes.items():
            leaves[place] = self.get_buffer(f"value_{place}").expand(shape)
        if self._hole is not None:
            leaves[self._hole] = value
        return self._put_together(leaves)


class Stub(nn.Module):
    """Stands where a module was: has its plain attributes, and of its own parameters those that are kept.

    Instead of others there are single zeros, for who asks on which device the module is.
    """

    def __init__(self, stands_for: nn.Module, kept: Collection[nn.Parameter] = ()) -> None:
        super().__init__()
        plain = {name: value for name, value in vars(stands_for).items() if name not in (*_OWN, "forward")}
        vars(self).update(plain)
        for name, parameter in stands_for.named_parameters(recurse=False):
            if parameter in kept:
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, parameter.detach().new_zeros(()), persistent=False)


class Reached(Exception):  # noqa: N818  # it is no error, but the way out of a forward function
    """The first layer was called; `value` is what it would have taken."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__("the first layer was called")
        self.value = value


class Stop(Stub):
    """Stands for the first layer: ends the forward pass with what stands at a place among its arguments."""

    def __init__(self, stands_for: nn.Module, place: int) -> None:
        super().__init__(stands_for)
        self._place = place

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Leave."""
        raise Reached(tree_leaves((args, kwargs))[self._place])


class Replay(Stub):
    """Gives what was given, call by call.

    Args:
        stands_for: the module.
        outputs: what its calls gave; the one with a hole gives what is `entering`.
        kept: parameters that somebody takes from it.
        then: what to call once all these were given; None: it is not called any more.
    """

    def __init__(
        self,
        stands_for: nn.Module,
        outputs: Sequence[Values],
        kept: Collection[nn.Parameter],
        then: nn.Module | None,
    ) -> None:
        super().__init__(stands_for, () if then else kept)
        self.outputs = nn.ModuleList(outputs)
        self.then = then
        self.rewind(None)

    def rewind(self, entering: torch.Tensor | None) -> None:
        """Begin a forward pass, or end one with None."""
        self.calls = 0
        self.entering = entering

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The next output."""
        if self.then is not None and self.calls == len(self.outputs):
            return self.then(*args, **kwargs)
        values = self.outputs[self.calls]
        assert isinstance(values, Values)
        self.calls += 1
        return values.filled(self.entering)


def skeleton(module: nn.Module, instead: dict[nn.Module, nn.Module], kept: Collection[nn.Parameter]) -> nn.Module:
    """A copy of a module and all in it, with zeros for parameters other than `kept`; the buffers are shared.

    Args:
        module: what to copy.
        instead: what stands for which module; the copies are added to it.
        kept: parameters that the copy holds as well; those that take no gradient it holds as if they were buffers.
    """
    if module in instead:
        return instead[module]
    new = object.__new__(type(module))
    vars(new).update(vars(module))
    # Dictionaries of hooks and the like are a module's own.
    vars(new).update({name: copy.copy(vars(module)[name]) for name in _OWN if name in vars(module)})
    instead[module] = new
    for name, parameter in list(new.named_parameters(recurse=False)):
        if parameter.requires_grad and parameter not in kept:
            del new._parameters[name]
            # One zero that seems to be many takes no memory.
            zeros = parameter.detach().new_zeros(()).expand(parameter.shape)
            new.register_buffer(name, zeros, persistent=False)
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    new._modules.update({name: skeleton(child, instead, kept) for name, child in children})
    return new


# Activation checkpointing: a layer that keeps its input only, and computes the rest again before its backward pass.


class PromptLinear(nn.Linear):
    """A linear layer whose weight gradient is computed at once: runners do not put it off."""

    title = "Linear"  # what it was, and is to its user

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As `nn.Linear`; runners put off the gradients of layers that leave its forward alone."""
        return super().forward(inputs)


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
