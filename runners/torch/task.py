"""What a worker of a resilient run trains, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from ...schemas.checkpoint import HuggingFaceNames
from ...schemas.plan import Layers, Plan, Worker, rank_name
from ...schemas.protocols import LayerCuts
from ..program import Sending
from ..resilience.protocol import Reshape
from ..training import SharedBuffers
from .data.provider import Batch
from .evaluation import HeldOut
from .held_stage import OptimizerFactory
from .precision import Precision
from .schedules import Schedule
from .stage import Loss

Fill = Callable[[Sequence[nn.Module], Layers], None]


@dataclass(frozen=True, eq=False)
class Task:
    """What a worker trains, and how.

    Attributes:
        name: the worker's, `k/i`.
        plan: that it was started with.
        make_layers: makes all layers of the model, equal on every worker and at every call.
        loss: maps (output, target) of a micro-batch to its mean loss, a scalar, or to (sum, count).
        optimizer: makes the optimizer of a stage's parameters.
        batch: the micro-batches of an iteration.
        settings: what must be the same for all workers; kept in checkpoints.
        secret: the job's, by which its workers know each other.
        device: where to compute.
        hostname: the interface on which other workers reach this one.
        others: its addresses on other networks, in the order of its meeting places there.
        paced: let every operation last what the plan says.
        seed: of dropout and the like.
        transport: which links have delegates (plane.py, `delegated_peers`).
        clip_norm: the largest norm of the gradients of the whole model with which to step; None: they are not clipped.
        evaluation: what to evaluate on, and when; None: nothing is evaluated.
        fill: gives the layers [first, stop) of those that `make_layers` made, or of a copy of them, the values of their
            parameters, which are on the meta device until then; None: all layers are made with values.
        names: what the model's tensors are called in files of Hugging Face's; kept in checkpoints.
        precision: in which types to compute (precision.py).
        schedule: of the learning rates (schedules.py); None leaves them as the optimizer has them.
        buffers: what counts where peers' buffers differ (buffers.py).
        log_memory_bytes: of an iteration's messages to keep; None: all; 0: nothing of an iteration is kept at all.
        shard_optimizer: whether peers share the optimizer's state.
        share: which of its worker's ranks this process is.
        cuts: how the layers are shared by the ranks of a worker; for a plan of several GPUs a worker.
        shared_by: how many ranks share the worker's layers; None: as many as the plan has GPUs of it.
        slowed: in a paced run, how many times as long operations last as they do with the plan's number of ranks.
    """

    name: str
    plan: Plan
    make_layers: Callable[[], Sequence[nn.Module]]
    loss: Loss
    optimizer: OptimizerFactory
    batch: Callable[[int], Batch]
    settings: dict[str, Any]
    secret: bytes = field(repr=False)
    device: torch.device | str = "cpu"
    hostname: str = "127.0.0.1"
    others: tuple[str, ...] = ()
    paced: bool = False
    seed: int = 0
    transport: Sending = "auto"
    clip_norm: float | None = None
    evaluation: HeldOut | None = None
    fill: Fill | None = None
    names: HuggingFaceNames | None = None
    precision: Precision = "fp32"
    schedule: Schedule | None = None
    buffers: SharedBuffers = "lowest"
    log_memory_bytes: float | None = None
    shard_optimizer: bool = False
    share: int = 0
    cuts: LayerCuts | None = None
    shared_by: int | None = None
    slowed: float = 1.0

    @property
    def degree(self) -> int:
        """How many ranks the worker has."""
        return self.shared_by or self.plan.gpus_of(self.worker())

    @property
    def process(self) -> str:
        """This process for people: `k/i`, or of several ranks `k/i:r`."""
        return rank_name(self.name, self.share, self.degree)

    def reshaped(self, reshape: Reshape) -> "Task":
        """The same for the rank that the process is to become."""
        return replace(self, share=reshape.rank, shared_by=reshape.ranks, slowed=reshape.slowdown)

    def worker(self) -> Worker:
        """The worker in the plan that it was started with."""
        return next(worker for worker in self.plan.workers if worker.name == self.name)
