"""Numbers for people."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtk.schemas.quantities import print_apart, print_bytes, print_number, print_share, print_time, ticks

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (90, "90 s"),
        (1.23456, "1.235 s"),
        (0.0123, "12.3 ms"),
        (4.2e-5, "42 µs"),
        (12345.6, "3.429 h"),
        (150, "2.5 min"),
    ],
)
def test_times_choose_their_unit(seconds: float, text: str) -> None:
    """A time is printed in the largest unit in which it is at least one, with four digits."""
    assert print_time(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (80 * 2**30, "80 GiB"), (2.0**60, "1048576 TiB")]
)
def test_sizes_choose_their_unit(size: float, text: str) -> None:
    """A size is printed in the largest binary unit in which it is at least one."""
    assert print_bytes(size) == text


@given(end=st.floats(1e-9, 1e9), count=st.integers(1, 20))
def test_ticks_are_few_and_inside(end: float, count: int) -> None:
    """Ticks begin at 0, stay inside the axis, and are at most one more than asked for."""
    places = ticks(end, count)
    assert places[0] == 0
    assert places[-1] <= end * (1 + 1e-6)
    assert len(places) <= count + 1


@given(one=st.floats(1e-9, 1e13), ratio=st.floats(1 + 1e-9, 10))
@pytest.mark.parametrize("shown", [print_time, print_bytes, print_number])
def test_what_differs_is_shown_to_differ(shown: Callable[..., str], one: float, ratio: float) -> None:
    """Two values that differ by a billionth or more never read alike, and where four digits do there are no more."""
    first, second = print_apart(one, one * ratio, shown)
    assert first != second
    if shown(one) != shown(one * ratio):
        assert (first, second) == (shown(one), shown(one * ratio))


@pytest.mark.parametrize(("share", "text"), [(0.98, "98.0 %"), (1.0, "100.0 %"), (0.0, "0.0 %"), (0.12345, "12.3 %")])
def test_shares_of_a_column_have_one_decimal(share: float, text: str) -> None:
    """In a table the figures stand under each other."""
    assert print_share(share) == text


@pytest.mark.parametrize("text", ["inf s", "nan s", "-inf s"])
def test_what_is_no_time_is_in_seconds(text: str) -> None:
    """What is not finite has the base unit."""
    assert print_time(float(text.removesuffix(" s"))) == text


# A share or a time with a format of its own: `{share:.1%}`, `{100 * share:.0f} %`, `{time_s:.3f} s`, `{1e3 * x:g} ms`.
BY_HAND = re.compile(r"\{[^{}\n]*:[^{}\n]*%\}|\{[^{}\n]*:[^{}\n]*[efg]\} ?(?:%|(?:s|ms|us|µs|bytes|GB|MB)\b)")
PEOPLE = ("cli", "viz", "planners", "runners", "profilers", "schemas")
# What is written otherwise on purpose, and why.
ALLOWED = {
    "schemas/quantities.py": "the rule itself",
    "cli/links_report.py": "sizes of messages, which the probe has in whole MB",
    "cli/options.py": "a default, as it would be typed",
    "schemas/files.py": "limits in bytes, counted by the file's reader",
    "runners/checkpoint.py": "sizes of files, of which each byte counts",
    "profilers/failslow/attribution/table.py": "a limit in bytes, counted by the reader",
}


@pytest.mark.checkout
def test_quantities_for_people_are_written_by_one_rule() -> None:
    """No module of the package gives a per cent, a time or a size a format of its own (schemas/quantities.py)."""
    sources = [*ROOT.glob("*.py"), *(path for name in PEOPLE for path in (ROOT / name).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): BY_HAND.findall(path.read_text()) for path in sources}
    assert {name: texts for name, texts in found.items() if texts and name not in ALLOWED} == {}
    assert [name for name in ALLOWED if not found[name]] == []
    assert [name for name, _ in found.items() if "−" in (ROOT / name).read_text()] == []  # noqa: RUF001
