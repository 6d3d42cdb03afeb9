"""Who plays in a story: the processes that a trace starts, slows down and kills."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..schemas.errors import InvalidInputError
from ..schemas.plan import Plan, place_of
from ..schemas.trace import Trace, TraceEvent

DEADLY = ("fail", "stop")


@dataclass(eq=False)
class Process:
    """One process of a worker, from its hello to its death.

    Attributes:
        name: the worker's.
        connection: the number by which the coordinator knows it.
        not_before: the first iteration that it wants to take part in.
        arrives_s: when it says hello, in s; infinite where it comes back with an iteration.
        returns: (the stopped process that it is, the iteration with whose beginning it comes back).
        events: those of the trace that happen to it, in order.
        died_s: when it stops for good, or infinite.
        dies_by: the event that says so.
        naps_s: from when until when it stands still without being missed.
    """

    name: str
    connection: int
    not_before: int = 0
    arrives_s: float = 0.0
    returns: "tuple[Process, int] | None" = None
    events: list[TraceEvent] = field(default_factory=list)
    died_s: float = math.inf
    dies_by: TraceEvent | None = None
    naps_s: list[tuple[float, float]] = field(default_factory=list)

    def slowdown(self, iteration: int, now_s: float) -> float:
        """The factor on its operation times in an iteration that begins now."""
        factor = 1.0
        for event in self.events:
            if event.kind in ("slow_compute", "recover") and has_come(event, iteration, now_s):
                factor = (event.factor or 1.0) if event.kind == "slow_compute" else 1.0
        return factor

    def strike_in(self, iteration: int) -> TraceEvent | None:
        """The event that kills or stops it in the midst of an iteration."""
        return next((one for one in self.events if one.kind in DEADLY and one.iteration == iteration), None)

    def stands_still_s(self, since_s: float) -> tuple[float, float] | None:
        """The first time after `since_s` at which it stands still, and until when; infinite for a death."""
        naps_s = [(start_s, stop_s) for start_s, stop_s in self.naps_s if stop_s > since_s]
        death_s = [(self.died_s, math.inf)] if math.isfinite(self.died_s) else []
        return min(naps_s + death_s, default=None)

    def die(self, at_s: float, by: TraceEvent) -> None:
        """It stops for good."""
        self.died_s, self.dies_by = at_s, by

    def lives_on(self) -> None:
        """It does not come to the death that was expected."""
        self.died_s, self.dies_by = math.inf, None


def has_come(event: TraceEvent, iteration: int, now_s: float) -> bool:
    """Whether an event lies not after an iteration that begins now."""
    if event.iteration is not None:
        return event.iteration <= iteration
    return event.time_s is not None and event.time_s <= now_s


def cast_of(plan: Plan, trace: Trace, heartbeat_limit_s: float) -> list[Process]:
    """The processes of a story, those of the plan's live workers first.

    Args:
        plan: that the job starts with.
        trace: checked against it.
        heartbeat_limit_s: a process that was stopped and goes on again within it is not missed.
    """
    processes = [Process(worker.name, number) for number, worker in enumerate(plan.live_workers(), start=1)]
    present = {process.name: process for process in processes}
    for event in trace.events:
        if event.worker is None:
            continue
        known = present.get(event.worker)
        if event.kind == "join":
            starts = Process(event.worker, len(processes) + 1, event.iteration or 0, event.time_s or 0.0)
        elif event.kind == "recover" and known is not None and _has_stopped(known):
            if _wakes_in_time(known, event, heartbeat_limit_s):
                continue
            starts = _returning(known, event, len(processes) + 1)
        else:
            if known is not None:
                _note(known, event)
            continue
        processes.append(starts)
        present[event.worker] = starts
    return processes


def _note(process: Process, event: TraceEvent) -> None:
    process.events.append(event)
    if event.kind in DEADLY and event.time_s is not None:
        process.die(event.time_s, event)


def _has_stopped(process: Process) -> bool:
    return any(event.kind == "stop" for event in process.events)


def _wakes_in_time(process: Process, event: TraceEvent, heartbeat_limit_s: float) -> bool:
    """Whether a stopped process goes on before it is missed; it then only took a nap."""
    if event.time_s is None or event.time_s - process.died_s >= heartbeat_limit_s:
        return False
    process.naps_s.append((process.died_s, event.time_s))
    process.events.remove(next(one for one in process.events if one.kind == "stop"))
    process.lives_on()
    return True


def _returning(process: Process, event: TraceEvent, connection: int) -> Process:
    if event.time_s is not None:
        return Process(process.name, connection, arrives_s=event.time_s)
    assert event.iteration is not None
    return Process(process.name, connection, arrives_s=math.inf, returns=(process, event.iteration))


def joins(trace: Trace) -> int:
    """How many replacements wait from the start for their iteration."""
    return sum(event.kind == "join" and event.iteration is not None for event in trace.events)


def link_ends(link: str) -> Sequence[str]:
    """The two workers of a link `k/i-k/j`."""
    return link.split("-")


def check_trace(plan: Plan, trace: Trace) -> None:
    """Refuse a trace that cannot happen to a plan's workers.

    Raises:
        InvalidInputError: an event names nobody that the plan has, or happens to one who is dead, or the like; `where`
            is `/events/N`, counted from 0.
    """
    gone: dict[str, TraceEvent | None] = {worker.name: None for worker in plan.workers if worker.failed}
    for number, event in enumerate(trace.events):
        where = f"/events/{number}"
        _check_place(plan, event, where)
        if event.worker is not None:
            _check_life(event, gone, where)


def _check_place(plan: Plan, event: TraceEvent, where: str) -> None:
    """The event's place exists, and is of the event's kind."""
    names = [worker.name for worker in plan.workers]
    wanted = {"slow_link": ("link",), "recover": ("worker", "link"), "fail": ("worker", "link")}.get(
        event.kind, ("worker",)
    )
    place = next(name for name in ("node", "worker", "link") if getattr(event, name) is not None)
    if place == "node":
        raise InvalidInputError(
            "a plan does not say which workers run on a node",
            where=f"{where}/node",
            fix="give an event for each of its workers, as worker k/i",
        )
    if place not in wanted:
        raise InvalidInputError(
            f"{event.kind} does not happen to a {place}", where=f"{where}/{place}", fix=f"name a {wanted[0]}"
        )
    ends = [event.worker] if event.worker is not None else link_ends(event.link or "")
    for name in ends:
        if name not in names:
            raise InvalidInputError(
                f"the plan has no worker {name}", where=f"{where}/{place}", fix=f"workers run from 0/0 to {names[-1]}"
            )
    if place == "link" and (ends[0] == ends[1] or abs(place_of(ends[0])[1] - place_of(ends[1])[1]) > 1):
        raise InvalidInputError(
            f"there is no link {event.link}", where=f"{where}/link", fix="name workers of neighbouring stages, or peers"
        )


def _check_life(event: TraceEvent, gone: dict[str, TraceEvent | None], where: str) -> None:
    """The worker lives, or is gone, as the event needs it; `gone` says by what, and is kept."""
    name = event.worker
    assert name is not None
    by = gone.get(name)
    is_stopped = by is not None and by.kind == "stop"
    if event.kind == "join" and name not in gone:
        raise InvalidInputError(
            f"worker {name} lives, nobody can join in its place", where=where, fix="let it fail or stop earlier"
        )
    if event.kind != "join" and name in gone and not (event.kind == "recover" and is_stopped):
        raise InvalidInputError(f"worker {name} is gone by then", where=where, fix="let it join again before")
    if name in gone and by is not None and event.iteration is not None and event.iteration == by.iteration:
        raise InvalidInputError(
            f"worker {name} is gone only in the midst of iteration {event.iteration}",
            where=f"{where}/iteration",
            fix="let it come back in a later one",
        )
    if event.kind in DEADLY:
        gone[name] = event
    else:
        gone.pop(name, None)
