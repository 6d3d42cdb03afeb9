"""Checkpoints on a shared file system: folders that appear whole or not at all; `torch/checkpoint.py` has the tensors.

    DIR/step-00000050/                   checkpoint.json and one tensor file for each stage of the plan that saved it
    DIR/step-00000050-partial/           what was left when a stage had lost its last peer; never resumed from by itself
    DIR/.step-00000050.tmp/              being written
    DIR/.step-00000050.old/              the earlier one of the same step, while the new one takes its place
    DIR/.step-00000050.removed/          being removed

Stages write their parts into the `.tmp` folder, then one process publishes it. Names change by rename only, and what
they name is on the disk before: a crash leaves the earlier checkpoints whole, and at most folders with a dot.
"""

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..schemas.checkpoint import Checkpoint, print_layers
from ..schemas.documents import canonical, read_document
from ..schemas.errors import InvalidInputError, RuntimeFailedError

MANIFEST = "checkpoint.json"

_STEP = re.compile(r"step-(\d{8,})")
_OLD = re.compile(r"\.(step-(\d{8,})(?:-partial)?)\.old")
_UNFINISHED = re.compile(r"\.step-(\d{8,})(?:-partial)?\.(?:tmp|removed)")


class CheckpointFailedError(RuntimeFailedError):
    """A checkpoint could not be written (a full disk, say); earlier ones are whole, and training can go on (exit 5)."""


def writing_folder(folder: Path, iteration: int) -> Path:
    """Where the parts of the checkpoint after `iteration` iterations are gathered, to be published or discarded."""
    return folder / f".{_step_name(iteration)}.tmp"


def publish(folder: Path, manifest: Checkpoint) -> Path:
    """Make a checkpoint of the parts that have been written: from now on it is found, and survives a power failure.

    One process calls this, once every part in `manifest.files` is there. Other files among the parts, such as those of
    an attempt under another plan, are removed. An earlier checkpoint of the same step is replaced.

    Args:
        folder: DIR, on the file system that the stages wrote to.
        manifest: which parts there are; a partial checkpoint where it names missing layers.

    Returns:
        The checkpoint's folder, `step-N` or `step-N-partial`.

    Raises:
        CheckpointFailedError: a part is not there, or the disk does not take it; what there was is still there.
        InvalidInputError: the manifest contradicts itself.
    """
    manifest.validate()
    parts = writing_folder(folder, manifest.iteration)
    final = folder / (_step_name(manifest.iteration) + ("-partial" if manifest.missing else ""))
    with reporting_failure(parts):
        _check_parts(parts, manifest)
        write_durably(parts / MANIFEST, [canonical(manifest)])
        for path in {*parts.iterdir()} - {parts / name for name in (MANIFEST, *(file.name for file in manifest.files))}:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        sync_folder(parts)
        _take_the_place(parts, final)
    return final


