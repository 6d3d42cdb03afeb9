"""Pipeline templates as a picture: a row a size, its nodes as boxes side by side, and in them the stages."""

from dataclasses import dataclass
from itertools import accumulate

from ..schemas.plan import Stage
from ..schemas.quantities import print_bytes, print_percent, print_time
from ..schemas.templates import PipelineTemplate, Templates, nodes_of_stages
from ..schemas.text import counted
from .painter import PAD, WIDTH, Picture, Sheet, painting
from .style import ALARM, FAINT, GROUND, DrawnBox, measured, page, time_colour

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
_OBJECTIVES = {
    "four-per-stage": "T counts four micro-batches a stage",
    "microbatches": "T counts {} micro-batches a pipeline",
}


@dataclass(frozen=True, slots=True)
class StageBlock:
    """One stage on its GPUs.

    Attributes:
        number: of the stage in its pipeline.
        stage: its costs.
        node: where it lies, counted from 0 within the pipeline.
        gpu: its first GPU, counted from 0 within the node.
        share: its time, of the slowest stage's.
        is_slowest: of equally slow stages the last is it, as in the objective.
    """

    number: int
    stage: Stage
    node: int
    gpu: int
    share: float
    is_slowest: bool

    @property
    def layers(self) -> str:
        """Its layers, in short."""
        first, last = self.stage.layers[0], self.stage.layers[1] - 1
        return f"{first}" if first == last else f"{first}–{last}"  # noqa: RUF001

    @property
    def words(self) -> str:
        """All of it, in a line."""
        stage, last_gpu = self.stage, self.gpu + self.stage.tensor_parallel - 1
        gpus = f"GPU {self.gpu}" if last_gpu == self.gpu else f"GPUs {self.gpu} to {last_gpu}"
        noun = "layer" if stage.layers[1] - stage.layers[0] == 1 else "layers"
        times = ", ".join(f"{kind} {print_time(stage.duration_s(kind))}" for kind in "FIW")
        memory = f"; activations of a micro-batch {print_bytes(stage.activation_bytes)} on each GPU"
        return (
            f"stage {self.number}: {noun} {self.layers}, tensor parallelism {stage.tensor_parallel} (node {self.node}, "
            f"{gpus}); a micro-batch takes {print_time(stage.work_s)} ({times}), {print_percent(self.share)} of the "
            f"slowest stage's time" + (memory if stage.activation_bytes else "")
        )


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """One size of pipeline."""

    template: PipelineTemplate
    blocks: tuple[StageBlock, ...]

    @property
    def name(self) -> str:
        """Its size."""
        return counted(self.template.nodes, "node")

    @property
    def shape(self) -> str:
        """Its stages."""
        return counted(len(self.blocks), "stage")

    @property
    def time(self) -> str:
        """T."""
        return f"T {print_time(self.template.iteration_time_s)}"

    @property
    def slowest(self) -> str:
        """Its slowest stage."""
        block = next(block for block in self.blocks if block.is_slowest)
        return f"stage {block.number}: {print_time(block.stage.work_s)}"

    def by_node(self) -> list[list[StageBlock]]:
        """The blocks of each node."""
        nodes: list[list[StageBlock]] = [[] for _ in range(self.template.nodes)]
        for block in self.blocks:
            nodes[block.node].append(block)
        return nodes


def rows_of(templates: Templates) -> tuple[TemplateRow, ...]:
    """Each template with its stages on GPUs, by size."""
    return tuple(TemplateRow(template, _blocks(template, templates.gpus_per_node)) for template in templates.templates)


def _blocks(template: PipelineTemplate, gpus_per_node: int) -> tuple[StageBlock, ...]:
    times_s = [stage.work_s for stage in template.stages]
    most_s = max(times_s)
    slowest = max(range(len(times_s)), key=lambda number: (times_s[number], number))
    nodes = nodes_of_stages(template.stages, gpus_per_node)
    starts = accumulate((stage.tensor_parallel for stage in template.stages[:-1]), initial=0)
    return tuple(
        StageBlock(number, stage, node, start % gpus_per_node, times_s[number] / (most_s or 1.0), number == slowest)
        for number, (stage, node, start) in enumerate(zip(template.stages, nodes, starts, strict=True))
    )


def facts_of(templates: Templates) -> tuple[str, ...]:
    """What the templates are for, in lines."""
    pipelines = templates.fault_tolerance + 1
    layers, gpus = len(templates.layers), counted(templates.gpus_per_node, "GPU")
    sizes = f"{templates.smallest} to {templates.largest}" if len(templates.templates) > 1 else templates.smallest
    objective = _OBJECTIVES[templates.objective].format(templates.templates[0].microbatches)
    return (
        f"{counted(layers, 'layer')} on {sizes} of {counted(templates.nodes, 'node')} with {gpus} each · "
        f"f = {templates.fault_tolerance}: {pipelines} {'pipelines' if pipelines > 1 else 'pipeline'} or more",
        f"{objective}; F, I and W of a stage count together",
    )


def least_share(rows: tuple[TemplateRow, ...]) -> float:
    """A round share of the slowest stage's time that no stage is below: where the colours begin."""
    least = min(block.share for row in rows for block in row.blocks)
    return min(int(least * 10 + 1e-9) / 10, 0.9)


