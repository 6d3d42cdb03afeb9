"""A module cut into layers by the names of modules in it.

The modules that are named become layers of their own; what is computed before the first and after the last of them
become two more. That works where each takes what the one before it gave, and nothing else that depends on the data:
masks, positions and the like are taken from an example, and kept as constants. It is found out by running the module on
two examples of one shape, and proven by comparing what the layers give with what the module gives.

Layers so made serve micro-batches of the examples' shape only.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import MappingKey, SequenceKey, TreeSpec, tree_flatten, tree_flatten_with_path, tree_unflatten

from ...schemas.errors import InvalidInputError
from ...schemas.text import with_article
from .model import describe, matching, seeded
from .skeleton import Reached, Replay, Stop, Stub, Values, skeleton

# What a module's forward pass does with the modules that are to be layers, and around them, on one example.


@dataclass(slots=True, eq=False)
class ModuleCall:
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
class ForwardPass:
    """A forward pass.

    Attributes:
        calls: in their order.
        output: of the whole module.
        before: parameters from which the first layer's input is computed.
        after: parameters from which the output is computed once the last layer is through.
    """

    calls: list[ModuleCall] = field(default_factory=list)
    output: Any = None
    before: set[nn.Parameter] = field(default_factory=set)
    after: set[nn.Parameter] = field(default_factory=set)

    @property
    def layers(self) -> list[ModuleCall]:
        """The calls of layers."""
        return [call for call in self.calls if call.is_layer]


def watch(root: nn.Module, layers: Mapping[str, nn.Module], inputs: torch.Tensor) -> ForwardPass:
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
        raise TypeError(f"it gives {with_article(type(found).__name__)}, and must give one tensor")
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
        self.run = ForwardPass()
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
            self.run.calls.append(ModuleCall(module, self._names[module], leaves, spec, is_layer, follows))
            torch.set_grad_enabled(not is_layer)
        self._inside.append(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._inside.pop()
        if self._is_direct(module):
            self.run.calls[-1].output = output
            if module in self._layers:
                self._given = first_tensor(output)
                torch.set_grad_enabled(True)


# How far the layers' output may be from the module's, in units of rounding of the largest value.
TOLERANCE = 8


class Cut(nn.Module):
    """A module that takes more than one tensor, with all but one of its arguments held.

    Args:
        module: what is called.
        arguments: its (args, kwargs), with a hole.
    """

    def __init__(self, module: nn.Module, arguments: Values) -> None:
        super().__init__()
        self.module = module
        self.arguments = arguments
        self.title = type(module).__name__

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the module gives, or the first part of it."""
        args, kwargs = self.arguments.filled(inputs)
        return first_tensor(self.module(*args, **kwargs))


class Start(nn.Module):
    """What a module computes before the first layer.

    Args:
        root: the module, with a Stop for the first layer.
        title: what it consists of.
    """

    def __init__(self, root: nn.Module, title: str) -> None:
        super().__init__()
        self.root = root
        self.title = title

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the first layer takes."""
        try:
            self.root(inputs)
        except Reached as reached:
            return reached.value
        raise RuntimeError("the first layer was not called")


class ModelHead(nn.Module):
    """What a module computes after the last layer.

    Args:
        root: the module, with Replays for the layers and all that is called before.
        title: what it consists of.
        example: what the module takes, of any value.
    """

    example: torch.Tensor

    def __init__(self, root: nn.Module, title: str, example: torch.Tensor) -> None:
        super().__init__()
        self.root = root
        self.title = title
        self._replays = tuple(module for module in root.modules() if isinstance(module, Replay))
        self.register_buffer("example", example, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The module's output, from that of the last layer."""
        for replay in self._replays:
            replay.rewind(inputs)
        try:
            return first_tensor(self.root(self.example))
        finally:
            for replay in self._replays:
                replay.rewind(None)


class SequentialHead(nn.Sequential):
    """Modules of which each takes what the one before gave, and nothing else: a module's end as it is most often.

    It does what a ModelHead does, without the forward function around it, which in transformers takes milliseconds.

    Args:
        modules: by name.
        title: what it consists of.
    """

    def __init__(self, modules: dict[str, nn.Module], title: str) -> None:
        super().__init__(OrderedDict(modules))
        self.title = title


