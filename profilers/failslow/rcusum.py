"""RCUSUM: a two-sided CUSUM of log times against a healthy reference, verified at three scales.

Where the paper (section 4.2) compares the segments on both sides of a change-point, this compares with a reference that
only a verified drop or 200 healthy samples move, and only downwards. So small steps and ramps add up, and cannot hide.

Kernels over `n` (counts) and `x` (logs of times), see `method.py`; the names of their places stand below. `buffer`
holds the last samples, the newest at `n[END] - 1`; `out` takes five numbers for each thing that happened.
"""

from math import log, sqrt

from ...schemas.kernels import allocating_kernel
from .method import Floats, Ints, Method

SLOW = log(1.1)  # what counts as slow, as the paper has it
DRIFT = SLOW / 2
CLIP = 1.5 * DRIFT  # no single sample says more
CAP = 60 * CLIP  # evidence beyond the trigger that is kept
RELIEVED = 0.6 * SLOW  # at this and below it is as usual again
LEAST_EVIDENCE = 20.0  # nats
WINDOW = 400
HEALTHY_WINDOW = 200
LEARNING, WARM_UP = 30, 10
FARTHEST = 1e3  # more than the log of any two numbers differ
BARS = (DRIFT, 3 * DRIFT, 8 * DRIFT)  # how often healthy samples are above each of them is learned
LONGEST_BURST = 30
MODES = 1.5  # noises that a drop must exceed: two modes look like noise as large as their distance
LONGER = 3  # than any burst that there was
DOUBTS = 3
SUSPICIOUS = 3  # slow samples in a row

PROVISIONAL, DISMISSED, CONFIRMED, LEVEL, RELIEF, HINDSIGHT = range(6)

# Places in `n`.
COUNT = 0  # samples seen
END = 1  # of the buffer's filled part
STATE = 2
STAY = 3  # samples since the state or the level began
UP_AGE, DOWN_AGE = 4, 5  # samples since the sums left 0
STREAK = 6  # slow samples in a row
DOUBT = 7
SUSPECT = 8
SHORTEST = 9  # as it was asked for
NEEDED = 10  # as bursts have taught
HEALTHY_FOR = 11
SEEN = 12  # healthy samples, and behind it those of them above each bar
NEW_SEEN = SEEN + 1 + len(BARS)  # the same while it is open whether they are healthy
COUNTS = NEW_SEEN + 1 + len(BARS)
IS_LEARNING, IS_HEALTHY, IS_SLOW = range(3)

# Places in `x`.
REFERENCE, HERE, NOISE, UP, DOWN = range(5)
LOGS = 5
WIDTH = 5  # of what is written to `out`: kind, place, level, place of certainty, and the log that is usual


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
def reset_sums(n: Ints, x: Floats) -> None:
    """Begin a state or a level: nothing speaks for leaving it yet."""
    x[UP] = x[DOWN] = 0.0
    for place in (UP_AGE, DOWN_AGE, STAY, SUSPECT, STREAK, DOUBT, HEALTHY_FOR):
        n[place] = 0
    for place in range(NEW_SEEN, COUNTS):
        n[place] = 0


@allocating_kernel
def start_of(buffer: Floats, end: int, longest: int, border: float, sign: float) -> int:
    """How many of the last samples belong to a shift across a border: from where they speak for it most."""
    total = best = 0.0
    length = 1
    for back in range(1, longest + 1):
        total += min(max(sign * (buffer[end - back] - border), -CLIP), CLIP)
        if total >= best:
            best, length = total, back
    return length


@allocating_kernel
def is_far_enough(shift: float, size: int, noise: float) -> bool:
    """Whether a median that is so far from the reference is 10 % away, not by chance of its own noise."""
    return shift >= SLOW + 2.25 * 1.2533 * noise / sqrt(size)


@allocating_kernel
def speaks_for_it(share: float, size: int, usual: float) -> bool:
    """Whether so large a share of slow samples is no chance, if a healthy job has the usual one."""
    if share <= usual:
        return False
    nats = share * log(share / usual)
    if share < 1.0:
        nats += (1.0 - share) * log((1.0 - share) / (1.0 - usual))
    return size * nats >= LEAST_EVIDENCE


