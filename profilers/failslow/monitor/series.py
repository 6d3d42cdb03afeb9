"""A log becomes a series of iteration times: lines in, samples out, in bounded memory."""

import json
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any

from ....schemas.errors import InvalidInputError
from ..readers.formats import Recognised, parsed_object, unrecognised
from ..readers.reading import IterationSample, Ranks, number_of, whole_number_of

if TYPE_CHECKING:
    from ..calls.comparison import CommunicationCall


class Series:
    """The iteration times of one log.

    Where a log says how large iterations are (in tokens, or a global batch size), times are told as if all were as
    large as the first one.

    Args:
        source: what the log is called in messages.
        name: of its format; None: it is recognised.

    Attributes:
        lines: how many were read.
    """

    def __init__(self, source: str, name: str | None = None) -> None:
        self.lines = 0
        self._source = source
        self._recognised = Recognised(name)
        self._order, self._unit = Order(), Unit()
        self._ranks: Ranks | None = None
        self._size: float | None = None
        self._is_empty = True

    @property
    def kind(self) -> str:
        """The format, and what the times are of if not of an iteration; empty as long as it is not known."""
        reader = self._recognised.reader
        if reader is None:
            return ""
        return reader.NAME if reader.per == "iteration" else f"{reader.NAME}, times of a {reader.per}"

    @property
    def per(self) -> str:
        """What the times are of: an iteration, a sample or a token."""
        reader = self._recognised.reader
        return reader.per if reader is not None else "iteration"

    @property
    def is_over(self) -> bool:
        """The log has said that nothing will follow."""
        reader = self._recognised.reader
        return reader is not None and reader.is_over

    def read(self, line: bytes, is_cut: bool = False) -> list[IterationSample]:
        """The next line.

        Args:
            line: without its end or with it.
            is_cut: it is the last one and has no end: if it makes no sense it was cut off, which is no error.

        Returns:
            The iterations that are complete with it, in order.

        Raises:
            InvalidInputError: the line breaks the format, or the series its order.
        """
        self.lines += 1
        try:
            reading = self._recognised.read(line)
        except InvalidInputError as error:
            if is_cut and not self._is_empty:
                return []
            raise self._placed(error) from None
        if reading is None:
            return []
        self._is_empty = False
        if reading.size is not None:
            if self._size is None:
                self._size = reading.size
            reading = reading._replace(time_s=reading.time_s * self._size / reading.size)
        try:
            if reading.rank is None:
                return self._checked([IterationSample(reading.time_s, reading.iteration)])
            self._ranks = self._ranks or Ranks()
            return self._checked(self._ranks.note(reading))
        except InvalidInputError as error:
            raise self._placed(error) from None

    def finish(self) -> list[IterationSample]:
        """The log is over: the iterations that were still held back.

        Raises:
            InvalidInputError: nothing in it tells of any iteration.
        """
        samples = self._ranks.finish() if self._ranks is not None else []
        if self._is_empty and not self.kind:
            raise unrecognised(self._source, self.lines)
        if self._is_empty:
            raise InvalidInputError(
                f"the log (read as {self.kind}) tells no iteration time",
                where=self._source,
                fix="give a log of a job that has done some iterations; --format NAME reads it as another format",
            )
        try:
            self._checked(samples)
            self._unit.finish()
        except InvalidInputError as error:
            raise self._placed(error) from None
        return samples

    def _checked(self, samples: list[IterationSample]) -> list[IterationSample]:
        for sample in samples:
            self._unit.note(sample.time_s)
            if sample.iteration is not None:
                self._order.note(sample.iteration)
        return samples

    def _placed(self, error: InvalidInputError) -> InvalidInputError:
        return InvalidInputError(error.what, where=f"{self._source}, line {self.lines}", fix=error.fix)


# A log of communication calls that grows, as a series of iteration times, call by call (`calls/iterations.py`).
#
# Only the calls of the rank that comes first are looked at: the others wait for it in every iteration. Whole files are
# better read as such (`calls/formats.py`), which compares the ranks with each other.


KIND = "call log"
_NS_FROM = 1e10  # greater times are in ns, as `calls/comparison.py` has it


def is_call(line: bytes) -> bool:
    """Whether a line is a JSON object that tells of a communication call."""
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "op" in row and "t" in row


