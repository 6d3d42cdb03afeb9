"""What is slow and has been found: nobody can heed what nobody knows yet.

A slow node or link is found after so many iterations as the job's costs say, and so is that it is well again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...schemas.replay import Fleet, NodePair

Item = tuple[str | NodePair, float]  # a slow node and its factor, or two nodes and the delay of their link in s


@dataclass(frozen=True)
class Found:
    """What is believed to be slow, and what has changed but is not found yet.

    Attributes:
        known: what is believed.
        since_s: what has become slow, or well, unnoticed; and when, in s of the trace.
    """

    known: frozenset[Item] = frozenset()
    since_s: tuple[tuple[Item, float], ...] = ()

    def by(self, fleet: Fleet, time_s: float, takes_s: float) -> Found:
        """By a time at which the fleet is as it is; finding something takes so long, in s."""
        items = items_of(fleet)
        if items == self.known:
            return self if not self.since_s else Found(self.known)
        gone = frozenset(item for item in self.known - items if not _is_there(item, fleet))
        known, before = self.known - gone, dict(self.since_s)
        since_s = {item: before.get(item, time_s) for item in known ^ items}
        due = {item for item, start_s in since_s.items() if start_s + takes_s <= time_s}
        left = sorted(((item, start_s) for item, start_s in since_s.items() if item not in due), key=str)
        return Found(known ^ due, tuple(left))

    def due_s(self, takes_s: float) -> float | None:
        """When all will have been found if nothing else changes; None: there is nothing to be found."""
        return max((start_s + takes_s for _, start_s in self.since_s), default=None)

    def all(self) -> Found:
        """Once all has been found."""
        return Found(self.known ^ {item for item, _ in self.since_s})

    def believed(self, fleet: Fleet) -> Fleet:
        """The fleet as it is believed to be."""
        if not self.since_s:
            return fleet
        slow = {who: value for who, value in self.known if isinstance(who, str)}
        links = {who: value for who, value in self.known if not isinstance(who, str)}
        return replace(fleet, slow=slow, slow_links=links)


NOTHING = Found()


def items_of(fleet: Fleet) -> frozenset[Item]:
    """What is slow in a fleet."""
    return frozenset((*fleet.slow.items(), *fleet.slow_links.items()))


def _is_there(item: Item, fleet: Fleet) -> bool:
    """Whether nodes are: who is gone is not slow any more, and everybody knows."""
    who = item[0]
    names = {who} if isinstance(who, str) else set(who)
    return names <= set(fleet.nodes)
