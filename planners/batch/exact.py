"""Water-filling: the cheapest steps out of many rising sequences, the heart of the exact distributions.

The unknowns are groups of pipelines that get equal numbers, counted in units of micro-batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heapify, heapreplace
from itertools import chain
from math import floor, inf, nextafter, sqrt

import numpy as np
from numpy.typing import NDArray

# How long a pipeline works on a number of micro-batches.


@dataclass(frozen=True)
class Pace:
    """The time of a pipeline: of few micro-batches as it was timed, of more by a straight line; in seconds.

    The paper (Oobleck, section 4.2) takes `microbatches * per_microbatch_s`; the fixed part is the filling and draining
    of the pipeline, which that leaves out. A pipeline that is not full, or whose links let micro-batches through in
    bursts, is on no line: `first_s` says so.

    Attributes:
        fixed_s, per_microbatch_s: the line.
        first_s: the times of 1, 2, ... micro-batches, rising, and none above the line's next; beyond them the line
            holds. None are given where it always holds.
    """

    fixed_s: float
    per_microbatch_s: float
    first_s: tuple[float, ...] = ()

    def time_s(self, microbatches: int) -> float:
        """The time of one iteration, in seconds, with this number of micro-batches (at least one)."""
        if microbatches <= len(self.first_s):
            return self.first_s[microbatches - 1]
        return self.fixed_s + microbatches * self.per_microbatch_s


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Groups of alike pipelines, each of which has one number of micro-batches; most often a group is one pipeline.

    A unit is `multiple_of` micro-batches. An answer is the units of each group, at least one, so that the sum over all
    groups of `counts[g] * units[g]` is what there is.

    Args:
        paces: of each group; all its pipelines have it.
        counts: the pipelines of each group.
        multiple_of: micro-batches of a unit.
    """

    paces: Sequence[Pace]
    counts: Sequence[int]
    multiple_of: int

    def __len__(self) -> int:
        return len(self.paces)

    def time_s(self, group: int, units: int) -> float:
        """The time of a pipeline of a group with so many units, in seconds."""
        return self.paces[group].time_s(units * self.multiple_of)

    def fixed_s(self) -> Floats:
        """The fixed part of each group's time; shape (groups,)."""
        return np.array([pace.fixed_s for pace in self.paces])

    def per_microbatch_s(self) -> Floats:
        """What a micro-batch adds to each group's time; shape (groups,)."""
        return np.array([pace.per_microbatch_s for pace in self.paces])

    def balanced_s(self, units: int) -> float:
        """The time that all pipelines would need if micro-batches could be split: the same for all of them."""
        speeds = np.array(self.counts) / self.per_microbatch_s()
        return float((units * self.multiple_of + self.fixed_s() @ speeds) / speeds.sum())


# The times of many pipelines at once, as their paces have them, to the last bit.


