"""docs/tour.md runs from top to bottom, walk by walk, in an empty folder with the files of examples/."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rtk.schemas.documents import read_document
from rtk.schemas.replay import ReplayReport

from .walking import ROOT, TOUR, WALKS, lines, take

pytestmark = pytest.mark.checkout

# Those that take long have files of their own, so that they run beside each other.
ELSEWHERE = {"1", "2", "7", "9"}
DECIDING = "8"


@pytest.mark.parametrize("walk", sorted(WALKS.keys() - ELSEWHERE - {DECIDING}))
def test_a_walk_runs_as_it_stands(walk: str, tmp_path: Path) -> None:
    """Planning: every line ends well, writes what it says, and shows what the tour says."""
    take(walk, tmp_path)


def test_deciding_gives_the_chart_of_the_readme(tmp_path: Path) -> None:
    """The walk runs as it stands, and docs/images/goodput.svg shows what its replay says."""
    take(DECIDING, tmp_path)
    chart = runpy.run_path(str(ROOT / "docs" / "make_pictures.py"))["chart"]
    report = read_document(str(tmp_path / "replay.json"), ReplayReport)
    assert (ROOT / "docs" / "images" / "goodput.svg").read_text() == chart(
        {one.policy: one.goodput for one in report.policies}
    )


def test_the_pictures_of_the_readme_are_images() -> None:
    """Both are there, and are SVG; the run's shows the worker that is not there, and where it failed."""
    texts = {}
    for name in re.findall(r"\]\((docs/images/[^)]+)\)", (ROOT / "README.md").read_text()):
        assert ElementTree.parse(ROOT / name).getroot().tag.endswith("svg")
        texts[Path(name).stem] = (ROOT / name).read_text()
    assert texts.keys() == {"survives", "goodput"}
    assert "failure 1/1" in texts["survives"]
    assert "join 1/1" in texts["survives"]


def test_the_tour_begins_with_the_files_and_goes_through_all_commands() -> None:
    """Its first line copies the examples; each command of rtk has a line, or is told of before the walks."""
    from rtk.cli.commands import SUMMARIES

    first, *others = lines(TOUR)
    assert first.text == "cp -r ../rtk/examples/. ."
    used = {re.split(r"\brtk ", line.text)[1].split()[0] for line in others if "rtk " in line.text}
    assert used == SUMMARIES.keys() - {"quickstart", "help", "completion"}


def test_the_tour_uses_every_example() -> None:
    """No file lies in examples/ that no line of the tour names, but torchft's loop, which test_torchft_loop.py
    runs with a coordinator and three replicas; its README names all."""
    told = "\n".join(line.text for line in lines(TOUR))
    readme = (ROOT / "examples" / "README.md").read_text()
    for path in (ROOT / "examples").rglob("*"):
        name = path.relative_to(ROOT / "examples").as_posix()
        if path.is_file() and "__pycache__" not in name and name not in ("README.md", "LICENSE-spot"):
            assert name in told or name == "torchft_ddp.py", name
            assert f"]({name})" in readme, name


def test_no_name_means_two_files() -> None:
    """All walks may be taken in one folder: a file that two of them write is written by the same command."""
    writers: dict[str, set[str]] = {}
    for line in lines(TOUR):
        for name in line.outputs:
            writers.setdefault(name, set()).add(line.text)
    assert {name: by for name, by in writers.items() if len(by) > 1} == {}
    assert {(ROOT / "examples" / name).exists() for name in writers} == {False}


def test_the_commands_of_the_readme_are_run() -> None:
    """Each command line of the README is in the tour, or is one that CI and the quickstart's tests run."""
    toured = {line.text for line in lines(TOUR)}
    elsewhere = re.compile(r"git clone |python3 -m venv .*\.venv/bin/(rtk quickstart|pytest .*)$|.*rtk quickstart")
    readme = lines((ROOT / "README.md").read_text())
    assert [line.text for line in readme if line.text not in toured and not elsewhere.match(line.text)] == []
