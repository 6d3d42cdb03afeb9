"""What a model is to the profiler and to a run: layers, a loss, and examples; a user's own is `file.py:factory`."""

import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, get_args

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ...schemas.calls import names_taken
from ...schemas.checkpoint import HuggingFaceNames
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Layers
from ...schemas.profile import AS_USUAL, DataType, ModelForm
from ...schemas.quantities import print_bytes
from ...schemas.text import with_article
from .names import require_file
from .sharding import Cut, TensorParallelPlan
from .skeleton import title_of


@dataclass(frozen=True, slots=True, eq=False)
class UserModel:
    """What a user's file defines.

    Args:
        modules: the layers that the factory made; a module that is to be cut stands alone.
        example: the file's `example(microbatch_size, sequence_length) -> (inputs, targets)`, None where it has none.
        loss: the file's `loss(output, target)`, None where it has none.
        tensor_parallel: the file's, None where it has none.
    """

    modules: list[nn.Module]
    example: Callable[..., Any] | None
    loss: Callable[..., Any] | None
    tensor_parallel: TensorParallelPlan | None


def load_user_model(name: str, is_cut: bool) -> UserModel:
    """Import the file of `file.py:factory` and call the factory, which takes no arguments.

    Args:
        name: `file.py:factory`.
        is_cut: whether what the factory returns is a module that will be cut, and no sequence of layers.

    Raises:
        InvalidInputError: the file or the factory is missing or raises, or what it returns is no list of layers.
    """
    file, factory_name = require_file(name)
    module, path = _import_file(file), str(file)
    factory = _callable(module, factory_name)
    if factory is None:
        raise InvalidInputError(
            f"the file defines no function {factory_name}", where=path, fix="name a function that returns the layers"
        )
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise failed_in_file(f"{factory_name} failed", error, path) from error
    if is_cut and not isinstance(made, nn.Module):
        raise InvalidInputError(
            f"the factory returned {with_article(type(made).__name__)}, and only modules can be cut by name",
            where=name,
            fix="return the nn.Module, or leave --cut away",
        )
    return UserModel(
        [made] if is_cut else layers_of(made, name),
        _callable(module, "example"),
        _callable(module, "loss"),
        _tensor_parallel(module, path),
    )


def failed_in_file(what: str, error: BaseException, path: str, fix: str = "correct the file") -> InvalidInputError:
    """The error for an exception that a user's file has raised, with the last line of that file that was executed.

    Args:
        what: has failed.
        error: the exception.
        path: of the file.
        fix: what to do about it.
    """
    where = line_in_file(error, path) or path
    return InvalidInputError(f"{what}: {describe(error)}", where=where, fix=f"{fix}; --debug shows the whole traceback")


def line_in_file(error: BaseException, path: str) -> str | None:
    """`net.py:7, in make`: where in a file an exception, or else what it came from, was raised; None: not in it."""
    file = Path(path).resolve()
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).resolve() == file:
        return f"{path}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).resolve() == file:
            return f"{path}:{frame.lineno}" + (f", in {frame.name}" if frame.name != "<module>" else "")
    return None if error.__cause__ is None else line_in_file(error.__cause__, path)


