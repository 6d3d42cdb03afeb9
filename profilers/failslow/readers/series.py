"""A log becomes a series of iteration times: lines in, samples out, in bounded memory."""

from collections.abc import Callable
from typing import TypeVar

from ....schemas.errors import InvalidInputError
from .formats import Recognised, unrecognised
from .order import Order, Unit
from .ranks import Ranks, Sample
from .reading import Reading

_R = TypeVar("_R")


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

    def read(self, line: bytes, is_cut: bool = False) -> list[Sample]:
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
        return [] if reading is None else self._at_line(self._take, reading)

    def finish(self) -> list[Sample]:
        """The log is over: the iterations that were still held back.

        Raises:
            InvalidInputError: nothing in it tells of any iteration.
        """
        samples = self._ranks.finish() if self._ranks is not None else []
        if self._is_empty:
            raise self._empty()
        samples = self._at_line(self._checked, samples)
        self._at_line(self._last_check, samples)
        return samples

    def _take(self, reading: Reading) -> list[Sample]:
        self._is_empty = False
        reading = self._resized(reading)
        if reading.rank is None:
            return self._checked([Sample(reading.time_s, reading.iteration)])
        if self._ranks is None:
            self._ranks = Ranks()
        return self._checked(self._ranks.note(reading))

    def _resized(self, reading: Reading) -> Reading:
        if reading.size is None:
            return reading
        if self._size is None:
            self._size = reading.size
        return reading._replace(time_s=reading.time_s * self._size / reading.size)

    def _checked(self, samples: list[Sample]) -> list[Sample]:
        for sample in samples:
            self._unit.note(sample.time_s)
            if sample.iteration is not None:
                self._order.note(sample.iteration)
        return samples

    def _last_check(self, samples: list[Sample]) -> list[Sample]:
        self._unit.finish()
        return samples

    def _at_line(self, take: Callable[[_R], list[Sample]], what: _R) -> list[Sample]:
        try:
            return take(what)
        except InvalidInputError as error:
            raise self._placed(error) from None

    def _placed(self, error: InvalidInputError) -> InvalidInputError:
        return InvalidInputError(error.what, where=f"{self._source}, line {self.lines}", fix=error.fix)

    def _empty(self) -> InvalidInputError:
        if not self.kind:
            return unrecognised(self._source, self.lines)
        return InvalidInputError(
            f"the log (read as {self.kind}) tells no iteration time",
            where=self._source,
            fix="give a log of a job that has done some iterations; --format NAME reads it as another format",
        )
