"""Timelines with failures: what was kept and what was in vain, in pictures, in memory curves and in words."""

import zlib

import numpy as np
import pytest

from rtk.schemas.columns import TimelineColumns, columns_of, timeline_from
from rtk.schemas.timeline import Event, Span, Timeline, WorkerMemory
from rtk.viz.chrome import trace_pieces
from rtk.viz.facts import lost_of, resumed_at_s
from rtk.viz.memory import memory_curves
from rtk.viz.pack import AGAIN, FED, LOST, PART, pack
from rtk.viz.painter import Boxes
from rtk.viz.recoveries import recoveries_of, words_of_recoveries
from rtk.viz.scene import lay_out
from rtk.viz.style import AGAIN_GROUND
from rtk.viz.terminal import terminal_gantt
from rtk.viz.timeline import timelines_picture

from ..resumptions import killed
from .pictures import texts, tips

# In iteration 1 worker 1/0 dies at 4 s. 0/0 has done its own micro-batch 0, and F of 1; 1.0 is done again.
SPANS = (
    Span("0/0", "F0", 0, 1, 1),
    Span("0/0", "B0", 1, 2, 1),
    Span("0/0", "F1", 2, 3, 1),
    Span("1/0", "F0", 0, 1, 1),
    Span("1/0", "B0", 1, 2, 1),
    Span("0/0", "B1", 5, 6, 1),
    Span("0/0", "F0~", 6, 7, 1),
    Span("0/0", "F1.0:0-1", 7, 8, 1),
    Span("0/0", "B1.0:0-1", 8, 9, 1),
    Span("0/0", "step", 9, 10, 1),
)
EPOCH = (Event(4, "failure", "1/0", "connection closed"), Event(4, "epoch", None, "2, from iteration 1 on"))
RESUME = Event(4, "resume", None, "iteration 1 goes on")
MEMORY = (WorkerMemory("0/0", 10.0), WorkerMemory("1/0", 10.0))


def _timeline(*events: Event) -> Timeline:
    return Timeline("simulated", tuple(sorted(SPANS, key=lambda span: span.start_s)), MEMORY, events)


RESUMED, REDONE = _timeline(*EPOCH, RESUME), _timeline(*EPOCH)


def _lost(timeline: Timeline) -> list[tuple[str, str]]:
    columns = columns_of(timeline)
    return [(columns.names[columns.worker[row]], columns.op(row)) for row in np.flatnonzero(lost_of(columns))]


def test_only_what_is_begun_again_was_in_vain() -> None:
    """An iteration that is gone on with keeps what was done; one that is not keeps nothing."""
    assert resumed_at_s(columns_of(RESUMED)) == {4}
    assert sorted(_lost(RESUMED)) == [("1/0", "B0"), ("1/0", "F0")]
    assert sorted(_lost(REDONE)) == [("0/0", "B0"), ("0/0", "F0"), ("0/0", "F1"), ("1/0", "B0"), ("1/0", "F0")]


def test_suffixes_stay_with_their_spans() -> None:
    """Parts of stages, and what is run for messages alone, are the same operations, and say so."""
    columns = columns_of(RESUMED)
    assert timeline_from(columns).spans == RESUMED.spans
    assert [columns.op(row) for row in np.flatnonzero(columns.is_again)] == ["F0~"]
    assert timeline_from(columns.taken(columns.is_rerouted)).spans == tuple(s for s in RESUMED.spans if "1.0" in s.op)


def test_memory_of_what_is_gone_on_with_is_held() -> None:
    """A stash is held over the epoch; what is run for its message alone is freed at its end."""
    points = dict(memory_curves(RESUMED)["0/0"])
    assert (points[4], points[6], points[7], points[9]) == (10, 10, 10, 0)
    assert dict(memory_curves(REDONE)["0/0"])[4] == 0
    assert memory_curves(RESUMED)["1/0"][-1][1] == 0


