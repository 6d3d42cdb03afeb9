"""A lower bound on what failures cost, whatever the routing and the orders, for equal workers in each stage.

Some worker of a stage with L live ones executes at least n = ceil(M / L) of its M micro-batches, wherever they come
from. No F of these starts before its message could have come all the way from the first stage, no I before its own F,
all later stages and back, no W before its I; and after an I, the I of all stages before follow. With these heads and
tails the n micro-batches are a one-machine problem as in scheduling/bounds/lower_bound.py, and all of a kind have the
same head and tail. For such, the best pre-emptive schedule lasts as long as the largest of min head + work + min tail
over the sets of kinds (J. Carlier, EJOR 11, 1982): seven sums a stage.

If the last of these n rounds of a stage has more micro-batches than some stage k before has live workers, then not all
of its workers can start at once: the first L_k micro-batches arrive one F of stage k before the others. Some worker
then has n micro-batches and starts that much later, or another n + 1. Likewise at the end, where stage k has to run
their I, as far as the iteration ends with what follows at stage k or before it.

Memory adds five arguments, where a worker has room for C micro-batches between F and I (or B), and for r stashes
between I and W beside a whole one:

* before its first I can start it has executed no more than C of its F, so all other work comes after that moment: once
  with W, once without it, where the I of earlier stages follow;
* each of the n micro-batches keeps one of C places from its F through all later stages and back to the end of its I;
* when its last F starts, no more than r of the W of the n - 1 micro-batches before it are still to come (the more of
  them are whole then, the fewer), so n - 1 - r W come before its last I, where the I of earlier stages follow: once
  counted from its first F on, once from its first I on, without the C F before it.

Its first I is late, too, where a stage before or after has fewer live workers than this one has workers with n
micro-batches: there, only so many of these can be the first of a worker. It is late by one F, or I of a later stage.

For the period the same holds in the window of each stage, as there: heads count from its first F, tails to its last
operation, and the F and I of all later stages lie inside.

Where memory is limited, count_bound.py says what follows from counting alone, and the larger one counts. What is found
is then rounded up to a multiple of the times' common unit: orders start their operations as soon as they can, so that
every start and end, and the difference of two, is a sum of durations and delays, each some number of times. As times
are written in decimals and held in binary, they count as multiples if they are but for 12 digits; sums of such differ
from multiples by as little, far less than what the planner takes for rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import combinations
from math import ceil, gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...schemas.check import ROUNDING
from .count_bound import Counted

if TYPE_CHECKING:
    from ..scheduling.problem import Flags, Floats, Ints, Problem, Workers

SETS = [kinds for size in (1, 2, 3) for kinds in combinations(range(3), size)]
# The same of all arguments: seven sets, and five where memory is limited.
STARTS = np.array([*(0 in kinds for kinds in SETS), False, False, True, True, False])  # the head is that of F
INPUTS = np.array([*[False] * len(SETS), True, True, False, False, True])  # the head is that of the first I
RETURNS = np.array([*(2 not in kinds for kinds in SETS), False, True, True, True, True])  # I of earlier stages follow
WEIGHTS = np.array([*(2 in kinds for kinds in SETS), True, *[False] * 4])  # W comes last
UNFORCED = len(SETS) + 3  # so many arguments do not count the W that memory forces
# Times are multiples of a unit to so many digits; one that is a smaller part of a value than this adds nothing to it.
DIGITS, SMALLEST_PART = 12, 1e-7


class _Path(NamedTuple):
    """Durations and delays along one pipeline, and sums of them; arrays of stages, in s."""

    work_s: Floats  # kinds x stages
    reach_s: Floats  # from the start of F at stage 0 to that at stage i
    return_s: Floats  # from the end of I at stage i to that at stage 0
    turn_s: Floats  # from the end of F at stage i to the start of its I


class _Memory(NamedTuple):
    """What a worker of each stage holds at most; arrays of stages, infinite without a limit."""

    room: Floats  # micro-batches between F and I
    capacity: Floats  # activations, stashes among them
    stash: Floats  # what is held between I and W, as a share of an activation


class RoutingBound:
    """Equal pipelines, made ready to bound any numbers of dead workers.

    Args:
        pipeline: one pipeline alone, all its workers alive.
        jobs: micro-batches of all pipelines.
    """

    def __init__(self, pipeline: Problem, jobs: int) -> None:
        self._jobs = jobs
        workers, split = pipeline.workers, pipeline.split[0]
        back_s = np.where(split, workers.input_s, workers.full_s)
        weight_s = np.where(split, workers.weight_s, 0.0)
        hop_s = pipeline.hop_s[0]
        self._work_s = np.stack([workers.forward_s, back_s, weight_s])
        self._reduce_s, self._step_s = workers.allreduce_s, workers.optimizer_s
        reach_s = np.concatenate([[0.0], np.cumsum(workers.forward_s[:-1] + hop_s)])
        return_s = np.concatenate([[0.0], np.cumsum(back_s[:-1] + hop_s)])
        turn_s = (reach_s[-1] + workers.forward_s[-1] - reach_s - workers.forward_s) + (
            return_s[-1] + back_s[-1] - return_s - back_s
        )
        self._path = _Path(self._work_s, reach_s, return_s, turn_s)
        # After an I, the last operation of some stage before it, or its own, ends the iteration: when, by its end at 0.
        self._memory = _memory_of(workers, split, jobs)
        self._limited = bool((self._memory.room < jobs).any())
        self._counted = Counted(self._work_s, np.append(hop_s, 0.0), *self._memory)
        self._unit_s = _unit_s([*self._work_s.flat, *hop_s, *self._reduce_s, *self._step_s])
        self._known: dict[tuple[bytes, bool, bool], float] = {}
        self._last_s = np.maximum.accumulate(weight_s + self._reduce_s - return_s)
        self._makespan = self._of_iteration()
        self._windows = self._of_windows()

    @property
    def limited(self) -> bool:
        """Whether memory limits say anything."""
        return self._limited

    def value_s(self, live: Ints, staggered: bool, *, counting: bool = True) -> float:
        """No routing and no orders have a smaller makespan, or period if `staggered`, in s.

        Args:
            live: workers of each stage, 1 or more.
            staggered: whether the period counts.
            counting: whether to count as well, which takes longer than all the rest.
        """
        if not self._limited:
            return self._by_load_s(live, staggered)
        key = (live.tobytes(), staggered, counting)
        if key not in self._known:
            found_s = self._by_load_s(live, staggered)
            self._known[key] = self._rounded_s(max(found_s, self._by_count_s(live, staggered) if counting else 0.0))
        return self._known[key]

    def alone_s(self, live: Ints, staggered: bool) -> Floats:
        """What each stage says by its number of live workers alone, whatever that of the others, in s.

        Without what W say that memory forces: they are least forced in late stages, which is no reason to lose workers
        there, for where these are fewer, earlier ones wait.
        """
        fixed_s, each_s = (part[:UNFORCED] for part in (self._windows if staggered else self._makespan))
        own_s = fixed_s + each_s * -(-self._jobs // live)
        found: Floats = own_s.reshape(-1, len(live)).max(axis=0)
        return found if staggered else found + self._step_s.max()

    def _by_load_s(self, live: Ints, staggered: bool) -> float:
        """What follows for the worker of each stage that has most micro-batches, in s."""
        rounds = -(-self._jobs // live)
        fixed_s, each_s = self._windows if staggered else self._makespan
        own_s = fixed_s + each_s * rounds
        least_s = float(own_s.max())
        if self._limited or not staggered:
            near = np.nonzero(own_s >= least_s - self._work_s[:2].max())  # nobody is late by more
            least_s = float((own_s[near] + np.minimum(self._late_s(live, rounds, near), each_s[near])).max())
        return least_s if staggered else least_s + float(self._step_s.max())

    def rounds_within(self, within_s: float, staggered: bool) -> Ints:
        """The most micro-batches that a worker of each stage may have for an iteration of so many s, by this bound."""
        fixed_s, each_s = self._windows if staggered else self._makespan
        left_s = within_s - (0.0 if staggered else float(self._step_s.max())) - fixed_s
        counts = (each_s > 0) & np.isfinite(fixed_s)
        most = np.where(counts, left_s / np.where(counts, each_s, 1.0) * (1 + ROUNDING), self._jobs)
        least = np.clip(most, 0, self._jobs).reshape(-1, self._work_s.shape[1]).min(axis=0)
        found: Ints = np.floor(least).astype(np.int64)
        return found

    def _by_count_s(self, live: Ints, staggered: bool) -> float:
        """What follows from counting, in s; for the period in the window of the first stage, where all others lie."""
        ends_s = self._counted.ends_s(live, self._jobs) + self._reduce_s
        return float(ends_s[0] + self._step_s[0]) if staggered else float(ends_s.max() + self._step_s.max())

    def _rounded_s(self, least_s: float) -> float:
        """The least multiple of the times' unit that is no less, but for rounding."""
        if self._unit_s <= least_s * SMALLEST_PART:
            return least_s
        return max(least_s, ceil(least_s / self._unit_s * (1 - ROUNDING)) * self._unit_s)

    def _late_s(self, live: Ints, rounds: Ints, near: tuple[Ints, ...]) -> Floats:
        """How much later than an argument says the last workers of a stage start, or must end.

        Or else one of them has a micro-batch more.

        Args:
            live, rounds: workers of each stage, and micro-batches of those that have most.
            near: of some arguments, their numbers, windows if the period counts, and stages.
        """
        last_round = self._jobs - live * (rounds - 1)
        few = live[:, None] < last_round[None, :]  # stage k has too few workers for the last round of stage i
        earlier, later = np.triu(few, 1), np.tril(few, -1)
        forward_s, back_s = (work_s[:, None] for work_s in self._work_s[:2])
        input_s = np.where(later, np.maximum(forward_s, back_s), 0.0).max(axis=0, initial=0.0)[near[-1]]
        if len(near) == 3:  # within the window of stage k, all stages from k on
            start_s, return_s = (
                np.maximum.accumulate(np.where(earlier, late_s, 0.0)[::-1])[::-1][near[1:]]
                for late_s in (forward_s, back_s)
            )
        else:
            # What follows between stages k and i may end that much later without a loss.
            spare_s = self._last_s[None, :] - self._last_s[:, None]
            start_s, return_s = (
                np.where(earlier, late_s, 0.0).max(axis=0, initial=0.0)[near[-1]]
                for late_s in (forward_s, back_s - spare_s)
            )
        number = near[0]
        found: Floats = np.maximum(np.where(STARTS[number], start_s, 0.0), np.where(RETURNS[number], return_s, 0.0))
        return np.maximum(found, np.where(INPUTS[number], np.maximum(input_s, start_s), 0.0))

    def _of_iteration(self) -> tuple[Floats, Floats]:
        """Of each argument and stage: what it says without micro-batches, and with each one more."""
        _, reach_s, return_s, _ = self._path
        return _arguments(self._path, self._memory, reach_s, self._last_s + return_s, self._reduce_s)

    def _of_windows(self) -> tuple[Floats, Floats]:
        """The same of each argument, window and stage; arguments x windows x stages."""
        work_s, reach_s, return_s, _ = self._path
        after_s = self._reduce_s + self._step_s
        ends_s = return_s[None, :] - return_s[:, None] + (work_s[2] + after_s)[:, None]
        heads_s = reach_s[None, :] - reach_s[:, None]
        fixed_s, each_s = _arguments(self._path, self._memory, heads_s, ends_s, after_s[:, None])
        stages = np.arange(len(reach_s))
        window, stage = stages[:, None], stages[None, :]
        # W of later stages may end after the window.
        inside = (stage == window) | ((stage > window) & ~WEIGHTS[:, None, None])
        return np.where(inside, fixed_s, -np.inf), np.where(inside, each_s, 0.0)


