"""The quickstart's steps: simulated as they are; with a run that is made up of the simulated story's announcements."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtk import whole_flow
from rtk.runners.resilience.announcements import Announcement, IterationCommitted
from rtk.runners.training import JobConfig, TrainingConfig
from rtk.schemas.documents import read_document, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.whole_flow import (
    FAULTS,
    ITERATIONS,
    MARGIN,
    QuickstartIteration,
    QuickstartResult,
    QuickstartTimes,
    quickstart,
)
from rtk.wiring import inject

from .cli.shell import rtk

PROFILE = Profile((Layer((LayerCost(0.1, 0.1, 0.1),)),) * 4)
APART = 2e-7  # two losses of one iteration


def _announced(plan: Plan, is_disturbed: bool, times: float) -> tuple[list[Announcement], Any]:
    """What happens to a plan, its iterations with losses and so many times as long as they are simulated to take."""
    story = inject(plan, FAULTS if is_disturbed else None, iterations=ITERATIONS)
    happened: list[Announcement] = []
    for _, what in story.announced:
        if isinstance(what, IterationCommitted):
            assert what.iteration is not None
            assert what.iteration_time_s is not None
            loss = 1 / (1 + what.iteration) + (APART if is_disturbed and what.iteration == 4 else 0.0)
            what = replace(what, loss=loss, iteration_time_s=times * what.iteration_time_s)
        happened.append(what)
    return happened, story.timeline


Ran = list[tuple[TrainingConfig, JobConfig]]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Let the quickstart measure a given profile and run stories; gives what is to be trained, and how."""

    def prepared(cores: int = 4, load: float = 0.0, times: float = 1.0) -> Ran:
        ran: Ran = []

        def run(
            plan: Plan, training: TrainingConfig, job: JobConfig, announce: Callable[[Announcement], None]
        ) -> list[Announcement]:
            ran.append((training, job))
            happened, timeline = _announced(plan, job.inject is not None, times)
            for what in happened:
                announce(what)
            if job.timeline is not None:
                write_document(job.timeline, timeline)
            return happened

        monkeypatch.setattr(whole_flow, "available_cores", lambda: cores)
        monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
        monkeypatch.setattr(whole_flow, "profile_measured", lambda *_, **__: PROFILE)
        monkeypatch.setattr(whole_flow, "run", run)
        return ran

    return prepared


