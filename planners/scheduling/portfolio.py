"""The portfolio: rules worth trying on any problem, the most promising first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, floor

import numpy as np

from .limits import rooms
from .problem import NO_WORKER, Problem
from .rules import Priority, Rules

WAITS = (0.0, 0.5, 1.0)


def portfolio(problem: Problem) -> Iterator[Rules]:
    """All combinations of warm-ups, in-flight limits, look-ahead, backlog and priorities, each once.

    Only W can wait or pile up, so a problem without split backwards has fewer; in-flight limits and backlogs matter
    where memory is limited, and come only there.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    room = rooms(problem)
    tight = any(most < count for most, count in zip(room, problem.job_counts.tolist(), strict=True))
    split = bool(problem.split.any())
    waits = WAITS if split else (0.0,)
    backlogs = (problem.jobs, 1, 2, 4) if split and tight else (problem.jobs,)
    margins = (None, 0, 1) if tight or not split else (None,)
    priorities = [p for p in Priority if p != Priority.UNBLOCK or (split and tight)]
    seen = set()
    for backlog, margin, wait, priority, warmup in product(backlogs, margins, waits, priorities, warmups(problem)):
        capped = tuple(min(x, most) for x, most in zip(warmup, room, strict=True))
        in_flight = tuple(problem.jobs if margin is None else min(x + margin, problem.jobs) for x in capped)
        key = (backlog, in_flight, wait, priority, capped)
        if key not in seen:
            seen.add(key)
            count = len(capped)
            yield Rules(capped, in_flight, [wait] * count, [backlog] * count, [priority] * count)


def warmups(problem: Problem) -> list[tuple[int, ...]]:
    """Warm-ups of each worker: of zero bubble, of 1F1B, none, half more than 1F1B, a round trip's worth, and all."""
    after = problem.depth[problem.workers.pipeline] - problem.workers.stage
    shapes: Sequence[Sequence[int]] = (
        [2 * n - 1 for n in after.tolist()],
        [1] * len(after),
        after.tolist(),
        [ceil(1.5 * n) for n in after.tolist()],
        _round_trips(problem),
        [problem.jobs] * len(after),
    )
    return list(dict.fromkeys(tuple(shape) for shape in shapes))


def _round_trips(problem: Problem) -> list[int]:
    """How many F fit between an F and the return of its I, at the pace of the worker's own F and I, and one more."""
    workers = problem.workers
    pace_s = workers.forward_s + workers.input_s
    longest = np.ones(len(pace_s), dtype=np.int64)
    for route, hops in zip(*_distinct_routes(problem), strict=True):
        back_s = 0.0
        for stage in reversed(range(len(route))):
            worker = route[stage]
            back_s += pace_s[worker] + (2 * hops[stage] if stage + 1 < len(route) else 0.0)
            trips = floor(min(back_s / pace_s[worker], problem.jobs)) + 1 if pace_s[worker] > 0 else problem.jobs
            longest[worker] = max(longest[worker], trips)
    return [int(n) for n in longest]


def _distinct_routes(problem: Problem) -> tuple[list[list[int]], list[list[float]]]:
    """Each route with its hops' delays once."""
    found = {}
    for route, hops in zip(problem.executor.tolist(), problem.hop_s.tolist(), strict=True):
        found[tuple(route), tuple(hops)] = ([worker for worker in route if worker != NO_WORKER], hops)
    return [route for route, _ in found.values()], [hops for _, hops in found.values()]
