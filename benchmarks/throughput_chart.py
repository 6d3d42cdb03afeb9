"""Iterations a second over time of one or more runs, from their `--metrics`, marked where something happened.

`python benchmarks/throughput_chart.py NAME=RUN.jsonl… -o OUT.html [--by iteration]`

A Timeline (of `rtk run` or `rtk simulate --inject`) is taken as well, ending in `.json` or `.json.gz`. An iteration's
time is that from the end of the one before to its own, so what was lost counts. Runs are drawn one below the other over
the same axis; with `--by iteration` it counts iterations, so that runs that take unlike long, or a simulated and a
measured one, can be compared place by place.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rtk.schemas.documents import read_document
from rtk.schemas.timeline import Timeline

# What is marked, and how bad it is.
COLOURS = {
    "failure": "#b5301d",
    "fail": "#b5301d",
    "stop": "#b5301d",
    "broken_link": "#b5301d",
    "restart": "#b5301d",
    "examine": "#d9822b",
    "slow_link": "#d9822b",
    "slow_worker": "#d9822b",
    "slow_compute": "#d9822b",
    "epoch": "#2b5fa8",
    "join": "#3a7d44",
    "relief": "#3a7d44",
    "recover": "#3a7d44",
}


@dataclass(frozen=True)
class Point:
    """An iteration: its number, when it was done, and what it took, in s; what was lost before it included."""

    iteration: int
    done_s: float
    took_s: float


@dataclass(frozen=True)
class Mark:
    """Something that happened: when, before which iteration, what, and the words for it."""

    at_s: float
    iteration: int
    kind: str
    words: str


@dataclass(frozen=True)
class History:
    """A run as it is drawn, counted from its beginning."""

    name: str
    points: tuple[Point, ...]
    marks: tuple[Mark, ...]


def history(name: str, path: str) -> History:
    """A run's metrics, or its timeline."""
    if path.removesuffix(".gz").endswith(".json"):
        return _of_timeline(name, read_document(path, Timeline))
    return _of_metrics(name, [json.loads(line) for line in Path(path).read_text().splitlines()])


def _of_metrics(name: str, events: list[dict[str, Any]]) -> History:
    """The last run in a metrics file, to which several may have been appended; one that started again is one run."""
    kinds = [one["event"] for one in events]
    ends = [number for number, kind in enumerate(kinds) if kind == "end"]
    starts = [number for number, kind in enumerate(kinds) if kind == "start"]
    starts = [
        number for number in starts if "restart" not in kinds[max((n for n in ends if n < number), default=0) : number]
    ]
    events = events[starts[-1] :] if starts else events
    origin_s = next((one["unix_time_s"] for one in events if one["event"] == "epoch"), events[0]["unix_time_s"])
    done = [(one["iteration"], one["unix_time_s"] - origin_s) for one in events if one["event"] == "iteration"]
    marks = (
        Mark(one["unix_time_s"] - origin_s, one.get("iteration") or 0, one["event"], _words(one))
        for one in events
        if one["event"] in COLOURS and (one["event"] != "epoch" or one["epoch"] > 1)
    )
    return History(name, _points(done), tuple(marks))


def _of_timeline(name: str, timeline: Timeline) -> History:
    ends_s: dict[int, float] = {}
    for span in timeline.spans:
        ends_s[span.iteration] = max(span.end_s, ends_s.get(span.iteration, 0.0))
    done = sorted(ends_s.items())
    marks = (
        Mark(event.time_s, sum(end_s <= event.time_s for _, end_s in done), event.kind, event.message)
        for event in timeline.events
        if event.kind in COLOURS
    )
    return History(name, _points(done), tuple(marks))


def _points(done: Iterable[tuple[int, float]]) -> tuple[Point, ...]:
    points, before_s = [], 0.0
    for iteration, done_s in done:
        points.append(Point(iteration, done_s, done_s - before_s))
        before_s = done_s
    return tuple(points)


def _words(fields: dict[str, Any]) -> str:
    match fields["event"]:
        case "slow_link":
            return f"link {fields['link']} is slow: {1000 * fields['delay_s']:.3g} ms"
        case "slow_worker":
            return f"worker {fields['worker']} is slow: {fields['factor']:.3g} times as long as planned"
        case "relief" | "broken_link":
            who = f"link {fields['link']}" if fields.get("link") else f"worker {fields['worker']}"
            return f"{who} is {'broken' if fields['event'] == 'broken_link' else 'well again'}"
        case "epoch":
            return f"epoch {fields['epoch']}"
        case "restart":
            return str(fields["reason"])
        case "examine":
            return ", ".join(fields["workers"])
    return f"{fields['event']} {fields.get('worker', '')}"


def chart(histories: list[History], by_iteration: bool) -> go.Figure:
    """The runs below each other: iterations a second as steps, and a line where something happened."""
    figure = make_subplots(
        rows=len(histories), shared_xaxes=True, shared_yaxes="all", subplot_titles=[one.name for one in histories]
    )
    for row, one in enumerate(histories, start=1):
        _draw(figure, row, one, by_iteration)
        figure.update_yaxes(title="iterations / s", rangemode="tozero", row=row)
    totals = ", ".join(f"{one.name} {one.points[-1].done_s:.1f} s" for one in histories if one.points)
    title = f"Throughput over time; {len(histories[0].points)} iterations take: {totals}"
    figure.update_layout(title=title, template="none", showlegend=False, height=120 + 260 * len(histories))
    figure.update_xaxes(title="iteration" if by_iteration else "seconds since the start", row=len(histories))
    return figure


def _draw(figure: go.Figure, row: int, one: History, by_iteration: bool) -> None:
    points = [point for point in one.points if point.took_s > 0]
    figure.add_scatter(
        x=[point.iteration if by_iteration else point.done_s for point in points],
        y=[1 / point.took_s for point in points],
        customdata=[(point.iteration, 1000 * point.took_s) for point in points],
        hovertemplate="iteration %{customdata[0]}: %{customdata[1]:.1f} ms<extra></extra>",
        line={"shape": "hv" if by_iteration else "vh", "color": "#333", "width": 1.5},
        name=one.name,
        row=row,
        col=1,
    )
    at: dict[float, list[Mark]] = {}
    for mark in one.marks:
        at.setdefault(mark.iteration if by_iteration else round(mark.at_s, 3), []).append(mark)
    for where, marks in at.items():
        figure.add_vline(where, line_dash="dot", line_width=1, line_color=COLOURS[marks[0].kind], row=row, col=1)
    figure.add_scatter(
        x=list(at),
        y=[0] * len(at),
        mode="markers",
        marker={"symbol": "triangle-up", "size": 9, "color": [COLOURS[marks[0].kind] for marks in at.values()]},
        text=["<br>".join(f"{mark.kind}: {mark.words}" for mark in marks) for marks in at.values()],
        hovertemplate="%{text}<extra></extra>",
        row=row,
        col=1,
    )


def main() -> None:
    """Draw the chart."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=FILE")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--by", choices=("time", "iteration"), default="time")
    arguments = parser.parse_args()
    named = [(name, path) for name, _, path in (one.rpartition("=") for one in arguments.runs)]
    histories = [history(name or Path(path).name, path) for name, path in named]
    chart(histories, arguments.by == "iteration").write_html(arguments.output)


if __name__ == "__main__":
    main()
