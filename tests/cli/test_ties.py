"""Layers that share a matrix: what each step says of them, from the profile to the run."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import read_document
from rtk.schemas.profile import Profile, ties_across

from .shell import rtk

TIED = """
from torch import nn

def layers():
    made = [nn.Embedding(256, 8), *(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, 256, bias=False)]
    made[3].weight = made[0].weight
    return made
"""
SHARE = "layers 0 and 3 share a matrix (tied weights)"
REMEDY = "untie them and profile again"
SHAPE = ("--microbatches", "4", "-o", "plan.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a profile, not measured, of four layers of which the first and the last share a matrix, and the model."""
    golden = Path(__file__).parents[1] / "golden" / "profile-slots4.json"
    tree = json.loads(golden.read_text())
    tree["layers"][3] |= {"tied_to": 0, "tied_bytes": 1.0, "parameter_bytes": 1.0, "tied_state_bytes": 0.0}
    (tmp_path / "p.json").write_text(json.dumps(tree))
    (tmp_path / "net.py").write_text(TIED)
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "options"),
    [("pipeline", ()), ("joint", ()), ("adaptra", ()), ("topology", ()), ("slipstream", ("--failed", "1/1"))],
)
def test_a_plan_warns_of_ties_that_it_cuts(folder: Path, verb: str, options: tuple[str, ...]) -> None:
    """Every planner warns where layers that share a matrix are in different stages, and says what can be done."""
    done = rtk("plan", verb, "p.json", "--pp", "2", "--dp", "2", *options, *SHAPE, cwd=folder)
    assert done.returncode == 0, done.stderr
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert SHARE.removesuffix(" (tied weights)") in warning
    assert "`rtk run` cannot train that yet" in warning
    assert REMEDY in warning


def test_one_stage_keeps_ties(folder: Path) -> None:
    """The remedy holds: with --pp 1 no plan warns."""
    done = rtk("plan", "pipeline", "p.json", "--pp", "1", "--dp", "2", *SHAPE, cwd=folder)
    assert "warning" not in done.stderr
    layers = read_document(str(folder / "p.json"), Profile).layers
    assert ties_across(layers, [(0, len(layers))]) == []
    assert ties_across(layers, [(0, 2), (2, len(layers))]) == [(0, 3)]


def test_profile_and_run_tell_of_the_tie(folder: Path) -> None:
    """`rtk profile` says which layers share a matrix, in the user's own words for layers; `rtk run` refuses the cut."""
    pytest.importorskip("torch")
    sizes = ("--microbatch-size", "1", "--sequence-length", "8")
    done = rtk("profile", "net.py:layers", *sizes, "--repeats", "1", "-o", "p.json", cwd=folder)
    assert f"{SHARE}: `rtk run` cannot train them in different stages yet" in done.stderr
    assert REMEDY in done.stderr
    assert "1-2 Linear" in done.stderr
    assert "DeferredLinear" not in done.stderr
    rtk("plan", "pipeline", "p.json", "--pp", "2", *SHAPE, cwd=folder)
    refused = rtk("run", "plan.json", "--model", "net.py:layers", cwd=folder)
    assert refused.returncode == 2
    assert f"{SHARE}, and are in stages 0 and 1" in refused.stderr
    assert f"do: {REMEDY}" in refused.stderr
