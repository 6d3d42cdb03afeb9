"""The tensor files of a checkpoint: a stage's state as safetensors, read back under any other cut of the layers.

A state names its tensors by global layer: `3.qkv.weight` is a parameter or buffer of layer 3, `3.qkv.weight/exp_avg`
a part of the optimizer's state for it. Files are safetensors only, which hold numbers and no code.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...schemas.checkpoint import CheckpointFile, file_name
from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.plan import Layers
from ...schemas.resumption import layer_runs
from ..checkpoint import MANIFEST, read_manifest, refuse_partial, reporting_failure, write_durably, writing_folder
from ..resilience.protocol import Copy
from .held_stage import HeldStage
from .ties import Tie
from .transport import Transport

State = dict[str, torch.Tensor]

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
_ENTRY = re.compile(r"(0|[1-9][0-9]{0,8})\..+", re.DOTALL)


def write_part(folder: Path, iteration: int, layers: Layers, state: State) -> CheckpointFile:
    """Write a stage's part of a checkpoint, which counts for nothing until `publish`; one peer of each stage calls it.

    Tensors go to the disk one by one, so that beside the state there must be room for one of them on the host. The
    library's own `save` takes a copy of all of them, and 7 s a GB; its `save_file` hides the disk's errors.

    Args:
        folder: DIR, on a file system that all stages share; made where it is not there.
        iteration: the number of completed iterations.
        layers: the stage's layers [first, stop).
        state: the tensors of these layers by name, of any shapes, on any device; not written to meanwhile.

    Returns:
        What the manifest says about the part.

    Raises:
        CheckpointFailedError: the disk is full, or does not take the file for another reason; nothing is left of it.
        InvalidInputError: the state names another layer, or a tensor is of a kind that safetensors do not have.
    """
    # The largest numbers first, as the library does: so each tensor lies at a multiple of its numbers' size.
    ordered = dict(sorted(state.items(), key=lambda entry: (-entry[1].itemsize, entry[0])))
    header = _header(layers, ordered)
    sha256, size_bytes = hashlib.sha256(), 0

    def chunks() -> Iterator[bytes | memoryview]:
        nonlocal size_bytes
        pieces: Iterator[bytes | memoryview] = chain([header], map(_bytes_of, ordered.values()))
        for chunk in pieces:
            sha256.update(chunk)
            size_bytes += len(chunk)
            yield chunk

    parts = writing_folder(folder, iteration)
    with reporting_failure(parts):
        parts.mkdir(parents=True, exist_ok=True)
        write_durably(parts / file_name(layers), chunks())
    return CheckpointFile(file_name(layers), layers, sha256.hexdigest(), size_bytes)


def read_state(path: Path, layers: Layers) -> State:
    """The state of some layers, from whichever files hold them; only their tensors are read into memory.

    Args:
        path: a whole checkpoint's folder.
        layers: [first, stop), of any cut.

    Returns:
        Tensors on the CPU, bit for bit those that were saved, each with memory of its own.

    Raises:
        InvalidInputError: the checkpoint is partial, has no such layers, or a file that holds some of them is missing,
            not the one that was written, or no safetensors file.
    """
    manifest = read_manifest(path)
    refuse_partial(path, manifest)
    first, stop = layers
    if not 0 <= first < stop <= manifest.layers:
        raise InvalidInputError(
            f"layers [{first}, {stop}) are not among the {manifest.layers} of the checkpoint",
            where=f"{path / MANIFEST}, /layers",
            fix="resume with the model that was saved",
        )
    state: State = {}
    for file in manifest.files:
        if file.layers[0] < stop and first < file.layers[1]:
            state.update(_read_file(path / file.name, file, layers))
    return state


def read_tied_state(path: Path, layers: Layers, ties: Sequence[Tie]) -> State:
    """As `read_state`, of a model with ties; versions up to 0.2 saved what layers share with the first of them only.

    Args:
        path: as of `read_state`.
        layers: as of `read_state`.
        ties: of the model.
    """
    state = read_state(path, layers)
    for one in ties:
        first, own = one.places[0]
        lacking = {
            layer: name for layer, name in reversed(one.places) if layers[0] <= layer < layers[1] and layer != first
        }
        for layer, name in lacking.items():
            if f"{layer}.{name}" not in state:
                saved = f"{first}.{own}"
                shared = read_state(path, (first, first + 1)).items()
                state |= {
                    f"{layer}.{name}{key.removeprefix(saved)}": value
                    for key, value in shared
                    if key == saved or key.startswith(f"{saved}/")
                }
    return state


def _header(layers: Layers, state: State) -> bytes:
    """What stands before the tensors of a stage."""
    for name, tensor in state.items():
        _check_entry(name, layers, file_name(layers))
        if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_meta:
            raise InvalidInputError(
                f"{name}: safetensors hold no {tensor.layout} tensor of {tensor.dtype} on {tensor.device}",
                where=file_name(layers),
                fix="keep dense tensors of plain number types in parameters, buffers and optimizer state",
            )
    return _header_of(state, {})


def _header_of(kinds: Mapping[str, torch.Tensor], more: dict[str, Any]) -> bytes:
    """What stands before tensors: the length of a JSON object in 8 bytes, and the object, padded for alignment."""
    entries, end = dict(more), 0
    for name, tensor in kinds.items():
        start, end = end, end + tensor.numel() * tensor.itemsize
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """A tensor's numbers in row-major order; not copied where they lie so on the host."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data: memoryview = plain.reshape(-1).view(torch.uint8).numpy().data
    return data


