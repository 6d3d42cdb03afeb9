"""Timelines as a plotly figure, for notebooks, and as a page with plotly in it."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from plotly.graph_objects import Bar as BarTrace
from plotly.graph_objects import Figure, Scatter

from ..schemas.quantities import print_bytes, print_time
from .facts import Labelled, Mark
from .gantt import GUIDE, TINT
from .scene import Bar, Curve, Row, Scene, lay_out, operation_of, place_words, print_peaks
from .style import (
    AGAIN_FRAME,
    AGAIN_GROUND,
    ALARM,
    FAINT,
    FONTS,
    GONE,
    GRID,
    GROUND,
    IDLE,
    INK,
    LOOKS,
    LOST_OPACITY,
    curve_colour,
    legend_of,
    page,
)

ROW_PIXELS, BAND_PIXELS = 26, 34
MARK_LINE = 0.55  # of a row
BAND_SHARE = 0.75
MARGIN_PIXELS = {"l": 20, "r": 30, "t": 70, "b": 60}
PANEL_GAP_PIXELS = 46
OWN = ("Stacked", "Keys", "Search")  # what only our own page has
# Beyond this many bars a row the white edges would cover the bars; and beyond this many in all, a browser takes half a
# minute to fit their numbers, of which none could be read: pointing at a bar still says them.
EDGED_BARS, NUMBERED_BARS = 200, 6000


def plotly_html(timelines: Sequence[Labelled], title: str) -> str:
    """Draw timelines as one HTML page with plotly in it, which needs no network; arguments as for `figure_of`."""
    scene = lay_out(timelines, title)
    chart = _figure(scene).to_html(
        full_html=False,
        include_plotlyjs=True,
        div_id="rtk-gantt",
        config={"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]},
    )
    guide = [*GUIDE, TINT] if scene.chunks else GUIDE
    return page(scene.title, scene.facts, chart, [one for one in guide if one[0] not in OWN])


def figure_of(timelines: Sequence[Labelled], title: str = "") -> Figure:
    """Draw timelines as a plotly figure.

    Args:
        timelines: labels and timelines; several are laid over each other, one row a worker and timeline.
        title: stands above the figure; it is amended where more than 30 000 operations would have to be drawn.
    """
    scene = lay_out(timelines, title)
    figure = _figure(scene)
    return figure.update_layout(title={"text": escape(scene.title)}) if scene.title else figure


def _figure(scene: Scene) -> Figure:
    traces = [_idle(scene), *_gone(scene), *(_bars(scene, kind) for kind in scene.kinds())]
    if any(bar.rerouted for bar in scene.bars):
        traces.append(
            BarTrace(
                name="re-routed from pipeline k: k.j",
                orientation="h",
                x=[None],
                y=[None],
                marker={"color": "white", "line": {"color": INK, "width": 1}, "pattern": {**_HATCH, "shape": "/"}},
                legendrank=2001,
            )
        )
    traces += [*_chunks(scene), *_marks(scene), *_memory(scene)]
    return Figure(traces, _layout(scene))


def _idle(scene: Scene) -> BarTrace:
    """The light ground of each row: what no bar covers is idle."""
    rows = [row for row in scene.rows if row.busy]
    return BarTrace(
        name="idle (bubble)",
        orientation="h",
        x=[scene.unit.of(row.end_s) for row in rows],
        y=[_middle(row) for row in rows],
        width=LOOKS["F"].height,
        marker={"color": IDLE, "line": {"width": 0}},
        hoverinfo="skip",
        legendrank=2000,
    )


def _gone(scene: Scene) -> list[BarTrace]:
    """The times that workers are not there."""
    if not scene.gaps:
        return []
    unit = scene.unit
    gone = BarTrace(
        name="worker not there",
        orientation="h",
        base=[unit.of(gap.start_s) for gap in scene.gaps],
        x=[unit.of(gap.end_s - gap.start_s) for gap in scene.gaps],
        y=[_middle(gap.row) for gap in scene.gaps],
        width=LOOKS["F"].height,
        text=[gap.words for gap in scene.gaps],
        textposition="inside",
        insidetextanchor="start",
        textangle=0,
        textfont={"color": ALARM},
        marker={"color": GONE, "line": {"width": 0}},
        hovertext=[gap.tip for gap in scene.gaps],
        hoverinfo="text",
        legendrank=2000,
    )
    return [gone]


def _bars(scene: Scene, kind: str) -> BarTrace:
    bars = [bar for bar in scene.bars if bar.kind == kind]
    unit, look = scene.unit, LOOKS[kind]
    rows = sum(row.busy for row in scene.rows)
    marker: dict[str, Any] = {
        "color": [bar.colour for bar in bars] if scene.chunks else look.colour,
        "line": {"color": "white", "width": 1 if len(scene.bars) <= EDGED_BARS * rows else 0},
    }
    if any(bar.lost for bar in bars):
        marker["opacity"] = [LOST_OPACITY if bar.lost else 1 for bar in bars]
    if any(bar.again for bar in bars):
        marker["color"] = [AGAIN_GROUND if bar.again else bar.colour for bar in bars]
        marker["line"] = {
            "color": [bar.colour if bar.again else "white" for bar in bars],
            "width": [AGAIN_FRAME if bar.again else 1 for bar in bars],
        }
    if any(bar.rerouted for bar in bars):
        marker["pattern"] = {**_HATCH, "shape": ["/" if bar.rerouted else "" for bar in bars]}
    return BarTrace(
        name=legend_of(kind),
        orientation="h",
        base=[unit.of(bar.span.start_s) for bar in bars],
        x=[unit.of(bar.span.end_s - bar.span.start_s) for bar in bars],
        y=[sum(bar.across(look.height)) / 2 if bar.half else _middle(bar.row) for bar in bars],
        width=[look.height / (2 if bar.half else 1) for bar in bars] if any(bar.half for bar in bars) else look.height,
        text=[bar.label for bar in bars] if len(scene.bars) <= NUMBERED_BARS else None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"color": INK},
        marker=marker,
        customdata=[_hover(bar) for bar in bars],
        hovertemplate="<b>%{customdata[0]}</b>  %{customdata[1]}<br>worker %{customdata[2]}<br>"
        "start %{customdata[3]}<br>end %{customdata[4]}<br>takes %{customdata[5]}<br>"
        "iteration %{customdata[6]}<extra></extra>",
    )


_HATCH = {"fillmode": "overlay", "fgcolor": INK, "fgopacity": 0.45, "size": 7, "solidity": 0.12}


def _hover(bar: Bar) -> list[str]:
    span = bar.span
    operation = operation_of(span.worker, span.op)
    words = LOOKS[bar.kind].words
    if operation is not None:
        words += f" of micro-batch {operation.pipeline}.{operation.microbatch}" + (
            ", re-routed" if bar.rerouted else ""
        )
    if bar.again:
        words += ", again: for its message alone"
    return [
        span.op,
        words,
        f"{span.worker} ({place_words(span)})",
        print_time(span.start_s),
        print_time(span.end_s),
        print_time(span.end_s - span.start_s),
        f"{span.iteration}, in vain: done again later" if bar.lost else str(span.iteration),
    ]


def _chunks(scene: Scene) -> Iterator[BarTrace]:
    """What the tints mean: entries of the legend alone."""
    for chunk, words in enumerate(scene.chunks):
        marker = {"color": scene.tints(chunk)[0]} if scene.tints(chunk) else {}
        yield BarTrace(name=words, orientation="h", x=[None], y=[None], marker=marker, legendrank=2001)


def _marks(scene: Scene) -> list[Scatter]:
    """Vertical lines: events, and the beginnings of iterations."""
    traces = []
    for is_event, name, colour in ((True, "event", ALARM), (False, "iteration begins", FAINT)):
        marks = [mark for mark in scene.marks if mark.is_event == is_event]
        if not marks:
            continue
        places = [scene.unit.of(mark.time_s) for mark in marks]
        traces.append(
            Scatter(
                name=name,
                x=[x for place in places for x in (place, place, None)],
                y=[y for mark in marks for y in (_mark_top(mark), scene.height, None)],
                mode="lines+markers",
                legendgroup=name,
                line={"color": colour, "width": 1.5 if is_event else 1, "dash": "solid" if is_event else "dot"},
                marker={"symbol": "triangle-down", "size": [10 if is_event else 5, 0, 0] * len(places)},
                hovertext=[
                    text
                    for mark in marks
                    for text in [f"{print_time(mark.time_s)}: {'<br>'.join(map(escape, mark.said))}"] * 3
                ],
                hoverinfo="text",
                legendrank=2002,
            )
        )
        traces += _mark_words(scene, [mark for mark in marks if mark.level is not None], name, colour)
    return traces


def _mark_words(scene: Scene, marks: list[Mark], group: str, colour: str) -> list[Scatter]:
    """The words of marks: a trace of its own, for of one with lines Plotly leaves some words out."""
    if not marks:
        return []
    words = Scatter(
        x=[scene.unit.of(mark.time_s) for mark in marks],
        y=[_mark_top(mark) for mark in marks],
        mode="text",
        text=[f"{escape(mark.short)}   " if mark.is_late else f"   {escape(mark.short)}" for mark in marks],
        textposition=[f"middle {'left' if mark.is_late else 'right'}" for mark in marks],
        textfont={"color": colour, "size": 11},
        cliponaxis=False,
        hoverinfo="skip",
        legendgroup=group,
        showlegend=False,
    )
    return [words]


def _mark_top(mark: Mark) -> float:
    if mark.level is None and not mark.is_event:
        return 0.0  # the line of words is for words
    return -0.35 - MARK_LINE * (mark.level or 0)


def _memory(scene: Scene) -> list[Scatter]:
    """A band for each worker, all to one scale, with its curves and its limit."""
    scale = BAND_SHARE / scene.memory_scale()
    traces, limits = [], []
    for band, curves in enumerate(scene.memory_bands().values(), start=1):
        ends = [0, scene.unit.of(scene.end_s)]
        line = {"color": GROUND, "width": 1}
        traces.append(
            Scatter(yaxis="y2", x=ends, y=[-band] * 2, mode="lines", line=line, hoverinfo="skip", showlegend=False)
        )
        traces += [_curve(scene, curve, -band, scale) for curve in curves]
        limit = curves[0].limit_bytes
        if limit is not None:
            limits.append(scale * limit - band)
    if limits:
        traces.append(
            Scatter(
                name="memory limit",
                yaxis="y2",
                x=[x for _ in limits for x in (0, scene.unit.of(scene.end_s), None)],
                y=[y for height in limits for y in (height, height, None)],
                mode="lines",
                line={"color": ALARM, "width": 1.2, "dash": "dash"},
                hoverinfo="skip",
                legendrank=2004,
            )
        )
    return traces


def _curve(scene: Scene, curve: Curve, ground: float, scale: float) -> Scatter:
    several = len(scene.labels) > 1
    return Scatter(
        name=f"memory, {scene.labels[curve.timeline]}" if several else "memory",
        legendgroup=f"memory {curve.timeline}",
        showlegend=curve.worker == scene.curves[0].worker,
        legendrank=2003,
        yaxis="y2",
        x=[scene.unit.of(time_s) for time_s, _ in curve.points],
        y=[ground + scale * size for _, size in curve.points],
        mode="lines",
        line={"shape": "hv", "width": 1.2, "color": curve_colour(curve.timeline)},
        fill="tonexty" if curve.timeline == 0 else None,
        fillcolor="rgba(76, 86, 106, 0.22)",
        customdata=[[print_bytes(size), print_time(time_s)] for time_s, size in curve.points],
        hovertemplate=f"worker {curve.worker} holds %{{customdata[0]}}<br>from %{{customdata[1]}} on<extra></extra>",
    )


def _layout(scene: Scene) -> dict[str, Any]:
    bands = len(scene.memory_bands())
    top_rows = 0.9 + MARK_LINE * (scene.mark_lines - 1) if scene.marks else 0.1
    memory_pixels = bands * BAND_PIXELS + PANEL_GAP_PIXELS if bands else 0
    plot_pixels = (scene.height + top_rows) * ROW_PIXELS + memory_pixels
    layout = {
        "template": "plotly_white",
        "barmode": "overlay",
        "height": plot_pixels + MARGIN_PIXELS["t"] + MARGIN_PIXELS["b"],
        "margin": {**MARGIN_PIXELS, "r": MARGIN_PIXELS["r"] + 6.5 * scene.peaks_length()},
        "font": {"color": INK, "size": 12, "family": FONTS},
        "uniformtext": {"mode": "hide", "minsize": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1 + 8 / plot_pixels, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"align": "left"},
        "xaxis": {
            "title": {"text": f"time ({scene.unit.name})"},
            "range": [0, scene.unit.of(scene.end_s) or 1],
            "anchor": "y2" if (bands > 0) else "y",
            "showgrid": True,
            "gridcolor": GRID,
            "zeroline": False,
            "ticks": "outside",
        },
        "yaxis": {
            "domain": [memory_pixels / plot_pixels, 1],
            "range": [scene.height, -top_rows],
            "tickvals": [_middle(row) for row in scene.rows],
            "ticktext": [row.label for row in scene.rows],
            "title": {"text": "worker: pipeline/stage"},
            **_PLAIN_AXIS,
        },
    }
    return {**layout, **_memory_layout(scene, (memory_pixels - PANEL_GAP_PIXELS) / plot_pixels)} if bands else layout


_TICK_GAP = {"ticks": "outside", "ticklen": 6, "tickcolor": "rgba(0, 0, 0, 0)"}
_PLAIN_AXIS = {"fixedrange": True, "showgrid": False, "zeroline": False, "automargin": True, **_TICK_GAP}


def _memory_layout(scene: Scene, top: float) -> dict[str, Any]:
    """The second panel, up to the share `top` of the height: a band a worker, its peak at the right."""
    bands = scene.memory_bands()
    middles = [-band - 0.6 for band in range(len(bands))]
    axis = {
        "domain": [0, top],
        "range": [-len(bands) - 0.1, 0],
        "tickvals": middles,
        "ticktext": list(bands),
        "title": {"text": "memory of worker"},
        **_PLAIN_AXIS,
    }
    side = {"xref": "paper", "x": 1.005, "xanchor": "left", "yref": "y2", "yanchor": "middle", "showarrow": False}
    notes = [
        {**side, "y": middle, "text": print_peaks(curves), "font": {"size": 11, "color": FAINT}}
        for middle, curves in zip(middles, bands.values(), strict=True)
    ]
    heading = "<b>Memory</b> held for micro-batches under way, all workers to one scale"
    place = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "paper", "y": top, "yanchor": "bottom"}
    return {"yaxis2": axis, "annotations": [*notes, {**place, "text": heading, "showarrow": False}]}


def _middle(row: Row) -> float:
    return row.top + 0.5
