"""Parameters after a step of a sharded optimizer: each worker has those of its blocks, and gets the others' from them.

Each owner sends the values of its blocks, layer by layer, to all others that hold the layer: half of what an all-reduce
takes, and bits as they are, which a sum with zeros would not leave (-0 + 0 is 0).
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial

from ...schemas.blocks import BlockId, Holders, deal_layers
from ..program import Program
from .packing import PackedEntries
from .stage_blocks import StageBlocks
from .transport import Transport

# Above the tags of all messages of a program, below those of copies; two for each layer and type, by turns.
GATHER_TAG = 0x60000000
_TYPES = 8  # of parameters in a layer, at most
LOOK_AHEAD = 3  # layers that are under way together, so that buffers for few of them are there at once

Peers = Mapping[int, tuple[int, ...]]  # of each layer the workers that hold it, ascending


def peers_of(program: Program, number: int) -> Peers:
    """Of each of a worker's layers all workers that sum its gradients, this one among them."""
    reduction = program.reduction(number)
    return {layer: part.ranks for part in (*reduction.parts, *reduction.sealed) for layer in range(*part.layers)}


def fewest_peers(program: Program) -> int:
    """Of all layers the least number of workers that hold one."""
    return min(len(ranks) for number in range(len(program.workers)) for ranks in peers_of(program, number).values())


@dataclass(frozen=True, eq=False)
class Gathering:
    """Who has which blocks of a worker's layers.

    Attributes:
        blocks: the worker's.
        number: the worker's.
        peers: that hold its layers.
        holders: of all their blocks, by the workers' numbers.
    """

    blocks: StageBlocks
    number: int
    peers: Peers
    holders: Mapping[BlockId, Holders]

    @classmethod
    def dealt(cls, blocks: StageBlocks, program: Program, number: int) -> "Gathering":
        """A deal among workers that do not outlive each other, so that all are of one failure unit; blocks are held."""
        peers = peers_of(program, number)
        units = {worker: "" for workers in peers.values() for worker in workers}
        found = cls(blocks, number, peers, deal_layers(blocks.sizes, peers, units))
        blocks.hold(block for block, holders in found.holders.items() if number in holders)
        return found

    def run(self, transport: Transport, version: int) -> None:
        """Send what this worker owns, and have what others do; all that hold one of the layers do so at once.

        Others may not have taken yet what was sent (`Transport.flush`).

        Args:
            transport: reaches them.
            version: how many steps of the job the values are of; two that follow each other are unlike.

        Raises:
            RuntimeFailedError: a connection broke; some values here are the new ones, and others not, as
                `blocks.versions` says.
        """
        layers = sorted(self.peers)
        posted: dict[int, dict[int, PackedEntries]] = {}
        for place, layer in enumerate(layers):
            for ahead in layers[place : place + LOOK_AHEAD]:
                if ahead not in posted:
                    posted[ahead] = self._post(ahead, transport, version)
                    # so that nobody waits for all others at each layer
                    self._packed(ahead, self.number, version).send(transport, *self._others(ahead))
            for owner, packed in posted.pop(layer).items():
                for name, value in packed.received(transport, owner):
                    packed.entries[name].copy_(value)
                self.blocks.set_version(self._owned(layer, owner), version)

    def _post(self, layer: int, transport: Transport, version: int) -> dict[int, PackedEntries]:
        """Announce what others send of a layer; gives it by owner."""
        owners = [one for one in self._others(layer) if self._owned(layer, one)]
        found = {owner: self._packed(layer, owner, version) for owner in owners}
        for owner, packed in found.items():
            packed.announce(transport, owner)
        return found

    def _others(self, layer: int) -> list[int]:
        """Who else holds a layer."""
        return [peer for peer in self.peers[layer] if peer != self.number]

    def _packed(self, layer: int, owner: int, version: int) -> PackedEntries:
        """What a worker owns of a layer, in one message a type."""
        values = self.blocks.values_of(self._owned(layer, owner))
        return PackedEntries(values, partial(_tag, layer, version), sys.maxsize, in_copies=True)

    def _owned(self, layer: int, owner: int) -> list[BlockId]:
        return self._by_owner.get((layer, owner), [])

    @cached_property
    def _by_owner(self) -> dict[tuple[int, int], list[BlockId]]:
        """By layer and owner its blocks, in their order."""
        found: dict[tuple[int, int], list[BlockId]] = {}
        for block in sorted(self.holders):
            found.setdefault((block[0], self.holders[block][0]), []).append(block)
        return found


def _tag(layer: int, version: int, kind: int) -> int:
    return GATHER_TAG + 2 * (layer * _TYPES + kind) + version % 2
