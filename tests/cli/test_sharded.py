"""`--shard-optimizer` as a user types it: what plans of it say, and what commands say of them."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import digest, read_document, write_document
from rtk.schemas.profile import Device, Layer, LayerCost, Profile

from .shell import rtk

SHAPE = ("--pp", "2", "--dp", "5", "--microbatches", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile whose device has room for a shared optimizer only, and a plan of it."""
    place = tmp_path_factory.mktemp("sharded")
    cost = LayerCost(0.004, 0.004, 0.004, 0.008)
    layer = Layer((cost,), parameter_bytes=10.0, state_bytes=30.0, activation_bytes=1.0, output_bytes=1.0)
    write_document(str(place / "p.json"), Profile((layer,) * 4, {"name": "gpt-tiny"}, device=Device(None, 62.0)))
    done = rtk("plan", "pipeline", "p.json", *SHAPE, "--shard-optimizer", "-o", "plan.json", cwd=place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.mark.parametrize(
    "method", [("adaptra",), ("joint", "--failed", "0/1"), ("slipstream", "--failed", "0/1"), ("topology",)]
)
def test_every_planner_takes_it(folder: Path, method: tuple[str, ...]) -> None:
    """Their plans say it in their templates; those that may undo a step need room for that, and say how much."""
    done = rtk("plan", method[0], "p.json", *SHAPE, *method[1:], "--shard-optimizer", cwd=folder)
    if method[0] in ("adaptra", "topology"):
        assert json.loads(done.stdout)["templates"][0]["shard_optimizer"] is True
    else:
        assert done.returncode == 3 and "the copy by which a step is undone included" in done.stderr


def test_what_does_not_fit_says_that_sharing_would(folder: Path) -> None:
    """The error without the option names it."""
    done = rtk("plan", "pipeline", "p.json", *SHAPE, cwd=folder)
    assert done.returncode == 3 and "(--shard-optimizer), where it fits" in done.stderr


def test_too_few_to_gain_are_told(folder: Path) -> None:
    """With three pipelines memory limits are as without it, for one may be lost: standard error says so."""
    few = ("--pp", "4", "--dp", "3", "--microbatches", "2")
    done = rtk("plan", "pipeline", "p.json", *few, "--shard-optimizer", cwd=folder)
    assert "with 2 workers left of 3 each holds all of it: memory limits gain from 4 pipelines on" in done.stderr


def test_such_a_plan_is_explained_simulated_and_verified(folder: Path) -> None:
    """The account of memory has the share, now and after a loss; the checker refutes a limit that leaves no room."""
    told = json.loads(rtk("explain", "plan.json", "--profile", "p.json", "--json", cwd=folder).stdout)["memory_bytes"]
    assert told["optimizer"] == 16 and told["total_after_losses"] == pytest.approx(told["total"] + 4 * 1.17)
    words = rtk("explain", "plan.json", "--profile", "p.json", cwd=folder).stdout
    assert "Its peers share the optimizer's state; once one is lost, it is" in words
    assert rtk("verify", "plan.json", "--profile", "p.json", cwd=folder).returncode == 0
    assert "+0 % against the plan's prediction" in rtk("simulate", "plan.json", cwd=folder).stdout
    tight = json.loads((folder / "p.json").read_text()) | {"device": {"name": None, "memory_bytes": 61}}
    (folder / "tight.json").write_text(json.dumps(tight))
    told = json.loads((folder / "plan.json").read_text())
    told["inputs"]["profile"] = digest(read_document(str(folder / "tight.json"), Profile))
    (folder / "other.json").write_text(json.dumps(told))
    done = rtk("verify", "other.json", "--profile", "tight.json", cwd=folder)
    assert done.returncode == 1
    assert "/workers/0: worker 0/0 holds 62 B with 4 left to share the optimizer's state, 1 B more than" in done.stdout
