"""`rtk plan reconfigure` as a user types it: nodes lost and joined, plan after plan, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtk.schemas.documents import read_document, write_document
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from rtk.schemas.templates import Templates

from .shell import Done, rtk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the plan of 14 nodes of two GPUs: pipelines of 6, 4 and 4 nodes; there are templates of 4 to 8."""
    place = tmp_path_factory.mktemp("reconfigure")
    layers = tuple(
        Layer((LayerCost(0.02 + 0.006 * (i % 3), 0.02, 0.02, tensor_parallel=2),), state_bytes=4e9) for i in range(8)
    )
    network = Network(inter_node=Connection(1e-5, 1e9))
    write_document(str(place / "p.json"), Profile(layers, device=Device("small", 4e9), network=network))
    sizes = ("--nodes", "16", "--gpus-per-node", "2", "--largest", "8")
    for arguments in (
        ("templates", "p.json", *sizes, "-o", "t.json"),
        ("oobleck", "t.json", "--nodes", "14", "--global-batch", "24", "--microbatch-size", "1", "-o", "plan.json"),
    ):
        done = rtk("plan", *arguments, cwd=place)
        assert done.returncode == 0, done.stderr
    return place


def reconfigure(*arguments: str, cwd: Path) -> Done:
    return rtk("plan", "reconfigure", *arguments, cwd=cwd)


def _pipelines(plan: dict[str, Any]) -> list[tuple[str, int]]:
    return [(pipeline["template"], pipeline["microbatches"]) for pipeline in plan["pipelines"]]


@pytest.mark.wheel("plan templates", "plan oobleck", "plan reconfigure")
def test_plan_follows_plan(folder: Path) -> None:
    """A node is lost, then another while one joins: valid plans of 13 nodes, the copies said in words and in JSON."""
    done = reconfigure("plan.json", "--failed", "0/1", "-o", "b.json", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan == json.loads((folder / "b.json").read_text())
    assert [name for name, _ in _pipelines(plan)] == ["n5", "n4", "n4"]
    assert sum(count for _, count in _pipelines(plan)) == 24
    said = plan["planner"]["options"]["reconfiguration"]
    assert said["steps"] == ["simple"]
    assert sorted(said["pipelines"][0]) == ["0/0", "0/2", "0/3", "0/4", "0/5"]
    first = said["copies"][0]
    assert first["from"] != first["to"]
    assert "simple: 2 of n4, 1 of n6 become 2 of n4, 1 of n5; iteration " in done.stderr
    assert f"copies: layer {first['layers'][0]} from {first['from']} to {first['to']}" in done.stderr
    assert rtk("verify", "b.json", cwd=folder).returncode == 0

    done = reconfigure("b.json", "--failed", "0/0", "--join", "1", "--pays-within", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["planner"]["options"]["reconfiguration"]
    assert "new0" in said["pipelines"][0]
    assert said["moved_bytes"] == sum(copy["size_bytes"] for copy in said["copies"])
    assert said["copying_s"] == pytest.approx(said["moved_bytes"] / 1e9, rel=1e-3)


def test_the_same_question_has_the_same_answer(folder: Path) -> None:
    """Equal bytes, in whatever order the failed workers are named."""
    one, other = (reconfigure("plan.json", *names, cwd=folder).stdout for names in (
        ("--failed", "0/1", "--failed", "1/0"), ("--failed", "1/0", "--failed", "0/1")
    ))  # fmt: skip
    assert one == other


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name who is lost, or who comes"),
        (["--failed", "0/9"], 2, "workers of pipeline 0 are 0/0 to 0/5"),
        (["--failed", "7/0"], 2, "pipelines are 0 to 2"),
        ([f"--failed={k}/{i}" for k in (0, 1) for i in range(4)], 3, "at least 8 nodes are needed"),
        ([f"--failed={k}/0" for k in range(3)], 3, "is lost: no node that is left holds it"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, arguments: list[str], code: int, words: str) -> None:
    """Nothing changed, unknown workers, too few nodes, a lost layer: one line of what, and the way out."""
    done = reconfigure("plan.json", *arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_a_number_that_cannot_join_names_those_that_can(folder: Path) -> None:
    """Pipelines of 4 or 5 nodes cannot use 11: from 10 none or two can join, after a loss one or three."""
    templates = read_document(str(folder / "t.json"), Templates)
    write_document(str(folder / "few.json"), replace(templates, templates=templates.templates[:2], nodes=9))
    asked = ("few.json", "--nodes", "10", "--global-batch", "24", "--microbatch-size", "1", "-o", "ten.json")
    assert rtk("plan", "oobleck", *asked, cwd=folder).returncode == 0
    for lost, join, fix, works in (
        ([], "1", "take no --join or --join 2", ["2"]),
        (["--failed", "0/0"], "2", "take --join 1 or --join 3", ["1", "3"]),
    ):
        done = reconfigure("ten.json", *lost, "--join", join, cwd=folder)
        assert (done.returncode, done.stdout) == (3, "")
        assert f"at: --join\ndo: {fix}\n" in done.stderr
        for number in works:
            assert reconfigure("ten.json", *lost, "--join", number, cwd=folder).returncode == 0


def test_plans_that_no_templates_are_known_of_are_refused(folder: Path) -> None:
    """A classic plan cannot be reconfigured."""
    profile = Profile((Layer((LayerCost(0.01, 0.01, 0.01),)),) * 2)
    write_document(str(folder / "small.json"), profile)
    classic = ("small.json", "--pp", "2", "--microbatches", "2", "-o", "classic.json")
    assert rtk("plan", "pipeline", *classic, cwd=folder).returncode == 0
    done = reconfigure("classic.json", "--join", "1", cwd=folder)
    assert done.returncode == 2
    assert "rtk plan oobleck" in done.stderr
