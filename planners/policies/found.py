"""What is slow and has been found: nobody can heed what nobody knows yet.

A slow node or link is found after so many iterations as the job's costs say, and so is that it is well again. These are
iterations as they are from then on: slow ones take longer to tell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...schemas.replay import Fleet, NodePair

Item = tuple[str | NodePair, float]  # a slow node and its factor, or two nodes and the delay of their link in s


@dataclass(frozen=True)
class DetectionState:
    """What is believed to be slow, and what has changed but is not found yet.

    Attributes:
        known: what is believed.
        pending: what has become slow, or well, unnoticed; and when it will be found, in s of the trace.
    """

    known: frozenset[Item] = frozenset()
    pending: tuple[tuple[Item, float], ...] = ()

    def by(self, fleet: Fleet, time_s: float, takes_s: float) -> DetectionState:
        """By a time at which the fleet is as it is; finding what changes then takes so long, in s."""
        items = items_of(fleet)
        if items == self.known:
            return self if not self.pending else DetectionState(self.known)
        gone = frozenset(item for item in self.known - items if not _is_there(item, fleet))
        known, before = self.known - gone, dict(self.pending)
        due_s = {item: before.get(item, time_s + takes_s) for item in known ^ items}
        due = {item for item, at_s in due_s.items() if at_s <= time_s}
        left = sorted(((item, at_s) for item, at_s in due_s.items() if item not in due), key=str)
        return DetectionState(known ^ due, tuple(left))

    @property
    def due_s(self) -> float | None:
        """When all will have been found if nothing else changes; None: there is nothing to be found."""
        return max((at_s for _, at_s in self.pending), default=None)

    def all(self) -> DetectionState:
        """Once all has been found."""
        return DetectionState(self.known ^ {item for item, _ in self.pending})

    def believed(self, fleet: Fleet) -> Fleet:
        """The fleet as it is believed to be."""
        if not self.pending:
            return fleet
        slow = {who: value for who, value in self.known if isinstance(who, str)}
        links = {who: value for who, value in self.known if not isinstance(who, str)}
        return replace(fleet, slow=slow, slow_links=links)


NOTHING = DetectionState()


def items_of(fleet: Fleet) -> frozenset[Item]:
    """What is slow in a fleet."""
    return frozenset((*fleet.slow.items(), *fleet.slow_links.items()))


def _is_there(item: Item, fleet: Fleet) -> bool:
    """Whether nodes are: who is gone is not slow any more, and everybody knows."""
    who = item[0]
    names = {who} if isinstance(who, str) else set(who)
    return names <= set(fleet.nodes)
