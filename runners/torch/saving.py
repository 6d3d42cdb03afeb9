"""A worker's part in the job's checkpoints: what it writes, publishes and reads.

The coordinator's is in resilience/saving.py and membership.py. One worker of those that hold the same layers saves
them, each of its ranks its slices. Where the optimizer is sharded all of them do together, each some blocks
(schemas/blocks.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from ...schemas.blocks import BlockId, split_piece
from ...schemas.checkpoint import Checkpoint, CheckpointFile, missing_layers, print_layers, whole_layers
from ...schemas.documents import digest
from ...schemas.errors import InvalidInputError, RtkError
from ...schemas.slices import TensorCut
from ..checkpoint import discard, prune, publish, writing_folder
from ..resilience.protocol import Publish, Published, Saved
from ..resilience.worker_rules import SavePart
from .checkpoint import read_tied_state, tied_state, write_part
from .data.provider import Provider
from .held_stage import HeldStage, check_same_kind, layer_of
from .saved_tensors import SavedTensors, TensorIndex
from .task import Task
from .tensor_files import Divisions, Shape, State, TensorFile
from .ties import Tie

CHECKPOINTS_KEPT = 3


@dataclass(frozen=True)
class BlockHoldings:
    """Who holds which blocks of the optimizer's state, as one worker sees it.

    Attributes:
        ready: those that it has itself, as of the last step.
        holders: of each block the workers that are to hold it, the owner first.
    """

    ready: Collection[BlockId]
    holders: Mapping[BlockId, Sequence[str]]


def save_part(
    task: Task, held: HeldStage, cuts: Mapping[str, TensorCut], what: SavePart, holdings: BlockHoldings | None = None
) -> Saved:
    """Write a part of a checkpoint; gives what the coordinator is to hear of it.

    Args:
        task: what is trained, and which rank of which worker this is.
        held: the worker's stage.
        cuts: how parameters are cut among the worker's ranks, by name.
        what: the layers whose state is to be saved, and where.
        holdings: where the optimizer is sharded.
    """
    held.prime_optimizer()  # where all iterations were skipped, whoever resumes looks for its state
    layers, is_part = range(*what.layers), holdings is not None
    together = what.together or (task.name,)
    state, shapes = held.state_of(what.layers), dict[str, Shape]()
    if holdings is not None:
        is_first = what.is_last or together[0] == task.name
        state, shapes = _own_blocks(held, state, _own(task.name, layers, together, what.is_last, holdings), is_first)
    try:
        part = write_part(
            Path(what.folder),
            what.iteration,
            what.layers,
            state,
            Divisions({name: cut for name, cut in cuts.items() if layer_of(name) in layers}, shapes),
            rank=(task.share, task.degree) if task.degree > 1 else None,
            part=(together.index(task.name), len(together)) if is_part else None,
        )
    except RtkError as error:
        return Saved(what.iteration, None, error.what)
    return Saved(what.iteration, part)


def _own(
    worker: str, layers: range, together: Sequence[str], is_last: bool, holdings: BlockHoldings
) -> Iterable[BlockId]:
    """The blocks that a worker is to write: at the last moment all that it has, for a holder of others may be gone."""
    for block in holdings.ready:
        writer = next((one for one in holdings.holders.get(block, ()) if one in together), worker)
        if block[0] in layers and (is_last or writer == worker):
            yield block


def _own_blocks(
    held: HeldStage, everything: Mapping[str, torch.Tensor], blocks: Iterable[BlockId], is_first: bool
) -> tuple[State, dict[str, Shape]]:
    """Some blocks' pieces, values and state, and what is in no block; with the shapes of all that is to be saved.

    Parameters are written as pieces, too: whoever steps a block has its values before others have gathered them.

    Args:
        held: the stage.
        everything: that all who hold the layers have alike, parameters among it.
        blocks: to be written.
        is_first: whether what is in no block is written, too.
    """
    assert held.blocks is not None
    blocks = list(blocks)
    shapes = {name: tuple(value.shape) for name, value in everything.items()}
    pieces = held.blocks.values_of(blocks) | held.blocks.state_of(blocks)
    for name, piece in pieces.items():
        entry, span = split_piece(name)
        if span is not None:
            shapes[entry] = shapes[entry.partition("/")[0]] if piece.dim() else ()
    others = {name: value for name, value in everything.items() if is_first and name not in held.blocks.names}
    return others | pieces, shapes


def publish_whole(task: Task, layers: int, message: Publish) -> Published:
    """Make a checkpoint visible whose parts are all written, or discard it; gives what the coordinator is to hear.

    Args:
        task: what is trained.
        layers: how many the model has.
        message: the coordinator's; without parts there is nothing to make visible.
    """
    folder = Path(message.folder)
    if not message.parts:
        discard(folder, message.iteration)
        return Published(message.iteration, None)
    try:
        files, error = _complete(writing_folder(folder, message.iteration), message.parts)
        manifest = Checkpoint(
            iteration=message.iteration,
            layers=layers,
            plan=digest(task.plan),
            seed=task.seed,
            total_microbatches=task.plan.total_microbatches(),
            files=files,
            job=task.settings,
            missing=missing_layers(layers, whole_layers(files)),
            steps=message.taken,
            row=task.batch.row_of(message.iteration) if isinstance(task.batch, Provider) else None,
            hugging_face=task.names,
        )
        path = publish(folder, manifest)
        prune(folder, CHECKPOINTS_KEPT)
    except RtkError as failed:
        return Published(message.iteration, None, failed.what)
    return Published(message.iteration, str(path), error)


def _complete(folder: Path, parts: Sequence[CheckpointFile]) -> tuple[tuple[CheckpointFile, ...], str | None]:
    """The files without those of layers of which some piece was written by nobody; and what is missing of these."""
    found: list[CheckpointFile] = []
    error = None
    for layers, same in groupby(sorted(parts, key=lambda part: part.order), key=lambda part: part.layers):
        files = list(same)
        try:
            if files[0].part is not None:
                TensorIndex([TensorFile(folder / file.name, file) for file in files], range(*layers))
        except InvalidInputError as lacking:
            error = error or f"{print_layers([layers])}: {lacking.what}"
        else:
            found += files
    return tuple(found), error


def load_saved(
    held: HeldStage, path: Path, ties: Sequence[Tie], cuts: Mapping[str, TensorCut], degree: int, share: int
) -> None:
    """Have the state of a checkpoint, whoever has saved it: workers of any degree, with a sharded optimizer or without.

    Args:
        held: the stage; where its optimizer is sharded, of the blocks that it holds the state.
        path: the checkpoint's folder.
        ties: of the model, by the names of whole layers.
        cuts: how parameters are cut among the ranks of the worker, by name.
        degree: how many these are.
        share: which of them this is.

    Raises:
        InvalidInputError: as of `read_state`; or the state is not that of this model and optimizer.
    """
    held.prime_optimizer()
    for layers in held.holds:
        if held.blocks is None:
            held.load_layers(layers, read_tied_state(path, layers, ties, cuts, degree, share))
            continue
        saved = SavedTensors(path, layers)
        for layer in range(*layers):  # of the optimizer's state most is not held here
            state = tied_state(saved, (layer, layer + 1), ties, cuts, degree, share)
            _load_layer(held, layer, state)


def _load_layer(held: HeldStage, layer: int, state: State) -> None:
    """Load what a stage with blocks has of a layer, of the layer's whole state."""
    assert held.blocks is not None
    blocks = [block for block in held.blocks.held if block[0] == layer]
    pieces = held.blocks.state_of(blocks)
    known = {split_piece(name)[0] for name in pieces}
    parameters = {entry.partition("/")[0] for entry in known}
    of_blocks = {name for name in state if "/" in name and name.partition("/")[0] in held.blocks.names}
    held.load_layers((layer, layer + 1), {name: one for name, one in state.items() if name not in of_blocks})
    found: State = {name: own for name in pieces if (own := _piece(name, state)) is not None}
    unknown = {name: state[name] for name in of_blocks - known if name.partition("/")[0] in parameters}
    check_same_kind(pieces, found | unknown)
    held.blocks.load(found, blocks)


def _piece(name: str, state: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """A piece of an entry, of the whole; None where there is none."""
    entry, span = split_piece(name)
    whole = state.get(entry)
    if whole is None or span is None or not whole.dim():
        return whole
    return whole.reshape(-1)[span[0] : span[1]]
