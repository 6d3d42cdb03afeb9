"""The painter of all still pictures (SVG, PNG, PDF), by matplotlib: the sheet, its panels, keys, boxes and words.

A picture is laid out from top to bottom in pixels of a sheet that is `WIDTH` wide: words at places of the sheet, and
panels, which are matplotlib's axes with ticks and grid. Nothing here knows what a picture shows. matplotlib is loaded
when something is drawn, never before.

Many boxes are one artist of matplotlib's: an artist each would take minutes for a long timeline.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal

from ..schemas.quantities import TimeUnit, print_number, ticks
from .style import AGAIN_GROUND, FAINT, FONT, FONTS, GRID, INK, WORDS, DrawnBox, measured, plain, shortened, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text


from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.colors import to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

ASCENT = 0.76  # of the font, as a share of its size
HATCH = "/////"
HATCH_COLOUR = "#1F243090"
LABEL_LINE = 15  # from one line of a label to the next
CODES = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]


class Boxes(Artist):
    """The boxes of a panel, in their order, with the labels that fit."""

    def __init__(self, panel: Axes, boxes: Sequence[DrawnBox], tip: Callable[[str], str]) -> None:
        super().__init__()
        self.boxes = boxes
        self._panel = panel
        self._tips = [tip(box.tip) if box.tip else "" for box in boxes]
        self._font = FontProperties(family=FONT, size=WORDS)

    def places(self) -> list[Bbox]:
        """Where the boxes are, in pixels of what is drawn on; and never less than nothing wide."""
        scale = self._scale()
        corners = self._panel.transData.transform(
            [corner for box in self.boxes for corner in ((box.left, box.top), (box.right, box.bottom))]
        )
        found = []
        for box, (x0, y0), (x1, y1) in zip(self.boxes, corners[::2].tolist(), corners[1::2].tolist(), strict=True):
            gap = box.gap * scale if x1 - x0 > 4 * box.gap * scale else 0.0
            found.append(Bbox([(x0 + gap, min(y0, y1)), (max(x1 - gap, x0 + gap), max(y0, y1))]))
        return found

    def written(self) -> list[tuple[str, Bbox]]:
        """The labels that are written, and where."""
        scale, found = self._scale(), []
        for box, place in zip(self.boxes, self.places(), strict=True):
            lines, is_upright = _fitting(box, place.width / scale, place.height / scale)
            if lines:
                wide, high = max(map(measured, lines)) * scale, (LABEL_LINE * (len(lines) - 1) + WORDS) * scale
                wide, high = (high, wide) if is_upright else (wide, high)
                x = place.x0 + 4 * scale if box.side == "left" else (place.x0 + place.x1 - wide) / 2
                y = (place.y0 + place.y1 - high) / 2
                found.append(("\n".join(lines), Bbox([(x, y), (x + wide, y + high)])))
        return found

    def draw(self, renderer: RendererBase) -> None:
        """Draw them."""
        if not self.get_visible():
            return
        scale = self._scale()
        for box, place, tip in zip(self.boxes, self.places(), self._tips, strict=True):
            if tip:
                renderer.open_group("box", gid=tip)
            gc = renderer.new_gc()
            gc.set_alpha(box.opacity)
            face = None if box.colour is None else to_rgba(box.colour)
            gc.set_linewidth(0)
            if box.hatched:
                gc.set_hatch(HATCH)
                gc.set_hatch_color(to_rgba(HATCH_COLOUR))
            if face is not None or box.edge is None:
                renderer.draw_path(gc, _rectangle(place, 0.0), IdentityTransform(), face)
            gc.set_hatch(None)
            if box.edge is not None:
                gc.set_linewidth(box.edge_width)
                gc.set_foreground(box.edge)
                renderer.draw_path(gc, _rectangle(place, box.edge_width * scale / 2), IdentityTransform(), None)
            if box.notch:
                end = place.x0 + min(box.notch * scale, place.width / 5)
                gc.set_linewidth(0)
                notch = Bbox([(place.x0, place.y0), (end, place.y1)])
                renderer.draw_path(gc, _rectangle(notch, 0.0), IdentityTransform(), to_rgba(INK))
            self._write(renderer, gc, box, place, scale)
            gc.restore()
            if tip:
                renderer.close_group("box")

    def _write(self, renderer: RendererBase, gc: GraphicsContextBase, box: DrawnBox, place: Bbox, scale: float) -> None:
        lines, is_upright = _fitting(box, place.width / scale, place.height / scale)
        if not lines:
            return
        gc.set_foreground(box.ink)
        middle_x, middle_y = (place.x0 + place.x1) / 2, (place.y0 + place.y1) / 2
        foot = ASCENT * WORDS / 2 * scale
        for number, line in enumerate(lines):
            along = ((len(lines) - 1) / 2 - number) * LABEL_LINE * scale - foot
            half = measured(line) * scale / 2
            if is_upright:
                x, y, angle = middle_x + foot, middle_y - half, 90.0
            elif box.side == "left":
                x, y, angle = place.x0 + 4 * scale, middle_y + along, 0.0
            else:
                x, y, angle = middle_x - half, middle_y + along, 0.0
            anchor = Text(middle_x if box.side == "center" else x, y, ha="center" if box.side == "center" else "left")
            if renderer.flipy():
                y = self._panel.figure.bbox.height - y
            renderer.draw_text(gc, x, y, plain(line), self._font, angle, mtext=None if is_upright else anchor)

    def _scale(self) -> float:
        return float(self._panel.figure.dpi) / 72


def _fitting(box: DrawnBox, width: float, height: float) -> tuple[list[str], bool]:
    """The lines of the label that fits, and whether it stands upright."""
    for label in box.labels:
        lines = label.split("\n")
        wide = max(map(measured, lines)) + (8 if box.side == "left" else 2)
        if label and wide <= width and LABEL_LINE * (len(lines) - 1) + WORDS <= height + 1:
            return lines, False
    last = box.labels[-1] if box.upright and box.labels else ""
    is_upright = bool(last) and width >= WORDS and measured(last) + 2 <= height
    return ([last] if is_upright else []), is_upright


def _rectangle(place: Bbox, inset: float) -> Path:
    x0, y0, x1, y1 = place.x0 + inset, place.y0 + inset, place.x1 - inset, place.y1 - inset
    return Path([(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)], CODES)


WIDTH, PAD = 1280, 16
SUBTITLE, TITLE = 14.0, 17.0  # sizes of words that stand out
LINE = 16  # from one line of words to the next
# A PNG has two pixels a pixel, to be sharp on good screens; fewer where it would be larger than readers take.
PNG_SCALE, PNG_MOST_HIGH, PNG_MOST_PIXELS = 2.0, 65_000, 100_000_000

_DPI = 72  # so that a point of matplotlib's is a pixel of ours
_RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.labelsize": WORDS,
    "figure.dpi": _DPI,
    "font.family": FONT,
    "font.size": WORDS,
    "grid.color": GRID,
    "grid.linewidth": 1.0,
    "hatch.linewidth": 0.7,
    "path.simplify": False,
    "pdf.fonttype": 42,
    "savefig.dpi": _DPI,
    "svg.fonttype": "none",  # words stay words
    "svg.hashsalt": "rtk",
    "text.color": INK,
    "text.hinting": "none",
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
}


@contextmanager
def painting() -> Iterator[None]:
    """Everything in it is drawn in our own style, whatever the user's settings of matplotlib are."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # of scripts that the font lacks; an SVG has them
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


