"""The picture of what was found slow, and long series as few points."""

import random
from dataclasses import replace
from statistics import median
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.schemas.detection import Attribution, FailSlow, FileFindings, Scope
from rtk.viz.detection import (
    CERTAIN,
    KEPT,
    MOST_POINTS,
    MOST_TOLD,
    SUSPECTED,
    UNNOTICED,
    Panel,
    Thinned,
    cells_of,
    detection_html,
    detection_picture,
)
from rtk.viz.painter import Boxes

from .pictures import FOUND, panel, texts, tips


def test_everything_that_was_found_is_said() -> None:
    """Titles, files, severities, places, causes, scopes and evidence stand in the picture, whatever characters."""
    found = texts(detection_picture([panel()], "x < y"))
    assert {"x < y", "a & b.log", "1.52 x, link 1-2", "2.50 x", "usual", "+10 %", "a < b · 60 of 60 samples"} <= set(
        found
    )
    assert "megatron · 300 samples · usually 500 ms · 2 fail-slows" in found
    words = "1.52 x · slow since sample 100, suspected 102, confirmed 111, over 160 · link 1-2, communication"
    assert words in found
    assert "2.50 x · slow since sample 200, confirmed 250, not over · job, cause unknown" in found


def test_a_picture_is_well_formed_and_deterministic() -> None:
    """The same findings give the same bytes; the page holds the image once, and how to read it."""
    panels = [panel(), panel(replace(FOUND, file="c", events=()))]
    page = detection_html(panels, "title")
    assert page == detection_html(panels, "title")
    assert page.count("<svg ") == 1 and page.count("<h1>title</h1>") == 1 and "How to read this" in page
    ElementTree.fromstring(page[page.index("<svg ") : page.index("</svg>") + 6])
    assert "2 fail-slows in 2 files" in page and "nothing slow" in page


def test_phases_follow_each_other() -> None:
    """Pale, amber and red lie one after the other above the shade."""
    picture = detection_picture([panel()], "t")
    drawn = [box for artist in picture.figure.findobj(Boxes) for box in artist.boxes if not box.tip and box.top > 100]
    pale, amber, red = ([box for box in drawn if box.colour == colour] for colour in (UNNOTICED, SUSPECTED, CERTAIN))
    assert pale[0].right == amber[0].left and amber[0].right == red[0].left
    assert pale[1].right == red[1].left, "what was found in hindsight was never suspected"


def test_what_is_longer_than_the_picture_is_marked() -> None:
    """A single spike does not squeeze the rest: it is a triangle at the edge, with its time."""
    assert any(tip.startswith("up to 2") for tip in tips(detection_picture([panel()], "t")))


def test_findings_alone_can_be_drawn() -> None:
    """Without times (of call logs), without a usual time, without samples, with attribution, with many events."""
    assert detection_picture([Panel(FOUND)], "t").svg()
    assert "too few to know" in detection_picture([Panel(FileFindings("f", "csv", 0, None, ()))], "t").svg()
    shares = Attribution(1.35, 0.9, 0.05, 0.0, 0.1)
    said = " ".join(texts(detection_picture([Panel(replace(FOUND, attribution=shares))], "t")))
    assert "slowed down 1.35 x, of that 90 % by the slowest workers, 5 % by the last stage, 10 % by" in said
    many = tuple(FailSlow(i, i, i + 1, i + 2, 1.2) for i in range(0, 300, 3))
    found = texts(detection_picture([panel(replace(FOUND, events=many))], "t"))
    assert f"and {len(many) - MOST_TOLD} more" in found


@given(st.integers(0, 6 * MOST_POINTS), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_thinning_keeps_every_value_in_a_stretch(count: int, seed: int) -> None:
    """Stretches follow each other without a gap; their least and greatest values are exact, their middle nearly."""
    draw = random.Random(seed)
    values = [draw.random() for _ in range(count)]
    thinned = Thinned()
    for value in values:
        thinned.note(value)
    points = thinned.points()
    assert len(points) <= MOST_POINTS and sum(point.count for point in points) == count
    place = 0
    for point in points:
        own = values[place : place + point.count]
        assert point.first == place and (point.low, point.high) == (min(own), max(own))
        assert point.count > KEPT or point.middle == median(own)
        place += point.count


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope(), "job"),
        (Scope("worker", ("3",)), "rank 3"),
        (Scope("worker", ("rank 5", "rank 6")), "rank 5, 6"),
        (Scope("worker", ("1/0",)), "worker 1/0"),
        (Scope("link", ("0-1",)), "link 0-1"),
        (Scope("stage", ("2",)), "stage 2"),
    ],
)
def test_who_is_slow_has_one_name(scope: Scope, words: str) -> None:
    """A number is a rank and `k/i` a worker: in tables, lines and pictures of `rtk detect` and `rtk monitor` alike."""
    event = FailSlow(1, None, 2, None, 1.5, scope=scope)
    assert cells_of(event)[-1] == words
    drawn = texts(detection_picture([panel(replace(FOUND, events=(event,)))], "t"))
    assert any(line.endswith(f"· {words}, cause unknown") for line in drawn)
