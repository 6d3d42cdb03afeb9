"""Timelines as still pictures."""

from dataclasses import replace

from rtk.schemas.timeline import Timeline
from rtk.viz.painter import Boxes
from rtk.viz.timeline import timelines_picture

from .pictures import texts, tips


def test_every_span_is_a_bar_with_a_tip(rerouted: Timeline) -> None:
    """Each span is one bar, whose tip names its operation and worker."""
    found = tips(timelines_picture([("simulated", rerouted)], "t"))
    assert len(found) == len(rerouted.spans)
    assert sum(tip.startswith("F1.2 (forward), worker 2/1, iteration 0: ") for tip in found) == 1


def test_rerouted_bars_are_hatched(rerouted: Timeline) -> None:
    """Each re-routed operation is hatched, and the key too."""
    picture = timelines_picture([("simulated", rerouted)], "t")
    hatched = [box for artist in picture.figure.findobj(Boxes) for box in artist.boxes if box.hatched]
    assert len(hatched) == 9 + 1


def test_axis_memory_and_events(small: Timeline) -> None:
    """There are a time axis with its unit, each worker's peak and limit, and its events in words."""
    found = texts(timelines_picture([("simulated", small)], "t"))
    assert {"time (s)", "peak 20 B of 25 B", "slow_compute 0/0: factor 2 <since> now", "0", "8"} <= set(found)


def test_without_memory_or_spans(small: Timeline) -> None:
    """Without sizes there is no memory panel; without spans still a picture, and no bars are missed."""
    found = texts(timelines_picture([("simulated", replace(small, workers=()))], "t"))
    assert not any("peak" in text for text in found)
    assert "simulated · no operations" in texts(timelines_picture([("simulated", Timeline("simulated", ()))], "t"))
