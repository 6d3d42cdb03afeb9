"""Medians of stretches of a series that grows, counted in bins of a 10,000th."""

from collections import Counter, deque
from itertools import islice
from math import floor

BIN = 1e-4  # of a log
ROOM = 800  # samples that are remembered one by one: as many as any detector looks back on


class Medians:
    """Of the logs of a series, in bounded memory: stretches begin at what was not forgotten, or lately.

    Attributes:
        end: how many samples there are.
    """

    def __init__(self) -> None:
        self._first = self.end = 0
        self._counts: Counter[int] = Counter()  # from the first sample on
        self._last: deque[int] = deque(maxlen=ROOM)

    def note(self, log: float) -> None:
        """Another sample."""
        number = floor(log / BIN)
        self._counts[number] += 1
        self._last.append(number)
        self.end += 1

    def of(self, start: int, stop: int) -> float:
        """The median of the samples from one up to another, to half a bin.

        Of a stretch that began long ago, and not where memory begins, it is that of what is known singly.
        """
        counts = (
            self._counts - Counter(self._since(stop)) if start == self._first else Counter(self._between(start, stop))
        )
        half = counts.total() // 2
        for number in sorted(counts):
            half -= counts[number]
            if half < 0:
                return (number + 0.5) * BIN
        raise AssertionError("there is no such stretch")

    def forget(self, place: int) -> None:
        """Nobody will ask for samples before this one; it is one of the last."""
        self._first, self._counts = place, Counter(self._since(place))

    def _since(self, place: int) -> list[int]:
        return self._between(place, self.end)

    def _between(self, start: int, stop: int) -> list[int]:
        first = self.end - len(self._last)
        return list(islice(self._last, max(0, start - first), max(0, stop - first)))
