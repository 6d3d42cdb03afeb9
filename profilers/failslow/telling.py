"""From what a detector finds to episodes, and to what changed with a sample."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import exp
from typing import Literal

from ...schemas.detection import Episode
from .detector import Finding
from .medians import Medians


@dataclass(frozen=True, slots=True)
class Change:
    """What a sample has changed, and the episode as it is known now.

    Attributes:
        kind: `provisional` and `dismissed` are about suspicions; `confirmed`, `level` (slower, or less slow, by 10 % or
            more) and `relief` about what is certain. Slowness from the start on, which only shows when it ends, comes
            as `confirmed` and `relief` together.
        episode: what it is about; at a `level` its severity is that of the new level.
    """

    kind: Literal["provisional", "dismissed", "confirmed", "level", "relief"]
    episode: Episode


class Story:
    """The episodes of a series, told from beginning to end.

    An episode's severity is the median of its samples, as many as there are so far, over the usual time.

    Args:
        medians: of the series, up to the sample that the detector took last.
    """

    def __init__(self, medians: Medians) -> None:
        self._medians = medians
        self._past: list[Episode] = []
        self._open: Episode | None = None
        self._suspicion: Episode | None = None
        self._usual = 0.0  # the log of what is usual beside the episode that is not over
        self._raised: int | None = None  # the place of the last suspicion
        self._relieved = 0

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """All of them in the order of onset, the open one and a suspicion included."""
        rest = (episode for episode in (self._open, self._suspicion) if episode is not None)
        return (*self._past, *(self._judged(episode, self._medians.end) for episode in rest))

    def tell(self, findings: Iterable[Finding]) -> tuple[Change, ...]:
        """Go on with what a detector has found."""
        return tuple(change for finding in findings for change in self._go_on(finding))

    def dismiss(self) -> tuple[Change, ...]:
        """A suspicion, if there is one, comes to nothing."""
        suspicion, self._suspicion = self._suspicion, None
        return () if suspicion is None else (Change("dismissed", suspicion),)

    def _go_on(self, finding: Finding) -> Iterator[Change]:
        kind, place, level, certain, usual = finding
        if kind == "provisional":
            self._raised, self._usual = certain, usual
            self._suspicion = self._judged(Episode(place, certain, None, None, 1.0), certain + 1)
            yield Change("provisional", self._suspicion)
        elif kind == "dismissed":
            yield from self.dismiss()
        elif kind == "confirmed":
            self._usual = usual
            yield self._confirm(place, certain)
        elif kind == "hindsight":
            self._usual = usual
            yield from self._look_back(place, certain)
        elif self._open is not None and kind == "level":
            yield Change("level", replace(self._open, severity=exp(level)))
        elif self._open is not None and kind == "relief":
            yield self._relieve(self._open, place)

    def _confirm(self, onset: int, certain: int) -> Change:
        onset = max(onset, self._relieved)
        provisional = certain if self._suspicion is None or self._raised is None else max(self._raised, onset)
        self._suspicion = None
        self._medians.forget(onset)
        self._open = self._judged(Episode(onset, provisional, certain, None, 1.0), certain + 1)
        return Change("confirmed", self._open)

    def _look_back(self, relief: int, certain: int) -> Iterator[Change]:
        """It was slow from the start on, or since the last relief."""
        yield from self.dismiss()
        if relief <= self._relieved:
            return  # a relief to less than the usual time: an episode that ends there has been told already
        self._open = self._judged(Episode(self._relieved, None, certain, None, 1.0), relief)
        yield Change("confirmed", self._open)
        yield self._relieve(self._open, relief)

    def _judged(self, episode: Episode, stop: int) -> Episode:
        """An episode as its samples before one have it, in as many digits as are known."""
        severity = exp(self._medians.of(episode.onset, stop) - self._usual)
        return replace(episode, severity=float(f"{severity:.5g}"))

    def _relieve(self, episode: Episode, relief: int) -> Change:
        whole = replace(self._judged(episode, relief), relief=relief)
        self._past.append(whole)
        self._open, self._relieved = None, relief
        self._medians.forget(relief)
        return Change("relief", whole)
