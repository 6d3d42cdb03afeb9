"""Pictures of a run in which workers fail: who is not there, what was done in vain, and what the marks say."""

from xml.etree import ElementTree

import pytest

from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.viz.gantt import gantt_html
from rtk.viz.memory import memory_curves
from rtk.viz.scene import FEW_MARKS, MARK_LINES, lay_out
from rtk.viz.svg import gantt_svg


@pytest.fixture
def failed() -> Timeline:
    """Worker 0/0 fails at 3 s in iteration 1, which 1/0 does again; it is back with iteration 2."""
    spans = (
        Span("0/0", "F0", 0, 1, 0),
        Span("1/0", "F0", 0, 1, 0),
        Span("0/0", "F0", 2, 3, 1),
        Span("1/0", "F0", 2, 3, 1),
        Span("1/0", "F0", 4, 5, 1),
        Span("1/0", "F0.0", 5, 6, 1),
        Span("1/0", "step", 6, 6.5, 1),
        Span("0/0", "F0", 7, 8, 2),
        Span("1/0", "F0", 7, 8, 2),
    )
    events = (
        Event(3, "failure", "0/0", "connection closed"),
        Event(3, "epoch", None, "2, from iteration 1 on"),
        Event(6, "join", "0/0", "state from 1/0"),
        Event(6, "epoch", None, "3, from iteration 2 on"),
    )
    sizes = tuple(WorkerMemory(name, 10.0) for name in ("0/0", "1/0"))
    return Timeline("simulated", spans, sizes, events)


def test_the_dead_are_not_idle(failed: Timeline) -> None:
    """From its failure until it computes again a worker is not there."""
    scene = lay_out([("s", failed)], "t")
    assert [(gap.row.worker, gap.start_s, gap.end_s, gap.words) for gap in scene.gaps] == [("0/0", 3, 7, "failed")]


def test_work_in_vain_is_known(failed: Timeline) -> None:
    """Lost are the spans of the try that was broken off; a step after the commit that ends an epoch makes no loss."""
    lost = [bar.span for bar in lay_out([("s", failed)], "t").bars if bar.lost]
    assert [(span.worker, span.start_s) for span in lost] == [("0/0", 2), ("1/0", 2)]


def test_events_of_a_moment_are_one_mark(failed: Timeline) -> None:
    """A failure and the epoch that it leads to are said together."""
    words = [mark.words for mark in lay_out([("s", failed)], "t").marks if mark.is_event]
    assert words[0] == "failure 0/0: connection closed; epoch: 2, from iteration 1 on"
    assert len(words) == 2


def test_words_do_not_stand_on_each_other() -> None:
    """Marks close to each other get lines of their own; with no line left a mark goes without words."""
    events = tuple(Event(n / 100, "failure", "0/0", "connection closed") for n in range(MARK_LINES + 1))
    scene = lay_out([("s", Timeline("simulated", (Span("0/0", "F0", 0, 9),), events=events))], "t")
    assert [mark.level for mark in scene.marks] == [*range(MARK_LINES), None]
    assert scene.mark_lines == MARK_LINES


def test_words_at_the_end_stand_before_their_mark() -> None:
    """What would not fit at the right stands at the left."""
    timeline = Timeline("simulated", (Span("0/0", "F0", 0, 9),), events=(Event(8.9, "failure", "0/0", "x" * 30),))
    (mark,) = lay_out([("s", timeline)], "t").marks
    assert mark.is_late


def test_events_are_said_where_iterations_are_many() -> None:
    """Of many marks only events are said in words."""
    spans = tuple(Span("0/0", "F0", n, n + 1, n) for n in range(2 * FEW_MARKS))
    timeline = Timeline("simulated", spans, events=(Event(3.5, "failure", "0/0"),))
    said = [mark.words for mark in lay_out([("s", timeline)], "t").marks if mark.level is not None]
    assert said == ["failure 0/0"]


def test_a_new_epoch_drops_the_memory(failed: Timeline) -> None:
    """What was held for the broken try is dropped with it."""
    curves = memory_curves(failed)
    assert (3, 0) in curves["0/0"]
    assert (3, 0) in curves["1/0"]


def test_pictures_say_it(failed: Timeline) -> None:
    """SVG and HTML both show the gap, the pale bars and the marks, with words to point at."""
    root = ElementTree.fromstring(gantt_svg([("simulated", failed)], "t"))
    svg = "{http://www.w3.org/2000/svg}"
    tips = [node.text or "" for node in root.iter(f"{svg}title")]
    assert "worker 0/0 failed at 3 s" in tips
    assert sum("in vain" in tip for tip in tips) == 2
    assert sum(group.get("opacity") is not None for group in root.iter(f"{svg}g")) == 2
    assert "failed" in [node.text for node in root.iter(f"{svg}text")]
    page = gantt_html([("simulated", failed)], "t").replace("\\u002f", "/")
    assert "worker 0/0 failed at 3 s" in page
    assert "in vain: done again later" in page
    assert "failure 0/0: connection closed; epoch: 2, from iteration 1 on" in page
