"""What watching a running job costs: `python benchmarks/monitor_live.py [--quick] [-o FILE]`.

Jobs of four worker processes (2 stages, 2 pipelines) and a coordinator: paced ones that compute next to nothing, so
that everything else weighs most, and one that trains gpt-tiny as fast as it can. In turns with the monitor; without
anybody who looks (the coordinator has no monitor, workers measure nothing and vote without measurements); and with
clocks around all that measuring and looking consists of. Of each turn: processor time of all processes, user and
system, between two commits, as the kernel counts it. `accounted` is the share of processor time that is spent inside
these clocks: where two turns differ by chance more than by the monitor, it is the better figure. `of_a_core` is the
same per wall time.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rtk.benchmarks.common import spread, write_result
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.recovery.answers import PolicyName
from rtk.planners.shape import Shape
from rtk.runners.resilience.protocol import Vote, encode, from_worker
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.documents import canonical
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.protocols import Measured
from rtk.tests.runners.processes import ProcessJob, work
from rtk.tests.warm import fork

SMALL = Path(__file__).parent / "small_model.py"
WARM = 5  # iterations before anything is counted
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
REPEATED = 500  # times that a vote is encoded and read, to see what its measurements cost


@dataclass(frozen=True)
class Case:
    """A job: its model, what its operations take, and how many micro-batches a pipeline has."""

    name: str
    training: TrainingConfig
    layers: int
    operation_s: float
    microbatches: int
    iterations: int

    def plan(self) -> Plan:
        """1F1B, two stages and two pipelines."""
        share_s = self.operation_s * 2 / self.layers
        layer = Layer((LayerCost(share_s, share_s, share_s),))
        return plan_pipeline(Profile((layer,) * self.layers), Shape(2, 2, self.microbatches), "1f1b")


CASES = (
    Case("paced", TrainingConfig(f"{SMALL}:eight", (), 1e-3, 2, 32, 1, True, "auto", 0), 8, 0.02, 4, 45),
    Case("training", TrainingConfig("gpt-tiny", (), 1e-4, 4, 64, 1, False, "auto", 0), 10, 0.01, 4, 30),
)


class Clocked:
    """A function, and the processor time that its thread spends in it."""

    def __init__(self, owner: type, name: str) -> None:
        self.spent_s, self.calls = 0.0, 0
        inner = getattr(owner, name)

        def clocked(*arguments: Any, **options: Any) -> Any:
            begun_s = time.thread_time()
            try:
                return inner(*arguments, **options)
            finally:
                self.spent_s += time.thread_time() - begun_s
                self.calls += 1

        setattr(owner, name, clocked)


class WatchedJob(ProcessJob):
    """A job whose workers say at the end what measuring has cost them (`mode` clocked), or do not measure (off)."""

    mode = "on"
    folder = "."

    def start(self, name: str, not_before: int = 0) -> None:
        """Start a worker."""
        arguments = (canonical(self.plan), self.training, name, self.addresses, self.secret, not_before)
        self.processes[name] = fork(__file__, self.mode, self.folder, *arguments)


def be_worker(mode: str, folder: str, *arguments: Any) -> None:
    """A worker's process."""
    from rtk.runners.torch.resilient import ResilientWorker
    from rtk.runners.torch.transport import Transfers

    names = ("handed_over", "received")
    clocks: list[Clocked] = []
    last: list[Measured] = []
    if mode == "off":
        ResilientWorker._measured = lambda *_: None  # type: ignore[assignment, method-assign]
        for name in names:
            setattr(Transfers, name, lambda *_: None)
    if mode == "clocked":
        inner = ResilientWorker._measured

        def measured(*own: Any) -> Measured:
            last[:] = [inner(*own)]
            return last[0]

        ResilientWorker._measured = measured  # type: ignore[method-assign, assignment]
        clocks = [Clocked(ResilientWorker, "_measured"), *(Clocked(Transfers, name) for name in names)]
    work(*arguments)
    if clocks:
        spent_s = sum(clock.spent_s for clock in clocks) + clocks[0].calls * vote_s(last[0])
        (Path(folder) / arguments[2].replace("/", "-")).write_text(json.dumps(spent_s / clocks[0].calls))


