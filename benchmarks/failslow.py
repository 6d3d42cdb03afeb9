"""How well fail-slows are found in series of times: `python benchmarks/failslow.py --only SECTION [-o FILE]`.

* series: jobs shaped like Greyhound's Tables 3 and 4 and hard ones (`failslow_series.py`), on seeds that nothing was
  tuned on: right, falsely alarmed and missed jobs, delays and cost, for a sliding window, BOCD, BOCD with verification
  as published, and the two modes of `rtk detect`.
* cost: microseconds of CPU a sample, sample by sample in plain Python and whole series in machine code, in turns.
* labelled: TCPD and NAB (`failslow_labelled.py`; their folder is `--data`), beside ruptures and river, which
  `pip install 'rtk[peers]'` brings.

A job is missed if one of its events is, falsely alarmed if an alarm stands where nothing is, right otherwise. The
paper's tables divide by the right ones and twice the errors; both rates are given. `--quick` takes one seed.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.benchmarks.failslow_labelled import Anomalous, Changing, anomaly_f1, mean_change_point_f1, read_nab, read_tcpd
from rtk.benchmarks.failslow_peers import best_settings, default_settings
from rtk.benchmarks.failslow_series import Event, Floats, Job, communication_jobs, computation_jobs, hard_jobs
from rtk.benchmarks.failslow_views import anomalies, changes
from rtk.profilers.failslow import bocd
from rtk.profilers.failslow.rcusum import END, LEARNING
from rtk.profilers.failslow.tracker import Mode, Tracker, track_compiled
from rtk.schemas.kernels import compiled

SEEDS = (401, 402, 403)  # tuning saw 1 to 16, and 101 to 103, 201 to 203, 301 to 303
RENEWED = 10  # samples after which a sliding window's median is taken again
LATE = 20  # samples after an event within which an alarm still means it
TABLES = {"computation": computation_jobs, "communication": communication_jobs, "hard": hard_jobs}


@dataclass(frozen=True)
class Alarm:
    """What a detector says is slow: from where to where, and when it was sure."""

    onset: int
    sure: int
    relief: int
    provisional: int | None = None

    def means(self, event: Event) -> bool:
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

    def judge(self, job: Job, alarms: Sequence[Alarm]) -> None:
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
            for e in track_compiled(times_s.tolist(), mode)
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
    logs: Any = np.log(times_s)
    n: Any = np.zeros(bocd.COUNTS, dtype=np.int64)
    x: Any = np.zeros(bocd.NUMBERS)
    first = min(LEARNING, len(logs))
    n[END] = first
    room: Any = np.concatenate([logs[:first], np.zeros(first)])
    bocd.start(n, x, room)
    standard, observe = compiled(bocd.standard), compiled(bocd.observe)
    found, last = [], -1
    for place, y in enumerate(logs.tolist()):
        ago = observe(standard(y, x), n, x)
        if ago >= 0 and place - ago > max(last, bocd.SHORT):
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


def section_series(quick: bool, data: Path) -> dict[str, Any]:
    """All detectors on all tables."""
    seeds = SEEDS[:1] if quick else SEEDS
    for detector in DETECTORS.values():  # machine code is made ready
        detector(next(computation_jobs(0)).times_s)
    tables = {
        table: {name: _score(_all(jobs, seeds), detector).as_json() for name, detector in DETECTORS.items()}
        for table, jobs in TABLES.items()
    }
    return {"seeds": list(seeds), "tables": tables}


def _all(jobs: Callable[[int], Iterator[Job]], seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        yield from jobs(seed)


def _score(jobs: Iterator[Job], detector: Detector) -> Score:
    score = Score()
    for job in jobs:
        started = time.process_time()
        alarms = detector(job.times_s)
        score.elapsed_s += time.process_time() - started
        score.samples += len(job.times_s)
        score.judge(job, alarms)
    return score


def section_cost(quick: bool, data: Path) -> dict[str, Any]:
    """Microseconds a sample."""
    rows = {}
    for table, jobs in TABLES.items():
        series = [job.times_s.tolist() for job, _ in zip(jobs(SEEDS[0]), range(40), strict=False)]
        sides = {f"{mode}, {way.__name__}": _timed(way, series, mode) for mode in ("robust", "paper") for way in WAYS}
        turns = in_turns(sides, rounds=2 if quick else 5, repeats=1)
        rows[table] = {name: spread([v for turn in values for v in turn]) for name, values in turns.items()}
        for name, values in turns.items():
            rows[table][name]["least"] = min(v for turn in values for v in turn)
    return {"us_per_sample": rows}


def plain(times_s: Sequence[float], mode: Mode) -> None:
    """Sample by sample."""
    tracker = Tracker(mode)
    for time_s in times_s:
        tracker.note(time_s)
    tracker.finish()


def machine_code(times_s: Sequence[float], mode: Mode) -> None:
    """A whole series."""
    track_compiled(times_s, mode)


WAYS = (plain, machine_code)


def _timed(way: Callable[[Sequence[float], Mode], None], series: list[list[float]], mode: Any) -> Callable[[], float]:
    def measure() -> float:
        started = time.process_time()
        for times_s in series:
            way(times_s, mode)
        return (time.process_time() - started) / sum(map(len, series)) * 1e6

    return measure


def section_labelled(quick: bool, data: Path) -> dict[str, Any]:
    """F1 on TCPD and NAB: ours, the peers as they come, and the peers with what suits these very series best."""
    if not data.is_dir():
        return {"left out": f"{data} is no folder; --data says where nab/ and tcpd/ lie"}
    tcpd, nab = read_tcpd(data / "tcpd"), read_nab(data / "nab")
    ours = {
        mode: {"tcpd": mean_change_point_f1(tcpd, changes(mode)), "nab": anomaly_f1(nab, anomalies(mode))}
        for mode in ("robust", "paper")
    }
    try:
        return {"ours": ours, **_peers(tcpd, nab, quick)}
    except ModuleNotFoundError as error:
        return {"ours": ours, "peers": f"left out: there is no {error.name}; pip install 'rtk[peers]'"}


def _peers(tcpd: Sequence[Changing], nab: Sequence[Anomalous], quick: bool) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, detector in default_settings().items():
        rows[name] = {"tcpd": mean_change_point_f1(tcpd, detector), "nab": anomaly_f1(nab, detector)}
    if quick:
        return {"defaults": rows}
    tried = {
        family: [
            (mean_change_point_f1(tcpd, found), anomaly_f1(nab, found), label) for label, found in settings.items()
        ]
        for family, settings in best_settings().items()
    }
    best = {
        family: {
            "tcpd": {"f1": max(scores)[0], "with": max(scores)[2]},
            "nab": {"f1": max(s[1] for s in scores), "with": max(scores, key=lambda s: s[1])[2]},
        }
        for family, scores in tried.items()
    }
    return {"defaults": rows, "best": best}


def main() -> None:
    """Run a section and write what it found."""
    sections = {name[8:]: run for name, run in globals().items() if name.startswith("section_")}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sections, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/failslow"))
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    write_result(sections[options.only](options.quick, options.data), options.output)


if __name__ == "__main__":
    main()
