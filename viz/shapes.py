"""Shapes of a job as a still picture: iteration time over the memory of a GPU, one point a shape."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

from ..schemas.quantities import print_number, ticks
from .painter import PAD, WIDTH, Picture, Sheet, number_axis, painting
from .style import ALARM, INK, LOOKS, curve_colour

LEFT, HEIGHT, FOOT = 70, 440, 46
GB = 1e9
COLOURS = (
    LOOKS["F"].colour,
    LOOKS["W"].colour,
    LOOKS["B"].colour,
    LOOKS["allreduce"].colour,
    *map(curve_colour, (0, 1, 2)),
)


@dataclass(frozen=True)
class ShapePoint:
    """A shape in the picture.

    Attributes:
        memory_bytes: of the fullest GPU.
        time_s: of an iteration.
        group: points of one group have one colour.
        words: what it is.
        is_best: whether it is the one to take.
    """

    memory_bytes: float
    time_s: float
    group: str
    words: str
    is_best: bool = False


@painting()
def shapes_picture(
    title: str, facts: Sequence[str], points: Sequence[ShapePoint], memory_bytes: float | None = None
) -> Picture:
    """Draw shapes, one point each.

    Args:
        title: stands above.
        facts: stand beneath it.
        points: the shapes.
        memory_bytes: that a GPU has, drawn as a line; None: nobody knows.
    """
    sheet = Sheet(title)
    sheet.heading(facts)
    groups = list(dict.fromkeys(point.group for point in points))
    colour = {group: COLOURS[number % len(COLOURS)] for number, group in enumerate(groups)}
    sheet.key([((colour[group],), group, False) for group in groups])
    right = 1.05 * max(memory_bytes or 0.0, *(point.memory_bytes for point in points)) / GB
    times = [point.time_s for point in points]
    low, high = max(0.0, min(times) - 0.1 * (max(times) - min(times)) - 1e-9), max(times) * 1.02 + 1e-9
    panel = sheet.panel(HEIGHT, LEFT, WIDTH - PAD, (0.0, right), (low, high))
    step = ticks(high - low, 6)[1]
    across, upwards = ticks(right, 10), [step * count for count in range(ceil(low / step), floor(high / step) + 1)]
    number_axis(panel, "x", across, [print_number(place) for place in across])
    number_axis(panel, "y", upwards, [print_number(place) for place in upwards])
    panel.set_xlabel("memory of the fullest GPU (GB)", labelpad=4)
    panel.set_ylabel("iteration (s)", labelpad=4)
    if memory_bytes is not None:
        panel.axvline(memory_bytes / GB, color=ALARM, linewidth=1.0, dashes=(5, 4))
    for point in points:
        x, y = point.memory_bytes / GB, point.time_s
        edge, size = (INK, 9.0) if point.is_best else ("none", 6.0)
        (mark,) = panel.plot([x], [y], "o", color=colour[point.group], markersize=size, markeredgecolor=edge)
        mark.set_gid(sheet.tip(point.words))
    for point in points:
        if point.is_best:
            panel.annotate(point.words, (point.memory_bytes / GB, point.time_s), (-8, 10), textcoords="offset points",
                           ha="right", color=INK)  # fmt: skip
    sheet.y += FOOT
    return sheet.picture()
