"""Iterations that a job has done: which of them count, and how fast it is when nothing is slow.

A job that loads a checkpoint has lost what it did after that: these iterations are taken off the end again. What is
kept of each is a few numbers, and of long jobs neighbours are put together, so that the memory is bounded.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from statistics import median

MOST_ROWS = 100_000  # that are kept; then pairs are put together
MOST_SAMPLES = 1024  # iteration times of an attempt that its healthy time is made of
WITHIN = 1.1  # of the lower quartile: what is healthy; of the healthy time: what is not slow


@dataclass(slots=True)
class DoneRow:
    """Iterations that were done one after the other: `steps`, of which `last` is the last.

    Attributes:
        attempt: that has done them.
        took_us: all of them.
        end_us: when the last one was done, since the beginning of the span.
        job: more than one where a log holds several jobs; an attempt never takes back what another job has done.
        is_first: of its attempt: what they take beyond the healthy time is starting.
        evaluated_us: how long the model was evaluated after the last of them; not in `took_us`.
        is_mixed: `took_us` has an evaluation in it: what they take beyond the healthy time is that.
        skipped: how many had no update.
    """

    attempt: int
    last: int
    steps: int
    took_us: int
    end_us: int = 0
    job: int = 0
    is_first: bool = False
    skipped: int = 0
    evaluated_us: int = 0
    is_mixed: bool = False

    def takes_in(self, after: "DoneRow", most: int) -> bool:
        """Whether it stands for those after it, too, as it does if they are at most so many together."""
        if self.is_first or self.attempt != after.attempt or self.steps + after.steps > most:
            return False
        self.last, self.end_us = after.last, after.end_us
        self.steps += after.steps
        self.took_us += after.took_us
        self.skipped += after.skipped
        self.evaluated_us += after.evaluated_us
        self.is_mixed = self.is_mixed or after.is_mixed
        return True


class Sample:
    """Takes iteration times one by one, and keeps every 2^n-th."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._every = 1
        self._wait = 0

    def note(self, took_us: float) -> None:
        """The next one."""
        if self._wait:
            self._wait -= 1
            return
        self.values.append(took_us)
        if len(self.values) == MOST_SAMPLES:
            self.values = self.values[::2]
            self._every *= 2
        self._wait = self._every - 1


@dataclass(slots=True)
class Loss:
    """Iterations that a job has lost by going back to a checkpoint.

    Attributes:
        iterations: how many.
        took_us: by attempts that had done them.
        mixed: those of which a part was no iteration: starting, or an evaluation; not in `took_us`.
    """

    iterations: int = 0
    took_us: Counter[int] = field(default_factory=Counter)
    mixed: list[DoneRow] = field(default_factory=list)


class JobHistory:
    """The iterations that a job has.

    Attributes:
        rows: in the order in which they were done.
        samples: iteration times by attempt, whether lost later or not.
        job: whose iterations are noted.
    """

    def __init__(self) -> None:
        self.rows: list[DoneRow] = []
        self.samples: dict[int, Sample] = {}
        self.job = 0
        self._most, self._grain = MOST_ROWS, 0  # rows, and iterations that one of them may be made of

    def note(self, row: DoneRow) -> None:
        """They are done."""
        if not row.is_first and not row.is_mixed and row.took_us:
            sample = self.samples.get(row.attempt)
            if sample is None:
                sample = self.samples[row.attempt] = Sample()
            sample.note(row.took_us / row.steps)
        if self._grain and self.rows and self.rows[-1].takes_in(row, self._grain):
            return
        self.rows.append(row)
        if len(self.rows) > self._most:
            self._grain = 2 * (self._grain or ceil(sum(one.steps for one in self.rows) / len(self.rows)))
            before, self.rows = self.rows, []
            for one in before:
                if not self.rows or not self.rows[-1].takes_in(one, self._grain):
                    self.rows.append(one)
            self._most = max(self._most, 2 * len(self.rows))  # where attempts are too many to be joined

    def note_evaluation(self, took_us: int) -> None:
        """The model was evaluated after the last iterations."""
        if took_us:
            self.rows[-1].evaluated_us += took_us

    def go_back(self, to: int) -> Loss:
        """All iterations of this job after number `to` are lost."""
        loss = Loss()
        while self.rows and self.rows[-1].job == self.job and self.rows[-1].last > to:
            top = self.rows.pop()
            lost = min(top.last - to, top.steps)
            if lost < top.steps:  # a checkpoint in its midst
                part = DoneRow(top.attempt, top.last, lost, top.took_us * lost // top.steps, top.end_us, top.job)
                part.evaluated_us, part.is_mixed = top.evaluated_us, top.is_mixed
                top.evaluated_us = 0
                top.took_us -= part.took_us
                top.steps -= lost
                top.last = to
                self.rows.append(top)
                top = part
            loss.iterations += lost
            if top.is_first or top.is_mixed:
                loss.mixed.append(top)
            else:
                loss.took_us[top.attempt] += top.took_us + top.evaluated_us
        return loss


def healthy_us(times_us: Iterable[float]) -> float | None:
    """What an iteration takes when nothing is slow: the median of those within 10 % of the lower quartile.

    The quartile finds healthy iterations though most of the others may be slow; the median around it is not drawn down
    by their jitter, as the quartile itself is.

    Args:
        times_us: of iterations, in any order.

    Returns:
        The time; None if there are no iterations.
    """
    ordered = sorted(times_us)
    if not ordered:
        return None
    quartile = ordered[(len(ordered) - 1) // 4]
    return median(one for one in ordered if quartile / WITHIN <= one <= quartile * WITHIN)
