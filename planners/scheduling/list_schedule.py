"""An event-driven list scheduler for one pipeline: orders of F, I and W by priority, over exact times."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from ...schemas.orders import Kind
from ...schemas.plan import Link, Stage

Token = tuple[Kind, int]  # kind and micro-batch


@dataclass(frozen=True)
class Rules:
    """What a worker runs next.

    Attributes:
        warmup: forwards that each stage runs before it prefers backwards, one number a stage.
        in_flight: most micro-batches of each stage between F and I, one number a stage.
        steady: after the warm-up, "backward" prefers I to F, "alternate" takes them in turns as 1F1B does.
        weight_wait: a W is not started if an F or I arrives within this fraction of its duration.
    """

    warmup: Sequence[int]
    in_flight: Sequence[float]
    steady: Literal["backward", "alternate"] = "backward"
    weight_wait: float = 0.0


@dataclass
class _Worker:
    """One stage's worker while the schedule is made: its order so far, and when its inputs arrive (s)."""

    stage: Stage
    order: list[Token] = field(default_factory=list)
    free_s: float = 0.0
    forwards: int = 0
    inputs: int = 0
    weights: int = 0
    forward_arrivals_s: list[float] = field(default_factory=list)
    input_arrivals_s: list[float] = field(default_factory=list)

    def has_room(self) -> bool:
        """Whether the memory limit admits one more F."""
        limit = self.stage.memory_limit_bytes
        if limit is None:
            return True
        whole, stashed = self.forwards - self.inputs, self.inputs - self.weights
        held = whole * self.stage.activation_bytes + stashed * self.stage.weight_stash_bytes
        return held + self.stage.activation_bytes <= limit

    def next_arrival_s(self, arrivals: list[float], done: int) -> float:
        """When the next F or I is there; infinite while its sender has not run."""
        return arrivals[done] if done < len(arrivals) else math.inf


def list_schedule(stages: Sequence[Stage], links: Sequence[Link], microbatches: int, rules: Rules) -> list[list[Token]]:
    """Schedule one pipeline with I and W apart.

    Every worker decides whenever it is free and something is there. In warm-up it prefers F; afterwards I, then F (or
    in turns), then W. A limit on memory or on micro-batches in flight only holds F back, so whatever the limits, the
    last stage can always take a micro-batch all the way and the schedule never deadlocks, given that each stage's
    limits admit one micro-batch.

    Args:
        stages: the pipeline's stages, with their memory limits.
        links: the links between them, one fewer.
        microbatches: how many pass, at least 1.
        rules: what to run next.

    Returns:
        The order of each stage.
    """
    workers = [_Worker(stage) for stage in stages]
    workers[0].forward_arrivals_s = [0.0] * microbatches
    moments: list[tuple[float, int]] = [(0.0, 0)]
    while moments:
        now_s, number = heappop(moments)
        worker = workers[number]
        if worker.free_s > now_s:
            continue
        kind = _choose(worker, now_s, microbatches, rules, number)
        if kind is None:
            continue
        end_s = now_s + worker.stage.duration_s(kind)
        worker.free_s = end_s
        heappush(moments, (end_s, number))
        for receiver, arrival_s in _finish(workers, links, number, kind, end_s):
            heappush(moments, (arrival_s, receiver))
    return [worker.order for worker in workers]


def _choose(worker: _Worker, now_s: float, microbatches: int, rules: Rules, number: int) -> Kind | None:
    next_forward_s = worker.next_arrival_s(worker.forward_arrivals_s, worker.forwards)
    next_input_s = worker.next_arrival_s(worker.input_arrivals_s, worker.inputs)
    in_flight = worker.forwards - worker.inputs
    may_forward = worker.forwards < microbatches and in_flight < rules.in_flight[number] and worker.has_room()
    forward, backward = may_forward and next_forward_s <= now_s, next_input_s <= now_s
    if forward and backward:
        warming_up = worker.forwards < rules.warmup[number]
        forward_turn = rules.steady == "alternate" and worker.order[-1][0] != "F"
        return "F" if warming_up or forward_turn else "I"
    if forward or backward:
        return "F" if forward else "I"
    if worker.weights == worker.inputs:
        return None
    soon_s = min(next_input_s, next_forward_s if may_forward else math.inf)
    waits = soon_s - now_s < rules.weight_wait * worker.stage.backward_weight_s
    return None if waits else "W"


def _finish(
    workers: list[_Worker], links: Sequence[Link], number: int, kind: Kind, end_s: float
) -> list[tuple[int, float]]:
    """Record an operation that ends at `end_s`; returns which workers get a message, and when."""
    worker = workers[number]
    if kind == "W":
        worker.order.append(("W", worker.weights))
        worker.weights += 1
        return []
    if kind == "F":
        worker.order.append(("F", worker.forwards))
        worker.forwards += 1
        if number == len(workers) - 1:
            worker.input_arrivals_s.append(end_s)
            return []
        arrival_s = end_s + links[number].delay_s
        workers[number + 1].forward_arrivals_s.append(arrival_s)
        return [(number + 1, arrival_s)]
    worker.order.append(("I", worker.inputs))
    worker.inputs += 1
    if number == 0:
        return []
    arrival_s = end_s + links[number - 1].delay_s
    workers[number - 1].input_arrivals_s.append(arrival_s)
    return [(number - 1, arrival_s)]
