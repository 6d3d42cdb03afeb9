"""A user's own training under fire: `python benchmarks/own_training.py --jobs 10 --faults 50 [-o FILE]`.

The script is benchmarks/own_script.py: layers, rows, a loss with counts, dropout, clipping and a cosine schedule, in
double precision. Each job has its share of faults at random moments, to random workers of 2 stages and 2 pipelines:
SIGKILL, whose victim is replaced and joins; and SIGSTOP for 0.1 to 3 s, which beyond the heartbeat limit of 2 s is a
death as well. What it has to say for itself:

* every iteration is committed once, with the loss of a job that nothing happens to (to 1e-12);
* every row is seen exactly once in a pass: each commit counts exactly the targets of the rows that are its own, whose
  numbers of counted targets differ;
* the norm of the gradients is that of the undisturbed job, too, and it is clipped in most iterations.
"""

import argparse
import random
import signal
import time
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.own_script import LENGTH, padding_of
from rtk.benchmarks.survival import FOREVER, is_event, plan_of, recent_s, tail_of
from rtk.runners.torch.data.feed import RowFeed
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.plan import Plan
from rtk.tests.runners.processes import ProcessJob
from rtk.training import Training

SCRIPT = str(Path(__file__).with_name("own_script.py"))
MOST_S = 120.0
STOPPED = 0.3  # the share of faults that are SIGSTOP


def tell(plan: Plan, faults: int, seed: int) -> dict[str, Any]:
    """One job with so many faults, beside one without."""
    chance = random.Random(seed)
    kills: list[float] = []
    counts = {"kill": 0, "stop": 0, "ended itself": 0, "join": 0}
    with ProcessJob(plan, JobConfig(FOREVER), TrainingConfig(script=SCRIPT)) as job:
        job.wait_for_iteration(3)
        for _ in range(faults):
            name = chance.choice(sorted(job.processes))
            time.sleep(chance.random() * recent_s(job))
            if chance.random() < STOPPED:
                counts["stop"] += 1
                counts["ended itself"] += _stop(job, name, chance.uniform(0.1, 3.0))
                continue
            counts["kill"] += 1
            killed_s, since = time.perf_counter(), len(job.said)
            job.processes[name].kill()
            kills.append(job.said[job.wait_for(is_event("recovered"), MOST_S, since)]["at_s"] - killed_s)
            since = len(job.said)
            job.start(name)
            since = job.wait_for(is_event("join", worker=name), MOST_S, since)
            job.wait_for(is_event("recovered"), MOST_S, since)
        said = [one for one in job.said if one["event"] == "iteration"]
        counts["join"] = sum(one["event"] == "join" for one in job.said)
    with ProcessJob(plan, JobConfig(len(said)), TrainingConfig(script=SCRIPT)) as job:
        job.result(timeout_s=3600)
        quiet = [one for one in job.said if one["event"] == "iteration"]
    return {
        "seed": seed,
        "faults": counts,
        "iterations": len(said),
        "committed_once": [one["iteration"] for one in said] == list(range(len(said))),
        "loss_difference": _difference(said, quiet, "loss"),
        "grad_norm_difference": _difference(said, quiet, "grad_norm"),
        "clipped": sum((one["grad_norm"] or 0.0) > 0.3 for one in said) / len(said),
        "targets_counted_wrongly": _miscounted(plan, said),
        "kill_to_commit_s": tail_of(kills),
        "last_loss": said[-1]["loss"],
        "first_loss": said[0]["loss"],
    }


def _stop(job: ProcessJob, name: str, lasts_s: float) -> bool:
    """SIGSTOP, SIGCONT, and then until the job has all its workers again.

    Gives whether the worker has ended itself, and was replaced: gloo may lose a wake-up where a wait is stopped
    (docs/developing.md).
    """
    since, whole = len(job.said), len(job.plan.live_workers())
    job.signal(name, signal.SIGSTOP)
    time.sleep(lasts_s)
    job.signal(name, signal.SIGCONT)
    ended, deadline_s = False, time.monotonic() + MOST_S
    while time.monotonic() < deadline_s:
        time.sleep(0.3)
        if not job.processes[name].is_alive():
            ended = True
            job.start(name)
            job.wait_for(is_event("join", worker=name), MOST_S, since)
        recent = [one for one in job.said[since:] if one["event"] == "iteration"]
        if len(recent) > 3 and recent[-1]["live_workers"] == whole:
            return ended
    raise AssertionError(f"{name} was stopped for {lasts_s} s, and is not there again")


def _difference(said: list[dict[str, Any]], quiet: list[dict[str, Any]], name: str) -> float:
    return max(float(abs(one[name] - other[name])) for one, other in zip(said, quiet, strict=True))


def _miscounted(plan: Plan, said: list[dict[str, Any]]) -> int:
    """Iterations whose count is not that of their rows."""
    _, provider = Training.of(TrainingConfig(script=SCRIPT)).load(plan)
    assert isinstance(provider, RowFeed)
    wrong = 0
    for one in said:
        rows = [
            row for number in range(plan.total_microbatches()) for row in provider.rows_of(one["iteration"], number)
        ]
        wrong += one["count"] != sum(LENGTH - padding_of(row) for row in rows)
    return wrong


def main() -> None:
    """Tell the jobs and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--faults", type=int, default=50, help="of each job")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    rows = [tell(plan_of(2, 2), arguments.faults, arguments.seed + job) for job in range(arguments.jobs)]
    faults = sum(sum(row["faults"][kind] for kind in ("kill", "stop")) for row in rows)
    worst = max(row["loss_difference"] for row in rows)
    write_result({"faults": faults, "worst_loss_difference": worst, "jobs": rows}, arguments.output)


if __name__ == "__main__":
    main()