def cut_module(
    root: nn.Module, pattern: str, inputs_of: Callable[[int], torch.Tensor], where: str
) -> tuple[list[nn.Module], range]:
    """Cut a module into layers.

    Args:
        root: the module; it is used up, for its parts go into the layers.
        pattern: names of modules, such as `model.layers.*`.
        inputs_of: what the module takes, by a seed.
        where: the model's name, for errors.

    Returns:
        The layers, each of which maps one tensor to one tensor, and the places of those that were named.

    Raises:
        InvalidInputError: no module is called so, or the module cannot be cut there; says where.
    """
    named = matching(root, pattern, where)
    config: Any = getattr(root, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # of transformers: keys and values would be kept from layer to layer
    examples = [inputs_of(seed) for seed in (0, 1)]
    try:
        with _evaluated(root), seeded(0):
            one, other = (watch(root, named, example) for example in examples)
        expected = first_tensor(other.output).detach()
    except Exception as error:
        raise InvalidInputError(f"the model does not work on an example: {describe(error)}", where=where) from error
    require_same_order(one, other, named, where)
    places = places_of(one, other, where)
    blocks: list[nn.Module] = [
        Cut(call.module, Values(call.leaves, call.spec, hole=place))
        for call, place in zip(one.layers, places, strict=True)
    ]
    start = _start(root, one, places[0], examples[0])
    end = _end(root, one, other, examples[0])
    layers = [*start, *blocks, *end]
    blocks_at = range(len(start), len(start) + len(blocks))
    _prove(layers, examples[1], expected, other.layers[-1], blocks_at, where)
    return layers, blocks_at


def _start(root: nn.Module, run: ForwardPass, place: int, example: torch.Tensor) -> list[nn.Module]:
    """What comes before the first layer; nothing where that takes what the module takes."""
    first = run.layers[0]
    used = _modules(run.calls[: run.calls.index(first)])
    if not run.before and is_same(first.leaves[place], example):
        return []
    kept = _besides(run.before, used)
    instead: dict[nn.Module, nn.Module] = {module: module for module in used}
    instead[first.module] = Stop(first.module, place)
    for call in run.calls:
        instead.setdefault(call.module, Stub(call.module, kept))
    return [Start(skeleton(root, instead, kept), _title(used, root))]


def _end(root: nn.Module, run: ForwardPass, again: ForwardPass, example: torch.Tensor) -> list[nn.Module]:
    """What comes after the last layer; nothing where the module gives what that gives."""
    last = run.layers[-1]
    stop = run.calls.index(last) + 1
    if not run.after and is_same(first_tensor(run.output), first_tensor(last.output)):
        return []
    used = _modules(run.calls[stop:])
    if _is_chain(run, stop):
        # The modules by the last part of their names, by which tensor-parallel plans know them.
        found: dict[str, nn.Module] = {}
        for call in run.calls[stop:]:
            short = call.name.rpartition(".")[2]
            found[call.name.replace(".", "_") if short in found else short] = call.module
        return [SequentialHead(found, _title(used, root))]
    outputs: dict[nn.Module, list[Values]] = {}
    for call, other in zip(run.calls[:stop], again.calls[:stop], strict=True):
        outputs.setdefault(call.module, []).append(_given(call, other, is_last=call is last))
    kept = _besides(run.after, used)
    instead: dict[nn.Module, nn.Module] = {module: module for module in used}
    for module, given in outputs.items():
        instead[module] = Replay(module, given, kept, then=module if module in used else None)
    return [ModelHead(skeleton(root, instead, kept), _title(used, root), example)]


def _is_chain(run: ForwardPass, stop: int) -> bool:
    """Whether from the last layer on one module after another is called, and nothing else is computed."""
    value = first_tensor(run.calls[stop - 1].output)
    for call in run.calls[stop:]:
        if len(call.leaves) != 1 or not is_same(call.leaves[0], value) or not isinstance(call.output, torch.Tensor):
            return False
        value = call.output
    parameters = {one for module in _modules(run.calls[stop:]) for one in module.parameters()}
    return is_same(first_tensor(run.output), value) and run.after <= parameters


def _given(call: ModuleCall, other: ModuleCall, is_last: bool) -> Values:
    """What a call gave, as far as it does not depend on the data; the last layer's first tensor is left open."""
    leaves, spec = tree_flatten(call.output)
    pairs = zip(leaves, tree_flatten(other.output)[0], strict=True)
    varying = [n for n, pair in enumerate(pairs) if not is_same(*pair)]
    hole = next(n for n, leaf in enumerate(leaves) if leaf is first_tensor(call.output)) if is_last else None
    return Values(leaves, spec, varying, hole)


def _modules(calls: Sequence[ModuleCall]) -> list[nn.Module]:
    return list(dict.fromkeys(call.module for call in calls))


def _besides(parameters: set[nn.Parameter], used: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Those of the parameters that none of the modules has: somebody takes them out of other modules."""
    return parameters - {parameter for module in used for parameter in module.parameters()}


def _title(used: Sequence[nn.Module], root: nn.Module) -> str:
    """The classes of the modules with parameters, each once."""
    classes = [type(module).__name__ for module in used if any(True for _ in module.parameters())]
    return "+".join(dict.fromkeys(classes)) or type(root).__name__


def _prove(
    layers: list[nn.Module], inputs: torch.Tensor, expected: torch.Tensor, last: ModuleCall, blocks: range, where: str
) -> None:
    """Raise InvalidInputError unless the layers give what the module gave."""
    value, differs_by = inputs, ""
    with _evaluated(*layers), torch.no_grad(), seeded(0):
        for place, layer in enumerate(layers):
            try:
                value = layer(value)
            except Exception as error:
                raise cannot_be_cut(f"layer {place} does not work alone: {describe(error)}", where) from error
            if place == blocks[-1] and not _is_close(value, first_tensor(last.output)):
                differs_by = last.name
    if differs_by:
        raise cannot_be_cut(f"up to {differs_by} the layers do not give what the model gives", where)
    if not _is_close(value, expected):
        raise cannot_be_cut(f"what comes after {last.name} takes more than its output", where)


def _is_close(value: torch.Tensor, expected: torch.Tensor) -> bool:
    if (value.shape, value.dtype) != (expected.shape, expected.dtype):
        return False
    if not value.is_floating_point():
        return torch.equal(value, expected)
    allowed = TOLERANCE * torch.finfo(value.dtype).eps * float(expected.abs().nan_to_num().max())
    return torch.allclose(value, expected, rtol=0.0, atol=allowed, equal_nan=True)


@contextmanager
def _evaluated(*modules: nn.Module) -> Iterator[None]:
    """Without dropout and the like, for it would differ from call to call."""
    flags = {module: module.training for root in modules for module in root.modules()}
    for module in flags:
        module.training = False
    try:
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag


# Whether modules are a chain: each takes what the one before it gave, and all else that it takes is constant.


FIX = "cut where each module takes the output of the one before it, and nothing else that is learned or depends on data"


def require_same_order(one: ForwardPass, other: ForwardPass, named: Mapping[str, nn.Module], where: str) -> None:
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


def places_of(one: ForwardPass, other: ForwardPass, where: str) -> list[int]:
    """For each layer, which of its flat arguments is what the one before gave.

    Args:
        one: a forward pass.
        other: with other data of the same shape.
        where: the model's name.

    Raises:
        InvalidInputError: a layer takes no such argument, or another one that depends on the data, or is learned.
    """
    places: list[int] = []
    before: ModuleCall | None = None
    for call, again in zip(one.layers, other.layers, strict=True):
        varying = [n for n, pair in enumerate(zip(call.leaves, again.leaves, strict=True)) if not is_same(*pair)]
        tensors = [n for n in varying if isinstance(call.leaves[n], torch.Tensor)]
        follow = tensors if before is None else [n for n in tensors if call.follows[n] and again.follows[n]]
        if not follow:
            given = "what depends on the data" if before is None else f"what {before.name} gave"
            raise cannot_be_cut(f"{call.name} does not take {given}", where)
        places.append(follow[0])
        for n in sorted(set(range(len(call.leaves))) - {follow[0]}):
            if n in varying:
                earlier = one.calls[: one.calls.index(call)]
                source = next((run.name for run in earlier if is_same(_first(run.output), call.leaves[n])), None)
                told = f"which {f'is what {source} gave' if source else 'depends on the data'}"
                raise cannot_be_cut(f"{call.name} takes {_argument(call, n)}, {told}, as well", where)
            leaf = call.leaves[n]
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                told = f"{_argument(call, n)}, which is computed from parameters outside of it"
                raise cannot_be_cut(f"{call.name} takes {told}", where)
        before = call
    return places


def cannot_be_cut(what: str, where: str, fix: str = FIX) -> InvalidInputError:
    """The error for a model that is no chain."""
    return InvalidInputError(f"the model cannot be cut: {what}", where=f"{where}, --cut", fix=fix)


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) and value else value


def _argument(call: ModuleCall, place: int) -> str:
    """The name of the parameter behind one of the flat arguments."""
    path, _ = tree_flatten_with_path(tree_unflatten(call.leaves, call.spec))[0][place]
    side, key = path[0], path[1]
    if isinstance(key, MappingKey):
        return str(key.key)
    names = list(inspect.signature(call.module.forward).parameters)
    return next(iter(names[key.idx :]), f"argument {key.idx}") if isinstance(key, SequenceKey) else f"{side}{key}"
