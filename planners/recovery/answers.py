"""How a running job answers failures, newcomers and slow links: by one of the planners behind its `Replan`."""

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.protocols import Replan
from .escalation import RemedyCosts, RemedyScheduler, parse_mitigate

if TYPE_CHECKING:
    from ...schemas.conditions import Conditions
    from ...schemas.plan import Plan
    from ...schemas.protocols import Hand, Replanned


class PolicyName(StrEnum):
    """Whose answer."""

    JOINT = "joint"
    SLIPSTREAM = "slipstream"
    OOBLECK = "oobleck"


class Answers(Replan, RemedyScheduler, Protocol):
    """A planner for a running job, which can be made ready ahead, and knows what it costs to move workers."""

    def warm_up(self) -> None:
        """Load now what the first answer would have to wait for."""
        ...


def answers_for(
    plan: "Plan", policy: PolicyName | None, atlas: str | None, normalize_within: int, host_memory_bytes: float = 0.0
) -> Answers:
    """What plans for the failures of a running plan, and for what becomes slow.

    Args:
        plan: the plan that the job starts with, valid.
        policy: by which method; None: Oobleck's where it has made the plan, else jointly.
        atlas: a folder of plans made ahead, for re-routing; or None.
        normalize_within: iterations within which moves, or new pipelines, must have paid for their copies.
        host_memory_bytes: what a worker may hold beyond its limit under a plan that is adapted to slow links.

    Raises:
        InvalidInputError: the policy or the atlas does not fit the plan.
    """
    method = policy or _default(plan)
    if method is not PolicyName.OOBLECK:
        from .rerouting import replan_from

        rerouting = replan_from(plan, atlas, normalize_within)
        if method is PolicyName.SLIPSTREAM:
            return rerouting
        from .adapting import Adapting

        return Adapting(rerouting, normalize_within, host_memory_bytes)
    if atlas is not None:
        raise InvalidInputError("an atlas is for re-routing", where="--atlas", fix="leave it out, or --policy joint")
    from .reconfiguring import Regrouping

    return Regrouping(plan, normalize_within)


def answers_if_any(
    plan: "Plan", policy: PolicyName | None, atlas: str | None, normalize_within: int, host_memory_bytes: float = 0.0
) -> Answers:
    """As `answers_for`, but a plan whose failures nobody can plan for can be run all the same; a failure ends it.

    Raises:
        InvalidInputError: the policy or the atlas that was asked for does not fit the plan.
    """
    try:
        return answers_for(plan, policy, atlas, normalize_within, host_memory_bytes)
    except InvalidInputError as error:
        if atlas is not None or policy is not None:
            raise
        return _NoAnswer(error.what)


def remedies_of(text: str | None, plan: "Plan", policy: PolicyName | None) -> RemedyCosts:
    """What `--mitigate` says.

    Raises:
        InvalidInputError: it says nothing that can be read, or the job's policy does not heed what is slow.
    """
    if text is not None and (policy or _default(plan)) is not PolicyName.JOINT:
        raise InvalidInputError(
            "only the policy joint heeds what is slow", where="--mitigate", fix="leave it out, or --policy joint"
        )
    return parse_mitigate(text)


def _default(plan: "Plan") -> PolicyName:
    return PolicyName.OOBLECK if plan.planner.name == PolicyName.OOBLECK.value else PolicyName.JOINT


class _NoAnswer:
    """Stands in where failures cannot be planned for."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, plan: "Plan", crew: "tuple[Hand, ...]", conditions: "Conditions") -> "Replanned":
        raise InfeasibleError(self._reason)

    def moving_s(self, usual_s: float) -> float:
        """Nobody moves."""
        return math.inf

    def warm_up(self) -> None:
        """Nothing is to be loaded."""
