"""One implementation, run in two ways: plain Python for small problems, compiled by numba for large ones.

A kernel is a plain function over flat sequences: lists when interpreted (numpy's scalars are slow there), numpy arrays
when compiled. Both do the same IEEE operations in the same order, so they agree bit for bit. numba is imported when a
kernel is first compiled, never before: that takes half a second, and a first compilation several; later processes find
the machine code in numba's cache beside the source (NUMBA_CACHE_DIR moves it).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_kernels: dict[str, list[FunctionType]] = {}
_compiled: dict[str, dict[str, Any]] = {}


def kernel(function: Kernel) -> Kernel:
    """Mark a function as compilable; inside it only kernels of its own module, defined before it, may be called."""
    assert isinstance(function, FunctionType)
    _kernels.setdefault(function.__module__, []).append(function)
    return function


def pays(function: Callable[..., Any], steps: int, most_interpreted: int) -> bool:
    """Whether to use machine code: it is loaded already, or there is more to do than plain Python does meanwhile.

    Args:
        function: a kernel.
        steps: how much there is to do.
        most_interpreted: up to so many steps plain Python is done before the machine code would be loaded.
    """
    return function.__module__ in _compiled or steps > most_interpreted


def compiled(function: Kernel) -> Kernel:
    """The machine code of a kernel, with the same arguments and results; sequences are numpy arrays there."""
    name = function.__module__
    if name not in _compiled:
        _compiled[name] = _compile_module(name)
    return cast(Kernel, _compiled[name][function.__name__])


def _compile_module(name: str) -> dict[str, Any]:
    """The module's names, with its kernels replaced by compiled twins that call each other."""
    from numba import njit

    names = dict(vars(sys.modules[name]))
    for function in _kernels[name]:
        twin = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
        twin.__qualname__ = function.__qualname__
        # Kernels allocate nothing: without numba's reference counts and calls they run ten times as fast.
        names[function.__name__] = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)(twin)  # type: ignore[call-overload]
    return names


class Form:
    """How a caller's values are handed to kernels: as lists where interpreted, as arrays where compiled."""

    def __init__(self, in_machine_code: bool) -> None:
        self.compiled = in_machine_code

    def ints(self, values: Any, dtype: type[np.integer[Any]] = np.int64) -> Any:
        """Integers in the form that the kernels take; the larger a table, the more narrow ones help."""
        array = np.ascontiguousarray(values, dtype=dtype)
        return array if self.compiled else array.tolist()

    def floats(self, values: Any) -> Any:
        """Floats in the form that the kernels take."""
        array = np.ascontiguousarray(values, dtype=np.float64)
        return array if self.compiled else array.tolist()

    def int_space(self, size: int) -> Any:
        """Work space for integers."""
        return np.zeros(size, dtype=np.int64) if self.compiled else [0] * size

    def float_space(self, size: int) -> Any:
        """Work space for floats."""
        return np.zeros(size) if self.compiled else [0.0] * size

    def kernel(self, function: Any) -> Any:
        """A kernel in the form that suits the problem."""
        return compiled(function) if self.compiled else function