def vote_s(measured: Measured) -> float:
    """What a vote's measurements cost: to be encoded, and read by the coordinator."""
    vote = Vote(1, 1, True, (0, 1, 2, 3), ((0, 1.0),), measured)

    def takes_s(one: Vote) -> float:
        begun_s = time.thread_time()
        for _ in range(REPEATED):
            from_worker(encode(one))
        return (time.thread_time() - begun_s) / REPEATED

    return takes_s(vote) - takes_s(replace(vote, measured=None))


def processor_s(pids: list[int]) -> float:
    """Of some processes, and of this one, so far."""
    total = 0
    for pid in [*pids, os.getpid()]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def turn(case: Case, mode: str) -> dict[str, float]:
    """A job; processor and wall time of an iteration, and how much of it watching is where that is clocked."""
    from rtk.profilers.failslow.monitor.ring import LiveMonitor

    with tempfile.TemporaryDirectory() as folder:
        job = WatchedJob(
            case.plan(), JobConfig(case.iterations, policy=PolicyName.SLIPSTREAM), replace(case.training, paced=True)
        )
        job.training, job.mode, job.folder = case.training, mode, folder
        surroundings = job.server._around
        looking = Clocked(LiveMonitor, "note") if mode == "clocked" else None
        if mode == "off":
            job.server._around = replace(surroundings, monitor=None)
        with job:
            pids = [process.pid for process in job.processes.values()]
            job.wait_for_iteration(WARM)
            begun_s, spent_s = time.perf_counter(), processor_s(pids)
            job.wait_for_iteration(case.iterations - 2, 600.0)
            took_s, spent_s = time.perf_counter() - begun_s, processor_s(pids) - spent_s
            assert job.result(600.0).exit_code == 0
            for process in job.processes.values():
                process.join(10)
        count = case.iterations - 2 - WARM
        found = {"processor_s": spent_s / count, "wall_s": took_s / count}
        if looking is not None:
            workers_s = sum(float(file.read_text()) for file in Path(folder).iterdir())
            found["measuring_s"], found["looking_s"] = workers_s, looking.spent_s / case.iterations
            found["watching_s"] = found["measuring_s"] + found["looking_s"]
        return found


def measure(case: Case, turns: int) -> dict[str, Any]:
    """All modes in turns."""
    modes = ("on", "off", "clocked")
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for number in range(turns):
        for mode in modes[number % 3 :] + modes[: number % 3]:
            found[mode].append(turn(case, mode))
    processor_s = {mode: [one["processor_s"] for one in own] for mode, own in found.items()}
    watching_s = [one["watching_s"] for one in found["clocked"]]
    clocked = found["clocked"]
    ratios = [on / off - 1 for on, off in zip(processor_s["on"], processor_s["off"], strict=True)]
    return {
        "workers": 4,
        "iteration_s": median(one["wall_s"] for one in found["on"]),
        "processor_s": {mode: spread(values) for mode, values in processor_s.items()},
        "on_over_off": spread(ratios),
        "watching_s": spread(watching_s),
        "measuring_s": median(one["measuring_s"] for one in clocked),
        "looking_s": median(one["looking_s"] for one in clocked),
        "accounted": median(one["watching_s"] / one["processor_s"] for one in clocked),
        "of_a_core": median(one["watching_s"] / one["wall_s"] for one in clocked),
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two turns of short jobs")
    parser.add_argument("-o", "--output", default="-")
    options = parser.parse_args()
    cases = [replace(case, iterations=20) if options.quick else case for case in CASES]
    turns = 2 if options.quick else 4
    write_result({"monitor_live": {case.name: measure(case, turns) for case in cases}}, options.output)


if __name__ == "worker":
    be_worker(*ARGUMENTS)  # type: ignore[name-defined]  # noqa: F821
elif __name__ == "__main__":
    main()
