"""When a costly remedy for what is slow is worth its cost: Greyhound's Algorithm 1 around the monitor of a running job.

Greyhound, section 5.1: nobody knows how long something will be slow. So, as with skis that one rents until the rent has
come to their price, a remedy is taken once being slow has cost as much as it does: the sum, over the slow iterations,
of what each took longer than usual. However long it then lasts, the job loses at most 1 + max_i (b_1 + … + b_i) / b_i
times what the best remedy in hindsight would have cost it (b_i: the remedies' costs, ascending).

The remedies have levels. 0: another plan for the same places (S2), which costs nothing and is made at once; 1: workers
change places (S3); 2: the job is saved and starts again on other workers (S4). Where we deviate: the paper switches on
the number of slow iterations times one slow-down, we add up what each took; it resets nothing when another worker or
link becomes slow meanwhile, and neither do we; all is forgotten when nothing is slow any more.
"""

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING

from ...schemas.conditions import HEALTHY, Conditions
from ...schemas.errors import InvalidInputError
from ...schemas.protocols import Measured, Monitor, RemedyScheduler
from ...schemas.quantities import parse_time_s

if TYPE_CHECKING:
    from ...schemas.plan import Plan

# Of so many iterations while nothing was slow the median is what one usually takes.
RECENT = 20
# An iteration that takes so many times as long as usual was slow, also before anybody knew what was.
SLOW = 1.1

Costs = Callable[[float], tuple[float, ...]]


@dataclass(frozen=True)
class RemedyCosts:
    """What the user says that remedies cost.

    Attributes:
        move_s: workers change places, in s; None: it is to be estimated.
        restart_s: the job starts again, in s; None: it never does.
    """

    move_s: float | None = None
    restart_s: float | None = None

    def costs_s(self, estimated_move_s: float) -> tuple[float, float]:
        """The costs of levels 1 and 2 in s, where moving is estimated to take so long; infinite: it is not done.

        Moving is not estimated to cost more than a restart, which does more: it is to be tried before.
        """
        restart_s = math.inf if self.restart_s is None else self.restart_s
        return min(estimated_move_s, restart_s) if self.move_s is None else self.move_s, restart_s

    def without_restart(self) -> str | None:
        """The option for a job that never starts again."""
        return None if self.move_s is None else f"S3={self.move_s!r}"


def parse_mitigate(text: str | None) -> RemedyCosts:
    """`S3=20s,S4=10min`: the costs; one of them or both.

    Raises:
        InvalidInputError: it is something else, or the first is no less than the second.
    """
    found: dict[str, float] = {}
    for part in text.split(",") if text is not None else ():
        match = re.fullmatch(r"S([34])=(.+)", part.strip())
        if match is None or match[1] in found:
            raise InvalidInputError(
                f"{text!r} does not say what remedies cost",
                where="--mitigate",
                fix="write S3=DURATION, S4=DURATION or both, such as S3=20s,S4=10min",
            )
        found[match[1]] = parse_time_s(match[2], "--mitigate")
    if len(found) == 2 and found["3"] >= found["4"]:
        raise InvalidInputError(
            "S3 costs no less than S4, which helps more", where="--mitigate", fix="leave S3 to be estimated, or S4 out"
        )
    return RemedyCosts(found.get("3"), found.get("4"))


def escalating(
    monitor: Monitor, plan: "Plan", remedies: RemedyCosts, mover: Callable[[], RemedyScheduler]
) -> "Escalating":
    """A job's monitor, with remedies.

    Args:
        monitor: finds out what is slow.
        plan: that the job starts with.
        remedies: what the user says of them.
        mover: asked when something becomes slow, for loading the planners takes a while.
    """
    expected_s = plan.prediction.iteration_time_s if plan.prediction else None
    return Escalating(monitor, lambda usual_s: remedies.costs_s(mover().moving_s(usual_s)), expected_s)


class Escalating:
    """A `Monitor` that adds to another one's findings which remedies are worth their costs by now.

    Args:
        monitor: finds out what is slow.
        costs: what an iteration usually takes, in s -> the costs of levels 1, 2, … in s; asked when something becomes
            slow.
        expected_s: what an iteration usually takes where something is slow from the start, in s; None: then nobody
            knows, and no level is reached.
    """

    def __init__(self, monitor: Monitor, costs: Costs, expected_s: float | None = None) -> None:
        self._monitor, self._costs, self._expected_s = monitor, costs, expected_s
        self._found = HEALTHY
        self._healthy_s: deque[float] = deque(maxlen=RECENT)
        self._healthy_workers = 0
        self._iteration, self._longest_s = -1, 0.0
        self._workers: set[str] = set()
        self._usual_s: float | None = None
        self._costs_s: tuple[float, ...] = ()
        self._impact_s = 0.0
        self._level = self._told = 0

    def note(self, measured: Measured) -> Conditions | None:
        """A worker has finished an iteration; gives what is slow from now on, and the level, if that has changed."""
        if measured.iteration > self._iteration:
            self._reckon()
            self._iteration, self._longest_s = measured.iteration, 0.0
            self._workers.clear()
        if measured.iteration == self._iteration:
            self._workers.add(measured.worker)
            self._longest_s = max(self._longest_s, measured.iteration_s or 0.0)
        found = self._monitor.note(measured)
        if found is not None:
            self._take(found)
        if found is None and self._level == self._told:
            return None
        self._told = self._level
        return replace(self._found, level=self._level)

    def forget(self, worker: str) -> None:
        """The worker is another process from now on, or none, perhaps on another machine."""
        self._monitor.forget(worker)
        self._take(self._found.without(worker))
        self._told = self._level  # whoever is told of the worker's end forgets as much

    def _reckon(self) -> None:
        """An iteration is over: what it has cost, or what is usual from now on."""
        if not self._longest_s:
            return
        if not self._found.is_slow:
            if len(self._workers) != self._healthy_workers:  # as many share other work from now on
                self._healthy_workers = len(self._workers)
                self._healthy_s.clear()
            self._healthy_s.append(self._longest_s)
        elif self._usual_s is not None:
            share = self._healthy_workers / len(self._workers) if self._healthy_workers else 1.0
            self._impact_s = max(0.0, self._impact_s + self._longest_s - self._usual_s * share)
            worth = (level for level, cost_s in enumerate(self._costs_s, 1) if self._impact_s >= cost_s)
            self._level = max(self._level, *worth, 0)

    def _take(self, found: Conditions) -> None:
        """What is slow from now on; it begins, or ends, with the first and the last of it."""
        begins, self._found = found.is_slow and not self._found.is_slow, found
        if begins:
            self._begin()
        elif not found.is_slow:
            self._impact_s, self._level = 0.0, 0

    def _begin(self) -> None:
        """Something has become slow; what it has cost before it was found counts."""
        usual_s = self._usual_s = median(self._healthy_s) if self._healthy_s else self._expected_s
        if usual_s is not None:
            self._costs_s = self._costs(usual_s)
            late = takewhile(lambda one_s: one_s > SLOW * usual_s, reversed(self._healthy_s))
            self._impact_s = sum(one_s - usual_s for one_s in late)