@pytest.mark.parametrize(("cores", "slowdown"), [(4, None), (3, MARGIN * 4 / 3)])
def test_a_run_with_a_failure_is_compared_with_one_without(
    cores: int, slowdown: float | None, tmp_path: Path, trained: Callable[..., Ran]
) -> None:
    """Workers that share cores get a plan that is so much slower, and its pace; the reference runs at full speed."""
    ran, folder = trained(cores), tmp_path / "out"
    result = quickstart(str(folder), seed=3)
    assert [(one.paced, one.seed, job.inject is not None) for one, job in ran] == [
        (slowdown is not None, 3, True),
        (False, 3, False),
    ]
    assert result.paced == (slowdown is not None)
    assert {worker.slowdown for worker in read_document(str(folder / "plan.json"), Plan).workers} == {slowdown}
    assert [pace.live_workers for pace in result.paces] == [4, 3]
    assert result.measured_s == pytest.approx(result.predicted_s, rel=0.02)
    assert result.paces[1].measured_s > result.measured_s
    assert [one.live_workers for one in result.iterations] == [4] * 3 + [3] * 3 + [4] * 3
    assert result.largest_difference == pytest.approx(APART)
    assert "to within 2e-07" in result.conclusion
    assert result.busy == ""
    names = ["compare.html", "faults.jsonl", "plan.json", "profile.json", "run.html", "run.json", "run.svg"]
    assert [Path(name).name for name in result.files] == names
    assert (folder / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(("cores", "seed"), [(4, 0), (2, 5)])
def test_the_plan_and_the_pictures_are_those_of_the_commands(
    cores: int, seed: int, tmp_path: Path, trained: Callable[..., Ran]
) -> None:
    """What the quickstart prints can be typed: the same plan, byte for byte, and the pictures; the run is asked for as
    it was run."""
    trained(cores)
    result = quickstart(str(tmp_path), seed=seed)
    (measure, plan, run, undisturbed, *pictures) = map(shlex.split, result.commands)
    assert ("--seed" in measure) == ("--seed" in run) == (seed > 0)
    assert ("--paced" in run) == (cores < 4)
    assert [word for word in run if word not in undisturbed] == [
        *(["--paced"] if cores < 4 else []),
        *("--inject", "faults.jsonl", "--timeline", "run.json"),
    ]
    before = _contents(tmp_path)
    for command in (plan, *pictures):
        (tmp_path / command[-1]).unlink()
        assert rtk(*command[1:], cwd=tmp_path).returncode == 0
    assert _contents(tmp_path) == before


def test_the_simulated_story_is_that_of_its_commands(tmp_path: Path) -> None:
    """`--simulate` needs no torch and prints commands that give the same files, byte for byte, in another folder."""
    done = rtk("quickstart", "--simulate", "-o", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["simulated"]
    assert [one["live_workers"] for one in said["iterations"]] == [16] * 3 + [15] * 3 + [16] * 3
    assert 0.01 < said["total_s"] / said["undisturbed_s"] - 1 < 0.2
    by_hand = tmp_path / "by-hand"
    by_hand.mkdir()
    for name in (".gitignore", "faults.jsonl"):
        (by_hand / name).write_bytes((tmp_path / "out" / name).read_bytes())
    for command in said["commands"]:
        assert rtk(*shlex.split(command)[1:], cwd=by_hand).returncode == 0
    assert _contents(by_hand) == _contents(tmp_path / "out")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_without_torch_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how to install torch, and what can be seen without it; no folder is left."""
    monkeypatch.setattr(whole_flow, "find_spec", lambda name: None)
    done = rtk("quickstart", cwd=tmp_path)
    assert done.returncode == 2
    assert "error: torch is not installed" in done.stderr
    assert "rtk-train[torch]" in done.stderr
    assert "rtk quickstart --simulate" in done.stderr
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInputError, match="torch is not installed"):
        quickstart(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("times", "load", "says"),
    [(1.05, 7.0, ""), (1.5, 7.0, "busy: other programs had a load of 7.0 on 2 cores"), (1.5, 0.1, "was quiet")],
)
def test_times_far_from_the_plan_are_explained(
    times: float, load: float, says: str, tmp_path: Path, trained: Callable[..., Ran]
) -> None:
    """Where iterations take over a tenth longer than predicted, the quickstart says what the machine was doing."""
    trained(2, load, times)
    done = rtk("quickstart", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout
    assert ("machine was" in done.stdout) == bool(says)


def _result(differences: Sequence[float] = (0.0,), **more: Any) -> QuickstartResult:
    iterations = tuple(QuickstartIteration(n, 4, 1.0, 2.0 + apart, 2.0) for n, apart in enumerate(differences))
    return QuickstartResult(iterations, (QuickstartTimes(4, 2.0, 3.0), QuickstartTimes(3, 4.0, 4.0)), 1.25, **more)


def test_equal_losses_are_called_equal() -> None:
    """Without a difference the conclusion names none; a simulated story tells of times in place of losses."""
    assert _result().conclusion.endswith("all 1 losses equal those of an undisturbed run.")
    assert _result((0.0, 0.5)).conclusion.endswith("to within 5e-01.")
    bare = replace(_result(), iterations=(QuickstartIteration(0, 4, 1.0),))
    assert bare.largest_difference is None
    story = replace(bare, simulated=True, total_s=11.0, undisturbed_s=10.0)
    assert story.conclusion.endswith("1 iterations took 11 s, 10 % longer than without the failure.")


def test_quickstart_tells_what_came_of_it(tmp_path: Path, trained: Callable[..., Ran]) -> None:
    """For people: both losses of each iteration, both times, one sentence, the pictures and what to do next."""
    trained(2)
    done = rtk("quickstart", "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if line[:1].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [(str(n), "3" if 3 <= n < 6 else "4") for n in range(9)]
    assert sum(row[2] != row[3] for row in rows) <= 1
    assert sum(line.startswith("an iteration of ") for line in lines) == 2
    assert sum(line.startswith("Of 4 workers 1/1 was killed in iteration 3") for line in lines) == 1
    assert any("out/run.html" in line for line in lines)
    assert any("rtk monitor -- torchrun" in line for line in lines)
    assert "[3/5] train on 4 processes; 1/1 is killed in iteration 3" in done.stderr
    assert "$ rtk run plan.json --model gpt-tiny --iterations 9 --paced --inject faults.jsonl" in done.stderr
    assert "worker 1/1 failed" in done.stderr
    assert "worker 1/1 joined" in done.stderr
    assert done.stderr.count("after the failure") == 1