def _read_file(path: Path, file: CheckpointFile, layers: Layers) -> State:
    _check_bytes(path, file)
    first, stop = layers
    state: State = {}
    try:
        with _open(path) as tensors:
            for name in tensors.keys():  # noqa: SIM118 (the file is no dict)
                if first <= _check_entry(name, file.layers, str(path)) < stop:
                    # The file stays mapped under its tensors; a copy does not change when the file does.
                    state[name] = tensors.get_tensor(name).clone()
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise InvalidInputError(
            f"the file is no safetensors file: {error}", where=str(path), fix="use another checkpoint"
        ) from error
    return state


def _open(path: Path) -> Any:
    return safe_open(path, framework="pt", device="cpu")


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


def _check_entry(name: str, layers: Layers, where: str) -> int:
    """The layer of a state's entry; InvalidInputError where it is not one of [first, stop)."""
    found = _ENTRY.fullmatch(name)
    if found is None or not layers[0] <= int(found[1]) < layers[1]:
        raise InvalidInputError(
            f"{name!r} names no tensor of layers [{layers[0]}, {layers[1]})",
            where=where,
            fix="names are <global layer>.<parameter or buffer>, then /<key> for optimizer state",
        )
    return int(found[1])


# Whole checkpoints in the form of others.


class SavedTensors:
    """The tensors of a whole checkpoint, of which one at a time is in memory.

    Args:
        path: the checkpoint's folder.

    Attributes:
        manifest: what the folder says that it holds.
        kinds: a tensor on the meta device for every entry of the state, `3.qkv.weight/exp_avg`.

    Raises:
        InvalidInputError: the checkpoint is partial, or a file is missing or not the one that was written.
    """

    def __init__(self, path: Path) -> None:
        self.manifest = read_manifest(path)
        refuse_partial(path, self.manifest)
        types = {name: dtype for dtype, name in _DTYPES.items()}
        self._files: dict[str, Path] = {}
        self.kinds: dict[str, torch.Tensor] = {}
        for file in self.manifest.files:
            _check_bytes(path / file.name, file)
            with _open(path / file.name) as tensors:
                for name in tensors.keys():  # noqa: SIM118 (the file is no dict)
                    part = tensors.get_slice(name)
                    self._files[name] = path / file.name
                    self.kinds[name] = torch.empty(part.get_shape(), dtype=types[part.get_dtype()], device="meta")

    def read(self, name: str) -> torch.Tensor:
        """The value of an entry, in memory of its own."""
        with _open(self._files[name]) as tensors:
            value: torch.Tensor = tensors.get_tensor(name).clone()
            return value


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
    write_durably(path, chain([header], (_bytes_of(read(name)) for name in kinds)))


