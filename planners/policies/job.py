"""A job that is to survive: what it trains, in which shape, on which nodes, and what changes cost it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from ...schemas.errors import InvalidInputError
from ...schemas.profile import Profile
from ...schemas.replay import Costs
from ..pipeline import Schedule
from ..shape import Shape
from ..slipstream.normalization import Grid


@dataclass(frozen=True)
class TrainingJob:
    """What all policies are told.

    Node n of the job's first nodes holds the workers from n * `workers_per_node` on, in (pipeline, stage) order, as
    torchrun would start them; nodes beyond those of the grid are spares. A worker has `shape.tensor_parallel` GPUs.

    Attributes:
        profile: of the model.
        shape: stages, pipelines, micro-batches of each pipeline, limits; the global batch is dp * microbatches.
        gpus_per_node: of every node.
        costs: what changes cost.
        schedule: of pipelines whose policy has none of its own.
        seed: of whatever draws.

    Raises:
        InvalidInputError: a node would hold neither whole pipelines nor a whole part of one.
    """

    profile: Profile
    shape: Shape
    gpus_per_node: int = 1
    costs: Costs = field(default_factory=Costs)
    schedule: Schedule = "1f1b"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gpus_per_node % self.shape.tensor_parallel:
            raise InvalidInputError(
                f"{self.gpus_per_node} GPUs of a node are no whole number of workers of "
                f"{self.shape.tensor_parallel} GPUs",
                where="--tensor-parallel",
                fix="take a degree that divides the GPUs of a node",
            )
        per_node, pp, dp = self.workers_per_node, self.shape.pp, self.shape.dp
        if pp % per_node and (per_node % pp or dp % (per_node // pp)):
            raise InvalidInputError(
                f"{per_node} workers of a node are neither a whole part of {pp} stages nor whole pipelines of {dp}",
                where="--pp",
                fix="take stages that the workers of a node divide, or that divide them",
            )

    @property
    def workers_per_node(self) -> int:
        """Workers that share a node, and its fate."""
        return self.gpus_per_node // self.shape.tensor_parallel

    @property
    def microbatches(self) -> int:
        """The global batch, in micro-batches."""
        return self.shape.dp * self.shape.microbatches

    @cached_property
    def grid(self) -> Grid:
        """The workers of all pipelines, in units of a node each."""
        per_node, pp = self.workers_per_node, self.shape.pp
        return Grid(self.shape.dp, pp, max(1, per_node // pp), min(pp, per_node))

    @property
    def nodes(self) -> int:
        """Nodes that the grid takes; more of them are spares."""
        return self.grid.units * self.grid.columns
