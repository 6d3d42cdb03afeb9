"""Which process groups connect which ranks, where some pairs cannot connect.

A gloo group connects all its ranks with each other when it is made, so one pair without a way makes it impossible.
Ranks are therefore taken out of the group of all, few of them, until no such pair is left in it; each of these
has a group of two with every other rank that it does reach. A group of two costs some milliseconds. A pair that reaches
each other on another network only has a group of two there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ..sending import RankPair
from .c10d import PrefixStore, Store
from .groups import GroupFactory, StoreAt, meeting_of
from .lost_touch import LostTouchError, reaching


@dataclass(frozen=True, eq=False)
class Sidestep:
    """How a rank is reached on another network.

    Attributes:
        hostname: this process's own address there.
        meet: gives the store where the two meet.
    """

    hostname: str
    meet: Callable[[], Store]


def cover(apart: Collection[RankPair]) -> frozenset[int]:
    """Ranks of which every pair has at least one; always the one in most of the pairs that are left, lowest first."""
    left, found = set(apart), set[int]()
    while left:
        counts = Counter(rank for pair in left for rank in pair)
        most = min(counts, key=lambda rank: (-counts[rank], rank))
        found.add(most)
        left = {pair for pair in left if most not in pair}
    return frozenset(found)


def groups_for(size: int, apart: Collection[RankPair]) -> list[tuple[int, ...]]:
    """Groups that hold every pair of ranks once, but those apart; in the order in which everybody makes its own."""
    outside = cover(apart)
    rest = tuple(rank for rank in range(size) if rank not in outside)
    pairs = [pair for pair in combinations(range(size), 2) if pair not in apart and not outside.isdisjoint(pair)]
    return [group for group in (rest, *pairs) if len(group) > 1]


def holds_apart(group: Iterable[int], apart: Collection[RankPair]) -> bool:
    """Whether a group of ranks holds a pair that is apart."""
    ranks = set(group)
    return any(ranks.issuperset(pair) for pair in apart)


class Pairs:
    """The process groups over which a rank sends messages to each of the others.

    Args:
        make_group: makes a process group.
        store: where the ranks meet, or the place for a group whose lowest rank is given.
        rank: this process.
        size: number of ranks.
        apart: pairs that do not connect.
    """

    def __init__(
        self, make_group: GroupFactory, store: Store | StoreAt, rank: int, size: int, apart: Collection[RankPair]
    ) -> None:
        self.groups: list[Any] = []
        self._rank = rank
        self._places: dict[int, tuple[Any, int]] = {}
        try:
            for ranks in groups_for(size, apart):
                if rank in ranks:
                    name = "rtk/world" if len(ranks) == size else f"rtk/pairs/{ranks}"
                    meeting = PrefixStore(name, meeting_of(store, ranks))
                    self.groups.append(make_group(meeting, ranks.index(rank), len(ranks)))
                    others = ((other, number) for number, other in enumerate(ranks) if other != rank)
                    self._places.update((other, (self.groups[-1], number)) for other, number in others)
        except BaseException:
            self.drop()  # the error's traceback knows this object, which must not keep the connections
            raise

    def connect_aside(self, other: int, make_group: GroupFactory, meet: Callable[[], Store]) -> None:
        """Have a group of two with a rank that is apart otherwise; all ranks do so in the order of the pairs.

        Args:
            other: that rank.
            make_group: makes a process group on the other network.
            meet: gives the store where they meet.

        Raises:
            LostTouchError: it is not reached there either.
        """
        ranks = sorted((self._rank, other))
        with reaching(other):
            store = meet()  # to be kept while the group is made
            meeting = PrefixStore(f"rtk/aside/{ranks}", store)
            self.groups.append(make_group(meeting, ranks.index(self._rank), 2))
        self._places[other] = (self.groups[-1], ranks.index(other))

    def to(self, other: int) -> tuple[Any, int]:
        """The group in which another rank is reached, and its number there.

        Raises:
            LostTouchError: the pair is apart, or everything has been dropped.
        """
        if other not in self._places:
            raise LostTouchError(other, "there is no connection to it")
        return self._places[other]

    def number_in(self, group: Any, other: int | None) -> int | None:
        """The number of a rank in a group, where it is reached in it."""
        found, number = self._places.get(-1 if other is None else other, (None, None))
        return number if found is group else None

    def drop(self) -> None:
        """Let go of all groups."""
        self.groups.clear()
        self._places.clear()
