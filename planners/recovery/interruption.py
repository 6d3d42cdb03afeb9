"""What is left of an iteration in which nodes are lost: what a replay has its policies keep.

A running job asks its workers what they have of the iteration under way, and plans what is left of it
(`planners/resumption`). In a replay what they have follows from the plan in force, and from when the nodes were lost:
who waits for nobody who is gone goes on until that is noticed, `Costs.detection_s` later, and finishes the operation
that he is at. Then the same planner says how long the rest takes by the plan that follows. All messages are kept.

Where we deviate from a running job: the moment of the loss is rounded to a `PHASES`th of the iteration; one that was
resumed itself is taken to be as far as its plan is when as much of it is left; with a staggered optimizer an iteration
is as far in its makespan as in its period, and nobody has begun the next one. Iterations of more than `MOST_OPERATIONS`
are done again as a whole: to plan for every failure of a long trace would take minutes, and large jobs lose little.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ...schemas.plan import Layers, Place, Plan
from ...schemas.protocols import RecoveryPolicy
from ...schemas.replay import Costs, Fleet, Moment, StateChange, TrainingState, Transition
from ...schemas.resumption import (
    Begun,
    LastDone,
    MessageKey,
    MessageKind,
    Standing,
    held_messages,
    layer_runs,
    layers_in,
    ledger_entries,
    nothing_of,
    stashes_within,
)
from ..resumption.plan import rest_makespan_s
from ..scheduling.problem import BACKWARD, FORWARD, KINDS, WEIGHT
from .clocked_operations import clocked
from .detecting import nameless

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

PHASES = 64
MOST_OPERATIONS = 36_000  # of an iteration
MOST_KEPT = 64  # timetables, and answers
NONE = -1

PlanOf = Callable[[TrainingState], Plan]
SeatsOf = Callable[[TrainingState], Mapping[Place, str]]


class Resuming:
    """Around a policy that loses interrupted iterations: it goes on with them, as `rtk run` does.

    Args:
        policy: for all else; its plans have what is slow in them.
        costs: of the job.
    """

    def __init__(self, policy: RecoveryPolicy, costs: Costs) -> None:
        self._policy = policy
        self._interruptions = Interruptions(costs, self._plan, policy.seats)

    def begin(self, fleet: Fleet) -> TrainingState:
        """As the policy."""
        return self._policy.begin(fleet)

    def react(self, standing: TrainingState, moment: Moment) -> Transition:
        """As the policy; what is left of an interrupted iteration is done by the plan that follows."""
        return self._interruptions.resumed(standing, self._policy.react(standing, moment), moment)

    def plan(self, standing: TrainingState) -> Plan | None:
        """As the policy."""
        return self._policy.plan(standing)

    def seats(self, standing: TrainingState) -> Mapping[Place, str]:
        """As the policy."""
        return self._policy.seats(standing)

    def _plan(self, standing: TrainingState) -> Plan:
        found = self._policy.plan(standing)
        assert found is not None
        return found


class Interruptions:
    """What is left of iterations in which nodes are lost; the last answers are remembered.

    Args:
        costs: of the job.
        plan: that is in force in a standing, with what is slow in it.
        seats: who sits where in it.
    """

    def __init__(self, costs: Costs, plan: PlanOf, seats: SeatsOf) -> None:
        self._costs, self._plan, self._seats = costs, plan, seats
        self._timetables: dict[Hashable, Timetable] = {}
        self._left: dict[Hashable, float] = {}

    def resumed(self, standing: TrainingState, steps: Transition, moment: Moment) -> Transition:
        """A policy's answer in which the iteration under way is not done again, where it need not be.

        While groups form, what is left is planned.
        """
        if not steps or not self._can_resume(standing, steps[0], moment):
            return steps
        return _going_on(steps, self._part_left(standing, steps[0], moment))

    def at_best(self, standing: TrainingState, steps: Transition, moment: Moment) -> Transition:
        """The same as if nothing were lost and everybody went on until the loss is noticed, which takes no planning."""
        if not steps or not self._can_resume(standing, steps[0], moment):
            return steps
        noticing_s = self._costs.detection_s / (standing.iteration_time_s or 1.0)
        return _going_on(steps, max(0.0, 1 - moment.done - noticing_s))

    def _can_resume(self, standing: TrainingState, step: StateChange, moment: Moment) -> bool:
        """Whether a step interrupts an iteration that can be gone on with: all have the state that it began with."""
        if self._costs.redo_all or not step.interrupts or step.rolls_back or not moment.done:
            return False
        following = step.standing
        goes_on = standing.iteration_time_s is not None and following.iteration_time_s is not None
        if not goes_on or standing.microbatches != following.microbatches:
            return False
        stages = 1 + max((stage for _, stage in self._seats(standing)), default=0)
        return KINDS * stages * standing.microbatches <= MOST_OPERATIONS

    def _part_left(self, standing: TrainingState, step: StateChange, moment: Moment) -> float:
        """Of an iteration that `_can_resume`, the part that is still to be done after the step, from 0 to 1."""
        before, after = dict(self._seats(standing)), dict(self._seats(step.standing))
        lost = frozenset(place for place, node in before.items() if node in moment.lost)
        names, phase = _names(before), round(moment.done * PHASES)
        place_of = {name: place for place, name in names.items()}
        moved = tuple((place, place_of.get(name)) for place, name in sorted(_names(after).items()))
        keys = (self._key(standing, before), self._key(step.standing, after))
        question = (*keys, lost, moved, phase)
        if question not in self._left:
            running, following = self._timetable(keys[0], standing), self._timetable(keys[1], step.standing)
            pace = running.makespan_s / (standing.iteration_time_s or 1.0)
            at_s = phase / PHASES * running.makespan_s
            reached = running.reached(lost, at_s, at_s + self._costs.detection_s * pace)
            _make_room(self._left)
            self._left[question] = _left(following, reached, moved)
        return self._left[question]

    def _key(self, standing: TrainingState, seats: Mapping[Place, str]) -> Hashable:
        return nameless(standing.formation, set(seats.values()))

    def _timetable(self, key: Hashable, standing: TrainingState) -> Timetable:
        if key not in self._timetables:
            _make_room(self._timetables)
            self._timetables[key] = Timetable(self._plan(standing))
        return self._timetables[key]


def _make_room(known: dict[Hashable, Any]) -> None:
    """Forget the oldest answer, if there are many: a trace may have any number of failures."""
    if len(known) == MOST_KEPT:
        del known[next(iter(known))]


def _going_on(steps: Transition, left: float) -> Transition:
    """The same steps where so much of the iteration is left; if not all of it, groups form while that is planned."""
    pauses = steps[0].pauses
    if left < 1:
        forming_s = sum(pause.lasts_s for pause in pauses if pause.kind == "restarting")
        shorter = (
            replace(pause, lasts_s=max(0.0, pause.lasts_s - forming_s)) if pause.kind == "planning" else pause
            for pause in pauses
        )
        pauses = tuple(pause for pause in shorter if pause.lasts_s > 0)
    return (replace(steps[0], left=left, pauses=pauses), *steps[1:])


def _names(seats: Mapping[Place, str]) -> dict[Place, str]:
    """The name of each worker: its node's, and the how manieth it is there."""
    counts: defaultdict[str, int] = defaultdict(int)
    found = {}
    for place in sorted(seats):
        found[place] = f"{seats[place]}/{counts[seats[place]]}"
        counts[seats[place]] += 1
    return found


