"""Adaptra's schedule as published, Algorithms 2 to 4: a baseline for benchmarks; plans are made by the shared core.

Time runs in steps of 1/30 of the longest operation (section 7.4's granularity); operations and delays are rounded up to
whole steps, and that rounding is nearly all that the published rule loses. In each step every idle stage chooses by
Algorithm 3: while warm-up forwards are owed a forward or nothing, afterwards a backward before a forward before a
weight gradient.

Three misprints are not followed, for nothing would run: in Algorithm 4 a message leaves when its operation starts
(lines 16 to 19; here when it ends), a stage's W becomes available with the backward of the stage below (line 19; here
with its own), and nobody makes the last stage's backward available (here its forward does). Three amendments make it
end: warm-ups are at least 1 and at most N, a forward that memory does not admit is not available, and an operation
takes a step at least. Steps in which nothing can happen are skipped, which saves time and changes nothing.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil

from ...schemas.plan import Link, Stage
from ..scheduling.list_schedule import most_in_flight
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT
from .plan import ROUNDING, algorithm_2

PRIORITY = (BACKWARD, FORWARD, WEIGHT)
NEVER = sys.maxsize


def time_stepped(
    stages: Sequence[Stage], links: Sequence[Link], microbatches: int, granularity: int = 30
) -> list[list[int]]:
    """The published schedule of one pipeline.

    Args:
        stages: the pipeline's stages, with their memory limits.
        links: the links between them.
        microbatches: how many pass.
        granularity: steps that the longest operation takes.

    Returns:
        Operation codes of each stage, in order: `3 * microbatch + kind`.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    step_s = max(stage.duration_s(kind) for stage in stages for kind in "FIW") / granularity or 1.0
    warmup = published_warmups(stages, links, microbatches)
    workers = [_Worker(stage, _durations(stage, step_s), x) for stage, x in zip(stages, warmup, strict=True)]
    workers[0].arrivals[FORWARD].extend([0] * microbatches)
    delays = [_steps(link.delay_s, step_s) for link in links]
    now = 0
    while any(len(worker.order) < KINDS * microbatches for worker in workers):
        for place, worker in enumerate(workers):
            kind = worker.choose(now) if worker.free <= now else None
            if kind is not None:
                _execute(workers, delays, place, kind, now)
        now = min(moment for worker in workers for moment in worker.moments() if moment > now)
    return [worker.order for worker in workers]


def published_warmups(stages: Sequence[Stage], links: Sequence[Link], microbatches: int) -> list[int]:
    """Algorithm 2's warm-ups with its own limit of N - 2S, cut to 1, N and memory so that a schedule by them ends.

    Raises:
        InfeasibleError: a memory limit does not admit a single micro-batch.
    """
    literal = algorithm_2(stages, links, microbatches - 2 * len(stages))
    rooms = most_in_flight(stages, microbatches)
    return list(accumulate((max(1, min(x, room)) for x, room in zip(literal, rooms, strict=True)), min))


@dataclass
class _Worker:
    """One stage while the schedule is made; times in steps.

    `arrivals[kind]` are the steps at which its forwards, backwards and weight gradients become available, in order, and
    `done[kind]` how many of them have been chosen; `owed` are the warm-up forwards still to run.
    """

    stage: Stage
    durations: list[int]
    owed: int
    free: int = 0
    arrivals: tuple[list[int], ...] = field(default_factory=lambda: ([], [], []))
    done: list[int] = field(default_factory=lambda: [0] * KINDS)
    order: list[int] = field(default_factory=list)

    def choose(self, now: int) -> int | None:
        """Algorithm 3: the kind of operation to run next, or None."""
        available = [kind for kind in PRIORITY if self._next_arrival(kind) <= now]
        if FORWARD in available and not self._has_room():
            available.remove(FORWARD)
        if self.owed:
            return FORWARD if FORWARD in available else None
        return available[0] if available else None

    def moments(self) -> list[int]:
        """The steps at which something may change here: it gets free, or something arrives."""
        return [self.free, *(self._next_arrival(kind) for kind in PRIORITY)]

    def _next_arrival(self, kind: int) -> int:
        waiting = self.done[kind] < len(self.arrivals[kind])
        return self.arrivals[kind][self.done[kind]] if waiting else NEVER

    def _has_room(self) -> bool:
        """Whether the memory limit admits one more forward."""
        whole, stashed = self.done[FORWARD] - self.done[BACKWARD], self.done[BACKWARD] - self.done[WEIGHT]
        held = (whole + 1) * self.stage.activation_bytes + stashed * self.stage.weight_stash_bytes
        return self.stage.memory_limit_bytes is None or held <= self.stage.memory_limit_bytes


def _durations(stage: Stage, step_s: float) -> list[int]:
    """Steps that F, I and W take at a stage, in the order of their codes."""
    return [max(1, _steps(stage.duration_s(kind), step_s)) for kind in "FIW"]


def _steps(seconds: float, step_s: float) -> int:
    return ceil(seconds / step_s * (1 - ROUNDING))


def _execute(workers: Sequence[_Worker], delays: Sequence[int], place: int, kind: int, now: int) -> None:
    """Run an operation from now on, and announce what becomes available by it (Algorithm 4, lines 13 to 20)."""
    worker = workers[place]
    worker.order.append(KINDS * worker.done[kind] + kind)
    worker.done[kind] += 1
    worker.free = end = now + worker.durations[kind]
    if kind == FORWARD:
        worker.owed = max(0, worker.owed - 1)
        if place + 1 < len(workers):
            workers[place + 1].arrivals[FORWARD].append(end + delays[place])
        else:
            worker.arrivals[BACKWARD].append(end)
    if kind == BACKWARD:
        worker.arrivals[WEIGHT].append(end)
        if place > 0:
            workers[place - 1].arrivals[BACKWARD].append(end + delays[place - 1])
