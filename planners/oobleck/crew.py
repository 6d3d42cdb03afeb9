"""The nodes of a running job: where each is and which layers' state it holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby

from ...schemas.checkpoint import missing_layers, print_layers
from ...schemas.errors import InfeasibleError
from ...schemas.plan import Place, Plan, Stage
from ...schemas.templates import nodes_of_stages

Range = tuple[int, int]  # layers [first, stop)


@dataclass(frozen=True)
class CrewNode:
    """A node that is there.

    Attributes:
        name: of the node.
        position: its pipeline and its index there; None for one that joins.
        layers: [first, stop) whose state it holds; None where it holds none. In a running job these can differ from
            the plan's, for a failure may come before the copies for the last one were made.
    """

    name: str
    position: tuple[int, int] | None
    layers: Range | None


@dataclass(frozen=True)
class NodeShape:
    """What a node of a pipeline holds: stages [first, stop) and their layers [first, stop)."""

    stages: Range
    layers: Range


def node_shapes(stages: tuple[Stage, ...], gpus_per_node: int) -> tuple[NodeShape, ...]:
    """The nodes of a pipeline in order; `gpus_per_node` is M."""
    nodes = nodes_of_stages(stages, gpus_per_node)
    runs = [[i for i, _ in found] for _, found in groupby(enumerate(nodes), key=lambda pair: pair[1])]
    return tuple(
        NodeShape((run[0], run[-1] + 1), (stages[run[0]].layers[0], stages[run[-1]].layers[1])) for run in runs
    )


def crew_of(plan: Plan, gpus_per_node: int, failed: Collection[Place] = ()) -> tuple[CrewNode, ...]:
    """The nodes of a plan, each named by its first worker, `k/i`; without those that a failed worker is on.

    Args:
        plan: of pipelines made from templates; workers that it marks as failed have failed.
        gpus_per_node: M.
        failed: places of workers, pipeline and stage.
    """
    gone = {*failed, *(worker.place for worker in plan.workers if worker.failed)}
    shapes = {template.name: node_shapes(template.stages, gpus_per_node) for template in plan.templates}
    return tuple(
        CrewNode(f"{k}/{shape.stages[0]}", (k, node), shape.layers)
        for k, pipeline in enumerate(plan.pipelines)
        for node, shape in enumerate(shapes[pipeline.template])
        if not any((k, i) in gone for i in range(*shape.stages))
    )


def require_all_layers(crew: Sequence[CrewNode], layers: int) -> None:
    """Raise InfeasibleError if no node holds some layer: its state is lost."""
    lost = missing_layers(layers, {node.layers for node in crew if node.layers is not None})
    if lost:
        raise InfeasibleError(
            f"the state of {print_layers(lost)} is lost: no node that is left holds it",
            where="the nodes that are left",
            fix="go on from a checkpoint",
        )
