"""Restarts from a checkpoint: for every policy that knows no better, and for nodes that come."""

from __future__ import annotations

from ...schemas.replay import Costs, Moment, StateChange, TrainingState
from .outlook import pays, until_next_failure_s
from .pauses import restarting, saved_and_restarting, total_s


def restart(costs: Costs, following: TrainingState, loading_s: float, *, lost: bool) -> tuple[StateChange, ...]:
    """Training begins anew with another standing, or waits for nodes.

    Args:
        costs: of the job.
        following: what nodes there are make possible; without a plan where they are too few.
        loading_s: how long they read the checkpoint.
        lost: whether training was under way and has just lost its state; else it has been waiting.
    """
    if following.iteration_time_s is None:
        return (StateChange(following, "wait", interrupts=True, rolls_back=True),) if lost else ()
    pauses = restarting(costs, loading_s, detected=lost)
    return (StateChange(following, "restart", pauses, interrupts=True, rolls_back=lost),)


def restart_or_grow(
    costs: Costs, standing: TrainingState, following: TrainingState, loading_s: float, moment: Moment, *, lost: bool
) -> tuple[StateChange, ...]:
    """A restart where training cannot go on; by choice, from a checkpoint saved first, where that pays; else nothing.

    Args:
        costs: of the job.
        standing: in force.
        following, loading_s: as for `restart`.
        moment: the change.
        lost: whether a node at work was lost.
    """
    if lost or standing.iteration_time_s is None:
        return restart(costs, following, loading_s, lost=lost)
    saving_s = 0.0 if standing.checkpointing is None else standing.checkpointing.pause_s
    pauses = saved_and_restarting(costs, saving_s, loading_s)
    rates = standing.microbatches_per_s, following.microbatches_per_s
    grows = pays(until_next_failure_s(costs, moment), total_s(pauses), *rates)
    return (StateChange(following, "grow", pauses),) if grows else ()
