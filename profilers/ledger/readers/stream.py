"""One log, or the files that a log was rotated into, as happenings: which program wrote it, and what it says.

Reading is fast because most lines say nothing: a block of them is searched for the marks of readers, and only lines
with a mark are looked at.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from datetime import tzinfo

from ....schemas.errors import InvalidInputError
from ....schemas.files import source_of
from ...failslow.readers.formats import Csv, JsonLines, header_of, names_a_time, plain_name, rows_by_first_line
from ...failslow.readers.lines import plain
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening, LogPlace
from ..log_count import LogCount
from .blocks import LogBlock, blocks_of
from .deepspeed import DeepSpeedLog
from .launchers import Launchers
from .marks import MarkSearch
from .megatron import MegatronLog
from .nemo import NemoLog
from .nvrx import CycleEvents
from .patterns import PatternLog
from .reader import HappeningReader, LineContext
from .series import CsvRows, DlLoggerLog, JsonRows, LightningCsv, MlPerfLog, NanoGptLog
from .torchtitan import TorchTitanEvents, TorchTitanLog

# Logs recognise themselves: the first of these that finds an iteration reads on. What Megatron-DeepSpeed writes has the
# lines of both programs, so Megatron comes first.
_LOGS: tuple[type[HappeningReader], ...] = (
    MegatronLog,
    NemoLog,
    TorchTitanLog,
    TorchTitanEvents,
    DeepSpeedLog,
    MlPerfLog,
    DlLoggerLog,
    NanoGptLog,
)
_ROWS: tuple[type[HappeningReader], ...] = (LightningCsv, CsvRows, JsonRows)
# Beside any of them.
_COMMON: tuple[type[HappeningReader], ...] = (Launchers, CycleEvents)
READERS: dict[str, type[HappeningReader]] = {kind.NAME: kind for kind in (*_LOGS, *_ROWS)}
_MOST_HELD = 100_000  # happenings, until it is known who has written the log
_LIGHTNING = {"step", "epoch"}
_KEY = re.compile(rb'"([^"\\]{1,40})"\s*:')


class _ReaderAtWork:
    """A reader, and what it has found as long as nobody knows whether it is the right one."""

    def __init__(self, reader: HappeningReader) -> None:
        self.reader = reader
        self.held: list[Happening] = []
        self.has_iterations = False
        self.garbled: list[tuple[str, str]] = []


class LogStream:
    """Reads the files of one log, one after the other.

    Args:
        files: in their order.
        count: hears of lines, formats and what is odd.
        zone: of stamps that name none.
        name: of the format; None: it is recognised.
        patterns: a user's own expressions: the format, where one of them tells of iterations, and else beside it.
    """

    def __init__(
        self,
        files: Sequence[str],
        count: LogCount,
        zone: tzinfo,
        name: str | None = None,
        patterns: Sequence[str] = (),
    ) -> None:
        self.files, self._count = files, count
        self._clock = LineClock(zone)
        self._chosen: list[_ReaderAtWork] = []
        self._common = [_ReaderAtWork(kind(self._clock)) for kind in _COMMON]
        self._candidates: list[_ReaderAtWork] = []
        self._search: MarkSearch | None = None  # for what all of them listen to
        self._told_at: LogPlace | None = None  # the last line that was counted
        self.format = name
        if name is not None:
            self._chosen.append(_ReaderAtWork(READERS[name](self._clock)))
        if patterns:
            own = PatternLog(self._clock, patterns)
            if own.tells_iterations:
                self._chosen.append(_ReaderAtWork(own))
                self.format = name or own.NAME
            else:
                self._common.append(_ReaderAtWork(own))

    def __iter__(self) -> Iterator[Happening]:
        """What the files tell, in the order of their lines.

        Raises:
            InvalidInputError: a file cannot be read, or is binary.
        """
        for file in self.files:
            yield from self._file(file)
        yield from self._decided(is_over=True)
        for listener in (*self._chosen, *self._common):
            for told in listener.reader.finish():
                self._count.telling += told.where != self._told_at
                yield told
        if self._clock.has_guessed_year:
            self._count.remark("stamps say no year: 2000 is taken for it", source_of(self.files[0]))

    def _file(self, file: str) -> Iterator[Happening]:
        around, lines, is_cut = LineContext(source_of(file)), 0, False
        self._count.files += 1
        self._count.formats[around.file] = self.format
        is_first = True
        for block in blocks_of(file, self._count):
            if is_first:
                self._begin(block)
                self._clock.look_ahead(block.data)
                is_first = False
            lines = yield from self._block(block, lines, around)
            yield from self._decided(is_over=False)
            self._count.formats[around.file] = self.format
            is_cut = not block.data.endswith((b"\n", b"\r"))
        self._count.lines += lines
        if is_cut and self._told_at != LogPlace(around.file, lines):
            self._count.garbled += 1
            self._count.remark("the last line is cut off", f"{around.file}:{lines}")

    def _begin(self, block: LogBlock) -> None:
        """Rows are known by their first line; for logs, all readers listen."""
        if self._chosen or self._candidates:
            return
        first = next((line for line in block.data[:AHEAD].split(b"\n") if line.strip()), b"")
        kind = _row_reader(first)
        if kind is not None:
            self._chosen = [_ReaderAtWork(kind(self._clock))]
            self.format = kind.NAME
        else:
            self._candidates = [_ReaderAtWork(log(self._clock)) for log in _LOGS]

    def _block(self, block: LogBlock, lines: int, around: LineContext) -> Generator[Happening, None, int]:
        """What a block tells, after so many lines; how many there are with it."""
        data, end = block
        listeners = [*self._chosen, *self._candidates, *self._common]
        if self._search is None:
            self._search = MarkSearch([listener.reader.MARKS for listener in listeners])
        begin = stop = counted = 0
        number, line, seen = lines + 1, b"", 0
        for at, place in self._search.hits(data, end):
            if at >= stop or not line:
                begin = data.rfind(b"\n", 0, at) + 1
                found = data.find(b"\n", at, end)
                stop = end if found < 0 else found + 1  # of a bar, the rest comes again
                number += data.count(b"\n", counted, begin)
                counted, seen, line = begin, 0, data[begin : end if found < 0 else found]
                around.move(number, data, stop - 1)
            if not seen >> place & 1:
                seen |= 1 << place
                if b"\r" in line:
                    yield from self._drawn(listeners[place], line, around)
                else:
                    yield from self._heard(listeners[place], plain(line), around)
        number += data.count(b"\n", counted, end) - 1
        return number + (end == len(data) and not data.endswith(b"\n"))

    def _drawn(self, listener: _ReaderAtWork, line: bytes, around: LineContext) -> Iterator[Happening]:
        """What a line tells whose parts were drawn over each other, as of a progress bar."""
        reader, at = listener.reader, 0
        while at < len(line):
            found = line.find(b"\r", at)
            stop = len(line) if found < 0 else found
            part = line[at:stop]
            if part and (not reader.MARKS or any(mark in part for mark in reader.MARKS)):
                yield from self._heard(listener, plain(part), around)
            run, at = reader.read_run(line, stop + 1, around)
            if run is not None:
                yield from self._noted(listener, (run,))

    def _heard(self, listener: _ReaderAtWork, line: bytes, around: LineContext) -> Sequence[Happening]:
        """What one line tells one reader: held as long as nobody is chosen."""
        try:
            told = list(listener.reader.read(line, around))
        except InvalidInputError as error:
            listener.garbled.append((error.what.partition(":")[0], str(around.place)))
            if not self._candidates:
                self._note_garbled(listener)
            return ()
        return self._noted(listener, told)

    def _noted(self, listener: _ReaderAtWork, told: Sequence[Happening]) -> Sequence[Happening]:
        """What of it is told now."""
        if not self._candidates:
            for one in told:
                # A bar is drawn in one line many times, and two readers may listen to a line.
                self._count.telling += one.where != self._told_at
                self._told_at = one.where
            return told
        listener.held += told
        listener.has_iterations = listener.has_iterations or any(one.kind == "iteration" for one in told)
        return ()

    def _decided(self, is_over: bool) -> Iterator[Happening]:
        """Choose the format once an iteration was told, and tell what was held."""
        if not self._candidates:
            return
        best = next((one for one in self._candidates if one.has_iterations), None)
        if best is not None:
            self.format = best.reader.NAME
        elif is_over or sum(len(one.held) for one in (*self._candidates, *self._common)) > _MOST_HELD:
            best = max(self._candidates, key=lambda one: len(one.held))
        if best is None:
            return
        self._chosen, self._candidates, self._search = [best], [], None
        heard = [best, *self._common]
        held = [told for listener in heard for told in listener.held]
        for listener in heard:
            listener.held = []
            self._note_garbled(listener)
        order = {source_of(file): place for place, file in enumerate(self.files)}
        held.sort(key=lambda told: (order[told.where.file], told.where.line))
        self._count.telling += len({told.where for told in held})
        self._told_at = held[-1].where if held else None
        yield from held

    def _note_garbled(self, listener: _ReaderAtWork) -> None:
        for what, where in listener.garbled:
            self._count.garbled += 1
            self._count.remark(f"not understood: {what}", where)
        listener.garbled = []


AHEAD = 1 << 16  # of a file, where its first line is looked for


def _row_reader(first: bytes) -> type[HappeningReader] | None:
    """The reader of rows with such a first line; None: it is a log."""
    if b'"log_type_name"' in first or b":::MLLOG" in first:
        return None
    try:
        _, names = header_of(first.decode("utf-8"))
    except (InvalidInputError, UnicodeDecodeError):
        names = []
    if _LIGHTNING.issubset(names):
        return LightningCsv
    rows = rows_by_first_line(first)
    if isinstance(rows, JsonLines):
        keys = [plain_name(key.decode("utf-8", "replace")) for key in _KEY.findall(first)]
        return JsonRows if "event" in keys or names_a_time(keys) else None  # else lines of a log, wrapped in JSON
    return CsvRows if isinstance(rows, Csv) else None
