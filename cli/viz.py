"""`rtk viz`: plans, timelines, pipeline templates and replays as pictures and traces."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.errors import InvalidInputError, remark
from ..schemas.files import STANDARD_STREAM, source_of, written
from ..schemas.plan import name_of, parse_place
from ..schemas.quantities import parse_time_s
from ..viz.style import PICTURE_ENDINGS, TRACE_ENDINGS
from .console import Common, Writes, ends_quietly, grouped, picture_ending, print_json

if TYPE_CHECKING:
    from ..schemas.columns import Selection

ENDINGS = (*PICTURE_ENDINGS, *TRACE_ENDINGS)
FIX = f"end it in {', '.join(ENDINGS)}, or these and .gz; --json prints the trace, --terminal a chart"


@grouped
def command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Plans and resumptions, which are simulated, and timelines; several are laid over each other. Or one "
            "file of pipeline templates. Or reports of rtk replay; several are compared. `-` is stdin."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help=f"A picture ({', '.join(PICTURE_ENDINGS)}) a Chrome trace (.json) or a "
            "Perfetto trace (.perfetto-trace, .pftrace); .gz compresses. A folder (DIR/): a Chrome trace a rank.",
        ),
        Writes(),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Draw in the terminal: the default without --output and --json.")
    ] = False,
    pipelines: Annotated[
        str | None, typer.Option("--pipelines", metavar="K[-K],…", help="Only these pipelines, such as 0-3,7.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option("--workers", metavar="K/I,…", help="Only these workers, such as 0/1,1/1.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option("--from", metavar="DURATION", help="Only what happens from this time on, such as 1.5s or 20ms."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="DURATION", help="Only what happens until then.")
    ] = None,
    iterations: Annotated[
        str | None,
        typer.Option(
            "--iterations",
            metavar="N|A:B",
            help="Only iteration N, or A to B, beginning at 0. A timeline of one iteration is drawn as it is, so a "
            "simulation can be laid over any iteration of a run.",
        ),
    ] = None,
    plotly: Annotated[bool, typer.Option("--plotly", help="Make the page with plotly: larger and slower.")] = False,
    *,
    common: Common,
) -> None:
    """Draw plans and timelines: an interactive Gantt chart, an image, a trace, or lines in the terminal.

    Of pipeline templates, which stage lies on which GPUs; of replays, throughput over time and where it went; there is
    no trace of either. With --json the Chrome trace is printed; with --output too, where the picture was written.

    Images are 1280 pixels wide; a .png has two pixels for each of them. The same files give the same bytes.
    """
    from ..viz.drawing import drawn, write_ranks
    from ..wiring import drawing_of_files

    is_folder = output is not None and output.endswith("/")
    ending = "" if output is None or is_folder else picture_ending(output, ENDINGS, FIX)
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    names = [source_of(file) if file == STANDARD_STREAM else Path(file.removesuffix(".gz")).stem for file in files]
    drawing = drawing_of_files(files, names, _selection(pipelines, workers, from_time, until, iterations))
    if output is not None and is_folder:
        write_ranks(drawing, output)
        remark(f"wrote {output}")
    elif output is not None:
        pieces = drawn(drawing, drawing.title or " over ".join(names), ending, plotly)
        with written(output) as stream:
            stream.writelines(pieces)
        remark(f"wrote {output}")
    if common.as_json:
        print_json({"written": output} if output is not None else json.loads("".join(drawing.trace())))
    if terminal or not (common.as_json or output is not None):
        from rich.console import Console

        console = ends_quietly(Console(file=sys.stderr if common.as_json else sys.stdout, highlight=False))
        for chart in drawing.charts(console.width):
            console.print(chart)


def _selection(
    pipelines: str | None, workers: str | None, from_time: str | None, until: str | None, iterations: str | None
) -> "Selection | None":
    """What the options choose; None: all."""
    if all(one is None for one in (pipelines, workers, from_time, until, iterations)):
        return None
    from ..schemas.columns import Selection

    from_s = None if from_time is None else parse_time_s(from_time, "--from")
    until_s = None if until is None else parse_time_s(until, "--until")
    if until_s is not None and until_s <= (from_s or 0.0):
        raise InvalidInputError("the part ends before it begins", where="--until", fix="give a later time than --from")
    return Selection(
        None if pipelines is None else _numbers(pipelines),
        None if workers is None else frozenset(name_of(parse_place(one, "--workers")) for one in workers.split(",")),
        from_s,
        until_s,
        None if iterations is None else _from_to(iterations, ":", "--iterations", "3, or 3:5 for 3 to 5"),
    )


def _numbers(text: str) -> frozenset[int]:
    """`0-3,7`: the numbers that it says."""
    parts = [_from_to(part, "-", "--pipelines", "0, or 0-3,7") for part in text.split(",")]
    return frozenset(number for first, last in parts for number in range(first, last + 1))


def _from_to(text: str, between: str, option: str, example: str) -> tuple[int, int]:
    """`3` or `3:5`: the first and the last number."""
    match = re.fullmatch(rf"(\d{{1,6}})(?:{between}(\d{{1,6}}))?", text.strip())
    if match is None:
        raise InvalidInputError(f"{text!r} cannot be read", where=option, fix=f"write {example}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise InvalidInputError(f"{text!r} ends before it begins", where=option, fix=f"write {example}")
    return first, last
