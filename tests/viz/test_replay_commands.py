"""`rtk viz` of reports, from files to files."""

import json
from pathlib import Path

import pytest
import typer

from rtk.cli import viz
from rtk.schemas.documents import write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Layer, LayerCost, Profile

from .replays import replayed


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    app = typer.Typer()
    app.command()(viz.command)
    assert not app(list(arguments), standalone_mode=False)
    return capsys.readouterr().out


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "with-spares.json")
    write_document(path, replayed({"quick": 10.0, "slow": 900.0}))
    return path


def test_a_report_is_a_page_or_an_image(capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path) -> None:
    """The ending says which."""
    assert run(capsys, file, "-o", str(tmp_path / "out.png")) == ""
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    for ending, start in ((".html", "<!DOCTYPE html>"), (".svg", "<svg ")):
        output = tmp_path / f"out{ending}"
        assert run(capsys, file, "-o", str(output)) == ""
        assert output.read_text().startswith(start) and "gpt under spot.csv" in output.read_text()
    assert json.loads(run(capsys, file, "-o", str(output), "--json")) == {"written": str(output)}


def test_several_reports_are_compared(capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path) -> None:
    """Under the names of their files, with numbers where these are alike."""
    output = tmp_path / "out.html"
    run(capsys, file, file, "-o", str(output))
    assert "<h2>with-spares (1)</h2>" in output.read_text() and "<h2>with-spares (2)</h2>" in output.read_text()


def test_the_terminal_is_the_default(capsys: pytest.CaptureFixture[str], file: str) -> None:
    """Without an output there is a bar a policy."""
    assert "\nquick " in run(capsys, file)


def test_a_report_has_no_trace(capsys: pytest.CaptureFixture[str], file: str, tmp_path: Path) -> None:
    """--json alone and an output in .json are errors, and so are reports beside other documents."""
    for arguments in (["--json"], ["-o", str(tmp_path / "x.json")]):
        with pytest.raises(InvalidInputError, match="no trace of operations"):
            run(capsys, file, *arguments)
    profile = str(tmp_path / "profile.json")
    write_document(profile, Profile((Layer((LayerCost(1, 1, 1),)),)))
    with pytest.raises(InvalidInputError, match="not together with others"):
        run(capsys, file, profile, "-o", str(tmp_path / "x.html"))
