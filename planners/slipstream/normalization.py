"""Normalization: how many failures each column of the cluster is given, when workers may be swapped.

SlipStream (ReCycle), section 4.2.1 and Algorithm 1. A column is one stage, or several neighbouring stages where the
servers that hold them die as one; what dies as one is a unit. All here is tables, with one row for each column:

* `costs`: row c has the cost of 0, 1, 2, ... failed units in column c, in any unit of measure, finite for none. A row
  ends with its first infinite cost, or where the list does: so many failures leave no peer.
* `worst`: what the busiest worker of the column then has to bear, in any measure; finite wherever the cost is.

An answer is the failed units of each column, one tuple for each number of failures from 0 on. It has the least sum of
costs; among those the least worst, then the least second worst, and so on; and among those the last column has the
most failures it can, then the last but one (`later_first`), or else the first column, then the second.

We deviate from Algorithm 1, which compares sums only. Its cost is linear past the kink of a hinge, so the sum does not
say where the excess goes: at 16 pipelines of 8 stages with 32 micro-batches, 32 failures may then leave one stage with
11 and seven with 3, at the same sum as 4 everywhere. Nor does its first minimum keep the text's "later stages".

Sums and measures are floats: what differs by less than a billionth of the greatest in the table counts as equal, so
that rounding does not decide where a failure goes. A sum is then the least but for a billionth a column.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heapreplace
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...schemas.errors import InfeasibleError, InvalidInputError
from ...schemas.plan import Place, name_of
from ...schemas.profile import Connection
from ..scheduling.problem import KINDS, ROUNDING
from .slot_search import SlotSchedule, SlotSearch

if TYPE_CHECKING:
    from ..scheduling.problem import Floats


# Which workers are dead: what dies as one, and what no re-routing survives.


@dataclass(frozen=True)
class Grid:
    """The workers of equal pipelines, in units of workers that die together.

    A unit holds `unit_stages` neighbouring stages of `unit_pipelines` neighbouring pipelines: a server, or what else
    fails as one. SlipStream, section 3.4, "Multi-GPU Servers and Tensor Parallelism"; a tensor-parallel group is one
    worker here. A **column** is the units of the same stages.

    Attributes:
        noun: what errors call the workers of equal places, one of each pipeline: those of a stage, or of a column where
            a worker holds several virtual stages.

    Raises:
        InvalidInputError: the units do not divide the grid.
    """

    pipelines: int
    stages: int
    unit_pipelines: int = 1
    unit_stages: int = 1
    noun: Literal["stage", "column"] = "stage"

    def __post_init__(self) -> None:
        if self.pipelines % self.unit_pipelines or self.stages % self.unit_stages:
            raise InvalidInputError(
                f"units of {self.unit_pipelines} x {self.unit_stages} workers do not divide "
                f"{self.pipelines} pipelines x {self.stages} {self.noun}s",
                where="--failure-unit",
                fix="both numbers must divide those of the cluster: --dp and --pp",
            )

    @property
    def columns(self) -> int:
        """Units beside each other."""
        return self.stages // self.unit_stages

    @property
    def units(self) -> int:
        """Units of a column."""
        return self.pipelines // self.unit_pipelines

    def unit_of(self, place: Place) -> Place:
        """The unit (row and column) that a worker is in."""
        return place[0] // self.unit_pipelines, place[1] // self.unit_stages

    def places(self, unit: Place) -> Iterator[Place]:
        """The workers of a unit."""
        for k in range(unit[0] * self.unit_pipelines, (unit[0] + 1) * self.unit_pipelines):
            for i in range(unit[1] * self.unit_stages, (unit[1] + 1) * self.unit_stages):
                yield k, i

    def require_places(self, places: Iterable[Place], where: str) -> None:
        """Raise InvalidInputError, naming the option, if there are no such workers."""
        for k, i in places:
            if not (0 <= k < self.pipelines and 0 <= i < self.stages):
                raise InvalidInputError(
                    f"there is no worker {k}/{i}",
                    where=where,
                    fix=f"workers are 0/0 to {self.pipelines - 1}/{self.stages - 1}: pipeline/{self.noun}",
                )

    def failed_units(self, failed: Iterable[Place]) -> frozenset[Place]:
        """The units of failed workers.

        Raises:
            InvalidInputError: there is no such worker, or one is named twice, or two of one unit are.
        """
        places = list(failed)
        self.require_places(places, "--failed")
        found: dict[Place, Place] = {}
        for k, i in places:
            unit = self.unit_of((k, i))
            if unit in found:
                other = "twice" if found[unit] == (k, i) else f"beside {name_of(found[unit])} of its unit"
                raise InvalidInputError(
                    f"worker {k}/{i} is named {other}",
                    where="--failed",
                    fix="name one worker of each dead unit, once",
                )
            found[unit] = (k, i)
        return frozenset(found)

    def column_failures(self, units: Iterable[Place]) -> tuple[int, ...]:
        """How many units of each column have failed.

        Raises:
            InfeasibleError: a column has no live unit.
        """
        counts = [0] * self.columns
        for _, column in units:
            counts[column] += 1
        for column, count in enumerate(counts):
            if count >= self.units:
                raise InfeasibleError(
                    f"{self.noun} {column * self.unit_stages} has lost all its workers: no peer holds its parameters",
                    where="--failed",
                    fix="restore a checkpoint and plan a new shape for the workers that are left, "
                    "as SlipStream (section 3.4) does",
                )
        return tuple(counts)

    def require_live_stages(self, units: Iterable[Place]) -> None:
        """Raise InfeasibleError if failed units leave some stage without a live worker."""
        self.column_failures(units)

    def require_feasible(self, failures: int, where: str) -> None:
        """Raise InfeasibleError, naming the option, if so many failed units leave some column without a live one."""
        most = self.columns * (self.units - 1)
        if failures > most:
            raise InfeasibleError(
                f"{failures} failures leave a {self.noun} without a live worker",
                where=where,
                fix=f"at most {most} failures leave every {self.noun} a live worker",
            )

    def stage_failures(self, column_failures: Sequence[int]) -> tuple[int, ...]:
        """How many workers of each stage are dead, by the failed units of each column."""
        return tuple(n * self.unit_pipelines for n in column_failures for _ in range(self.unit_stages))

    def last_units(self, column_failures: Sequence[int]) -> frozenset[Place]:
        """Failed units where only their numbers are known: the last rows of each column."""
        return frozenset(
            (self.units - 1 - n, column) for column, count in enumerate(column_failures) for n in range(count)
        )


Table = Sequence[Sequence[float]]
FloatArray = NDArray[np.float64]
Integers = NDArray[np.int64]

TOLERANCE = 1e-9  # of the greatest value of a table
NOTHING = -1  # below every rank
EVERYTHING = np.iinfo(np.int64).max  # above every rank


def dynamic_program(costs: Table, worst: Table, failures: int, *, later_first: bool = True) -> list[tuple[int, ...]]:
    """The best answers for 0 to `failures` failed units, by Algorithm 1 in lexicographic order; for any costs.

    Bellman's principle, that the best for some columns holds the best for all but the last of them, needs an order in
    which a better beginning stays better, whatever x is added in the last column:

    * the sum of costs: + is strictly monotone;
    * all measures, sorted from the worst down: the same one inserted into two such lists keeps which is less. The worst
      alone would not do: max is monotone, so that a best sum and worst are found, yet not strictly, so that of two
      beginnings the heavier may tie in the end, and have the better places (or the better second worst);
    * the places are compared from the last column on, which is how the columns are removed.

    So the three, one after the other, are an order kept by every step, and the answer is the best of all vectors.
    It takes O(N F^2) steps for N columns, as in the paper, and at most N times as many where most sums tie.

    Args:
        costs: see the module; need not be convex.
        worst: see the module; need not even be monotone.
        failures: the most failed units to answer for.
        later_first: whether ties go to later columns; else to earlier ones.

    Raises:
        InfeasibleError: so many failures leave some column without a live worker.
    """
    rows, ranks = _rows(costs, failures), _ranks(_cut(worst, costs))
    if not later_first:
        return [vector[::-1] for vector in _program(rows[::-1], ranks[::-1], failures)]
    return _program(rows, ranks, failures)


def marginal_greedy(costs: Table, worst: Table, failures: int, *, later_first: bool = True) -> list[tuple[int, ...]]:
    """The answers for 0 to `failures` failed units, each with one failure more than the last; for convex costs.

    The next failure goes where it adds the least cost; among those where the worst is least afterwards; among those
    where it was greatest before, so that the lighter columns stay light; then by place. O(F log N) once the tables are
    sorted.

    Where costs are convex and measures monotone, the pairs (cost added, worst afterwards) of a column do not decrease.
    So the failures chosen have the f least pairs of all columns. By the first items their sum is least. Those of less
    than the greatest item are in every vector of that sum; of the others some k must be taken, and no k have a lesser
    maximum than those with the k least measures. Hence sum and worst are the program's.

    If every failure also raises its column's measure, a column has at most one failure of a given pair. Of the columns
    tied for the last pairs any choice has the same measures there, and by the third rule the least ones remain: the
    vector is the program's. Where a measure stays even it need not be, and no sequence of single failures could be:
    with measures (0, 5, 6) and (0, 5, 5), no costs and ties to earlier columns, the best for one failure is (1, 0), for
    two (0, 2). Loads rounded to whole micro-batches stay even; mean loads do not.

    Args:
        costs: see the module; `is_convex`, or the sums are not the least.
        worst: see the module; monotone in the failures.
        failures: the most failed units to answer for.
        later_first: whether ties go to later columns; else to earlier ones.

    Raises:
        InfeasibleError: so many failures leave some column without a live worker.
    """
    rows = _rows(costs, failures)
    added = _alike([np.diff(row) for row in rows], _greatest(rows) * TOLERANCE)
    ranks = _ranks(_cut(worst, costs))
    keys = [
        list(zip(more.tolist(), rank[1:].tolist(), (-rank[:-1]).tolist(), strict=True))
        for more, rank in zip(added, ranks, strict=True)
    ]
    # The failed units of each of `count` columns after each of the first failures of an order.
    vector = [0] * len(rows)
    vectors = [tuple(vector)]
    for column in islice(_merged(keys, later_first), failures):
        vector[column] += 1
        vectors.append(tuple(vector))
    return vectors


def least_worst(worst: Table, failures: int, *, later_first: bool = True) -> list[tuple[int, ...]]:
    """The answers for 0 to `failures` failed units if nothing has a cost: the busiest worker has the least to bear.

    It is the marginal greedy with costs of zero, where each next failure goes where the worst is least afterwards. By
    exchange: when the greedy has to go to a measure of w, all failures below w are taken, so that any other vector of
    as many failures has one at w or above, and, as measures are monotone, ends there or above.

    Args:
        worst: see the module; monotone in the failures, and here its rows end with the first infinite measure.
        failures: the most failed units to answer for.
        later_first: whether ties go to later columns; else to earlier ones.

    Raises:
        InfeasibleError: so many failures leave some column without a live worker.
    """
    free = [[0.0 if math.isfinite(value) else math.inf for value in row] for row in worst]
    return marginal_greedy(free, worst, failures, later_first=later_first)


def is_convex(costs: Table) -> bool:
    """Whether each further failure costs a column at least as much as the one before, so that the greedy is exact."""
    rows = _finite(costs)
    slack = _greatest(rows) * TOLERANCE
    return all(bool((np.diff(row, 2) >= -slack).all()) for row in rows)


def most_failures(costs: Table) -> int:
    """The most units that can fail with a live worker left everywhere; of N stages of P peers N (P - 1)."""
    return sum(len(row) - 1 for row in _finite(costs))


def bubble_costs(work_s: float, idle_s: float, peers: int, microbatches: int) -> list[float]:
    """What 0 to `peers` dead workers of a stage cost, in s: the work they leave beyond the bubbles of the others.

    ReCycle's heuristic COST(f) = min(0, MB f 3 - (DP - f) (PP - 1) 3), in seconds instead of slots, where F, I and W
    take one each: a work of 3 and an idle time of 3 (PP - 1). We deviate twice. Its min must be max: with min an
    overload costs nothing and slack is rewarded. And without peers the cost is infinite, where the paper's goes on.

    The cost is convex: a hinge.

    Args:
        work_s: F, I and W of one micro-batch in this stage, in s.
        idle_s: how long a worker of this stage idles in an iteration without failures, in s.
        peers: the workers of the stage, dead or alive; one for each pipeline.
        microbatches: micro-batches of a pipeline.
    """
    lost = [dead * microbatches * work_s - (peers - dead) * idle_s for dead in range(peers)]
    return [*(max(0.0, beyond_s) for beyond_s in lost), math.inf]


def columns(costs: Table, worst: Table, width: int, per_unit: int) -> tuple[list[list[float]], list[list[float]]]:
    """Tables by failed units of each column, out of tables by dead workers of each stage.

    A unit holds `width` neighbouring stages of `per_unit` pipelines, so x failed units are x * per_unit dead workers in
    each of these stages. A column costs the sum of its stages' costs, and bears the worst of its stages' worst. If the
    stages are no multiple of `width`, the last column is narrower; likewise a last unit of fewer pipelines counts in
    full.

    Args:
        costs: one row a stage, by dead workers.
        worst: likewise.
        width: stages of a unit.
        per_unit: pipelines of a unit.

    Returns:
        The costs and the worst of each column.
    """
    cost_rows, worst_rows = _finite(costs), _cut(worst, costs)
    firsts = range(0, len(cost_rows), width)
    summed = [_together(cost_rows[first : first + width], per_unit).sum(axis=0) for first in firsts]
    borne = [_together(worst_rows[first : first + width], per_unit).max(axis=0) for first in firsts]
    return [row.tolist() for row in summed], [row.tolist() for row in borne]


def _together(rows: Sequence[FloatArray], step: int) -> FloatArray:
    """Every step-th entry of rows, as far as all of them go; shape (rows, entries)."""
    length = min(len(row) for row in rows)
    return np.array([row[:length:step] for row in rows])


def _rows(costs: Table, failures: int) -> list[FloatArray]:
    """The finite beginnings of the costs, if they admit so many failures."""
    most = most_failures(costs)
    if failures > most:
        raise InfeasibleError(
            f"{failures} failures leave a stage without a live worker",
            where="--failures",
            fix=f"at most {most} failures leave every stage a live worker",
        )
    return _finite(costs)


def _finite(table: Table) -> list[FloatArray]:
    """Each row up to its first infinite value."""
    rows = [np.asarray(row, dtype=float) for row in table]
    return [row[: int(np.isfinite(row).cumprod().sum())] for row in rows]


def _cut(worst: Table, costs: Table) -> list[FloatArray]:
    """The measures of what has a finite cost."""
    lengths = [len(row) for row in _finite(costs)]
    return [np.asarray(row[:length], dtype=float) for row, length in zip(worst, lengths, strict=True)]


def _greatest(rows: Sequence[FloatArray]) -> float:
    return max((float(np.abs(row).max()) for row in rows), default=0.0)


def _ranks(rows: Sequence[FloatArray]) -> list[Integers]:
    """Measures as whole numbers, alike where they are equal but for rounding; they are compared and never added."""
    return _alike(rows, _greatest(rows) * TOLERANCE)


def _alike(rows: Sequence[FloatArray], slack: float) -> list[Integers]:
    """The values' numbers in increasing order, one and the same for neighbours that are no more than `slack` apart."""
    values = np.unique(np.concatenate([*rows, np.empty(0)]))
    numbers = np.concatenate([[0], np.cumsum(np.diff(values) > slack)])
    return [numbers[np.searchsorted(values, row)] for row in rows]


