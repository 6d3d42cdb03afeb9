"""Workers on their own, in rotation and by targets: for stages whose costs differ.

Slots (slots.py) keep the workers of a stage in step. That costs nothing where stages are alike; where they are not, a
slot of 26 ranks waits for its neighbour's next slot of 23, at every stage and both ways. Here every worker goes on its
own, yet not at random:

* **Rotation.** Stage i with L_i live workers gives the micro-batch of rank m to its worker number m mod L_i. Micro-
  batches flow past a stage at one pace, so each of its workers gets one per L_i of them, evenly spaced, whatever the
  numbers of its neighbours: where every stage keeps a fixed order, the flow settles in a period, as in modulo
  scheduling (B. Rau, MICRO 27, 1994). Who keeps its own micro-batches gets them unevenly, and others wait for it.
* **Targets.** In round x, with x of its I done, a worker runs an F if fewer micro-batches are between their F and I
  than its target for that round, a W if more than the target are pending, else the I of its earliest micro-batch;
  ranks go in order. Targets are those of a stage, piecewise linear over its rounds (`Targets` in schemas/atlas.py), so
  that it can fill up at first, put W off as much as its memory bears, and have them left when no I comes any more.
* **Filling.** Where the message that it waits for is known to arrive late enough, a worker runs a further F, the I
  that was to come after, or a pending W meanwhile.

No priorities are weighed and no events are queued: a worker's next operation is known before its message is, and the
workers are visited up and down the stages until all are done. That is a fifth of the time that the rules of
scheduling/list_schedule.py take for an operation, which is why this is a kernel of its own: that one decides between
what has arrived, worker by worker, and cannot say that a worker waits for a certain one. A run that cannot undercut a
deadline ends as soon as one worker has idled too long for that.

Live workers do not keep their own micro-batches here. Nothing in a plan's cost speaks for that where links are equal,
and it needs equal workers and links, as slots do.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.atlas import NarrowSlots, Targets
from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form, pays
from ..scheduling.list_schedule import rooms
from ..scheduling.problem import INTERPRETED_OPERATIONS, KINDS, Proven
from .slots import Slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..scheduling.problem import Floats as FloatArray
    from ..scheduling.problem import Ints as IntArray
    from ..scheduling.problem import Orders, Problem


F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters; B stands for I where the backward is not split
UNKNOWN = -1.0  # the end of what has not been run yet
# Of a stage's targets: four points of micro-batches in flight, four of pending W, whether a W that is due goes first,
# and the share of a W (or I) that must fit in before what a worker waits for, for it to go first.
WIDTH, POINTS, FIRST, FILL = 10, 4, 8, 9
BLOCKED = GIVEN_UP = NOTHING = -1


class RotationScheduler:
    """Equal pipelines made ready for runs by targets, for any numbers of dead workers.

    Args:
        pipeline: one pipeline alone, all its workers alive; says what counts and whether backwards are split.
        jobs: micro-batches of all pipelines.
        most_live: workers of a stage that nobody has left.
        runs: about how many runs will follow: decides whether machine code is worth its while.
    """

    def __init__(self, pipeline: Problem, jobs: int, most_live: int, runs: int = 1) -> None:
        workers, self._stages, self._jobs = pipeline.workers, len(pipeline.workers.stage), jobs
        self._kinds = np.where(pipeline.split[0], KINDS, KINDS - 1)
        operations = int(self._kinds.sum()) * jobs
        self._form = form = Form(pays(rotate, operations * runs, INTERPRETED_OPERATIONS))
        self._rotate = form.kernel(rotate)
        hop_s = pipeline.hops_s[0]
        self._costs = RotationCosts(
            self._stages, jobs, most_live, live=form.int_space(self._stages),
            split=form.ints(pipeline.split[0], np.int8), hop_s=form.floats(hop_s),
            duration_s=form.floats(workers.durations_s.ravel()), held=form.floats(workers.held_bytes.ravel()),
            targets=form.float_space(WIDTH * self._stages), deadline_s=form.float_space(self._stages),
        )  # fmt: skip
        self._reduce_s, self._step_s = workers.allreduce_s, workers.optimizer_s
        # A window begins with the first F of rank 0, which waits for nothing but its own F at the stages before.
        reach_s = [0.0]
        for forward_s, delay_s in zip(workers.forward_s[:-1].tolist(), hop_s[:-1].tolist(), strict=True):
            reach_s.append(reach_s[-1] + forward_s + delay_s)
        self._reach_s = np.array(reach_s)
        self._staggered = pipeline.staggered
        cells = self._stages * jobs
        self._state = RotationState(
            target_of=form.int_space(2 * (jobs + 1) * self._stages),
            done=form.int_space(KINDS * self._stages * most_live), free_s=form.float_space(self._stages * most_live),
            ended_s=form.float_space(2 * cells), last_s=form.float_space(self._stages),
            peak_bytes=form.float_space(self._stages), order=form.int_space(KINDS * cells),
        )  # fmt: skip

    def run(self, live: NDArray[np.int64], targets: NDArray[np.float64], limit_s: float = inf) -> float:
        """Schedule by targets; returns the makespan, or period, in s.

        Args:
            live: workers of each stage, 1 or more.
            targets: `stages x 10`, as the module says.
            limit_s: a run that does not stay below this may be given up.

        Returns:
            Infinity where the targets make workers wait for each other for ever, or the run was given up.
        """
        form, costs = self._form, self._costs
        self._live = live
        whole_s, within_s = limit_s - self._step_s.max() - self._reduce_s, self._reach_s - self._step_s - self._reduce_s
        costs.live[:] = form.ints(live)
        costs.targets[:] = form.floats(targets.ravel())
        costs.deadline_s[:] = form.floats(np.asarray(limit_s + within_s if self._staggered else whole_s))
        ended = self._rotate(tuple(costs), tuple(self._state))
        return self.times_s[self._staggered] if ended else inf

    @property
    def times_s(self) -> tuple[float, float]:
        """Makespan and period of the last run that came to an end, in s."""
        last_s = np.asarray(self._state.last_s)
        makespan_s = (last_s + self._reduce_s).max() + self._step_s.max()
        return float(makespan_s), float((last_s - self._reach_s + self._reduce_s + self._step_s).max())

    @property
    def peaks_bytes(self) -> list[float]:
        """The most that a worker of each stage held at once in the last run that came to an end."""
        return [float(peak) for peak in self._state.peak_bytes]

    def orders(self, home: Problem) -> tuple[Problem, Orders]:
        """The routing and orders of the last run.

        Args:
            home: equal pipelines in which every worker runs its own micro-batches, failed workers among them; at least
                as many live ones of each stage as the run had.
        """
        live = home.workers.live.reshape(len(home.depth), -1)
        executor = np.empty((self._jobs, self._stages), dtype=np.int64)
        orders: list[list[int]] = [[] for _ in home.workers.live]
        order = np.asarray(self._state.order)
        for stage, (number, kinds) in enumerate(zip(self._live.tolist(), self._kinds.tolist(), strict=True)):
            workers = np.flatnonzero(live[:, stage])[:number] * self._stages + stage
            executor[:, stage] = workers[np.arange(self._jobs) % number]
            at = KINDS * self._jobs * stage
            for turn, worker in enumerate(workers.tolist()):
                rounds = len(range(turn, self._jobs, number))
                orders[worker] = order[at : at + kinds * rounds].tolist()
                at += KINDS * rounds
        return replace(home, executor=executor), orders


class RotationCosts(NamedTuple):
    """What goes round.

    Attributes:
        stages, jobs: how many there are.
        most_live: workers of a stage are at `most_live * stage`.
        live, split: workers of each stage, and whether its backwards are split.
        hop_s: delay of the link to the next stage.
        duration_s: of F, I, W and B, at `4 * stage`.
        held: activation bytes, stash bytes and limit, at `3 * stage`.
        targets: at `10 * stage`.
        deadline_s: last end of each stage beyond which the run is given up.
    """

    stages: int
    jobs: int
    most_live: int
    live: MutableInts
    split: Ints
    hop_s: Floats
    duration_s: Floats
    held: Floats
    targets: MutableFloats
    deadline_s: MutableFloats


class RotationState(NamedTuple):
    """How far a rotation is.

    Attributes:
        target_of: the targets of each stage's rounds, two each, at `2 * (jobs + 1) * stage`.
        done: F, I and W of each worker, at `3 * worker`.
        free_s: the last end of each worker.
        ended_s: the ends of F, at `jobs * stage + rank`, and of I, at `jobs * (stages + stage) + rank`.
        last_s: the last end of each stage.
        peak_bytes: the most that a worker of each stage has held at once.
        order: the orders, those of a stage from `3 * jobs * stage` on, its workers one after the other.
    """

    target_of: MutableInts
    done: MutableInts
    free_s: MutableFloats
    ended_s: MutableFloats
    last_s: MutableFloats
    peak_bytes: MutableFloats
    order: MutableInts


@kernel
def target(targets: Floats, at: int, done: int, rounds: int, ramp: float) -> int:
    """A target with its points from `at` on when `done` of `rounds` are; a half is rounded up."""
    if done < ramp:
        value = targets[at] + (targets[at + 1] - targets[at]) * (done / ramp)
    elif done < rounds - ramp:
        value = targets[at + 1] + (targets[at + 2] - targets[at + 1]) * ((done - ramp) / (rounds - 2 * ramp))
    else:
        value = targets[at + 2] + (targets[at + 3] - targets[at + 2]) * ((done - rounds + ramp) / ramp)
    return int(value + 0.5)


@kernel
def reset(costs: RotationCosts, state: RotationState) -> None:
    """The state at time 0, and the targets of all rounds."""
    stages, jobs, targets = costs.stages, costs.jobs, costs.targets
    for cell in range(2 * stages * jobs):
        state.ended_s[cell] = UNKNOWN
    for stage in range(stages):
        state.last_s[stage] = 0.0
        state.peak_bytes[stage] = 0.0
        rounds = (jobs - 1) // costs.live[stage] + 1
        ramp = min(float(stages), rounds / 3)
        first = 2 * (jobs + 1) * stage
        for number in range(rounds + 1):
            state.target_of[first + 2 * number] = target(targets, WIDTH * stage, number, rounds, ramp)
            state.target_of[first + 2 * number + 1] = target(targets, WIDTH * stage + POINTS, number, rounds, ramp)
        for worker in range(costs.most_live * stage, costs.most_live * stage + costs.live[stage]):
            state.free_s[worker] = 0.0
            for kind in range(3):
                state.done[3 * worker + kind] = 0


@kernel
def fits(whole: int, pending: int, held: Floats, stage: int) -> bool:
    """Whether a worker's limit admits one more F beside `whole` micro-batches and `pending` stashes."""
    return (whole + 1) * held[3 * stage] + pending * held[3 * stage + 1] <= held[3 * stage + 2]


