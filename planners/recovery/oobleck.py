"""Oobleck: unlike pipelines, made anew from templates at every change.

"Oobleck: Resilient Distributed Training of Large Models Using Pipeline Templates" (SOSP 2023), with the real planner
(`planners/oobleck/`): templates for the job's nodes with f = 1, the fastest pipelines for the nodes that are there
(section 4.2), and at every change its reconfiguration (section 5).

* A failure stops all, and its iteration is lost: the nodes notice, copy what their new places lack, and form new
  groups. Templates are made ahead and the next pipelines chosen in milliseconds, so planning takes no time.
* Nodes that come are taken in when the running iteration ends, after copies and new groups.
* Where fewer than (f + 1) n_0 nodes are left, the paper "stores the progress, informs the user, and exits" (section
  3.4): the job waits, and restarts from there once there are enough. Where a layer's state is lost, it restarts from
  the last checkpoint; for that alone there are checkpoints.

Where we deviate, beside what docs/oobleck.md says of the planner: pipelines have no more nodes than the model has
layers for, and where that leaves nodes over, these wait; more nodes than the job asks for are spares; all nodes have
copied what they need before the next change is answered. Of the job's shape only the global batch counts: stages,
tensor-parallel degrees and pipelines are Oobleck's own, memory and network are the profile's, and a job with a limit of
activations is refused. The GPUs of a node copy side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Any, cast

from ...schemas.checkpoint import missing_layers
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan, name_of, place_of
from ...schemas.profile import Connection
from ...schemas.replay import Costs, Fleet, Moment, Pause, StateChange, TrainingState, Transition
from ...schemas.templates import PipelineTemplate, Templates, nodes_of_stages
from ..batch.exact import Pace
from ..oobleck.assignment import CrewNode, Range, crew_of, node_shapes, require_all_layers
from ..oobleck.pace import paces_of, rings_of
from ..oobleck.plan import ordered_of, plan_of, templates_of
from ..oobleck.reconfiguration import KEPT_OPTIONS, PAYS_WITHIN, GlobalBatch, Weighing, batch_of
from ..oobleck.reconfiguration import SurvivingNodes as Crew
from ..oobleck.templates import largest_size, plan_templates
from ..scheduling.retimed import Retimed
from .job import (
    RUNNING,
    TrainingJob,
    checkpointing,
    copying_connection,
    failing_over,
    gpu_bytes,
    loading_s,
    peak_bytes,
    regrouping,
    require_rate,
    restart,
)
from .layout import PipelineKey, Pipelines

FAULT_TOLERANCE = 1
JOINS = -1  # the pipeline of nodes that have none yet

Names = tuple[str, ...]
Part = tuple[int, tuple[int, ...]]  # a pipeline's nodes, and which of them are gone, by their index


@dataclass(frozen=True)
class OobleckLayout:
    """The nodes of each pipeline, in order, and its micro-batches; nothing while the job waits."""

    pipelines: tuple[Names, ...] = ()
    microbatches: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes of each pipeline."""
        return tuple(map(len, self.pipelines))


@dataclass(frozen=True)
class _Situation:
    """What has become of the pipelines, in an order that knows no names: alike situations have alike answers.

    Attributes:
        parts: the pipelines.
        names: the nodes of each, those that are gone among them.
        joining: nodes that join.
        failed: whether nodes are gone.
    """

    parts: tuple[Part, ...]
    names: tuple[Names, ...]
    joining: Names
    failed: bool

    @property
    def nodes(self) -> int:
        """Those that are there."""
        return sum(size - len(gone) for size, gone in self.parts) + len(self.joining)

    def named(self, seats: Sequence[Sequence[Place]]) -> tuple[Names, ...]:
        """The nodes that have these places here."""
        return tuple(tuple(self.joining[i] if k == JOINS else self.names[k][i] for k, i in row) for row in seats)


@dataclass(frozen=True)
class _Next:
    """The answer to a situation.

    Attributes:
        seats: of each next pipeline: where its nodes were.
        microbatches: of each.
        copying_s: how long copying takes; 0 where a running job does not say.
        steps: what was done, in the paper's words; the fastest set of pipelines is a `re-shape`.
    """

    seats: tuple[tuple[Place, ...], ...]
    microbatches: tuple[int, ...]
    copying_s: float
    steps: str


