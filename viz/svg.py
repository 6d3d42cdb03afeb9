"""A Gantt chart with memory bands as one plain SVG image, for papers, pull requests and pages without scripts."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .looks import ALARM, FAINT, GONE, GROUND, IDLE, INK, LOOKS, LOST_OPACITY, PALE, curve_colour, legend_of
from .scene import Bar, Curve, Gap, Labelled, Row, Scene, lay_out, print_peaks
from .shapes import CHARACTER, PAD, WIDTH, heading, image, px, rect, text
from .units import print_number, print_time, ticks

ROW, BAND, LEGEND_LINE, MARK_LINE = 24, 30, 20, 14

_HATCH = (
    '<pattern id="hatch" width="6" height="6" patternTransform="rotate(45)" patternUnits="userSpaceOnUse">'
    f'<path d="M0 0V6" stroke="{INK}" stroke-opacity=".55" stroke-width="1.6"/></pattern>'
)


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the parts of the picture lie, in pixels."""

    scene: Scene
    left: float
    right: float
    top: float

    @property
    def bottom(self) -> float:
        return self.top + self.scene.height * ROW

    @property
    def memory_top(self) -> float:
        return self.bottom + 34

    def x(self, time_s: float) -> float:
        return self.left + (self.right - self.left) * time_s / (self.scene.end_s or 1.0)

    def y(self, row: Row) -> float:
        return self.top + row.top * ROW


def gantt_svg(timelines: Sequence[Labelled], title: str) -> str:
    """Draw timelines as an SVG image.

    Args:
        timelines: labels and timelines; several are laid over each other, one row a worker and timeline.
        title: stands above; it is amended where more than 30 000 operations would have to be drawn.

    Returns:
        The image's text; equal arguments give equal text.
    """
    scene = lay_out(timelines, title)
    head, key_top = heading(scene.title, scene.facts)
    key, key_height = _legend(scene, key_top)
    left = PAD + 8 + CHARACTER * max((len(row.label) for row in scene.rows), default=0)
    top = key_top + key_height + (6 + MARK_LINE * scene.mark_lines if scene.marks else 4)
    frame = _Frame(scene, left, WIDTH - PAD - CHARACTER * scene.peaks_length(), top)
    memory, end = _memory(frame)
    bars = (_bar(frame, bar) for bar in scene.bars)
    gaps = (_gap(frame, gap) for gap in scene.gaps)
    parts = [*head, *key, *_rows(frame), *_grid(frame, end), *gaps, *bars, *_marks(frame), *memory]
    return image(parts, scene.title, end + 42, _HATCH)


def _legend(scene: Scene, top: float) -> tuple[list[str], float]:
    """The key of colours, broken into lines, and its height."""
    entries = [(LOOKS[kind].colour, legend_of(kind), "") for kind in scene.kinds()]
    entries.append((IDLE, "idle (bubble)", ""))
    if any(bar.rerouted for bar in scene.bars):
        entries.append(("#fff", "k.j: micro-batch j re-routed from pipeline k", "r"))
    if any(bar.lost for bar in scene.bars):
        entries.append((PALE, "pale: in vain, the iteration was done again", ""))
    if scene.gaps:
        entries.append((GONE, "worker not there", ""))
    if scene.curves and len(scene.labels) > 1:
        entries += [(curve_colour(index), f"memory, {label}", "") for index, label in enumerate(scene.labels)]
    parts: list[str] = []
    x, y = float(PAD), top + 18
    for colour, words, hatch in entries:
        length = 18 + len(words) * CHARACTER + 18
        if x + length > WIDTH - PAD:
            x, y = float(PAD), y + LEGEND_LINE
        parts.append(rect(x, y - 9, 12, 11, colour) + (rect(x, y - 9, 12, 11, None, hatch) if hatch else ""))
        parts.append(text(x + 17, y, words))
        x += length
    return parts, y - top + 12


def _grid(frame: _Frame, end: float) -> list[str]:
    """Round times: a line through all panels and a number beneath."""
    unit = frame.scene.unit
    parts = []
    for value in ticks(unit.of(frame.scene.end_s), 10):
        x = px(frame.x(value / unit.per_second))
        parts.append(f'<path class="g" d="M{x} {px(frame.top)}V{px(end + 4)}"/>')
        parts.append(text(float(x), end + 17, print_number(value), "m"))
    parts.append(text((frame.left + frame.right) / 2, end + 34, f"time ({unit.name})", "m"))
    return parts


def _rows(frame: _Frame) -> list[str]:
    parts = []
    for row in frame.scene.rows:
        y = frame.y(row)
        parts.append(text(frame.left - 6, y + ROW / 2 + 4, row.label, "e"))
        if row.busy:
            parts.append(rect(frame.left, y + 2, frame.x(row.end_s) - frame.left, ROW - 4, IDLE))
    return parts


