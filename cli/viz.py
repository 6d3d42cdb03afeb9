"""`rtk viz`: plans, timelines, pipeline templates and replays as pictures and traces."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from ..schemas.documents import parse_document, sniff_format
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM, read_bytes, source_of, write_bytes
from ..viz.style import PICTURE_ENDINGS, STILL_ENDINGS
from .console import Debug, Json, Quiet, ends_quietly, picture_ending, print_json, remark

if TYPE_CHECKING:
    from rich.text import Text

    from ..schemas.replay_report import ReplayReport
    from ..schemas.templates import Templates
    from ..schemas.timeline import Timeline
    from ..viz.painter import Picture

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
    ending = picture_ending(output, ENDINGS, FIX) if output is not None else None
    if files.count(STANDARD_STREAM) > 1:
        raise InvalidInputError("standard input can be read only once", where="FILE", fix="give one `-`")
    drawing = _read(files)
    if output is not None:
        write_bytes(output, _draw(drawing, " over ".join(map(_stem, files)), ending))
        remark(f"wrote {output}")
    if as_json:
        print_json({"written": output} if output is not None else drawing.trace())
    if terminal or not (as_json or output is not None):
        _print_charts(drawing, to_stderr=as_json)


class Drawing(Protocol):
    """What files show, in each of its forms."""

    def html(self, title: str) -> str:
        """A page."""
        ...

    def picture(self, title: str) -> "Picture":
        """A still picture."""
        ...

    def trace(self) -> dict[str, Any]:
        """A Chrome trace."""
        ...

    def charts(self, width: int) -> "list[Text]":
        """Text for a terminal of so many columns."""
        ...


@dataclass(frozen=True)
class TimelinesDrawing:
    """Timelines with their labels."""

    timelines: "list[tuple[str, Timeline]]"

    def html(self, title: str) -> str:
        """A Gantt chart, all over each other."""
        from ..viz.gantt import gantt_html

        return gantt_html(self.timelines, title)

    def picture(self, title: str) -> "Picture":
        """A Gantt chart, all over each other."""
        from ..viz.timeline import timelines_picture

        return timelines_picture(self.timelines, title)

    def trace(self) -> dict[str, Any]:
        """All in one trace."""
        from ..viz.chrome import chrome_trace

        return chrome_trace(self.timelines)

    def charts(self, width: int) -> "list[Text]":
        """A Gantt chart each."""
        from ..viz.terminal import terminal_gantt

        return [terminal_gantt(timeline, width, label) for label, timeline in self.timelines]


@dataclass(frozen=True)
class TemplatesDrawing:
    """Pipeline templates."""

    templates: "Templates"

    def html(self, title: str) -> str:
        """The image, and how to read it."""
        from ..viz.templates import templates_html

        return templates_html(self.templates, title)

    def picture(self, title: str) -> "Picture":
        """Nodes, and stages in them."""
        from ..viz.templates import templates_picture

        return templates_picture(self.templates, title)

    def trace(self) -> dict[str, Any]:
        """None: it is an error to ask for it."""
        raise InvalidInputError(
            "templates have no trace: in them nothing happens at any time",
            where="--json, or an output in .json",
            fix=f"draw them as {' or '.join(PICTURE_ENDINGS)}, or a plan that rtk plan oobleck makes of them",
        )

    def charts(self, width: int) -> "list[Text]":
        """A paragraph a size."""
        from ..viz.terminal import terminal_templates

        return [terminal_templates(self.templates, width)]


@dataclass(frozen=True)
class ReplaysDrawing:
    """Reports of replays, with their labels."""

    reports: "list[tuple[str, ReplayReport]]"

    def html(self, title: str) -> str:
        """A page to be mailed; of several reports, one that compares them."""
        from ..viz.replay_page import comparison_html, replay_html

        if len(self.reports) == 1:
            return replay_html(self.reports[0][1])
        labels, reports = zip(*self.reports, strict=True)
        return comparison_html(reports, labels)

    def picture(self, title: str) -> "Picture":
        """The pictures of the page, one under the other."""
        from ..viz.replay_pictures import replay_picture

        return replay_picture(self.reports)

    def trace(self) -> dict[str, Any]:
        """None: it is an error to ask for it."""
        raise InvalidInputError(
            "a replay has no trace of operations: it knows iterations only as a number of seconds",
            where="--json, or an output in .json",
            fix=f"draw it as {' or '.join(PICTURE_ENDINGS)}; rtk simulate --inject tells failures op by op",
        )

    def charts(self, width: int) -> "list[Text]":
        """A bar a policy."""
        from ..viz.terminal import terminal_replay

        return [terminal_replay(report, width) for _, report in self.reports]


def _read(files: list[str]) -> Drawing:
    from ..schemas.replay_report import ReplayReport
    from ..schemas.templates import Templates

    documents = [(source_of(file), read_bytes(file)) for file in files]
    formats = [sniff_format(data, source) for source, data in documents]
    if set(formats) == {ReplayReport.FORMAT}:
        reports = [parse_document(data, ReplayReport, source) for source, data in documents]
        return ReplaysDrawing(list(zip(_numbered(list(map(_stem, files))), reports, strict=True)))
    if Templates.FORMAT not in formats:
        return TimelinesDrawing(_labelled(files, [_timeline(*document) for document in documents]))
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
    from ..runners.simulator import simulate
    from ..schemas.check import require_valid
    from ..schemas.plan import Plan
    from ..schemas.timeline import Timeline

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
    simulation = simulate(plan)
    return simulation.repeated(2) if plan.optimizer == "staggered" else simulation.timeline


def _labelled(files: list[str], timelines: "list[Timeline]") -> "list[tuple[str, Timeline]]":
    """Each timeline with a label of its own: its source, then the file's stem, then a number, as far as needed."""
    labels: list[str] = [timeline.source for timeline in timelines]
    if len(set(labels)) < len(labels):
        labels = [f"{label} {_stem(file)}" for label, file in zip(labels, files, strict=True)]
    return list(zip(_numbered(labels), timelines, strict=True))


def _numbered(labels: list[str]) -> list[str]:
    """The labels, with numbers where some are alike."""
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]


def _stem(path: str) -> str:
    return source_of(path) if path == STANDARD_STREAM else Path(path.removesuffix(".gz")).stem


def _draw(drawing: Drawing, title: str, ending: str | None) -> bytes:
    if ending == ".html":
        return drawing.html(title).encode()
    if ending in STILL_ENDINGS:
        return drawing.picture(title).data(ending)
    # Traces are long and read by programs: without the indentation of documents.
    text = json.dumps(drawing.trace(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"{text}\n".encode()


def _print_charts(drawing: Drawing, to_stderr: bool) -> None:
    from rich.console import Console

    console = ends_quietly(Console(file=sys.stderr if to_stderr else sys.stdout, highlight=False))
    for chart in drawing.charts(console.width):
        console.print(chart)
