"""Pipeline templates as a picture: a row a size, its nodes as boxes side by side, and in them the stages."""

from dataclasses import dataclass
from html import escape

from ..schemas.templates import Templates
from .looks import ALARM, GROUND, time_colour
from .page import page
from .shapes import CHARACTER, PAD, WIDTH, heading, image, px, rect, text
from .template_scene import Block, TemplateRow, facts_of, least_share, rows_of
from .units import print_percent

LEFT, RIGHT = 84, 132  # for the size, and for T and the slowest stage
LOWEST_BAR, LINE_GAP, ROW_GAP = 38, 6, 12
NODE_GAP, NODE_EDGE = 6, 2
# GPUs no wider, and if it can be no narrower than that: upright layers fit.
WIDEST_GPU, NARROWEST_GPU = 60.0, 13.0
KEY_WIDTH, KEY_STEPS = 160, 32

_GUIDE = (
    ("Row", "a pipeline on so many nodes. T is its iteration time by the objective; in red, its slowest stage."),
    ("Box", "a node. All its GPUs are in use, and a stage lies within one node."),
    ("Bar", "a stage, as wide as its GPUs: the first line says its layers, the second (tp) on how many GPUs tensor "
     "parallelism splits them."),
    ("Colour", "what a micro-batch takes at the stage, F, I and W together, beside the slowest stage of its pipeline, "
     "which is framed in red: the less the colours of a row differ, the less its GPUs wait."),
    ("Mouse", "point at a bar for its times."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where things lie, in pixels: so many nodes in a line, GPUs so wide, bars so high; colours begin at a share."""

    gpus_per_node: int
    nodes_in_line: int
    gpu: float
    bar: float
    least_share: float

    @property
    def node(self) -> float:
        """A node's width."""
        return self.gpus_per_node * self.gpu + 2 * NODE_EDGE

    @property
    def box(self) -> float:
        """A node's height."""
        return self.bar + 2 * NODE_EDGE

    @property
    def right(self) -> float:
        """Where the widest line ends."""
        return LEFT + self.nodes_in_line * (self.node + NODE_GAP) - NODE_GAP

    def lines(self, row: TemplateRow) -> int:
        return -(-row.template.nodes // self.nodes_in_line)

    def height(self, row: TemplateRow) -> float:
        return self.lines(row) * (self.box + LINE_GAP) - LINE_GAP

    def place(self, node: int, top: float) -> tuple[float, float]:
        """Where a node's box begins."""
        line, column = divmod(node, self.nodes_in_line)
        return LEFT + column * (self.node + NODE_GAP), top + line * (self.box + LINE_GAP)


def templates_svg(templates: Templates, title: str) -> str:
    """Draw pipeline templates as an SVG image.

    Args:
        templates: of any number of sizes; where their nodes do not fit beside each other, they go on in another line.
        title: stands above.

    Returns:
        The image's text; equal arguments give equal text.
    """
    head, top = heading(title, facts_of(templates))
    chart, end = _chart(templates, top)
    return image([*head, *chart], title, end)


def templates_html(templates: Templates, title: str) -> str:
    """Draw pipeline templates as one HTML page that needs no network: the image, and how to read it.

    Args:
        templates: as for the image.
        title: the page's title.
    """
    chart, end = _chart(templates, 0.0)
    return page(title, facts_of(templates), image(chart, title, end), _GUIDE)


def _chart(templates: Templates, top: float) -> tuple[list[str], float]:
    """The key and the rows, below the height `top`, and where they end."""
    rows = rows_of(templates)
    frame = _frame(templates, rows)
    parts = _key(frame, top + 18)
    y = top + 38
    for row in rows:
        parts += _row(frame, row, y)
        y += frame.height(row) + ROW_GAP
    return parts, y + 4


def _frame(templates: Templates, rows: tuple[TemplateRow, ...]) -> _Frame:
    gpus, room = templates.gpus_per_node, WIDTH - PAD - RIGHT - LEFT + NODE_GAP
    fitting = int(room / (gpus * NARROWEST_GPU + 2 * NODE_EDGE + NODE_GAP))
    nodes = max(min(fitting, templates.largest), 1)
    gpu = (room / nodes - NODE_GAP - 2 * NODE_EDGE) / gpus
    longest = max(len(block.layers) for row in rows for block in row.blocks)
    bar = max(LOWEST_BAR, longest * CHARACTER + 4)
    return _Frame(gpus, nodes, min(gpu, WIDEST_GPU), bar, least_share(rows))


def _key(frame: _Frame, y: float) -> list[str]:
    """What the colours say."""
    low, words = frame.least_share, "a stage's time, of the slowest in its row:"
    x = PAD + len(words) * CHARACTER
    first, step = print_percent(low), KEY_WIDTH / KEY_STEPS
    x_ramp = x + len(first) * CHARACTER + 6
    ramp = [
        rect(x_ramp + n * step, y - 10, step + 0.5, 12, time_colour((n + 0.5) / KEY_STEPS)) for n in range(KEY_STEPS)
    ]
    x_mark = x_ramp + KEY_WIDTH + 6 + 5 * CHARACTER + 24
    return [
        text(PAD, y, words),
        text(x, y, first),
        *ramp,
        text(x_ramp + KEY_WIDTH + 6, y, "100 %"),
        _slowest(x_mark, y - 10, 16, 12),
        text(x_mark + 22, y, "the slowest stage"),
        text(x_mark + 22 + 20 * CHARACTER, y, "tp: tensor parallelism, the stage's GPUs", "n"),
    ]


def _row(frame: _Frame, row: TemplateRow, top: float) -> list[str]:
    middle, right = top + NODE_EDGE + frame.bar / 2, WIDTH - PAD - RIGHT + 10
    beside = min(right, frame.right + 14)
    parts = [
        text(LEFT - 10, middle - 3, row.name, "e"),
        text(LEFT - 10, middle + 12, row.shape, "e n"),
        text(beside, middle - 3, row.time),
        text(beside, middle + 12, row.slowest, "v"),
    ]
    for node, blocks in enumerate(row.by_node()):
        x, y = frame.place(node, top)
        parts.append(_outline(x, y, frame.node, frame.box, GROUND, 1))
        parts += [_block(frame, block, x + NODE_EDGE, y + NODE_EDGE) for block in blocks]
    return parts


def _block(frame: _Frame, block: Block, left: float, y: float) -> str:
    """A stage as wide as its GPUs, with its layers upright where they do not fit across."""
    x, width = left + block.gpu * frame.gpu + 0.5, block.stage.tensor_parallel * frame.gpu - 1
    low = frame.least_share
    shape = rect(x, y, width, frame.bar, time_colour((block.share - low) / (1 - low)))
    frame_of_slowest = _slowest(x, y, width, frame.bar) if block.is_slowest else ""
    words = _words(block, x + width / 2, y + frame.bar / 2, width)
    return f"<g><title>{escape(block.words)}</title>{shape}{frame_of_slowest}{words}</g>"


def _words(block: Block, x: float, y: float, width: float) -> str:
    """Layers and tensor parallelism around a bar's middle; less of it in a narrow bar."""
    layers, degree = block.layers, f"tp {block.stage.tensor_parallel}"
    across = max(len(layers), len(degree)) * CHARACTER + 2 <= width
    if across:
        return text(x, y - 3, layers, "m") + text(x, y + 12, degree, "m")
    if width < NARROWEST_GPU - 2:
        return ""
    return f'<text transform="translate({px(x + 4)} {px(y)}) rotate(-90)" class="m">{escape(layers)}</text>'


def _slowest(x: float, y: float, width: float, height: float) -> str:
    return _outline(x + 0.75, y + 0.75, width - 1.5, height - 1.5, ALARM, 1.5)


def _outline(x: float, y: float, width: float, height: float, colour: str, thick: float) -> str:
    place = f'x="{px(x)}" y="{px(y)}" width="{px(max(width, 0.5))}" height="{px(height)}"'
    return f'<rect {place} rx="2" fill="none" stroke="{colour}" stroke-width="{px(thick)}"/>'
