"""Reconfiguration: from the nodes that are left, or have joined, to the next plan of a running job.

"Oobleck: Resilient Distributed Training of Large Models Using Pipeline Templates", section 5. The paper's steps say the
sizes of the next pipelines (assignment.py); the fastest set of pipelines for these nodes (instantiation.py), to which
the paper never goes back, is weighed against them (reconfiguration.py). Nodes are seated so that least is copied
(assignment.py), from whoever holds a layer. The batch is distributed anew; the global batch stays (section 5.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Place, Plan
from ...schemas.profile import Connection
from ...schemas.templates import Templates
from ..batch.distribute import Distribution, Objective, Solver, distribute
from ..batch.exact import Pace
from ..scheduling.problem import ROUNDING
from .assignment import (
    CrewNode,
    LayerCopy,
    LayerSizes,
    PipelineAssignment,
    Range,
    Sizes,
    Step,
    assign,
    copies_between,
    crew_of,
    node_shapes,
    reinstantiate,
    require_all_layers,
)
from .instantiation import fastest_of_each_number, fastest_sizes, fewest_pipelines
from .pace import connection_of, ending_of, paces_of
from .plan import plan_of, templates_of

PAYS_WITHIN = 100  # iterations
KEPT_OPTIONS = ("microbatch_size", "global_batch", "multiple_of", "objective", "solver")


@dataclass(frozen=True)
class Reconfiguration:
    """The next plan, and what leads there.

    Attributes:
        plan: for just these nodes.
        crew: the nodes in the order of their places there, holding what these need.
        origins: the present pipeline that each pipeline replaces, None for a new one.
        steps: what was done: the paper's steps, or a new set of pipelines.
        copies: what nodes get from others before they can go on.
        copying_s: how long that takes; None where the network is not known.
    """

    plan: Plan
    crew: tuple[CrewNode, ...]
    origins: tuple[int | None, ...]
    steps: tuple[Step, ...]
    copies: tuple[LayerCopy, ...]
    copying_s: float | None

    @property
    def pipelines(self) -> tuple[tuple[str, ...], ...]:
        """The names of the nodes of each pipeline, in order."""
        found: list[list[str]] = [[] for _ in self.origins]
        for node in self.crew:
            assert node.position is not None
            found[node.position[0]].append(node.name)
        return tuple(map(tuple, found))

    @property
    def moved_bytes(self) -> float:
        """All that is copied."""
        return sum(copy.size_bytes for copy in self.copies)


class Reconfigurer:
    """One job's templates and batch, made ready for any nodes: what a running job asks when nodes are lost or come.

    Args:
        plan: of the job, of pipelines made from templates (plan.py); its reconfigurations are of the same job.

    Raises:
        InvalidInputError: the plan was not made from templates.
    """

    def __init__(self, plan: Plan) -> None:
        self.templates = templates_of(plan)
        self._weighing = Weighing(self.templates, batch_of(plan))

    def usable(self, nodes: int) -> int:
        """How many of so many nodes pipelines can use: all of what the job began with, not all of any more.

        Who is too many when nodes join has to wait: `next_of` takes all that it is given.
        """
        return self._weighing.sizes.usable(nodes)

    def require_joining(self, nodes: int, joining: int) -> None:
        """Raise InfeasibleError if pipelines could use the nodes only were it fewer or more that join; says how many.

        Args:
            nodes: those that are left, and those that join.
            joining: of them.
        """
        sizes = self._weighing.sizes
        possible = [joining + number - nodes for number in sizes.around(nodes) if joining + number >= nodes]
        if nodes >= sizes.least and possible and joining not in possible:
            raise InfeasibleError(
                sizes.cannot_use(nodes),
                where="--join",
                fix="take " + " or ".join(f"--join {number}" if number else "no --join" for number in possible),
            )

    def next_of(self, plan: Plan, nodes: Sequence[CrewNode], pays_within: int = PAYS_WITHIN) -> Reconfiguration:
        """The next plan, for the nodes that are there.

        Args:
            plan: the one that runs.
            nodes: those that are left, and those that join; each with the layers that it really holds.
            pays_within: iterations within which a new set of pipelines must have paid for its copies; 0: only the
                paper's steps.

        Raises:
            InfeasibleError: fewer than (f + 1) n_0 nodes, a number that no pipelines can use, or a layer that no node
                holds.
            InvalidInputError: the nodes are not of this plan.
        """
        sizes = {
            template.name: len(node_shapes(template.stages, self.templates.gpus_per_node))
            for template in plan.templates
        }
        before = tuple(sizes[pipeline.template] for pipeline in plan.pipelines)
        # Raise InvalidInputError unless names and positions are unique and there are such positions and layers.
        layers = len(self.templates.layers)
        names = {node.name for node in nodes}
        positions = [node.position for node in nodes if node.position is not None]
        if len(names) < len(nodes) or len(set(positions)) < len(positions):
            raise InvalidInputError("two nodes have one name or one position", where="the nodes", fix="give each once")
        for node in nodes:
            k, i = node.position or (0, 0)
            first, stop = node.layers or (0, 1)
            if not (0 <= k < len(before) and 0 <= i < before[k] and 0 <= first < stop <= layers):
                raise InvalidInputError(
                    f"node {node.name} stands at {node.position} with layers {node.layers}",
                    where="the nodes",
                    fix=f"pipelines are 0 to {len(before) - 1}, layers [first, stop) up to {layers}",
                )
        choice = self._weighing.chosen(SurvivingNodes(before, tuple(nodes)), pays_within)
        kept = {name: value for name, value in plan.planner.options.items() if name in KEPT_OPTIONS}
        made = plan_of(self.templates, choice.pipelines.sizes, choice.microbatches, kept)
        origins, steps = choice.pipelines.origins, choice.pipelines.steps
        found = Reconfiguration(made, choice.crew, origins, steps, choice.copies, choice.copying_s)
        return replace(found, plan=_told(found, plan, pays_within))


def reconfigure(plan: Plan, nodes: Sequence[CrewNode], pays_within: int = PAYS_WITHIN) -> Reconfiguration:
    """The next plan, once: `Reconfigurer.next_of`, which says what it takes and raises."""
    return Reconfigurer(plan).next_of(plan, nodes, pays_within)


def crew_after(plan: Plan, failed: Collection[Place], joining: int) -> tuple[CrewNode, ...]:
    """The nodes of a plan without those that failed, and new ones.

    Args:
        plan: of pipelines made from templates.
        failed: workers, each of which takes its whole node along.
        joining: how many come, named new0, new1 and so on.

    Raises:
        InvalidInputError: there is no such worker, or the plan was not made from templates.
    """
    for k, i in failed:
        if k >= len(plan.pipelines):
            fix = f"pipelines are 0 to {len(plan.pipelines) - 1}"
            raise InvalidInputError(f"there is no worker {k}/{i}", where="--failed", fix=fix)
        if i >= len(plan.template_of(k).stages):
            fix = f"workers of pipeline {k} are {k}/0 to {k}/{len(plan.template_of(k).stages) - 1}"
            raise InvalidInputError(f"there is no worker {k}/{i}", where="--failed", fix=fix)
    new = (CrewNode(f"new{n}", None, None) for n in range(joining))
    return (*crew_of(plan, templates_of(plan).gpus_per_node, failed), *new)


def batch_of(plan: Plan) -> GlobalBatch:
    """What a plan distributes, and how: as its options say, which may be of anybody's hand."""
    options, microbatches = plan.planner.options, plan.total_microbatches()
    multiple_of, objective, solver = options.get("multiple_of"), options.get("objective"), options.get("solver")
    return GlobalBatch(
        microbatches,
        multiple_of if isinstance(multiple_of, int) and multiple_of > 0 and microbatches % multiple_of == 0 else 1,
        "variance" if objective == "variance" else "min-max",
        "pyomo" if solver == "pyomo" else "exact",
    )


