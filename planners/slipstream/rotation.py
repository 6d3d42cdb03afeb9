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
scheduling/sweep.py take for an operation, which is why this is a kernel of its own: that one decides between what has
arrived, worker by worker, and cannot say that a worker waits for a certain one. A run that cannot undercut a deadline
ends as soon as one worker has idled too long for that.

Live workers do not keep their own micro-batches here. Nothing in a plan's cost speaks for that where links are equal,
and it needs equal workers and links, as slots do.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form, pays
from ..scheduling.problem import INTERPRETED_OPERATIONS, KINDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..scheduling.problem import Orders, Problem

F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters; B stands for I where the backward is not split
UNKNOWN = -1.0  # the end of what has not been run yet
# Of a stage's targets: four points of micro-batches in flight, four of pending W, whether a W that is due goes first,
# and the share of a W (or I) that must fit in before what a worker waits for, for it to go first.
WIDTH, POINTS, FIRST, FILL = 10, 4, 8, 9
BLOCKED = GIVEN_UP = -1


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
        hop_s = np.append(pipeline.hop_s[0], 0.0)
        durations = np.stack((workers.forward_s, workers.input_s, workers.weight_s, workers.full_s), axis=1)
        held = np.stack((workers.activation_bytes, workers.stash_bytes, workers.limit_bytes), axis=1)
        self._costs = (
            form.ints(pipeline.split[0], np.int8), form.floats(hop_s), form.floats(durations.ravel()),
            form.floats(held.ravel()),
        )  # fmt: skip
        self._reduce_s, self._step_s = workers.allreduce_s, workers.optimizer_s
        # A window begins with the first F of rank 0, which waits for nothing but its own F at the stages before.
        reach_s = [0.0]
        for forward_s, delay_s in zip(workers.forward_s[:-1].tolist(), hop_s[:-1].tolist(), strict=True):
            reach_s.append(reach_s[-1] + forward_s + delay_s)
        self._reach_s = np.array(reach_s)
        self._staggered = pipeline.staggered
        cells = self._stages * jobs
        self._order, self._done = form.int_space(KINDS * cells), form.int_space(KINDS * self._stages * most_live)
        self._last_s, self._peak_bytes = form.float_space(self._stages), form.float_space(self._stages)
        self._most_live = most_live
        self._state = (
            form.int_space(2 * (jobs + 1) * self._stages), self._done, form.float_space(self._stages * most_live),
            form.float_space(2 * cells), self._last_s, self._peak_bytes, self._order,
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
        form = self._form
        self._live = live
        ended = self._rotate(
            self._stages, self._jobs, self._most_live, form.ints(live), *self._costs, form.floats(targets.ravel()),
            form.floats(self._deadlines_s(limit_s)), *self._state,
        )  # fmt: skip
        return self.times_s[self._staggered] if ended else inf

    @property
    def times_s(self) -> tuple[float, float]:
        """Makespan and period of the last run that came to an end, in s."""
        last_s = np.asarray(self._last_s)
        makespan_s = (last_s + self._reduce_s).max() + self._step_s.max()
        return float(makespan_s), float((last_s - self._reach_s + self._reduce_s + self._step_s).max())

    @property
    def peaks_bytes(self) -> list[float]:
        """The most that a worker of each stage held at once in the last run that came to an end."""
        return [float(peak) for peak in self._peak_bytes]

    def _deadlines_s(self, limit_s: float) -> NDArray[np.float64]:
        """The last ends of the stages with which the makespan, or period, is the limit."""
        whole_s, within_s = limit_s - self._step_s.max() - self._reduce_s, self._reach_s - self._step_s - self._reduce_s
        return np.asarray(limit_s + within_s if self._staggered else whole_s)

    def orders(self, home: Problem) -> tuple[Problem, Orders]:
        """The routing and orders of the last run.

        Args:
            home: equal pipelines in which every worker runs its own micro-batches, failed workers among them; at least
                as many live ones of each stage as the run had.
        """
        live = home.workers.live.reshape(len(home.depth), -1)
        executor = np.empty((self._jobs, self._stages), dtype=np.int64)
        orders: list[list[int]] = [[] for _ in home.workers.live]
        order = np.asarray(self._order)
        for stage, (number, kinds) in enumerate(zip(self._live.tolist(), self._kinds.tolist(), strict=True)):
            workers = np.flatnonzero(live[:, stage])[:number] * self._stages + stage
            executor[:, stage] = workers[np.arange(self._jobs) % number]
            at = KINDS * self._jobs * stage
            for turn, worker in enumerate(workers.tolist()):
                rounds = len(range(turn, self._jobs, number))
                orders[worker] = order[at : at + kinds * rounds].tolist()
                at += KINDS * rounds
        return replace(home, executor=executor), orders


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
def reset(
    stages: int,
    jobs: int,
    most_live: int,
    live: Ints,
    targets: Floats,
    target_of: MutableInts,
    done: MutableInts,
    free_s: MutableFloats,
    ended_s: MutableFloats,
    last_s: MutableFloats,
    peak_bytes: MutableFloats,
) -> None:
    """The state at time 0, and the targets of all rounds."""
    for cell in range(2 * stages * jobs):
        ended_s[cell] = UNKNOWN
    for stage in range(stages):
        last_s[stage] = 0.0
        peak_bytes[stage] = 0.0
        rounds = (jobs - 1) // live[stage] + 1
        ramp = min(float(stages), rounds / 3)
        first = 2 * (jobs + 1) * stage
        for number in range(rounds + 1):
            target_of[first + 2 * number] = target(targets, WIDTH * stage, number, rounds, ramp)
            target_of[first + 2 * number + 1] = target(targets, WIDTH * stage + POINTS, number, rounds, ramp)
        for worker in range(most_live * stage, most_live * stage + live[stage]):
            free_s[worker] = 0.0
            for kind in range(3):
                done[3 * worker + kind] = 0


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
def arrival(kind: int, job: int, stage: int, stages: int, jobs: int, hop_s: Floats, ended_s: Floats) -> float:
    """When what an operation waits for is there, in s; below 0 while its sender has not run it."""
    if kind == W or (kind == F and stage == 0):
        return 0.0
    if kind == F:
        end_s, delay_s = ended_s[jobs * (stage - 1) + job], hop_s[stage - 1]
    elif stage == stages - 1:
        end_s, delay_s = ended_s[jobs * stage + job], 0.0
    else:
        end_s, delay_s = ended_s[jobs * (stages + stage + 1) + job], hop_s[stage]
    return end_s + delay_s if end_s >= 0 else UNKNOWN


@kernel
def meanwhile(
    kind: int,
    number: int,
    forwards: int,
    inputs: int,
    pending: int,
    rounds: int,
    room: bool,
    stage: int,
    turns: int,
    stages: int,
    jobs: int,
    hop_s: Floats,
    ended_s: Floats,
    now_s: float,
    begin_s: float,
    forward_s: float,
    back_s: float,
    weight_s: float,
    share: float,
) -> int:
    """The kind of operation that goes before one which begins later: an F that ends until then, or, if that leaves
    `share` of them, an I or a W; the one that is waited for where nothing fits."""
    if kind == I and forwards < rounds and room:
        other_s = arrival(F, number + forwards * turns, stage, stages, jobs, hop_s, ended_s)
        if other_s >= 0 and max(other_s, now_s) + forward_s <= begin_s:
            return F
    if kind == F and forwards > inputs:
        other_s = arrival(I, number + inputs * turns, stage, stages, jobs, hop_s, ended_s)
        if other_s >= 0 and max(other_s, now_s) + share * back_s <= begin_s:
            return I
    return W if pending > 0 and begin_s - now_s >= share * weight_s else kind


@kernel
def advance(
    stage: int,
    number: int,
    stages: int,
    jobs: int,
    most_live: int,
    live: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    held: Floats,
    targets: Floats,
    deadline_s: Floats,
    target_of: Ints,
    done: MutableInts,
    free_s: MutableFloats,
    ended_s: MutableFloats,
    peak_bytes: MutableFloats,
    order: MutableInts,
) -> int:
    """Let a worker go on until it waits for a message that is not known; says by how many operations.

    Returns:
        GIVEN_UP where it has idled so long that it ends beyond its deadline.
    """
    turns, worker = live[stage], most_live * stage + number
    rounds = (jobs - 1 - number) // turns + 1
    forward_s, weight_s = duration_s[4 * stage], duration_s[4 * stage + W]
    back_s = duration_s[4 * stage + (I if split[stage] else B)]
    # A worker's orders begin after those of the workers before it, the first of which may have a round more.
    place = 3 * (jobs * stage + number * (jobs // turns) + min(number, jobs % turns))
    forwards, inputs, weights = done[3 * worker], done[3 * worker + 1], done[3 * worker + 2]
    start = forwards + inputs + weights
    now_s = free_s[worker]
    while forwards + inputs + weights < (2 + split[stage]) * rounds:
        pending = (inputs - weights) * split[stage]
        at = 2 * ((jobs + 1) * stage + inputs)
        room = fits(forwards - inputs, pending, held, stage)
        kind = wanted(
            forwards - inputs, pending, rounds - forwards, rounds - inputs, target_of[at], target_of[at + 1],
            targets[WIDTH * stage + FIRST] > 0, room,
        )  # fmt: skip
        turn = inputs if kind == I else forwards
        begin_s = arrival(kind, number + turn * turns, stage, stages, jobs, hop_s, ended_s)
        if kind == BLOCKED or begin_s < 0:
            break
        if begin_s > now_s:
            kind = meanwhile(
                kind, number, forwards, inputs, pending, rounds, room, stage, turns, stages, jobs, hop_s, ended_s,
                now_s, begin_s, forward_s, back_s, weight_s, targets[WIDTH * stage + FILL],
            )  # fmt: skip
            turn = inputs if kind == I else forwards
            begin_s = arrival(kind, number + turn * turns, stage, stages, jobs, hop_s, ended_s)
            left_s = (rounds - forwards) * forward_s + (rounds - inputs) * back_s
            left_s += (rounds - weights) * weight_s * split[stage]
            if max(begin_s, now_s) + left_s > deadline_s[stage]:
                return GIVEN_UP
        begin_s = max(begin_s, now_s)
        job = number + weights * turns
        if kind == F:
            job = number + forwards * turns
            now_s = begin_s + forward_s
            holds = (forwards - inputs + 1) * held[3 * stage] + pending * held[3 * stage + 1]
            peak_bytes[stage] = max(peak_bytes[stage], holds)
            ended_s[jobs * stage + job] = now_s
        elif kind == I:
            job = number + inputs * turns
            now_s = begin_s + back_s
            ended_s[jobs * (stages + stage) + job] = now_s
        else:
            now_s = begin_s + weight_s
        order[place + forwards + inputs + weights] = 3 * job + kind
        forwards += kind == F
        inputs += kind == I
        weights += kind == W
    done[3 * worker] = forwards
    done[3 * worker + 1] = inputs
    done[3 * worker + 2] = weights
    free_s[worker] = now_s
    return forwards + inputs + weights - start


@kernel
def rotate(
    stages: int,
    jobs: int,
    most_live: int,
    live: Ints,
    split: Ints,
    hop_s: Floats,
    duration_s: Floats,
    held: Floats,
    targets: Floats,
    deadline_s: Floats,
    target_of: MutableInts,
    done: MutableInts,
    free_s: MutableFloats,
    ended_s: MutableFloats,
    last_s: MutableFloats,
    peak_bytes: MutableFloats,
    order: MutableInts,
) -> bool:
    """Schedule everything in rotation; says whether it came to an end within the deadlines.

    Args:
        stages, jobs: how many there are.
        most_live: workers of a stage are at `most_live * stage`.
        live, split: workers of each stage, and whether its backwards are split.
        hop_s: delay of the link to the next stage.
        duration_s: of F, I, W and B, at `4 * stage`.
        held: activation bytes, stash bytes and limit, at `3 * stage`.
        targets: at `10 * stage`.
        deadline_s: last end of each stage beyond which the run is given up.
        target_of: work space of `2 * (jobs + 1)` a stage for the targets of its rounds.
        done: receives F, I and W of each worker, at `3 * worker`.
        free_s: receives the last end of each worker.
        ended_s: receives the ends of F, at `jobs * stage + rank`, and of I, at `jobs * (stages + stage) + rank`.
        last_s: receives the last end of each stage.
        peak_bytes: receives the most that a worker of each stage holds at once.
        order: receives the orders, those of a stage from `3 * jobs * stage` on, its workers one after the other.
    """
    reset(stages, jobs, most_live, live, targets, target_of, done, free_s, ended_s, last_s, peak_bytes)
    left = 0
    for stage in range(stages):
        left += jobs * (2 + split[stage])
    while left > 0:
        before = left
        for turn in range(2 * stages - 1):
            stage = turn if turn < stages else 2 * stages - 2 - turn
            for number in range(live[stage]):
                steps = advance(
                    stage, number, stages, jobs, most_live, live, split, hop_s, duration_s, held, targets, deadline_s,
                    target_of, done, free_s, ended_s, peak_bytes, order,
                )  # fmt: skip
                if steps < 0:
                    return False
                left -= steps
                last_s[stage] = max(last_s[stage], free_s[most_live * stage + number])
        if left == before:
            return False
    return True
