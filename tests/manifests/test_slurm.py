"""The batch script for Slurm, run by a shell with stand-ins for srun and scontrol: real coordinator, real workers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rtk
from rtk.schemas.checkpoint import Checkpoint
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..cli.shell import children, wait_for
from ..ports import free_port

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.checkout,
    pytest.mark.timeout(400),
]  # five processes load torch, on a machine that may be busy

SCRIPT = Path(__file__).parents[2] / "docs/slurm.sh"
PROGRAMS = {
    "rtk": f'exec {sys.executable} -m rtk.cli.main "$@"',
    "hostname": "echo 127.0.0.1",
    "scontrol": 'echo "$@" >>scontrol.said',
    # The tasks of a step, each a group of processes of its own on this machine.
    "srun": """set -m
echo "$@" | head -n 1 >srun.said
while [[ $1 == -* ]]; do shift; done
rm -f tasks
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$task "$@" &
    echo $! >>tasks
done
wait""",
}


class Batch:
    """A batch job: the script in a folder, started as often as Slurm would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port, self._started = free_port(), list[subprocess.Popen[bytes]]()

    def start(self, attempt: int, iterations: int) -> subprocess.Popen[bytes]:
        """Run the script, for the first time or after a requeue."""
        with (self.folder / f"out.{attempt}").open("wb") as out:
            process = subprocess.Popen(
                ["bash", str(SCRIPT)],
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                    "SLURM_JOB_ID": "7",
                    "SLURM_NTASKS": "2",
                    "SLURM_RESTART_COUNT": str(attempt),
                    "ITERATIONS": str(iterations),
                    "PORT": str(self._port),
                },
            )
        self._started.append(process)
        return process

    def said(self, attempt: int) -> str:
        """All output of an attempt."""
        return (self.folder / f"out.{attempt}").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the coordinator's metrics say so far."""
        path = self.folder / "rtk-job/metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = []
        for line in lines:
            with suppress(json.JSONDecodeError):  # the last one is being written
                events.append(json.loads(line))
        return [event for event in events if event["event"] == name]

    @property
    def tasks(self) -> list[int]:
        """The shells of the step's tasks."""
        return [int(line) for line in (self.folder / "tasks").read_text().split()]

    def worker_of(self, task: int) -> int:
        """The process of rtk that a task's shell has started last."""
        return children(self.tasks[task])[-1]

    def close(self) -> None:
        """End whatever is left of it."""
        groups = [process.pid for process in self._started]
        for group in [*groups, *(self.tasks if (self.folder / "tasks").exists() else ())]:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


@pytest.fixture
def batch(tmp_path: Path) -> Iterator[Batch]:
    """A plan of two pipelines of one stage for gpt-tiny, and the programs of a cluster."""
    (tmp_path / "bin").mkdir()
    for name, body in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    cost = LayerCost(0.004, 0.004, 0.004)
    profile = Profile((Layer((cost,)),) * 10, microbatch_size=1, sequence_length=16)
    plan = rtk.plan_pipeline(profile, schedule="1f1b", pp=1, dp=2, microbatches=2)
    write_document(str(tmp_path / "plan.json"), plan)
    (tmp_path / "rtk.toml").write_text("[training]\nthreads = 1\npaced = true\n")
    job = Batch(tmp_path)
    yield job
    job.close()


def test_a_batch_job_survives_a_worker_and_is_requeued(batch: Batch) -> None:
    """A worker is killed: the other goes on, a new one joins. The time is up: both save and leave, the job requeues
    itself with exit code 5. It starts again: it goes on after the checkpoint, with a new log, and ends with 0."""
    job = batch.start(0, 100_000)
    wait_for(lambda: len(batch.events("iteration")) > 2 or job.poll() is not None, "training begins", 120)
    assert job.poll() is None, batch.said(0)
    os.kill(batch.worker_of(1), signal.SIGKILL)
    wait_for(lambda: bool(batch.events("join")) or job.poll() is not None, "a new worker joins", 120)
    assert len(batch.events("failure")) == 1, batch.said(0)
    for task in batch.tasks:  # what Slurm does at the time of --signal: with cgroups only the tasks themselves hear it
        os.kill(task, signal.SIGTERM)
    assert job.wait(120) == 5, batch.said(0)
    assert (batch.folder / "scontrol.said").read_text() == "requeue 7\n"
    assert "--kill-on-bad-exit=0" in (batch.folder / "srun.said").read_text()
    done = [event["iteration"] for event in batch.events("iteration")]

    saved = batch.folder / "rtk-job/checkpoints"
    (step,) = (read_document(str(path), Checkpoint).iteration for path in saved.glob("step-*/checkpoint.json"))
    assert step == done[-1] + 1
    again = batch.start(1, step + 3)
    assert again.wait(180) == 0, batch.said(1)
    after = [event["iteration"] for event in batch.events("iteration")][len(done) :]
    assert after == [step, step + 1, step + 2]
    assert all((batch.folder / f"rtk-job/log.{attempt}").exists() for attempt in (0, 1))
    assert (batch.folder / "scontrol.said").read_text() == "requeue 7\n"


def test_a_job_whose_input_is_wrong_is_not_requeued(batch: Batch) -> None:
    """A plan that is none: exit code 2 at once, and no requeue."""
    (batch.folder / "plan.json").write_text("{}")
    assert batch.start(0, 9).wait(60) == 2
    assert "plan.json" in batch.said(0)
    assert not (batch.folder / "scontrol.said").exists()
