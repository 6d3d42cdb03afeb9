"""Jobs whose workers are several processes: started by `rtk run` and by torchrun, a rank killed, others taking over."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline
from rtk.training import Training, load_script

from ..ports import free_port
from .shell import RTK, Shell, children, rtk_forked, wait_for

SCRIPT = """
import torch
from torch import nn
from rtk.train import DataFiles, Training

def layers():
    made = [nn.Embedding(256, 16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), nn.Linear(16, 256)]
    return [layer.double() for layer in made]

training = Training(
    model=layers,
    data=DataFiles(["text.txt"]),
    microbatch_size=2,
    sequence_length=16,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    clip_norm=0.5,
    tensor_parallel={"0": "colwise", "2": "rowwise"},
)

if __name__ == "__main__":
    training.run()
"""
FAULTS = [
    {"iteration": 2, "kind": "fail", "worker": "1/0", "gpu": 1},
    {"iteration": 5, "kind": "join", "worker": "1/0", "gpu": 1},
]


def shared_plan(degree: int, dp: int = 2) -> Plan:
    """One stage, on so many GPUs, of so many pipelines."""
    costs = tuple(LayerCost(0.01, 0.01, 0.01, tensor_parallel=one) for one in (1, 2, 4))
    profile = Profile((Layer(costs, activation_bytes=2, weight_stash_bytes=1),) * 3)
    return plan_pipeline(profile, Shape(1, dp, 2, tensor_parallel=degree), "zero-bubble")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script with a table of cuts, its data, plans of one, two and four GPUs a worker, and faults of a rank."""
    (tmp_path / "own.py").write_text(SCRIPT)
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 20)
    (tmp_path / "faults.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in FAULTS))
    for degree in (1, 2, 4):
        write_document(str(tmp_path / f"plan{degree}.json"), shared_plan(degree))
    return tmp_path


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    """A shell in the folder; what was started in it ends with the test."""
    with Shell(folder) as shell:
        yield shell


def undisturbed(folder: Path, iterations: int, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The losses of the script's training in one process."""
    monkeypatch.chdir(folder)
    training: Training = load_script("own.py")
    return training.step(read_document("plan1.json", Plan), iterations)


def test_a_rank_is_killed_and_another_one_joins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes are two workers; one of them dies, the other worker goes on, a new rank makes its worker whole
    again, losses are those of one process, and of each worker one rank tells what it computed."""
    run = ("run", "plan2.json", "--script", "own.py", "--iterations", "8", "--inject", "faults.jsonl", "--json")
    done = rtk_forked(*run, "--timeline", "t.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    losses = [one["loss"] for one in told if one["event"] == "iteration"]
    assert losses == pytest.approx(undisturbed(folder, 8, monkeypatch), rel=1e-12)
    assert [one["worker"] for one in told if one["event"] in ("failure", "join")] == ["1/0", "1/0"]
    spans = [(one.worker, one.op, one.iteration) for one in read_document(str(folder / "t.json"), Timeline).spans]
    assert len(spans) == len({*spans})
    assert {worker for worker, _, iteration in spans if iteration == 6} == {"0/0", "1/0"}


def test_under_torchrun_a_rank_is_started_again(folder: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank of torchrun watches over one rank of a worker: a killed one comes back alone."""
    nodes = ("--nproc-per-node=4", f"--master-port={free_port()}", "--master-addr=127.0.0.1", "--no-python")
    job = shell.torchrun(
        "job", *nodes, *RTK, "run", "plan2.json", "--script", "own.py", "--iterations", "200", "--json"
    )
    wait_for(lambda: len(job.named("iteration")) > 2 or not job.is_running, f"training begins; {job.errors}")
    assert job.is_running, job.errors
    (worker,) = [worker for nursery in children(children(job.pid)[3]) for worker in children(nursery)]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: job.named("join") or not job.is_running, f"another one joins; {job.errors}")
    assert job.ended() == 0, job.errors
    losses = [event["loss"] for event in job.named("iteration")]
    assert losses[:60] == pytest.approx(undisturbed(folder, 60, monkeypatch), rel=1e-12)
    assert [event["worker"] for event in job.named("failure")] == ["1/0"]
    assert job.errors.count("worker 1/0:1 was ended by signal 9: start 2") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("plan2.json", "--model", "bare.py:layers"),
            "a worker of the plan is 2 GPUs, and nothing says",
        ),
        (("plan2.json", "--script", "without.py"), "Training(tensor_parallel=…)"),
        (("plan4.json", "--script", "odd.py"), "4"),
        (("plan2.json", "--script", "own.py", "--inject", "no-rank.jsonl"), "worker 1/0 is on 2 GPUs, from 0 on"),
        (("plan2.json", "--script", "own.py", "--coordinator", "127.0.0.1:9", "--worker", "1/0"), "k/i:r"),
    ],
)
def test_what_ranks_cannot_share_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    """Before a worker is started, with what to do: no table, a width that the degree does not divide, no such rank."""
    (folder / "bare.py").write_text(
        "from torch import nn\n\ndef layers():\n    return [nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(8, 256)]\n"
    )
    (folder / "without.py").write_text(SCRIPT.replace("tensor_parallel=", "# "))
    (folder / "odd.py").write_text(SCRIPT.replace("32", "30"))
    (folder / "no-rank.jsonl").write_text(json.dumps(FAULTS[0] | {"gpu": 2}) + "\n")
    (folder / "secret").write_text("00" * 32)
    done = rtk_forked("run", *arguments, "--secret-file", "secret", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "do: " in done.stderr
