"""A stronger bound on the makespan where stages are unlike: some must starve at first, as micro-batches arrive too
slowly.

Look at all live workers of a stage together, whatever the routing. Sort the starts of its F over all workers: the l-th
is

* no earlier than the l-th end of F at the stage before, plus the delay;
* no earlier than the (l - L)-th plus one F: else L + 1 of them would run at once on L workers.

From the first stage on, that gives a head of the l-th F of every stage; from the last stage back, in the same way and
after the l-th F's end, of the l-th I; and of the l-th W. What has a head after t cannot be done before t. So if the
work of all operations with earlier heads is less than L workers could do until t, the workers together idle for the
rest.

Let Z be the largest such idle time over all t, r the head of the first F, and w what a micro-batch takes in this stage.
Until r + X a worker that idles for z executes at most floor((X - z) / w) micro-batches. All together execute M: with
q = floor(X / w), each can idle for X - q w without losing one, and loses another for each further w. Hence

    L q - ceil(max(0, Z - L (X - q w)) / w) >= M,

and the least such X is proven. It counts whole micro-batches, so it never is below the load of the busiest worker.
After its last operation a stage reduces its gradients, and some optimizer steps.
"""

from __future__ import annotations

from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem

ROUNDING = 1e-9  # a whole number is meant where a quotient is this close to it
HALVINGS = 60


def arrival_bound_s(pipeline: Problem, jobs: int, live: Ints) -> float:
    """No routing and no orders have a smaller makespan, in s.

    Args:
        pipeline: one of equal pipelines alone, all its workers alive.
        jobs: micro-batches of all pipelines.
        live: live workers of each stage, 1 or more.
    """
    workers, split = pipeline.workers, pipeline.split[0]
    back_s = np.where(split, workers.input_s, workers.full_s)
    weight_s = np.where(split, workers.weight_s, 0.0)
    hop_s = pipeline.hop_s[0]
    stages = len(live)
    heads_s = _forward_heads_s(workers.forward_s, hop_s, jobs, live)
    ends_s = np.zeros(stages)
    returned_s = np.zeros(jobs)
    for stage in reversed(range(stages)):
        own_s = (float(workers.forward_s[stage]), float(back_s[stage]), float(weight_s[stage]))
        number = int(live[stage])
        input_s = _paced(np.maximum(returned_s, heads_s[stage] + own_s[0]), own_s[1], number)
        weight_heads_s = _paced(input_s + own_s[1], own_s[2], number)
        idle_s = _idle_s((heads_s[stage], input_s, weight_heads_s), own_s, number)
        ends_s[stage] = heads_s[stage][0] + _least_s(sum(own_s), jobs, number, idle_s)
        if stage:
            returned_s = input_s + own_s[1] + hop_s[stage - 1]
    return float((ends_s + workers.allreduce_s).max() + workers.optimizer_s.max())


def _forward_heads_s(forward_s: Floats, hop_s: Floats, jobs: int, live: Ints) -> list[Floats]:
    """Heads of the l-th F of each stage."""
    heads_s = []
    arrived_s = np.zeros(jobs)
    for stage, number in enumerate(live.tolist()):
        heads_s.append(_paced(arrived_s, float(forward_s[stage]), number))
        if stage < len(hop_s):
            arrived_s = heads_s[-1] + forward_s[stage] + hop_s[stage]
    return heads_s


def _paced(heads_s: Floats, each_s: float, workers: int) -> Floats:
    """Heads so that the l-th is no earlier than the (l - workers)-th and one operation more; ascending."""
    rounds = -(-len(heads_s) // workers)
    rows = np.full(rounds * workers, -np.inf)
    rows[: len(heads_s)] = heads_s
    done_s = np.arange(rounds)[:, None] * each_s
    paced = np.maximum.accumulate(rows.reshape(rounds, workers) - done_s, axis=0) + done_s
    found: Floats = np.maximum.accumulate(paced.ravel()[: len(heads_s)])
    return found


def _idle_s(heads_s: tuple[Floats, ...], each_s: tuple[float, ...], workers: int) -> float:
    """How long the workers together idle at least, from the first head on."""
    times_s = np.concatenate(heads_s)
    work_s = np.repeat(each_s, [len(heads) for heads in heads_s])
    order = np.argsort(times_s, kind="stable")
    before_s = np.concatenate([[0.0], np.cumsum(work_s[order])[:-1]])
    return float((workers * (times_s[order] - heads_s[0][0]) - before_s).max())


def _least_s(each_s: float, jobs: int, workers: int, idle_s: float) -> float:
    """The least time in which the workers can execute all micro-batches and idle as long as they must."""

    def executed(time_s: float) -> int:
        rounds = floor(time_s / each_s + ROUNDING)
        spare_s = workers * (time_s - rounds * each_s)
        return workers * rounds - ceil(max(0.0, idle_s - spare_s) / each_s - ROUNDING)

    least_s = max(-(-jobs // workers) * each_s, (jobs * each_s + idle_s) / workers)
    if each_s == 0 or executed(least_s) >= jobs:
        return least_s
    most_s = least_s + idle_s + each_s
    for _ in range(HALVINGS):
        middle_s = (least_s + most_s) / 2
        least_s, most_s = (least_s, middle_s) if executed(middle_s) >= jobs else (middle_s, most_s)
    return least_s
