"""Groups of peers whose sum takes longer than usual, and when they are to be examined.

A ring passes each link 2(n-1) times, so its sum takes that many delays of its slowest link longer; which link that is
the sum does not tell. The group is a suspect from when the sum is too long (`Hysteresis`, per step of the ring) until
it is examined, as long as no link of it is known to be slow. After that it is left alone for `FIRST_PAUSE` iterations,
twice as long each time, up to `LONGEST_PAUSE`, whatever was found: so examinations cost little, however they end.
"""

from collections.abc import Collection, Iterator, Mapping
from statistics import median

from ...schemas.conditions import Pair
from ...schemas.protocols import Measured
from .expected import FEWEST, Expected
from .hysteresis import QUIET, Hysteresis

FIRST_PAUSE = 20
LONGEST_PAUSE = 320
GROUPS_KEPT = 4  # for each worker; a group that is not seen any more is forgotten when there are so many others

Group = tuple[str, ...]  # names of workers, ascending


class Pauses:
    """How long it takes until the next examination: longer after each, until there was no need of one for long."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._pause = 0

    def is_over(self, iteration: int) -> bool:
        """Whether there may be one."""
        return self._last is None or iteration - self._last >= self._pause

    def begin(self, iteration: int) -> None:
        """There was one."""
        is_old = self._last is None or iteration - self._last > self._pause + QUIET
        self._pause = FIRST_PAUSE if is_old else min(2 * self._pause, LONGEST_PAUSE)
        self._last = iteration


class GroupSums:
    """The sums of all groups of three peers and more.

    Args:
        expected: what is usual.
        most: how many groups are remembered.
    """

    def __init__(self, expected: Expected, most: int) -> None:
        self._expected, self._most = expected, most
        self._groups: dict[Group, _GroupSum] = {}

    def note(self, iteration: int, sums_s: Mapping[Group, float]) -> None:
        """What sums have taken in an iteration, from when the last of a group began it."""
        more_s = {group: (one - self._planned_s(group)) / _steps(group) for group, one in sums_s.items()}
        for group in more_s:
            own = self._groups.pop(group) if group in self._groups else _GroupSum()
            self._groups[group] = own  # the last one seen comes last
        for old in list(self._groups)[: -self._most]:
            del self._groups[old]
        for group, own in self._groups.items():
            own.note(iteration, more_s.get(group))
        self._compare(iteration, more_s)

    def excess_s(self, pair: Pair, seen: Collection[Group]) -> float | None:
        """How much longer than usual a step takes of the sum that both ends take part in; None: there is none."""
        return next((self._groups[group].excess_s for group in seen if {*pair} <= {*group}), None)

    @property
    def slow(self) -> list[Group]:
        """The groups whose sums take longer than usual, for whatever reason."""
        return [group for group, own in self._groups.items() if own.hysteresis.found is not None]

    def suspects(self, iteration: int, slow: Collection[Pair], seen: Collection[Group]) -> Iterator[Group]:
        """The groups to be examined, of those seen in an iteration, where these links are known to be slow."""
        for group, own in ((group, self._groups[group]) for group in seen):
            is_explained = any({*pair} <= {*group} for pair in slow) and own.is_as_examined
            if own.hysteresis.found is not None and not is_explained and own.pauses.is_over(iteration):
                yield group

    def examined(self, iteration: int, group: Group) -> None:
        """All of a group have been examined."""
        if group in self._groups:
            self._groups[group].be_examined(iteration)

    def forget(self, worker: str) -> None:
        """Nothing of a worker's groups holds any longer."""
        self._groups = {group: own for group, own in self._groups.items() if worker not in group}

    def _planned_s(self, group: Group) -> float:
        return max(self._expected.sum_s(group[0], other) for other in group[1:])

    def _compare(self, iteration: int, more_s: Mapping[Group, float]) -> None:
        bests_s = [self._groups[group].best_s for group in more_s if group in self._groups]
        middle_s = median(bests_s) if len(bests_s) >= FEWEST else None
        for group in more_s.keys() & self._groups.keys():
            self._groups[group].compare(iteration, more_s[group], middle_s, self._expected.least_s)


class _GroupSum:
    """One group's; all times are of a step of its ring, less what the plan expects."""

    def __init__(self) -> None:
        self.hysteresis, self.pauses = Hysteresis(), Pauses()
        self.best_s = float("inf")
        self.excess_s = 0.0
        self._at_examination: float | None = None

    @property
    def is_as_examined(self) -> bool:
        """Whether the sum takes as long as when the group was examined; one that nobody has examined does, too."""
        return self._at_examination in (None, self.hysteresis.found)

    def note(self, iteration: int, more_s: float | None) -> None:
        if more_s is None:
            self.hysteresis.pass_by(iteration)
        else:
            self.best_s = min(self.best_s, more_s)

    def compare(self, iteration: int, more_s: float, middle_s: float | None, least_s: float) -> None:
        """Compare with the best that was seen, of this group or, if that is less, of the middle one of all."""
        usual_s = max(0.0, self.best_s if middle_s is None else min(self.best_s, middle_s))
        self.excess_s = max(0.0, more_s - usual_s)
        self.hysteresis.note(iteration, self.excess_s, 0.0, least_s)
        if self.hysteresis.found is None:
            self._at_examination = None

    def be_examined(self, iteration: int) -> None:
        self._at_examination = self.hysteresis.found
        self.pauses.begin(iteration)


def group_sums_s(reports: Mapping[str, Measured]) -> dict[Group, float]:
    """How long the sums of groups took: from when the last one began until the first one had it."""
    found: dict[Group, float] = {}
    for name, one in reports.items():
        group = tuple(sorted({name, *one.peers}))
        if len(group) <= 2 or group in found or group[0] != name:
            continue
        own = [reports[member] for member in group if member in reports]
        spans = [report.reduction_s for report in own if {report.worker, *report.peers} == {*group}]
        known = [span for span in spans if span is not None]
        if len(known) == len(group):
            found[group] = max(0.0, min(ended for _, ended in known) - max(began for began, _ in known))
    return found


def _steps(group: Group) -> int:
    return 2 * (len(group) - 1)
