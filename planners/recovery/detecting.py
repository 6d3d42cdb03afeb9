"""What is slow and has been found: in a replay, what the monitor of a running job does for it.

Nobody can heed what nobody knows yet. A slow node or link is found after so many iterations as the job's costs say, and
so is that it is well again. These are iterations as they are from then on: slow ones take longer to tell. And what slow
nodes and links make of a policy that never notices them (`Unheeding`).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Protocol, cast

from ...schemas.conditions import AS_PLANNED, PlanConditions
from ...schemas.plan import Place, Placement, Plan
from ...schemas.protocols import RecoveryPolicy
from ...schemas.replay import Costs, Fleet, Moment, NodePair, StateChange, TrainingState, Transition
from ..placement.retimed import AnyRetimed
from .job import finding_s, total_s, urgent_of

# So many plans are kept ready to be timed.
MOST_KEPT = 16


class Ordering(RecoveryPolicy, Protocol):
    """A policy whose orders can be timed sooner than its plan, which is promised, checked and written out."""

    def ordered(self, standing: TrainingState) -> AnyRetimed:
        """The orders of the policy's plan in a standing that trains."""
        ...


@dataclass(frozen=True)
class BelievedLayout:
    """A standing as the policy believes it to be, and what is slow in its plan."""

    believed: TrainingState
    troubles: PlanConditions


class Unheeding:
    """Around another policy: it does what that does, in the time that slow parts leave it.

    The other policy is asked about the fleet as it is, but sees its standings as if nothing were slow. Orders stay;
    what takes how long under slow parts is `Retimed`'s.

    Args:
        policy: for failures.
        placement: that it trains in; None: its workers hold one stage each.
    """

    def __init__(self, policy: Ordering, placement: Placement | None = None) -> None:
        self._policy, self._placement = policy, placement
        self._retimed: dict[Hashable, AnyRetimed] = {}
        self._times_s: dict[tuple[Hashable, PlanConditions], float] = {}

    def begin(self, fleet: Fleet) -> TrainingState:
        """As the policy, slow parts included."""
        return self._under(self._policy.begin(fleet), fleet)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As the policy; where only the pace changes, the same standing goes on at that pace."""
        believed, fleet = _formation(standing).believed, moment.fleet
        steps = tuple(
            replace(step, standing=self._under(step.standing, fleet)) for step in self._policy.react(believed, moment)
        )
        if steps and steps[0].after_s == 0:
            return steps
        same = self._under(believed, fleet)
        return steps if same == standing else (paced(same), *steps)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The policy's plan with what is slow."""
        formation = _formation(standing)
        plan = self._policy.plan(formation.believed)
        return None if plan is None else formation.troubles.under(plan)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As the policy."""
        return self._policy.seats(_formation(standing).believed)

    def _under(self, believed: TrainingState, fleet: Fleet) -> TrainingState:
        """A standing of the policy as it is in this fleet."""
        if believed.iteration_time_s is None or not fleet.is_slow:
            return replace(believed, formation=BelievedLayout(believed, AS_PLANNED))
        seats = self._policy.seats(believed)
        troubles = fleet.at(seats).felt(self._placement)
        time_s = self._time_s(believed, set(seats.values()), troubles) if troubles else believed.iteration_time_s
        return replace(believed, formation=BelievedLayout(believed, troubles), iteration_time_s=time_s)

    def _time_s(self, believed: TrainingState, nodes: Collection[str], troubles: PlanConditions) -> float:
        """What an iteration takes; plans of formations that differ in names only are the same."""
        key = nameless(believed.formation, nodes)
        if (key, troubles) not in self._times_s:
            if key not in self._retimed:
                if len(self._retimed) == MOST_KEPT:
                    del self._retimed[next(iter(self._retimed))]
                self._retimed[key] = self._policy.ordered(believed)
            self._times_s[key, troubles] = self._retimed[key].iteration_time_s(troubles)
        return self._times_s[key, troubles]


def paced(standing: TrainingState) -> StateChange:
    """The step to what is in force already, at another pace: nobody's answer."""
    return StateChange(standing, "")


def _formation(standing: TrainingState) -> BelievedLayout:
    return cast("BelievedLayout", standing.formation)


def nameless(formation: object, nodes: Collection[str]) -> Hashable:
    """A formation without the names of nodes."""
    if isinstance(formation, str):
        return "" if formation in nodes else formation
    if isinstance(formation, tuple):
        return tuple(nameless(part, nodes) for part in formation)
    if is_dataclass(formation):
        parts = (nameless(getattr(formation, part.name), nodes) for part in fields(formation))
        return (type(formation), *parts)
    return formation


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
            later = self._policy.react(last, replace(moment, lost=(), came=(), lost_gpus=(), came_gpus=()))
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