# The state of layers from the workers that have it to those that lack it.


# Above the tags of all messages of a program (iteration.py, Tags), below the one that wakes blocked groups.
FIRST_TAG = 0x70000000
# Smaller tensors go together: each message costs as much time as sending so many bytes, or more.
PACKED_BYTES = 1 << 20


def take_over(
    copies: Sequence[Copy],
    rank: int,
    transport: Transport,
    given: HeldStage | None,
    taken: HeldStage,
    waits: Callable[[], None] = lambda: None,
) -> set[int]:
    """Take part in the copies of an epoch: send what this worker held until now, then complete what it is to hold.

    Large tensors are sent as they are: a state needs no second copy of itself in memory on the way.

    Args:
        copies: all copies of the epoch.
        rank: this worker.
        transport: the epoch's.
        given: what this worker held until now; None where it has no state.
        taken: what it holds from now on: the same stage, or another one that takes over what both have.
        waits: called before each message that is waited for.

    Returns:
        The layers that were sent or received.

    Raises:
        RuntimeFailedError: a connection broke, or nobody gives this worker a layer that it lacks; it may hold another
            stage by now than the coordinator knew when it planned the copies.
    """
    sent = [copy for copy in copies if copy.source == rank]
    received = [copy for copy in copies if copy.target == rank]
    held = set(given.numbers) if given is not None else set()
    to_send = {layer for copy in sent for layer in range(*copy.layers)}
    to_have = {layer for copy in received for layer in range(*copy.layers)} | held
    if not to_send <= held or not set(taken.numbers) <= to_have:
        raise RuntimeFailedError("this worker holds other layers than the coordinator knew")
    if given is not None:
        given.prime_optimizer()
        for copy in sent:
            state = given.state_of(copy.layers)
            for number, names in enumerate(_messages(state)):
                transport.send(tag_of_copy(copy.layers, number), copy.target, _packed([state[name] for name in names]))
    if taken is not given:
        taken.prime_optimizer()
        if given is not None:
            for both in layer_runs(held.intersection(taken.numbers)):
                taken.load_layers(both, given.state_of(both))
    for copy in received:
        taken.load_layers(copy.layers, _received(copy, taken.state_of(copy.layers), transport, waits))
    waits()
    transport.flush()
    return {layer for copy in (*sent, *received) for layer in range(*copy.layers)}


def _received(
    copy: Copy, likes: dict[str, torch.Tensor], transport: Transport, waits: Callable[[], None]
) -> dict[str, torch.Tensor]:
    messages = _messages(likes)
    for number, names in enumerate(messages):
        transport.post_receive(tag_of_copy(copy.layers, number), copy.source, _packed([likes[name] for name in names]))
    found: dict[str, torch.Tensor] = {}
    for number, names in enumerate(messages):
        waits()
        packed = transport.receive(tag_of_copy(copy.layers, number), copy.source).reshape(-1)
        parts = torch.split(packed, [likes[name].numel() for name in names])
        found |= {name: part.view_as(likes[name]) for name, part in zip(names, parts, strict=True)}
    return found


def _messages(state: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Which tensors make a message, the same for all who hold the layers: small ones of one type together."""
    found: dict[object, list[str]] = {}
    for name, tensor in state.items():
        is_large = tensor.numel() * tensor.itemsize >= PACKED_BYTES
        found.setdefault(name if is_large else (tensor.dtype, tensor.device), []).append(name)
    return list(found.values())


def _packed(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])


def tag_of_copy(layers: Layers, number: int) -> int:
    """The tag of a copy's tensors, below 65536 by number; between two workers copies are of unlike layers."""
    return FIRST_TAG + layers[0] * 65536 + number
