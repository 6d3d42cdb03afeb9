"""Which format a log has: as its first line says, or else by the first line that one of the known programs writes."""

import csv
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from ....schemas.detection import Episode
from ....schemas.documents import unique_keys
from ....schemas.errors import InvalidInputError
from ....schemas.quantities import print_apart, print_time
from ..tracker import EpisodeChange, Mode, Tracker
from .lines import NUMBER, number_in, number_text, plain, rank_of
from .reading import LONGEST_S, SECONDS_OF, LineReader, LineReading, checked_time, number_of, printed, whole_number_of
from .stamps import LineClock

# Rows with named values: CSV, JSON lines (those of `rtk run --json` among them), and bare numbers.
#
# A row says `iter_s`, `iter_ms`, `iter_us` or `iter_ns` (or `iteration_time_s`, `Step time (ms)`, `duration_s`, ...:
# units stand in names; `iter_time` is in seconds), or only when it ended (`t`, in s); and where it can `iter`, `rank`,
# `tokens` and `tag`.


_TIME = re.compile(r"(?:iter|iteration|step)(?:_time|_duration)?_(s|ms|us|ns)|(?:iter|iteration|step)_time")
# What may as well be a clock, or the time of something else; looked at only where no name says more.
_VAGUE_TIME = re.compile(r"(?:time|duration|elapsed|elapsed_time)_(s|ms|us|ns)")
_OTHER_CHARACTERS = re.compile(r"[^0-9a-z]+")
_NUMBERS = ("iter", "iteration", "step")
_TRAINING = ("train", "training")
_FIX = "name a column or key iter_s or iter_ms (how long each iteration took), or t (when it ended, in s)"
_SEPARATORS = ",;\t"
# Two times in one row may differ by rounding.
_SAME = 0.01


class Rows:
    """What rows with names tell; remembers when each rank's iteration before ended."""

    def __init__(self) -> None:
        self._ends: dict[str | None, tuple[float, int | None]] = {}

    def read(self, row: Mapping[str, Any]) -> LineReading | None:
        """What a row tells; None where it is of no training iteration, or says no time.

        Raises:
            InvalidInputError: a value is impossible.
        """
        rank = _text(row, "rank")
        iteration = _iteration(row)
        if (_text(row, "tag") or _TRAINING[0]) not in _TRAINING:
            end_s = _clock(row)
            if end_s is not None:
                before = self._ends.get(rank)
                self._ends[rank] = (end_s, before[1] if before else None)
            return None
        is_plain = any(_TIME.fullmatch(name) for name in row)
        time_s = _time_by(_TIME if is_plain else _VAGUE_TIME, row)
        if time_s is None:
            time_s = self._since_the_end_before(row, rank, iteration)
        return None if time_s is None else LineReading(time_s, iteration, rank, _size(row))

    def _since_the_end_before(self, row: Mapping[str, Any], rank: str | None, iteration: int | None) -> float | None:
        end_s = _clock(row)
        if end_s is None:
            return None
        before = self._ends.get(rank)
        self._ends[rank] = (end_s, iteration)
        if before is None:
            return None
        before_s, number = before
        count = iteration - number if iteration is not None and number is not None else 1
        if count < 1:  # a restarted job: what lies between is no iteration
            return None
        if end_s <= before_s:
            raise InvalidInputError(
                f"the clock t goes from {before_s:.15g} to {end_s:.15g}, not forward", fix="sort the rows by t"
            )
        return checked_time((end_s - before_s) / count, f"t is {end_s:.15g}")


@lru_cache(maxsize=1024)
def plain_name(name: str) -> str:
    """A name in small letters, digits and `_`: `Iteration time (ms)` is `iteration_time_ms`."""
    return _OTHER_CHARACTERS.sub("_", name.lower()).strip("_")


def names_a_time(names: Iterable[str]) -> bool:
    """Whether a row with such plain names tells how long an iteration took, or when it ended."""
    return any(name == "t" or _TIME.fullmatch(name) or _VAGUE_TIME.fullmatch(name) for name in names)