def _program(costs: Sequence[FloatArray], ranks: Sequence[Integers], failures: int) -> list[tuple[int, ...]]:
    """The dynamic program, ties to later columns; its state is the best vectors of the columns so far, one for each f.

    What the columns so far cannot bear has an infinite sum; all of them together can bear `failures`.
    """
    slack = _greatest(costs) * TOLERANCE
    sums = np.where(np.arange(failures + 1) == 0, 0.0, np.inf)
    vectors, borne = (np.empty((failures + 1, 0), dtype=np.int64) for _ in range(2))  # borne: ranks, the worst first
    for cost, rank in zip(costs, ranks, strict=True):
        own = _lightest(*_cheapest(sums, cost, slack), borne, rank)
        rest = np.arange(failures + 1) - own
        sums = sums[rest] + cost[own]
        vectors = np.column_stack([vectors[rest], own])
        borne = -np.sort(-np.column_stack([borne[rest], rank[own]]))
    return [tuple(vector) for vector in vectors.tolist()]


def _cheapest(sums: FloatArray, cost: FloatArray, slack: float) -> tuple[Integers, Integers]:
    """All pairs (f, x) where x of f failures in the next column make the least sum, ordered; (f, 0) if none is finite.

    Args:
        sums: the least sums of the columns before; shape (F + 1,).
        cost: of the next column; shape (X,).
        slack: how much more than the least counts as equal.
    """
    before = np.concatenate([np.full(len(cost) - 1, np.inf), sums])
    totals = sliding_window_view(before, len(cost))[:, ::-1] + cost  # totals[f, x] = sums[f - x] + cost[x]
    least = totals.min(axis=1)
    tied = totals <= np.where(np.isfinite(least), least + slack, -np.inf)[:, np.newaxis]
    tied[:, 0] |= np.isinf(least)
    total, own = np.nonzero(tied)
    return total, own


