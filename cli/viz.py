"""`rtk viz`: plans, timelines, pipeline templates and replays as pictures and traces."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM, source_of, write_bytes
from ..viz.style import PICTURE_ENDINGS
from .console import Common, Writes, ends_quietly, grouped, picture_ending, print_json

NAME = "viz"
SUMMARY = "Draw plans, timelines, pipeline templates and replays."

ENDINGS = (*PICTURE_ENDINGS, ".json")
FIX = f"end it in {', '.join(ENDINGS)}, or these and .gz; --json prints the trace, --terminal a chart"


@grouped
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
        Writes(),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Draw in the terminal: the default without --output and --json.")
    ] = False,
    *,
    common: Common,
) -> None:
    """Draw plans and timelines: an interactive Gantt chart, an image, a trace, or lines in the terminal.

    Of pipeline templates, which stage lies on which GPUs; of replays, throughput over time and where it went; there is
    no trace of either. With --json the Chrome trace is printed; with --output too, where the picture was written.

    Images are 1280 pixels wide; a .png has two pixels for each of them. The same files give the same bytes.
    """
    from ..viz.drawing import drawn
    from ..wiring import drawing_of_files

    ending = "" if output is None else picture_ending(output, ENDINGS, FIX)
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    names = [source_of(file) if file == STANDARD_STREAM else Path(file.removesuffix(".gz")).stem for file in files]
    drawing = drawing_of_files(files, names)
    if output is not None:
        write_bytes(output, drawn(drawing, " over ".join(names), ending))
        remark(f"wrote {output}")
    if common.as_json:
        print_json({"written": output} if output is not None else drawing.trace())
    if terminal or not (common.as_json or output is not None):
        from rich.console import Console

        console = ends_quietly(Console(file=sys.stderr if common.as_json else sys.stdout, highlight=False))
        for chart in drawing.charts(console.width):
            console.print(chart)
