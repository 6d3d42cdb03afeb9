"""Rows with named values: CSV, JSON lines (those of `rtk run --json` among them), and bare numbers.

A row says `iter_s`, `iter_ms`, `iter_us` or `iter_ns` (or `iteration_time_s`, `Step time (ms)`, `duration_s`, ...:
units stand in names; `iter_time` is in seconds), or only when it ended (`t`, in s); and where it can `iter`, `rank`,
`tokens` and `tag`.
"""

import csv
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from ....schemas.documents import unique_keys
from ....schemas.errors import InvalidInputError
from .reading import SECONDS_OF, Reading, checked_time, number_of, printed

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

    def read(self, row: Mapping[str, Any]) -> Reading | None:
        """What a row tells; None where it is of no training iteration, or says no time.

        Raises:
            InvalidInputError: a value is impossible.
        """
        rank = _text(row, "rank")
        iteration = _iteration(row)
        if (_text(row, "tag") or _TRAINING[0]) not in _TRAINING:
            self._pause(row, rank)
            return None
        time_s = _time_s(row)
        if time_s is None:
            time_s = self._since_the_end_before(row, rank, iteration)
        return None if time_s is None else Reading(time_s, iteration, rank, _size(row))

    def _pause(self, row: Mapping[str, Any], rank: str | None) -> None:
        """An evaluation or a checkpoint: the next iteration begins when it ends."""
        end_s = _clock(row)
        if end_s is not None:
            before = self._ends.get(rank)
            self._ends[rank] = (end_s, before[1] if before else None)

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


def _time_s(row: Mapping[str, Any]) -> float | None:
    is_plain = any(_TIME.fullmatch(name) for name in row)
    return _time_by(_TIME if is_plain else _VAGUE_TIME, row)


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
            raise InvalidInputError(
                f"{name} and {other} contradict each other: {time_s:.6g} s and {other_s:.6g} s",
                fix="correct the unit in one of the names, or keep one of them",
            )
    return time_s


def _clock(row: Mapping[str, Any]) -> float | None:
    value = row.get("t")
    if value is None or value == "":
        return None
    end_s = number_of(value, "t")
    if not abs(end_s) < float("inf"):
        raise InvalidInputError(f"the clock t is {value}", fix="write unix seconds, or leave t out")
    return end_s


def _iteration(row: Mapping[str, Any]) -> int | None:
    for name in _NUMBERS:
        value = row.get(name)
        if value is not None and value != "":
            number = number_of(value, name)
            if not number.is_integer() or abs(number) >= 1e15:
                raise InvalidInputError(f"{name} is no whole number: {value}", fix="number the iterations 0, 1, 2, ...")
            return int(number)
    return None


def _size(row: Mapping[str, Any]) -> float | None:
    value = row.get("tokens")
    if value is None or value == "":
        return None
    size = number_of(value, "tokens")
    if not 0 < size < float("inf"):
        raise InvalidInputError(f"tokens is {value}: not the size of an iteration", fix="give counts above 0")
    return size


def _text(row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    return None if value is None or value == "" else str(value).strip()


class JsonLines:
    """One JSON object a line; of lines with an `event`, those of iterations."""

    NAME: ClassVar[str] = "jsonl"

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False
        self._rows = Rows()

    def read(self, line: bytes) -> Reading | None:
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


class Csv:
    """Comma-separated values (or semicolons, or tabs) under a line of names."""

    NAME: ClassVar[str] = "csv"

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False
        self._names: list[str] = []
        self._header, self._separator = "", ","
        self._rows = Rows()

    def read(self, line: bytes) -> Reading | None:
        """What a row tells; the first line is that of names."""
        text = _decoded(line)
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


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"not UTF-8 text (byte {error.start} of the line)", fix="write it as UTF-8") from None


class Numbers:
    """One number a line: the time of an iteration in s."""

    NAME: ClassVar[str] = "numbers"

    def __init__(self) -> None:
        self.per, self.is_over = "iteration", False

    def read(self, line: bytes) -> Reading | None:
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
        return Reading(checked_time(time_s, text[:60].decode("utf-8", "replace")))
