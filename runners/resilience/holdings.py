"""What workers with a sharded optimizer tell each other when an epoch begins, and what is to be sent for it.

Each block of parameters has two holders, who have the optimizer's state for it (schemas/blocks.py). Who was lost was
one of them, and who comes is to be one; so in each epoch blocks are dealt anew. Nobody leads that: all tell all what
they have, and who holds what from then on follows from it, for all alike.

State is sent while the epoch's first iteration is computed, and is there before anybody votes on it. So every commit
finds each block with both holders, and nobody else has to know how far that has come.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby

from ...schemas.blocks import BlockFetch, BlockId, Holders, deal_layers, fetches, lost
from ...schemas.plan import Layers
from ...schemas.resumption import layers_in

Runs = tuple[tuple[int, int], ...]  # (numbers of a block, how many such blocks), one after the other


@dataclass(frozen=True)
class Holding:
    """What a worker has as an epoch begins.

    Attributes:
        unit: what it fails with: its machine.
        sizes: by layer that it holds, or is to hold, the numbers of each block; without a layer that has none, such as
            one that shares all it has with others.
        layers: of these, those whose parameters it has.
        held: the blocks of these whose state it has, as of the last step that counts.
        fresh: the blocks of these whose parameters it has as of that step.
    """

    unit: str
    sizes: Mapping[int, tuple[int, ...]]
    layers: frozenset[int] = frozenset()
    held: frozenset[BlockId] = frozenset()
    fresh: frozenset[BlockId] = frozenset()

    def encoded(self) -> bytes:
        """As it is sent: a bit a block, and sizes in runs, for nearly all are alike."""
        held, fresh = _bits(self.held), _bits(self.fresh)
        layers = {
            str(layer): [_runs(sizes), layer in self.layers, f"{held.get(layer, 0):x}", f"{fresh.get(layer, 0):x}"]
            for layer, sizes in sorted(self.sizes.items())
        }
        return json.dumps([self.unit, layers], separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, text: bytes) -> "Holding":
        """What was encoded."""
        unit, told = json.loads(text)
        sizes = {int(layer): tuple(_sizes(runs)) for layer, (runs, *_) in told.items()}
        layers = frozenset(int(layer) for layer, (_, is_there, *_) in told.items() if is_there)
        held = frozenset(chain.from_iterable(_blocks(int(layer), bits) for layer, (*_, bits, _) in told.items()))
        fresh = frozenset(chain.from_iterable(_blocks(int(layer), bits) for layer, (*_, bits) in told.items()))
        return cls(unit, sizes, layers, held, fresh)


def sizes_by_layer(sizes: Mapping[BlockId, int]) -> dict[int, tuple[int, ...]]:
    """The sizes of blocks, layer by layer in the order of their numbers."""
    ordered = sorted(sizes.items())
    return {layer: tuple(size for _, size in blocks) for layer, blocks in groupby(ordered, key=lambda one: one[0][0])}


@dataclass(frozen=True)
class PeerDeal:
    """Who holds which blocks of layers that the same workers hold.

    Attributes:
        layers: ascending.
        ranks: of these workers in the epoch, in the order of their names.
        holders: by block the ranks of its owner and its buddy.
    """

    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    holders: Mapping[BlockId, Holders]


@dataclass(frozen=True)
class Reshard:
    """What follows from all that workers have told, as far as it concerns one of them.

    Attributes:
        deals: of the layers that it is to hold.
        values: what is sent of parameters at once, so that whoever has them has them as of the last step.
        states: what is sent of the optimizer's state: what new holders lack.
        leaving: sources of state that hold the layer of it no longer.
        lost: the layers of which a block's state is held by nobody; before the first commit, its parameters.
    """

    deals: tuple[PeerDeal, ...]
    values: tuple[BlockFetch, ...]
    states: tuple[BlockFetch, ...]
    leaving: frozenset[int]
    lost: tuple[int, ...]

    @property
    def holders(self) -> dict[BlockId, Holders]:
        """By block, of all deals."""
        return dict(chain.from_iterable(one.holders.items() for one in self.deals))

    @property
    def peers(self) -> dict[int, tuple[int, ...]]:
        """By layer the ranks that hold it, ascending."""
        return {layer: tuple(sorted(one.ranks)) for one in self.deals for layer in one.layers}

    def blocks_of(self, rank: int) -> frozenset[BlockId]:
        """What a worker is to hold."""
        return frozenset(block for block, holders in self.holders.items() if rank in holders)


def reshard(
    rank: int,
    names: Sequence[str],
    wanted: Sequence[Sequence[Layers]],
    told: Sequence[Holding],
    is_first: bool = False,
) -> Reshard:
    """Who is to hold what, and what has to be sent for that.

    Args:
        rank: for whom it is reckoned: deals that it has no part in are left out.
        names: of the epoch's workers, by rank.
        wanted: by rank, the layers that each is to hold, in ranges.
        told: by rank.
        is_first: whether nothing is committed: everybody makes all state for itself. Parameters it may have of a first
            step that was undone.
    """
    wants = [layers_in(ranges) for ranges in wanted]
    concerned = wants[rank] | told[rank].layers
    deals, states, gone = list[PeerDeal](), list[BlockFetch](), set[int]()
    holds = _holders(told, lambda one: one.held)
    for ranks, layers in _peer_groups(names, wants, concerned):
        sizes = _sizes_of(layers, told[ranks[0]])
        before = {} if is_first else {block: holds[block] for block in sizes if block in holds}
        dealt = deal_layers(sizes, dict.fromkeys(layers, ranks), {one: told[one].unit for one in ranks}, before)
        if not is_first:
            gone.update(lost(sizes, before))
            states += fetches(dealt, before, sizes)
        if rank in ranks:
            deals.append(PeerDeal(layers, ranks, dealt))
    leaving = {one.source for one in states if told[one.source].layers != wants[one.source]}
    if is_first:
        gone.update(_nowhere_fresh(told, concerned))
    values = tuple(_values(told, concerned))
    return Reshard(tuple(deals), values, tuple(states), frozenset(leaving), tuple(sorted(gone)))


def own_fetches(found: Iterable[BlockFetch], rank: int) -> tuple[BlockFetch, ...]:
    """What a worker sends and gets, all that goes from one to another as one: its messages have the same tags.

    Args:
        found: of what was reckoned for this worker.
        rank: the worker's.
    """
    ways: dict[tuple[int, int], tuple[BlockId, ...]] = {}
    for one in found:
        way = one.source, one.target
        if rank in way:
            ways[way] = (*ways.get(way, ()), *one.blocks)
    return tuple(BlockFetch(*way, blocks) for way, blocks in ways.items())


def _peer_groups(
    names: Sequence[str], wants: Sequence[Collection[int]], concerned: Collection[int]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Ranks, and the layers that just these hold, of those layers that are of concern."""
    order = sorted(range(len(names)), key=lambda one: names[one])
    found: dict[tuple[int, ...], list[int]] = {}
    holders = {layer: [one for one in order if layer in wants[one]] for layer in sorted(set().union(*wants))}
    for layer, ranks in holders.items():
        found.setdefault(tuple(ranks), []).append(layer)
    return ((ranks, tuple(layers)) for ranks, layers in found.items() if not set(layers).isdisjoint(concerned))


