"""The paper's detector (section 4.2): Bayesian on-line change-points (Adams and MacKay 2007), and their verification.

As published, hardened only so far that it works:

* The paper reports a change where P(r = 0) > 0.9, which cannot be: with a constant hazard it is the hazard at every
  sample. Here it is P(r < 5) >= 0.9, and the change lies where the likeliest of these runs begins.
* Linear time needs a limit of run lengths: the 64 likeliest, none below 1e-4.
* Times are filtered by a median of 5, and measured in the noise of the first 30; else each spike is a change-point.
* A change-point is verified by the medians of 20 iterations before and after it, not their means: 10 % or more.

It compares neighbours: it misses steps below 10 % that add up, ramps, and what was slow from the start on.
"""

from collections.abc import Sequence
from math import exp, lgamma, pi, sqrt
from typing import NamedTuple

from .detector import RELIEVED, SLOW, Detector

HAZARD = 1 / 250
MOST_RUNS = 64
LEAST_MASS = 1e-4
FARTHEST = 60.0  # in noises
SHORT, SURE = 5, 0.9
SEGMENT = 20  # iterations on either side of a change-point
FILTER = 5
LEAST_NOISE = 1e-3
MOST_WAITING = 16


class LengthTerms(NamedTuple):
    """What the posterior of a run is made of that goes by its length alone.

    Attributes:
        weight: of the next sample in the mean.
        spread: of the next sample in the variance.
        power: of the variance in the next sample's density.
        scale: of that density.
    """

    weight: float
    spread: float
    power: float
    scale: float


def terms_of(length: int) -> LengthTerms:
    """Of a run of so many samples: kappa = 0.02 and alpha = 1 of the prior, each sample adds 1 and 1/2."""
    kappa, alpha = 0.02 + length, 1 + length / 2
    spread = kappa / (2 * (kappa + 1))
    scale = exp(lgamma(alpha + 0.5) - lgamma(alpha)) * sqrt(spread / pi)
    return LengthTerms(1 / (kappa + 1), spread, alpha + 0.5, scale)


TERMS = [terms_of(length) for length in range(1024)]  # few runs are longer


class RunHypothesis:
    """Samples since a possible change-point, as normal ones of unknown mean and variance.

    Args:
        mass: how likely it is that this is the current run.

    Attributes:
        mass: likewise.
        length: how many samples there are in it.
        mean: as they tell it.
        beta: half the sum of their squared distances from it, and the prior's 1.
    """

    __slots__ = ("beta", "length", "mass", "mean")

    def __init__(self, mass: float) -> None:
        self.mass, self.length, self.mean, self.beta = mass, 0, 0.0, 1.0


class ChangePoints:
    """Where the level of a series changes.

    Args:
        logs: its first samples, which tell its center and noise; they are not taken yet.
    """

    def __init__(self, logs: Sequence[float]) -> None:
        self.center = sorted(logs)[len(logs) // 2]
        deviations = sorted(abs(y - self.center) for y in logs)
        self._noise = max(1.4826 * deviations[len(logs) // 2], LEAST_NOISE)
        self._runs = [RunHypothesis(1.0)]  # the shortest first

    def update(self, y: float) -> int | None:
        """Another sample; gives how many samples ago the change was that is sure now (0: this one), if one is."""
        total = self._take(min(max((y - self.center) / self._noise, -FARTHEST), FARTHEST))
        if total <= 0.0:  # beyond all that floats can tell: it begins anew
            self._runs = [RunHypothesis(1.0)]
            return 0
        share = (1 - HAZARD) / total
        runs = [RunHypothesis(HAZARD)]
        for run in self._runs:
            run.mass *= share
            if run.mass >= LEAST_MASS:
                runs.append(run)
        if len(runs) > MOST_RUNS:
            runs.remove(min(runs[1:], key=lambda run: run.mass))
        self._runs = runs
        return self._sure_change()

    def _take(self, z: float) -> float:
        """Every run takes the sample, and is the likelier the more it had led to expect it; gives all masses together.

        The density is Student's t, written with the beta before and after the sample.
        """
        total, terms, known = 0.0, TERMS, len(TERMS)
        for run in reversed(self._runs):
            length, beta = run.length, run.beta
            weight, spread, power, scale = terms[length] if length < known else terms_of(length)
            away = z - run.mean
            run.mean += weight * away
            run.beta = after = beta + spread * away * away
            run.length = length + 1
            run.mass = mass = run.mass * scale * (beta / after) ** power / sqrt(beta)
            total += mass
        return total

    def _sure_change(self) -> int | None:
        whole = 0.0
        for run in self._runs:
            whole += run.mass
        young, likeliest = 0.0, self._runs[0]
        for place, run in enumerate(self._runs[:SHORT]):
            if run.length < SHORT:
                young += run.mass
                if place == 1 or (place > 1 and run.mass > likeliest.mass):
                    likeliest = run
        return likeliest.length - 1 if likeliest.length and young >= SURE * whole else None


class Bocd(Detector):
    """Follows a series by the medians on both sides of its change-points."""

    KEPT = 256

    def __init__(self) -> None:
        super().__init__()
        self._change_points = ChangePoints([0.0])
        self._waiting: list[int] = []  # change-points, for their verification

    def _learn(self, logs: Sequence[float]) -> int:
        self._change_points = ChangePoints(logs)
        self.reference = self._level = self._change_points.center
        return 0

    def _follow(self, y: float, place: int) -> None:
        if not self.is_slow:
            self._suspect(y, place)
        near = sorted(self._logs[-FILTER:])
        ago = self._change_points.update(near[len(near) // 2])
        waiting = self._waiting
        if ago is not None:
            change = place - ago - FILTER // 2  # the filter is that much late
            is_new = not waiting or change > waiting[-1] + 2
            if is_new and change >= SHORT and len(waiting) < MOST_WAITING:
                waiting.append(change)
        if waiting and waiting[0] + SEGMENT <= place + 1:
            self._verify(waiting.pop(0), place)

    def _verify(self, change: int, place: int) -> None:
        """Compare both sides of a change-point (verification as published, by medians)."""
        at = len(self._logs) - 1 - (place - change)
        before, after = sorted(self._logs[max(at - SEGMENT, 0) : at]), sorted(self._logs[at : at + SEGMENT])
        old, new = before[len(before) // 2], after[len(after) // 2]
        if abs(new - old) < SLOW:
            return
        if not self.is_slow and new < old:
            self.reference = new  # a relief of what was not seen to begin
        elif not self.is_slow:
            self.is_slow, self.reference, self._level, self._is_suspect = True, old, new, False
            self._tell("confirmed", change, new - old)
        elif new < old and new < self.reference + RELIEVED:
            self.is_slow, self._level, self._streak = False, self.reference, 0
            self._tell("relief", change, 0.0)
        elif abs(new - self._level) >= SLOW:  # else it is known already
            self._level = new
            self._tell("level", change, new - self.reference)
