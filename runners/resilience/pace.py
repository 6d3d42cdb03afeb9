"""Follows a running job's iterations beside its plan, and says why they take longer."""

import os
from collections.abc import Callable
from dataclasses import replace

from ...schemas.errors import InvalidInputError
from ...schemas.pace import FAR, PaceReport
from ...schemas.plan import Plan, worker_of
from ...schemas.timeline import Span, Timeline
from . import progress
from .announcements import Announcement, EpochBegun, IterationCommitted, JobEnded, PaceExplained
from .conditions import cores_here
from .protocol import Hello

KEPT = 12  # iterations that are looked at
EVERY = 8  # iterations between two looks
MOST_OPERATIONS = 4000  # of an iteration; workers of larger plans are not asked what they execute


class PaceFollower:
    """Keeps what workers execute in the last iterations of an epoch, and has it compared with the plan.

    Args:
        pace: compares a plan and a timeline.
        plan: that the job begins with.

    Attributes:
        can_follow: whether workers are to say what they execute.
    """

    def __init__(self, pace: Callable[[Plan, Timeline], PaceReport], plan: Plan) -> None:
        self._pace = pace
        self.can_follow = sum(len(worker.operations()) for worker in plan.workers) <= MOST_OPERATIONS
        self._spans: dict[int, list[Span]] = {}
        self._first = 0
        self._committed = -1
        self._here: dict[str, frozenset[int]] = {}  # the cores of workers on this machine

    def arrive(self, hello: Hello) -> None:
        """A worker is there."""
        if hello.cores is not None and hello.cores.machine == cores_here().machine:
            self._here[hello.process] = frozenset(hello.cores.usable)

    def take(self, place: str, spans: tuple[tuple[str, float, float, int], ...]) -> None:
        """A worker has executed something at a place."""
        for op, start_s, end_s, iteration in spans:
            if self.can_follow and iteration >= self._first:
                self._spans.setdefault(iteration, []).append(Span(place, op, start_s, end_s, iteration))
        for iteration in sorted(self._spans)[:-KEPT]:
            del self._spans[iteration]

    def note(self, what: Announcement, plan: Plan) -> PaceExplained | None:
        """Something has happened; gives what is to be said of the pace before it, now and then, and at the end.

        Args:
            what: has happened.
            plan: that is executed.
        """
        match what:
            case EpochBegun(iteration=iteration):
                self._first = iteration or 0
                self._spans.clear()
            case IterationCommitted(iteration=iteration):
                self._committed = iteration or 0
                if (self._committed - self._first) % EVERY == EVERY - 1:
                    return self._explained(plan)
            case JobEnded(exit_code=0 | progress.INTERRUPTED):
                return self._explained(plan)
        return None

    def _explained(self, plan: Plan) -> PaceExplained | None:
        # Who has voted last may not have said yet what it has executed.
        spans = [span for number, own in self._spans.items() if number < self._committed for span in own]
        # The epoch's first iteration connects and warms up; the others are as good as any.
        if not any(span.iteration > self._first for span in spans):
            return None
        origin_s = min(span.start_s for span in spans)
        moved = (replace(one, start_s=one.start_s - origin_s, end_s=one.end_s - origin_s) for one in spans)
        try:
            found = self._pace(plan, Timeline("measured", tuple(moved)))
        except InvalidInputError:  # nothing of this plan has been executed yet
            return None
        if abs(found.beyond) < FAR:
            return None
        crowd = self._crowd() if found.beyond > 0 else ""
        return PaceExplained(
            planned_s=found.planned_s,
            measured_s=found.measured_s,
            why="; ".join(part for part in (found.why, crowd) if part),
        )

    def _crowd(self) -> str:
        """Who else wants this machine's cores, where workers are on it."""
        if not self._here:
            return ""
        workers, cores, load = len(self._here), len(frozenset().union(*self._here.values())), os.getloadavg()[0]
        who = "processes" if any(name != worker_of(name) for name in self._here) else "workers"
        shared = f"{workers} {who} share {cores} cores" if workers > cores else f"{cores} cores"
        if load > max(workers, cores) + 0.5:
            return f"{shared}, load {load:.1f}: other programs are measured too"
        return shared if workers > cores else ""