def _time_by(pattern: re.Pattern[str], row: Mapping[str, Any]) -> float | None:
    """The time that the names of one kind tell."""
    found: list[tuple[str, float]] = []
    for name, value in row.items():
        match = pattern.fullmatch(name)
        if match and value is not None and value != "":
            time_s = number_of(value, name) * SECONDS_OF[match[1] or "s"]
            found.append((name, checked_time(time_s, f"{name} is {value}")))
    if not found:
        return None
    (name, time_s), *others = found
    for other, other_s in others:
        if abs(other_s - time_s) > _SAME * time_s:
            apart = print_apart(time_s, other_s, print_time)
            raise InvalidInputError(
                f"{name} and {other} contradict each other: {' and '.join(apart)}",
                fix="correct the unit in one of the names, or keep one of them",
            )
    return time_s


def _clock(row: Mapping[str, Any]) -> float | None:
    value = _given(row, "t")
    if value is None:
        return None
    end_s = number_of(value, "t")
    if not abs(end_s) < float("inf"):
        raise InvalidInputError(f"the clock t is {value}", fix="write unix seconds, or leave t out")
    return end_s


def _iteration(row: Mapping[str, Any]) -> int | None:
    name = next((name for name in _NUMBERS if _given(row, name) is not None), None)
    return None if name is None else whole_number_of(row[name], name, "number the iterations 0, 1, 2, ...")


def _size(row: Mapping[str, Any]) -> float | None:
    value = _given(row, "tokens")
    if value is None:
        return None
    size = number_of(value, "tokens")
    if not 0 < size < float("inf"):
        raise InvalidInputError(f"tokens is {value}: not the size of an iteration", fix="give counts above 0")
    return size


def _given(row: Mapping[str, Any], name: str) -> Any:
    """What a row says under a name; None where that is nothing."""
    value = row.get(name)
    return None if value == "" else value


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = _given(row, name)
    return None if value is None else str(value).strip()


class JsonLines(LineReader):
    """One JSON object a line; of lines with an `event`, those of iterations."""

    NAME: ClassVar[str] = "jsonl"

    def __init__(self) -> None:
        super().__init__()
        self._rows = Rows()

    def read(self, line: bytes) -> LineReading | None:
        """What an object tells."""
        if not line.strip():
            return None
        row = parsed_object(line)
        if "event" in row:
            self.is_over = row["event"] == "end"
            if row["event"] != "iteration":
                return None
        if "op" in row and "t" in row:
            raise InvalidInputError(
                "these are communication calls, not iterations",
                fix="give them in a file of their own, and not as --format jsonl",
            )
        return self._rows.read({plain_name(name): value for name, value in row.items()})


def parsed_object(line: bytes) -> dict[str, Any]:
    """A line as a JSON object.

    Raises:
        InvalidInputError: it is none.
    """
    try:
        row = json.loads(line, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"not valid JSON: {error}", fix="give one object a line, and nothing else in the file"
        ) from None
    if not isinstance(row, dict):
        raise InvalidInputError(f"not a JSON object: {printed(line)}", fix=_FIX)
    return row


class Csv(LineReader):
    """Comma-separated values (or semicolons, or tabs) under a line of names."""

    NAME: ClassVar[str] = "csv"

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._header, self._separator = "", ","
        self._rows = Rows()

    def read(self, line: bytes) -> LineReading | None:
        """What a row tells; the first line is that of names."""
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            what = f"not UTF-8 text (byte {error.start} of the line)"
            raise InvalidInputError(what, fix="write it as UTF-8") from None
        if not text or text.startswith("#"):
            return None
        if not self._names:
            self._header, (self._separator, self._names) = text, header_of(text)
            if not names_a_time(self._names):
                raise InvalidInputError(f"no column tells the time of an iteration: {printed(line)}", fix=_FIX)
            return None
        if text == self._header:  # a restarted job has appended to the file
            return None
        cells = _cells(text, self._separator)
        if len(cells) != len(self._names):
            raise InvalidInputError(
                f"{len(cells)} cells under {len(self._names)} names", fix="give each row a cell for each name"
            )
        return self._rows.read(dict(zip(self._names, cells, strict=True)))


def header_of(text: str) -> tuple[str, list[str]]:
    """The separator of a line of names, and the names.

    Raises:
        InvalidInputError: a name stands there twice, or quotes are not closed.
    """
    separator = max(_SEPARATORS, key=text.count)
    names = [plain_name(name) for name in _cells(text.removeprefix("\ufeff"), separator)]
    doubled = next((name for name in names if name and names.count(name) > 1), None)
    if doubled is not None:
        raise InvalidInputError(f"the name {doubled!r} stands there twice", fix="give each column a name of its own")
    return separator, names


