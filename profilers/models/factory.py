"""Models from a user's own file, given as `file.py:factory`."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ...schemas.errors import InvalidInputError


@dataclass(frozen=True, slots=True, eq=False)
class UserModel:
    """What a user's file defines.

    Args:
        layers: what the factory made.
        example: the file's `example(microbatch_size, sequence_length) -> (inputs, targets)`, None where it has none.
        loss: the file's `loss(output, target)`, None where it has none.
    """

    layers: list[nn.Module]
    example: Callable[..., Any] | None
    loss: Callable[..., Any] | None


def load_user_model(name: str) -> UserModel:
    """Import the file of `file.py:factory` and call the factory, which takes no arguments.

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
    return UserModel(_layers(made, name), _callable(module, "example"), _callable(module, "loss"))


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
    if not layers or not all(isinstance(layer, nn.Module) for layer in layers):
        raise InvalidInputError(
            f"the factory returned a {type(made).__name__} that is no sequence of layers",
            where=name,
            fix="return an nn.Sequential, or a list of nn.Modules, with at least one layer",
        )
    return layers