def _values(told: Sequence[Holding], layers: Collection[int]) -> Iterator[BlockFetch]:
    """Whoever has parameters of a block that are not of the last step is sent them by one that has."""
    fresh, has = _holders(told, lambda one: one.fresh), [one.layers for one in told]
    for ranks, together in _peer_groups([str(rank) for rank in range(len(told))], has, layers):
        sizes = _sizes_of(together, told[ranks[0]])
        lacking = {block: tuple(rank for rank in ranks if block not in told[rank].fresh) for block in sizes}
        yield from fetches({block: some for block, some in lacking.items() if some}, fresh, sizes)


def _nowhere_fresh(told: Sequence[Holding], layers: Collection[int]) -> tuple[int, ...]:
    """Those of some layers of which somebody has parameters, and nobody all as of the last step."""
    knows = {layer: one for one in told for layer in one.layers.intersection(layers)}
    blocks = chain.from_iterable(_sizes_of((layer,), one) for layer, one in knows.items())
    return lost(blocks, _holders(told, lambda one: one.fresh))


def _sizes_of(layers: Collection[int], told: Holding) -> dict[BlockId, int]:
    """Of all blocks of some layers, as somebody has told who knows them."""
    return {(layer, number): size for layer in layers for number, size in enumerate(told.sizes.get(layer, ()))}


def _holders(told: Sequence[Holding], of: Callable[[Holding], Collection[BlockId]]) -> dict[BlockId, list[int]]:
    """By block the ranks that have told of it, ascending."""
    found: dict[BlockId, list[int]] = {}
    for rank, one in enumerate(told):
        for block in of(one):
            found.setdefault(block, []).append(rank)
    return found


def _runs(sizes: Sequence[int]) -> Runs:
    return tuple((size, len(list(same))) for size, same in groupby(sizes))


def _sizes(runs: Runs) -> Iterator[int]:
    return chain.from_iterable([size] * count for size, count in runs)


def _bits(blocks: Collection[BlockId]) -> dict[int, int]:
    """By layer a number whose bits are the numbers of blocks."""
    found: dict[int, int] = {}
    for layer, number in blocks:
        found[layer] = found.get(layer, 0) | 1 << number
    return found


def _blocks(layer: int, bits: str) -> Iterator[BlockId]:
    """The blocks of a layer whose bits are set."""
    return ((layer, number) for number, bit in enumerate(reversed(f"{int(bits, 16):b}")) if bit == "1")