def _cells(text: str, separator: str) -> list[str]:
    try:
        (cells,) = csv.reader([text], delimiter=separator, strict=True)
    except (csv.Error, ValueError) as error:
        raise InvalidInputError(f"not valid CSV: {error}", fix="write plain numbers, a cell a name") from None
    return [cell.strip() for cell in cells]


class Numbers(LineReader):
    """One number a line: the time of an iteration in s."""

    NAME: ClassVar[str] = "numbers"

    def read(self, line: bytes) -> LineReading | None:
        """The number; empty lines and those that begin with # tell nothing."""
        text = line.strip()
        if not text or text.startswith(b"#"):
            return None
        try:
            time_s = float(text)
        except ValueError:
            raise InvalidInputError(
                f"not a number: {printed(line)}",
                fix="give one iteration time in s a line; or say what the file is with --format",
            ) from None
        return LineReading(checked_time(time_s, text[:60].decode("utf-8", "replace")))


# Logs that training programs write for people, and those of MLPerf: one line tells of one iteration.
#
# Other lines are passed over, whatever they are. Colours are taken out, and a line may begin with the rank as torchrun
# (`[rank0]:`, `[default0]:`) or srun (`0:`) put it there.


class Megatron(LineReader):
    """Megatron-LM: `iteration 10/ 500 | elapsed time per iteration (ms): 512.3 | ... | global batch size: 64 | ...`.

    A line may stand for several iterations, of which it tells the mean. The batch size counts as the iteration's size,
    for it may grow while the job runs.
    """

    NAME: ClassVar[str] = "megatron"
    MARK: ClassVar[bytes] = b"elapsed time per iteration (ms)"
    TIME: ClassVar[re.Pattern[bytes]] = re.compile(re.escape(MARK) + rb"\s*[:=]\s*" + NUMBER)
    ITERATION: ClassVar[re.Pattern[bytes]] = re.compile(rb"iteration\s+(\d{1,15})\s*/")
    _BATCH = re.compile(rb"global batch size:\s*(\d{1,15})")

    def read(self, line: bytes) -> LineReading | None:
        """The time of the iterations that a line tells of."""
        if self.MARK not in line:
            return None
        line = plain(line)
        match = self.TIME.search(line)
        if match is None:
            return None
        size = number_in(self._BATCH, line)
        return LineReading(
            iteration_time(match[1], b"ms"), number_in(self.ITERATION, line), rank_of(line), size or None
        )


class NanoGpt(LineReader):
    """nanoGPT and its descendants: `iter 10: loss 3.1415, time 123.45ms, mfu 30.00%`.

    The iteration after an evaluation (`step 10: train loss ..., val loss ...`) is left out: its time holds that of the
    evaluation.

    Args:
        has_evaluated: it is read all the same.
    """

    NAME: ClassVar[str] = "nanogpt"
    _LINE = re.compile(rb"\biter\s+(\d{1,15})\b.*?\bloss\b.*?\btime:?\s*" + NUMBER + rb"\s*(ms|s)\b")
    EVALUATION: ClassVar[re.Pattern[bytes]] = re.compile(rb"\bstep\s+(\d{1,15}): train loss ")

    def __init__(self, has_evaluated: bool = False) -> None:
        super().__init__()
        self._has_evaluated = has_evaluated
        self._evaluated: int | None = None

    def read(self, line: bytes) -> LineReading | None:
        """The time of the iteration that a line tells of."""
        if b"loss" not in line:
            return None
        line = plain(line)
        match = self._LINE.search(line)
        if match is None:
            self._evaluated = number_in(self.EVALUATION, line) if b"train loss" in line else self._evaluated
            return None
        iteration = int(match[1])
        if iteration == self._evaluated and not self._has_evaluated:
            return None
        return LineReading(iteration_time(match[2], match[3]), iteration, rank_of(line))


class _TokenWindow(NamedTuple):
    """Where torchtitan begins to count tokens and time: after which step, and when."""

    step: int
    at_s: float | None


