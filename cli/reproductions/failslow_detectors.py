"""Detectors of fail-slows beside each other, and what they make of generated jobs (`failslow_series.py`).

A job is missed if one of its events is, falsely alarmed if an alarm stands where nothing is, right otherwise. The
tables of Greyhound divide by the right ones and twice the errors; both rates are given.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ...profilers.failslow.bocd import SHORT, ChangePoints
from ...profilers.failslow.detector import LEARNING
from ...profilers.failslow.tracker import Mode, track
from .failslow_series import Floats, JobSeries, LabelledEvent

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


Detector = Callable[[Floats], list[Alarm]]


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

    def detect(times_s: Floats) -> list[Alarm]:
        return [
            Alarm(e.onset, e.confirmed, e.relief if e.relief is not None else len(times_s), e.provisional)
            for e in track(times_s.tolist(), mode)
            if e.confirmed is not None
        ]

    return detect


def sliding_window(width: int, middle: Callable[..., Floats]) -> Detector:
    """An alarm where the last `width` times exceed the median of up to 400 before by 10 %; a run counts once."""

    def detect(times_s: Floats) -> list[Alarm]:
        now = middle(sliding_window_view(times_s, width), axis=1)
        padded = np.concatenate([np.full(400 - width, np.nan), times_s])
        before = sliding_window_view(padded, 400)[: len(now) : RENEWED]
        usual = np.nanmedian(before, axis=1).repeat(RENEWED)[: len(now)]
        is_slow = now[width:] > 1.1 * usual[:-width]
        starts = np.flatnonzero(np.diff(np.concatenate([[0], is_slow.astype(int)])) == 1)
        return [Alarm(place, place, place + 1) for place in (starts + 2 * width - 1).tolist()]

    return detect


def change_points(times_s: Floats) -> list[tuple[int, int]]:
    """BOCD on the logs of times as they are: each change-point, and when it was sure."""
    logs: list[float] = np.log(times_s).tolist()
    change_points = ChangePoints(logs[:LEARNING])
    found, last = [], -1
    for place, y in enumerate(logs):
        ago = change_points.update(y)
        if ago is not None and place - ago > max(last, SHORT):
            last = place - ago
            found.append((last, place))
    return found


def bocd_alone(times_s: Floats) -> list[Alarm]:
    """Every change-point is an alarm."""
    return [Alarm(change, sure, change + 1) for change, sure in change_points(times_s)]


def bocd_verified(times_s: Floats, side: int = 10) -> list[Alarm]:
    """A change-point is an alarm if the mean after it is 10 % above that before, as published."""
    found = []
    for change, sure in change_points(times_s):
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
        alarms = detector(job.times_s)
        found.elapsed_s += time.process_time() - started
        found.samples += len(job.times_s)
        found.judge(job, alarms)
    return found
