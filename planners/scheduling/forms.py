"""How a planner's values are handed to kernels (`schemas/kernels.py`), interpreted or compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ...schemas import kernels
from ...schemas.kernels import compiled

_asked: ContextVar[Counter[str] | None] = ContextVar("_asked", default=None)  # steps so far, by module


@contextmanager
def many_problems() -> Iterator[None]:
    """Within it many small problems are as much work as a large one: machine code is loaded once all together pay.

    That is for replays. A job that waits for its next plan must not be held up by it, whatever was planned before.
    """
    before = _asked.set(Counter())
    try:
        yield
    finally:
        _asked.reset(before)


def pays(function: Callable[..., Any], steps: int, most_interpreted: int) -> bool:
    """Whether to use machine code, as `kernels.pays` has it; among many problems for all steps asked for so far."""
    asked = _asked.get()
    if asked is not None:
        asked[function.__module__] += steps
        steps = asked[function.__module__]
    return kernels.pays(function, steps, most_interpreted)


class Form:
    """How a caller's values are handed to kernels: as lists where interpreted, as arrays where compiled."""

    def __init__(self, in_machine_code: bool) -> None:
        self.compiled = in_machine_code

    def ints(self, values: Any, dtype: type[np.integer[Any]] = np.int64) -> Any:
        """Integers in the form that the kernels take; the larger a table, the more narrow ones help."""
        return self._formed(np.ascontiguousarray(values, dtype=dtype))

    def floats(self, values: Any) -> Any:
        """Floats in the form that the kernels take."""
        return self._formed(np.ascontiguousarray(values, dtype=np.float64))

    def int_space(self, size: int) -> Any:
        """Work space for integers."""
        return np.zeros(size, dtype=np.int64) if self.compiled else [0] * size

    def float_space(self, size: int) -> Any:
        """Work space for floats."""
        return np.zeros(size) if self.compiled else [0.0] * size

    def kernel(self, function: Any) -> Any:
        """A kernel in the form that suits the problem."""
        return compiled(function) if self.compiled else function

    def _formed(self, array: Any) -> Any:
        """An array as a list, or as one that may be written to: numba compiles anew for what may only be read."""
        if not self.compiled:
            return array.tolist()
        return array if array.flags.writeable else array.copy()
