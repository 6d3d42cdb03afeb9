"""Where normalization puts failures: several answers of normalization.py, judged by scheduling them.

The paper puts the failures that are left over in later stages, "with more bubbles". Without memory limits that costs
makespan: a late stage starts late, and ends later the more it has to do. So both ends are tried, and two aims: the
least sum of ReCycle's costs, and the least worst stage by the bound; the schedules decide, and where their values tie,
the first of these answers that is proven to be optimal for its failures, else the first.

Under memory limits schedules of large problems are **shared**: all answers but those of the dynamic programme are
nested, each failure comes to those before, and slots stay valid where more workers live. So a schedule for so many
failures is one for fewer, and only the last number of failures of each bound is scheduled; fewer failures are scheduled
themselves where that leaves a gap. Which numbers are asked for makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..scheduling.problem import KINDS
from ..scheduling.proof import ROUNDING
from .failures import Grid
from .normalization import (
    bubble_costs,
    columns,
    dynamic_program,
    is_convex,
    least_worst,
    marginal_greedy,
    most_failures,
)
from .slot_search import SlotSchedule, SlotSearch

if TYPE_CHECKING:
    from ..scheduling.problem import Floats

# Schedules are shared above so many operations of all pipelines; farther from their bounds than this only if each would
# take too long, above so many.
SHARED_OPERATIONS, SHARED_GAP, OWN_OPERATIONS = 50_000, 2e-3, 1_000_000
# Of the answers, so many are scheduled where schedules are shared: those of least bound.
SHARED_ANSWERS = 2

Cost = Literal["heuristic", "scheduler"]
Table = list[list[float]]
Vector = tuple[int, ...]


class Placement:
    """Chooses how many units of each column are the failed ones.

    Args:
        grid: the workers, and what dies as one.
        search: for one of the pipelines.
        work_s: F, I and W of one micro-batch at each stage.
        most: failed units, in the questions to come.
        cost: ReCycle's heuristic, or what the scheduler says of each column alone.
    """

    def __init__(self, grid: Grid, search: SlotSearch, work_s: Floats, most: int, cost: Cost) -> None:
        self._grid, self._search, self._work_s, self._most, self._cost = grid, search, work_s, most, cost
        self._schedules: dict[Vector, SlotSchedule] = {}
        self._sequences: list[list[Vector]] = [[]]

    def contenders(self, failures: int) -> list[tuple[Vector, SlotSchedule]]:
        """The failed units of each column, and the slots that speak for it: the best first, then what may be better.

        What follows the best has a bound below its value; where that is optimal, nothing follows but what tied.

        Raises:
            InfeasibleError: so many failures leave a stage without a live worker.
        """
        if self.shares:
            return [self._shared(failures)]
        bounds = {vector: self._quick_bound_s(vector) for vector in self._answers(failures)}
        found: list[tuple[Vector, SlotSchedule]] = []
        least_s = inf
        for vector, bound_s in sorted(bounds.items(), key=lambda item: item[1]):
            # Under limits an answer that ties may be the one that is proven.
            settled = not self._search.bound.limited or any(one.optimal for _, one in found)
            goal_s = least_s * ((1 - ROUNDING) if settled else (1 + ROUNDING))
            if bound_s < goal_s and self._search.bound_s(self._dead(vector)) < goal_s:
                found.append((vector, self._search.look(self._dead(vector))))
                least_s = min(least_s, found[-1][1].value_s)
        return self._best_first(found)

    @property
    def shares(self) -> bool:
        """Whether a schedule may be one for more failures than are asked for."""
        return self._search.bound.limited and self._operations > SHARED_OPERATIONS

    @property
    def _operations(self) -> int:
        return KINDS * self._search.jobs * len(self._work_s)

    def _best_first(self, found: Sequence[tuple[Vector, SlotSchedule]]) -> list[tuple[Vector, SlotSchedule]]:
        """The best, then what may be better by its bound."""
        least_s = min(one.value_s for _, one in found)
        tied = [one for one in found if one[1].value_s <= least_s * (1 + ROUNDING)]
        best = next((one for one in tied if one[1].optimal), tied[0])
        return [best, *(one for one in found if one is not best and one[1].bound_s < least_s * (1 - ROUNDING))]

    def _shared(self, failures: int) -> tuple[Vector, SlotSchedule]:
        """The best of the answers of least bound, by schedules for their last number of failures of the same bound."""
        bounds: dict[Vector, tuple[float, int]] = {}
        for number, sequence in enumerate(self._nested(failures)):
            bounds.setdefault(sequence[failures], (self._quick_bound_s(sequence[failures]), number))
        found: list[tuple[Vector, SlotSchedule]] = []
        counts: dict[Vector, bool] = {}  # whether counting may say more; where it says no more for more failures, never
        for vector, (quick_s, number) in sorted(bounds.items(), key=lambda item: item[1]):
            least_s = min((one.value_s for _, one in found), default=inf)
            may_prove = least_s * (1 - ROUNDING) <= quick_s <= least_s * (1 + ROUNDING)
            if may_prove or (quick_s < least_s and len(found) < SHARED_ANSWERS):
                schedule = self._last_schedule(number, failures)
                counts[vector] = schedule.bound_s > quick_s * (1 + ROUNDING)
                found.append((vector, replace(schedule, bound_s=quick_s)))
            if found[-1][1].optimal:
                break
        vector, best = self._best_first(found)[0]
        if counts[vector] and not best.optimal:
            best = replace(best, bound_s=self._search.bound_s(self._dead(vector)))
        if best.value_s > best.bound_s * (1 + SHARED_GAP) and self._operations <= OWN_OPERATIONS:
            own = self._search.look(self._dead(vector), bound_s=best.bound_s)
            best = own if own.value_s < best.value_s else best
        return vector, best

    def _last_schedule(self, number: int, failures: int) -> SlotSchedule:
        """The schedule for the last answer of a nested sequence whose bound is no more than that of this one."""
        goal_s = self._quick_bound_s(self._nested(failures)[number][failures]) * (1 + ROUNDING)
        most = most_failures(self._aims[0])
        while failures < most and self._quick_bound_s(self._nested(failures + 1)[number][failures + 1]) <= goal_s:
            failures += 1
        vector = self._nested(failures)[number][failures]
        if vector not in self._schedules:
            self._schedules[vector] = self._search.look(self._dead(vector))
        return self._schedules[vector]

    def _nested(self, failures: int) -> list[list[Vector]]:
        """The answers for so many failures and fewer, of those aims and ends where each has one more than the last.

        Asked for more, they have the same beginnings.

        Raises:
            InfeasibleError: so many failures leave a stage without a live worker.
        """
        if len(self._sequences[0]) <= failures:
            costs, loads, seconds = self._aims
            most = max(failures, min(2 * failures, most_failures(costs)))
            self._sequences = []
            for later_first in (False, True):
                self._sequences.append(least_worst(seconds, most, later_first=later_first))
                if is_convex(costs):
                    self._sequences.append(marginal_greedy(costs, loads, most, later_first=later_first))
        return self._sequences

    def _quick_bound_s(self, vector: Vector) -> float:
        """The bound without what takes long."""
        live = self._search.pipelines - np.array(self._dead(vector))
        return self._search.bound.value_s(live, self._search.staggered, counting=False)

    def answers(self, failures: int) -> list[Vector]:
        """The failed units of each column by each aim and end, none twice, that of least bound without counting first.

        Raises:
            InfeasibleError: so many failures leave a stage without a live worker.
        """
        return sorted(self._answers(failures), key=self._quick_bound_s)

    def _answers(self, failures: int) -> list[Vector]:
        return list(dict.fromkeys(answers[failures] for answers in self._all_answers))

    @cached_property
    def _all_answers(self) -> list[list[Vector]]:
        """For each aim and end the answers for every number of failures."""
        costs, loads, seconds = self._aims
        cheapest = marginal_greedy if is_convex(costs) else dynamic_program
        return [
            answer
            for later_first in (False, True)
            for answer in (
                least_worst(seconds, self._most, later_first=later_first),
                cheapest(costs, loads, self._most, later_first=later_first),
            )
        ]

    @cached_property
    def _aims(self) -> tuple[Table, Table, Table]:
        """What failed units cost each column, what its workers then have to bear on average, and its bound alone."""
        costs, loads = self._tables(lambda dead: self._work_s * self._search.jobs / (self._search.pipelines - dead))
        _, seconds = self._tables(self._alone_s)
        return (self._scheduled_costs() if self._cost == "scheduler" else costs), loads, seconds

    def _tables(self, borne_s: Callable[[int], Floats]) -> tuple[Table, Table]:
        """ReCycle's costs, and a measure of each stage by its dead workers, as tables of columns and failed units."""
        pipelines, each = self._search.pipelines, self._search.jobs // self._search.pipelines
        whole_s = self._search.bound_s([0] * len(self._work_s))
        costs = [bubble_costs(w, whole_s - each * w, pipelines, each) for w in self._work_s.tolist()]
        measures = np.stack([borne_s(dead) for dead in range(pipelines)], axis=1).tolist()
        worst = [[*row, inf] for row in measures]
        return columns(costs, worst, self._grid.unit_stages, self._grid.unit_pipelines)

    def _alone_s(self, dead: int) -> Floats:
        """The bound of each stage if so many of its workers are dead."""
        live = np.full(len(self._work_s), self._search.pipelines - dead)
        return self._search.bound.alone_s(live, self._search.staggered)

    def _scheduled_costs(self) -> Table:
        """How much longer an iteration takes with failed units in one column only, in s."""
        none = [0] * self._grid.columns
        whole_s = self._search.look(self._dead(none)).value_s
        return [
            [
                0.0,
                *(
                    self._search.look(self._dead(_with(none, c, n))).value_s - whole_s
                    for n in range(1, self._grid.units)
                ),
            ]
            for c in range(self._grid.columns)
        ]

    def _dead(self, vector: Sequence[int]) -> Vector:
        return self._grid.stage_failures(vector)


def _with(values: Sequence[int], at: int, value: int) -> list[int]:
    return [value if index == at else old for index, old in enumerate(values)]
