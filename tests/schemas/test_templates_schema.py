"""Templates: sizes that follow each other, stages that lie within nodes, and one clear error where they do not."""

from dataclasses import replace

import pytest

from rtk.schemas.documents import canonical, parse_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Planner, Stage
from rtk.schemas.templates import LayerState, PipelineTemplate, Templates, nodes_of_stages


def stages(*shapes: tuple[int, int]) -> tuple[Stage, ...]:
    """Stages of (layers, GPUs) each."""
    ends = [sum(count for count, _ in shapes[: n + 1]) for n in range(len(shapes))]
    return tuple(
        Stage((end - count, end), 1.0, 1.0, 1.0, tensor_parallel=gpus)
        for end, (count, gpus) in zip(ends, shapes, strict=True)
    )


def template(nodes: int, *shapes: tuple[int, int]) -> PipelineTemplate:
    return PipelineTemplate(nodes, 9.0, 4, stages(*shapes), (Link(),) * (len(shapes) - 1))


TEMPLATES = Templates(
    planner=Planner("templates", "1", {}),
    objective="four-per-stage",
    fault_tolerance=1,
    nodes=3,
    gpus_per_node=3,
    templates=(template(1, (3, 2), (1, 1)), template(2, (1, 1), (2, 2), (1, 3))),
    layers=(LayerState(8.0, 24.0),) * 4,
)


def test_it_reads_back_as_it_was_written() -> None:
    """The canonical bytes give the same document, whose sizes are those of its first and last template."""
    read = parse_document(canonical(TEMPLATES), Templates, "t.json")
    assert read == TEMPLATES
    assert (read.smallest, read.largest) == (1, 2)


def test_stages_fill_one_node_after_the_other() -> None:
    """Nodes are counted within a pipeline, by the GPUs that its stages take."""
    assert nodes_of_stages(TEMPLATES.templates[1].stages, 3) == (0, 0, 1)


@pytest.mark.parametrize(
    ("broken", "where"),
    [
        ((template(1, (3, 2), (1, 1)), template(3, (2, 3), (1, 3), (1, 3))), "/templates"),
        ((template(1, (3, 2), (1, 2)),), "/templates/0/stages/1/tensor_parallel"),
        ((template(1, (3, 2)),), "/templates/0/stages"),
        ((template(1, (4, 2)),), "/templates/0/stages"),
        ((template(2, (4, 3)),), "/templates/0/stages"),
        ((replace(template(1, (4, 3)), links=(Link(),)),), "/templates/0/links"),
        (
            (replace(template(1, (4, 3)), stages=(replace(stages((4, 3))[0], layers=(1, 4)),)),),
            "/templates/0/stages/0/layers",
        ),
    ],
)
def test_contradictions_are_named(broken: tuple[PipelineTemplate, ...], where: str) -> None:
    """Sizes with a gap, stages on two nodes or on half of one, layers or nodes that do not add up, links too many."""
    with pytest.raises(InvalidInputError) as caught:
        replace(TEMPLATES, templates=broken).validate()
    assert caught.value.where == where
