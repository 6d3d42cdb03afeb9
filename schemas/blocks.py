"""Blocks of a layer's parameters, and which peers hold the optimizer's state of each (ZeRO, stage 1, with buddies).

Rajbhandari et al. (2020, "ZeRO", section 5.1) give each of n peers 1/n of the optimizer's state. Here each block has
two holders, its owner and a buddy, so that none is lost with a peer. Blocks depend on the layer alone, never on who is
there: whoever comes or goes, whole blocks move, and as few as possible.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType

from .slices import Span

# Numbers of a block; vectors of any machine divide it, so that no kernel computes a piece otherwise than the whole.
BLOCK = 1 << 16
MOST_BLOCKS = 1024  # of a layer: of larger ones blocks are so much longer
HOLDERS = 2
UNEVEN = 0.01  # of a peer's share, by which loads may differ from it before blocks are moved for it

BlockId = tuple[int, int]  # (layer of the model, number in that layer)
Holders = tuple[int, ...]  # the owner, and the buddy where there is one, by their numbers among the peers
_PIECE = re.compile(r"(.+)\[([0-9]+):([0-9]+)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """Numbers [start, stop) of a parameter, in row-major order; `name` is the parameter's in its layer."""

    name: str
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many."""
        return self.stop - self.start


def blocks_of(sizes: Sequence[tuple[str, int]]) -> tuple[tuple[Piece, ...], ...]:
    """The blocks of a layer.

    Large parameters are cut at multiples of a block's length; what is smaller than one goes together.

    Args:
        sizes: name and numbers of each parameter, in the layer's order; of one that is shared by ranks, of the slice.
    """
    total = sum(size for _, size in sizes)
    length = BLOCK * max(1, -(-total // (BLOCK * MOST_BLOCKS)))
    found: list[tuple[Piece, ...]] = []
    together: list[Piece] = []
    for name, size in sizes:
        ends = [*range(0, size, length), size]
        for start, stop in pairwise(ends) if size else ():
            piece = Piece(name, start, stop)
            if piece.size == length:
                found.append((piece,))
                continue
            if sum(one.size for one in together) + piece.size > length:
                found.append(tuple(together))
                together = []
            together.append(piece)
    return (*found, tuple(together)) if together else tuple(found)


def piece_name(name: str, start: int, stop: int) -> str:
    """What a part of an entry of the state is called: `3.qkv.weight/exp_avg[65536:131072]`."""
    return f"{name}[{start}:{stop}]"


def split_piece(name: str) -> tuple[str, Span | None]:
    """The whole entry's name, and which numbers of it are meant; None: all of them."""
    found = _PIECE.fullmatch(name)
    return (name, None) if found is None else (found[1], (int(found[2]), int(found[3])))


def shares(units: Sequence[str]) -> tuple[float, ...]:
    """Of the whole state, what each peer is to hold, 1 being all of it.

    Even, but where one failure unit has more than half of the peers: then each block has a holder outside it.

    Args:
        units: of each peer what it fails with, such as its machine.
    """
    peers = len(units)
    held = min(HOLDERS, peers)
    largest = max(units, key=units.count)
    inside = units.count(largest)
    if inside == peers or held * inside <= peers:
        return (held / peers,) * peers
    return tuple(1 / inside if unit == largest else 1 / (peers - inside) for unit in units)


def deal(
    sizes: Mapping[BlockId, int],
    units: Sequence[str],
    before: Mapping[BlockId, Collection[int]] = MappingProxyType({}),
) -> dict[BlockId, Holders]:
    """Who holds which block: two peers of unlike failure units where there are such, evenly, with least moves.

    Loads end within `UNEVEN` of the peers' shares, or within a block of the largest size. Pairs of holders are as
    unlike as can be, so that many can help out when one is lost. Owners are dealt evenly among the holders.

    Args:
        sizes: of all blocks of layers that the same peers hold, in numbers.
        units: of each peer what it fails with; peers are known by their places here, in an order that all agree on.
        before: of blocks, the peers that hold the state now, up to date.
    """
    table = _Deal(sizes, units)
    for block, peers in sorted(before.items()):
        if block in sizes:
            table.keep(block, sorted(peers))
    for block in sorted(sizes, key=lambda one: (-sizes[one], one)):
        table.complete(block)
    table.even_out()
    return table.with_owners()


