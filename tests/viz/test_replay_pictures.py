"""Pictures of a replay: everything is in them, inside them, and once."""

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.schemas.replay import ReplayReport, Stretch
from rtk.viz.replay import replay_picture, round_range, shares_of, zoomed
from rtk.viz.terminal import terminal_replay

from .pictures import texts
from .replays import policy, replayed, report, reports


def test_every_policy_is_named_with_its_goodput() -> None:
    """Names and goodputs stand in all three pictures, whatever characters; what cannot train is in none."""
    drawn = replayed({"a < b": 10.0, "c & d": 900.0}, {"huge": "too large"})
    found = texts(replay_picture([("r", drawn)]))
    for one in drawn.policies[:2]:
        goodput = f"{100 * one.goodput:.1f} %"
        assert found.count(one.policy) == 2
        assert f"{one.policy} {goodput}" in found and found.count(goodput) >= 2
    assert not any("huge" in words for words in found)
    assert {"Throughput over time", "Each policy by itself", "Where 12 h went", "fault-free", "time (h)"} <= set(found)
    assert any("each step is the average of 2 min" in words for words in found)


@given(reports)
@settings(max_examples=12, deadline=None)
def test_any_report_can_be_drawn(drawn: ReplayReport) -> None:
    """Whatever a file says, there is a picture, and it is well-formed; that it is always the same, pages show."""
    image = replay_picture([("r", drawn), ("s", drawn)]).svg()
    places = [value for node in ElementTree.fromstring(image).iter() for name, value in node.items() if name in "dxy"]
    assert not any("nan" in place or "inf" in place for place in places)
    terminal_replay(drawn, 80)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
@settings(max_examples=25, deadline=None)
def test_axes_hold_what_they_show(counts: Sequence[float]) -> None:
    """A round range has all counts within; an axis of shares never begins above the least of them."""
    high, low = round_range(counts)
    assert 0 <= low <= min(counts) <= max(counts) <= high and low < high
    assert low < min(counts) or not min(counts), "nodes that are there look like none"
    least = min(counts) / (max(counts) or 1.0)
    assert zoomed(least) <= least + 1e-12


def test_little_that_is_missing_is_seen() -> None:
    """Where all are above nine tenths, the axes begin further up, and say so."""
    found = texts(replay_picture([("r", report(policy("a", 0.99), policy("b", 0.96)))]))
    assert "Where 1000 s went; the axis begins at 95 %" in found or any(
        "the axis begins at 95 %" in one for one in found
    )
    few = replace(policy("a", 0.2), stretches=(Stretch(0.0, 8, 8, 0.2), Stretch(500.0, 2, 2, 0.2)))
    assert not any("axis begins" in one for one in texts(replay_picture([("r", report(few))])))
    assert any(one.startswith("Nodes there") and one.endswith("the axis begins at 7") for one in found)


def test_several_reports_stand_under_each_other() -> None:
    """Each with its name and facts, in the colours of the first."""
    drawn = replayed({"a": 10.0})
    found = texts(replay_picture([("with spares", drawn), ("without", drawn)]))
    assert {"with spares", "without", "Which policy should this cluster run?"} <= set(found)
    assert found.count("Each policy by itself") == 2


@pytest.mark.parametrize("width", [20, 80, 200])
def test_the_terminal_shows_a_bar_of_the_width(width: int) -> None:
    """A line a policy, each bar as long as the others; the refusal and the key beneath."""
    drawn = replayed({"quick": 10.0, "checkpoint-restart": 900.0}, {"huge": "too large"})
    lines = terminal_replay(drawn, width).plain.split("\n")
    quick, slow = (next(line for line in lines if line.startswith(name)) for name in ("quick", "checkpoint-restart"))
    assert len(quick) == len(slow) <= max(width, 40)
    assert "huge cannot train: too large" in lines
    assert "r restarting" in lines[-1]
    share = next(share for purpose, share in shares_of(drawn.policies[1]) if purpose.words == "restarting")
    assert abs(slow.count("r", 18) - share * max(10, width - 28)) <= 1.5
