"""The tensors of a checkpoint, whole or as slices, whoever has written which part of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from types import MappingProxyType

import torch

from ...schemas.blocks import split_piece
from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers
from ...schemas.slices import Span, TensorCut
from ..checkpoint import MANIFEST, read_manifest, refuse_partial
from .recut import recut
from .tensor_files import Shape, TensorFile, layer_of_entry

NO_CUTS: Mapping[str, TensorCut] = MappingProxyType({})


@dataclass(slots=True)
class _Held:
    """What one rank of a worker has saved of a tensor.

    Attributes:
        shape: of all that it has of it.
        pieces: which of its numbers are where: by [first, stop) a file, and the name there.
    """

    shape: Shape
    dtype: torch.dtype
    pieces: dict[Span, tuple[TensorFile, str]] = field(default_factory=dict)


class TensorIndex:
    """Where the tensors of some files are, of which each may have slices and pieces.

    Args:
        files: of a checkpoint, those of all ranks that have saved the layers in question.
        layers: these; the files may have others.

    Attributes:
        kinds: a tensor on the meta device for every entry of the state, `3.qkv.weight/exp_avg`, shaped as on one GPU.
        cuts: how parameters are cut among ranks, by name.

    Raises:
        InvalidInputError: files contradict each other, or one says of something that no other one has.
    """

    def __init__(self, files: Sequence[TensorFile], layers: range) -> None:
        self._held: dict[str, dict[int, _Held]] = {}
        self.cuts: dict[str, TensorCut] = {}
        self._files: dict[int, set[TensorFile]] = {}  # of each layer
        self._layer: int | None = None  # the one whose files may be open
        self._open: set[TensorFile] = set()
        for file in files:
            self._add(file, layers)
        for file in files:
            self._require_all(file, layers)
        for name, held in self._held.items():
            self._check(name, held)
        self.kinds = {name: self._kind(name) for name in self._held}

    def ranks_of(self, name: str) -> int:
        """How many ranks of a worker have saved an entry."""
        return len(self._held[name])

    def value(self, name: str, rank: int) -> torch.Tensor:
        """What such a rank has of an entry, in memory of its own; quickest layer after layer."""
        layer = int(name.partition(".")[0])
        if layer != self._layer:  # what is read of a file stays mapped until it is closed
            for file in self._open:
                file.close()
            self._layer, self._open = layer, self._files[layer]
        held = self._held[name][rank]
        pieces = [file.read(there) for _, (file, there) in sorted(held.pieces.items(), key=lambda one: one[0])]
        if len(pieces) == 1 or not held.shape:  # what has no dimension is the same in all pieces
            return pieces[0].clone().reshape(held.shape)
        return torch.cat([piece.reshape(-1) for piece in pieces]).reshape(held.shape)

    def kind_of(self, name: str, rank: int) -> torch.Tensor | None:
        """Its shape and type there; None where it has none."""
        held = self._held.get(name, {}).get(rank)
        return None if held is None else torch.empty(held.shape, dtype=held.dtype, device="meta")

    def _add(self, file: TensorFile, layers: range) -> None:
        rank, shapes = file.file.rank[0] if file.file.rank else 0, file.divisions.shapes
        for entry, kind in file.kinds.items():
            name, span = split_piece(entry)
            if name not in shapes:  # some module is called like a piece
                name, span = entry, None
            layer = layer_of_entry(name, file.file.layers, str(file.path))
            if layer not in layers:
                continue
            self._files.setdefault(layer, set()).add(file)
            shape = tuple(kind.shape) if span is None else shapes[name]
            held = self._held.setdefault(name, {}).setdefault(rank, _Held(shape, kind.dtype))
            span = span or (0, prod(shape))
            numbers = span[1] - span[0] if shape else 1
            if (held.shape, held.dtype, numbers) != (shape, kind.dtype, kind.numel()):
                raise _unusable(file, f"{entry} is of another kind than it should be")
            held.pieces.setdefault(span, (file, entry))  # who saves at the last moment may save what others do
        for name, cut in file.divisions.cuts.items():
            if self.cuts.setdefault(name, cut) != cut:
                raise _unusable(file, f"{name} is cut otherwise than in another file")

    def _require_all(self, file: TensorFile, layers: range) -> None:
        rank = file.file.rank[0] if file.file.rank else 0
        for name in file.divisions.shapes:
            is_asked = layer_of_entry(name, file.file.layers, str(file.path)) in layers
            if is_asked and rank not in self._held.get(name, {}):
                raise _unusable(file, f"no part of {name} has been saved")

    def _check(self, name: str, held: dict[int, _Held]) -> None:
        """All ranks have it, and all pieces are there, once."""
        file, _ = next(iter(next(iter(held.values())).pieces.values()))
        if sorted(held) != list(range(file.file.ranks)):
            raise _unusable(file, f"not every rank has {name}")
        cut = self.cuts.get(name)
        for rank, own in held.items():
            starts, ends = zip(*sorted(own.pieces), strict=True)
            if own.shape and (0, *ends) != (*starts, prod(own.shape)):
                raise _unusable(file, f"numbers of {name} are missing, or there twice")
            if cut is not None and (
                cut.dimension not in range(len(own.shape))
                or own.shape[cut.dimension] != sum(b - a for a, b in cut.spans(file.file.ranks, rank))
            ):
                raise _unusable(file, f"{name} is no slice of what it is said to be cut from")

    def _kind(self, name: str) -> torch.Tensor:
        held, parameter = self._held[name], name.partition("/")[0]
        first, cut = held[0], self.cuts.get(parameter)
        shape = list(first.shape)
        if cut is not None and parameter in self._held and first.shape == self._held[parameter][0].shape:
            shape[cut.dimension] = cut.size
        return torch.empty(shape, dtype=first.dtype, device="meta")


class SavedTensors:
    """The tensors of a whole checkpoint, of which one at a time is in memory.

    They are called and shaped as on one GPU, whatever the degrees of the workers that have saved them, and however
    many held the optimizer's state together. A file's bytes are compared with its sha256 before something of it counts.

    Args:
        path: the checkpoint's folder.
        layers: [first, stop), the only ones to be looked at; None: all.

    Attributes:
        path: the folder.
        manifest: what it says that it holds.
        kinds: a tensor on the meta device for every entry of the state, `3.qkv.weight/exp_avg`.

    Raises:
        InvalidInputError: the checkpoint is partial, has no such layers, or a file is missing, none of ours, or lacks
            what others of the same layers have; not before it is read, that it is not the one that was written.
    """

    def __init__(self, path: Path, layers: Layers | None = None) -> None:
        self.path, self.manifest = path, read_manifest(path)
        refuse_partial(path, self.manifest)
        first, stop = layers or (0, self.manifest.layers)
        if not 0 <= first < stop <= self.manifest.layers:
            raise InvalidInputError(
                f"layers [{first}, {stop}) are not among the {self.manifest.layers} of the checkpoint",
                where=f"{path / MANIFEST}, /layers",
                fix="resume with the model that was saved",
            )
        held = [file for file in self.manifest.files if file.layers[0] < stop and first < file.layers[1]]
        self._index = TensorIndex([TensorFile(path / file.name, file) for file in held], range(first, stop))
        self.kinds = self._index.kinds

    def read(self, name: str) -> torch.Tensor:
        """The value of an entry, in memory of its own; quickest layer after layer."""
        return self.slice(name, NO_CUTS, 1, 0)

    def slice(self, name: str, cuts: Mapping[str, TensorCut], degree: int, rank: int) -> torch.Tensor:
        """What a rank of a worker has of an entry, in memory of its own; quickest layer after layer.

        Args:
            name: of the entry.
            cuts: how the parameters of that worker are cut, by name; others are whole.
            degree: ranks of the worker.
            rank: this one of them.

        Raises:
            InvalidInputError: a file is not the one that was written, or the optimizer keeps something of a parameter
                that was cut otherwise, in a shape of its own.
        """
        parameter = name.partition("/")[0]
        saved, wanted = self._index.cuts.get(parameter), cuts.get(parameter)
        ranks = range(self._index.ranks_of(name))
        sources: Sequence[Mapping[str, torch.Tensor]] = [_Reading(self._index, name, number) for number in ranks]
        if saved != wanted and len(sources) > 1:  # the whole, which is then cut in the other way
            whole = recut(sources, [name], _known(parameter, saved), 1, 0)[name]
            sources = [{parameter: self.kinds.get(parameter, whole), name: whole}]
        return recut(sources, [name], _known(parameter, wanted), degree, rank)[name]


class _Reading(Mapping[str, torch.Tensor]):
    """A rank's state of which one entry is read when it is asked for; of others there are only shapes and types.

    Args:
        index: of the checkpoint.
        name: of the entry.
        rank: of those that have saved.
    """

    def __init__(self, index: TensorIndex, name: str, rank: int) -> None:
        self._index, self._name, self._rank = index, name, rank
        self._value: torch.Tensor | None = None

    def __getitem__(self, name: str) -> torch.Tensor:
        if name == self._name:
            if self._value is None:
                self._value = self._index.value(name, self._rank)
            return self._value
        kind = self._index.kind_of(name, self._rank)
        if kind is None:
            raise KeyError(name)
        return kind

    def __contains__(self, name: object) -> bool:  # that of mappings reads what it finds
        return isinstance(name, str) and self._index.kind_of(name, self._rank) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._index.kinds)

    def __len__(self) -> int:
        return len(self._index.kinds)


def _known(parameter: str, cut: TensorCut | None) -> Mapping[str, TensorCut]:
    return NO_CUTS if cut is None else {parameter: cut}


def _unusable(file: TensorFile, what: str) -> InvalidInputError:
    return InvalidInputError(what, where=str(file.path), fix="use another checkpoint")
