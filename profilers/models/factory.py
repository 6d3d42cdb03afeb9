"""What a user's own file defines, given as `file.py:factory`."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from torch import nn

from ...schemas.errors import InvalidInputError
from .sharding import Cut, TensorParallelPlan


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
    path, _, factory_name = name.rpartition(":")
    if not path or not factory_name:
        raise InvalidInputError(f"{name} names no factory", fix="write file.py:factory, with the function's name")
    module = _import_file(Path(path))
    factory = _callable(module, factory_name)
    if factory is None:
        raise InvalidInputError(
            f"the file defines no function {factory_name}", where=path, fix="name a function that returns the layers"
        )
    try:
        made = factory()
    except Exception as error:
        raise InvalidInputError(f"{factory_name} failed: {describe(error)}", where=path) from error
    if is_cut and not isinstance(made, nn.Module):
        raise InvalidInputError(
            f"the factory returned a {type(made).__name__}, and only modules can be cut by name",
            where=name,
            fix="return the nn.Module, or leave --cut away",
        )
    return UserModel(
        [made] if is_cut else _layers(made, name),
        _callable(module, "example"),
        _callable(module, "loss"),
        _tensor_parallel(module, path),
    )


def describe(error: Exception) -> str:
    """An exception of the user's code in one line: its kind and its message's first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidInputError("there is no such file", where=str(path), fix="check the path; write file.py:factory")
    spec = importlib.util.spec_from_file_location(f"rtk_model_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidInputError("the file is no Python source", where=str(path), fix="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InvalidInputError(f"the file cannot be imported: {describe(error)}", where=str(path)) from error
    return module


def _callable(module: ModuleType, name: str) -> Callable[..., Any] | None:
    value = getattr(module, name, None)
    return value if callable(value) else None


def _layers(made: Any, name: str) -> list[nn.Module]:
    layers = list(made) if isinstance(made, nn.Sequential | list | tuple) else []
    if layers and all(isinstance(layer, nn.Module) for layer in layers):
        return layers
    fix = "return an nn.Sequential, or a list of nn.Modules, with at least one layer"
    if isinstance(made, nn.Module) and (patterns := candidates(made)):
        fix += f"; or cut the module: --cut {patterns}"
    raise InvalidInputError(
        f"the factory returned a {type(made).__name__} that is no sequence of layers", where=name, fix=fix
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
