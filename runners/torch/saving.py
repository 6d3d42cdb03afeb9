"""A worker's part in the job's checkpoints, of which resilience/saving.py is the coordinator's."""

from collections.abc import Sequence
from pathlib import Path

from ...schemas.checkpoint import Checkpoint, missing_layers
from ...schemas.documents import digest
from ...schemas.errors import RtkError
from ..checkpoint import discard, prune, publish
from ..resilience.messages import Publish, Published, Saved, Saver
from .checkpoint import write_part
from .held_stage import HeldStage
from .task import Task

CHECKPOINTS_KEPT = 3


def save_share(
    worker: str, held: HeldStage, savers: Sequence[Saver], folder: str | None, iteration: int
) -> Saved | None:
    """Write a part of a checkpoint, where that falls to this worker; gives what the coordinator is to hear of it.

    Args:
        worker: this one's name.
        held: its stage.
        savers: who writes which layers.
        folder: where; None: no checkpoint is due.
        iteration: how many iterations are done.
    """
    mine = next((saver.layers for saver in savers if saver.worker == worker), None)
    if folder is None or mine is None:
        return None
    try:
        return Saved(iteration, write_part(Path(folder), iteration, mine, held.state_of(mine)))
    except RtkError as error:
        return Saved(iteration, None, error.what)


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
        path = publish(folder, _manifest(task, layers, message))
        prune(folder, CHECKPOINTS_KEPT)
    except RtkError as error:
        return Published(message.iteration, None, error.what)
    return Published(message.iteration, str(path))


def _manifest(task: Task, layers: int, message: Publish) -> Checkpoint:
    return Checkpoint(
        iteration=message.iteration,
        layers=layers,
        plan=digest(task.plan),
        seed=task.seed,
        total_microbatches=task.plan.total_microbatches(),
        files=message.parts,
        job=task.settings,
        missing=missing_layers(layers, (part.layers for part in message.parts)),
    )
