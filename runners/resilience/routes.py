"""Which pairs of workers exchange their messages by delegates, on another network, or over a third worker."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...schemas.conditions import Conditions, Pair, pair_of
from ..sending import RankPair, rank_pair

Detour = tuple[int, int, int]  # two ranks, ascending, and the one that passes on what they have for each other
Sidestep = tuple[int, int, int]  # two ranks, ascending, and the number of the network on which they meet, from 1


@dataclass(frozen=True)
class Ways:
    """How workers send to each other, where not simply by themselves.

    Attributes:
        delegated: the pairs at both ends of slow links, who do it by delegates.
        detours: for those who do not reach each other, whoever reaches both and has least to do so, as far as there is
            anybody; `unreachable` has the others.
        sidesteps: those who have lost each other, and meet on another network; a pair without a detour.
    """

    delegated: tuple[RankPair, ...]
    detours: tuple[Detour, ...]
    sidesteps: tuple[Sidestep, ...] = ()

    @classmethod
    def under(cls, conditions: Conditions, names: Sequence[str], networks: Mapping[Pair, int] | None = None) -> "Ways":
        """What conditions ask for.

        Args:
            conditions: what is slow and what is broken, on all networks.
            names: of the workers, by rank.
            networks: by pairs that meet on another network, its number.
        """
        slow = tuple(_seated((link.ends for link in conditions.slow_links), names))
        aside = ((ends, number) for pair, number in sorted((networks or {}).items()) for ends in _seated([pair], names))
        return cls(slow, tuple(_detours(conditions, names)), tuple((*ends, number) for ends, number in aside))


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