class Times:
    """Rising sequences of times: one a pace, the n-th of n micro-batches.

    Args:
        fixed_s, each_s: the lines of the paces; shape (paces,).
        first_s: of each pace the times before its line holds; nothing where no pace has any.
    """

    def __init__(self, fixed_s: Floats, each_s: Floats, first_s: Sequence[Sequence[float]] = ()) -> None:
        self.fixed_s, self.each_s, self._first_s = fixed_s, each_s, first_s
        tables = {id(table): table for table in first_s}  # many pipelines are of one template
        lengths = [len(table) for table in tables.values()]
        starts = dict(zip(tables, np.cumsum([0, *lengths]).tolist(), strict=False))
        self._starts = np.array([starts[id(table)] for table in first_s] or [0] * len(fixed_s))
        self.known = np.array([len(table) for table in first_s] or [0] * len(fixed_s))
        self._flat = np.concatenate([np.array(table, float) for table in tables.values()] or [np.empty(0)])

    @classmethod
    def of(cls, paces: Sequence[Pace]) -> Times:
        """Of some paces."""
        fixed_s = np.array([pace.fixed_s for pace in paces])
        each_s = np.array([pace.per_microbatch_s for pace in paces])
        return cls(fixed_s, each_s, [pace.first_s for pace in paces])

    def at(self, microbatches: Integers, paces: Integers | slice = slice(None)) -> Floats:
        """The times of so many micro-batches, one at least each.

        Args:
            microbatches: of each pace; shape (paces,).
            paces: by their numbers, where it is not each of them once.
        """
        times_s: Floats = self.fixed_s[paces] + microbatches * self.each_s[paces]
        if len(self._flat):
            few = microbatches <= self.known[paces]
            times_s[few] = self._flat[(self._starts[paces] + microbatches - 1)[few]]
        return times_s

    def one_s(self, pace: int, microbatches: int) -> float:
        """The time of so many micro-batches of one pace; quicker than `at`."""
        if self._first_s and microbatches <= len(self._first_s[pace]):
            return self._first_s[pace][microbatches - 1]
        fixed_s, each_s = self._lines
        return fixed_s[pace] + microbatches * each_s[pace]

    @cached_property
    def _lines(self) -> tuple[list[float], list[float]]:
        return self.fixed_s.tolist(), self.each_s.tolist()


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
    # The level below which `units` steps would lie if they could be split, and by how much one step less lowers it.
    slope = times.each_s * step
    order = np.argsort(times.fixed_s + slope)
    firsts, speeds = (times.fixed_s + slope)[order], 1 / slope[order]
    speed, offset = speeds.cumsum(), (times.fixed_s[order] * speeds).cumsum()
    # Where the water just reaches the first step of a sequence, those after it have that one step only.
    others = np.arange(len(order))[::-1]
    under = int((others + firsts * speed - offset <= units).nonzero()[0].max(initial=0))
    level, margin = float((units - others[under] + offset[under]) / speed[under]), float(1 / speed[under])
    while True:
        level -= margin
        # Of each sequence the steps that cost at most `level`, and the first; found by halving, bit by bit.
        counts = np.ones(len(times.fixed_s), dtype=np.int64)
        for bit in reversed(range(units.bit_length())):
            more = counts + (1 << bit)
            counts = np.where(times.at(more * step) <= level, more, counts)
        if counts.sum() <= units:
            return counts
        margin *= 2  # rounding has hidden the margin, or times lie below their lines


# The nearest number of micro-batches that can be split, where the one asked for cannot.
#
# Oobleck (section 4.2.2) "recommends an adjusted global batch size close to the original one but distributable".


@dataclass(frozen=True)
class Range:
    """What a group can take: so many pipelines of `least` to `most` units each (None: as many as you like)."""

    count: int
    least: int
    most: int | None


def nearest(ranges: Iterable[Range], multiple_of: int, microbatches: int) -> list[int]:
    """The numbers of micro-batches nearest to one that can be split: that one itself, one, or two equally near.

    Args:
        ranges: of the groups, none of them empty.
        multiple_of: micro-batches of a unit.
        microbatches: what is asked for.
    """
    base, coins = _coins(ranges)
    units, remainder = divmod(microbatches, multiple_of)
    below = base + _sums(coins, units - base).bit_length() - 1 if units >= base else None
    above = _smallest_at_least(base, coins, units + (remainder > 0))
    found = sorted({total * multiple_of for total in (below, above) if total is not None})
    distance = min(abs(total - microbatches) for total in found)
    return [total for total in found if abs(total - microbatches) == distance]


def _coins(ranges: Iterable[Range]) -> tuple[int, dict[int, int | None]]:
    """The units of all groups at their least, and how often each count can be added to them."""
    base, coins = 0, defaultdict[int, int | None](int)
    for part in ranges:
        base += part.count * part.least
        times = coins[part.count]
        coins[part.count] = None if part.most is None or times is None else times + part.most - part.least
    return base, dict(coins)


def _smallest_at_least(base: int, coins: dict[int, int | None], units: int) -> int | None:
    if units <= base:
        return base
    # A count that can be added without end has a sum among any `count` units in a row.
    endless = [count for count, times in coins.items() if times is None]
    reach = units - base + min(endless) if endless else sum(count * (times or 0) for count, times in coins.items())
    above = _sums(coins, reach) >> (units - base)
    return units + (above & -above).bit_length() - 1 if above else None


def _sums(coins: dict[int, int | None], largest: int) -> int:
    """The sums of coins, up to a largest, as bits."""
    sums = 1
    for count, times in coins.items():
        sums = spread(sums, count, largest if times is None else times, largest)
    return sums


# Micro-batches such that the slowest pipeline is as fast as can be, each pipeline with a number of its own.
#
# Minimize max_i time_i(m_i), where sum m_i = M and every m_i is a positive multiple of q: what Greyhound's equation 1
# (section 5.2, S2) is after, and states as a variance instead; the two are not equivalent (`exact.py`).


