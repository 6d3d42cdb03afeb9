"""Commands on resumptions: each takes one, or says what it is and what takes it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import rtk as library
from rtk.schemas.documents import write_document

from ..resumptions import KILL, killed, resumed, small_plan
from .shell import rtk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, a resumption, one that is wrong, and timelines of both ways."""
    path = tmp_path_factory.mktemp("resumed")
    write_document(str(path / "plan.json"), small_plan())
    write_document(str(path / "r.json"), resumed())
    rest = resumed().rest
    write_document(str(path / "wrong.json"), replace(resumed(), rest=replace(rest, sends=rest.sends[1:])))
    write_document(str(path / "resumed.json"), killed().timeline)
    write_document(str(path / "redone.json"), killed(0.0).timeline)
    (path / "faults.jsonl").write_text(KILL)
    return path


def test_resumption_is_verified(folder: Path) -> None:
    """A valid one passes with exit code 0; of another one the place and the fault are told, with 1."""
    assert rtk("verify", "r.json", "plan.json", cwd=folder).stdout == "r.json: valid\nplan.json: valid\n"
    done = rtk("verify", "wrong.json", "--json", cwd=folder)
    (problem, *_) = json.loads(done.stdout)["problems"]
    assert done.returncode == 1 and problem["path"].startswith("/rest/workers/")
    assert "its activation is neither kept nor made" in problem["message"]
    refused = rtk("verify", "r.json", "--timeline", "resumed.json", cwd=folder)
    assert refused.returncode == 2 and "no timeline can be held against a resumption" in refused.stderr


def test_resumption_is_drawn_and_explained(folder: Path) -> None:
    """Alone, and over the timelines; a wrong one is refused."""
    assert rtk("viz", "r.json", "-o", "r.svg", cwd=folder).returncode == 0
    assert "begins with a kept message, sent again" in (folder / "r.svg").read_text()
    assert rtk("viz", "redone.json", "resumed.json", "r.json", "-o", "all.svg", cwd=folder).returncode == 0
    assert "Sent again" in rtk("explain", "r.json", cwd=folder).stdout
    assert json.loads(rtk("explain", "r.json", "--json", cwd=folder).stdout)["iteration"] == 1
    for verb in ("viz", "explain"):
        refused = rtk(verb, "wrong.json", cwd=folder)
        assert refused.returncode == 2 and "rtk verify lists every problem" in refused.stderr


def test_timeline_is_explained_event_by_event(folder: Path) -> None:
    """What was kept and what was in vain, in words and as JSON."""
    assert "was gone on with" in rtk("explain", "resumed.json", cwd=folder).stdout
    (told,) = json.loads(rtk("explain", "redone.json", "--json", cwd=folder).stdout)["recoveries"]
    assert not told["resumed"] and told["kept"] == 0


def test_simulation_writes_what_was_left(folder: Path) -> None:
    """`--resumption` writes the last one; where nobody dies it is refused, and where all is done anew nothing is."""
    arguments = ("simulate", "plan.json", "--iterations", "3")
    done = rtk(*arguments, "--inject", "faults.jsonl", "--resumption", "again.json", cwd=folder)
    assert done.returncode == 0
    assert library.read(folder / "again.json") == resumed()
    assert rtk(*arguments, "--resumption", "none.json", cwd=folder).returncode == 2
    done = rtk(*arguments, "--inject", "faults.jsonl", "--log-memory", "0", "--resumption", "none.json", cwd=folder)
    assert "no iteration was gone on with" in done.stderr and not (folder / "none.json").exists()


@pytest.mark.parametrize("verb", ["simulate", "diff", "run"])
def test_commands_of_plans_name_those_of_resumptions(folder: Path, verb: str) -> None:
    """What needs a plan says that this is a resumption, and what takes it."""
    more = {"diff": ("plan.json",), "run": ("--model", "gpt-tiny")}.get(verb, ())
    refused = rtk(verb, "r.json", *more, cwd=folder)
    assert refused.returncode == 2
    assert "this is a resumption (the rest of an iteration), a plan is needed here" in refused.stderr
    assert "rtk explain r.json or rtk viz r.json" in refused.stderr


def test_library_draws_and_reads_resumptions(folder: Path) -> None:
    """As files do, so do documents."""
    found = library.read(folder / "r.json")
    assert isinstance(found, library.Resumption)
    assert "<svg" in (found._repr_svg_() or "")