def discard(folder: Path, iteration: int) -> None:
    """Remove what has been written of an unpublished checkpoint; what cannot be removed stays, and does no harm."""
    shutil.rmtree(writing_folder(folder, iteration), ignore_errors=True)


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove the oldest whole checkpoints beyond `keep`, and what crashes left of steps before the newest one.

    Partial checkpoints and everything that is not ours stay.

    Args:
        folder: DIR.
        keep: how many stay, at least 1.

    Returns:
        The checkpoints that were removed, oldest first.

    Raises:
        CheckpointFailedError: one cannot be removed.
    """
    if keep < 1:
        raise InvalidInputError(f"{keep} checkpoints cannot be kept", fix="keep at least 1")
    steps = _whole(folder)
    with reporting_failure(folder, "removed"):
        surplus = [steps[step] for step in sorted(steps)[:-keep]]
        for checkpoint in surplus:
            _remove(checkpoint)
        for remains in _remains(folder, before=max(steps, default=0)):
            shutil.rmtree(remains, ignore_errors=True)
    return surplus


def newest(folder: Path) -> Path | None:
    """The whole checkpoint of the highest step in DIR; None where there is none, or no DIR."""
    steps = _whole(folder)
    return steps[max(steps)] if steps else None


def find(path: Path) -> Path:
    """The checkpoint that `--resume PATH` means: PATH itself where it holds one, else the newest whole one in it.

    Raises:
        InvalidInputError: there is none, it is partial, or its `checkpoint.json` breaks the format.
    """
    checkpoint = path if (path / MANIFEST).is_file() else newest(path)
    if checkpoint is None:
        what = "there is no complete checkpoint here" if path.is_dir() else "there is no such folder"
        raise InvalidInputError(
            what, where=str(path), fix="give a folder with step-… folders in it, or one that holds checkpoint.json"
        )
    refuse_partial(checkpoint, read_manifest(checkpoint))
    return checkpoint


def read_manifest(path: Path) -> Checkpoint:
    """What a checkpoint's folder says that it holds, whole or partial.

    Raises:
        InvalidInputError: there is no `checkpoint.json` in it, or it breaks the format.
    """
    return read_document(str(path / MANIFEST), Checkpoint)


def refuse_partial(path: Path, manifest: Checkpoint) -> None:
    """Raise InvalidInputError where layers are missing, with the newest whole checkpoint beside it as the way out."""
    if not manifest.missing:
        return
    whole = newest(path.resolve().parent)
    raise InvalidInputError(
        f"the checkpoint is partial: {print_layers(manifest.missing)} of {manifest.layers} are missing",
        where=str(path),
        fix=f"resume from {whole}" if whole else "start from the beginning: there is no complete checkpoint beside it",
    )


def write_durably(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a file under a temporary name, make it durable and rename it: its name never stands for half of it.

    Raises:
        OSError: the disk is full, or the place cannot be written; the file is what it was before.
    """
    # Not by process number: processes of other machines write here too.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:
            for chunk in chunks:
                stream.write(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def reporting_failure(place: Path, done: str = "written") -> Iterator[None]:
    """Turn the OSErrors of a block into CheckpointFailedErrors at a place."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointFailedError(
            f"the checkpoint could not be {done}: {reason}",
            where=str(error.filename or place),
            fix="make room and see that it may be written to; earlier checkpoints are whole",
        ) from error


def _step_name(iteration: int) -> str:
    return f"step-{iteration:08d}"


def _check_parts(parts: Path, manifest: Checkpoint) -> None:
    for file in manifest.files:
        path = parts / file.name
        found = f"has {path.stat().st_size} bytes" if path.is_file() else "is not there"
        if found != f"has {file.size_bytes:.0f} bytes":
            raise CheckpointFailedError(
                f"a part of the checkpoint {found}, {file.size_bytes:.0f} bytes were written",
                where=str(path),
                fix="write all parts into one folder that all stages share, and publish before the next ones",
            )


def _take_the_place(parts: Path, final: Path) -> None:
    """Rename a folder to a name that may be taken, such that one of the two is found at every moment."""
    old = final.with_name(f".{final.name}.old")
    if old.exists() and final.exists():
        _remove(old)
    if final.exists():  # where it is not but `old` is, that is the earlier one: a crash came between the two renames
        final.replace(old)
    parts.replace(final)
    sync_folder(final.parent)
    with contextlib.suppress(OSError):  # mostly there is none; what stays is not read, and `prune` removes it
        _remove(old)


def _remove(checkpoint: Path) -> None:
    """Remove a checkpoint; it stops being one at once."""
    doomed = checkpoint.with_name(f".{checkpoint.name.strip('.').removesuffix('.old')}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _whole(folder: Path) -> dict[int, Path]:
    """The whole checkpoints by step; those that a crash left under their `.old` name among them."""
    old = _by_step(folder, lambda name: (found := _OLD.fullmatch(name)) and _STEP.fullmatch(found[1]))
    return old | _by_step(folder, _STEP.fullmatch)


def _by_step(folder: Path, match: Callable[[str], re.Match[str] | None]) -> dict[int, Path]:
    found = ((match(path.name), path) for path in _entries(folder))
    return {int(name[1]): path for name, path in found if name and (path / MANIFEST).is_file()}


def _remains(folder: Path, before: int) -> list[Path]:
    """What crashes left of the steps before one: halves, and `.old` ones whose successor is in place."""
    found = [(_UNFINISHED.fullmatch(path.name), _OLD.fullmatch(path.name), path) for path in _entries(folder)]
    return [
        path
        for unfinished, old, path in found
        if (unfinished and int(unfinished[1]) < before) or (old and (folder / old[1]).exists())
    ]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
