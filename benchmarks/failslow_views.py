"""The detectors of iteration times as detectors of changes and of anomalies in any series of values.

They take logs of times and call 10 % slow. Of a value they get its distance from the usual one instead, with a tenth
for so many deviations of its noise; and, to see what falls as well, the same with the sign changed.

* changes: 2 deviations of the noise between neighbours; every onset, change of level and relief counts. This was chosen
  beforehand; 1.5 would give a little more.
* anomalies: 3 standard deviations of the first 15 % of the series (NAB's time to learn); every onset counts. This was
  the best of those that were looked at on these very series (2 to 5, standard or median deviations); compare it with
  the best settings of others.
"""

import numpy as np

from rtk.benchmarks.failslow_labelled import MARGIN, Detector, Floats
from rtk.profilers.failslow.detector import SLOW, Kind
from rtk.profilers.failslow.tracker import Mode, detector_of

CHANGE, ANOMALY = 2.0, 3.0
LEARNED = 0.15


def noise_of(values: Floats) -> float:
    """The deviation of the noise, by the median difference of neighbours (of those that differ, if most do not)."""
    steps = np.abs(np.diff(values))
    steps = steps[steps > 0] if np.median(steps) == 0 else steps
    return float(np.median(steps)) / 0.954 if len(steps) else 1.0


def changes(mode: Mode) -> Detector:
    """Where the level changes."""

    def detect(values: Floats) -> list[int]:
        logs = (values - np.median(values)) / noise_of(values) * SLOW / CHANGE
        kinds: set[Kind] = {"confirmed", "level", "relief", "hindsight"}
        return _apart(_places(logs, mode, kinds) + _places(-logs, mode, kinds))

    return detect


def anomalies(mode: Mode) -> Detector:
    """Where the values begin to be unusual."""

    def detect(values: Floats) -> list[int]:
        first = values[: int(LEARNED * len(values))]
        logs = (values - np.median(first)) / max(float(first.std()), 1e-9) * SLOW / ANOMALY
        return sorted(_places(logs, mode, {"confirmed"}) + _places(-logs, mode, {"confirmed"}))

    return detect


def _places(logs: Floats, mode: Mode, kinds: set[Kind]) -> list[int]:
    """Where a detector says that something of these kinds has happened."""
    detector = detector_of(mode)
    findings = [finding for y in logs.tolist() for finding in detector.update(y)]
    return [finding.place for finding in (*findings, *detector.finish()) if finding.kind in kinds]


def _apart(places: list[int]) -> list[int]:
    """The first of those that mean the same change."""
    kept: list[int] = []
    for place in sorted(places):
        if place > 0 and (not kept or place - kept[-1] > MARGIN):
            kept.append(place)
    return kept
