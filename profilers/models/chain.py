"""Whether modules are a chain: each takes what the one before it gave, and all else that it takes is constant."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import MappingKey, SequenceKey, tree_flatten_with_path, tree_unflatten

from ...schemas.errors import InvalidInputError
from .watching import Call, Run, is_same

FIX = "cut where each module takes the output of the one before it, and nothing else that is learned or depends on data"


def require_same_order(one: Run, other: Run, named: Mapping[str, nn.Module], where: str) -> None:
    """Raise InvalidInputError unless each named module is called once, nothing else between, and for all data alike.

    Args:
        one: a forward pass.
        other: with other data of the same shape.
        named: the modules that are to be layers, by name.
        where: the model's name.
    """
    for name, module in named.items():
        count = sum(call.module is module for call in one.layers)
        if count != 1:
            often = f"called {count} times" if count else "not called, or within another module"
            raise cannot_be_cut(f"{name} is {often}", where, "name modules that are called once each")
    called = [[(call.module, call.spec) for call in run.calls] for run in (one, other)]
    if called[0] != called[1]:
        raise cannot_be_cut("what it calls depends on the data", where, "cut where the same is called for all data")
    first, last = one.layers[0], one.layers[-1]
    inner = slice(one.calls.index(first), one.calls.index(last))
    for call, again in zip(one.calls[inner], other.calls[inner], strict=True):
        if not call.is_layer and not is_same(_first(call.output), _first(again.output)):
            raise cannot_be_cut(f"{call.name} is called between {first.name} and {last.name}", where)


def places_of(one: Run, other: Run, where: str) -> list[int]:
    """For each layer, which of its flat arguments is what the one before gave.

    Args:
        one: a forward pass.
        other: with other data of the same shape.
        where: the model's name.

    Raises:
        InvalidInputError: a layer takes no such argument, or another one that depends on the data, or is learned.
    """
    places: list[int] = []
    before: Call | None = None
    for call, again in zip(one.layers, other.layers, strict=True):
        varying = [n for n, pair in enumerate(zip(call.leaves, again.leaves, strict=True)) if not is_same(*pair)]
        tensors = [n for n in varying if isinstance(call.leaves[n], torch.Tensor)]
        follow = tensors if before is None else [n for n in tensors if call.follows[n] and again.follows[n]]
        if not follow:
            given = "what depends on the data" if before is None else f"what {before.name} gave"
            raise cannot_be_cut(f"{call.name} does not take {given}", where)
        places.append(follow[0])
        _require_constants(call, set(range(len(call.leaves))) - {follow[0]}, varying, one, where)
        before = call
    return places


def cannot_be_cut(what: str, where: str, fix: str = FIX) -> InvalidInputError:
    """The error for a model that is no chain."""
    return InvalidInputError(f"the model cannot be cut: {what}", where=f"{where}, --cut", fix=fix)


def _require_constants(call: Call, places: Collection[int], varying: Collection[int], run: Run, where: str) -> None:
    for n in sorted(places):
        if n in varying:
            raise cannot_be_cut(f"{call.name} takes {_beside(call, n, run)} as well", where)
        leaf = call.leaves[n]
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            told = f"{_argument(call, n)}, which is computed from parameters outside of it"
            raise cannot_be_cut(f"{call.name} takes {told}", where)


def _beside(call: Call, place: int, run: Run) -> str:
    """A second argument that depends on the data, and where it comes from if that is known."""
    earlier = run.calls[: run.calls.index(call)]
    source = next((one.name for one in earlier if is_same(_first(one.output), call.leaves[place])), None)
    return f"{_argument(call, place)}, which {f'is what {source} gave' if source else 'depends on the data'},"


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) and value else value


def _argument(call: Call, place: int) -> str:
    """The name of the parameter behind one of the flat arguments."""
    path, _ = tree_flatten_with_path(tree_unflatten(call.leaves, call.spec))[0][place]
    side, key = path[0], path[1]
    if isinstance(key, MappingKey):
        return str(key.key)
    names = list(inspect.signature(call.module.forward).parameters)
    return next(iter(names[key.idx :]), f"argument {key.idx}") if isinstance(key, SequenceKey) else f"{side}{key}"
