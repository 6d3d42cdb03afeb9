"""Labelled series that are no iteration times: NAB's anomaly windows and TCPD's change-points, and how they are scored.

* TCPD: F1 with a margin of 5, as van den Burg and Williams define it (2020): precision against the annotations of all
  annotators together, recall as the mean over annotators, the trivial change at 0 counted in; the mean over series. All
  detectors here take single numbers: of several dimensions (`run_log`) they are given the first.
* NAB: a window is found if a detection lies in it, every detection outside is false; those of one series closer than
  `NEAR` samples count once, at the first. F1 over all windows and detections of all series.
"""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Detector = Callable[[Floats], Iterable[int]]
MARGIN = 5
NEAR = 20


@dataclass(frozen=True)
class Changing:
    """A series of TCPD, and its change-points by annotator."""

    name: str
    values: Floats
    annotations: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Anomalous:
    """A series of NAB, and the first and last sample of each window."""

    name: str
    values: Floats
    windows: Sequence[tuple[int, int]]


def read_tcpd(folder: Path) -> list[Changing]:
    """The series that lie there."""
    annotations = json.loads((folder / "annotations.json").read_text())
    found = []
    for path in sorted(folder.glob("*__*.json")):
        series = json.loads(path.read_text())
        values = np.array(series["series"][0]["raw"], dtype=float)
        found.append(Changing(series["name"], values, annotations[series["name"]]))
    return found


def read_nab(folder: Path) -> list[Anomalous]:
    """The series that lie there."""
    windows = {
        Path(name).name: spans for name, spans in json.loads((folder / "combined_windows.json").read_text()).items()
    }
    found = []
    for path in sorted(folder.glob("*.csv")):
        rows = list(csv.DictReader(path.open()))
        times = [row["timestamp"] for row in rows]
        spans = [(_at(times, first), _at(times, last)) for first, last in windows[path.name]]
        found.append(Anomalous(path.stem, np.array([float(row["value"]) for row in rows]), spans))
    return found


def _at(times: Sequence[str], moment: str) -> int:
    return int(np.searchsorted(times, moment.split(".")[0]))


def change_point_f1(series: Changing, points: Iterable[int]) -> float:
    """F1 of change-points against all annotators of a series."""
    found = {0, *points}
    together = {0}.union(*map(set, series.annotations.values()))
    precision = len(_matched(together, found)) / len(found)
    recalls = []
    for annotated in series.annotations.values():
        truth = {0, *annotated}
        recalls.append(len(_matched(truth, found)) / len(truth))
    recall = float(np.mean(recalls))
    return 2 * precision * recall / (precision + recall)


def _matched(truth: set[int], found: set[int]) -> set[int]:
    """Those of the truth that a detection lies near to, each detection being used once."""
    left, matched = set(found), set()
    for point in sorted(truth):
        near = min(left, key=lambda other: (abs(other - point), other), default=None)
        if near is not None and abs(near - point) <= MARGIN:
            left.remove(near)
            matched.add(point)
    return matched


def anomaly_counts(series: Anomalous, points: Iterable[int]) -> tuple[int, int, int]:
    """Windows found, detections outside of windows, windows missed."""
    last, hit, false = -NEAR, set(), 0
    for point in sorted(points):
        inside = [number for number, (first, end) in enumerate(series.windows) if first <= point <= end]
        hit.update(inside)
        if not inside and point - last >= NEAR:
            false += 1
        last = point
    return len(hit), false, len(series.windows) - len(hit)


def mean_change_point_f1(series: Sequence[Changing], detector: Detector) -> float:
    """The mean F1 over series."""
    return float(np.mean([change_point_f1(one, detector(one.values)) for one in series]))


def anomaly_f1(series: Sequence[Anomalous], detector: Detector) -> float:
    """F1 over all windows and detections."""
    found, false, missed = np.sum([anomaly_counts(one, detector(one.values)) for one in series], axis=0)
    return float(2 * found / max(2 * found + false + missed, 1))
