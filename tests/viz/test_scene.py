"""What every chart shows: rows, bars, marks and facts."""

from dataclasses import replace

import pytest

from rtk.schemas.errors import InvalidInputError
from rtk.schemas.timeline import Event, Span, Timeline
from rtk.viz.facts import facts_of
from rtk.viz.scene import lay_out


def iterations(small: Timeline, count: int) -> Timeline:
    spans = tuple(
        replace(span, iteration=n, start_s=span.start_s + 10 * n, end_s=span.end_s + 10 * n)
        for n in range(count)
        for span in small.spans
    )
    return replace(small, spans=spans, events=())


def test_rows_in_worker_order(rerouted: Timeline) -> None:
    """Rows stand in (pipeline, stage) order, and a failed worker keeps its row, which says so."""
    rows = lay_out([("simulated", rerouted)], "t").rows
    assert [row.worker for row in rows] == ["0/0", "0/1", "1/0", "1/1", "2/0", "2/1"]
    assert [row.label for row in rows if not row.busy] == ["1/1 (failed)"]


def test_ten_follows_nine() -> None:
    """Workers are ordered by number, not by letters."""
    spans = tuple(Span(f"{k}/0", "F0", 0, 1) for k in (10, 9, 1))
    assert [row.worker for row in lay_out([("t", Timeline("simulated", spans))], "t").rows] == ["1/0", "9/0", "10/0"]


def test_several_timelines_share_rows_and_begin_together(small: Timeline) -> None:
    """A worker has one row a timeline under each other, each timeline aligned at its first span."""
    late = replace(
        small, source="measured", spans=tuple(replace(s, start_s=s.start_s + 5, end_s=s.end_s + 5) for s in small.spans)
    )
    scene = lay_out([("simulated", small), ("measured", late)], "t")
    assert [row.label for row in scene.rows] == ["0/0 simulated", "0/0 measured"]
    assert {min(bar.span.start_s for bar in scene.bars if bar.row is row) for row in scene.rows} == {0}
    assert [(mark.time_s, mark.words) for mark in scene.marks] == [
        (0, "measured: slow_compute 0/0: factor 2 <since> now (2.5 s before the first operation)"),
        (2.5, "simulated: slow_compute 0/0: factor 2 <since> now"),
    ]
    assert scene.end_s == 9


def test_rerouted_bars_are_known_by_their_prefix(rerouted: Timeline) -> None:
    """Exactly the bars whose token names another pipeline are re-routed, and carry its number."""
    bars = lay_out([("t", rerouted)], "t").bars
    assert {bar.label for bar in bars if bar.rerouted} == {"1.0", "1.1", "1.2", "1.3"}
    assert all(("." in bar.span.op) == bar.rerouted for bar in bars)


def test_first_iterations_that_fit(small: Timeline) -> None:
    """Above the limit the first whole iterations are drawn, and the title says how many."""
    scene = lay_out([("t", iterations(small, 5))], "title", max_bars=20)
    assert scene.title == "title (the first 2 of 5 iterations)"
    assert {bar.span.iteration for bar in scene.bars} == {0, 1}
    assert "5 iterations" in scene.facts[0]


def test_first_operations_of_one_long_iteration(small: Timeline) -> None:
    """Where not even one iteration fits, its first operations are drawn."""
    scene = lay_out([("t", small)], "title", max_bars=3)
    assert scene.title == "title (the first 3 of 7 operations)"
    assert [bar.span.op for bar in scene.bars] == ["F0", "F1", "I0"]


def test_facts_of_several_iterations(small: Timeline) -> None:
    """The facts give the makespan, the time from one iteration's end to the next, and the bubbles."""
    assert facts_of("simulated", iterations(small, 3)) == (
        "simulated · 3 iterations in 29 s, iteration time 10 s · bubbles 37.9 %"
    )


def test_facts_of_measured_and_paced(small: Timeline) -> None:
    """A paced run says so, and a label that does not name the source is followed by it."""
    facts = facts_of("run 7", replace(small, source="measured", paced=True))
    assert facts.startswith("run 7, measured · makespan 9 s") and "paced" in facts


def test_iterations_are_marked(small: Timeline) -> None:
    """The beginnings of several iterations are marked, that of a single one is not."""
    assert [mark.words for mark in lay_out([("t", iterations(small, 2))], "t").marks] == ["iteration 0", "iteration 1"]
    assert [mark.is_event for mark in lay_out([("t", small)], "t").marks] == [True]


def test_empty_timeline() -> None:
    """A timeline without spans is an empty chart, not an error."""
    scene = lay_out([("simulated", Timeline("simulated", (), events=(Event(0, "fail"),)))], "t")
    assert (scene.rows, scene.bars, scene.end_s) == ((), (), 0)
    assert scene.facts == ("simulated · no operations",)


def test_late_events_lengthen_the_chart(small: Timeline) -> None:
    """An event after the last operation is inside the chart, but the worker is not drawn as idle until then."""
    scene = lay_out([("t", replace(small, events=(Event(12, "recover"),)))], "t")
    assert (scene.end_s, scene.rows[0].end_s) == (12, 9)


def test_a_worker_of_another_form_is_refused() -> None:
    """A worker that is not named k/i is an error with the form."""
    with pytest.raises(InvalidInputError, match="'gpu0' is no worker"):
        lay_out([("t", Timeline("simulated", (Span("gpu0", "F0", 0, 1),)))], "t")
