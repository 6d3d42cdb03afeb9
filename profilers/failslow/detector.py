"""What the detectors share: the series so far, suspicions, and what they say of a sample."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import log
from typing import ClassVar, Literal, NamedTuple

SLOW = log(1.1)  # what counts as slow, as the paper has it
RELIEVED = 0.6 * SLOW  # at this and below it is as usual again
LEARNING = 30  # samples
SUSPICIOUS = 3  # slow samples in a row; and as many that are not end a suspicion

Kind = Literal["provisional", "dismissed", "confirmed", "level", "relief", "hindsight"]


class Finding(NamedTuple):
    """Something that happened in a series.

    Attributes:
        kind: `hindsight` is the end of what was slow from the start on; the others as in `telling.Change`.
        place: of the sample that it began with.
        level: the log of how slow it is, over the usual time.
        certain: the place of the sample that told.
        usual: the log of the usual time.
    """

    kind: Kind
    place: int
    level: float
    certain: int
    usual: float


class Detector(ABC):
    """Takes the logs of a series' times one by one, in bounded memory.

    Attributes:
        samples: how many it has taken.
        is_learning: too few were seen to say what is usual.
        is_slow: as far as is certain.
        reference: the log of the usual time.
    """

    KEPT: ClassVar[int]  # samples that are remembered at the most; when there are as many, the older half goes

    def __init__(self) -> None:
        self.samples = 0
        self.is_learning, self.is_slow = True, False
        self.reference = 0.0
        self._level = 0.0  # the log of what it takes now
        self._logs: list[float] = []  # of the last samples
        self._findings: list[Finding] = []
        self._streak = 0  # slow samples in a row
        self._is_suspect, self._doubts = False, 0

    def update(self, y: float) -> Sequence[Finding]:
        """The log of another time; gives what happened with it, mostly nothing."""
        if len(self._logs) == self.KEPT:
            del self._logs[: self.KEPT // 2]
        self._logs.append(y)
        self.samples += 1
        if not self.is_learning:
            self._follow(y, self.samples - 1)
        elif self.samples == LEARNING:
            self._begin()
        return self._told() if self._findings else ()

    def finish(self) -> Sequence[Finding]:
        """The series is over: one that is too short to learn from is judged by what there is."""
        if self.is_learning and self.samples:
            self._begin()
        return self._told()

    @abstractmethod
    def _learn(self, logs: Sequence[float]) -> int:
        """Measure the first samples; gives how many of them to leave out when they are looked at again."""

    @abstractmethod
    def _follow(self, y: float, place: int) -> None:
        """Look at a sample, the last one of the logs."""

    def _begin(self) -> None:
        logs = self._logs
        first = self._learn(logs)
        self.is_learning = False
        self._logs = logs[:first]
        for place in range(first, len(logs)):
            self._logs.append(logs[place])
            self._follow(logs[place], place)

    def _suspect(self, y: float, place: int) -> None:
        """The first tier: three slow samples in a row, until three that are not outweigh the slow ones."""
        is_slow = y > self.reference + SLOW
        self._streak = self._streak + 1 if is_slow else 0
        if not self._is_suspect:
            if self._streak >= SUSPICIOUS:
                self._is_suspect, self._doubts = True, 0
                self._tell("provisional", place - SUSPICIOUS + 1, y - self.reference)
            return
        self._doubts = max(self._doubts - 1, 0) if is_slow else self._doubts + 1
        if self._doubts >= SUSPICIOUS:
            self._is_suspect = False
            self._tell("dismissed", place, y - self.reference)

    def _tell(self, kind: Kind, place: int, level: float) -> None:
        self._findings.append(Finding(kind, place, level, self.samples - 1, self.reference))

    def _told(self) -> Sequence[Finding]:
        found, self._findings = self._findings, []
        return found
