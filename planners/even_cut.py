"""Cutting layers into virtual stages so that the sums of the workers are even, not the stages.

A worker works off all its chunks, so the busiest worker sets the pace: a heavy head that lies on the first worker of a
V must be made up for by that worker's other chunk. The largest worker's sum is made as small as can be, and among such
cuts the largest chunk.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, combinations
from math import comb, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.kernels import compiled
from ..schemas.placement import loop_placement, v_placement
from ..schemas.plan import Placement
from .cut_moves import REACH, WORTHS, descend

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_CUTS = 50_000  # that are all looked at
MOST_STEPS = 2e8  # of the dynamic programme for two chunks, which are a few seconds at most
KICKS = 8  # starts of the search beside the even one
DIGITS = 12  # that sums are compared by, as shares of all work


def even_cut(times: Sequence[float], placement: Placement) -> list[int]:
    """The ends of consecutive non-empty ranges of `times`, one a virtual stage.

    Exact where all cuts can be looked at (50,000 of them), and for two chunks a worker, in a loop or a V, by a dynamic
    programme up to about 60 layers. Beyond that a local search, whose busiest worker has mostly as little to do as any,
    and up to some per cent more (tests compare it with the exact cut).

    Args:
        times: of each layer, in s.
        placement: the virtual stages of each column, no more than there are layers.
    """
    return even_cut_of_columns([times] * len(placement), placement)


def even_cut_of_columns(times: Sequence[Sequence[float]], placement: Placement) -> list[int]:
    """The same where a layer takes another time on each column, such as on another number of GPUs.

    Args:
        times: of each column, what each layer takes there, in s.
        placement: as for `even_cut`.
    """
    return list(_even_cut(tuple(map(tuple, times)), placement))


@lru_cache(maxsize=512)  # a job asks for the same cut with many numbers of pipelines
def _even_cut(times: tuple[tuple[float, ...], ...], placement: Placement) -> tuple[int, ...]:
    stages, count = sum(map(len, placement)), len(times[0])
    sums = np.array([[0.0, *accumulate(own)] for own in times])
    if sums[:, -1].max() > 0:
        sums /= sums[:, -1].max()
    if comb(count - 1, stages - 1) <= MOST_CUTS:
        cuts = np.array(list(combinations(range(1, count), stages - 1)), dtype=np.int64).reshape(-1, stages - 1)
        return _ends(cuts[_best(_worth(sums, cuts, placement))], count)
    found = paired_cut(sums, placement)
    return _ends(searched_cut(sums, placement) if found is None else found, count)


def _ends(cut: Ints, count: int) -> tuple[int, ...]:
    return (*cut.tolist(), count)


def _worth(sums: Floats, cuts: Ints, placement: Placement) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each cut (a row of boundaries): the largest worker, the largest chunk, and both sums of squares."""
    bounds = np.concatenate([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), sums.shape[1] - 1)], axis=1)
    columns = np.zeros(bounds.shape[1] - 1, int)
    for column, held in enumerate(placement):
        columns[list(held)] = column
    chunks = sums[columns, bounds[:, 1:]] - sums[columns, bounds[:, :-1]]
    workers = np.stack([sum((chunks[:, stage] for stage in held), np.zeros(len(cuts))) for held in placement], axis=1)
    squares = ((one * one).sum(axis=1) for one in (workers, chunks))
    return workers.max(axis=1), chunks.max(axis=1), *squares


def _best(worth: Sequence[Floats]) -> int:
    """The first row of least largest worker, then of least largest chunk, and so on."""
    return int(np.lexsort([np.round(one, DIGITS) for one in reversed(worth)])[0])


# Two chunks a worker: the columns one after the other, each taking the next range of either leg.
#
# In a loop the legs are the layers before and behind some middle, both taken from the left; in a V they are all layers
# from the left, and all from the right, until they meet. Two passes: the least largest worker, then under it the least
# largest chunk.


def paired_cut(sums: Floats, placement: Placement) -> Ints | None:
    """The exact cut for a loop or a V of two chunks; None for other placements, and where that would take too long.

    Args:
        sums: of the first layers, from 0 to all, as each column takes them; columns x (layers + 1).
        placement: the virtual stages of each column.
    """
    columns, count = len(placement), sums.shape[1] - 1
    if placement == loop_placement(columns, 2) and columns * count**5 / 30 <= MOST_STEPS:
        middles = range(columns, count - columns + 1)
        ways = [(sums[:, : middle + 1], sums[:, middle:] - sums[:, middle, None]) for middle in middles]
        meets = False
    elif placement == v_placement(columns, 2) and columns * count**4 <= MOST_STEPS:
        ways, meets = [(sums, sums[:, -1:] - sums[:, ::-1])], True
    else:
        return None
    worker = min(_legs(left, right, meets, inf)[0] for left, right in ways)
    limit = worker * (1 + 10**-DIGITS)
    found = [(_legs(left, right, meets, limit), count - right.shape[1] + 1) for left, right in ways]
    (_, first, second), start = min(found, key=lambda one: one[0][0])
    behind = [count - one for one in reversed(second[:-1])] if meets else [start + one for one in second[:-1]]
    return np.array([*first, *behind], dtype=np.int64)


