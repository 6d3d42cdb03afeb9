"""Following a series of iteration times: when it becomes slow, how slow, and when it is as usual again.

Slow is what takes 10 % longer than usual (section 4.2). Two tiers: three slow iterations in a row are a suspicion,
which costs nothing (*provisional*, and *dismissed* when it goes away); what persists longer than bursts of jitter do,
and by more than chance, is *confirmed*. `robust` is `rcusum.py`; `paper` is `bocd.py`.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import exp, floor, inf, log
from typing import Literal, get_args

from ...schemas.detection import Episode
from ...schemas.errors import InvalidInputError
from .bocd import Bocd
from .detector import Detector, Finding
from .rcusum import Rcusum

# Medians of stretches of a series that grows, counted in bins of a 10,000th.


BIN = 1e-4  # of a log
SERIES_ROOM = 800  # samples that are remembered one by one: as many as any detector looks back on


class Medians:
    """Of the logs of a series, in bounded memory: stretches begin at what was not forgotten, or lately.

    Attributes:
        end: how many samples there are.
    """

    def __init__(self) -> None:
        self._first = self.end = 0
        self._counts: Counter[int] = Counter()  # from the first sample on
        self._last: deque[int] = deque(maxlen=SERIES_ROOM)

    def note(self, log: float) -> None:
        """Another sample."""
        number = floor(log / BIN)
        self._counts[number] += 1
        self._last.append(number)
        self.end += 1

    def of(self, start: int, stop: int) -> float:
        """The median of the samples from one up to another, to half a bin.

        Of a stretch that began long ago, and not where memory begins, it is that of what is known singly.
        """
        counts = (
            self._counts - Counter(self._since(stop)) if start == self._first else Counter(self._between(start, stop))
        )
        half = counts.total() // 2
        for number in sorted(counts):
            half -= counts[number]
            if half < 0:
                return (number + 0.5) * BIN
        raise AssertionError("there is no such stretch")

    def forget(self, place: int) -> None:
        """Nobody will ask for samples before this one; it is one of the last."""
        self._first, self._counts = place, Counter(self._since(place))

    def _since(self, place: int) -> list[int]:
        return self._between(place, self.end)

    def _between(self, start: int, stop: int) -> list[int]:
        first = self.end - len(self._last)
        return list(islice(self._last, max(0, start - first), max(0, stop - first)))


# From what a detector finds to episodes, and to what changed with a sample.


@dataclass(frozen=True, slots=True)
class EpisodeChange:
    """What a sample has changed, and the episode as it is known now.

    Attributes:
        kind: `provisional` and `dismissed` are about suspicions; `confirmed`, `level` (slower, or less slow, by 10 % or
            more) and `relief` about what is certain. Slowness from the start on, which only shows when it ends, comes
            as `confirmed` and `relief` together.
        episode: what it is about; at a `level` its severity is that of the new level.
    """

    kind: Literal["provisional", "dismissed", "confirmed", "level", "relief"]
    episode: Episode


class EpisodeHistory:
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

    def tell(self, findings: Iterable[Finding]) -> tuple[EpisodeChange, ...]:
        """Go on with what a detector has found."""
        return tuple(change for finding in findings for change in self._go_on(finding))

    def dismiss(self) -> tuple[EpisodeChange, ...]:
        """A suspicion, if there is one, comes to nothing."""
        suspicion, self._suspicion = self._suspicion, None
        return () if suspicion is None else (EpisodeChange("dismissed", suspicion),)

    def _go_on(self, finding: Finding) -> Iterator[EpisodeChange]:
        kind, place, level, certain, usual = finding
        if kind == "provisional":
            self._raised, self._usual = certain, usual
            self._suspicion = self._judged(Episode(place, certain, None, None, 1.0), certain + 1)
            yield EpisodeChange("provisional", self._suspicion)
        elif kind == "dismissed":
            yield from self.dismiss()
        elif kind == "confirmed":
            onset = max(place, self._relieved)
            provisional = certain if self._suspicion is None or self._raised is None else max(self._raised, onset)
            self._usual, self._suspicion = usual, None
            self._medians.forget(onset)
            self._open = self._judged(Episode(onset, provisional, certain, None, 1.0), certain + 1)
            yield EpisodeChange("confirmed", self._open)
        elif kind == "hindsight":  # it was slow from the start on, or since the last relief
            self._usual = usual
            yield from self.dismiss()
            if place > self._relieved:  # else an episode that ends there has been told already
                self._open = self._judged(Episode(self._relieved, None, certain, None, 1.0), place)
                yield EpisodeChange("confirmed", self._open)
                yield self._relieve(self._open, place)
        elif self._open is not None and kind == "level":
            yield EpisodeChange("level", replace(self._open, severity=exp(level)))
        elif self._open is not None and kind == "relief":
            yield self._relieve(self._open, place)

    def _judged(self, episode: Episode, stop: int) -> Episode:
        """An episode as its samples before one have it, in as many digits as are known."""
        severity = exp(self._medians.of(episode.onset, stop) - self._usual)
        return replace(episode, severity=float(f"{severity:.5g}"))

    def _relieve(self, episode: Episode, relief: int) -> EpisodeChange:
        whole = replace(self._judged(episode, relief), relief=relief)
        self._past.append(whole)
        self._open, self._relieved = None, relief
        self._medians.forget(relief)
        return EpisodeChange("relief", whole)


Mode = Literal["robust", "paper"]

SHORTEST = 10


class Tracker:
    """Follows a series of times in bounded memory (beside the episodes themselves), in constant time a sample.

    Args:
        mode: `robust`, or `paper` for the published detector.
        shortest: how many slow iterations it takes to confirm; more than the longest burst that is no fail-slow.

    Raises:
        InvalidInputError: `shortest` is below 3.
    """

    def __init__(self, mode: Mode = "robust", shortest: int = SHORTEST) -> None:
        self._detector = detector_of(mode, shortest)
        self._medians = Medians()
        self._story = EpisodeHistory(self._medians)

    @property
    def samples(self) -> int:
        """How many were noted."""
        return self._detector.samples

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow; None: too few were seen to say."""
        return None if self._detector.is_learning else exp(self._detector.reference)

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What was found so far in the order of onset, what is not over (and a suspicion) included."""
        return self._story.episodes

    def note(self, time_s: float) -> tuple[EpisodeChange, ...]:
        """Another iteration's time.

        Returns:
            What changed with it, mostly nothing.

        Raises:
            InvalidInputError: the time is not a finite number above 0; it is as if it had not been noted.
        """
        if not 0.0 < time_s < inf:
            raise InvalidInputError(
                f"{time_s} is no iteration time",
                where=f"sample {self.samples}, counted from 0",
                fix="times are finite numbers above 0, in seconds",
            )
        y = log(time_s)
        self._medians.note(y)
        found = self._detector.update(y)
        return self._story.tell(found) if found else ()

    def finish(self) -> tuple[EpisodeChange, ...]:
        """The series is over: a short one is judged by what there is, and a suspicion comes to nothing."""
        return self._story.tell(self._detector.finish()) + self._story.dismiss()


def fewest_samples(mode: Mode = "robust", shortest: int = SHORTEST) -> int:
    """So many samples a series must have before any fail-slow in it can be confirmed; arguments as for `track`."""
    return 25 if mode == "paper" else 11 + max(shortest, 5)


def track(times_s: Sequence[float], mode: Mode = "robust", shortest: int = SHORTEST) -> tuple[Episode, ...]:
    """All episodes of a whole series: what a `Tracker` finds.

    Raises:
        InvalidInputError: a time is not a finite number above 0, or `shortest` is below 3.
    """
    tracker = Tracker(mode, shortest)
    for time_s in times_s:
        tracker.note(time_s)
    tracker.finish()
    return tracker.episodes


def detector_of(mode: Mode, shortest: int = SHORTEST) -> Detector:
    """The detector of a mode, with no sample seen; arguments and errors as for `Tracker`."""
    if mode not in get_args(Mode):
        raise InvalidInputError(f"there is no mode {mode!r}", fix="choose robust or paper")
    if shortest < 3:
        raise InvalidInputError(
            f"{shortest} slow iterations cannot confirm anything",
            fix="ask for 3 at least; 10 to 15 keep usual bursts out",
        )
    return Rcusum(shortest) if mode == "robust" else Bocd()
