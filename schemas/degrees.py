"""Tensor-parallel degrees: how many GPUs share each stage, as people write it and as a shape has it."""

import re
from collections.abc import Sequence
from typing import Literal

from .errors import InvalidInputError

Degrees = int | tuple[int, ...]  # of all stages alike, or one a stage
AskedDegrees = int | str | Sequence[int] | None  # as it may be asked for: also "auto", or as `--tensor-parallel` has it
AUTO: Literal["auto"] = "auto"
OPTION = "tensor_parallel"  # of a planner: the degrees of what it has made, where they are not all 1
MOST_GPUS = 4096  # of a stage


def parse_degrees(asked: AskedDegrees) -> Degrees | Literal["auto"] | None:
    """What `--tensor-parallel` says: `8`, one a stage as in `4,8,8,4`, or `auto`; None: nobody says anything.

    Raises:
        InvalidInputError: it says something else.
    """
    if asked is None:
        return None
    if asked == AUTO:
        return AUTO
    written = asked if isinstance(asked, str) else ",".join(map(str, [asked] if isinstance(asked, int) else asked))
    parts = written.split(",")
    if not all(re.fullmatch(r"[1-9][0-9]{0,3}", part) and int(part) <= MOST_GPUS for part in parts):
        raise InvalidInputError(
            f"{written!r} is no tensor-parallel degree",
            where="--tensor-parallel",
            fix="write a number of GPUs such as 8, one a stage such as 4,8,8,4, or auto",
        )
    numbers = tuple(map(int, parts))
    return numbers[0] if len(numbers) == 1 else numbers


def by_column(degrees: Degrees, columns: int) -> tuple[int, ...]:
    """One degree for each of so many columns of a pipeline."""
    return (degrees,) * columns if isinstance(degrees, int) else degrees


def print_degrees(degrees: Degrees) -> str:
    """Degrees as `--tensor-parallel` has them."""
    return str(degrees) if isinstance(degrees, int) else ",".join(map(str, degrees))
