"""The Gantt chart in text."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from rtk.schemas.timeline import Event, Timeline
from rtk.viz.terminal import terminal_gantt


def plain(timeline: Timeline, width: int) -> list[str]:
    return terminal_gantt(timeline, width).plain.splitlines()


def test_rows_read_without_colours(small: Timeline) -> None:
    """Each operation shows its letter, its micro-batch and its length; bubbles are dots."""
    assert plain(small, 5 + 36)[1] == "0/0 F0──F1──····I0══W0┈┈B1━━━━━━AR~~S+++"


def test_axis_legend_and_events(small: Timeline) -> None:
    """Beneath stand the time axis with its unit, what the letters mean, and the events."""
    lines = plain(small, 80)
    assert lines[2].lstrip().startswith("╵0") and lines[2].endswith(" s")
    assert {"F── forward", "··· idle"} <= {entry.strip() for line in lines for entry in line.split("   ")}
    assert lines[-1] == "! 2.5 s  slow_compute 0/0: factor 2 <since> now"


def test_rerouted_micro_batches_show(rerouted: Timeline) -> None:
    """A re-routed operation carries its pipeline where there is room, and a lower-case letter where not."""
    assert "F1.2" in plain(rerouted, 160)[6]
    assert "f" in plain(rerouted, 50)[6]
    assert any("re-routed" in line for line in plain(rerouted, 160))


def test_a_failed_worker_keeps_an_empty_line(rerouted: Timeline) -> None:
    """A worker without spans has a line without dots: it is not idle, it is not there."""
    assert plain(rerouted, 80)[4].strip() == "1/1"


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_no_line_of_the_legend_ends_in_blanks(rerouted: Timeline, width: int) -> None:
    """However many lines the legend takes, none ends in blanks, and none is wider than the terminal."""
    lines = plain(rerouted, width)
    legend = [line for line in lines if ("forward" in line and "──" in line) or "idle" in line]
    assert legend
    assert [line for line in lines if line != line.rstrip() and "──" in line] == []
    assert max(map(len, legend)) <= width


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_rows_fit_the_width(rerouted: Timeline, width: int) -> None:
    """No row and no axis is wider than the terminal."""
    assert max(map(len, plain(rerouted, width)[1:8])) <= width


def test_operations_too_short_are_counted(small: Timeline) -> None:
    """What is shorter than a column is not drawn, and said."""
    spans = (*small.spans, replace(small.spans[-1], start_s=9, end_s=9.01))
    assert "1 operations are shorter than a column and not shown" in plain(replace(small, spans=spans), 40)


def test_many_events_are_cut(small: Timeline) -> None:
    """Of many events the first are listed and the rest counted."""
    events = tuple(Event(float(n), "fail") for n in range(15))
    assert plain(replace(small, events=events), 80)[-1] == "! and 5 more events"


def test_colours_follow_the_console(small: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """With colours the bars have grounds; with NO_COLOR none is printed."""

    def printed() -> str:
        file = StringIO()
        Console(file=file, force_terminal=True, color_system="truecolor", width=60).print(terminal_gantt(small, 60))
        return file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "48;2;86;180;233" in printed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "48;2" not in printed()


def test_an_empty_timeline() -> None:
    """A timeline without spans is said to be empty."""
    assert plain(Timeline("simulated", ()), 80)[0] == "simulated · no operations"
