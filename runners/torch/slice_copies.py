"""Copies of state between workers of unlike degrees: each rank sends what of its slices another one is to hold."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from ...schemas.plan import Layers
from ...schemas.slices import Span, TensorCut, pieces_for
from ..resilience.protocol import WHOLE, Copy
from .layout import RankLayout
from .packing import PackedEntries
from .rank_group import RankGroup
from .recut import State, cut_of
from .ties import FINGERPRINTS, fingerprint
from .transport import Transport


@dataclass(frozen=True, slots=True)
class _CopiedPart:
    """A part of an entry of the state: along its cut, where it is at the source and at the target; None: all of it."""

    name: str
    cut: TensorCut | None = None
    taken: Span = (0, 0)
    placed: Span = (0, 0)

    @property
    def key(self) -> str:
        """Its name among all parts that go to a rank."""
        return f"{self.name}[{self.placed[0]}:{self.placed[1]}]"

    def at_source(self, state: State) -> torch.Tensor:
        """It as a view of what the source has."""
        return _narrowed(state[self.name], self.cut, self.taken)

    def at_target(self, state: State) -> torch.Tensor:
        """It as a view of what the target has."""
        return _narrowed(state[self.name], self.cut, self.placed)


def _narrowed(tensor: torch.Tensor, cut: TensorCut | None, span: Span) -> torch.Tensor:
    return tensor if cut is None else tensor.narrow(cut.dimension, span[0], span[1] - span[0])


class SliceCopies:
    """What one rank sends and takes of an epoch's copies between workers of unlike degrees.

    Args:
        layout: the ranks of all workers.
        rank: this one.
        transport: the epoch's, by the numbers of ranks.
        cuts: how parameters are cut, by their names in the state.
        tag_of: the tag of each of a copy's messages; between two ranks those of one copy are numbered.
    """

    def __init__(
        self,
        layout: RankLayout,
        rank: int,
        transport: Transport,
        cuts: Mapping[str, TensorCut],
        tag_of: Callable[[Layers, int], int],
    ) -> None:
        self._layout, self._share = layout, layout.seats[rank][1]
        self._transport, self._cuts, self._tag_of = transport, cuts, tag_of

    def concerns(self, copy: Copy) -> bool:
        """Whether a copy is between workers of unlike degrees."""
        return self._layout.degrees[copy.source] != self._layout.degrees[copy.target]

    def send(self, copy: Copy, state: State) -> None:
        """Send what those of the target's ranks that lack it take of this rank.

        Args:
            copy: from this rank's worker.
            state: of its layers.
        """
        for share, target in enumerate(self._layout.ranks_of(copy.target)):
            if copy.ranks is None or share in copy.ranks:
                parts = self._parts(copy, share, state).get(self._share, [])
                self._packed(copy, {one.key: one.at_source(state) for one in parts}).send(self._transport, target)

    def receive(self, copy: Copy, likes: State, waits: Callable[[], None]) -> State:
        """The state of a copy's layers.

        Args:
            copy: to this rank's worker.
            likes: tensors of the shapes and types that this rank is to have.
            waits: called before each message that is waited for.
        """
        found = {name: torch.empty_like(like) for name, like in likes.items()}
        awaited: list[tuple[int, PackedEntries]] = []
        for share, parts in self._parts(copy, self._share, likes).items():
            source = self._layout.ranks_of(copy.source)[share]
            awaited.append((source, self._packed(copy, {one.key: one.at_target(found) for one in parts})))
            awaited[-1][1].announce(self._transport, source)
        for source, packed in awaited:
            for key, value in packed.received(self._transport, source, waits):
                packed.entries[key].copy_(value)
        return found

    def _packed(self, copy: Copy, entries: State) -> PackedEntries:
        """Slices are not contiguous, so that even one that goes alone is sent as a copy."""
        return PackedEntries(entries, partial(self._tag_of, copy.layers), in_copies=True)

    def _parts(self, copy: Copy, share: int, state: State) -> dict[int, list[_CopiedPart]]:
        """By the source's ranks, what goes from each to a rank of the target.

        Args:
            copy: what is copied.
            share: which of the target's ranks it is for.
            state: of its layers; of the source or the target, which have the same entries, each in an order of its
                own: a layer that is cut has the bias of a sum before the matrix, a whole one behind it.
        """
        before, after = self._layout.degrees[copy.source], self._layout.degrees[copy.target]
        found: dict[int, list[_CopiedPart]] = {}
        for name in sorted(state):
            cut = cut_of(name, state, self._cuts)
            if cut is None:
                parts = [(share * before // after, _CopiedPart(name))]
            else:
                pieces = pieces_for(cut, after, share, before)
                parts = [(one.source, _CopiedPart(name, cut, one.taken, one.placed)) for one in pieces]
            for source, part in parts:
                found.setdefault(source, []).append(part)
        return found


def whole_checksums(states: Mapping[int, State], cuts: Mapping[str, TensorCut], group: RankGroup) -> dict[int, str]:
    """Of whole layers, checksums that are the same whatever ranks share them.

    Each is a sum over the ranks: of the bits of each entry, which no order matters to, times an odd number by the
    entry's name. What several ranks have counts once.

    Args:
        states: of this rank, by the model's layers.
        cuts: how parameters are cut, by their names in the state.
        group: the ranks of the worker, all of which call it with the same layers.
    """
    told = torch.zeros(len(states), dtype=torch.float64)
    for place, state in enumerate(states.values()):
        total = 0
        for name, value in state.items():
            cut = cut_of(name, state, cuts)
            if group.rank % (group.degree if cut is None else cut.copies(group.degree)) == 0:
                total += fingerprint([value]) * (zlib.crc32(name.encode()) | 1)
        told[place] = total % FINGERPRINTS
    if group.degree > 1:
        group.reduce(told)
    return {layer: f"{WHOLE}{int(one) % FINGERPRINTS:x}" for layer, one in zip(states, told.tolist(), strict=True)}
