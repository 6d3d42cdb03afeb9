"""Lower bounds on the makespan and the period of any schedule with a plan's stages, routing and backward split.

Argument. Take one worker. Each of its operations j cannot start before its head r_j (the longest chain of operations
and delays that must come first), lasts p_j, and is followed by a chain of at least its tail q_j before the iteration
can end. Whatever the schedule, the worker runs these operations one at a time, so the iteration is no shorter than the
best single-machine schedule of (r_j, p_j, q_j), and that is no shorter than the best one with pre-emption, which
Jackson's rule finds: always run the released operation with the largest tail (J. Carlier, "The one-machine sequencing
problem", EJOR 11, 1982; Jackson's preemptive schedule). The makespan bound is the largest over all workers.

Heads and tails may assume FIFO among identical micro-batches, those with the same executors, delays and backward
split: sorting the starts of each of their operations at each stage relabels any schedule into a FIFO one
with the same times, for the l-th smallest end of a stage cannot come after the l-th smallest start of the next one.

For the period, a stage's window runs from the first start to the last end over its workers. Drop all stages before it
(that can only shorten the window), let the window start at 0, and the same one-machine argument bounds its length:
heads are chains from the window's start, tails chains to the stage's own last operation.

Memory limits are not used: the bounds hold with them but are loose where a limit binds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
Job = tuple[float, float, float]  # head, duration, tail, in s


@dataclass(frozen=True)
class Chain:
    """Identical micro-batches: how many, and what each costs on its way down and up the stages.

    `split[i]` says whether stage i runs I and W apart; `delay_s[i]` is that of the hop between stages i and i+1.
    All times in s, with the executing workers' slow-downs in them.
    """

    count: int
    forward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    split: tuple[bool, ...]
    delay_s: tuple[float, ...]

    def backward_s(self, stage: int) -> float:
        """What the stage above's gradient costs before it goes on down: I where split, all of B otherwise."""
        return self.input_s[stage] if self.split[stage] else self.input_s[stage] + self.weight_s[stage]

    def from_stage(self, first: int) -> Chain:
        """The chain without the stages before `first`."""
        parts = (self.forward_s, self.input_s, self.weight_s, self.split, self.delay_s)
        return Chain(self.count, *(part[first:] for part in parts))  # type: ignore[arg-type]


def makespan_bound_s(plan: Plan) -> float:
    """A proven lower bound on the makespan of any orders with this plan's stages, routing and split, in s."""
    chains = _chains(plan)
    stages = [plan.stage_of(worker) for worker in plan.live_workers()]
    reduced = max((_one_machine(jobs) for jobs in _worker_jobs(plan, chains, until_window_end=False)), default=0.0)
    return reduced + max((stage.optimizer_s for stage in stages), default=0.0)


def period_bound_s(plan: Plan) -> float:
    """A proven lower bound on the period of any orders with this plan's stages, routing and split, in s."""
    chains = _chains(plan)
    return max((_one_machine(jobs) for jobs in _worker_jobs(plan, chains, until_window_end=True)), default=0.0)


def lower_bound_s(plan: Plan) -> float:
    """The bound on what the plan's optimizer mode counts as its iteration time, in s."""
    return period_bound_s(plan) if plan.optimizer == "staggered" else makespan_bound_s(plan)


def jackson_preemptive_s(jobs: Iterable[Job]) -> float:
    """The optimal value of the pre-emptive one-machine problem: the largest end plus tail.

    Args:
        jobs: (head, duration, tail) of each, in s.
    """
    pending = sorted(jobs)
    active: list[list[float]] = []  # [-tail, remaining duration]
    time = value = 0.0
    following = 0
    while active or following < len(pending):
        if not active:
            time = max(time, pending[following][0])
        while following < len(pending) and pending[following][0] <= time:
            _, duration, tail = pending[following]
            heappush(active, [-tail, duration])
            following += 1
        until = pending[following][0] if following < len(pending) else float("inf")
        tail, remaining = -active[0][0], active[0][1]
        if time + remaining <= until:
            heappop(active)
            time += remaining
            value = max(value, time + tail)
        else:
            active[0][1] = remaining - (until - time)
            time = until
    return value


@cache
def _one_machine(jobs: tuple[Job, ...]) -> float:
    return jackson_preemptive_s(jobs)


def _chains(plan: Plan) -> dict[Chain, dict[tuple[int, ...], int]]:
    """The plan's chains, and for each the executors (worker indices, a stage each) it runs on, with their counts."""
    executors: dict[tuple[int, int], list[tuple[int, bool]]] = {}
    for number, worker in enumerate(plan.workers):
        operations = worker.operations()
        whole = {op[1:] for op in operations if op.kind == "B"}
        for op in operations:
            if op.kind == "F":
                executors.setdefault(op[1:], []).append((number, op[1:] not in whole))
    grouped: dict[tuple[int, tuple[tuple[int, bool], ...]], int] = {}
    for (pipeline, _), places in executors.items():
        route = tuple(sorted(places, key=lambda place: plan.workers[place[0]].stage))
        grouped[pipeline, route] = grouped.get((pipeline, route), 0) + 1
    identical: dict[tuple[Chain, tuple[int, ...]], int] = {}
    for (pipeline, route), count in grouped.items():
        workers = tuple(number for number, _ in route)
        chain = _chain(plan, pipeline, workers, tuple(split for _, split in route))
        identical[chain, workers] = identical.get((chain, workers), 0) + count
    chains: dict[Chain, dict[tuple[int, ...], int]] = {}
    for (chain, workers), count in identical.items():
        chains.setdefault(replace(chain, count=count), {})[workers] = count
    return chains


