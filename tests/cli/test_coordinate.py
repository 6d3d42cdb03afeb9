"""A job whose coordinator and workers are started by hand, by torchrun or by anybody else: real processes only."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rtk.runners.torch.runner import PlanRunner
from rtk.runners.training import TrainingConfig, training_of
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.training import Training

from ..ports import free_port
from ..runners.ranks import run_ranks
from .shell import RTK, Command, Shell, children, rtk, wait_for, workers_of

FACTORY = """
from torch import nn

def tiny():
    return nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 256))
"""
TRAINED = ("--model", "model.py:tiny", "--data", "text.txt")
SECRET = ("--secret-file", "secret")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and plans of two workers for it: a pipeline of two stages, and two pipelines of one."""
    place = tmp_path_factory.mktemp("coordinate")
    (place / "model.py").write_text(FACTORY)
    (place / "text.txt").write_text("To be, or not to be, that is the question. " * 20)
    cost = LayerCost(0.01, 0.01, 0.01)
    write_document(str(place / "p.json"), Profile((Layer((cost,)),) * 4, microbatch_size=2, sequence_length=16))
    for name, pp, dp, schedule in (
        ("two-stages.json", "2", "1", "zero-bubble"),
        ("other.json", "2", "1", "gpipe"),
        ("two-pipelines.json", "1", "2", "1f1b"),
    ):
        shape = ("--pp", pp, "--dp", dp, "--microbatches", "2")
        done = rtk("plan", "pipeline", "p.json", "--schedule", schedule, *shape, "-o", name, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    """A shell in the folder; what was started in it ends with the test."""
    with Shell(folder) as shell:
        yield shell


def committed(*coordinators: Command) -> dict[int, float]:
    """The loss of every iteration that any of them has said to be committed; none of them twice."""
    said = [event for one in coordinators for event in one.named("iteration")]
    found = {event["iteration"]: event["loss"] for event in said}
    assert len(found) == len(said)
    return found


def test_workers_outlive_their_coordinators_and_strangers_stay_out(shell: Shell) -> None:
    """A coordinator is killed and started again, then killed and succeeded; strangers are refused; Ctrl-C ends all.

    The workers are the same processes all the time, no committed iteration is lost or redone, and the losses are those
    of a run in which nothing happened.
    """
    ports = free_port(), free_port()
    led = ("coordinate", "two-stages.json", "--iterations", "100000", *SECRET, "--log", "job.log", "--json")
    first = shell.rtk("first", *led, "--listen", f"127.0.0.1:{ports[0]}")
    work = ("run", "two-stages.json", *TRAINED, "--paced", *SECRET)
    joining = (*work, "--coordinator", f"127.0.0.1:{ports[0]}", "--coordinator", f"127.0.0.1:{ports[1]}")
    wait_for(lambda: (shell.folder / "secret").exists() or not first.is_running, "the secret is made")
    workers = [shell.rtk("worker-0", *joining, "--worker", "0/0"), shell.rtk("worker-1", *joining, RANK="1")]
    wait_for(lambda: len(first.named("iteration")) > 3, f"training begins; {first.errors}")

    first.kill()
    again = shell.rtk("again", *led, "--listen", f"127.0.0.1:{ports[0]}")
    wait_for(lambda: len(again.named("iteration")) > 3, f"training goes on; {again.errors}")
    assert [len(again.named(event)) for event in ("restarted", "returned", "epoch", "failure")] == [1, 2, 0, 0]

    standby = shell.rtk("standby", *led, "--listen", f"127.0.0.1:{ports[1]}", "--standby")
    wait_for(lambda: "standing by" in standby.errors, "the standby is there")
    assert standby.is_running
    again.kill()
    wait_for(lambda: len(standby.named("iteration")) > 3, f"the standby takes over; {standby.errors}")
    assert [len(standby.named(event)) for event in ("restarted", "returned", "epoch", "failure")] == [1, 2, 0, 0]

    (shell.folder / "wrong").touch(0o600)
    (shell.folder / "wrong").write_text("this is not the secret")
    where = ("--coordinator", f"127.0.0.1:{ports[1]}")
    strangers = {
        "does not know the job's secret": (*work[:-1], "wrong", *where, "--worker", "0/0"),
        "its plan (sha256 ": ("run", "other.json", *work[2:], *where, "--worker", "0/0"),
        "its settings are not this job's: learning_rate": (*work, *where, "--worker", "0/0", "--lr", "0.5"),
        "worker 0/1 is there already": (*work, *where, "--worker", "0/1", "--patience", "2"),
    }
    started = [shell.rtk(f"stranger-{n}", *arguments) for n, arguments in enumerate(strangers.values())]
    for refusal, stranger in zip(strangers, started, strict=True):
        code = stranger.ended()
        assert refusal in stranger.errors
        assert (code, stranger.errors.count("error:")) == (5 if "already" in refusal else 2, 1), stranger.errors
        assert "do: " in stranger.errors
        assert "Traceback" not in stranger.errors

    standby.process.send_signal(signal.SIGINT)
    assert [command.ended() for command in (standby, *workers)] == [130] * 3
    assert all("the coordinator has ended the job: stopped as asked" in worker.errors for worker in workers)
    losses = committed(first, again, standby)
    gone_on_at = [one.named("restarted")[0]["iteration"] for one in (again, standby)]
    in_the_log_only = set(range(max(losses) + 1)) - set(losses)  # a kill came between the log and the word
    assert in_the_log_only <= {iteration - 1 for iteration in gone_on_at}
    expected = undisturbed(shell.folder, 20)
    assert {n: losses[n] for n in range(20) if n in losses} == pytest.approx(
        {n: loss for n, loss in enumerate(expected) if n in losses}, rel=1e-6
    )


@pytest.mark.wheel("coordinate")
def test_workers_without_a_coordinator_say_so_with_their_exit_code(shell: Shell) -> None:
    """The coordinator is killed for good amidst training: once they are out of patience all workers end with 5, which
    job scripts leave alone, and not by a signal, after which these would start them again.

    Meanwhile the two have shared a core, and said so.
    """
    port = free_port()
    (shell.folder / "known").touch(0o600)
    (shell.folder / "known").write_text("a secret for one test only")
    led = ("coordinate", "two-stages.json", "--iterations", "100000", "--secret-file", "known", "--json")
    leader = shell.rtk("killed", *led, "--listen", f"127.0.0.1:{port}")
    work = ("run", "two-stages.json", *TRAINED, "--coordinator", f"127.0.0.1:{port}", "--secret-file", "known")
    one_core = [min(os.sched_getaffinity(0))]
    workers = [shell.rtk_on(one_core, f"left-{n}", *work, "--patience", "1", "--worker", f"0/{n}") for n in (0, 1)]
    wait_for(lambda: len(leader.named("iteration")) > 3, f"training begins; {leader.errors}")
    assert "there are more workers than cores, and they take turns" in leader.errors
    leader.kill()
    assert [worker.ended() for worker in workers] == [5, 5], workers[0].errors
    assert all("no coordinator for 1 s" in worker.errors for worker in workers)


def test_a_run_that_is_killed_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    """`rtk run` ends by SIGKILL: its workers end as well, and nothing of it is left in the temporary folder."""
    work = ("run", "two-pipelines.json", *TRAINED, "--iterations", "100000", "--json")
    run = shell.rtk("run", *work, TMPDIR=str(tmp_path))
    wait_for(lambda: run.named("iteration"), f"training begins; {run.errors}")
    workers = workers_of(run.pid)
    assert len(workers) == 2
    run.kill()
    wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers), "the workers end")
    assert [path for path in tmp_path.rglob("*") if not path.name.startswith("torchinductor")] == []


