"""Blocks are dealt evenly to two peers each, of unlike failure units, and few move when peers come and go."""

from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.blocks import (
    BLOCK,
    MOST_BLOCKS,
    UNEVEN,
    BlockId,
    Holders,
    blocks_of,
    deal,
    deal_layers,
    fetches,
    lost,
    piece_name,
    shares,
    split_piece,
)

SIZES = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 99)), st.sampled_from([64, 1000, BLOCK, BLOCK, BLOCK]), max_size=200
)
UNITS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=9)


def loads(dealt: Mapping[BlockId, Holders], sizes: Mapping[BlockId, int], peers: int) -> list[int]:
    """Numbers that each peer holds."""
    return [sum(sizes[block] for block, own in dealt.items() if peer in own) for peer in range(peers)]


def moved(
    dealt: Mapping[BlockId, Holders], before: Mapping[BlockId, Collection[int]], sizes: Mapping[BlockId, int]
) -> int:
    """Numbers whose state somebody has to get."""
    return sum(sizes[block] * len(set(own) - set(before.get(block, ()))) for block, own in dealt.items())


def slack(sizes: Mapping[BlockId, int], target: float) -> float:
    """By which a load may be uneven."""
    return max(UNEVEN * target, max(sizes.values(), default=0)) + 1e-6


def assert_fair(dealt: Mapping[BlockId, Holders], sizes: Mapping[BlockId, int], units: list[str]) -> None:
    """Two holders, apart where there is more than one unit, and loads as even as that allows."""
    for block in sizes:
        own = dealt[block]
        assert len(own) == len(set(own)) == min(2, len(units))
        assert len(set(units)) == 1 or len({units[peer] for peer in own}) == 2
    for share, load in zip(shares(units), loads(dealt, sizes, len(units)), strict=True):
        target = share * sum(sizes.values())
        assert abs(load - target) <= slack(sizes, target)


@given(st.lists(st.integers(0, 5 * BLOCK), max_size=8) | st.just([BLOCK * (MOST_BLOCKS + 5), 7]))
def test_blocks_hold_every_number_once(sizes: list[int]) -> None:
    """In pieces that begin at multiples of a block's length, which all divide alike; and no block is larger."""
    named = [(str(number), size) for number, size in enumerate(sizes)]
    blocks = blocks_of(named)
    spans = sorted((int(one.name), one.start, one.stop) for block in blocks for one in block)
    ends = [0] * len(sizes)
    for name, start, stop in spans:
        assert start == ends[name] and start % BLOCK == 0
        ends[name] = stop
    assert ends == sizes
    length = BLOCK if sum(sizes) <= BLOCK * MOST_BLOCKS else 2 * BLOCK
    assert all(0 < sum(one.size for one in block) <= length for block in blocks)
    assert sum(sizes) < len(blocks) * length * 2 or not blocks


@given(st.sampled_from(["0.w", "3.qkv.weight/exp_avg", "1.a[0]/x"]), st.none() | st.tuples(*[st.integers(0, 99)] * 2))
def test_names_of_pieces_are_read_back(name: str, span: tuple[int, int] | None) -> None:
    """A name says which entry it is a piece of, and which numbers."""
    assert split_piece(name if span is None else piece_name(name, *span)) == (name, span)


@given(SIZES, UNITS)
def test_a_deal_is_fair_and_stays(sizes: dict[BlockId, int], units: list[str]) -> None:
    """Whatever the order of what it is given; dealt again nothing moves, and owners own as much."""
    dealt = deal(sizes, units)
    assert_fair(dealt, sizes, units)
    assert deal(dict(reversed(sizes.items())), units) == dealt
    assert deal(sizes, units, dealt) == dealt
    total = sum(sizes.values())
    for peer, share in enumerate(shares(units)):
        owned = sum(sizes[block] for block, own in dealt.items() if own[0] == peer)
        assert owned <= share * total / min(2, len(units)) + 2 * slack(sizes, share * total)


@given(SIZES, st.lists(st.sampled_from("abcd"), min_size=3, max_size=9), st.data())
def test_few_blocks_move_when_a_peer_is_lost_or_comes(
    sizes: dict[BlockId, int], units: list[str], data: st.DataObject
) -> None:
    """What the lost one held, or the newcomer's share, where machines are alike: 2/DP of the state. None is lost."""
    units = [f"{place}" for place, _ in enumerate(units)] if data.draw(st.booleans()) else ["one machine"] * len(units)
    dealt, gone = deal(sizes, units), data.draw(st.integers(0, len(units) - 1))
    left = [unit for place, unit in enumerate(units) if place != gone]
    before = {
        block: [peer - (peer > gone) for peer in own if peer != gone] for block, own in dealt.items()
    }  # as the others count from then on
    after = deal(sizes, left, before)
    assert lost(sizes, before) == ()
    assert_fair(after, sizes, left)
    most = slack(sizes, sum(sizes.values()) * 2 / len(left))
    assert moved(after, before, sizes) <= (loads(dealt, sizes, len(units))[gone] if len(left) > 1 else 0) + 2 * most
    back = {block: tuple(peer + (peer >= gone) for peer in own) for block, own in after.items()}
    again = deal(sizes, units, back)
    assert_fair(again, sizes, units)
    assert moved(again, back, sizes) <= sum(sizes.values()) * 2 / len(units) + 2 * most


@given(SIZES, UNITS, st.data())
def test_any_holders_of_before_will_do(sizes: dict[BlockId, int], units: list[str], data: st.DataObject) -> None:
    """Also where units allow only part of them, or a block has many holders or none: the deal is as fair."""
    peers = st.sets(st.integers(0, len(units) - 1))
    before = {block: data.draw(peers) for block in list(sizes)[:20]}
    dealt = deal(sizes, units, before)
    assert_fair(dealt, sizes, units)
    assert {block[0] for block in sizes if not before.get(block)} == set(lost(sizes, before))
    found = fetches(dealt, before, sizes)
    got = {(block, one.target) for one in found for block in one.blocks}
    assert got == {(b, p) for b, own in dealt.items() for p in own if before.get(b) and p not in before[b]}
    assert all(one.source in before[block] for one in found for block in one.blocks)


def test_layers_with_unlike_holders_are_dealt_by_themselves() -> None:
    """Among those that hold them, by whatever numbers."""
    sizes = {(layer, number): BLOCK for layer in range(3) for number in range(12)}
    peers = {0: (4, 7, 9), 1: (4, 7, 9), 2: (7, 9)}
    dealt = deal_layers(sizes, peers, {4: "a", 7: "a", 9: "a"}, {(0, 0): (4, 8)})
    assert all(set(own) <= set(peers[block[0]]) for block, own in dealt.items())
    assert 4 in dealt[0, 0]
    assert [sum(4 in own for block, own in dealt.items() if block[0] == layer) for layer in range(3)] == [8, 8, 0]