def _lightest(total: Integers, own: Integers, borne: Integers, rank: Integers) -> Integers:
    """For each f the largest x among the pairs (f, x) whose measures, sorted from the worst down, are the least.

    Args:
        total: f of each pair, from 0 to F, each at least once, in order.
        own: x of each pair.
        borne: the sorted ranks of the columns before, for each number of failures; shape (F + 1, columns).
        rank: of the next column, by x.
    """
    count, depth = borne.shape
    total, own = _unlike(total, own, borne, rank)
    framed = np.pad(borne, ((0, 0), (1, 1)), constant_values=((0, 0), (EVERYTHING, NOTHING)))
    for place in range(depth + 1):
        if len(total) == count:
            break
        rest = total - own
        # What stands at this place once the column's own rank is inserted among those before.
        value = np.maximum(np.minimum(framed[rest, place], rank[own]), framed[rest, place + 1])
        starts = np.flatnonzero(np.diff(total, prepend=-1))
        keep = value == np.minimum.reduceat(value, starts)[total]
        total, own = total[keep], own[keep]
    return own[np.flatnonzero(np.diff(total, append=count))]


def _unlike(total: Integers, own: Integers, borne: Integers, rank: Integers) -> tuple[Integers, Integers]:
    """The pairs without those that the next pair of the same f equals in all measures: only the larger x can win.

    Nothing needs it but the time, which is spent on comparing what is equal where measures hardly differ.
    """
    run = np.concatenate([[0], np.cumsum((np.diff(borne, axis=0) != 0).any(axis=1))])  # alike: the same number
    rest = total - own
    changed = [np.diff(values) != 0 for values in (total, run[rest], rank[own])]
    keep = np.append(np.logical_or.reduce(changed), True)
    return total[keep], own[keep]


