"""Passes over the links of a group: everything once, and nobody twice at the same time."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.runners.passes import (
    Pass,
    groups_by_host,
    node_passes,
    one_at_a_time,
    pairwise_passes,
    ring_passes,
    tree_passes,
    trees,
)

sizes = st.integers(2, 130)


def links_of(passes: tuple[Pass, ...]) -> Counter[tuple[int, int]]:
    """How often each link is tried."""
    return Counter(link for one in passes for link in one)


def nobody_twice(passes: tuple[Pass, ...]) -> bool:
    """Whether in each pass everybody has one message at most, and no pass is empty."""
    ranks = [[rank for link in one for rank in link] for one in passes]
    return all(one and len(one) == len(set(one)) for one in ranks)


@given(sizes)
def test_a_ring_takes_two_passes_or_three(size: int) -> None:
    """Every link of a ring is tried once, in two passes, or three if their number is odd."""
    passes = ring_passes(size)
    assert links_of(passes) == Counter((rank, (rank + 1) % size) for rank in range(size))
    assert len(passes) == 2 + size % 2
    assert nobody_twice(passes)


@given(sizes)
def test_the_trees_take_four_passes_each(size: int) -> None:
    """Every link of both trees is tried once for each tree, in four passes a tree at most."""
    passes = tree_passes(size)
    wanted = Counter((up, rank) for parents in trees(size) for rank, up in enumerate(parents) if up is not None)
    assert links_of(passes) == wanted
    assert len(passes) <= 8
    assert nobody_twice(passes)


@given(sizes)
def test_a_tree_is_binary_and_shallow(size: int) -> None:
    """Both trees reach everybody from one root, with two children at most, in as many steps as a rank has bits."""
    for parents in trees(size):
        assert parents.count(None) == 1
        assert max(Counter(up for up in parents if up is not None).values()) <= 2
        for rank in range(size):
            steps, at = 0, rank
            while (above := parents[at]) is not None:
                at, steps = above, steps + 1
            assert steps <= size.bit_length()


@given(sizes)
def test_who_carries_in_one_tree_is_a_leaf_in_the_other(size: int) -> None:
    """Nobody has two children in both trees, so each carries about half of what two whole trees would give it."""
    both = [Counter(up for up in parents if up is not None) for parents in trees(size)]
    assert not [rank for rank in range(size) if both[0][rank] == 2 and both[1][rank] == 2]


@given(sizes)
def test_all_pairs_meet_once(size: int) -> None:
    """Every pair is tried once, in as few passes as can be."""
    passes = pairwise_passes(size)
    assert links_of(passes) == Counter((one, other) for other in range(size) for one in range(other))
    assert len(passes) == size - 1 + size % 2
    assert nobody_twice(passes)


@pytest.mark.parametrize("size", [0, 1])
def test_nobody_to_talk_to(size: int) -> None:
    """Without two workers there is no link, and no pass."""
    assert ring_passes(size) == tree_passes(size) == pairwise_passes(size) == ()


def test_ncclls_tree_of_eight() -> None:
    """The first tree of 8 ranks is the one that NCCL's source draws."""
    assert trees(8)[0] == (None, 2, 4, 2, 0, 6, 4, 6)


@given(sizes)
def test_one_at_a_time_every_pair_comes_once(size: int) -> None:
    """Alone in a pass, once, and whichever way round it came before."""
    passes = one_at_a_time((*ring_passes(size), *pairwise_passes(size), *tree_passes(size)))
    assert all(len(one) == 1 for one in passes)
    assert len({frozenset(pair) for (pair,) in passes}) == len(passes) == size * (size - 1) // 2


def test_sums_go_over_all_hosts_each_host_and_one_of_each() -> None:
    """No group comes twice, and none has fewer than two ranks."""
    assert groups_by_host("aabb") == ((0, 1, 2, 3), (0, 1), (2, 3), (0, 2))
    assert groups_by_host("abab") == ((0, 1, 2, 3), (0, 2), (1, 3), (0, 1))
    assert groups_by_host("aaab") == ((0, 1, 2, 3), (0, 1, 2), (0, 3))
    assert groups_by_host("aa") == ((0, 1),)
    assert groups_by_host("ab") == ((0, 1),)
    assert groups_by_host("a") == ()


@given(st.lists(st.sampled_from("abcde"), max_size=24))
def test_whole_nodes_meet(hosts: list[str]) -> None:
    """Every host with others meets one of them; nobody has two messages; as many meet as the smaller host has ranks."""
    passes, counts = node_passes(hosts), Counter(hosts)
    met = set()
    for one in passes:
        ends = [rank for pair in one for rank in pair]
        assert len(ends) == len(set(ends))
        twos = Counter(tuple(hosts[rank] for rank in pair) for pair in one)
        assert all(here != there and found == min(counts[here], counts[there]) for (here, there), found in twos.items())
        met |= {host for two in twos for host in two}
    if len(counts) > 1 and min(counts.values()) > 1:
        assert met == set(counts)
    if max(counts.values(), default=0) < 2:
        assert passes == ()
