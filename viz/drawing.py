"""What documents show, in each form of a picture: a page, a still picture, a trace, lines for a terminal."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..schemas.errors import InvalidInputError
from .style import PICTURE_ENDINGS, STILL_ENDINGS

if TYPE_CHECKING:
    from rich.text import Text

    from ..schemas.replay_report import ReplayReport
    from ..schemas.templates import Templates
    from ..schemas.timeline import Timeline
    from .painter import Picture


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
        from .gantt import gantt_html

        return gantt_html(self.timelines, title)

    def picture(self, title: str) -> "Picture":
        """A Gantt chart, all over each other."""
        from .timeline import timelines_picture

        return timelines_picture(self.timelines, title)

    def trace(self) -> dict[str, Any]:
        """All in one trace."""
        from .chrome import chrome_trace

        return chrome_trace(self.timelines)

    def charts(self, width: int) -> "list[Text]":
        """A Gantt chart each."""
        from .terminal import terminal_gantt

        return [terminal_gantt(timeline, width, label) for label, timeline in self.timelines]


@dataclass(frozen=True)
class TemplatesDrawing:
    """Pipeline templates."""

    templates: "Templates"

    def html(self, title: str) -> str:
        """The image, and how to read it."""
        from .templates import templates_html

        return templates_html(self.templates, title)

    def picture(self, title: str) -> "Picture":
        """Nodes, and stages in them."""
        from .templates import templates_picture

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
        from .terminal import terminal_templates

        return [terminal_templates(self.templates, width)]


@dataclass(frozen=True)
class ReplaysDrawing:
    """Reports of replays, with their labels."""

    reports: "list[tuple[str, ReplayReport]]"

    def html(self, title: str) -> str:
        """A page to be mailed; of several reports, one that compares them."""
        from .replay_page import comparison_html, replay_html

        if len(self.reports) == 1:
            return replay_html(self.reports[0][1])
        labels, reports = zip(*self.reports, strict=True)
        return comparison_html(reports, labels)

    def picture(self, title: str) -> "Picture":
        """The pictures of the page, one under the other."""
        from .replay_pictures import replay_picture

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
        from .terminal import terminal_replay

        return [terminal_replay(report, width) for _, report in self.reports]


def labelled(timelines: "list[Timeline]", names: list[str]) -> "list[tuple[str, Timeline]]":
    """Each timeline with a label of its own: its source, then its name, then a number, as far as needed."""
    labels: list[str] = [timeline.source for timeline in timelines]
    if len(set(labels)) < len(labels):
        labels = [f"{label} {name}" for label, name in zip(labels, names, strict=True)]
    return list(zip(numbered(labels), timelines, strict=True))


def numbered(labels: list[str]) -> list[str]:
    """The labels, with numbers where some are alike."""
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({number})" for number, label in enumerate(labels, start=1)]


def drawn(drawing: Drawing, title: str, ending: str) -> bytes:
    """The bytes of a picture's file.

    Args:
        drawing: what to draw.
        title: of the picture.
        ending: of the file's name: `.html`, `.svg`, `.png`, `.pdf`, or `.json` for a Chrome trace.
    """
    if ending == ".html":
        return drawing.html(title).encode()
    if ending in STILL_ENDINGS:
        return drawing.picture(title).data(ending)
    # Traces are long and read by programs: without the indentation of documents.
    text = json.dumps(drawing.trace(), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return f"{text}\n".encode()