@kernel
def wanted(
    whole: int, pending: int, left: int, rounds: int, most: int, backlog: int, weight_first: bool, room: bool
) -> int:
    """The kind of operation that a worker runs next, whenever its message comes; BLOCKED where its limit admits none.

    Args:
        whole, pending: micro-batches between F and I, and between I and W.
        left: F that it has not done.
        rounds: I that it has not done.
        most, backlog: the targets of this round.
        weight_first: whether a W beyond its target goes before an F below its own.
        room: whether its limit admits one more F.
    """
    if rounds == 0:
        return W
    below = left > 0 and (whole < most or whole == 0)
    if pending > backlog and (weight_first or not below):
        return W
    if not below:
        return I
    if room:
        return F
    if pending > 0:
        return W
    return I if whole > 0 else BLOCKED


@kernel
def arrival(costs: RotationCosts, state: RotationState, kind: int, job: int, stage: int) -> float:
    """When what an operation waits for is there, in s; below 0 while its sender has not run it."""
    stages, jobs, ended_s = costs.stages, costs.jobs, state.ended_s
    if kind == W or (kind == F and stage == 0):
        return 0.0
    if kind == F:
        end_s, delay_s = ended_s[jobs * (stage - 1) + job], costs.hop_s[stage - 1]
    elif stage == stages - 1:
        end_s, delay_s = ended_s[jobs * stage + job], 0.0
    else:
        end_s, delay_s = ended_s[jobs * (stages + stage + 1) + job], costs.hop_s[stage]
    return end_s + delay_s if end_s >= 0 else UNKNOWN


