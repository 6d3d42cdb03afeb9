"""A policy that answers failures, and what slow nodes and slow links make of it while it does not notice them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Protocol, cast

from ...schemas.conditions import AS_PLANNED, PlanConditions
from ...schemas.plan import Place, Plan
from ...schemas.protocols import RecoveryPolicy
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState, Transition
from ..scheduling.retimed import Retimed

# So many plans are kept ready to be timed.
MOST_KEPT = 16


class Ordering(RecoveryPolicy, Protocol):
    """A policy whose orders can be timed sooner than its plan, which is promised, checked and written out."""

    def ordered(self, standing: TrainingState) -> Retimed:
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
    what takes how long under slow parts is `timing.py`'s.

    Args:
        policy: for failures.
    """

    def __init__(self, policy: Ordering) -> None:
        self._policy = policy
        self._retimed: dict[Hashable, Retimed] = {}
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
        troubles = fleet.at(seats).felt()
        time_s = self._time_s(believed, set(seats.values()), troubles) if troubles else believed.iteration_time_s
        return replace(believed, formation=BelievedLayout(believed, troubles), iteration_time_s=time_s)

    def _time_s(self, believed: TrainingState, nodes: Collection[str], troubles: PlanConditions) -> float:
        """What an iteration takes; plans of formations that differ in names only are the same."""
        key = _nameless(believed.formation, nodes)
        if (key, troubles) not in self._times_s:
            self._times_s[key, troubles] = self._ready(key, believed).iteration_time_s(troubles)
        return self._times_s[key, troubles]

    def _ready(self, key: Hashable, believed: TrainingState) -> Retimed:
        if key not in self._retimed:
            if len(self._retimed) == MOST_KEPT:
                del self._retimed[next(iter(self._retimed))]
            self._retimed[key] = self._policy.ordered(believed)
        return self._retimed[key]


def paced(standing: TrainingState) -> StateChange:
    """The step to what is in force already, at another pace: nobody's answer."""
    return StateChange(standing, "")


def _formation(standing: TrainingState) -> BelievedLayout:
    return cast("BelievedLayout", standing.formation)


def _nameless(formation: object, nodes: Collection[str]) -> Hashable:
    """A formation without the names of nodes."""
    if isinstance(formation, str):
        return "" if formation in nodes else formation
    if isinstance(formation, tuple):
        return tuple(_nameless(part, nodes) for part in formation)
    if is_dataclass(formation):
        parts = (_nameless(getattr(formation, part.name), nodes) for part in fields(formation))
        return (type(formation), *parts)
    return formation
