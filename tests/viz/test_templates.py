"""Pictures of pipeline templates."""

import io
import re
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from rtk.cli import viz
from rtk.schemas.documents import canonical, write_document
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.plan import Link, Plan, Planner, Stage
from rtk.schemas.templates import LayerState, PipelineTemplate, Templates
from rtk.viz.style import STILL_ENDINGS
from rtk.viz.templates import facts_of, rows_of, templates_html, templates_picture
from rtk.viz.terminal import terminal_templates

from .pictures import SVG, boxes, overlapping, placed_words, texts, tips

NUMBER = r"([0-9]+)"


def template(nodes: int, gpus_per_node: int, layers: int, chance: Random) -> PipelineTemplate:
    """Stages of any degrees that fill the nodes, of any layers and times."""
    degrees = [degree for _ in range(nodes) for degree in parts(gpus_per_node, chance)]
    if len(degrees) > layers:
        degrees = [gpus_per_node] * nodes
    cuts = [0, *sorted(chance.sample(range(1, layers), len(degrees) - 1)), layers]
    stages = tuple(
        Stage((first, stop), 0.1, 0.1, chance.choice((0.1, 0.2)), tensor_parallel=degree, activation_bytes=1024.0)
        for first, stop, degree in zip(cuts, cuts[1:], degrees, strict=False)
    )
    return PipelineTemplate(nodes, 1.5 * nodes, 4 * len(stages), stages, (Link(),) * (len(stages) - 1))


def parts(whole: int, chance: Random) -> list[int]:
    found: list[int] = []
    while sum(found) < whole:
        found.append(chance.randint(1, whole - sum(found)))
    return found


def make(sizes: range, gpus_per_node: int, layers: int, seed: int = 0) -> Templates:
    chance = Random(seed)
    return Templates(
        Planner("by hand", "1", {}),
        "four-per-stage",
        fault_tolerance=1,
        nodes=sizes[0] + sizes[-1],
        gpus_per_node=gpus_per_node,
        templates=tuple(template(nodes, gpus_per_node, layers, chance) for nodes in sizes),
        layers=(LayerState(),) * layers,
    )


@pytest.fixture
def small() -> Templates:
    """Two and three nodes of four GPUs, eight layers."""
    return make(range(2, 4), 4, 8)


def numbers(tip: str) -> tuple[int, ...]:
    """Stage, first layer, last layer, GPUs and node that a tip says."""
    pattern = rf"stage {NUMBER}: layers? {NUMBER}(?:–{NUMBER})?, tensor parallelism {NUMBER} \(node {NUMBER},"  # noqa: RUF001
    found = re.match(pattern, tip)
    assert found
    stage, first, last, degree, node = found.groups()
    return int(stage), int(first), int(last or first), int(degree), int(node)


shapes = st.tuples(st.integers(1, 12), st.integers(1, 4), st.integers(1, 9), st.integers(0, 20), st.integers(0, 99))


@settings(max_examples=15, deadline=None)
@given(shape=shapes)
def test_every_layer_is_there_once_a_size(shape: tuple[int, ...]) -> None:
    """Of each template each stage is one bar, whose layers follow each other and whose GPUs fill the nodes."""
    smallest, sizes, gpus, more, seed = shape
    made = make(range(smallest, smallest + sizes), gpus, smallest + sizes + more, seed)
    told = [numbers(tip) for tip in tips(templates_picture(made, "t"))]
    starts = [place for place, (stage, *_) in enumerate(told) if stage == 0]
    assert len(starts) == sizes
    for start, stop, one in zip(starts, [*starts[1:], len(told)], made.templates, strict=True):
        row = told[start:stop]
        assert [layer for _, first, last, *_ in row for layer in range(first, last + 1)] == [*range(len(made.layers))]
        filled = Counter(dict.fromkeys(range(one.nodes), 0))
        for *_, degree, node in row:
            filled[node] += degree
        assert set(filled.values()) == {gpus} and len(filled) == one.nodes


@settings(max_examples=6, deadline=None)
@given(shape=shapes)
def test_nothing_lies_outside_the_image(shape: tuple[int, ...]) -> None:
    """Bars and boxes have a size and lie within the frame, however many nodes and GPUs there are."""
    smallest, sizes, gpus, more, seed = shape
    inside(make(range(smallest, smallest + sizes), gpus, smallest + sizes + more, seed))


@pytest.mark.parametrize(("sizes", "gpus"), [(range(103, 105), 8), (range(1, 2), 1), (range(1, 3), 200)])
def test_extreme_sizes_are_drawn(sizes: range, gpus: int) -> None:
    """Of 104 nodes those that do not fit beside each other go on in other lines; one GPU is a bar, and so are 200."""
    inside(make(sizes, gpus, 220))