def _gap(frame: _Frame, gap: Gap) -> str:
    """The time that a worker is not there."""
    x, right, y = frame.x(gap.start_s), frame.x(gap.end_s), frame.y(gap.row)
    words = gap.words if len(gap.words) * CHARACTER + 6 <= right - x else ""
    label = text(x + 5, y + ROW / 2 + 4, words, "v") if words else ""
    return f"<g><title>{escape(gap.tip)}</title>{rect(x, y + 2, right - x, ROW - 4, GONE)}{label}</g>"


def _bar(frame: _Frame, bar: Bar) -> str:
    """One operation, with its number where it fits and its times as a tooltip."""
    span, look = bar.span, LOOKS[bar.kind]
    x, right = frame.x(span.start_s), frame.x(span.end_s)
    height = look.height * ROW
    y = frame.y(bar.row) + (ROW - height) / 2
    # A gap of half a pixel at both sides parts neighbours, as long as it leaves something of the bar.
    gap = 0.5 if right - x > 2 else 0.0
    place = (x + gap, y, right - x - 2 * gap, height)
    shapes = rect(*place, look.colour) + (rect(*place, None, "r") if bar.rerouted else "")
    fits = bar.label and len(bar.label) * CHARACTER + 2 <= right - x
    label = text((x + right) / 2, y + height / 2 + 4, bar.label, "m") if fits else ""
    tip = (
        f"{span.op} ({look.words}), worker {span.worker}, iteration {span.iteration}: {print_time(span.start_s)} to "
        f"{print_time(span.end_s)}, takes {print_time(span.end_s - span.start_s)}"
    ) + (", in vain: done again later" if bar.lost else "")
    group = f'<g opacity="{LOST_OPACITY}">' if bar.lost else "<g>"
    return f"{group}<title>{escape(tip)}</title>{shapes}{label}</g>"


def _marks(frame: _Frame) -> list[str]:
    """Vertical lines: events solid, the beginnings of iterations dotted; in words where there is room."""
    marks = frame.scene.marks
    parts = []
    for mark in marks:
        x = frame.x(mark.time_s)
        stroke = f'stroke="{ALARM}" stroke-width="1.5"' if mark.is_event else f'stroke="{FAINT}" stroke-dasharray="2 3"'
        y = frame.top - 6 - MARK_LINE * (mark.level or 0)
        top = y - 2 if mark.is_event or mark.level is not None else frame.top  # the line of words is for words
        line = f'<path {stroke} d="M{px(x)} {px(top)}V{px(frame.bottom)}"/>'
        tip = escape(f"{print_time(mark.time_s)}: " + "\n".join(mark.said))
        parts.append(f"<g><title>{tip}</title>{line}</g>")
        if mark.level is not None:
            look = ("v" if mark.is_event else "n") + (" e" if mark.is_late else "")
            parts.append(text(x - 4 if mark.is_late else x + 4, y, mark.short, look))
    return parts


def _memory(frame: _Frame) -> tuple[list[str], float]:
    """A band for each worker, all to one scale, and where the last one ends."""
    bands = frame.scene.memory_bands()
    if not bands:
        return [], frame.bottom + 4
    parts = [
        text(frame.left, frame.memory_top - 8, "Memory held for micro-batches under way, all workers to one scale")
    ]
    for band, curves in enumerate(bands.values()):
        parts += _band(frame, curves, frame.memory_top + (band + 1) * BAND)
    return parts, frame.memory_top + len(bands) * BAND


def _band(frame: _Frame, curves: list[Curve], ground: float) -> list[str]:
    """One worker's curves and limit, above the height `ground`."""
    scale = 0.75 * BAND / frame.scene.memory_scale()
    parts = [
        text(frame.left - 6, ground - 6, curves[0].worker, "e"),
        text(frame.right + 8, ground - 6, print_peaks(curves), "n"),
        f'<path stroke="{GROUND}" d="M{px(frame.left)} {px(ground)}H{px(frame.right)}"/>',
        *(_curve(frame, curve, ground, scale) for curve in curves),
    ]
    limit = curves[0].limit_bytes
    if limit is not None:
        dash = f'stroke="{ALARM}" stroke-dasharray="5 4"'
        parts.append(f'<path {dash} d="M{px(frame.left)} {px(ground - scale * limit)}H{px(frame.right)}"/>')
    return parts


def _curve(frame: _Frame, curve: Curve, ground: float, scale: float) -> str:
    heights = [(frame.x(time_s), ground - scale * size) for time_s, size in curve.points]
    steps = "".join(f"H{px(x)}V{px(y)}" for x, y in heights)
    colour = curve_colour(curve.timeline)
    fill = f'fill="{colour}" fill-opacity=".2"' if curve.timeline == 0 else 'fill="none"'
    return f'<path stroke="{colour}" {fill} d="M{px(frame.left)} {px(ground)}{steps}"/>'
