"""What is slow and has been found: in a replay, what the monitor of a running job does for it.

Nobody can heed what nobody knows yet. A slow node or link is found after so many iterations as the job's costs say, and
so is that it is well again. These are iterations as they are from then on: slow ones take longer to tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

from ...schemas.plan import Place, Plan
from ...schemas.protocols import RecoveryPolicy
from ...schemas.replay import Costs, Fleet, Moment, NodePair, TrainingState, Transition
from .job import finding_s, total_s, urgent_of
from .unheeding import paced

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


@dataclass(frozen=True)
class WatchedLayout:
    """A policy's standing, and what is known of what is slow."""

    held: TrainingState
    found: DetectionState = NOTHING


class Watched:
    """A policy, told what is slow as it is found.

    Args:
        policy: heeds what is slow.
        costs: how many iterations finding it takes.
    """

    def __init__(self, policy: RecoveryPolicy, costs: Costs) -> None:
        self._policy, self._costs = policy, costs

    def begin(self, fleet: Fleet) -> TrainingState:
        """As the policy; what is slow already has to be found."""
        held = self._policy.begin(fleet)
        return _watched(held, NOTHING.by(fleet, 0.0, finding_s(self._costs, held)))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """What the policy does, and what it will do once more has been found."""
        layout, fleet, time_s = _layout(standing), moment.fleet, moment.time_s
        unfound = layout.found.by(fleet, time_s, float("inf"))
        found, steps = unfound, self._policy.react(layout.held, replace(moment, known=unfound.believed(fleet)))
        if unfound.due_s == float("inf"):
            # What has just changed is told from iterations as they are from now on; where that takes no time, at once.
            now = urgent_of(steps)
            takes_s = finding_s(self._costs, now[-1].standing if now else standing)
            found = layout.found.by(fleet, time_s, takes_s)
            if found.believed(fleet) != unfound.believed(fleet):
                steps = self._policy.react(layout.held, replace(moment, known=found.believed(fleet)))
        told = [replace(step, standing=_watched(step.standing, found)) for step in steps]
        if found != layout.found and (not steps or steps[0].after_s > 0):
            told.insert(0, paced(_watched(layout.held, found)))
        last = steps[-1].standing if steps else layout.held
        if found.due_s is not None and last.iteration_time_s is not None:
            after_s = max(found.due_s - time_s, sum(total_s(step.pauses) for step in steps))
            later = self._policy.react(last, replace(moment, lost=(), came=()))
            told += [
                replace(step, standing=_watched(step.standing, found.all()), after_s=step.after_s + after_s)
                for step in later
            ]
        return tuple(told)

    def plan(self, standing: TrainingState) -> Plan | None:
        """As the policy."""
        return self._policy.plan(_layout(standing).held)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As the policy."""
        return self._policy.seats(_layout(standing).held)


def _watched(held: TrainingState, found: DetectionState) -> TrainingState:
    return replace(held, formation=WatchedLayout(held, found))


def _layout(standing: TrainingState) -> WatchedLayout:
    return cast("WatchedLayout", standing.formation)
