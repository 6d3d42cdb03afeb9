"""A training of one's own: its script, its listeners, and the processes that survive under torchrun."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rtk.runners.resilience.listeners import Listeners
from rtk.runners.resilience.torchrun import is_rank
from rtk.schemas.documents import read_document
from rtk.schemas.errors import REMARKS, InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import AS_USUAL, Profile
from rtk.train import Tokens, cosine
from rtk.training import DataFiles, NamedModel, Training, load_script

from ..ports import free_port
from .shell import RTK, Shell, children, rtk, rtk_forked, wait_for

SCRIPT = """
import torch
import torch.nn.functional as F
from net import layers
from rtk.train import DataFiles, Evaluation, Training, cosine

def loss(logits, targets):
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum")
    return total, (targets != 0).sum()

training = Training(
    model=layers,
    loss=loss,
    data=DataFiles(["text.txt"]),
    microbatch_size=2,
    sequence_length=16,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    schedule=cosine(warmup=2, steps=40, final=0.1),
    clip_norm=0.5,
    evaluate=Evaluation(DataFiles(["text.txt"]), every=10, microbatches=2),
)

@training.on("failure", "join")
def tell(event):
    with open("heard.txt", "a") as heard:
        print(event["event"], event["worker"], file=heard)
    raise OSError("nobody is to stop for this")

if __name__ == "__main__":
    training.run()
"""
NET = """
import torch
from torch import nn

def layers():
    made = [nn.Embedding(256, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 256)]
    return [layer.double() for layer in made]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script, the net beside it, its data, its profile, and a plan of two stages and two pipelines."""
    place = tmp_path_factory.mktemp("script")
    (place / "own.py").write_text(SCRIPT)
    (place / "net.py").write_text(NET)
    (place / "text.txt").write_text("To be, or not to be, that is the question. " * 20)
    done = rtk_forked("profile", "own.py", "--repeats", "2", "-o", "p.json", cwd=place)
    assert done.returncode == 0, done.stderr
    profile = read_document(str(place / "p.json"), Profile)
    assert (profile.microbatch_size, profile.sequence_length, len(profile.layers)) == (2, 16, 4)
    shape = ("--pp", "2", "--dp", "2", "--microbatches", "2")
    assert rtk("plan", "pipeline", "p.json", *shape, "-o", "plan.json", cwd=place).returncode == 0
    return place


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    """A shell in the folder; what was started in it ends with the test."""
    with Shell(folder) as shell:
        yield shell


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that a test loads here leave nothing behind."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules)
    for name in ("own", "net", "helper"):
        sys.modules.pop(name, None)


def undisturbed(folder: Path, iterations: int, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The losses of the script's training in one process."""
    monkeypatch.chdir(folder)
    return load_script("own.py").step("plan.json", iterations)


def test_torchrun_and_its_job_outlive_killed_workers(
    folder: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under torchrun a worker is killed: another one joins, torchrun ends with 0, and the losses are those of one
    process; the script's listener has heard of both, and what it raised has stopped nothing."""
    (folder / "heard.txt").unlink(missing_ok=True)
    nodes = ("--nproc-per-node=4", f"--master-port={free_port()}", "--master-addr=127.0.0.1", "--no-python")
    work = (*RTK, "run", "plan.json", "--script", "own.py", "--iterations", "300", "--json")
    job = shell.torchrun("job", *nodes, *work)
    wait_for(lambda: len(job.named("iteration")) > 2 or not job.is_running, f"training begins; {job.errors}")
    assert job.is_running, job.errors
    supervisors = children(job.pid)
    assert len(supervisors) == 4
    (worker,) = [worker for nursery in children(supervisors[3]) for worker in children(nursery)]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: job.named("join") or not job.is_running, f"another one joins; {job.errors}")
    assert job.ended() == 0, job.errors
    assert children_are(supervisors) == []
    losses = [event["loss"] for event in job.named("iteration")]
    assert [event["iteration"] for event in job.named("iteration")] == list(range(300))
    assert losses[:60] == pytest.approx(undisturbed(folder, 60, monkeypatch), rel=1e-12)
    assert len(job.named("evaluation")) == 30
    assert (folder / "heard.txt").read_text() == "failure 1/1\njoin 1/1\n"
    assert "the listener tell has failed" in job.errors
    assert job.errors.count("was ended by signal 9: start 2") == 1


