"""What GPUs hold: parameters, gradients, optimizer state, and activations beside them."""

from __future__ import annotations

from collections.abc import Sequence

from ...schemas.errors import InfeasibleError
from ...schemas.plan import Stage, Template
from ...schemas.profile import HoldsBytes, held_bytes
from .job import TrainingJob


def gpu_bytes(layers: Sequence[HoldsBytes], stage: Stage) -> float:
    """Parameters, gradients and optimizer state that a GPU of a stage holds."""
    return sum(held_bytes(layers, *stage.layers)) / stage.tensor_parallel


def state_bytes(job: TrainingJob, template: Template) -> tuple[float, ...]:
    """Parameters, gradients and optimizer state that a GPU of each stage holds."""
    return tuple(gpu_bytes(job.profile.layers, stage) for stage in template.stages)


def peak_memory_bytes(job: TrainingJob, template: Template, activation_bytes: Sequence[float]) -> float:
    """The most that any GPU holds, if one of each stage holds so much of activations at most."""
    return peak_bytes(state_bytes(job, template), activation_bytes)


def peak_bytes(static_bytes: Sequence[float], activation_bytes: Sequence[float]) -> float:
    """The most that any GPU holds, of GPUs that hold so much all the time and so much of activations at most."""
    return max(static + most for static, most in zip(static_bytes, activation_bytes, strict=True))


def activation_limit_bytes(job: TrainingJob, policy: str) -> float | None:
    """The most activations that a GPU may hold, whatever its stage: for a policy that cuts stages of its own.

    Raises:
        InfeasibleError: the job says it stage by stage.
    """
    limits = job.shape.memory_limit_bytes
    if limits is None:
        return None
    if len(limits) > 1:
        raise InfeasibleError(
            f"{policy} cuts stages of its own, and the job has a limit of activations for each of its {len(limits)}",
            where="--memory-limit",
            fix="give one number for all stages",
        )
    return limits[0]
