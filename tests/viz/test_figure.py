"""Timelines as plotly figures."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import rtk
from rtk.runners.simulator import simulate
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Timeline
from rtk.viz.figure import figure_of, plotly_html
from rtk.viz.style import LOOKS


def figure(*timelines: tuple[str, Timeline]) -> dict[str, Any]:
    tree: dict[str, Any] = figure_of(timelines).to_dict()
    return tree


def trace(tree: dict[str, Any], name: str) -> dict[str, Any]:
    return next(trace for trace in tree["data"] if trace.get("name") == name)


def test_the_library_gives_a_figure(make_plan: Callable[..., Plan]) -> None:
    """`rtk.figure` draws a plan, a timeline, or several over each other, and refuses what has no times."""
    plan = make_plan()
    title = rtk.figure(plan).layout.title.text
    assert title == "by hand · 2 pipelines of 3 stages · 4 micro-batches each"
    assert len(rtk.figure([plan, simulate(plan)]).layout.yaxis.ticktext) == 12
    with pytest.raises(rtk.RtkError):
        rtk.figure("plan.json")


def test_a_page_with_plotly_is_self_contained(rerouted: Timeline) -> None:
    """On request a page holds plotly itself, and loads nothing from elsewhere."""
    page = plotly_html([("simulated", rerouted)], "Worker <1/1> failed")
    assert len(page) > 3_000_000
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    assert "<h1>Worker &lt;1/1&gt; failed</h1>" in page


def test_one_trace_a_kind_with_all_its_bars(small: Timeline) -> None:
    """Each kind is one trace in its colour, whose bars begin and last as the spans do."""
    tree = figure(("simulated", small))
    bars = trace(tree, "F: forward")
    assert (bars["base"], bars["x"], bars["text"]) == ([0, 1], [1, 1], ["0", "1"])
    assert bars["marker"]["color"] == LOOKS["F"].colour
    names = [trace["name"] for trace in tree["data"] if trace["type"] == "bar"]
    kinds = [f"{kind}: {LOOKS[kind].words}" for kind in "FIWB"]
    assert names == ["idle (bubble)", *kinds, "gradient all-reduce", "optimizer step"]


def test_hover_says_all_of_a_bar(rerouted: Timeline) -> None:
    """Pointing at a bar shows operation, worker, start, end, duration and iteration, and that it was re-routed."""
    rows = trace(figure(("simulated", rerouted)), "F: forward")["customdata"]
    row = next(row for row in rows if row[0] == "F1.2")
    assert row[1:3] == ["forward of micro-batch 1.2, re-routed", "2/1 (pipeline 2, stage 1)"]
    assert row[5:] == ["10 ms", "0"]


def test_rerouted_bars_are_hatched(rerouted: Timeline) -> None:
    """Exactly the re-routed bars are hatched, and the legend says what that means."""
    tree = figure(("simulated", rerouted))
    bars = trace(tree, "B: full backward (I and W in one)")
    hatched = [text for text, shape in zip(bars["text"], bars["marker"]["pattern"]["shape"], strict=True) if shape]
    assert sorted(hatched) == ["1.1", "1.2", "1.3"]
    assert trace(tree, "re-routed from pipeline k: k.j")


def test_memory_panel_shares_the_time_axis(small: Timeline) -> None:
    """Beneath lie the workers' memory with its limit, on the same time axis; without sizes there is no such panel."""
    tree = figure(("simulated", small))
    curve = trace(tree, "memory")
    assert curve["yaxis"] == "y2" and "xaxis" not in curve
    assert ["20 B", "1 s"] in curve["customdata"]
    assert trace(tree, "memory limit")["line"]["dash"] == "dash"
    assert "peak 20 B of 25 B" in [note["text"] for note in tree["layout"]["annotations"]]
    assert "yaxis2" not in figure(("simulated", replace(small, workers=())))["layout"]


def test_events_are_vertical_lines(small: Timeline) -> None:
    """An event is a line over the whole chart; pointing at it says what happened, escaped."""
    line = trace(figure(("simulated", small)), "event")
    assert line["x"][:2] == [2.5, 2.5]
    assert line["hovertext"][0] == "2.5 s: slow_compute 0/0: factor 2 &lt;since&gt; now"


def test_timelines_lie_over_each_other(small: Timeline) -> None:
    """Two timelines give a sub-row each, named by their labels, and a memory curve each."""
    tree = figure(("simulated", small), ("measured", replace(small, source="measured")))
    assert tree["layout"]["yaxis"]["ticktext"] == ["0/0 simulated", "0/0 measured"]
    assert trace(tree, "memory, simulated") and trace(tree, "memory, measured")


def test_short_times_are_shown_in_short_units(small: Timeline) -> None:
    """The axis takes the unit that suits its length."""
    quick = tuple(replace(s, start_s=s.start_s * 1e-5, end_s=s.end_s * 1e-5) for s in small.spans)
    tree = figure(("simulated", replace(small, spans=quick, events=())))
    assert tree["layout"]["xaxis"]["title"]["text"] == "time (µs)"
    assert trace(tree, "F: forward")["x"] == pytest.approx([10, 10])
