"""How a planner's values are handed to kernels (`schemas/kernels.py`), interpreted or compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ...schemas import kernels
from ...schemas.kernels import compiled

_steps: Counter[str] = Counter()  # asked for so far in this process, by module


def pays(function: Callable[..., Any], steps: int, most_interpreted: int) -> bool:
    """Whether to use machine code, as `kernels.pays` has it for all steps that were asked for so far.

    Many small problems are as much work as a large one: machine code is loaded once plain Python has done about as much
    as would have paid for it.
    """
    _steps[function.__module__] += steps
    return kernels.pays(function, _steps[function.__module__], most_interpreted)


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