def _legs(lefts: Floats, rights: Floats, meets: bool, limit: float) -> tuple[float, list[int], list[int]]:
    """The best way to cut two legs into a range a column each.

    Args:
        lefts, rights: sums of the first layers of either leg, as each column takes them.
        meets: whether both are of the same layers and end where they meet; else each ends at its end.
        limit: infinite: the largest sum of a column's two ranges counts; else it is kept, and the largest range counts.

    Returns:
        What counts, infinite where no cut keeps the limit, and the ends of the ranges of either leg.
    """
    best = np.full((lefts.shape[1], rights.shape[1]), inf)
    best[0, 0] = 0.0
    came: list[tuple[Ints, Ints]] = []
    for left, right in zip(lefts, rights, strict=True):
        # From one end to a later one, as the rows and columns say.
        width = np.where(np.tri(len(right), dtype=bool), inf, right[None, :] - right[:, None])
        reached, before, below = np.full(best.shape, inf), np.zeros(best.shape, int), np.zeros(best.shape, int)
        for i in range(len(left) - 1):
            if best[i].min() == inf:
                continue
            upper = (left[i + 1 :] - left[i])[:, None, None]
            cost = upper + width if limit == inf else np.where(upper + width <= limit, np.maximum(upper, width), inf)
            cost = np.maximum(cost, best[i][:, None])
            value, origin = cost.min(axis=1), cost.argmin(axis=1)
            better = value < reached[i + 1 :]
            reached[i + 1 :][better] = value[better]
            before[i + 1 :][better] = i
            below[i + 1 :][better] = origin[better]
        best = reached
        came.append((before, below))
    i, j = lefts.shape[1] - 1, rights.shape[1] - 1
    if meets:
        i = int(np.fliplr(best).diagonal().argmin())
        j -= i
    value, first, second = float(best[i, j]), [i], [j]
    for before, below in reversed(came[1:]):
        i, j = int(before[i, j]), int(below[i, j])
        first.append(i)
        second.append(j)
    return value, first[::-1], second[::-1]


# The search, for whatever else there is.


def searched_cut(sums: Floats, placement: Placement) -> Ints:
    """A cut that no small move of boundaries makes better: the best of those found from even chunks and from near them.

    Args:
        sums: as for `paired_cut`.
        placement: the virtual stages of each column.
    """
    count, boundaries = sums.shape[1] - 1, sum(map(len, placement)) - 1
    first = sums[0]
    even = _apart(np.searchsorted(first, first[-1] * np.arange(1, boundaries + 1) / (boundaries + 1)), count)
    chance = np.random.default_rng(0)
    kicked = [even, *(_apart(even + chance.integers(-REACH, REACH + 1, boundaries), count) for _ in range(KICKS))]
    found = np.array([descended(sums, placement, start) for start in kicked])
    best: Ints = found[_best(_worth(sums, found, placement))]
    return best


def _apart(boundaries: Ints, count: int) -> Ints:
    """The boundaries, moved until there is a layer at least between any two, and at either end."""
    numbers = np.arange(len(boundaries))
    ascending = np.maximum(np.maximum.accumulate(boundaries - numbers), 1) + numbers
    apart: Ints = np.minimum(ascending, count - numbers[::-1] - 1)
    return apart


def descended(sums: Floats, placement: Placement, cut: Ints) -> Ints:
    """The cut after the best of all small moves, again and again until none makes it better.

    A move is of one boundary by up to `REACH`; of a layer from one chunk to another, with all between; or, where they
    are few, of any two boundaries by one.
    """
    columns, stages = len(placement), len(cut) + 1
    column_of = np.zeros(stages, dtype=np.int64)
    for column, held in enumerate(placement):
        column_of[list(held)] = column
    ends = np.array([0, *cut, sums.shape[1] - 1], dtype=np.int64)
    spaces = np.zeros(stages), np.zeros(columns), np.zeros(WORTHS)
    given: Any = sums.ravel(), column_of, ends, spaces, np.zeros(4, dtype=np.int64)
    compiled(descend)(*given)
    return ends[1:-1]
