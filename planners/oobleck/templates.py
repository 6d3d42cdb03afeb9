"""`rtk plan templates`: pipeline templates, "Oobleck" section 4.1, for every number of nodes a pipeline may have.

Templates are made once, before training. Whatever number of nodes is left later, some of them, each used any number of
times, use up all of it (`node_specification`), and each is the fastest for its nodes (`objective`, `mapping`).

At tensor-parallel degree d a GPU holds one d-th of its stage's parameters, state and activations. The model fits where
1F1B does: stage i of S holds the activations of min(S - i, N_b) micro-batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ... import __version__
from ...schemas.documents import digest
from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Link, Planner, Stage
from ...schemas.profile import Connection, Profile
from ...schemas.quantities import print_bytes
from ...schemas.templates import LayerState, PipelineTemplate, Templates, nodes_of_stages
from ...schemas.text import joined
from .mapping import Mapper, Mapping, MappingObjective, MappingRequest, Stages, fill_of, missing_degree, stages_of

# Node specification, "Oobleck" section 4.1.1: the numbers of nodes that pipelines may have.
#
# They are consecutive, from n_0, the fewest nodes that the model fits on, to N - f n_0, what is left of all N nodes
# when f pipelines have n_0 each. Then any N' of (f + 1) n_0 to N nodes can be used up by f + 1 pipelines or more. The
# paper rests this on a sufficient condition for the Frobenius problem, p > n_0 - 1 for p sizes. Up to N less will do: f
# pipelines of n_0 nodes and one of N' - f n_0 are always there, whatever p is. The condition is worth stating all the
# same, for it says more: with it, no number of nodes is too large either, and N may grow.
#
# With a largest size L given, q pipelines of n_0 to L nodes use up exactly the numbers from q n_0 to q L. So N' nodes
# are used up by f + 1 pipelines or more if and only if they are by the most pipelines that N' nodes allow, which is N'
# // n_0: its range reaches furthest.


MOST_NAMED = 8  # numbers in an error


@dataclass(frozen=True)
class NodeSpecification:
    """Sizes of pipelines, in nodes.

    Attributes:
        nodes: N.
        fault_tolerance: f.
        smallest: n_0.
        largest: of the consecutive sizes.
    """

    nodes: int
    fault_tolerance: int
    smallest: int
    largest: int

    @property
    def sizes(self) -> range:
        """All of them."""
        return range(self.smallest, self.largest + 1)

    @property
    def fewest_nodes(self) -> int:
        """(f + 1) n_0: with fewer nodes there are no f + 1 pipelines."""
        return (self.fault_tolerance + 1) * self.smallest

    @property
    def frobenius(self) -> bool:
        """Whether the paper's condition p > n_0 - 1 holds: numbers of nodes above N can be used up, too."""
        return len(self.sizes) > self.smallest - 1

    def uncovered(self) -> list[int]:
        """The numbers of nodes, from (f + 1) n_0 to N, that no f + 1 pipelines or more use up."""
        reach = ((nodes, nodes // self.smallest * self.largest) for nodes in range(self.fewest_nodes, self.nodes + 1))
        return [nodes for nodes, most in reach if most < nodes]

    def guarantee(self) -> dict[str, int | bool]:
        """What is promised, for a plan's options."""
        return {
            "from_nodes": self.fewest_nodes,
            "to_nodes": self.nodes,
            "pipelines": self.fault_tolerance + 1,
            "beyond": self.frobenius,
        }


def specify_nodes(
    nodes: int,
    fault_tolerance: int,
    fitting: Sequence[int],
    why_not: Callable[[int], str],
    largest: int | None = None,
    *,
    gaps: bool = False,
) -> NodeSpecification:
    """Choose the sizes of pipelines, and check that they use up what they promise.

    Args:
        nodes: N.
        fault_tolerance: f.
        fitting: the numbers of nodes, at least one and none above N, that the model can be mapped onto.
        why_not: says why it cannot be mapped onto another number.
        largest: nodes of the largest pipeline; N - f n_0 unless said.
        gaps: whether some numbers of nodes may be such that not all can be used.

    Raises:
        InvalidInputError: the largest size is below n_0 or above what f leaves.
        InfeasibleError: f cannot be met, a size does not fit, or some number of nodes could not be used up.
    """
    smallest, reach = fitting[0], last_of_run(fitting)
    if (fault_tolerance + 1) * smallest > nodes:
        raise InfeasibleError(
            f"{fault_tolerance + 1} pipelines of {_nodes(smallest)} each, the fewest the model fits on, need "
            f"{(fault_tolerance + 1) * smallest} nodes, there {'are' if nodes > 1 else 'is'} {nodes}",
            where="--fault-tolerance",
            fix=f"take --fault-tolerance {nodes // smallest - 1}, or --nodes {(fault_tolerance + 1) * smallest}",
        )
    most = nodes - fault_tolerance * smallest
    found = NodeSpecification(nodes, fault_tolerance, smallest, most if largest is None else largest)
    if not smallest <= found.largest <= most:
        raise InvalidInputError(
            f"the largest pipeline cannot have {_nodes(found.largest)}",
            where="--largest",
            fix=f"take {smallest} (the fewest the model fits on) to {most} (what the others leave)",
        )
    if found.largest > reach:
        raise InfeasibleError(
            why_not(reach + 1),
            where="--nodes" if largest is None else "--largest",
            fix=f"take {_ways_out(replace(found, largest=reach))}",
        )
    if not gaps and (left_out := found.uncovered()):
        more = f" and other numbers, to {left_out[-1]}, of" if len(left_out) > MOST_NAMED else ""
        # The smallest largest size that leaves no number of nodes out.
        least = max(-(-number // (number // smallest)) for number in range(found.fewest_nodes, nodes + 1))
        raise InfeasibleError(
            f"{fault_tolerance + 1} or more pipelines of at most {_nodes(found.largest)} each cannot use up "
            f"{', '.join(map(str, left_out[:MOST_NAMED]))}{more} nodes",
            where="--largest",
            fix=f"take --largest {least} or more",
        )
    return found


def last_of_run(sizes: Sequence[int]) -> int:
    """The last of the consecutive sizes from the first on."""
    return next(size for size in sizes if size + 1 not in sizes)


def _ways_out(possible: NodeSpecification) -> str:
    """What to ask for instead, where pipelines may have only so many nodes."""
    nodes, smallest, largest = possible.nodes, possible.smallest, possible.largest
    ways = [f"--nodes {largest + possible.fault_tolerance * smallest}"]
    tolerance = -(-(nodes - largest) // smallest)
    if (tolerance + 1) * smallest <= nodes:
        ways.insert(0, f"--fault-tolerance {tolerance}")
    if not possible.uncovered():
        ways.insert(0, f"--largest {largest}")
    return joined(ways, "or")


def _nodes(count: int) -> str:
    return f"{count} node{'s' if count > 1 else ''}"


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
        layers=tuple(
            LayerState(
                one.parameter_bytes,
                one.state_bytes,
                one.tied_to,
                one.tied_bytes,
                one.tied_state_bytes,
                one.gradient_bytes,
            )
            for one in profile.layers
        ),
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
) -> MappingRequest:
    """What is asked of the mapper."""
    stages, objective = stages_of(profile, gpus_per_node, memory_limit_bytes), MappingObjective(microbatches)
    return MappingRequest(stages, gpus_per_node, objective, min(nodes, most_nodes(profile, stages, gpus_per_node)))


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


def _template(profile: Profile, request: MappingRequest, mapping: Mapping) -> PipelineTemplate:
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


# Why there is no template, and the numbers with which there would be one.


def most_nodes(profile: Profile, stages: Stages, gpus_per_node: int) -> int:
    """The most nodes of a pipeline for which there are layers.

    Raises:
        InfeasibleError: there are not enough for one.
    """
    fill = int(fill_of(stages.degrees, gpus_per_node))
    if fill > stages.layers:
        raise InfeasibleError(
            f"a node of {gpus_per_node} GPUs takes {fill} stages or more, the model has layers for {stages.layers}",
            where="--gpus-per-node",
            fix=missing_degree(profile, gpus_per_node, stages.layers),
        )
    return stages.layers // fill


def fits_nowhere(request: MappingRequest, fault_tolerance: int) -> InfeasibleError:
    """The model fits the memory of no number of nodes."""
    limit, least = request.stages.memory_bytes, least_memory_bytes(request)
    fix = f"GPUs of {least} bytes (parameters, state and activations)"
    layers = request.stages.layers // int(fill_of(request.stages.degrees, request.gpus_per_node))
    more = Mapper(replace(request, nodes=layers)).fitting
    if more:
        fix = f"--nodes {(fault_tolerance + 1) * more[0]}, or {fix}"
    nodes = f"{request.nodes} nodes or fewer" if request.nodes > 1 else "a node"
    gpus = f"{request.gpus_per_node} GPUs" if request.gpus_per_node > 1 else "1 GPU"
    return InfeasibleError(
        f"the model does not fit on {nodes} with {gpus} of {print_bytes(limit)} each",
        where="--memory-limit, or the profile, /device/memory_bytes",
        fix=f"take {fix}",
    )


def least_memory_bytes(request: MappingRequest) -> int:
    """The least memory of a GPU, in bytes, with which the model fits on one of the numbers of nodes."""
    stages = request.stages
    whole = float(stages.static_bytes[0, -1] + stages.layers * stages.activation_bytes[0, -1])
    too_small, enough = -1, ceil(whole * (1 + 1e-9))
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if Mapper(replace(request, stages=replace(stages, memory_bytes=float(middle)))).fitting:
            enough = middle
        else:
            too_small = middle
    return enough


def why_not(profile: Profile, request: MappingRequest, nodes: int) -> str:
    """Why there is no pipeline of so many nodes, of which more are asked for than layers or memory allow."""
    layers, gpus = request.stages.layers, request.gpus_per_node
    fill = int(fill_of(request.stages.degrees, gpus))
    if nodes * fill <= layers:
        return f"a pipeline of {nodes} nodes does not fit their memory: more stages have more activations in flight"
    reason = f"a pipeline of {nodes} nodes has {nodes * fill} stages or more, the model has layers for {layers}"
    if fill == 1 or layers < nodes:
        return reason
    return f"{reason} (for fewer stages, {missing_degree(profile, gpus, layers // nodes)})"