@dataclass(frozen=True, slots=True)
class _Rack:
    """Where nodes lie, in pixels: so many in a line, GPUs so wide, bars so high; colours begin at a share."""

    gpus_per_node: int
    nodes_in_line: int
    left: float
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

    def height(self, row: TemplateRow) -> float:
        """Of a template's lines."""
        return -(-row.template.nodes // self.nodes_in_line) * (self.box + LINE_GAP) - LINE_GAP

    def place(self, node: int, top: float) -> tuple[float, float]:
        """Where a node's box begins."""
        line, column = divmod(node, self.nodes_in_line)
        return self.left + column * (self.node + NODE_GAP), top + line * (self.box + LINE_GAP)


def templates_picture(templates: Templates, title: str) -> Picture:
    """Draw pipeline templates as a still picture.

    Args:
        templates: of any number of sizes; where their nodes do not fit beside each other, they go on in another line.
        title: stands above.
    """
    return _picture(templates, title, has_heading=True)


def templates_html(templates: Templates, title: str) -> str:
    """Draw pipeline templates as one HTML page that needs no network: the image, and how to read it.

    Args:
        templates: as for the image.
        title: the page's title.
    """
    return page(title, facts_of(templates), _picture(templates, title, has_heading=False).svg(), _GUIDE)


@painting()
def _picture(templates: Templates, title: str, has_heading: bool) -> Picture:
    rows, sheet = rows_of(templates), Sheet(title)
    if has_heading:
        sheet.heading(facts_of(templates))
    left = PAD + 10 + max(measured(words) for row in rows for words in (row.name, row.shape))
    right = WIDTH - PAD - 14 - max(measured(words) for row in rows for words in (row.time, row.slowest))
    gpus, room = templates.gpus_per_node, right - left + NODE_GAP
    fitting = int(room / (gpus * NARROWEST_GPU + 2 * NODE_EDGE + NODE_GAP))
    nodes = max(min(fitting, templates.largest), 1)
    gpu = (room / nodes - NODE_GAP - 2 * NODE_EDGE) / gpus
    longest = max(measured(block.layers) for row in rows for block in row.blocks)
    rack = _Rack(gpus, nodes, left, min(gpu, WIDEST_GPU), max(LOWEST_BAR, longest + 6), least_share(rows))
    _draw_key(sheet, rack)
    boxes: list[DrawnBox] = []
    for row in rows:
        boxes += _drawn_row(sheet, rack, row)
        sheet.y += rack.height(row) + ROW_GAP
    sheet.boxes(None, boxes)
    sheet.y += 4
    return sheet.picture()


def _draw_key(sheet: Sheet, rack: _Rack) -> None:
    """What the colours say."""
    sheet.y += 18
    x, y, words = float(PAD), sheet.y, "a stage's time, of the slowest in its row:"
    for label in (words, print_percent(rack.least_share)):
        sheet.words(x, y, label)
        x += measured(label) + 6
    step = KEY_WIDTH / KEY_STEPS
    ramp = [
        DrawnBox(x + n * step, x + (n + 1) * step, y - 10, y + 2, time_colour((n + 0.5) / KEY_STEPS))
        for n in range(KEY_STEPS)
    ]
    x += KEY_WIDTH + 6
    sheet.words(x, y, "100 %")
    x += measured("100 %") + 24
    sheet.boxes(None, [*ramp, DrawnBox(x, x + 16, y - 10, y + 2, None, edge=ALARM)])
    sheet.words(x + 22, y, "the slowest stage")
    sheet.words(x + 46 + measured("the slowest stage"), y, "tp: tensor parallelism, the stage's GPUs", FAINT)
    sheet.y += 20


def _drawn_row(sheet: Sheet, rack: _Rack, row: TemplateRow) -> list[DrawnBox]:
    """The words beside a template, and its boxes: nodes, and in them stages as wide as their GPUs."""
    top = sheet.y
    middle = top + NODE_EDGE + rack.bar / 2
    beside = rack.place(rack.nodes_in_line - 1, top)[0] + rack.node + 14
    sheet.words(rack.left - 10, middle - 3, row.name, side="right")
    sheet.words(rack.left - 10, middle + 12, row.shape, FAINT, side="right")
    sheet.words(beside, middle - 3, row.time)
    sheet.words(beside, middle + 12, row.slowest, ALARM)
    boxes, low = [], rack.least_share
    for node, blocks in enumerate(row.by_node()):
        left, y = rack.place(node, top)
        boxes.append(DrawnBox(left, left + rack.node, y, y + rack.box, None, edge=GROUND, edge_width=1.0))
        for block in blocks:
            x = left + NODE_EDGE + block.gpu * rack.gpu + 0.5
            width = block.stage.tensor_parallel * rack.gpu - 1
            boxes.append(
                DrawnBox(
                    x, x + width, y + NODE_EDGE, y + NODE_EDGE + rack.bar,
                    time_colour((block.share - low) / (1 - low)),
                    labels=(f"{block.layers}\ntp {block.stage.tensor_parallel}", block.layers),
                    tip=block.words, upright=True, edge=ALARM if block.is_slowest else None,
                )
            )  # fmt: skip
    return boxes
