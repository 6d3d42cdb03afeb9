"""The documents tell what the code does."""

import ast
import re
import runpy
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rtk.cli.commands import SUMMARIES
from rtk.planners.recovery.catalogue import NAMES
from rtk.profilers.failslow.readers.formats import READERS

from .cli.shell import Shell

pytestmark = pytest.mark.checkout

ROOT = Path(__file__).parent.parent


def test_the_command_reference_is_up_to_date() -> None:
    """docs/cli.md is what docs/make_reference.py writes."""
    module = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    assert (ROOT / "docs" / "cli.md").read_text() == module["reference"]()


def test_the_rules_of_the_doctor_are_up_to_date() -> None:
    """docs/doctor.md has the table that docs/make_reference.py writes: every rule, with its sources."""
    module = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    page = (ROOT / "docs" / "doctor.md").read_text()
    assert page == module["with_rules"](page)


def test_the_reference_names_every_command() -> None:
    """No command is missing from the generated reference."""
    module = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    assert set(SUMMARIES) == {command.split()[0] for command in module["COMMANDS"]}


def test_the_library_page_shows_the_examples_whole() -> None:
    """docs/library.md shows its two examples as they are, and they stay short."""
    for name, most in (("example_train.py", 35), ("example_library.py", 20)):
        example = (ROOT / "docs" / name).read_text()
        assert f"```python\n{example}```" in (ROOT / "docs" / "library.md").read_text()
        assert len(example.splitlines()) <= most


def test_the_library_example_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From profile to picture in ten lines: the output is that of docs/library.md, the picture an SVG."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "docs" / "example_library.py"))
    assert f"```text\n{capsys.readouterr().out}```" in (ROOT / "docs" / "library.md").read_text()
    assert ElementTree.parse(tmp_path / "plan.svg").getroot().tag.endswith("svg")


def test_a_policy_whole_is_the_file_without_its_docstrings() -> None:
    """docs/developing.md shows `Spares` as it is."""
    source = (ROOT / "planners" / "recovery" / "spares.py").read_text()
    (spares,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    lines, left_out = source.splitlines(), set[int]()
    documented: list[ast.ClassDef | ast.FunctionDef] = [spares]
    for node in documented + [part for part in spares.body if isinstance(part, ast.FunctionDef)]:
        docstring = node.body[0]
        end = docstring.end_lineno or docstring.lineno
        left_out |= {*range(docstring.lineno - 1, end + (lines[end] == ""))}  # and the empty line behind it
    shown = "\n".join(line for at, line in enumerate(lines) if at >= spares.lineno - 1 and at not in left_out)
    assert f"```python\n{shown}\n```" in (ROOT / "docs" / "developing.md").read_text()


@pytest.mark.parametrize(("page", "names"), [("replay.md", NAMES), ("detect.md", READERS)])
def test_a_row_tells_of_every_policy_and_log_format(page: str, names: Iterable[str]) -> None:
    """No policy is missing from the table of docs/replay.md, no format from that of docs/detect.md."""
    rows = [line for line in (ROOT / "docs" / page).read_text().splitlines() if line.startswith("| ")]
    told = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert set(names) <= told


def test_the_links_between_documents_lead_somewhere() -> None:
    """Every relative link of the README and of docs/ names a file that is there."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if target != "CHANGELOG.md":
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_tables_have_rows() -> None:
    """No page waits for figures that somebody meant to fill in."""
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        lines = page.read_text().splitlines()
        for line, following in pairwise([*lines, ""]):
            assert not re.fullmatch(r"\|[-:|]+\|", line) or following.startswith("|"), f"{page.name}: {following}"


@pytest.mark.parametrize("degree", [1, 2])
def test_the_example_trains_under_torchrun(degree: int, tmp_path: Path) -> None:
    """The documented script runs a plan of two workers, also of two ranks each, and its loss falls."""
    pytest.importorskip("torch")
    from rtk.planners.pipeline import plan_pipeline
    from rtk.planners.shape import Shape
    from rtk.schemas.documents import write_document
    from rtk.schemas.profile import Layer, LayerCost, Profile

    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0, tensor_parallel=degree),)),) * 4)
    plan = plan_pipeline(profile, Shape(2, 1, 4, tensor_parallel=degree), "zero-bubble")
    write_document(str(tmp_path / "plan.json"), plan)
    with Shell(tmp_path) as shell:
        script = str(ROOT / "docs" / "example_train.py")
        done = shell.torchrun("torchrun", "--nproc-per-node", str(2 * degree), script, "plan.json")
        assert done.ended(100) == 0, done.errors
    losses = [float(found) for found in re.findall(r"loss (\S+),", done.output)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2
