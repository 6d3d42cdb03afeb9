"""Pictures of a run in which workers fail: who is not there, what was done in vain, and what the marks say."""

import pytest

from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.viz.facts import MARK_CHARACTERS, MOST_SAID
from rtk.viz.figure import plotly_html
from rtk.viz.memory import memory_curves
from rtk.viz.painter import Boxes
from rtk.viz.scene import FEW_MARKS, MARK_LINES, lay_out
from rtk.viz.terminal import terminal_gantt
from rtk.viz.timeline import timelines_picture

from .pictures import texts, tips


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


@pytest.fixture
def reshaped() -> Timeline:
    """Pipeline 0 has three stages, and two in epoch 2; from epoch 3 on there is a pipeline 1."""
    epochs = [(0, ("0/0", "0/1", "0/2")), (10, ("0/0", "0/1")), (20, ("0/0", "0/1", "1/0"))]
    spans = tuple(Span(worker, "F0", start, start + 10, start // 10) for start, workers in epochs for worker in workers)
    events = (
        Event(10, "copy", "0/0", "layer 3 from 0/1"),
        Event(10, "copy", "0/1", "layers 4-5 from 0/2"),
        Event(10, "failure", "0/0", "connection closed"),
        Event(10, "epoch", None, "2, from iteration 1 on"),
        Event(10, "leave", "0/2", "worker 0/2 moves to 0/1"),
        Event(20, "epoch", None, "3, from iteration 2 on"),
    )
    return Timeline("simulated", spans, events=events)


def test_places_outside_a_plan_are_not_idle(reshaped: Timeline) -> None:
    """A place that an epoch's plan has not is no idle worker, whether an event says so or not."""
    gaps = lay_out([("s", reshaped)], "t").gaps
    assert [(gap.row.worker, gap.start_s, gap.end_s, gap.words) for gap in gaps] == [
        ("0/2", 10, 30, "left"),
        ("1/0", 0, 20, "not in the plan"),
    ]
    assert gaps[1].tip == "worker 1/0 not in the plan at 0 s, back at 20 s"


def test_the_absent_make_no_bubbles(reshaped: Timeline) -> None:
    """Bubbles are a share of the time that workers are there."""
    assert lay_out([("s", reshaped)], "t").facts[0].endswith("bubbles 0 %")


def test_the_absent_are_empty_in_the_terminal(reshaped: Timeline) -> None:
    """In text, too, who is not there is not idle."""
    lines = terminal_gantt(reshaped, 40).plain.splitlines()
    assert set(next(line for line in lines if line.startswith("0/2")).split()[-1]) <= set("F0─")
    assert "empty: the worker is not there" in lines


def test_consequences_are_said_last(reshaped: Timeline) -> None:
    """Of the events of a moment copies and moves come after the failure and the epoch that they follow from."""
    mark = next(mark for mark in lay_out([("s", reshaped)], "t").marks if mark.is_event)
    kinds = [part.split()[0].rstrip(":") for part in mark.parts]
    assert kinds == ["failure", "epoch", "copy", "copy", "leave"]
    assert len(mark.short) == MARK_CHARACTERS


def test_very_many_events_of_a_moment_are_counted() -> None:
    """Pointing at a mark does not fill the screen."""
    events = tuple(Event(1, "copy", "0/0", f"layer {n} from 1/0") for n in range(MOST_SAID + 5))
    (mark,) = lay_out([("s", Timeline("simulated", (Span("0/0", "F0", 0, 9),), events=events))], "t").marks
    assert mark.said[-1] == "and 5 more"
    assert len(mark.said) == MOST_SAID + 1


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
    """The still picture and HTML both show the gap, the pale bars and the marks, with words to point at."""
    picture = timelines_picture([("simulated", failed)], "t")
    found = tips(picture)
    assert "worker 0/0 failed at 3 s, back at 7 s" in found
    assert "3 s: failure 0/0: connection closed\nepoch: 2, from iteration 1 on" in found
    assert sum("in vain" in tip for tip in found) == 2
    pale = [box for artist in picture.figure.findobj(Boxes) for box in artist.boxes if box.opacity < 1]
    assert len(pale) == 2
    assert "failed" in texts(picture)
    page = plotly_html([("simulated", failed)], "t").replace("\\u002f", "/")
    assert "worker 0/0 failed at 3 s" in page
    assert "in vain: done again later" in page
    assert "failure 0/0: connection closed\\u003cbr\\u003eepoch: 2, from iteration 1 on" in page
