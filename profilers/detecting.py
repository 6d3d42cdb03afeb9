"""What is slow in files: logs line by line, calls and tables of operations as whole files."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from ..schemas.detection import Detection, FileFindings
from ..schemas.files import STANDARD_STREAM, source_of
from ..schemas.log_formats import LogFormat, SeriesFormat
from .failslow.monitor.watch import LogMonitor
from .failslow.readers.reading import IterationSample, Line, lines_of
from .failslow.tracker import SHORTEST, EpisodeChange, Mode

POLL_S = 0.2


def detect_files(
    files: Sequence[str],
    *,
    format_name: LogFormat | None = None,
    mode: Mode = "robust",
    shortest: int = SHORTEST,
    observe: Callable[[int, float], None] = lambda number, time_s: None,
) -> Detection:
    """Find fail-slows in logs of iteration times, of calls, and in traces: `rtk detect`.

    Args:
        files: in any of the formats; call logs of one job, a file a rank, are looked at together. "-" is standard
            input, for a log of iteration times.
        format_name: read the files as this; None: it is recognised.
        mode: "robust", or the "paper" one.
        shortest: so many slow iterations confirm a fail-slow.
        observe: hears of every iteration time, after its file's place among the findings.

    Returns:
        The findings of each file, in their order.

    Raises:
        InvalidInputError: a file cannot be read, or makes no sense.
    """
    from .failslow.attribution import what_if
    from .failslow.calls import formats

    kinds = {file: _kind(file, format_name) for file in files}
    calls = [file for file in files if kinds[file] == "calls"]
    found: list[FileFindings] = []
    for file in files:
        if kinds[file] == "operations":
            found.append(what_if.findings_of(Path(file)))
        elif kinds[file] == "series":
            reader = LogReader(file, mode, shortest, format_name, partial(observe, len(found)))
            for line in lines_of(file):
                for _ in reader.read(line):
                    pass
            found.append(reader.finish())
        elif file == calls[0]:
            found += formats.findings_of([Path(one) for one in calls], mode, shortest)
            calls = [""]
    return Detection(tuple(found))


class LogReader:
    """Watches one log of iteration times, line by line.

    Args:
        file: what it is called; `-` is standard input.
        mode, shortest: as for `detect_files`.
        name: of its format, `format_name` there.
        observe: hears of every iteration time.

    Attributes:
        watch: what knows the episodes so far.
    """

    def __init__(
        self, file: str, mode: Mode, shortest: int, name: LogFormat | None, observe: Callable[[float], None]
    ) -> None:
        self._file, self._observe = file, observe
        self.watch = LogMonitor(source_of(file), mode, shortest, name if name in get_args(SeriesFormat) else None)

    def read(self, line: Line) -> Iterator[EpisodeChange]:
        """The next line, and what changed with it."""
        return self._note(self.watch.read(line.data, line.is_cut))

    def wait(self) -> bool:
        """Nothing to read: sleep a little, unless the log has said that nothing will follow."""
        if self.watch.series.is_over:
            return False
        time.sleep(POLL_S)
        return True

    def finish(self) -> FileFindings:
        """The log is over."""
        for _ in self._note(self.watch.series.finish()):
            pass
        self.watch.finish()
        return self.watch.findings(self._file)

    def _note(self, samples: Iterable[IterationSample]) -> Iterator[EpisodeChange]:
        for sample in samples:
            self._observe(sample.time_s)
            yield from self.watch.note(sample)


def _kind(file: str, format_name: LogFormat | None) -> Literal["series", "calls", "operations"]:
    """How a file is to be read."""
    from .failslow.attribution.what_if import is_operation_table
    from .failslow.calls.formats import is_call_file

    if file != STANDARD_STREAM and format_name in ("calls", "operations"):
        return format_name
    if file == STANDARD_STREAM or format_name is not None or not Path(file).is_file():
        return "series"
    return "operations" if is_operation_table(Path(file)) else "calls" if is_call_file(Path(file)) else "series"
