"""Three real jobs of ByteDance with published answers: `python benchmarks/attribution.py [--traces FOLDER] [-o FILE]`.

The traces are those of github.com/ByteDance-Seed/StragglerAnalysis (Apache-2.0), the figures from its files
`result-*.json` (slow-down), `mw-*.json` and `ms-*.json` (shares of the slowest 3 % of workers and of the last stage).
For each job: ours, theirs, how far apart they are, the causes that are named, and how long that takes, as the median of
five readings in one process.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.profilers.failslow.attribution.what_if import findings_of

TRACES = Path(__file__).parents[2] / "shared" / "data" / "optraces"
REPEATS = 5
PUBLISHED = {
    "AR": {"slowdown": 1.9730450967262543, "worker_share": 1.0017012777290497, "stage_share": -0.00121196404622606},
    "SE": {"slowdown": 1.5373613711484118, "worker_share": 0.025062266911209777, "stage_share": 0.6877108929755429},
    "ST": {"slowdown": 1.1787021836556841, "worker_share": 0.031404269124045224, "stage_share": 1.2193563788811714},
}


def row(path: Path, published: dict[str, float]) -> dict[str, Any]:
    """One job."""
    times_s = []
    for _ in range(REPEATS):
        begin_s = time.perf_counter()
        found = findings_of(path)
        times_s.append(time.perf_counter() - begin_s)
    attribution = found.attribution
    assert attribution is not None
    ours = {name: float(getattr(attribution, name)) for name in published}
    return {
        "steps": found.samples,
        "ideal_step_s": found.usual_s,
        "ours": ours | {"link_share": attribution.link_share, "data_share": attribution.data_share},
        "published": published,
        "largest_difference": max(abs(ours[name] - published[name]) for name in published),
        "causes": [
            {"cause": one.cause, "scope": one.scope.kind, "names": one.scope.names, "severity": one.severity}
            for one in found.events
        ],
        "evidence": [sentence for one in found.events for sentence in one.evidence],
        "read_and_attributed_s": median(times_s),
    }


def main() -> None:
    """Attribute all three and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    jobs = {name: row(arguments.traces / f"trace-{name}.parquet", figures) for name, figures in PUBLISHED.items()}
    write_result({"jobs": jobs}, arguments.output)


if __name__ == "__main__":
    main()
