"""Who executes a dead worker's micro-batches: the ways to route that are tried.

F, I and W of a micro-batch stay together in all of them, and live workers keep their own micro-batches but for
`by_load`.

* **slots** (slots.py): as even as can be, and the workers of a stage in step with each other.
* **round robin**: a stage's lost micro-batches go to its live workers in turns; the split that "SlipStream", section
  4.2.2, takes as given ("evenly across peer workers").
* **block**: each live worker takes a run of them; the split of the paper's Figure 3.
* **by load**: every micro-batch of a stage, its own ones first, goes to the live worker that ends first if it takes one
  more; so slow peers take fewer, and give some of their own away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem


def round_robin(home: Problem) -> Problem:
    """Lost micro-batches in turns, in rank order.

    Args:
        home: equal pipelines in which every worker runs its own micro-batches, failed workers among them.
    """
    return _rerouted(home, lambda lost, live: np.array(live)[np.arange(lost) % len(live)])


def block(home: Problem) -> Problem:
    """Lost micro-batches in runs of equal length, as far as that goes; `home` as for `round_robin`."""
    return _rerouted(home, lambda lost, live: np.repeat(live, _shares(lost, len(live))))


def by_load(home: Problem) -> Problem:
    """Each micro-batch where the load is least afterwards, at home if it has room; `home` as for `round_robin`."""
    executor = home.executor.copy()
    work_s = home.workers.forward_s + home.workers.full_s
    for stage, lost, live in _stages(home):
        shares = _least_loads(work_s[list(live)], len(executor))
        room = dict(zip(live, shares, strict=True))
        away = list(lost)
        for job in range(len(executor)):
            own = int(executor[job, stage])
            if own in room and room[own] > 0:
                room[own] -= 1
            elif own in room:
                away.append(job)
        takers = [worker for worker in live for _ in range(room[worker])]
        for job, worker in zip(sorted(away), _spread(takers), strict=True):
            executor[job, stage] = worker
    return replace(home, executor=executor)


def _stages(home: Problem) -> Iterator[tuple[int, Ints, list[int]]]:
    """Of each stage with micro-batches: those of dead workers, and the live workers."""
    for stage in range(home.executor.shape[1]):
        executors = home.executor[:, stage]
        lost = np.flatnonzero(~home.workers.live[executors])
        yield stage, lost, [int(w) for w in np.unique(executors) if home.workers.live[w]]


def _rerouted(home: Problem, choose: Callable[[int, list[int]], Ints]) -> Problem:
    executor = home.executor.copy()
    for stage, lost, live in _stages(home):
        if lost.size:
            executor[lost, stage] = choose(len(lost), live)
    return replace(home, executor=executor)


def _shares(count: int, parts: int) -> Ints:
    """A number in whole parts, as even as can be, the larger ones first."""
    return count // parts + (np.arange(parts) < count % parts)


def _least_loads(work_s: Floats, jobs: int) -> list[int]:
    """How many micro-batches each worker takes, so that the one that ends last ends as early as can be."""
    taken = [0] * len(work_s)
    heap = [(float(each_s), worker) for worker, each_s in enumerate(work_s)]
    heapify(heap)
    for _ in range(jobs):
        _, worker = heappop(heap)
        taken[worker] += 1
        heappush(heap, ((taken[worker] + 1) * float(work_s[worker]), worker))
    return taken


def _spread(takers: Sequence[int]) -> list[int]:
    """The same workers, each as evenly over the list as can be."""
    count = {worker: takers.count(worker) for worker in dict.fromkeys(takers)}
    places = [((n + 0.5) / most, worker) for worker, most in count.items() for n in range(most)]
    return [worker for _, worker in sorted(places)]
