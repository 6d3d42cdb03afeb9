"""Times beside those that the papers print: `python -m rtk.benchmarks.paper_times [--only NAME...] [--budget SECONDS]`.

Writes `benchmarks/papers/measured.json`, from which `rtk reproduce` takes what it cannot compute anew with the same
bytes: times. Some are measured here, on one core, machine code loaded:

* slipstream-table-3: all plans for 1 to 25 % failures in 1F1B's memory, once a shape; one that takes longer than the
  budget is broken off there, and recorded as that;
* greyhound-table-5: the distribution of micro-batches, the median of 15.

The others are taken out of what other benchmarks have left in `benchmarks/results/`: atlases without a limit
(`slipstream_atlas.py`), Oobleck's templates (`oobleck_templates.py`), errors of the simulator (`prediction.py`), the
cost of delegated sends (`faults.py`) and of watching (`monitor_overhead.py`).
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import machine
from rtk.benchmarks.papers import greyhound, slipstream_tables
from rtk.benchmarks.papers.measured import FILE
from rtk.planners.batch.distribute import distribute
from rtk.schemas.documents import canonical_json
from rtk.schemas.files import write_bytes

RESULTS = Path(__file__).with_name("results")
RECORDED = Path(__file__).with_name("papers") / FILE
REPEATS = 15


def result(name: str) -> Any:
    """What another benchmark has left."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def atlases(budget_s: float) -> dict[str, Any]:
    """Seconds of each shape, `[pp, dp, seconds, whether all plans were made]`, in 1F1B's memory and without a limit."""
    for pp in (64, 32):  # machine code is made ready, also what only the second needs
        atlas(pp, 2, budget_s)
    shapes = [(pp, dp) for dp in slipstream_tables.PAPER_S for pp in slipstream_tables.PP_DEGREES]
    limited = [[*shape, *atlas(*shape, budget_s)] for shape in shapes]
    return {"limited": limited, "unlimited": unlimited(), "machine": machine()}


def unlimited() -> list[list[float | bool]]:
    """Those without a limit, as another benchmark has left them."""
    rows = result("slipstream-atlases")["atlases"]["staggered"]
    return [[row["pp"], row["dp"], row["median_s"], True] for row in rows]


def atlas(pp: int, dp: int, budget_s: float) -> tuple[float, bool]:
    """Seconds for all plans of a shape, made ready included, and whether they were all made within the budget."""
    started_s = time.perf_counter()
    planner = slipstream_tables.planner_of(pp, dp)
    for left in slipstream_tables.counts(pp, dp):
        planner.entry(left)
        took_s = time.perf_counter() - started_s
        if took_s > budget_s:
            return took_s, left == 1
    return took_s, True


def templates(budget_s: float) -> list[dict[str, Any]]:
    """Seconds for one template and for those of all numbers of nodes, cell by cell."""
    keys = ("nodes", "gpus_per_node", "layers", "one_s", "all_s")
    return [{key: cell[key] for key in keys} for cell in result("oobleck-templates")["table_3"]]


def distributions(budget_s: float) -> list[list[float]]:
    """Seconds by the number of groups, `[groups, seconds]`."""
    return [[groups, distribution_s(groups)] for groups in greyhound.PAPER_S]


def distribution_s(groups: int) -> float:
    """Of the exact distribution."""
    paces, count = greyhound.paces(groups), greyhound.TABLE_5_MICROBATCHES * groups
    took_s = []
    for _ in range(REPEATS + 1):
        started_s = time.perf_counter()
        distribute(paces, count)
        took_s.append(time.perf_counter() - started_s)
    return median(took_s[1:])


def predictions(budget_s: float) -> dict[str, list[float]]:
    """Simulated over measured iteration time, less 1, run by run."""
    return {
        "as it comes": [run["error"] for run in result("prediction")["runs"]],
        "paced": [run["error"] for run in result("prediction_paced")["runs"]],
    }


def delegating(budget_s: float) -> list[float]:
    """Iterations by delegates over direct ones where nothing is slow, turn by turn."""
    ratios: list[float] = result("slow_links-overhead")["overhead"]["ratios"]
    return ratios


def inferred(budget_s: float) -> dict[str, float]:
    """Error of iteration times told by calls, from the first to the last, by kind of job."""
    return {kind: one["total"] for kind, one in result("monitor_overhead")["inferred"].items()}


def watching(budget_s: float) -> list[dict[str, float]]:
    """What watching costs, by accounts and in turns, the shortest iterations first."""
    found = sorted(result("monitor_overhead")["overhead"].values(), key=lambda one: one["iteration_s"])
    return [
        {
            "iteration_s": one["iteration_s"],
            "accounted": one["accounted"],
            "in_turns": one["shim"]["wall"]["median"] + one["watching"],
        }
        for one in found
    ]


SECTIONS: dict[str, Callable[[float], Any]] = {
    "slipstream-table-2": predictions,
    "slipstream-table-3": atlases,
    "oobleck-table-3": templates,
    "greyhound-table-5": distributions,
    "greyhound-figure-13": inferred,
    "greyhound-figure-18": watching,
    "adaptra-figure-20": delegating,
}

TAKEN = [name for name in SECTIONS if name not in ("slipstream-table-3", "greyhound-table-5")]


def main() -> None:
    """Measure what is asked for, keep the rest of the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(SECTIONS), metavar="NAME")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for a shape of SlipStream's Table 3")
    parser.add_argument("-o", "--output", default=str(RECORDED))
    arguments = parser.parse_args()
    recorded: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for name in arguments.only or SECTIONS:
        recorded[name] = SECTIONS[name](arguments.budget)
    write_bytes(arguments.output, canonical_json(recorded))


if __name__ == "__main__":
    main()