def _merged(keys: Sequence[Sequence[tuple[int, int, int]]], later_first: bool) -> Iterator[int]:
    """The columns in the order in which they are given failures: always one whose next key is least.

    Args:
        keys: of each column, one for each of its failures in turn.
        later_first: which of equal keys goes first.
    """
    towards = -1 if later_first else 1
    heap = [(row[0], towards * column, 0) for column, row in enumerate(keys) if row]
    heapify(heap)
    while heap:
        _, place, taken = heap[0]
        column = abs(place)
        yield column
        if taken + 1 < len(keys[column]):
            heapreplace(heap, (keys[column][taken + 1], place, taken + 1))
        else:
            heappop(heap)


# Where normalization puts failures: several answers of normalization.py, judged by scheduling them.
#
# The paper puts the failures that are left over in later stages, "with more bubbles". Without memory limits that costs
# makespan: a late stage starts late, and ends later the more it has to do. So both ends are tried, and two aims: the
# least sum of ReCycle's costs, and the least worst stage by the bound; the schedules decide, and where their values
# tie, the first of these answers that is proven to be optimal for its failures, else the first.
#
# Under memory limits schedules of large problems are **shared**: all answers but those of the dynamic programme are
# nested, each failure comes to those before, and slots stay valid where more workers live. So a schedule for so many
# failures is one for fewer, and only the last number of failures of each bound is scheduled; fewer failures are
# scheduled themselves where that leaves a gap. Which numbers are asked for makes no difference.


