"""A sequence of calls that repeats itself: where its iterations end, and following it call by call.

An iteration ends with the call before the longest pause of a period, for there the optimizer steps and the next batch
is loaded, with nothing to communicate. That call is known by the few that lead up to it, or away from it, and stand
nowhere else in a period: whatever came in between, the next iteration is recognised by itself.
"""

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..tracker import Mode
from .period import Ids, period_of, regular

Times: TypeAlias = NDArray[np.float64]

MISSING = 16  # one of so many calls of a period may be missing, or too many
STRAYS = 4  # one stray for so many calls of a period,
FEWEST_PARTS = 5
LONGER = 1.25
FEW_STRAYS = 2  # and so many in any case, do not matter


@dataclass(frozen=True, slots=True)
class Pattern:
    """What repeats itself.

    Attributes:
        block: the numbers of the tokens of one period.
        mark: the numbers of the tokens of some calls in a row that are found once in a period.
        place: which of the marked calls ends an iteration.
    """

    block: tuple[int, ...]
    mark: tuple[int, ...]
    place: int

    @property
    def period(self) -> int:
        """The number of calls."""
        return len(self.block)

    @property
    def tokens(self) -> frozenset[int]:
        """Those of its calls; others are strays."""
        return frozenset(self.block)

    def is_that_of(self, other: "Pattern") -> bool:
        """Whether the other one's calls are the same, wherever they are taken to begin."""
        if self.period != other.period or self.tokens != other.tokens:
            return False
        twice = other.block * 2
        return any(twice[begin : begin + self.period] == self.block for begin in range(self.period))


def pattern_of(tokens: Ids, times_s: Times, mode: Mode) -> Pattern | None:
    """The pattern of a sequence of calls; None: there is none, or it is not seen twice in a row.

    Args:
        tokens: a number for each call, equal for calls with equal tokens; (n,).
        times_s: when they were made; (n,).
        mode: how the period is found.
    """
    period = period_of(tokens, mode)
    if period is None:
        return None
    kept, kept_s = tokens, times_s
    if mode == "robust":
        is_kept = regular(tokens)
        kept, kept_s, period = _without_extras(tokens[is_kept], times_s[is_kept], period)
    begin, end = _longest_run(kept[:-period] == kept[period:])
    if end - begin < period:
        return None
    block = _primitive(kept[begin : begin + period])
    mark, place = _mark(block, _longest_pause(kept_s[begin : end + period], len(block)))
    return Pattern(tuple(block.tolist()), mark, place)


def _without_extras(tokens: Ids, times_s: Times, period: int) -> tuple[Ids, Times, int]:
    """Leave out what comes once in several iterations and takes no time, such as the sum of a loss that is printed.

    Without it, the calls have a much shorter period. That of parts of an iteration would be shorter as well, but the
    part with such a call takes longer than others then, for the optimizer's step is in it.
    """
    names, counts = np.unique(tokens, return_counts=True)
    is_rest = ~np.isin(tokens, names[counts * period < 1.5 * len(tokens)])
    if is_rest.all() or not is_rest.any():
        return tokens, times_s, period
    rest, rest_s, places = tokens[is_rest], times_s[is_rest], np.flatnonzero(is_rest)
    shorter = period_of(rest)
    if shorter is None or FEWEST_PARTS * shorter > period:
        return tokens, times_s, period
    spans_s = rest_s[shorter:] - rest_s[:-shorter]
    has_extra = places[shorter:] - places[:-shorter] > shorter
    takes_time = np.median(spans_s[has_extra]) > LONGER * np.median(spans_s[~has_extra])
    return (tokens, times_s, period) if takes_time else (rest, rest_s, shorter)


def _longest_run(holds: NDArray[np.bool_]) -> tuple[int, int]:
    """Begin and end of the longest stretch that holds."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], holds.astype(np.int8), [0]))))
    if not len(edges):
        return 0, 0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest])


def _primitive(block: Ids) -> Ids:
    """The shortest sequence of which it is a repetition."""
    size = len(block)
    lags = (lag for lag in range(1, size) if size % lag == 0)
    return block[: next((lag for lag in lags if (block[lag:] == block[:-lag]).all()), size)]


def _longest_pause(times_s: Times, period: int) -> int:
    """The place in a period after which the pause is longest."""
    pauses_s = np.diff(times_s)
    whole = len(pauses_s) // period
    return int(np.argmax(np.median(pauses_s[: whole * period].reshape(whole, period), axis=0)))


def _mark(block: Ids, end: int) -> tuple[tuple[int, ...], int]:
    """The tokens of the fewest calls up to or from a place that stand nowhere else, and which of them is that place."""
    size = len(block)
    doubled = np.concatenate((block, block, block))
    ahead = behind = np.ones(size, dtype=np.bool_)
    for width in range(size):
        behind = behind & (doubled[size - width : 2 * size - width] == block[end - width])
        if behind.sum() == 1:
            return tuple(doubled[size + end - width : size + end + 1].tolist()), width
        ahead = ahead & (doubled[width : size + width] == doubled[end + width])
        if ahead.sum() == 1:
            return tuple(doubled[end : end + width + 1].tolist()), 0
    raise AssertionError("a sequence that is no repetition is unlike all its rotations")


class Follower:
    """Recognises the iterations of a pattern, call by call."""

    __slots__ = ("_began_s", "_count", "_last", "_mark", "_pattern", "_recent", "_recent_s", "_strays", "_tokens")

    def __init__(self, pattern: Pattern) -> None:
        self._pattern, self._tokens = pattern, pattern.tokens
        self._mark, self._last = list(pattern.mark), pattern.mark[-1]
        self._recent: deque[int] = deque(maxlen=len(pattern.mark))
        self._recent_s: deque[float] = deque(maxlen=len(pattern.mark))
        self._began_s: float | None = None
        self._count = self._strays = 0

    def note(self, token: int, t_s: float) -> tuple[float, float] | None:
        """The next call; gives the begin and the time of the iteration that it shows to be complete, if it does."""
        if token not in self._tokens:
            self._strays += 1
            return None
        self._count += 1
        self._recent.append(token)
        self._recent_s.append(t_s)
        if token != self._last or list(self._recent) != self._mark:
            return None
        return self._end(self._recent_s[self._pattern.place])

    def _end(self, t_s: float) -> tuple[float, float] | None:
        began_s, period = self._began_s, self._pattern.period
        is_whole = (
            began_s is not None
            and abs(self._count - period) <= period // MISSING
            and self._strays <= max(FEW_STRAYS, period // STRAYS)
        )
        self._began_s, self._count, self._strays = t_s, 0, 0
        return (began_s, t_s - began_s) if is_whole and began_s is not None and t_s > began_s else None