def undisturbed(folder: Path, iterations: int) -> list[float]:
    """The losses of the same training without a coordinator and without processes, in which nothing happens."""
    plan = read_document(str(folder / "two-stages.json"), Plan)
    with contextlib.chdir(folder):
        model, corpus = Training.of(training_of(plan, TrainingConfig("model.py:tiny", ["text.txt"]))).load(plan)

    def losses(runner: PlanRunner) -> list[float | None]:
        return [runner.step(corpus.batch(iteration)).loss for iteration in range(iterations)]

    ranks = run_ranks(plan, model.layers, model.loss, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), losses)
    return [loss for loss in ranks[-1] if loss is not None]


def test_one_agent_a_worker_replaces_a_dead_worker_alone(shell: Shell) -> None:
    """Under torchrun with one agent a worker, a killed worker is restarted and joins; the other one is untouched.

    Coordinator and workers find each other by their environment alone.
    """
    port, master = free_port(), free_port()
    led = ("coordinate", "two-pipelines.json", "--iterations", "40", "--checkpoint", "saved", "--json")
    known = {"RTK_SECRET": "a secret for one test only"}
    leader = shell.rtk("leader", *led, "--listen", f"127.0.0.1:{port}", **known)
    known["RTK_COORDINATOR"] = f"127.0.0.1:{port}"
    nodes = ("--nnodes=2", "--nproc-per-node=1", "--max-restarts=3")
    rendezvous = ("--master-addr=127.0.0.1", f"--master-port={master}", "--no-python")
    work = (*rendezvous, *RTK, "run", "two-pipelines.json", *TRAINED, "--paced")
    agents = [shell.torchrun(f"agent-{rank}", *nodes, f"--node-rank={rank}", *work, **known) for rank in (0, 1)]
    wait_for(lambda: len(leader.named("iteration")) > 2, f"training begins; {leader.errors}")
    (kept,), (killed,) = (children(agent.pid) for agent in agents)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: leader.named("join"), f"a replacement joins; {leader.errors}")
    assert children(agents[0].pid) == [kept]
    assert len(children(agents[1].pid)) == 1
    assert [command.ended() for command in (leader, *agents)] == [0, 0, 0], agents[1].errors
    assert sorted(committed(leader)) == list(range(40))
    lives = [event["live_workers"] for event in leader.named("epoch")]
    # A replacement that is quick comes before the survivor has a plan of its own.
    assert lives in ([2, 1, 2], [2, 2])
    (saved,) = leader.named("checkpoint")
    assert saved["path"] == str(shell.folder / "saved" / "step-00000040")
    (join,) = leader.named("join")
    assert (join["worker"], join["place"], join["source"]) == ("1/0", "1/0", "0/0")


def test_a_coordinator_says_whom_it_waits_for(shell: Shell) -> None:
    """How workers are started, then who has come and who is missing; after the start nothing more of that."""
    port = free_port()
    led = ("coordinate", "two-stages.json", "--iterations", "2", "--listen", f"127.0.0.1:{port}", *SECRET)
    leading = shell.rtk("waiting", *led)
    work = ("run", "two-stages.json", *TRAINED, "--coordinator", f"127.0.0.1:{port}", *SECRET)
    wait_for(lambda: "waiting for 2 workers" in leading.errors, f"it says so; {leading.errors}")
    assert (
        f"rtk run two-stages.json --model MODEL --coordinator 127.0.0.1:{port} --secret-file secret" in leading.errors
    )
    first = shell.rtk("first-worker", *work, "--worker", "0/1")
    wait_for(lambda: "worker 0/1 is there; waiting for 0/0" in leading.errors, f"one has come; {leading.errors}")
    second = shell.rtk("second-worker", *work, "--worker", "0/0")
    assert [one.ended() for one in (leading, first, second)] == [0, 0, 0]
    assert leading.errors.count("is there") == 2
    assert "worker 0/0 is there; all are there" in leading.errors
