"""In which order the links of a group are tried out, so that no two messages of one pass meet at a worker.

Greyhound, section 4.3, tests the links of a collective's topology in passes: those of a ring in two, or in three where
their number is odd; those of a binary tree in four, by the parent's level (even or odd) and by the side of the child.
What holds a message up in a pass is then its own link, for nobody has two messages. NCCL sums over two trees at once
(a double binary tree, from "Two-Tree Algorithms for Full Bandwidth Broadcast"): each has passes of its own. Where a
group is small, all of its pairs can be tried: a round-robin tournament.

All in ranks of the group from 0; a pass is a tuple of (sender, receiver).
"""

from collections.abc import Iterable, Sequence

Pass = tuple[tuple[int, int], ...]

PAIRWISE_MOST = 32  # workers of whom all pairs are tried, in 31 passes: some 10 ms where nothing is slow


def ring_passes(size: int) -> tuple[Pass, ...]:
    """The links of a ring of `size` workers, each from a worker to the next one; two passes, or three for odd sizes."""
    if size < 2:
        return ()
    even = tuple((rank, rank + 1) for rank in range(0, size - 1, 2))
    odd = tuple((rank, (rank + 1) % size) for rank in range(1, size - size % 2, 2))
    last = (((size - 1, 0),),) if size % 2 else ()
    return (even, odd, *last)


def tree_passes(size: int) -> tuple[Pass, ...]:
    """The links of NCCL's two trees over `size` workers, from parents to children: four passes a tree at most."""
    return tuple(one for parents in trees(size) for one in _passes_of(parents))


def pairwise_passes(size: int) -> tuple[Pass, ...]:
    """All pairs of `size` workers, the lower rank first: `size` - 1 passes, one more for odd sizes.

    The circle method: the last one stays where it is, the others move on by one place a pass and meet whoever is
    opposite; in odd sizes that one is nobody, and who meets it rests.
    """
    others = size - 1 if size % 2 == 0 else size
    return tuple(_round(number, others, size) for number in range(others if size > 1 else 0))


def trees(size: int) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """The parents of all ranks, None of a root, in both trees (NCCL's `ncclGetDtree`).

    The second one is the first one mirrored, or for odd sizes moved on by one rank, so that nearly all who are leaves
    in one are not in the other.
    """
    first = tuple(_parent(rank, size) for rank in range(size))
    second: list[int | None] = [None] * size
    for rank, parent in enumerate(first):
        moved = {one: (one + 1) % size if size % 2 else size - 1 - one for one in (rank, parent) if one is not None}
        second[moved[rank]] = None if parent is None else moved[parent]
    return first, tuple(second)


def _parent(rank: int, size: int) -> int | None:
    """In NCCL's `ncclGetBtree`, where the lowest bit of a rank is its height above the leaves."""
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < size else rank ^ bit


def _passes_of(parents: tuple[int | None, ...]) -> tuple[Pass, ...]:
    """The links by the parent's level and by whether the child is the parent's first one or its second one."""
    children: dict[int, list[int]] = {}
    for rank, parent in enumerate(parents):
        if parent is not None:
            children.setdefault(parent, []).append(rank)
    level = {root: 0 for root, parent in enumerate(parents) if parent is None}
    passes: list[list[tuple[int, int]]] = [[], [], [], []]
    waiting = list(level)
    for parent in waiting:
        for side, child in enumerate(children.get(parent, ())):
            passes[2 * (level[parent] % 2) + side].append((parent, child))
            level[child] = level[parent] + 1
            waiting.append(child)
    return tuple(tuple(links) for links in passes if links)


def _round(number: int, others: int, size: int) -> Pass:
    """Who meets whom in a round: those whose places add up to the same number, and the last one whoever is left."""
    met = [(one, (number - one) % others) for one in range(others)]
    pairs = [(one, other) for one, other in met if one < other]
    alone = next(one for one, other in met if one == other)
    return tuple(sorted(pairs if size % 2 else [*pairs, (alone, size - 1)]))


def passes_of(size: int) -> tuple[Pass, ...]:
    """What a group of `size` workers tries: all pairs while that is soon done, else a ring and both trees."""
    return pairwise_passes(size) if size <= PAIRWISE_MOST else ring_passes(size) + tree_passes(size)


def one_at_a_time(passes: Iterable[Pass]) -> tuple[Pass, ...]:
    """The same pairs, each once and in a pass of its own: nothing else is under way on any link, card or core."""
    met = {tuple(sorted(pair)): pair for one in passes for pair in one}
    return tuple((pair,) for pair in met.values())


def groups_by_host(hosts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Whose sums tell of the links: all ranks, those of each host, and one of each host; two ranks or more in each.

    Args:
        hosts: the machine of each rank.
    """
    of_host = _ranks_of(hosts)
    firsts = tuple(ranks[0] for ranks in of_host.values())
    groups = (tuple(range(len(hosts))), *(tuple(ranks) for ranks in of_host.values()), firsts)
    return tuple(group for group in dict.fromkeys(groups) if len(group) > 1)


def node_passes(hosts: Sequence[str]) -> tuple[Pass, ...]:
    """All ranks of a host with those of another one at once: what a whole node has of the network.

    Hosts meet in twos in their order, and the last of an odd number meets the first in a pass of its own. Where no host
    has two ranks that meet others, nothing is shared, and there is no pass.

    Args:
        hosts: the machine of each rank.
    """
    ranks = list(_ranks_of(hosts).values())
    twos = [(ranks[place], ranks[place + 1]) for place in range(0, len(ranks) - 1, 2)]
    last = [(ranks[0], ranks[-1])] if len(ranks) > 2 and len(ranks) % 2 else []
    return tuple(one for one in (_met(twos), _met(last)) if one)


def _met(twos: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Pass:
    return tuple(
        pair for here, there in twos if min(len(here), len(there)) > 1 for pair in zip(here, there, strict=False)
    )


def _ranks_of(hosts: Sequence[str]) -> dict[str, list[int]]:
    of_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        of_host.setdefault(host, []).append(rank)
    return of_host
