"""A lower bound on what failures cost, whatever the routing and the orders, for equal workers in each stage.

Some worker of a stage with L live ones executes at least n = ceil(M / L) of its M micro-batches, wherever they come
from. No F of these starts before its message could have come all the way from the first stage, no I before its own F,
all later stages and back, no W before its I; and after an I, the I of all stages before follow. With these heads and
tails the n micro-batches are a one-machine problem as in planners/scheduling/lower_bound.py, and all of a kind have the
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

Where memory is limited, bounds.py says what follows from counting alone, and the larger one counts. What is found
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
from math import ceil, floor, gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...schemas.check import ROUNDING
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form, pays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..scheduling.problem import Floats as FloatArray
    from ..scheduling.problem import Ints as IntArray
    from ..scheduling.problem import Problem

    Array = NDArray[np.float64]


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

    work_s: FloatArray  # kinds x stages
    reach_s: FloatArray  # from the start of F at stage 0 to that at stage i
    return_s: FloatArray  # from the end of I at stage i to that at stage 0
    turn_s: FloatArray  # from the end of F at stage i to the start of its I


class _Memory(NamedTuple):
    """What a worker of each stage holds at most; arrays of stages, infinite without a limit."""

    room: FloatArray  # micro-batches between F and I
    capacity: FloatArray  # activations, stashes among them
    stash: FloatArray  # what is held between I and W, as a share of an activation


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
        # What a worker of each stage holds at most of so many micro-batches, counted in activations.
        held = workers.activation_bytes > 0
        each_bytes = np.where(held, workers.activation_bytes, 1.0)
        stash = np.where(split & held, workers.stash_bytes / each_bytes, 0.0)
        limit = np.where(held, workers.limit_bytes * (1 + ROUNDING) / each_bytes, np.inf)
        room = np.maximum(np.floor(limit), 1.0)
        pairs = zip(room.tolist(), limit.tolist(), stash.tolist(), strict=True)
        self._memory = _Memory(room, np.array([_capacity(*pair, jobs) for pair in pairs]), stash)
        self._limited = bool((self._memory.room < jobs).any())
        self._counted = Counted(self._work_s, pipeline.hops_s[0], *self._memory)
        self._unit_s = _unit_s([*self._work_s.flat, *hop_s, *self._reduce_s, *self._step_s])
        self._known: dict[tuple[bytes, bool, bool], float] = {}
        # After an I, the last operation of some stage before it, or its own, ends the iteration: when, by its end at 0.
        self._last_s = np.maximum.accumulate(weight_s + self._reduce_s - return_s)
        # Of each argument and stage: what it says without micro-batches, and with each one more.
        self._makespan = _arguments(self._path, self._memory, reach_s, self._last_s + return_s, self._reduce_s)
        self._windows = self._of_windows()

    @property
    def limited(self) -> bool:
        """Whether memory limits say anything."""
        return self._limited

    def value_s(self, live: IntArray, staggered: bool, *, counting: bool = True) -> float:
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
            least_s = found_s
            if counting:
                # For the period in the window of the first stage, where all others lie.
                ends_s = self._counted.ends_s(live, self._jobs) + self._reduce_s
                step_s = self._step_s[0] if staggered else self._step_s.max()
                least_s = max(found_s, float((ends_s[0] if staggered else ends_s.max()) + step_s))
            if self._unit_s > least_s * SMALLEST_PART:
                # The least multiple of the times' unit that is no less, but for rounding.
                least_s = max(least_s, ceil(least_s / self._unit_s * (1 - ROUNDING)) * self._unit_s)
            self._known[key] = least_s
        return self._known[key]

    def alone_s(self, live: IntArray, staggered: bool) -> FloatArray:
        """What each stage says by its number of live workers alone, whatever that of the others, in s.

        Without what W say that memory forces: they are least forced in late stages, which is no reason to lose workers
        there, for where these are fewer, earlier ones wait.
        """
        fixed_s, each_s = (part[:UNFORCED] for part in (self._windows if staggered else self._makespan))
        own_s = fixed_s + each_s * -(-self._jobs // live)
        found: FloatArray = own_s.reshape(-1, len(live)).max(axis=0)
        return found if staggered else found + self._step_s.max()

    def _by_load_s(self, live: IntArray, staggered: bool) -> float:
        """What follows for the worker of each stage that has most micro-batches, in s."""
        rounds = -(-self._jobs // live)
        fixed_s, each_s = self._windows if staggered else self._makespan
        own_s = fixed_s + each_s * rounds
        least_s = float(own_s.max())
        if self._limited or not staggered:
            near = np.nonzero(own_s >= least_s - self._work_s[:2].max())  # nobody is late by more
            least_s = float((own_s[near] + np.minimum(self._late_s(live, rounds, near), each_s[near])).max())
        return least_s if staggered else least_s + float(self._step_s.max())

    def rounds_within(self, within_s: float, staggered: bool) -> IntArray:
        """The most micro-batches that a worker of each stage may have for an iteration of so many s, by this bound."""
        fixed_s, each_s = self._windows if staggered else self._makespan
        left_s = within_s - (0.0 if staggered else float(self._step_s.max())) - fixed_s
        counts = (each_s > 0) & np.isfinite(fixed_s)
        most = np.where(counts, left_s / np.where(counts, each_s, 1.0) * (1 + ROUNDING), self._jobs)
        least = np.clip(most, 0, self._jobs).reshape(-1, self._work_s.shape[1]).min(axis=0)
        found: IntArray = np.floor(least).astype(np.int64)
        return found

    def _late_s(self, live: IntArray, rounds: IntArray, near: tuple[IntArray, ...]) -> FloatArray:
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
        found: FloatArray = np.maximum(np.where(STARTS[number], start_s, 0.0), np.where(RETURNS[number], return_s, 0.0))
        return np.maximum(found, np.where(INPUTS[number], np.maximum(input_s, start_s), 0.0))

    def _of_windows(self) -> tuple[FloatArray, FloatArray]:
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


def _arguments(
    path: _Path, memory: _Memory, reach_s: FloatArray, ends_s: FloatArray, last_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
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


def _least(times_s: Sequence[FloatArray], kinds: tuple[int, ...]) -> FloatArray:
    """The least of the times of some kinds."""
    found: FloatArray = np.min([times_s[kind] for kind in kinds], axis=0)
    return found


# A stronger bound on the makespan where stages are unlike: some must starve at first, as micro-batches arrive too
# slowly.
#
# Look at all live workers of a stage together, whatever the routing. Sort the starts of its F over all workers: the
# l-th is
#
# * no earlier than the l-th end of F at the stage before, plus the delay;
# * no earlier than the (l - L)-th plus one F: else L + 1 of them would run at once on L workers.
#
# From the first stage on, that gives a head of the l-th F of every stage; from the last stage back, in the same way and
# after the l-th F's end, of the l-th I; and of the l-th W. What has a head after t cannot be done before t. So if the
# work of all operations with earlier heads is less than L workers could do until t, the workers together idle for the
# rest.
#
# Let Z be the largest such idle time over all t, r the head of the first F, and w what a micro-batch takes in this
# stage. Until r + X a worker that idles for z executes at most floor((X - z) / w) micro-batches. All together execute
# M: with q = floor(X / w), each can idle for X - q w without losing one, and loses another for each further w. Hence
#
#     L q - ceil(max(0, Z - L (X - q w)) / w) >= M,
#
# and the least such X is proven. It counts whole micro-batches, so it never is below the load of the busiest worker.
# After its last operation a stage reduces its gradients, and some optimizer steps.


WHOLE = 1e-9  # a whole number is meant where a quotient is this close to it
HALVINGS = 60


def arrival_bound_s(pipeline: Problem, jobs: int, live: IntArray) -> float:
    """No routing and no orders have a smaller makespan, in s.

    Args:
        pipeline: one of equal pipelines alone, all its workers alive.
        jobs: micro-batches of all pipelines.
        live: live workers of each stage, 1 or more.
    """
    workers, split = pipeline.workers, pipeline.split[0]
    back_s = np.where(split, workers.input_s, workers.full_s)
    weight_s = np.where(split, workers.weight_s, 0.0)
    hop_s = pipeline.hop_s[0]
    stages = len(live)
    # Heads of the l-th F of each stage.
    heads_s = []
    arrived_s = np.zeros(jobs)
    for stage, count in enumerate(live.tolist()):
        heads_s.append(_paced(arrived_s, float(workers.forward_s[stage]), count))
        if stage < len(hop_s):
            arrived_s = heads_s[-1] + workers.forward_s[stage] + hop_s[stage]
    ends_s = np.zeros(stages)
    returned_s = np.zeros(jobs)
    for stage in reversed(range(stages)):
        own_s = (float(workers.forward_s[stage]), float(back_s[stage]), float(weight_s[stage]))
        number = int(live[stage])
        input_s = _paced(np.maximum(returned_s, heads_s[stage] + own_s[0]), own_s[1], number)
        weight_heads_s = _paced(input_s + own_s[1], own_s[2], number)
        idle_s = _idle_s((heads_s[stage], input_s, weight_heads_s), own_s, number)
        ends_s[stage] = heads_s[stage][0] + _least_s(sum(own_s), jobs, number, idle_s)
        if stage:
            returned_s = input_s + own_s[1] + hop_s[stage - 1]
    return float((ends_s + workers.allreduce_s).max() + workers.optimizer_s.max())


def _paced(heads_s: FloatArray, each_s: float, workers: int) -> FloatArray:
    """Heads so that the l-th is no earlier than the (l - workers)-th and one operation more; ascending."""
    rounds = -(-len(heads_s) // workers)
    rows = np.full(rounds * workers, -np.inf)
    rows[: len(heads_s)] = heads_s
    done_s = np.arange(rounds)[:, None] * each_s
    paced = np.maximum.accumulate(rows.reshape(rounds, workers) - done_s, axis=0) + done_s
    found: FloatArray = np.maximum.accumulate(paced.ravel()[: len(heads_s)])
    return found


def _idle_s(heads_s: tuple[FloatArray, ...], each_s: tuple[float, ...], workers: int) -> float:
    """How long the workers together idle at least, from the first head on."""
    times_s = np.concatenate(heads_s)
    work_s = np.repeat(each_s, [len(heads) for heads in heads_s])
    order = np.argsort(times_s, kind="stable")
    before_s = np.concatenate([[0.0], np.cumsum(work_s[order])[:-1]])
    return float((workers * (times_s[order] - heads_s[0][0]) - before_s).max())


def _least_s(each_s: float, jobs: int, workers: int, idle_s: float) -> float:
    """The least time in which the workers can execute all micro-batches and idle as long as they must."""

    def executed(time_s: float) -> int:
        rounds = floor(time_s / each_s + WHOLE)
        spare_s = workers * (time_s - rounds * each_s)
        return workers * rounds - ceil(max(0.0, idle_s - spare_s) / each_s - WHOLE)

    least_s = max(-(-jobs // workers) * each_s, (jobs * each_s + idle_s) / workers)
    if each_s == 0 or executed(least_s) >= jobs:
        return least_s
    most_s = least_s + idle_s + each_s
    for _ in range(HALVINGS):
        middle_s = (least_s + most_s) / 2
        least_s, most_s = (least_s, middle_s) if executed(middle_s) >= jobs else (middle_s, most_s)
    return least_s


# What memory limits cost a pipeline whose stages have several equal workers, whatever the routing and the orders.
#
# It counts, and forgets which worker does what: the l-th F of a stage is the l-th to start on any of its L live
# workers. Heads are times before which nothing of that number starts. The pattern is that of
# planners/scheduling/lower_bound.py, with L machines instead of one. Counting from 0, with C the activations that all
# workers of a stage hold together:
#
# * **F_l** starts no earlier than F_(l-1); than F_l of the stage before has ended, and its message come; than F_(l-L)
#   has ended, for L workers run L operations at once; and, if l + 1 activations are more than C, than memory admits:
#   when it starts, b of the I and w of the W have ended, where the l + 1 - b whole micro-batches and the b - w stashes
#   fit in C. Each b gives the fewest w. By then L workers have done these b and w, and all but L of the F: a worker has
#   at most one operation under way. The head is the least over b of the latest of these three.
# * **I_l** starts no earlier than F_l has ended; than I_l of the stage after has, and its message come; than I_(l-L)
#   has; and than the stage has done l + 1 F, all but L of the I, and the W that F_l had to wait for.
# * **W_l** starts no earlier than I_l has ended; and than the stage has done l + 1 F and I, and all but L of the W.
#
# Time of work: up to any time t only what has a head before t can have been under way, so that at least
# `idle = L t - (that work)` is lost. Work that ends later than t ends no sooner than (idle + work) / L.
#
# The whole takes steps of micro-batches times stages. Once memory is full everywhere the heads go on in a straight
# line: only so many are made as the stages hold, and some rounds more; what the last one has at least follows from work
# alone.


# Up to this many micro-batches times stages, plain Python is quicker than to load the machine code.
INTERPRETED_CELLS = 30_000
# So many rounds of all workers are counted after memory is full, and so many micro-batches at least.
ROUNDS, FEWEST = 4, 64
INFINITY = float("inf")


class Counted:
    """A pipeline to count in; arrays over its stages, times in s.

    Args:
        work_s: of F, I (or B) and W, 0 where there is none; kinds x stages.
        hop_s: delay of the links to the next stage and back, 0 after the last stage.
        room: micro-batches that a worker holds at most between F and I; infinite without a limit.
        capacity: activations that a worker holds at most, stashes among them.
        stash: share of an activation that is held between I and W.
    """

    def __init__(self, work_s: Array, hop_s: Array, room: Array, capacity: Array, stash: Array) -> None:
        self._work_s, self._hop_s, self._room, self._capacity, self._stash = work_s, hop_s, room, capacity, stash
        self._cells = 0  # counted so far

    def ends_s(self, live: NDArray[np.int64], jobs: int) -> Array:
        """When the last operation of each stage has ended at the earliest.

        Args:
            live: workers of each stage, 1 or more.
            jobs: micro-batches of all pipelines.
        """
        stages, room = len(live), np.minimum(self._room * live, jobs)
        known = int(min(jobs, max(FEWEST, room[room < jobs].max(initial=0) + ROUNDS * live.max())))
        self._cells += stages * known
        form = Form(pays(raise_counts, self._cells, INTERPRETED_CELLS))
        ends_s = form.float_space(stages)
        costs = CountingCosts(
            stages, jobs, known, live=form.ints(live), lasting=form.floats(self._work_s.ravel()),
            hop=form.floats(self._hop_s), room=form.ints(room),
            capacity=form.floats(np.minimum(self._capacity, jobs) * live * (1 + ROUNDING)),
            stash=form.floats(self._stash),
        )  # fmt: skip
        state = CountingState(
            begin=form.float_space(3 * known * stages), idle=form.floats([-INFINITY] * stages),
            passed=form.int_space(2 * stages), last=form.float_space(stages), ends=ends_s,
        )  # fmt: skip
        form.kernel(raise_counts)(costs, state)
        return np.asarray(ends_s)


class CountingCosts(NamedTuple):
    """What is counted.

    Attributes:
        stages, jobs, known: how many; heads are made for the first `known` jobs.
        live: workers of each stage.
        lasting: of F, I and W, at `kind * stages + stage`.
        hop: delay to the next stage and back, of each stage.
        room: whole micro-batches that a stage holds at most, of each stage.
        capacity: activations that a stage holds at most, of each stage.
        stash: share of an activation between I and W, of each stage.
    """

    stages: int
    jobs: int
    known: int
    live: Ints
    lasting: Floats
    hop: Floats
    room: Ints
    capacity: Floats
    stash: Floats


class CountingState(NamedTuple):
    """What has been counted.

    Attributes:
        begin: the heads, at `(kind * known + number) * stages + stage`.
        idle: what is lost of each stage; -INFINITY at first.
        passed: how many I of each stage, then how many W, `idle` is past.
        last: the head of each stage's last F.
        ends: the least last end of each stage.
    """

    begin: MutableFloats
    idle: MutableFloats
    passed: MutableInts
    last: MutableFloats
    ends: MutableFloats


@kernel
def stashes(costs: CountingCosts, before: int, number: int, at: int) -> float:
    """The fewest W that have ended when the F of that number starts at a stage, with so many I before it.

    It is no whole number; as stashes are parts of activations, it falls the more I there are.
    """
    stash = costs.stash[at]
    left = costs.capacity[at] - (number + 1 - before)
    if before * stash <= left:
        return 0.0
    return before - left / stash


@kernel
def whole(number: float) -> int:
    """A number rounded up."""
    below = int(number)
    return below + 1 if below < number else below


@kernel
def freed(costs: CountingCosts, state: CountingState, here: int, kind: int, number: int, at: int) -> float:
    """When one of the operations of a kind that all workers of a stage run before this one has ended, at `here`."""
    live = costs.live[at]
    if number < live:
        return -INFINITY
    return state.begin[here - live * costs.stages] + costs.lasting[kind * costs.stages + at]


@kernel
def admitted(costs: CountingCosts, state: CountingState, at: int, number: int) -> float:
    """The head that memory gives the F of that number: the least over how many I come before it."""
    if number < costs.room[at]:
        return -INFINITY
    stages, begin = costs.stages, state.begin
    second = costs.known * stages + at
    third = second + costs.known * stages
    f, i, w = costs.lasting[at], costs.lasting[stages + at], costs.lasting[2 * stages + at]
    ended = max(0, number + 1 - costs.live[at]) * f
    least = INFINITY
    before = number + 1 - costs.room[at]
    while before <= number:
        head = begin[second + (before - 1) * stages] + i
        if head >= least:
            break
        weights = whole(stashes(costs, before, number, at))
        if weights > 0:
            head = max(head, begin[third + (weights - 1) * stages] + w)
        head = max(head, (state.idle[at] + (ended + before * i + weights * w)) / costs.live[at])
        least = min(least, head)
        if weights == 0:
            break
        before += 1
    return least


@kernel
def settle(costs: CountingCosts, state: CountingState, at: int, number: int, until: float) -> None:
    """Move `idle` on to a time before which so many F of a stage have their heads, past the I and W before it."""
    stages, begin, idle, live = costs.stages, state.begin, state.idle, costs.live[at]
    second = costs.known * stages + at
    third = second + costs.known * stages
    f, i, w = costs.lasting[at], costs.lasting[stages + at], costs.lasting[2 * stages + at]
    inputs, weights = state.passed[at], state.passed[stages + at]
    while True:
        next_input = begin[second + inputs * stages] if inputs < number else INFINITY
        next_weight = begin[third + weights * stages] if weights < number else INFINITY
        time = min(until, next_input, next_weight)
        if time < INFINITY:
            idle[at] = max(idle[at], live * time - (number * f + inputs * i + weights * w))
        if time == until:
            break
        if next_input <= next_weight:
            inputs += 1
        else:
            weights += 1
    state.passed[at] = inputs
    state.passed[stages + at] = weights


@kernel
def last_forward(costs: CountingCosts, state: CountingState, at: int) -> float:
    """What work alone says of the head of a stage's last F."""
    stages, jobs, room = costs.stages, costs.jobs, costs.room[at]
    if jobs <= room:
        return -INFINITY
    i, w = costs.lasting[stages + at], costs.lasting[2 * stages + at]
    # Over how many I come before it, what these and the W take is a line that bends once: where no W is needed more.
    fewest = jobs - room
    least = fewest * i + stashes(costs, fewest, jobs - 1, at) * w
    least = min(least, (jobs - 1) * i + stashes(costs, jobs - 1, jobs - 1, at) * w)
    if costs.stash[at] < 1:
        bend = (jobs - costs.capacity[at]) / (1 - costs.stash[at])
        if fewest < bend < jobs - 1:
            least = min(least, bend * i)
    return (state.idle[at] + ((jobs - costs.live[at]) * costs.lasting[at] + least)) / costs.live[at]


