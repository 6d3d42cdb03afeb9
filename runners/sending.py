"""Pairs of ranks, and the ways in which a message may be sent."""

from typing import Literal

from .program import Program, Send

# direct: a send holds its worker for the link's delay. delegated: it holds nobody. auto: delegated on links of which
# the running plan says a delay, or which were found to be slow (docs/semantics.md).
Sending = Literal["auto", "direct", "delegated"]
RankPair = tuple[int, int]  # two ranks, ascending


def rank_pair(one: int, other: int) -> RankPair:
    """Two ranks as the ends of a link."""
    return (one, other) if one < other else (other, one)


def pairs_of(program: Program) -> frozenset[RankPair]:
    """The pairs of ranks that exchange messages."""
    sends = ((rank, one.to) for rank, own in enumerate(program.instructions) for one in own if isinstance(one, Send))
    return frozenset(rank_pair(rank, to) for rank, to in sends)
