"""From what a detector writes down to episodes, and to what changed with a sample."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Literal

from ...schemas.detection import Episode
from .rcusum import CONFIRMED, DISMISSED, HINDSIGHT, LEVEL, PROVISIONAL, REFINED, RELIEF, WIDTH


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
    """The episodes of a series, told from beginning to end."""

    def __init__(self) -> None:
        self._past: list[Episode] = []
        self._open: Episode | None = None
        self._suspicion: Episode | None = None
        self._levels: list[tuple[int, float]] = []  # since which sample, and its log over the usual one
        self._raised: int | None = None  # the place of the last suspicion
        self._relieved = 0

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """All of them in the order of onset, the open one and a suspicion included."""
        rest = (episode for episode in (self._open, self._suspicion) if episode is not None)
        return (*self._past, *rest)

    def tell(self, out: Sequence[float], told: int) -> tuple[Change, ...]:
        """Go on with what a detector wrote down."""
        return tuple(
            change
            for start in range(0, WIDTH * told, WIDTH)
            for change in self._go_on(int(out[start]), int(out[start + 1]), float(out[start + 2]), int(out[start + 3]))
        )

    def dismiss(self) -> tuple[Change, ...]:
        """A suspicion, if there is one, comes to nothing."""
        suspicion, self._suspicion = self._suspicion, None
        return () if suspicion is None else (Change("dismissed", suspicion),)

    def _go_on(self, kind: int, place: int, level: float, sure: int) -> Iterator[Change]:
        if kind == PROVISIONAL:
            self._raised = sure
            self._suspicion = Episode(place, sure, None, None, exp(level))
            yield Change("provisional", self._suspicion)
        elif kind == DISMISSED:
            yield from self.dismiss()
        elif kind == CONFIRMED:
            yield self._confirm(place, level, sure)
        elif kind == HINDSIGHT:
            yield from self._look_back(place, level, sure)
        elif self._open is not None:
            yield from self._change_level(kind, place, level)

    def _confirm(self, onset: int, level: float, sure: int) -> Change:
        onset = max(onset, self._relieved)
        provisional = sure if self._suspicion is None or self._raised is None else max(self._raised, onset)
        self._suspicion = None
        self._levels = [(onset, level)]
        self._open = Episode(onset, provisional, sure, None, exp(level))
        return Change("confirmed", self._open)

    def _look_back(self, relief: int, level: float, sure: int) -> Iterator[Change]:
        """It was slow from the start on, or since the last relief."""
        yield from self.dismiss()
        if relief <= self._relieved:
            return  # a relief to less than the usual time: an episode that ends there has been told already
        self._open = Episode(self._relieved, None, sure, None, exp(level))
        yield Change("confirmed", self._open)
        yield self._relieve(self._open, relief)

    def _change_level(self, kind: int, place: int, level: float) -> Iterator[Change]:
        assert self._open is not None
        if kind == REFINED:
            self._levels[-1] = (self._levels[-1][0], level)
        elif kind == LEVEL:
            self._levels.append((place, level))
            self._open = replace(self._open, severity=exp(self._usual_level(place)))
            yield Change("level", replace(self._open, severity=exp(level)))
        elif kind == RELIEF:
            yield self._relieve(replace(self._open, severity=exp(self._usual_level(place))), place)

    def _usual_level(self, end: int) -> float:
        """The median over the samples of an episode of the level that they are at."""
        ends = [start for start, _ in self._levels[1:]] + [end]
        lengths = sorted((level, stop - start) for (start, level), stop in zip(self._levels, ends, strict=True))
        half = sum(length for _, length in lengths) / 2
        for level, length in lengths:
            half -= length
            if half <= 0:
                return level
        return lengths[-1][0]

    def _relieve(self, episode: Episode, relief: int) -> Change:
        whole = replace(episode, relief=relief)
        self._past.append(whole)
        self._open, self._relieved = None, relief
        return Change("relief", whole)