@kernel
def settle_ends(costs: CountingCosts, state: CountingState) -> None:
    """The last ends where the heads of all jobs are known."""
    stages, jobs = costs.stages, costs.jobs
    for at in range(stages):
        f, i, w = costs.lasting[at], costs.lasting[stages + at], costs.lasting[2 * stages + at]
        settle(costs, state, at, jobs, INFINITY)
        end = state.begin[(2 * jobs - 1) * stages + at] + (i + w)
        state.ends[at] = max(end, (state.idle[at] + jobs * (f + i + w)) / costs.live[at])


@kernel
def foresee_ends(costs: CountingCosts, state: CountingState) -> None:
    """What the heads of the first jobs say of the last ends."""
    stages, jobs, known, live, lasting = costs.stages, costs.jobs, costs.known, costs.live, costs.lasting
    last, idle = state.last, state.idle
    for at in range(stages):
        head = state.begin[(known - 1) * stages + at] + (jobs - known) // live[at] * lasting[at]
        head = max(head, last_forward(costs, state, at))
        last[at] = max(head, last[at - 1] + (lasting[at - 1] + costs.hop[at - 1])) if at > 0 else head
    after = -INFINITY
    for at in range(stages - 1, -1, -1):
        f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
        weights = whole(stashes(costs, jobs - 1, jobs - 1, at))
        head = (idle[at] + (jobs * f + max(0, jobs - live[at]) * i + weights * w)) / live[at]
        head = max(head, last[at] + f, after)
        state.ends[at] = max(head + (i + w), (idle[at] + jobs * (f + i + w)) / live[at])
        if at > 0:
            after = head + (i + costs.hop[at - 1])


