"""What flows between layers: shape and type at every boundary, found without computing and without asking anybody."""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from ...schemas.errors import InvalidInputError
from .precision import Precision, autocasting, parameter_type
from .trees import NOTHING, Named, NamedInputs, Tree, check_output, on_tensors


@dataclass(frozen=True, slots=True)
class Boundary:
    """A tensor that flows over a boundary between two layers: its shape and its type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Boundary":
        """A tensor's."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def taken_in(self, dtype: torch.dtype | None) -> "Boundary":
        """The same where a model takes floating inputs in a type; None: in theirs."""
        return self if dtype is None or not self.dtype.is_floating_point else Boundary(self.shape, dtype)

    def like(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this shape and type, with arbitrary values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def zeros(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this shape and type, all zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def boundary_samples(
    layers: Sequence[nn.Module], example_input: Tree, named: Named = NOTHING, precision: Precision = "fp32"
) -> list[Tree]:
    """What flows into every layer, and out of the last.

    Runs a copy of one layer after the other on the meta device, which computes shapes only (or, as there is no autocast
    there, on torch's fake tensors, which say that they are on a CPU); a layer that does not work there runs on zeros,
    on its own device, or with zeros as its values where it has none. The layers themselves and the random generators
    stay as they are.

    Args:
        layers: all layers of the model.
        example_input: a micro-batch's input; only shapes and types count.
        named: what its layers take by name; here, too.
        precision: of the layers, which have its types (precision.py).

    Returns:
        One more than there are layers: the i-th flows into layer i, the last out of the last layer. Each is a tree as
        what flows, with a Boundary for every tensor.

    Raises:
        InvalidInputError: a layer's output holds something else than tensors, or no layer takes a name.
    """
    takers = NamedInputs(layers)
    takers.check(named)
    found = [on_tensors(lambda one: Boundary.of(one).taken_in(parameter_type(precision)), example_input)]
    also = {name: Boundary.of(value) for name, value in named.items()}
    for index, layer in enumerate(layers):
        output = _output(layer, found[-1], takers.of(index, also), precision)
        check_output(output, layer, f"layer {index} of the model")
        found.append(on_tensors(Boundary.of, output))
    return found


def like(tree: Tree, device: torch.device | str = "cpu") -> Tree:
    """Tensors with arbitrary values, one for every Boundary of a tree."""
    return on_tensors(lambda one: one.like(device), tree)


def zeros(tree: Tree, device: torch.device | str = "cpu") -> Tree:
    """Zeros, a tensor for every Boundary of a tree."""
    return on_tensors(lambda one: one.zeros(device), tree)


def written(tree: Tree) -> str:
    """A tree of tensors' shapes and types, as JSON.

    Raises:
        InvalidInputError: there is a kind of container in it that cannot be written.
    """
    leaves, spec = tree_flatten(tree)
    types = [None if leaf is None else [list(leaf.shape), str(leaf.dtype).removeprefix("torch.")] for leaf in leaves]
    try:
        return json.dumps([treespec_dumps(spec), types])
    except (NotImplementedError, TypeError) as error:
        raise InvalidInputError(
            f"what a layer gives cannot be described to the next stage: {error}",
            where="the last layer of a stage",
            fix="return a plain tuple, list or dict of tensors",
        ) from None


def read(text: str) -> Tree:
    """A tree of Boundaries of what was written."""
    spec, types = json.loads(text)
    leaves = (None if one is None else Boundary(tuple(one[0]), getattr(torch, one[1])) for one in types)
    return tree_unflatten(leaves, treespec_loads(spec))


def _output(layer: nn.Module, inputs: Tree, named: Mapping[str, Boundary], precision: Precision) -> object:
    try:
        if precision == "bf16-autocast":
            return _run_on_fakes(layer, inputs, named, precision)
        return _run(layer, inputs, named, torch.device("meta"), precision)
    except Exception:  # whatever a layer that needs values raises; one that is broken raises again
        some = next((one for one in itertools.chain(layer.parameters(), layer.buffers()) if not one.is_meta), None)
        return _run(layer, inputs, named, torch.device("cpu") if some is None else some.device, precision)


def _run(
    layer: nn.Module, inputs: Tree, named: Mapping[str, Boundary], device: torch.device, precision: Precision
) -> object:
    generators = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=generators):
        layer = copy.deepcopy(layer)
        if device.type == "meta":
            return layer.to(device)(zeros(inputs, device), **zeros(dict(named), device))
        # Let parameters without values be zeros, which take no memory.
        for module in layer.modules():
            for name, one in module._parameters.items():
                if one is not None and one.is_meta:
                    value = torch.zeros((), dtype=one.dtype).expand(one.shape)
                    module._parameters[name] = nn.Parameter(value, requires_grad=False)
        return layer.to(device)(zeros(inputs, device), **zeros(dict(named), device))


def _run_on_fakes(layer: nn.Module, inputs: Tree, named: Mapping[str, Boundary], precision: Precision) -> object:
    layer, device = copy.deepcopy(layer).to("meta"), torch.device("cpu")
    with torch.no_grad(), torch.random.fork_rng(devices=[]), FakeTensorMode(), autocasting(precision, device):
        held = itertools.chain(layer.named_parameters(), layer.named_buffers())
        values = {name: torch.empty(one.shape, dtype=one.dtype) for name, one in held}
        return functional_call(layer, values, (zeros(inputs),), zeros(dict(named)))
