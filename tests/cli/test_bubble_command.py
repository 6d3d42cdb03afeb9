"""`rtk bubble`: the command, its files, and its errors."""

import json
from pathlib import Path

import pytest

from rtk.schemas.bubble import BubbleReport
from rtk.schemas.documents import read_document

from .shell import rtk


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan and the timeline of its simulation."""
    place = tmp_path_factory.mktemp("bubble")
    for line in (
        ("profile", "gpt3-medium", "--analytic", "--gpu", "h100-sxm", "-o", "p.json"),
        ("plan", "pipeline", "p.json", "--pp", "2", "--microbatches", "4", "--schedule", "1f1b", "-o", "plan.json"),
        ("simulate", "plan.json", "--timeline", "run.json"),
    ):
        assert rtk(*line, cwd=place).returncode == 0
    return place


@pytest.mark.wheel("bubble")
def test_words_and_one_document(folder: Path) -> None:
    """In words, and as one JSON document with the same numbers; a report that was written is drawn by rtk viz."""
    told = rtk("bubble", "run.json", "--plan", "plan.json", "-o", "report.json", cwd=folder)
    assert told.returncode == 0 and "It ran 1F1B" in told.stdout and "the plan promised" in told.stdout
    tree = json.loads(rtk("bubble", "run.json", "--plan", "plan.json", "--json", cwd=folder).stdout)
    assert tree == json.loads((folder / "report.json").read_text())
    report = read_document(str(folder / "report.json"), BubbleReport)
    assert report.planned_s == pytest.approx(report.iteration_time_s)
    assert "stage   1" in rtk("viz", "report.json", cwd=folder).stdout
    refused = rtk("viz", "report.json", "-o", "trace.pftrace", cwd=folder)
    assert refused.returncode == 2 and "has no trace" in refused.stderr


@pytest.mark.parametrize("ending", [".html", ".svg", ".png", ".pdf", ".svg.gz"])
def test_pictures(ending: str, folder: Path) -> None:
    """Each form of a picture."""
    assert rtk("bubble", "run.json", "-o", f"b{ending}", cwd=folder).returncode == 0
    assert (folder / f"b{ending}").stat().st_size > 1000


def test_a_file_of_another_kind_and_a_missing_one(folder: Path) -> None:
    """End with 2, the place, and nothing written; with --json the error is JSON."""
    for name, words in (("p.json", "a timeline is needed here"), ("nowhere.json", "No such file")):
        done = rtk("bubble", name, "-o", "never.svg", "--json", cwd=folder)
        assert done.returncode == 2 and name in done.stdout + done.stderr, done
        assert words in done.stdout
    assert not (folder / "never.svg").exists()
