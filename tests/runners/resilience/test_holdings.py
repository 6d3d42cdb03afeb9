"""What is sent so that each block has two holders again, whoever is lost, comes or moves, and whenever that happens."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.runners.resilience.holdings import Holding, Reshard, own_fetches, reshard, sizes_by_layer
from rtk.schemas.blocks import BlockFetch, BlockId
from rtk.schemas.plan import Layers
from rtk.schemas.resumption import layers_in

LAYERS = 4
SIZES = {layer: (64,) * (3 + layer) + (10 * layer + 1,) for layer in range(LAYERS)}


@given(
    st.text(max_size=20),
    st.dictionaries(st.integers(0, 300), st.lists(st.integers(1, 2**30), min_size=1, max_size=5).map(tuple)),
    st.frozensets(st.integers(0, 300)),
    st.data(),
)
def test_what_is_told_is_heard(
    unit: str, sizes: dict[int, tuple[int, ...]], layers: frozenset[int], data: st.DataObject
) -> None:
    """A holding comes out of its bytes as it went in."""
    blocks = sorted((layer, number) for layer, own in sizes.items() for number in range(len(own)))
    some = st.frozensets(st.sampled_from(blocks)) if blocks else st.just(frozenset[BlockId]())
    told = Holding(unit, sizes, layers & sizes.keys(), data.draw(some), data.draw(some))
    assert Holding.decoded(told.encoded()) == told


@dataclass
class Peer:
    """A worker.

    Attributes:
        unit: its machine.
        wanted: the layers that it is to hold, and holds once the epoch has begun.
        layers: those whose parameters it has.
        states: by block that it holds the steps in its state.
        values: by block of its layers the steps in its parameters.
    """

    unit: str
    wanted: tuple[Layers, ...]
    layers: frozenset[int] = frozenset()
    states: dict[BlockId, int] = field(default_factory=dict)
    values: dict[BlockId, int] = field(default_factory=dict)

    def told(self, taken: int) -> Holding:
        """What it says when an epoch begins."""
        sizes = {layer: SIZES[layer] for layer in self.layers | layers_in(self.wanted)}
        held = frozenset(block for block, steps in self.states.items() if steps == taken)
        fresh = frozenset(block for block, steps in self.values.items() if steps == taken)
        return Holding(self.unit, sizes, self.layers, held, fresh)


@dataclass
class Cluster:
    """Peers, and how many steps were taken; any epoch may break off after any of its messages."""

    peers: dict[str, Peer]
    rng: random.Random
    taken: int = 0

    def begin(self, *, is_first: bool = False, breaks: bool = False) -> bool:
        """An epoch; gives whether all blocks have their holders then."""
        names = self.rng.sample(sorted(self.peers), len(self.peers))
        peers = [self.peers[name] for name in names]
        told = [peer.told(self.taken) for peer in peers]
        found = [reshard(rank, names, [one.wanted for one in peers], told, is_first) for rank in range(len(names))]
        check_alike(found, told)
        if any(one.lost for one in found):
            return False
        for one in all_of(found, lambda plan: plan.values):
            source, target = peers[one.source], peers[one.target]
            assert all(source.values[block] == self.taken for block in one.blocks)
            target.values |= dict.fromkeys(one.blocks, self.taken)
        for peer in peers:
            assert all(peer.values[block] == self.taken for block in peer.values if block[0] in peer.layers)
        if breaks and self.rng.random() < 0.3:
            return True
        gone = {rank: dict(peer.states) for rank, peer in enumerate(peers)}
        for rank, peer in enumerate(peers):
            self._take_place(peer, found[rank].blocks_of(rank), is_first)
        states = all_of(found, lambda plan: plan.states)
        if breaks and not found[0].leaving:
            states = self.rng.sample(states, self.rng.randint(0, len(states)))
        for one in states:
            assert all(gone[one.source][block] == self.taken for block in one.blocks)
            peers[one.target].states |= dict.fromkeys(one.blocks, self.taken)
        if not breaks:
            for rank, peer in enumerate(peers):
                assert peer.states.keys() >= found[rank].blocks_of(rank)
                peer.states = {block: peer.states[block] for block in found[rank].blocks_of(rank)}
        return True

    def _take_place(self, peer: Peer, dealt: frozenset[BlockId], is_first: bool) -> None:
        """Have the layers of its place; what it has held of others is given up with them."""
        layers = layers_in(peer.wanted)
        if peer.layers != layers:
            peer.states = {block: steps for block, steps in peer.states.items() if block in dealt}
        if is_first:
            peer.states = dict.fromkeys(dealt, self.taken)
        peer.layers = layers
        peer.values = {(layer, number): self.taken for layer in layers for number in range(len(SIZES[layer]))}

    def step(self, *, gathers: bool) -> None:
        """All step what they hold, and have the others' parameters, or some of them do."""
        self.taken += 1
        for peer in self.peers.values():
            peer.states = dict.fromkeys(peer.states, self.taken)
            peer.values |= dict.fromkeys(peer.states, self.taken)
            if gathers or self.rng.random() < 0.3:
                peer.values = dict.fromkeys(peer.values, self.taken)

    def holders(self, block: BlockId) -> int:
        return sum(self.taken == peer.states.get(block) for peer in self.peers.values())


