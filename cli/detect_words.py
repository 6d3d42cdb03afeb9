"""What `rtk detect` says: a table of what was found, and a line for each change while a log grows."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..schemas.detection import FailSlow, FileFindings
from ..schemas.files import source_of
from ..schemas.text import counted
from ..viz.detection import words_of_attribution
from ..viz.units import print_time
from .console import ends_quietly

if TYPE_CHECKING:
    from rich.table import Table

    from ..profilers.failslow.readers.watch import Watch
    from ..profilers.failslow.tracker import Change

UNWRAPPED = 10_000  # columns, where no terminal says how many there are


def print_findings(findings: Sequence[FileFindings]) -> None:
    """A paragraph a file: what it is, and a table of what was slow in it."""
    from rich.console import Console

    console = ends_quietly(Console(highlight=False, width=None if sys.stdout.isatty() else UNWRAPPED))
    for index, one in enumerate(findings):
        if index:
            console.print()
        console.print(_heading(one), markup=False)
        if one.events:
            console.print(_table(one.events))


def words_of(change: "Change", watch: "Watch", source: str) -> str:
    """The line for a change.

    Args:
        change: of what is known of an episode.
        watch: which has just noted the sample that changed it.
        source: what the log is called.
    """
    episode = change.episode
    since = f"since {_place(episode.onset, watch)}"
    how = f"{episode.severity:.2f} x the usual time"
    match change.kind:
        case "provisional":
            words = f"suspicion: {how} {since}"
        case "dismissed":
            words = f"dismissed: what was suspected {since} has come to nothing"
        case "confirmed":
            words = f"confirmed: slow {since}, {how}"
        case "level":
            words = f"changed: now {how}, slow {since}"
        case "relief":
            assert episode.relief is not None
            count = episode.relief - episode.onset
            words = f"relief: as usual again since {_place(episode.relief, watch)}, after {count} samples at {how}"
    return f"{source}, {_place(watch.samples - 1, watch)}: {words}"


def _place(place: int, watch: "Watch") -> str:
    iteration = watch.iteration_of(place)
    return f"sample {place}" if iteration in (None, place) else f"sample {place} (iteration {iteration})"


def _heading(found: FileFindings) -> str:
    usual = "too few to know what is usual" if found.usual_s is None else f"usually {print_time(found.usual_s)}"
    slow = counted(len(found.events), "fail-slow") if found.events else "nothing slow"
    parts = [f"{source_of(found.file)}: {found.kind}", counted(found.samples, "sample"), usual, slow]
    if found.attribution is not None:
        parts.append(words_of_attribution(found.attribution))
    return ", ".join(parts)


def _table(events: Sequence[FailSlow]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("onset", "suspected", "confirmed", "relief", "severity"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("cause", no_wrap=True)
    for name in ("scope", "evidence"):
        table.add_column(name, overflow="fold")
    for event in events:
        places = (event.onset, event.provisional, event.confirmed, event.relief)
        cells = ["-" if place is None else str(place) for place in places]
        scope = " ".join([event.scope.kind, ", ".join(event.scope.names)]).strip()
        texts = (*cells, f"{event.severity:.2f} x", event.cause, scope, "; ".join(event.evidence))
        table.add_row(*map(Text, texts))
    return table
