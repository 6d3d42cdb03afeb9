"""Settings of real threads: what is wrong with them is found; well-set jobs are left alone."""

import json
from pathlib import Path

import pytest

import rtk
from rtk.schemas.diagnosis import Diagnosis

THREADS = Path(__file__).parent / "threads"
TROUBLED = sorted(path.parent for path in THREADS.glob("*/thread.json"))
WELL_SET = sorted(THREADS.glob("well-set-*"))


def diagnosis(folder: Path) -> Diagnosis:
    """Of all files of a folder but the one that says what it is."""
    return rtk.doctor([str(path) for path in sorted(folder.iterdir()) if path.name != "thread.json"])


def test_there_are_a_dozen() -> None:
    """A dozen threads at least, each another one, and some well-set jobs beside them."""
    threads = {json.loads((folder / "thread.json").read_text())["thread"] for folder in TROUBLED}
    assert len(threads) == len(TROUBLED) >= 12
    assert len(WELL_SET) >= 3


@pytest.mark.parametrize("folder", TROUBLED, ids=lambda folder: folder.name)
def test_the_trouble_of_a_thread_is_found(folder: Path) -> None:
    """Every rule that a thread's trouble breaks says so, and names where each of its settings stands."""
    found = {finding.rule: finding for finding in diagnosis(folder).findings}
    expected = json.loads((folder / "thread.json").read_text())["rules"]
    assert set(expected) <= set(found)
    for name in expected:
        told = found[name].settings
        assert told and all(one.line is not None or one.file.startswith(("default of", "not set")) for one in told)
        for one in told:
            if one.line is not None:
                lines = Path(one.file).read_text().splitlines()
                key = one.name.split()[-1].split("(")[0].rpartition(".")[2].lstrip("-").removeprefix("PET_")
                assert key.replace("_", "-").lower() in lines[one.line - 1].replace("_", "-").lower(), one


@pytest.mark.parametrize("folder", WELL_SET, ids=lambda folder: folder.name)
def test_a_well_set_job_is_left_alone(folder: Path) -> None:
    """No rule finds anything, nothing is unread, and the settings were read indeed."""
    found = diagnosis(folder)
    assert [(one.rule, one.says) for one in found.findings] == []
    assert found.unread == ()
    assert len(found.settings) >= 8
