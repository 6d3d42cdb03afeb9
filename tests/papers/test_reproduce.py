"""`rtk reproduce`: which tables and figures there are, and how they are told."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.benchmarks.papers import catalogue, telling
from rtk.benchmarks.papers.measured import measured
from rtk.benchmarks.papers.reproduction import Basis, Claim, Reproduction, Row

from ..cli.shell import rtk

ROOT = Path(__file__).parents[2]
MADE = Reproduction(
    "made-up",
    "A table | of nothing",
    ("slipstream",),
    (
        Row("near", 2.0, 2.02, Basis.SIMULATED, 0.01, borrowed=("a",), note="just so"),
        Row("far", 2.0, 3.0, Basis.COMPUTED, 0.1, ("a", "b")),
        Row("residual", 0.66, 0.69, Basis.QUOTED, 0.06, absolute=True),
        Row("same", 27.0, 27.0, Basis.PLANNED, 0.0),
        Row("below", 100.0, 50.0, Basis.MEASURED, 0.0, sense="at most"),
        Row("inside", 1.46, (1.2, 1.96), Basis.DETECTED),
        Row("unprinted", None, 5.0, Basis.PLANNED),
    ),
    (Claim("it is so", True), Claim("it is otherwise", False)),
    "Made up.",
    ("Everything.",),
)
HELD = (
    "4 of 5: 1 of 1 planned, 1 of 1 simulated (1 with numbers fitted elsewhere), 1 of 1 measured, 1 of 1 quoted, "
    "0 of 1 fitted with 2 numbers"
)


@pytest.fixture
def only_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one reproduction, which does not hold."""
    monkeypatch.setattr(catalogue, "MAKERS", {"made-up": "telling.page"})
    monkeypatch.setattr(catalogue, "reproduce", lambda name: MADE)


def cells(text: str, what: str) -> list[str]:
    """A row of a printed table, by its first word."""
    return next(line.split() for line in text.splitlines() if line.startswith(what))


@pytest.mark.wheel("reproduce")
def test_the_list_names_all_and_makes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, or by `list`, each name stands with what its function is, and nothing is computed."""
    monkeypatch.setattr(catalogue, "reproduce", None)
    done = rtk("reproduce")
    assert done.returncode == 0, done.stderr
    assert done.stdout == rtk("reproduce", "list").stdout
    listed = json.loads(rtk("reproduce", "--json").stdout)["reproductions"]
    assert [one["name"] for one in listed] == list(catalogue.MAKERS)
    assert all(one["title"] and f"{one['name']} " in done.stdout for one in listed)
    absent = json.loads(rtk("reproduce", "list", "--json").stdout)["absent"]
    assert {one["what"]: one["why"] for one in absent} == catalogue.ABSENT
    assert all(one["what"] in done.stdout and one["why"] in done.stdout for one in absent)


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
    near = "near 2 2.02 +1.0 % simulated, 1 fitted elsewhere within 1 % yes"
    assert cells(done.stdout, "near") == near.split()
    assert cells(done.stdout, "far")[-8:] == ["%", "computed,", "fitted", "2", "within", "10", "%", "NO"]
    assert cells(done.stdout, "residual")[3:] == ["+0.030", "quoted", "within", "0.06", "yes"]
    assert cells(done.stdout, "same")[3:] == ["0", "%", "planned", "the", "same", "yes"]
    assert cells(done.stdout, "below")[3:] == ["-50", "%", "measured", "at", "most", "yes"]
    assert cells(done.stdout, "inside") == ["inside", "1.46", "1.2", "to", "1.96", "0", "%", "detected", "-", "-"]
    assert cells(done.stdout, "unprinted") == ["unprinted", "-", "5", "-", "planned", "-", "-"]
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
    assert [row["holds"] for row in one["rows"]] == [True, False, True, True, True, None, None]
    assert [row["difference"] for row in one["rows"]] == [row.difference for row in MADE.rows]
    assert one["rows"][5]["ours"] == [1.2, 1.96]
    assert (one["rows"][1]["basis"], one["rows"][1]["fitted"]) == ("computed", ["a", "b"])
    assert one["summary"]["fitted"] == {"holding": 0, "judged": 1, "disclosed": 0, "borrowing": 0, "numbers": 2}
    assert (one["planners"], one["summary"]["planned"]["judged"]) == (["slipstream"], 1)
    assert one["unsaid"] == list(MADE.unsaid)


@pytest.mark.usefixtures("only_made_up")
def test_a_page_has_a_summary_and_a_section_each(tmp_path: Path) -> None:
    """It names the command that made it; a summary counts what holds, and has the worst differences, judged or not."""
    done = rtk("reproduce", "all", "--markdown", "page.md", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    page = (tmp_path / "page.md").read_text()
    assert "`rtk reproduce all --markdown FILE`" in page
    assert f"| made-up | A table \\| of nothing | {HELD} | slipstream | 1 of 2 | +50 % | 0 % |" in page.splitlines()
    assert f"In all {HELD}; 1 of 2 claims. 2 rows more are disclosed, not judged." in page
    assert telling.section(MADE) in page
    assert "What is not here" in page
    assert "What is not here" not in rtk("reproduce", "made-up", "--markdown", "-").stdout
    assert rtk("reproduce", "all", "--markdown", "-").stdout == page


@given(
    st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.sampled_from((0.0, 0.001, 0.05, 0.5)), st.booleans()
)  # fmt: skip
def test_what_holds_is_what_is_within(paper: float, ours: float, tolerance: float, absolute: bool) -> None:
    """A row holds where its difference is within its tolerance; a range that has the paper's number is never off."""
    row = Row("x", paper, ours, Basis.PLANNED, tolerance, absolute=absolute)
    off = abs(ours - paper) if absolute else abs(ours - paper) / paper
    assert row.holds == (off <= tolerance) or abs(off - tolerance) < 1e-9
    assert Row("x", paper, (min(paper, ours), max(paper, ours)), Basis.PLANNED, absolute=absolute).difference == 0


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6), st.sampled_from((0.0, 0.001, 0.05, 0.5)))
def test_one_side_of_a_bound_is_free(paper: float, ours: float, tolerance: float) -> None:
    """What is to be at most the paper's holds however small it is, and at least however large; a range by its end."""
    low, high = min(paper, ours), max(paper, ours)
    assert Row("x", high, low, Basis.MEASURED, tolerance, sense="at most").holds
    assert Row("x", low, high, Basis.MEASURED, tolerance, sense="at least").holds
    beyond = ours > paper * (1 + tolerance) * (1 + 1e-9)
    assert Row("x", paper, ours, Basis.MEASURED, tolerance, sense="at most").holds is not True or not beyond
    assert Row("x", paper, (low, high), Basis.PLANNED, tolerance, sense="at most").off == high / paper - 1
    assert Row("x", paper, (low, high), Basis.PLANNED, tolerance, sense="at least").off == 1 - low / paper


