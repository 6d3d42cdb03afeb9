"""Whether a worker that says hello is of this job, and may come in."""

from collections.abc import Collection, Iterable
from typing import Any

from .messages import Hello, Refused
from .seating import Newcomer


def stranger_to(
    hello: Hello,
    plan: str,
    settings: dict[str, Any] | None,
    names: Collection[str],
    progress: tuple[int, int],
) -> str | None:
    """Why a worker does not belong to a job; None where it does.

    Args:
        hello: what it said.
        plan: the digest of the job's plan.
        settings: what all workers have in common; None before the first has come.
        names: those that workers may have.
        progress: the job's epoch and its last committed iteration.
    """
    if hello.plan != plan:
        return f"its plan (sha256 {hello.plan[:12]}…) is not this job's (sha256 {plan[:12]}…)"
    if settings is not None and hello.job != settings:
        unlike = [key for key in sorted({*hello.job, *settings}) if hello.job.get(key) != settings.get(key)]
        return f"its settings are not this job's: {', '.join(unlike)}"
    if hello.worker not in names:
        return f"the plan has no worker {hello.worker}"
    known = hello.returning
    if known is not None and progress < (known.epoch, known.committed):
        return "this coordinator does not know the run; start it with the log of the one before it"
    return None


def refusal_of_double(hello: Hello, waiting: Iterable[Newcomer], is_seated: bool, committed: int) -> Refused | None:
    """Refuse a worker for the time being whose name is there already: its predecessor may not be known to be dead.

    Args:
        hello: what it said.
        waiting: those who have no place yet.
        is_seated: whether one of its name has a place, and is not awaited.
        committed: the job's last committed iteration.
    """
    is_waiting = any((one.name, one.not_before) == (hello.worker, hello.not_before) for one in waiting)
    if is_waiting or (is_seated and hello.not_before <= committed + 1):
        return Refused(f"worker {hello.worker} is there already", retry=True)
    return None