def _chain(plan: Plan, pipeline: int, workers: tuple[int, ...], split: tuple[bool, ...]) -> Chain:
    """What one micro-batch of a pipeline costs on its way over its executors."""
    held = [plan.workers[number] for number in workers]
    slow = [worker.slowdown or 1.0 for worker in held]
    stages = [plan.stage_of(worker) for worker in held]
    return Chain(
        1,
        tuple(stage.forward_s * factor for stage, factor in zip(stages, slow, strict=True)),
        tuple(stage.backward_input_s * factor for stage, factor in zip(stages, slow, strict=True)),
        tuple(stage.backward_weight_s * factor for stage, factor in zip(stages, slow, strict=True)),
        split,
        tuple(plan.hop_delay_s(pipeline, i, a, b) for i, (a, b) in enumerate(pairwise(held))),
    )


def _worker_jobs(
    plan: Plan, chains: dict[Chain, dict[tuple[int, ...], int]], until_window_end: bool
) -> set[tuple[Job, ...]]:
    """The one-machine problem of every worker; equal ones (peers without re-routing) are kept once."""
    jobs: dict[int, list[Job]] = {}
    for chain, routes in chains.items():
        for stage in range(len(chain.forward_s)):
            for workers in routes:
                held = plan.stage_of(plan.workers[workers[stage]])
                if until_window_end:
                    found = _jobs(chain.from_stage(stage), 0, held.allreduce_s + held.optimizer_s, stop=0)
                else:
                    reduce_s = tuple(plan.stage_of(plan.workers[number]).allreduce_s for number in workers)
                    found = _jobs(chain, stage, reduce_s, stop=None)
                jobs.setdefault(workers[stage], []).extend(found)
    return {tuple(sorted(found)) for found in jobs.values()}


@cache
def _jobs(chain: Chain, stage: int, after_s: float | tuple[float, ...], stop: int | None) -> tuple[Job, ...]:
    """The jobs of one stage; tails end after every stage's own `after_s`, or only after that of stage `stop`."""
    ends = tuple(after_s for _ in chain.forward_s) if isinstance(after_s, float) else after_s
    if stop is not None:
        ends = tuple(end if i == stop else -np.inf for i, end in enumerate(ends))
    heads, tails = _heads(chain), _tails(chain, ends)
    kinds: list[tuple[str, float]] = [("F", chain.forward_s[stage]), ("I", chain.backward_s(stage))]
    if chain.split[stage]:
        kinds.append(("W", chain.weight_s[stage]))
    return tuple(
        (float(head), duration, float(tail))
        for kind, duration in kinds
        for head, tail in zip(heads[kind, stage], tails[kind, stage], strict=True)
    )


@cache
def _heads(chain: Chain) -> dict[tuple[str, int], Floats]:
    """Earliest starts, arrays over the micro-batches in FIFO order, of each kind of operation at each stage."""
    depth, k = len(chain.forward_s), np.arange(chain.count)
    heads: dict[tuple[str, int], Floats] = {}
    for i in range(depth):
        arrival = heads["F", i - 1] + chain.forward_s[i - 1] + chain.delay_s[i - 1] if i else np.zeros(chain.count)
        heads["F", i] = _in_sequence(arrival, chain.forward_s[i])
    for i in reversed(range(depth)):
        arrival = heads["F", i] + chain.forward_s[i]
        if i < depth - 1:
            above = heads["I", i + 1] + chain.backward_s(i + 1) + chain.delay_s[i]
            arrival = np.maximum(arrival, above)
        work = heads["F", i][0] + (k + 1) * chain.forward_s[i] + k * chain.backward_s(i)
        heads["I", i] = _in_sequence(np.maximum(arrival, work), chain.backward_s(i))
        work = heads["F", i][0] + (k + 1) * (chain.forward_s[i] + chain.backward_s(i)) + k * chain.weight_s[i]
        heads["W", i] = _in_sequence(np.maximum(heads["I", i] + chain.backward_s(i), work), chain.weight_s[i])
    return heads


@cache
def _tails(chain: Chain, ends: tuple[float, ...]) -> dict[tuple[str, int], Floats]:
    """What must follow each operation, arrays as in `_heads`; `ends[i]` follows the last operation of stage i."""
    depth = len(chain.forward_s)
    tails: dict[tuple[str, int], Floats] = {}
    for i in range(depth):
        tails["W", i] = _in_sequence(np.full(chain.count, ends[i])[::-1], chain.weight_s[i])[::-1]
        tail = np.full(chain.count, ends[i])
        if chain.split[i]:
            tail = tails["W", i] + chain.weight_s[i]
        if i:
            below = tails["I", i - 1] + chain.backward_s(i - 1) + chain.delay_s[i - 1]
            tail = np.maximum(tail, below)
        tails["I", i] = _in_sequence(tail[::-1], chain.backward_s(i))[::-1]
    for i in reversed(range(depth)):
        tail = tails["I", i] + chain.backward_s(i)
        if i < depth - 1:
            above = tails["F", i + 1] + chain.forward_s[i + 1] + chain.delay_s[i]
            tail = np.maximum(tail, above)
        tails["F", i] = _in_sequence(tail[::-1], chain.forward_s[i])[::-1]
    return tails


def _in_sequence(ready: Floats, duration: float) -> Floats:
    """Starts of operations of equal duration that are ready at `ready`, one after the other."""
    shift = np.arange(len(ready)) * duration
    starts: Floats = np.maximum.accumulate(ready - shift) + shift
    return starts
