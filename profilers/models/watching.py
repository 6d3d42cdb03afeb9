"""What a module's forward pass does with the modules that are to be layers, and around them, on one example."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module by a forward function above the layers; calls within a called module do not count.

    Attributes:
        module: that was called.
        name: of the module within the whole.
        leaves: of its (args, kwargs), flat.
        spec: how (args, kwargs) are made of them.
        is_layer: whether it is one of the modules that are to be layers.
        follows: for each leaf, whether it is what the layer before gave, when the call began.
        output: what it gave.
    """

    module: nn.Module
    name: str
    leaves: list[Any]
    spec: TreeSpec
    is_layer: bool
    follows: list[bool]
    output: Any = None


@dataclass(slots=True, eq=False)
class Run:
    """A forward pass.

    Attributes:
        calls: in their order.
        output: of the whole module.
        before: parameters from which the first layer's input is computed.
        after: parameters from which the output is computed once the last layer is through.
    """

    calls: list[Call] = field(default_factory=list)
    output: Any = None
    before: set[nn.Parameter] = field(default_factory=set)
    after: set[nn.Parameter] = field(default_factory=set)

    @property
    def layers(self) -> list[Call]:
        """The calls of layers."""
        return [call for call in self.calls if call.is_layer]


def watch(root: nn.Module, layers: Mapping[str, nn.Module], inputs: torch.Tensor) -> Run:
    """Run a module on an example and note what it calls; the layers themselves keep nothing for a backward pass.

    Args:
        root: the whole module.
        layers: the modules that are to be layers, by their names in it.
        inputs: what the module takes.
    """
    watcher = _Watcher(root, layers)
    with watcher.attached(), torch.enable_grad():
        watcher.run.output = root(inputs)
    watcher.run.after = parameters_behind(tensors_of(watcher.run.output))
    return watcher.run


def first_tensor(value: Any) -> torch.Tensor:
    """A tensor, or the first element of a tuple or of a transformers output.

    Raises:
        TypeError: it is something else.
    """
    found = value
    if isinstance(value, tuple | list) or hasattr(value, "to_tuple"):
        found = value[0] if len(value) else None
    if not isinstance(found, torch.Tensor):
        raise TypeError(f"it gives a {type(found).__name__}, and must give one tensor")
    return found


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same, tensors by what is in them; of other objects only those that are one."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = (one.shape, one.dtype) == (other.shape, other.dtype)
        return alike and torch.equal(one, other)
    plain = bool | int | float | str | torch.dtype | torch.device | torch.Size
    return one is other or (type(one) is type(other) and isinstance(one, plain) and bool(one == other))


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in a tree of values."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def parameters_behind(tensors: Sequence[torch.Tensor]) -> set[nn.Parameter]:
    """The parameters that gradients of these tensors would reach."""
    found: set[nn.Parameter] = {tensor for tensor in tensors if isinstance(tensor, nn.Parameter)}
    left = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(left)
    while left:
        node = left.pop()
        if isinstance(variable := getattr(node, "variable", None), nn.Parameter):
            found.add(variable)
        new = {source for source, _ in node.next_functions if source is not None} - seen
        seen |= new
        left.extend(new)
    return found


class _Watcher:
    """Hooks on all modules, and what they have seen."""

    def __init__(self, root: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        self.run = Run()
        self._root = root
        self._layers = set(layers.values())
        self._names = {module: name for name, module in root.named_modules()}
        self._above = {
            module
            for name, module in root.named_modules()
            if not name or any(layer.startswith(f"{name}.") for layer in layers)
        }
        self._inside: list[nn.Module] = []
        self._given: torch.Tensor | None = None

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Watch while the context is open."""
        handles = [module.register_forward_pre_hook(self._enter, with_kwargs=True) for module in self._names]
        handles += [module.register_forward_hook(self._leave) for module in self._names]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _is_direct(self, module: nn.Module) -> bool:
        return module not in self._above and all(one in self._above for one in self._inside)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_direct(module):
            is_layer = module in self._layers
            leaves, spec = tree_flatten((args, kwargs))
            follows = [self._given is not None and is_same(leaf, self._given) for leaf in leaves]
            if is_layer and self._given is None:
                self.run.before = parameters_behind(tensors_of(leaves))
            self.run.calls.append(Call(module, self._names[module], leaves, spec, is_layer, follows))
            torch.set_grad_enabled(not is_layer)
        self._inside.append(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._inside.pop()
        if self._is_direct(module):
            self.run.calls[-1].output = output
            if module in self._layers:
                self._given = first_tensor(output)
                torch.set_grad_enabled(True)