def _told(found: Reconfiguration, before: Plan, pays_within: int) -> Plan:
    """The plan, which says in its options how it came about."""
    said: dict[str, Any] = {
        "steps": list(found.steps),
        "pipelines": [list(names) for names in found.pipelines],
        "replaces": list(found.origins),
        "copies": [
            {
                "layers": list(copy.layers),
                "from": copy.source,
                "to": copy.target,
                "size_bytes": copy.size_bytes,
            }
            for copy in found.copies
        ],
        "moved_bytes": found.moved_bytes,
        "copying_s": found.copying_s,
        "pays_within": pays_within,
        "iteration_time_before_s": before.prediction and before.prediction.iteration_time_s,
    }
    planner = replace(found.plan.planner, options=found.plan.planner.options | {"reconfiguration": said})
    return replace(found.plan, planner=planner)


# Two sets of pipelines for the nodes that are there, and which of them to take.
#
# The paper's steps keep what runs; the fastest set may be worth more copies. Each gets the whole batch, seats its nodes
# so that least is copied, and is judged by when it has done so many iterations, the time of copying counted.


@dataclass(frozen=True)
class GlobalBatch:
    """What is distributed over pipelines: all micro-batches of an iteration, and how (planners/batch/distribute.py)."""

    microbatches: int
    multiple_of: int = 1
    objective: Objective = "min-max"
    solver: Solver = "exact"