def test_all_pictures_tell_them_apart() -> None:
    """Pale: in vain; framed: run again for its message alone; everything else as ever."""
    scene = lay_out([("s", RESUMED)], "t")
    assert [bar.span.op for bar in scene.bars if bar.again] == ["F0~"]
    assert [bar.label for bar in scene.bars if bar.rerouted] == ["1.0:0-1", "1.0:0-1"]
    picture = timelines_picture([("s", RESUMED)], "t")
    boxes = [box for artist in picture.figure.findobj(Boxes) for box in artist.boxes if box.tip]
    assert [box.colour for box in boxes if box.edge] == [AGAIN_GROUND]
    assert sum(box.opacity < 1 for box in boxes) == 2
    assert {"pale: in vain, it was done again", "framed: run again for its message alone"} <= set(texts(picture))
    assert any("again: for its message alone" in tip for tip in tips(picture))
    assert "F2~: run again for its message alone" in terminal_gantt(RESUMED, 80, "s").plain
    assert '"name":"F1.0:0-1"' in "".join(trace_pieces([("s", columns_of(RESUMED))]))


def test_pages_know_them() -> None:
    """The data of a page has a flag for each, and the suffixes."""
    columns = columns_of(RESUMED)
    fed = TimelineColumns(**{**vars(columns), "is_fed": np.arange(len(columns)) == 3})
    data = zlib.decompress(pack([("s", fed)]))
    length = int.from_bytes(data[:4], "little")
    flags = data[4 + length + len(columns) : 4 + length + 2 * len(columns)]
    counts = {flag: sum(bool(one & flag) for one in flags) for flag in (LOST, AGAIN, PART, FED)}
    assert counts == {LOST: 2, AGAIN: 1, PART: 3, FED: 1}
    assert b'"suffixes":["","~",":0-1"]' in data and b'"drops":[[4,true]]' in data


def test_a_recovery_is_told_event_by_event() -> None:
    """When whom was lost, what was under way, what was kept and what in vain, who ran what, and when all was done."""
    (told,) = recoveries_of(RESUMED)
    assert (told.iteration, told.resumed, told.broken_s, told.done_s) == (1, True, 4, 10)
    assert (told.kept, told.in_vain, told.in_vain_s, told.again) == (3, 2, 2.0, 1)
    assert told.iterations is None, "no iteration follows to compare with"
    words = words_of_recoveries((told,))
    for said in (
        "Iteration 1 was broken off and was gone on with",
        "failure 1/0: connection closed",
        "had begun 4 s before; of its operations 5 had been begun, 2 by 1/0",
        "kept: 3 forward and backward passes; in vain: 2 (2 of 1/0), 2 s of work",
        "1 s later the first operation begins: B1 of 0/0",
        "run from here on: 0/0 4 (2 re-routed and 1 again for messages alone)",
        "iteration 1 is done, 6 s after the first loss",
    ):
        assert said in words


def test_a_redo_is_told_as_one() -> None:
    """An iteration that was done anew says so; a timeline without failures has nothing to tell."""
    (told,) = recoveries_of(REDONE)
    assert (told.resumed, told.kept, told.in_vain) == (False, 0, 5)
    assert "Iteration 1 was broken off and was done anew" in words_of_recoveries((told,))
    assert words_of_recoveries(recoveries_of(_timeline())) == "No iteration of this timeline was broken off."


def test_simulated_jobs_tell_what_they_save() -> None:
    """The resumed iteration keeps the survivors' work, and is done sooner than the one that is done anew."""
    (resumed,), (redone,) = recoveries_of(killed().timeline), recoveries_of(killed(0.0).timeline)
    assert (resumed.resumed, redone.resumed) == (True, False)
    assert redone.kept == 0 < resumed.kept
    assert resumed.in_vain + resumed.kept == redone.in_vain
    assert resumed.iterations is not None and redone.iterations is not None
    assert resumed.iterations < 0.7 < 1.0 <= redone.iterations


@pytest.mark.parametrize("ahead", [0, 1])
def test_work_ahead_of_a_broken_iteration_is_told(ahead: int) -> None:
    """With a staggered optimizer others are an iteration ahead: that work is in vain."""
    more = (Span("0/0", "F0", 3, 4, 2), Span("0/0", "F0", 10, 11, 2), Span("0/0", "B0", 11, 12, 2))
    spans = tuple(sorted((*SPANS, *(more if ahead else ())), key=lambda span: span.start_s))
    (told,) = recoveries_of(Timeline("simulated", spans, MEMORY, (*EPOCH, RESUME)))
    said = "of the iterations after it 1 operation had been run ahead, in vain"
    assert (said in words_of_recoveries((told,))) == bool(ahead)