def _left(
    following: Timetable, reached: Mapping[Place, Standing], moved: tuple[tuple[Place, Place | None], ...]
) -> float:
    """The part of an iteration by the plan that follows that those who now sit elsewhere have left."""
    standings, seats = [], []
    for number, (place, before) in enumerate(moved):
        name = str(number)
        standing = None if before is None else reached.get(before)
        standings.append(Standing(name, None) if standing is None else replace(standing, worker=name))
        seats.append((name, place))
    rest_s = rest_makespan_s(following.plan, tuple(seats), tuple(standings))
    return min(1.0, rest_s / following.makespan_s)


@dataclass(frozen=True, eq=False)
class _Done:
    """Which of a worker's operations at a stage have ended, and what of the messages that they take has arrived."""

    microbatch: Ints
    kind: Ints
    split: Flags
    done: Flags
    arrived: Flags

    def of(self, kind: int) -> Ints:
        """The micro-batches whose operation of a kind has ended, ascending."""
        return np.sort(self.microbatch[self.done & (self.kind == kind)])

    def taken(self, kind: int) -> Ints:
        """The micro-batches whose message for an operation of a kind is there, ascending."""
        return np.sort(self.microbatch[(self.done | self.arrived) & (self.kind == kind)])

    @property
    def finished(self) -> Ints:
        """The micro-batches whose gradients are in the worker's sums, ascending."""
        last = self.done & ((self.kind == WEIGHT) | ((self.kind == BACKWARD) & ~self.split))
        return np.sort(self.microbatch[last])


