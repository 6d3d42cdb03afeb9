"""The blocks of a stage's layers: which of them its optimizer holds, and what is in them (schemas/blocks.py)."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...schemas.blocks import BlockId, blocks_of, piece_name
from ...schemas.errors import InvalidInputError
from ...schemas.slices import Span
from .optimizers import StageOptimizer, as_tensor, part_of, set_entry


@dataclass(frozen=True, slots=True, eq=False)
class _BlockPart:
    """A piece of a block: of a parameter, by its name in the state, some numbers, or all of them (None)."""

    name: str
    parameter: nn.Parameter
    span: Span | None

    def named(self, key: str = "") -> str:
        """What an entry of the state is called; without a key the piece of the parameter itself."""
        entry = f"{self.name}/{key}" if key else self.name
        return entry if self.span is None else piece_name(entry, *self.span)

    @property
    def value(self) -> torch.Tensor:
        """The numbers, as a view."""
        return part_of(self.parameter.detach(), self.span)


class StageBlocks:
    """All blocks of a stage's layers; of those that are held the optimizer keeps state, and steps them.

    Whoever steps a block makes the same bits of it. A block that is not held gets its values from those who hold it
    (gathering.py). So each has a version of its own: of how many steps of the job its values here are.

    Args:
        parameters: of each layer, by its number in the model, what is dealt in blocks, by names in the layer.
        stepping: the stage's optimizer, which cuts all of these.

    Attributes:
        sizes: of all blocks, in numbers.
        held: the blocks that the optimizer keeps and steps.
        names: in the stage's state, of the parameters that are dealt in blocks.
        versions: of all blocks, of how many steps the values here are. A stage is made, or loaded as a whole, at 0: who
            knows better says so (`set_version`).
    """

    def __init__(self, parameters: Mapping[int, Mapping[str, nn.Parameter]], stepping: StageOptimizer) -> None:
        self._stepping = stepping
        self._parts: dict[BlockId, list[_BlockPart]] = {}
        for layer, named in parameters.items():
            sizes = [(name, parameter.numel()) for name, parameter in named.items()]
            for number, pieces in enumerate(blocks_of(sizes)):
                parts = [(f"{layer}.{one.name}", named[one.name], (one.start, one.stop)) for one in pieces]
                self._parts[layer, number] = [
                    _BlockPart(name, parameter, None if span == (0, parameter.numel()) else span)
                    for name, parameter, span in parts
                ]
        self.sizes = {block: sum(part.value.numel() for part in parts) for block, parts in self._parts.items()}
        self.held: frozenset[BlockId] = frozenset()
        self.names = frozenset(f"{layer}.{name}" for layer, named in parameters.items() for name in named)
        self.versions = dict.fromkeys(self.sizes, 0)
        self._kept: dict[BlockId, int] = {}

    def hold(self, blocks: Iterable[BlockId]) -> None:
        """Keep and step these from now on. Those held before stay as they are; new ones have no state yet.

        A new one's masters are made of its values. Whatever `HeldStage.keep` kept of before can not be restored.

        Args:
            blocks: some of `sizes`.
        """
        self.held = frozenset(blocks)
        pieces: dict[nn.Parameter, list[Span | None]] = {
            part.parameter: [] for parts in self._parts.values() for part in parts
        }
        for block in sorted(self.held):
            for part in self._parts[block]:
                pieces[part.parameter].append(part.span)
        self._stepping.hold(pieces)

    def values_of(self, blocks: Iterable[BlockId]) -> dict[str, torch.Tensor]:
        """The parameters' pieces by name, held or not, as views: `3.qkv.weight[0:65536]`."""
        return {part.named(): part.value for block in sorted(blocks) for part in self._parts[block]}

    def state_of(self, blocks: Iterable[BlockId]) -> dict[str, torch.Tensor]:
        """The optimizer's state of held blocks by name, masters too: `3.qkv.weight/exp_avg[0:65536]`.

        Equal on all who hold a block, names and order included, once it is there (`HeldStage.prime_optimizer`).

        Returns:
            References; numbers as float64 tensors of no dimension, by value.
        """
        return {name: as_tensor(entries[key]) for name, key, entries in self._entries(blocks)}

    def load(self, state: Mapping[str, torch.Tensor], blocks: Collection[BlockId]) -> None:
        """Copy values and state into some blocks, in place; on an error nothing is changed.

        Args:
            state: a value of the same shape and type for all names of `state_of`, or of `values_of`, or of both.
            blocks: which they are; of those that are not held there are only values.

        Raises:
            InvalidInputError: a name is unknown, or its value is of another shape or type.
        """
        values, entries = self.values_of(blocks), list(self._entries(blocks))
        own = values | {name: as_tensor(places[key]) for name, key, places in entries}
        for name, value in state.items():
            if name not in own or (own[name].shape, own[name].dtype) != (value.shape, value.dtype):
                raise InvalidInputError(
                    f"{name} is not of these blocks, or of another shape or type", fix="take it from a peer"
                )
        for name in values.keys() & state.keys():
            values[name].copy_(state[name])
        for name, key, places in entries:
            if name in state:
                set_entry(places, key, state[name])

    def set_version(self, blocks: Iterable[BlockId], version: int) -> None:
        """The values of some blocks are of so many steps."""
        self.versions.update(dict.fromkeys(blocks, version))

    def note_step(self, version: int) -> None:
        """The optimizer has stepped all blocks that are held: their values are of so many steps."""
        self.set_version(self.held, version)

    def keep(self) -> None:
        """Remember the versions of held blocks; a part of `HeldStage.keep`."""
        self._kept = {block: self.versions[block] for block in self.held}

    def restore(self) -> None:
        """Have the versions of before; a part of `HeldStage.restore`."""
        self.versions.update(self._kept)

    def _entries(self, blocks: Iterable[BlockId]) -> Iterable[tuple[str, str, dict[str, Any]]]:
        """Of held ones: what an entry is called, its key, and where it stands."""
        kept: dict[nn.Parameter, dict[Span | None, list[tuple[str, dict[str, Any]]]]] = {}
        for block in sorted(self.held.intersection(blocks)):
            for part in self._parts[block]:
                if part.parameter not in kept:
                    own = kept[part.parameter] = {}
                    for span, key, entries in self._stepping.entries(part.parameter):
                        own.setdefault(span, []).append((key, entries))
                for key, entries in kept[part.parameter].get(part.span, ()):
                    yield part.named(key), key, entries
