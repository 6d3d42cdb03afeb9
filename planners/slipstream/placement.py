"""Where normalization puts failures: several answers of normalization.py, judged by scheduling them.

The paper puts the failures that are left over in later stages, "with more bubbles". Without memory limits that costs
makespan: a late stage starts late, and ends later the more it has to do. So both ends are tried, and two aims: the
least sum of ReCycle's costs, and the least worst stage by the bound; the schedules decide, and where their values tie,
the first of these answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..scheduling.proof import ROUNDING
from .failures import Grid
from .normalization import bubble_costs, columns, dynamic_program, is_convex, least_worst, marginal_greedy
from .slot_search import SlotSchedule, SlotSearch

if TYPE_CHECKING:
    from ..scheduling.problem import Floats

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

    def contenders(self, failures: int) -> list[tuple[Vector, SlotSchedule]]:
        """The failed units of each column, and the slots that speak for it: the best first, then what may be better.

        What follows the best has a bound below its value; where that is optimal, nothing follows.

        Raises:
            InfeasibleError: so many failures leave a stage without a live worker.
        """
        bounds = {vector: self._search.bound_s(self._dead(vector)) for vector in self._answers(failures)}
        found: list[tuple[Vector, SlotSchedule]] = []
        least_s = inf
        for vector, bound_s in sorted(bounds.items(), key=lambda item: item[1]):
            if bound_s < least_s * (1 - ROUNDING):
                found.append((vector, self._search.look(self._dead(vector))))
                least_s = min(least_s, found[-1][1].value_s)
        best = next(one for one in found if one[1].value_s <= least_s * (1 + ROUNDING))
        rest = [one for one in found if one is not best and one[1].bound_s < least_s * (1 - ROUNDING)]
        return [best, *rest]

    def answers(self, failures: int) -> list[Vector]:
        """The failed units of each column by each aim and end, none twice, that of least bound first.

        Raises:
            InfeasibleError: so many failures leave a stage without a live worker.
        """
        return sorted(self._answers(failures), key=lambda vector: self._search.bound_s(self._dead(vector)))

    def _answers(self, failures: int) -> list[Vector]:
        return list(dict.fromkeys(answers[failures] for answers in self._all_answers))

    @cached_property
    def _all_answers(self) -> list[list[Vector]]:
        """For each aim and end the answers for every number of failures."""
        costs, loads = self._costs()
        cheapest = marginal_greedy if is_convex(costs) else dynamic_program
        _, seconds = self._tables(self._alone_s)
        return [
            answer
            for later_first in (False, True)
            for answer in (
                least_worst(seconds, self._most, later_first=later_first),
                cheapest(costs, loads, self._most, later_first=later_first),
            )
        ]

    def _costs(self) -> tuple[Table, Table]:
        """What failed units cost each column, and what its workers then have to bear on average."""
        costs, loads = self._tables(lambda dead: self._work_s * self._search.jobs / (self._search.pipelines - dead))
        return (self._scheduled_costs() if self._cost == "scheduler" else costs), loads

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
