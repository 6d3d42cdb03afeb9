"""Single ranks of workers are killed, one after the other: `python benchmarks/rank_kills.py [--kills 100] [-o FILE]`.

A job of real processes, 2 stages x 2 pipelines x 2 ranks, trains a small GPT in float64 on this machine's cores. Each
time a random rank gets SIGKILL at a random moment of an iteration; once the others have gone on, another process takes
its place. Then every loss is held against that of one process without faults.

* kill_to_step_s: from the signal to the first step without the worker.
* kill_to_ready_s: from the signal until those who are left are connected, and compute again.
* spawn_to_step_s: from the start of a process to the first step with its worker again.
* kept: of the operations of the iteration under way, the share that survivors had done and kept.
* loss_difference: the largest, relative.
"""

import argparse
import json
import random
import signal
import statistics
import time
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import spread, write_result
from rtk.benchmarks.survival import FOREVER, is_event
from rtk.runners.ranks import processes_of
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import worker_of
from rtk.tests.runners.ranked import RankedJob, losses_alone, plan_of

CASES: dict[str, tuple[Schedule, bool]] = {
    "1F1B": ("1f1b", False),
    "zero bubble": ("zero-bubble", False),
    "zero bubble, staggered": ("zero-bubble", True),
}
WARM = 5  # iterations before the first kill
CLIP_NORM = 4.0


def killed(job: RankedJob, chance: random.Random) -> dict[str, float]:
    """Kill a rank, wait until the others go on, and have its worker back."""
    process = chance.choice(processes_of(job.plan))
    worker = worker_of(process)
    time.sleep(chance.random() * statistics.median(times_of(job)[-WARM:]))
    since, killed_s = len(job.said), time.perf_counter()
    job.signal(process, signal.SIGKILL)
    at = job.wait_for(is_event("failure", worker=worker), since=since)
    told_s = job.said[at]["at_s"]
    at = job.wait_for(is_event("recovered"), since=at)
    recovered = job.said[at]
    resumed = next((one for one in job.said[since:at] if one["event"] == "resume"), {"kept": 0, "left": 1})
    started_s = time.perf_counter()
    job.start(process)
    at = job.wait_for(is_event("join", worker=worker), since=at)
    at = job.wait_for(is_event("iteration", live_workers=len(job.plan.workers)), since=at)
    return {
        "kill_to_step_s": recovered["at_s"] - killed_s,
        "kill_to_ready_s": told_s - killed_s + recovered["after_s"]["ready"],
        "spawn_to_step_s": job.said[at]["at_s"] - started_s,
        "kept": resumed["kept"] / (resumed["kept"] + resumed["left"]),
    }


def times_of(job: RankedJob) -> list[float]:
    """What the iterations took in which nobody was lost or came, so far."""
    told = (one["iteration_time_s"] for one in job.said if one["event"] == "iteration")
    return [seconds for seconds in told if seconds is not None] or [0.1]


def measured(schedule: Schedule, is_staggered: bool, kills: int, seed: int) -> dict[str, Any]:
    """A job in which so many ranks are killed."""
    chance = random.Random(seed)
    changes = {"optimizer": "staggered"} if is_staggered else {}
    plan = plan_of(2, 2, 2, 2, schedule, **changes)
    with RankedJob(plan, FOREVER, clip_norm=CLIP_NORM) as job:
        job.wait_for_iteration(WARM)
        found = [killed(job, chance) for _ in range(kills)]
        losses = job.losses()
    alone = losses_alone(len(losses), plan.total_microbatches(), CLIP_NORM)
    return {
        "kills": len(found),
        "iterations": len(losses),
        "iteration_s": statistics.median(times_of(job)),
        **{name: spread([one[name] for one in found]) for name in found[0]},
        "loss_difference": max(abs(one - other) / other for one, other in zip(losses, alone, strict=True)),
    }


def main() -> None:
    """Kill in each of the jobs, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of each job")
    parser.add_argument("--only", choices=[*CASES], help="this job alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", default="-", help="jobs of a file that is there stay in it")
    given = parser.parse_args()
    there = Path(given.output)
    found = json.loads(there.read_text())["jobs"] if there.is_file() else {}
    for name in [given.only] if given.only else CASES:
        found[name] = measured(*CASES[name], given.kills, given.seed)
    write_result({"jobs": found}, given.output)


if __name__ == "__main__":
    main()
