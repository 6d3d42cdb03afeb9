"""Pairs of ranks, the ways in which messages may be sent, and which of them are measured."""

from collections.abc import Iterable, Iterator
from typing import Literal

from .program import Message, Program, Send

# direct: a send holds its worker for the link's delay. delegated: it holds nobody. auto: delegated on links of which
# the running plan says a delay, or which were found to be slow (docs/semantics.md).
Sending = Literal["auto", "direct", "delegated"]
RankPair = tuple[int, int]  # two ranks, ascending

MOST_SAMPLES = 8  # messages of one worker to another that are measured in an iteration


def rank_pair(one: int, other: int) -> RankPair:
    """Two ranks as the ends of a link."""
    return (one, other) if one < other else (other, one)


def sends_of(program: Program, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, Send]]:
    """The sends of some ranks, or of all, each with the rank whose it is."""
    for rank in range(len(program.instructions)) if ranks is None else ranks:
        for one in program.instructions[rank]:
            if isinstance(one, Send):
                yield rank, one


def pairs_of(program: Program) -> frozenset[RankPair]:
    """The pairs of ranks that exchange messages."""
    return frozenset(rank_pair(rank, one.to) for rank, one in sends_of(program))


def delegated_pairs(
    transport: Sending, sends: Iterable[tuple[int, Send]], found: Iterable[RankPair], detoured: Iterable[RankPair]
) -> frozenset[RankPair]:
    """The pairs of ranks that send to each other by delegates.

    Args:
        transport: auto: links of which the plan says a delay, or which were found slow; direct: none; delegated: all.
        sends: of the plan that is executed, with the delays that it says.
        found: pairs whose links are slow, though the plan may not say so.
        detoured: pairs whose messages a third rank passes on, which always takes delegates.
    """
    if transport == "direct":
        return frozenset(detoured)
    reckoned = (rank_pair(rank, one.to) for rank, one in sends if transport == "delegated" or one.delay_s > 0)
    return frozenset({*reckoned, *found, *detoured})


def sampled(program: Program, rank: int | None = None) -> dict[tuple[int, int], tuple[Message, ...]]:
    """The messages to measure, by sender and receiver: at most MOST_SAMPLES each, spread evenly over those it sends.

    Args:
        program: what is executed.
        rank: only what this one sends or receives; None: of all.
    """
    sent: dict[tuple[int, int], list[Message]] = {}
    for source, one in sends_of(program):
        if rank is None or rank in (source, one.to):
            sent.setdefault((source, one.to), []).append(one.message)
    return {way: _spread(messages) for way, messages in sent.items()}


def _spread(messages: list[Message]) -> tuple[Message, ...]:
    count = min(len(messages), MOST_SAMPLES)
    return tuple(messages[number * len(messages) // count] for number in range(count))
