"""Cutting layers into virtual stages so that the sums of the workers are even, not the stages.

A worker works off all its chunks, so the busiest worker sets the pace: a heavy head that lies on the first worker of a
V must be made up for by that worker's other chunk. The largest worker's sum is made as small as can be, and among such
cuts the largest chunk.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, combinations, product
from math import comb, inf

import numpy as np
from numpy.typing import NDArray

from ..schemas.placement import loop_placement, v_placement
from ..schemas.plan import Placement

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_CUTS = 50_000  # that are all looked at
MOST_STEPS = 2e8  # of the dynamic programme for two chunks, which are a few seconds at most
MOST_PAIRED = 40  # boundaries of which two are moved together
REACH = 3  # layers that a boundary moves at once
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
    return list(_even_cut(tuple(times), placement))


@lru_cache(maxsize=64)  # a job asks for the same cut with many numbers of pipelines
def _even_cut(times: tuple[float, ...], placement: Placement) -> tuple[int, ...]:
    stages = sum(map(len, placement))
    sums = np.array([0.0, *accumulate(times)])
    if sums[-1] > 0:
        sums /= sums[-1]
    if comb(len(times) - 1, stages - 1) <= MOST_CUTS:
        cuts = np.array(list(combinations(range(1, len(times)), stages - 1)), dtype=np.int64).reshape(-1, stages - 1)
        return _ends(cuts[_best(_worth(sums, cuts, placement))], len(times))
    found = paired_cut(sums, placement)
    return _ends(searched_cut(sums, placement) if found is None else found, len(times))


def _ends(cut: Ints, count: int) -> tuple[int, ...]:
    return (*cut.tolist(), count)


def _worth(sums: Floats, cuts: Ints, placement: Placement) -> tuple[Floats, Floats, Floats, Floats]:
    """Of each cut (a row of boundaries): the largest worker, the largest chunk, and both sums of squares."""
    bounds = np.concatenate([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), len(sums) - 1)], axis=1)
    chunks = np.diff(sums[bounds], axis=1)
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
    """The exact cut for a loop or a V of two chunks; None for other placements, and where that would take too long."""
    columns, count = len(placement), len(sums) - 1
    if placement == loop_placement(columns, 2) and columns * count**5 / 30 <= MOST_STEPS:
        middles = range(columns, count - columns + 1)
        ways = [(sums[: middle + 1], sums[middle:] - sums[middle]) for middle in middles]
        meets = False
    elif placement == v_placement(columns, 2) and columns * count**4 <= MOST_STEPS:
        ways, meets = [(sums, sums[-1] - sums[::-1])], True
    else:
        return None
    worker = min(_legs(left, right, columns, meets, inf)[0] for left, right in ways)
    limit = worker * (1 + 10**-DIGITS)
    found = [(_legs(left, right, columns, meets, limit), count - len(right) + 1) for left, right in ways]
    (_, first, second), start = min(found, key=lambda one: one[0][0])
    behind = [count - one for one in reversed(second[:-1])] if meets else [start + one for one in second[:-1]]
    return np.array([*first, *behind], dtype=np.int64)


def _legs(left: Floats, right: Floats, columns: int, meets: bool, limit: float) -> tuple[float, list[int], list[int]]:
    """The best way to cut two legs into a range a column each.

    Args:
        left, right: sums of the first layers of either leg.
        columns: ranges of each.
        meets: whether both are of the same layers and end where they meet; else each ends at its end.
        limit: infinite: the largest sum of a column's two ranges counts; else it is kept, and the largest range counts.

    Returns:
        What counts, infinite where no cut keeps the limit, and the ends of the ranges of either leg.
    """
    # From one end to a later one, as the rows and columns say.
    width = np.where(np.tri(len(right), dtype=bool), inf, right[None, :] - right[:, None])
    best = np.full((len(left), len(right)), inf)
    best[0, 0] = 0.0
    came: list[tuple[Ints, Ints]] = []
    for _ in range(columns):
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
    i, j = len(left) - 1, len(right) - 1
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
        sums: of the first layers, from 0 to all.
        placement: the virtual stages of each column.
    """
    count, boundaries = len(sums) - 1, sum(map(len, placement)) - 1
    moves = np.array(list(_moves(boundaries)), dtype=np.int64)
    even = _apart(np.searchsorted(sums, sums[-1] * np.arange(1, boundaries + 1) / (boundaries + 1)), count)
    chance = np.random.default_rng(0)
    kicked = [even, *(_apart(even + chance.integers(-REACH, REACH + 1, boundaries), count) for _ in range(KICKS))]
    found = np.array([_descended(sums, placement, start, moves) for start in kicked])
    best: Ints = found[_best(_worth(sums, found, placement))]
    return best


def _apart(boundaries: Ints, count: int) -> Ints:
    """The boundaries, moved until there is a layer at least between any two, and at either end."""
    numbers = np.arange(len(boundaries))
    ascending = np.maximum(np.maximum.accumulate(boundaries - numbers), 1) + numbers
    apart: Ints = np.minimum(ascending, count - numbers[::-1] - 1)
    return apart


def _descended(sums: Floats, placement: Placement, cut: Ints, moves: Ints) -> Ints:
    """The cut after the best of these moves, again and again until none makes it better."""
    while True:
        tried = cut + moves
        bounds = np.pad(tried, ((0, 0), (1, 1)), constant_values=((0, 0), (0, len(sums) - 1)))
        tried = tried[(np.diff(bounds, axis=1) > 0).all(axis=1)]  # the first of them moves nothing
        worker, chunk, squares, chunk_squares = _worth(sums, tried, placement)
        best = _best((worker, squares, chunk, chunk_squares))
        if best == 0:
            return cut
        cut = tried[best]


def _moves(boundaries: int) -> Iterator[list[int]]:
    """Nothing; each boundary by up to `REACH`; a layer from one chunk to another, with all between; any two by one."""
    yield [0] * boundaries
    for one in range(boundaries):
        for step in (*range(-REACH, 0), *range(1, REACH + 1)):
            yield [step if number == one else 0 for number in range(boundaries)]
    if boundaries > MOST_PAIRED:
        return
    for one, other in combinations(range(boundaries), 2):
        for step in (-1, 1):
            yield [step if one <= number <= other else 0 for number in range(boundaries)]
        for up, down in product((-1, 1), repeat=2):
            yield [{one: up, other: down}.get(number, 0) for number in range(boundaries)]
