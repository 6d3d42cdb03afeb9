"""A module cut into layers by the names of modules in it.

The modules that are named become layers of their own; what is computed before the first and after the last of them
become two more. That works where each takes what the one before it gave, and nothing else that depends on the data:
masks, positions and the like are taken from an example, and kept as constants. It is found out by running the module on
two examples of one shape, and proven by comparing what the layers give with what the module gives.

Layers so made serve micro-batches of the examples' shape only.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from ...schemas.errors import InvalidInputError
from .chain import cannot_be_cut, places_of, require_same_order
from .factory import describe
from .model import seeded
from .names import matching
from .skeleton import Reached, Replay, Stop, Stub, Values, skeleton
from .watching import Call, Run, first_tensor, is_same, watch

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


class End(nn.Module):
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


class Chain(nn.Sequential):
    """Modules of which each takes what the one before gave, and nothing else: a module's end as it is most often.

    It does what an End does, without the forward function around it, which in transformers takes milliseconds.

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


def _start(root: nn.Module, run: Run, place: int, example: torch.Tensor) -> list[nn.Module]:
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


def _end(root: nn.Module, run: Run, again: Run, example: torch.Tensor) -> list[nn.Module]:
    """What comes after the last layer; nothing where the module gives what that gives."""
    last = run.layers[-1]
    stop = run.calls.index(last) + 1
    if not run.after and is_same(first_tensor(run.output), first_tensor(last.output)):
        return []
    used = _modules(run.calls[stop:])
    if _is_chain(run, stop):
        return [Chain(_short_names(run.calls[stop:]), _title(used, root))]
    outputs: dict[nn.Module, list[Values]] = {}
    for call, other in zip(run.calls[:stop], again.calls[:stop], strict=True):
        outputs.setdefault(call.module, []).append(_given(call, other, is_last=call is last))
    kept = _besides(run.after, used)
    instead: dict[nn.Module, nn.Module] = {module: module for module in used}
    for module, given in outputs.items():
        instead[module] = Replay(module, given, kept, then=module if module in used else None)
    return [End(skeleton(root, instead, kept), _title(used, root), example)]


def _is_chain(run: Run, stop: int) -> bool:
    """Whether from the last layer on one module after another is called, and nothing else is computed."""
    value = first_tensor(run.calls[stop - 1].output)
    for call in run.calls[stop:]:
        if len(call.leaves) != 1 or not is_same(call.leaves[0], value) or not isinstance(call.output, torch.Tensor):
            return False
        value = call.output
    parameters = {one for module in _modules(run.calls[stop:]) for one in module.parameters()}
    return is_same(first_tensor(run.output), value) and run.after <= parameters


def _short_names(calls: Sequence[Call]) -> dict[str, nn.Module]:
    """The modules by the last part of their names, by which tensor-parallel plans know them."""
    found: dict[str, nn.Module] = {}
    for call in calls:
        short = call.name.rpartition(".")[2]
        found[call.name.replace(".", "_") if short in found else short] = call.module
    return found


def _given(call: Call, other: Call, is_last: bool) -> Values:
    """What a call gave, as far as it does not depend on the data; the last layer's first tensor is left open."""
    leaves, spec = tree_flatten(call.output)
    pairs = zip(leaves, tree_flatten(other.output)[0], strict=True)
    varying = [n for n, pair in enumerate(pairs) if not is_same(*pair)]
    hole = next(n for n, leaf in enumerate(leaves) if leaf is first_tensor(call.output)) if is_last else None
    return Values(leaves, spec, varying, hole)


def _modules(calls: Sequence[Call]) -> list[nn.Module]:
    return list(dict.fromkeys(call.module for call in calls))


def _besides(parameters: set[nn.Parameter], used: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Those of the parameters that none of the modules has: somebody takes them out of other modules."""
    return parameters - {parameter for module in used for parameter in module.parameters()}


def _title(used: Sequence[nn.Module], root: nn.Module) -> str:
    """The classes of the modules with parameters, each once."""
    classes = [type(module).__name__ for module in used if any(True for _ in module.parameters())]
    return "+".join(dict.fromkeys(classes)) or type(root).__name__


def _prove(
    layers: list[nn.Module], inputs: torch.Tensor, expected: torch.Tensor, last: Call, blocks: range, where: str
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
