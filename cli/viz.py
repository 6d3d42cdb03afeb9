"""`rtk viz`: plans, timelines, pipeline templates and replays as pictures and traces."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import parse_document, sniff_format
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, read_bytes, source_of, write_bytes
from ..viz.drawing import Drawing, ReplaysDrawing, TemplatesDrawing, TimelinesDrawing, drawn, labelled, numbered
from ..viz.style import PICTURE_ENDINGS
from .console import Debug, Json, Quiet, ends_quietly, picture_ending, print_json, remark

if TYPE_CHECKING:
    from ..schemas.timeline import Timeline

NAME = "viz"
SUMMARY = "Draw plans, timelines, pipeline templates and replays."

ENDINGS = (*PICTURE_ENDINGS, ".json")
FIX = f"end it in {', '.join(ENDINGS)}, or these and .gz; --json prints the trace, --terminal a chart"


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Plans, which are simulated, and timelines; several are laid over each other. Or one file of pipeline "
            "templates. Or reports of rtk replay; several are compared. `-` is stdin."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help=f"A picture ({', '.join(PICTURE_ENDINGS)}) or Chrome/Perfetto trace (.json); .gz compresses.",
        ),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Draw in the terminal: the default without --output and --json.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw plans and timelines: an interactive Gantt chart, an image, a trace, or lines in the terminal.

    Of pipeline templates, which stage lies on which GPUs; of replays, throughput over time and where it went; there is
    no trace of either. With --json the Chrome trace is printed; with --output too, where the picture was written.

    Images are 1280 pixels wide; a .png has two pixels for each of them. The same files give the same bytes.
    """
    ending = "" if output is None else picture_ending(output, ENDINGS, FIX)
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    drawing = _read(files)
    if output is not None:
        write_bytes(output, drawn(drawing, " over ".join(map(_stem, files)), ending))
        remark(f"wrote {output}")
    if as_json:
        print_json({"written": output} if output is not None else drawing.trace())
    if terminal or not (as_json or output is not None):
        _print_charts(drawing, to_stderr=as_json)


def _read(files: list[str]) -> Drawing:
    from ..schemas.replay_report import ReplayReport
    from ..schemas.templates import Templates

    documents = [(source_of(file), read_bytes(file)) for file in files]
    formats = [sniff_format(data, source) for source, data in documents]
    if set(formats) == {ReplayReport.FORMAT}:
        reports = [parse_document(data, ReplayReport, source) for source, data in documents]
        return ReplaysDrawing(list(zip(numbered(list(map(_stem, files))), reports, strict=True)))
    if Templates.FORMAT not in formats:
        return TimelinesDrawing(labelled([_timeline(*document) for document in documents], list(map(_stem, files))))
    if len(files) > 1:
        raise InvalidInputError(
            f"{len(files)} files, with pipeline templates among them",
            where="FILE",
            fix="only plans and timelines are laid over each other: draw templates by themselves",
        )
    source, data = documents[0]
    return TemplatesDrawing(parse_document(data, Templates, source))


def _timeline(source: str, data: bytes) -> "Timeline":
    """Read a timeline, or a plan and simulate it: two iterations if its optimizers are staggered, for they overlap."""
    from ..schemas.check import require_valid
    from ..schemas.plan import Plan
    from ..schemas.timeline import Timeline
    from ..wiring import timeline_of

    found = sniff_format(data, source)
    if found not in (Plan.FORMAT, Timeline.FORMAT):
        raise InvalidInputError(
            "only plans, timelines, templates and replays can be drawn, and replays not together with others; "
            f"this is {found or 'a file that names no format'}",
            where=f"{source}, /format",
            fix="rtk plan makes plans and templates; rtk simulate and rtk run write timelines; rtk replay its reports",
        )
    if found == Timeline.FORMAT:
        return parse_document(data, Timeline, source)
    plan = parse_document(data, Plan, source)
    require_valid(plan, source)
    return timeline_of(plan)


def _stem(path: str) -> str:
    return source_of(path) if path == STANDARD_STREAM else Path(path.removesuffix(".gz")).stem


def _print_charts(drawing: Drawing, to_stderr: bool) -> None:
    from rich.console import Console

    console = ends_quietly(Console(file=sys.stderr if to_stderr else sys.stdout, highlight=False))
    for chart in drawing.charts(console.width):
        console.print(chart)
