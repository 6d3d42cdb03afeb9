"""Many rectangles at once, as one artist of matplotlib's: an artist each would take minutes for a long timeline."""

from collections.abc import Callable, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backend_bases import GraphicsContextBase, RendererBase
from matplotlib.colors import to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.transforms import Bbox, IdentityTransform

from .placing import FONT, WORDS, DrawnBox, measured, plain

ASCENT = 0.76  # of the font, as a share of its size
HATCH = "/////"
HATCH_COLOUR = "#1F243090"
LINE = 15  # from one line of a label to the next
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
                wide, high = max(map(measured, lines)) * scale, (LINE * (len(lines) - 1) + WORDS) * scale
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
            along = ((len(lines) - 1) / 2 - number) * LINE * scale - foot
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
        if label and wide <= width and LINE * (len(lines) - 1) + WORDS <= height + 1:
            return lines, False
    last = box.labels[-1] if box.upright and box.labels else ""
    is_upright = bool(last) and width >= WORDS and measured(last) + 2 <= height
    return ([last] if is_upright else []), is_upright


def _rectangle(place: Bbox, inset: float) -> Path:
    x0, y0, x1, y1 = place.x0 + inset, place.y0 + inset, place.x1 - inset, place.y1 - inset
    return Path([(x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0)], CODES)