def deal_layers(
    sizes: Mapping[BlockId, int],
    peers: Mapping[int, Sequence[int]],
    units: Mapping[int, str],
    before: Mapping[BlockId, Collection[int]] = MappingProxyType({}),
) -> dict[BlockId, Holders]:
    """As `deal`, of layers that may have unlike holders: those with the same ones are dealt together.

    Args:
        sizes: of all blocks of the layers.
        peers: of each layer the workers that hold it, by any numbers, in an order that all agree on.
        units: of each worker what it fails with.
        before: of blocks, the workers that hold the state now, up to date.
    """
    together: dict[tuple[int, ...], list[BlockId]] = {}
    for block in sorted(sizes):
        together.setdefault(tuple(peers[block[0]]), []).append(block)
    found: dict[BlockId, Holders] = {}
    for workers, blocks in together.items():
        place = {worker: number for number, worker in enumerate(workers)}
        known = {block: [place[one] for one in before.get(block, ()) if one in place] for block in blocks}
        dealt = deal({block: sizes[block] for block in blocks}, [units[worker] for worker in workers], known)
        found |= {block: tuple(workers[peer] for peer in holders) for block, holders in dealt.items()}
    return found


@dataclass(frozen=True, slots=True)
class BlockFetch:
    """The peer `source` sends the state of some blocks to the peer `target`."""

    source: int
    target: int
    blocks: tuple[BlockId, ...]


def fetches(
    dealt: Mapping[BlockId, Holders], before: Mapping[BlockId, Collection[int]], sizes: Mapping[BlockId, int]
) -> tuple[BlockFetch, ...]:
    """What has to be sent for a deal, by whoever has sent least; blocks that nobody holds are left out.

    Args:
        dealt: as of `deal`.
        before: as of `deal`.
        sizes: as of `deal`.
    """
    sent: dict[int, int] = {}
    found: dict[tuple[int, int], list[BlockId]] = {}
    for block, holders in sorted(dealt.items()):
        sources = before.get(block, ())
        for target in sorted(set(holders).difference(sources)) if sources else ():
            source = min(sources, key=lambda peer: (sent.get(peer, 0), peer))
            sent[source] = sent.get(source, 0) + sizes[block]
            found.setdefault((source, target), []).append(block)
    return tuple(BlockFetch(*way, tuple(blocks)) for way, blocks in sorted(found.items()))


def lost(sizes: Iterable[BlockId], before: Mapping[BlockId, Collection[int]]) -> tuple[int, ...]:
    """The layers that have a block whose state nobody holds, ascending."""
    return tuple(sorted({layer for layer, number in sizes if not before.get((layer, number))}))