class CallSeries:
    """The iteration times that one rank's calls tell; in the same way as `Series`.

    Args:
        source: what the log is called in messages.

    Attributes:
        lines: how many were read.
    """

    def __init__(self, source: str) -> None:
        from ..calls.iterations import Periods

        self.lines = 0
        self.kind, self.per, self.is_over = KIND, "iteration", False
        self._source = source
        self._periods = Periods()
        self._rank: int | None = None

    def read(self, line: bytes, is_cut: bool = False) -> list[IterationSample]:
        """The next line.

        Args:
            line: a call.
            is_cut: it is the last one and has no end: if it makes no sense it was cut off, which is no error.

        Returns:
            The iterations that are complete with it, in order.

        Raises:
            InvalidInputError: the line is no call.
        """
        self.lines += 1
        try:
            call = _call(parsed_object(line)) if line.strip() else None
        except InvalidInputError as error:
            if is_cut:
                return []
            where = f"{self._source}, line {self.lines}"
            raise InvalidInputError(error.what, where=where, fix=error.fix) from None
        if call is None:
            return []
        self._rank = call.rank if self._rank is None else self._rank
        if call.rank != self._rank:
            return []
        return [IterationSample(one.time_s, phase=one.phase) for one in self._periods.note(call) if one.time_s > 0]

    def finish(self) -> list[IterationSample]:
        """The log is over: what was too short to be looked at is looked at."""
        return [IterationSample(one.time_s, phase=one.phase) for one in self._periods.finish() if one.time_s > 0]


def _call(row: dict[str, Any]) -> "CommunicationCall":
    from ..calls.comparison import CommunicationCall, plain_op

    if "op" not in row:
        raise InvalidInputError("the call has no operation", fix='write "op" as a text')
    time = number_of(row.get("t"), "t")
    if not abs(time) < float("inf"):
        raise InvalidInputError(f"the clock t is {time}", fix="write times in s or ns")
    group = f"{row.get('group', '')} {row.get('peer', '')}".strip()
    rank, size = (
        missing if row.get(key) is None else whole_number_of(row[key], key)
        for key, missing in (("rank", -1), ("bytes", 0))
    )
    t_s = time / 1e9 if time > _NS_FROM else time
    return CommunicationCall(t_s, rank, plain_op(str(row["op"])), group, size, str(row.get("dtype") or ""))


# What a series must not do, and what a single value cannot show: lose its order, or change its unit.


# A job that is started again goes back and then on. Sorted by name (1, 10, 11, 2, ...), newest first or shuffled,
# iterations go back and do not go on from there; once may be an accident.
DISORDERS = 2
# Milliseconds among seconds: a jump by about a thousand that stays for some samples, of those before and after it.
LEAST_JUMP, MOST_JUMP, AROUND = 500.0, 2000.0, 8


class Order:
    """Watches the numbers of iterations."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._stride = 1
        self._just_back = False
        self._disorders = 0

    def note(self, iteration: int) -> None:
        """The number of the next row.

        Raises:
            InvalidInputError: the rows are not in the order in which the iterations were done.
        """
        last, self._last = self._last, iteration
        if last is None:
            return
        step = iteration - last
        is_odd = self._just_back and (step < 0 or step > 2 * self._stride)
        self._just_back = step < 0
        if is_odd:
            self._disorders += 1
        elif step > 0:
            self._stride = step
        if self._disorders >= DISORDERS:
            raise InvalidInputError(
                f"the iterations are not in order: {iteration} comes after {last}",
                fix="sort the rows by iteration; only a job that was started again may go back, and then on",
            )


class Unit:
    """Watches for a change of unit amidst a series."""

    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=AROUND)
        self._held: list[float] = []  # since a jump, while it is not clear what it is

    def note(self, time_s: float) -> None:
        """The next time.

        Raises:
            InvalidInputError: since some samples, times are about a thousand times as long, or as short.
        """
        if not self._held:
            before = self._before
            if not before or LEAST_JUMP > time_s / before[-1] > 1 / LEAST_JUMP:
                before.append(time_s)
                return
        self._held.append(time_s)
        if len(self._held) == AROUND:
            self._judge()

    def finish(self) -> None:
        """Nothing follows.

        Raises:
            InvalidInputError: as for `note`, with what there is.
        """
        if len(self._held) >= AROUND / 2:
            self._judge()

    def _judge(self) -> None:
        factors = [time_s / median(self._before) for time_s in self._held]
        long = sum(LEAST_JUMP <= factor <= MOST_JUMP for factor in factors)
        short = sum(LEAST_JUMP <= 1 / factor <= MOST_JUMP for factor in factors)
        if len(self._before) >= AROUND / 2 and 2 * max(long, short) >= len(self._held):
            raise InvalidInputError(
                f"the last {len(self._held)} times are about a thousand times as "
                f"{'long' if long > short else 'short'} as those before: seconds and milliseconds seem to be mixed",
                fix="write all times in one unit, or name columns iter_s and iter_ms and fill in the one that is meant",
            )
        self._before.extend(self._held)
        self._held = []
