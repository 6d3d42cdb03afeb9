"""Iterations that take longer for no reason that is known: then everybody is a suspect.

What an iteration takes is followed as `rtk detect` follows a log (tracker.py), from its beginning to the last sum of
gradients, so that pauses between iterations do not count. Only what is confirmed counts, for to examine everybody holds
everybody up, and only what is as much as a worker has to be slow by, for less would not be found. With other workers,
other groups, or something else known to be slow, it is another series.
"""

from collections.abc import Hashable, Mapping

from ...schemas.protocols import Measured
from .expected import SLOW_PACE
from .suspicion import Group, Pauses
from .tracker import Tracker


class WholeIterations:
    """The iteration times of a job."""

    def __init__(self) -> None:
        self._tracker = Tracker()
        self._series: Hashable = None
        self._everybody: Group = ()
        self._is_slow = False
        self._pauses = Pauses()

    def note(self, reports: Mapping[str, Measured], known: Hashable) -> None:
        """An iteration, as all workers tell of it, while this is known to be slow."""
        times_s = [one.iteration_s for one in reports.values() if one.iteration_s is not None]
        series = (frozenset((name, one.peers) for name, one in reports.items()), known)
        if series != self._series:
            self._series, self._tracker, self._is_slow = series, Tracker(), False
            self._everybody = tuple(sorted(reports))
        if len(times_s) < len(reports) or not max(times_s) > 0:
            return
        for change in self._tracker.note(max(times_s)):
            if change.kind in ("confirmed", "level"):
                self._is_slow = change.episode.severity >= 1 + SLOW_PACE
            elif change.kind == "relief":
                self._is_slow = False

    def suspects(self, iteration: int) -> tuple[Group, ...]:
        """Everybody, where iterations are slow and nobody knows why, and it is time to find out; else nobody."""
        is_due = self._is_slow and len(self._everybody) > 1 and self._pauses.is_over(iteration)
        return (self._everybody,) if is_due else ()

    def examined(self, iteration: int, group: Group) -> None:
        """All of a group have been examined."""
        if group == self._everybody and self._is_slow:
            self._pauses.begin(iteration)
