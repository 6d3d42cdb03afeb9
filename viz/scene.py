"""A Gantt chart before it is drawn: rows, bars, events and memory curves of one or several timelines.

Every picture of timelines (HTML, still, terminal) draws a Scene, so that all of them show the same. First stands what
spans say, then who is not there, then memory, and then the scene that is laid out of them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of, parse_span, timeline_from, worker_place
from ..schemas.errors import InvalidInputError
from ..schemas.orders import KINDS, Operation
from ..schemas.quantities import TimeUnit, print_bytes, print_time, time_unit
from ..schemas.timeline import Span
from .facts import (
    Labelled,
    LabelledColumns,
    Mark,
    absences,
    chunks_of,
    facts_of_all,
    lost_of,
    marks_of,
    workers_of,
)
from .memory import Points, memory_curves, peak_bytes
from .style import LOOKS, in_lanes, tint

MAX_BARS = 30_000
DIGITS = "0123456789"  # before the kind in an operation of a worker with several virtual stages
PIPELINE_GAP, WORKER_GAP = 0.5, 0.25
# The words of marks: so many lines of them at most, and a character's share of the chart's width.
MARK_LINES, CHARACTER_SHARE = 4, 1 / 175
FEW_MARKS = 12  # with more, beginnings of iterations are not said in words


@cache
def operation_of(worker: str, op: str) -> Operation | None:
    """The operation of a span by its worker and token; None for `allreduce`, `step` and whatever is no token."""
    if op in LOOKS:
        return None
    try:
        return parse_span(op, worker_place(worker)[0])[0]
    except InvalidInputError:
        return None


def kind_of(span: Span) -> str:
    """The span's key in LOOKS."""
    operation = operation_of(span.worker, span.op)
    if operation is not None:
        return operation.kind
    return span.op if span.op in ("allreduce", "step") else "other"


def is_rerouted(span: Span) -> bool:
    """Whether the span works on a micro-batch of another pipeline than its worker's."""
    operation = operation_of(span.worker, span.op)
    return operation is not None and operation.pipeline != worker_place(span.worker)[0]


def label_of(span: Span) -> str:
    """What stands in the bar: the micro-batch's number, with its pipeline where it was re-routed; else nothing.

    Of which virtual stage it is its tint says.
    """
    return "" if operation_of(span.worker, span.op) is None else span.op.lstrip(DIGITS)[1:].rstrip("~")


def place_words(span: Span) -> str:
    """Where a span is executed: pipeline and stage of its worker; with a placement its virtual stage, beside."""
    pipeline, column = worker_place(span.worker)
    operation = operation_of(span.worker, span.op)
    if operation is None or operation.stage is None:
        return f"pipeline {pipeline}, stage {column}"
    return f"pipeline {pipeline}, virtual stage {operation.stage}"


@dataclass(frozen=True, slots=True)
class Row:
    """A worker in one timeline, up to `end_s`; `top` is where it begins, in row heights from the top of the chart.

    A row that is not `busy` has no spans; its `note` says that its worker failed, or that the plan gives it no work.
    """

    worker: str
    timeline: int
    label: str
    top: float
    end_s: float
    busy: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One span in its row; `label` is the micro-batch's number, `colour` that of its kind and its worker's chunk.

    `stage` is the virtual stage that it names.

    One that is `lost` was done again later; one that is run `again` is so for its message alone; one that is `fed`
    begins with a message that was kept and is sent again. Of two side by side one has `half` 1, the upper one of the
    row, the other 2; all others 0.
    """

    row: Row
    span: Span
    kind: str
    stage: int | None
    colour: str
    label: str
    rerouted: bool
    lost: bool = False
    again: bool = False
    fed: bool = False
    half: int = 0

    def across(self, height: float) -> tuple[float, float]:
        """Where it begins and ends, in row heights from the top of the chart, if a whole bar is so high."""
        margin = (1 - height) / 2
        top, stop = self.row.top + margin, self.row.top + 1 - margin
        middle = (top + stop) / 2
        return (middle, stop) if self.half == 2 else (top, middle) if self.half == 1 else (top, stop)


@dataclass(frozen=True, slots=True)
class Gap:
    """A worker is not there: since when, until when, and why."""

    row: Row
    start_s: float
    end_s: float
    words: str

    @property
    def tip(self) -> str:
        """All of it, in a line."""
        until = f", back at {print_time(self.end_s)}" if self.end_s < self.row.end_s else ""
        return f"worker {self.row.worker} {self.words} at {print_time(self.start_s)}{until}"


@dataclass(frozen=True, slots=True)
class Curve:
    """A worker's memory over time in one timeline: the points (time_s, bytes), from zero and to the chart's end."""

    worker: str
    timeline: int
    points: Points
    peak_bytes: float
    limit_bytes: float | None


@dataclass(frozen=True, slots=True)
class Scene:
    """What a chart shows, from 0 to `end_s`, in seconds from each timeline's first span; `facts` say it in words.

    Where workers hold several virtual stages, `chunks` say which those of each tint are.
    """

    title: str
    facts: tuple[str, ...]
    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    curves: tuple[Curve, ...]
    end_s: float
    unit: TimeUnit
    gaps: tuple[Gap, ...] = ()
    chunks: tuple[str, ...] = ()

    @property
    def mark_lines(self) -> int:
        """How many lines the words of the marks take."""
        return max((mark.level + 1 for mark in self.marks if mark.level is not None), default=1)

    @property
    def height(self) -> float:
        """The chart's height in row heights."""
        return max((row.top + 1 for row in self.rows), default=1.0)

    def kinds(self) -> list[str]:
        """The kinds of operations that occur, in the legend's order."""
        found = {bar.kind for bar in self.bars}
        return [kind for kind in LOOKS if kind in found]

    def colours(self, kind: str) -> tuple[str, ...]:
        """The colours of a kind, one for each chunk."""
        several = len(self.chunks) if kind in KINDS else 0
        return tuple(tint(LOOKS[kind].colour, chunk, several) for chunk in range(max(several, 1)))

    def tints(self, chunk: int) -> tuple[str, ...]:
        """The colours of a chunk, one for each kind of operation that occurs."""
        return tuple(self.colours(kind)[chunk] for kind in self.kinds() if kind in KINDS)

    def memory_bands(self) -> dict[str, list[Curve]]:
        """The memory curves by worker, in the rows' order."""
        bands: dict[str, list[Curve]] = {}
        for curve in self.curves:
            bands.setdefault(curve.worker, []).append(curve)
        return bands

    def peaks_length(self) -> int:
        """The characters of the longest note at the right of a memory band; 0 without bands."""
        return max((len(print_peaks(curves)) for curves in self.memory_bands().values()), default=0)

    def memory_scale(self) -> float:
        """The largest size that any band shows, in bytes; 1 where all are empty."""
        return max((max(curve.peak_bytes, curve.limit_bytes or 0) for curve in self.curves), default=0.0) or 1.0


