"""The Gantt chart as an SVG image."""

from dataclasses import replace
from xml.etree import ElementTree

from rtk.schemas.timeline import Timeline
from rtk.viz.svg import gantt_svg

SVG = "{http://www.w3.org/2000/svg}"


def texts(image: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(image).iter(f"{SVG}text")]


def test_well_formed_and_deterministic(rerouted: Timeline) -> None:
    """The image is well-formed XML, and drawing the same twice gives the same text."""
    image = gantt_svg([("simulated", rerouted)], "a < b & c")
    assert "a < b & c" in texts(image)
    assert gantt_svg([("simulated", rerouted)], "a < b & c") == image


def test_every_span_is_a_bar_with_a_tip(rerouted: Timeline) -> None:
    """Each span is one group, whose tooltip names its operation and worker."""
    root = ElementTree.fromstring(gantt_svg([("simulated", rerouted)], "t"))
    tips = [node.text or "" for group in root.iter(f"{SVG}g") for node in group.findall(f"{SVG}title")]
    assert len(tips) == len(rerouted.spans)
    assert sum(tip.startswith("F1.2 (forward), worker 2/1, iteration 0: ") for tip in tips) == 1


def test_rerouted_bars_are_hatched(rerouted: Timeline) -> None:
    """Each re-routed operation is hatched, and the legend too."""
    root = ElementTree.fromstring(gantt_svg([("simulated", rerouted)], "t"))
    hatched = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "r"]
    assert len(hatched) == 9 + 1


def test_bars_stay_inside_the_image(rerouted: Timeline) -> None:
    """Nothing is drawn outside the image's frame, and no bar has a negative width."""
    root = ElementTree.fromstring(gantt_svg([("a", rerouted), ("b", rerouted)], "t"))
    width, height = (float(value) for value in (root.get("width", ""), root.get("height", "")))
    for rect in list(root.iter(f"{SVG}rect"))[1:]:
        x, y, w, h = (float(rect.get(name, "-1")) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width and 0 <= y <= y + h <= height


def test_axis_memory_and_events(small: Timeline) -> None:
    """The image has a time axis with its unit, each worker's peak and limit, and its events in words."""
    found = texts(gantt_svg([("simulated", small)], "t"))
    assert {"time (s)", "peak 20 B of 25 B", "slow_compute 0/0: factor 2 <since> now", "0", "8"} <= set(found)


def test_without_memory_or_spans(small: Timeline) -> None:
    """Without sizes there is no memory panel; without spans still an image."""
    assert not any("peak" in text for text in texts(gantt_svg([("simulated", replace(small, workers=()))], "t")))
    assert "simulated · no operations" in texts(gantt_svg([("simulated", Timeline("simulated", ()))], "t"))
