"""Digests by which workers find out that their data differ, of so little of them that it takes milliseconds."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

END_BYTES = 256 << 10  # that are looked at at either end of a file
PIECE_BYTES, PIECES = 16 << 10, 32  # and so many between them, evenly apart: 1 MiB in all


def digest_of_parts(size: int, read: Callable[[int, int], bytes]) -> str:
    """The sha256 of a file's ends, and of pieces between them; of all of it where it has 1 MiB or less.

    Args:
        size: of the file, in bytes.
        read: gives (offset, bytes).
    """
    between = size - 2 * END_BYTES
    if between <= PIECES * PIECE_BYTES:
        parts = [(0, size)]
    else:
        steps = ((between - PIECE_BYTES) * piece // (PIECES - 1) for piece in range(PIECES))
        parts = [(0, END_BYTES), *((END_BYTES + step, PIECE_BYTES) for step in steps), (size - END_BYTES, END_BYTES)]
    found = hashlib.sha256(str(size).encode())
    for offset, length in parts:
        found.update(read(offset, length))
    return found.hexdigest()


def digest_of_bytes(data: NDArray[Any]) -> str:
    """The same of an array's bytes."""
    flat = data.reshape(-1).view("u1")
    return digest_of_parts(len(flat), lambda offset, length: flat[offset : offset + length].tobytes())


def digest_of_tensors(value: object) -> str:
    """The sha256 of everything in nested tuples, lists and mappings: tensors by their bytes, all else by its words."""
    found = hashlib.sha256()
    _update(found, value)
    return found.hexdigest()


def _update(found: "hashlib._Hash", value: object) -> None:
    match value:
        case torch.Tensor():
            found.update(f"{value.dtype}{list(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        case Mapping():
            for key in sorted(value, key=str):
                found.update(f"{key}:".encode())
                _update(found, value[key])
        case str() | bytes():
            found.update(repr(value).encode())
        case Sequence():
            found.update(f"{len(value)} of".encode())
            for one in value:
                _update(found, one)
        case _:
            found.update(repr(value).encode())
