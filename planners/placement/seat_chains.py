"""Identical micro-batches on seats: when each of their operations starts at the soonest, and what follows at least.

Micro-batches with the same executors, delays and split may be taken first in, first out, whatever is counted
(`scheduling/one_machine.py` says why; it holds for each virtual stage). So operation k is micro-batch k's, and its
**head** the largest of

* the end of operation k - 1 of its kind and virtual stage;
* the arrival of its message, or the end of its own F or I;
* the work that comes before it on its worker: of all operations of its micro-batch there, from some one on, k + 1 of
  each, and k of its own.

**Tails** are heads in reversed time, with the last micro-batch first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.one_machine import identical_jobs
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import Floats, Ints, PlacedProblem


@dataclass(frozen=True)
class SeatChain:
    """What one micro-batch costs at each virtual stage, and which of these are one worker's.

    Attributes:
        seconds: of F, I (or B) and W (0 where there is none), of each virtual stage.
        is_split: whether there is a W.
        delay_s: of each hop.
        worker: of each virtual stage, as a number that only says which are alike.
        shares: of its operations' time, how much they take their worker up at least: less than 1 where F and a full
            backward may run side by side.
    """

    seconds: tuple[tuple[float, float, float], ...]
    is_split: tuple[bool, ...]
    delay_s: tuple[float, ...]
    worker: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def depth(self) -> int:
        """How many virtual stages there are."""
        return len(self.seconds)

    def way_s(self, first: int, last: int) -> float:
        """Least time from the start of F at a virtual stage to the end of I at one that is not before it."""
        down_s = sum(seconds[FORWARD] for seconds in self.seconds[first:]) + sum(self.delay_s[first:])
        return down_s + sum(seconds[BACKWARD] for seconds in self.seconds[last:]) + sum(self.delay_s[last:])


@dataclass(frozen=True)
class SeatRoute:
    """Identical micro-batches: what each costs, who executes them at each virtual stage, and how many there are."""

    chain: SeatChain
    workers: tuple[int, ...]
    count: int


def seat_routes_of(problem: PlacedProblem) -> list[SeatRoute]:
    """The micro-batches of a problem, identical ones together."""
    return [
        SeatRoute(_chain_of(problem, jobs[0]), tuple(problem.executor[jobs[0]].tolist()), len(jobs))
        for jobs in identical_jobs(problem.executor, problem.split, problem.hop_s)
    ]


def _chain_of(problem: PlacedProblem, job: int) -> SeatChain:
    workers, split = problem.executor[job], problem.split[job]
    costs = problem.duration_s[workers, np.arange(problem.stages)]
    forward_s, backward_s = costs[:, FORWARD], np.where(split, costs[:, BACKWARD], costs[:, KINDS])
    weight_s = np.where(split, costs[:, WEIGHT], 0.0)
    alike = workers.tolist()
    return SeatChain(
        tuple(zip(forward_s.tolist(), backward_s.tolist(), weight_s.tolist(), strict=True)),
        tuple(split.tolist()),
        tuple(problem.hop_s[job].tolist()),
        tuple(alike.index(one) for one in alike),
        tuple(problem.shares[workers].tolist()),
    )


@dataclass(frozen=True)
class Frame:
    """From when to when heads and tails are counted.

    Attributes:
        window: the column whose window it is; None for the whole iteration.
        first: the virtual stages before it are left out.
        ends_s: what follows the last operation of each virtual stage at least, in s; -inf for nothing.
    """

    window: int | None
    first: int
    ends_s: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class FramedTimes:
    """Heads and tails in s, arrays kinds x virtual stages x frames x micro-batches; heads ascend in the last, tails
    descend. Before a frame's first virtual stage they mean nothing."""

    heads_s: Floats
    tails_s: Floats

    def part(self, frame: int, stage: int, count: int) -> tuple[Floats, Floats]:
        """Those of one virtual stage for `count` micro-batches, kinds x micro-batches: heads of the first, tails of
        the last, as those of fewer are."""
        start = self.tails_s.shape[3] - count
        return self.heads_s[:, stage, frame, :count], self.tails_s[:, stage, frame, start:]


def seat_times(chain: SeatChain, count: int, frames: Sequence[Frame]) -> FramedTimes:
    """Heads and tails of identical micro-batches in each frame, without regard to memory limits.

    Args:
        chain: what each micro-batch costs.
        count: how many there are.
        frames: what is looked at.
    """
    first = np.array([frame.first for frame in frames])
    ends_s = np.array([frame.ends_s for frame in frames])
    return FramedTimes(_heads(chain, count, first), _tails(chain, count, first, ends_s))


