"""Watching a log: its iteration times go to a tracker, and what is found is put together with what speaks for it."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from ....schemas.detection import Episode, FailSlow, FileFindings, Scope
from ..readers.formats import PhaseSamples
from ..readers.reading import IterationSample
from ..tracker import SHORTEST, EpisodeChange, Mode
from .series import CallSeries, Series, is_call

# What speaks for an episode, in sentences, and which rank it comes from where several have told of themselves.


SLOW = 1.1  # over usual (section 4.2)
# A rank is to blame where it is the slowest in so large a share of an episode's samples, by so much over the others.
OFTEN, APART = 0.8, 1.1


@dataclass(frozen=True)
class Witness:
    """Where an episode comes from, and what speaks for it."""

    scope: Scope
    evidence: tuple[str, ...]


def witness(episode: Episode, samples: Sequence[IterationSample], usual_s: float | None, unit: str) -> Witness:
    """Look at the samples of an episode.

    Args:
        episode: that they are of.
        samples: from its onset to its end; of a very long one, the last of them.
        usual_s: what an iteration takes when nothing is slow.
        unit: of times, such as `s` or `s a token`.
    """
    sentences = []
    if usual_s is not None and samples:
        slow = sum(sample.time_s > SLOW * usual_s for sample in samples)
        sentences.append(f"{slow} of {len(samples)} samples above {SLOW:.2f} x the usual {usual_s:.4g} {unit}")
    if samples and samples[0].iteration not in (None, episode.onset):
        to = "on" if episode.relief is None else f"to {samples[-1].iteration}"
        sentences.append(f"from iteration {samples[0].iteration} {to}")
    told = [sample for sample in samples if sample.slowest is not None]
    if not told:
        return Witness(Scope(), tuple(sentences))
    ((rank, count),) = Counter(str(sample.slowest) for sample in told).most_common(1)
    excess = median(sample.excess for sample in told if sample.slowest == rank)
    if count < OFTEN * len(told) or excess < APART:
        return Witness(Scope(), (*sentences, "no rank is slower than the others"))
    found = f"rank {rank} is the slowest in {count} of {len(told)} samples, {excess:.2f} x the others' median"
    return Witness(Scope("worker", (rank,)), (*sentences, found))


# So many samples are remembered, to be counted as evidence; an episode may be longer.
REMEMBERED = 1 << 15


class LogMonitor:
    """Takes a log line by line, and knows what was slow; in bounded memory, beside the episodes themselves.

    Args:
        source: what the log is called in messages.
        mode: of the tracker.
        shortest: how many slow iterations it takes to confirm.
        name: of the log's format; None: it is recognised.

    Attributes:
        series: the log as a series of iteration times.
        samples: how many iterations there were.
    """

    def __init__(self, source: str, mode: Mode = "robust", shortest: int = SHORTEST, name: str | None = None) -> None:
        self.series: Series | CallSeries = Series(source, name)
        self.samples = 0
        self._source, self._mode, self._shortest = source, mode, shortest
        self._phases: dict[int, PhaseSamples] = {}
        self._memory: deque[IterationSample] = deque(maxlen=REMEMBERED)
        self._witnesses: dict[int, Witness] = {}  # by onset
        self._is_recognised = name is not None

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow; of several phases, in that of most samples."""
        longest = max(self._phases.values(), key=lambda phase: phase.samples, default=None)
        return longest.usual_s if longest is not None else None

    def read(self, line: bytes, is_cut: bool = False) -> list[IterationSample]:
        """The next line of the log, and the iterations that it completes; each of them is to be noted.

        Args:
            line: with its end or without it.
            is_cut: it is the last one and has no end.

        Raises:
            InvalidInputError: the line breaks the format.
        """
        if not self._is_recognised and line.strip():
            self._is_recognised = True
            if is_call(line):
                self.series = CallSeries(self._source)
        return self.series.read(line, is_cut)

    def note(self, sample: IterationSample) -> tuple[EpisodeChange, ...]:
        """Another iteration of the series, and what changed with it."""
        phase = self._phases.get(sample.phase)
        if phase is None:
            phase = self._phases[sample.phase] = PhaseSamples(self._mode, self._shortest)
        self._memory.append(sample)
        self.samples += 1
        return self._heard(phase.note(self.samples - 1, sample.time_s), sample.phase)

    def finish(self) -> tuple[EpisodeChange, ...]:
        """The log is over."""
        return tuple(change for number, phase in self._phases.items() for change in self._heard(phase.finish(), number))

    def iteration_of(self, place: int) -> int | None:
        """The number of the iteration that a sample is of, where the log says it and it is not too long ago."""
        first = self.samples - len(self._memory)
        return self._memory[place - first].iteration if first <= place < self.samples else None

    def findings(self, file: str) -> FileFindings:
        """What was found, once the log is over."""
        found = []
        for number, phase in self._phases.items():
            for episode in (one for one in phase.episodes if one.confirmed is not None):
                seen = self._witnesses.get(episode.onset) or self._witness(episode, number)
                found.append(FailSlow.of(episode, scope=seen.scope, evidence=seen.evidence))
        events = tuple(sorted(found, key=lambda event: event.onset))
        return FileFindings(file, self.series.kind, self.samples, self.usual_s, events)

    def _heard(self, changes: tuple[EpisodeChange, ...], phase: int) -> tuple[EpisodeChange, ...]:
        for change in changes:
            if change.kind == "relief":
                self._witnesses[change.episode.onset] = self._witness(change.episode, phase)
        return changes

    def _witness(self, episode: Episode, phase: int) -> Witness:
        unit = "s" if self.series.per == "iteration" else f"s a {self.series.per}"
        first = self.samples - len(self._memory)  # that is remembered
        last = self.samples if episode.relief is None else episode.relief
        span = islice(self._memory, max(episode.onset - first, 0), max(last - first, 0))
        samples = [sample for sample in span if sample.phase == phase]
        return witness(episode, samples, self._phases[phase].usual_s, unit)
