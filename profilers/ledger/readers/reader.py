"""What every reader of logs is, and what it is told of a line beside its bytes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from ....schemas.errors import InvalidInputError
from ...failslow.readers.lines import number_text
from ...failslow.readers.stamps import LineClock
from ..happenings import Happening, LogPlace

MOST_CAUSE = 200  # characters of a failure's cause
MOST_QUANTITY = 1e12  # that a line is believed


class LineContext:
    """Where the line stands that is being read, and what follows it.

    Args:
        file: its name.
    """

    def __init__(self, file: str) -> None:
        self.file, self.number = file, 0
        self._block, self._end = b"", 0

    @property
    def place(self) -> LogPlace:
        """The line's."""
        return LogPlace(self.file, self.number)

    def move(self, number: int, block: bytes, end: int) -> None:
        """To another line, which ends at `end` of a block."""
        self.number, self._block, self._end = number, block, end

    def following(self, most: int, most_bytes: int = 1 << 15) -> list[bytes]:
        """The lines that follow, at most so many; none beyond what has been read ahead."""
        text = self._block[self._end + 1 : self._end + most_bytes]
        return text.split(b"\n", most)[:most]


class HappeningReader(ABC):
    """Reads one kind of lines; it may remember what lines before have said.

    Attributes:
        NAME: of the format.
        MARKS: a line without any of them tells this reader nothing, and is not shown to it. Without marks it is shown
            all lines.
    """

    NAME: ClassVar[str]
    MARKS: ClassVar[tuple[bytes, ...]] = ()

    def __init__(self, clock: LineClock) -> None:
        self.clock = clock

    @abstractmethod
    def read(self, line: bytes, around: LineContext) -> Iterable[Happening]:
        """What a line tells.

        Args:
            line: without colours, and cut where it is too long.
            around: its place and the lines that follow.

        Raises:
            InvalidInputError: the line begins to tell of something and cannot be read.
        """

    def read_run(self, line: bytes, at: int, around: LineContext) -> tuple[Happening | None, int]:
        """What the parts of a progress bar tell that are nothing but iterations one after the other, at once.

        Args:
            line: whose parts have carriage returns between them.
            at: where in it the first of them begins.
            around: the line's place.

        Returns:
            Such iterations, if there are any, and where the first part begins that has to be looked at alone (`read`).
        """
        return None, at

    def finish(self) -> Iterable[Happening]:
        """What is left to tell when the log is over."""
        return ()


class Progress:
    """How many iterations a line stands for, rank by rank: those since its line before.

    The first line after a start stands for all since the checkpoint; where that is not known, for as many as lines of
    this log usually do (`interval`), or for one. A job that begins at 0 may have loaded a checkpoint without a word:
    its first line stands for no more than lines usually do.
    """

    def __init__(self) -> None:
        self.interval: int | None = None
        self._base: int | None = None
        self._last: dict[str | None, int] = {}

    def restart(self, base: int | None) -> None:
        """A job begins after the iteration `base`; 0: as far as one can tell; None: it is not known."""
        self._base, self._last = base, {}

    def follow(self, iteration: int) -> None:
        """Lines of nobody's, one for each iteration after the line before and up to this one."""
        self._last[None], self.interval = iteration, 1

    def is_at(self, iteration: int | None) -> bool:
        """Whether this is what the last line of nobody's has said."""
        return iteration is not None and self._last.get(None) == iteration

    def steps(self, iteration: int, rank: str | None) -> int:
        """Another line, which says that an iteration is done."""
        is_first = rank not in self._last
        before = self._base if is_first else self._last[rank]
        self._last[rank] = iteration
        if before is None or iteration <= before or (before == 0 and is_first and self.interval):
            return min(self.interval or 1, iteration) or 1
        if not is_first:
            self.interval = iteration - before
        return iteration - before


def quantity_of(text: bytes, what: str) -> float:
    """A number that a line says: a time, or a count.

    Raises:
        InvalidInputError: it is none, negative, endless or too large.
    """
    try:
        quantity = float(number_text(text.strip()))
    except ValueError:
        raise unreadable_line(f"{what} is no number") from None
    if not 0 <= quantity < MOST_QUANTITY:
        raise unreadable_line(f"{what} is negative, endless or too large")
    return quantity


def passed_s(begun_s: float | None, time_s: float | None) -> float | None:
    """How long something took by the clocks of two lines; None where one has none, or was put back between them."""
    return None if begun_s is None or time_s is None or time_s < begun_s else time_s - begun_s


def text_of(line: bytes) -> str:
    """Bytes of a log for people, whatever their encoding."""
    return line.decode("utf-8", "replace").strip()


def unreadable_line(what: str) -> InvalidInputError:
    """The error for a line that begins to tell of something; where it stands is for the caller to add."""
    return InvalidInputError(what, fix="such lines are counted, and left out")
