"""Identical micro-batches: the chains of operations and delays that bounds argue about.

Micro-batches are identical where they have the same executors, delays and backward split. They may then be taken first
in, first out, whatever is counted: sort the starts of each of their operations at each stage, and give the l-th start
to the l-th micro-batch. Of its messages none comes late, for the l-th end at a stage cannot come after the l-th start
of the operation that needs it; and each worker executes the same kinds at the same times, so holds the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..problem import NO_WORKER, Problem


@dataclass(frozen=True)
class Chain:
    """What one micro-batch costs on its way up the stages and back down; one entry a stage, but one a link in delays.

    All times in s, with the executing workers' slow-downs in them. Where the backward is not split, `backward_s` is
    B's duration, `weight_s` is 0, and nothing is stashed: W is then an operation that costs nothing.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    split: tuple[bool, ...]
    delay_s: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    stash_bytes: tuple[float, ...]
    limit_bytes: tuple[float, ...]

    @property
    def depth(self) -> int:
        """How many stages there are."""
        return len(self.forward_s)

    def from_stage(self, first: int) -> Chain:
        """The chain without the stages before `first`."""
        return self._cut(slice(first, None), slice(first, None))

    def at_stage(self, stage: int) -> Chain:
        """The chain of one stage only."""
        return self._cut(slice(stage, stage + 1), slice(0, 0))

    def round_trip_s(self, stage: int) -> float:
        """Least time between F's end and I's start at a stage: down all later stages and back."""
        return sum(self.forward_s[stage + 1 :]) + sum(self.backward_s[stage + 1 :]) + 2 * sum(self.delay_s[stage:])

    def _cut(self, stages: slice, links: slice) -> Chain:
        return Chain(
            self.forward_s[stages],
            self.backward_s[stages],
            self.weight_s[stages],
            self.split[stages],
            self.delay_s[links],
            self.activation_bytes[stages],
            self.stash_bytes[stages],
            self.limit_bytes[stages],
        )


@dataclass(frozen=True)
class Route:
    """Identical micro-batches: what each costs, who executes them at each stage, and their jobs in rank order."""

    chain: Chain
    workers: tuple[int, ...]
    jobs: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.jobs)


def routes_of(problem: Problem) -> list[Route]:
    """The micro-batches of a problem, identical ones together, in the order of their first ones."""
    return [_route(problem, alike) for alike in identical_jobs(problem)]


def identical_jobs(problem: Problem) -> list[list[int]]:
    """The jobs with the same executors, delays and backward split, each class in rank order."""
    jobs: dict[tuple[bytes, bytes, bytes], list[int]] = {}
    rows = zip(problem.executor, problem.split, problem.hop_s, strict=True)
    for job, (executors, split, hops_s) in enumerate(rows):
        jobs.setdefault((executors.tobytes(), split.tobytes(), hops_s.tobytes()), []).append(job)
    return list(jobs.values())


def _route(problem: Problem, alike: list[int]) -> Route:
    job = alike[0]
    executors = problem.executor[job]
    workers = executors[executors != NO_WORKER]
    held, split = problem.workers, problem.split[job, : len(workers)]
    columns = (
        held.forward_s[workers],
        np.where(split, held.input_s[workers], held.full_s[workers]),
        np.where(split, held.weight_s[workers], 0.0),
        split,
        problem.hop_s[job, : len(workers) - 1],
        held.activation_bytes[workers],
        np.where(split, held.stash_bytes[workers], 0.0),
        held.limit_bytes[workers],
    )
    return Route(Chain(*(tuple(column.tolist()) for column in columns)), tuple(workers.tolist()), tuple(alike))
