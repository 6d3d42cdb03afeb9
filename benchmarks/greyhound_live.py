"""What Greyhound's remedies do in real runs: `python benchmarks/greyhound_live.py --only SECTION [-o FILE]`.

* worker: one of 2 x 2 workers becomes 1.5 times as slow and recovers: when it is named, what uneven micro-batches (S2)
  make good of what can be made good, and when all is as it was.
* link: a link of a pipeline, and one of four peers, are delayed and recover.
* figure_15: 1 of 4 pipelines is 1.77 times as slow, as in Greyhound's Figure 15 (1.31 s, with S2 0.83 s).
* exchange: a slow link between two peers, which change places with others once that is worth it (S3), and back.
* restart: a slow worker until the job is saved and starts again on other processes (S4); its losses beside those of a
  job that nothing happens to.

Runs are paced: every operation lasts OPERATION_S. Processes are forked from one that has imported torch, and share this
machine's cores. With `--keep PREFIX` the runs' announcements are left in `PREFIX-NAME.jsonl`, for throughput_chart.py.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.planners.joint.plan import replan_joint
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName
from rtk.planners.shape import Shape
from rtk.runners.simulator import simulate
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.conditions import under_conditions
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.trace import Trace, TraceEvent, print_trace
from rtk.tests.runners.processes import ProcessJob

OPERATION_S = 0.02
LAYERS = 8
SLOW_FROM, QUICK_FROM = 20, 12
# Iterations that count in none of the phases: the first ones, and those until a change has settled.
WARM, SETTLING = 3, 12
ROUNDS = 2
EIGHT, DOUBLE = (Path(__file__).parent / f"small_model.py:{name}" for name in ("eight", "eight_double"))


@dataclass(frozen=True)
class Ran:
    """What a run has announced, in order, and how it ended."""

    said: list[dict[str, Any]]
    exit_code: int = 0

    def iterations(self, event: str) -> list[int]:
        """Before which iterations something was announced."""
        return [one["iteration"] for one in self.said if one["event"] == event]

    def times_s(self, first: int, stop: int) -> list[float]:
        """Of the iterations [first, stop)."""
        commits = [one for one in self.said if one["event"] == "iteration" and first <= one["iteration"] < stop]
        return [one["iteration_time_s"] for one in commits]

    def median_s(self, first: int, stop: int) -> float:
        """Of the iterations [first, stop)."""
        return statistics.median(self.times_s(first, stop))

    def losses(self) -> list[float]:
        """Of all iterations."""
        return [one["loss"] for one in self.said if one["event"] == "iteration"]


def profile(stages: int) -> Profile:
    """Eight layers, in so many stages whose F, I and W take OPERATION_S each."""
    share_s = OPERATION_S * stages / LAYERS
    return Profile(tuple(Layer((LayerCost(share_s, share_s, share_s),)) for _ in range(LAYERS)))


def run(plan: Plan, how: JobConfig, events: Sequence[TraceEvent], keep: str | None = None, model: Path = EIGHT) -> Ran:
    """A job of real processes; where it is saved to start again, also the rest of it."""
    training = TrainingConfig(str(model), (), 1e-3, 2, 32, 1, True, "auto", 0)
    with tempfile.TemporaryDirectory() as folder:
        inject = Path(folder) / "trace.jsonl"
        inject.write_bytes(print_trace(Trace(tuple(events))))
        how = replace(how, inject=str(inject), checkpoint=None if how.mitigate is None else str(Path(folder) / "saved"))
        ran, again = _led(plan, how, training)
        if again is not None:
            rest, _ = _led(plan, again, training)
            ran = Ran([*(one for one in ran.said if one["event"] != "end"), *rest.said], rest.exit_code)
    if keep is not None:
        lines = (json.dumps({**one, "unix_time_s": one["at_s"]}) + "\n" for one in ran.said)
        Path(f"{keep}.jsonl").write_text("".join(lines))
    return ran


def _led(plan: Plan, how: JobConfig, training: TrainingConfig) -> tuple[Ran, JobConfig | None]:
    """What came of a job, and how to lead its rest."""
    with ProcessJob(plan, how, training) as job:
        finished = job.result(120.0 + 10.0 * how.iterations)
        conductor = job.conductor
    assert finished.exit_code == 0 or conductor.may_go_on, finished.reason
    return Ran(job.said, finished.exit_code), conductor.again().how if conductor.may_go_on else None


def episode(what: str, who: str, first: int, stop: int, much: float) -> list[TraceEvent]:
    """A slow worker (by a factor) or link (by a delay in s), from one iteration on, until another."""
    if what == "link":
        slow = TraceEvent("slow_link", iteration=first, link=who, delay_s=much)
        return [slow, TraceEvent("recover", iteration=stop, link=who)]
    slow = TraceEvent("slow_compute", iteration=first, worker=who, factor=much)
    return [slow, TraceEvent("recover", iteration=stop, worker=who)]


def times(ran: Ran, first: int, stop: int, iterations: int) -> dict[str, Any]:
    """When something was found, answered, relieved and reverted; and the median iteration time of each phase, in s."""
    found = [*ran.iterations("slow_worker"), *ran.iterations("slow_link")]
    epochs = ran.iterations("epoch")
    answered = next((one for one in epochs if one > first), stop)
    last = max((one for one in epochs if one < stop), default=first)
    return {
        "found_after_iterations": min(found) - first if found else None,
        "named": sorted({str(one.get("worker") or one.get("link")) for one in ran.said if _is_found(one)}),
        "answered_after_iterations": answered - first,
        "epochs_while_slow": sum(first < one < stop for one in epochs),
        "relieved_after_iterations": min((one - stop for one in ran.iterations("relief") if one > stop), default=None),
        "reverted_after_iterations": max((one - stop for one in epochs if one > stop), default=None),
        "is_back": _plan_and_seats(ran, -1) == _plan_and_seats(ran, 0),
        "before_s": ran.median_s(WARM, first),
        "slow_s": ran.median_s(first, min(answered, stop)),
        "adapted_s": ran.median_s(last + 1, stop),
        "after_s": ran.median_s(min(stop + SETTLING, iterations - 3), iterations),
    }


def _is_found(one: dict[str, Any]) -> bool:
    return one["event"] in ("slow_worker", "slow_link")


def _plan_and_seats(ran: Ran, number: int) -> tuple[Any, Any]:
    """What an epoch predicts, and who sits where."""
    epoch = [one for one in ran.said if one["event"] == "epoch"][number]
    return epoch["predicted_iteration_time_s"], epoch["workers"]


def s2(plan: Plan, slow: dict[str, float], quick: bool, stop: int, keep: str | None) -> dict[str, Any]:
    """Runs in turns with uneven micro-batches and left alone, and how much of what can be made good is made good.

    An iteration takes at least the proven bound under the slow workers (which the plans that we find reach), and what a
    healthy one takes longer in fact than by its plan. Of all rounds' iterations medians count, and lower quartiles,
    which other programs on this machine disturb less.
    """
    first, iterations = (QUICK_FROM, stop + 16) if quick else (SLOW_FROM, stop + 26)
    episodes = [episode("worker", name, first, stop, factor) for name, factor in slow.items()]
    events = [event for moment in zip(*episodes, strict=True) for event in moment]
    phases: dict[str, list[float]] = {"healthy_s": [], "slow_s": [], "adapted_s": []}
    found: list[dict[str, Any]] = []
    for number in range(1 if quick else ROUNDS):
        ran = run(plan, JobConfig(iterations), events, keep if number == 0 else None)
        found.append(times(ran, first, stop, iterations))
        left = run(plan, JobConfig(iterations, policy=PolicyName.SLIPSTREAM), events, keep and f"{keep}-left")
        phases["healthy_s"] += [*ran.times_s(WARM, first), *left.times_s(WARM, first)]
        phases["slow_s"] += left.times_s(first + 1, stop)
        phases["adapted_s"] += ran.times_s(first + found[-1]["answered_after_iterations"] + 1, stop)
    under = under_conditions(plan, slow, {})
    planned = replan_joint(under).prediction
    assert plan.prediction is not None
    assert planned is not None
    predicted = {
        "healthy_s": plan.prediction.iteration_time_s,
        "slow_s": simulate(under).iteration_time_s,
        "adapted_s": planned.iteration_time_s,
    }
    sides = {
        "predicted": predicted,
        "median": {name: statistics.median(values) for name, values in phases.items()},
        "lower quartile": {name: statistics.quantiles(values, n=4)[0] for name, values in phases.items()},
    }
    worth = {name: _worth(one, predicted["healthy_s"], planned.lower_bound_s) for name, one in sides.items()}
    return {"rounds": found, "bound_s": planned.lower_bound_s, **{name: sides[name] | worth[name] for name in sides}}


def _worth(took: dict[str, float], healthy_s: float, bound_s: float) -> dict[str, float]:
    """Ratios to a healthy iteration, and the share of what can be made good that is."""
    least_s = bound_s + took["healthy_s"] - healthy_s
    return {
        "slow_ratio": took["slow_s"] / took["healthy_s"],
        "adapted_ratio": took["adapted_s"] / took["healthy_s"],
        "recovered": (took["slow_s"] - took["adapted_s"]) / (took["slow_s"] - least_s),
        "recovered_without_allowance": (took["slow_s"] - took["adapted_s"]) / (took["slow_s"] - bound_s),
    }


def worker(quick: bool, keep: str | None) -> dict[str, Any]:
    """A slow worker among 2 x 2."""
    plan = plan_pipeline(profile(2), Shape(2, 2, 8), "zero-bubble")
    return s2(plan, {"0/1": 1.5}, quick, 36 if quick else 60, keep)


def link(quick: bool, keep: str | None) -> dict[str, Any]:
    """A slow link of a pipeline; and one of four peers, which takes an examination to tell."""
    first, stop, iterations = (QUICK_FROM, 36, 54) if quick else (SLOW_FROM, 70, 100)
    found: dict[str, Any] = {}
    for name, shape, ends in (
        ("of a pipeline", Shape(4, 1, 12), "0/2-0/3"),
        ("of four peers", Shape(1, 4, 6), "1/0-2/0"),
    ):
        plan = plan_pipeline(profile(shape.pp), shape, "zero-bubble" if shape.pp > 1 else "1f1b")
        events = episode("link", ends, first, stop, 4 * OPERATION_S)
        ran = run(plan, JobConfig(iterations), events, keep and f"{keep}-{shape.pp}x{shape.dp}")
        found[name] = times(ran, first, stop, iterations)
    return found


def figure_15(quick: bool, keep: str | None) -> dict[str, Any]:
    """A slow pipeline of four, of one worker each and of two."""
    factor = (4 * 1.31 / 0.83 - 1) / 3  # of which the paper's two times follow
    found: dict[str, Any] = {"factor": factor, "paper": {"slow_ratio": factor, "adapted_ratio": factor * 0.83 / 1.31}}
    for stages in (1,) if quick else (1, 2):
        shape = Shape(stages, 4, 8)
        plan = plan_pipeline(profile(stages), shape, "1f1b" if stages == 1 else "zero-bubble")
        slow = {f"0/{i}": factor for i in range(stages)}
        found[f"{stages}x4"] = s2(plan, slow, quick, 30 if quick else 50, keep and f"{keep}-{stages}x4")
    return found


def exchange(quick: bool, keep: str | None) -> dict[str, Any]:
    """A slow link between peers, which nothing hides but to move one of them."""
    first, stop, iterations = (QUICK_FROM, 44, 62) if quick else (SLOW_FROM, 80, 110)
    plan = plan_pipeline(profile(2), Shape(2, 2, 8), "zero-bubble")
    how = JobConfig(iterations, mitigate=f"S3={20 * OPERATION_S}")
    ran = run(plan, how, episode("link", "0/1-1/1", first, stop, 6 * OPERATION_S), keep)
    return times(ran, first, stop, iterations) | {"copies_before_iterations": ran.iterations("copy")}


def restart(quick: bool, keep: str | None) -> dict[str, Any]:
    """A worker so slow that the job starts again; in double precision."""
    first, iterations = (QUICK_FROM, 36) if quick else (SLOW_FROM, 60)
    plan = plan_pipeline(profile(2), Shape(2, 2, 8), "zero-bubble")
    how = JobConfig(iterations, mitigate="S4=2")
    slow = [TraceEvent("slow_compute", iteration=first, worker="0/1", factor=3.0)]
    ran, calm = run(plan, how, slow, keep, DOUBLE), run(plan, JobConfig(iterations), (), None, DOUBLE)
    (at,) = ran.iterations("restart")
    differences = [abs(a - b) for a, b in zip(ran.losses(), calm.losses(), strict=True)]
    saved_s = next(one["at_s"] for one in ran.said if one["event"] == "restart")
    resumed_s = next(one["at_s"] for one in ran.said if one["event"] == "iteration" and one["iteration"] == at)
    return {
        "restarted_after_iterations": at - first,
        "seconds_until_the_next_iteration_is_done": resumed_s - saved_s,
        "before_s": ran.median_s(WARM, first),
        "slow_s": ran.median_s(first, at),
        "after_s": ran.median_s(at + 1, iterations),
        "largest_difference_of_losses": max(differences),
    }


SECTIONS: dict[str, Callable[[bool, str | None], dict[str, Any]]] = {
    "worker": worker,
    "link": link,
    "figure_15": figure_15,
    "exchange": exchange,
    "restart": restart,
}


def main() -> None:
    """Measure some sections and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, action="append", help="may be repeated; else all")
    parser.add_argument("--quick", action="store_true", help="fewer iterations")
    parser.add_argument("--keep", metavar="PREFIX", help="how files of announcements begin")
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    found = {
        name: SECTIONS[name](arguments.quick, arguments.keep and f"{arguments.keep}-{name}")
        for name in arguments.only or SECTIONS
    }
    write_result(found, arguments.output)


if __name__ == "__main__":
    main()
