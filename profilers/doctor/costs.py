"""What a hang and a failure cost with a job's settings, and what would be cheap to change."""

from collections.abc import Iterator
from dataclasses import dataclass

from ...schemas.diagnosis import CheapChange, JobCosts
from ...schemas.quantities import print_time
from .settings import JobSettings
from .young_daly import best_interval_s

_HOUR_S = 3600.0
SHORT_TIMEOUT_S = 120.0  # of collective calls while training (torchtitan#2899)
ITERATIONS_OF_A_TIMEOUT = 5
ABOVE_REPLICAS = 200 / 120  # as much longer than that of replicas (the same thread: 120 s < 200 s)


@dataclass(frozen=True, slots=True)
class _Known:
    gpus: int | None
    hang_s: float | None
    redone_s: float | None

    def gpu_hours(self, seconds: float | None) -> float | None:
        """Of all GPUs for a time; None: one of both is not known."""
        return None if seconds is None or self.gpus is None else self.gpus * seconds / _HOUR_S


def costs_of(job: JobSettings) -> JobCosts:
    """What failures cost a job.

    A hang is a rank that stops while its process lives: all others wait until something ends it. A failure is found
    that late at worst, when the others only see that a rank is silent; what is computed again is half of what lies
    between two checkpoints on average.

    Args:
        job: its settings.
    """
    ends = job.noticed_by
    every, each = job.checkpoint_every.value, job.iteration_s.value
    saves = job.checkpoints.value is not False
    known = _Known(
        job.gpu_count, None if ends is None else ends.value, every * each / 2 if every and each and saves else None
    )
    parts = (known.hang_s, job.restart_s.value, known.redone_s)
    total_s = sum(part for part in parts if part is not None)
    return JobCosts(
        gpus=known.gpus,
        hang_s=known.hang_s,
        hang_ended_by=None if ends is None else ends.told,
        hang_gpu_hours=known.gpu_hours(known.hang_s),
        redone_s=known.redone_s,
        restart_s=job.restart_s.value,
        failure_gpu_hours=known.gpu_hours(total_s) if any(part is not None for part in parts) else None,
        changes=tuple(_changes(job, known)),
        missing=tuple(_missing(job, known)),
    )


def _changes(job: JobSettings, known: _Known) -> Iterator[CheapChange]:
    """A shorter time-out of collective calls, and the best interval between checkpoints, where they save something."""
    longest_s = (job.iteration_s.value or 0.0) + (job.save_s.value or 0.0)
    enough_s = max(SHORT_TIMEOUT_S, ITERATIONS_OF_A_TIMEOUT * longest_s)
    if job.replicates.value:
        enough_s = max(enough_s, ABOVE_REPLICAS * job.replica_timeout_s.value)
    if known.gpus is not None and known.hang_s is not None and enough_s < known.hang_s and job.noticed_by is not None:
        says = (
            f"let {job.noticed_by.told.name} end a hang of a training step after {print_time(enough_s)}, "
            f"not {print_time(known.hang_s)}"
        )
        yield CheapChange(says, known.gpus * (known.hang_s - enough_s) / _HOUR_S, "hang")
    each, save, mtbf = job.iteration_s.value, job.save_s.value, job.mtbf_s.value
    if known.gpus is not None and known.redone_s is not None and each and save and mtbf:
        best = max(1, round(best_interval_s(save, mtbf) / each))
        if best < (job.checkpoint_every.value or 0):
            says = f"save every {best} iterations, not every {job.checkpoint_every.value}"
            yield CheapChange(says, known.gpus * (known.redone_s - best * each / 2) / _HOUR_S, "failure")


def _missing(job: JobSettings, known: _Known) -> Iterator[str]:
    if known.gpus is None:
        yield "how many GPUs the job has (--gpus)"
    if known.redone_s is None and job.checkpoints.value is not False:
        if not job.checkpoint_every.value:
            yield "how many iterations lie between two checkpoints (--checkpoint-every)"
        if job.iteration_s.value is None:
            yield "how long an iteration takes (--iteration-time)"
    if job.restart_s.value is None:
        yield "how long a restart takes (--restart-time)"
    if job.save_s.value is None or job.mtbf_s.value is None:
        yield "how long a save takes, and how often the job fails (--save-time, --mtbf)"
