"""How a planner's values are handed to kernels (`schemas/kernels.py`), interpreted or compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...schemas.kernels import compiled


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
