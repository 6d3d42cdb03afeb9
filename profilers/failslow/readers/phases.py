"""Trackers for the phases of a job: what repeats itself in another way is another series, within one numbering."""

from bisect import bisect_right
from dataclasses import replace

from ....schemas.detection import Episode
from ..tracker import Change, Mode, Tracker


class Phase:
    """The samples of one phase, with a tracker of their own; places are told by the numbering of the whole log.

    Args:
        mode: of the tracker.
        shortest: how many slow iterations it takes to confirm.
    """

    def __init__(self, mode: Mode, shortest: int) -> None:
        self._tracker = Tracker(mode, shortest)
        # Stretches without another phase in between: their first sample in the phase, and in the log.
        self._own: list[int] = []
        self._places: list[int] = []

    @property
    def samples(self) -> int:
        """How many the phase has."""
        return self._tracker.samples

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow."""
        return self._tracker.usual_s

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What was found so far."""
        return tuple(map(self._moved, self._tracker.episodes))

    def note(self, place: int, time_s: float) -> tuple[Change, ...]:
        """Another sample, and what changed with it."""
        if not self._own or self._place(self.samples) != place:
            self._own.append(self.samples)
            self._places.append(place)
        return self._told(self._tracker.note(time_s))

    def finish(self) -> tuple[Change, ...]:
        """The log is over."""
        return self._told(self._tracker.finish())

    def _told(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        return tuple(Change(change.kind, self._moved(change.episode)) for change in changes)

    def _moved(self, episode: Episode) -> Episode:
        return replace(
            episode,
            onset=self._place(episode.onset),
            provisional=self._place_if_any(episode.provisional),
            confirmed=self._place_if_any(episode.confirmed),
            relief=self._place_if_any(episode.relief),
        )

    def _place_if_any(self, own: int | None) -> int | None:
        return None if own is None else self._place(own)

    def _place(self, own: int) -> int:
        """Where a sample of the phase stands in the log."""
        stretch = bisect_right(self._own, own) - 1
        return self._places[stretch] + own - self._own[stretch]
