"""What flows between layers: a tensor, or a tuple, list or dict of tensors (a pytree), and what else layers take.

Layers are applied one after another, as `nn.Sequential` does: each takes all that the one before gives as its first
argument. `None` may stand in a pytree where an optional tensor is missing. Over a link goes one message, whatever the
number of tensors. Gradients are those of a pytree's floating tensors, in their order: a tuple, or just the one where a
tensor flows by itself.

A layer may take more: tensors that belong to a micro-batch and are in the data, such as positions and masks. These go
to all layers whose `forward` names them, and over no link.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

from ...schemas.calls import names_taken
from ...schemas.errors import InvalidInputError
from ...schemas.text import with_article

Tree: TypeAlias = Any  # a tensor, or tuples, lists and dicts of tensors; mypy has no word for what torch takes as one
Gradient: TypeAlias = torch.Tensor | tuple[torch.Tensor, ...]
Named = Mapping[str, torch.Tensor]  # what layers take by name
NOTHING: Named = MappingProxyType({})

T = TypeVar("T")

ALIGNMENT = 16  # in a message every tensor begins at a multiple of it, as numbers of any type must


def check_output(tree: object, layer: nn.Module, where: str) -> None:
    """Raise InvalidInputError where what a layer gives is neither a tensor nor made of tensors.

    Args:
        tree: what it gives.
        layer: the layer.
        where: which it is, such as "layer 3 of the model".
    """
    if isinstance(tree, torch.Tensor):
        return
    found = [leaf for leaf in tree_flatten(tree)[0] if leaf is not None]
    strange = next((leaf for leaf in found if not isinstance(leaf, torch.Tensor)), None)
    if strange is not None or not found:
        held = "no tensor" if strange is None else with_article(type(strange).__name__)
        raise InvalidInputError(
            f"a layer's output {'is' if strange is tree else 'holds'} {held}; it must be a tensor, or a tuple, list or "
            "dict of tensors",
            where=f"{where}, {type(layer).__name__}",
            fix="wrap the layer in a module that returns tensors only; numbers go in as tensors, or by the constructor",
        )


def own_tensors(tree: Tree) -> list[torch.Tensor]:
    """The tensors of a tree that is known to hold nothing else."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    return [leaf for leaf in tree_flatten(tree)[0] if leaf is not None]


def on_tensors(change: Callable[[Any], Any], tree: Tree) -> Tree:
    """The same tree of changed tensors."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    return tree_map(lambda leaf: None if leaf is None else change(leaf), tree)


def floating(tree: Tree) -> list[torch.Tensor]:
    """Those of a tree's tensors that take gradients."""
    return [leaf for leaf in own_tensors(tree) if leaf.is_floating_point()]


def zero_gradient(tree: Tree) -> Gradient:
    """A gradient of a tree, all zeros."""
    zeros = tuple(torch.zeros_like(leaf) for leaf in floating(tree))
    return zeros[0] if isinstance(tree, torch.Tensor) and zeros else zeros


def kind_of(tree: Tree) -> str:
    """Shapes and types, in words."""

    def words(leaf: torch.Tensor) -> str:
        return f"{list(leaf.shape)} of {str(leaf.dtype).removeprefix('torch.')}"

    return words(tree) if isinstance(tree, torch.Tensor) else str(on_tensors(words, tree)).replace("'", "")


def is_alike(tree: Tree, other: Tree) -> bool:
    """Whether two trees are made alike, of tensors of the same shapes and types."""
    if isinstance(tree, torch.Tensor) and isinstance(other, torch.Tensor):
        return (tree.shape, tree.dtype) == (other.shape, other.dtype)
    (leaves, spec), (others, its) = tree_flatten(tree), tree_flatten(other)
    return bool(spec == its) and all(
        (one is None and two is None)
        or (one is not None and two is not None and (one.shape, one.dtype) == (two.shape, two.dtype))
        for one, two in zip(leaves, others, strict=True)
    )


# One message for several tensors


def message_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """What to send: a single tensor as it is, of several the bytes, one after the other."""
    if len(tensors) == 1:
        return tensors[0]
    starts, size = _places(tensors)
    message = torch.empty(size, dtype=torch.uint8, device=tensors[0].device if tensors else "cpu")
    for start, tensor in zip(starts, tensors, strict=True):
        _part(message, start, tensor).copy_(tensor)
    return message


def message_like(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A tensor of the shape and type of the message of such tensors."""
    if len(tensors) == 1:
        return tensors[0]
    return torch.empty(_places(tensors)[1], dtype=torch.uint8, device=tensors[0].device if tensors else "cpu")


def tensors_in(message: torch.Tensor, likes: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a message, in its memory.

    Args:
        message: that came.
        likes: of the shapes and types of what was sent.
    """
    if len(likes) == 1:
        return [message]
    return [_part(message, start, like) for start, like in zip(_places(likes)[0], likes, strict=True)]


def tree_in(message: torch.Tensor, like: Tree) -> Tree:
    """The tree of a message, which is made like another one."""
    if isinstance(like, torch.Tensor):
        return message
    tensors = iter(tensors_in(message, own_tensors(like)))
    return on_tensors(lambda _: next(tensors), like)


def gradient_in(message: torch.Tensor, like: Tree) -> Gradient:
    """The gradient of a message, of a tree that is made like another one."""
    tensors = tuple(tensors_in(message, floating(like)))
    return tensors[0] if isinstance(like, torch.Tensor) and tensors else tensors


def tensors_of_gradient(gradient: Gradient | None) -> tuple[torch.Tensor, ...]:
    """The gradient of each floating tensor; none of what takes none."""
    return gradient if isinstance(gradient, tuple) else () if gradient is None else (gradient,)


def _places(tensors: Sequence[torch.Tensor]) -> tuple[list[int], int]:
    """Where each begins, and the size of all in bytes, which is never 0: not every transport sends nothing."""
    sizes = (-(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT for tensor in tensors)
    *starts, size = accumulate(sizes, initial=0)
    return starts, max(size, 1)


def _part(message: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    stop = start + like.numel() * like.element_size()
    return message[start:stop].view(like.dtype).view(like.shape)


# What layers take by name


class NamedInputs:
    """Which tensors of a micro-batch each layer takes by name.

    A layer takes those that its `forward` has a parameter for, other than the first, and all where it has `**`.

    Args:
        layers: in order.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._taken = [_taken(layer) for layer in layers]

    def check(self, given: Named) -> None:
        """Raise InvalidInputError where none of the layers, which are all of a model, takes one of these names."""
        for name in given:
            if not any(names is None or name in names for names in self._taken):
                raise InvalidInputError(
                    f"no layer's forward takes {name!r}, which the data give for every micro-batch",
                    where="the data",
                    fix="leave it out of them, or name a parameter of a layer's forward so",
                )

    def takes_any_of(self, names: Collection[str]) -> bool:
        """Whether some layer takes one of these, of which there may be none."""
        return bool(names) and any(taken is None or not taken.isdisjoint(names) for taken in self._taken)

    @property
    def may_take(self) -> bool:
        """Whether some layer takes anything beside its input."""
        return any(names is None or names for names in self._taken)

    def of(self, place: int, given: Mapping[str, T]) -> Mapping[str, T]:
        """What the layer at a place, from 0, takes of all that there is."""
        names = self._taken[place]
        return given if names is None else {name: value for name, value in given.items() if name in names}


def _taken(layer: nn.Module) -> frozenset[str] | None:
    """None where a layer takes whatever there is."""
    return names_taken(getattr(layer, "_orig_mod", layer).forward)  # of a compiled layer that of what it was
