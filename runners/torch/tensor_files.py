"""Safetensors files: written one tensor after the other, and what a checkpoint's say of tensors that are not whole.

They hold numbers and no code. A tensor that is cut among the ranks of a worker stands in each rank's file by its own
name, as that rank's slice; one that several workers hold in pieces (a sharded optimizer's) stands as these, each with
the indices of its numbers: `3.qkv.weight/exp_avg[65536:131072]`. What is a part of what, a file's metadata say.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...schemas.checkpoint import CheckpointFile
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers
from ...schemas.slices import TensorCut
from ..checkpoint import write_durably

State = dict[str, torch.Tensor]
Shape = tuple[int, ...]

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
_TYPES = {name: dtype for dtype, name in _DTYPES.items()}
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,8})\..+", re.DOTALL)


@dataclass(frozen=True)
class Divisions:
    """Of what the tensors of a file are parts.

    Attributes:
        cuts: of parameters that are cut among ranks, by name: how. What the optimizer keeps of them is cut as they are.
        shapes: of tensors of which there are pieces, by name: that of the whole, or of the rank's slice of it. What has
            no dimension, such as AdamW's step, stands whole in each piece.
    """

    cuts: Mapping[str, TensorCut] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)

    def written(self) -> dict[str, str]:
        """As a file's metadata, which are texts; of whole tensors there are none."""
        cuts = {name: asdict(cut) for name, cut in self.cuts.items()}
        told = {"cuts": cuts, "shapes": {name: list(shape) for name, shape in self.shapes.items()}}
        return {key: json.dumps(value, separators=(",", ":"), sort_keys=True) for key, value in told.items() if value}

    @classmethod
    def read(cls, metadata: Mapping[str, str]) -> "Divisions":
        """What `written` gave.

        Raises:
            ValueError, TypeError, KeyError, AttributeError: it gave something else.
        """
        cuts = {name: TensorCut(**told) for name, told in json.loads(metadata.get("cuts", "{}")).items()}
        shapes = {name: tuple(map(int, told)) for name, told in json.loads(metadata.get("shapes", "{}")).items()}
        counts = [number for cut in cuts.values() for number in (cut.size, cut.parts, cut.most) if number is not None]
        if any(not isinstance(number, int) or number < 1 for number in counts):
            raise ValueError("a cut is into nothing")
        if any(size < 0 for shape in shapes.values() for size in shape):
            raise ValueError("a shape has a negative size")
        return cls(cuts, shapes)


WHOLE = Divisions()


def header_of_part(layers: Layers, name: str, state: State, divisions: Divisions) -> bytes:
    """What stands before the tensors of a file of a checkpoint.

    Args:
        layers: [first, stop), of which the tensors are.
        name: of the file, for errors.
        state: the tensors, in the order in which they are to be written.
        divisions: of what they are parts.

    Raises:
        InvalidInputError: the state names another layer, or a tensor is of a kind that safetensors do not have.
    """
    for entry, tensor in state.items():
        layer_of_entry(entry, layers, name)
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            raise InvalidInputError(
                f"{entry}: safetensors hold no {tensor.layout} tensor of {tensor.dtype} on {tensor.device}",
                where=name,
                fix="keep dense tensors of plain number types in parameters, buffers and optimizer state",
            )
    metadata = divisions.written()
    return _header_of(state, {"__metadata__": metadata} if metadata else {})


def _header_of(kinds: Mapping[str, torch.Tensor], more: dict[str, Any]) -> bytes:
    """What stands before tensors: the length of a JSON object in 8 bytes, and the object, padded for alignment."""
    entries, end = dict(more), 0
    for name, tensor in kinds.items():
        start, end = end, end + tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's numbers in row-major order; not copied where they lie so on the host."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
    return data


def write_tensors(path: Path, kinds: Mapping[str, torch.Tensor], read: Callable[[str], torch.Tensor]) -> None:
    """Write a safetensors file as others read it, one tensor after the other.

    Args:
        path: of the file.
        kinds: tensors of the shapes and types that are to be written, the larger types first; their values are not
            looked at.
        read: gives the value of each, asked for in this order.

    Raises:
        OSError: the disk is full, or does not take the file.
    """
    header = _header_of(kinds, {"__metadata__": {"format": "pt"}})
    write_durably(path, chain([header], (bytes_of(read(name)) for name in kinds)))


class TensorFile:
    """A file of a checkpoint that is there; its bytes are compared with the sha256 before the first value is read.

    Args:
        path: of it.
        file: what the manifest says about it.

    Attributes:
        kinds: a tensor on the meta device for every one in the file.
        divisions: of what these are parts.

    Raises:
        InvalidInputError: it is missing, no safetensors file, or not the one that was written.
    """

    def __init__(self, path: Path, file: CheckpointFile) -> None:
        self.path, self.file = path, file
        self._is_checked = False
        self._tensors: Any = None
        self.kinds: dict[str, torch.Tensor] = {}
        with self._reporting():
            tensors: Any = safe_open(path, framework="pt", device="cpu")
            self.divisions = Divisions.read(tensors.metadata() or {})
            for name in tensors.keys():  # noqa: SIM118 (the file is no dict)
                part = tensors.get_slice(name)
                self.kinds[name] = torch.empty(part.get_shape(), dtype=_TYPES[part.get_dtype()], device="meta")
        for name in self.kinds:
            layer_of_entry(name, file.layers, str(path))

    def read(self, name: str) -> torch.Tensor:
        """A tensor; its memory is the file's, as long as it stays open (`close`)."""
        self._check()
        with self._reporting():
            if self._tensors is None:
                self._tensors = safe_open(self.path, framework="pt", device="cpu")
            value: torch.Tensor = self._tensors.get_tensor(name)
        return value

    def close(self) -> None:
        """Let go of the file, which stays mapped meanwhile."""
        self._tensors = None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
            self._check()  # what is wrong with it may be that it is another file
            raise InvalidInputError(
                f"the file is no safetensors file: {error}", where=str(self.path), fix="use another checkpoint"
            ) from error

    def _check(self) -> None:
        if not self._is_checked:
            _check_bytes(self.path, self.file)
            self._is_checked = True


def _check_bytes(path: Path, file: CheckpointFile) -> None:
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest() if size == file.size_bytes else ""
    except OSError as error:
        raise InvalidInputError(
            f"cannot read the file: {error.strerror or error}", where=str(path), fix="use another checkpoint"
        ) from error
    if sha256 != file.sha256:
        found = "other bytes" if sha256 else f"{size} bytes instead of {file.size_bytes:.0f}"
        raise InvalidInputError(
            f"the file is not the one that was saved: it holds {found}", where=str(path), fix="use another checkpoint"
        )


def layer_of_entry(name: str, layers: Layers, where: str) -> int:
    """The layer of a state's entry; InvalidInputError where it is not one of [first, stop)."""
    found = _ENTRY.fullmatch(name)
    if found is None or not layers[0] <= int(found[1]) < layers[1]:
        raise InvalidInputError(
            f"{name!r} names no tensor of layers [{layers[0]}, {layers[1]})",
            where=where,
            fix="names are <global layer>.<parameter or buffer>, then /<key> for optimizer state",
        )
    return int(found[1])
