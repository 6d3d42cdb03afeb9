"""Water-filling: the cheapest steps out of many rising sequences, the heart of the exact distributions."""

from heapq import heapify, heapreplace

import numpy as np

from .groups import Floats, Integers


def cheapest_steps(fixed: Floats, slope: Floats, step: int, units: int) -> Integers:
    """Take `units` steps, each the cheapest that is left; of each sequence one at least, and always the next.

    The n-th step of sequence i costs `fixed[i] + n * step * slope[i]`, as floats are added and multiplied. Costs rise
    with n, so what is taken are the cheapest steps of all but the first ones, which have to be taken; of equal ones
    those of the lower i. This is exact also where rounding makes costs equal: they are only compared.

    A level is looked for below which not all, but nearly all steps lie (water-filling); a heap brings the others, fewer
    than two for each sequence unless nearly all costs are equal. O(D log units) for D sequences.

    Args:
        fixed: finite; shape (D,).
        slope: above 0; shape (D,).
        step: 1 or more.
        units: at least D.

    Returns:
        How many steps are taken of each sequence; shape (D,), of sum `units`.
    """
    counts = _counts_below(fixed, slope, step, units)
    costs, slopes = fixed.tolist(), slope.tolist()
    nexts = (counts + 1).tolist()
    heap = [(costs[i] + n * step * slopes[i], i) for i, n in enumerate(nexts)]
    heapify(heap)
    for _ in range(units - int(counts.sum())):
        i = heap[0][1]
        nexts[i] += 1
        heapreplace(heap, (costs[i] + nexts[i] * step * slopes[i], i))
    return np.array(nexts) - 1


def _counts_below(fixed: Floats, slope: Floats, step: int, units: int) -> Integers:
    """The steps up to some level, and the first ones: at most `units`, and nearly so many."""
    level, margin = _level(fixed, slope * step, units)
    while True:
        level -= margin
        counts = _counts(fixed, slope, step, units, level)
        if counts.sum() <= units:
            return counts
        margin *= 2  # rounding has hidden the margin


def _level(fixed: Floats, slope: Floats, units: int) -> tuple[float, float]:
    """The level below which `units` steps would lie if they could be split, and by how much one step less lowers it."""
    order = np.argsort(fixed + slope)
    firsts, speeds = (fixed + slope)[order], 1 / slope[order]
    speed, offset = speeds.cumsum(), (fixed[order] * speeds).cumsum()
    # Where the water just reaches the first step of a sequence, those after it have that one step only.
    others = np.arange(len(order))[::-1]
    under = int((others + firsts * speed - offset <= units).nonzero()[0].max(initial=0))
    return float((units - others[under] + offset[under]) / speed[under]), float(1 / speed[under])


def _counts(fixed: Floats, slope: Floats, step: int, units: int, level: float) -> Integers:
    """Of each sequence the steps that cost at most `level`, and the first; found by halving, bit by bit."""
    counts = np.ones(len(fixed), dtype=np.int64)
    for bit in reversed(range(units.bit_length())):
        more = counts + (1 << bit)
        counts = np.where(fixed + more * step * slope <= level, more, counts)
    return counts
