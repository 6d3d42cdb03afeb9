"""`rtk trace` and `rtk replay` where single GPUs fail, as a user runs them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtk.replaying import ask
from rtk.runners.traces.verbs import FaultScenario
from rtk.schemas.documents import canonical
from rtk.schemas.errors import InvalidInputError
from rtk.sweeping import read_sweep

from ..planners.recovery.gpu_stories import shared_job
from .shell import rtk

JOINS = "".join(f'{{"time_s": 0, "kind": "join", "node": "n{number}"}}\n' for number in range(4))
GPUS = (
    JOINS
    + """{"time_s": 1000, "kind": "fail", "node": "n2", "gpu": 5}
{"time_s": 2000, "kind": "fail", "node": "n0", "gpu": 1}
{"time_s": 9000, "kind": "join", "node": "n2", "gpu": 5}
{"time_s": 20000, "kind": "end"}
"""
)
JOB = ("replay", "--profile", "p.json", "--cluster", "4x8", "--tensor-parallel", "4", "--pp", "2", "--dp", "4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A profile with costs at degrees 1, 2 and 4, and a trace in which two GPUs die."""
    (tmp_path / "p.json").write_bytes(canonical(shared_job(2, 4, 4, workers=2).profile))
    (tmp_path / "g.jsonl").write_text(GPUS)
    return tmp_path


def told(folder: Path, policies: str) -> dict[str, Any]:
    """A replay's report."""
    done = rtk(*JOB, "--microbatches", "4", "--trace", "g.jsonl", "--policies", policies, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_lost_with_a_gpu(folder: Path) -> None:
    """The node, the worker, or a part of it: each trains more than the one before, on as many GPU-hours."""
    found = told(folder, "slipstream,worker-lost,degree-lowered")
    node, worker, part = found["policies"]
    assert node["goodput"] < worker["goodput"] < part["goodput"] < 1
    assert len({one["gpu_hours"]["present"] for one in found["policies"]}) == 1
    assert node["gpu_hours"]["idle"] > worker["gpu_hours"]["idle"] > part["gpu_hours"]["idle"]
    assert part["answers"] == {"lower": 2, "raise": 1, "re-route": 2}
    assert (found["trace"]["gpus_lost"], found["trace"]["nodes_lost"]) == (2, 0)
    assert "to worker-lost, degree-lowered and ntp" in found["mapping"]


def test_who_asks_for_none_is_told_of_them(folder: Path) -> None:
    """Policies of nodes alone are replayed, and a remark names the others."""
    given = ("--microbatches", "4", "--trace", "g.jsonl", "--policies", "spares")
    done = rtk(*JOB, *given, cwd=folder)
    assert done.returncode == 0
    assert "single GPUs die in this trace" in done.stderr and "worker-lost,degree-lowered,ntp" in done.stderr


def test_a_gpu_that_no_node_has_is_refused(folder: Path) -> None:
    """The job says how many GPUs a node has."""
    (folder / "g.jsonl").write_text(GPUS.replace('"gpu": 1', '"gpu": 8'))
    done = rtk(*JOB, "--microbatches", "4", "--trace", "g.jsonl", "--policies", "ntp", cwd=folder)
    assert done.returncode == 2
    assert "there is no GPU 8 in n0, which has the GPUs 0 to 7\nat: g.jsonl, /events/5, gpu" in done.stderr


def test_traces_are_generated_and_shown(tmp_path: Path) -> None:
    """GPUs fail by a rate of their own, and are counted apart."""
    given = ("--nodes", "8", "--days", "20", "--gpus-per-node", "8", "--gpu-mtbf", "30d", "--gpu-repair", "12h")
    assert rtk("trace", "generate", *given, "-o", "g.jsonl", cwd=tmp_path).returncode == 0
    shown = json.loads(rtk("trace", "show", "g.jsonl", "--json", cwd=tmp_path).stdout)
    assert shown["nodes_lost"] == 0 and 20 < shown["gpus_lost"] < 80
    assert "GPUs lost of nodes that stayed" in rtk("trace", "show", "g.jsonl", cwd=tmp_path).stdout


def test_a_sweep_makes_them_up_as_well(folder: Path) -> None:
    """The keys are the options' names, and a list of rates is tried one by one."""
    (folder / "s.yaml").write_text(
        "profiles: [p.json]\nclusters: [4x8]\njobs: [{pp: 2, dp: 4, microbatches: 4, tensor_parallel: 4}]\n"
        "traces: [{generate: {duration: 9d, gpus_per_node: 8, gpu_mtbf: [5d, 50d], gpu_repair: 1d}}]\n"
        "policies: [worker-lost, degree-lowered]\n"
    )
    questions = [one.question for one in read_sweep(str(folder / "s.yaml"))]
    recipes = [one.trace for one in questions if isinstance(one.trace, FaultScenario)]
    assert [one.gpus.failing.until.mean_s / 86_400 for one in recipes if one.gpus is not None] == [5, 50]
    assert {one.policies for one in questions} == {("worker-lost", "degree-lowered")}
    assert recipes[0].gpus is not None
    others = replace(questions[0], trace=replace(recipes[0], gpus=replace(recipes[0].gpus, per_node=16)))
    with pytest.raises(InvalidInputError, match=r"no GPU \d+ in node\d, which has the GPUs 0 to 7"):
        ask(others)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--gpu-mtbf", "3d", "--gpu-repair", "1h"), "GPUs need a number and a rate\nat: --gpus-per-node"),
        (("--gpus-per-node", "8"), "GPUs need a number and a rate\nat: --gpu-mtbf"),
        (("--gpus-per-node", "8", "--gpu-mtbf", "3d"), "--gpu-mtbf without a time of repair\nat: --gpu-repair"),
        (("--mtbf", "3d", "--repair", "1h", "--gpu-repair", "1h"), "this option means nothing here\nat: --gpu-repair"),
    ],
)
def test_rates_that_say_too_little_are_refused(given: tuple[str, ...], says: str) -> None:
    """Each names the option."""
    done = rtk("trace", "generate", "--nodes", "2", "--days", "1", *given)
    assert done.returncode == 2 and says in done.stderr
