"""`rtk monitor`: real training commands, unchanged, watched from outside."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .shell import RTK, rtk, rtk_process

SCRIPT = str(Path(__file__).parents[1] / "profilers" / "training_script.py")
ITERATIONS = 60
SLOW_S = 0.12
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


def _is_quiet(folder: Path) -> bool:
    """Whether nine of ten of DDP's iterations took less than half as long as one in which the slow rank sleeps."""
    times_s = [json.loads((folder / f"ddp-{rank}.json").read_text())["times_s"] for rank in range(2)]
    usual_s = sorted(time_s for own_s in times_s for time_s in [*own_s[:30], *own_s[50:]])
    return bool(usual_s[len(usual_s) * 9 // 10] < SLOW_S / 2)


def test_unchanged_scripts_are_watched_and_compute_the_same(tmp_path: Path) -> None:
    """DDP, FSDP and pipelining give the same parameters, bit for bit; DDP's iterations and slow rank are found."""
    watched, plain, picture = tmp_path / "watched", tmp_path / "plain", tmp_path / "picture.html"
    watched.mkdir()
    plain.mkdir()
    unwatched = _ranks(plain, *STRATEGIES, *OPTIONS)
    slow = ("--pause", "0.01", "--slow", f"1:30:50:{SLOW_S}", "--strategy", "ddp")
    command = (*TORCHRUN, *STRATEGIES, *OPTIONS, *slow, "--out", str(watched))
    done = rtk_process("monitor", "--json", "-o", str(picture), "--", *command)
    assert [one.wait(120) for one in unwatched] == [0, 0]
    assert done.returncode == 0, done.stderr
    assert _parameters(watched) == _parameters(plain)
    assert "<svg" in picture.read_text()
    first = json.loads(done.stdout)["files"][0]
    assert ITERATIONS - 3 <= first["samples"] <= ITERATIONS + 1
    if not _is_quiet(watched):
        pytest.skip("on so busy a machine a slow rank is not to be told from others; all else was as it should be")
    (event,) = [event for event in first["events"] if event["scope"] == {"kind": "worker", "names": ["1"]}]
    assert event["cause"] == "computation"
    assert event["onset"] <= 31
    assert "computation, rank 1" in done.stderr


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
        (("monitor", "-o", "a.pdf", "--", "true"), 2, "end it in .html or .svg"),
    ],
)
def test_wrong_usage_is_told(arguments: tuple[str, ...], code: int, told: str) -> None:
    """No command, none that is there, or options that mean nothing: an exit code, and what to do."""
    done = rtk(*arguments)
    assert done.returncode == code
    assert told in done.stderr
