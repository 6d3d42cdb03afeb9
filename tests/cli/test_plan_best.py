"""`rtk plan best` as a user types it."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Layer, LayerCost, Profile

from .shell import rtk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile of four equal layers, 10 ms an operation."""
    place = tmp_path_factory.mktemp("best")
    write_document(str(place / "p.json"), Profile((Layer((LayerCost(0.01, 0.01, 0.01),)),) * 4))
    return place


@pytest.mark.wheel("plan best")
def test_the_best_shape_of_a_profile(folder: Path) -> None:
    """The table begins with the shape of the plan that is written, which is valid and lasts as long as it says."""
    done = rtk("plan", "best", "p.json", "--cluster", "2x2", "--batch", "8", "--chart", "c.svg", "-o", "b.json",
               "--json", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["shapes"][0]
    made = json.loads((folder / "b.json").read_text())
    assert made["prediction"]["iteration_time_s"] == pytest.approx(first["iteration_time_s"])
    assert made["planner"]["options"]["best"]["batch"] == 8
    assert "were planned" in done.stderr
    assert (folder / "c.svg").read_text().startswith("<svg ")
    assert rtk("verify", "b.json", "--profile", "p.json", cwd=folder).returncode == 0


def test_the_best_shape_of_a_model_by_name(folder: Path) -> None:
    """A model's name is computed in every form; where nodes fail a second table says what is left."""
    done = rtk("plan", "best", "gpt3-2.7b", "--gpu", "a100-sxm", "--cluster", "1x4", "--batch", "16", "--first", "3",
               "--schedule", "1f1b", "--mtbf", "7d", cwd=folder)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TP 1 x PP 1 x DP 4" in done.stdout
    assert "in expectation" in done.stdout


MEASURED = """\
model: gpt3-medium
gpu: a100-sxm
pp: 1
microbatch_size: 2
global_batch: 2
iteration: 2s
"""


def test_what_was_measured_corrects_every_form(folder: Path) -> None:
    """`--calibrate` of a model's name: what was learned is said once, and all forms are slower for it."""
    (folder / "run.yaml").write_text(MEASURED)
    arguments = ("plan", "best", "gpt3-medium", "--gpu", "a100-sxm", "--cluster", "1x2", "--batch", "8", "--first", "3",
                 "--microbatch-size", "1,2", "--schedule", "1f1b", "--json")  # fmt: skip
    plain, calibrated = rtk(*arguments, cwd=folder), rtk(*arguments, "--calibrate", "run.yaml", cwd=folder)
    assert calibrated.returncode == 0, calibrated.stderr
    assert calibrated.stderr.count("learned from 1 iteration of run.yaml") == 1
    times_s = [[one["iteration_time_s"] for one in json.loads(done.stdout)["shapes"]] for done in (plain, calibrated)]
    assert all(slower > 2 * faster for faster, slower in zip(*times_s, strict=True))
    done = rtk(*arguments, "--calibrate", "run.yaml", "--dtype", "fp32", cwd=folder)
    assert (done.returncode, "measured in bf16, and says nothing of fp32" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("nosuch", "--cluster", "2x2", "--batch", "8"), 2, "there is no model 'nosuch'"),
        (("llama3-8b", "--cluster", "2x2", "--batch", "8"), 2, "there is no GPU to compute for"),
        (("llama3-70b", "--gpu", "a100-sxm", "--cluster", "1x2", "--batch", "8"), 3, "needs the least"),
        (("p.json", "--cluster", "2x2", "--batch", "8", "--tensor-parallel", "x"), 2, "write whole numbers"),
        (("p.json", "--cluster", "2x2", "--batch", "8", "--chart", "c.txt"), 2, "end it in .svg"),
    ],
)
def test_what_cannot_be_answered(folder: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    """One clear error, and its exit code."""
    done = rtk("plan", "best", *arguments, cwd=folder)
    assert done.returncode == code
    assert says in done.stderr
