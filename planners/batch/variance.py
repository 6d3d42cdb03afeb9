"""Micro-batches such that the times of the pipelines vary least, each pipeline with a number of its own.

Greyhound, equation 1 (section 5.2, S2): minimize V(m) = sum_i (time_i(m_i) - mean of all times)^2, where sum m_i = M
and every m_i is positive and, for 1F1B, a multiple of q. The paper takes this for equivalent to the least time of the
slowest. It is not: for 7, 3, 2 and 4 s a micro-batch and 39 micro-batches the least variance has a slowest pipeline of
35 s, where 33 s can be had. We also take a fixed part of each time, which the paper has not.
"""

from collections.abc import Iterator
from itertools import chain
from math import inf, sqrt

import numpy as np

from .filling import cheapest_steps
from .groups import Floats, Groups, Integers
from .times import Times

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
    times = _Times(groups, units)
    known = _settled(times)
    reach = sqrt(times.variance(known)) * times.reach() * (1 + SLACK)
    best = min(chain([known], _sweep(times, -reach, reach)), key=times.variance)
    return [int(n) for n in best]


class _Times:
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


def _settled(times: _Times) -> Integers:
    """Units whose variance is small: the closest to the mean of the closest to the mean of ..., while that helps."""
    counts = times.closest(0.0)
    while True:
        closer = times.closest(float(times.of(counts).mean()))
        if times.variance(closer) >= times.variance(counts):
            return counts
        counts = closer


def _sweep(times: _Times, low: float, high: float) -> Iterator[Integers]:
    """All units that are the closest to some mu from low to high, in order."""
    counts = times.closest(low)
    yield counts
    while (change := _next_change(times, counts, high)) is not None:
        giver, taker = change
        counts = counts.copy()
        counts[giver] -= 1
        counts[taker] += 1
        yield counts


def _next_change(times: _Times, counts: Integers, high: float) -> tuple[int, int] | None:
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
