"""The ablation as a small SVG: a panel for each shape, throughput over micro-batches a stage."""

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 190, 46, 34, 14  # of a panel, and around it
LINES = (("adaptive", "#b5651d"), ("decoupled", "#2f7d5b"), ("staggered", "#2b5fa8"))
STATED = 32  # micro-batches a stage that the paper's batches make
TITLE = "throughput relative to fault-free 1F1B, mean over 1 to 12 failures"

Row = Mapping[str, Any]
Point = tuple[float, float]


def write_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows of `slipstream_throughput.ablation`."""
    shapes = list(dict.fromkeys((row["pp"], row["dp"]) for row in rows))
    values = [row[name] for row in rows for name, _ in LINES]
    low, high = min(values) * 0.97, max(values) * 1.02
    panels = [
        panel(n, shape, [row for row in rows if (row["pp"], row["dp"]) == shape], (low, high))
        for n, shape in enumerate(shapes)
    ]
    width = LEFT + len(shapes) * (WIDTH + GAP)
    height = TOP + HEIGHT + 62
    keys = [key(n, name, colour, height - 10) for n, (name, colour) in enumerate(LINES)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *panels,
        *(tick_y(value, low, high) for value in ticks(low, high)),
        *keys,
        "</svg>",
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "\n")


def panel(number: int, shape: tuple[int, int], rows: Sequence[Row], limits: tuple[float, float]) -> str:
    """One shape: a frame, a line for each technique, and where the paper's batches lie."""
    left = LEFT + number * (WIDTH + GAP)
    per_stage = [row["microbatches"] / row["pp"] for row in rows]
    most = log2(max(per_stage))

    def at(x: float, y: float) -> Point:
        return (
            left + 8 + (WIDTH - 16) * log2(x) / most,
            TOP + HEIGHT * (1 - (y - limits[0]) / (limits[1] - limits[0])),
        )

    stated_x = at(STATED, limits[0])[0]
    found = [
        f'<text x="{left}" y="{TOP - 12}" font-size="12">PP {shape[0]}, DP {shape[1]}</text>',
        f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>',
        f'<line x1="{stated_x:.1f}" x2="{stated_x:.1f}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#999" '
        'stroke-dasharray="3 3"/>',
        f'<text x="{stated_x - 4:.1f}" y="{TOP + 14}" text-anchor="end" fill="#777">as in the paper</text>',
    ]
    found += [
        f'<text x="{at(x, 0)[0]:.1f}" y="{TOP + HEIGHT + 14}" text-anchor="middle">{x:g}</text>' for x in per_stage
    ]
    for name, colour in LINES:
        points = [at(x, row[name]) for x, row in zip(per_stage, rows, strict=True)]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        found.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        found += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    if number == 0:
        found.append(f'<text x="{left}" y="{TOP + HEIGHT + 30}">micro-batches of a pipeline, times PP</text>')
        found.append(f'<text x="{left + 350}" y="{TOP + HEIGHT + 52}">{TITLE}</text>')
    return "\n".join(found)


def ticks(low: float, high: float) -> list[float]:
    """Tenths between two values."""
    return [n / 10 for n in range(int(low * 10) + 1, int(high * 10) + 1)]


def tick_y(value: float, low: float, high: float) -> str:
    """A value at the left edge."""
    y = TOP + HEIGHT * (1 - (value - low) / (high - low))
    return f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>'


def key(number: int, name: str, colour: str, y: float) -> str:
    """What a colour stands for."""
    x = LEFT + 110 * number
    return (
        f'<line x1="{x}" x2="{x + 18}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
        f'<text x="{x + 24}" y="{y}">{"" if number == 0 else "+ "}{name}</text>'
    )