@allocating_kernel
def is_no_chance(window: Floats, n: Ints, x: Floats) -> bool:
    """Whether more of a window's samples are above one of the bars than is usual in a healthy job."""
    size = len(window)
    above = size
    for bar in range(len(BARS)):
        while above > 0 and window[size - above] <= x[REFERENCE] + BARS[bar]:
            above -= 1
        usual = n[SEEN + 1 + bar]
        if speaks_for_it(above / size, size, (1 + usual + sqrt(usual)) / (10 + n[SEEN])):  # as many as may be usual
            return True
    return False


@allocating_kernel
def shift_up(window: Floats, n: Ints, x: Floats) -> float:
    """The level of a window of samples, in order of size, if it is verified to be a step up; else the old one."""
    size = len(window)
    middle, quarter = window[size // 2], window[size // 4]
    base = x[HERE]
    border = (base + middle) / 2 if size > 4 * n[NEEDED] else max((base + middle) / 2, base + 0.7 * SLOW)
    if quarter <= border or not is_far_enough(middle - base, size, x[NOISE]):
        return base
    pauses = 0 if size < 2 * n[NEEDED] else size // 10
    if size < 4 * n[NEEDED] and x[NOISE] < (middle - base) / 4 and window[pauses] <= (base + middle) / 2:
        return base  # bursts, and pauses between them: where so little noise is, slowness has none
    return middle if n[STATE] == IS_SLOW or is_no_chance(window, n, x) else base


@allocating_kernel
def shift_down(window: Floats, n: Ints, x: Floats) -> float:
    """The level of a window of samples, in order of size, if it is verified to be a step down; else the old one."""
    size = len(window)
    middle, quarter = window[size // 2], window[size - 1 - size // 4]
    base = x[HERE]
    if quarter >= (base + middle) / 2:
        return base
    if n[STATE] == IS_SLOW and middle < x[REFERENCE] + RELIEVED:
        return middle
    if n[STATE] == IS_HEALTHY and base - middle < MODES * x[NOISE]:
        return base  # it was there before, as the lower of two modes
    return middle if is_far_enough(base - middle, size, x[NOISE]) else base


@allocating_kernel
def verified(n: Ints, x: Floats, buffer: Floats, age: int, sign: float, fewest: int) -> float:
    """The level that is verified at any of three scales: since the sum left 0, the last 4 n, and the last n + 2."""
    needed, end = n[NEEDED], n[END]
    longest = min(n[STAY], end)
    for scale in range(3):
        size = min(age, WINDOW) if scale == 0 else (4 * needed if scale == 1 else needed + 2)
        if size > longest or size < fewest or (scale > 0 and size > age + 2):
            continue
        if scale < 2 and age > 4 * needed and age % (size // 16 + 1):
            continue  # a long suspicion is not looked at in full with each sample
        window = sorted(buffer[end - size : end])
        level = shift_up(window, n, x) if sign > 0 else shift_down(window, n, x)
        if level != x[HERE]:
            return level
    return x[HERE]


@allocating_kernel
def suspect(n: Ints, x: Floats, y: float, place: int, sure: int, out: Floats, told: int) -> int:
    """The first tier: three slow samples in a row, until three that are not outweigh the slow ones."""
    is_slow = y > x[REFERENCE] + SLOW
    if is_slow:
        n[STREAK] += 1
    else:
        n[NEEDED] = max(n[NEEDED], min(n[STREAK] + LONGER, LONGEST_BURST))
        n[STREAK] = 0
    if n[SUSPECT] == 0:
        if n[STREAK] >= SUSPICIOUS:
            n[SUSPECT], n[DOUBT] = 1, 0
            told = tell(out, told, PROVISIONAL, place - SUSPICIOUS + 1, y - x[REFERENCE], sure, x[REFERENCE])
        return told
    n[DOUBT] = max(n[DOUBT] - 1, 0) if is_slow else n[DOUBT] + 1
    if n[DOUBT] >= DOUBTS:
        n[SUSPECT] = 0
        told = tell(out, told, DISMISSED, place, y - x[REFERENCE], sure, x[REFERENCE])
    return told


@allocating_kernel
def learn_reference(n: Ints, x: Floats, buffer: Floats) -> None:
    """Every 200 healthy samples: their noise, and half of the way down to their median."""
    n[HEALTHY_FOR] += 1
    if n[HEALTHY_FOR] < HEALTHY_WINDOW:
        return
    n[HEALTHY_FOR] = 0
    window = sorted(buffer[n[END] - HEALTHY_WINDOW : n[END]])
    middle = window[HEALTHY_WINDOW // 2]
    x[NOISE] = middle - window[HEALTHY_WINDOW * 16 // 100]
    if middle < x[REFERENCE]:
        x[REFERENCE] = x[HERE] = (x[REFERENCE] + middle) / 2
    if n[SEEN] > 10 * HEALTHY_WINDOW:
        for place in range(SEEN, NEW_SEEN):
            n[place] //= 2


@allocating_kernel
def count_healthy(n: Ints, x: Floats, y: float) -> None:
    """How usual slow samples are; those of a suspicion count only once it has come to nothing."""
    n[NEW_SEEN] += 1
    for bar in range(len(BARS)):
        if y <= x[REFERENCE] + BARS[bar]:
            break
        n[NEW_SEEN + 1 + bar] += 1
    if n[UP_AGE] == 0:
        for place in range(SEEN, NEW_SEEN):
            n[place] += n[place + NEW_SEEN - SEEN]
            n[place + NEW_SEEN - SEEN] = 0


@allocating_kernel
def go_up(n: Ints, x: Floats, buffer: Floats, place: int, sure: int, level: float, out: Floats, told: int) -> int:
    """It is slow, or slower than it was."""
    base = x[HERE]
    border = max((base + level) / 2, base + 0.85 * SLOW)
    length = start_of(buffer, n[END], min(n[STAY], n[END], WINDOW), border, 1.0)
    kind = CONFIRMED if n[STATE] == IS_HEALTHY else LEVEL
    n[STATE] = IS_SLOW
    x[HERE] = level
    reset_sums(n, x)
    n[STAY] = length
    return tell(out, told, kind, place - length + 1, level - x[REFERENCE], sure, x[REFERENCE])


@allocating_kernel
def go_down(n: Ints, x: Floats, buffer: Floats, place: int, sure: int, level: float, out: Floats, told: int) -> int:
    """It is as usual again, less slow than it was, or was slow all the time."""
    base, state = x[HERE], n[STATE]
    border = min((base + level) / 2, base - 0.5 * SLOW)
    length = start_of(buffer, n[END], min(n[STAY], n[END], WINDOW), border, -1.0)
    kind, severity = LEVEL, level - x[REFERENCE]
    if state == IS_HEALTHY:
        kind, severity = HINDSIGHT, -severity
        x[REFERENCE] = level
    elif severity < RELIEVED:
        kind, level = RELIEF, x[REFERENCE]
    n[STATE] = IS_SLOW if kind == LEVEL else IS_HEALTHY
    x[HERE] = level
    reset_sums(n, x)
    n[STAY] = length
    return tell(out, told, kind, place - length + 1, severity, sure, x[REFERENCE])


@allocating_kernel
def follow(n: Ints, x: Floats, buffer: Floats, place: int, sure: int, out: Floats, told: int) -> int:
    """Look at the newest sample of the buffer; gives how many things happened."""
    y = buffer[n[END] - 1]
    away = y - x[HERE]
    n[STAY] += 1
    needed = n[NEEDED]
    trigger = needed * DRIFT
    up = min(x[UP] + min(max(away - DRIFT, -CLIP), CLIP), trigger + CAP)
    down = min(x[DOWN] + min(max(-away - DRIFT, -CLIP), CLIP), trigger + CAP)
    if up > 0.0:
        x[UP], n[UP_AGE] = up, n[UP_AGE] + 1
    else:
        x[UP], n[UP_AGE] = 0.0, 0
    if down > 0.0:
        x[DOWN], n[DOWN_AGE] = down, n[DOWN_AGE] + 1
    else:
        x[DOWN], n[DOWN_AGE] = 0.0, 0
    is_healthy = n[STATE] == IS_HEALTHY
    if is_healthy:
        if away > SLOW or n[STREAK] > 0 or n[SUSPECT] > 0:
            told = suspect(n, x, y, place, sure, out, told)
        count_healthy(n, x, y)
    if up >= trigger and away > DRIFT:
        level = verified(n, x, buffer, n[UP_AGE], 1, needed)
        if level != x[HERE]:
            return go_up(n, x, buffer, place, sure, level, out, told)
    if down >= trigger and away < -DRIFT:
        level = verified(n, x, buffer, n[DOWN_AGE], -1, 3 * needed if is_healthy else needed)
        if level != x[HERE]:
            return go_down(n, x, buffer, place, sure, level, out, told)
    if is_healthy and up < trigger:
        learn_reference(n, x, buffer)
    return told


@allocating_kernel
def scatter(buffer: Floats, first: int, end: int) -> float:
    """The noise of samples, from the differences of neighbours, which no step matters to."""
    size = end - first - 1
    if size < 1:
        return 0.0
    for place in range(size):  # there is room behind them while so few are known
        buffer[end + place] = abs(buffer[first + place + 1] - buffer[first + place])
    return sorted(buffer[end : end + size])[size // 2] / 0.954


@allocating_kernel
def least_block(buffer: Floats, first: int, end: int) -> float:
    """The least median of a quarter of the samples in a row."""
    block = max((end - first) // 4, 1)
    least = buffer[first] + FARTHEST
    for start in range(first, end - block + 1, max(block // 2, 1)):
        least = min(least, sorted(buffer[start : start + block])[block // 2])
    return least


@allocating_kernel
def count_above(buffer: Floats, first: int, end: int, border: float) -> int:
    """How many samples are above a border."""
    above = 0
    for place in range(first, end):
        if buffer[place] > border:
            above += 1
    return above


@allocating_kernel
def measure(n: Ints, x: Floats, buffer: Floats, first: int, end: int) -> None:
    """Reference, noise and the share of slow samples, out of the first ones, a part of which may be slow already."""
    logs = sorted(buffer[first:end])
    size = end - first
    middle, least, noise = logs[size // 2], least_block(buffer, first, end), scatter(buffer, first, end)
    off = 0.8 * noise  # what the least median of a block is below the others
    is_mixed = middle - least > SLOW / 3 + off
    x[REFERENCE] = x[HERE] = min(middle, least + off)
    x[NOISE] = noise if is_mixed else max(noise, middle - logs[size * 16 // 100])
    n[SEEN] = size
    half = first + size // 2
    for bar in range(len(BARS)):  # twice those of the half that has fewer: the other may be slow already
        border = x[REFERENCE] + BARS[bar]
        n[SEEN + 1 + bar] = 2 * min(count_above(buffer, first, half, border), count_above(buffer, half, end, border))


@allocating_kernel
def begin(n: Ints, x: Floats, buffer: Floats) -> int:
    """Make a reference out of the first samples; gives the first one to look at again with it."""
    first = min(WARM_UP, n[END] // 5)
    measure(n, x, buffer, first, n[END])
    n[STATE], n[NEEDED] = IS_HEALTHY, n[SHORTEST]
    reset_sums(n, x)
    return first


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
        first = begin(n, x, buffer) if n[COUNT] == LEARNING else n[END]
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
    """The series is over: one that is too short for a whole reference gets it from what there is."""
    if n[STATE] != IS_LEARNING or n[COUNT] == 0:
        return 0
    return look(n, x, buffer, begin(n, x, buffer), out, 0)


def set_up(n: Ints, shortest: int) -> None:
    """Make zeros a state that has seen nothing."""
    n[SHORTEST] = n[NEEDED] = shortest


RCUSUM = Method(COUNTS, LOGS, 2 * WINDOW, set_up, take, take_all, finish, 200_000)
