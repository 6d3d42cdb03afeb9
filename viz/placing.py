"""Words and boxes before they are drawn: how long words are, what of them fits, and how they keep apart."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from .style import INK

FONT = "DejaVu Sans"  # comes with matplotlib: words are as long on every machine
WORDS = 11.0  # the size of most


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A rectangle in a panel's own units.

    Attributes:
        labels: what it is called, the best first: the first that fits is written in its middle.
        upright: the last label may stand upright where none fits across.
        tip: is said when somebody points at it in an SVG.
        hatched, opacity, edge: looks; the edge is the colour of a frame just inside.
        gap: so many pixels are left free at each side, if that leaves anything.
        side: where the label stands: center, or left.
    """

    left: float
    right: float
    top: float
    bottom: float
    colour: str | None
    labels: Sequence[str] = ()
    ink: str = INK
    tip: str = ""
    upright: bool = False
    hatched: bool = False
    opacity: float = 1.0
    edge: str | None = None
    edge_width: float = 1.5
    gap: float = 0.0
    side: str = "center"


@lru_cache(maxsize=50_000)
def measured(words: str, size: float = WORDS, bold: bool = False) -> float:
    """How many pixels words are long."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(plain(words), font, ismath=False)[0])


def plain(words: str) -> str:
    """Words in one line, of characters that every form of a picture can hold."""
    return "".join(character if character.isprintable() else " " for character in words)


def shortened(words: str, length: float, size: float = WORDS, bold: bool = False) -> str:
    """As much of the words as fits into so many pixels."""
    if measured(words, size, bold) <= length:
        return words
    fits, too_long = 0, len(words)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if measured(words[:middle] + "…", size, bold) <= length:
            fits = middle
        else:
            too_long = middle
    return words[:fits].rstrip() + "…"


def wrapped(words: str, length: float) -> list[str]:
    """Words in lines of so many pixels."""
    lines: list[str] = []
    for word in words.split():
        if lines and measured(f"{lines[-1]} {word}") <= length:
            lines[-1] += f" {word}"
        else:
            lines.append(shortened(word, length))
    return lines


def in_lanes(wanted: Sequence[tuple[float, float]], most: int) -> list[int | None]:
    """For each stretch (start, end), in their order, the first of some lanes that has room for it, or None."""
    lanes: list[list[tuple[float, float]]] = [[] for _ in range(most)]
    found: list[int | None] = []
    for start, end in wanted:
        free = (n for n, taken in enumerate(lanes) if all(end <= first or last <= start for first, last in taken))
        lane = next(free, None)
        if lane is not None:
            lanes[lane].append((start, end))
        found.append(lane)
    return found


def apart(wanted: Sequence[float], least: float, end: float) -> list[float]:
    """Places in ascending order, near those wanted, but `least` apart: pushed on, then back where they pass the end."""
    found: list[float] = []
    for place in wanted:
        found.append(max(place, found[-1] + least) if found else place)
    limit = end
    for number in reversed(range(len(found))):
        found[number] = min(found[number], limit)
        limit = found[number] - least
    return found
