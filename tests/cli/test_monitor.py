"""`rtk monitor`: real training commands, unchanged, watched from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .shell import RTK, rtk, rtk_process

SCRIPT = str(Path(__file__).parents[1] / "profilers" / "training_script.py")
ITERATIONS = 60
SLOW_S = 0.12
TURNS = 3
STRATEGIES = ("ddp", "fsdp1", "fsdp", "gpipe")
OPTIONS = ("--iterations", str(ITERATIONS))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)


def _ranks(tmp_path: Path, *options: str) -> list[subprocess.Popen[bytes]]:
    """Both ranks of the training script, without torchrun and unwatched."""
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(23_000 + os.getpid() % 9_000), "WORLD_SIZE": "2"}
    command = [sys.executable, SCRIPT, *options, "--out", str(tmp_path)]
    environments = [{**os.environ, **store, "RANK": str(rank)} for rank in range(2)]
    return [subprocess.Popen(command, env=one, stderr=subprocess.DEVNULL) for one in environments]


def _parameters(folder: Path) -> dict[str, str]:
    """What came out on each rank, by each strategy."""
    told = {path.name: json.loads(path.read_text())["parameters"] for path in folder.glob("*.json")}
    assert len(told) == 2 * len(STRATEGIES)
    return told


def _monitored(*arguments: str, picture: Path | None = None) -> tuple[str, dict[str, Any]]:
    """What `rtk monitor` says of the training script, and what its document says of the first phase."""
    drawn = () if picture is None else ("-o", str(picture))
    done = rtk_process("monitor", "--json", *drawn, "--", *TORCHRUN, *arguments, *OPTIONS)
    assert done.returncode == 0, done.stderr
    return done.stderr, json.loads(done.stdout)["files"][0]


def test_unchanged_scripts_are_watched_and_compute_the_same(tmp_path: Path) -> None:
    """DDP, FSDP and pipelining give the same parameters, bit for bit, watched or not; DDP's iterations are found."""
    watched, plain, picture = tmp_path / "watched", tmp_path / "plain", tmp_path / "picture.html"
    watched.mkdir()
    plain.mkdir()
    unwatched = _ranks(plain, *STRATEGIES, *OPTIONS)
    _, first = _monitored(*STRATEGIES, "--pause", "0.01", "--strategy", "ddp", "--out", str(watched), picture=picture)
    assert [one.wait(120) for one in unwatched] == [0, 0]
    assert _parameters(watched) == _parameters(plain)
    assert "<svg" in picture.read_text()
    assert ITERATIONS - 3 <= first["samples"] <= ITERATIONS + 1


@pytest.mark.wheel("monitor")
def test_slow_rank_of_an_unchanged_script_is_found() -> None:
    """Which rank is slow, from when on, and that it computes: in one of three turns, for a core may be taken away."""
    for _ in range(TURNS):
        said, first = _monitored("ddp", "--pause", "0.01", "--slow", f"1:30:50:{SLOW_S}")
        found = [event for event in first["events"] if event["scope"] == {"kind": "worker", "names": ["1"]}]
        if [(event["cause"], event["onset"] <= 31) for event in found] == [("computation", True)]:
            break
    else:
        pytest.fail(f"not found in {TURNS} turns; the last one: {first['events']}")
    assert "computation, rank 1" in said


def test_command_without_torch_is_told_to_have_no_calls() -> None:
    """The exit code is the command's own, also if it fails; and it is said that there was nothing to see."""
    done = rtk_process("monitor", "--json", "--", sys.executable, "-c", "exit(3)")
    assert done.returncode == 3
    assert json.loads(done.stdout) == {"files": [], "format": "rtk.detection", "format_version": "1.0"}
    assert "no calls were seen: the command made no process group" in done.stderr


def test_signals_reach_the_command() -> None:
    """What rtk is told by a signal is passed on, and rtk ends after the command, with its code."""
    script = (
        "import signal, sys, time; signal.signal(signal.SIGINT, lambda *_: sys.exit(7));"
        "print('up', flush=True); time.sleep(60)"
    )
    command = [*RTK, "monitor", "--", sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(50) == 7


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("monitor",), 2, "COMMAND"),
        (("monitor", "--", "no-such-command-here"), 127, "the command 'no-such-command-here' is not there"),
        (("monitor", "--", "/"), 126, "cannot be started"),
        (("monitor", "--mode", "odd", "--", "true"), 2, "there is no mode 'odd'"),
        (("monitor", "-o", "a.jpg", "--", "true"), 2, "end it in .html, .svg, .png, .pdf"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], code: int, told: str) -> None:
    """No command, none that is there, or options that mean nothing: an exit code, and what to do."""
    done = rtk(*arguments)
    assert done.returncode == code
    assert told in done.stderr
