"""`rtk doctor` from settings to findings."""

import json
from pathlib import Path
from typing import Any

import pytest

from rtk.schemas.diagnosis import Diagnosis
from rtk.schemas.documents import parse_document

from .shell import rtk

THREAD = Path(__file__).parents[1] / "profilers/doctor/threads/torchft-329"
SETTINGS = (str(THREAD / "train.toml"), str(THREAD / "job.env"))


def document(out: str) -> dict[str, Any]:
    """The one JSON document on standard output, as it says itself, once it has been validated."""
    parse_document(out.encode(), Diagnosis, "out")
    tree: dict[str, Any] = json.loads(out)
    return tree


@pytest.mark.wheel("doctor")
def test_settings_that_contradict_each_other_are_a_document(tmp_path: Path) -> None:
    """Findings with both places, what was read, and what a hang costs; exit code 0."""
    (tmp_path / "train.toml").write_text("[comm]\ntrain_timeout_seconds = 2250\ninit_timeout_seconds = 1800\n")
    done = rtk("doctor", str(tmp_path / "train.toml"), "--gpus", "64", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    tree = document(done.stdout)
    first, second = tree["findings"]
    assert (first["rule"], second["rule"]) == ("training-waits-longer", "long-hang")
    assert [(one["text"], one["line"]) for one in first["settings"]] == [("2250", 2), ("1800", 3)]
    assert tree["files"] == [{"file": str(tmp_path / "train.toml"), "kind": "torchtitan", "known": 2}]
    assert tree["costs"]["hang_gpu_hours"] == 64 * 2250 / 3600


def test_people_read_the_same() -> None:
    """Each finding with both places, what to do, and who says so; then what it costs."""
    out = rtk("doctor", *SETTINGS, "--gpus", "256").stdout
    assert "contradiction: replicas wait 75 min for each other" in out
    assert f"fault_tolerance.process_group_timeout_ms=4500000 ({SETTINGS[0]}:3)" in out
    assert f"comm.train_timeout_seconds=2250 ({SETTINGS[0]}:9)" in out
    assert "see: pytorch/torchtitan#2899" in out
    assert "a hang: 37.5 min" in out and "160 GPU-hours" in out
    assert "would say more: how long an iteration takes (--iteration-time)" in out


def test_findings_end_with_1_where_that_is_asked_for() -> None:
    """--exit-code: 1 with findings, 0 without."""
    assert rtk("doctor", *SETTINGS, "--exit-code").returncode == 1
    assert rtk("doctor", "--torchrun", "torchrun --standalone train.py", "--exit-code").returncode == 0


def test_an_environment_comes_in_by_three_ways() -> None:
    """By --env from standard input, by --here, and before a command; only what is about time-outs is shown."""
    variables = {"NCCL_IB_TIMEOUT": "60", "AWS_SECRET_ACCESS_KEY": "hush"}
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    piped = rtk("doctor", "--env", "-", "--json", stdin=text)
    here = rtk("doctor", "--here", "--json", environment=variables)
    line = rtk("doctor", "--torchrun", "NCCL_IB_TIMEOUT=60 torchrun train.py", "--json")
    for done, place in ((piped, "standard input"), (here, "environment"), (line, "--torchrun")):
        (found,) = document(done.stdout)["findings"]
        assert (found["rule"], found["settings"][0]["file"]) == ("ib-never-times-out", place)
        assert "hush" not in done.stdout
    bare = rtk("doctor", "--torchrun", "--nnodes 1:4", "--json")
    assert "elastic-without-restarts" in [one["rule"] for one in document(bare.stdout)["findings"]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no settings were given"),
        (("-", "--env", "-"), "standard input can be read only once"),
        (("missing.sh",), "cannot read the file"),
        (("--torchrun", "x", "--mtbf", "often"), "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_refused(arguments: tuple[str, ...], says: str) -> None:
    """One clear error, exit code 2."""
    done = rtk("doctor", *arguments)
    assert (done.returncode, done.stdout) == (2, "") and says in done.stderr


def test_what_is_not_known_is_told() -> None:
    """A variable of torch's prefix that torch does not read, with the one that is meant."""
    done = rtk("doctor", "--env", "-", stdin="TORCH_NCCL_HEARTBEAT_TIMEOUT=600\n")
    assert "not known: TORCH_NCCL_HEARTBEAT_TIMEOUT=600" in done.stdout
    assert "did you mean TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC?" in done.stdout
