"""Watching a log: its iteration times go to a tracker, and what is found is put together with what speaks for it.

A training command is watched unchanged (`monitor`): what notes its calls comes in by PYTHONPATH.
"""

import os
import signal
import subprocess
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import join
from statistics import median
from typing import IO

from ....schemas.detection import PLACES, Episode, FailSlow, FileFindings, Scope
from ....schemas.errors import InvalidInputError
from ..readers.formats import PhaseSamples
from ..readers.reading import IterationSample
from ..tracker import SHORTEST, EpisodeChange, Mode
from .job import Heard, WatchedJob
from .series import CallSeries, Series, is_call

POLL_S = 0.25
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells say it
SHARED_MEMORY = Path("/dev/shm")
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FROM_THE_KERNEL = 0x80  # si_code of what the terminal sends, to the whole group of processes


@dataclass(frozen=True)
class WatchedCommand:
    """What a command did while it was watched.

    Attributes:
        findings: by the phase of its iterations.
        ranks: how many were seen.
        calls: how many of their communication calls were.
        exit_code: its own, negative for a signal.
    """

    findings: dict[int, FileFindings]
    ranks: int
    calls: int
    exit_code: int


def monitor(
    command: Sequence[str],
    *,
    mode: Mode = "robust",
    stdout: IO[str] | None = None,
    tell: Callable[[Sequence[Heard]], None] = lambda heard: None,
) -> WatchedCommand:
    """Run a training command and watch how long its iterations take, by the communication calls that torch makes.

    To be called in the main thread; signals that this process is sent meanwhile are passed on to the command.

    Args:
        command: its words.
        mode: "robust", or "paper" for the published methods.
        stdout: where its standard output goes; None: where this process's goes.
        tell: hears of every iteration, and of what is slow, as it is found.

    Raises:
        InvalidInputError: the command cannot be started; with the exit code that a shell has then.
    """
    # Where files never touch a disk, if the system has that.
    memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rtk-monitor-", dir=memory) as folder:
        watch = WatchedJob(Path(folder), mode)
        process = _started(command, Path(folder), stdout)
        for _ in _while_it_runs(process):
            tell(watch.poll())
        tell(watch.finish())
        return WatchedCommand(watch.findings(join(command)), len(watch.ranks), watch.calls, process.returncode)


class CommandNotFoundError(InvalidInputError):
    """There is no such command."""

    exit_code = NOT_FOUND


class CommandNotExecutableError(InvalidInputError):
    """The command cannot be started."""

    exit_code = NOT_EXECUTABLE


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command that is watched: the shim's folder is in front of its path."""
    from ...shim import entrance, hook

    paths = [str(Path(entrance.__path__[0]).resolve()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), hook.RINGS: str(folder)}


def _started(command: Sequence[str], folder: Path, stdout: IO[str] | None) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(command, env=environment(folder), stdout=stdout)
    except FileNotFoundError as error:
        raise CommandNotFoundError(
            f"the command {command[0]!r} is not there", where=f"COMMAND: {join(command)}", fix="check its name and PATH"
        ) from error
    except OSError as error:
        raise CommandNotExecutableError(
            f"the command cannot be started: {error.strerror}", where=f"COMMAND: {join(command)}"
        ) from error


def _while_it_runs(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Again and again while the command runs; what rtk is told by signals is passed on to it."""
    with _signals_held():
        while process.poll() is None:
            yield
            caught = signal.sigtimedwait((*PASSED_ON, signal.SIGCHLD), POLL_S)
            if caught is not None and caught.si_signo != signal.SIGCHLD and caught.si_code != FROM_THE_KERNEL:
                process.send_signal(caught.si_signo)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Signals wait until they are asked for. What Ctrl-C sends reaches the command by itself, and ends it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD))
    try:
        yield
    finally:
        while signal.sigtimedwait(PASSED_ON, 0) is not None:
            pass  # the command has it, and has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        self._numbers: dict[int, int] = {}  # of the log's iterations, by sample: those of episodes
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
                places = {name: getattr(episode, name) for name in PLACES if getattr(episode, name) is not None}
                known = all(place in self._numbers for place in places.values())
                numbers = {name: self._numbers[place] for name, place in places.items()} if known else None
                found.append(FailSlow.of(episode, scope=seen.scope, evidence=seen.evidence, iterations=numbers))
        events = tuple(sorted(found, key=lambda event: event.onset))
        return FileFindings(file, self.series.kind, self.samples, self.usual_s, events)

    def _heard(self, changes: tuple[EpisodeChange, ...], phase: int) -> tuple[EpisodeChange, ...]:
        for change in changes:
            for name in PLACES:  # what the log calls these samples: at the end it may be too late to ask
                place = getattr(change.episode, name)
                number = None if place is None else self.iteration_of(place)
                if number is not None:
                    self._numbers[place] = number
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
