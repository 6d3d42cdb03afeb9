"""What `--cluster` says of a node's network, and what a GPU holds, as a user sees them."""

import json
from pathlib import Path

import pytest

from rtk.schemas.documents import write_document
from rtk.schemas.profile import Connection, Layer, LayerCost, Network, Profile

from .shell import rtk

SHAPE = ("p.json", "--pp", "4", "--dp", "4", "--microbatches", "4", "--schedule", "1f1b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a profile of four equal layers, whose own network has one path between all GPUs."""
    layer = Layer(
        (LayerCost(0.01, 0.01, 0.01),), parameter_bytes=1e9, state_bytes=7e9, output_bytes=1e6, activation_bytes=1e8
    )
    write_document(str(tmp_path / "p.json"), Profile((layer,) * 4, network=Network(None, Connection(0.0, 20e9))))
    return tmp_path


def test_gradients_take_longer_where_a_node_shares_its_network(folder: Path) -> None:
    """On nodes of a named machine each GPU's ring has a share of the node; without a name, the path of a pair."""
    sums_s = {}
    for cluster in ("2x8", "2xdgx-a100", "2xa2-ultragpu-8g"):
        done = rtk("plan", "pipeline", *SHAPE, "--cluster", cluster, "-o", f"{cluster}.json", cwd=folder)
        assert done.returncode == 0, done.stderr
        template = json.loads((folder / f"{cluster}.json").read_text())["templates"][0]
        sums_s[cluster] = template["stages"][0]["allreduce_s"]
    assert sums_s["2x8"] == Connection(0.0, 20e9).ring_s(1e9, 4)
    assert sums_s["2xdgx-a100"] < sums_s["2x8"] < sums_s["2xa2-ultragpu-8g"]


def test_explain_says_what_the_fullest_gpu_holds(folder: Path) -> None:
    """With the profile parts of memory and of the iteration add up; of a sharded optimizer a GPU has a share."""
    rtk("plan", "pipeline", *SHAPE, "-o", "plan.json", cwd=folder)
    found = {}
    for options in ((), ("--sharded-optimizer",)):
        done = rtk("explain", "plan.json", "--profile", "p.json", "--json", *options, cwd=folder)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        found[options] = told["memory_bytes"]
        total = found[options].pop("total")
        assert sum(found[options].values()) == pytest.approx(total)
    assert sum(one["time_s"] for one in told["account"]["shares"]) == pytest.approx(told["iteration_time_s"])
    assert (told["tensor_parallel"], told["account"]["tensor_parallel"]) == ([1], 1)
    assert found[()]["parameters"] == found[()]["gradients"] == 1e9
    assert found[()]["optimizer"] == 4 * found[("--sharded-optimizer",)]["optimizer"] == 6e9
    refused = rtk("explain", "plan.json", "--sharded-optimizer", cwd=folder)
    assert refused.returncode == 2
    assert "--profile" in refused.stderr
