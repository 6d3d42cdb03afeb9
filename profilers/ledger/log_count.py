"""How much of logs was understood: counted, and said with what was odd."""

from collections import Counter
from dataclasses import dataclass, field

MOST_KINDS = 64  # of remarks, that no log fills the memory


@dataclass
class LogCount:
    """What became of the lines of logs.

    Attributes:
        files: how many were read.
        lines: of all of them.
        telling: lines that told of something.
        garbled: lines that begin to tell of something and cannot be read: cut off, written over by another rank, or
            with a number that is none.
        formats: of each file, as recognised; None where it told of no iteration.
        remarks: what was odd, in words, and how often.
        first_at: where each of them was found first.
    """

    files: int = 0
    lines: int = 0
    telling: int = 0
    garbled: int = 0
    formats: dict[str, str | None] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)
    first_at: dict[str, str] = field(default_factory=dict)

    @property
    def silent(self) -> int:
        """Lines that tell nothing of a job's course."""
        return self.lines - self.telling - self.garbled

    def remark(self, what: str, where: str, count: int = 1) -> None:
        """Note something odd.

        Args:
            what: without numbers that differ from line to line, so that it is counted.
            where: the file, and the line.
            count: how often.
        """
        if what in self.remarks or len(self.remarks) < MOST_KINDS:
            self.first_at.setdefault(what, where)
            self.remarks[what] += count

    def words(self) -> list[str]:
        """A line for people on each remark, the most frequent first."""
        return [
            f"{what} ({f'{count:,} times, first at ' if count > 1 else ''}{self.first_at[what]})"
            for what, count in self.remarks.most_common()
        ]
