"""The words of torch, NCCL and gloo for operations and types of numbers, and those of rtk."""

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from ....schemas.errors import InvalidInputError
from ....schemas.fields import MOST_WORKERS

_ENDINGS = re.compile(r"(_base|_into_tensor|_tensor|_coalesced|_single|_v|_)+$")
_SPLIT = re.compile(r"(all|reduce)_?(reduce|gather|scatter|to_?all)")
_SIZES_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "uint64": 8, "complexfloat": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2, "uint16": 2,
    "complexdouble": 16,
}  # fmt: skip
_RANKS = re.compile(r"\d+")
LARGEST = 2.0**63
MOST_NAMED = 8  # ranks in a group's name


def plain_op(name: str) -> str:
    """`nccl:_all_gather_base`, `AllGather`, `allgather_`: all are `all_gather`."""
    word = name.rpartition(":")[2].strip().partition(" ")[0]
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower().strip("_")
    stem = _ENDINGS.sub("", snake)
    match = _SPLIT.fullmatch(stem)
    return f"{match[1]}_{match[2].replace('toall', 'to_all')}" if match else stem


def size_bytes(dtype: str) -> int:
    """Of one number of that type; 1 where the type is not known."""
    return _SIZES_BYTES.get(dtype.lower().removeprefix("torch."), 1)


def bytes_of(sizes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int:
    """Of tensors of these sizes; the last type holds for all that have none of their own."""
    known = list(dtypes) or [""]
    pairs = zip(sizes, [*known, *[known[-1]] * len(sizes)], strict=False)
    return whole(sum(prod(map(whole, size)) * size_bytes(dtype) for size, dtype in pairs))


def finite(value: Any) -> float:
    """A number that a file says, such as a time in µs.

    Raises:
        ValueError: it is none, or larger than 64 bits.
        TypeError: it is no number at all.
    """
    if not abs(value if isinstance(value, int) else float(value)) < LARGEST:
        raise ValueError("a number of 64 bits")
    return float(value)


def whole(value: Any) -> int:
    """A whole number that a file says, such as a rank; errors as for `finite`."""
    finite(value)
    return int(value)


def text_of(value: Any) -> str:
    """A name that a file says; a list or a mapping in its place is a TypeError."""
    if not isinstance(value, str | int):
        raise TypeError(f"a text where it has a {type(value).__name__}")
    return str(value)


def ranks_of(value: object) -> tuple[int, ...]:
    """The ranks in a list, or in its text `[0, 1]`; none where the text leaves some out."""
    if isinstance(value, list | tuple):
        return tuple(rank for rank in value if isinstance(rank, int))
    if not isinstance(value, str) or "..." in value:
        return ()
    return tuple(whole(number) for number in _RANKS.findall(value))


def ranks_up_to(count: Any) -> tuple[int, ...]:
    """So many ranks, from 0 on; errors as for `whole`, also for more than any job has."""
    if whole(count) > MOST_WORKERS:
        raise ValueError(f"{count}, more ranks than {MOST_WORKERS}")
    return tuple(range(whole(count)))


def group_name(name: str, ranks: Sequence[int]) -> str:
    """A name that is the same on all ranks of a group, and another one on those of other groups."""
    if not ranks:
        return name
    shown = ",".join(map(str, ranks[:MOST_NAMED]))
    return f"{name}[{shown}]" if len(ranks) <= MOST_NAMED else f"{name}[{shown},… {len(ranks)} ranks]"


def damaged(what: str, where: str) -> InvalidInputError:
    """The error for a file that is not whole."""
    return InvalidInputError(what, where=where, fix="write the file again; it was cut short, or changed")
