"""`rtk plan templates`: pipeline templates, "Oobleck" section 4.1, for every number of nodes a pipeline may have.

Templates are made once, before training. Whatever number of nodes is left later, some of them, each used any number of
times, use up all of it (`node_specification`), and each is the fastest for its nodes (`objective`, `mapping`).

At tensor-parallel degree d a GPU holds one d-th of its stage's parameters, state and activations. The model fits where
1F1B does: stage i of S holds the activations of min(S - i, N_b) micro-batches.
"""

from typing import Any

from ... import __version__
from ...schemas.documents import digest
from ...schemas.plan import Link, Planner, Stage
from ...schemas.profile import Connection, Layer, Profile
from ...schemas.templates import LayerState, PipelineTemplate, Templates, nodes_of_stages
from .mapping import Mapper
from .node_specification import NodeSpecification, last_of_run, specify_nodes
from .objective import Objective
from .refusals import fits_nowhere, most_nodes, why_not
from .shortest_paths import Mapping, Request
from .stages import stages_of


def plan_templates(
    profile: Profile,
    nodes: int,
    gpus_per_node: int,
    fault_tolerance: int,
    microbatches: int | None = None,
    largest: int | None = None,
    memory_limit_bytes: float | None = None,
    *,
    gaps: bool = False,
) -> Templates:
    """Plan a template for each number of nodes that a pipeline may have.

    Args:
        profile: the model's costs, at all tensor-parallel degrees that are to be used.
        nodes: N.
        gpus_per_node: M.
        fault_tolerance: f; there are to be f + 1 pipelines or more.
        microbatches: N_b of each pipeline; four a stage unless said.
        largest: nodes of the largest pipeline; what f others of the smallest size leave unless said.
        memory_limit_bytes: of a GPU, parameters and state included, instead of the device's.
        gaps: whether some numbers of nodes may be such that not all can be used.

    Returns:
        The templates; `planner.options["guarantee"]` says which numbers of nodes they use up.

    Raises:
        InvalidInputError: the profile lacks a tensor-parallel degree, or `largest` is no possible size.
        InfeasibleError: the model does not fit, has too few layers, or f cannot be met.
    """
    request = _request(profile, nodes, gpus_per_node, microbatches, memory_limit_bytes)
    mapper = Mapper(request)
    if not mapper.fitting:
        raise fits_nowhere(request, fault_tolerance)
    specification = specify_nodes(
        nodes, fault_tolerance, mapper.fitting, lambda size: why_not(profile, request, size), largest, gaps=gaps
    )
    asked = {"microbatches": microbatches, "largest": largest, "memory_limit_bytes": memory_limit_bytes}
    return Templates(
        planner=Planner("templates", __version__, _options(profile, gpus_per_node, specification, asked)),
        objective=request.objective.name,
        fault_tolerance=fault_tolerance,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        templates=tuple(_template(profile, request, mapping) for mapping in mapper.best(specification.sizes)),
        layers=tuple(map(_layer_state, profile.layers)),
        network=profile.network,
        inputs={"profile": digest(profile)},
    )


def largest_size(profile: Profile, nodes: int, gpus_per_node: int, fault_tolerance: int) -> int:
    """The largest pipeline to ask `plan_templates` for: what f others leave, as far as layers and memory allow.

    Args:
        profile, nodes, gpus_per_node, fault_tolerance: as there.

    Raises:
        InvalidInputError: the profile lacks a tensor-parallel degree.
        InfeasibleError: the model does not fit.
    """
    request = _request(profile, nodes, gpus_per_node)
    fitting = Mapper(request).fitting
    if not fitting:
        raise fits_nowhere(request, fault_tolerance)
    return min(last_of_run(fitting), nodes - fault_tolerance * fitting[0])


def _request(
    profile: Profile,
    nodes: int,
    gpus_per_node: int,
    microbatches: int | None = None,
    memory_limit_bytes: float | None = None,
) -> Request:
    """What is asked of the mapper."""
    stages, objective = stages_of(profile, gpus_per_node, memory_limit_bytes), Objective(microbatches)
    return Request(stages, gpus_per_node, objective, min(nodes, most_nodes(profile, stages, gpus_per_node)))


def _options(
    profile: Profile, gpus_per_node: int, specification: NodeSpecification, asked: dict[str, Any]
) -> dict[str, Any]:
    """What the planner was told, what it promises, and the sizes of the profile that a run must repeat."""
    return {
        "nodes": specification.nodes,
        "gpus_per_node": gpus_per_node,
        "fault_tolerance": specification.fault_tolerance,
        **asked,
        "guarantee": specification.guarantee(),
        "model": profile.model.get("name"),
        "microbatch_size": profile.microbatch_size,
        "sequence_length": profile.sequence_length,
    }


def _layer_state(layer: Layer) -> LayerState:
    return LayerState(layer.parameter_bytes, layer.state_bytes, layer.tied_to, layer.tied_bytes, layer.tied_state_bytes)


def _template(profile: Profile, request: Request, mapping: Mapping) -> PipelineTemplate:
    """A mapping as the document has it."""
    stages = tuple(request.stages.stage(*key) for key in mapping)
    nodes = nodes_of_stages(stages, request.gpus_per_node)
    return PipelineTemplate(
        nodes=nodes[-1] + 1,
        iteration_time_s=request.objective.iteration_time_s([request.stages.time_s(key) for key in mapping]),
        microbatches=request.objective.microbatches(len(stages)),
        stages=stages,
        links=tuple(
            _link(profile, stage, here == there)
            for stage, here, there in zip(stages[:-1], nodes[:-1], nodes[1:], strict=True)
        ),
    )


def _link(profile: Profile, stage: Stage, same_node: bool) -> Link:
    """The path behind a stage, which its last layer's output takes; where only one kind of path is known, that one."""
    between = profile.network.between_workers
    connection = (profile.network.intra_node or between if same_node else between) or Connection()
    output_bytes = profile.layers[stage.layers[1] - 1].output_bytes
    return Link(connection.transfer_s(output_bytes))
