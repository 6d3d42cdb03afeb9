"""Reconfiguration: from the nodes that are left, or have joined, to the next plan of a running job.

"Oobleck: Resilient Distributed Training of Large Models Using Pipeline Templates", section 5. The paper's steps say the
sizes of the next pipelines (steps.py); the fastest set of pipelines for these nodes (instantiation.py), to which the
paper never goes back, is weighed against them (weighing.py). Nodes are seated so that least is copied (assignment.py),
from whoever holds a layer (copies.py). The batch is distributed anew; the global batch stays (section 5.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Place, Plan
from .copies import Copy
from .crew import CrewNode, crew_of, node_shapes
from .plan import plan_of
from .standing import templates_of
from .steps import Step
from .weighing import Batch, Standing, Weighing

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
    copies: tuple[Copy, ...]
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
        self._weighing = Weighing(self.templates, _batch_of(plan))

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
        before = _sizes(plan, self.templates.gpus_per_node)
        _require_nodes(nodes, before, len(self.templates.layers))
        choice = self._weighing.chosen(Standing(before, tuple(nodes)), pays_within)
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
        _require_worker(plan, k, i)
    new = (CrewNode(f"new{n}", None, None) for n in range(joining))
    return (*crew_of(plan, templates_of(plan).gpus_per_node, failed), *new)


def _require_worker(plan: Plan, k: int, i: int) -> None:
    if k >= len(plan.pipelines):
        fix = f"pipelines are 0 to {len(plan.pipelines) - 1}"
    elif i >= len(plan.template_of(k).stages):
        fix = f"workers of pipeline {k} are {k}/0 to {k}/{len(plan.template_of(k).stages) - 1}"
    else:
        return
    raise InvalidInputError(f"there is no worker {k}/{i}", where="--failed", fix=fix)


def _batch_of(plan: Plan) -> Batch:
    """What a plan distributes, and how: as its options say, which may be of anybody's hand."""
    options, microbatches = plan.planner.options, plan.total_microbatches()
    multiple_of, objective, solver = options.get("multiple_of"), options.get("objective"), options.get("solver")
    return Batch(
        microbatches,
        multiple_of if isinstance(multiple_of, int) and multiple_of > 0 and microbatches % multiple_of == 0 else 1,
        "variance" if objective == "variance" else "min-max",
        "pyomo" if solver == "pyomo" else "exact",
    )


def _sizes(plan: Plan, gpus_per_node: int) -> tuple[int, ...]:
    """The nodes of each pipeline."""
    sizes = {template.name: len(node_shapes(template.stages, gpus_per_node)) for template in plan.templates}
    return tuple(sizes[pipeline.template] for pipeline in plan.pipelines)


def _require_nodes(nodes: Sequence[CrewNode], before: Sequence[int], layers: int) -> None:
    """Raise InvalidInputError unless names and positions are unique and there are such positions and layers."""
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
