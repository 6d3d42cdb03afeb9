"""How a running job answers failures, newcomers and what is slow: a recovery policy behind its `Replan`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.placement import refuse_placed
from ...schemas.plan import name_of
from ...schemas.protocols import Answers, Replanned
from ...schemas.replay import Fleet, Moment
from .escalation import RemedyCosts, parse_mitigate

if TYPE_CHECKING:
    from ...schemas.conditions import Conditions
    from ...schemas.plan import Place, Plan
    from ...schemas.protocols import Hand, RunningPolicy

NodePlaces = Callable[["Plan"], Iterable[tuple["Place", ...]]]

GONE = "lost at "  # begins the name of a node that nobody knows the name of: it is not there any more


class PolicyName(StrEnum):
    """Whose answer."""

    JOINT = "joint"
    SLIPSTREAM = "slipstream"
    OOBLECK = "oobleck"


class PolicyAnswers:
    """Asks a recovery policy what a running job is to do (a `Replan`).

    The policy is told how the job stands, and what has become of its nodes; what it does at last counts. The rest of
    its answer, how long copies take and what pauses for what, the coordinator finds out by itself.

    Args:
        policy: for this job.
        plan: that the job begins with.
        nodes: the places of the workers of each node, in order, of a plan. All workers that one has at the beginning
            come and go as one: it is there while all of them are, and has its place while all of them have their state.
            None: every worker is a node.
    """

    def __init__(self, policy: RunningPolicy, plan: Plan, nodes: NodePlaces | None = None) -> None:
        self._policy, self._plan, self._nodes = policy, plan, nodes
        self._workers_of = {
            name_of(places[0]): tuple(map(name_of, places)) for places in (nodes(plan) if nodes is not None else ())
        }
        self._home = {worker: node for node, workers in self._workers_of.items() for worker in workers}

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        """The plan for who is there, as things are: the running one, where the policy has nothing to do.

        Raises:
            InfeasibleError: training cannot go on with these workers.
        """
        seats = self._seats(plan, crew)
        present = dict.fromkeys(node for node in seats.values() if not node.startswith(GONE))
        came = tuple(node for node in self._whole(crew) if node not in present)
        moment = Moment(
            time_s=0.0,
            fleet=Fleet(
                (*present, *came),
                {one.worker: one.factor for one in conditions.slow_workers},
                {one.ends: one.delay_s for one in conditions.slow_links},
                conditions.broken_links,
            ),
            lost=tuple(dict.fromkeys(node for node in seats.values() if node.startswith(GONE))),
            came=came,
            level=conditions.level,
            settled=not conditions.suspects and all(hand.place is None or hand.layers is not None for hand in crew),
        )
        standing = self._policy.resume(plan.without_pairs(), seats)
        steps = self._policy.react(standing, moment)
        if not steps:
            stay = tuple((hand.worker, hand.place) for hand in crew if hand.place is not None)
            return Replanned(plan, stay, iteration_time_s=standing.iteration_time_s)
        last = steps[-1].standing
        seated = tuple(self._seated(self._policy.seats(last)))
        return Replanned(self._policy.program(last), seated, steps[-1].restart, last.iteration_time_s)

    def moving_s(self, usual_s: float) -> float:
        """What it costs that workers change places because of what is slow; infinite where nobody does."""
        return self._policy.moving_s(usual_s)

    def warm_up(self) -> None:
        """Load now what the first answer would have to wait for."""
        from ..resumption.plan import warm_up

        self._policy.warm_up()
        warm_up(self._plan)

    def _seats(self, plan: Plan, crew: Sequence[Hand]) -> dict[Place, str]:
        """Which node holds which live worker of the running plan; lost ones have names of their own."""
        hands = {hand.place: hand for hand in crew if hand.place is not None}
        if self._nodes is None:
            places = (worker.place for worker in plan.live_workers())
            return {place: hands[place].worker if place in hands else GONE + name_of(place) for place in places}
        found: dict[Place, str] = {}
        for node in self._nodes(plan):
            there = [hands[place] for place in node if place in hands and hands[place].layers is not None]
            names = {self._home[hand.worker] for hand in there}
            is_whole = len(there) == len(node) and len(names) == 1
            found |= dict.fromkeys(node, names.pop() if is_whole else GONE + name_of(node[0]))
        return found

    def _whole(self, crew: Sequence[Hand]) -> list[str]:
        """The nodes all of whose workers are there, in the order of these."""
        if self._nodes is None:
            return [hand.worker for hand in crew]
        workers = {hand.worker for hand in crew}
        return [node for node, own in self._workers_of.items() if workers.issuperset(own)]

    def _seated(self, seats: Mapping[Place, str]) -> Iterator[tuple[str, Place]]:
        """Which worker takes which place: those of a node its places, in order."""
        workers = {node: iter(self._workers_of.get(node, (node,))) for node in set(seats.values())}
        return ((next(workers[seats[place]]), place) for place in sorted(seats))


def answers_for(
    plan: Plan, policy: PolicyName | None, atlas: str | None, normalize_within: int, host_memory_bytes: float = 0.0
) -> Answers:
    """What plans for the failures of a running plan, and for what becomes slow.

    Args:
        plan: the plan that the job starts with, valid.
        policy: by which method; None: Oobleck's where it has made the plan, else jointly, which is `rtk` of a replay
            (`rtk.py`) with the one way to hold the job that the plan says.
        atlas: a folder of plans made ahead, for re-routing; or None.
        normalize_within: iterations within which moves, or new pipelines, must have paid for their copies.
        host_memory_bytes: what a worker may hold beyond its limit under a plan that is adapted to slow links.

    Raises:
        InvalidInputError: the policy or the atlas does not fit the plan.
    """
    method, plan = policy_of(plan, policy), plan.without_pairs()
    if method is PolicyName.OOBLECK:
        refuse_placed(plan, "the policy oobleck, whose templates are of one stage a worker,")
        if atlas is not None:
            raise InvalidInputError(
                "an atlas is for re-routing", where="--atlas", fix="leave it out, or --policy joint"
            )
        from .oobleck import Oobleck, TemplateJob, places_of_nodes

        job = TemplateJob.running(plan)
        return PolicyAnswers(Oobleck(job, normalize_within), plan, partial(places_of_nodes, job.templates))
    from .slipstream import GridJob, SlipStream

    rerouting = SlipStream(GridJob.running(plan, atlas, normalize_within))
    if method is PolicyName.SLIPSTREAM:
        return PolicyAnswers(rerouting, plan)
    from .adapting import Adapting
    from .job import Horizon
    from .rtk import Rtk

    horizon = Horizon(normalize_within)
    return PolicyAnswers(Rtk.running(Adapting(rerouting, horizon, host_memory_bytes), horizon), plan)


def answers_if_any(
    plan: Plan, policy: PolicyName | None, atlas: str | None, normalize_within: int, host_memory_bytes: float = 0.0
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


def remedies_of(text: str | None, plan: Plan, policy: PolicyName | None) -> RemedyCosts:
    """What `--mitigate` says.

    Raises:
        InvalidInputError: it says nothing that can be read, or the job's policy does not heed what is slow.
    """
    if text is not None and policy_of(plan, policy) is not PolicyName.JOINT:
        raise InvalidInputError(
            "only the policy joint takes account of what is slow",
            where="--mitigate",
            fix="leave it out, or --policy joint",
        )
    return parse_mitigate(text)


def policy_of(plan: Plan, asked: PolicyName | None) -> PolicyName:
    """By which method a running job recovers: the one that is asked for, else Oobleck's where it has made the plan."""
    usual = PolicyName.OOBLECK if plan.planner.name == PolicyName.OOBLECK.value else PolicyName.JOINT
    return asked or usual


class _NoAnswer:
    """Stands in where failures cannot be planned for."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __call__(self, plan: Plan, crew: tuple[Hand, ...], conditions: Conditions) -> Replanned:
        raise InfeasibleError(self._reason)

    def moving_s(self, usual_s: float) -> float:
        """Nobody moves."""
        return math.inf

    def warm_up(self) -> None:
        """Nothing is to be loaded."""
