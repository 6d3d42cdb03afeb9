"""Pipeline templates before they are drawn: which stage lies on which GPUs, and how long it takes beside the others."""

from dataclasses import dataclass
from itertools import accumulate

from ..schemas.plan import Stage
from ..schemas.templates import PipelineTemplate, Templates, nodes_of_stages
from .units import print_bytes, print_percent, print_time

_OBJECTIVES = {
    "four-per-stage": "T counts four micro-batches a stage",
    "microbatches": "T counts {} micro-batches a pipeline",
}


@dataclass(frozen=True, slots=True)
class Block:
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
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        """Its size."""
        return _count(self.template.nodes, "node")

    @property
    def shape(self) -> str:
        """Its stages."""
        return _count(len(self.blocks), "stage")

    @property
    def time(self) -> str:
        """T."""
        return f"T {print_time(self.template.iteration_time_s)}"

    @property
    def slowest(self) -> str:
        """Its slowest stage."""
        block = next(block for block in self.blocks if block.is_slowest)
        return f"stage {block.number}: {print_time(block.stage.work_s)}"

    def by_node(self) -> list[list[Block]]:
        """The blocks of each node."""
        nodes: list[list[Block]] = [[] for _ in range(self.template.nodes)]
        for block in self.blocks:
            nodes[block.node].append(block)
        return nodes


def rows_of(templates: Templates) -> tuple[TemplateRow, ...]:
    """Each template with its stages on GPUs, by size."""
    return tuple(TemplateRow(template, _blocks(template, templates.gpus_per_node)) for template in templates.templates)


def _blocks(template: PipelineTemplate, gpus_per_node: int) -> tuple[Block, ...]:
    times_s = [stage.work_s for stage in template.stages]
    most_s = max(times_s)
    slowest = max(range(len(times_s)), key=lambda number: (times_s[number], number))
    nodes = nodes_of_stages(template.stages, gpus_per_node)
    starts = accumulate((stage.tensor_parallel for stage in template.stages[:-1]), initial=0)
    return tuple(
        Block(number, stage, node, start % gpus_per_node, times_s[number] / (most_s or 1.0), number == slowest)
        for number, (stage, node, start) in enumerate(zip(template.stages, nodes, starts, strict=True))
    )


def facts_of(templates: Templates) -> tuple[str, ...]:
    """What the templates are for, in lines."""
    pipelines = templates.fault_tolerance + 1
    layers, gpus = len(templates.layers), _count(templates.gpus_per_node, "GPU")
    sizes = f"{templates.smallest} to {templates.largest}" if len(templates.templates) > 1 else templates.smallest
    objective = _OBJECTIVES[templates.objective].format(templates.templates[0].microbatches)
    return (
        f"{_count(layers, 'layer')} on {sizes} of {_count(templates.nodes, 'node')} with {gpus} each · "
        f"f = {templates.fault_tolerance}: {pipelines} {'pipelines' if pipelines > 1 else 'pipeline'} or more",
        f"{objective}; F, I and W of a stage count together",
    )


def least_share(rows: tuple[TemplateRow, ...]) -> float:
    """A round share of the slowest stage's time that no stage is below: where the colours begin."""
    least = min(block.share for row in rows for block in row.blocks)
    return min(int(least * 10 + 1e-9) / 10, 0.9)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
