"""`rtk viz`: plans and timelines as pictures and traces."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..schemas.documents import STANDARD_STREAM, parse_document, read_bytes, sniff_format, source_of, write_bytes
from ..schemas.errors import InvalidInputError
from .console import Debug, Json, Quiet, print_json, remark

if TYPE_CHECKING:
    from ..schemas.timeline import Timeline

NAME = "viz"
SUMMARY = "Draw plans and timelines."

ENDINGS = (".html", ".svg", ".json")


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Plans, which are simulated, and timelines; several are laid over each other. `-` is stdin."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="Gantt chart (.html, .svg) or Chrome/Perfetto trace (.json); .gz compresses."
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

    With --json the Chrome trace is printed; with --output too, where the picture was written.
    """
    ending = _ending(output) if output is not None else None
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    timelines = _labelled(files, [_read_timeline(file) for file in files])
    if output is not None:
        write_bytes(output, _draw(timelines, " over ".join(map(_stem, files)), ending))
        remark(f"wrote {output}")
    if as_json:
        print_json({"written": output} if output is not None else _trace(timelines))
    if terminal or not (as_json or output is not None):
        _print_chart(timelines, to_stderr=as_json)


def _ending(output: str) -> str:
    ending = Path(output.removesuffix(".gz")).suffix
    if ending not in ENDINGS:
        raise InvalidInputError(
            f"the ending {ending!r} names no picture" if ending else "without an ending the kind of picture is unknown",
            where=f"--output {output}",
            fix=f"end it in {', '.join(ENDINGS)}, or these and .gz; --json prints the trace, --terminal a chart",
        )
    return ending


def _read_timeline(path: str) -> "Timeline":
    """Read a timeline, or a plan and simulate it: two iterations if its optimizers are staggered, for they overlap."""
    from ..runners.simulator import simulate
    from ..schemas.check import require_valid
    from ..schemas.plan import Plan
    from ..schemas.timeline import Timeline

    source = source_of(path)
    data = read_bytes(path)
    found = sniff_format(data, source)
    if found not in (Plan.FORMAT, Timeline.FORMAT):
        raise InvalidInputError(
            f"only plans and timelines can be drawn, this is {found or 'a file that names no format'}",
            where=f"{source}, /format",
            fix="rtk plan makes plans; rtk simulate and rtk run write timelines",
        )
    if found == Timeline.FORMAT:
        return parse_document(data, Timeline, source)
    plan = parse_document(data, Plan, source)
    require_valid(plan, source)
    simulation = simulate(plan)
    return simulation.repeated(2) if plan.optimizer == "staggered" else simulation.timeline


def _labelled(files: list[str], timelines: "list[Timeline]") -> "list[tuple[str, Timeline]]":
    """Each timeline with a label of its own: its source, then the file's stem, then a number, as far as needed."""
    labels: list[str] = [timeline.source for timeline in timelines]
    if len(set(labels)) < len(labels):
        labels = [f"{label} {_stem(file)}" for label, file in zip(labels, files, strict=True)]
    if len(set(labels)) < len(labels):
        labels = [f"{label} ({number})" for number, label in enumerate(labels, start=1)]
    return list(zip(labels, timelines, strict=True))


def _stem(path: str) -> str:
    return source_of(path) if path == STANDARD_STREAM else Path(path.removesuffix(".gz")).stem


def _draw(timelines: "list[tuple[str, Timeline]]", title: str, ending: str | None) -> bytes:
    from ..viz.gantt import gantt_html
    from ..viz.svg import gantt_svg

    match ending:
        case ".html":
            return gantt_html(timelines, title).encode()
        case ".svg":
            return gantt_svg(timelines, title).encode()
        case _:
            # Traces are long and read by programs: without the indentation of documents.
            text = json.dumps(_trace(timelines), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
            return f"{text}\n".encode()


def _trace(timelines: "list[tuple[str, Timeline]]") -> dict[str, object]:
    from ..viz.chrome import chrome_trace

    return chrome_trace(timelines)


def _print_chart(timelines: "list[tuple[str, Timeline]]", to_stderr: bool) -> None:
    from rich.console import Console

    from ..viz.terminal import terminal_gantt

    console = Console(file=sys.stderr if to_stderr else sys.stdout, highlight=False)
    for label, timeline in timelines:
        console.print(terminal_gantt(timeline, console.width, label))