# Schedules are shared above so many operations of all pipelines; farther from their bounds than this only if each would
# take too long, above so many.
SHARED_OPERATIONS, SHARED_GAP, OWN_OPERATIONS = 50_000, 2e-3, 1_000_000
# Of the answers, so many are scheduled where schedules are shared: those of least bound.
SHARED_ANSWERS = 2

Cost = Literal["heuristic", "scheduler"]
PlacementTable = list[list[float]]
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
    def _aims(self) -> tuple[PlacementTable, PlacementTable, PlacementTable]:
        """What failed units cost each column, what its workers then have to bear on average, and its bound alone."""
        costs, loads = self._tables(lambda dead: self._work_s * self._search.jobs / (self._search.pipelines - dead))
        _, seconds = self._tables(self._alone_s)
        return (self._scheduled_costs() if self._cost == "scheduler" else costs), loads, seconds

    def _tables(self, borne_s: Callable[[int], Floats]) -> tuple[PlacementTable, PlacementTable]:
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

    def _scheduled_costs(self) -> PlacementTable:
        """How much longer an iteration takes with failed units in one column only, in s."""
        none = [0] * self._grid.columns
        whole_s = self._search.look(self._dead(none)).value_s
        return [
            [
                0.0,
                *(
                    self._search.look(self._dead([n if index == c else old for index, old in enumerate(none)])).value_s
                    - whole_s
                    for n in range(1, self._grid.units)
                ),
            ]
            for c in range(self._grid.columns)
        ]

    def _dead(self, vector: Sequence[int]) -> Vector:
        return self._grid.stage_failures(vector)


