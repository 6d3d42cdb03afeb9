"""How long `rtk run` of 4 workers takes from the command to its first iteration.

`python benchmarks/first_iteration.py -o FILE` keeps the result. Wall-clock seconds, medians of RUNS runs, until all
workers are there and until the first iteration is committed, and the processor time of everything until the end of the
job's two iterations.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rtk.benchmarks.common import spread, write_result

MODEL = "gpt-tiny"
RUNS = 5
PLAN = ["--pp", "2", "--dp", "2", "--microbatches", "4", "--schedule", "zero-bubble"]


def first_iteration(command: list[str]) -> dict[str, float]:
    """Seconds from the start of a run to what it says, and its processor time."""
    before_s = _used_s()
    begun_s = time.perf_counter()
    took: dict[str, float] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            took.setdefault(json.loads(line)["event"], time.perf_counter() - begun_s)
    assert run.returncode == 0, command
    return {
        "all_workers_there_s": took["start"],
        "first_iteration_s": took["iteration"],
        "processor_s": _used_s() - before_s,
    }


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(folder: Path, runs: int) -> Iterator[dict[str, float]]:
    """One measurement a run."""
    rtk, profile, plan = str(Path(sys.executable).with_name("rtk")), str(folder / "p.json"), str(folder / "plan.json")
    subprocess.run([rtk, "profile", MODEL, "--quiet", "-o", profile], check=True)
    subprocess.run([rtk, "plan", "pipeline", profile, *PLAN, "--quiet", "-o", plan], check=True, capture_output=True)
    for _ in range(runs):
        yield first_iteration([rtk, "run", plan, "--model", MODEL, "--iterations", "2", "--json"])


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = list(measured(Path(folder), options.runs))
    write_result({name: spread([one[name] for one in found]) for name in found[0]}, options.output)


if __name__ == "__main__":
    main()
