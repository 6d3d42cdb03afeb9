"""Layers that share a matrix: from the profile to the run."""

import json
from pathlib import Path

import pytest

from .shell import rtk, rtk_forked

TIED = """
from torch import nn

def layers():
    made = [nn.Embedding(256, 8), *(nn.Linear(8, 8) for _ in range(2)), nn.Linear(8, 256, bias=False)]
    made[3].weight = made[0].weight
    return made
"""
SHARE = "layers 0 and 3 share a matrix (tied weights)"
SHAPE = ("--microbatches", "4", "-o", "plan.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a model of four layers of which the first and the last share a matrix."""
    (tmp_path / "net.py").write_text(TIED)
    return tmp_path


def test_tied_layers_are_told_of_planned_and_trained(folder: Path) -> None:
    """`rtk profile` says which layers share a matrix, in the user's own words for layers; a plan that parts them needs
    no warning, and `rtk run` trains it as it trains one stage."""
    pytest.importorskip("torch")
    sizes = ("--microbatch-size", "1", "--sequence-length", "8")
    done = rtk_forked("profile", "net.py:layers", *sizes, "--repeats", "1", "-o", "p.json", cwd=folder)
    assert f"{SHARE}: in different stages each has a copy" in done.stderr
    assert "1-2 Linear" in done.stderr
    assert "DeferredLinear" not in done.stderr
    losses = []
    for stages in ("2", "1"):
        planned = rtk("plan", "pipeline", "p.json", "--pp", stages, *SHAPE, "--force", cwd=folder)
        assert "warning" not in planned.stderr
        ran = rtk_forked("run", "plan.json", "--model", "net.py:layers", "--iterations", "3", "--json", cwd=folder)
        assert ran.returncode == 0, ran.stderr
        events = [json.loads(line) for line in ran.stdout.splitlines()]
        losses.append([one["loss"] for one in events if one["event"] == "iteration"])
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
