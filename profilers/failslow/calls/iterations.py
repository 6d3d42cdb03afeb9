"""Iteration times out of the communication calls of one rank, call by call, in bounded memory.

Once the period is known, the end of an iteration is looked for again and again (`pattern.py`). An iteration's time is
that from one end to the next: their sum is the time that has passed. Times across something else than an iteration (an
evaluation, calls that are missing) are left out: there, the number of the loop's calls is not that of a period, or
too many others are in between. A few strays do not matter.

The period is looked for again whenever there are twice as many calls, up to `SETTLED`, for what looks like an
iteration may turn out to be a part of one, and when none has been completed for `LOST` periods: then another phase
begins, or a former one goes on.
"""

from collections import deque
from dataclasses import dataclass
from math import inf

import numpy as np

from ..tracker import Mode
from .call import Call, Token
from .pattern import Follower, Pattern, pattern_of

FIRST = 128  # calls before the period is looked for
MOST = 16_384  # calls that are remembered
SETTLED = 4_096  # calls after which the period is not questioned as long as it fits
LOST = 6
MOST_TOKENS = 2 * MOST  # that have a number
MOST_PHASES = 16  # that are recognised


@dataclass(frozen=True, slots=True)
class Iteration:
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

    def note(self, call: Call) -> tuple[Iteration, ...]:
        """The next call; gives the iterations that it shows to be complete.

        When a phase begins, those of its iterations that are remembered are told at once; also where the same calls
        were taken for iterations of another phase before.
        """
        number, t_s = self._number((call.op, call.group, call.bytes, call.dtype)), call.t_s
        self.calls += 1
        self._remembered.append((number, t_s))
        done = self._follower.note(number, t_s) if self._follower else None
        found: tuple[Iteration, ...] = ()
        if done:
            found = (Iteration(self.phase, *done),)
            self._done_at = self.calls
            self._look_at = min(self._look_again_at, self.calls + self._patience)
        return found if self.calls < self._look_at else found + self._look()

    def finish(self) -> tuple[Iteration, ...]:
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

    def _look(self) -> tuple[Iteration, ...]:
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
        return tuple(Iteration(self.phase, *one) for one in done if one)

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
