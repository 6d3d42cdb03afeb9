"""Oobleck's pipelines with zero-bubble orders, whose micro-batches heed what is slow: a way of rtk's own policy.

The paper's pipelines run 1F1B. Here their backwards are split, so that weight gradients fill the drain, and
micro-batches are shared by the pace that this gives: longer pipelines, which divide layers and micro-batches more
evenly, cost less then. All else is as in `oobleck.py`: templates, which nodes go where, what is copied.

Once it is known what is slow, `adapted` gives fewer micro-batches to the pipelines that are, and orders made for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from ... import __version__
from ...schemas.documents import digest
from ...schemas.plan import Pipeline, Place, Plan, Planner, Stage, Worker
from ...schemas.replay import Fleet, Moment, StateChange, TrainingState
from ...schemas.templates import Templates
from ..batch.distribute import distribute
from ..batch.groups import Pace
from ..oobleck.pace import connection_of
from ..oobleck.plan import OPTION, rest_of, template_among, template_name
from ..scheduling.assemble import with_prediction
from .checkpoints import checkpointing
from .job import TrainingJob
from .oobleck import FAULT_TOLERANCE, Names, Oobleck, OobleckLayout
from .slowness import HEALTHY, PlanSlowness, troubles_of, under_troubles
from .unheeding import paced
from .zero_bubble_pipelines import ZeroBubbleKey, ZeroBubblePipelines

# Templates are made up to so many times the smallest one's nodes, for longer pipelines are hardly ever best; and up to
# where the slowest stage leaves the others idle for more of the time.
MOST_TIMES, MOST_IDLE = 8, 0.15


@dataclass(frozen=True)
class Heeding:
    """How Oobleck's pipelines go on.

    Attributes:
        base: who sits where, as Oobleck has it while nothing is slow.
        kinds: of the pipelines.
        troubles: what is slow.
    """

    base: TrainingState
    kinds: tuple[ZeroBubbleKey, ...]
    troubles: PlanSlowness


class UnlikeZeroBubble:
    """A `Policy`; to what is slow it has no answer, unless `adapted` is asked for one.

    Args:
        job: what it trains; the rest as for `Oobleck`.
        fault_tolerance: there are always one more pipelines.
    """

    def __init__(self, job: TrainingJob, fault_tolerance: int = FAULT_TOLERANCE) -> None:
        self._job, self._oobleck = job, _Oobleck(job, fault_tolerance=fault_tolerance)
        self._shared: dict[tuple[tuple[int, ...], PlanSlowness], tuple[ZeroBubbleKey, ...]] = {}

    def begin(self, fleet: Fleet) -> TrainingState:
        """As Oobleck; what is slow already is answered from the next moment on."""
        return self._under(self._oobleck.begin(fleet), fleet)

    def answer(self, standing: TrainingState, moment: Moment) -> tuple[StateChange, ...]:
        """As Oobleck; where only the pace changes, the same standing goes on at that pace."""
        held = _held(standing)
        steps = self._oobleck.answer(held.base, moment)
        if steps:
            return tuple(replace(step, standing=self._under(step.standing, moment.fleet)) for step in steps)
        same = self._under(held.base, moment.fleet, held.kinds)
        return () if same == standing else (paced(same),)

    def adapted(self, standing: TrainingState, believed: Fleet, fleet: Fleet) -> TrainingState:
        """The same nodes in the same places, with micro-batches and orders for what is believed to be slow there.

        Args:
            standing: of this policy.
            believed: what is planned for.
            fleet: as it is.
        """
        held = _held(standing)
        if held.base.iteration_time_s is None:
            return standing
        troubles = self._troubles(held.base, believed)
        plain = _plain(_formation(held.base))
        if not troubles:
            return self._under(held.base, fleet)
        ways = (plain, self._heeding(_formation(held.base), troubles))
        kinds = min(ways, key=lambda kinds: self._oobleck.pipelines.iteration_time_s(kinds, troubles))
        return self._under(held.base, fleet, kinds)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines, each with its own orders, and what is slow."""
        held = _held(standing)
        if standing.iteration_time_s is None:
            return None
        return under_troubles(with_prediction(self._oobleck.plan_of(held.kinds)), held.troubles)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As Oobleck."""
        return self._oobleck.seats(_held(standing).base)

    def _under(
        self, base: TrainingState, fleet: Fleet, kinds: tuple[ZeroBubbleKey, ...] | None = None
    ) -> TrainingState:
        """A standing of Oobleck's as it is in this fleet, with its own micro-batches unless others are given."""
        kinds = kinds or _plain(_formation(base))
        troubles = self._troubles(base, fleet)
        if base.iteration_time_s is None or (not troubles and kinds == _plain(_formation(base))):
            return replace(base, formation=Heeding(base, kinds, troubles))
        return replace(
            base,
            formation=Heeding(base, kinds, troubles),
            iteration_time_s=self._oobleck.pipelines.iteration_time_s(kinds, troubles),
            peak_memory_bytes=self._oobleck.held_at_most(kinds),
        )

    def _heeding(self, formation: OobleckLayout, troubles: PlanSlowness) -> tuple[ZeroBubbleKey, ...]:
        """Micro-batches shared by the paces that are left, and orders for them."""
        key = formation.sizes, troubles
        if key not in self._shared:
            own = troubles.by_pipeline()
            planned = [own.get(k, HEALTHY) for k in range(len(formation.sizes))]
            paces = [self._oobleck.pace(*each) for each in zip(formation.sizes, planned, strict=True)]
            counts = distribute(paces, self._job.microbatches).microbatches
            self._shared[key] = tuple(map(ZeroBubbleKey, formation.sizes, counts, planned))
        return self._shared[key]

    def _troubles(self, base: TrainingState, fleet: Fleet) -> PlanSlowness:
        return troubles_of(fleet, self._oobleck.seats(base)).felt() if fleet.is_slow else HEALTHY


