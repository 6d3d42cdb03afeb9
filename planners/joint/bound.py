"""A lower bound on makespan and period whatever the routing and the orders, for workers and links of any speed.

If a worker executes n micro-batches of its stage, wherever they come from, it takes at least as long as each of these
arguments says: a fixed time and one for each micro-batch. They are those of slipstream/routing_bound.py, with heads and
tails that are shortest paths over all workers of the other stages (paths.py): one-machine bounds over the sets of
kinds of operations, and where memory is limited three more. So within T a worker executes at most so many
micro-batches, and those of a stage's workers must add up to all there are: the least T for which they do, as of water
that is filled in. The largest of all stages is the bound.

For the period the same holds in the window of each stage, with later stages inside it, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..slipstream.routing_bound import SETS
from .paths import Costs, costs_of, end_s, reach_s, turn_s

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem

HALVINGS = 60
COUNTING = 1e-9  # so little of a micro-batch is a rounding


class _Times(NamedTuple):
    """Of each argument, what it says without micro-batches, and with each one more; stages x pipelines x arguments."""

    fixed_s: Floats
    each_s: Floats


class JointBound:
    """What no routing of some pipelines undercuts.

    Args:
        home: alike pipelines in which every worker runs its own micro-batches, failed workers among them; each stage
            has a live one. Its makespan counts, or its period.
    """

    def __init__(self, home: Problem) -> None:
        costs = costs_of(home)
        self._jobs = home.jobs
        self._times = list(_windows(costs)) if home.staggered else [_iteration(costs)]
        self._step_s = 0.0 if home.staggered else float(costs.step_s.max())

    @cached_property
    def value_s(self) -> float:
        """No routing and no orders have a smaller makespan, or period, in s."""
        return max(_filled_s(times, self._jobs) for times in self._times) + self._step_s

    def of_loads_s(self, loads: Ints) -> float:
        """No routing in which each worker executes so many micro-batches, and no orders, have a smaller one, in s."""
        found = [0.0]
        for times in self._times:
            stages, pipelines, _ = times.each_s.shape
            counts = loads.reshape(pipelines, -1)[:, -stages:].T[..., None]
            busy = counts > 0
            found.append(float(np.where(busy, times.fixed_s + np.where(busy, counts, 1) * times.each_s, 0.0).max()))
        return max(found) + self._step_s


def _iteration(costs: Costs) -> _Times:
    """The arguments of all stages for the makespan, without the optimizer step."""
    last_s = costs.reduce_s
    tail_s = end_s(costs, 0, lambda i: costs.weight_s[:, i] + last_s[i])
    return _arguments(costs, reach_s(costs), tail_s, last_s)


def _windows(costs: Costs) -> Iterator[_Times]:
    """The same for the window of each stage: the stage itself, and F and I of those after it."""
    for first in range(len(costs.reduce_s)):
        after_s = costs.reduce_s + costs.step_s
        tail_s = end_s(costs, first, lambda i: costs.weight_s[:, i] + after_s[i] if i == first else 0.0)  # noqa: B023
        fixed_s, each_s = _arguments(costs, reach_s(costs, first), tail_s, after_s)
        with_weight = np.array([*(2 in kinds for kinds in SETS), True, False, False])
        fixed_s[first + 1 :, :, with_weight] = 0.0  # their W may end after the window
        each_s[first + 1 :, :, with_weight] = 0.0
        yield _Times(fixed_s[first:], each_s[first:])


def _arguments(costs: Costs, first_s: Floats, tail_s: Floats, last_s: Floats) -> _Times:
    """All arguments.

    Args:
        costs: of the pipelines.
        first_s: heads of F, pipelines x stages.
        tail_s: tails of I.
        last_s: tails of W, of each stage.
    """
    work = (costs.forward_s, costs.back_s, costs.weight_s)
    forward_s, back_s, weight_s = work
    turned_s = turn_s(costs)
    input_s = first_s + forward_s + turned_s
    heads = (first_s, input_s, input_s + back_s)
    tails = (turned_s + back_s + tail_s, tail_s, last_s + 0 * tail_s)
    fixed = [np.min([heads[k] for k in kinds], 0) + np.min([tails[k] for k in kinds], 0) for kinds in SETS]
    each = [sum(work[k] for k in kinds) + 0 * first_s for kinds in SETS]
    limited = np.isfinite(costs.room)
    places = np.where(limited, costs.room, 1.0)
    early_s = input_s - places * np.where(np.isfinite(forward_s), forward_s, 0.0)
    for fixed_s, each_s in (
        (early_s + last_s, forward_s + back_s + weight_s),
        (early_s + tail_s, forward_s + back_s),
        (first_s + tail_s, (forward_s + turned_s + back_s) / places),
    ):
        fixed.append(np.where(limited, fixed_s, 0.0))
        each.append(np.where(limited, each_s, 0.0))
    return _Times(np.stack(fixed, axis=-1).swapaxes(0, 1), np.stack(each, axis=-1).swapaxes(0, 1))


def _filled_s(times: _Times, jobs: int) -> float:
    """The least time within which the workers of every stage can execute all jobs, by these arguments, in s."""
    live = np.asarray(np.isfinite(times.each_s).all(axis=-1))
    fixed_s, each_s = np.where(live[..., None], times.fixed_s, np.inf), np.where(live[..., None], times.each_s, 1.0)
    pace_s = np.where(each_s > 0, each_s, 1.0)
    low_s, high_s = 0.0, float((fixed_s + jobs * each_s).max(axis=-1).min(axis=-1).max())
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        spare_s = middle_s - fixed_s
        some = np.where(each_s > 0, spare_s / pace_s + COUNTING, np.where(spare_s >= 0, jobs, 0.0)).min(axis=-1)
        if (np.clip(np.floor(some), 0, jobs).sum(axis=-1) >= jobs).all():
            high_s = middle_s
        else:
            low_s = middle_s
    return low_s
