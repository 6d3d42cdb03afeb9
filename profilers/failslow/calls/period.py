"""How many calls an iteration has: the period of a sequence of communication calls (Greyhound, section 4.2).

`robust` looks at each kind of call on its own. A call is known by its token: operation, group, bytes and type.
1. What does not belong to the loop is left out: tokens that pause for more than a seventh of the log (evaluations,
   checkpoints, the start), and those that come without rule (for no s do two thirds of the distances from one to the
   s-th next agree within 6 %).
2. What is left is seen in context: a call with the one before it and the one behind it, for in a loop of gathers and
   scatters only the contexts at its ends tell where an iteration ends. Irregular contexts do not count.
3. For each lag, each context's share of calls that come again just so much later; their mean, with weights that grow
   as the fourth root of the number of calls: what comes once in an iteration weighs nearly as much as what comes a
   hundred times, and what comes once in ten iterations, with evaluations, less.
4. The period is the smallest lag whose mean is within 0.06 of the best; where a sequence repeats itself exactly, the
   smallest with which it does.

`paper` is the paper's autocorrelation of a series of numbers, the smallest lag where it is at least M = 0.95. Two
things had to be changed, for literally it finds next to nothing. The sum over L - k products over one of L squares is
at most (L - k) / L, below M before there are 20 periods in the log: both are means here (unbiased). And an operation's
kind alone does not tell the parts of an iteration from each other: the numbers are those of tokens, in the order of
their first appearance. The first quarter of the log is left out, for the broadcasts with which a job begins would be
nearly all of the variance. What remains wrong with it: whether two tokens are much unlike depends on their numbers, the
rare ones hardly count, so that it takes a pair of gathers and scatters for the period of a loop over many layers, and
one stray call shifts everything behind it.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..tracker import Mode

Ids: TypeAlias = NDArray[np.int64]
Scores: TypeAlias = NDArray[np.float64]

FEWEST_PERIODS = 7  # that must be in a log
ALIKE = 0.06
MOST_ALIKE = 0.65
MOST_IN_A_PERIOD = 400  # calls with one token
NEAR_BEST = 0.06
SURE = 0.95  # M of the paper
WARM_UP = 4  # of the log, one part is the start of the job
LEAST_SCORE = 0.4
RARITY = 0.25
INNER = 4  # a period so short may be that of a part of the loop
FEW = 3
MUCH = 0.15


def period_of(tokens: Sequence[int] | Ids, mode: Mode = "robust") -> int | None:
    """The number of calls after which a sequence of calls repeats itself; None where it does not.

    Args:
        tokens: a number for each call, equal for calls with equal tokens.
        mode: `robust` or `paper`.
    """
    ids = np.asarray(tokens, dtype=np.int64)
    if mode == "paper":
        return _first_sure(ids[len(ids) // WARM_UP :])
    kept = regular(ids)
    return None if _is_much_lost(ids, kept) else _nearly_best(ids[kept])


def regular(ids: Ids) -> NDArray[np.bool_]:
    """Which calls have a token that belongs to the loop."""
    _, dense, counts = np.unique(ids, return_inverse=True, return_counts=True)
    order = np.argsort(dense, kind="stable")
    places = np.split(order, np.cumsum(counts)[:-1])
    kept = np.array([_is_regular(where, len(ids)) for where in places], dtype=np.bool_)
    return kept[dense] if len(ids) else np.zeros(0, dtype=np.bool_)


def _is_regular(places: Ids, total: int) -> bool:
    if len(places) < FEWEST_PERIODS or _has_pauses(places, total):
        return False
    most = min(MOST_IN_A_PERIOD, len(places) // FEWEST_PERIODS)
    return any(_is_even(places[step:] - places[:-step]) for step in range(1, most + 1))


def _has_pauses(places: Ids, total: int) -> bool:
    pauses, rest = np.diff(places, append=total), total - places[0]
    return bool(2 * rest < total or pauses.max() * FEWEST_PERIODS > rest + FEWEST_PERIODS)


def _is_much_lost(ids: Ids, kept: NDArray[np.bool_]) -> bool:
    """Whether a token is irregular that is frequent all the time: then the log is too short, or no loop's."""
    names, counts = np.unique(ids[~kept], return_counts=True)
    frequent = names[counts > MUCH * len(ids)]
    return any(not _has_pauses(np.flatnonzero(ids == name), len(ids)) for name in frequent)


