"""What `rtk detect` finds in each kind of file: logs line by line, calls and operations as whole files."""

import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..profilers.failslow.monitor.watch import LogMonitor
from ..profilers.failslow.readers.reading import Line, growing_lines, lines_of
from ..schemas.detection import FailSlow, FileFindings
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.text import counted
from ..viz.detection import Point, Thinned, words_of_attribution
from ..viz.units import print_time
from .console import ends_quietly, remark
from .detect import LogFormat

if TYPE_CHECKING:
    from rich.table import Table

    from ..profilers.failslow.readers.reading import IterationSample
    from ..profilers.failslow.tracker import EpisodeChange


POLL_S = 0.2


@dataclass(frozen=True)
class DetectionRequest:
    """What is asked of every file: the detector's settings, the format if it is known, and whether there is to be a
    picture."""

    mode: Literal["robust", "paper"]
    shortest: int
    format_name: LogFormat | None
    is_drawn: bool


@dataclass(frozen=True)
class DetectionResult:
    """The findings of a file, and its times as few points, where they are to be drawn."""

    findings: FileFindings
    points: tuple[Point, ...] = ()


def examined(files: list[str], question: DetectionRequest) -> list[DetectionResult]:
    """The findings of all files, in their order; call logs of one job, a file a rank, are looked at together.

    Raises:
        InvalidInputError: a file cannot be read, or makes no sense.
    """
    kinds = {file: _kind(file, question.format_name) for file in files}
    calls = [file for file in files if kinds[file] == "calls"]
    found: list[DetectionResult] = []
    for file in files:
        if kinds[file] == "operations":
            found.append(_operations(file))
        elif kinds[file] == "series":
            found.append(_log(file, question))
        elif file == calls[0]:
            found += _calls(calls, question)
            calls = [""]
    return found


def followed(file: str, question: DetectionRequest, as_json: bool, quiet: bool) -> list[DetectionResult]:
    """The findings of a log that grows: each change is printed as it comes; Ctrl-C (or SIGTERM) ends it.

    Args:
        file: `-` is standard input.
        question: what is asked.
        as_json: standard output belongs to a document.
        quiet: with as_json, no lines at all.
    """
    eye, interrupts = _Eye(file, question), _Interrupts()
    stream = sys.stderr if as_json else sys.stdout
    with interrupts:
        for line in growing_lines(file, eye.wait, remark):
            with interrupts.put_off():
                for change in eye.read(line):
                    if not (as_json and quiet):
                        print(words_of(change, eye.watch, source_of(file)), file=stream, flush=True)
    return [eye.finish()]


class _Interrupts:
    """Ctrl-C and SIGTERM end what is done within, and not the program; what is begun is done first.

    What was found is worth telling, also to a batch system that ends the job.
    """

    def __init__(self) -> None:
        self._is_busy = self._has_come = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._come)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return kind is KeyboardInterrupt

    @contextmanager
    def put_off(self) -> Iterator[None]:
        """Not in the middle of this."""
        self._is_busy = True
        yield
        self._is_busy = False
        if self._has_come:
            raise KeyboardInterrupt

    def _come(self, number: int, frame: object) -> None:
        if self._has_come or not self._is_busy:  # who asks twice is in a hurry
            raise KeyboardInterrupt
        self._has_come = True


class _Eye:
    """Watches one log, and remembers what a picture needs."""

    def __init__(self, file: str, question: DetectionRequest) -> None:
        self._file = file
        asked = question.format_name
        name = asked.value if asked is not None and asked.is_series else None
        self.watch = LogMonitor(source_of(file), question.mode, question.shortest, name)
        self._thinned = Thinned() if question.is_drawn else None

    def read(self, line: Line) -> "Iterator[EpisodeChange]":
        """The next line, and what changed with it."""
        return self._note(self.watch.read(line.data, line.is_cut))

    def wait(self) -> bool:
        """Nothing to read: sleep a little, unless the log has said that nothing will follow."""
        if self.watch.series.is_over:
            return False
        time.sleep(POLL_S)
        return True

    def finish(self) -> DetectionResult:
        """The log is over."""
        for _ in self._note(self.watch.series.finish()):
            pass
        self.watch.finish()
        points = tuple(self._thinned.points()) if self._thinned is not None else ()
        return DetectionResult(self.watch.findings(self._file), points)

    def _note(self, samples: "Iterable[IterationSample]") -> "Iterator[EpisodeChange]":
        for sample in samples:
            if self._thinned is not None:
                self._thinned.note(sample.time_s)
            yield from self.watch.note(sample)


