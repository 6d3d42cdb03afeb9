"""Micro-batches such that the times of the pipelines vary least, where groups of pipelines share one number.

Oobleck, equation 6 (section 4.2.2): minimize sum over all pipelines (N T - mean)^2, where the instances of a template
share one N, sum x_g N_g = M over templates of x_g instances, and N_g is positive. The paper leaves it to "any integer
nonlinear optimization solver". We also take multiples of q, and a fixed part of each time, which N T leaves out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, inf

from .groups import Groups
from .sums import has, tails


def shared_variance(groups: Groups, units: int) -> list[int]:
    """The units of each group, so that the times of all pipelines vary least.

    Exact but for the rounding of sums: a search over the groups, one after the other, each from its best number
    outward, until the least variance that the others could still give, if their units could be split, is no less than
    one that is known (the closest point of a lattice, by Schnorr and Euchner). Which numbers leave a sum that the other
    groups can reach is known beforehand, so nothing leads nowhere. Fast for some ten groups; with more of them it can
    grow exponentially.

    Args:
        groups: in any order.
        units: can be split (`nearest.py`).
    """
    costs = [count * pace.per_microbatch_s**2 for count, pace in zip(groups.counts, groups.paces, strict=True)]
    order = sorted(range(len(groups)), key=lambda group: (-costs[group], group))  # those with the fewest choices first
    search = _Search(groups, order, units)
    search.descend([], units, _Moments(0.0, 0.0, 0.0))
    answer = dict(zip(order, search.best, strict=True))
    return [answer[group] for group in range(len(groups))]


@dataclass(frozen=True)
class _Moments:
    """The number of pipelines, the sum of their times in s, and that of their squares."""

    count: float
    first: float
    second: float

    def plus(self, count: float, time_s: float) -> "_Moments":
        """With so many more pipelines of such a time."""
        return _Moments(self.count + count, self.first + count * time_s, self.second + count * time_s**2)

    def variance(self) -> float:
        """The sum of squares around the mean, in s^2."""
        return self.second - self.first**2 / self.count


@dataclass(frozen=True)
class _Group:
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

    def relaxed_number(self, units: int, known: _Moments, group: _Group) -> float:
        """The units of one of these groups in that case."""
        moments = self.relaxed(units, known)
        mu = moments.first / moments.count
        time_s = mu + (units + self.offset - mu * self.speed) / (self.square * group.per_unit_s)
        return (time_s - group.fixed_s) / group.per_unit_s


class _Search:
    """The search; `best` holds the units of the groups, in its order, with the least variance so far."""

    def __init__(self, groups: Groups, order: list[int], units: int) -> None:
        counts = [groups.counts[group] for group in order]
        sums = tails(counts, [units // count for count in counts], units)
        balanced_s = groups.balanced_s(units)  # times are counted from there, which loses the fewest digits
        self._groups = [
            _Group(count, pace.fixed_s - balanced_s, pace.per_microbatch_s * groups.multiple_of, sums_after)
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


def _rest(groups: list[_Group]) -> _Rest:
    return _Rest(
        sum(group.count / group.per_unit_s for group in groups),
        sum(group.count / group.per_unit_s**2 for group in groups),
        sum(group.count * group.fixed_s / group.per_unit_s for group in groups),
    )