# Swaps: which live units take the places of dead ones, and whose state they copy.
#
# SlipStream, section 4.2.1: "normalization only requires a point-to-point copy of model parameters to swap the location
# of two workers in the pipeline for each failure". A live unit of a column that may lose one takes the place of a dead
# one in a column that lost too many; its own place is the dead one from then on. It copies parameters and optimizer
# state from live peers of its new place, each worker from another, which take turns where there are too few.


@dataclass(frozen=True)
class WorkerMove:
    """A worker moves from `mover`'s place to `place` and copies the state of its new stage from a live peer there."""

    mover: Place
    place: Place
    source: Place
    size_bytes: float


@dataclass(frozen=True)
class Relocation:
    """Where the dead units stand after the swaps, and what is copied."""

    failed_units: frozenset[Place]
    copies: tuple[WorkerMove, ...]

    @property
    def size_bytes(self) -> float:
        """All that is copied."""
        return sum(copy.size_bytes for copy in self.copies)

    def lasts_s(self, connection: Connection) -> float | None:
        """How long the copies take, in s; None where there is something to copy and the bandwidth is not known."""
        return connection.copying_s((copy.source, copy.mover, copy.size_bytes) for copy in self.copies)


def relocate(
    grid: Grid, failed_units: frozenset[Place], wanted: Sequence[int], state_bytes: Sequence[float]
) -> Relocation:
    """The fewest swaps that leave as many failed units in each column as wanted.

    Args:
        grid: the workers.
        failed_units: where the failures are.
        wanted: failed units of each column; as many in all.
        state_bytes: parameters, gradients and optimizer state of each stage.
    """
    have = grid.column_failures(failed_units)
    surplus = [c for c in range(grid.columns) for _ in range(max(0, have[c] - wanted[c]))]
    missing = [c for c in range(grid.columns) for _ in range(max(0, wanted[c] - have[c]))]
    dead = set(failed_units)
    pairs = []
    for to, origin in zip(surplus, missing, strict=True):
        place = min(unit for unit in dead if unit[1] == to)
        mover = max((row, origin) for row in range(grid.units) if (row, origin) not in dead)
        dead = dead - {place} | {mover}
        pairs.append((mover, place))
    return Relocation(frozenset(dead), tuple(_copies(grid, failed_units, pairs, state_bytes)))


def _copies(
    grid: Grid, failed_units: frozenset[Place], pairs: Sequence[tuple[Place, Place]], state_bytes: Sequence[float]
) -> list[WorkerMove]:
    """What the workers of the moving units copy; no unit moves out of a column that one moves into."""
    lent: Counter[Place] = Counter()
    copies = []
    for mover, place in pairs:
        for old, new in zip(grid.places(mover), grid.places(place), strict=True):
            peers = [(k, new[1]) for k in range(grid.pipelines)]
            lasting = [peer for peer in peers if grid.unit_of(peer) not in failed_units]
            source = min(lasting, key=lambda peer: (lent[peer], peer))
            lent[source] += 1
            copies.append(WorkerMove(old, new, source, state_bytes[new[1]]))
    return copies