def _log(file: str, question: DetectionRequest) -> DetectionResult:
    eye = _Eye(file, question)
    for line in lines_of(file):
        for _ in eye.read(line):
            pass
    return eye.finish()


def _kind(file: str, format_name: LogFormat | None) -> Literal["series", "calls", "operations"]:
    """How a file is to be read."""
    if file == STANDARD_STREAM:
        return "series"
    if format_name is not None:
        return "series" if format_name.is_series else "calls" if format_name.value == "calls" else "operations"
    if not Path(file).is_file():
        return "series"
    from ..profilers.failslow.attribution.what_if import is_operation_table
    from ..profilers.failslow.calls.formats import is_call_file

    path = Path(file)
    return "operations" if is_operation_table(path) else "calls" if is_call_file(path) else "series"


def _calls(files: list[str], question: DetectionRequest) -> list[DetectionResult]:
    from ..profilers.failslow.calls.formats import findings_of

    paths = [Path(file) for file in files]
    return [DetectionResult(findings) for findings in findings_of(paths, question.mode, question.shortest)]


def _operations(file: str) -> DetectionResult:
    from ..profilers.failslow.attribution.what_if import findings_of

    return DetectionResult(findings_of(Path(file)))


# What `rtk detect` says: a table of what was found, and a line for each change while a log grows.


UNWRAPPED = 10_000  # columns, where no terminal says how many there are


def print_findings(findings: Sequence[FileFindings]) -> None:
    """A paragraph a file: what it is, and a table of what was slow in it."""
    from rich.console import Console

    console = ends_quietly(Console(highlight=False, width=None if sys.stdout.isatty() else UNWRAPPED))
    for index, one in enumerate(findings):
        if index:
            console.print()
        console.print(_heading(one), markup=False)
        if one.events:
            console.print(_table(one.events))


def words_of(change: "EpisodeChange", watch: "LogMonitor", source: str) -> str:
    """The line for a change.

    Args:
        change: of what is known of an episode.
        watch: which has just noted the sample that changed it.
        source: what the log is called.
    """
    episode = change.episode
    since = f"since {_place(episode.onset, watch)}"
    how = f"{episode.severity:.2f} x the usual time"
    match change.kind:
        case "provisional":
            words = f"suspicion: {how} {since}"
        case "dismissed":
            words = f"dismissed: what was suspected {since} has come to nothing"
        case "confirmed":
            words = f"confirmed: slow {since}, {how}"
        case "level":
            words = f"changed: now {how}, slow {since}"
        case "relief":
            assert episode.relief is not None
            count = episode.relief - episode.onset
            words = f"relief: as usual again since {_place(episode.relief, watch)}, after {count} samples at {how}"
    return f"{source}, {_place(watch.samples - 1, watch)}: {words}"


def _place(place: int, watch: "LogMonitor") -> str:
    iteration = watch.iteration_of(place)
    return f"sample {place}" if iteration in (None, place) else f"sample {place} (iteration {iteration})"


def _heading(found: FileFindings) -> str:
    usual = "too few to know what is usual" if found.usual_s is None else f"usually {print_time(found.usual_s)}"
    slow = counted(len(found.events), "fail-slow") if found.events else "nothing slow"
    parts = [f"{source_of(found.file)}: {found.kind}", counted(found.samples, "sample"), usual, slow]
    if found.attribution is not None:
        parts.append(words_of_attribution(found.attribution))
    return ", ".join(parts)


def _table(events: Sequence[FailSlow]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("onset", "suspected", "confirmed", "relief", "severity"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cause", no_wrap=True)
    for name in ("scope", "evidence"):
        table.add_column(name, overflow="fold")
    for event in events:
        places = (event.onset, event.provisional, event.confirmed, event.relief)
        cells = ["-" if place is None else str(place) for place in places]
        scope = " ".join([event.scope.kind, ", ".join(event.scope.names)]).strip()
        texts = (*cells, f"{event.severity:.2f} x", event.cause, scope, "; ".join(event.evidence))
        table.add_row(*map(Text, texts))
    return table
