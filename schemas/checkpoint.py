"""Checkpoint: what a folder of tensor files holds, and for which iteration."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .errors import InvalidInputError
from .fields import STRICT, Bytes, Count, Index, Name
from .plan import Layers
from .text import joined

_SHA256 = re.compile("[0-9a-f]{64}")


Portion = tuple[Index, Count]  # a number, and how many there are: (0, 2) and (1, 2) are all of it


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """Tensors of layers [first, stop): all of them, or what one of several workers or ranks has written.

    Attributes:
        name: `layers-<first>-<stop>.safetensors`, with what follows before the dot (`file_name`).
        layers: of it.
        sha256: of its bytes.
        size_bytes: of it.
        rank: of each tensor that is cut among the ranks of a worker the slice of this one; None: tensors are whole.
        part: of tensors that several workers hold in pieces, those that this one of them has written; which pieces
            there are the files say. None: they are whole.
    """

    name: Name
    layers: Layers
    sha256: Name
    size_bytes: Bytes
    rank: Portion | None = None
    part: Portion | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"rank", "part"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def order(self) -> tuple[Layers, int, int]:
        """By which the files of a checkpoint are in order."""
        return self.layers, self.rank[0] if self.rank else 0, self.part[0] if self.part else 0

    @property
    def ranks(self) -> int:
        """Among how many ranks its tensors are cut."""
        return self.rank[1] if self.rank else 1


@dataclass(frozen=True, slots=True)
class HuggingFaceNames:
    """What a model's tensors are called in files of Hugging Face's, by which a checkpoint goes back to that form.

    Attributes:
        folder: that the config was read from; tokenizers and the like lie there.
        config: the model's config.json.
        names: the name there of every parameter and buffer, `3.module.mlp.weight`; tied ones have one name.
        transposed: names, of theirs, of matrices that the layers have the other way round.
    """

    folder: str
    config: dict[str, Any]
    names: dict[str, str]
    transposed: tuple[str, ...] = ()

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A training state after some iterations; whole, or partial where stages have died with their last peer.

    Attributes:
        iteration: the next one to run, which is the number of completed iterations.
        layers: of the model; the files may cut them at other places than the plan that resumes from them.
        plan: the sha256 of the plan that was being executed.
        seed: of the run.
        total_microbatches: of all pipelines in one iteration.
        files: in the order of their layers, which do not overlap; of the same layers by ranks, then by parts.
        job: settings of the run, such as the model's name.
        missing: the layers [first, stop) that no file holds, or of which some rank's is not there.
        steps: of the optimizer in those iterations, of which some may have been skipped; None: as many as iterations.
        row: the first of the data that the next iteration reads, counted through all passes over them; None: the data
            are not read in rows.
        hugging_face: by which the model goes back to the form that it came from; None where that was another.
    """

    iteration: Index
    layers: Count
    plan: Name
    seed: int
    total_microbatches: Count
    files: tuple[CheckpointFile, ...]
    job: dict[str, Any] = field(default_factory=dict)
    missing: tuple[Layers, ...] = ()
    steps: Index | None = None
    row: Index | None = None
    hugging_face: HuggingFaceNames | None = None

    FORMAT: ClassVar[str] = "rtk.checkpoint"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"row", "hugging_face", "steps"})
    __pydantic_config__: ClassVar[Any] = STRICT

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other, or a file's name leads out of the folder."""
        _check_sha256(self.plan, "/plan")
        for index, file in enumerate(self.files):
            _check_file(file, self.layers, f"/files/{index}")
        for index, (earlier, file) in enumerate(zip(self.files, self.files[1:], strict=False), start=1):
            if not (file.layers[0] >= earlier.layers[1] or _is_next(earlier, file)):
                raise InvalidInputError(
                    "the files overlap or are not in the order of their layers", where=f"/files/{index}/layers"
                )
        gaps = missing_layers(self.layers, whole_layers(self.files))
        if self.missing != gaps:
            raise InvalidInputError(f"the files leave out {print_layers(gaps)}", where="/missing")


def whole_layers(files: Iterable[CheckpointFile]) -> tuple[Layers, ...]:
    """The ranges of layers of which each rank has a file, if tensors are cut among several."""
    lacking: dict[Layers, set[int]] = {}
    for file in files:
        number = file.rank[0] if file.rank else 0
        lacking.setdefault(file.layers, set(range(file.ranks))).discard(number)
    return tuple(layers for layers, ranks in sorted(lacking.items()) if not ranks)


def missing_layers(layers: int, held: Iterable[Layers]) -> tuple[Layers, ...]:
    """The layers [first, stop) out of `layers` that are in no range of `held`; empty where all of them are."""
    gaps, reached = [], 0
    for first, stop in sorted(held):
        if first > reached:
            gaps.append((reached, first))
        reached = max(reached, stop)
    return (*gaps, (reached, layers)) if reached < layers else tuple(gaps)


def print_layers(ranges: Iterable[Layers]) -> str:
    """Layers [first, stop) in words, with the last one they include: `no layers`, `layer 3`, `layers 0-1 and 4-7`."""
    names = [str(first) if stop == first + 1 else f"{first}-{stop - 1}" for first, stop in ranges]
    if not names:
        return "no layers"
    told = joined(names)
    return f"layer {told}" if told.isdigit() else f"layers {told}"


def file_name(layers: Layers, rank: Portion | None = None, part: Portion | None = None) -> str:
    """The name of a tensor file of layers [first, stop): `layers-0-3-rank-1-of-2-part-0-of-4.safetensors`."""
    portions = (("rank", rank), ("part", part))
    told = "".join(f"-{name}-{portion[0]}-of-{portion[1]}" for name, portion in portions if portion is not None)
    return f"layers-{layers[0]}-{layers[1]}{told}.safetensors"


def _is_next(earlier: CheckpointFile, file: CheckpointFile) -> bool:
    """Whether a file is another one of the same layers, divided in the same way, and comes behind."""
    divided = [(one.layers, one.ranks, one.part and one.part[1]) for one in (earlier, file)]
    return divided[0] == divided[1] and earlier.order < file.order


def _check_file(file: CheckpointFile, layers: int, where: str) -> None:
    if not file.layers[0] < file.layers[1] <= layers:
        raise InvalidInputError(f"[first, stop) is no range of the {layers} layers", where=f"{where}/layers")
    for key, portion in (("rank", file.rank), ("part", file.part)):
        if portion is not None and not portion[0] < portion[1]:
            raise InvalidInputError(f"{portion[0]} is none of {portion[1]}, which count from 0", where=f"{where}/{key}")
    name = file_name(file.layers, file.rank, file.part)
    if file.name != name:
        raise InvalidInputError(f"the file of these layers is called {name}, not {file.name!r}", where=f"{where}/name")
    _check_sha256(file.sha256, f"{where}/sha256")


def _check_sha256(text: str, where: str) -> None:
    if not _SHA256.fullmatch(text):
        raise InvalidInputError(f"{text!r} is no sha256 in hexadecimal", where=where)