def all_of(found: Sequence[Reshard], of: Callable[[Reshard], Sequence[BlockFetch]]) -> list[BlockFetch]:
    """What is sent, by whoever is to send or to have it."""
    return sorted({one for plan in found for one in of(plan)}, key=lambda one: (one.source, one.target, one.blocks))


def check_alike(found: Sequence[Reshard], told: Sequence[Holding]) -> None:
    """Sender and receiver know the same of each message, and peers of each block."""
    ways: tuple[Callable[[Reshard], Sequence[BlockFetch]], ...] = lambda plan: plan.values, lambda plan: plan.states
    for way in ways:
        own = [own_fetches(way(plan), rank) for rank, plan in enumerate(found)]
        for one in {one for fetches in own for one in fetches}:  # whose messages have the same tags
            for rank in (one.source, one.target):
                assert [o for o in own[rank] if (o.source, o.target) == (one.source, one.target)] == [one]
        for one in all_of(found, way):
            assert one in way(found[one.source])
            assert one in way(found[one.target])
            assert one.source != one.target
    holders: dict[BlockId, tuple[int, ...]] = {}
    for rank, plan in enumerate(found):
        for block, ranks in plan.holders.items():
            assert holders.setdefault(block, ranks) == ranks
            assert rank in plan.peers[block[0]]
            units = {told[one].unit for one in plan.peers[block[0]]}
            assert len({told[one].unit for one in ranks}) == min(len(units), 2)
            assert len(ranks) == min(len(plan.peers[block[0]]), 2)


def a_cut(rng: random.Random) -> list[tuple[Layers, ...]]:
    """The stages of a pipeline."""
    cuts = sorted({0, LAYERS, *(rng.randint(1, LAYERS - 1) for _ in range(rng.randint(0, 2)))})
    return [((first, stop),) for first, stop in pairwise(cuts)]


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 3), st.lists(st.sampled_from("kkkjjmbsg"), max_size=12))
@settings(max_examples=200, deadline=None)
def test_all_blocks_have_their_holders_at_every_commit(seed: int, pipelines: int, units: int, story: list[str]) -> None:
    """Deaths, newcomers, other cuts of the layers, epochs that break off anywhere, steps after which some have no
    others' parameters: as long as one that has a block lives, everybody ends with the right state and parameters, and
    all come to the same answers; where none does, the layers are named."""
    rng = random.Random(seed)
    cluster = Cluster({}, rng)
    for ranges in (ranges for _ in range(pipelines) for ranges in a_cut(rng)):
        come(cluster, ranges, units)
    assert cluster.begin(is_first=True)
    for what in story:
        if what in "kmj":
            happen(cluster, what, units)
        elif what == "b":
            if not cluster.begin(breaks=True):
                break
        else:
            has_all = all(cluster.holders(block) for block in every_block())
            assert cluster.begin() == has_all
            if not has_all:
                break
            check_whole(cluster)
            cluster.step(gathers=what == "g")


