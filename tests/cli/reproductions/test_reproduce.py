"""`rtk reproduce`: which tables and figures there are, and how they are told."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.cli.reproductions import catalogue, telling
from rtk.cli.reproductions.reproduction import Claim, Reproduction, Row

from ..shell import rtk

ROOT = Path(__file__).parents[3]
MADE = Reproduction(
    "made-up",
    "A table | of nothing",
    (
        Row("near", 2.0, 2.02, tolerance=0.01, note="just so"),
        Row("far", 2.0, 3.0, "fitted", tolerance=0.1),
        Row("residual", 0.66, 0.69, tolerance=0.06, absolute=True),
        Row("same", 27.0, 27.0, "exact", tolerance=0.0),
        Row("inside", 1.46, (1.2, 1.96), "range"),
        Row("unprinted", None, 5.0),
    ),
    (Claim("it is so", True), Claim("it is otherwise", False)),
    "Made up.",
    ("Everything.",),
)


@pytest.fixture
def only_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one reproduction, which does not hold."""
    monkeypatch.setattr(catalogue, "MODULES", {"made-up": "telling"})
    monkeypatch.setattr(catalogue, "reproduce", lambda name: MADE)


def cells(text: str, what: str) -> list[str]:
    """A row of a printed table, by its first word."""
    return next(line.split() for line in text.splitlines() if line.startswith(what))


def test_the_list_names_all_and_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, or by `list`, each name stands with its module's first line, and nothing is computed."""
    monkeypatch.setattr(catalogue, "reproduce", None)
    done = rtk("reproduce")
    assert done.returncode == 0, done.stderr
    assert done.stdout == rtk("reproduce", "list").stdout
    listed = json.loads(rtk("reproduce", "--json").stdout)["reproductions"]
    assert [one["name"] for one in listed] == list(catalogue.MODULES)
    assert all(one["title"] and f"{one['name']} " in done.stdout for one in listed)


def test_an_unknown_name_is_refused_with_what_was_meant() -> None:
    """Exit 2, and the name that is nearest."""
    done = rtk("reproduce", "oobleck-tabel-2")
    assert done.returncode == 2
    assert "did you mean oobleck-table-2?" in done.stderr
    assert "rtk reproduce list" in rtk("reproduce", "zzz").stderr
    assert "`list` goes with no other name" in rtk("reproduce", "list", "zzz").stderr


def test_a_list_is_no_page() -> None:
    """--markdown wants names."""
    done = rtk("reproduce", "--markdown", "-")
    assert done.returncode == 2
    assert "--markdown" in done.stderr


@pytest.mark.usefixtures("only_made_up")
def test_a_table_says_what_was_asked_for_and_what_holds() -> None:
    """Differences are relative or plain, ranges have two ends, and what is not judged has a dash."""
    done = rtk("reproduce", "made-up")
    assert done.returncode == 0, done.stderr
    assert cells(done.stdout, "near") == ["near", "2", "2.02", "+1.0", "%", "model", "within", "1", "%", "yes"]
    assert cells(done.stdout, "far")[-5:] == ["fitted", "within", "10", "%", "NO"]
    assert cells(done.stdout, "residual")[3:] == ["+0.030", "model", "within", "0.06", "yes"]
    assert cells(done.stdout, "same")[3:] == ["0", "%", "exact", "the", "same", "yes"]
    assert cells(done.stdout, "inside") == ["inside", "1.46", "1.2", "to", "1.96", "0", "%", "range", "-", "-"]
    assert cells(done.stdout, "unprinted") == ["unprinted", "-", "5", "-", "model", "-", "-"]
    for line in ("* yes: it is so", "* NO: it is otherwise", "* near: just so", "Made up.", "* Everything."):
        assert line in done.stdout.splitlines()


@pytest.mark.usefixtures("only_made_up")
def test_exit_code_tells_what_does_not_hold() -> None:
    """Only where it is asked for, and also with --json."""
    assert rtk("reproduce", "made-up").returncode == 0
    assert rtk("reproduce", "made-up", "--exit-code").returncode == 1
    assert rtk("reproduce", "all", "--json", "--exit-code").returncode == 1


@pytest.mark.usefixtures("only_made_up")
def test_json_says_all_of_it() -> None:
    """Rows with their differences, claims, and what holds; a name given twice is made once."""
    (one,) = json.loads(rtk("reproduce", "made-up", "made-up", "--json").stdout)["reproductions"]
    assert (one["name"], one["title"], one["holds"]) == (MADE.name, MADE.title, False)
    assert [row["holds"] for row in one["rows"]] == [True, False, True, True, None, None]
    assert [row["difference"] for row in one["rows"]] == [row.difference for row in MADE.rows]
    assert one["rows"][4]["ours"] == [1.2, 1.96]
    assert one["unsaid"] == list(MADE.unsaid)


@pytest.mark.usefixtures("only_made_up")
def test_a_page_has_a_summary_and_a_section_each(tmp_path: Path) -> None:
    """It names the command that made it; a summary counts what holds, and has the worst differences, judged or not."""
    done = rtk("reproduce", "all", "--markdown", "page.md", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    page = (tmp_path / "page.md").read_text()
    assert "`rtk reproduce all --markdown FILE`" in page
    assert "| made-up | A table \\| of nothing | 3 of 4 | 1 of 2 | +50 % | 0 % |" in page.splitlines()
    assert page.endswith(telling.section(MADE) + "\n")
    assert rtk("reproduce", "all", "--markdown", "-").stdout == page


@given(
    st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.sampled_from((0.0, 0.001, 0.05, 0.5)), st.booleans()
)  # fmt: skip
def test_what_holds_is_what_is_within(paper: float, ours: float, tolerance: float, absolute: bool) -> None:
    """A row holds where its difference is within its tolerance; a range that has the paper's number is never off."""
    row = Row("x", paper, ours, tolerance=tolerance, absolute=absolute)
    off = abs(ours - paper) if absolute else abs(ours - paper) / paper
    assert row.holds == (off <= tolerance) or abs(off - tolerance) < 1e-9
    assert Row("x", paper, (min(paper, ours), max(paper, ours)), "range", absolute=absolute).difference == 0


@pytest.mark.checkout
@pytest.mark.parametrize("name", ["oobleck-table-2", "oobleck-table-4", "oobleck-figure-10"])
def test_the_page_of_reproductions_is_up_to_date(name: str) -> None:
    """docs/reproductions.md says what `rtk reproduce all --markdown` would write; the slower ones are left to it."""
    assert telling.section(catalogue.reproduce(name)) in (ROOT / "docs" / "reproductions.md").read_text()
