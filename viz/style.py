"""How things look in every picture: colours, characters, the page around it, and where words and boxes go."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

STILL_ENDINGS = (".svg", ".png", ".pdf")  # of pictures that do not move
PICTURE_ENDINGS = (".html", *STILL_ENDINGS)
PERFETTO_ENDINGS = (".perfetto-trace", ".pftrace")
TRACE_ENDINGS = (".json", *PERFETTO_ENDINGS)  # of traces, for viewers of such

INK, FAINT, IDLE, GRID, GROUND = "#1F2430", "#6B7280", "#ECEFF3", "#E3E6EB", "#C9CED6"
# Events and limits: what people must not overlook.
ALARM = "#B3261E"
GONE = "#F8E4E2"  # where a worker is not there
LOST_OPACITY = 0.35  # of what was done in vain
PALE = "#C4E5F7"  # a forward of that opacity
PALE_WORDS = "pale: in vain, it was done again"
# What was run again for its message alone has a frame of its colour, and the page's ground in it.
AGAIN_GROUND, AGAIN_FRAME = "#FFFFFF", 2.0
AGAIN_WORDS = "framed: run again for its message alone"
FED_EDGE = 3.0  # of what begins with a message that is sent again, in pixels
FED_WORDS = "dark edge: begins with a kept message, sent again"


@dataclass(frozen=True, slots=True)
class Look:
    """How a kind of operation is shown: its colour (of Okabe and Ito's palette, told apart by colour-blind readers),
    a character that stands for it without colours, and its bar's height as a share of the row."""

    words: str
    colour: str
    fill: str
    height: float


# Communication is drawn lower than computation, so that the one is still seen under the other where they overlap.
LOOKS = {
    "F": Look("forward", "#56B4E9", "─", 0.86),
    "I": Look("backward, input gradients", "#E69F00", "═", 0.86),
    "W": Look("backward, weight gradients", "#2BB38A", "┈", 0.86),
    "B": Look("full backward (I and W in one)", "#E8743B", "━", 0.86),
    "allreduce": Look("gradient all-reduce", "#CC79A7", "~", 0.5),
    "step": Look("optimizer step", "#F0E442", "+", 0.86),
    "other": Look("other", "#9AA0A6", "?", 0.5),
}

LIGHTEST = 0.5  # of the colour of the last of many chunks, in white
_WHITE = 255


def tint(colour: str, chunk: int, chunks: int) -> str:
    """The colour of a kind for one of a worker's chunks: as it is for the first, the lighter the later.

    Args:
        colour: that of the kind, as `#RRGGBB`.
        chunk: its number, from 0.
        chunks: the most that a worker has.
    """
    if chunk == 0:
        return colour
    share = 1 - (1 - LIGHTEST) * chunk / max(chunks - 1, chunk)
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(part * share + _WHITE * (1 - share)):02X}" for part in parts)


_CURVES = ("#4C566A", "#7A5195", "#0B7A75")


def curve_colour(timeline: int) -> str:
    """The colour of the memory curves of the n-th timeline; those after the third share its colour."""
    return _CURVES[min(timeline, len(_CURVES) - 1)]


def legend_of(kind: str) -> str:
    """What a legend says of a kind."""
    return f"{kind}: {LOOKS[kind].words}" if len(kind) == 1 else LOOKS[kind].words


# From little to much: light to dark enough, and INK can be read on all of it.
_TIMES = ((0xFF, 0xF8, 0xE7), (0xF2, 0xB1, 0x4A))


def time_colour(share: float) -> str:
    """The colour of a time between 0 (least) and 1 (most)."""
    at = min(max(share, 0.0), 1.0)
    return "#" + "".join(f"{round(low + at * (high - low)):02X}" for low, high in zip(*_TIMES, strict=True))


FONTS = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"

_PAGE_STYLE = (
    f"body {{ font: 15px/1.5 {FONTS}; color: {INK}; background: #fff; margin: 1.4rem 2rem; }}"
    + """
h1 { font-size: 1.35rem; margin: 0 0 .2rem; }
.facts { margin: 0; color: #4B5563; }
details { margin: .6rem 0 0; max-width: 62rem; color: #374151; }
summary { cursor: pointer; font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .8rem; margin: .5rem 0; }
dt { font-weight: 600; } dd { margin: 0; }
"""
)


def page(title: str, facts: Iterable[str], chart: str, guide: Iterable[tuple[str, str]]) -> str:
    """A whole page.

    Args:
        title: of the page, above everything.
        facts: a line each.
        chart: the picture, as HTML.
        guide: words and what they mean, as HTML.
    """
    lines = "".join(f'<p class="facts">{escape(fact)}</p>' for fact in facts)
    entries = "".join(f"<dt>{word}</dt><dd>{text}</dd>" for word, text in guide)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_PAGE_STYLE}</style></head>\n<body>\n<h1>{escape(title)}</h1>\n{lines}\n{chart}\n"
        f"<details open><summary>How to read this</summary><dl>{entries}</dl></details>\n</body>\n</html>\n"
    )


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
        notch: so many pixels at the left are dark, at most a fifth of it.
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
    notch: float = 0.0


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
