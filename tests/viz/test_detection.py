"""The picture of what was found slow, and long series as few points."""

import random
from dataclasses import replace
from statistics import median
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from rtk.schemas.detection import Attribution, FailSlow, FileFindings, Scope
from rtk.viz.detection import MOST_TOLD, Panel, detection_html, detection_svg
from rtk.viz.detection import KEPT, MOST_POINTS, Thinned

SVG = "{http://www.w3.org/2000/svg}"
EVENT = FailSlow(100, 102, 111, 160, 1.52, "communication", Scope("link", ("1-2",)), ("a < b", "60 of 60 samples"))
FOUND = FileFindings("a & b.log", "megatron", 300, 0.5, (EVENT, FailSlow(200, None, 250, None, 2.5)))


def panel(found: FileFindings = FOUND) -> Panel:
    """Findings with a series that fits them, thinned."""
    thinned, noise = Thinned(), random.Random(0)
    for i in range(found.samples):
        slow = next((event.severity for event in found.events if event.onset <= i < (event.relief or 10**9)), 1.0)
        thinned.note((found.usual_s or 1.0) * slow * noise.gauss(1, 0.01) * (50 if i == 33 else 1))
    return Panel(found, thinned.points())


def texts(image: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(image).iter(f"{SVG}text")]


def test_everything_that_was_found_is_said() -> None:
    """Titles, files, severities, places, causes, scopes and evidence stand in the picture, whatever characters."""
    found = texts(detection_svg([panel()], "x < y"))
    assert {"x < y", "a & b.log", "1.52 x, link 1-2", "2.50 x", "usual", "+10 %", "a < b · 60 of 60 samples"} <= set(
        found
    )
    assert "megatron · 300 samples · usually 500 ms · 2 fail-slows" in found
    words = "1.52 x · slow since sample 100, suspected 102, confirmed 111, relief 160 · link 1-2, communication"
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


def test_shapes_stay_inside_the_image_and_phases_in_their_event() -> None:
    """No rectangle leaves the image; pale, amber and red lie one after the other within the shade."""
    root = ElementTree.fromstring(detection_svg([panel()], "t"))
    width, height = (float(root.get(name, "")) for name in ("width", "height"))
    rects = [
        [float(one.get(name, "-1")) for name in ("x", "y", "width", "height")]
        for one in list(root.iter(f"{SVG}rect"))[1:]
    ]
    assert all(0 <= x <= x + w <= width and 0 <= y <= y + h <= height for x, y, w, h in rects)
    first = next(group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}rect") is not None)
    pale, amber, red, _ = first.findall(f"{SVG}rect")
    for before, after in ((pale, amber), (amber, red)):
        assert abs(float(before.get("x", "")) + float(before.get("width", "")) - float(after.get("x", ""))) < 0.02


def test_what_is_longer_than_the_picture_is_marked() -> None:
    """A single spike does not squeeze the rest: it is a triangle at the edge, with its time."""
    assert "up to 2" in detection_svg([panel()], "t")


def test_findings_alone_can_be_drawn() -> None:
    """Without times (of call logs), without a usual time, without samples, with attribution, with many events."""
    assert "M" in detection_svg([Panel(FOUND)], "t")
    assert "too few to know" in detection_svg([Panel(FileFindings("f", "csv", 0, None, ()))], "t")
    shares = Attribution(1.35, 0.9, 0.05, 0.0, 0.1)
    assert "slowed down 1.35 x, of that 90 % by the slowest workers, 5 % by the last stage, 10 % by" in detection_svg(
        [Panel(replace(FOUND, attribution=shares))], "t"
    )
    many = tuple(FailSlow(i, i, i + 1, i + 2, 1.2) for i in range(0, 300, 3))
    found = texts(detection_svg([panel(replace(FOUND, events=many))], "t"))
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