@dataclass(frozen=True)
class SurvivingNodes:
    """Who is there.

    Attributes:
        before: nodes of each pipeline of the running plan.
        crew: the nodes that are left, and those that join.
    """

    before: tuple[int, ...]
    crew: tuple[CrewNode, ...]

    @cached_property
    def left(self) -> tuple[int, ...]:
        """Nodes that are left of each pipeline."""
        counts = [0] * len(self.before)
        for node in self.crew:
            if node.position is not None:
                counts[node.position[0]] += 1
        return tuple(counts)


@dataclass(frozen=True)
class Proposal:
    """A set of pipelines, nobody seated yet; as for a `Choice`."""

    pipelines: PipelineAssignment
    microbatches: tuple[int, ...]
    iteration_s: float


@dataclass(frozen=True)
class Choice:
    """A set of pipelines, seated.

    Attributes:
        pipelines: their sizes, and which present ones they replace.
        microbatches: of each.
        iteration_s: the time of the slowest by its pace, and then of the all-reduce and the optimizer step.
        seats: the nodes of each, in order.
        places: the layers of these places, by a pipeline's number of nodes.
        copies: who copies what from whom.
        copying_s: how long that takes; None where it is not known.
    """

    pipelines: PipelineAssignment
    microbatches: tuple[int, ...]
    iteration_s: float
    seats: tuple[tuple[CrewNode, ...], ...]
    places: Mapping[int, tuple[Range, ...]]
    copies: tuple[LayerCopy, ...]
    copying_s: float | None

    @property
    def moved_bytes(self) -> float:
        """All that is copied."""
        return sum(copy.size_bytes for copy in self.copies)

    @property
    def crew(self) -> tuple[CrewNode, ...]:
        """The nodes in the order of their places, holding what these need: once the copies are made."""
        return tuple(
            CrewNode(node.name, (j, i), self.places[self.pipelines.sizes[j]][i])
            for j, nodes in enumerate(self.seats)
            for i, node in enumerate(nodes)
        )


