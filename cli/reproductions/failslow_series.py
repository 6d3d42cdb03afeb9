"""Seeded series of iteration times with known fail-slows, shaped like the jobs of Greyhound's Tables 3 and 4.

A job is healthy noise (white, autoregressive, a drift of up to 2 %) around its usual time, jitter (garbage collection,
bursts of up to 5 iterations, checkpoints, Pareto spikes of up to 10 times, slow first iterations), and events. It is an
event where the level without noise is 1.10 times the usual one or more for 20 iterations or more; events here reach
1.12, steps that are none stay below 1.07: what lies between nobody could label. Between two bursts lie two usual
iterations at least. A third of the jobs is calm.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shape = Callable[[Generator, int], Floats]
LEAST, SHORTEST = 1.10, 20
COMPUTATION, COMMUNICATION = (392, 6), (107, 43)  # jobs, and those of them with fail-slows, in the paper
HARD_EACH = 16
BETWEEN = 2


@dataclass(frozen=True)
class LabelledEvent:
    """A fail-slow.

    Attributes:
        begun: the first sample that anything is different (a ramp begins below 10 %).
        onset: the first one at 10 % or more.
        end: the first one below that again, or the number of samples.
    """

    begun: int
    onset: int
    end: int


@dataclass(frozen=True)
class JobSeries:
    """A series, and what is in it."""

    kind: str
    times_s: Floats
    events: tuple[LabelledEvent, ...]


def computation_jobs(seed: int) -> Iterator[JobSeries]:
    """392 jobs, 6 of them with a computation fail-slow, as in Table 3."""
    chance = default_rng([seed, 1])
    jobs, positive = COMPUTATION
    for number in range(jobs):
        yield _job("computation", chance, _single if number < positive else _none)


def communication_jobs(seed: int) -> Iterator[JobSeries]:
    """107 jobs, 43 of them with communication fail-slows, one of which in steps below 10 %, as in Table 4."""
    chance = default_rng([seed, 2])
    jobs, positive = COMMUNICATION
    shapes = [_small_steps, *[(_single, _several, _compound)[n % 3] for n in range(positive - 1)]]
    for number in range(jobs):
        yield _job("communication", chance, shapes[number] if number < positive else _none)


def hard_jobs(seed: int) -> Iterator[JobSeries]:
    """16 jobs of each hard kind, with and without fail-slows."""
    chance = default_rng([seed, 3])
    kinds: dict[str, tuple[Shape, dict[str, Any]]] = {
        "small steps": (_small_steps, {}),
        "slow from the start": (_slow_start, {}),
        "ramp": (_ramp, {}),
        "early": (_early, {}),
        "noisy": (_long, {"noise": 0.06}),
        "long bursts": (_single, {"bursts": 4.0, "longest": 8}),
        "nothing, long bursts": (_none, {"bursts": 4.0, "longest": 8}),
        "nothing, noisy": (_none, {"noise": 0.06}),
        "nothing, small step": (_below, {}),
        "nothing, two modes": (_none, {"modes": 0.25}),
    }
    for kind, (shape, options) in kinds.items():
        for _ in range(HARD_EACH):
            yield _job(kind, chance, shape, **options)


def _job(
    kind: str,
    chance: Generator,
    shape: Shape,
    noise: float = 0.0,
    bursts: float = 1.0,
    longest: int = 5,
    modes: float = 0.0,
) -> JobSeries:
    samples = int(chance.integers(500, 2000))
    level = shape(chance, samples)
    is_calm = not noise and bursts == 1.0 and chance.random() < 0.33
    logs = np.log(level) + _noise(chance, samples, noise or float(chance.uniform(0.003, 0.02 if is_calm else 0.03)))
    if modes:
        logs += np.log(1 + modes) * (chance.random(samples) < 0.3)
    factor = np.ones(samples) if is_calm else _jitter(chance, samples, bursts, int(longest))
    usual_s = float(np.exp(chance.uniform(np.log(0.2), np.log(20))))
    return JobSeries(kind, usual_s * np.exp(logs) * factor, _events(level))


def _noise(chance: Generator, samples: int, sigma: float) -> Floats:
    """White noise, noise that decays over ten samples, and a slow drift."""
    white = chance.normal(0, sigma, samples)
    slow = np.zeros(samples)
    kick = chance.normal(0, float(chance.uniform(0, 0.004)), samples)
    for i in range(1, samples):
        slow[i] = 0.9 * slow[i - 1] + kick[i]
    phase, turns = chance.uniform(0, 2 * np.pi), chance.uniform(0.2, 3)
    drift = float(chance.uniform(0, 0.01)) * np.sin(phase + 2 * np.pi * turns * np.arange(samples) / samples)
    whole: Floats = white + slow + drift
    return whole


def _jitter(chance: Generator, samples: int, bursts: float, longest: int) -> Floats:
    """What makes single iterations, and short runs of them, longer without being a fail-slow."""
    factor = np.ones(samples)
    every = int(chance.integers(40, 200))
    factor[chance.integers(every) :: every] *= chance.uniform(1.08, 2.5)  # garbage collection
    every = int(chance.integers(100, 500))
    factor[chance.integers(every) :: every] *= chance.uniform(3, 20)  # checkpoints
    spikes = chance.random(samples) < chance.uniform(0, 0.02)
    factor[spikes] *= np.minimum(1 + 0.2 * chance.pareto(1.5, int(spikes.sum())), 10)
    free = 0
    for start in np.flatnonzero(chance.random(samples) < bursts * chance.uniform(0, 0.008)).tolist():
        if start >= free:  # two bursts are two: what lies between them is as usual, but for a spike
            end = start + int(chance.integers(2, longest + 1))
            factor[start:end] *= chance.uniform(1.1, 3)
            free = end + BETWEEN
    warm = int(chance.integers(0, 6))
    factor[:warm] *= chance.uniform(1.5, 10)
    return factor


def _events(level: Floats) -> tuple[LabelledEvent, ...]:
    events, place = [], 0
    for is_slow, run in groupby(level >= LEAST - 1e-9):
        length = len(list(run))
        if is_slow and length >= SHORTEST:
            before = np.flatnonzero(level[:place] <= 1.0)
            events.append(LabelledEvent(int(before[-1]) + 1 if len(before) else 0, place, place + length))
        place += length
    return tuple(events)


def _none(chance: Generator, samples: int) -> Floats:
    return np.ones(samples)


def _below(chance: Generator, samples: int) -> Floats:
    level = np.ones(samples)
    start = int(chance.integers(100, samples - 100))
    level[start : start + int(chance.integers(50, samples))] = chance.uniform(1.03, 1.07)
    return level


def _severity(chance: Generator) -> float:
    return 1.12 + min(float(chance.exponential(0.5)), 3.0)


def _single(chance: Generator, samples: int) -> Floats:
    level = np.ones(samples)
    start = int(chance.integers(70, samples - 60))
    level[start : start + int(chance.integers(25, 400))] = _severity(chance)
    return level


def _long(chance: Generator, samples: int) -> Floats:
    """What can be told from noise of 6 %: two of its deviations and more, for 60 iterations and more."""
    level = np.ones(samples)
    start = int(chance.integers(70, samples - 250))
    level[start : start + int(chance.integers(60, 400))] = 0.03 + _severity(chance)
    return level


def _several(chance: Generator, samples: int) -> Floats:
    level, place = np.ones(samples), int(chance.integers(70, 150))
    while place < samples - 60:
        length = int(chance.integers(25, 150))
        level[place : place + length] = _severity(chance)
        place += length + int(chance.integers(60, 400))
    return level


def _compound(chance: Generator, samples: int) -> Floats:
    """Levels one on another, as when a second cause joins the first."""
    level, place = np.ones(samples), int(chance.integers(70, samples - 200))
    for _ in range(int(chance.integers(2, 5))):
        length = int(chance.integers(25, 120))
        level[place : place + length] = _severity(chance)
        place += length
    return level


def _small_steps(chance: Generator, samples: int) -> Floats:
    level, place, here = np.ones(samples), int(chance.integers(80, samples // 4)), 1.0
    while here < 1.13:
        here *= chance.uniform(1.05, 1.09)
        level[place:] = here
        place += int(chance.integers(40, max(samples // 8, 41)))
    return level


def _slow_start(chance: Generator, samples: int) -> Floats:
    level = np.ones(samples)
    level[: int(chance.integers(100, samples - 100))] = 1.15 + min(float(chance.exponential(0.4)), 2.0)
    return level


def _early(chance: Generator, samples: int) -> Floats:
    level, start = np.ones(samples), int(chance.integers(20, 50))
    level[start : start + int(chance.integers(25, 200))] = _severity(chance)
    return level


def _ramp(chance: Generator, samples: int) -> Floats:
    start, length = int(chance.integers(80, samples // 3)), int(chance.integers(40, samples // 3))
    top = float(chance.uniform(1.15, 1.6))
    return 1 + (top - 1) * np.clip((np.arange(samples) - start) / length, 0, 1)
