"""How many micro-batches a memory limit admits."""

from collections.abc import Sequence
from math import inf

from ...schemas.errors import InfeasibleError
from ...schemas.plan import Stage
from .problem import Problem


def most_in_flight(stages: Sequence[Stage], microbatches: int) -> list[int]:
    """For each stage, how many micro-batches its memory limit admits at once, at most `microbatches`.

    Raises:
        InfeasibleError: a limit does not admit a single one.
    """
    limits = [inf if stage.memory_limit_bytes is None else stage.memory_limit_bytes for stage in stages]
    found = [_room(stage.activation_bytes, limit, microbatches) for stage, limit in zip(stages, limits, strict=True)]
    for index, (stage, room) in enumerate(zip(stages, found, strict=True)):
        if room < 1:
            raise _too_tight(index, stage.activation_bytes, limits[index])
    return found


def rooms(problem: Problem) -> list[int]:
    """For each worker, how many micro-batches its memory limit admits at once, at most all jobs.

    Raises:
        InfeasibleError: the limit of a worker that has jobs does not admit a single one.
    """
    workers = problem.workers
    sizes = zip(workers.activation_bytes.tolist(), workers.limit_bytes.tolist(), strict=True)
    found = [_room(activation_bytes, limit_bytes, problem.jobs) for activation_bytes, limit_bytes in sizes]
    for worker, room in enumerate(found):
        if room < 1 and problem.job_counts[worker]:
            stage = int(workers.stage[worker])
            raise _too_tight(stage, workers.activation_bytes[worker], workers.limit_bytes[worker])
    return found


def _room(activation_bytes: float, limit_bytes: float, microbatches: int) -> int:
    if microbatches * activation_bytes <= limit_bytes:
        return microbatches
    return int(limit_bytes // activation_bytes)


def _too_tight(stage: int, activation_bytes: float, limit_bytes: float) -> InfeasibleError:
    return InfeasibleError(
        f"stage {stage} holds {activation_bytes:g} bytes a micro-batch, its memory limit is {limit_bytes:g}",
        where="--memory-limit",
        fix="raise the limit, take a smaller micro-batch, or more stages",
    )
