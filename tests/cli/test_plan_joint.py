"""`rtk plan joint` as a user types it: the plan, what is said of it, and what is refused."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Layer, LayerCost, Profile

from .shell import Done, rtk

SHAPE = ("--pp", "4", "--dp", "4", "--microbatches", "16")
SMALL = ("--pp", "4", "--dp", "1", "--microbatches", "4")
TROUBLES = ("--failed", "1/2", "--slow", "3/1=1.5", "--link-delay", "2/0=0.06")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile of four equal layers, 10 ms an operation, and the plan for all troubles."""
    place = tmp_path_factory.mktemp("joint")
    layer = Layer((LayerCost(0.01, 0.01, 0.01),), activation_bytes=2.0, weight_stash_bytes=1.0)
    write_document(str(place / "p.json"), Profile((layer,) * 4))
    assert plan(*SHAPE, *TROUBLES, "-o", "plan.json", cwd=place).returncode == 0
    return place


def plan(*arguments: str, cwd: Path) -> Done:
    return rtk("plan", "joint", "p.json", *arguments, cwd=cwd)


def test_all_troubles_at_once(folder: Path) -> None:
    """The plan is optimal, valid and lasts as long as it says; the slow link carries nothing; all of it is told."""
    done = plan(*SHAPE, *TROUBLES, "--json", "--require-optimal", "--time-limit", "0", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (folder / "plan.json").read_text()
    assert "iteration 660 ms (optimal" in done.stderr
    assert "slow links that carry nothing: 2/0" in done.stderr
    assert rtk("verify", "plan.json", "--profile", "p.json", cwd=folder).returncode == 0
    report = json.loads(rtk("simulate", "plan.json", "--json", cwd=folder).stdout)
    assert report["iteration_time_s"] == json.loads(done.stdout)["prediction"]["iteration_time_s"]


@pytest.mark.parametrize(
    ("technique", "optimizer", "iteration_s", "kinds"),
    [
        ("adaptive", "synchronous", 0.72, "FB"),
        ("decoupled", "synchronous", 0.68, "FIW"),
        ("staggered", "staggered", 0.66, "FIW"),
    ],
)
def test_the_techniques_are_slipstreams(
    technique: str, optimizer: str, iteration_s: float, kinds: str, folder: Path
) -> None:
    """Whole backwards, split ones, and optimizers on their own, which is the default."""
    tree = json.loads(plan(*SHAPE, *TROUBLES, "--technique", technique, "--json", "-o", "t.json", cwd=folder).stdout)
    assert (tree["optimizer"], tree["planner"]["options"]["technique"]) == (optimizer, technique)
    assert tree["prediction"]["iteration_time_s"] == pytest.approx(iteration_s)
    assert {token[0] for worker in tree["workers"] for token in worker.get("order", "").split()} == set(kinds)


@pytest.mark.wheel("plan joint", "explain")
def test_it_is_explained(folder: Path) -> None:
    """`rtk explain` says who took over, which link carries nothing, and what the best single technique takes."""
    told = " ".join(rtk("explain", "plan.json", cwd=folder).stdout.split())
    assert "worker 1/2 is dead; 0/2 takes 6 micro-batches more than its own 16" in told
    assert "Link 0 of pipeline 2 takes 60 ms and carries nothing" in told
    assert "re-routing, in arrival order 720 ms +9.1 %" in told
    document = json.loads(rtk("explain", "plan.json", "--json", cwd=folder).stdout)
    assert [stage["stage"] for stage in document["troubles"]["stages"]] == [1, 2]


def test_memory_and_links_of_all_pipelines(folder: Path) -> None:
    """A link that is slow for all is not bypassed, and no worker holds more than its limit."""
    done = plan(*SMALL, "--link-delay", "1=0.02", "--memory-limit", "8", "--json", "-o", "k.json", cwd=folder)
    tree = json.loads(done.stdout)
    assert tree["planner"]["options"]["bypassed_links"] == []
    assert max(tree["prediction"]["peak_memory_bytes"]) <= 8
    assert "carry nothing" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--failed", "4/0"), 2, "there is no worker 4/0"),
        (("--failed", "x"), 2, "write k/i"),
        (("--failed", "0/1", "--failed", "0/1"), 2, "named twice"),
        (("--slow", "0/9=2"), 2, "there is no worker 0/9"),
        (("--slow", "0/1=0"), 2, "a factor is above 0"),
        (("--link-delay", "0/3=1"), 2, "there is no link 0/3"),
        (("--link-delay", "0/1=-1"), 2, "give 0 or more"),
        (tuple(word for k in range(4) for word in ("--failed", f"{k}/1")), 3, "stage 1 has lost all its workers"),
        (("--memory-limit", "1"), 3, "its memory limit is 1"),
    ],
)
def test_what_cannot_be_planned(arguments: tuple[str, ...], code: int, says: str, folder: Path) -> None:
    """Each with the exit code of its kind and a line that names the way out."""
    done = plan(*SHAPE, *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    assert says in done.stderr


def test_a_proof_can_be_demanded(folder: Path) -> None:
    """Where there is none the plan is written all the same, and the exit code is 4."""
    searched = ("--memory-limit", "4", "--link-delay", "0=0.1", "--solver", "heuristic", "--require-optimal")
    done = plan(*SMALL, *searched, "-o", "open.json", cwd=folder)
    assert done.returncode == 4, done.stderr
    assert "not proven optimal" in done.stderr
    assert rtk("verify", "open.json", cwd=folder).returncode == 0


def test_workers_of_several_stages(folder: Path) -> None:
    """A V loses a worker, has a slow one and a slow link, and is planned as if there was only the first; the best
    placement says what each is worth."""
    costs = (LayerCost(0.005, 0.005, 0.005),)
    layers = (Layer(costs, activation_bytes=1.0, weight_stash_bytes=0.5),) * 8
    write_document(str(folder / "eight.json"), Profile(layers))
    shape = ("--pp", "4", "--dp", "3", "--microbatches", "6", "--memory-limit", "8")
    wrong = ("--failed", "1/2", "--slow", "2/1=1.5", "--link-delay", "0/1=40ms")
    placed = ("--placement", "best", "-o", "v.json")
    done = rtk("plan", "joint", "eight.json", *shape, *wrong, *placed, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "v, 2 chunks: 270 ms (optimal)" in done.stderr
    assert "slow links that carry nothing: 0/1" in done.stderr
    assert rtk("verify", "v.json", cwd=folder).returncode == 0
