"""Micro-batches such that the slowest pipeline is as fast as can be, where groups of pipelines share one number.

Minimize max_g time_g(N_g), where sum x_g N_g = M over groups of x_g pipelines and every N_g is a positive multiple of
q: the unknowns of Oobleck's equation 6 (section 4.2.2), with the objective that iterations wait for.
"""

from bisect import bisect_right
from functools import partial
from math import nextafter

from .groups import Groups
from .sums import has, tails


def shared_min_max(groups: Groups, units: int) -> list[int]:
    """The units of each group, so that the slowest is as fast as can be.

    Exact: a level of time admits a split if the units can be reached by numbers whose times are within it (a subset
    sum, on bits), and higher levels admit more. The least level is found by halving; only times of some group count.
    Of several answers the one with the most for the first group is taken, then for the second, and so on.

    Takes about (groups * units / 64 * log units) machine steps for every halving.

    Args:
        groups: in any order.
        units: can be split (`nearest.py`).
    """
    most = _most(groups, units, _least_level(groups, units))
    rests = tails(groups.counts, most, units)
    answer = []
    for group, count in enumerate(groups.counts):
        taken = next(n for n in range(most[group], 0, -1) if has(rests[group + 1], units - count * n))
        answer.append(taken)
        units -= count * taken
    return answer


def _least_level(groups: Groups, units: int) -> float:
    """The least time of the slowest group, in s: halve between a level that is surely needed and one that suffices."""
    all_groups = range(len(groups))
    low = max(groups.time_s(group, 1) for group in all_groups)
    high = max(groups.time_s(group, max(1, units // count)) for group, count in enumerate(groups.counts))
    while low < high:
        middle = min(low + (high - low) / 2, nextafter(high, low))  # of neighbouring floats the lower
        most = _most(groups, units, middle)
        if has(tails(groups.counts, most, units)[0], units):
            high = max(groups.time_s(group, most[group]) for group in all_groups)
        else:
            more = (group for group in all_groups if most[group] < units // groups.counts[group])
            low = min(groups.time_s(group, most[group] + 1) for group in more)
    return high


def _most(groups: Groups, units: int, level: float) -> list[int]:
    """Of each group the most units, and no more than there are, with which its time is within the level."""
    return [
        bisect_right(range(1, units // count + 1), level, key=partial(groups.time_s, group))
        for group, count in enumerate(groups.counts)
    ]