def _memory_of(workers: Workers, split: Flags, jobs: int) -> _Memory:
    """What a worker of each stage holds at most of so many micro-batches, counted in activations."""
    held = workers.activation_bytes > 0
    each_bytes = np.where(held, workers.activation_bytes, 1.0)
    stash = np.where(split & held, workers.stash_bytes / each_bytes, 0.0)
    limit = np.where(held, workers.limit_bytes * (1 + ROUNDING) / each_bytes, np.inf)
    room = np.maximum(np.floor(limit), 1.0)
    pairs = zip(room.tolist(), limit.tolist(), stash.tolist(), strict=True)
    return _Memory(room, np.array([_capacity(*pair, jobs) for pair in pairs]), stash)


def _capacity(room: float, limit: float, stash: float, jobs: int) -> float:
    """The most that a limit admits of whole micro-batches and stashes together, in activations."""
    if not stash:
        return room
    if room >= jobs:
        return limit  # all micro-batches at once: it may be billions, and never matters
    return max(whole + (limit - whole) // stash * stash for whole in range(int(room) + 1))


def _unit_s(times_s: Iterable[float]) -> float:
    """The largest time that all are multiples of, but for rounding."""
    exact = [Fraction(f"{time_s:.{DIGITS}g}") for time_s in set(times_s) if time_s]
    return float(reduce(_common_measure, exact)) if exact else 0.0


def _common_measure(one: Fraction, other: Fraction) -> Fraction:
    """The largest number that two are multiples of."""
    return Fraction(
        gcd(one.numerator * other.denominator, other.numerator * one.denominator), one.denominator * other.denominator
    )


def _arguments(path: _Path, memory: _Memory, reach_s: Floats, ends_s: Floats, last_s: Floats) -> tuple[Floats, Floats]:
    """What each argument says without micro-batches, and with each one more; arguments x (windows x) stages, in s.

    Args:
        path: along one pipeline.
        memory: what workers hold.
        reach_s: heads of F.
        ends_s: tails of I.
        last_s: tails of W.
    """
    forward_s, back_s, weight_s = path.work_s
    input_head_s = reach_s + forward_s + path.turn_s
    heads_s = [reach_s, input_head_s, input_head_s + back_s]
    tails_s = [path.turn_s + back_s + ends_s, ends_s, last_s + 0 * ends_s]
    fixed = [_least(heads_s, kinds) + _least(tails_s, kinds) for kinds in SETS]
    work = [sum(path.work_s[kind] for kind in kinds) + 0 * reach_s for kinds in SETS]
    limited = np.isfinite(memory.room)
    places = np.where(limited, memory.room, 1.0)
    stashing = limited & (memory.stash > 0)
    # A stash that fits but for rounding fits.
    beside = np.where(stashing, (memory.capacity - 1) / np.where(stashing, memory.stash, 1.0), 0.0)
    behind_s = np.where(stashing, 1 + np.floor(beside + ROUNDING), 0) * weight_s
    early_s = input_head_s - places * forward_s
    tight = [
        (limited, early_s + last_s, forward_s + back_s + weight_s),
        (limited, early_s + ends_s, forward_s + back_s),
        (limited, reach_s + ends_s, (forward_s + path.turn_s + back_s) / places),
        (stashing, reach_s - behind_s + ends_s, forward_s + back_s + weight_s),
        (stashing, early_s - behind_s + ends_s, forward_s + back_s + weight_s),
    ]
    fixed += [np.where(where, said_s, -np.inf) for where, said_s, _ in tight]
    work += [np.where(where, each_s + 0 * reach_s, 0.0) for where, _, each_s in tight]
    return np.stack(fixed), np.stack(work)


def _least(times_s: Sequence[Floats], kinds: tuple[int, ...]) -> Floats:
    """The least of the times of some kinds."""
    found: Floats = np.min([times_s[kind] for kind in kinds], axis=0)
    return found
