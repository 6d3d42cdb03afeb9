"""Logs that tell of iterations and nothing else: the formats of `rtk detect`, as happenings."""

import re
from collections.abc import Iterator
from typing import ClassVar

from ...failslow.readers.formats import Csv, DlLogger, JsonLines, MlPerf, NanoGpt, header_of
from ...failslow.readers.lines import number_in, number_text
from ...failslow.readers.reading import LineReader
from ...failslow.readers.stamps import LineClock, unix_time
from ..happenings import Happening, LogPlace
from .reader import HappeningReader, LineContext, Progress, text_of, unreadable_line

_JSON_CLOCK = re.compile(rb'"(?:unix_time_s|timestamp|time|t)"\s*:\s*"?([^",}]{1,40})')


class SeriesLog(HappeningReader):
    """A log that `rtk detect` reads; lines that do not number their iterations are counted.

    Attributes:
        KIND: its reader there.
        FIRST: the number that the first iteration has in such logs.
    """

    KIND: ClassVar[type[LineReader]]
    FIRST: ClassVar[int] = 1

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._times, self._progress = self.KIND(), Progress()
        self._count = 0

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """The iteration that a line tells of."""
        reading = self._times.read(line)
        if reading is None:
            return
        self._count += 1
        number = reading.iteration + 1 - self.FIRST if reading.iteration is not None else self._count
        yield Happening(
            "iteration",
            self._time_s(line),
            around.place,
            reading.time_s if self._times.per == "iteration" else None,
            number,
            ranks=(reading.rank,) if reading.rank else (),
            steps=self._progress.steps(number, reading.rank),
        )

    def _time_s(self, line: bytes) -> float | None:
        return self.clock.of(line)


class NanoGptLog(SeriesLog):
    """nanoGPT and its descendants, whose first iteration is 0, and which evaluate first."""

    NAME = "nanogpt"
    MARKS = (b"loss",)
    KIND, FIRST = NanoGpt, 0

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._times = NanoGpt(has_evaluated=True)

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """An iteration, or an evaluation, whose time is in that of the iteration after it."""
        if b"train loss" in line and (number := number_in(NanoGpt.EVALUATION, line)) is not None:
            yield Happening("evaluation", self.clock.of(line), around.place, None, number)
        else:
            yield from super().read(line, around)


class MlPerfLog(SeriesLog):
    """MLPerf's tracked statistics."""

    NAME = "mlperf"
    MARKS = (b":::MLLOG",)
    KIND = MlPerf


class DlLoggerLog(SeriesLog):
    """DLLogger's lines of MLPerf's graph network."""

    NAME = "dllogger"
    MARKS = (b"iteration_time",)
    KIND = DlLogger


class CsvRows(SeriesLog):
    """A table with a column that says how long an iteration took."""

    NAME = "csv"
    KIND = Csv


class JsonRows(SeriesLog):
    """JSON lines that say how long an iteration took."""

    NAME = "jsonl"
    KIND = JsonLines

    def _time_s(self, line: bytes) -> float | None:
        match = _JSON_CLOCK.search(line)
        return unix_time(match[1], self.clock) if match else None


_TIMING = re.compile(r"(?:\w+_)?(?:step|iter|iteration|batch)_?(?:time|timing|duration)(?:_in)?_(s|ms)")
_NOT_TRAINING = ("val", "test", "epoch", "step")  # how names begin that a row of an evaluation has
_CLOCKS = ("timestamp", "time", "created_at", "wall_time", "unix_time_s", "date")


class LightningCsv(HappeningReader):
    """Lightning's `metrics.csv`: a row whenever something was logged, under names that the model chose.

    `step` counts from 0. How long it took is in a column such as `train_step_timing in s`, the clock in one such as
    `timestamp`; a table without both tells of iterations only, and something else must say when they were. Each file is
    an attempt of its own (`version_0`, `version_1`), which begins with its first iteration.
    """

    NAME: ClassVar[str] = "lightning"

    def __init__(self, clock: LineClock) -> None:
        super().__init__(clock)
        self._progress = Progress()
        self._names: list[str] = []
        self._separator = ","
        self._told: int | None = None
        self._head: LogPlace | None = None  # the line of names, until its attempt is told

    def read(self, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a row tells."""
        if not line.strip():
            return
        if not self._names:
            self._separator, self._names = header_of(text_of(line))
            self._head = around.place
            return
        cells = text_of(line).split(self._separator)
        if len(cells) != len(self._names):
            raise unreadable_line("a row has more or fewer cells than there are names")
        row = {name: cell for name, cell in zip(self._names, cells, strict=True) if cell}
        step = row.get("step", "")
        stamp = next((row[name] for name in _CLOCKS if name in row), None)
        time_s = unix_time(stamp.encode(), self.clock) if stamp else None
        if self._told is not None and not any(
            not name.startswith(_NOT_TRAINING) for name in row if name not in _CLOCKS
        ):
            number = int(step) + 1 if step.isdecimal() else self._told
            yield Happening("evaluation", time_s, around.place, None, number)
            return
        if not step.isdecimal() or int(step) + 1 == self._told:
            return
        self._told = number = int(step) + 1
        took_s, steps = _took_s(row), self._progress.steps(number, None)
        head, self._head = self._head, None
        if head is not None:  # how many iterations its first row stands for is known only with those before it
            yield Happening("start", None, head)
        yield Happening("iteration", time_s, around.place, took_s, number, steps=steps)

    def finish(self) -> Iterator[Happening]:
        """An attempt that came to no row."""
        if self._head is not None:
            yield Happening("start", None, self._head)


def _took_s(row: dict[str, str]) -> float | None:
    for name, cell in row.items():
        if match := _TIMING.fullmatch(name):
            try:
                took_s = float(number_text(cell.encode())) * (1e-3 if match[1] == "ms" else 1.0)
            except ValueError:
                raise unreadable_line(f"{name} is no number") from None
            return took_s if 0 < took_s < float("inf") else None
    return None
