"""What failures cost a real run: `python benchmarks/survival.py --only SECTION [-o FILE]`.

* chaos: cycles of a random SIGKILL and a re-join, in a job of real processes; the losses beside those of a job that
  nothing happens to.
* coordinator: `rtk coordinate` killed in mid-iteration, and started again, or taken over by a standby.
* throughput: one of 12 workers dead, each technique, paced, against the plan's prediction.
* overhead: CPU time of a healthy iteration, beside the plain runner's.

Workers are forked from a process that has imported torch, so that a replacement is there in half a second; all share
this machine's cores.
"""

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from rtk.benchmarks.common import write_result
from rtk.planners.oobleck.plan import plan_oobleck
from rtk.planners.oobleck.templates import plan_templates
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.planners.slipstream.cluster import AtlasRequest, Technique, opening
from rtk.planners.slipstream.replanner import Replanner
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.tests.runners.processes import ProcessJob, work
from rtk.tests.warm import forking

LAYERS = 10  # of gpt-tiny
FOREVER = 10**6
WARM = 10  # iterations before anything is measured
SMALL, DOUBLE = (Path(__file__).parent / f"{name}_model.py:layers" for name in ("small", "double"))
SECRET_TEXT = b"a secret for the benchmark"


def training(model: Path | str = "gpt-tiny", learning_rate: float = 1e-3, paced: bool = False) -> TrainingConfig:
    """On micro-batches so small that many workers can share two cores."""
    return TrainingConfig(str(model), (), learning_rate, 2, 32, 1, paced)


def exact() -> TrainingConfig:
    """In double precision, and slow enough for rounding not to grow: what differs then was lost or done twice."""
    return TrainingConfig(str(DOUBLE), (), 1e-4, 1, 32, 1, False)


def even_profile(layers: int, seconds: float) -> Profile:
    """Layers of equal times."""
    return Profile(tuple(Layer((LayerCost(seconds, seconds, seconds),)) for _ in range(layers)))


def plan_of(pp: int, dp: int, microbatches: int = 4) -> Plan:
    """1F1B over equal layers."""
    return plan_pipeline(even_profile(LAYERS, 0.003), Shape(pp, dp, microbatches), "1f1b")


def is_event(name: str, **fields: Any) -> Any:
    """Tells an announcement."""
    return lambda one: one["event"] == name and all(one.get(key) == value for key, value in fields.items())


