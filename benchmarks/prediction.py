"""Simulated against measured iteration time of `rtk run`: unpaced with at most as many workers as cores, and paced.

`python benchmarks/prediction.py [--paced] [--rounds N] [-o FILE]`. In every round the model is profiled, each
configuration is planned from that profile, simulated and run, and the model is profiled again: a plan is made from the
mean of both profiles, so that a machine whose speed drifts within a round counts half. The figure of a configuration is
measured / simulated - 1; of the run, the median of its absolute values.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.planners.pipeline.plan import Schedule, Shape, plan_pipeline
from rtk.runners.simulator import simulate
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

MODEL = "gpt-tiny"
SMALL_MODEL = f"{Path(__file__).parent / 'small_model.py'}:layers"
SMALL_LAYERS = 12
ITERATIONS = 12


@dataclass(frozen=True)
class Configuration:
    """A plan's shape and schedule."""

    schedule: Schedule
    pp: int
    dp: int
    microbatches: int

    def plan(self, profile: Profile) -> Plan:
        """The plan made from a profile."""
        return plan_pipeline(profile, self.schedule, Shape(self.pp, self.dp, self.microbatches))


UNPACED = (
    Configuration("1f1b", 1, 1, 4),
    Configuration("1f1b", 2, 1, 8),
    Configuration("zero-bubble", 2, 1, 8),
    Configuration("gpipe", 2, 1, 4),
    Configuration("1f1b", 1, 2, 4),
)
PACED = (
    Configuration("1f1b", 4, 1, 8),
    Configuration("zero-bubble", 2, 2, 8),
    Configuration("1f1b", 3, 2, 6),
    Configuration("zero-bubble", 4, 2, 8),
    Configuration("1f1b", 4, 3, 6),
    Configuration("zero-bubble", 4, 3, 6),
)


def unpaced_round(folder: Path) -> list[dict[str, Any]]:
    """One round of all unpaced configurations."""
    before = profile(folder)
    plans = [(one, one.plan(before)) for one in UNPACED]
    measured = [run(plan, MODEL, folder) for _, plan in plans]
    average = mean_profile(before, profile(folder))
    return [row(one, one.plan(average), time_s) for (one, _), time_s in zip(plans, measured, strict=True)]


def paced_round(folder: Path) -> list[dict[str, Any]]:
    """One round of all paced configurations: 10 ms a layer and operation, 2 ms a layer for the optimizer step."""
    layer = Layer((LayerCost(0.01, 0.01, 0.01, 0.002),), activation_bytes=2, weight_stash_bytes=1)
    given = Profile((layer,) * SMALL_LAYERS, microbatch_size=1, sequence_length=32)
    plans = [(one, one.plan(given)) for one in PACED]
    return [row(one, plan, run(plan, SMALL_MODEL, folder, "--paced")) for one, plan in plans]


def row(configuration: Configuration, plan: Plan, measured_s: float) -> dict[str, Any]:
    """A configuration's simulated and measured iteration time."""
    simulated_s = simulate(plan).iteration_time_s
    error = measured_s / simulated_s - 1
    print(f"{configuration}: simulated {simulated_s:.4f} s, measured {measured_s:.4f} s, {error:+.2%}", file=sys.stderr)
    return {**vars(configuration), "simulated_s": simulated_s, "measured_s": measured_s, "error": error}


def profile(folder: Path) -> Profile:
    """Profile the model anew, by the command."""
    path = str(folder / "profile.json")
    rtk("profile", MODEL, "-o", path, "--quiet")
    return read_document(path, Profile)


def mean_profile(a: Profile, b: Profile) -> Profile:
    """The mean of two profiles' times."""
    return replace(a, layers=tuple(_mean_layer(x, y) for x, y in zip(a.layers, b.layers, strict=True)))


def _mean_layer(a: Layer, b: Layer) -> Layer:
    names = ("forward_s", "backward_input_s", "backward_weight_s", "optimizer_s")
    means = {name: mean((getattr(a.costs[0], name), getattr(b.costs[0], name))) for name in names}
    return replace(a, costs=(LayerCost(**means),))


def run(plan: Plan, model: str, folder: Path, *options: str) -> float:
    """Run a plan by the command; the median iteration time without the first iteration, in s."""
    path = str(folder / "plan.json")
    write_document(path, plan)
    said = rtk("run", path, "--model", model, "--iterations", str(ITERATIONS), "--json", *options)
    events = [json.loads(line) for line in said.splitlines()]
    times_s: list[float] = [e["iteration_time_s"] for e in events if e["event"] == "iteration" and e["iteration"] > 0]
    return median(times_s)


def rtk(*arguments: str) -> str:
    """Run an rtk command and give its output."""
    command = [sys.executable, "-m", "rtk.cli.main", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        one_round = paced_round if options.paced else unpaced_round
        rounds = [one_round(Path(folder)) for _ in range(options.rounds)]
    errors = [abs(found["error"]) for rows in rounds for found in rows]
    result = {"rounds": rounds, "median_error": median(errors), "worst_error": max(errors), "paced": options.paced}
    write_result(result, options.output)
    print(f"median {median(errors):.2%}, worst {max(errors):.2%}", file=sys.stderr)


if __name__ == "__main__":
    main()
