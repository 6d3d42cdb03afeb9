"""Precedences between numbered operations: arcs, their order, and the longest paths along them."""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

Arc = tuple[int, int, int]  # (earlier, later, lag): least time from the end of one operation to the start of another


def earliest(durations: Sequence[int], arcs: Iterable[Arc]) -> list[int]:
    """Earliest starts of operations under arcs.

    Raises:
        ValueError: the arcs form a ring.
    """
    followers = followers_of(len(durations), arcs)
    starts = [0] * len(durations)
    for earlier in topological(followers, durations):
        for later, lag in followers[earlier]:
            starts[later] = max(starts[later], starts[earlier] + durations[earlier] + lag)
    return starts


def topological(followers: Sequence[Sequence[tuple[int, int]]], preference: Sequence[int]) -> list[int]:
    """An order of operations that keeps all arcs; of those that may come next, the least by `preference` does.

    Args:
        followers: of each operation, the (later operation, lag) of its arcs.
        preference: of each operation.

    Raises:
        ValueError: the arcs form a ring.
    """
    missing = [0] * len(followers)
    for later, _ in chain.from_iterable(followers):
        missing[later] += 1
    ready = [(preference[o], o) for o, count in enumerate(missing) if count == 0]
    heapify(ready)
    found = []
    while ready:
        found.append(heappop(ready)[1])
        for later, _ in followers[found[-1]]:
            missing[later] -= 1
            if missing[later] == 0:
                heappush(ready, (preference[later], later))
    if len(found) < len(followers):
        raise ValueError("the arcs form a ring")
    return found


def followers_of(count: int, arcs: Iterable[Arc]) -> list[list[tuple[int, int]]]:
    """The (later operation, lag) of the arcs that leave each of `count` operations."""
    followers: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for earlier, later, lag in arcs:
        followers[earlier].append((later, lag))
    return followers
