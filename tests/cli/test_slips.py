"""Slips of the pen: sizes that take hours, faults that never come; and what a command says at its end."""

import os
import pty
import re
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.cli import console
from rtk.planners.shape import Shape
from rtk.schemas.errors import InvalidInputError

from .shell import RTK, rtk

PLAN = ("plan", "pipeline", "p.json", "--pp", "2", "--dp", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile and a plan."""
    place = tmp_path_factory.mktemp("slips")
    for line in (
        ("profile", "gpt3-medium", "--analytic", "--gpu", "h100-sxm", "-o", "p.json"),
        (*PLAN, "--microbatches", "8", "-o", "plan.json"),
    ):
        assert rtk(*line, cwd=place).returncode == 0
    return place


@pytest.mark.parametrize(
    "more",
    [
        ("--microbatches", "1000000"),
        ("--microbatches", "99999999999999999999"),
        ("--microbatches", "8", "--dp", "999999999999"),
        ("--microbatches", "9", "--dp", "100000"),
        ("--microbatches", "8", "--pp", "1000000"),
    ],
)
def test_what_would_take_hours_is_refused_at_once(more: tuple[str, ...], folder: Path) -> None:
    """The error says how large it is and which number would fit."""
    began_s = time.monotonic()
    done = rtk(*PLAN, *more, cwd=folder)
    assert done.returncode == 2
    assert re.search(
        r"that is [\d,]+ .*; up to [\d,]+ are planned\nat: --\w+ \d+\ndo: .*take at most [\d,]+ ", done.stderr
    )
    assert time.monotonic() - began_s < 2


sizes = st.integers(1, 10**15)


@given(sizes, sizes, sizes)
def test_the_number_that_is_named_fits(pp: int, dp: int, microbatches: int) -> None:
    """Who takes what one error after the other recommends comes to a shape that is planned, in three steps at most."""
    shape = {"pp": pp, "dp": dp, "microbatches": microbatches}
    for _ in range(4):
        try:
            Shape(shape["pp"], shape["dp"], shape["microbatches"]).require_plannable()
        except InvalidInputError as error:
            option = str(error.where).split()[0].removeprefix("--")
            most = re.search(r"take at most ([\d,]+)", str(error.fix))
            assert most is not None
            assert int(most[1].replace(",", "")) < shape[option]
            shape[option] = int(most[1].replace(",", ""))
        else:
            return
    raise AssertionError(shape)


def test_the_largest_documented_plans_are_allowed() -> None:
    """64 stages x 32 pipelines x 256 micro-batches, and 3 million operations."""
    Shape(64, 32, 256).require_plannable()
    Shape(64, 64, 244).require_plannable()


def test_many_iterations_are_not_simulated_one_by_one(folder: Path) -> None:
    """Without a timeline they are all alike; one with too many operations is refused with the number that fits."""
    assert rtk("simulate", "plan.json", "--iterations", "100000000", cwd=folder).returncode == 0
    done = rtk("simulate", "plan.json", "--iterations", "100000000", "--timeline", "t.json", cwd=folder)
    assert (
        done.returncode,
        "at: --iterations 100000000\ndo: take at most 156,250, of 64 operations" in done.stderr,
    ) == (2, True)
    assert not (folder / "t.json").exists()


def test_a_delay_that_is_absurd_is_pointed_out(folder: Path) -> None:
    """A link that takes a hundred times a micro-batch's work was perhaps meant in another unit; 10 ms was not."""
    said = [
        rtk(*PLAN, "--microbatches", "8", "--link-delay", f"0={delay}", "-o", os.devnull, cwd=folder).stderr
        for delay in ("5000000", "10ms")
    ]
    assert ["warning: a link's delay is 57.87 d" in one for one in said] == [True, False]


def test_faults_that_never_come_are_named(folder: Path) -> None:
    """Events of iterations, and of times, after the end of the simulation."""
    events = (
        '{"iteration": 1, "kind": "fail", "worker": "0/1"}',
        '{"iteration": 500, "kind": "fail", "worker": "1/1"}',
    )
    (folder / "f.jsonl").write_text("\n".join(events) + "\n")
    done = rtk("simulate", "plan.json", "--inject", "f.jsonl", "--iterations", "3", cwd=folder)
    assert done.returncode == 0
    assert "1 event came after the end of the simulation, and did not happen: fail 1/1 in iteration 500" in done.stderr
    (folder / "f.jsonl").write_text('{"time_s": 1e6, "kind": "fail", "worker": "0/1"}\n')
    done = rtk("simulate", "plan.json", "--inject", "f.jsonl", cwd=folder)
    assert "did not happen: fail 0/1 at 11.57 d" in done.stderr


def test_a_trace_in_which_nothing_happens_is_refused() -> None:
    """`trace generate` without any rate says what to add."""
    done = rtk("trace", "generate", "--nodes", "4", "--days", "30")
    assert (done.returncode, done.stdout) == (2, "")
    assert "at: --mtbf\ndo: add --mtbf 30d --repair 4h" in done.stderr


def test_commands_say_what_they_wrote(folder: Path) -> None:
    """Profiles, plans and timelines; nothing of standard output, and nothing with --quiet."""
    done = rtk(*PLAN, "--microbatches", "8", "-o", "other.json", cwd=folder)
    assert done.stderr.splitlines()[-1] == "wrote other.json"
    assert "wrote" not in rtk(*PLAN, "--microbatches", "8", cwd=folder).stderr
    assert rtk(*PLAN, "--microbatches", "8", "-o", "other.json", "--quiet", cwd=folder).stderr == ""
    assert "wrote t.json" in rtk("simulate", "plan.json", "--timeline", "t.json", cwd=folder).stderr


def test_a_terminal_is_told_what_comes_next(folder: Path) -> None:
    """On a terminal, in a real process, a plan is followed by the next command."""
    main, other = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")}
    line = [*RTK, *PLAN, "--microbatches", "8", "-o", "other.json"]
    done = subprocess.run(line, cwd=folder, stderr=other, env=environment, timeout=60, check=True)
    assert (done.returncode, b"next: rtk simulate other.json" in os.read(main, 4096)) == (0, True)
    os.close(main)
    os.close(other)


def test_long_work_shows_a_spinner(capfd: pytest.CaptureFixture[str]) -> None:
    """From its first second on, on a terminal; what is quick shows nothing."""
    with (
        mock.patch.object(console, "_is_silent", return_value=False),
        mock.patch.object(console, "SPINNER_AFTER_S", 0.05),
    ):
        with console.working("quick work"):
            pass
        with mock.patch("rich.console.Console.is_terminal", True), console.working("long work"):
            time.sleep(0.5)
    shown = capfd.readouterr().err
    assert ("quick work" in shown, "long work" in shown) == (False, True)
