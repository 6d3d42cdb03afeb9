"""Simulated against measured iteration time of `rtk run`: unpaced with at most as many workers as cores, and paced.

`python benchmarks/prediction.py [--paced] [--rounds N] [-o FILE]`. The model is profiled right before and right after
every unpaced run. Two figures are given for every configuration, each as measured / simulated - 1:

* `error`, as it comes: the median iteration of one run, against the plan at the mean of the two profiles around it.
  `drift` is how far these two are apart; where it is large, the machine changed its speed meanwhile.
* `quiet`, what an idle machine would show: the fastest tenth of the iterations of all rounds, against the plan at
  the least time of every operation in all profiles. On a shared host whose cores change their speed by half from second
  to second, only the fast state can be compared with itself.

A paced run follows the plan's clock, so there `error` is the figure.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

MODEL = "gpt-tiny"
SMALL_MODEL = f"{Path(__file__).parent / 'small_model.py'}:layers"
SMALL_LAYERS = 12
ITERATIONS = 20
STEADY = 0.05


@dataclass(frozen=True)
class Configuration:
    """A plan's shape and schedule."""

    schedule: Schedule
    pp: int
    dp: int
    microbatches: int

    def plan(self, profile: Profile) -> Plan:
        """The plan made from a profile."""
        return plan_pipeline(profile, Shape(self.pp, self.dp, self.microbatches), self.schedule)


UNPACED = (
    Configuration("1f1b", 1, 1, 4),
    Configuration("1f1b", 2, 1, 8),
    Configuration("zero-bubble", 2, 1, 8),
    Configuration("gpipe", 2, 1, 4),
    Configuration("1f1b", 1, 2, 4),
)
PACED = (
    Configuration("gpipe", 3, 1, 6),
    Configuration("1f1b", 4, 1, 8),
    Configuration("zero-bubble", 2, 2, 8),
    Configuration("gpipe", 4, 2, 8),
    Configuration("1f1b", 3, 2, 6),
    Configuration("zero-bubble", 4, 2, 8),
    Configuration("1f1b", 4, 3, 6),
    Configuration("zero-bubble", 4, 3, 6),
)


def unpaced(rounds: int, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All unpaced configurations in turns, a profile between each two: every run, and the quiet figures."""
    profiles, rows = [profile(folder)], []
    times_s: dict[Configuration, list[float]] = {one: [] for one in UNPACED}
    for one in UNPACED * rounds:
        found_s = run(one.plan(profiles[-1]), MODEL, folder)
        times_s[one] += found_s
        profiles.append(profile(folder))
        before, after = profiles[-2:]
        drift = work_s(after) / work_s(before) - 1
        rows.append(row(one, one.plan(joined(mean, before, after)), median(found_s), drift))
    best = joined(min, *profiles)
    quiet = [row(one, one.plan(best), quantiles(found_s, n=10)[0], 0.0) for one, found_s in times_s.items()]
    return rows, quiet


def paced(rounds: int, folder: Path) -> list[dict[str, Any]]:
    """All paced configurations in turns: 10 ms a layer and operation, 2 ms a layer for the optimizer step."""
    layer = Layer((LayerCost(0.01, 0.01, 0.01, 0.002),), activation_bytes=2, weight_stash_bytes=1)
    given = Profile((layer,) * SMALL_LAYERS, microbatch_size=1, sequence_length=32)
    plans = [(one, one.plan(given)) for one in PACED]
    return [row(one, plan, median(run(plan, SMALL_MODEL, folder, "--paced")), 0.0) for one, plan in plans * rounds]


def row(configuration: Configuration, plan: Plan, measured_s: float, drift: float) -> dict[str, Any]:
    """A configuration's simulated and measured iteration time."""
    simulated_s = simulate(plan).iteration_time_s
    error = measured_s / simulated_s - 1
    words = f"{simulated_s:.4f} s, measured {measured_s:.4f} s, {error:+.2%}, drift {drift:+.2%}"
    print(f"{configuration}: {words}", file=sys.stderr)
    times = {"simulated_s": simulated_s, "measured_s": measured_s, "error": error, "drift": drift}
    return {**vars(configuration), **times}


def work_s(found: Profile) -> float:
    """F, I and W of all layers."""
    return sum(layer.costs[0].work_s for layer in found.layers)


def profile(folder: Path) -> Profile:
    """Profile the model anew, by the command."""
    path = str(folder / "profile.json")
    rtk("profile", MODEL, "--repeats", "10", "-o", path, "--quiet")
    return read_document(path, Profile)


def joined(join: Callable[[Sequence[float]], float], *profiles: Profile) -> Profile:
    """One profile of several, their times joined by a function such as the mean."""
    layers = zip(*(found.layers for found in profiles), strict=True)
    return replace(profiles[0], layers=tuple(_joined_layer(join, same) for same in layers))


def _joined_layer(join: Callable[[Sequence[float]], float], same: Sequence[Layer]) -> Layer:
    def time_s(name: str) -> float:
        return join([getattr(layer.costs[0], name) for layer in same])

    cost = LayerCost(
        forward_s=time_s("forward_s"),
        backward_input_s=time_s("backward_input_s"),
        backward_weight_s=time_s("backward_weight_s"),
        optimizer_s=time_s("optimizer_s"),
    )
    return replace(same[0], costs=(cost,))


def run(plan: Plan, model: str, folder: Path, *options: str) -> list[float]:
    """Run a plan by the command; the iteration times in s, without the first one."""
    path = str(folder / "plan.json")
    write_document(path, plan)
    said = rtk("run", path, "--model", model, "--iterations", str(ITERATIONS), "--json", "--quiet", *options)
    events = [json.loads(line) for line in said.splitlines()]
    return [event["iteration_time_s"] for event in events if event["event"] == "iteration" and event["iteration"] > 0]


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
        if options.paced:
            rows = paced(options.rounds, Path(folder))
            result = {"runs": rows, "figures": {"all": summary(rows)}}
        else:
            rows, quiet = unpaced(options.rounds, Path(folder))
            steady = [found for found in rows if abs(found["drift"]) < STEADY]
            figures = {"all": summary(rows), "steady": summary(steady), "quiet": summary(quiet)}
            result = {"runs": rows, "quiet": quiet, "figures": figures}
    write_result({**result, "paced": options.paced}, options.output)
    print(result["figures"], file=sys.stderr)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """How many runs, and their median and worst |error|."""
    errors = [abs(found["error"]) for found in rows]
    return {"runs": len(rows), "median_error": median(errors), "worst_error": max(errors)} if rows else {"runs": 0}


if __name__ == "__main__":
    main()