@dataclass(eq=False)
class _Deal:
    """A deal under way.

    Attributes:
        sizes, units: as of `deal`.
        holders: of each block so far.
        loads: numbers that each peer holds.
        between: by two peers, ascending, the blocks that both hold.
    """

    sizes: Mapping[BlockId, int]
    units: Sequence[str]
    holders: dict[BlockId, list[int]] = field(default_factory=dict)
    loads: list[int] = field(default_factory=list)
    between: dict[tuple[int, int], dict[BlockId, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.loads = [0] * len(self.units)
        self._peers = range(len(self.units))
        self._is_one_unit = len(set(self.units)) == 1
        self._together: dict[tuple[int, int], int] = {}  # numbers that two peers both hold
        total = sum(self.sizes.values())
        self._targets = [share * total for share in shares(self.units)]
        self._slack = [max(UNEVEN * target, max(self.sizes.values(), default=0)) for target in self._targets]

    def keep(self, block: BlockId, peers: Sequence[int]) -> None:
        """Let those that hold a block go on, as many as are to; fewest numbers first."""
        kept: list[int] = []
        for peer in sorted(peers, key=lambda one: (self.loads[one] - self._targets[one], one)):
            if len(kept) < HOLDERS and self._may_join(peer, kept):
                kept.append(peer)
        for peer in kept:
            self._add(block, peer)

    def complete(self, block: BlockId) -> None:
        """Find the holders that a block lacks."""
        while len(self.holders.get(block, ())) < min(HOLDERS, len(self.units)):
            self._add(block, self._best(block))

    def even_out(self) -> None:
        """Move blocks from who holds too much, or to who holds too little, until nobody does."""
        while self._move_one():
            pass

    def with_owners(self) -> dict[BlockId, Holders]:
        """The holders, of which the one that owns less so far is the owner."""
        owned = [0.0] * len(self.units)
        found: dict[BlockId, Holders] = {}
        for block in sorted(self.holders):
            first, *others = sorted(self.holders[block], key=lambda peer: (owned[peer] / self._targets[peer], peer))
            owned[first] += self.sizes[block]
            found[block] = (first, *others)
        return found

    def _may_join(self, peer: int, others: Collection[int]) -> bool:
        """Whether a peer may hold what others hold."""
        if self._is_one_unit:
            return peer not in others
        return all(self.units[peer] != self.units[other] for other in others)

    def _best(self, block: BlockId) -> int:
        """Who shares least with the other holder, of those that are to hold more; else who is to hold most more."""
        own = self.holders.get(block, [])
        candidates = [peer for peer in self._peers if self._may_join(peer, own)]
        lacking = [peer for peer in candidates if self._excess(peer) + self.sizes[block] / 2 <= 0] if own else []
        if lacking:
            return min(lacking, key=lambda peer: (self._shared(own[0], peer) / self._targets[peer], self._excess(peer)))
        return min(candidates, key=self._excess)

    def _move_one(self) -> bool:
        """Move a block where loads are too uneven, so that they become more even; False: there is none."""
        order = sorted(self._peers, key=lambda peer: (self._excess(peer), peer))
        for giver in reversed(order):
            for taker in order:
                gap = self._excess(giver) - self._excess(taker)
                is_uneven = self._excess(giver) > self._slack[giver] or self._excess(taker) < -self._slack[taker]
                if gap <= 0 or not is_uneven:
                    break  # nor is it with those that hold more
                block = self._movable(giver, taker, gap)
                if block is not None:
                    self._remove(block, giver)
                    self._add(block, taker)
                    return True
        return False

    def _movable(self, giver: int, taker: int, gap: float) -> BlockId | None:
        """A block of one peer that another one may have instead of it, smaller than what lies between their loads."""
        others = [peer for peer in self._peers if peer != giver and self._may_join(taker, (peer,))]
        for other in sorted(others, key=lambda peer: -self._shared(giver, peer)):
            for block in self.between.get(_pair(giver, other), ()):
                if self.sizes[block] < gap:
                    return block
        return None

    def _excess(self, peer: int) -> float:
        return self.loads[peer] - self._targets[peer]

    def _shared(self, one: int, other: int) -> int:
        return self._together.get(_pair(one, other), 0)

    def _add(self, block: BlockId, peer: int) -> None:
        own = self.holders.setdefault(block, [])
        for other in own:
            self.between.setdefault(_pair(peer, other), {})[block] = None
            self._together[_pair(peer, other)] = self._shared(peer, other) + self.sizes[block]
        own.append(peer)
        self.loads[peer] += self.sizes[block]

    def _remove(self, block: BlockId, peer: int) -> None:
        own = self.holders[block]
        own.remove(peer)
        for other in own:
            del self.between[_pair(peer, other)][block]
            self._together[_pair(peer, other)] -= self.sizes[block]
        self.loads[peer] -= self.sizes[block]


def _pair(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)
