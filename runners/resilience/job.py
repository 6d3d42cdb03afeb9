"""What a coordinator is there for."""

from dataclasses import dataclass

from ...schemas.plan import Plan


@dataclass(frozen=True)
class Job:
    """What the coordinator is there for.

    Attributes:
        plan: the plan that the job starts with; its workers' names are those that workers may have.
        iterations: where to stop, counted from the first iteration of all.
        first_iteration: where to begin; more than 0 after a checkpoint.
        resume: the checkpoint to begin with.
        heartbeat_limit_s: how long a worker may be silent.
        checkpoint: the folder for checkpoints.
        checkpoint_every: iterations between them; 0 for none but the last.
        stall_limit_s: how long nothing may be committed until all are asked where they are; None: what the plan's
            iterations, and those so far, say (standstill.py).
        newcomers: workers that must wait for a place before the job starts (those that a scripted trace will need).
    """

    plan: Plan
    iterations: int
    first_iteration: int = 0
    resume: str | None = None
    heartbeat_limit_s: float = 2.0
    checkpoint: str | None = None
    checkpoint_every: int = 0
    newcomers: int = 0
    stall_limit_s: float | None = None