class _Oobleck(Oobleck):
    """Oobleck whose templates have zero-bubble orders."""

    @cached_property
    def templates(self) -> Templates:
        """As Oobleck's, but for those of too many nodes; enough are left to use up any number of them."""
        found = super().templates
        least = 2 * found.smallest - 1
        kept = (one.nodes for one in found.templates[: MOST_TIMES * found.smallest] if _idle(one.stages) <= MOST_IDLE)
        largest = max(kept, default=least)
        return replace(found, templates=tuple(one for one in found.templates if one.nodes <= max(least, largest)))

    @cached_property
    def pipelines(self) -> ZeroBubblePipelines:
        """By a pipeline's number of nodes."""
        templates = self.templates
        return ZeroBubblePipelines(
            templates.layers,
            connection_of(templates),
            lambda nodes: templates.templates[nodes - templates.smallest],
        )

    @cached_property
    def _paces(self) -> Sequence[Pace]:
        return [self.pace(one.nodes) for one in self.templates.templates]

    def pace(self, nodes: int, troubles: PlanSlowness = HEALTHY) -> Pace:
        """Of a pipeline with what is slow in it."""
        return self.pipelines.pace(nodes, troubles)

    def held_at_most(self, kinds: Sequence[ZeroBubbleKey]) -> float:
        """What a GPU of such pipelines holds at most: parameters, state and activations."""
        return max(
            static + most
            for kind in set(kinds)
            for static, most in zip(self._gpu_bytes[kind.nodes], self.pipelines.activation_bytes(kind), strict=True)
        )

    def plan_of(self, kinds: Sequence[ZeroBubbleKey]) -> Plan:
        """Such pipelines, without a prediction."""
        templates = self.templates
        options = {"nodes": sum(kind.nodes for kind in kinds), "schedule": "zero-bubble", OPTION: rest_of(templates)}
        orders = [self.pipelines.orders(kind) for kind in kinds]
        return Plan(
            planner=Planner("oobleck", __version__, options),
            inputs={"templates": digest(templates)},
            templates=tuple(template_among(templates, one, len(kinds)) for one in templates.templates),
            pipelines=tuple(Pipeline(template_name(kind.nodes), kind.microbatches) for kind in kinds),
            optimizer="synchronous",
            workers=tuple(Worker(k, i, order) for k, row in enumerate(orders) for i, order in enumerate(row)),
        )

    def _standing(self, pipelines: tuple[Names, ...], microbatches: tuple[int, ...]) -> TrainingState:
        formation = OobleckLayout(pipelines, microbatches)
        kinds = _plain(formation)
        return TrainingState(
            formation=formation,
            iteration_time_s=self.pipelines.iteration_time_s(kinds),
            microbatches=self._job.microbatches,
            nodes=sum(formation.sizes),
            peak_memory_bytes=self.held_at_most(kinds),
            checkpointing=checkpointing(self._job, [size for one in kinds for size in self._gpu_bytes[one.nodes]]),
        )


def _idle(stages: Sequence[Stage]) -> float:
    """Of the mean GPU, because stages are unlike."""
    gpus = sum(stage.tensor_parallel for stage in stages)
    return 1 - sum(stage.work_s * stage.tensor_parallel for stage in stages) / (
        gpus * max(stage.work_s for stage in stages)
    )


def _plain(formation: OobleckLayout) -> tuple[ZeroBubbleKey, ...]:
    return tuple(map(ZeroBubbleKey, formation.sizes, formation.microbatches))


def _held(standing: TrainingState) -> Heeding:
    return cast("Heeding", standing.formation)


def _formation(standing: TrainingState) -> OobleckLayout:
    return cast("OobleckLayout", standing.formation)
