"""A worker is killed: how long until the next optimizer step, and what becomes of the batch; rtk beside torchft.

`python benchmarks/kill_to_commit.py [--kills 5] [--only TEXT] [-o FILE]`, in an environment that has
torchft-nightly (measured: 2026.10.26) beside rtk.

Both sides train benchmarks/mlp_training.py with AdamW on 128 rows a worker and step, which are chosen by number. Every
worker paces its computation to the same 0.4 s for its 128 rows, so that more of them than cores can be compared.
SIGKILL hits at a random moment of a step, each time a job of its own. A step counts as the next one if it is without
the worker that was killed. torchft runs one process a replica group, as its train_ddp.py does: ProcessGroupGloo,
DistributedDataParallel, OptimizerWrapper, a lighthouse with the settings named. It has no pipelines, and so nothing to
set beside the two stages of the last job.

* kill_to_commit_s: from the signal to the next step that is taken.
* rows_lost: of the rows that the schedule had for the eight steps after the kill and those that failed on the way, how
  many are in no step.
* rows_a_second: of the steps taken, before the kill and after the first one after it.
* batch_after: rows of the last step, of those planned.
"""

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

from rtk.benchmarks.common import write_result
from rtk.benchmarks.mlp_training import DEPTH, ROWS, layers, rows
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.tests.runners.processes import ProcessJob
from rtk.tests.warm import forking

PACE_S = 0.4  # a worker's computation of a step
MICROBATCHES = 4  # of a worker and step
BEFORE, AFTER = 6, 8  # steps
SCRIPT = Path(__file__).parent / "mlp_training.py"
# heartbeat_timeout_ms and join_timeout_ms of torchft's lighthouse: quick ones, and its command's own.
SETTINGS = {"2 s, 1 s": (2_000, 1_000), "defaults: 5 s, 60 s": (5_000, 60_000)}
FOREVER = 10**6


def with_rtk(pp: int, dp: int, seed: int) -> dict[str, Any]:
    """One kill in a job of rtk."""
    chance = random.Random(seed)
    each_s = PACE_S / MICROBATCHES / 3 / DEPTH  # a layer's F, I or W of a micro-batch
    profile = Profile(tuple(Layer((LayerCost(each_s, each_s, each_s),)) for _ in range(DEPTH)))
    plan = plan_pipeline(profile, Shape(pp, dp, MICROBATCHES * pp), "1f1b")
    planned = plan.total_microbatches() * ROWS
    with ProcessJob(plan, JobConfig(FOREVER), TrainingConfig(script=str(SCRIPT), paced=True)) as job:
        at = job.wait_for_iteration(BEFORE)
        time.sleep(chance.random() * PACE_S)
        killed_s, before = time.perf_counter(), len(job.said)
        job.signal(chance.choice(sorted(job.processes)), signal.SIGKILL)
        lost = job.wait_for(lambda one: one["event"] == "failure", since=before)
        commits = [one["at_s"] for one in job.said[: at + 1] if one["event"] == "iteration"][-BEFORE:]
        after: list[dict[str, Any]] = []
        while len(after) < AFTER:
            lost = job.wait_for(lambda one: one["event"] == "iteration", since=lost) + 1
            after.append(job.said[lost - 1])
        numbers = [one["iteration"] for one in job.said if one["event"] == "iteration"]
    if numbers != list(range(len(numbers))):
        raise RuntimeError(f"iterations are missing or double: {numbers}")
    times = [one["at_s"] for one in after]
    return {
        "kill_to_commit_s": times[0] - killed_s,
        "rows_lost": 0,  # a step is taken with all its rows or not at all, and all numbers are there
        "rows_a_second_before": planned * (len(commits) - 1) / (commits[-1] - commits[0]),
        "rows_a_second_after": planned * (len(times) - 1) / (times[-1] - times[0]),
        "batch_after": 1.0,
    }


def with_torchft(replicas: int, settings: tuple[int, int], seed: int) -> dict[str, Any]:
    """One kill in a job of torchft."""
    from torchft.coordination import LighthouseServer

    heartbeat_ms, join_ms = settings
    chance = random.Random(seed)
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=join_ms,
        quorum_tick_ms=100,
        heartbeat_timeout_ms=heartbeat_ms,
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{replica}.jsonl" for replica in range(replicas)]
        start = forking().Process
        processes = [
            start(target=be_replica, args=(replica, replicas, lighthouse.address(), str(file)), daemon=True)
            for replica, file in enumerate(files)
        ]
        for process in processes:
            process.start()
        try:
            wait_for(lambda: min(taken_with(files, replicas, 0.0)) >= BEFORE, 120)
            time.sleep(chance.random() * PACE_S)
            victim = chance.randrange(replicas)
            killed_s = time.monotonic()
            os.kill(processes[victim].pid or 0, signal.SIGKILL)
            others = [file for replica, file in enumerate(files) if replica != victim]
            wait_for(lambda: min(taken_with(others, replicas - 1, killed_s)) >= AFTER, 180)
        finally:
            for process in processes:
                process.kill()
                process.join()
            lighthouse.shutdown()
        told = [read(file) for file in files]
    return judged(told, victim, killed_s)