def unlike_plan(nodes: int, smallest: int, microbatches: int) -> Plan:
    """Pipelines of `smallest` single-worker nodes or more, from templates over equal layers."""
    room_bytes = float(-(-LAYERS // smallest))  # for so many layers, each of one byte
    layer = Layer((LayerCost(0.003, 0.003, 0.003),), state_bytes=1.0)
    templates = plan_templates(Profile((layer,) * LAYERS), nodes, 1, 1, memory_limit_bytes=room_bytes)
    return plan_oobleck(templates, nodes, microbatches, 1)


def chaos(plan: Plan, cycles: int, seed: int) -> dict[str, Any]:
    """Kill a random worker at a random moment, let a replacement join, and so on."""
    chance = random.Random(seed)
    kills, joins, respawns = [], [], []
    with ProcessJob(plan, JobConfig(FOREVER), exact()) as job:
        job.wait_for_iteration(5)
        for _ in range(cycles):
            name = chance.choice(sorted(job.processes))
            time.sleep(chance.random() * recent_s(job))
            killed_s, since = time.perf_counter(), len(job.said)
            job.signal(name, signal.SIGKILL)
            at = job.wait_for(is_event("recovered"), since=since)
            kills.append(job.said[at]["at_s"] - killed_s)
            started_s, since = time.perf_counter(), len(job.said)
            job.start(name)
            at = job.wait_for(is_event("join", worker=name), since=since)
            respawns.append(job.said[at]["at_s"] - started_s)
            at = job.wait_for(is_event("recovered"), since=at)
            joins.append(job.said[at]["seconds"])
        iterations = [one["iteration_time_s"] for one in job.said if is_healthy(one, plan)]
        losses, epochs = job.losses(), job.said[-1]["epoch"]
        miscounted = sum("micro-batches" in str(one.get("reason")) for one in job.said)
    healthy_s = statistics.median(iterations)
    return {
        "stages": [len(plan.template_of(k).stages) for k in range(len(plan.pipelines))],
        "cycles": cycles,
        "survived": len(joins),
        "iterations": len(losses),
        "epochs": epochs,
        "healthy_iteration_s": healthy_s,
        "kill_to_commit_s": tail_of(kills),
        "kill_to_commit_iterations": statistics.median(kills) / healthy_s,
        "hello_to_commit_s": tail_of(joins),
        "hello_to_commit_iterations": statistics.median(joins) / healthy_s,
        "respawn_to_join_s": tail_of(respawns),
        "loss_difference": loss_difference(plan, losses),
        "miscounted_iterations": miscounted,  # the coordinator counts at every commit
    }


def leaks(cycles: int) -> dict[str, Any]:
    """One worker lives on while another one is killed again and again: what does it hold after all these epochs?"""
    with ProcessJob(plan_of(3, 2), JobConfig(FOREVER), training()) as job:
        job.wait_for_iteration(5)
        held = [watched(job, "0/0")]
        for _ in range(cycles):
            since = len(job.said)
            job.signal("1/2", signal.SIGKILL)
            since = job.wait_for(is_event("recovered"), since=since)
            job.start("1/2")
            job.wait_for(is_event("recovered"), since=since + 1)
            held.append(watched(job, "0/0"))
        return {"epochs": job.said[-1]["epoch"], "before": held[0], "middle": held[len(held) // 2], "after": held[-1]}


def is_healthy(one: dict[str, Any], plan: Plan) -> bool:
    """Whether an announcement is of an iteration with all workers."""
    return bool(one["event"] == "iteration" and one["live_workers"] == len(plan.live_workers()))


def recent_s(job: ProcessJob) -> float:
    """What an iteration takes just now."""
    times: list[float] = [one["iteration_time_s"] for one in job.said[-40:] if one["event"] == "iteration"]
    return statistics.median(times)


def loss_difference(plan: Plan, losses: list[float]) -> float:
    """The largest difference to the losses of a job that nothing happens to."""
    with ProcessJob(plan, JobConfig(len(losses)), exact()) as job:
        job.result(timeout_s=3600)
        return max(abs(one - other) for one, other in zip(losses, job.losses(), strict=True))


def tail_of(values: list[float]) -> dict[str, float]:
    """Median, 90th percentile and largest."""
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "p90": ordered[int(0.9 * len(ordered))], "max": ordered[-1]}


def watched(job: ProcessJob, name: str) -> dict[str, Any]:
    """Threads, descriptors and memory of a worker, between two iterations or in one."""
    pid = job.processes[name].pid
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "resident_mb": int(status["VmRSS"].split()[0]) / 1024,
    }


class LedJob:
    """A job led by `rtk coordinate` in a process of its own, which can be killed.

    Args:
        folder: for the plan, the secret and the log.
        plan: what is executed.
        asked: what is trained.

    Attributes:
        said: all that its coordinators have announced, each with the time (`at_s`, of `time.perf_counter`).
        commits: the iterations among it.
        workers: the processes of the workers, by name.
    """

    def __init__(self, folder: Path, plan: Plan, asked: TrainingConfig | None = None) -> None:
        self.folder, self.plan, self._asked = folder, plan, asked or training()
        self.said: list[dict[str, Any]] = []
        self.commits: list[dict[str, Any]] = []
        (folder / "plan.json").write_bytes(canonical(plan))
        (folder / "secret").touch(0o600)
        (folder / "secret").write_bytes(SECRET_TEXT)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.coordinators: list[subprocess.Popen[str]] = []
        self.workers: dict[str, Any] = {}

    def coordinate(self, *options: str) -> None:
        """Start a coordinator, or a standby."""
        command = [
            sys.executable,
            "-m",
            "rtk.cli.main",
            "coordinate",
            "plan.json",
            "--json",
            "--iterations",
            str(FOREVER),
        ]
        led = ["--listen", self.address, "--secret-file", "secret", "--log", "log", *options]
        process = subprocess.Popen([*command, *led], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        self.coordinators.append(process)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()

    def start_workers(self) -> None:
        """All of them."""
        for worker in self.plan.live_workers():
            self.start(worker.name)

    def start(self, name: str) -> None:
        """A worker, or its replacement."""
        arguments = (canonical(self.plan), self._asked, name, [self.address], SECRET_TEXT, 0)
        self.workers[name] = forking().Process(target=work, args=arguments, daemon=True)
        self.workers[name].start()

    def wait_for_commit(self, number: int, timeout_s: float = 90.0) -> None:
        """Wait for so many commits."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.commits) < number:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"only {len(self.commits)} commits")
            time.sleep(0.002)

    def end(self) -> None:
        """End everything."""
        for process in [*self.workers.values(), *self.coordinators]:
            process.kill()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = {**json.loads(line), "at_s": time.perf_counter()}
            self.said.append(said)
            if said["event"] == "iteration":
                self.commits.append(said)


def coordinator(cycles: int, seed: int) -> dict[str, Any]:
    """Kill the coordinator in mid-iteration; every second time a standby takes over."""
    chance = random.Random(seed)
    lost: dict[str, list[float]] = {"restarted": [], "taken over": []}
    with tempfile.TemporaryDirectory() as folder:
        job = LedJob(Path(folder), plan_of(2, 2))
        job.coordinate()
        job.start_workers()
        try:
            job.wait_for_commit(10)
            pids = [process.pid for process in job.workers.values()]
            for cycle in range(cycles):
                how = "taken over" if cycle % 2 else "restarted"
                lost[how].append(_killed_coordinator(job, chance, standby=bool(cycle % 2)))
            alive = [process.pid for process in job.workers.values() if process.is_alive()]
        finally:
            job.end()
    numbers = [one["iteration"] for one in job.commits]
    gaps = _gaps_s(job.commits)
    healthy_s = statistics.median(gaps)
    return {
        "cycles": cycles,
        "survived": sum(map(len, lost.values())),
        "workers_restarted": len(set(pids) - set(alive)),
        "iterations": len(numbers),
        "committed_twice": len(numbers) - len(set(numbers)),
        "not_announced": max(numbers) + 1 - len(set(numbers)),  # committed in the very moment of a kill
        "healthy_iteration_s": healthy_s,
        "lost_s": {how: tail_of(values) for how, values in lost.items()},
        "lost_iterations": {how: statistics.median(values) / healthy_s for how, values in lost.items()},
    }


def _gaps_s(commits: Sequence[Mapping[str, Any]]) -> list[float]:
    """Between each two that follow each other."""
    return [after["at_s"] - before["at_s"] for before, after in pairwise(commits)]


def _killed_coordinator(job: LedJob, chance: random.Random, standby: bool) -> float:
    """Seconds between two commits, beyond what an iteration takes, when the coordinator is killed between them."""
    if standby:
        job.coordinate("--standby")
        time.sleep(2.0)  # until it waits
    job.wait_for_commit(len(job.commits) + 4)
    usual_s = statistics.median(_gaps_s(job.commits[-5:]))
    time.sleep(chance.random() * usual_s)
    primary = job.coordinators[-2] if standby else job.coordinators[-1]
    primary.kill()
    primary.wait()
    killed = len(job.commits)
    if not standby:
        job.coordinate()
    job.wait_for_commit(killed + 2)
    return max(0.0, max(_gaps_s(job.commits[killed - 1 : killed + 2])) - usual_s)


def throughput(slot_s: float, iterations: int) -> dict[str, Any]:
    """One of 12 workers dead: the paced iteration time of every technique, beside the plan's prediction."""
    rows = []
    profile = even_profile(12, slot_s / 3)
    for technique in get_args(Technique):
        request = AtlasRequest(Shape(4, 3, 6), technique)
        plan = Replanner(opening(profile, request), 1).in_place(frozenset({(1, 2)}))
        with ProcessJob(plan, JobConfig(iterations), training(SMALL, paced=True)) as job:
            job.result(timeout_s=600)
            times = [one["iteration_time_s"] for one in job.said if one["event"] == "iteration"]
        assert plan.prediction is not None
        predicted_s, measured_s = plan.prediction.iteration_time_s, statistics.median(times[2:])
        rows.append(
            {
                "technique": technique,
                "slots": round(predicted_s / slot_s),
                "predicted_s": predicted_s,
                "measured_s": tail_of(times[2:]),
                "difference": measured_s / predicted_s - 1,
            }
        )
    return {"slot_s": slot_s, "iterations": iterations, "rows": rows}


def overhead(rounds: int, iterations: int) -> dict[str, Any]:
    """CPU seconds of a healthy iteration, all processes together, in turns with the plain runner."""
    plan = plan_of(2, 2)
    found: dict[str, list[float]] = {"plain": [], "resilient": []}
    for _ in range(rounds):
        found["plain"].append(plain_cpu_s(plan, iterations))
        found["resilient"].append(resilient_cpu_s(plan, iterations))
    ratios = [b / a for a, b in zip(found["plain"], found["resilient"], strict=True)]
    return {"iterations": iterations, "cpu_s": found, "ratios": ratios, "median_ratio": statistics.median(ratios)}


def resilient_cpu_s(plan: Plan, iterations: int) -> float:
    """Of the workers and the coordinator, for one iteration."""
    with ProcessJob(plan, JobConfig(FOREVER), training()) as job:
        job.wait_for_iteration(WARM)
        before_s, first = _job_cpu_s(job), len(job.losses())
        job.wait_for_iteration(WARM + iterations, timeout_s=600)
        return (_job_cpu_s(job) - before_s) / (len(job.losses()) - first)


def _job_cpu_s(job: ProcessJob) -> float:
    return time.process_time() + sum(process_cpu_s(process.pid) for process in job.processes.values())


def process_cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plain_cpu_s(plan: Plan, iterations: int) -> float:
    """Of the workers alone, for one iteration of the runner that a failure ends."""
    context = forking()
    results = context.SimpleQueue()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    from rtk.runners.torch.groups import TCPStore

    store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    workers = [
        context.Process(target=plain_worker, args=(canonical(plan), rank, port, iterations, results))
        for rank in range(len(plan.live_workers()))
    ]
    for worker in workers:
        worker.start()
    spent = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    del store
    return float(sum(spent)) / iterations


def plain_worker(plan: bytes, rank: int, port: int, iterations: int, results: Any) -> None:
    """One rank of a plain run; says what CPU time its iterations took."""
    import torch

    from rtk.runners.torch.groups import TCPStore
    from rtk.runners.torch.runner import PlanRunner
    from rtk.training import Training

    torch.set_num_threads(1)
    read = parse_document(plan, Plan, "the plan")
    model, corpus = Training.of(training()).load(read)
    store = TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)
    runner = PlanRunner(
        read,
        model.layers,
        model.loss,
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        rank=rank,
        world_size=len(read.live_workers()),
        store=store,
    )
    for iteration in range(WARM):
        runner.step(corpus.batch(iteration))
    before_s = time.process_time()
    for iteration in range(WARM, WARM + iterations):
        runner.step(corpus.batch(iteration))
    results.put(time.process_time() - before_s)
    runner.close()


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "chaos-3x2": lambda: chaos(plan_of(3, 2), 250, seed=1),
    "chaos-4x2": lambda: chaos(plan_of(4, 2), 250, seed=2),
    "chaos-3+2": lambda: chaos(unlike_plan(5, 2, 10), 100, seed=4),
    "chaos-5+2": lambda: chaos(unlike_plan(7, 2, 28), 100, seed=5),
    "leaks": lambda: leaks(50),
    "coordinator": lambda: coordinator(20, seed=3),
    "throughput": lambda: throughput(0.04, 14),
    "overhead": lambda: overhead(5, 100),
}


def main() -> None:
    """Measure one section and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SECTIONS, required=True)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    write_result({arguments.only: SECTIONS[arguments.only]()}, arguments.output)


if __name__ == "__main__":
    main()