class Weighing:
    """One job's templates and batch, made ready to choose pipelines for any nodes.

    Args:
        templates: of the job.
        batch: that stays the same, whatever happens.
        copying: what a node's state is copied over; None: the network between nodes.
        paces: of the templates; None: as their 1F1B has them.
    """

    def __init__(
        self,
        templates: Templates,
        batch: GlobalBatch,
        copying: Connection | None = None,
        paces: Sequence[Pace] | None = None,
    ) -> None:
        self.templates, self.batch = templates, batch
        self._given_paces = paces
        fewest = templates.fault_tolerance + 1
        units = batch.microbatches // batch.multiple_of
        self.sizes = Sizes(templates.smallest, templates.largest, fewest, max(fewest, units))
        self.layer_bytes = [layer.parameter_bytes + layer.state_bytes for layer in templates.layers]
        self._ending = ending_of(templates)
        self._connection = copying or connection_of(templates)
        self._weigh = LayerSizes(self.layer_bytes)
        self._sizes_of: dict[int, tuple[int, ...]] = {}  # by number of nodes
        self._shared: dict[tuple[int, ...], Distribution] = {}  # by sizes of pipelines

    def anew(self, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The pipelines of so many nodes whose iteration ends first: the nodes of each, and its micro-batches.

        Raises:
            InfeasibleError: the batch has too few micro-batches for f + 1 pipelines.
        """
        sizes = self._fastest_sizes(nodes)
        return sizes, self._distributed(sizes)[0]

    def near_fastest(self, nodes: int, within: float) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The same of each number of pipelines, as far as they take at most such a part longer, the fastest first."""
        self._require_batch(nodes)
        asked = self.templates, self._paces, self._ending, nodes, self.batch.microbatches, self.batch.multiple_of
        known = {sizes: self._distributed(sizes) for sizes in fastest_of_each_number(*asked)}
        least_s = min(iteration_s for _, iteration_s in known.values())
        near = [sizes for sizes, (_, iteration_s) in known.items() if iteration_s <= least_s * (1 + within)]
        return [(sizes, known[sizes][0]) for sizes in sorted(near, key=lambda sizes: known[sizes][1])]

    def chosen(self, standing: SurvivingNodes, pays_within: int) -> Choice:
        """The pipelines that have done `pays_within` iterations first; where that is 0 or unknown, the steps'.

        Raises:
            InfeasibleError: no pipelines use these nodes, a layer's state is lost, or the batch has too few
                micro-batches for f + 1 pipelines.
        """
        require_all_layers(standing.crew, len(self.layer_bytes))
        stepped = self._stepped(standing)
        if stepped is None:
            return self._seated(standing, self._fastest(standing))
        # Unless it is known how much is copied and how fast, copying would seem to be free.
        if not pays_within or not (any(self.layer_bytes) and self._connection.bandwidth_bytes_per_s is not None):
            return self._seated(standing, stepped)
        fastest = self._fastest(standing)
        if sorted(fastest.pipelines.sizes) == sorted(stepped.pipelines.sizes):  # the least copies are the same, too
            return self._seated(standing, stepped)
        found = self._seated(standing, fastest)
        assert found.copying_s is not None
        # It pays even if the others had nothing to copy.
        gain_s = stepped.iteration_s - found.iteration_s
        if gain_s > ROUNDING * stepped.iteration_s and pays_within * gain_s > found.copying_s:
            return found
        kept = self._seated(standing, stepped)
        assert kept.copying_s is not None
        if abs(found.iteration_s - kept.iteration_s) <= ROUNDING * kept.iteration_s:  # then what moves less
            return found if found.moved_bytes < kept.moved_bytes * (1 - ROUNDING) else kept
        gain_s = pays_within * (kept.iteration_s - found.iteration_s)
        return found if gain_s > found.copying_s - kept.copying_s else kept

    def _stepped(self, standing: SurvivingNodes) -> Proposal | None:
        """What the paper's steps give; None where they give more pipelines than the batch can be split for."""
        held = [0.0] * len(standing.before)
        for node in standing.crew:
            if node.position is not None:
                held[node.position[0]] += self._weigh.common(node.layers, (0, len(self.layer_bytes)))
        joining = len(standing.crew) - sum(standing.left)
        pipelines = reinstantiate(standing.before, standing.left, held, joining, self.sizes)
        try:
            return Proposal(pipelines, *self._distributed(pipelines.sizes))
        except InfeasibleError:
            return None

    def _fastest(self, standing: SurvivingNodes) -> Proposal:
        """The pipelines whose iteration ends first, if all were begun anew."""
        # Pipelines that replace present ones: those with as many nodes first, then the larger the larger ones.
        free = sorted(self._fastest_sizes(len(standing.crew)), reverse=True)
        found: list[tuple[int, int]] = []
        others = []
        for k in sorted((k for k, nodes in enumerate(standing.left) if nodes), key=lambda k: -standing.left[k]):
            if standing.left[k] in free:
                free.remove(standing.left[k])
                found.append((k, standing.left[k]))
            else:
                others.append(k)
        found += zip(others, free, strict=False)
        new = free[len(others) :]
        found.sort()
        pipelines = PipelineAssignment(
            (*(size for _, size in found), *new), (*(k for k, _ in found), *[None] * len(new)), ("new set",)
        )
        return Proposal(pipelines, *self._distributed(pipelines.sizes))

    def _fastest_sizes(self, nodes: int) -> tuple[int, ...]:
        """The nodes of each of these pipelines, descending."""
        if nodes not in self._sizes_of:
            self._require_batch(nodes)
            asked = nodes, self.batch.microbatches, self.batch.multiple_of
            near = min(self._sizes_of, key=lambda known: abs(known - nodes), default=None)
            likely = None if near is None else len(self._sizes_of[near])
            self._sizes_of[nodes] = fastest_sizes(self.templates, self._paces, self._ending, *asked, likely)
        return self._sizes_of[nodes]

    def _require_batch(self, nodes: int) -> None:
        """Raise InfeasibleError, which says what batch would do, if there is too little for the fewest pipelines."""
        fewest = [self._paces[-1]] * fewest_pipelines(self.templates, nodes)
        distribute(fewest, self.batch.microbatches, self.batch.multiple_of)

    def _distributed(self, sizes: Sequence[int]) -> tuple[tuple[int, ...], float]:
        """The micro-batches of pipelines of these sizes, and the time of an iteration."""
        falling = tuple(sorted(sizes, reverse=True))
        if falling not in self._shared:
            self._shared[falling] = self._distribution(falling)
        found = self._shared[falling]
        rest: dict[int, list[int]] = {size: [] for size in falling}
        for size, number in zip(reversed(falling), reversed(found.microbatches), strict=True):
            rest[size].append(number)
        return tuple(rest[size].pop() for size in sizes), found.slowest_s + self._ending.lasts_s(sizes)

    def _distribution(self, falling: Sequence[int]) -> Distribution:
        """The micro-batches of pipelines of falling sizes.

        Least variance asks for equal numbers in equal pipelines, but a job must go on: where the batch cannot be split
        so, each pipeline has a number of its own.
        """
        batch, paces = self.batch, [self._paces[size - self.templates.smallest] for size in falling]
        asked = (paces, batch.microbatches, batch.multiple_of, batch.objective, batch.solver)
        if batch.objective == "variance":
            with suppress(InfeasibleError):
                return distribute(*asked, shared=[falling.count(size) for size in dict.fromkeys(falling)])
        return distribute(*asked)

    def _seated(self, standing: SurvivingNodes, proposal: Proposal) -> Choice:
        pipelines = proposal.pipelines
        places = {size: self._places[size - self.templates.smallest] for size in set(pipelines.sizes)}
        seats = assign(standing.crew, pipelines, places, self._weigh)
        needed = [
            (node, layers)
            for size, nodes in zip(pipelines.sizes, seats, strict=True)
            for node, layers in zip(nodes, places[size], strict=True)
        ]
        copies = copies_between(standing.crew, needed, self.layer_bytes)
        copying_s = self._connection.copying_s((copy.source, copy.target, copy.size_bytes) for copy in copies)
        return Choice(
            pipelines,
            proposal.microbatches,
            proposal.iteration_s,
            tuple(map(tuple, seats)),
            places,
            copies,
            copying_s,
        )

    @cached_property
    def _paces(self) -> Sequence[Pace]:
        if self._given_paces is not None:
            return self._given_paces
        return paces_of(self.templates.templates, self.batch.microbatches, self.templates.nodes)

    @cached_property
    def _places(self) -> list[tuple[Range, ...]]:
        """The layers of each node, of each template."""
        gpus = self.templates.gpus_per_node
        return [
            tuple(shape.layers for shape in node_shapes(template.stages, gpus)) for template in self.templates.templates
        ]
