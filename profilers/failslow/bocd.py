"""The paper's detector (section 4.2): Bayesian on-line change-points (Adams and MacKay 2007), and their verification.

As published, hardened only so far that it works:

* The paper reports a change where P(r = 0) > 0.9, which cannot be: with a constant hazard it is the hazard at every
  sample. Here it is P(r < 5) >= 0.9, and the change lies where the likeliest of these runs begins.
* Linear time needs a limit of run lengths: the 64 likeliest, none below 1e-4.
* Times are filtered by a median of 5, and measured in the noise of the first 30; else each spike is a change-point.
* A change-point is verified by the medians of 20 iterations before and after it, not their means: 10 % or more.

It compares neighbours: it misses steps below 10 % that add up, ramps, and what was slow from the start on.

Kernels over `n` and `x`, see `method.py`; places and kinds that are not below are those of `rcusum.py`.
"""

from math import exp, log, pi, sqrt

from ...schemas.kernels import allocating_kernel
from .method import Floats, Ints, Method
from .rcusum import (
    CONFIRMED,
    COUNT,
    DISMISSED,
    END,
    HERE,
    IS_HEALTHY,
    IS_LEARNING,
    IS_SLOW,
    LEARNING,
    LEVEL,
    PROVISIONAL,
    REFERENCE,
    RELIEF,
    RELIEVED,
    SLOW,
    STATE,
    WIDTH,
)

HAZARD = 1 / 250
KAPPA_0, ALPHA_0, BETA_0 = 0.02, 1.0, 1.0
MOST_RUNS = 64
LEAST_MASS = 1e-4
FARTHEST = 60.0  # in noises
SHORT, SURE = 5, 0.9
SEGMENT = 20  # iterations on either side of a change-point
FILTER = 5
LEAST_NOISE = 1e-3
SUSPICIOUS = 3
BUFFER = 256

# Places in `n`, after those of `rcusum.py` that it shares.
RUNS = 3
SUSPECT, STREAK, DOUBT = 4, 5, 6
WAITING = 7  # change-points that wait for their verification
QUEUE = 8
MOST_WAITING = 16
COUNTS = QUEUE + MOST_WAITING

# Places in `x`, after REFERENCE and HERE.
CENTER, NOISE = 2, 3
ROW = MOST_RUNS + 1
MASS, MEAN, KAPPA, ALPHA, BETA, GAMMA, LENGTH = range(4, 4 + 7 * ROW, ROW)  # of each run; GAMMA: see `density`
NUMBERS = 4 + 7 * ROW


@allocating_kernel
def tell(out: Floats, told: int, kind: int, place: int, level: float, sure: int, usual: float) -> int:
    """Write down what happened; gives how many such things there are now."""
    out[WIDTH * told] = kind
    out[WIDTH * told + 1] = place
    out[WIDTH * told + 2] = level
    out[WIDTH * told + 3] = sure
    out[WIDTH * told + 4] = usual
    return told + 1


@allocating_kernel
def density(z: float, x: Floats, run: int) -> float:
    """Student's t: what a run expects of the next sample. GAMMA is Gamma(alpha + 1/2) / Gamma(alpha)."""
    alpha, kappa = x[ALPHA + run], x[KAPPA + run]
    spread = 2 * x[BETA + run] * (kappa + 1) / kappa
    away = z - x[MEAN + run]
    return x[GAMMA + run] / sqrt(pi * spread) * exp(-(alpha + 0.5) * log(1 + away * away / spread))


@allocating_kernel
def grow(z: float, x: Floats, run: int, target: int) -> None:
    """A run takes another sample, and another place."""
    alpha, kappa, mean = x[ALPHA + run], x[KAPPA + run], x[MEAN + run]
    away = z - mean
    x[BETA + target] = x[BETA + run] + kappa * away * away / (2 * (kappa + 1))
    x[MEAN + target] = mean + away / (kappa + 1)
    x[KAPPA + target] = kappa + 1
    x[ALPHA + target] = alpha + 0.5
    x[GAMMA + target] = alpha / x[GAMMA + run]
    x[LENGTH + target] = x[LENGTH + run] + 1


@allocating_kernel
def bear(x: Floats, mass: float) -> None:
    """The run of no samples, that which begins with the next one."""
    x[MASS], x[MEAN], x[KAPPA], x[ALPHA], x[BETA] = mass, 0.0, KAPPA_0, ALPHA_0, BETA_0
    x[GAMMA], x[LENGTH] = sqrt(pi) / 2, 0.0


