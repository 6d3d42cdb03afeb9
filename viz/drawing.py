"""What documents show, in each form of a picture: a page, a still picture, a trace, lines for a terminal.

`PAINTERS` says who draws which documents.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..schemas.bubble import BubbleReport
from ..schemas.columns import columns_of
from ..schemas.errors import InvalidInputError
from ..schemas.files import written
from ..schemas.ledger import GoodputLedger
from ..schemas.replay import ReplayReport
from ..schemas.templates import Templates
from ..schemas.timeline import Timeline
from .facts import Drawable, LabelledColumns, title_of
from .style import PERFETTO_ENDINGS, PICTURE_ENDINGS, STILL_ENDINGS, TRACE_ENDINGS

if TYPE_CHECKING:
    from rich.text import Text

    from .painter import Picture


RECORDS = 5_000  # of a trace that are written at once


@dataclass(frozen=True)
class Drawing:
    """What files show, in each of its forms; each is made when it is asked for.

    Attributes:
        html: a page, by its title.
        picture: a still picture, by its title.
        trace: the pieces of a Chrome trace's text; an error where there is none.
        charts: text for a terminal of so many columns.
        plotly: a page with plotly in it, by its title; None: there is none.
        title: what they are; empty: nothing better than their files' names.
        packets: the pieces of a Perfetto trace; None: there is none, and `trace` says so.
        ranks: of one timeline a trace a rank, its file's name and its pieces; None: there are none.
    """

    html: Callable[[str], str]
    picture: "Callable[[str], Picture]"
    trace: Callable[[], Iterator[str]]
    charts: "Callable[[int], list[Text]]"
    plotly: Callable[[str], str] | None = None
    title: str = ""
    packets: Callable[[], Iterator[bytes]] | None = None
    ranks: Callable[[], Iterator[tuple[str, Iterator[str]]]] | None = None


def _of_timelines(documents: Sequence[Drawable], names: Sequence[str]) -> Drawing:
    """Gantt charts of timelines: all over each other, in a terminal one each."""
    from .chrome import trace_pieces
    from .gantt import gantt_html
    from .perfetto import perfetto_pieces
    from .rank_traces import rank_traces

    timelines = labelled(documents, names)

    def picture(title: str) -> "Picture":
        from .timeline import timelines_picture  # loads matplotlib

        return timelines_picture(timelines, title)

    def charts(width: int) -> "list[Text]":
        from .terminal import terminal_gantt

        return [terminal_gantt(timeline, width, label) for label, timeline in timelines]

    def plotly(title: str) -> str:
        from .figure import plotly_html  # loads plotly

        return plotly_html(timelines, title)

    return Drawing(
        lambda title: gantt_html(timelines, title),
        picture,
        lambda: trace_pieces(timelines),
        charts,
        plotly,
        title_of(timelines),
        lambda: perfetto_pieces(timelines),
        (lambda: rank_traces(timelines[0][1])) if len(timelines) == 1 else None,
    )


def _of_templates(documents: Sequence[Templates], names: Sequence[str]) -> Drawing:
    """Pipeline templates: nodes, and stages in them; in a terminal a paragraph a size."""
    from .templates import templates_html, templates_picture

    (templates,) = documents

    def charts(width: int) -> "list[Text]":
        from .terminal import terminal_templates

        return [terminal_templates(templates, width)]

    return Drawing(
        lambda title: templates_html(templates, title),
        lambda title: templates_picture(templates, title),
        lambda: _no_trace(
            "templates have no trace: in them nothing happens at any time",
            f"draw them as {' or '.join(PICTURE_ENDINGS)}, or a plan that rtk plan oobleck makes of them",
        ),
        charts,
    )


def _of_replays(documents: Sequence[ReplayReport], names: Sequence[str]) -> Drawing:
    """Reports of replays: a page to be mailed, of several one that compares them."""
    from .replay import replay_picture
    from .replay_page import comparison_html, replay_html

    reports = list(zip(numbered(names), documents, strict=True))

    def html(title: str) -> str:
        if len(reports) == 1:
            return replay_html(reports[0][1])
        return comparison_html([report for _, report in reports], [label for label, _ in reports])

    def charts(width: int) -> "list[Text]":
        from .terminal import terminal_replay

        return [terminal_replay(report, width) for _, report in reports]

    return Drawing(
        html,
        lambda title: replay_picture(reports),
        lambda: _no_trace(
            "a replay has no trace of operations: it knows iterations only as a number of seconds",
            f"draw it as {' or '.join(PICTURE_ENDINGS)}; rtk simulate --inject tells failures op by op",
        ),
        charts,
    )


def _of_ledgers(documents: Sequence[GoodputLedger], names: Sequence[str]) -> Drawing:
    """The ledger of a job: a page to be handed on."""
    from .ledger import ledger_html

    (ledger,) = documents

    def picture(title: str) -> "Picture":
        from .ledger import ledger_picture  # loads matplotlib

        return ledger_picture(ledger, title)

    def charts(width: int) -> "list[Text]":
        from .terminal import terminal_ledger

        return [terminal_ledger(ledger, width)]

    return Drawing(
        lambda title: ledger_html(ledger, title),
        picture,
        lambda: _no_trace(
            "a ledger has no trace of operations: it knows iterations only as a number of seconds",
            f"draw it as {' or '.join(PICTURE_ENDINGS)}; rtk goodput --trace writes its failures",
        ),
        charts,
        title=f"Where the GPU-hours of {', '.join(ledger.lines.formats) or names[0]} went",
    )


def _of_bubbles(documents: Sequence[BubbleReport], names: Sequence[str]) -> Drawing:
    """A report of bubbles: a bar a stage."""
    from .bubble import bubble_chart, bubble_html, bubble_picture, title_of_bubble

    (report,) = documents
    return Drawing(
        lambda title: bubble_html(report, title),
        lambda title: bubble_picture(report, title),
        lambda: _no_trace(
            "a report of bubbles has no trace: it knows stages only as sums of seconds",
            f"draw it as {' or '.join(PICTURE_ENDINGS)}, or the timeline that it was made from",
        ),
        lambda width: [bubble_chart(report, width)],
        title=title_of_bubble(report),
    )


def _no_trace(what: str, fix: str) -> Iterator[str]:
    raise InvalidInputError(what, where=f"--json, or an output in {', '.join(TRACE_ENDINGS)}", fix=fix)


class Painter(NamedTuple):
    """Who draws documents of a kind.

    Attributes:
        noun: what they are called, of several.
        drawing_of: documents of the kind, with a name for each.
        alone: what they are called in full, where several cannot be drawn together; empty: they can.
    """

    noun: str
    drawing_of: Callable[[Sequence[Any], Sequence[str]], Drawing]
    alone: str = ""


# By kind, in the order in which they are named to people; a plan is drawn as the timeline of its simulation.
PAINTERS: dict[type[Any], Painter] = {
    Timeline: Painter("timelines", _of_timelines),
    Templates: Painter("templates", _of_templates, alone="pipeline templates"),
    ReplayReport: Painter("replays", _of_replays),
    GoodputLedger: Painter("ledgers", _of_ledgers, alone="a ledger"),
    BubbleReport: Painter("reports of bubbles", _of_bubbles, alone="a report of bubbles"),
}


def labelled(timelines: Sequence[Drawable], names: Sequence[str]) -> list[LabelledColumns]:
    """Each timeline with a label of its own: its source, then its name, then a number, as far as needed."""
    labels: list[str] = [timeline.source for timeline in timelines]
    if len(set(labels)) < len(labels):
        labels = [f"{label} {name}" for label, name in zip(labels, names, strict=True)]
    return list(zip(numbered(labels), map(columns_of, timelines), strict=True))


def numbered(labels: Sequence[str]) -> list[str]:
    """The labels, with numbers where some are alike."""
    if len(set(labels)) == len(labels):
        return list(labels)
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]


def drawn(drawing: Drawing, title: str, ending: str, by_plotly: bool = False) -> Iterator[bytes]:
    """A picture's file, piece by piece.

    Args:
        drawing: what to draw.
        title: of the picture.
        ending: of the file's name: `.html`, `.svg`, `.png`, `.pdf`, `.json` for a Chrome trace, `.perfetto-trace` or
            `.pftrace` for a Perfetto trace.
        by_plotly: make a page with plotly in it.

    Raises:
        InvalidInputError: there is no such picture of it.
    """
    if by_plotly and (ending != ".html" or drawing.plotly is None):
        raise InvalidInputError(
            "plotly draws pages of plans and timelines only", where="--plotly", fix="leave it out, or end -o in .html"
        )
    if by_plotly and drawing.plotly is not None:
        return iter((drawing.plotly(title).encode(),))
    if ending == ".html":
        return iter((drawing.html(title).encode(),))
    if ending in STILL_ENDINGS:
        return iter((drawing.picture(title).data(ending),))
    if ending in PERFETTO_ENDINGS and drawing.packets is not None:
        return drawing.packets()
    return _in_blocks(drawing.trace())


def write_ranks(drawing: Drawing, folder: str) -> None:
    """Write a trace a rank into a folder, which is made where there is none.

    Raises:
        InvalidInputError: it is not one timeline's; or the folder cannot be written, or holds traces of other ranks.
    """
    if drawing.ranks is None:
        raise InvalidInputError(
            "a trace a rank is one plan's or timeline's",
            where=folder,
            fix="give one file, or an output that is no folder",
        )
    traces = list(drawing.ranks())
    there = Path(folder)
    try:
        there.mkdir(exist_ok=True)
        others = {one.name for one in there.iterdir() if one.name.endswith((".json", ".json.gz"))}
    except OSError as error:
        fix = "check the path and its permissions"
        raise InvalidInputError(f"cannot write the folder: {error.strerror}", where=folder, fix=fix) from error
    if others := others - {name for name, _ in traces}:
        raise InvalidInputError(
            f"the folder holds other traces, such as {min(others)}: they would be taken for ranks of this job",
            where=folder,
            fix="give another folder, or remove them",
        )
    for name, pieces in traces:
        with written(str(there / name)) as stream:
            stream.writelines(_in_blocks(pieces))


def _in_blocks(pieces: Iterator[str]) -> Iterator[bytes]:
    """Text in pieces that are worth writing, with a newline at the end."""
    while block := "".join(islice(pieces, RECORDS)):
        yield block.encode()
    yield b"\n"
