"""What kills have cost by their moments, as a small SVG: a point for each, in two colours for the two ways to go on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, LEFT, TOP = 560, 260, 46, 30
WAYS = {"redo": ("all is done again", "#b5651d"), "rest": ("only what is left is done", "#2b5fa8")}
TITLE = "lost until the next commit, in re-routed iterations, by the moment of the kill in its iteration"

Row = Mapping[str, Any]


def lost_in(row: Row) -> float:
    """What a kill has cost, in re-routed iterations."""
    return float(row["iteration_s"] / row["rerouted_s"] - 1)


def point_of(row: Row) -> tuple[float, float]:
    """When a kill came, as a share of an iteration of all workers, and what it has cost, in re-routed ones."""
    return row["after_commit_s"] / row["healthy_s"], lost_in(row)


def write_chart(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows of the case `moments` of benchmarks/midway.py."""
    points = {way: [point_of(row) for row in rows if row["way"] == way] for way in WAYS}
    lost = [y for found in points.values() for _, y in found]
    low, high = min(0.0, *lost), max(1.0, *lost)

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + WIDTH * x, TOP + HEIGHT * (1 - (y - low) / (high - low))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 14} {TOP + HEIGHT + 64}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<rect width="{LEFT + WIDTH + 14}" height="{TOP + HEIGHT + 64}" fill="#fff"/>',
        f'<text x="{LEFT}" y="{TOP - 12}" font-size="12">{TITLE}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>',
        *(_line(at(0, y)[1], y) for y in _quarters(low, high)),
        *(f'<text x="{at(x, 0)[0]}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{x:g}</text>' for x in (0, 0.5, 1)),
    ]
    for number, (way, (words, colour)) in enumerate(WAYS.items()):
        places = [at(*one) for one in points[way]]
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.8"/>' for x, y in places]
        mean = sum(y for _, y in points[way]) / max(1, len(points[way]))
        x, y = LEFT + 280 * number, TOP + HEIGHT + 44
        parts.append(f'<circle cx="{x + 6}" cy="{y - 4}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16}" y="{y}">{words}: mean {mean:.2f} of {len(places)} kills</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def _quarters(low: float, high: float) -> list[float]:
    return [n / 4 for n in range(-8, 20) if low <= n / 4 <= high]


def _line(y: float, value: float) -> str:
    return (
        f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    )
