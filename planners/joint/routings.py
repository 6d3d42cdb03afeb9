"""Who executes which micro-batch: around slow pairs of workers, and by how much each worker can do.

For workers of one stage (`search.py`) and of several virtual ones (`placed.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ...schemas.plan import Place
    from ..scheduling.problem import Flags, Floats, Ints, Problem

# Slow pairs of workers that carry nothing: a micro-batch goes on with another pipeline's worker instead.
#
# Jobs i and j come to the same stage with different workers. If they swap all that follows, every worker of every stage
# executes as much as before, in about the same order, for the two are neighbours in rank; but the pairs of workers that
# they cross here are other ones. Hop by hop, from the first stage on, each job that crosses a slow pair swaps with the
# nearest one so that neither crosses one.


def slow_pairs(home: Problem) -> Flags:
    """Whether the hop inside a pipeline takes longer than those between pipelines; links x pipelines x pipelines."""
    pipelines = len(home.depth)
    slower = (home.inside_s > home.between_s).T
    return np.asarray(slower[:, :, None] & np.eye(pipelines, dtype=np.bool_))


def named_pairs(home: Problem, pairs: Collection[tuple[Place, Place]]) -> Flags:
    """Pairs of places at neighbouring stages, in the form of `slow_pairs`; the first stage's place comes first."""
    pipelines, links = home.inside_s.shape
    found = np.zeros((links, pipelines, pipelines), dtype=np.bool_)
    for (k, i), (other, _) in pairs:
        found[i, k, other] = True
    return found


def bypassed(problem: Problem, slow: Flags) -> Problem:
    """The routing with as few jobs across slow pairs as swaps achieve.

    Args:
        problem: any routing over alike pipelines.
        slow: pairs, as `slow_pairs` gives them.
    """
    return replace(problem, executor=swapped(problem.executor, problem.workers.pipeline, slow))


def swapped(executor: Ints, pipeline_of: Ints, slow: Flags, *, in_pairs: bool = False) -> Ints:
    """Who executes each job at each stage, with as few jobs across slow pairs as swaps achieve.

    Args:
        executor: workers, jobs x stages.
        pipeline_of: of each worker.
        slow: pairs, as `slow_pairs` gives them.
        in_pairs: whether a job rather swaps with one of the next pipeline than with the nearest one in rank: then two
            pipelines change their ends, and are as regular as before.
    """
    executor, pipelines = executor.copy(), slow.shape[1]
    for link in np.flatnonzero(slow.any(axis=(1, 2))).tolist():
        # Swap the ends of routes beyond a link; `here` and `above` are the jobs' pipelines before and after it.
        here = pipeline_of[executor[:, link]]
        above = pipeline_of[executor[:, link + 1]]
        jobs = np.arange(len(here))
        for job in np.flatnonzero(slow[link][here, above]).tolist():
            if not slow[link][here[job], above[job]]:
                continue  # it was another one's partner
            free = ~slow[link][here[job], above] & ~slow[link][here, above[job]]
            if free.any():
                away = np.abs(jobs - job) + in_pairs * len(jobs) * ((here - here[job]) % pipelines)
                other = int(np.argmin(np.where(free, away, len(jobs) * (pipelines + 1))))
                executor[[job, other], link + 1 :] = executor[[other, job], link + 1 :]
                above[[job, other]] = above[[other, job]]
    return executor


def crossing(problem: Problem, slow: Flags) -> Ints:
    """How many jobs cross each of some pairs; in the form of `slow_pairs`."""
    return carried(problem.workers.pipeline[problem.executor], slow)


def carried(pipeline: Ints, slow: Flags) -> Ints:
    """The same by the pipelines whose workers execute each job at each stage, jobs x stages."""
    found = np.zeros(slow.shape, dtype=np.int64)
    for link in np.flatnonzero(slow.any(axis=(1, 2))).tolist():
        np.add.at(found[link], (pipeline[:, link], pipeline[:, link + 1]), 1)
    return np.where(slow, found, 0)


# Who executes how much, and which of it: every stage filled on its own, as communicating vessels are.
#
# Of a stage's micro-batches each goes to the worker that ends first if it takes one more: a dead worker takes none, a
# slow one fewer. A worker keeps as many of its own as it takes. Those that it cannot keep are evenly spaced among its
# own, and go to workers with room, first to the one with the largest share of its room left. F, I and W of a micro-
# batch stay together. When a worker can begin plays no part: any worker of the stage before may send to any of this
# one.


# No job is reckoned with as shorter than this, by the longest one; and what is less of a job is a rounding.
SHORTEST = FILL_ROUNDING = 1e-9


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
    taken = np.floor(jobs / (1 / pace).sum() / pace * (1 - FILL_ROUNDING)).astype(np.int64).tolist()
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
