"""A worker's blocks through the epochs of a resilient run: what it tells of them, is sent of them, and steps.

Between a commit and the next iteration, and between two epochs, nobody has all: a worker that has stepped has stepped
its own blocks, and the parameters of all others are still to come (`gather`). What an epoch finds is put right in its
beginning, in two parts. Parameters, without which nothing can be computed, are sent at once. The optimizer's state of
blocks that a worker holds anew is on its way while the first iteration is computed, and is there before the worker
votes on it (`end`).
"""

from collections.abc import Callable, Mapping, Sequence

import torch

from ...schemas.blocks import BlockFetch, BlockId
from ...schemas.plan import Layers
from ..resilience.holdings import Holding, Reshard, own_fetches, reshard, sizes_by_layer
from ..resilience.protocol import Epoch
from .gathering import Gathering
from .held_stage import HeldStage
from .packing import PackedEntries
from .stage_blocks import StageBlocks
from .transport import Transport

# Below those of examinations, above those of programs and of what is gathered.
LENGTH_TAG, HOLDING_TAG = 0x6B000000, 0x6B000001
VALUES_TAG, STATES_TAG = 0x69000000, 0x6A000000
MESSAGE_BYTES = 1 << 24  # of those that parts of a state are sent in, or one entry


class Shards:
    """The blocks of one worker.

    Args:
        unit: what this worker fails with: its machine.

    Attributes:
        rank: this worker's in the present epoch.
        names: of the epoch's workers, by rank.
        reshard: what is to be done in it; None before the first.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._awaited = frozenset[BlockId]()  # held, and their state is still to come
        self._whole = 0  # the steps in all parameters, when they were made the same last
        self._taken = 0
        self._due: list[tuple[BlockFetch, PackedEntries]] = []
        self._transport: Transport | None = None
        self._gathering: Gathering | None = None  # of the epoch, once there was one
        self.rank = 0
        self.names: tuple[str, ...] = ()
        self.reshard: Reshard | None = None

    def meet(
        self,
        epoch: Epoch,
        rank: int,
        wanted: Sequence[Sequence[Layers]],
        transport: Transport,
        before: HeldStage | None,
        held: HeldStage | None,
        waits: Callable[[], None],
    ) -> tuple[int, ...]:
        """Tell all others what this worker has, hear what they have, and have parameters as of the last step.

        Where nothing is committed, it holds what it is to hold when this is done, and makes that itself.

        Args:
            epoch: which begins.
            rank: this worker's in it.
            wanted: by rank, the layers that each is to hold, in ranges.
            transport: the epoch's.
            before: what it has held until now; None where it has no state.
            held: what it is to hold: the same stage, or another one; None: nothing any more, and `give` follows.
            waits: called before each message that is waited for.

        Returns:
            The layers of which nobody has the state of some block: then nothing can begin.

        Raises:
            RuntimeFailedError: a connection broke, or was interrupted.
        """
        self.rank, self.names, self._taken = rank, tuple(seat.worker for seat in epoch.present), epoch.taken
        self._transport, self._due, self.reshard, self._gathering = transport, [], None, None
        own = self._holding(before, held)
        if before is not None and not epoch.nothing_committed and own.held != _blocks_of(before).held:
            _blocks_of(before).hold(own.held)  # what is of another step never counts again
        self._awaited = frozenset()
        told = _exchanged(own, rank, len(self.names), transport, waits)
        found = reshard(rank, self.names, wanted, told, epoch.nothing_committed)
        if found.lost and not (epoch.nothing_committed and epoch.resume is not None):  # else all is loaded again
            return found.lost
        self.reshard, self._whole = found, epoch.taken
        if before is not None:
            self._take_values(_blocks_of(before), found.values, waits)
        if epoch.nothing_committed and held is not None:
            _blocks_of(held).set_version(_blocks_of(held).sizes, epoch.taken)
            _blocks_of(held).hold(found.blocks_of(rank))
            held.prime_optimizer()
        return ()

    def begin(self, before: HeldStage | None, held: HeldStage) -> None:
        """Hold what this worker is to hold; what it lacks of that is on its way from now on.

        Args:
            before, held: as of `meet`, which has come first; parameters, and all that is in no block, are there.
        """
        assert self.reshard is not None and self._transport is not None
        blocks, dealt = _blocks_of(held), self.reshard.blocks_of(self.rank)
        has = frozenset[BlockId]() if before is None else _blocks_of(before).held
        blocks.set_version(blocks.sizes, self._taken)
        blocks.hold(has | dealt if held is before else dealt)
        self._awaited = dealt - has
        for stage in (held, before):
            if stage is not None:
                stage.prime_optimizer()
        if before is not None and held is not before:
            blocks.load(_blocks_of(before).state_of(has & dealt), has & dealt)
        if before is not None:
            self._send_states(before)
        for one in own_fetches(self.reshard.states, self.rank):
            if one.target == self.rank:
                packed = _packed(STATES_TAG, blocks.state_of(one.blocks))
                packed.announce(self._transport, one.source)
                self._due.append((one, packed))

    def give(self, before: HeldStage) -> None:
        """Send what others lack of the state of a stage that is given up, and wait until they have it.

        Args:
            before: as of `meet`, which has come first.

        Raises:
            RuntimeFailedError: a connection broke, or was interrupted.
        """
        assert self._transport is not None
        before.prime_optimizer()
        self._send_states(before)
        self._transport.flush()
        self._transport = None

    def _send_states(self, before: HeldStage) -> None:
        assert self.reshard is not None and self._transport is not None
        for one in own_fetches(self.reshard.states, self.rank):
            if one.source == self.rank:
                _packed(STATES_TAG, _blocks_of(before).state_of(one.blocks)).send(self._transport, one.target)

    def end(self, held: HeldStage, waits: Callable[[], None] = lambda: None) -> None:
        """Have what was on its way, in either direction, and hold no more than is to be held; again it does nothing.

        Args:
            held: as of `begin`.
            waits: called before each message that is waited for.

        Raises:
            RuntimeFailedError: a connection broke, or was interrupted.
        """
        if self.reshard is None or self._transport is None:
            return
        blocks, dealt = _blocks_of(held), self.reshard.blocks_of(self.rank)
        for one, packed in self._due:
            blocks.load(dict(packed.received(self._transport, one.source, waits)), one.blocks)
            self._awaited -= set(one.blocks)
        if any(one.source == self.rank for one in self.reshard.states):
            waits()
            self._transport.flush()
        if blocks.held != dealt:
            blocks.hold(dealt)
        self._due, self._transport = [], None

    @property
    def ends_at_once(self) -> bool:
        """Whether somebody gives up a stage of whose state others hold parts from now on."""
        return self.reshard is not None and bool(self.reshard.leaving)

    @property
    def sources(self) -> frozenset[int]:
        """Whose messages this worker has to wait for at most."""
        assert self.reshard is not None
        fetched = (*self.reshard.values, *self.reshard.states)
        return frozenset(one.source for one in fetched if one.target == self.rank)

    def is_whole(self, taken: int) -> bool:
        """Whether no step was taken since all parameters were the same on all peers.

        Blocks do not tell: where there are few, a worker holds none, and has all parameters from others.

        Args:
            taken: steps until now.
        """
        return self.reshard is None or taken == self._whole

    def gather(self, held: HeldStage, taken: int, transport: Transport) -> None:
        """Have the parameters that others have stepped, and send them one's own.

        Args:
            held: this worker's stage.
            taken: steps until now, the one included whose parameters are gathered.
            transport: the epoch's.

        Raises:
            RuntimeFailedError: a connection broke, or was interrupted.
        """
        assert self.reshard is not None
        if self._gathering is None:
            self._gathering = Gathering(_blocks_of(held), self.rank, self.reshard.peers, self.reshard.holders)
        self._gathering.run(transport, taken)
        self._whole = taken

    def ready(self, held: HeldStage) -> frozenset[BlockId]:
        """The blocks whose state is here."""
        return _blocks_of(held).held - self._awaited

    @property
    def holders(self) -> dict[BlockId, tuple[str, ...]]:
        """The names of those who hold the blocks of this worker's layers, owners first."""
        holders = {} if self.reshard is None else self.reshard.holders
        return {block: tuple(self.names[one] for one in ranks) for block, ranks in holders.items()}

    def _holding(self, before: HeldStage | None, held: HeldStage | None) -> Holding:
        """What this worker has of blocks, as of the last step that counts."""
        sizes = {} if held is None else sizes_by_layer(_blocks_of(held).sizes)
        if before is None:
            return Holding(self._unit, sizes)
        blocks = _blocks_of(before)
        fresh = frozenset(block for block, version in blocks.versions.items() if version == self._taken)
        sizes = sizes_by_layer(blocks.sizes) | sizes
        return Holding(self._unit, sizes, frozenset(before.numbers), (blocks.held - self._awaited) & fresh, fresh)

    def _take_values(self, blocks: StageBlocks, values: Sequence[BlockFetch], waits: Callable[[], None]) -> None:
        """Send and have parameters as of the last step."""
        assert self._transport is not None
        due = []
        for one in own_fetches(values, self.rank):
            if one.source == self.rank:
                _packed(VALUES_TAG, blocks.values_of(one.blocks)).send(self._transport, one.target)
            elif one.target == self.rank:
                packed = _packed(VALUES_TAG, blocks.values_of(one.blocks))
                packed.announce(self._transport, one.source)
                due.append((one, packed))
        for one, packed in due:
            blocks.load(dict(packed.received(self._transport, one.source, waits)), one.blocks)
            blocks.set_version(one.blocks, self._taken)
        if values:
            waits()
            self._transport.flush()


