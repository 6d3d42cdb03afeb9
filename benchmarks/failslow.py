"""How well fail-slows are found in series of times: `python benchmarks/failslow.py --only SECTION [-o FILE]`.

* series: jobs shaped like Greyhound's Tables 3 and 4 and hard ones (`failslow.py` in `benchmarks/papers/`), on
  seeds that nothing was tuned on: right, falsely alarmed and missed jobs, delays and cost, for a sliding window, BOCD,
  BOCD with verification as published, and the two modes of `rtk detect`.
* cost: microseconds of CPU a sample.
* labelled: TCPD and NAB (`failslow_labelled.py`; their folder is `--data`), beside ruptures and river, which
  `pip install 'rtk-train[peers]'` brings.

A job is missed if one of its events is, falsely alarmed if an alarm stands where nothing is, right otherwise. The
paper's tables divide by the right ones and twice the errors; both rates are given. `--quick` takes one seed.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from rtk.benchmarks.common import in_turns, spread, write_result
from rtk.benchmarks.failslow_labelled import Anomalous, Changing, anomaly_f1, mean_change_point_f1, read_nab, read_tcpd
from rtk.benchmarks.failslow_peers import best_settings, default_settings
from rtk.benchmarks.failslow_views import anomalies, changes
from rtk.benchmarks.papers.failslow import DETECTORS, JobSeries, communication_jobs, computation_jobs, hard_jobs, score
from rtk.profilers.failslow.tracker import Mode, track

SEEDS = (401, 402, 403)  # tuning saw 1 to 16, and 101 to 103, 201 to 203, 301 to 303
TABLES = {"computation": computation_jobs, "communication": communication_jobs, "hard": hard_jobs}


def section_series(quick: bool, data: Path) -> dict[str, Any]:
    """All detectors on all tables."""
    seeds = SEEDS[:1] if quick else SEEDS
    tables = {
        table: {name: score(_all(jobs, seeds), detector).as_json() for name, detector in DETECTORS.items()}
        for table, jobs in TABLES.items()
    }
    return {"seeds": list(seeds), "tables": tables}


def _all(jobs: Callable[[int], Iterator[JobSeries]], seeds: Sequence[int]) -> Iterator[JobSeries]:
    for seed in seeds:
        yield from jobs(seed)


def section_cost(quick: bool, data: Path) -> dict[str, Any]:
    """Microseconds a sample."""
    rows = {}
    for table, jobs in TABLES.items():
        series = [job.times_s.tolist() for job, _ in zip(jobs(SEEDS[0]), range(40), strict=False)]
        sides = {mode: _timed(series, mode) for mode in get_args(Mode)}
        turns = in_turns(sides, rounds=2 if quick else 5, repeats=1)
        rows[table] = {name: spread([v for turn in values for v in turn]) for name, values in turns.items()}
        for name, values in turns.items():
            rows[table][name]["least"] = min(v for turn in values for v in turn)
    return {"us_per_sample": rows}


def _timed(series: list[list[float]], mode: Mode) -> Callable[[], float]:
    def measure() -> float:
        started = time.process_time()
        for times_s in series:
            track(times_s, mode)
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
        return {"ours": ours, "peers": f"left out: there is no {error.name}; pip install 'rtk-train[peers]'"}


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