def lay_out(timelines: Sequence[Labelled], title: str, max_bars: int = MAX_BARS) -> Scene:
    """Lay out timelines over each other, each aligned at its first span's start.

    Args:
        timelines: labels and timelines; a worker gets one row a timeline, under each other.
        title: the chart's title; where not all iterations fit, it says so.
        max_bars: how many spans are drawn at most: the first iterations that fit, of one iteration the first spans.
    """
    whole = [(label, columns_of(timeline)) for label, timeline in timelines]
    drawn, cut = _first_that_fit([(label, columns.aligned()) for label, columns in whole], max_bars)
    ends_s = [float(columns.end_s.max(initial=0.0)) for _, columns in drawn]
    marks = marks_of(drawn, max(ends_s, default=0.0) if cut else None)
    end_s = max((*ends_s, *(mark.time_s for mark in marks)), default=0.0)
    rows, chunks = rows_of(drawn), chunks_of([columns for _, columns in whole])
    # When workers that once computed were not there.
    row_of = {(row.timeline, row.worker): row for row in rows}
    # The memory of each worker, in the rows' order, one curve a timeline.
    curves = []
    for index, (_, timeline) in enumerate(drawn):
        limits = {sizes.worker: sizes.memory_limit_bytes for sizes in timeline.workers}
        for worker, points in memory_curves(timeline).items():
            shown = ((0.0, 0.0), *points, (end_s, points[-1][1] if points else 0.0))
            same_s = 1e-9 * (shown[-1][0] - shown[0][0])
            pairs = pairwise(shown)
            kept = (point for point, after in pairs if after[0] - point[0] > same_s or after[1] < point[1])
            curves.append(Curve(worker, index, (*kept, shown[-1]), peak_bytes(points), limits[worker]))
    return Scene(
        title=f"{title} ({cut})" if cut else title,
        facts=facts_of_all(whole),
        labels=tuple(label for label, _ in timelines),
        rows=rows,
        bars=_bars(drawn, rows, len(chunks)),
        marks=with_room(marks, end_s, lambda words: (len(words) + 2) * CHARACTER_SHARE * end_s),
        curves=tuple(sorted(curves, key=lambda curve: (worker_place(curve.worker), curve.timeline))),
        end_s=end_s,
        unit=time_unit(end_s),
        gaps=tuple(
            Gap(row_of[index, absence.worker], absence.start_s, absence.end_s, absence.words)
            for index, (_, timeline) in enumerate(drawn)
            for absence in absences(timeline)
        ),
        chunks=chunks,
    )


def print_peaks(curves: Sequence[Curve]) -> str:
    """A worker's peaks, one a timeline where they differ, and its limit."""
    peaks = " / ".join(dict.fromkeys(print_bytes(curve.peak_bytes) for curve in curves))
    limit = curves[0].limit_bytes
    return f"peak {peaks}" + (f" of {print_bytes(limit)}" if limit is not None else "")


