"""Who executes how much, and which of it: every stage filled on its own, as communicating vessels are.

Of a stage's micro-batches each goes to the worker that ends first if it takes one more: a dead worker takes none, a
slow one fewer. A worker keeps as many of its own as it takes. Those that it cannot keep are evenly spaced among its
own, and go to workers with room, first to the one with the largest share of its room left. F, I and W of a micro-batch
stay together. When a worker can begin plays no part: any worker of the stage before may send to any of this one.
"""

from __future__ import annotations

from dataclasses import replace
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem

# No job is reckoned with as shorter than this, by the longest one; and what is less of a job is a rounding.
SHORTEST = ROUNDING = 1e-9


def water_filled(home: Problem) -> Problem:
    """The routing in which each stage's last worker ends as early as can be, were it the only stage.

    Args:
        home: alike pipelines in which every worker runs its own micro-batches, failed workers among them.
    """
    return routed(home, np.stack([least_loads(each_s, home.jobs) for each_s in job_s(home).T], axis=1))


def routed(home: Problem, loads: Ints) -> Problem:
    """The routing in which each worker executes so many jobs, as far as it can its own.

    Args:
        home: as for `water_filled`.
        loads: of each worker, pipelines x stages; those of a stage add up to all jobs.
    """
    executor = np.empty_like(home.executor)
    stages = executor.shape[1]
    for stage, room in enumerate(loads.T):
        executor[:, stage] = handed_out(home.origin, room) * stages + stage
    return replace(home, executor=executor)


def in_turns(home: Problem, loads: Ints) -> Problem:
    """The same loads, but whose jobs they are does not matter: each worker's are as far apart as can be.

    So the peers of a stage are always about as far, which is worth a lot where memory admits few jobs at once, and more
    jobs go to other pipelines. Arguments as for `routed`.
    """
    stages = home.executor.shape[1]
    columns = [spread(counts) * stages + stage for stage, counts in enumerate(loads.T)]
    return replace(home, executor=np.stack(columns, axis=1))


def job_s(home: Problem) -> Floats:
    """How long each worker computes for one micro-batch, pipelines x stages, in s; infinite where it failed."""
    workers, split = home.workers, home.split[0][home.workers.stage]
    back_s = np.where(split, workers.input_s + workers.weight_s, workers.full_s)
    each_s = np.where(workers.live, workers.forward_s + back_s, np.inf)
    return each_s.reshape(len(home.depth), -1)


def least_loads(each_s: Floats, jobs: int) -> Ints:
    """How many jobs each of some workers takes, so that the one that ends last ends as early as can be.

    Args:
        each_s: what a job takes with each worker, in s; infinite with those that take none. At least one is finite.
        jobs: of all; where times tie, a worker gets an even share first, and then those of low numbers.
    """
    live = np.flatnonzero(np.isfinite(each_s))
    most_s, share = float(each_s[live].max()), jobs / len(live)
    pace = np.maximum(each_s[live] / most_s, SHORTEST) if most_s else np.ones(len(live))
    taken = np.floor(jobs / (1 / pace).sum() / pace * (1 - ROUNDING)).astype(np.int64).tolist()
    heap = [((n + 1) * own, n + 1 > share, w) for w, (n, own) in enumerate(zip(taken, pace.tolist(), strict=True))]
    heapify(heap)
    for _ in range(jobs - sum(taken)):
        worker = heap[0][2]
        taken[worker] += 1
        more = taken[worker] + 1
        heapreplace(heap, (more * float(pace[worker]), more > share, worker))
    found = np.zeros(len(each_s), dtype=np.int64)
    found[live] = taken
    return found


def handed_out(owner: Ints, room: Ints) -> Ints:
    """Who takes each job, where owner k takes `room[k]` jobs: its own first.

    Args:
        owner: of each job, in rank order.
        room: of each owner; adds up to all jobs.
    """
    taker, left, away = owner.copy(), room.copy(), []
    for k in range(len(room)):
        own = np.flatnonzero(owner == k)
        surplus = max(len(own) - int(room[k]), 0)
        away.append(own[((np.arange(surplus) + 0.5) * len(own) / max(surplus, 1)).astype(np.int64)])
        left[k] -= len(own) - surplus
    taker[np.sort(np.concatenate(away))] = spread(left)
    return taker


def spread(counts: Ints) -> Ints:
    """Each number k `counts[k]` times, as evenly over the list as can be."""
    who = np.repeat(np.arange(len(counts)), counts)
    turn = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in counts.tolist()])
    return who[np.lexsort((who, turn))]
