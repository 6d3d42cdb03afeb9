"""The tensor files of a checkpoint: a stage's state as safetensors, read back under any other cut of the layers.

A state names its tensors by global layer: `3.qkv.weight` is a parameter or buffer of layer 3, `3.qkv.weight/exp_avg`
a part of the optimizer's state for it. Files are safetensors only, which hold numbers and no code.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from ...schemas.checkpoint import CheckpointFile, Portion, file_name
from ...schemas.errors import RuntimeFailedError
from ...schemas.plan import Layers
from ...schemas.resumption import layer_runs
from ...schemas.slices import TensorCut
from ..checkpoint import reporting_failure, write_durably, writing_folder
from ..resilience.protocol import Copy
from .held_stage import HeldStage, layer_of
from .packing import PackedEntries
from .saved_tensors import NO_CUTS, SavedTensors
from .slice_copies import SliceCopies
from .tensor_files import WHOLE, Divisions, State, bytes_of, header_of_part
from .ties import Tie
from .transport import Transport


def write_part(
    folder: Path,
    iteration: int,
    layers: Layers,
    state: State,
    divisions: Divisions = WHOLE,
    *,
    rank: Portion | None = None,
    part: Portion | None = None,
) -> CheckpointFile:
    """Write a stage's part of a checkpoint, which counts for nothing until `publish`; one peer of each stage calls it.

    Where a worker is several ranks all of them do, and of an optimizer's state in pieces all that hold some.

    Tensors go to the disk one by one, so that beside the state there must be room for one of them on the host. The
    library's own `save` takes a copy of all of them, and 7 s a GB; its `save_file` hides the disk's errors.

    Args:
        folder: DIR, on a file system that all stages share; made where it is not there.
        iteration: the number of completed iterations.
        layers: the stage's layers [first, stop).
        state: the tensors of these layers by name, of any shapes, on any device; not written to meanwhile.
        divisions: of what they are slices and pieces.
        rank: which one of its worker's ranks writes; None: the worker is one.
        part: which one of those who write these layers together; None: one writes all.

    Returns:
        What the manifest says about the part.

    Raises:
        CheckpointFailedError: the disk is full, or does not take the file for another reason; nothing is left of it.
        InvalidInputError: the state names another layer, or a tensor is of a kind that safetensors do not have.
    """
    # The largest numbers first, as the library does: so each tensor lies at a multiple of its numbers' size.
    ordered = dict(sorted(state.items(), key=lambda entry: (-entry[1].itemsize, entry[0])))
    name = file_name(layers, rank, part)
    header = header_of_part(layers, name, ordered, divisions)
    sha256, size_bytes = hashlib.sha256(), 0

    def chunks() -> Iterator[bytes | memoryview]:
        nonlocal size_bytes
        pieces: Iterator[bytes | memoryview] = chain([header], map(bytes_of, ordered.values()))
        for chunk in pieces:
            sha256.update(chunk)
            size_bytes += len(chunk)
            yield chunk

    parts = writing_folder(folder, iteration)
    with reporting_failure(parts):
        parts.mkdir(parents=True, exist_ok=True)
        write_durably(parts / name, chunks())
    return CheckpointFile(name, layers, sha256.hexdigest(), size_bytes, rank, part)


def read_state(
    path: Path, layers: Layers, cuts: Mapping[str, TensorCut] = NO_CUTS, degree: int = 1, rank: int = 0
) -> State:
    """The state of some layers, from whichever files hold them; only their tensors are read into memory.

    Args:
        path: a whole checkpoint's folder, saved by workers of any degree.
        layers: [first, stop), of any cut.
        cuts: how parameters are cut among the ranks of the worker that reads, by name; others are whole.
        degree: ranks of that worker.
        rank: this one of them.

    Returns:
        Tensors on the CPU, bit for bit those that were saved, each with memory of its own.

    Raises:
        InvalidInputError: the checkpoint is partial, has no such layers, or a file that holds some of them is missing,
            not the one that was written, or no safetensors file; or it says of a tensor what cannot be.
    """
    return _state_of(SavedTensors(path, layers), layers, cuts, degree, rank)


def read_tied_state(
    path: Path,
    layers: Layers,
    ties: Sequence[Tie],
    cuts: Mapping[str, TensorCut] = NO_CUTS,
    degree: int = 1,
    rank: int = 0,
) -> State:
    """As `read_state`, of a model with ties; versions up to 0.2 saved what layers share with the first of them only.

    Args:
        path: as of `read_state`.
        layers: as of `read_state`.
        ties: of the model.
        cuts: as of `read_state`.
        degree: as of `read_state`.
        rank: as of `read_state`.
    """
    return tied_state(SavedTensors(path, layers), layers, ties, cuts, degree, rank)


def tied_state(
    saved: SavedTensors, layers: Layers, ties: Sequence[Tie], cuts: Mapping[str, TensorCut], degree: int, rank: int
) -> State:
    """As `read_tied_state`, of a checkpoint that was opened for these layers, and may be for others."""
    state = _state_of(saved, layers, cuts, degree, rank)
    for one in ties:
        first, own = one.places[0]
        lacking = {
            layer: name for layer, name in reversed(one.places) if layers[0] <= layer < layers[1] and layer != first
        }
        for layer, name in lacking.items():
            if f"{layer}.{name}" not in state:
                entry = f"{first}.{own}"
                shared = read_state(saved.path, (first, first + 1), cuts, degree, rank).items()
                state |= {
                    f"{layer}.{name}{key.removeprefix(entry)}": value
                    for key, value in shared
                    if key == entry or key.startswith(f"{entry}/")
                }
    return state


def _state_of(saved: SavedTensors, layers: Layers, cuts: Mapping[str, TensorCut], degree: int, rank: int) -> State:
    names = sorted((name for name in saved.kinds if layer_of(name) in range(*layers)), key=layer_of)
    return {name: saved.slice(name, cuts, degree, rank) for name in names}


# The state of layers from the workers that have it to those that lack it.


# Above the tags of all messages of a program (iteration.py, Tags), below the one that wakes blocked groups.
FIRST_TAG = 0x70000000


def take_over(
    copies: Sequence[Copy],
    rank: int,
    transport: Transport,
    given: HeldStage | None,
    taken: HeldStage,
    waits: Callable[[], None] = lambda: None,
    unlike: SliceCopies | None = None,
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
        unlike: does those between workers of unlike degrees; None: there are none.

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
            _ways(copy, transport, unlike)[0](copy, given.state_of(copy.layers))
    if taken is not given:
        taken.prime_optimizer()
        if given is not None:
            for both in layer_runs(held.intersection(taken.numbers)):
                taken.load_layers(both, given.state_of(both))
    for copy in received:
        likes = taken.state_of(copy.layers)
        taken.load_layers(copy.layers, _ways(copy, transport, unlike)[1](copy, likes, waits))
    waits()
    transport.flush()
    return {layer for copy in (*sent, *received) for layer in range(*copy.layers)}


_StateSender = Callable[[Copy, State], None]
_StateReceiver = Callable[[Copy, State, Callable[[], None]], Mapping[str, torch.Tensor]]


def _ways(copy: Copy, transport: Transport, unlike: SliceCopies | None) -> tuple[_StateSender, _StateReceiver]:
    """What sends the state of a copy, and what receives it."""
    if unlike is not None and unlike.concerns(copy):
        return unlike.send, unlike.receive

    def send(copy: Copy, state: State) -> None:
        PackedEntries(state, partial(tag_of_copy, copy.layers)).send(transport, copy.target)

    def received(copy: Copy, likes: State, waits: Callable[[], None]) -> State:
        packed = PackedEntries(likes, partial(tag_of_copy, copy.layers))
        packed.announce(transport, copy.source)
        return dict(packed.received(transport, copy.source, waits))

    return send, received


def tag_of_copy(layers: Layers, number: int) -> int:
    """The tag of a copy's tensors, below 65536 by number; between two workers copies are of unlike layers."""
    return FIRST_TAG + layers[0] * 65536 + number
