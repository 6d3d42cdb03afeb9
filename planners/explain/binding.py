"""The argument behind a plan's lower bound: a worker, what comes before its work, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, fsum

from ..scheduling.lower_bound import Bound, lower_bound
from ..scheduling.one_machine import routes_of
from ..scheduling.problem import ROUNDING, Problem
from .what_if import Alike, short_of_memory, stages_of, without_limits


@dataclass(frozen=True, slots=True)
class BindingLimit:
    """A stage's memory limit without which the bound would be lower; with a placement that of a column.

    Attributes:
        where, stage: the stage in words, and its number.
        room: how many activations the limit admits; of a column, of the largest of its virtual stages.
        held_s: how long each of them is held at least, from F's start to the end of I or B; None of a column.
        bound_without_s: what the bound would be without this limit.
    """

    where: str
    stage: int
    room: int
    held_s: float | None
    bound_without_s: float


@dataclass(frozen=True, slots=True)
class BindingBound:
    """The argument behind the lower bound: one worker's work, what must come before and what after.

    Attributes:
        value_s: the bound: the sum of the next three.
        head_s: when the worker can begin with this work at the earliest.
        work_s: how long it lasts; nothing else can be done for it by another worker.
        tail_s: what must follow it.
        worker: the worker, `k/i`.
        worker_s: all the worker's work.
        window: the stage, or column, from whose first start a staggered plan's head is counted; None otherwise.
        memory_s: what memory limits add to the value.
        limits: those that add something even where all others stay.
        argument: "one machine": the work is of the operations between head and tail; with a placement also "ramps":
            between the forwards that fit before the first I and what is left after the last F; and "area": in less
            time all that must be held does not fit into the limit; and "turns": of micro-batches that come one after
            the other, for the limit has room for few at once.
    """

    value_s: float
    head_s: float
    work_s: float
    tail_s: float
    worker: str
    worker_s: float
    window: int | None
    memory_s: float
    limits: tuple[BindingLimit, ...]
    argument: str = "one machine"


def binding_bound(alike: Alike, problem: Problem, bound: Bound, names: list[str]) -> BindingBound:
    """The argument behind the bound of a plan in which each worker holds one stage.

    Args:
        alike: the plan, with one of each kind of pipelines.
        problem: its problem.
        bound: the problem's.
        names: what to call the plan's workers.
    """
    members = problem.workers.group.tolist()
    window = None if bound.window is None else alike.plan.workers[members.index(bound.window)].stage
    # All of a worker's operations, in s.
    jobs = problem.jobs_of[bound.worker]
    forward_s, weight_s = problem.workers.forward_s[bound.worker], problem.workers.weight_s[bound.worker]
    split = problem.split[:, problem.workers.stage[bound.worker]]
    return BindingBound(
        value_s=bound.value_s,
        head_s=bound.head_s,
        work_s=bound.work_s,
        tail_s=bound.tail_s,
        worker=names[bound.worker],
        worker_s=fsum(
            float(forward_s)
            + problem.backward_s(bound.worker, bool(split[job]))
            + float(weight_s if split[job] else 0.0)
            for job in jobs
        ),
        window=window,
        memory_s=bound.value_s - bound.unlimited_s if bound.raised_by_memory else 0.0,
        limits=tuple(_binding_limits(alike, problem, bound)) if bound.raised_by_memory else (),
    )


def _binding_limits(alike: Alike, problem: Problem, bound: Bound) -> Iterator[BindingLimit]:
    for where, stage, members in stages_of(alike.plan):
        if short_of_memory(problem, members):
            without_s = lower_bound(without_limits(problem, members)).value_s
            if without_s < bound.value_s * (1 - ROUNDING):
                workers = problem.workers
                room = floor(
                    min(float(workers.limit_bytes[n] / workers.activation_bytes[n]) for n in members) * (1 + ROUNDING)
                )
                held_s = min(
                    route.chain.forward_s[at] + route.chain.round_trip_s(at) + route.chain.backward_s[at]
                    for route in routes_of(problem)
                    for at, worker in enumerate(route.workers)
                    if worker in members
                )
                yield BindingLimit(where, stage, room, held_s, without_s)
