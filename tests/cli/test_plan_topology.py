"""`rtk plan topology` and `rtk plan mitigate` as a user types them."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Layer, LayerCost, Profile

from .shell import Done, rtk

SHAPE = ("--pp", "4", "--dp", "4", "--microbatches", "8")
TROUBLES = ("--slow", "0/1=1.5", "--slow-link", "0/2-1/2=0.05", "--slow-link", "3/2-3/1=0.05")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile of four equal layers, 10 ms an operation."""
    place = tmp_path_factory.mktemp("topology")
    write_document(str(place / "p.json"), Profile((Layer((LayerCost(0.01, 0.01, 0.01),)),) * 4))
    return place


def plan(*arguments: str, cwd: Path) -> Done:
    return rtk("plan", "topology", "p.json", *arguments, cwd=cwd)


@pytest.mark.wheel("plan topology")
def test_who_is_slow_moves(folder: Path) -> None:
    """The plan is valid, lasts as long as it says, and names who moved; in words, too, what slow links carry."""
    done = plan(*SHAPE, *TROUBLES, "--json", "-o", "t.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["planner"]["options"]["assignment"]
    assert made["planner"]["options"]["slow_links"] == {"0/2-1/2": 0.05, "3/1-3/2": 0.05}
    assert "slow link 0/2-1/2 (50 ms) carries nothing instead of the sums of stage 2" in done.stderr
    assert "carries nothing instead of what stages 1 and 2 of pipeline 3 send" in done.stderr
    assert "taken: S2 and S3 (as it is" in done.stderr
    assert rtk("verify", "t.json", "--profile", "p.json", cwd=folder).returncode == 0
    report = json.loads(rtk("simulate", "t.json", "--json", cwd=folder).stdout)
    assert report["iteration_time_s"] == pytest.approx(made["prediction"]["iteration_time_s"])
    assert plan(*SHAPE, *TROUBLES, "--json", cwd=folder).stdout == done.stdout
    assert "slow link 0/2-1/2 (50 ms) carries nothing" in rtk("explain", "t.json", cwd=folder).stdout


def test_slow_workers_get_less(folder: Path) -> None:
    """In words: whose pipeline has fewer micro-batches; and nothing is said of what has not changed."""
    done = plan(*SHAPE, "--slow", "0/0=3", "--slow", "1/0=3", cwd=folder)
    assert "pipelines with slow workers: 1 instead of 2" in done.stderr
    assert "micro-batches instead of 8: pipeline" in done.stderr
    calm = plan(*SHAPE, cwd=folder)
    assert "taken: as it is" in calm.stderr
    assert len(calm.stderr.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--slow", "4/0=2"), 2, "there is no worker 4/0"),
        (("--slow", "0/0=0.5"), 2, "which is quicker"),
        (("--slow-link", "0/0-0/9=1"), 2, "there is no worker 0/9"),
        (("--slow-link", "0/0-0/1=0"), 2, "more than 0"),
        (("--slow-link", "0/0-0/1=1GB"), 2, "no unit here"),
        (("--slow-link", "0/0-0/0=1"), 2, "two ends"),
        (("--slow-link", "0/0-0/1=1", "--slow-link", "0/1-0/0=2"), 2, "give each link once"),
        (("--slow-link", "0/0=1"), 2, "write k/i-k/j=DURATION"),
    ],
)
def test_what_cannot_be_planned(arguments: tuple[str, ...], code: int, says: str, folder: Path) -> None:
    """Each with the exit code of its kind, and a way out."""
    done = plan(*SHAPE, *arguments, cwd=folder)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr


@pytest.mark.wheel("plan mitigate")
def test_switches(folder: Path) -> None:
    """Three switches and the ratio 2.083, as JSON and in a file; a table for people."""
    done = rtk("plan", "mitigate", "--costs", "5,60,1200", "--json", "-o", "m.json", cwd=folder)
    found = json.loads(done.stdout)
    assert found == json.loads((folder / "m.json").read_text())
    assert [(one["strategy"], one["after_s"]) for one in found["switches"]] == [("S2", 5), ("S3", 60), ("S4", 1200)]
    assert round(found["ratio"], 3) == 2.083
    table = rtk("plan", "mitigate", "--costs", "S4=20min,S3=60", "--left", "S3=100%", "--revert-cost", "9s").stdout
    assert "S4  20 min lost" in table
    assert "S3  never" in table
    assert "never more than 2 times the loss" in table


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--costs", "5,x"), "'x' cannot be read"),
        (("--costs", "5,0,7"), "S3 costs 0 s"),
        (("--costs", "1,2,3,4"), "4 numbers for 3 strategies"),
        (("--costs", "S2=1,2"), "name none"),
        (("--costs", "S2=1,S2=2"), "each once"),
        (("--costs", "S1=1"), "there is no strategy S1"),
        (("--costs", "5", "--left", "S3=0.5"), "S3 has no cost"),
        (("--costs", "5", "--revert-cost", "-1"), "'-1' is too little"),
    ],
)
def test_costs_that_are_none(arguments: tuple[str, ...], says: str) -> None:
    """Wrong costs and shares are refused."""
    done = rtk("plan", "mitigate", *arguments)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