class Timetable:
    """When the operations and sums of a plan begin and end.

    Args:
        plan: with what is slow in it; it needs no prediction.
    """

    def __init__(self, plan: Plan) -> None:
        times = clocked(plan)
        self.plan, self.makespan_s, self._parts, self._group = plan, times.makespan_s, times.parts, times.group
        self._start_s, self._end_s, self._summed_s = times.start_s, times.end_s, times.summed_s()
        self._reach = [slice(*ends) for ends in pairwise(np.cumsum([0, *times.counts]).tolist())]
        self._worker = np.repeat(np.arange(len(times.counts)), times.counts)
        self._stage, self._kind, self._split = times.stage, times.kind, times.split
        self._microbatch, numbers = times.microbatch[times.job], np.arange(len(times.job))

        job, stage = times.job, times.stage
        at = np.full((KINDS, len(times.depth), max(times.depth)), NONE)
        at[times.kind, job, stage] = numbers
        upwards = (times.kind == FORWARD) & (stage > 0)
        downwards = (times.kind == BACKWARD) & (stage < times.depth[job] - 1)
        self._maker = np.full(len(job), NONE)
        self._maker[upwards] = at[FORWARD, job[upwards], stage[upwards] - 1]
        self._maker[downwards] = at[BACKWARD, job[downwards], stage[downwards] + 1]

    def reached(self, lost: Collection[Place], at_s: float, until_s: float) -> dict[Place, Standing]:
        """What each worker that lives has of the iteration; by its place, which is its name, too.

        Args:
            lost: places whose workers are lost.
            at_s: when that happens, in s of the iteration.
            until_s: until then the others begin further operations.
        """
        workers = self.plan.workers
        is_lost = np.array([worker.place in lost for worker in workers])
        done = np.where(is_lost[self._worker], self._end_s <= at_s, self._start_s < until_s)
        done = self._without_waiting(done)
        sealed = self._sealed(done, is_lost, at_s, until_s)
        arrived = (self._maker != NONE) & done[self._maker]
        found = {}
        columns = (self._microbatch, self._kind, self._split, done, arrived)
        for number, (worker, reach) in enumerate(zip(workers, self._reach, strict=True)):
            if not worker.failed and not is_lost[number]:
                here = (self._stage[reach] == stage for stage in self.plan.seats_of(worker))
                own = [_Done(*(column[reach][of] for column in columns)) for of in here]
                found[worker.place] = self._standing(number, own, sealed)
        return found

    def _without_waiting(self, done: Flags) -> Flags:
        """Of operations that could have been done by their times, those that wait for nothing that is not done."""
        numbers, workers = np.arange(len(done)), len(self._reach)
        while True:
            first = np.full(workers, len(done))
            np.minimum.at(first, self._worker[~done], numbers[~done])
            still = numbers < first[self._worker]
            still &= (self._maker == NONE) | still[self._maker]
            if (still == done).all():
                return done
            done = still

    def _sealed(self, done: Flags, is_lost: Flags, at_s: float, until_s: float) -> list[bool]:
        """Of each part of the layers, whether its gradients are summed: all its holders have come so far."""
        parts = self._parts
        ends_s = np.full(len(parts.groups), until_s)
        for number in range(len(self._reach)):
            if is_lost[number]:
                ends_s[self._group[number]] = at_s
        waits = np.unique(self._group[self._worker[~done]])
        found = [True] * len(self._summed_s)
        for part in reversed(range(len(found))):
            holders = [group for group, own in enumerate(parts.own) if part in own]
            comes = not np.isin(holders, waits).any() and self._summed_s[part] <= min(ends_s[holders])
            found[part] = comes and all(found[before] for before in parts.behind[part])
        return found

    def _standing(self, number: int, own: Sequence[_Done], sealed: list[bool]) -> Standing:
        """What a worker has, which has done so much in each of its stages."""
        worker, parts = self.plan.workers[number], self._parts
        there = layers_in(parts.layers[part] for part in parts.own[self._group[number]] if sealed[part])
        holds, stages = self.plan.layers_of(worker), [stage.layers for stage in self.plan.stages_of(worker)]
        ledger: dict[int, list[int]] = {}
        begun: dict[Begun, LastDone] = {}
        messages: list[MessageKey] = []
        for layers, done in zip(stages, own, strict=True):
            finished, halfway = done.finished.tolist(), set(done.of(BACKWARD).tolist())
            if finished:
                ledger |= dict.fromkeys(set(range(*layers)) - there, finished)
            for one in sorted(set(done.of(FORWARD).tolist()).difference(finished)):
                begun[one, layers] = "I" if one in halfway else "F"
            messages += _messages(layers, done, self.plan.total_layers())
        return replace(
            nothing_of(worker.name, holds),
            splits=any(bool(done.split.any()) for done in own),
            ledger=ledger_entries(ledger),
            sealed=layer_runs(there),
            stashes=stashes_within(holds, begun),
            messages=held_messages(messages),
        )


def _messages(layers: Layers, own: _Done, all_layers: int) -> Iterator[MessageKey]:
    """What a worker has sent and received of one of its stages, over boundaries between layers."""
    ways: tuple[tuple[MessageKind, int, Ints], ...] = (
        ("activation", layers[0], own.taken(FORWARD)),
        ("activation", layers[1], own.of(FORWARD)),
        ("gradient", layers[0], own.of(BACKWARD)),
        ("gradient", layers[1], own.taken(BACKWARD)),
    )
    for kind, boundary, numbers in ways:
        if 0 < boundary < all_layers:
            yield from ((kind, boundary, number) for number in numbers.tolist())
