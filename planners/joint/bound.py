"""A lower bound on makespan and period whatever the routing and the orders, for workers and links of any speed.

If a worker executes n micro-batches of its stage, wherever they come from, it takes at least as long as each of these
arguments says: a fixed time and one for each micro-batch. They are those of slipstream/bounds.py, with heads and
tails that are shortest paths over all workers of the other stages (bound.py): one-machine bounds over the sets of
kinds of operations, and where memory is limited three more. So within T a worker executes at most so many
micro-batches, and those of a stage's workers must add up to all there are: the least T for which they do, as of water
that is filled in. The largest of all stages is the bound.

For the period the same holds in the window of each stage, with later stages inside it, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..scheduling.problem import with_any_split
from ..slipstream.bounds import SETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..scheduling.problem import Floats, Ints, Problem


HALVINGS = 60
COUNTING = 1e-9  # so little of a micro-batch is a rounding


class _AffineTimes(NamedTuple):
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
        if home.staggered:
            self._times, self._step_s = list(_windows(costs)), 0.0
        else:
            # The arguments of all stages for the makespan, without the optimizer step.
            tail_s = end_s(costs, 0, lambda i: costs.weight_s[:, i] + costs.reduce_s[i])
            self._times = [_arguments(costs, reach_s(costs), tail_s, costs.reduce_s)]
            self._step_s = float(costs.step_s.max())

    @cached_property
    def value_s(self) -> float:
        """No routing and no orders have a smaller makespan, or period, in s."""
        found_s = 0.0
        for times in self._times:
            found_s = _filled_s(times, self._jobs, found_s)
        return found_s + self._step_s

    def of_loads_s(self, loads: Ints) -> float:
        """No routing in which each worker executes so many micro-batches, and no orders, have a smaller one, in s."""
        found = [0.0]
        for times in self._times:
            stages, pipelines, _ = times.each_s.shape
            counts = loads.reshape(pipelines, -1)[:, -stages:].T[..., None]
            busy = counts > 0
            found.append(float(np.where(busy, times.fixed_s + np.where(busy, counts, 1) * times.each_s, 0.0).max()))
        return max(found) + self._step_s


def _windows(costs: PipelineCosts) -> Iterator[_AffineTimes]:
    """The same for the window of each stage: the stage itself, and F and I of those after it."""
    for first in range(len(costs.reduce_s)):
        after_s = costs.reduce_s + costs.step_s
        tail_s = end_s(costs, first, lambda i: costs.weight_s[:, i] + after_s[i] if i == first else 0.0)  # noqa: B023
        fixed_s, each_s = _arguments(costs, reach_s(costs, first), tail_s, after_s)
        with_weight = np.array([*(2 in kinds for kinds in SETS), True, False, False])
        fixed_s[first + 1 :, :, with_weight] = 0.0  # their W may end after the window
        each_s[first + 1 :, :, with_weight] = 0.0
        yield _AffineTimes(fixed_s[first:], each_s[first:])


def _arguments(costs: PipelineCosts, first_s: Floats, tail_s: Floats, last_s: Floats) -> _AffineTimes:
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
    return _AffineTimes(np.stack(fixed, axis=-1).swapaxes(0, 1), np.stack(each, axis=-1).swapaxes(0, 1))


def _filled_s(times: _AffineTimes, jobs: int, least_s: float) -> float:
    """The least time within which the workers of every stage can execute all jobs, by these arguments, in s.

    Args:
        times: the arguments.
        jobs: of all pipelines.
        least_s: what other arguments say; given back where these say no more.
    """
    live = np.asarray(np.isfinite(times.each_s).all(axis=-1))
    fixed_s, each_s = np.where(live[..., None], times.fixed_s, np.inf), np.where(live[..., None], times.each_s, 1.0)
    is_work = each_s > 0
    pace_s = np.where(is_work, each_s, 1.0)

    def is_enough(limit_s: float) -> bool:
        spare_s = limit_s - fixed_s
        some = np.where(is_work, spare_s / pace_s + COUNTING, np.where(spare_s >= 0, jobs, 0.0)).min(axis=-1)
        taken = np.minimum(np.maximum(np.floor(some), 0), jobs)  # `clip` would take as long as all of this
        return bool((taken.sum(axis=-1) >= jobs).all())

    if least_s > 0 and is_enough(least_s):
        return least_s
    low_s, high_s = 0.0, float((fixed_s + jobs * each_s).max(axis=-1).min(axis=-1).max())
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if is_enough(middle_s) else (middle_s, high_s)
    return low_s


# What must come before, above and after a worker's operations, whatever the routing: shortest paths over workers.


@dataclass(frozen=True, eq=False)
class PipelineCosts:
    """Alike pipelines as arrays, pipelines x stages, in s; infinite durations where a worker failed.

    Attributes:
        forward_s, back_s, weight_s: F, then I (or B), and W (0 where B does it).
        hop_s: between worker p of stage i and worker q of the next; links x pipelines x pipelines.
        reduce_s, step_s: all-reduce and optimizer of each stage.
        room: micro-batches that a worker of each stage may hold between F and I, 1 or more.
    """

    forward_s: Floats
    back_s: Floats
    weight_s: Floats
    hop_s: Floats
    reduce_s: Floats
    step_s: Floats
    room: Floats


def costs_of(home: Problem) -> PipelineCosts:
    """The costs of alike pipelines."""
    workers, pipelines = with_any_split(home.workers), len(home.depth)
    split = home.split[0]

    def rows(values: Floats) -> Floats:
        return np.where(workers.live, values, np.inf).reshape(pipelines, -1)

    hop_s = np.repeat(home.between_s.min(axis=0)[:, None], pipelines**2, axis=1).reshape(-1, pipelines, pipelines)
    every = np.arange(pipelines)
    hop_s[:, every, every] = home.inside_s.T
    held, limits = workers.activation_bytes[: len(split)], workers.limit_bytes[: len(split)]
    room = np.floor(limits * (1 + 1e-9) / np.where(held > 0, held, 1.0))
    return PipelineCosts(
        forward_s=rows(workers.forward_s),
        back_s=np.where(split, rows(workers.input_s), rows(workers.full_s)),
        weight_s=np.where(split, workers.weight_s.reshape(pipelines, -1), 0.0),
        hop_s=hop_s,
        reduce_s=workers.allreduce_s[: len(split)],
        step_s=workers.optimizer_s[: len(split)],
        room=np.where(held > 0, np.maximum(room, 1.0), np.inf),
    )


def reach_s(costs: PipelineCosts, first: int = 0) -> Floats:
    """From the start of some F at stage `first` to the earliest start of F with each worker; 0 up to that stage."""
    found = np.zeros_like(costs.forward_s)
    for i in range(first, found.shape[1] - 1):
        found[:, i + 1] = _least(found[:, i] + costs.forward_s[:, i], costs.hop_s[i])
    return found


def turn_s(costs: PipelineCosts) -> Floats:
    """From the end of F with each worker to the earliest start of its I."""
    found = np.zeros_like(costs.forward_s)
    for i in reversed(range(found.shape[1] - 1)):
        above_s = costs.forward_s[:, i + 1] + found[:, i + 1] + costs.back_s[:, i + 1]
        found[:, i] = _least(above_s, 2 * costs.hop_s[i].T)
    return found


def end_s(costs: PipelineCosts, first: int, after_s: Callable[[int], Floats | float]) -> Floats:
    """What follows the end of an I with each worker: I of the stages before, down to `first`, their W, and the rest.

    Args:
        costs: of the pipelines.
        first: the stage that ends it; 0 in what is returned for those before.
        after_s: what follows the end of an I at a stage without those before: its W, all-reduce and more, in s.
    """
    found = np.zeros_like(costs.forward_s)
    found[:, first] = after_s(first)
    for i in range(first, found.shape[1] - 1):
        before_s = _least(costs.back_s[:, i] + found[:, i], costs.hop_s[i])
        found[:, i + 1] = np.maximum(after_s(i + 1), before_s)
    return found


def _least(of_s: Floats, hop_s: Floats) -> Floats:
    """For each worker q the least of `of_s[p] + hop_s[p, q]` over the workers p."""
    found: Floats = (of_s[:, None] + hop_s).min(axis=0)
    return found


# Loads corrected by what a schedule shows: micro-batches go from peers that end late to peers that end early.
#
# Water (routings.py) knows how long workers compute, but not when their first micro-batch arrives, when the last one
# must have left, nor how long they wait for messages where memory admits few micro-batches at once. A schedule does: at
# each stage, who ends last hands one micro-batch to who would end first with it, at all stages at once, or else at one.


# So many stages, those with most to gain, are tried one by one.
ONE_BY_ONE = 4


def shifts(loads: Ints, ends_s: Floats, each_s: Floats) -> Iterator[Ints]:
    """Other loads that a schedule suggests, the most promising first.

    Args:
        loads: jobs of each worker, pipelines x stages.
        ends_s: when each ended its last operation, in s; the same shape.
        each_s: what one job takes with each, in s; infinite where it failed.
    """
    late = np.where(loads > 0, ends_s, -np.inf).argmax(axis=0)
    early = (ends_s + each_s).argmin(axis=0)
    stages = np.arange(loads.shape[1])
    apart_s = ends_s[late, stages] - ends_s[early, stages]
    gain_s = np.where((late != early) & (apart_s > 0), apart_s - each_s[early, stages], -np.inf)
    ranked = [stage for stage in np.argsort(-gain_s, kind="stable").tolist() if np.isfinite(gain_s[stage])]
    choices = [ranked] if len(ranked) > 1 else []
    for chosen in [*choices, *([stage] for stage in ranked[:ONE_BY_ONE])]:
        other = loads.copy()
        other[late[chosen], chosen] -= 1
        other[early[chosen], chosen] += 1
        yield other
