"""Timelines as a still picture: a Gantt chart with memory bands, for papers and pull requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from ..schemas.quantities import print_number, print_time, ticks, time_unit
from .facts import Labelled, facts_of_all
from .painter import LINE, PAD, WIDTH, Picture, Sheet, painting, time_axis
from .scene import Bar, Scene, lay_out, print_peaks, with_room
from .style import (
    AGAIN_FRAME,
    AGAIN_GROUND,
    AGAIN_WORDS,
    ALARM,
    FAINT,
    FED_EDGE,
    FED_WORDS,
    GONE,
    GROUND,
    IDLE,
    INK,
    LOOKS,
    LOST_OPACITY,
    PALE,
    PALE_WORDS,
    DrawnBox,
    curve_colour,
    legend_of,
    measured,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW, BAND, MARK_LINE = 24, 30, 15
ROW_SHARE = 20 / 24  # of a row that its ground covers
BAND_SHARE = 0.75  # of a band that the largest size takes
LONGEST_NAME = 380.0


@dataclass(frozen=True, slots=True)
class _Chart:
    """A scene on a sheet, and the pixels between which its time runs."""

    scene: Scene
    sheet: Sheet
    left: float
    right: float

    def x(self, time_s: float) -> float:
        """A time's place on the sheet."""
        return self.left + (self.right - self.left) * time_s / (self.scene.end_s or 1.0)

    def panel(self, height: float, upwards: tuple[float, float]) -> "Axes":
        """Axes of the same time."""
        return self.sheet.panel(height, self.left, self.right, (0.0, self.scene.end_s or 1.0), upwards)


@painting()
def timelines_picture(timelines: Sequence[Labelled], title: str) -> Picture:
    """Draw timelines as a still picture.

    Args:
        timelines: labels and timelines; several are laid over each other, one row a worker and timeline.
        title: stands above; it is amended where more than 30 000 operations would have to be drawn.
    """
    scene = lay_out(timelines, title)
    sheet = Sheet(scene.title)
    sheet.heading(scene.facts)
    entries = [(scene.colours(kind), legend_of(kind), False) for kind in scene.kinds()]
    entries += [(scene.tints(chunk), words, False) for chunk, words in enumerate(scene.chunks)]
    entries.append(((IDLE,), "idle (bubble)", False))
    if any(bar.rerouted for bar in scene.bars):
        entries.append((("white",), "k.j: micro-batch j re-routed from pipeline k", True))
    if any(bar.lost for bar in scene.bars):
        entries.append(((PALE,), PALE_WORDS, False))
    if any(bar.again for bar in scene.bars):
        entries.append(((AGAIN_GROUND,), AGAIN_WORDS, False))
    if any(bar.fed for bar in scene.bars):
        entries.append(((INK,), FED_WORDS, False))
    if scene.gaps:
        entries.append(((GONE,), "worker not there", False))
    if scene.curves and len(scene.labels) > 1:
        entries += [((curve_colour(index),), f"memory, {label}", False) for index, label in enumerate(scene.labels)]
    sheet.key(list(entries))
    names = max((measured(row.label) for row in scene.rows), default=0.0)
    notes = max((measured(print_peaks(curves)) + 8 for curves in scene.memory_bands().values()), default=0.0)
    last = measured(print_number(ticks(scene.unit.of(scene.end_s), 10)[-1])) / 2
    chart = _Chart(scene, sheet, PAD + 8 + min(names, LONGEST_NAME), WIDTH - PAD - max(notes, last))
    _draw_rows(chart)
    if scene.curves:
        _draw_memory(chart)
    sheet.y += 42
    return sheet.picture()


@painting()
def comparison_picture(timelines: Sequence[Labelled], title: str) -> Picture:
    """Draw timelines under each other on one time axis, each beneath its label and facts: to compare how plans go.

    Args:
        timelines: labels and timelines.
        title: stands above.
    """
    scenes = [lay_out([one], "") for one in timelines]
    told = facts_of_all(timelines)
    end_s = max((scene.end_s for scene in scenes), default=0.0) or 1.0
    sheet = Sheet(title)
    sheet.heading()
    kinds = dict.fromkeys(kind for kind in LOOKS for scene in scenes if kind in scene.kinds())
    most = max(scenes, key=lambda scene: len(scene.chunks))
    entries = [(most.colours(kind), legend_of(kind), False) for kind in kinds]
    sheet.key([*entries, ((IDLE,), "idle (bubble)", False)])
    left = PAD + 8 + max((measured(row.label) for scene in scenes for row in scene.rows), default=0.0)
    for (label, _), scene, fact in zip(timelines, scenes, told, strict=True):
        sheet.y += 14
        sheet.subtitle(label)
        sheet.facts([fact.removeprefix(f"{label}, ")])
        sheet.y += 6
        top = sheet.y
        panel = sheet.panel(scene.height * ROW, left, WIDTH - PAD, (0.0, end_s), (scene.height, 0.0))
        time_axis(panel, time_unit(end_s), end_s, 10, has_words=scene is scenes[-1])
        for row in scene.rows:
            sheet.words(left - 6, top + (row.top + 0.5) * ROW + 4, row.label, side="right")
        margin = (1 - ROW_SHARE) / 2
        rows = [row for row in scene.rows if row.busy]
        grounds = [DrawnBox(0.0, row.end_s, row.top + margin, row.top + 1 - margin, IDLE) for row in rows]
        sheet.boxes(panel, [*grounds, *map(_box, scene.bars)])
    sheet.y += 42
    return sheet.picture()


