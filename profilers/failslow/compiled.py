"""One implementation of a detector, run in two ways: plain Python sample by sample, machine code for whole series.

A kernel is a plain function over flat sequences: lists when interpreted (numpy's scalars are slow there), numpy arrays
when compiled by numba. Both do the same IEEE operations in the same order. numba is imported when a kernel is first
compiled, never before: that takes half a second, and a first compilation several; later processes find the machine code
in numba's cache (NUMBA_CACHE_DIR moves it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from types import FunctionType
from typing import Any, TypeVar, cast

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

Ints = list[int]  # numpy arrays, when compiled
Floats = list[float]

_kernels: dict[str, list[FunctionType]] = {}
_compiled: dict[str, dict[str, Any]] = {}


def kernel(function: Kernel) -> Kernel:
    """Mark a function as compilable; it may call `sorted`, and kernels of its own module that stand before it."""
    assert isinstance(function, FunctionType)
    _kernels.setdefault(function.__module__, []).append(function)
    return function


def pays(function: Callable[..., Any], samples: int, most_interpreted: int) -> bool:
    """Whether to use machine code: it is loaded already, or plain Python would take longer than loading it.

    Args:
        function: a kernel.
        samples: how many there are to look at.
        most_interpreted: up to so many plain Python is done before the machine code would be loaded.
    """
    return function.__module__ in _compiled or (samples > most_interpreted and find_spec("numba") is not None)


def compiled(function: Kernel) -> Kernel:
    """The machine code of a kernel, with the same arguments and results; sequences are numpy arrays there."""
    name = function.__module__
    if name not in _compiled:
        _compiled[name] = _compile_module(name)
    return cast(Kernel, _compiled[name][function.__name__])


def _compile_module(name: str) -> dict[str, Any]:
    """The module's names, with its kernels replaced by compiled twins that call each other."""
    import numpy as np
    from numba import njit

    names = dict(vars(sys.modules[name]))
    names["sorted"] = njit(lambda values: np.sort(values))
    for function in _kernels[name]:
        twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
        twin.__qualname__ = function.__qualname__
        names[function.__name__] = njit(cache=True, error_model="numpy")(twin)
    return names


@dataclass(frozen=True)
class Method:
    """A detector over counts `n`, numbers `x`, a buffer of the last samples, and `out` for what happens.

    Attributes:
        counts, numbers, buffered: how long `n`, `x` and the buffer are.
        set_up: plain Python; `(n, shortest)` makes zeros a state that has seen nothing.
        take: a kernel; `(y, n, x, buffer, out, told)` takes a sample's log.
        take_all: a kernel; `(ys, first, n, x, buffer, out, most)` takes samples until `out` could overflow.
        finish: plain Python; `(n, x, buffer, out)`: the series is over.
        most_interpreted: how many samples plain Python takes while machine code would be loaded.
    """

    counts: int
    numbers: int
    buffered: int
    set_up: Callable[..., None]
    take: Callable[..., int]
    take_all: Callable[..., tuple[int, int]]
    finish: Callable[..., int]
    most_interpreted: int