def describe(error: BaseException) -> str:
    """An exception of the user's code in one line: its kind and its message's first line."""
    lines = str(error.msg if isinstance(error, SyntaxError) else error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"rtk_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInputError("the file is no Python source", where=str(path), fix="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise failed_in_file("the file cannot be imported", error, str(path)) from error
    return module


def _callable(module: ModuleType, name: str) -> Callable[..., Any] | None:
    value = getattr(module, name, None)
    return value if callable(value) else None


def layers_of(made: Any, name: str) -> list[nn.Module]:
    """The layers that a user's factory made: an nn.Sequential or a list; `name` says where, in errors.

    Raises:
        InvalidInputError: it is no sequence of layers.
    """
    layers = list(made) if isinstance(made, nn.Sequential | list | tuple) else []
    if layers and all(isinstance(layer, nn.Module) for layer in layers):
        return layers
    fix = "return an nn.Sequential, or a list of nn.Modules, with at least one layer"
    if isinstance(made, nn.Module) and (patterns := candidates(made)):
        fix += f"; or cut the module: --cut {patterns}"
    raise InvalidInputError(
        f"the factory returned {with_article(type(made).__name__)} that is no sequence of layers", where=name, fix=fix
    )


def _tensor_parallel(module: ModuleType, path: str) -> TensorParallelPlan | None:
    plan = getattr(module, "tensor_parallel", None)
    if plan is None:
        return None
    ways = get_args(Cut)
    if not isinstance(plan, dict) or not all(way in ways for way in plan.values()):
        raise InvalidInputError(
            "tensor_parallel is no tensor-parallel plan", where=path, fix=f"write {{name: one of {', '.join(ways)}}}"
        )
    return plan


# The names of modules: which ones a pattern means, and which patterns would mean something.


MOST_CANDIDATES = 5


def matching(root: nn.Module, pattern: str, where: str) -> dict[str, nn.Module]:
    """The modules whose name fits a pattern such as `model.layers.*`, by name; `*` stands for one part of a name.

    Raises:
        InvalidInputError: no module's name does.
    """
    wanted, found = pattern.split("."), {}
    for name, module in root.named_modules():
        parts = name.split(".")
        if name and len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            found[name] = module
    if not found:
        known = candidates(root)
        raise InvalidInputError(
            f"no module of {type(root).__name__} is called {pattern}",
            where=f"{where}, --cut",
            fix=f"its sequences of modules are {known}" if known else "name some of its modules",
        )
    return found


def candidates(root: nn.Module) -> str:
    """Patterns that name a sequence of modules, with how many these are, the longest first; empty where none does."""
    sequences = [
        (len(module), name)
        for name, module in root.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1
    ]
    ordered = sorted(sequences, key=lambda one: -one[0])[:MOST_CANDIDATES]
    return " or ".join(f"{f'{name}.*' if name else '*'} ({count})" for count, name in ordered)


DEFAULT_MICROBATCH_SIZE = 4
DEFAULT_SEQUENCE_LENGTH = 128
TORCH_TYPES: dict[DataType, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

Example = Callable[[int], tuple[Any, ...]]  # (inputs, targets), and what layers take by name, if there is any
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Fill = Callable[[Sequence[nn.Module], Layers], None]  # gives the layers [first, stop) of a model their values


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model ready to be cut into stages.

    Args:
        name: as it was asked for.
        layers: in order; each maps one tensor to one tensor.
        loss: maps (the last layer's output, targets) to a scalar, a mean over the micro-batch.
        microbatch_size: samples in one micro-batch, the first dimension of inputs and targets.
        sequence_length: tokens of one sample; None for models that read no sequences.
        vocabulary: number of distinct tokens; None for models that read none.
        example: makes one random micro-batch (inputs, targets) of these sizes, the same for the same seed.
        form: in which the layers are.
        tensor_parallel: how matrices of the layers are shared out by tensor parallelism; None where nobody has said.
        fill: gives parameters that are on the meta device their values, those of some layers at a time, in a copy of
            the layers, too; None: all layers have values.
        names: what the layers' tensors are called in files of Hugging Face's; None for other models.
        precision: in which it is trained, as a runner's stages are told; None: as whoever makes them has it.
    """

    name: str
    layers: list[nn.Module]
    loss: Loss
    microbatch_size: int
    sequence_length: int | None
    vocabulary: int | None
    example: Example
    form: ModelForm = AS_USUAL
    tensor_parallel: TensorParallelPlan | None = None
    fill: Fill | None = None
    names: HuggingFaceNames | None = None
    precision: str | None = None


def token_example(microbatch_size: int, sequence_length: int, vocabulary: int) -> Example:
    """Random tokens (microbatch_size, sequence_length); the targets are the next tokens."""

    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(vocabulary, (microbatch_size, sequence_length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return example


@dataclass(frozen=True, slots=True)
class LossInFloat32:
    """A loss that is computed in float32 where the last layer's output is of a shorter type."""

    loss: Loss

    def __call__(self, output: Any, target: torch.Tensor) -> torch.Tensor:
        """As the loss."""
        return self.loss(tree_map(_longer, output), target)


def _longer(one: Any) -> Any:
    is_floating = isinstance(one, torch.Tensor) and one.is_floating_point()
    return one.to(torch.promote_types(one.dtype, torch.float32)) if is_floating else one


def in_type(modules: Iterable[nn.Module], dtype: DataType) -> None:
    """Bring parameters and buffers into a form's type, in place; by default they stay as they were made."""
    if dtype != AS_USUAL.dtype:
        for module in modules:
            module.to(TORCH_TYPES[dtype])


def apply(layers: Iterable[nn.Module], value: Any, named: Mapping[str, torch.Tensor] = MappingProxyType({})) -> Any:
    """The layers one after another.

    Args:
        layers: each takes what the one before gives: a tensor, or a tuple, list or dict of some.
        value: what the first one takes.
        named: more that belongs to the micro-batch; each layer gets what its `forward` names.

    Raises:
        RuntimeError: one does not take what the one before gives; says which, and the shape.
        TypeError: one returns something else than tensors.
    """
    for place, layer in enumerate(layers):
        try:
            names = names_taken(layer.forward)
            own = {name: one for name, one in named.items() if names is None or name in names}
            given = layer(value, **own)
        except Exception as error:
            shapes = tree_map(lambda one: tuple(one.shape) if isinstance(one, torch.Tensor) else one, value)
            taken = f"layer {place}, {title_of(layer)}, does not take {shapes}"
            raise RuntimeError(f"{taken}: {describe(error)}") from error
        strange = [one for one in tree_leaves(given) if not isinstance(one, torch.Tensor | None)]
        if strange:
            raise TypeError(
                f"{title_of(layer)} returns {with_article(type(strange[0]).__name__)}, and must return a tensor, or a "
                "tuple, list or dict of tensors"
            )
        value = given
    return value


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global generator starts from the seed in here, and goes on afterwards as if nothing had been."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


# Which layers share a matrix, as an embedding and a head do whose weights are tied.


def tied(layers: Sequence[nn.Module]) -> dict[int, tuple[int, int]]:
    """The layers with parameters that an earlier one has too: place -> (place of the earlier one, bytes they share).

    Where a layer shares with several earlier ones, the first of them counts, with all that is shared with any of them.
    """
    owner: dict[nn.Parameter, int] = {}
    found: dict[int, tuple[int, int]] = {}
    for place, layer in enumerate(layers):
        parameters = list(layer.parameters())
        shared = [parameter for parameter in parameters if parameter in owner]
        if shared:
            first = min(owner[parameter] for parameter in shared)
            found[place] = (first, sum(parameter.nbytes for parameter in shared))
        for parameter in parameters:
            owner.setdefault(parameter, place)
    return found


# Whether a model fits into this machine's free memory, asked before it is made.


# The parameter, its gradient and AdamW's two moments; in 16 bits the latter three are in float32, and so is a copy of
# the parameter.
TRAINING_BYTES_PER_PARAMETER: dict[DataType, int] = {"fp32": 16, "bf16": 18, "fp16": 18}
FORMATS: dict[DataType, str] = {
    "fp32": "float32 parameters",
    "bf16": "bfloat16 parameters, float32 masters",
    "fp16": "float16 parameters, float32 masters",
}


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model's memory depends on: its parameters, the width of its stream, its vocabulary."""

    parameters: int
    width: int
    vocabulary: int

    def needed_bytes(self, tokens: int, dtype: DataType = "fp32") -> int:
        """Bytes to train with `tokens` in a micro-batch while one layer holds its activations."""
        per_parameter = TRAINING_BYTES_PER_PARAMETER[dtype]
        # Twice a block's activations (16 widths per token), or logits with their softmax and gradient, which are
        # float32 in either case.
        activations = tokens * max(32 * self.width * TORCH_TYPES[dtype].itemsize, 3 * self.vocabulary * 4)
        return per_parameter * self.parameters + activations


def require_memory(name: str, size: ModelSize, tokens: int, dtype: DataType, fitting: Sequence[str] = ()) -> None:
    """Raise InfeasibleError unless a model can be trained here, layer by layer; `fitting` would fit instead."""
    needed, free = size.needed_bytes(tokens, dtype), free_bytes()
    if needed <= free:
        return
    if size.needed_bytes(0, dtype) <= free / 2:
        fix = "take a smaller --microbatch-size or --sequence-length"
    elif fitting:
        fix = f"take a smaller preset ({', '.join(fitting)})"
    else:
        fix = "take a machine with more memory, or compute the profile: --analytic"
    raise InfeasibleError(
        f"{name} needs {print_bytes(needed)} of memory for {FORMATS[dtype]}, gradients, AdamW's moments and "
        f"one layer's activations; {print_bytes(free)} are free",
        fix=fix,
    )


def free_bytes() -> int:
    """The memory that a new process could have."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
