"""What it costs a job to save its state and to read it, by its `Costs`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from ...schemas.plan import Template
from ...schemas.replay import Checkpointing
from .job import TrainingJob
from .memory import state_bytes


@dataclass(frozen=True)
class CheckpointCosts:
    """What a GPU of each stage saves, how often that is done, and how long it takes nodes to read it, in s."""

    gpu_bytes: tuple[float, ...]
    checkpointing: Checkpointing
    loading_s: float


def checkpointing(job: TrainingJob, gpu_bytes: Sequence[float]) -> Checkpointing:
    """How often a job saves its state, and how long that holds it up; by Young's formula where nobody says.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974. A policy that rolls back
    at few failures only would do well to save less often; one interval for all of them keeps them comparable.

    Args:
        job: with its costs.
        gpu_bytes: what each GPU saves, of those that may be the largest; they save side by side.
    """
    costs = job.costs
    pause_s = costs.checkpoint_pause_s
    if pause_s is None:
        pause_s = max(gpu_bytes) / costs.snapshot_bytes_per_s
    every_s = costs.checkpoint_every_s
    if every_s is None:
        every_s = sqrt(2 * pause_s * costs.mean_time_between_failures_s)
    return Checkpointing(every_s, pause_s)


def loading_s(job: TrainingJob, node_bytes: Iterable[float]) -> float:
    """How long it takes nodes to read their state from a checkpoint, side by side, in s.

    Args:
        job: with its costs.
        node_bytes: of each node; what two of its workers share it reads once.
    """
    return max(node_bytes) / job.costs.storage_bytes_per_s


def node_bytes(job: TrainingJob, gpu_bytes: Sequence[float]) -> list[float]:
    """What a node of each column of the job's grid reads, where a GPU of each stage has so many bytes."""
    width = job.grid.unit_stages
    return [
        sum(gpu_bytes[first : first + width]) * job.shape.tensor_parallel for first in range(0, len(gpu_bytes), width)
    ]


def saved(job: TrainingJob, template: Template) -> CheckpointCosts:
    """What a job on its grid saves, whatever the number of its pipelines."""
    gpu_bytes = state_bytes(job, template)
    return CheckpointCosts(gpu_bytes, checkpointing(job, gpu_bytes), loading_s(job, node_bytes(job, gpu_bytes)))
