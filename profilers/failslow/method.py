"""What a detector is: places for what it remembers, and kernels over them (`schemas/kernels.py`).

It takes a series sample by sample in plain Python, and a whole one in machine code.
"""

from collections.abc import Callable
from dataclasses import dataclass

Ints = list[int]  # numpy arrays, when compiled
Floats = list[float]


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
