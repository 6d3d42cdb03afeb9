"""Files that were changed by hand, absurd or hostile: each ends at once in one clear error, or is answered."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..fuzz.cases import run
from ..fuzz.mutation import mutated
from ..fuzz.samples import LOG, SHAPE, make_samples
from .shell import rtk

FROM_ATLAS = ("plan", "slipstream", "--from", "atlas", "--failures", "1", "-o", "out.json")
ANALYTIC = ("--analytic", "--gpu", "h100-sxm", "--microbatch-size", "1", "--sequence-length", "32", "-o", "out.json")
VAST = 999_999_999
Change = Callable[[Any], object]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind."""
    folder = tmp_path_factory.mktemp("samples")
    make_samples(folder)
    return folder


@pytest.fixture
def folder(samples: Path, tmp_path: Path) -> Path:
    """A copy of them, to be changed."""
    return Path(shutil.copytree(samples, tmp_path / "copy"))


def options(tree: Any) -> Any:
    return tree["planner"]["options"]


def stages(tree: Any) -> Any:
    return tree["templates"][0]["stages"]


def doubled(tree: Any) -> None:
    for stage in tree["template"]["stages"]:
        stage["forward_s"] *= 2


CASES: dict[str, tuple[str, Change, tuple[str, ...], str]] = {
    "M2 an option is missing": (
        "atlas/atlas.json",
        lambda t: options(t).pop("link_delay_s"),
        FROM_ATLAS,
        "/planner/options/link_delay_s",
    ),
    "M2 an option is of another kind": (
        "atlas/atlas.json",
        lambda t: options(t).update(slow=[]),
        FROM_ATLAS,
        "/planner/options/slow",
    ),
    "M2 no such link": (
        "atlas/atlas.json",
        lambda t: options(t)["link_delay_s"].update(zzz=1.0),
        FROM_ATLAS,
        "/planner/options/link_delay_s/zzz",
    ),
    "M2 no such worker": (
        "atlas/atlas.json",
        lambda t: options(t)["slow"].update({"2/0": 1.5}),
        FROM_ATLAS,
        "/planner/options/slow/2~10",
    ),
    "M3 other micro-batches": (
        "atlas/atlas.json",
        lambda t: t.update(microbatches=3),
        FROM_ATLAS,
        "/planner/options/microbatches",
    ),
    "M3 another bound": (
        "atlas/atlas.json",
        lambda t: t["plans"][1]["prediction"].update(lower_bound_s=1.0),
        FROM_ATLAS,
        "/plans/1/prediction/gap",
    ),
    "M3 other costs": ("atlas/atlas.json", doubled, FROM_ATLAS, "/plans/1/prediction/iteration_time_s"),
    "M4 too many pipelines": (
        "atlas/atlas.json",
        lambda t: t.update(dp=VAST) or options(t).update(dp=VAST),
        FROM_ATLAS,
        "--dp 999999999",
    ),
    "M6 a list for a name": (
        "config.json",
        lambda t: t.update(hidden_act=[]),
        ("profile", "config.json", *ANALYTIC),
        "/hidden_act",
    ),
    "M7 too many layers": (
        "config.json",
        lambda t: t.update(num_hidden_layers=VAST),
        ("profile", "config.json", *ANALYTIC),
        "/num_hidden_layers",
    ),
    "M8 a vast goodput": (
        "replay.json",
        lambda t: t["policies"][0].update(goodput=1e308),
        ("viz", "replay.json", "-o", "out.html"),
        "/policies/0/goodput",
    ),
    "M9 an endless number": (
        "dump0.json",
        lambda t: t["entries"][1].update(collective_seq_id=float("inf")),
        ("detect", "dump0.json"),
        "/entries/1",
    ),
    "M10 no bandwidth": (
        "p.json",
        lambda t: t["network"]["intra_node"].update(bandwidth_bytes_per_s=5e-324),
        ("plan", "slipstream", "p.json", *SHAPE, "--failures", "1"),
        "/network/intra_node/bandwidth_bytes_per_s",
    ),
    "M10 vast activations": (
        "p.json",
        lambda t: t["layers"][0].update(activation_bytes=1.7e308),
        ("plan", "pipeline", "p.json", *SHAPE, "-o", "out.json"),
        "/layers/0/activation_bytes",
    ),
    "M10 times add up": (
        "p.json",
        lambda t: [layer["costs"][0].update(forward_s=9e14) for layer in t["layers"]],
        ("plan", "adaptra", "p.json", *SHAPE, "-o", "out.json"),
        "the profile",
    ),
    "options that explain reads": (
        "placed.json",
        lambda t: options(t).update(slow_links=3),
        ("explain", "placed.json"),
        "/planner/options/slow_links",
    ),
    "a process that is a list": (
        "passes.json",
        lambda t: t["traceEvents"][3].update(pid=[]),
        ("profile", "refine", "p.json", "--plan", "plan.json", "--timeline", "passes.json", "-o", "out.json"),
        "/traceEvents/3",
    ),
    "a number of too many digits": (
        "kineto.json",
        lambda t: t["traceEvents"][3].update(ts=10**400),
        ("detect", "kineto.json"),
        "kineto.json",
    ),
    "M11 too many layers": (
        "plan.json",
        lambda t: stages(t)[1].update(layers=[2, VAST]),
        ("verify", "plan.json"),
        "/templates/0/stages/1/layers/1",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_document_changed_by_hand_is_refused_at_its_place(case: str, folder: Path) -> None:
    """Exit code 2, one error, the place in the file, and nothing written."""
    file, change, command, where = CASES[case]
    tree = json.loads((folder / file).read_text())
    change(tree)
    (folder / file).write_text(json.dumps(tree))
    done = rtk(*command, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert f"{where}\n" in done.stderr
    assert not list(folder.glob("out*"))


def test_a_shape_larger_than_any_job_is_refused(folder: Path) -> None:
    """M4 on the command line: thousands of millions of workers, or of micro-batches."""
    for shape in (("--pp", "2", "--dp", str(VAST)), ("--pp", "2", "--dp", "9")):
        done = rtk("plan", "pipeline", "p.json", *shape, "--microbatches", str(VAST), cwd=folder)
        assert done.returncode == 2
        assert "are planned\nat: --" in done.stderr
    for options in (("--cluster", "4x1"), ("--cluster", "c.yaml", "--overlay", "o.yaml")):
        done = rtk("plan", "joint", "p.json", "--pp", str(2**53), "--microbatches", "1", *options, cwd=folder)
        assert done.returncode == 2, done.stderr
        assert "are planned\nat: --" in done.stderr
    assert rtk("plan", "reconfigure", "unlike.json", "--join", str(VAST), cwd=folder).returncode == 2


def test_a_plan_without_a_prediction_is_reconfigured(folder: Path) -> None:
    """M1: the prediction is optional, so the time before is not known, and the new plan is written."""
    tree = json.loads((folder / "unlike.json").read_text())
    del tree["prediction"]
    (folder / "unlike.json").write_text(json.dumps(tree))
    done = rtk("plan", "reconfigure", "unlike.json", "--failed", "0/0", "-o", "out.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "a time that the running plan does not say before" in done.stderr
    assert rtk("verify", "out.json", cwd=folder).returncode == 0


def test_options_of_other_kinds_are_compared(folder: Path) -> None:
    """M5: an option that was a number and is a mapping is a difference."""
    for name, option in (("a.json", {"b": 1}), ("b.json", 1)):
        tree = json.loads((folder / "plan.json").read_text())
        tree["planner"]["options"] = {"a": option}
        (folder / name).write_text(json.dumps(tree))
    done = rtk("diff", "a.json", "b.json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "option a" in done.stdout


def test_a_pickle_of_many_in_few_bytes_is_refused(folder: Path) -> None:
    """M12: 40 lists, each twice in the next one."""
    many: Any = "nccl:all_reduce"
    for _ in range(40):
        many = [many, many]
    tree = pickle.loads((folder / "dump1").read_bytes())
    tree["entries"][0]["profiling_name"] = many
    (folder / "dump1").write_bytes(pickle.dumps(tree))
    done = rtk("detect", "dump1", cwd=folder)
    assert (done.returncode, "once it is unfolded" in done.stderr) == (2, True)


def test_a_cluster_larger_than_any_is_refused(folder: Path) -> None:
    """M13: a number of nodes is bounded as a list of them is."""
    (folder / "c.yaml").write_text(f"nodes: {VAST}\ngpus_per_node: 1\n")
    done = rtk("plan", "pipeline", "p.json", *SHAPE, "--cluster", "c.yaml", "-o", "out.json", cwd=folder)
    assert done.returncode == 2
    assert "c.yaml, line 1, /nodes" in done.stderr


def test_a_log_that_tells_the_impossible_is_damaged(folder: Path) -> None:
    """M14: whatever is done to its lines, the rules go on from the log, or it is said to be damaged, and where."""
    whole, chance = (folder / LOG).read_bytes(), random.Random(0)
    refused = []
    for _ in range(300):
        (folder / LOG).write_bytes(mutated(whole, "lines", chance))
        done = run((LOG,), folder)
        assert done.returncode in (0, 2)
        if done.returncode:
            assert f"at: {folder / LOG}" in done.stderr
            refused.append(done.stderr)
    assert any("cannot have happened" in error for error in refused)
