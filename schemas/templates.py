"""Templates: for every number of nodes that a pipeline may have, the best way to map the model onto them."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import MinLen

from .display import Displayed
from .errors import InvalidInputError
from .fields import STRICT, Bytes, Count, Index, Seconds
from .plan import Link, Planner, Stage, check_shape
from .profile import Network

Objective = Literal["four-per-stage", "microbatches"]


@dataclass(frozen=True, slots=True)
class PipelineTemplate:
    """A pipeline's shape on so many nodes.

    Attributes:
        nodes: whole nodes that it takes, all their GPUs in use.
        iteration_time_s: of the objective, with `microbatches` micro-batches.
        microbatches: those that the objective counts.
        stages: in order; their GPUs (`tensor_parallel`) fill one node after the other. `allreduce_s` is 0, for it
            depends on how many pipelines there will be.
        links: between neighbouring stages.
    """

    nodes: Count
    iteration_time_s: Seconds
    microbatches: Count
    stages: Annotated[tuple[Stage, ...], MinLen(1)]
    links: tuple[Link, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer holds on all its GPUs together: parameters, and gradients and optimizer state, in bytes.

    `tied_to`, `tied_bytes`, `tied_state_bytes` and `gradient_bytes` are those of the profile's layer.
    """

    parameter_bytes: Bytes = 0.0
    state_bytes: Bytes = 0.0
    tied_to: Index | None = None
    tied_bytes: Bytes | None = None
    tied_state_bytes: Bytes | None = None
    gradient_bytes: Bytes | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"tied_to", "tied_bytes", "tied_state_bytes", "gradient_bytes"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class Templates(Displayed):
    """Pipeline templates of consecutive sizes.

    Attributes:
        planner: who made them.
        objective: `four-per-stage`: four micro-batches a stage, as "Oobleck" section 4.1.2 has it; `microbatches`: so
            many as were asked for.
        fault_tolerance: f; there are always f + 1 pipelines or more.
        nodes: N, what they were planned for.
        gpus_per_node: M.
        templates: by size, from n_0 on.
        layers: what each layer of the model holds.
        network: the paths between GPUs.
        inputs: sha256 of what they were made from.
    """

    planner: Planner
    objective: Objective
    fault_tolerance: Index
    nodes: Count
    gpus_per_node: Count
    templates: Annotated[tuple[PipelineTemplate, ...], MinLen(1)]
    layers: Annotated[tuple[LayerState, ...], MinLen(1)]
    network: Network = field(default_factory=Network)
    inputs: dict[str, str] = field(default_factory=dict)

    FORMAT: ClassVar[str] = "rtk.templates"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def smallest(self) -> int:
        """n_0: the nodes of the smallest template."""
        return self.templates[0].nodes

    @property
    def largest(self) -> int:
        """The nodes of the largest template."""
        return self.templates[-1].nodes

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other."""
        for earlier, later in pairwise(self.templates):
            if later.nodes != earlier.nodes + 1:
                raise InvalidInputError(
                    f"a template of {later.nodes} nodes follows one of {earlier.nodes}",
                    where="/templates",
                    fix="sizes must be consecutive, or some numbers of nodes could not be used",
                )
        for index, template in enumerate(self.templates):
            where = f"/templates/{index}"
            check_shape(template.stages, template.links, where)
            held = template.stages[-1].layers[1]
            if held != len(self.layers):
                raise InvalidInputError(
                    f"the stages hold {held} layers, the model has {len(self.layers)}", where=f"{where}/stages"
                )
            nodes = nodes_of_stages(template.stages, self.gpus_per_node, f"{where}/stages")
            if nodes[-1] + 1 != template.nodes:
                raise InvalidInputError(
                    f"the stages fill {nodes[-1] + 1} nodes, not {template.nodes}", where=f"{where}/stages"
                )


def nodes_of_stages(stages: tuple[Stage, ...], gpus_per_node: int, where: str = "the stages") -> tuple[int, ...]:
    """The node of each stage, counted from 0 within its pipeline: stages fill one node after the other.

    Args:
        stages: of a pipeline.
        gpus_per_node: M.
        where: names the stages in errors.

    Raises:
        InvalidInputError: a stage lies on two nodes, or the last node is not full.
    """
    nodes, used = [], 0
    for i, stage in enumerate(stages):
        first, last = used // gpus_per_node, (used + stage.tensor_parallel - 1) // gpus_per_node
        if first != last:
            raise InvalidInputError(
                f"stage {i} has GPUs of nodes {first} and {last}",
                where=f"{where}/{i}/tensor_parallel",
                fix=f"the stages of a node take {gpus_per_node} GPUs together",
            )
        nodes.append(first)
        used += stage.tensor_parallel
    if used % gpus_per_node:
        raise InvalidInputError(f"the stages take {used} GPUs: no whole nodes of {gpus_per_node}", where=where)
    return tuple(nodes)
