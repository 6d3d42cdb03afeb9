"""The commands, one after the other, as a user types them: files, pipes, JSON, exit codes."""

import json
import os
import pty
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rtk.runners.resilience.controller import TWICE_S
from rtk.schemas.documents import canonical, read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline

from ..warm import Warm
from .shell import RTK, Command, Done, Shell, rtk, rtk_forked, rtk_process, wait_for, workers_of

GOLDEN = Path(__file__).parent.parent / "golden"
FACTORY = """
from torch import nn

class Logits(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 256)

    def forward(self, x):
        return self.linear(x)

def tiny():
    return nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 16), nn.Tanh(), Logits())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, a profile of its shape, and plans for it."""
    place = tmp_path_factory.mktemp("flow")
    (place / "model.py").write_text(FACTORY)
    (place / "text.txt").write_text("To be, or not to be, that is the question. " * 20)
    cost = LayerCost(0.01, 0.01, 0.01)
    layers = tuple(Layer((cost,), activation_bytes=2, weight_stash_bytes=1) for _ in range(4))
    write_document(str(place / "p.json"), Profile(layers, microbatch_size=2, sequence_length=16))
    for name, dp in (("plan.json", "1"), ("plan22.json", "2")):
        shape = ("--pp", "2", "--dp", dp, "--microbatches", "3")
        done = rtk("plan", "pipeline", "p.json", "--schedule", "zero-bubble", *shape, "-o", name, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def events(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def losses(output: str) -> list[float]:
    return [event["loss"] for event in events(output) if event["event"] == "iteration"]


RUN = ("--model", "model.py:tiny", "--data", "text.txt")


@pytest.fixture(scope="module")
def run_of_two(folder: Path) -> Done:
    """A run of plan.json, which reads it from a pipe, on two workers."""
    plan = (folder / "plan.json").read_text()
    return rtk_process("run", "-", *RUN, "--iterations", "2", "--json", stdin=plan, cwd=folder)


@pytest.fixture(scope="module")
def run_of_four(folder: Path) -> Done:
    """A run of plan22.json on four workers."""
    return rtk_forked("run", "plan22.json", *RUN, "--iterations", "6", "--json", "--timeline", "t.json", cwd=folder)


def test_run_spawns_workers_trains_and_writes_a_timeline(folder: Path, run_of_four: Done) -> None:
    """`rtk run`, started plainly, runs one process per worker; its timeline keeps the plan."""
    assert run_of_four.returncode == 0, run_of_four.stderr
    remarks = [line for line in run_of_four.stderr.splitlines() if "take turns" not in line]
    assert remarks == ["starting 4 workers …"]  # these end quietly
    said = events(run_of_four.stdout)
    assert [event["event"] for event in said] == ["start", "epoch", *["iteration"] * 6, "end"]
    assert losses(run_of_four.stdout)[5] < losses(run_of_four.stdout)[0]
    assert all(event["live_workers"] == 4 for event in said[:-1])
    assert all(event["epoch"] == 1 for event in said[1:])
    timeline = read_document(str(folder / "t.json"), Timeline)
    assert (timeline.source, timeline.paced) == ("measured", False)
    assert len({span.worker for span in timeline.spans}) == 4
    checked = rtk("verify", "plan22.json", "--timeline", "t.json", cwd=folder)
    assert (checked.returncode, checked.stdout) == (0, "plan22.json: valid\n")


@pytest.mark.wheel("run")
def test_run_under_torchrun_loses_the_same(folder: Path, run_of_two: Done) -> None:
    """Under torchrun the same plan gives the same losses."""
    with Shell(folder) as shell:
        work = (*RTK, "run", "plan.json", *RUN, "--iterations", "2", "--json")
        done = shell.torchrun("torchrun", "--nproc-per-node", "2", "--no-python", *work)
        assert done.ended(100) == run_of_two.returncode == 0, done.errors + run_of_two.stderr
    found = [event["loss"] for event in done.named("iteration")]
    assert found == losses(run_of_two.stdout)
    assert len(found) == 2


def test_a_stage_without_workers_ends_the_run_with_5(folder: Path) -> None:
    """When a stage's last worker is killed the others end too, no process stays, and the exit code is 5."""
    with _running(folder, until="iteration") as run:  # before the first commit all know every layer
        workers = workers_of(run.pid)
        os.kill(workers[1], signal.SIGKILL)
        assert run.ended() == 5
    assert [event["event"] for event in run.events()][-2:] == ["failure", "end"]
    assert "error: nobody is left who holds layers 2-3" in run.errors
    assert "Traceback" not in run.errors
    assert _gone(workers)


def test_a_worker_that_dies_before_the_start_ends_the_run_with_5(folder: Path) -> None:
    """Nobody waits for a worker that will not come: the run says which one is missing, and no process stays."""
    with _running(folder, until="") as run:
        workers = wait_for(lambda: len(found := workers_of(run.pid)) == 2 and found, "two workers are there")
        os.kill(workers[0], signal.SIGKILL)
        assert run.ended() == 5
    assert "error: worker 0/0 was ended by signal 9" in run.errors
    assert "Traceback" not in run.errors
    assert _gone(workers)


def test_workers_end_with_their_launcher(folder: Path) -> None:
    """When the launcher itself is killed, its workers notice and end."""
    with _running(folder) as run:
        workers = workers_of(run.pid)
        run.kill()
    assert _gone(workers)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_says_how_to_go_on(folder: Path, tmp_path: Path, number: int) -> None:
    """Ctrl-C, which a terminal sends to all processes, or a scheduler's SIGTERM: the iteration under way still counts,
    checkpoint and timeline are written, and the command that is said goes on from there."""
    checkpoint, timeline = str(tmp_path / "ck"), str(tmp_path / "t.json")
    with _running(folder, "--checkpoint", checkpoint, "--timeline", timeline, until="iteration") as run:
        workers = workers_of(run.pid)
        (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
        assert run.ended() == 130
    (stop,), done = run.named("stop"), run.named("iteration")
    assert done[-1]["iteration"] <= stop["iteration"]
    assert [one["event"] for one in run.events()][-2:] == ["checkpoint", "end"]
    assert run.named("checkpoint")[-1]["iteration"] == len(done) == done[-1]["iteration"] + 1
    assert {span.iteration for span in read_document(timeline, Timeline).spans} == set(range(len(done)))
    said = run.errors.strip().splitlines()
    assert said[-1].startswith("resume with: rtk run plan.json ")
    assert "Traceback" not in run.errors and not [line for line in said if line.startswith("error")]
    assert _gone(workers)
    command = shlex.split(said[-1].removeprefix("resume with: "))[1:]
    command[command.index("--iterations") + 1] = str(len(done) + 1)
    resumed = rtk_forked(*command, cwd=folder)
    assert (resumed.returncode, events(resumed.stdout)[0]["iteration"]) == (0, len(done)), resumed.stderr


def test_a_second_interrupt_ends_a_run_at_once(folder: Path) -> None:
    """Though the iteration does not come to its end, for a worker was stopped; no process stays."""
    with _running(folder, "--heartbeat-limit", "60s", until="iteration") as run:
        workers = workers_of(run.pid)
        os.kill(workers[0], signal.SIGSTOP)
        os.killpg(run.pid, signal.SIGINT)
        wait_for(lambda: run.named("stop"), "the run heeds it")
        time.sleep(2 * TWICE_S)  # at once it would be the same one, passed on
        os.killpg(run.pid, signal.SIGINT)
        assert run.ended() == 130
    assert run.errors.endswith("interrupted\n")
    assert "Traceback" not in run.errors
    assert _gone(workers)


def test_ctrl_c_on_a_terminal_stops_a_run_in_order(folder: Path, tmp_path: Path) -> None:
    """The key is pressed on a real terminal, whose processes all get the signal: the live view stays, with what was
    done, and below it stands how to go on."""
    command = ["run", "plan.json", *RUN, "--iterations", "100000", "--checkpoint", str(tmp_path / "ck")]
    surroundings = {**os.environ, "TERM": "xterm"}
    surroundings.pop("CI", None)
    terminal, theirs = pty.openpty()
    with os.fdopen(theirs, "r+b", 0) as screen:
        run = Warm(RTK[2], command, folder, surroundings, [screen] * 3)
    said = b""
    try:
        while b"iteration  " not in said or b" of 100000" not in said:
            said += os.read(terminal, 65536)
        os.write(terminal, b"\x03")
        with suppress(OSError):  # the other end is closed
            while more := os.read(terminal, 65536):
                said += more
        assert run.wait(60) == 130
    finally:
        run.kill()  # a run without end must not outlive a test that fails
        os.close(terminal)
    words = said.decode()
    assert "asked to stop" in words
    assert "resume with: rtk run plan.json" in words.replace("\r\n", "\n")
    assert "Traceback" not in words and "error" not in words
    assert (tmp_path / "ck").is_dir()


def test_a_run_survives_what_is_injected(folder: Path, run_of_four: Done) -> None:
    """A worker is killed and another one joins: nothing is lost, and the simulated story names the same events."""
    faults = [{"iteration": 2, "kind": "fail", "worker": "1/1"}, {"iteration": 4, "kind": "join", "worker": "1/1"}]
    (folder / "faults.jsonl").write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    inject = ("--inject", "faults.jsonl", "--iterations", "6", "--json")
    done = rtk_forked("run", "plan22.json", *RUN, *inject, "--paced", "--timeline", "story.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    names = [event["event"] for event in events(done.stdout) if event["event"] != "recovered"]
    two = ["iteration"] * 2
    assert names == ["start", "epoch", *two, "failure", "epoch", "resume", *two, "join", "epoch", *two, "end"]
    assert losses(done.stdout) == pytest.approx(losses(run_of_four.stdout), abs=1e-6)
    timeline = read_document(str(folder / "story.json"), Timeline)
    assert timeline.paced
    kinds = [event.kind for event in timeline.events]
    assert [kind for kind in kinds if kind != "epoch"] == ["failure", "resume", "join"]
    simulated = rtk("simulate", "plan22.json", *inject, cwd=folder)
    assert simulated.returncode == 0, simulated.stderr


def test_plan_verify_and_simulate_read_pipes(folder: Path, run_of_two: Done) -> None:
    """Each command that reads one file reads it from standard input as well, and --json is one document."""
    profile = (folder / "p.json").read_text()
    planned = rtk_process(
        "plan", "pipeline", "-", "--pp", "2", "--microbatches", "3", "--json", "-o", "-", stdin=profile
    )
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["format"] == "rtk.plan"
    verified = rtk_process("verify", "-", "--json", stdin=planned.stdout)
    assert json.loads(verified.stdout) == {"valid": True, "problems": []}
    simulated = rtk_process("simulate", "-", "--json", stdin=planned.stdout)
    report = json.loads(simulated.stdout)
    assert report["iteration_time_s"] == json.loads(planned.stdout)["prediction"]["iteration_time_s"]
    assert events(run_of_two.stdout)[-1]["event"] == "end", run_of_two.stderr


ADAPTRA = ("plan", "adaptra", "p.json", "--pp", "4", "--microbatches", "12", "--link-delay", "0=0.02")


@pytest.mark.parametrize(("technique", "makespan_s"), [("initial", 0.44), ("adapted", 0.41), ("best", 0.41)])
@pytest.mark.wheel("plan adaptra", "verify", "simulate")
def test_adaptra_plans_for_a_slow_link(technique: str, makespan_s: float, folder: Path) -> None:
    """`rtk plan adaptra` predicts what `simulate` finds, and says what its orders tolerate."""
    done = rtk(*ADAPTRA, "--technique", technique, "--json", "-o", "adaptra.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["prediction"]["makespan_s"] == pytest.approx(makespan_s)
    assert made["planner"]["options"]["technique"] == technique
    (told,) = made["planner"]["options"]["pipelines"]
    cascades = "delays beyond what the warm-ups absorb: link 0 takes 20 ms and tolerates 10 ms" in done.stderr
    assert cascades == (technique == "initial")
    assert (told["tolerated_delay_s"][0] == pytest.approx(0.01)) == (technique == "initial")
    assert (folder / "adaptra.json").read_text() == done.stdout
    simulated = json.loads(rtk("simulate", "adaptra.json", "--json", cwd=folder).stdout)
    assert simulated["makespan_s"] == made["prediction"]["makespan_s"]
    assert rtk("verify", "adaptra.json", "--profile", "p.json", cwd=folder).returncode == 0


def test_a_plan_without_the_proof_asked_for_is_written_and_ends_with_4(folder: Path) -> None:
    """`--require-optimal` ends with 0 where the bound is met, else with 4, and the plan is there in both cases."""
    proven = rtk(*ADAPTRA, "--require-optimal", "-o", "proven.json", cwd=folder)
    assert proven.returncode == 0, proven.stderr
    assert json.loads((folder / "proven.json").read_text())["prediction"]["proof"] == "optimal"
    open_ = rtk(*ADAPTRA, "--technique", "initial", "--require-optimal", "--json", "-o", "open.json", cwd=folder)
    assert open_.returncode == 4
    assert json.loads(open_.stdout)["prediction"]["proof"] == "bound"
    assert "error: 440 ms is not proven optimal: the bound is 410 ms" in open_.stderr
    assert (folder / "open.json").exists()


@pytest.mark.usefixtures("short_search")
def test_explain_says_what_holds_a_capped_plan(folder: Path) -> None:
    """`rtk explain` names the memory limit that binds and what one more activation saves, in words and in JSON."""
    shape = ("--pp", "4", "--microbatches", "12", "--memory-limit", "4")  # room for two micro-batches of 2 bytes
    planned = rtk("plan", "pipeline", "p.json", "--schedule", "zero-bubble", *shape, "-o", "capped.json", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    told = rtk("explain", "capped.json", cwd=folder)
    assert told.returncode == 0, told.stderr
    assert "An iteration takes 610 ms: the makespan of 12 micro-batches on 4 workers, 41 %" in told.stdout
    assert "The memory limit of stage 0 binds: it has room for 2 micro-batches" in told.stdout
    assert "memory for one more activation at stage 0 (2 B)  510 ms  -100 ms" in told.stdout
    assert all(len(line) <= 100 for line in told.stdout.splitlines())
    document = json.loads(rtk("explain", "-", "--json", stdin=(folder / "capped.json").read_text()).stdout)
    assert document["iteration_time_s"] == document["makespan_s"] == pytest.approx(0.61)
    assert [limit["stage"] for limit in document["bound"]["limits"]] == [0]
    kinds = [effect["change"]["kind"] for effect in document["what_if"]["effects"]]
    assert kinds[:2] == ["memory", "memory"]


def test_a_gzipped_plan_is_the_same_plan(folder: Path) -> None:
    """Written with the ending .gz and read back, a plan has the same canonical bytes."""
    arguments = ("plan", "pipeline", "p.json", "--schedule", "zero-bubble", "--pp", "2", "--microbatches", "3")
    assert rtk(*arguments, "-o", "plan.json.gz", cwd=folder).returncode == 0
    zipped = read_document(str(folder / "plan.json.gz"), Plan)
    assert canonical(zipped) == (folder / "plan.json").read_bytes()


def test_simulate_under_conditions_is_slower(folder: Path) -> None:
    """A slow worker and a slow link make the iteration longer, and the bound follows."""
    plain = json.loads(rtk("simulate", "plan.json", "--json", cwd=folder).stdout)
    slow = ("--slow", "0/1=2", "--link-delay", "0=0.05")
    worse = json.loads(rtk("simulate", "plan.json", *slow, "--json", cwd=folder).stdout)
    assert worse["iteration_time_s"] > plain["iteration_time_s"]
    assert worse["lower_bound_s"] <= worse["iteration_time_s"]


@pytest.mark.wheel("quickstart")
def test_quickstart_survives_a_killed_worker(tmp_path: Path) -> None:
    """`rtk quickstart` trains on with three of four workers, takes a replacement in, and the losses are the same."""
    done = rtk_forked("quickstart", "-o", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {one["live_workers"] for one in said["iterations"]} == {3, 4}
    assert said["largest_difference"] < 1e-5
    assert said["iterations"][-1]["loss"] < said["iterations"][0]["loss"]
    assert min(said["predicted_iteration_time_s"], said["measured_iteration_time_s"], said["recovered_s"]) > 0
    assert {"run.svg", "run.html", "run.json"} <= {path.name for path in (tmp_path / "out").iterdir()}


@contextmanager
def _running(folder: Path, *more: str, until: str = "start") -> Iterator[Command]:
    """A run without end of two workers, in a process group of its own, from when it has said an event."""
    with Shell(folder) as shell:
        run = shell.rtk("endless", "run", "plan.json", *RUN, "--iterations", "100000", "--json", *more)
        wait_for(lambda: not until or run.named(until), f"{until}; {run.errors}")
        yield run


def _gone(pids: list[int]) -> bool:
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the workers end")
    return True