@kernel
def raise_counts(costs: CountingCosts, state: CountingState) -> None:
    """Heads of the first F, I and W of each stage, and what they say of the last ends."""
    stages, live, lasting, begin, idle = costs.stages, costs.live, costs.lasting, state.begin, state.idle
    kind = costs.known * stages
    for number in range(costs.known):
        for at in range(stages):
            here = number * stages + at
            head = max(0.0, admitted(costs, state, at, number))
            if number > 0:
                head = max(head, begin[here - stages])
            head = max(head, freed(costs, state, here, 0, number, at))
            if at > 0:
                head = max(head, begin[here - 1] + (lasting[at - 1] + costs.hop[at - 1]))
            begin[here] = head
            settle(costs, state, at, number, head)
        for at in range(stages - 1, -1, -1):
            here = kind + number * stages + at
            f, i, w = lasting[at], lasting[stages + at], lasting[2 * stages + at]
            begun = max(0, number + 1 - live[at])
            weights = whole(stashes(costs, number, number, at))
            head = (idle[at] + ((number + 1) * f + begun * i + weights * w)) / live[at]
            head = max(head, begin[here - kind] + f)
            head = max(head, freed(costs, state, here, 1, number, at))
            if at + 1 < stages:
                head = max(head, begin[here + 1] + (lasting[stages + at + 1] + costs.hop[at]))
            begin[here] = head
            head = max(head + i, (idle[at] + ((number + 1) * (f + i) + begun * w)) / live[at])
            begin[here + kind] = max(head, freed(costs, state, here + kind, 2, number, at))
    if costs.known == costs.jobs:
        settle_ends(costs, state)
    else:
        foresee_ends(costs, state)