@dataclass(frozen=True, eq=False)
class TemplateJob:
    """A job of pipelines made from templates, as it is replayed or as it runs.

    Attributes:
        nodes: that it uses at most.
        batch: that pipelines share.
        costs: what changes cost.
        make: its templates.
        connection: that a node's state is copied over; None: as the templates have it.
        is_saved: whether there are checkpoints to go back to; else the job ends where pipelines cannot go on.
        told: what its plans say of it.
    """

    nodes: int
    batch: GlobalBatch
    costs: Costs
    make: Callable[[], Templates]
    connection: Callable[[], Connection | None] = lambda: None
    is_saved: bool = True
    told: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def replayed(cls, job: TrainingJob, fault_tolerance: int = FAULT_TOLERANCE) -> TemplateJob:
        """A job that is replayed, whose nodes and global batch count; there is one more pipeline than may fail."""

        def make() -> Templates:
            """The templates for the job's nodes.

            Raises:
                InvalidInputError: nobody says how fast state is copied.
                InfeasibleError: activations are limited, or no pipeline fits.
            """
            require_rate(job)
            if job.shape.memory_limit_bytes is not None:
                raise InfeasibleError(
                    "Oobleck cuts stages of its own, for the memory of the device; it knows no limit of activations",
                    where="--memory-limit",
                    fix="leave Oobleck out, or the limit; or give the profile a device with less memory",
                )
            asked = job.profile, job.nodes, job.gpus_per_node, fault_tolerance
            return plan_templates(*asked, largest=largest_size(*asked), gaps=True)

        def connection() -> Connection:
            found = copying_connection(job)
            if found.bandwidth_bytes_per_s is None:
                return found
            return replace(found, bandwidth_bytes_per_s=found.bandwidth_bytes_per_s * job.gpus_per_node)

        return cls(job.nodes, GlobalBatch(job.microbatches), job.costs, make, connection)

    @classmethod
    def running(cls, plan: Plan) -> TemplateJob:
        """A job that began with a plan.

        Raises:
            InvalidInputError: the plan was not made from templates.
        """
        templates = templates_of(plan)
        kept = {name: value for name, value in plan.planner.options.items() if name in KEPT_OPTIONS}
        nodes = len(crew_of(plan, templates.gpus_per_node))
        return cls(nodes, batch_of(plan), RUNNING, lambda: templates, is_saved=False, told=kept)

    @cached_property
    def templates(self) -> Templates:
        """For its nodes.

        Raises:
            InfeasibleError: there are none for its nodes, or it has a limit of activations.
            InvalidInputError: the profile lacks a tensor-parallel degree, or nobody says how fast state is copied.
        """
        return self.make()


