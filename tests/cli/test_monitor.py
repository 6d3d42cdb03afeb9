"""`rtk monitor`: real training commands, unchanged, watched from outside."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ..ports import free_port
from .shell import RTK, Shell, rtk, rtk_process

SCRIPT = str(Path(__file__).parents[1] / "profilers" / "training_script.py")
ITERATIONS = 60
SLOW_S = 0.12
TURNS = 3
STRATEGIES = ("ddp", "fsdp1", "fsdp", "gpipe")
OPTIONS = ("--iterations", str(ITERATIONS), "--strategy", "ddp", "--others", "20")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)


@dataclass(frozen=True)
class Watched:
    """What `rtk monitor` said of the training script, what its document says of the first phase, and what it drew."""

    said: str
    first: dict[str, Any]
    picture: str


def _monitored(folder: Path, *strategies: str) -> Watched:
    """The training script under torchrun, watched; with DDP rank 1 is slow for a while. Both ranks tell `folder`."""
    picture, slow = folder / "picture.html", ("--pause", "0.01", "--slow", f"1:30:50:{SLOW_S}")
    watching = ("monitor", "--json", "-o", str(picture), "--")
    done = rtk_process(*watching, *TORCHRUN, *strategies, *slow, "--out", str(folder), *OPTIONS)
    assert done.returncode == 0, done.stderr
    return Watched(done.stderr, json.loads(done.stdout)["files"][0], picture.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ranks that are watched tell what came out."""
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def watched(folder: Path) -> Watched:
    """All strategies, one after the other."""
    return _monitored(folder, *STRATEGIES)


def _parameters(folder: Path) -> dict[str, str]:
    """What came out on each rank, by each strategy."""
    told = {path.name: json.loads(path.read_text())["parameters"] for path in folder.glob("*.json")}
    assert len(told) == 2 * len(STRATEGIES)
    return told


def test_unchanged_scripts_are_watched_and_compute_the_same(watched: Watched, folder: Path, tmp_path: Path) -> None:
    """DDP, FSDP and pipelining give the same parameters, bit for bit, watched or not; DDP's iterations are found."""
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    plain = (*STRATEGIES, *OPTIONS, "--out", str(tmp_path))
    with Shell(tmp_path) as shell:
        ranks = [shell.program(f"rank-{rank}", SCRIPT, *plain, RANK=str(rank), **job) for rank in range(2)]
        assert [rank.ended(120) for rank in ranks] == [0, 0], ranks[0].errors
    assert _parameters(folder) == _parameters(tmp_path)
    assert "<svg" in watched.picture
    assert ITERATIONS - 3 <= watched.first["samples"] <= ITERATIONS + 1


@pytest.mark.wheel("monitor")
def test_slow_rank_of_an_unchanged_script_is_found(watched: Watched, tmp_path: Path) -> None:
    """Which rank is slow, from when on, and that it computes: in one of three turns, for a core may be taken away."""
    turns = chain([watched], (_monitored(tmp_path, "ddp") for _ in range(TURNS - 1)))
    for turn in turns:
        found = [event for event in turn.first["events"] if event["scope"] == {"kind": "worker", "names": ["1"]}]
        if [(event["cause"], event["onset"] <= 31) for event in found] == [("computation", True)]:
            break
    else:
        pytest.fail(f"not found in {TURNS} turns; the last one: {turn.first['events']}")
    assert "computation, rank 1" in turn.said


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
        (("monitor", "--mode", "odd", "--", "true"), 2, "'odd'"),
        (("monitor", "-o", "a.jpg", "--", "true"), 2, "end it in .html, .svg, .png, .pdf"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], code: int, told: str) -> None:
    """No command, none that is there, or options that mean nothing: an exit code, and what to do."""
    done = rtk(*arguments)
    assert done.returncode == code
    assert told in done.stderr