class TorchTitan(LineReader):
    """torchtitan: `[titan] 2025-06-20 19:13:39,663 - root - INFO - step: 10  loss: ...  tps: 5,970  ...`.

    A line tells the tokens a second since the line before. How many tokens an iteration has is learned from the clock
    of the first two lines; without a clock times are those of a token. The first line of a job, which has the start-up
    in it, is left out, and evaluations (`validate step: 10`) are, as torchtitan itself does.
    """

    NAME: ClassVar[str] = "torchtitan"
    STEP: ClassVar[re.Pattern[bytes]] = re.compile(
        rb"(validate )?step:\s*(\d{1,15})\s+loss:.*?\btps:\s*([0-9][0-9,.]{0,30})"
    )
    _START = b"Training starts at step"

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[str | None, _TokenWindow] = {}
        self._tokens: float | None = None
        self._clock = LineClock()

    def read(self, line: bytes) -> LineReading | None:
        """The mean time of the iterations since the line before."""
        if b"step" not in line:
            return None
        line = plain(line)
        if self._START in line:
            self._windows.pop(rank_of(line), None)
            return None
        match = self.STEP.search(line)
        if match is None:
            return None
        rank, step = rank_of(line), int(match[2])
        before, here = self._windows.get(rank), _TokenWindow(step, self._clock.of(line))
        self._windows[rank] = here
        if match[1] or before is None or step <= before.step:
            return None
        rate = number_of(number_text(match[3]), "tps")
        if rate <= 0:
            raise InvalidInputError(f"tps is {rate:g}: nothing was computed", fix="remove the line")
        # How many tokens an iteration has, on each of the devices among which tps divides them.
        if self._tokens is None:
            passed_s = here.at_s - before.at_s if here.at_s and before.at_s else 0.0
            self._tokens = rate * passed_s / (here.step - before.step) if passed_s > 0 else 1.0
            self.per = "iteration" if passed_s > 0 else "token"
        return LineReading(checked_time(self._tokens / rate, f"tps is {rate:g}"), step, rank)


class MlPerf(LineReader):
    """MLPerf's `:::MLLOG {...}` lines of `tracked_stats`: the time of a training step, or else the throughput.

    Which of them the first line tells is read from all: they are not of one kind.
    """

    NAME: ClassVar[str] = "mlperf"
    _MARK = b":::MLLOG"
    _TIMES = ("train_step_time", "train_step_timing in s")

    def __init__(self) -> None:
        super().__init__()
        self._key: str | None = None

    def read(self, line: bytes) -> LineReading | None:
        """What a line of tracked_stats tells."""
        if self._MARK not in line or b"tracked_stats" not in line:
            return None
        try:
            row = parsed_object(line.partition(self._MARK)[2].strip())
        except InvalidInputError:  # ranks have written into each other's lines
            return None
        value = row.get("value")
        if row.get("key") != "tracked_stats" or not isinstance(value, dict):
            return None
        if self._key is None:
            self._key = next((key for key in (*self._TIMES, "throughput") if key in value), None)
            self.per = "sample" if self._key == "throughput" else "iteration"
        if self._key is None or self._key not in value:
            return None
        number = number_of(value[self._key], self._key)
        takes_s = number if self._key != "throughput" else 1 / number if number else 0.0
        return LineReading(checked_time(takes_s, f"{self._key} is {number:g}"))


class DlLogger(LineReader):
    """DLLogger lines of MLPerf's graph network: `DLL 2024-... - Iteration 10 | ... | iteration_time : 12.3 ms`."""

    NAME: ClassVar[str] = "dllogger"
    _LINE = re.compile(rb"\bDLL\b.*?\bIteration:?\s*(\d{1,15}).*?\biteration_time\s*:\s*" + NUMBER + rb"\s*(ms|us|s)\b")

    def read(self, line: bytes) -> LineReading | None:
        """The time of the iteration that a line tells of."""
        if b"iteration_time" not in line:
            return None
        line = plain(line)
        match = self._LINE.search(line)
        return LineReading(iteration_time(match[2], match[3]), int(match[1]), rank_of(line)) if match else None


def iteration_time(number: bytes, unit: bytes) -> float:
    """A time in s, out of a number in a unit.

    Raises:
        InvalidInputError: it is no number, or no time.
    """
    try:
        told = float(number)
    except ValueError:  # it has commas, perhaps
        told = number_of(number_text(number), "an iteration time")
    time_s = told * SECONDS_OF[unit.decode()]
    if 0 < time_s < LONGEST_S:  # most lines need no words
        return time_s
    return checked_time(time_s, f"{number.decode()} {unit.decode()}")


