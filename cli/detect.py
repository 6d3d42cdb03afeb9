"""`rtk detect`: what is slow in logs of a job."""

import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM, source_of, write_bytes
from ..schemas.log_formats import LogFormat
from ..schemas.quantities import print_time
from ..schemas.text import counted
from ..viz.style import PICTURE_ENDINGS
from .console import Common, Writes, ends_quietly, grouped, picture_ending, print_document

if TYPE_CHECKING:
    from rich.table import Table

    from ..profilers.detecting import LogReader
    from ..profilers.failslow.monitor.watch import LogMonitor
    from ..profilers.failslow.tracker import EpisodeChange
    from ..schemas.detection import FailSlow, FileFindings


FIX = f"end it in {', '.join(PICTURE_ENDINGS)}, or these and .gz; --json prints the findings"


@grouped
def command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Logs of iteration times, call logs, Flight Recorder dumps, traces, tables of operations, .gz or not. "
            "`-` is stdin, for logs of iteration times and call logs."
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on reading as the log (or stdin) grows, until Ctrl-C or its end.")
    ] = False,
    format_name: Annotated[
        LogFormat | None,
        typer.Option("--format", help="Read the files as this; else it is recognised."),
    ] = None,
    mode: Annotated[
        Literal["robust", "paper"],
        typer.Option("--mode", help="The detector: the default one, or the one that the paper describes."),
    ] = "robust",
    shortest: Annotated[
        int | None,
        typer.Option(
            "--shortest", min=3, help="How many slow iterations it takes to confirm a fail-slow; 10 by default."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help=f"A picture ({', '.join(PICTURE_ENDINGS)}); .gz compresses."),
        Writes(),
    ] = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything is slow.")] = False,
    *,
    common: Common,
) -> None:
    """Find fail-slows: when each began, was confirmed and went away, how slow it was, and where it comes from.

    Logs of iteration times are those of Megatron-LM, torchtitan, nanoGPT, MLPerf and rtk run --json, CSV and JSON lines
    with iter_s, iter_ms or t, or one number (in s) a line. They are read line by line, however long they are.

    With --follow, what changes is told line by line as it happens, and everything once more at the end; with --json the
    one document comes at the end, and the lines go to standard error. Of a call log, what one rank tells is followed;
    whole files of it are compared rank by rank.
    """
    from ..profilers.detecting import LogReader, detect_files
    from ..profilers.failslow.tracker import SHORTEST, fewest_samples
    from ..schemas.detection import Detection
    from ..viz.detection import Panel, Thinned, drawn_detection

    ending = picture_ending(output, PICTURE_ENDINGS, FIX) if output is not None else None
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    if follow and len(files) > 1:
        raise InvalidInputError(
            f"{len(files)} files to be followed",
            where="--follow",
            fix="give one file, and each other its own rtk detect",
        )
    if format_name == "operations" and (follow or STANDARD_STREAM in files):
        raise InvalidInputError(
            "tables of operations are read as whole files",
            where="--format operations",
            fix="leave --follow out, and give files",
        )
    curves: defaultdict[int, Thinned] = defaultdict(Thinned)

    def observe(number: int, time_s: float) -> None:
        if output is not None:
            curves[number].note(time_s)

    if follow:
        reader = LogReader(files[0], mode, shortest or SHORTEST, format_name, partial(observe, 0))
        found = Detection((_followed(files[0], reader, common),))
    else:
        found = detect_files(files, format_name=format_name, mode=mode, shortest=shortest or SHORTEST, observe=observe)
    if output is not None and ending is not None:
        panels = [Panel(one, curves[number].points()) for number, one in enumerate(found.files)]
        write_bytes(output, drawn_detection(panels, "Iteration times, and what was slow", ending))
        remark(f"wrote {output}")
    if common.as_json:
        print_document(found)
    else:
        print_findings(found.files, fewest_samples(mode, shortest or SHORTEST))
    if exit_code and any(one.events for one in found.files):
        raise typer.Exit(1)


def _followed(file: str, reader: "LogReader", common: Common) -> "FileFindings":
    """The findings of a log that grows: each change is printed as it comes; Ctrl-C (or SIGTERM) ends it."""
    from ..profilers.failslow.readers.reading import growing_lines

    interrupts, stream = _Interrupts(), sys.stderr if common.as_json else sys.stdout
    with interrupts:
        for line in growing_lines(file, reader.wait, remark):
            with interrupts.put_off():
                for change in reader.read(line):
                    if not (common.as_json and common.quiet):
                        print(words_of(change, reader.watch, source_of(file)), file=stream, flush=True)
    return reader.finish()


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


# What `rtk detect` says: a table of what was found, and a line for each change while a log grows.


UNWRAPPED = 10_000  # columns, where no terminal says how many there are


def print_findings(findings: "Sequence[FileFindings]", fewest: int) -> None:
    """A paragraph a file: what it is, a table of what was slow in it, and what speaks for that.

    Args:
        findings: of each file.
        fewest: so many samples it takes to find anything.
    """
    from rich.console import Console

    from ..viz.detection import nothing_slow, words_of_attribution

    console = ends_quietly(Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else UNWRAPPED))
    for index, one in enumerate(findings):
        if index:
            console.print()
        parts = [f"{source_of(one.file)}: {one.kind}", counted(one.samples, "sample")]
        if one.usual_s is not None:
            parts.append(f"usually {print_time(one.usual_s)}")
        parts.append(counted(len(one.events), "fail-slow") if one.events else nothing_slow(one, fewest))
        if one.attribution is not None:
            parts.append(words_of_attribution(one.attribution))
        console.print(", ".join(parts))
        if one.events:
            console.print(_table(one.events))
            for event in one.events:
                for line in _evidence(event, console.width):
                    console.print(line)


def _evidence(event: "FailSlow", width: int) -> list[str]:
    """What speaks for a fail-slow, in lines of a terminal."""
    said = f"since {event.places['onset']}: {'; '.join(event.evidence)}"
    return wrap(said, width, subsequent_indent="  ") if event.evidence else []


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
    return f"sample {place}" if iteration is None else f"iteration {iteration}"


def _table(events: "Sequence[FailSlow]") -> "Table":
    """A row an event; the first column says whether places are the log's own iterations."""
    from rich.table import Table
    from rich.text import Text

    from ..viz.detection import COLUMNS, cells_of

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    unit = "iteration" if all(event.iterations for event in events) else "sample"
    for number, name in enumerate(COLUMNS):
        is_place = number < len(COLUMNS) - 2
        table.add_column(f"{name} {unit}" if number == 0 else name, justify="right" if is_place else "left")
    for event in events:
        table.add_row(*map(Text, cells_of(event)))
    return table