@dataclass(frozen=True)
class Picture:
    """A still picture, drawn to be written in any of its forms; equal pictures give equal bytes.

    Attributes:
        figure: matplotlib's.
        title: in words.
        tips: what is said when somebody points at things in an SVG.
    """

    figure: "Figure"
    title: str
    tips: list[str]

    def data(self, ending: str) -> bytes:
        """The bytes of a file.

        Args:
            ending: of its name: `.svg`, `.png` (two pixels a pixel of the picture) or `.pdf`.
        """
        if ending == ".svg":
            return self.svg().encode()
        if ending == ".pdf":
            told = {"CreationDate": None, "Creator": None, "Producer": None, "Title": self.title}
            return self._saved("pdf", _DPI, told)
        width, height = self.size
        scale = min(PNG_SCALE, PNG_MOST_HIGH / height, (PNG_MOST_PIXELS / (width * height)) ** 0.5)
        return self._saved("png", _DPI * scale, {"Software": None})

    def svg(self) -> str:
        """An SVG element, with words as words."""
        # What matplotlib writes, as an element for pages: in pixels, in the reader's font, with tips, and half as long.
        text = self._saved("svg", _DPI, {"Date": None, "Creator": None, "Format": None, "Type": None}).decode()
        text = text[text.index("<svg ") :]
        width, height = (_short(size) for size in self.size)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-size="{WORDS:g}" '
            f'font-family="{FONTS}">\n<title>{escape(self.title)}</title>\n'
        )
        body = re.sub(r"<[a-z][^>]*>", lambda tag: _TAG.get(tag[0].split(" ", 1)[0], str)(tag[0]), text)
        body = re.sub(r'<g id="tip(\d+)">', lambda tip: f"<g><title>{escape(self.tips[int(tip[1])])}</title>", body)
        body = re.sub(r'<g id="[^"]*"(/?)>', r"<g\1>", body[body.index(">") + 1 :])  # several images may be in one page
        return head + re.sub(r"\s*\n\s*", "\n", body.replace("<g/>", "")).lstrip()

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in pixels."""
        width, height = self.figure.get_size_inches()
        return width * _DPI, height * _DPI

    def _saved(self, form: str, dpi: float, metadata: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        with painting():
            self.figure.savefig(buffer, format=form, dpi=dpi, metadata=metadata)
        return buffer.getvalue()


class Sheet:
    """A picture under way: `y` is how far it has come, in pixels from the top."""

    def __init__(self, title: str) -> None:
        from matplotlib.figure import Figure

        self.title = title
        self.y = 0.0
        self._tips: list[str] = []
        self._panels: list[tuple[Axes, tuple[float, float, float, float]]] = []
        self._figure = Figure(dpi=_DPI)
        self._page = self._panel((0.0, 0.0, WIDTH, 1.0), (0.0, float(WIDTH)), (1.0, 0.0))
        self._page.set_zorder(1)  # above the panels

    def picture(self) -> Picture:
        """The picture, as high as it has become."""
        height = max(self.y, 1.0)
        self._figure.set_size_inches(WIDTH / _DPI, height / _DPI)
        self._panels[0] = (self._page, (0.0, 0.0, WIDTH, height))
        self._page.set_ylim(height, 0.0)
        for axes, (left, top, right, bottom) in self._panels:
            axes.set_position((left / WIDTH, 1 - bottom / height, (right - left) / WIDTH, (bottom - top) / height))
        return Picture(self._figure, self.title, self._tips)

    def heading(self, facts: Sequence[str] = ()) -> None:
        """The title, and lines for each fact under it."""
        self.y += 26
        self.words(PAD, self.y, shortened(self.title, WIDTH - 2 * PAD, TITLE, bold=True), size=TITLE, bold=True)
        self.y += 2
        self.facts(facts)
        self.y += 10

    def facts(self, facts: Iterable[str]) -> None:
        """Lines of less weight."""
        for fact in facts:
            for line in wrapped(fact, WIDTH - 2 * PAD):
                self.y += LINE
                self.words(PAD, self.y, line, FAINT)

    def subtitle(self, words: str) -> None:
        """The title of a part."""
        self.y += 18
        self.words(PAD, self.y, shortened(words, WIDTH - 2 * PAD, SUBTITLE, bold=True), size=SUBTITLE, bold=True)

    def words(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = INK,
        side: str = "left",
        size: float = WORDS,
        bold: bool = False,
    ) -> "Text":
        """Words whose `side` (left, center or right) is at x and whose foot is on the line y."""
        return self._page.text(
            x, y, plain(words), color=colour, ha=side, va="baseline", size=size, weight="bold" if bold else "normal"
        )

    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        colour: str,
        width: float = 1.0,
        dashes: Any = "-",
        tip: str = "",
    ) -> None:
        """A line on the sheet itself, in pixels."""
        (line,) = self._page.plot(xs, ys, color=colour, linewidth=width, linestyle=dashes)
        if tip:
            line.set_gid(self.tip(tip))

    def key(self, entries: Iterable[tuple[Sequence[str], str, bool]], left: float = PAD, right: float = PAD) -> None:
        """What colours mean, broken into lines: for each entry its colours, its words, and whether it is hatched."""
        self.y += 18
        x, boxes = left, []
        for colours, words, is_hatched in entries:
            length = 17 + measured(words)
            if x > left and x + length > WIDTH - right:
                x, self.y = left, self.y + 20
            each = 12 / len(colours)
            for place, colour in enumerate(colours):
                start = x + place * each
                edge = FAINT if is_hatched or colour == AGAIN_GROUND else None
                boxes.append(
                    DrawnBox(start, start + each, self.y - 9, self.y + 2, colour, hatched=is_hatched, edge=edge,
                        edge_width=0.6)
                )  # fmt: skip
            self.words(x + 17, self.y, shortened(words, WIDTH - right - x - 17))
            x += length + 18
        self.boxes(None, boxes)
        self.y += 12

    def panel(
        self, height: float, left: float, right: float, across: tuple[float, float], upwards: tuple[float, float]
    ) -> "Axes":
        """Axes beneath what is there, so many pixels high, from `left` to `right` of the sheet, without any ticks.

        Args:
            height: in pixels.
            left: in pixels.
            right: in pixels.
            across: the values at the left and the right.
            upwards: the values at the bottom and the top.
        """
        place = (left, self.y, right, self.y + height)
        self.y += height
        return self._panel(place, across, upwards)

    def boxes(self, panel: "Axes | None", boxes: Sequence[DrawnBox], *, under_grid: bool = False) -> None:
        """Many rectangles in a panel, in its units; without one on the sheet itself, in pixels."""

        axes = panel or self._page
        axes.add_artist(Boxes(axes, boxes, self.tip)).set_zorder(0 if under_grid else 1)

    def tip(self, words: str) -> str:
        """The name of something that says these words when somebody points at it."""
        self._tips.append(words)
        return f"tip{len(self._tips) - 1}"

    def _panel(
        self, place: tuple[float, float, float, float], across: tuple[float, float], upwards: tuple[float, float]
    ) -> "Axes":
        axes = self._figure.add_axes((0.0, 0.0, 1.0, 1.0), frameon=False, label=str(len(self._panels)))
        axes.set(xlim=across, ylim=upwards, xticks=[], yticks=[])
        axes.set_autoscale_on(False)
        self._panels.append((axes, place))
        return axes


def time_axis(
    axes: "Axes", unit: TimeUnit, end_s: float, count: int, *, has_words: bool = True, has_lines: bool = True
) -> None:
    """Lines at round times through a panel whose x is in seconds, and the times beneath it, as far as asked for."""
    places = ticks(unit.of(end_s), count)
    numbers = [print_number(place) for place in places] if has_words else []
    number_axis(axes, "x", [place / unit.per_second for place in places], numbers, has_lines=has_lines)
    if has_words:
        axes.set_xlabel(f"time ({unit.name})", labelpad=4)


def number_axis(
    axes: "Axes", side: Literal["x", "y"], places: Sequence[float], numbers: Sequence[str], *, has_lines: bool = True
) -> None:
    """Numbers beside a panel, or beneath it, and lines through it."""
    axis = axes.xaxis if side == "x" else axes.yaxis
    axis.set_ticks(places, labels=numbers or [""] * len(places))
    axis.set_tick_params(length=5 if side == "x" and numbers else 0, pad=4 if side == "x" else 8, color=GRID)
    axes.grid(visible=has_lines, axis=side)


def stepped(
    panel: "Axes", places: Sequence[float], values: Sequence[float], height: float
) -> tuple[list[float], list[float]]:
    """A step line's corners; steps that look alike in a panel so many pixels high are one.

    Args:
        panel: where it is drawn.
        places: where each step begins, and the last one ends.
        values: of each step; what is beyond the panel's range is at its edge.
        height: of the panel.
    """
    low, high = sorted(panel.get_ylim())
    kept = [min(max(value, low), high) for value in values]
    rows = [round(10 * height * (value - low) / ((high - low) or 1.0)) for value in kept]
    corners = [(places[0], kept[0])]
    for step in range(1, len(kept)):
        if rows[step] != rows[step - 1]:
            corners += [(places[step], corners[-1][1]), (places[step], kept[step])]
    corners.append((places[-1], corners[-1][1]))
    return [x for x, _ in corners], [y for _, y in corners]


def _text_tag(tag: str) -> str:
    tag = re.sub(rf"font-size: {WORDS:g}px; |font-family: [^;\"]*;? ?| transform=\"rotate\(-0 [^)]*\)\"", "", tag)
    return _rounded(tag).replace('; "', '"').replace(' style=""', "")


def _path_tag(tag: str) -> str:
    return re.sub(r' d="([^"]*)"', lambda found: f' d="{_short_path(found[1])}"', tag)


def _rounded(tag: str) -> str:
    return re.sub(r"-?\d+\.\d+", lambda number: _short(float(number[0])), tag)


_TAG: dict[str, Callable[[str], str]] = {"<text": _text_tag, "<path": _path_tag, "<use": _rounded, "<rect": _rounded}


def _short_path(data: str) -> str:
    """A path in hundredths of a pixel; level and plumb lines with one number only."""
    parts: list[str] = []
    last = ("", "")
    for command, numbers in re.findall(r"([MLQCz])([^MLQCz]*)", data):
        places = [_short(float(number)) for number in numbers.split()]
        here = (places[-2], places[-1]) if places else last
        if command == "L" and here == last:
            continue
        if command == "L" and here[1] == last[1]:
            parts.append(f"H{here[0]}")
        elif command == "L" and here[0] == last[0]:
            parts.append(f"V{here[1]}")
        else:
            parts.append(command + " ".join(places))
        last = here
    return "".join(parts)


def _short(value: float) -> str:
    """A place to a hundredth of a pixel, short and without minus zero."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
