"""The pauses of a change, by a job's costs; those that last no time are left out.

State that comes from a checkpoint counts as copied, as that from peers does.
"""

from __future__ import annotations

from ...schemas.replay import Costs, Pause, PauseKind, StateChange


def failing_over(costs: Costs, *, planning_s: float = 0.0, copying_s: float = 0.0) -> tuple[Pause, ...]:
    """After a failure, of processes that live on: they notice, plan, copy state, and form new groups."""
    return (*_lasting(("detecting", costs.detection_s)), *regrouping(costs, planning_s=planning_s, copying_s=copying_s))


def regrouping(costs: Costs, *, planning_s: float = 0.0, copying_s: float = 0.0) -> tuple[Pause, ...]:
    """Of processes that live on and know why: they plan, copy state, and form new groups."""
    return _lasting(("planning", planning_s), ("copying", copying_s), ("restarting", costs.regrouping_s))


def planning(costs: Costs) -> tuple[Pause, ...]:
    """Everybody keeps his place and his state, and gets another plan."""
    return _lasting(("planning", costs.planning_s))


def restarting(costs: Costs, loading_s: float, *, detected: bool = False) -> tuple[Pause, ...]:
    """New processes everywhere, which read a checkpoint.

    Args:
        costs: of the job.
        loading_s: how long they read it.
        detected: whether a failure has to be noticed first.
    """
    noticing_s = costs.detection_s if detected else 0.0
    return _lasting(("detecting", noticing_s), ("restarting", costs.restart_s), ("copying", loading_s))


def saved_and_restarting(costs: Costs, saving_s: float, loading_s: float) -> tuple[Pause, ...]:
    """New processes everywhere, by choice: a checkpoint first, so that nothing is lost."""
    return (*_lasting(("checkpointing", saving_s)), *restarting(costs, loading_s))


def total_s(pauses: tuple[Pause, ...]) -> float:
    """How long they last together."""
    return sum(pause.lasts_s for pause in pauses)


def begins_s(step: StateChange) -> float:
    """When the first iteration after a step begins, in s from its moment on."""
    return step.after_s + total_s(step.pauses)


def _lasting(*parts: tuple[PauseKind, float]) -> tuple[Pause, ...]:
    return tuple(Pause(kind, lasts_s) for kind, lasts_s in parts if lasts_s > 0)