ROWS = st.lists(
    st.builds(
        Row,
        st.just("x"),
        st.sampled_from((None, 1.0)),
        st.sampled_from((1.0, 2.0)),
        st.sampled_from(Basis),
        st.sampled_from((None, 0.1)),
        st.sampled_from(((), ("a",), ("a", "b"), ("c",))),
    )
)


@given(ROWS)
def test_every_row_is_counted_once(rows: list[Row]) -> None:
    """As fitted or as what it is; a number that several rows were fitted with is one number."""
    counts = telling.counted(rows)
    assert sum(count["judged"] + count["disclosed"] for count in counts.values()) == len(rows)
    assert sum(count["holding"] for count in counts.values()) == sum(row.holds is True for row in rows)
    numbers = {name for row in rows for name in row.fitted}
    assert counts.get("fitted", {}).get("numbers", 0) == len(numbers)
    assert all((count["judged"] + count["disclosed"]) > 0 for count in counts.values())


# Tables and figures that each paper has.
PAPERS = {
    "SlipStream": (3, 11),
    "Oobleck": (4, 12),
    "Greyhound": (6, 20),
    "Adaptra": (3, 21),
    "NTP": (1, 11),
}


def places(text: str) -> set[tuple[str, str, int]]:
    """What a title names: `Adaptra Figures 7, 10 to 13 and Tables 1, 2`."""
    paper, found = text.split()[0], set()
    for kind, numbers in re.findall(r"(Table|Figure)s? ([\d, andto]*\d)", text):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= {(paper, kind, number) for number in range(int(first), int(last or first) + 1)}
    return found


def test_every_table_and_figure_is_made_or_said_to_be_missing() -> None:
    """Of the five papers each is exactly one of both; the slides on ReCycle have those of SlipStream."""
    made = [place for name in catalogue.names() for place in places(catalogue.summary(name).partition(":")[0])]
    absent = [place for what in catalogue.ABSENT for place in places(what) if not what.startswith("ReCycle")]
    twice = {place for place in made if made.count(place) > 1} | (set(made) & set(absent))
    assert twice == set()
    every = {
        (paper, kind, number)
        for paper, counts in PAPERS.items()
        for kind, count in zip(("Table", "Figure"), counts, strict=True)
        for number in range(1, count + 1)
    }
    assert {*made, *absent} == every
    assert all(catalogue.ABSENT.values())


@pytest.mark.checkout
def test_the_page_says_in_all_what_its_lines_say() -> None:
    """The sentence below the summary adds up the lines, and what there is not stands at the end."""
    page = (ROOT / "docs" / "reproductions.md").read_text()
    lines = [line.split(" | ") for line in page.splitlines() if re.match(r"\| [a-z]+-[a-z0-9-]+ \|", line)]
    rows = [re.match(r"(\d+) of (\d+): ", line[2]) for line in lines]
    claims = [re.match(r"(\d+) of (\d+)", line[4]) for line in lines]
    added = [sum(int(one[side]) for one in found if one) for found in (rows, claims) for side in (1, 2)]
    told = re.search(r"In all (\d+) of (\d+): .*; (\d+) of (\d+) claims\.", page)
    assert told is not None
    assert added == [int(one) for one in told.groups()]
    assert len(lines) == len(catalogue.MAKERS)
    assert all(f"| {what} | {why} |" in page for what, why in catalogue.ABSENT.items())


@pytest.mark.checkout
def test_what_is_recorded_is_what_benchmarks_have_left() -> None:
    """Sections of `measured.json` that are taken out of `benchmarks/results/` are theirs to the last bit."""
    from rtk.benchmarks import paper_times

    taken = {name: paper_times.SECTIONS[name](0.0) for name in paper_times.TAKEN}
    assert {name: measured(name) for name in taken} == taken
    assert measured("slipstream-table-3")["unlimited"] == paper_times.unlimited()
