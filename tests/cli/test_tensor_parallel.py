"""`--tensor-parallel` as a user types it: what commands say of degrees, and who takes no such plan."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Device, Layer, LayerCost, Profile

from .shell import Done, rtk

SHAPE = ("--pp", "2", "--dp", "2", "--microbatches", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile at degrees 1, 2 and 4 whose device holds 60 bytes, and a plan of it at degree 2."""
    place = tmp_path_factory.mktemp("degrees")
    each_s = {degree: 0.004 / degree for degree in (1, 2, 4)}
    costs = tuple(LayerCost(one_s, one_s, one_s, tensor_parallel=degree) for degree, one_s in each_s.items())
    layer = Layer(costs, activation_bytes=4.0, state_bytes=20.0)
    write_document(str(place / "p.json"), Profile((layer,) * 4, {"name": "gpt-tiny"}, device=Device(None, 60.0)))
    assert plan("pipeline", "--tensor-parallel", "2", "-o", "two.json", cwd=place).returncode == 0
    return place


def plan(method: str, *arguments: str, cwd: Path) -> Done:
    return rtk("plan", method, "p.json", *SHAPE, *arguments, cwd=cwd)


def test_a_profile_of_several_degrees_says_which_was_taken(folder: Path) -> None:
    """Without the option standard error names the degree, and that there are others."""
    done = plan("pipeline", "-o", "one.json", cwd=folder)
    assert "tensor parallelism 1, the least that the profile has (1, 2 and 4): --tensor-parallel takes" in done.stderr
    assert json.loads((folder / "one.json").read_text())["format_version"] == "1.0"


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("pipeline", ()),
        ("adaptra", ("--link-delay", "0=1ms")),
        ("joint", ("--failed", "0/1")),
        ("slipstream", ("--failed", "0/1")),
        ("topology", ("--slow", "0/1=2")),
    ],
)
def test_auto_says_what_each_degree_is_worth(folder: Path, method: str, more: tuple[str, ...]) -> None:
    """Every planner compares the degrees, in lines and in the plan, which says how many GPUs it takes."""
    given = () if method == "topology" else ("--cluster", "4x4")
    done = plan(method, "--tensor-parallel", "auto", *more, *given, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "tensor parallelism 4 (16 GPUs): " in done.stderr
    made = json.loads(done.stdout)
    assert [row["tensor_parallel"] for row in made["planner"]["options"]["degrees"]] == [1, 2, 4]
    assert {stage["tensor_parallel"] for stage in made["templates"][0]["stages"]} == {1 if method == "topology" else 4}


def test_such_a_plan_is_simulated_explained_and_compared(folder: Path) -> None:
    """Simulation, explanation, verification and diff take a plan at a degree; the latter two say the degree."""
    assert rtk("verify", "two.json", "--profile", "p.json", cwd=folder).returncode == 0
    assert "+0 % against the plan's prediction" in rtk("simulate", "two.json", cwd=folder).stdout
    assert "A worker is 2 GPUs" in rtk("explain", "two.json", cwd=folder).stdout
    plan("pipeline", "--tensor-parallel", "auto", "-o", "auto.json", cwd=folder)
    told = json.loads(rtk("explain", "auto.json", "--json", cwd=folder).stdout)
    assert [row["tensor_parallel"] for row in told["degrees"]] == [1, 2, 4]
    assert told["tensor_parallel"] == [next(row["tensor_parallel"] for row in told["degrees"] if row["chosen"])]
    plan("pipeline", "--tensor-parallel", "1", "-o", "one.json", "--force", cwd=folder)
    assert (
        "tensor-parallel degree of stage 0 of template t0: 1 → 2"
        in rtk("diff", "one.json", "two.json", cwd=folder).stdout
    )


def test_a_failed_node_takes_the_workers_that_had_gpus_there(folder: Path) -> None:
    """On nodes of two GPUs each worker of degree 2 is a node: a dead one is a dead worker in plan and simulation."""
    (folder / "dead.yaml").write_text("failed: [node1]")
    machines = ("--cluster", "4x2", "--overlay", "dead.yaml")
    done = plan("joint", "--tensor-parallel", "2", *machines, "--json", cwd=folder)
    assert [one["stage"] for one in json.loads(done.stdout)["workers"] if one.get("failed")] == [1]
    assert "dead workers on this cluster: 0/1" in rtk("simulate", "two.json", *machines, cwd=folder).stderr


def test_memory_errors_and_missing_degrees_say_what_would_do(folder: Path) -> None:
    """Too little memory names the degrees that fit, a missing degree those that there are."""
    tight = ("--memory-limit", "5", "--tensor-parallel", "1")
    assert "take --tensor-parallel 2 or 4, where it fits" in plan("adaptra", *tight, cwd=folder).stderr
    assert (
        "take --tensor-parallel 2 or 4, where it fits"
        in plan("slipstream", "--failures", "1", *tight, cwd=folder).stderr
    )
    assert (
        "no cost at tensor_parallel 3, only at 1, 2 and 4" in plan("joint", "--tensor-parallel", "3", cwd=folder).stderr
    )


def test_a_replay_takes_the_degree_that_trains_most(folder: Path) -> None:
    """`auto` says what each degree trains, and the report has the one taken; one a stage is refused."""
    rtk(
        "trace",
        "generate",
        "--nodes",
        "4",
        "--days",
        "0.01",
        "--mtbf",
        "1h",
        "--repair",
        "1h",
        "-o",
        "t.jsonl",
        cwd=folder,
    )
    asked = ("replay", "--profile", "p.json", "--trace", "t.jsonl", *SHAPE, "--policies", "spares")
    done = rtk(*asked, "--tensor-parallel", "auto", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "tensor parallelism 1; micro-batches a second, as a share of its own: 1: 100 %" in done.stderr
    assert json.loads(done.stdout)["job"]["tensor_parallel"] == 1
    assert "equally many GPUs" in rtk(*asked, "--tensor-parallel", "2,4", cwd=folder).stderr
