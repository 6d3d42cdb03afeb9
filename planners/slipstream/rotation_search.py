"""Targets for workers in rotation (rotation.py): phases that fit from the durations, then a local search.

With a round of c seconds at a stage, and its F and I of one micro-batch D apart, a worker's F, I and W go round without
an idle moment only where D, modulo c, leaves room for W either between F and I or between I and the next F. So D has a
few admissible values a round, in intervals as long as the round has time to spare, and from the last stage back

    D_i = the least admissible value that is no less than F_i + D_(i+1) + I_(i+1), with both hops,

which says how many micro-batches are in flight at each stage, and whether W goes before F or after it. Targets that do
not say so make every worker wait for a moment of every round. (Skipping the least value for the next one is a move of
the search: it shifts the phases of all earlier stages.)

How many W are left when the last I has come follows from what is left of the window then; the backlog grows up to it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.atlas import Targets
from ..scheduling.limits import rooms
from ..scheduling.proof import Proven
from .rotation import FILL, FIRST, POINTS, WIDTH, RotationScheduler

if TYPE_CHECKING:
    from ..scheduling.problem import Floats, Ints, Problem

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
# How many runs a search may take: so many operations' worth, but at most so many; and if it shall be quick.
BUDGET_OPERATIONS, MOST_RUNS = 50_000_000, 400
QUICK_OPERATIONS = ALIKE_OPERATIONS = 1_000_000
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

    live: Ints
    targets: Floats
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
    changes: Floats


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
        self.scheduler = RotationScheduler(pipeline, self._jobs, pipelines, runs=len(STARTS) * searches)
        self._forward_s = workers.forward_s
        self._back_s = np.where(split, workers.input_s, workers.full_s)
        self._weight_s = np.where(split, workers.weight_s, 0.0)
        self._hop_s = np.append(pipeline.hop_s[0], 0.0)
        self._room = np.minimum(rooms(pipeline), pipeline.jobs).astype(float)
        reach_s = np.concatenate([[0.0], np.cumsum((self._forward_s + self._hop_s)[:-1])])
        return_s = np.concatenate([[0.0], np.cumsum((self._back_s + self._hop_s)[:-1])])
        left_s = return_s + reach_s if pipeline.staggered else return_s
        self._unlike = any(np.ptp(each_s) > 0 for each_s in (self._forward_s, self._back_s, self._weight_s))
        self.leads = self._unlike or bool(np.ptp(self._room) > 0)
        self.suffices = self._unlike and bool(split.all()) and self._operations > SMALL_OPERATIONS
        self._left = np.divide(left_s, self._weight_s, out=np.zeros_like(left_s), where=self._weight_s > 0)

    def search(self, live: Ints, bound_s: float, seed: int, *, quick: bool = False) -> RotationSchedule | None:
        """The best targets that are found; None where none let all workers come to an end, or none are tried.

        Args:
            live: workers of each stage, 1 or more.
            bound_s: on any routing and orders, more than 0.
            seed: of the moves.
            quick: whether to try few.
        """
        return self._best(live, bound_s, seed, self._runs(quick))

    def look(self, live: Ints, bound_s: float) -> RotationSchedule | None:
        """The best of the first designs; the rest as for `search`."""
        return self._best(live, bound_s, 0, len(STARTS) if self._unlike else 1)

    def _best(self, live: Ints, bound_s: float, seed: int, runs: int) -> RotationSchedule | None:
        best, chance = RotationSchedule(live, np.empty(0), inf, bound_s), random.Random(seed)
        starts = self._starts()
        design = starts[0]
        for run in range(runs):
            other = starts[run] if run < len(starts) else _moved(design, chance)
            targets = self._targets(live, bound_s, other)
            value_s = self.scheduler.run(live, targets, best.value_s)
            if value_s < inf and value_s <= best.value_s:
                best, design = replace(best, targets=targets, value_s=value_s), other
            if best.optimal:
                break
        return best if best.value_s < inf else None

    def _runs(self, quick: bool) -> int:
        """How many runs a search takes; alike stages are left to slots if the first few do not do."""
        if not self._unlike:
            return max(int(self.leads), min(MOST_RUNS, ALIKE_OPERATIONS // self._operations))
        budget = QUICK_OPERATIONS if quick else BUDGET_OPERATIONS
        return max(len(STARTS), min(MOST_RUNS, budget // self._operations))

    def _starts(self) -> list[_Design]:
        stages = len(self._left)
        fills = [np.where(np.arange(WIDTH) == FILL, fill, 0.0) for _, _, fill in STARTS]
        return [
            _Design(pace, shares, (0,) * stages, np.tile(fill, (stages, 1)))
            for (pace, shares, _), fill in zip(STARTS, fills, strict=True)
        ]

    def _targets(self, live: Ints, bound_s: float, design: _Design) -> Floats:
        """The targets of a design; `stages x WIDTH`."""
        in_flight, first = self._phases(live, design.pace * bound_s / self._jobs, design.skipped)
        targets = design.changes.copy()
        targets[:, :POINTS] += np.minimum(in_flight, self._room)[:, None]
        targets[:, POINTS + 1 : FIRST] += np.round(2 * np.outer(self._left, design.shares)) / 2
        targets[:, FIRST] = (targets[:, FIRST] + first) % 2
        for stage in range(1, len(live)):
            # A stage that aims at more than the one before has in flight would wait for F that never come.
            most = np.floor(targets[stage - 1, :POINTS] + 0.5) * live[stage - 1] // live[stage]
            targets[stage, :POINTS] = np.minimum(targets[stage, :POINTS], most)
        np.maximum(targets[:, :POINTS], 1.0, out=targets[:, :POINTS])
        np.maximum(targets[:, POINTS:], 0.0, out=targets[:, POINTS:])
        return targets

    def _phases(self, live: Ints, pace_s: float, skipped: Sequence[int]) -> tuple[Floats, Floats]:
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


def recorded(targets: Floats) -> Targets:
    """Targets, `stages x WIDTH`, as a recipe has them."""
    rows = targets.tolist()
    return Targets(
        tuple((row[0], row[1], row[2], row[3]) for row in rows),
        tuple((row[4], row[5], row[6], row[7]) for row in rows),
        tuple(row[FIRST] > 0 for row in rows),
        tuple(row[FILL] for row in rows),
    )


def as_recorded(targets: Targets) -> Floats:
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
