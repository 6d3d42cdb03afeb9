"""Seeded series of iteration times with known fail-slows, shaped like the jobs of Greyhound's Tables 3 and 4.

A job is healthy noise (white, autoregressive, a drift of up to 2 %) around its usual time, jitter (garbage collection,
bursts of up to 5 iterations, checkpoints, Pareto spikes of up to 10 times, slow first iterations), and events. It is an
event where the level without noise is 1.10 times the usual one or more for 20 iterations or more; events here reach
1.12, steps that are none stay below 1.07: what lies between nobody could label. Between two bursts lie two usual
iterations at least. A third of the jobs is calm.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from ...profilers.failslow.bocd import SHORT, ChangePoints
from ...profilers.failslow.detector import LEARNING
from ...profilers.failslow.tracker import Mode, track

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

    @cached_property
    def change_points(self) -> list[tuple[int, int]]:
        """BOCD on the logs of times as they are: each change-point, and when it was sure."""
        logs: list[float] = np.log(self.times_s).tolist()
        change_points = ChangePoints(logs[:LEARNING])
        found, last = [], -1
        for place, y in enumerate(logs):
            ago = change_points.update(y)
            if ago is not None and place - ago > max(last, SHORT):
                last = place - ago
                found.append((last, place))
        return found


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


# Detectors of fail-slows beside each other, and what they make of generated jobs (`failslow.py`).
#
# A job is missed if one of its events is, falsely alarmed if an alarm stands where nothing is, right otherwise. The
# tables of Greyhound divide by the right ones and twice the errors; both rates are given.


RENEWED = 10  # samples after which a sliding window's median is taken again
LATE = 20  # samples after an event within which an alarm still means it


@dataclass(frozen=True)
class Alarm:
    """What a detector says is slow: from where to where, and when it was sure."""

    onset: int
    sure: int
    relief: int
    provisional: int | None = None

    def means(self, event: LabelledEvent) -> bool:
        """Whether it can be about that event."""
        return self.onset < event.end + LATE and self.relief > event.begun


Detector = Callable[[JobSeries], list[Alarm]]


@dataclass
class Score:
    """What a detector made of the jobs of a table."""

    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    delays: list[int] = field(default_factory=list)
    provisional: list[int] = field(default_factory=list)
    samples: int = 0
    elapsed_s: float = 0.0

    def judge(self, job: JobSeries, alarms: Sequence[Alarm]) -> None:
        """Count a job."""
        missed = [event for event in job.events if not any(alarm.means(event) for alarm in alarms)]
        stray = [alarm for alarm in alarms if not any(alarm.means(event) for event in job.events)]
        verdict = "fn" if missed else "fp" if stray else "tp" if job.events else "tn"
        self.verdicts[verdict] += 1
        if verdict in ("fn", "fp"):
            self.wrong[f"{verdict} {job.kind}"] += 1
        for event in job.events:
            first = next((alarm for alarm in alarms if alarm.means(event)), None)
            if first is not None and first.sure < event.end + LATE:  # in hindsight there is no delay
                self.delays.append(first.sure - event.onset + 1)
                if first.provisional is not None:
                    self.provisional.append(first.provisional - event.onset + 1)

    def as_json(self) -> dict[str, Any]:
        """Rates in both conventions, and delays in iterations, that of the first slow one being 1."""
        tp, fp, tn, fn = (self.verdicts[name] for name in ("tp", "fp", "tn", "fn"))
        return {
            "tp": tp, "fp": fp, "tn": tn, "fn": fn,
            "accuracy": (tp + tn) / (tp + fp + tn + fn),
            "fpr": fp / max(tn + fp, 1), "fnr": fn / max(tp + fn, 1),
            "paper_fpr": fp / max(tn + 2 * fp, 1), "paper_fnr": fn / max(tp + 2 * fn, 1),
            "wrong": dict(sorted(self.wrong.items())),
            "delay": _quantiles(self.delays), "provisional": _quantiles(self.provisional),
            "us_per_sample": self.elapsed_s / max(self.samples, 1) * 1e6,
        }  # fmt: skip


def _quantiles(values: Sequence[int]) -> dict[str, float] | None:
    if not values:
        return None
    names = {"median": 50, "p90": 90, "p99": 99, "most": 100}
    return {name: float(np.percentile(values, share)) for name, share in names.items()}


def episodes_of(mode: Mode) -> Detector:
    """What `rtk detect` confirms in a mode."""

    def detect(job: JobSeries) -> list[Alarm]:
        return [
            Alarm(e.onset, e.confirmed, e.relief if e.relief is not None else len(job.times_s), e.provisional)
            for e in track(job.times_s.tolist(), mode)
            if e.confirmed is not None
        ]

    return detect


def sliding_window(width: int, middle: Callable[..., Floats]) -> Detector:
    """An alarm where the last `width` times exceed the median of up to 400 before by 10 %; a run counts once."""

    def detect(job: JobSeries) -> list[Alarm]:
        times_s = job.times_s
        now = middle(sliding_window_view(times_s, width), axis=1)
        padded = np.concatenate([np.full(400 - width, np.nan), times_s])
        before = sliding_window_view(padded, 400)[: len(now) : RENEWED]
        usual = np.nanmedian(before, axis=1).repeat(RENEWED)[: len(now)]
        is_slow = now[width:] > 1.1 * usual[:-width]
        starts = np.flatnonzero(np.diff(np.concatenate([[0], is_slow.astype(int)])) == 1)
        return [Alarm(place, place, place + 1) for place in (starts + 2 * width - 1).tolist()]

    return detect


def bocd_alone(job: JobSeries) -> list[Alarm]:
    """Every change-point is an alarm."""
    return [Alarm(change, sure, change + 1) for change, sure in job.change_points]


def bocd_verified(job: JobSeries, side: int = 10) -> list[Alarm]:
    """A change-point is an alarm if the mean after it is 10 % above that before, as published."""
    found, times_s = [], job.times_s
    for change, sure in job.change_points:
        before, after = times_s[max(change - side, 0) : change], times_s[change : change + side]
        if after.mean() > 1.1 * before.mean():
            found.append(Alarm(change, max(sure, change + side - 1), change + 1))
    return found


DETECTORS: dict[str, Detector] = {
    "sliding window, mean of 20": sliding_window(20, np.mean),
    "sliding window, median of 100": sliding_window(100, np.median),
    "BOCD": bocd_alone,
    "BOCD + V, means of 10": bocd_verified,
    "paper": episodes_of("paper"),
    "robust": episodes_of("robust"),
}


def score(jobs: Iterable[JobSeries], detector: Detector) -> Score:
    """What a detector makes of some jobs."""
    found = Score()
    for job in jobs:
        started = time.process_time()
        alarms = detector(job)
        found.elapsed_s += time.process_time() - started
        found.samples += len(job.times_s)
        found.judge(job, alarms)
    return found
