"""`rtk profile --analytic`: computed profiles, from the command line to a plan."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rtk.schemas.documents import read_document, write_document
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Connection, Device, Layer, LayerCost, Network, Profile

from ..profilers.kineto_steps import BACKWARD, product_kernel, steps_of, write_trace
from .shell import rtk

LLAMA = ("profile", "llama3-70b", "--analytic", "--gpu", "h100-sxm")  # in bf16, which suits it


@pytest.mark.wheel("profile", "profile model", "plan pipeline")
def test_llama_is_planned(tmp_path: Path) -> None:
    """Llama-3 70B on H100s is computed, with a table that says so, and planned; the plan says so, too."""
    path, plan = tmp_path / "p.json", tmp_path / "plan.json"
    done = rtk(*LLAMA, "--checkpointing", "--tp", "1,8", "-o", str(path))
    assert done.returncode == 0, done.stderr
    assert "computed for h100-sxm (analytic), bf16, checkpointing" in done.stderr
    assert "leave that free, with --memory-limit" in done.stderr
    shape = ("--schedule", "1f1b", "--pp", "32", "--dp", "2", "--microbatches", "8")
    assert rtk("plan", "pipeline", str(path), *shape, "-o", str(plan)).returncode == 0
    assert read_document(str(plan), Plan).planner.options["origin"] == "analytic"


def test_same_bytes_without_torch(tmp_path: Path) -> None:
    """A configuration gives the same profile as the name, but for that; and torch is not loaded."""
    config = Path(__file__).parents[1] / "golden" / "configs" / "llama-3.1-70b.json"
    script = "import sys; from rtk.cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    command = [*LLAMA[:1], str(config), *LLAMA[2:], "--sequence-length", "8192", "-o", str(tmp_path / "p.json")]
    script += "print(json.dumps('torch' in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {script}", *command, "--quiet"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) is False
    by_name = json.loads(rtk(*LLAMA).stdout)
    by_file = json.loads((tmp_path / "p.json").read_text())
    assert by_file["model"].pop("name") == str(config)
    assert by_name["model"].pop("name") == "llama3-70b"
    assert by_file == by_name


def measured(dtype: str = "fp32") -> Profile:
    """A measured gpt-tiny, in which everything takes ten times what W does."""
    layer = Layer((LayerCost(0.01, 0.01, 0.001, 0.01),))
    return Profile(
        (layer,) * 10,
        {"name": "gpt-tiny", "dtype": dtype},
        "measured",
        Device("a machine", 7e9),
        microbatch_size=4,
        sequence_length=128,
        network=Network(intra_node=Connection(1.0)),
    )


def test_calibration(tmp_path: Path) -> None:
    """With a measured profile the same model gets the measured times back, on the measured device and links."""
    path = tmp_path / "m.json"
    write_document(str(path), measured())
    done = rtk("profile", "gpt-tiny", "--analytic", "--gpu", "cpu", "--calibrate", str(path), "--quiet")
    made = json.loads(done.stdout)
    cost = made["layers"][3]["costs"][0]
    times_s = [cost[f"{name}_s"] for name in ("forward", "backward_input", "backward_weight", "optimizer")]
    assert times_s == pytest.approx([0.01, 0.01, 0.001, 0.01])
    assert made["device"] == {"memory_bytes": 7e9, "name": "a machine (analytic, calibrated)"}
    assert made["network"]["intra_node"]["latency_s"] == 1.0
    assert made["model"]["calibration"] == "gpt-tiny, 4 x 128 tokens"


def test_a_trace_calibrates(tmp_path: Path) -> None:
    """A trace of torch's profiler corrects what is computed; what was learned, and from how much, is said."""
    step = [product_kernel(512, 512, 512, 40.0), product_kernel(512, 512, 512, 90.0, BACKWARD + "MmBackward0")]
    write_trace(tmp_path / "steps.json", steps_of(step, 2))
    done = rtk("profile", "gpt3-medium", "--analytic", "--gpu", "a100-sxm", "--calibrate", "steps.json", "--json",
               cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "learned from 2 steps of steps.json, with 1 product in F" in done.stderr
    assert json.loads(done.stdout)["model"]["calibration"] == "steps.json: products"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt-tiny", "--analytic"), "--analytic needs a GPU"),
        (("gpt-tiny", "--gpu", "t4"), "--gpu goes with --analytic"),
        (("gpt-tiny", "--analytic", "--gpu", "h100"), "did you mean h100-sxm or h100-pcie?"),
        (("gpt-tiny", "--analytic", "--gpu", "t4", "--cut", "x.*"), "has the layers of its model's shape"),
        (("gpt-tiny", "--analytic", "--gpu", "t4", "--efficiency", "2"), "2 is no share of the peak"),
        (("gpt-tiny", "--analytic", "--gpu", "t4", "--at-once", "2"), "--at-once goes without --analytic"),
        (("gpt-tiny", "--analytic", "--gpu", "t4", "--dtype", "bf16"), "t4 does not compute in bf16"),
        (("gpt-tiny", "--analytic", "--gpu", "t4", "--efficiency", "1", "--calibrate", "m.json"), "contradict"),
        (
            ("gpt-tiny", "--analytic", "--gpu", "l4", "--dtype", "bf16", "--calibrate", "m.json"),
            "measured in fp32, and says nothing of bf16",
        ),
    ],
)
def test_wrong_usage(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """What does not go together is refused with exit code 2, and said."""
    write_document(str(tmp_path / "m.json"), measured())
    done = rtk("profile", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