def min_max(groups: Groups, units: int) -> list[int]:
    """The units of each pipeline, so that the slowest is as fast as can be.

    Exact: every unit goes to the pipeline that is fastest with it. The certificate is that if all pipelines had the
    most units with which they are faster than the answer's slowest, it were fewer than there are. Of equally fast
    pipelines the lower index takes the unit.

    Args:
        groups: of one pipeline each.
        units: at least one a pipeline.
    """
    return [int(n) for n in cheapest_steps(Times.of(groups.paces), groups.multiple_of, units)]


# Micro-batches such that the slowest pipeline is as fast as can be, where groups of pipelines share one number.
#
# Minimize max_g time_g(N_g), where sum x_g N_g = M over groups of x_g pipelines and every N_g is a positive multiple of
# q: the unknowns of Oobleck's equation 6 (section 4.2.2), with the objective that iterations wait for.


def shared_min_max(groups: Groups, units: int) -> list[int]:
    """The units of each group, so that the slowest is as fast as can be.

    Exact: a level of time admits a split if the units can be reached by numbers whose times are within it (a subset
    sum, on bits), and higher levels admit more. The least level is found by halving; only times of some group count.
    Of several answers the one with the most for the first group is taken, then for the second, and so on.

    Takes about (groups * units / 64 * log units) machine steps for every halving.

    Args:
        groups: in any order.
        units: can be split (`exact.py`).
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


# Which sums a few numbers can have, if each is taken several times: sets of integers as the bits of one integer.


def spread(sums: int, number: int, most: int, largest: int) -> int:
    """The sums, up to `largest`, that come of adding a number 0 to `most` times to others.

    Args:
        sums: a bit for each of the others, up to `largest`.
        number: above 0.
        most: 0 or more.
        largest: the largest sum of interest.
    """
    most = min(most, largest // number)
    mask = (1 << (largest + 1)) - 1
    done = 1  # bits for up to `done - 1` times are in
    while done <= most:
        more = min(done, most + 1 - done)
        sums |= (sums << (number * more)) & mask
        done += more
    return sums


def tails(counts: Sequence[int], most: Sequence[int], total: int) -> list[int]:
    """For each group, the sums of `count * n` over it and all later ones, with n from 1 to its `most`; as bits.

    One entry more than groups: without any the sum is 0. Sums above `total` are left out.
    """
    found = [1]
    for count, top in zip(reversed(counts), reversed(most), strict=True):
        first = (found[-1] << count) & ((1 << (total + 1)) - 1)
        found.append(spread(first, count, top - 1, total) if top >= 1 else 0)
    return found[::-1]


def has(sums: int, value: int) -> bool:
    """Whether a value is among the sums."""
    return value >= 0 and bool(sums >> value & 1)


# Micro-batches such that the times of the pipelines vary least, each pipeline with a number of its own.
#
# Greyhound, equation 1 (section 5.2, S2): minimize V(m) = sum_i (time_i(m_i) - mean of all times)^2, where sum m_i = M
# and every m_i is positive and, for 1F1B, a multiple of q. The paper takes this for equivalent to the least time of the
# slowest. It is not: for 7, 3, 2 and 4 s a micro-batch and 39 micro-batches the least variance has a slowest pipeline
# of 35 s, where 33 s can be had. We also take a fixed part of each time, which the paper has not.


SLACK = 1e-9  # of the reach of the sweep, so that rounding cuts nothing off


def least_variance(groups: Groups, units: int) -> list[int]:
    """The units of each pipeline, so that the times vary least.

    Exact but for the rounding of sums: V(m) is the least of sum (time_i - mu)^2 over all mu. For a given mu that sum is
    separable and convex, so each unit goes where it adds the least (the closest times to mu). The best m is the closest
    to its own mean, and how far that can be from the time that all pipelines would share if units could be split
    follows from any V that is known. So we sweep mu over this reach and look at every m that is closest to some mu:
    from one to the next a single unit changes hands, to a pipeline that takes longer for it.

    O(D) for each change of hands. Of equal variances the least mu counts.

    Args:
        groups: of one pipeline each.
        units: at least one a pipeline.
    """
    times = _PipelineTimes(groups, units)
    known = _settled(times)
    reach = sqrt(times.variance(known)) * times.reach() * (1 + SLACK)
    best = min(chain([known], _sweep(times, -reach, reach)), key=times.variance)
    return [int(n) for n in best]


class _PipelineTimes:
    """The times of pipelines, in s, counted from the time they would share if units could be split.

    Attributes:
        fixed, per_unit: the parts of the times; shape (pipelines,).
    """

    def __init__(self, groups: Groups, units: int) -> None:
        self._units = units
        self.fixed = groups.fixed_s() - groups.balanced_s(units)
        self.per_unit = groups.per_microbatch_s() * groups.multiple_of

    def of(self, counts: Integers) -> Floats:
        """With so many units; shape (pipelines,)."""
        return self.fixed + counts * self.per_unit

    def variance(self, counts: Integers) -> float:
        """The sum of squares around the mean, in s^2."""
        times = self.of(counts)
        return float(np.square(times - times.mean()).sum())

    def closest(self, mu: float) -> Integers:
        """The units with which the times are closest to mu, in the sum of squares."""
        # The n-th unit adds 2 per_unit (fixed - mu + (n - 1/2) per_unit).
        fixed = self.per_unit * (self.fixed - mu - self.per_unit / 2)
        return cheapest_steps(Times(fixed, self.per_unit**2), 1, self._units)

    def reach(self) -> float:
        """How far the mean of times can be from 0, as a multiple of the root of their variance.

        With times mean + e_i, where sum e_i = 0, the units are (mean + e_i - fixed_i) / per_unit_i. Their sum is given,
        and is that of times 0, so mean * sum(1 / per_unit) = -sum(e_i / per_unit_i); then Cauchy and Schwarz.
        """
        speeds = 1 / self.per_unit
        return float(np.linalg.norm(speeds - speeds.mean()) / speeds.sum())


def _settled(times: _PipelineTimes) -> Integers:
    """Units whose variance is small: the closest to the mean of the closest to the mean of ..., while that helps."""
    counts = times.closest(0.0)
    while True:
        closer = times.closest(float(times.of(counts).mean()))
        if times.variance(closer) >= times.variance(counts):
            return counts
        counts = closer


def _sweep(times: _PipelineTimes, low: float, high: float) -> Iterator[Integers]:
    """All units that are the closest to some mu from low to high, in order."""
    counts = times.closest(low)
    yield counts
    while (change := _next_change(times, counts, high)) is not None:
        giver, taker = change
        counts = counts.copy()
        counts[giver] -= 1
        counts[taker] += 1
        yield counts


def _next_change(times: _PipelineTimes, counts: Integers, high: float) -> tuple[int, int] | None:
    """Who gives a unit to whom when mu rises, at most to `high`; None if nobody does.

    What a pipeline's last unit adds to the sum of squares, and what its next one would add, are lines in mu. The most
    that a last one adds minus the least that a next one would is convex, and not positive at first; a unit changes
    hands at its root. Newton's method comes down to it from `high`.
    """
    slope = times.per_unit
    middle, half = slope * times.of(counts), slope**2 / 2  # all is halved
    last, following = np.where(counts > 1, middle - half, -inf), middle + half
    change, mu = None, high
    while True:
        giver, taker = int(np.argmax(last - slope * mu)), int(np.argmin(following - slope * mu))
        too_much = (last[giver] - slope[giver] * mu) - (following[taker] - slope[taker] * mu)
        if too_much <= 0 or slope[taker] <= slope[giver]:
            return change
        change, before = (giver, taker), mu
        mu -= too_much / (slope[taker] - slope[giver])
        if mu >= before:  # too little for a float
            return change


# Micro-batches such that the times of the pipelines vary least, where groups of pipelines share one number.
#
# Oobleck, equation 6 (section 4.2.2): minimize sum over all pipelines (N T - mean)^2, where the instances of a template
# share one N, sum x_g N_g = M over templates of x_g instances, and N_g is positive. The paper leaves it to "any integer
# nonlinear optimization solver". We also take multiples of q, and a fixed part of each time, which N T leaves out.


def shared_variance(groups: Groups, units: int) -> list[int]:
    """The units of each group, so that the times of all pipelines vary least.

    Exact but for the rounding of sums: a search over the groups, one after the other, each from its best number
    outward, until the least variance that the others could still give, if their units could be split, is no less than
    one that is known (the closest point of a lattice, by Schnorr and Euchner). Which numbers leave a sum that the other
    groups can reach is known beforehand, so nothing leads nowhere. Fast for some ten groups; with more of them it can
    grow exponentially.

    Args:
        groups: in any order.
        units: can be split (`exact.py`).
    """
    costs = [count * pace.per_microbatch_s**2 for count, pace in zip(groups.counts, groups.paces, strict=True)]
    order = sorted(range(len(groups)), key=lambda group: (-costs[group], group))  # those with the fewest choices first
    search = _VarianceSearch(groups, order, units)
    search.descend([], units, _Moments(0.0, 0.0, 0.0))
    answer = dict(zip(order, search.best, strict=True))
    return [answer[group] for group in range(len(groups))]


@dataclass(frozen=True)
class _Moments:
    """The number of pipelines, the sum of their times in s, and that of their squares."""

    count: float
    first: float
    second: float

    def plus(self, count: float, time_s: float) -> _Moments:
        """With so many more pipelines of such a time."""
        return _Moments(self.count + count, self.first + count * time_s, self.second + count * time_s**2)

    def variance(self) -> float:
        """The sum of squares around the mean, in s^2."""
        return self.second - self.first**2 / self.count


@dataclass(frozen=True)
class _PipelineGroup:
    """A group: its pipelines, the parts of their time in s, and the sums that the groups after it can have, as bits."""

    count: int
    fixed_s: float
    per_unit_s: float
    sums_after: int


@dataclass(frozen=True)
class _Rest:
    """The groups that have no number yet: sums over their pipelines, and what they mean.

    For any mu the least sum of (time - mu)^2 over these pipelines, if units could be split, is
    (units + offset - mu * speed)^2 / square: that of `weight` pipelines of one time.
    """

    speed: float  # 1 / per_unit_s
    square: float  # 1 / per_unit_s^2
    offset: float  # fixed_s / per_unit_s

    def relaxed(self, units: int, known: _Moments) -> _Moments:
        """The moments of all pipelines, known and these, if these share so many units and can split them."""
        if not self.square:
            return known
        return known.plus(self.speed**2 / self.square, (units + self.offset) / self.speed)

    def relaxed_number(self, units: int, known: _Moments, group: _PipelineGroup) -> float:
        """The units of one of these groups in that case."""
        moments = self.relaxed(units, known)
        mu = moments.first / moments.count
        time_s = mu + (units + self.offset - mu * self.speed) / (self.square * group.per_unit_s)
        return (time_s - group.fixed_s) / group.per_unit_s


class _VarianceSearch:
    """The search; `best` holds the units of the groups, in its order, with the least variance so far."""

    def __init__(self, groups: Groups, order: list[int], units: int) -> None:
        counts = [groups.counts[group] for group in order]
        sums = tails(counts, [units // count for count in counts], units)
        balanced_s = groups.balanced_s(units)  # times are counted from there, which loses the fewest digits
        self._groups = [
            _PipelineGroup(count, pace.fixed_s - balanced_s, pace.per_microbatch_s * groups.multiple_of, sums_after)
            for count, pace, sums_after in zip(counts, (groups.paces[group] for group in order), sums[1:], strict=True)
        ]
        self._rests = [_rest(self._groups[depth:]) for depth in range(len(order) + 1)]
        self._variance = inf
        self.best: list[int] = []

    def descend(self, chosen: list[int], units: int, known: _Moments) -> None:
        """Look through what can follow the numbers chosen for the first groups.

        Args:
            chosen: for the first groups.
            units: what is left for the others; they can reach it.
            known: of the first groups.
        """
        depth = len(chosen)
        if depth == len(self._groups):
            self._variance, self.best = known.variance(), chosen
            return
        group = self._groups[depth]
        for number in self._candidates(depth, units, known):
            left = units - group.count * number
            after = known.plus(group.count, group.fixed_s + number * group.per_unit_s)
            if self._rests[depth + 1].relaxed(left, after).variance() >= self._variance:
                return
            if has(group.sums_after, left):
                self.descend([*chosen, number], left, after)

    def _candidates(self, depth: int, units: int, known: _Moments) -> Iterator[int]:
        """The numbers of a group, the best first: the variance, if the others could be split, is a parabola."""
        group, most = self._groups[depth], units // self._groups[depth].count
        if depth == len(self._groups) - 1:
            yield most  # all that is left
            return
        best = self._rests[depth].relaxed_number(units, known, group)
        low = min(max(floor(best), 0), most)
        high = low + 1
        while low >= 1 or high <= most:
            if high > most or (low >= 1 and best - low <= high - best):
                yield low
                low -= 1
            else:
                yield high
                high += 1


def _rest(groups: list[_PipelineGroup]) -> _Rest:
    return _Rest(
        sum(group.count / group.per_unit_s for group in groups),
        sum(group.count / group.per_unit_s**2 for group in groups),
        sum(group.count * group.fixed_s / group.per_unit_s for group in groups),
    )
