"""`--cluster` and `--overlay` as a user gives them: what plans make of machines, and what is refused."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rtk.schemas.cluster import Cluster, Overlay, SlowPath
from rtk.schemas.cluster_file import SLURM_GPUS, read_overlay
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile
from rtk.schemas.site import Site, read_cluster, with_gpu

from .shell import Done, rtk

CLUSTER = """
name: lab
nodes: node[001-004]
gpus_per_node: 4
memory: 80GiB
network:
  intra_node: {latency: 2us, bandwidth: 450GB/s}
  inter_node:
    latency: 5us
    bandwidth: 400Gbit/s
"""
# On nodes of four GPUs and pipelines of four stages: pipeline 1 sits on node002, and 3/2 on the third GPU of node004.
OVERLAY = """
failed: [node003, node004:2]
slow: {node001: 1.5, node002:3: 2}
slow_links: {node001-node002: 20ms, node002:0-node002:1: 50ms}
"""
FAILED, LINKS = "failed: [node003, node004:2]\n", "slow_links: {node001-node002: 20ms}\n"
SHAPE = ("p.json", "--pp", "4", "--dp", "4", "--microbatches", "4")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a profile of four equal layers, a cluster, and overlays."""
    layer = Layer((LayerCost(0.01, 0.01, 0.01),), output_bytes=1e6, activation_bytes=1e9, weight_stash_bytes=1e9)
    write_document(str(tmp_path / "p.json"), Profile((layer,) * 4))
    for name, text in {"c": CLUSTER, "o": OVERLAY, "failed": FAILED, "links": LINKS}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def plan(cwd: Path, *arguments: str) -> dict[str, Any]:
    done = rtk("plan", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    tree: dict[str, Any] = json.loads(done.stdout)
    return tree


def names(tree: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The workers of a plan that are failed or slow."""
    return {f"{one['pipeline']}/{one['stage']}": one[key] for one in tree["workers"] if key in one}


def refused(done: Done, code: int, *says: str) -> None:
    assert done.returncode == code, done.stderr
    for text in says:
        assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_says_a_cluster(folder: Path) -> None:
    """Units become seconds and bytes, and lists of hosts their names."""
    network = Network(Connection(2e-6, 450e9), Connection(5e-6, 50e9))
    assert read_cluster(str(folder / "c.yaml")) == Cluster(
        ("node001", "node002", "node003", "node004"), 4, memory_bytes=80 * 2**30, network=network, name="lab"
    )
    (folder / "n.yaml").write_text("nodes: [head, 'n[1-2]']\ngpus_per_node: 8\ngpu: NVIDIA H100 SXM\n")
    assert read_cluster(str(folder / "n.yaml")) == Cluster(("head", "n1", "n2"), 8, "h100-sxm")
    (folder / "n.yaml").write_text("{nodes: 3, gpus_per_node: 2}")
    assert read_cluster(str(folder / "n.yaml")) == read_cluster("3x2") == Cluster(("node0", "node1", "node2"), 2)


def test_a_file_says_an_overlay(tmp_path: Path) -> None:
    """Nodes, lists of nodes and single GPUs; numbers stay names; hyphens in names do not split a link elsewhere."""
    cluster = Cluster(("a-1", "a-2", "12", "4"), 3)
    (tmp_path / "o.yaml").write_text("failed: ['a-[1-2]', 12, 4:2]\nslow_links: {a-1-a-2:2: 1ms, 12-4: 0s}\n")
    assert read_overlay(str(tmp_path / "o.yaml"), cluster) == Overlay(
        failed=(("a-1", None), ("a-2", None), ("12", None), ("4", 2)),
        slow_links=(SlowPath((("a-1", None), ("a-2", 2)), 1e-3), SlowPath((("12", None), ("4", None)), 0.0)),
    )
    (tmp_path / "o.yaml").write_text("failed: a-1\nslow: {4: 2}\n")
    assert read_overlay(str(tmp_path / "o.yaml"), cluster) == Overlay((("a-1", None),), ((("4", None), 2.0),))


def test_the_cluster_of_a_slurm_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes in SLURM's order, and the GPUs of a node by whichever variable says it; outside of a job, what to do."""
    for name in ("SLURM_JOB_NODELIST", *SLURM_GPUS):
        monkeypatch.delenv(name, raising=False)
    job = {"SLURM_JOB_NODELIST": "gpu-[07-08],gpu-03"}
    for more in ({"SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_GPUS": "0"}, {"SLURM_GPUS_PER_NODE": "h100:4"},
                 {"SLURM_JOB_GPUS": "0-1,4,7"}):  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**job, **more}.items():
                patch.setenv(name, value)
            assert read_cluster("slurm") == Cluster(("gpu-07", "gpu-08", "gpu-03"), 4)
    for environment, where in (({}, "--cluster slurm"), (job, "--cluster slurm"),
                               ({**job, "SLURM_GPUS_ON_NODE": "many"}, "SLURM_GPUS_ON_NODE"),
                               ({**job, "SLURM_JOB_GPUS": "GPU-ab"}, "SLURM_JOB_GPUS")):  # fmt: skip
        done = rtk("plan", "pipeline", *SHAPE, "--cluster", "slurm", environment=environment)
        refused(done, 2, f"at: {where}", "gpus_per_node" if environment else "sbatch, salloc or srun")


def test_joint_plans_for_the_overlay(folder: Path) -> None:
    """Dead and slow workers and slow links are those on the machines; the plan is still one of the profile's."""
    made = plan(folder, "joint", *SHAPE, "--cluster", "c.yaml", "--overlay", "o.yaml", "--slow", "1/3=3")
    assert set(names(made, "failed")) == {"2/0", "2/1", "2/2", "2/3", "3/2"}
    assert names(made, "slowdown") == {"0/0": 1.5, "0/1": 1.5, "0/2": 1.5, "0/3": 1.5, "1/3": 3.0}
    assert made["pipelines"][1]["links"][0] == {"delay_s": 0.05}
    (folder / "plan.json").write_text(json.dumps(made))
    assert rtk("verify", "plan.json", "--profile", "p.json", cwd=folder).returncode == 0
    assert set(made["inputs"]) == {"profile", "cluster", "overlay"}
    assert "node0" not in json.dumps(made)  # no names of machines in a plan


def test_a_cluster_goes_before_the_profile(folder: Path) -> None:
    """Its network gives the links' delays, its memory the limits; without a cluster all is as it was."""
    made = plan(folder, "pipeline", *SHAPE, "--cluster", "c.yaml")
    assert made["templates"][0]["links"][0]["delay_s"] == pytest.approx(5e-6 + 1e6 / 50e9)
    assert made["templates"][0]["stages"][0]["memory_limit_bytes"] == 80 * 2**30
    (folder / "small.yaml").write_text(CLUSTER.replace("80GiB", "0.5GB"))
    refused(rtk("plan", "pipeline", *SHAPE, "--cluster", "small.yaml", cwd=folder), 3, "memory limit")
    assert "cluster" not in plan(folder, "pipeline", *SHAPE)["inputs"]


def test_a_kind_of_gpu_says_what_nobody_else_does() -> None:
    """Memory and paths come from the table where neither cluster nor profile has them; a profile's own ones stay."""
    cluster = with_gpu(Cluster(("a", "b"), 8), "h100-sxm", "--cluster")
    layer = Layer((LayerCost(1.0, 1.0, 1.0),))
    site, bare = Site(cluster), Profile((layer,))
    filled = site.adapted(bare)
    assert filled.device.memory_bytes == 80e9
    assert filled.network.intra_node is not None and filled.network.inter_node is not None
    assert Site(replace(cluster, nodes=("a",))).adapted(bare).network.inter_node is None
    assert Site(replace(cluster, gpu=None)).adapted(bare) == Site().adapted(bare) == bare
    own = Profile((layer,), device=Device("x", 1.0), network=Network(Connection(1.0), Connection(2.0)))
    assert site.adapted(own) == own
    with pytest.raises(InvalidInputError, match="--gpu says a100-sxm, the cluster h100-sxm"):
        with_gpu(cluster, "a100-sxm", "c.yaml")


def test_templates_for_the_whole_nodes(folder: Path) -> None:
    """A node with a failed GPU is taken off; --nodes may be said beside --cluster if it is the same."""
    by_flags = plan(folder, "templates", "p.json", "--nodes", "4", "--fault-tolerance", "1")
    (folder / "o.yaml").write_text("failed: [node5, node1:0]\n")
    cluster = ("--cluster", "6x1", "--overlay", "o.yaml", "--nodes", "6")
    done = rtk("plan", "templates", "p.json", *cluster, cwd=folder)
    made = json.loads(done.stdout)
    assert (made["templates"], made["nodes"]) == (by_flags["templates"], 4)
    assert "nodes taken off, with all their GPUs: node[1,5]" in done.stderr
    assert set(made["inputs"]) == {"profile", "cluster", "overlay"}
    overlay = rtk("plan", "templates", "p.json", "--nodes", "6", "--overlay", "o.yaml", cwd=folder)
    assert json.loads(overlay.stdout) == made


@pytest.mark.wheel("plan slipstream")
def test_slipstream_and_its_atlas(folder: Path) -> None:
    """What the overlay calls failed is as if --failed said so, one of each unit; an atlas is asked in the same way."""
    (folder / "failed.yaml").write_text("failed: [node1, node2:1]\n")
    cluster = ("--cluster", "3x2", "--overlay", "failed.yaml")
    flags = [word for name in ("1/0", "1/1", "2/1") for word in ("--failed", name)]
    shape = ("p.json", "--pp", "2", "--dp", "3", "--microbatches", "3", "--technique", "adaptive")
    made = plan(folder, "slipstream", *shape, *cluster)
    assert made["workers"] == plan(folder, "slipstream", *shape, *flags)["workers"]
    units = plan(folder, "slipstream", *shape, *cluster, "--failure-unit", "1x2", "--failed", "1/0")
    assert set(names(units, "failed")) == {"1/0", "1/1", "2/0", "2/1"}
    done = rtk("plan", "slipstream", *shape, "--cluster", "3x2", "--max-failures", "3", "-o", "atlas", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(names(plan(folder, "slipstream", "p.json", "--from", "atlas", *cluster), "failed")) == 3
    (folder / "failed.yaml").write_text("slow: {node1: 2}\n")
    refused(
        rtk("plan", "slipstream", "--from", "atlas", *cluster, cwd=folder), 2, "made for healthy ones", "without --from"
    )


def test_simulate_on_the_cluster(folder: Path) -> None:
    """Slow workers and links hold from the start, dead ones die at once, in the words of the options that exist."""
    planned = rtk("plan", "pipeline", *SHAPE, "-o", "plan.json", cwd=folder)
    assert planned.returncode == 0, planned.stderr
    (folder / "slow.yaml").write_text("slow: {node002: 2}\nslow_links: {node001:0-node001:1: 1500ms}\n")
    cluster = ("--cluster", "c.yaml", "--overlay")
    found = rtk("simulate", "plan.json", *cluster, "slow.yaml", "--json", cwd=folder)
    flags = [word for i in range(4) for word in ("--slow", f"1/{i}=2")]
    same = rtk("simulate", "plan.json", *flags, "--link-delay", "0/0=1.5", "--json", cwd=folder)
    assert json.loads(found.stdout) == json.loads(same.stdout)
    dead = rtk("simulate", "plan.json", *cluster, "failed.yaml", "--iterations", "2", cwd=folder)
    assert dead.returncode == 0, dead.stderr
    assert "from iteration 0 on: 11 workers" in dead.stdout
    (folder / "trace.jsonl").write_text('{"iteration": 1, "kind": "join", "worker": "2/0"}\n')
    back = rtk(
        "simulate", "plan.json", *cluster, "failed.yaml", "--iterations", "2", "--inject", "trace.jsonl", cwd=folder
    )
    assert "from iteration 1 on: 12 workers" in back.stdout


def test_an_analytic_profile_of_a_cluster(folder: Path) -> None:
    """The cluster says the GPU, and what it says of memory and network counts; --gpu must not say another one."""
    (folder / "g.yaml").write_text(CLUSTER.replace("memory: 80GiB", "memory: 70GB\ngpu: h100-sxm"))
    asked = ("profile", "gpt-tiny", "--analytic", "--json")
    by_cluster = rtk(*asked, "--cluster", "g.yaml", cwd=folder)
    assert by_cluster.returncode == 0, by_cluster.stderr
    made, by_flag = json.loads(by_cluster.stdout), json.loads(rtk(*asked, "--gpu", "h100-sxm").stdout)
    assert made["layers"] == by_flag["layers"]
    assert made["device"]["memory_bytes"] == 70e9
    assert made["network"]["inter_node"] == {"latency_s": 5e-6, "bandwidth_bytes_per_s": 50e9}
    refused(rtk(*asked, "--cluster", "g.yaml", "--gpu", "a40", cwd=folder), 2, "--gpu says a40, the cluster h100-sxm")
    refused(rtk(*asked, "--cluster", "c.yaml", cwd=folder), 2, "--analytic needs a GPU")
    refused(rtk("profile", "gpt-tiny", "--cluster", "c.yaml", cwd=folder), 2, "--cluster goes with --analytic")


@pytest.mark.parametrize(
    ("text", "what", "place"),
    [
        ("", "the file is empty", "c.yaml"),
        ("nodes: [a\n", "not valid YAML", "line 2 column 1"),
        ("nodes: a\n---\nnodes: b\n", "not valid YAML", "line 2 column 1"),
        ("- a\n", "a mapping is needed", "line 1, /"),
        ("nodes: a\n", "'gpus_per_node' is missing", "line 1, /"),
        ("nodes: a\ngpus_per_node: 1\ngpus: 8\n", "unknown key 'gpus'", "line 3, /gpus"),
        ("nodes: a\ngpus_per_node: 1\nnodes: b\n", "'nodes' stands twice", "line 3, /nodes"),
        ("nodes: a\ngpus_per_node: 0\n", "'0' is no whole number", "line 2, /gpus_per_node"),
        ("nodes: a\ngpus_per_node: 8.5\n", "'8.5' is no whole number", "line 2, /gpus_per_node"),
        ("nodes: 0\ngpus_per_node: 8\n", "no whole number of 1 or more", "line 1, /nodes"),
        ("nodes: []\ngpus_per_node: 8\n", "there are no nodes", "line 1, /nodes"),
        ("nodes: {a: 1}\ngpus_per_node: 8\n", "a text or a number", "line 1, /nodes"),
        ("nodes: a[1-\ngpus_per_node: 8\n", "no list of nodes", "line 1, /nodes"),
        ("nodes: [a, a]\ngpus_per_node: 8\n", "node a is named twice", "line 1, /nodes"),
        ("nodes: a\ngpus_per_node: 8\ngpu: q100\n", "there is no GPU 'q100'", "line 3, /gpu"),
        ("nodes: a\ngpus_per_node: 8\nmemory: 80Gi\n", "'Gi' in '80Gi' is no unit here", "line 3, /memory"),
        ("nodes: a\ngpus_per_node: 8\nnetwork: fast\n", "a mapping is needed", "line 3, /network"),
        ("nodes: a\ngpus_per_node: 8\nnetwork: {intra: 1}\n", "unknown key 'intra'", "line 3, /network/intra"),
        ("nodes: a\ngpus_per_node: 8\nnetwork: {intra_node: {}}\n", "says nothing", "line 3, /network/intra_node"),
        (
            "nodes: a\ngpus_per_node: 8\nnetwork:\n  inter_node:\n    bandwidth: 400GB\n",
            "'GB' in '400GB' is no unit here",
            "line 5, /network/inter_node/bandwidth",
        ),
    ],
)
def test_a_bad_cluster(text: str, what: str, place: str, folder: Path) -> None:
    """One error each, with file, line, key and a way out; nothing is written."""
    (folder / "c.yaml").write_text(text)
    done = rtk("plan", "pipeline", *SHAPE, "--cluster", "c.yaml", "-o", "plan.json", cwd=folder)
    refused(done, 2, what, "at: c.yaml", place, "do: ")
    assert not (folder / "plan.json").exists()


@pytest.mark.parametrize(
    ("text", "what", "place"),
    [
        ("fialed: [node001]\n", "unknown key 'fialed'", "line 1, /fialed"),
        ("failed: [node001, node0003]\n", "the cluster has no node node0003", "line 1, /failed/1"),
        ("failed:\n- node001\n- node004:4\n", "node node004 has no GPU 4", "line 3, /failed/1"),
        ("failed: [node001:x]\n", "'node001:x' names no GPU", "line 1, /failed/0"),
        ("failed:\n", "a text or a number is needed", "line 1, /failed"),
        ("slow: {node001: 0}\n", "'0' is no factor", "line 1, /slow/node001"),
        ("slow: {node001: 20ms}\n", "'20ms' is no factor", "line 1, /slow/node001"),
        ("slow: [node001]\n", "a mapping is needed", "line 1, /slow"),
        ("slow_links: {node001-node002: 20m}\n", "'m' in '20m' is no unit here", "line 1, /slow_links/node001-node002"),
        ("slow_links: {node001-node009: 1ms}\n", "no link between two nodes", "line 1, /slow_links/node001-node009"),
        ("slow_links: {node001:0-node001:0: 1ms}\n", "the same GPU at both ends", "line 1, /slow_links"),
    ],
)
def test_a_bad_overlay(text: str, what: str, place: str, folder: Path) -> None:
    """The same for overlays, which must be of this cluster."""
    (folder / "o.yaml").write_text(text)
    refused(
        rtk("plan", "joint", *SHAPE, "--cluster", "c.yaml", "--overlay", "o.yaml", cwd=folder), 2, what, place, "do: "
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("pipeline", *SHAPE, "--cluster", "c.yaml", "--overlay", "o.yaml"), 2, "worker 2/0 has failed on this"),
        (("adaptra", *SHAPE, "--cluster", "c.yaml", "--overlay", "slow.yaml"), 2, "worker 0/0 is slow on this cluster"),
        (("pipeline", *SHAPE, "--cluster", "3x4"), 3, "16 workers need 16 GPUs, the cluster has 12: 3 nodes of 4"),
        (("joint", *SHAPE, "--cluster", "999999x1"), 2, "999999 nodes are too many"),
        (("joint", *SHAPE, "--cluster", "none.yaml"), 2, "cannot read the file"),
        (("joint", *SHAPE, "--overlay", "o.yaml"), 2, "give --cluster as well"),
        (("templates", "p.json", "--cluster", "c.yaml", "--nodes", "5"), 2, "--nodes says 5, the cluster 4"),
        (("templates", "p.json", "--cluster", "c.yaml", "--gpus-per-node", "8"), 2, "--gpus-per-node says 8"),
        (("templates", "p.json", "--cluster", "c.yaml", "--overlay", "slow.yaml"), 2, "call slow ones failed"),
        (("templates", "p.json", "--nodes", "1", "--overlay", "all.yaml"), 3, "every node has failed GPUs"),
        (("templates", "p.json", "--nodes", "4", "--gpu", "h100x"), 2, "did you mean h100-sxm"),
        (("templates", "p.json"), 2, "give --nodes N, or --cluster"),
    ],
)
def test_what_does_not_fit_together(arguments: tuple[str, ...], code: int, says: str, folder: Path) -> None:
    """Clusters, overlays and options that contradict each other, or what a method can plan for."""
    (folder / "slow.yaml").write_text("slow: {node001: 2}\n")
    (folder / "all.yaml").write_text("failed: node0\n")
    refused(rtk("plan", *arguments, cwd=folder), code, says)
