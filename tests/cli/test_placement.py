"""`--placement` and `--chunks` as a user types them, and who takes no plan with a placement."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Layer, LayerCost, Profile

from .shell import Done, rtk

SHAPE = ("--pp", "4", "--microbatches", "8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile of eight equal layers, 5 ms an operation and a byte each, and a V plan of it."""
    place = tmp_path_factory.mktemp("placement")
    layer = Layer((LayerCost(0.005, 0.005, 0.005),), activation_bytes=1.0)
    write_document(str(place / "p.json"), Profile((layer,) * 8))
    assert plan(*SHAPE, "--schedule", "zero-bubble", "--placement", "v", "-o", "v.json", cwd=place).returncode == 0
    return place


def plan(*arguments: str, cwd: Path, method: str = "pipeline") -> Done:
    return rtk("plan", method, "p.json", *arguments, cwd=cwd)


def test_a_v_is_planned_verified_and_kept(folder: Path) -> None:
    """The plan is a document of format 2.0 that says its placement; it is valid, and proven optimal."""
    made = json.loads((folder / "v.json").read_text())
    assert made["format_version"] == "2.0"
    assert made["templates"][0]["placement"] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    assert made["planner"]["options"]["placement"] == "v"
    assert made["planner"]["options"]["chunks"] == 2
    assert made["prediction"]["proof"] == "optimal"
    assert rtk("verify", "v.json", "--profile", "p.json", cwd=folder).returncode == 0


def test_plain_says_nothing_of_placements(folder: Path) -> None:
    """`--placement plain`, and any with one chunk, give the bytes that no option gives; the latter says so."""
    usual = plan(*SHAPE, "--json", cwd=folder)
    assert json.loads(usual.stdout)["format_version"] == "1.0"
    assert plan(*SHAPE, "--placement", "plain", "--chunks", "1", "--json", cwd=folder).stdout == usual.stdout
    one = plan(*SHAPE, "--placement", "v", "--chunks", "1", "--json", cwd=folder)
    assert one.stdout == usual.stdout
    assert "--placement v with one chunk a worker is plain" in one.stderr


def test_best_says_what_each_is_worth(folder: Path) -> None:
    """Standard error has a line for each placement, and the plan a table; what cannot be has its reason there."""
    asked = (*SHAPE, "--schedule", "zero-bubble", "--placement", "best:3", "--json")
    done = plan(*asked, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "plain: 270 ms (optimal)" in done.stderr
    assert "v, 2 chunks: 255 ms (optimal), taken" in done.stderr
    assert "loop, 3 chunks: 4 workers of 3 chunks need 12 layers, and there are 8" in done.stderr
    table = json.loads(done.stdout)["planner"]["options"]["placements"]
    assert [(row["placement"], row["chunks"]) for row in table] == [
        ("plain", 1), ("v", 2), ("v", 3), ("loop", 2), ("loop", 3)
    ]  # fmt: skip
    slow = plan(*SHAPE, "--link-delay", "1=60ms", "--placement", "best", method="adaptra", cwd=folder)
    assert "plain: " in slow.stderr
    assert ", taken" in next(line for line in slow.stderr.splitlines() if line.startswith("plain: "))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--placement", "zigzag"), 2, "'zigzag' is no placement"),
        (("--chunks", "2"), 2, "a plain placement has one stage a worker"),
        (("--placement", "plain", "--chunks", "3"), 2, "a plain placement has one stage a worker"),
        (("--placement", "best:4", "--chunks", "3"), 2, "contradict each other"),
        (("--placement", "v", "--chunks", "0"), 2, "--chunks"),
        (("--placement", "v", "--chunks", "3"), 3, "4 workers of 3 chunks need 12 layers, and there are 8"),
        (("--placement", "loop", "--schedule", "gpipe"), 2, "GPipe has one stage a worker"),
        (("--placement", "v", "--link-delay", "3=5ms"), 2, "there is no link 3"),
        (("--placement", "loop", "--link-delay", "4=5ms"), 2, "there is no link 4"),
        (("--placement", "v", "--memory-limit", "8B,8B"), 2, "2 memory limits for 4 stages"),
        (("--placement", "v", "--memory-limit", "1B"), 3, "column 0"),
        (("--placement", "v", "--memory-limit", "8B,8B,1B,8B"), 3, "column 2"),
        (("--placement", "v", "--chunks", "200000"), 2, "operations"),
    ],
)
def test_bad_input_is_named(folder: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    """Each mistake ends with its code and names its place."""
    done = plan(*SHAPE, *arguments, cwd=folder)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--pp", "1", "--microbatches", "3", "--placement", "v"),
        ("--pp", "2", "--microbatches", "1", "--placement", "v", "--chunks", "4"),
        ("--pp", "4", "--microbatches", "3", "--placement", "loop", "--link-delay", "3=5ms"),
    ],
)
def test_odd_shapes_are_legal(folder: Path, arguments: tuple[str, ...]) -> None:
    """One worker with all chunks, zigzags, fewer micro-batches than workers, and a slow way back are planned."""
    done = plan(*arguments, "--schedule", "zero-bubble", "-o", "odd.json", "--force", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert rtk("verify", "odd.json", cwd=folder).returncode == 0


def test_warm_ups_of_adaptra_take_no_placement(folder: Path) -> None:
    """The published techniques are for one stage a worker."""
    done = plan(*SHAPE, "--placement", "v", "--technique", "adapted", method="adaptra", cwd=folder)
    assert done.returncode == 2
    assert "the warm-ups of adapted are for one stage a worker" in done.stderr


def test_reconfiguration_takes_no_placement(folder: Path) -> None:
    """`rtk plan reconfigure` refuses a plan with a placement by name."""
    done = rtk("plan", "reconfigure", "v.json", "--failed", "0/1", cwd=folder)
    assert done.returncode == 2
    assert "rtk plan reconfigure takes no plan whose workers hold several virtual stages" in done.stderr


def test_a_job_file_may_say_it(folder: Path) -> None:
    """`[shape] placement` and `chunks` of rtk.toml stand for the options."""
    place = folder / "job"
    place.mkdir()
    (place / "rtk.toml").write_text(
        '[model]\nprofile = "../p.json"\n[shape]\npp = 2\nmicrobatches = 2\nplacement = "loop"\nchunks = 3\n'
    )
    done = rtk("plan", "pipeline", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["templates"][0]["placement"] == [[0, 2, 4], [1, 3, 5]]