@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(1, 3), st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_a_first_step_that_is_undone_is_nowhere_left(seed: int, pipelines: int, units: int, deaths: int) -> None:
    """Before anything is committed some have stepped and gathered, then undone their own blocks; the parameters of the
    others' come from them again, unless both are gone: then the layers are named, not trained on with the step."""
    cluster = Cluster({}, random.Random(seed))
    for ranges in (ranges for _ in range(pipelines) for ranges in a_cut(cluster.rng)):
        come(cluster, ranges, units)
    assert cluster.begin(is_first=True)
    for peer in cluster.peers.values():
        if cluster.rng.random() < 0.7:
            peer.values |= dict.fromkeys(peer.values.keys() - peer.states.keys(), 1)
    for _ in range(deaths):
        die(cluster)
    fresh = {block for peer in cluster.peers.values() for block, steps in peer.values.items() if steps == 0}
    assert cluster.begin(is_first=True) == (fresh == set(every_block()))


def happen(cluster: Cluster, what: str, units: int) -> None:
    """Somebody dies, some move, or somebody comes."""
    if what == "k":
        die(cluster)
    elif what == "m":
        move(cluster)
    else:
        come(cluster, cluster.rng.choice(a_cut(cluster.rng)), units)


def come(cluster: Cluster, ranges: tuple[Layers, ...], units: int) -> None:
    """A newcomer."""
    name = f"{len(cluster.peers)}/{cluster.rng.randint(0, 10**9)}"
    cluster.peers[name] = Peer(f"machine {cluster.rng.randrange(units)}", ranges)


def die(cluster: Cluster) -> None:
    """Somebody is lost, unless nobody else is to hold a layer."""
    lost = cluster.rng.choice(sorted(cluster.peers))
    others = [layers for name, peer in cluster.peers.items() if name != lost for layers in peer.wanted]
    if layers_in(others) == set(range(LAYERS)):
        del cluster.peers[lost]


def move(cluster: Cluster) -> None:
    """Some have other places."""
    peers = [peer for _, peer in sorted(cluster.peers.items())]
    for peer in cluster.rng.sample(peers, cluster.rng.randint(1, len(peers))):
        peer.wanted = cluster.rng.choice([one.wanted for one in peers])
    if layers_in([layers for peer in peers for layers in peer.wanted]) != set(range(LAYERS)):
        peers[0].wanted = ((0, LAYERS),)


def every_block() -> list[BlockId]:
    return [(layer, number) for layer, sizes in SIZES.items() for number in range(len(sizes))]


def check_whole(cluster: Cluster) -> None:
    """Each block has as many holders as it is to have, and all parameters are as of the last step."""
    for layer, number in every_block():
        peers = [peer for peer in cluster.peers.values() if layer in layers_in(peer.wanted)]
        assert cluster.holders((layer, number)) == min(2, len(peers))
        assert all(peer.values[layer, number] == cluster.taken for peer in peers)


@given(st.integers(3, 16), st.integers(0, 15))
@settings(max_examples=30, deadline=None)
def test_a_death_has_little_sent(peers: int, which: int) -> None:
    """At most 1.2 times what the lost one held, and nothing twice: 2 of as many parts as there were peers."""
    sizes = {(layer, number): 1 << 16 for layer in range(4) for number in range(8 * peers)}
    own = Holding("one", sizes_by_layer(sizes))
    names, wanted = [f"{number}/0" for number in range(peers)], [((0, 4),)] * peers
    first = reshard(0, names, wanted, [own] * peers, is_first=True)
    left = [rank for rank in range(peers) if rank != which % peers]
    every = frozenset(sizes)
    told = [Holding("one", own.sizes, frozenset(range(4)), first.blocks_of(rank), every) for rank in left]
    found = reshard(0, [names[rank] for rank in left], [((0, 4),)] * len(left), told)
    sent = [block for one in found.states for block in one.blocks]
    assert len(sent) <= 1.2 * 2 / peers * len(sizes)
    assert len(set(sent)) == len(sent)
    assert not found.values
    loads = [len(found.blocks_of(rank)) for rank in range(len(left))]
    assert max(loads) <= 1.02 * 2 * len(sizes) / len(left) + 1


def test_a_layer_without_blocks_has_nothing_to_deal() -> None:
    """One that shares all its weights with another layer is held, and nothing of it is dealt, sent or lost."""
    own = Holding("one", {1: (64,)}, frozenset({1}), fresh=frozenset({(1, 0)}))
    found = reshard(0, ["0/0", "1/0", "2/0"], [[(0, 2)]] * 3, [own] * 3, is_first=True)
    assert found.holders.keys() == {(1, 0)}
    assert not (found.values or found.states or found.lost)
