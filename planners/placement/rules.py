"""Due times worth trying on any placed problem, the most promising first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from .problem import BACKWARD, FORWARD, KINDS, WEIGHT
from .scheduler import DueTimes

if TYPE_CHECKING:
    from .problem import Floats, PlacedProblem

# How many times as long as it takes a message to a higher column is given, in offsets: with 1 as in V-Min, with 2 as in
# V-Half, with more as in ZB-V.
STRETCHES = (1.0, 2.0, 3.0, 4.0, 5.0)


def portfolio(problem: PlacedProblem) -> Iterator[DueTimes]:
    """Greedy priorities, groups of micro-batches, and due times, each rule once.

    Due times are a pace apart at which the busiest worker is busy all the time, half of that, or none. The offsets are
    the earliest times of a micro-batch alone, with the ways to higher columns stretched, W in its turn or last, I in
    its turn or first. Jobs enter freely, or at the pace, after a burst.
    """
    yield from greedy(problem)
    yield from grouped(problem)
    pipelines = len(np.unique(problem.origin))
    depth = len(problem.allreduce_s)
    bursts = [None, *dict.fromkeys(pipelines * one for one in _bursts(depth))]
    whole_s = pace_s(problem)
    last_s = _horizon_s(problem)
    splits = bool(problem.split.any())
    for first, last, burst, part, stretch in product(
        (False, True), (True, False) if splits else (False,), bursts, (1.0, 0.5, 0.0), STRETCHES
    ):
        offset_s = alone_s(problem, stretch)
        offset_s[:, BACKWARD] -= last_s * first
        offset_s[:, WEIGHT] += last_s * last
        yield DueTimes(offset_s.ravel().tolist(), part * whole_s, burst=burst, entry_s=whole_s)


def greedy(problem: PlacedProblem) -> list[DueTimes]:
    """I first, later stages first, W last: best for the makespan with 1F1B's memory; and F first, for the period."""
    last_s = _horizon_s(problem)
    offset_s = np.zeros((problem.stages, KINDS))
    offset_s[:, FORWARD] = offset_s[:, BACKWARD] = np.linspace(last_s, 0.0, problem.stages)
    offset_s[:, WEIGHT] = 4 * last_s
    input_first, forward_first = offset_s.copy(), offset_s.copy()
    input_first[:, BACKWARD] -= 2 * last_s
    forward_first[:, BACKWARD] += 2 * last_s
    rules = [DueTimes(input_first.ravel().tolist()), DueTimes(forward_first.ravel().tolist())]
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
        rules = offset_s + np.array([0.0, backward, 0.0])
        yield DueTimes(rules.ravel().tolist(), most / (depth * pipelines), group=depth * pipelines)


def pace_s(problem: PlacedProblem) -> float:
    """The busiest worker's work by the number of jobs, in s."""
    return float(work_s(problem).max() / problem.jobs)


def work_s(problem: PlacedProblem) -> Floats:
    """What each worker has to do, in s; array of workers."""
    stage = np.arange(problem.stages)[None, :]
    duration_s = problem.duration_s[problem.executor, stage]
    backward_s = np.where(problem.split, duration_s[..., 1] + duration_s[..., 2], duration_s[..., 3])
    found: Floats = np.zeros(problem.workers)
    np.add.at(found, problem.executor, duration_s[..., 0] + backward_s)
    return found


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


def _bursts(depth: int) -> Sequence[float]:
    """How many micro-batches a pipeline may enter at once."""
    return (1, ceil(depth / 3), ceil(depth / 2), 2 * depth // 3 + 1, depth)


def _horizon_s(problem: PlacedProblem) -> float:
    """More than any difference of due times and offsets that are in turn, in s."""
    return problem.jobs * pace_s(problem) + float(alone_s(problem, max(STRETCHES)).max()) or 1.0