class _WorkersWork:
    """What is known of each worker's work in each frame while a micro-batch is followed: ends of m operations of each.

    The operations followed are all after each other. So m of each of them, from some one on, end no sooner than that
    one's first start and all their work.
    """

    def __init__(self, chain: SeatChain, count: int, first: Ints) -> None:
        self._number = np.arange(count)
        self._first = first
        self._ends_s: list[Floats] = [np.full((len(first), count), -np.inf) for _ in range(max(chain.worker) + 1)]

    def before(self, worker: int, duration_s: float) -> Floats:
        """When operation k of these can start, as far as the worker's earlier ones say; frames x micro-batches."""
        found: Floats = self._ends_s[worker] + self._number * duration_s
        return found

    def follow(self, worker: int, stage: int, starts_s: Floats, duration_s: float) -> None:
        """Go on to an operation whose starts are known, in the frames that its virtual stage is in."""
        ends_s = np.maximum(self._ends_s[worker], starts_s[:, :1]) + (self._number + 1) * duration_s
        self._ends_s[worker] = np.where((self._first <= stage)[:, None], ends_s, -np.inf)

    def add(self, worker: int, starts_s: Floats, duration_s: Floats) -> None:
        """Say that from a start on, of each frame, all that is before an operation lasts so long."""
        ends_s = starts_s[:, None] + (self._number + 1) * duration_s[:, None]
        self._ends_s[worker] = np.maximum(self._ends_s[worker], ends_s)


def _heads(chain: SeatChain, count: int, first: Ints) -> Floats:
    heads_s = np.zeros((KINDS, chain.depth, len(first), count))
    work = _WorkersWork(chain, count, first)
    for v in range(chain.depth):
        f, worker = chain.seconds[v][FORWARD], chain.worker[v]
        share = chain.shares[v]
        ready_s = np.maximum(work.before(worker, f * share), 0.0)
        if v:
            arrival_s = heads_s[FORWARD, v - 1] + (chain.seconds[v - 1][FORWARD] + chain.delay_s[v - 1])
            ready_s = np.where((first < v)[:, None], np.maximum(ready_s, arrival_s), ready_s)
        heads_s[FORWARD, v] = _one_by_one(ready_s, f)
        work.follow(worker, v, heads_s[FORWARD, v], f * share)
    for v in reversed(range(chain.depth)):
        (f, b, w), worker, share = chain.seconds[v], chain.worker[v], chain.shares[v]
        ready_s = np.maximum(work.before(worker, b * share), heads_s[FORWARD, v] + f)
        if v < chain.depth - 1:
            ready_s = np.maximum(
                ready_s, heads_s[BACKWARD, v + 1] + (chain.seconds[v + 1][BACKWARD] + chain.delay_s[v])
            )
        heads_s[BACKWARD, v] = _one_by_one(ready_s, b)
        work.follow(worker, v, heads_s[BACKWARD, v], b * share)
        heads_s[WEIGHT, v] = _one_by_one(np.maximum(work.before(worker, w), heads_s[BACKWARD, v] + b), w)
    return heads_s


def _tails(chain: SeatChain, count: int, first: Ints, ends_s: Floats) -> Floats:
    """As `_heads`, from the last micro-batch back. After I come W, and I and W of the worker's seats before it."""
    tails_s = np.empty((KINDS, chain.depth, len(first), count))
    work = _WorkersWork(chain, count, first)
    # Of each worker and frame: the least that follows its W, and how long all that follows lasts.
    least_s = np.full((chain.depth, len(first)), np.inf)
    lasts_s = np.zeros((chain.depth, len(first)))
    for v in range(chain.depth):
        (_, b, w), worker, within = chain.seconds[v], chain.worker[v], first <= v
        share = chain.shares[v]
        w *= share
        tails_s[WEIGHT, v] = _one_by_one(np.repeat(ends_s[:, v, None], count, axis=1), w)
        least_s[worker] = np.where(within, np.minimum(least_s[worker], ends_s[:, v]), np.inf)
        lasts_s[worker] += np.where(within, w, 0.0)
        work.add(worker, np.where(within, least_s[worker], -np.inf), lasts_s[worker])
        tail_s = np.maximum(tails_s[WEIGHT, v] + w, work.before(worker, b * share))
        if v:
            behind_s = tails_s[BACKWARD, v - 1] + (chain.seconds[v - 1][BACKWARD] + chain.delay_s[v - 1])
            tail_s = np.where((first < v)[:, None], np.maximum(tail_s, behind_s), tail_s)
        tails_s[BACKWARD, v] = _one_by_one(tail_s, b)
        work.follow(worker, v, tails_s[BACKWARD, v], b * share)
        lasts_s[worker] += np.where(within, b * share, 0.0)
    for v in reversed(range(chain.depth)):
        (f, b, _), worker, share = chain.seconds[v], chain.worker[v], chain.shares[v]
        tail_s = np.maximum(tails_s[BACKWARD, v] + b, work.before(worker, f * share))
        if v < chain.depth - 1:
            tail_s = np.maximum(tail_s, tails_s[FORWARD, v + 1] + (chain.seconds[v + 1][FORWARD] + chain.delay_s[v]))
        tails_s[FORWARD, v] = _one_by_one(tail_s, f)
        work.follow(worker, v, tails_s[FORWARD, v], f * share)
    return tails_s[..., ::-1]


def _one_by_one(ready_s: Floats, duration_s: float) -> Floats:
    """Starts of operations of one duration that are ready then, one after the other; frames x micro-batches."""
    shift_s = np.arange(ready_s.shape[1]) * duration_s
    starts_s: Floats = np.maximum.accumulate(ready_s - shift_s, axis=1) + shift_s
    return starts_s
