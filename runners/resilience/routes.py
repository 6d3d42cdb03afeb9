"""Which pairs of workers exchange their messages by delegates, and which over a third one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...schemas.conditions import Conditions, Pair, pair_of
from ..sending import RankPair, rank_pair

Detour = tuple[int, int, int]  # two ranks, ascending, and the one that passes on what they have for each other


@dataclass(frozen=True)
class Ways:
    """How workers send to each other, where not simply by themselves.

    Attributes:
        delegated: the pairs at both ends of slow links, who do it by delegates.
        detours: for those who do not reach each other, whoever reaches both and has least to do so, as far as there is
            anybody; `unreachable` has the others.
    """

    delegated: tuple[RankPair, ...]
    detours: tuple[Detour, ...]

    @classmethod
    def under(cls, conditions: Conditions, names: Sequence[str]) -> "Ways":
        """What conditions ask for.

        Args:
            conditions: what is slow and what is broken.
            names: of the workers, by rank.
        """
        slow = tuple(_seated((link.ends for link in conditions.slow_links), names))
        return cls(slow, tuple(_detours(conditions, names)))


def unreachable(conditions: Conditions, names: Sequence[str]) -> tuple[Pair, ...]:
    """Pairs of workers that neither reach each other nor have anybody between them."""
    return tuple(
        pair_of(names[one], names[other])
        for one, other in _seated(conditions.broken_links, names)
        if not _between(conditions, names, one, other)
    )


def _detours(conditions: Conditions, names: Sequence[str]) -> Iterator[Detour]:
    load = dict.fromkeys(range(len(names)), 0)
    for one, other in _seated(conditions.broken_links, names):
        between = _between(conditions, names, one, other)
        if between:
            via = min(between, key=lambda rank: (load[rank], rank))
            load[via] += 1
            yield one, other, via


def _seated(pairs: Iterable[Pair], names: Sequence[str]) -> Iterator[RankPair]:
    rank = {name: number for number, name in enumerate(names)}
    for one, other in pairs:
        if one in rank and other in rank:
            yield rank_pair(rank[one], rank[other])


def _between(conditions: Conditions, names: Sequence[str], one: int, other: int) -> list[int]:
    broken = set(conditions.broken_links)
    return [
        rank
        for rank in range(len(names))
        if rank not in (one, other) and not any(pair_of(names[rank], names[end]) in broken for end in (one, other))
    ]
