"""A rectangle that shows values over time, and what is drawn into it: step lines, areas, times, round ranges."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from .replay_scene import Axis
from .shapes import PAD, WIDTH, px, text
from .units import print_number, print_percent, ticks

LEFT, RIGHT = 150, 180
# Where little is missing, an axis of shares begins not at 0, but so far below 1 that what is missing can be seen.
ZOOMS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class Plot:
    """A rectangle that shows values over time: a value between `low` and `high` is between bottom and top."""

    axis: Axis
    top: float
    height: float
    high: float
    low: float = 0.0

    @property
    def bottom(self) -> float:
        """Where `low` is, in pixels."""
        return self.top + self.height

    def x(self, time_s: float) -> float:
        """A time's place."""
        return LEFT + (WIDTH - RIGHT - LEFT) * time_s / (self.axis.end_s or 1.0)

    def y(self, value: float) -> float:
        """A value's height; what is beyond the range is at its edge."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.bottom - self.height * min(max(share, 0.0), 1.0)


def share_range(shares: Sequence[float]) -> tuple[float, float]:
    """The greatest and the least share that an axis shows."""
    low = zoomed(min(shares))
    return max(1.0, *shares) + 0.03 * (1 - low), low


def zoomed(least: float) -> float:
    """Where an axis begins on which this share is to be seen."""
    return next((1 - zoom for zoom in ZOOMS if 1 - least <= zoom), 0.0)


def zoom_words(low: float) -> str:
    """That an axis of shares does not begin at 0, where that is so."""
    return f"; the axis begins at {print_percent(low)}" if low else ""


def round_range(counts: Sequence[float]) -> tuple[float, float]:
    """The greatest and the least count that an axis shows: round ones; what is not 0 stands above the least."""
    least, most = min(counts), max(counts)
    step = max(1.0, ticks(1.2 * (most - least) or 1.0, 2)[-1] / 2)
    low = max(math.ceil(least / step) - 1, 0) * step if least > most / 2 else 0.0
    return max(math.ceil(most / step) * step, low + step), low


def times(plot: Plot, lines: bool = True) -> list[str]:
    """Round times beneath, with lines through the plot or without."""
    unit, parts = plot.axis.unit, []
    for value in ticks(unit.of(plot.axis.end_s), 12):
        x = plot.x(value / unit.per_second)
        start = plot.top if lines else plot.bottom
        parts.append(f'<path class="g" d="M{px(x)} {px(start)}V{px(plot.bottom + 5)}"/>')
        parts.append(text(x, plot.bottom + 17, print_number(value), "m"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, plot.bottom + 32, f"time ({unit.name})", "m n"))
    return parts


def line(plot: Plot, values: Sequence[float], colour: str, width: float) -> str:
    """A step line."""
    start, rest = _steps(plot, values)
    return f'<path fill="none" stroke="{colour}" stroke-width="{width}" d="M{LEFT} {start}{rest}"/>'


def area(plot: Plot, values: Sequence[float], colour: str) -> str:
    """What is under a step line."""
    start, rest = _steps(plot, values)
    ground = _tenth(plot.bottom)
    return f'<path fill="{colour}" fill-opacity=".6" d="M{LEFT} {ground}V{start}{rest}V{ground}Z"/>'


def _steps(plot: Plot, values: Sequence[float]) -> tuple[str, str]:
    """The first height, and how the line goes on; steps that look alike are one."""
    heights = [_tenth(plot.y(value)) for value in values]
    parts = [
        f"H{_tenth(plot.x(plot.axis.edge(step)))}V{heights[step]}"
        for step in range(1, len(heights))
        if heights[step] != heights[step - 1]
    ]
    return heights[0], "".join(parts) + f"H{WIDTH - RIGHT}"


def _tenth(value: float) -> str:
    """A place to a tenth of a pixel, to keep long lines short."""
    return px(round(value, 1))


def subtitle(y: float, words: str) -> str:
    """The title of a picture within an image."""
    return f'<text x="{PAD}" y="{px(y)}" style="font-size:14px;font-weight:600">{escape(words)}</text>'


def bold(x: float, y: float, words: str) -> str:
    """Words that stand out."""
    return f'<text x="{px(x)}" y="{px(y)}" style="font-weight:600">{escape(words)}</text>'