def inside(made: Templates) -> None:
    picture = templates_picture(made, "a title that is much too long for its picture " * 6)
    width, height = picture.size
    words = placed_words(picture)
    for name, place in [*words, *(("box", place) for place in boxes(picture))]:
        assert -0.5 <= place.x0 < place.x1 <= width + 0.5 and -0.5 <= place.y0 < place.y1 <= height + 0.5, name
    assert overlapping(words) == []


def test_words_beside_a_row(small: Templates) -> None:
    """Each row says its size, its stages, T and its slowest stage; above stands what the templates are for."""
    words = texts(templates_picture(small, "a < b"))
    for row in rows_of(small):
        assert {row.name, row.shape, row.time, row.slowest} <= set(words)
    assert "a < b" in words
    assert "8 layers on 2 to 3 of 5 nodes with 4 GPUs each · f = 1: 2 pipelines or more" in words


def test_the_last_slowest_stage_is_marked() -> None:
    """Of equally slow stages the last is the slowest, as in the objective; its share is 1."""
    times_s = (0.2, 0.4, 0.4, 0.1)
    stages = tuple(Stage((i, i + 1), time_s, 0.0, 0.0) for i, time_s in enumerate(times_s))
    one = PipelineTemplate(4, 1.0, 16, stages, (Link(),) * 3)
    made = Templates(Planner("by hand", "1", {}), "microbatches", 0, 4, 1, (one,), (LayerState(),) * 4)
    (row,) = rows_of(made)
    assert [block.is_slowest for block in row.blocks] == [False, False, True, False]
    assert [block.share for block in row.blocks] == [0.5, 1, 1, 0.25]
    assert row.slowest == "stage 2: 400 ms"
    assert facts_of(made)[1].startswith("T counts 16 micro-batches a pipeline")


def test_the_page_has_the_image_and_says_how_to_read_it(small: Templates) -> None:
    """The page is the image with a guide; it loads nothing."""
    page = templates_html(small, "a < b")
    assert page.startswith("<!DOCTYPE html>") and "<h1>a &lt; b</h1>" in page
    assert not re.search(r"(?:src|href)=", page)
    image = page[page.index("<svg") : page.index("</svg>") + 6]
    drawn = [node.text for node in ElementTree.fromstring(image).iter(f"{SVG}text")]
    assert drawn and set(drawn) < set(texts(templates_picture(small, "t")))


@pytest.mark.parametrize("width", [30, 80])
def test_lines_of_text(small: Templates, width: int) -> None:
    """In the terminal each template is a paragraph with all its stages in order, and one of them is the slowest."""
    console = Console(file=io.StringIO(), width=400)
    text = terminal_templates(small, width)
    console.print(text)
    for one, paragraph in zip(small.templates, text.plain.split(" nodes, ")[1:], strict=True):
        told = [(int(a), int(b or a), int(d)) for a, b, d in re.findall(r"(\d+)(?:–(\d+))?x(\d+)", paragraph)]  # noqa: RUF001
        expected = [(stage.layers[0], stage.layers[1] - 1, stage.tensor_parallel) for stage in one.stages]
        assert told[: len(expected)] == expected
        assert paragraph.count("[") - paragraph.count("[…]") == one.nodes
        assert paragraph.partition("[…]")[0].count("*") == 1


@pytest.fixture
def files(tmp_path: Path, small: Templates, rerouted_plan: Plan) -> SimpleNamespace:
    paths = SimpleNamespace(templates=str(tmp_path / "t.json"), plan=str(tmp_path / "plan.json"), folder=tmp_path)
    write_document(paths.templates, small)
    write_document(paths.plan, rerouted_plan)
    return paths


def run(*arguments: str) -> None:
    app = typer.Typer()
    app.command()(viz.command)
    app(list(arguments), standalone_mode=False)


def test_the_command_draws_templates(
    files: SimpleNamespace, small: Templates, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rtk viz` writes a page or an image by the output's ending, and draws in the terminal without one."""
    run(files.templates, "-o", str(files.folder / "x.html"))
    assert (files.folder / "x.html").read_text() == templates_html(small, "t")
    for ending in STILL_ENDINGS:
        run(files.templates, "-o", str(files.folder / f"x{ending}"))
        assert (files.folder / f"x{ending}").read_bytes() == templates_picture(small, "t").data(ending)
    capsys.readouterr()
    run(files.templates)
    assert "2 nodes, " in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(canonical(small))))
    run("-")
    assert "3 nodes, " in capsys.readouterr().out


def test_what_makes_no_sense_is_refused(files: SimpleNamespace) -> None:
    """There is no trace of templates, and nothing is laid over them."""
    trace = str(files.folder / "x.json")
    for ask in (partial(run, files.templates, "-o", trace), partial(run, files.templates, "--json")):
        with pytest.raises(InvalidInputError, match="templates have no trace"):
            ask()
    assert not Path(trace).exists()
    for pair in ((files.templates, files.plan), (files.plan, files.templates), (files.templates, files.templates)):
        with pytest.raises(InvalidInputError, match="2 files, with pipeline templates among them"):
            run(*pair)