def _blocks_of(held: HeldStage) -> StageBlocks:
    """Of a stage whose optimizer is sharded."""
    assert held.blocks is not None
    return held.blocks


# Messages.


def _exchanged(own: Holding, rank: int, size: int, transport: Transport, waits: Callable[[], None]) -> list[Holding]:
    """What all tell, by rank."""
    others = [other for other in range(size) if other != rank]
    text = torch.frombuffer(bytearray(own.encoded()), dtype=torch.uint8)
    length = torch.tensor([text.numel()])
    for other in others:
        transport.post_receive(LENGTH_TAG, other, length)
        transport.send(LENGTH_TAG, other, length)
    for other in others:
        waits()
        room = torch.empty(int(transport.receive(LENGTH_TAG, other)), dtype=torch.uint8)
        transport.post_receive(HOLDING_TAG, other, room)
        transport.send(HOLDING_TAG, other, text)
    told = {rank: own}
    for other in others:
        waits()
        told[other] = Holding.decoded(bytes(transport.receive(HOLDING_TAG, other).numpy()))
    transport.flush()
    return [told[one] for one in range(size)]


def _packed(tag: int, entries: Mapping[str, torch.Tensor]) -> PackedEntries:
    """Entries in copies: before all are taken, they may change in another epoch."""
    return PackedEntries(entries, tag.__add__, MESSAGE_BYTES, in_copies=True, is_checked=True)
