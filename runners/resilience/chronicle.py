"""What a job has been through, in numbers: iteration times, and the time that every change has cost."""

from dataclasses import dataclass, field
from statistics import median

from .announcements import Recovered

# Of so many iterations the median is what one usually takes.
RECENT = 5


@dataclass
class Change:
    """Why membership changes, and since when."""

    reasons: list[str] = field(default_factory=list)
    since_s: float | None = None

    def note(self, reason: str, since_s: float) -> None:
        """One more reason."""
        self.reasons.append(reason)
        self.since_s = since_s if self.since_s is None else min(self.since_s, since_s)

    @property
    def reason(self) -> str:
        """All reasons in a line."""
        return "; ".join(self.reasons)


@dataclass
class Chronicle:
    """The times of one job's commits and changes; all in s, on the coordinator's clock.

    Attributes:
        change: what has happened since the last epoch began.
    """

    change: Change = field(default_factory=Change)
    _recovering: Change | None = None
    _committed_s: float | None = None
    _formed_s: float | None = None
    _times_s: list[float] = field(default_factory=list)

    def begin_epoch(self) -> str:
        """A new epoch begins; gives the reason."""
        reason, change = self.change.reason, self.change
        if self._recovering is not None and self._recovering.since_s is not None:
            # The epoch before has not committed anything: its cause still waits to be made good.
            change.reasons[:0] = self._recovering.reasons
            change.since_s = self._recovering.since_s
        self._recovering, self.change = change, Change()
        self._formed_s = None
        return reason

    def note_ready(self, now_s: float) -> None:
        """A worker has joined the epoch; with the last one it is formed."""
        self._formed_s = now_s

    def note_commit(self, now_s: float) -> tuple[float, Recovered | None]:
        """An iteration is committed.

        Returns:
            What it took, counted from the commit before or from when the epoch was formed; and, if it is the first of
            an epoch, what the change before it has cost.
        """
        begun_s = max((s for s in (self._committed_s, self._formed_s) if s is not None), default=now_s)
        recovery = self._recovery(now_s)
        self._recovering = None
        self._times_s.append(now_s - begun_s)
        self._committed_s = now_s
        return now_s - begun_s, recovery

    def iteration_time_s(self) -> float | None:
        """The median of all iterations."""
        return median(self._times_s) if self._times_s else None

    def _recovery(self, now_s: float) -> Recovered | None:
        change = self._recovering
        if change is None or change.since_s is None or self._committed_s is None:
            return None
        usual_s = median(self._times_s[-RECENT:])
        return Recovered(
            reason=change.reason,
            seconds=now_s - change.since_s,
            lost_s=max(0.0, now_s - self._committed_s - usual_s),
        )
