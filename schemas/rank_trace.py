"""Traces in which single ranks of workers fail: what happens to each process, and what that means for the workers.

An event of a worker with a `gpu` happens to one of its ranks; without one, to all whom it can happen to.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .plan import Plan
from .trace import DEADLY, Trace, TraceEvent, joins


@dataclass
class _WorkerRanks:
    """A worker's processes in the course of a trace.

    Attributes:
        ranks: how many there are.
        gone: by which event each rank was lost that is gone.
        slow: the factor of each rank that is slow.
    """

    ranks: int
    gone: dict[int, TraceEvent] = field(default_factory=dict)
    slow: dict[int, float] = field(default_factory=dict)

    def concerned(self, event: TraceEvent) -> tuple[int, ...]:
        """To which ranks an event happens."""
        if event.gpu is not None:
            return (event.gpu,)
        everyone = range(self.ranks)
        if event.kind == "join":
            return tuple(rank for rank in everyone if rank in self.gone)
        if event.kind == "recover" and self.gone:
            return tuple(rank for rank in everyone if rank in self.gone and self.gone[rank].kind == "stop")
        return tuple(rank for rank in everyone if rank not in self.gone)

    def befalls(self, event: TraceEvent, rank: int) -> None:
        """Something happens to a rank."""
        if event.kind in DEADLY:
            self.gone[rank] = event
        elif event.kind == "slow_compute":
            self.slow[rank] = event.factor or 1.0
        else:  # it comes anew, or is itself again
            self.gone.pop(rank, None)
            self.slow.pop(rank, None)

    @property
    def slowdown(self) -> float:
        """How many times as long the worker takes, whose ranks wait for each other."""
        return max(self.slow.values(), default=1.0)


def _units(plan: Plan) -> dict[str, _WorkerRanks]:
    units = {worker.name: _WorkerRanks(plan.gpus_of(worker)) for worker in plan.workers}
    for worker in plan.workers:
        if worker.failed:
            dead = TraceEvent("fail", worker=worker.name)
            units[worker.name].gone = dict.fromkeys(range(plan.gpus_of(worker)), dead)
    return units


def by_rank(plan: Plan, trace: Trace) -> Trace:
    """A trace whose events of workers of several ranks all say which rank they happen to; of others as it is.

    Args:
        plan: that the job begins with.
        trace: checked against it.
    """
    units, events = _units(plan), list[TraceEvent]()
    for event in trace.events:
        unit = units.get(event.worker or "")
        if unit is None or unit.ranks == 1:
            events.append(event)
            continue
        for rank in unit.concerned(event):
            unit.befalls(event, rank)
            events.append(replace(event, gpu=rank))
    return Trace(tuple(events))


def whole_newcomers(plan: Plan, trace: Trace) -> int:
    """How many workers, all of whose processes are new, wait from the start for their iteration."""
    units, found = _units(plan), 0
    for event in trace.events:
        unit = units.get(event.worker or "")
        if unit is None:
            continue
        ranks = unit.concerned(event)
        found += event.kind == "join" and event.iteration is not None and len(ranks) == unit.ranks
        for rank in ranks:
            unit.befalls(event, rank)
    return found


def spare_ranks(plan: Plan, trace: Trace) -> int:
    """How many processes of workers of several ranks, alone or all of a worker, wait from the start for theirs."""
    shared = {worker.name for worker in plan.workers if plan.gpus_of(worker) > 1}
    return joins(Trace(tuple(event for event in by_rank(plan, trace).events if event.worker in shared)))


def by_worker(plan: Plan, trace: Trace) -> Trace:
    """What a trace means for workers as such: one is lost with its first rank, and is back with the last.

    A worker is as slow as its slowest rank. A rank that stands by, and takes over in the iteration in which another is
    lost, has its worker back in the next one.

    Args:
        plan: that the job begins with.
        trace: checked against it.
    """
    if all(plan.gpus_of(worker) == 1 for worker in plan.workers):
        return trace
    units, events = _units(plan), list[TraceEvent]()
    for event in trace.events:
        unit = units.get(event.worker or "")
        if unit is None:
            events.append(event)
        else:
            events += _seen_from_outside(unit, event)
    return Trace(tuple(sorted(events, key=lambda one: (one.time_s or 0.0, one.iteration or 0))))


def _seen_from_outside(unit: _WorkerRanks, event: TraceEvent) -> Iterator[TraceEvent]:
    """What an event of some ranks means for the worker; the unit takes note of it."""
    before, factor = dict(unit.gone), unit.slowdown
    for rank in unit.concerned(event):
        unit.befalls(event, rank)
    whole = replace(event, gpu=None, factor=None)
    if unit.gone:
        if not before:
            yield whole
        return
    if before:
        went_on = event.kind == "recover" and all(by.kind == "stop" for by in before.values())
        is_at_once = event.iteration is not None and event.iteration == next(iter(before.values())).iteration
        later = event.iteration if event.iteration is None else event.iteration + is_at_once
        whole = replace(whole, kind="recover" if went_on else "join", iteration=later)
        yield whole
        factor = 1.0
    if unit.slowdown != factor:
        is_slow = unit.slowdown != 1.0
        yield replace(whole, kind="slow_compute" if is_slow else "recover", factor=unit.slowdown if is_slow else None)
