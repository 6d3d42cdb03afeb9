"""Water-filling: the cheapest steps out of many rising sequences, the heart of the exact distributions."""

from heapq import heapify, heapreplace

import numpy as np

from .groups import Floats, Integers
from .times import Times


def cheapest_steps(times: Times, step: int, units: int) -> Integers:
    """Take `units` steps, each the cheapest that is left; of each sequence one at least, and always the next.

    The n-th step of a sequence costs the time of `n * step` micro-batches. Costs rise with n, so what is taken are the
    cheapest steps of all but the first ones, which have to be taken; of equal ones those of the lower sequence. This is
    exact also where rounding makes costs equal: they are only compared.

    A level is looked for below which not all, but nearly all steps lie (water-filling); a heap brings the others, fewer
    than two for each sequence unless nearly all costs are equal, or far from their lines. O(D log units) for D
    sequences.

    Args:
        times: finite, of lines that rise; D of them.
        step: 1 or more.
        units: at least D.

    Returns:
        How many steps are taken of each sequence; shape (D,), of sum `units`.
    """
    counts = _counts_below(times, step, units)
    nexts = (counts + 1).tolist()
    heap = list(zip(times.at((counts + 1) * step).tolist(), range(len(counts)), strict=True))
    heapify(heap)
    for _ in range(units - int(counts.sum())):
        i = heap[0][1]
        nexts[i] += 1
        heapreplace(heap, (times.one_s(i, nexts[i] * step), i))
    return np.array(nexts) - 1


def _counts_below(times: Times, step: int, units: int) -> Integers:
    """The steps up to some level, and the first ones: at most `units`, and nearly so many."""
    level, margin = _level(times.fixed_s, times.each_s * step, units)
    while True:
        level -= margin
        counts = _counts(times, step, units, level)
        if counts.sum() <= units:
            return counts
        margin *= 2  # rounding has hidden the margin, or times lie below their lines


def _level(fixed: Floats, slope: Floats, units: int) -> tuple[float, float]:
    """The level below which `units` steps would lie if they could be split, and by how much one step less lowers it."""
    order = np.argsort(fixed + slope)
    firsts, speeds = (fixed + slope)[order], 1 / slope[order]
    speed, offset = speeds.cumsum(), (fixed[order] * speeds).cumsum()
    # Where the water just reaches the first step of a sequence, those after it have that one step only.
    others = np.arange(len(order))[::-1]
    under = int((others + firsts * speed - offset <= units).nonzero()[0].max(initial=0))
    return float((units - others[under] + offset[under]) / speed[under]), float(1 / speed[under])


def _counts(times: Times, step: int, units: int, level: float) -> Integers:
    """Of each sequence the steps that cost at most `level`, and the first; found by halving, bit by bit."""
    counts = np.ones(len(times.fixed_s), dtype=np.int64)
    for bit in reversed(range(units.bit_length())):
        more = counts + (1 << bit)
        counts = np.where(times.at(more * step) <= level, more, counts)
    return counts
