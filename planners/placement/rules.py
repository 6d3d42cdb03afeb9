"""Due times worth trying on any placed problem, the most promising first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT
from .problem import work_s
from .scheduler import DueTimes

if TYPE_CHECKING:
    from .problem import Floats, PlacedProblem

# How many times as long as it takes a message to a higher column is given, in offsets: with 1 as in V-Min, with 2 as in
# V-Half, with more as in ZB-V.
STRETCHES = (1.0, 2.0, 3.0, 4.0, 5.0)
SLOWER = (1.05, 1.1, 1.2, 1.35, 1.5)
WAITS = (0.0, 0.5)
# Whether passes run side by side, and for how long one waits for another.
BESIDES = (0.5, 0.0, 1.0, -1.0)


def portfolio(problem: PlacedProblem) -> Iterator[DueTimes]:
    """Greedy priorities, groups of micro-batches, and due times, each rule once.

    Due times are a pace apart at which the busiest worker is busy all the time, half of that, or none. The offsets are
    the earliest times of a micro-batch alone, with the ways to higher columns stretched, W in its turn or last, I in
    its turn or first. Jobs enter freely, or at the pace, after a burst.

    Under a limit greedy priorities are worth trying with slower entries, too: a micro-batch that is in then goes
    through without waiting, and gives its memory back as soon as it can.
    """
    yield from greedy(problem)
    yield from grouped(problem)
    yield from paced_greedy(problem)
    whole_s, last_s = pace_s(problem), _horizon_s(problem)
    splits = bool(problem.split.any())
    weights, waits = ((True, False), WAITS) if splits else ((False,), (0.0,))
    alone = {stretch: alone_s(problem, stretch) for stretch in STRETCHES}
    for wait, part, first, last, enters_s, stretch in product(
        waits, (1.0, 0.5, 0.0), (True, False), weights, _entries(problem), STRETCHES
    ):
        offset_s = alone[stretch] + last_s * np.array([0.0, -first, last])
        yield DueTimes(due_s(problem, part * whole_s), offset_s, enters_s, wait)


def side_by_side(rules: Iterable[DueTimes]) -> Iterator[DueTimes]:
    """Each rule with passes side by side, at once or with waiting for each other, and without."""
    for one in rules:
        yield from (replace(one, beside=beside) for beside in BESIDES)


def greedy(problem: PlacedProblem) -> list[DueTimes]:
    """I first, later stages first, W last: best for the makespan with 1F1B's memory; and F first, for the period."""
    last_s = _horizon_s(problem)
    offset_s = np.zeros((problem.stages, KINDS))
    offset_s[:, FORWARD] = offset_s[:, BACKWARD] = np.linspace(last_s, 0.0, problem.stages)
    offset_s[:, WEIGHT] = 4 * last_s
    input_first, forward_first = offset_s.copy(), offset_s.copy()
    input_first[:, BACKWARD] -= 2 * last_s
    forward_first[:, BACKWARD] += 2 * last_s
    due = due_s(problem, 0.0)
    rules = [DueTimes(due, input_first), DueTimes(due, forward_first)]
    return rules[::-1] if problem.staggered else rules


def grouped(problem: PlacedProblem) -> Iterator[DueTimes]:
    """Megatron's order of loops: a group of as many micro-batches as there are columns goes through a worker's stages.

    D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (2021).
    """
    last_s = _horizon_s(problem)
    depth, pipelines = len(problem.allreduce_s), len(np.unique(problem.origin))
    place = np.zeros(problem.stages)  # among the stages of its column
    for held in problem.seats:
        place[list(held)] = np.arange(len(held))
    most = place.max() + 1.0
    offset_s = np.stack([place, most - place - 1.0, np.full(problem.stages, 4 * last_s)], axis=1)
    for backward in (-2 * last_s, most / 2, most, 2 * most, 2 * last_s):
        due = due_s(problem, most / (depth * pipelines), depth * pipelines)
        yield DueTimes(due, offset_s + np.array([0.0, backward, 0.0]))


def due_s(problem: PlacedProblem, apart_s: float, group: int = 1) -> Floats:
    """When jobs are due, in s, so far apart; each group of them at once; array of jobs."""
    rank = np.arange(problem.jobs, dtype=np.float64)
    found: Floats = (rank - rank % group) * apart_s
    return found


def pace_s(problem: PlacedProblem) -> float:
    """The busiest worker's work by the number of jobs, in s: the least, where passes may run side by side."""
    return float(work_s(problem).max() / problem.jobs) * problem.overlap


def alone_s(problem: PlacedProblem, stretch: float) -> Floats:
    """When the operations of a micro-batch alone can start, in s, on average over all; stages x kinds.

    Args:
        problem: whose durations and delays.
        stretch: a way to a higher column takes so many times what it takes.
    """
    duration_s = problem.duration_s[problem.executor, np.arange(problem.stages)[None, :]]
    duration_s[..., 1] = np.where(problem.split, duration_s[..., 1], duration_s[..., 3])
    forward_s, input_s = duration_s[..., 0].mean(axis=0), duration_s[..., 1].mean(axis=0)
    hop_s = problem.hop_s.mean(axis=0)
    step = np.diff(problem.column)
    found: Floats = np.zeros((problem.stages, KINDS))
    ups_s = (forward_s[:-1] + hop_s) * np.where(step > 0, stretch, 1.0)
    downs_s = (input_s[1:] + hop_s) * np.where(step < 0, stretch, 1.0)
    found[1:, FORWARD] = np.cumsum(ups_s)
    found[:, BACKWARD] = found[-1, FORWARD] + forward_s[-1]
    found[:-1, BACKWARD] += np.cumsum(downs_s[::-1])[::-1]
    found[:, WEIGHT] = found[:, BACKWARD] + input_s
    return found


def paced_greedy(problem: PlacedProblem) -> list[DueTimes]:
    """Greedy priorities where jobs enter slower than the pace; none without limits, where that gains nothing."""
    first, _ = greedy(problem)
    return [replace(first, enters_s=enters_s) for enters_s in _slower_entries(problem)]


def _entries(problem: PlacedProblem) -> list[Floats]:
    """When jobs may enter, in s, arrays of jobs: all at once, at the pace after so many at once, or slower."""
    pipelines, depth = len(np.unique(problem.origin)), len(problem.allreduce_s)
    bursts = dict.fromkeys((1, ceil(depth / 3), ceil(depth / 2), 2 * depth // 3 + 1, depth))
    whole_s = pace_s(problem)
    return [
        np.zeros(problem.jobs),
        *(_enters_s(problem, pipelines * burst, whole_s) for burst in bursts),
        *_slower_entries(problem),
    ]


def _slower_entries(problem: PlacedProblem) -> list[Floats]:
    """Where memory is so tight that no order keeps the pace, jobs that enter faster only wait for each other."""
    if not np.isfinite(problem.limit_bytes).any():
        return []
    pipelines, whole_s = len(np.unique(problem.origin)), pace_s(problem)
    return [_enters_s(problem, pipelines, slower * whole_s) for slower in SLOWER]


def _enters_s(problem: PlacedProblem, burst: int, apart_s: float) -> Floats:
    """When jobs may enter, in s: so many at once, the others so far apart; array of jobs."""
    found: Floats = np.maximum(np.arange(problem.jobs, dtype=np.float64) - burst, 0.0) * apart_s
    return found


def _horizon_s(problem: PlacedProblem) -> float:
    """More than any difference of due times and offsets that are in turn, in s."""
    return problem.jobs * pace_s(problem) + float(alone_s(problem, max(STRETCHES)).max()) or 1.0
