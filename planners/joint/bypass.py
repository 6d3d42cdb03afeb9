"""Slow pairs of workers that carry nothing: a micro-batch goes on with another pipeline's worker instead.

Jobs i and j come to the same stage with different workers. If they swap all that follows, every worker of every stage
executes as much as before, in about the same order, for the two are neighbours in rank; but the pairs of workers that
they cross here are other ones. Hop by hop, from the first stage on, each job that crosses a slow pair swaps with the
nearest one so that neither crosses one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from ...schemas.plan import Place
    from ..scheduling.problem import Flags, Ints, Problem


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
    executor = problem.executor.copy()
    for link in np.flatnonzero(slow.any(axis=(1, 2))).tolist():
        pipeline = problem.workers.pipeline[executor]
        _bypass_at(executor, pipeline[:, link].copy(), pipeline[:, link + 1].copy(), link, slow[link])
    return replace(problem, executor=executor)


def crossing(problem: Problem, slow: Flags) -> Ints:
    """How many jobs cross each of some pairs; in the form of `slow_pairs`."""
    pipeline = problem.workers.pipeline[problem.executor]
    found = np.zeros(slow.shape, dtype=np.int64)
    for link in np.flatnonzero(slow.any(axis=(1, 2))).tolist():
        np.add.at(found[link], (pipeline[:, link], pipeline[:, link + 1]), 1)
    return np.where(slow, found, 0)


def _bypass_at(executor: Ints, here: Ints, above: Ints, link: int, slow: Flags) -> None:
    """Swap the ends of routes beyond a link; `here` and `above` are the jobs' pipelines before and after it."""
    jobs = np.arange(len(here))
    for job in np.flatnonzero(slow[here, above]).tolist():
        if not slow[here[job], above[job]]:
            continue  # it was another one's partner
        free = ~slow[here[job], above] & ~slow[here, above[job]]
        if free.any():
            other = int(np.argmin(np.where(free, np.abs(jobs - job), len(jobs))))
            executor[[job, other], link + 1 :] = executor[[other, job], link + 1 :]
            above[[job, other]] = above[[other, job]]