@allocating_kernel
def prune(n: Ints, x: Floats) -> None:
    """Leave out unlikely runs: those below the least mass, and the least likely one if there are too many."""
    kept, least = 1, 0
    for run in range(1, n[RUNS]):
        if x[MASS + run] < LEAST_MASS:
            continue
        if kept != run:
            for row in (MASS, MEAN, KAPPA, ALPHA, BETA, GAMMA, LENGTH):
                x[row + kept] = x[row + run]
        if least == 0 or x[MASS + kept] < x[MASS + least]:
            least = kept
        kept += 1
    if kept > MOST_RUNS:
        kept -= 1
        for run in range(least, kept):
            for row in (MASS, MEAN, KAPPA, ALPHA, BETA, GAMMA, LENGTH):
                x[row + run] = x[row + run + 1]
    n[RUNS] = kept


@allocating_kernel
def observe(z: float, n: Ints, x: Floats) -> int:
    """A sample in units of noise; gives how many samples ago the change was that is sure now (0: this one), or -1."""
    runs = n[RUNS]
    total = 0.0
    for run in range(runs - 1, -1, -1):
        x[MASS + run + 1] = x[MASS + run] * density(z, x, run)
        total += x[MASS + run + 1]
        grow(z, x, run, run + 1)
    if total <= 0.0:  # beyond all that floats can tell: it begins anew
        n[RUNS] = 1
        bear(x, 1.0)
        return 0
    for run in range(1, runs + 1):
        x[MASS + run] *= (1 - HAZARD) / total
    bear(x, HAZARD)
    n[RUNS] = runs + 1
    prune(n, x)
    young, likeliest, whole = 0.0, 0, 0.0
    for run in range(n[RUNS]):
        whole += x[MASS + run]
        if x[LENGTH + run] < SHORT:
            young += x[MASS + run]
            if run > 0 and (likeliest == 0 or x[MASS + run] > x[MASS + likeliest]):
                likeliest = run
    return int(x[LENGTH + likeliest]) - 1 if likeliest > 0 and young >= SURE * whole else -1


