"""Why there is no template, and the numbers with which there would be one."""

from dataclasses import replace
from math import ceil

from ...schemas.errors import InfeasibleError
from ...schemas.profile import Profile
from .mapping import Mapper
from .shortest_paths import Request
from .stages import Stages, fill_of, missing_degree


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


def fits_nowhere(request: Request, fault_tolerance: int) -> InfeasibleError:
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
        f"the model does not fit on {nodes} with {gpus} of {limit:.12g} bytes each",
        where="--memory-limit, or the profile, /device/memory_bytes",
        fix=f"take {fix}",
    )


def least_memory_bytes(request: Request) -> int:
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


def why_not(profile: Profile, request: Request, nodes: int) -> str:
    """Why there is no pipeline of so many nodes, of which more are asked for than layers or memory allow."""
    layers, gpus = request.stages.layers, request.gpus_per_node
    fill = int(fill_of(request.stages.degrees, gpus))
    if nodes * fill <= layers:
        return f"a pipeline of {nodes} nodes does not fit their memory: more stages have more activations in flight"
    reason = f"a pipeline of {nodes} nodes has {nodes * fill} stages or more, the model has layers for {layers}"
    if fill == 1 or layers < nodes:
        return reason
    return f"{reason} (for fewer stages, {missing_degree(profile, gpus, layers // nodes)})"
