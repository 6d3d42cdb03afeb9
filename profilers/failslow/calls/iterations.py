"""Iteration times out of the communication calls of one rank, call by call, in bounded memory.

Once the period is known, the end of an iteration is looked for again and again (`iterations.py`). An iteration's time
is that from one end to the next: their sum is the time that has passed. Times across something else than an iteration
(an evaluation, calls that are missing) are left out: there, the number of the loop's calls is not that of a period, or
too many others are in between. A few strays do not matter.

The period is looked for again whenever there are twice as many calls, up to `SETTLED`, for what looks like an
iteration may turn out to be a part of one, and when none has been completed for `LOST` periods: then another phase
begins, or a former one goes on.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..tracker import Mode
from .comparison import CommunicationCall, Token

# How many calls an iteration has: the period of a sequence of communication calls (Greyhound, section 4.2).
#
# `robust` looks at each kind of call on its own. A call is known by its token: operation, group, bytes and type.
# 1. What does not belong to the loop is left out: tokens that pause for more than a seventh of the log (evaluations,
#    checkpoints, the start), and those that come without rule (for no s do two thirds of the distances from one to the
#    s-th next agree within 6 %).
# 2. What is left is seen in context: a call with the one before it and the one behind it, for in a loop of gathers and
#    scatters only the contexts at its ends tell where an iteration ends. Irregular contexts do not count.
# 3. For each lag, each context's share of calls that come again just so much later; their mean, with weights that grow
#    as the fourth root of the number of calls: what comes once in an iteration weighs nearly as much as what comes a
#    hundred times, and what comes once in ten iterations, with evaluations, less.
# 4. The period is the smallest lag whose mean is within 0.06 of the best; where a sequence repeats itself exactly, the
#    smallest with which it does.
#
# `paper` is the paper's autocorrelation of a series of numbers, the smallest lag where it is at least M = 0.95. Two
# things had to be changed, for literally it finds next to nothing. The sum over L - k products over one of L squares is
# at most (L - k) / L, below M before there are 20 periods in the log: both are means here (unbiased). And an
# operation's
# kind alone does not tell the parts of an iteration from each other: the numbers are those of tokens, in the order of
# their first appearance. The first quarter of the log is left out, for the broadcasts with which a job begins would be
# nearly all of the variance. What remains wrong with it: whether two tokens are much unlike depends on their numbers,
# the
# rare ones hardly count, so that it takes a pair of gathers and scatters for the period of a loop over many layers, and
# one stray call shifts everything behind it.


Ids: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.float64]

FEWEST_PERIODS = 7  # that must be in a log
ALIKE = 0.06
MOST_ALIKE = 0.65
MOST_IN_A_PERIOD = 400  # calls with one token
NEAR_BEST = 0.06
SURE = 0.95  # M of the paper
WARM_UP = 4  # of the log, one part is the start of the job
LEAST_SCORE = 0.4
RARITY = 0.25
INNER = 4  # a period so short may be that of a part of the loop
FEW = 3
MUCH = 0.15


def period_of(tokens: Sequence[int] | Ids, mode: Mode = "robust") -> int | None:
    """The number of calls after which a sequence of calls repeats itself; None where it does not.

    Args:
        tokens: a number for each call, equal for calls with equal tokens.
        mode: `robust` or `paper`.
    """
    ids = np.asarray(tokens, dtype=np.int64)
    if mode == "paper":
        return _first_sure(ids[len(ids) // WARM_UP :])
    kept = regular(ids)
    names, counts = np.unique(ids[~kept], return_counts=True)
    frequent = names[counts > MUCH * len(ids)]
    if any(not _has_pauses(np.flatnonzero(ids == name), len(ids)) for name in frequent):
        return None
    return _nearly_best(ids[kept])


def regular(ids: Ids) -> NDArray[np.bool_]:
    """Which calls have a token that belongs to the loop."""
    _, dense, counts = np.unique(ids, return_inverse=True, return_counts=True)
    order = np.argsort(dense, kind="stable")
    places = np.split(order, np.cumsum(counts)[:-1])
    kept = np.zeros(len(places), dtype=np.bool_)
    for number, where in enumerate(places):
        if len(where) >= FEWEST_PERIODS and not _has_pauses(where, len(ids)):
            most = min(MOST_IN_A_PERIOD, len(where) // FEWEST_PERIODS)
            kept[number] = any(_is_even(where[step:] - where[:-step]) for step in range(1, most + 1))
    return kept[dense] if len(ids) else np.zeros(0, dtype=np.bool_)


def _has_pauses(places: Ids, total: int) -> bool:
    pauses, rest = np.diff(places, append=total), total - places[0]
    return bool(2 * rest < total or pauses.max() * FEWEST_PERIODS > rest + FEWEST_PERIODS)


def _is_even(distances: Ids) -> bool:
    middle = np.median(distances)
    return bool(np.mean(np.abs(distances - middle) <= ALIKE * middle) >= MOST_ALIKE)


def _nearly_best(ids: Ids) -> int | None:
    """The smallest lag that is nearly as good as the best one."""
    contexts = ids
    if len(ids) >= 3:  # a number for each call that stands for its token and those of its neighbours
        _, dense = np.unique(ids, return_inverse=True)
        kinds = int(dense.max()) + 1
        contexts = (dense[:-2] * kinds + dense[1:-1]) * kinds + dense[2:]
    scores = _scores(np.where(regular(contexts), contexts, -1))
    if not len(scores) or scores.max() < LEAST_SCORE:
        return None
    best = scores.max()
    least = best if best == 1.0 else best - NEAR_BEST
    lag = int(np.argmax(scores >= least)) + 1
    return None if lag <= INNER and _is_interrupted(contexts) else lag


def _is_interrupted(contexts: Ids) -> bool:
    """Whether something comes a few times, at even distances: what is between may be a part of the true period only."""
    names, counts = np.unique(contexts, return_counts=True)
    few = names[(counts >= FEW) & (counts < FEWEST_PERIODS)]
    for places in (np.flatnonzero(contexts == name) for name in few):
        distances = np.diff(places)
        reaches_edges = max(places[0], len(contexts) - places[-1]) <= (1 + ALIKE) * distances.max() + 2
        if reaches_edges and distances.max() - distances.min() <= ALIKE * distances.max():
            return True
    return False


def _scores(ids: Ids) -> Scores:
    """For each lag from 1 on the mean over all numbers from 0 on of the share of calls that come again after it."""
    total = len(ids)
    most = total // FEWEST_PERIODS
    if not most:
        return np.zeros(0)
    names, dense = np.unique(ids, return_inverse=True)
    counted = names >= 0
    if not counted.any():
        return np.zeros(0)
    there = np.bincount(dense)
    weights = np.where(counted, there**RARITY, 0.0)
    scores = np.zeros(most)
    for lag in range(1, most + 1):
        there[dense[total - lag]] -= 1
        again = np.bincount(dense[:-lag][dense[:-lag] == dense[lag:]], minlength=len(names))
        scores[lag - 1] = weights @ (again / np.maximum(there, 1))
    shares: Scores = scores / weights.sum()
    return shares


def _first_sure(ids: Ids) -> int | None:
    """The smallest lag with an autocorrelation of M."""
    total = len(ids)
    most = total // FEWEST_PERIODS
    if not most:
        return None
    _, first, dense = np.unique(ids, return_index=True, return_inverse=True)
    numbers: NDArray[Any] = np.argsort(np.argsort(first))[dense].astype(np.float64)
    numbers -= numbers.mean()
    variance = float(np.mean(numbers**2))
    if variance == 0.0:
        return 1
    spectrum = np.fft.rfft(numbers, 2 * total)
    products = np.fft.irfft(np.abs(spectrum) ** 2, 2 * total)[1 : most + 1]
    correlation = products / (total - np.arange(1, most + 1)) / variance
    sure = correlation >= SURE
    return int(np.argmax(sure)) + 1 if sure.any() else None


# A sequence of calls that repeats itself: where its iterations end, and following it call by call.
#
# An iteration ends with the call before the longest pause of a period, for there the optimizer steps and the next batch
# is loaded, with nothing to communicate. That call is known by the few that lead up to it, or away from it, and stand
# nowhere else in a period: whatever came in between, the next iteration is recognised by itself.


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
    # Begin and end of the longest stretch that holds.
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (kept[:-period] == kept[period:]).astype(np.int8), [0]))))
    if not len(edges):
        begin, end = 0, 0
    else:
        begins, ends = edges[::2], edges[1::2]
        longest = int(np.argmax(ends - begins))
        begin, end = int(begins[longest]), int(ends[longest])
    if end - begin < period:
        return None
    block = _primitive(kept[begin : begin + period])
    pauses_s = np.diff(kept_s[begin : end + period])
    whole = len(pauses_s) // len(block)
    by_place = pauses_s[: whole * len(block)].reshape(whole, len(block))
    mark, place = _mark(block, int(np.argmax(np.median(by_place, axis=0))))
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


def _primitive(block: Ids) -> Ids:
    """The shortest sequence of which it is a repetition."""
    size = len(block)
    lags = (lag for lag in range(1, size) if size % lag == 0)
    return block[: next((lag for lag in lags if (block[lag:] == block[:-lag]).all()), size)]


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
        ends_s, began_s, period = self._recent_s[self._pattern.place], self._began_s, self._pattern.period
        is_whole = (
            began_s is not None
            and abs(self._count - period) <= period // MISSING
            and self._strays <= max(FEW_STRAYS, period // STRAYS)
        )
        self._began_s, self._count, self._strays = ends_s, 0, 0
        return (began_s, ends_s - began_s) if is_whole and began_s is not None and ends_s > began_s else None


FIRST = 128  # calls before the period is looked for
MOST = 16_384  # calls that are remembered
SETTLED = 4_096  # calls after which the period is not questioned as long as it fits
LOST = 6
MOST_TOKENS = 2 * MOST  # that have a number
MOST_PHASES = 16  # that are recognised


@dataclass(frozen=True, slots=True)
class LoggedIteration:
    """An iteration as the calls tell it.

    Attributes:
        phase: 0 for the first sequence of calls that repeats itself, 1 for the next one that is unlike it, and so on.
        begin_s: when it began, by the clock of the calls.
        time_s: how long it took.
    """

    phase: int
    begin_s: float
    time_s: float


class Periods:
    """Finds the period in one rank's calls, and the iteration times.

    Args:
        mode: how the period is found.
        first: how many calls there must be before the period is first looked for.

    Attributes:
        calls: how many there were so far.
        phase: the number of the sequence that repeats itself at present; -1: none is known yet.
    """

    def __init__(self, mode: Mode = "robust", first: int = FIRST) -> None:
        self.calls, self.phase = 0, -1
        self._mode = mode
        self._numbers: dict[Token, int] = {}
        self._next_number = 0
        self._remembered: deque[tuple[int, float]] = deque(maxlen=MOST)
        self._patterns: dict[int, Pattern] = {}
        self._phases = 0
        self._follower: Follower | None = None
        self._looking_from = 0
        self._look_at: float = first
        self._look_again_at: float = first
        self._done_at, self._patience = 0, FIRST  # calls without an iteration that are too many

    @property
    def period(self) -> int | None:
        """How many calls an iteration has, strays not counted; None: not known yet."""
        return self._patterns[self.phase].period if self._patterns else None

    def note(self, call: CommunicationCall) -> tuple[LoggedIteration, ...]:
        """The next call; gives the iterations that it shows to be complete.

        When a phase begins, those of its iterations that are remembered are told at once; also where the same calls
        were taken for iterations of another phase before.
        """
        number, t_s = self._number((call.op, call.group, call.bytes, call.dtype)), call.t_s
        self.calls += 1
        self._remembered.append((number, t_s))
        done = self._follower.note(number, t_s) if self._follower else None
        found: tuple[LoggedIteration, ...] = ()
        if done:
            found = (LoggedIteration(self.phase, *done),)
            self._done_at = self.calls
            self._look_at = min(self._look_again_at, self.calls + self._patience)
        return found if self.calls < self._look_at else found + self._look()

    def finish(self) -> tuple[LoggedIteration, ...]:
        """There are no more calls: what was too short to be looked at is looked at."""
        return self._look() if self._look_again_at < inf else ()

    def _number(self, token: Token) -> int:
        """A number for a token; those of tokens that nobody remembers are forgotten."""
        number = self._numbers.get(token)
        if number is None:
            if len(self._numbers) >= MOST_TOKENS:
                known = {number for number, _ in self._remembered}.union(
                    *(one.tokens for one in self._patterns.values())
                )
                self._numbers = {token: number for token, number in self._numbers.items() if number in known}
            number = self._numbers[token] = self._next_number
            self._next_number += 1
        return number

    def _look(self) -> tuple[LoggedIteration, ...]:
        """Look for the period in the calls since the last time that all was well."""
        if self._patterns and self.calls - self._done_at >= self._patience:
            self._looking_from = max(self._looking_from, self._done_at)
        seen = self.calls - self._looking_from
        self._look_at = self._look_again_at = self._looking_from + 2 * seen
        calls = list(self._remembered)[-seen:] if seen else []
        pattern = pattern_of(np.array([n for n, _ in calls], np.int64), np.array([t_s for _, t_s in calls]), self._mode)
        if pattern is None:
            return ()
        before, self.phase = self.phase, self._phase_of(pattern)
        self._patience = max(FIRST, LOST * pattern.period)
        if seen >= SETTLED:
            self._look_again_at = inf
        self._done_at, self._look_at = self.calls, min(self._look_again_at, self.calls + self._patience)
        if self.phase == before:
            return ()
        self._follower = Follower(self._patterns[self.phase])
        done = (self._follower.note(number, t_s) for number, t_s in calls)
        return tuple(LoggedIteration(self.phase, *one) for one in done if one)

    def _phase_of(self, pattern: Pattern) -> int:
        """The number of a pattern: that under which it is known, or the next one."""
        for phase, known in self._patterns.items():
            if known.is_that_of(pattern):
                return phase
        if len(self._patterns) == MOST_PHASES:
            del self._patterns[next(phase for phase in self._patterns if phase != self.phase)]
        self._patterns[self._phases] = pattern
        self._phases += 1
        return self._phases - 1