def _draw_rows(chart: _Chart) -> None:
    """The rows with their bars, times at which workers are not there, and marks with words above."""
    scene, sheet = chart.scene, chart.sheet
    marks = with_room(
        scene.marks, scene.end_s, lambda words: (measured(words) + 12) / (chart.right - chart.left) * scene.end_s
    )
    lines = max((mark.level + 1 for mark in marks if mark.level is not None), default=1)
    sheet.y += 6 + MARK_LINE * lines if marks else 4
    top = sheet.y
    panel = chart.panel(scene.height * ROW, (scene.height, 0.0))
    time_axis(panel, scene.unit, scene.end_s, 10, has_words=not scene.curves)
    for row in scene.rows:
        name = shortened(row.label, LONGEST_NAME)
        sheet.words(chart.left - 6, top + (row.top + 0.5) * ROW + 4, name, side="right")
    margin = (1 - ROW_SHARE) / 2
    grounds = [
        DrawnBox(0.0, row.end_s, row.top + margin, row.top + 1 - margin, IDLE) for row in scene.rows if row.busy
    ]  # fmt: skip
    gone = [
        DrawnBox(
            gap.start_s, gap.end_s, gap.row.top + margin, gap.row.top + 1 - margin, GONE, (gap.words,), ALARM, gap.tip,
            side="left",
        )
        for gap in scene.gaps
    ]  # fmt: skip
    sheet.boxes(panel, [*grounds, *gone, *map(_box, scene.bars)])
    for mark in marks:
        x, y = chart.x(mark.time_s), top - 6 - MARK_LINE * (mark.level or 0)
        start = y - 4 if mark.is_event or mark.level is not None else top  # the line of words is for words
        tip = f"{print_time(mark.time_s)}: " + "\n".join(mark.said)
        colour, width, dashes = (ALARM, 1.5, "-") if mark.is_event else (FAINT, 1.0, (0, (2, 3)))
        sheet.line([x, x], [start, sheet.y], colour, width, dashes, tip)
        if mark.level is not None:
            beside, side = (x - 4, "right") if mark.is_late else (x + 4, "left")
            sheet.words(beside, y, mark.short, colour, side)


def _box(bar: Bar) -> DrawnBox:
    """One operation, with its number and its times."""
    span, look = bar.span, LOOKS[bar.kind]
    tip = (
        f"{span.op} ({look.words}), worker {span.worker}, iteration {span.iteration}: {print_time(span.start_s)} to "
        f"{print_time(span.end_s)}, takes {print_time(span.end_s - span.start_s)}"
    ) + (", in vain: done again later" if bar.lost else ", again: for its message alone" if bar.again else "")
    tip += ", begins with a kept message, sent again" if bar.fed else ""
    tip += ", side by side with another" if bar.half else ""
    return DrawnBox(
        span.start_s, span.end_s, *bar.across(look.height),
        AGAIN_GROUND if bar.again else bar.colour, (bar.label,), tip=tip, hatched=bar.rerouted,
        opacity=LOST_OPACITY if bar.lost else 1.0, edge=bar.colour if bar.again else None, edge_width=AGAIN_FRAME,
        gap=0.5, notch=FED_EDGE if bar.fed else 0.0,
    )  # fmt: skip


def _draw_memory(chart: _Chart) -> None:
    """A band for each worker, all to one scale, with its curves, its limit and its peaks."""
    from matplotlib.collections import LineCollection, PolyCollection

    scene, sheet, bands = chart.scene, chart.sheet, chart.scene.memory_bands()
    sheet.y += LINE + 10
    sheet.words(chart.left, sheet.y, "Memory held for micro-batches under way, all workers to one scale")
    sheet.y += 8
    top, scale = sheet.y, BAND_SHARE / scene.memory_scale()
    panel = chart.panel(len(bands) * BAND, (len(bands), 0.0))
    time_axis(panel, scene.unit, scene.end_s, 10)
    corners: dict[int, list[list[tuple[float, float]]]] = {}
    limits = []
    for ground, (worker, curves) in enumerate(bands.items(), start=1):
        foot = top + ground * BAND - 6
        sheet.words(chart.left - 6, foot, worker, side="right")
        sheet.words(chart.right + 8, foot, print_peaks(curves), FAINT)
        for curve in curves:
            points = [(time_s, ground - scale * size) for time_s, size in curve.points]
            steps = [corner for (_, y), (x, after) in pairwise(points) for corner in ((x, y), (x, after))]
            corners.setdefault(curve.timeline, []).append(
                [(points[0][0], ground), points[0], *steps, (points[-1][0], ground)]
            )
        if curves[0].limit_bytes is not None:
            limits.append(ground - scale * curves[0].limit_bytes)
    panel.hlines(range(1, len(bands) + 1), 0.0, scene.end_s, color=GROUND, linewidth=1.0)
    for timeline, lines in corners.items():
        colour = curve_colour(timeline)
        if timeline == 0:  # filled down to where each curve begins and ends: the ground
            panel.add_collection(PolyCollection(lines, facecolors=colour, alpha=0.2, linewidths=0))
        panel.add_collection(LineCollection(lines, colors=colour, linewidths=1.0))
    panel.hlines(limits, 0.0, scene.end_s, color=ALARM, linewidth=1.0, linestyles=(0, (5, 4)))