def be_replica(replica: int, replicas: int, lighthouse: str, file: str) -> None:
    """A replica group of one process: torchft's loop, paced."""
    from torchft import DistributedDataParallel, Manager, ProcessGroupGloo
    from torchft.optim import OptimizerWrapper

    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    inner = nn.Sequential(*layers())
    adam = torch.optim.AdamW(inner.parameters(), lr=1e-3)

    def load(state: dict[str, Any]) -> None:
        inner.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        load_state_dict=load,
        state_dict=lambda: {"model": inner.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica_{replica}",
        port=0,
    )
    model, optimizer = DistributedDataParallel(manager, inner), OptimizerWrapper(manager, adam)
    with Path(file).open("a") as log:
        for attempt in range(FOREVER):
            began_s = time.monotonic()
            own = [rows(attempt, replica * MICROBATCHES + one) for one in range(MICROBATCHES)]
            inputs, targets = (torch.cat(parts) for parts in zip(*own, strict=True))
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            time.sleep(max(0.0, began_s + PACE_S * 0.9 - time.monotonic()))
            loss.backward()  # type: ignore[no-untyped-call]
            step = manager.current_step()
            optimizer.step()
            taken = manager.current_step() > step
            told = {
                "attempt": attempt,
                "step": step,
                "taken": taken,
                "participating": manager.is_participating(),
                "participants": manager.num_participants(),
                "at_s": time.monotonic(),
            }
            log.write(json.dumps(told) + "\n")
            log.flush()


def read(file: Path) -> list[dict[str, Any]]:
    """What a replica has told so far."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def taken_with(files: list[Path], participants: int, since_s: float) -> list[int]:
    """How many steps each replica has taken with so many participants at most, and since when."""
    return [
        sum(one["taken"] and one["participants"] <= participants and one["at_s"] > since_s for one in read(file))
        for file in files
    ]


def wait_for(is_there: Callable[[], bool], limit_s: float) -> None:
    """Wait until something is so."""
    deadline_s = time.monotonic() + limit_s
    while not is_there():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"torchft's job did not get there in {limit_s} s")
        time.sleep(0.02)


def judged(told: list[list[dict[str, Any]]], victim: int, killed_s: float) -> dict[str, Any]:
    """The figures of a job of torchft, from what its replicas told."""
    replicas, each = len(told), MICROBATCHES * ROWS
    others = [lines for replica, lines in enumerate(told) if replica != victim]
    before = [one["at_s"] for one in others[0] if one["taken"] and one["at_s"] <= killed_s][-BEFORE:]
    after = [
        one
        for lines in others
        for one in lines
        if one["at_s"] > killed_s and one["taken"] and one["participants"] < replicas
    ]
    first = min(one["step"] for one in after)
    span = range(first, first + AFTER)
    steps = {step: [one for one in after if one["step"] == step] for step in span}
    rows_of = {step: each * sum(one["participating"] for one in steps[step]) for step in span}
    at_s = {step: min(one["at_s"] for one in steps[step]) for step in span}
    attempts = max(
        sum(killed_s < one["at_s"] and one["step"] <= span[-1] for one in lines) for lines in others
    )  # those that failed, and those that were taken
    seen = sum(rows_of.values())
    return {
        "kill_to_commit_s": at_s[first] - killed_s,
        "rows_lost": attempts * replicas * each - seen,
        "failed_attempts": attempts - AFTER,
        "rows_a_second_before": each * replicas * (len(before) - 1) / (before[-1] - before[0]),
        "rows_a_second_after": (seen - rows_of[first]) / (at_s[span[-1]] - at_s[first]),
        "batch_after": rows_of[span[-1]] / (each * replicas),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and the extremes of the time to the next step."""
    times = [run["kill_to_commit_s"] for run in runs]
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**medians, "kill_to_commit_least_s": min(times), "kill_to_commit_most_s": max(times), "runs": runs}


def main() -> None:
    """Kill in each of the jobs in turn, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=5, help="of each job")
    parser.add_argument("--only", default="", help="the jobs whose name holds this")
    parser.add_argument("-o", "--output", default="-", help="kills are added to those of a file that is there")
    given = parser.parse_args()
    jobs: dict[str, Callable[[int], dict[str, Any]]] = {}
    for dp in (2, 3, 4):
        jobs[f"rtk, PP 1 x DP {dp}"] = partial(with_rtk, 1, dp)
        for name, settings in SETTINGS.items():
            jobs[f"torchft ({name}), {dp} replicas"] = partial(with_torchft, dp, settings)
    jobs["rtk, PP 2 x DP 2"] = partial(with_rtk, 2, 2)
    wanted = {name: job for name, job in jobs.items() if given.only in name}
    there = Path(given.output)
    before = json.loads(there.read_text())["jobs"] if there.is_file() else {}
    runs: dict[str, list[dict[str, Any]]] = {name: found["runs"] for name, found in before.items()}
    for _ in range(given.kills):  # in turns, so that a change of the machine's mood meets all of them
        for name, job in wanted.items():
            runs.setdefault(name, []).append(job(len(runs.get(name, []))))
            print(name, json.dumps(runs[name][-1]), flush=True)
    result = {name: summary(found) for name, found in runs.items()}
    write_result({"pace_s": PACE_S, "torchft": version("torchft-nightly"), "jobs": result}, given.output)


if __name__ == "__main__":
    main()
