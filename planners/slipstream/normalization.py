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

import math
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import islice

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...schemas.errors import InfeasibleError

Table = Sequence[Sequence[float]]
Floats = NDArray[np.float64]
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
    return _vectors(_merged(keys, later_first), len(rows), failures)


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


def _together(rows: Sequence[Floats], step: int) -> Floats:
    """Every step-th entry of rows, as far as all of them go; shape (rows, entries)."""
    length = min(len(row) for row in rows)
    return np.array([row[:length:step] for row in rows])


def _rows(costs: Table, failures: int) -> list[Floats]:
    """The finite beginnings of the costs, if they admit so many failures."""
    most = most_failures(costs)
    if failures > most:
        raise InfeasibleError(
            f"{failures} failures leave a stage without a live worker",
            where="--failures",
            fix=f"at most {most} failures leave every stage a live worker",
        )
    return _finite(costs)


def _finite(table: Table) -> list[Floats]:
    """Each row up to its first infinite value."""
    rows = [np.asarray(row, dtype=float) for row in table]
    return [row[: int(np.isfinite(row).cumprod().sum())] for row in rows]


def _cut(worst: Table, costs: Table) -> list[Floats]:
    """The measures of what has a finite cost."""
    lengths = [len(row) for row in _finite(costs)]
    return [np.asarray(row[:length], dtype=float) for row, length in zip(worst, lengths, strict=True)]


def _greatest(rows: Sequence[Floats]) -> float:
    return max((float(np.abs(row).max()) for row in rows), default=0.0)


def _ranks(rows: Sequence[Floats]) -> list[Integers]:
    """Measures as whole numbers, alike where they are equal but for rounding; they are compared and never added."""
    return _alike(rows, _greatest(rows) * TOLERANCE)


def _alike(rows: Sequence[Floats], slack: float) -> list[Integers]:
    """The values' numbers in increasing order, one and the same for neighbours that are no more than `slack` apart."""
    values = np.unique(np.concatenate([*rows, np.empty(0)]))
    numbers = np.concatenate([[0], np.cumsum(np.diff(values) > slack)])
    return [numbers[np.searchsorted(values, row)] for row in rows]


def _program(costs: Sequence[Floats], ranks: Sequence[Integers], failures: int) -> list[tuple[int, ...]]:
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


def _cheapest(sums: Floats, cost: Floats, slack: float) -> tuple[Integers, Integers]:
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


def _vectors(order: Iterator[int], count: int, failures: int) -> list[tuple[int, ...]]:
    """The failed units of each of `count` columns after each of the first failures of an order."""
    vector = [0] * count
    vectors = [tuple(vector)]
    for column in islice(order, failures):
        vector[column] += 1
        vectors.append(tuple(vector))
    return vectors