class Oobleck:
    """Pipelines of templates; its formations say which nodes each pipeline has, and how many micro-batches.

    Args:
        job: its templates and its batch.
        pays_within: iterations within which new pipelines must have paid for their copies; 0: only the paper's steps.
    """

    def __init__(self, job: TemplateJob, pays_within: int = PAYS_WITHIN) -> None:
        self._job, self._pays_within = job, pays_within
        self._answers: dict[tuple[tuple[Part, ...], int, int], _Next] = {}
        self._beginnings: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def begin(self, fleet: Fleet) -> TrainingState:
        """In the fastest pipelines of these nodes; waiting where they are too few.

        Raises:
            InfeasibleError: there are no templates for two pipelines on the job's nodes, or its batch is too small; or
                the job has a limit of activations.
            InvalidInputError: the profile lacks a tensor-parallel degree, or nobody says how fast state is copied.
        """
        self._begun(tuple(map(str, range(self._job.nodes))))
        return self._begun(fleet.nodes)

    def resume(self, plan: Plan, seats: Mapping[Place, str]) -> TrainingState:
        """The nodes of each pipeline, in order."""
        rows = groupby(sorted(seats), key=lambda place: place[0])
        pipelines = tuple(tuple(dict.fromkeys(seats[place] for place in row)) for _, row in rows)
        return self._standing(pipelines, tuple(pipeline.microbatches for pipeline in plan.pipelines))

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """Other pipelines, where nodes of theirs were lost or others can join; or a restart, or a wait for nodes.

        Raises:
            InfeasibleError: nodes are too few, or hold not all layers, and nothing was saved.
        """
        return self.answer(standing, moment, self._pays_within)

    def answer(self, standing: TrainingState, moment: Moment, pays_within: int) -> Transition:
        """The same, where new pipelines must have paid within so many iterations; 0: only the paper's steps."""
        formation = cast("OobleckLayout", standing.formation)
        if not formation.pipelines:
            return self._restarted(moment.fleet, lost=False)
        situation = self._situation(formation, moment)
        if not situation.failed and not situation.joining:
            return ()
        holds_all = self._holds_all(situation)
        if not self._job.is_saved:
            self._weighing.sizes.require(len(set(moment.fleet.nodes).difference(moment.lost)), or_more=True)
            require_all_layers(tuple(self._crew(situation)), len(self.templates.layers))
        if situation.nodes < self._weighing.sizes.least:
            return (self._stopped(standing, holds_all),)
        if not holds_all:
            return self._restarted(moment.fleet, lost=True)
        return (self._reconfigured(situation, pays_within),)

    def plan(self, standing: TrainingState) -> Plan | None:
        """The pipelines, in 1F1B."""
        return self.program(standing) if cast("OobleckLayout", standing.formation).pipelines else None

    def program(self, standing: TrainingState) -> Plan:
        """The pipelines, in 1F1B."""
        formation = cast("OobleckLayout", standing.formation)
        return plan_of(self.templates, formation.sizes, formation.microbatches, self._job.told)

    def ordered(self, standing: TrainingState) -> Retimed:
        """The orders of the pipelines' plan."""
        formation = cast("OobleckLayout", standing.formation)
        return Retimed(*ordered_of(self.templates, formation.sizes, formation.microbatches))

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """Pipeline after pipeline; a node holds one stage or several."""
        pipelines = cast("OobleckLayout", standing.formation).pipelines
        return {
            (k, i): names[node]
            for k, names in enumerate(pipelines)
            for i, node in enumerate(self._nodes_of_stages[len(names)])
        }

    def moving_s(self, usual_s: float) -> float:
        """Nobody moves because of what is slow."""
        return math.inf

    def warm_up(self) -> None:
        """Make the pipelines of one node less, so that what is loaded once is there when the first node is lost."""
        nodes = tuple(map(str, range(self._job.nodes)))
        with suppress(InfeasibleError):
            self.react(self._begun(nodes), Moment(0.0, Fleet(nodes[:-1]), nodes[-1:]))

    @property
    def templates(self) -> Templates:
        """Of the job; raises as `begin`."""
        return self._job.templates

    def _template(self, nodes: int) -> PipelineTemplate:
        return self.templates.templates[nodes - self.templates.smallest]

    @cached_property
    def _weighing(self) -> Weighing:
        return Weighing(self.templates, self._job.batch, self._job.connection(), self._paces)

    @cached_property
    def _paces(self) -> Sequence[Pace]:
        """Of the templates, by which micro-batches are shared; rtk's own policy has paces of its own."""
        return paces_of(self.templates.templates, self._job.batch.microbatches, self._job.nodes)

    @cached_property
    def _pipelines(self) -> Pipelines:
        """By a pipeline's number of nodes."""
        return Pipelines(self.templates.layers, rings_of(self.templates), self._template)

    @cached_property
    def _gpu_bytes(self) -> dict[int, tuple[float, ...]]:
        """Parameters and state of a GPU of each stage of a pipeline, by its number of nodes."""
        layers = self.templates.layers
        return {one.nodes: tuple(gpu_bytes(layers, stage) for stage in one.stages) for one in self.templates.templates}

    @cached_property
    def layers(self) -> dict[int, tuple[Range, ...]]:
        """The layers of each node of a pipeline, by its number of nodes."""
        gpus = self.templates.gpus_per_node
        return {
            one.nodes: tuple(shape.layers for shape in node_shapes(one.stages, gpus))
            for one in self.templates.templates
        }

    @cached_property
    def _nodes_of_stages(self) -> dict[int, tuple[int, ...]]:
        """The node of each stage of a pipeline, by its number of nodes."""
        gpus = self.templates.gpus_per_node
        return {one.nodes: nodes_of_stages(one.stages, gpus) for one in self.templates.templates}

    def _begun(self, nodes: Names) -> TrainingState:
        """The fastest pipelines of the first nodes; a standing that waits where they are too few."""
        used = self._usable(len(nodes))
        if used < self._weighing.sizes.least:
            return TrainingState(OobleckLayout(), None, 0, 0)
        if used not in self._beginnings:
            self._beginnings[used] = self._anew(used)
        sizes, microbatches = self._beginnings[used]
        coming = iter(nodes)
        return self._standing(tuple(tuple(islice(coming, size)) for size in sizes), microbatches)

    def _anew(self, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The fastest pipelines of so many nodes, their sizes and micro-batches; the policy rtk chooses others."""
        return self._weighing.anew(nodes)

    def _usable(self, nodes: int) -> int:
        """How many of so many nodes the job uses."""
        return self._weighing.sizes.usable(min(nodes, self._job.nodes))

    def _standing(self, pipelines: tuple[Names, ...], microbatches: tuple[int, ...]) -> TrainingState:
        formation = OobleckLayout(pipelines, microbatches)
        layout = tuple(map(PipelineKey, microbatches, formation.sizes))
        return TrainingState(
            formation=formation,
            iteration_time_s=self._pipelines.seconds(layout),
            microbatches=self._job.batch.microbatches,
            nodes=sum(formation.sizes),
            peak_memory_bytes=max(
                peak_bytes(self._gpu_bytes[key.shape], self._pipelines.activation_bytes(key)) for key in set(layout)
            ),
            checkpointing=checkpointing(
                self._job.costs, [size for key in layout for size in self._gpu_bytes[key.shape]]
            ),
        )

    def _situation(self, formation: OobleckLayout, moment: Moment) -> _Situation:
        """What has become of the pipelines, and who can join them: also who was lost and has come back at once."""
        living = set(moment.fleet.nodes).difference(moment.lost)
        gone = [tuple(i for i, name in enumerate(names) if name not in living) for names in formation.pipelines]
        failed = any(gone)
        seated = {name for names in formation.pipelines for name in names if name in living}
        idle = tuple(name for name in moment.fleet.nodes if name not in seated)
        left = len(seated)
        used = self._usable(left + len(idle))
        if used < left:
            gone = _released(formation.sizes, gone, left - used)
        rows = sorted(zip(formation.sizes, gone, formation.pipelines, strict=True), key=lambda row: row[:2])
        return _Situation(
            tuple((size, lost) for size, lost, _ in rows),
            tuple(names for _, _, names in rows),
            idle[: max(0, used - left)],
            failed,
        )

    def _holds_all(self, situation: _Situation) -> bool:
        """Whether every layer is held by some node that is left."""
        if any(not gone for _, gone in situation.parts):
            return True
        held = {node.layers for node in self._crew(situation) if node.layers is not None}
        return not missing_layers(len(self.templates.layers), held)

    def _crew(self, situation: _Situation) -> Iterator[CrewNode]:
        """The nodes that are there, named by their places."""
        for k, (size, gone) in enumerate(situation.parts):
            for i, layers in enumerate(self.layers[size]):
                if i not in gone:
                    yield CrewNode(name_of((k, i)), (k, i), layers)
        for n in range(len(situation.joining)):
            yield CrewNode(name_of((JOINS, n)), None, None)

    def _reconfigured(self, situation: _Situation, pays_within: int) -> StateChange:
        key = situation.parts, len(situation.joining), pays_within
        if key not in self._answers:
            crew = Crew(tuple(size for size, _ in situation.parts), tuple(self._crew(situation)))
            choice = self._weighing.chosen(crew, pays_within)
            seats = tuple(tuple(place_of(node.name) for node in nodes) for nodes in choice.seats)
            steps = ("re-shape" if step == "new set" else step for step in choice.pipelines.steps)
            self._answers[key] = _Next(seats, choice.microbatches, choice.copying_s or 0.0, " and ".join(steps))
        found = self._answers[key]
        standing = self._standing(situation.named(found.seats), found.microbatches)
        pauses = failing_over if situation.failed else regrouping
        return StateChange(
            standing,
            found.steps,
            pauses(self._job.costs, copying_s=found.copying_s),
            interrupts=situation.failed,
        )

    def _stopped(self, standing: TrainingState, holds_all: bool) -> StateChange:
        """Too few are left: what they hold is saved, if it is everything."""
        costs, saving = self._job.costs, standing.checkpointing
        pauses = [Pause("detecting", costs.detection_s)]
        if holds_all and saving is not None:
            pauses.append(Pause("checkpointing", saving.pause_s))
        return StateChange(self._begun(()), "wait", tuple(pauses), interrupts=True, rolls_back=not holds_all)

    def _restarted(self, fleet: Fleet, *, lost: bool) -> Transition:
        """From what was saved, if there are enough nodes."""
        following = self._begun(fleet.nodes)
        sizes = set(cast("OobleckLayout", following.formation).sizes)
        read_bytes = [0.0, *(size for nodes in sizes for size in self._node_bytes(nodes))]
        return restart(self._job.costs, following, loading_s(self._job.costs, read_bytes), lost=lost)

    def _node_bytes(self, nodes: int) -> Sequence[float]:
        """Parameters and state of each node of a pipeline."""
        found = [0.0] * nodes
        rows = zip(self._nodes_of_stages[nodes], self._template(nodes).stages, self._gpu_bytes[nodes], strict=True)
        for node, stage, held_bytes in rows:
            found[node] += held_bytes * stage.tensor_parallel
        return found


def places_of_nodes(templates: Templates, plan: Plan) -> Iterator[tuple[Place, ...]]:
    """The places of the workers of each node of a plan made from templates, pipeline after pipeline."""
    for k in range(len(plan.pipelines)):
        for shape in node_shapes(plan.template_of(k).stages, templates.gpus_per_node):
            yield tuple((k, i) for i in range(*shape.stages))


def _released(sizes: Sequence[int], gone: Sequence[tuple[int, ...]], number: int) -> list[tuple[int, ...]]:
    """The nodes that are gone once so many more have to wait: the last ones of pipelines that have lost most."""
    found = [list(lost) for lost in gone]
    for k in sorted(range(len(gone)), key=lambda k: -len(gone[k])):
        released = [i for i in reversed(range(sizes[k])) if i not in gone[k]][:number]
        found[k] += released
        number -= len(released)
    return [tuple(sorted(lost)) for lost in found]