def _first_that_fit(timelines: list[LabelledColumns], max_bars: int) -> tuple[list[LabelledColumns], str]:
    """The timelines cut to what may be drawn, and in words how much that is; no words where all fits."""
    total = sum(len(columns) for _, columns in timelines)
    if total <= max_bars:
        return timelines, ""
    sizes = [Counter(columns.iteration.tolist()) for _, columns in timelines]
    longest = max(map(len, sizes))
    added = [sum(own[key] for own in sizes for key in sorted(own)[nth : nth + 1]) for nth in range(longest)]
    count = sum(size <= max_bars for size in accumulate(added))
    if count == 0:
        share = max_bars // len(timelines)
        cut = [
            (label, columns.taken(np.argsort(columns.start_s, kind="stable")[:share])) for label, columns in timelines
        ]
        return cut, f"the first {sum(len(columns) for _, columns in cut)} of {total} operations"
    cut = [
        (label, columns.taken(np.isin(columns.iteration, sorted(own)[:count])))
        for (label, columns), own in zip(timelines, sizes, strict=True)
    ]
    return cut, f"the first {count} of {longest} iterations"


def rows_of(timelines: Sequence[LabelledColumns]) -> tuple[Row, ...]:
    """One row for each worker and timeline, with a gap between workers that share, and between pipelines."""
    busy = [columns.busy for _, columns in timelines]
    ends_s = [float(columns.end_s.max(initial=0.0)) for _, columns in timelines]
    shared = len(timelines) > 1
    rows: list[Row] = []
    top = 0.0
    for worker in workers_of(timeline for _, timeline in timelines):
        if rows and worker_place(worker)[0] != worker_place(rows[-1].worker)[0]:
            top += PIPELINE_GAP
        for index, (label, columns) in enumerate(timelines):
            name = f"{worker} {label}" if shared else worker
            is_busy = worker in busy[index]
            note = "" if is_busy else _idle_note(worker, columns)
            shown = f"{name} ({note})" if note else name
            rows.append(Row(worker, index, shown, top, ends_s[index], is_busy, note))
            top += 1
        top += WORKER_GAP if shared else 0
    return tuple(rows)


def _idle_note(worker: str, columns: TimelineColumns) -> str:
    """Why a worker has no spans."""
    # A timeline that says what its workers hold names those that live; so do its events.
    live = {memory.worker for memory in columns.workers}
    has_failed = any(event.worker == worker and event.kind == "failure" for event in columns.events)
    return "failed" if has_failed or (live and worker not in live) else "no work"


def _bars(timelines: Sequence[LabelledColumns], rows: tuple[Row, ...], chunks: int) -> tuple[Bar, ...]:
    row_of = {(row.timeline, row.worker): row for row in rows}
    return tuple(
        Bar(
            row_of[index, span.worker],
            span,
            kind,
            None if operation is None else operation.stage,
            tint(LOOKS[kind].colour, chunk, chunks),
            label_of(span),
            is_rerouted(span),
            lost,
            again,
            fed,
            half,
        )
        for index, (_, columns) in enumerate(timelines)
        for span, chunk, lost, again, fed, half in zip(
            timeline_from(columns).spans,
            columns.chunk.tolist(),
            lost_of(columns).tolist(),
            columns.is_again.tolist(),
            [False] * len(columns) if columns.is_fed is None else columns.is_fed.tolist(),
            columns.half.tolist(),
            strict=True,
        )
        for kind, operation in [(kind_of(span), operation_of(span.worker, span.op))]
    )


def with_room(marks: Sequence[Mark], end_s: float, length_s: Callable[[str], float]) -> tuple[Mark, ...]:
    """Each mark with the lowest line that has room for its words, events first.

    Args:
        marks: of a scene.
        end_s: where the chart ends.
        length_s: how much of the time axis words are long, with what parts them from their mark.
    """
    said = [mark for mark in marks if mark.is_event or len(marks) <= FEW_MARKS]
    said.sort(key=lambda mark: not mark.is_event)
    lengths_s = [length_s(mark.short) for mark in said]
    late = [
        mark.time_s + length > end_s and mark.time_s > end_s / 2 for mark, length in zip(said, lengths_s, strict=True)
    ]
    starts_s = [
        mark.time_s - length if is_late else mark.time_s
        for mark, length, is_late in zip(said, lengths_s, late, strict=True)
    ]
    wanted = [(start_s, start_s + length) for start_s, length in zip(starts_s, lengths_s, strict=True)]
    levels = in_lanes(wanted, MARK_LINES)
    placed = {
        id(mark): replace(mark, level=level, is_late=is_late)
        for mark, level, is_late in zip(said, levels, late, strict=True)
    }
    return tuple(placed.get(id(mark), replace(mark, level=None)) for mark in marks)