def _is_even(distances: Ids) -> bool:
    middle = np.median(distances)
    return bool(np.mean(np.abs(distances - middle) <= ALIKE * middle) >= MOST_ALIKE)


def _nearly_best(ids: Ids) -> int | None:
    """The smallest lag that is nearly as good as the best one."""
    contexts = _contexts(ids)
    scores = _scores(np.where(regular(contexts), contexts, -1))
    if not len(scores) or scores.max() < LEAST_SCORE:
        return None
    best = scores.max()
    least = best if best == 1.0 else best - NEAR_BEST
    lag = int(np.argmax(scores >= least)) + 1
    return None if lag <= INNER and _is_interrupted(contexts) else lag


def _is_interrupted(contexts: Ids) -> bool:
    """Whether something comes a few times, at even distances: what is between may be a part of the true period only."""
    names, counts = np.unique(contexts, return_counts=True)
    few = names[(counts >= FEW) & (counts < FEWEST_PERIODS)]
    return any(_are_even(np.flatnonzero(contexts == name), len(contexts)) for name in few)


def _are_even(places: Ids, total: int) -> bool:
    distances = np.diff(places)
    reaches_edges = max(places[0], total - places[-1]) <= (1 + ALIKE) * distances.max() + 2
    return bool(distances.max() - distances.min() <= ALIKE * distances.max()) and reaches_edges


def _contexts(ids: Ids) -> Ids:
    """A number for each call that stands for its token and those of its neighbours."""
    if len(ids) < 3:
        return ids
    _, dense = np.unique(ids, return_inverse=True)
    kinds = int(dense.max()) + 1
    contexts: Ids = (dense[:-2] * kinds + dense[1:-1]) * kinds + dense[2:]
    return contexts


def _scores(ids: Ids) -> Scores:
    """For each lag from 1 on the mean over all numbers from 0 on of the share of calls that come again after it."""
    total = len(ids)
    most = total // FEWEST_PERIODS
    if not most:
        return np.zeros(0)
    names, dense = np.unique(ids, return_inverse=True)
    counted = names >= 0
    if not counted.any():
        return np.zeros(0)
    there = np.bincount(dense)
    weights = np.where(counted, there**RARITY, 0.0)
    scores = np.zeros(most)
    for lag in range(1, most + 1):
        there[dense[total - lag]] -= 1
        again = np.bincount(dense[:-lag][dense[:-lag] == dense[lag:]], minlength=len(names))
        scores[lag - 1] = weights @ (again / np.maximum(there, 1))
    shares: Scores = scores / weights.sum()
    return shares


def _first_sure(ids: Ids) -> int | None:
    """The smallest lag with an autocorrelation of M."""
    total = len(ids)
    most = total // FEWEST_PERIODS
    if not most:
        return None
    _, first, dense = np.unique(ids, return_index=True, return_inverse=True)
    numbers: NDArray[Any] = np.argsort(np.argsort(first))[dense].astype(np.float64)
    numbers -= numbers.mean()
    variance = float(np.mean(numbers**2))
    if variance == 0.0:
        return 1
    spectrum = np.fft.rfft(numbers, 2 * total)
    products = np.fft.irfft(np.abs(spectrum) ** 2, 2 * total)[1 : most + 1]
    correlation = products / (total - np.arange(1, most + 1)) / variance
    sure = correlation >= SURE
    return int(np.argmax(sure)) + 1 if sure.any() else None