# Logs recognise themselves, line by line; rows are known by their first line (`rows_by_first_line`).
_ROWS: tuple[type[LineReader], ...] = (Csv, JsonLines, Numbers)
_LOGS: tuple[type[LineReader], ...] = (Megatron, TorchTitan, NanoGpt, MlPerf, DlLogger)
READERS: dict[str, type[LineReader]] = {reader.NAME: reader for reader in (*_ROWS, *_LOGS)}


class Recognised:
    """A reader that finds out which format it reads, and then leaves the reading to that format's.

    Args:
        name: of the format, where it is known.
    """

    def __init__(self, name: str | None = None) -> None:
        self.reader: LineReader | None = READERS[name]() if name is not None else None
        # All kinds of logs listen until one understands, for some remember what lines before have said.
        self._listening: list[LineReader] = []

    def read(self, line: bytes) -> LineReading | None:
        """What a line tells.

        Raises:
            InvalidInputError: the line breaks the format.
        """
        if self.reader is not None:
            return self.reader.read(line)
        if not self._listening:
            if not line.strip() or line.lstrip().startswith(b"#"):
                return None
            self.reader = rows_by_first_line(line)
            if self.reader is not None:
                return self.reader.read(line)
            self._listening = [kind() for kind in _LOGS]
        for reader in self._listening:
            reading = reader.read(line)
            if reading is not None:
                self.reader = reader
                return reading
        return None


def rows_by_first_line(line: bytes) -> LineReader | None:
    """The format of rows with that first line; None: it is a log, or nothing known."""
    text = line.strip()
    if text.startswith(b"{"):
        return JsonLines()
    try:
        float(text)
    except ValueError:
        pass
    else:
        return Numbers()
    try:
        _, names = header_of(text.decode("utf-8"))
    except (InvalidInputError, UnicodeDecodeError):
        return None
    return Csv() if names_a_time(names) else None


def unrecognised(source: str, lines: int) -> InvalidInputError:
    """The error for a file in which nothing known was found."""
    if not lines:
        return InvalidInputError("the file is empty", where=source, fix="give a log with iteration times in it")
    names = ", ".join(READERS)
    return InvalidInputError(
        "no line tells an iteration time in any known format",
        where=source,
        fix=f"known are {names}; rows need a column or key iter_s or iter_ms. --format NAME says which one it is",
    )


# Trackers for the phases of a job: what repeats itself in another way is another series, within one numbering.


class PhaseSamples:
    """The samples of one phase, with a tracker of their own; places are told by the numbering of the whole log.

    Args:
        mode: of the tracker.
        shortest: how many slow iterations it takes to confirm.
    """

    def __init__(self, mode: Mode, shortest: int) -> None:
        self._tracker = Tracker(mode, shortest)
        # Stretches without another phase in between: their first sample in the phase, and in the log.
        self._own: list[int] = []
        self._places: list[int] = []

    @property
    def samples(self) -> int:
        """How many the phase has."""
        return self._tracker.samples

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes when nothing is slow."""
        return self._tracker.usual_s

    @property
    def episodes(self) -> tuple[Episode, ...]:
        """What was found so far."""
        return tuple(map(self._moved, self._tracker.episodes))

    def note(self, place: int, time_s: float) -> tuple[EpisodeChange, ...]:
        """Another sample, and what changed with it."""
        if not self._own or self._place(self.samples) != place:
            self._own.append(self.samples)
            self._places.append(place)
        return self._told(self._tracker.note(time_s))

    def finish(self) -> tuple[EpisodeChange, ...]:
        """The log is over."""
        return self._told(self._tracker.finish())

    def _told(self, changes: tuple[EpisodeChange, ...]) -> tuple[EpisodeChange, ...]:
        return tuple(EpisodeChange(change.kind, self._moved(change.episode)) for change in changes)

    def _moved(self, episode: Episode) -> Episode:
        return replace(
            episode,
            onset=self._place(episode.onset),
            provisional=self._place_if_any(episode.provisional),
            confirmed=self._place_if_any(episode.confirmed),
            relief=self._place_if_any(episode.relief),
        )

    def _place_if_any(self, own: int | None) -> int | None:
        return None if own is None else self._place(own)

    def _place(self, own: int) -> int:
        """Where a sample of the phase stands in the log."""
        stretch = bisect_right(self._own, own) - 1
        return self._places[stretch] + own - self._own[stretch]