@kernel
def meanwhile(
    costs: RotationCosts,
    state: RotationState,
    stage: int,
    kind: int,
    next_forward: int,
    next_input: int,
    pending: int,
    now_s: float,
    begin_s: float,
    back_s: float,
) -> int:
    """The kind of operation that goes before one which begins later: an F that ends until then, or, if that leaves
    a share of them, an I or a W; the one that is waited for where nothing fits.

    Args:
        next_forward, next_input: the jobs of the worker's next F and I; NOTHING where it may not run one.
        pending: its W.
        now_s, begin_s: when it is free, and when what it waits for begins.
        back_s: of an I, or B.
    """
    share = costs.targets[WIDTH * stage + FILL]
    if kind == I and next_forward != NOTHING:
        other_s = arrival(costs, state, F, next_forward, stage)
        if other_s >= 0 and max(other_s, now_s) + costs.duration_s[4 * stage] <= begin_s:
            return F
    if kind == F and next_input != NOTHING:
        other_s = arrival(costs, state, I, next_input, stage)
        if other_s >= 0 and max(other_s, now_s) + share * back_s <= begin_s:
            return I
    return W if pending > 0 and begin_s - now_s >= share * costs.duration_s[4 * stage + W] else kind


@kernel
def advance(costs: RotationCosts, state: RotationState, stage: int, number: int) -> int:
    """Let a worker go on until it waits for a message that is not known; says by how many operations.

    Returns:
        GIVEN_UP where it has idled so long that it ends beyond its deadline.
    """
    stages, jobs, held, targets, ended_s = costs.stages, costs.jobs, costs.held, costs.targets, state.ended_s
    turns, worker, split = costs.live[stage], costs.most_live * stage + number, costs.split[stage]
    rounds = (jobs - 1 - number) // turns + 1
    forward_s, weight_s = costs.duration_s[4 * stage], costs.duration_s[4 * stage + W]
    back_s = costs.duration_s[4 * stage + (I if split else B)]
    # A worker's orders begin after those of the workers before it, the first of which may have a round more.
    place = 3 * (jobs * stage + number * (jobs // turns) + min(number, jobs % turns))
    done = state.done
    forwards, inputs, weights = done[3 * worker], done[3 * worker + 1], done[3 * worker + 2]
    start = forwards + inputs + weights
    now_s = state.free_s[worker]
    while forwards + inputs + weights < (2 + split) * rounds:
        pending = (inputs - weights) * split
        at = 2 * ((jobs + 1) * stage + inputs)
        room = fits(forwards - inputs, pending, held, stage)
        kind = wanted(
            forwards - inputs, pending, rounds - forwards, rounds - inputs, state.target_of[at],
            state.target_of[at + 1], targets[WIDTH * stage + FIRST] > 0, room,
        )  # fmt: skip
        turn = inputs if kind == I else forwards
        begin_s = arrival(costs, state, kind, number + turn * turns, stage)
        if kind == BLOCKED or begin_s < 0:
            break
        if begin_s > now_s:
            next_forward = number + forwards * turns if forwards < rounds and room else NOTHING
            next_input = number + inputs * turns if forwards > inputs else NOTHING
            kind = meanwhile(costs, state, stage, kind, next_forward, next_input, pending, now_s, begin_s, back_s)
            turn = inputs if kind == I else forwards
            begin_s = arrival(costs, state, kind, number + turn * turns, stage)
            left_s = (rounds - forwards) * forward_s + (rounds - inputs) * back_s
            left_s += (rounds - weights) * weight_s * split
            if max(begin_s, now_s) + left_s > costs.deadline_s[stage]:
                return GIVEN_UP
        begin_s = max(begin_s, now_s)
        job = number + weights * turns
        if kind == F:
            job = number + forwards * turns
            now_s = begin_s + forward_s
            holds = (forwards - inputs + 1) * held[3 * stage] + pending * held[3 * stage + 1]
            state.peak_bytes[stage] = max(state.peak_bytes[stage], holds)
            ended_s[jobs * stage + job] = now_s
        elif kind == I:
            job = number + inputs * turns
            now_s = begin_s + back_s
            ended_s[jobs * (stages + stage) + job] = now_s
        else:
            now_s = begin_s + weight_s
        state.order[place + forwards + inputs + weights] = 3 * job + kind
        forwards += kind == F
        inputs += kind == I
        weights += kind == W
    done[3 * worker] = forwards
    done[3 * worker + 1] = inputs
    done[3 * worker + 2] = weights
    state.free_s[worker] = now_s
    return forwards + inputs + weights - start


@kernel
def rotate(given: tuple[Any, ...], space: tuple[Any, ...]) -> bool:
    """Schedule everything in rotation; says whether it came to an end within the deadlines.

    Args:
        given, space: `RotationCosts` and `RotationState` as plain tuples, whose types numba finds out at once.
    """
    costs, state = RotationCosts(*given), RotationState(*space)
    stages, live, last_s = costs.stages, costs.live, state.last_s
    reset(costs, state)
    left = 0
    for stage in range(stages):
        left += costs.jobs * (2 + costs.split[stage])
    while left > 0:
        before = left
        for turn in range(2 * stages - 1):
            stage = turn if turn < stages else 2 * stages - 2 - turn
            for number in range(live[stage]):
                steps = advance(costs, state, stage, number)
                if steps < 0:
                    return False
                left -= steps
                last_s[stage] = max(last_s[stage], state.free_s[costs.most_live * stage + number])
        if left == before:
            return False
    return True


# Targets for workers in rotation (rotation.py): phases that fit from the durations, then a local search.
#
# With a round of c seconds at a stage, and its F and I of one micro-batch D apart, a worker's F, I and W go round
# without an idle moment only where D, modulo c, leaves room for W either between F and I or between I and the next F.
# So D has a few admissible values a round, in intervals as long as the round has time to spare, and from the last stage
# back
#
#     D_i = the least admissible value that is no less than F_i + D_(i+1) + I_(i+1), with both hops,
#
# which says how many micro-batches are in flight at each stage, and whether W goes before F or after it. Targets that
# do not say so make every worker wait for a moment of every round. (Skipping the least value for the next one is a move
# of the search: it shifts the phases of all earlier stages.)
#
# How many W are left when the last I has come follows from what is left of the window then; the backlog grows up to it.


Shares = tuple[float, float, float]
_Phase = tuple[float, int, int]  # time between F and I in s, micro-batches in flight, 1 where W goes before F

# Pace, shares and fill of the first designs: together the best of 288 for stages of 8 to 12 ms an operation, of 8, 10
# or 12 ms, and for a light first and a heavy last stage, with 8 and 16 stages.
STARTS: tuple[tuple[float, Shares, float], ...] = (
    (0.92, (0.6, 0.75, 1.0), 0.75),
    (1.0, (0.4, 0.5, 1.0), 0.75),
    (0.76, (0.6, 0.75, 1.25), 0.5),
    (0.84, (0.6, 0.75, 1.0), 0.75),
    (0.7, (0.4, 0.5, 1.25), 0.75),
    (0.96, (0.6, 0.75, 1.0), 0.75),
)
# How many runs a search may take: so many operations' worth, but at most so many; also if it shall be quick, and
# for alike stages.
BUDGET_OPERATIONS, MOST_RUNS = 50_000_000, 400
QUICK_OPERATIONS, QUICK_RUNS = 1_000_000, 30
# Above so many operations nothing else is tried where stages differ.
SMALL_OPERATIONS = 2_000
# Steps of the moves.
PACES, SHARES, FILLS = (-0.04, -0.02, 0.02, 0.04), (-0.25, -0.1, 0.1, 0.25), (-0.5, -0.25, 0.25, 0.5)
STEPS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
MOST_SKIPPED = 2


@dataclass(frozen=True, eq=False)
class RotationSchedule(Proven):
    """The best targets found, `stages x WIDTH`, for so many live workers of each stage.

    With what they come to, and the bound on any routing and orders, in s.
    """

    live: IntArray
    targets: FloatArray
    value_s: float
    bound_s: float


@dataclass(frozen=True, eq=False)
class _Design:
    """What targets are made from.

    Attributes:
        pace: time from one micro-batch to the next, as a share of the bound's.
        shares: W pending after the first ramp, before the last one and at the end, as shares of those that fit into
            what is left of the window after the last I.
        skipped: admissible values of D that each stage leaves out.
        changes: of the targets, `stages x WIDTH`.
    """

    pace: float
    shares: Shares
    skipped: tuple[int, ...]
    changes: FloatArray


class RotationSearch:
    """Equal pipelines made ready to find targets, for any numbers of dead workers.

    Args:
        pipeline: one pipeline alone, all its workers alive; says what counts and whether backwards are split.
        pipelines: how many there are.
        searches: about how many will follow: decides whether machine code is worth its while.

    Attributes:
        leads: whether rotation is worth trying before slots: stages differ, or their limits do, as those of 1F1B.
        suffices: whether nothing else is worth trying: stages differ, and W fill what they leave.
    """

    def __init__(self, pipeline: Problem, pipelines: int, searches: int = 1) -> None:
        workers, split = pipeline.workers, pipeline.split[0]
        self._jobs = pipeline.jobs * pipelines
        self._operations = pipelines * pipeline.operations
        self._forward_s = workers.forward_s
        self._back_s = np.where(split, workers.input_s, workers.full_s)
        self._weight_s = np.where(split, workers.weight_s, 0.0)
        self._hop_s = pipeline.hops_s[0]
        self._room = np.minimum(rooms(pipeline), pipeline.jobs).astype(float)
        reach_s = np.concatenate([[0.0], np.cumsum((self._forward_s + self._hop_s)[:-1])])
        return_s = np.concatenate([[0.0], np.cumsum((self._back_s + self._hop_s)[:-1])])
        left_s = return_s + reach_s if pipeline.staggered else return_s
        self._unlike = any(np.ptp(each_s) > 0 for each_s in (self._forward_s, self._back_s, self._weight_s))
        self.leads = self._unlike or bool(np.ptp(self._room) > 0)
        self.suffices = self._unlike and bool(split.all()) and self._operations > SMALL_OPERATIONS
        self.scheduler = RotationScheduler(pipeline, self._jobs, pipelines, runs=self._runs(quick=False) * searches)
        self._left = np.divide(left_s, self._weight_s, out=np.zeros_like(left_s), where=self._weight_s > 0)

    def search(self, live: IntArray, bound_s: float, seed: int, *, quick: bool = False) -> RotationSchedule | None:
        """The best targets that are found; None where none let all workers come to an end, or none are tried.

        Args:
            live: workers of each stage, 1 or more.
            bound_s: on any routing and orders, more than 0.
            seed: of the moves.
            quick: whether to try few.
        """
        return self._best(live, bound_s, seed, self._runs(quick))

    def look(self, live: IntArray, bound_s: float) -> RotationSchedule | None:
        """The best of the first designs; the rest as for `search`."""
        return self._best(live, bound_s, 0, len(STARTS) if self._unlike else 1)

    def _best(self, live: IntArray, bound_s: float, seed: int, runs: int) -> RotationSchedule | None:
        best, chance = RotationSchedule(live, np.empty(0), inf, bound_s), random.Random(seed)
        stages = len(self._left)
        fills = [np.where(np.arange(WIDTH) == FILL, fill, 0.0) for _, _, fill in STARTS]
        starts = [
            _Design(pace, shares, (0,) * stages, np.tile(fill, (stages, 1)))
            for (pace, shares, _), fill in zip(STARTS, fills, strict=True)
        ]
        design = starts[0]
        for run in range(runs):
            other = starts[run] if run < len(starts) else _moved(design, chance)
            # The targets of a design; `stages x WIDTH`.
            in_flight, first = self._phases(live, other.pace * bound_s / self._jobs, other.skipped)
            targets = other.changes.copy()
            targets[:, :POINTS] += np.minimum(in_flight, self._room)[:, None]
            targets[:, POINTS + 1 : FIRST] += np.round(2 * np.outer(self._left, other.shares)) / 2
            targets[:, FIRST] = (targets[:, FIRST] + first) % 2
            for stage in range(1, len(live)):
                # A stage that aims at more than the one before has in flight would wait for F that never come.
                most = np.floor(targets[stage - 1, :POINTS] + 0.5) * live[stage - 1] // live[stage]
                targets[stage, :POINTS] = np.minimum(targets[stage, :POINTS], most)
            np.maximum(targets[:, :POINTS], 1.0, out=targets[:, :POINTS])
            np.maximum(targets[:, POINTS:], 0.0, out=targets[:, POINTS:])
            value_s = self.scheduler.run(live, targets, best.value_s)
            if value_s < inf and value_s <= best.value_s:
                best, design = replace(best, targets=targets, value_s=value_s), other
            if best.optimal:
                break
        return best if best.value_s < inf else None

    def _runs(self, quick: bool) -> int:
        """How many runs a search takes; alike stages are left to slots if the first few do not do."""
        if not self._unlike:
            return max(int(self.leads), min(QUICK_RUNS, QUICK_OPERATIONS // self._operations))
        budget, most = (QUICK_OPERATIONS, QUICK_RUNS) if quick else (BUDGET_OPERATIONS, MOST_RUNS)
        return max(len(STARTS), min(most, budget // self._operations))

    def _phases(self, live: IntArray, pace_s: float, skipped: Sequence[int]) -> tuple[FloatArray, FloatArray]:
        """Micro-batches in flight at each stage, and 1 where W goes before F, with a micro-batch every `pace_s`."""
        stages = len(live)
        in_flight, first = np.ones(stages), np.zeros(stages)
        apart_s = 0.0
        forward_s, back_s, weight_s = self._forward_s.tolist(), self._back_s.tolist(), self._weight_s.tolist()
        for stage in reversed(range(stages)):
            busy_s = forward_s[stage] + back_s[stage]
            each_s = max(int(live[stage]) * pace_s, busy_s)
            spare_s = max(0.0, each_s - busy_s - weight_s[stage])
            least_s = forward_s[stage]
            if stage + 1 < stages:
                least_s += apart_s + back_s[stage + 1] + 2 * float(self._hop_s[stage])
            values = _admissible(least_s, each_s, (forward_s[stage], forward_s[stage] + weight_s[stage]), spare_s)
            apart_s, in_flight[stage], first[stage] = values[min(skipped[stage], len(values) - 1)]
        return in_flight, first


def _admissible(least_s: float, each_s: float, ends_s: tuple[float, float], spare_s: float) -> list[_Phase]:
    """Phases from what is needed on, ascending.

    Args:
        least_s: time that is needed.
        each_s: a round.
        ends_s: when I may start after F without W between them, and with it.
        spare_s: how much later than that it may.
    """
    rounds = int(least_s // each_s) if each_s > 0 else 0
    found = []
    for number in range(max(0, rounds - 1), rounds + MOST_SKIPPED + 1):
        for first, end_s in zip((1, 0), ends_s, strict=True):
            latest_s = number * each_s + end_s + spare_s
            if latest_s >= least_s:
                found.append((max(number * each_s + end_s, least_s), number + 1, first))
    return sorted(found)


def recorded(targets: FloatArray) -> Targets:
    """Targets, `stages x WIDTH`, as a recipe has them."""
    rows = targets.tolist()
    return Targets(
        tuple((row[0], row[1], row[2], row[3]) for row in rows),
        tuple((row[4], row[5], row[6], row[7]) for row in rows),
        tuple(row[FIRST] > 0 for row in rows),
        tuple(row[FILL] for row in rows),
    )


def as_recorded(targets: Targets) -> FloatArray:
    """A recipe's targets, `stages x WIDTH`."""
    columns = (targets.in_flight, targets.backlog, np.array([targets.weights_first, targets.fill]).T)
    return np.hstack([np.asarray(column, dtype=np.float64) for column in columns])


def _moved(design: _Design, chance: random.Random) -> _Design:
    """A design with one or two things changed."""
    for _ in range(chance.choice((1, 1, 2))):
        design = _moved_once(design, chance)
    return design


def _moved_once(design: _Design, chance: random.Random) -> _Design:
    """One stage's phase, the pace, a share of the backlog, or targets of neighbouring stages changed by a step."""
    stages = len(design.skipped)
    kind = chance.random()
    if kind < 0.15:
        skipped = list(design.skipped)
        stage = chance.randrange(stages)
        skipped[stage] = (skipped[stage] + chance.choice((1, MOST_SKIPPED))) % (MOST_SKIPPED + 1)
        return replace(design, skipped=tuple(skipped))
    if kind < 0.2:
        return replace(design, pace=design.pace + chance.choice(PACES))
    if kind < 0.3:
        shares = list(design.shares)
        shares[chance.randrange(len(shares))] += chance.choice(SHARES)
        return replace(design, shares=(shares[0], shares[1], shares[2]))
    first = chance.randrange(stages)
    stop = first + 1 if chance.random() < 0.6 else chance.randint(first, stages - 1) + 1
    changes = design.changes.copy()
    column = chance.randrange(WIDTH)
    if column == FIRST:
        changes[first:stop, FIRST] += 1
    elif column == FILL:
        changes[first:stop, FILL] += chance.choice(FILLS)
    else:
        # One point, or it and those after it.
        end = column + 1 if chance.random() < 0.5 else column - column % POINTS + POINTS
        changes[first:stop, column:end] += chance.choice(STEPS)
    return replace(design, changes=changes)


# The aligned cut: slots of one grid at the start and at the end, and wide ones between them (slots.py says why).
#
# A stage with n slots of w ranks has n w - M ranks to spare. Each slot that is narrowed to the grid of g ranks takes
# w - g of them: it affords floor((n w - M) / (w - g)) narrow ones. How many slots n a stage may have follows from what
# the iteration shall take, by the bound on its busiest worker (bounds.py); a margin is left for what slots cost.


class AlignedCut(NamedTuple):
    """How slots are aligned.

    Attributes:
        smooth: whether stages are only as wide as they must be, and no narrower than the stage before; else as wide as
            they can.
        margin: what an iteration shall take less than its bound, in F of one micro-batch.
        share: of the narrow slots, how many come first; the others come last.
    """

    smooth: bool
    margin: float
    share: float


def aligned(jobs: int, live: Sequence[int], most: Sequence[int], cut: AlignedCut) -> Slots:
    """Cut the ranks.

    Args:
        jobs: micro-batches of all pipelines.
        live: workers of each stage, 1 or more.
        most: slots that each stage may have; it gets as many as it needs.
        cut: how.
    """
    rounds = [max(n, -(-jobs // workers)) for n, workers in zip(most, live, strict=True)]
    widths = list(live)
    if cut.smooth:
        for i, (n, workers) in enumerate(zip(rounds, live, strict=True)):
            widths[i] = min(max(widths[i - 1] if i else 0, -(-jobs // n)), workers)
    grid = min(widths)
    narrow = [
        min(jobs // grid, (n * width - jobs) // (width - grid) if width > grid else jobs)
        for n, width in zip(rounds, widths, strict=True)
    ]
    first = [int(cut.share * number) for number in narrow]
    last = [number - begun for number, begun in zip(narrow, first, strict=True)]
    return Slots(jobs, tuple(widths), narrow=NarrowSlots(grid, tuple(first), tuple(last)))
