"""Stories of real signals: `python benchmarks/survival_signals.py --first 0 --count 10 -o benchmarks/results/FILE`.

To a job of 2 stages and 2 pipelines happen one to three things at random moments, each to a random worker:

* stop: SIGSTOP, and SIGCONT 0.3 to 4 s later; beyond the heartbeat limit of 2 s it is lost, and comes back;
* kill: SIGKILL;
* hang: its training thread does not come back from a layer, while its process lives;
* hang-stop: that, then SIGSTOP for 2.5 to 4 s: it comes back with a thread that is stuck in an old epoch;
* pause: its training thread hangs for 0.3 to 2 s, which is less than any limit.

Half of the killed and hung workers are replaced. A story has ended as documented if every iteration was committed once,
with the loss of a job that nothing happens to, nobody was given up but workers that something deadly had happened to,
no link was called broken, and who hung ended with 137; or, where all workers of a stage had been struck, with exit code
5 and that reason; and if no process is left behind: whoever comes when the job is over looks for a coordinator for a
minute, and ends with 5 (docs/resilience.md). Stories are told again by their numbers. Rows are added to those in the
file.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.hanging_model import SOURCE
from rtk.benchmarks.survival import exact, is_event, plan_of
from rtk.runners.resilience.progress import HUNG
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.errors import RuntimeFailedError
from rtk.schemas.plan import Plan
from rtk.tests.runners.processes import PATIENCE_S, ProcessJob

ITERATIONS = 60
# That a story may take: ten limits of 10 s for the last who holds a layer, where others use the cores as well.
MOST_S = 300.0
KINDS = ("stop", "stop", "kill", "hang", "hang-stop", "pause")
DEADLY_STOP_S = 2.0  # the heartbeat limit
TOLERANCE = 1e-12
# Who is told of the end is gone after so long, even if its thread hangs; who is not looks for a coordinator first.
TOLD_S = 12.0
UNTOLD_S = PATIENCE_S + TOLD_S
LATE = "looked for a coordinator"


@dataclass(frozen=True)
class Fault:
    """What happens to a worker, so long after a commit; a stop or a pause lasts `lasts_s`."""

    kind: str
    worker: str
    iteration: int
    after_s: float
    lasts_s: float
    is_replaced: bool


@dataclass
class Story:
    """One job, and what happens to it.

    Attributes:
        number: its seed.
        folder: with the model's file, and those by which workers hang.
        plan: what is executed.
        faults: what happens, in order.
        stall_limit_s: of its coordinator.
    """

    number: int
    folder: Path
    plan: Plan
    faults: list[Fault] = field(default_factory=list)
    stall_limit_s: float | None = None

    def __post_init__(self) -> None:
        chance = random.Random(self.number)
        names = [worker.name for worker in self.plan.live_workers()]
        self.stall_limit_s = chance.choice([None, 3.0])
        for _ in range(chance.randint(1, 3)):
            kind = chance.choice(KINDS)
            lasts_s = {"stop": (0.3, 4.0), "hang-stop": (2.5, 4.0)}.get(kind, (0.3, 2.0))
            self.faults.append(
                Fault(
                    kind,
                    chance.choice(names),
                    chance.randint(2, ITERATIONS - 15),
                    chance.random() * 0.3,
                    chance.uniform(*lasts_s),
                    chance.random() < 0.5,
                )
            )
        self.faults.sort(key=lambda fault: fault.iteration)

    def tell(self, reference: list[float]) -> dict[str, Any]:
        """Let it happen, and see how it ends."""
        how = JobConfig(ITERATIONS, stall_limit_s=self.stall_limit_s)
        begun_s = time.perf_counter()
        with ProcessJob(self.plan, how, hanging(self.folder)) as job:
            striking = threading.Thread(target=self._strike_all, args=(job,), daemon=True)
            striking.start()
            job._leading.join(MOST_S)
            has_ended = not job._leading.is_alive()
            took_s = time.perf_counter() - begun_s
            striking.join(10)
            codes = ends_of(job)
            result = job._finished
        return self._row(job, result if has_ended else None, codes, took_s, reference)

    def _strike_all(self, job: ProcessJob) -> None:
        for fault in self.faults:
            try:
                job.wait_for(partial(is_commit_or_end, fault.iteration), MOST_S)
            except AssertionError:
                return
            time.sleep(fault.after_s)
            self._strike(job, fault)

    def _strike(self, job: ProcessJob, fault: Fault) -> None:
        process = job.processes[fault.worker]
        if not process.is_alive() or job._finished is not None:
            return
        file = self.folder / str(process.pid)
        if fault.kind in ("hang", "hang-stop", "pause"):
            file.touch()
        if fault.kind == "kill":
            process.kill()
        if fault.kind in ("stop", "hang-stop"):
            if fault.kind == "hang-stop":
                time.sleep(0.5)  # until it hangs
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(fault.lasts_s)
            os.kill(process.pid, signal.SIGCONT)
        if fault.kind == "pause":
            time.sleep(fault.lasts_s)
            file.unlink()
        if fault.kind in ("kill", "hang", "hang-stop") and fault.is_replaced:
            process.join(60)
            if not any(map(is_event("end"), job.said)) and not process.is_alive():
                job.start(fault.worker)

    def _row(
        self, job: ProcessJob, result: Any, codes: dict[str, int | str | None], took_s: float, reference: list[float]
    ) -> dict[str, Any]:
        failures = [one for one in job.said if one["event"] == "failure"]
        deadly = {f.worker for f in self.faults if f.kind != "pause" and not (f.kind == "stop" and f.lasts_s < 1.7)}
        row = {
            "story": self.number,
            "faults": [vars_of(fault) for fault in self.faults],
            "stall_limit_s": self.stall_limit_s,
            "exit_code": None if result is None else result.exit_code,
            "reason": None if result is None else result.reason,
            "epochs": max(one.get("epoch", 0) for one in job.said),
            "failures": [{"worker": one["worker"], "reason": one["reason"]} for one in failures],
            "joins": sum(is_event("join")(one) for one in job.said),
            "broken_links": sum(is_event("broken_link")(one) for one in job.said),
            "innocents_lost": sorted({one["worker"] for one in failures} - deadly),
            "process_exit_codes": codes,
            "took_s": round(took_s, 2),
        }
        losses = job.losses()
        numbers = [one["iteration"] for one in job.said if one["event"] == "iteration"]
        row["iterations"] = len(losses)
        row["committed_once"] = numbers == list(range(len(numbers)))
        row["loss_difference"] = max((abs(a - b) for a, b in zip(losses, reference, strict=False)), default=0.0)
        row["as_documented"] = self._is_as_documented(row, deadly)
        return row

    def _is_as_documented(self, row: dict[str, Any], deadly: set[str]) -> bool:
        is_whole = row["committed_once"] and row["loss_difference"] <= TOLERANCE
        is_fair = not row["innocents_lost"] and not row["broken_links"]
        stages = [{worker.name for worker in self.plan.live_workers() if worker.stage == i} for i in range(2)]
        is_lost = any(stage <= deadly for stage in stages)
        ended = (row["exit_code"] == 0 and row["iterations"] == ITERATIONS) or (
            row["exit_code"] == 5 and is_lost and "nobody is left who holds" in row["reason"]
        )
        codes = set(row["process_exit_codes"].values())
        expected = {row["exit_code"], HUNG, -signal.SIGKILL, LATE}
        return bool(is_whole and is_fair and ended and codes <= expected)


def ends_of(job: ProcessJob) -> dict[str, int | str | None]:
    """By worker, how its process ended after the job: its exit code, or `LATE`, or None where it is left behind."""
    wait_for_ends(job, TOLD_S)
    late = [name for name, process in job.processes.items() if process.is_alive()]
    wait_for_ends(job, UNTOLD_S - TOLD_S)
    codes: dict[str, int | str | None] = {name: process.exitcode for name, process in job.processes.items()}
    return codes | {name: LATE for name in late if codes[name] == RuntimeFailedError.exit_code}


def wait_for_ends(job: ProcessJob, most_s: float) -> None:
    """Until all processes have ended, but no longer than that."""
    deadline_s = time.monotonic() + most_s
    for process in job.processes.values():
        process.join(max(0.0, deadline_s - time.monotonic()))


def is_commit_or_end(iteration: int, one: dict[str, Any]) -> bool:
    """Whether an announcement is of an iteration, or of a later one, or the last of all."""
    return bool(one["event"] == "end" or (one["event"] == "iteration" and one["iteration"] >= iteration))


def vars_of(fault: Fault) -> dict[str, Any]:
    """A fault as JSON."""
    return {**asdict(fault), "after_s": round(fault.after_s, 3), "lasts_s": round(fault.lasts_s, 3)}


def hanging(folder: Path) -> TrainingConfig:
    """In double precision, with layers that can hang."""
    return replace(exact(), model=f"{folder / 'model.py'}:layers")


def undisturbed(plan: Plan, folder: Path) -> list[float]:
    """The losses of a job that nothing happens to."""
    with ProcessJob(plan, JobConfig(ITERATIONS), hanging(folder)) as job:
        job.result(timeout_s=600)
        return job.losses()


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """All stories together."""
    kinds = [fault["kind"] for row in rows for fault in row["faults"]]
    return {
        "stories": len(rows),
        "as_documented": sum(row["as_documented"] for row in rows),
        "ended_with_0": sum(row["exit_code"] == 0 for row in rows),
        "ended_with_5": sum(row["exit_code"] == 5 for row in rows),
        "did_not_end": sum(row["exit_code"] is None for row in rows),
        "innocents_lost": sum(len(row["innocents_lost"]) for row in rows),
        "broken_links": sum(row["broken_links"] for row in rows),
        "largest_loss_difference": max(row["loss_difference"] for row in rows),
        "faults": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "most_epochs": max(row["epochs"] for row in rows),
        "longest_s": max(row["took_s"] for row in rows),
    }


def main() -> None:
    """Tell some stories, and add them to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("-o", "--output", default="-")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.py").write_text(SOURCE)
        plan = plan_of(2, 2)
        reference = undisturbed(plan, Path(folder))
        rows = []
        for number in range(arguments.first, arguments.first + arguments.count):
            rows.append(Story(number, Path(folder), plan).tell(reference))
            print(json.dumps({k: v for k, v in rows[-1].items() if k != "faults"}), file=sys.stderr, flush=True)
    path = Path(arguments.output)
    if path.exists():
        told = {row["story"] for row in rows}
        rows += [row for row in json.loads(path.read_text())["rows"] if row["story"] not in told]
    rows.sort(key=lambda row: row["story"])
    write_result({"summary": summary(rows), "rows": rows}, arguments.output)


if __name__ == "__main__":
    main()