@allocating_kernel
def start(n: Ints, x: Floats, buffer: Floats) -> int:
    """Measure the first samples, and begin with a run of none; gives the first one to look at again."""
    end = n[END]
    middle = sorted(buffer[:end])[end // 2]
    for place in range(end):  # there is room behind them while so few are known
        buffer[end + place] = abs(buffer[place] - middle)
    x[CENTER] = x[REFERENCE] = x[HERE] = middle
    x[NOISE] = max(1.4826 * sorted(buffer[end : 2 * end])[end // 2], LEAST_NOISE)
    n[STATE], n[RUNS] = IS_HEALTHY, 1
    bear(x, 1.0)
    return 0


@allocating_kernel
def standard(y: float, x: Floats) -> float:
    """A log in units of noise."""
    return min(max((y - x[CENTER]) / x[NOISE], -FARTHEST), FARTHEST)


@allocating_kernel
def suspect(n: Ints, x: Floats, y: float, place: int, sure: int, out: Floats, told: int) -> int:
    """Three slow samples in a row are a suspicion, until three that are not outweigh the slow ones."""
    is_slow = y > x[REFERENCE] + SLOW
    n[STREAK] = n[STREAK] + 1 if is_slow else 0
    if n[SUSPECT] == 0:
        if n[STREAK] >= SUSPICIOUS:
            n[SUSPECT], n[DOUBT] = 1, 0
            told = tell(out, told, PROVISIONAL, place - SUSPICIOUS + 1, y - x[REFERENCE], sure, x[REFERENCE])
        return told
    n[DOUBT] = max(n[DOUBT] - 1, 0) if is_slow else n[DOUBT] + 1
    if n[DOUBT] >= SUSPICIOUS:
        n[SUSPECT] = 0
        told = tell(out, told, DISMISSED, place, y - x[REFERENCE], sure, x[REFERENCE])
    return told


@allocating_kernel
def verify(n: Ints, x: Floats, buffer: Floats, change: int, place: int, sure: int, out: Floats, told: int) -> int:
    """Compare both sides of a change-point (verification as published, by medians)."""
    at = n[END] - 1 - (place - change)
    before = sorted(buffer[max(at - SEGMENT, 0) : at])
    after = sorted(buffer[at : at + SEGMENT])
    old, new = before[len(before) // 2], after[len(after) // 2]
    if abs(new - old) < SLOW:
        return told
    if n[STATE] == IS_HEALTHY:
        if new < old:
            x[REFERENCE] = new  # a relief of what was not seen to begin
            return told
        n[STATE], x[REFERENCE], x[HERE], n[SUSPECT] = IS_SLOW, old, new, 0
        return tell(out, told, CONFIRMED, change, new - old, sure, x[REFERENCE])
    if new < old and new < x[REFERENCE] + RELIEVED:
        n[STATE], x[HERE], n[STREAK] = IS_HEALTHY, x[REFERENCE], 0
        return tell(out, told, RELIEF, change, 0.0, sure, x[REFERENCE])
    if abs(new - x[HERE]) < SLOW:
        return told  # this one is known already
    x[HERE] = new
    return tell(out, told, LEVEL, change, new - x[REFERENCE], sure, x[REFERENCE])


@allocating_kernel
def follow(n: Ints, x: Floats, buffer: Floats, place: int, sure: int, out: Floats, told: int) -> int:
    """Look at the newest sample of the buffer; gives how many things happened."""
    y = buffer[n[END] - 1]
    if n[STATE] == IS_HEALTHY:
        told = suspect(n, x, y, place, sure, out, told)
    near = sorted(buffer[max(n[END] - FILTER, 0) : n[END]])
    ago = observe(standard(near[len(near) // 2], x), n, x)
    change = place - ago - FILTER // 2  # the filter is that much late
    waiting = n[WAITING]
    is_new = waiting == 0 or change > n[QUEUE + waiting - 1] + 2
    if ago >= 0 and is_new and change >= SHORT and waiting < MOST_WAITING:
        n[QUEUE + waiting] = change
        n[WAITING] = waiting + 1
    if n[WAITING] > 0 and n[QUEUE] + SEGMENT <= place + 1:
        change = n[QUEUE]
        n[WAITING] -= 1
        for index in range(n[WAITING]):
            n[QUEUE + index] = n[QUEUE + index + 1]
        told = verify(n, x, buffer, change, place, sure, out, told)
    return told


@allocating_kernel
def look(n: Ints, x: Floats, buffer: Floats, first: int, out: Floats, told: int) -> int:
    """Look at the samples of the buffer from one on; gives how many things happened."""
    end, sure = n[END], n[COUNT] - 1
    for place in range(first, end):
        n[END] = place + 1
        told = follow(n, x, buffer, sure - end + 1 + place, sure, out, told)
    return told


@allocating_kernel
def take(y: float, n: Ints, x: Floats, buffer: Floats, out: Floats, told: int) -> int:
    """The log of another time; gives how many things happened so far."""
    if n[END] == len(buffer):  # the older half is not needed any more
        half = n[END] // 2
        for place in range(half):
            buffer[place] = buffer[place + half]
        n[END] = half
    buffer[n[END]] = y
    n[END] += 1
    n[COUNT] += 1
    first = n[END] - 1
    if n[STATE] == IS_LEARNING:
        first = start(n, x, buffer) if n[COUNT] == LEARNING else n[END]
    return look(n, x, buffer, first, out, told)


@allocating_kernel
def take_all(ys: Floats, first: int, n: Ints, x: Floats, buffer: Floats, out: Floats, most: int) -> tuple[int, int]:
    """Take samples until `out` could overflow; gives the next one to take, and how many things happened."""
    told = 0
    place = first
    while place < len(ys) and told + 4 < most:
        told = take(ys[place], n, x, buffer, out, told)
        place += 1
    return place, told


def finish(n: Ints, x: Floats, buffer: Floats, out: Floats) -> int:
    """The series is over: one that is too short for a whole measure is measured by what there is."""
    if n[STATE] != IS_LEARNING or n[COUNT] == 0:
        return 0
    return look(n, x, buffer, start(n, x, buffer), out, 0)


def set_up(n: Ints, shortest: int) -> None:
    """Nothing but zeros is needed; the paper's detector has no shortest event."""


BOCD = Method(COUNTS, NUMBERS, BUFFER, set_up, take, take_all, finish, 10_000)