def children_are(processes: list[int]) -> list[int]:
    """Those of some processes that still run."""
    return [one for one in processes if Path(f"/proc/{one}").exists()]


def test_wrong_input_ends_torchrun(shell: Shell) -> None:
    """A worker that cannot begin ends its supervisor with its exit code, once: it is not started again."""
    (shell.folder / "wrong.py").write_text("from rtk.train import Training\n1 / 0\n")
    nodes = ("--nproc-per-node=2", f"--master-port={free_port()}", "--master-addr=127.0.0.1", "--no-python")
    job = shell.torchrun("wrong", *nodes, *RTK, "run", "plan.json", "--script", "wrong.py")
    assert job.ended() == 1
    assert "the plan has 4 live workers, this job has 2 processes" in job.errors
    alone = rtk_forked("run", "plan.json", "--script", "wrong.py", cwd=shell.folder)
    assert alone.returncode == 2
    assert "ZeroDivisionError" in alone.stderr
    assert "wrong.py:2" in alone.stderr


def test_what_all_workers_find_wrong_is_said_once(shell: Shell) -> None:
    """By whoever leads the job, whether or not it has begun."""
    script = SCRIPT.replace("AdamW(parameters", "AdamW(layers()[0].parameters()")
    (shell.folder / "keeps.py").write_text(script)
    late = SCRIPT.replace("(targets != 0).sum()", "float('nan')")
    (shell.folder / "counts.py").write_text(late)
    for name, said in (("keeps.py", "it was not given"), ("counts.py", "counts nan")):
        done = rtk_forked("run", "plan.json", "--script", name, "--iterations", "2", cwd=shell.folder)
        assert done.returncode == 2
        assert done.stderr.count("error: ") == done.stderr.count(said) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("own.py", "this is a script, and a plan is needed here\nat: own.py\ndo: rtk run plan.json --script own.py"),
        ("plan.json --script plan.json", "a script of Python is needed here\nat: plan.json"),
    ],
)
def test_a_script_and_a_plan_are_not_mistaken_for_each_other(folder: Path, line: str, said: str) -> None:
    """Before torch is loaded."""
    done = rtk("run", *line.split(), cwd=folder)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "holds no Training"),
        ("a = Training(model=list, data=0)\nb = Training(model=list, data=0)", "holds 2 trainings: a, b"),
        ("t = Training(model=list, data=0)\nt.run()", "calls run() when it is imported"),
        ("import torch.distributed as d\nd.init_process_group('gloo')", "rtk connects the workers itself"),
        ("t = Training(model=list, data=0, clip_norm=0)", "0 is no norm"),
        ("t = Training(model=list, data=0)\nt.on('iterations')", "'iterations' is not known"),
        ("raise SystemExit(0)", "SystemExit"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_scripts_that_are_wrong_say_where(tmp_path: Path, lines: str, said: str) -> None:
    """What is wrong with a script is told in one error, with the file and mostly the line."""
    script = tmp_path / "own.py"
    script.write_text(f"from rtk.train import Training\n{lines}\n")
    with pytest.raises(InvalidInputError) as raised:
        load_script(str(script))
    assert said in raised.value.what
    assert str(script) in (raised.value.where or "")


def test_a_script_that_is_edited_or_its_neighbour_is_another_one(folder: Path, tmp_path: Path) -> None:
    """The settings that workers are compared by name the script and the modules beside it that it imports."""
    for name in ("own.py", "net.py"):
        (tmp_path / name).write_text((folder / name).read_text())
    first = load_script(str(tmp_path / "own.py")).settings()
    assert {"own.py", "net.py"} <= first.keys()
    (tmp_path / "net.py").write_text(NET + "# edited\n")
    sys.modules.pop("net")
    again = load_script(str(tmp_path / "own.py")).settings()
    assert {name for name in first if first[name] != again[name]} == {"net.py"}


def test_a_script_runs_itself_as_rtk_run(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """`python own.py plan.json --iterations 3` becomes `rtk run --script own.py plan.json --iterations 3`."""
    told: list[Any] = []
    training = load_script(str(folder / "own.py"))
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "own.py", raising=False)
    monkeypatch.setattr(main, "training", training, raising=False)
    monkeypatch.setattr(sys, "argv", ["own.py", "plan.json", "--iterations", "3"])
    monkeypatch.setattr(os, "execv", lambda *command: told.append(command))
    training.run()
    assert told[0][1][3:] == ["run", "--script", "own.py", "plan.json", "--iterations", "3"]
    with pytest.raises(InvalidInputError, match="the training that the script itself holds"):
        Training(model=list, data=DataFiles()).run()


def test_steps_are_those_of_plain_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps in one process give the losses of torch's own loop: counts, clipping and schedule included."""
    monkeypatch.chdir(folder)
    training = load_script("own.py")
    told = training.step("plan.json", 2) + training.step("plan.json")
    plan = read_document("plan.json", Plan)
    model, data = load_script("own.py").load(plan)
    whole = torch.nn.Sequential(*model.layers)
    assert training.optimizer is not None
    assert training.loss is not None
    optimizer, curve = training.optimizer(whole.parameters()), cosine(warmup=2, steps=40, final=0.1)
    losses = []
    for iteration in range(3):
        rows = [data.batch(iteration)[number] for number in range(4)]
        parts: list[Any] = [training.loss(whole(inputs), targets) for inputs, targets in rows]
        loss = torch.stack([total for total, _ in parts]).sum() / sum(int(count) for _, count in parts)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * curve(iteration)
        optimizer.step()
        losses.append(loss.item())
    assert told == pytest.approx(losses, rel=1e-9)


def test_listeners_hear_in_order_and_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that raises is told of once, one that blocks keeps nobody, and each hears only what it asked for."""
    said: list[str] = []
    monkeypatch.setattr(REMARKS, "info", said.append)
    monkeypatch.setattr("rtk.runners.resilience.listeners.LAST_WORDS_S", 0.2)
    heard: list[int] = []

    def fail(event: dict[str, Any]) -> None:
        raise ValueError("no")

    def block(event: dict[str, Any]) -> None:
        time.sleep(60)

    all_of_them = Listeners([(("iteration",), lambda event: heard.append(event["iteration"])), ((), fail), ((), block)])
    begun_s = time.monotonic()
    for number in range(5):
        all_of_them.write({"event": "iteration", "iteration": number}, None)
        all_of_them.write({"event": "failure"}, None)
    all_of_them.close()
    assert time.monotonic() - begun_s < 2
    assert heard == list(range(5))
    assert [("fail" in one, "block" in one) for one in said] == [(True, False), (False, True)]


@pytest.mark.parametrize(
    ("environment", "has_coordinator", "expected"),
    [
        ({}, False, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"}, False, True),
        ({"RANK": "0"}, True, False),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none"}, True, True),
        ({"RANK": "0", "TORCHELASTIC_RUN_ID": "none", "RTK_LAUNCHED": "1"}, True, False),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, True, False),
        ({"SLURM_PROCID": "0"}, False, False),
    ],
)
def test_who_is_a_supervisor(
    environment: dict[str, str], has_coordinator: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of torchrun's is one, and none that a supervisor, srun or a person has started."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RTK_LAUNCHED", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_rank(has_coordinator) is expected


def test_tasks_of_srun_without_a_coordinator_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would lead a job of its own; so would a RANK of which nothing else is known wait for nobody."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(InvalidInputError, match="srun has started 4"):
        is_rank(False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InvalidInputError, match="WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set"):
        is_rank(False)


def test_rows_of_tokens_say_how_long_a_sample_is(tmp_path: Path) -> None:
    """A model is made for the length of the data's rows; where another one is asked for, both are told."""
    np.save(tmp_path / "tokens.npy", np.arange(100) % 50)
    data = Tokens(tmp_path / "tokens.npy", sequence_length=16)
    model, _ = Training(model=NamedModel("gpt-tiny"), data=data).load_alone(2, None, AS_USUAL, 1)
    assert model.sequence_length == 16
    with pytest.raises(InvalidInputError, match="rows have 16 tokens, the model is made for 32"):
        Training(model=NamedModel("gpt-tiny"), data=data, sequence_length=32).load_alone(2, None, AS_USUAL, 1)
