"""A Gantt chart before it is drawn: rows, bars, events and memory curves of one or several timelines.

Every picture of timelines (HTML, still, terminal) draws a Scene, so that all of them show the same. First stands what
spans say, then who is not there, then memory, and then the scene that is laid out of them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise

from ..schemas.errors import InvalidInputError
from ..schemas.orders import Operation, parse_operation
from ..schemas.quantities import TimeUnit, print_bytes, print_percent, print_time, time_unit
from ..schemas.timeline import Span, Timeline, WorkerMemory
from .style import LOOKS, in_lanes

Labelled = tuple[str, Timeline]
Points = tuple[tuple[float, float], ...]

MAX_BARS = 30_000
PIPELINE_GAP, WORKER_GAP = 0.5, 0.25
# The words of marks: so many lines of them at most, so long, and a character's share of the chart's width.
MARK_LINES, MARK_CHARACTERS, CHARACTER_SHARE = 4, 60, 1 / 175
FEW_MARKS = 12  # with more, beginnings of iterations are not said in words
MOST_SAID = 12  # events of one moment
# What follows from other events of the moment, and is said after them.
_CONSEQUENCES = frozenset({"copy", "wait", "leave"})
# The events after which a worker is not there, until it computes again, and what is said of it.
GONE_AFTER = {"failure": "failed", "fail": "failed", "stop": "stopped", "leave": "left"}
NO_PLACE = "not in the plan"

_WORKER = re.compile(r"([0-9]+)/([0-9]+)")


@cache
def worker_place(worker: str) -> tuple[int, int]:
    """Pipeline and stage of a worker `k/i`.

    Raises:
        InvalidInputError: the name is of another form.
    """
    match = _WORKER.fullmatch(worker)
    if match is None:
        raise InvalidInputError(f"{worker!r} is no worker", fix="name workers k/i: the pipeline and the stage")
    return int(match[1]), int(match[2])


@cache
def operation_of(worker: str, op: str) -> Operation | None:
    """The operation of a span by its worker and token; None for `allreduce`, `step` and whatever is no token."""
    if op in LOOKS:
        return None
    try:
        return parse_operation(op, worker_place(worker)[0])
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
    """What stands in the bar: the micro-batch's number, with its pipeline where it was re-routed; else nothing."""
    return "" if operation_of(span.worker, span.op) is None else span.op[1:]


def workers_of(timelines: Iterable[Timeline]) -> list[str]:
    """All workers that the timelines name, in (pipeline, stage) order.

    A worker whose micro-batches were re-routed is named by them, even if it has failed and has no spans of its own.
    """
    found: set[str] = set()
    for timeline in timelines:
        found.update(memory.worker for memory in timeline.workers)
        found.update(event.worker for event in timeline.events if event.worker and _WORKER.fullmatch(event.worker))
        for worker, op in {(span.worker, span.op) for span in timeline.spans}:
            operation = operation_of(worker, op)
            owner = worker if operation is None else f"{operation.pipeline}/{worker_place(worker)[1]}"
            found.update((worker, owner))
    return sorted(found, key=worker_place)


@dataclass(frozen=True, slots=True)
class Absence:
    """A worker is not there: since when, until when, and why."""

    worker: str
    start_s: float
    end_s: float
    words: str


def absences(timeline: Timeline) -> tuple[Absence, ...]:
    """The absences of workers that compute at some time.

    From its failure a worker is not there until it computes again, or to the end. In an epoch in which it does nothing
    at all, the plan has no such worker: pipelines may have other numbers of stages then.
    """
    starts_s: dict[str, list[float]] = {}
    for span in timeline.spans:
        starts_s.setdefault(span.worker, []).append(span.start_s)
    begin_s = min((span.start_s for span in timeline.spans), default=0.0)
    end_s = max((span.end_s for span in timeline.spans), default=0.0)
    found = []
    for worker in (worker for worker in workers_of([timeline]) if worker in starts_s):
        own_s = sorted(starts_s[worker])
        gone = []
        back_s = 0.0
        for event in sorted(timeline.events, key=lambda event: event.time_s):
            if event.worker != worker or event.kind not in GONE_AFTER or event.time_s < back_s:
                continue
            back_s = next((start_s for start_s in own_s if start_s >= event.time_s), end_s)
            if back_s > event.time_s:
                gone.append(Absence(worker, event.time_s, back_s, GONE_AFTER[event.kind]))
        found += [*gone, *_without_place(timeline, worker, own_s, (begin_s, end_s), gone)]
    return tuple(found)


def _without_place(
    timeline: Timeline, worker: str, starts_s: list[float], extent_s: tuple[float, float], gone: list[Absence]
) -> list[Absence]:
    """The epochs in which a worker begins nothing, but for those that other absences tell of."""
    begin_s, end_s = extent_s
    epochs_s = sorted({event.time_s for event in timeline.events if event.kind == "epoch"})
    bounds_s = [begin_s, *(time_s for time_s in epochs_s if begin_s < time_s < end_s), end_s]
    missing: list[Absence] = []
    for first_s, last_s in pairwise(bounds_s):
        works = any(first_s <= start_s < last_s for start_s in starts_s)
        told = any(absence.start_s < last_s and first_s < absence.end_s for absence in gone)
        if works or told:
            continue
        if missing and missing[-1].end_s == first_s:
            first_s = missing.pop().start_s
        missing.append(Absence(worker, first_s, last_s, NO_PLACE))
    return missing


def memory_curves(timeline: Timeline) -> dict[str, Points]:
    """The activation memory of each worker as steps.

    F adds activation_bytes when it starts; I leaves weight_stash_bytes when it ends; W or B frees the rest when it
    ends. A new epoch drops what was under way.

    Args:
        timeline: its `workers` say the sizes; a worker without sizes gets no curve.

    Returns:
        For each worker the points (time_s, bytes held from then on), in time order. Of several points at one time
        each was true for a moment, so the largest value of all is the worker's peak.
    """
    drops_s = [event.time_s for event in timeline.events if event.kind == "epoch"]
    spans: dict[str, list[Span]] = {memory.worker: [] for memory in timeline.workers if memory.activation_bytes > 0}
    for span in timeline.spans:
        if span.worker in spans:
            spans[span.worker].append(span)
    sizes = {memory.worker: memory for memory in timeline.workers}
    return {worker: _steps(own, sizes[worker], drops_s) for worker, own in spans.items()}


def peak_bytes(points: Points) -> float:
    """The largest value of a curve."""
    return max((size for _, size in points), default=0.0)


def _steps(spans: Iterable[Span], sizes: WorkerMemory, drops_s: Sequence[float]) -> Points:
    # Counting micro-batches instead of summing bytes keeps the curve exact: it ends at zero, not at a rounding error.
    whole: set[tuple[int, int, int]] = set()
    stashed: set[tuple[int, int, int]] = set()
    # F changes it at its start, the others at their end; a new epoch drops whatever was under way.
    changes = [(time_s, "drop", (-1, -1, -1)) for time_s in drops_s]
    for span in sorted(spans, key=lambda span: (span.start_s, span.end_s)):
        operation = operation_of(span.worker, span.op)
        if operation is not None:
            time_s = span.start_s if operation.kind == "F" else span.end_s
            changes.append((time_s, operation.kind, (span.iteration, operation.pipeline, operation.microbatch)))
    points = []
    # Stable: of an end and a start at one time the earlier span's end stays first.
    for time_s, kind, microbatch in sorted(changes, key=lambda change: change[0]):
        if kind == "drop":
            whole.clear()
            stashed.clear()
        was_whole = microbatch in whole
        whole.discard(microbatch)
        stashed.discard(microbatch)
        if kind == "F":
            whole.add(microbatch)
        elif kind == "I" and was_whole:
            stashed.add(microbatch)
        points.append((time_s, len(whole) * sizes.activation_bytes + len(stashed) * sizes.weight_stash_bytes))
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Row:
    """A worker in one timeline, up to `end_s`; `top` is where it begins, in row heights from the top of the chart.

    A row that is not `busy` has no spans: its worker failed, or the plan gives it no work.
    """

    worker: str
    timeline: int
    label: str
    top: float
    end_s: float
    busy: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """One span in its row; `label` is the micro-batch's number; one that is `lost` was done again later."""

    row: Row
    span: Span
    kind: str
    label: str
    rerouted: bool
    lost: bool = False


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
class Mark:
    """Events of a moment, or the beginning of an iteration.

    Attributes:
        parts: what happened, one after the other.
        level: the line, counted upwards, that has room for the words; None where there is none.
        is_late: the words stand left of the mark, for right of it the chart ends.
    """

    time_s: float
    parts: tuple[str, ...]
    is_event: bool
    level: int | None = None
    is_late: bool = False

    @property
    def words(self) -> str:
        """All of it in a line."""
        return "; ".join(self.said)

    @property
    def said(self) -> tuple[str, ...]:
        """The parts; of very many the first, and how many more there are."""
        more = len(self.parts) - MOST_SAID
        return (*self.parts[:MOST_SAID], f"and {more} more") if more > 0 else self.parts

    @property
    def short(self) -> str:
        """As much as fits beside the mark."""
        return self.words if len(self.words) <= MARK_CHARACTERS else self.words[: MARK_CHARACTERS - 1] + "…"


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
    """What a chart shows, from 0 to `end_s`, in seconds from each timeline's first span; `facts` say it in words."""

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
    drawn, cut = _first_that_fit([(label, aligned(timeline)) for label, timeline in timelines], max_bars)
    spans = [span for _, timeline in drawn for span in timeline.spans]
    marks = _marks(drawn, max((span.end_s for span in spans), default=0.0) if cut else None)
    end_s = max((*(span.end_s for span in spans), *(mark.time_s for mark in marks)), default=0.0)
    rows = _rows(drawn)
    # When workers that once computed were not there.
    row_of = {(row.timeline, row.worker): row for row in rows}
    # The memory of each worker, in the rows' order, one curve a timeline.
    curves = []
    for index, (_, timeline) in enumerate(drawn):
        limits = {sizes.worker: sizes.memory_limit_bytes for sizes in timeline.workers}
        for worker, points in memory_curves(timeline).items():
            whole = ((0.0, 0.0), *points, (end_s, points[-1][1] if points else 0.0))
            same_s = 1e-9 * (whole[-1][0] - whole[0][0])
            pairs = pairwise(whole)
            kept = (point for point, after in pairs if after[0] - point[0] > same_s or after[1] < point[1])
            curves.append(Curve(worker, index, (*kept, whole[-1]), peak_bytes(points), limits[worker]))
    return Scene(
        title=f"{title} ({cut})" if cut else title,
        facts=tuple(facts_of(label, timeline) for label, timeline in timelines),
        labels=tuple(label for label, _ in timelines),
        rows=rows,
        bars=_bars(drawn, rows),
        marks=with_room(marks, end_s, lambda words: (len(words) + 2) * CHARACTER_SHARE * end_s),
        curves=tuple(sorted(curves, key=lambda curve: (worker_place(curve.worker), curve.timeline))),
        end_s=end_s,
        unit=time_unit(end_s),
        gaps=tuple(
            Gap(row_of[index, absence.worker], absence.start_s, absence.end_s, absence.words)
            for index, (_, timeline) in enumerate(drawn)
            for absence in absences(timeline)
        ),
    )


def aligned(timeline: Timeline) -> Timeline:
    """The timeline with its first span at 0."""
    start_s = first_start_s(timeline)
    if start_s == 0:
        return timeline
    spans = tuple(replace(s, start_s=s.start_s - start_s, end_s=s.end_s - start_s) for s in timeline.spans)
    events = tuple(replace(event, time_s=event.time_s - start_s) for event in timeline.events)
    return replace(timeline, spans=spans, events=events)


def first_start_s(timeline: Timeline) -> float:
    """When the first span starts; 0 without spans."""
    return min((span.start_s for span in timeline.spans), default=0.0)


def facts_of(label: str, timeline: Timeline) -> str:
    """A timeline in one line: where it came from, how long it takes, and its bubbles.

    Bubbles are the share of time without computation, while workers are there.
    """
    source = label if timeline.source in label else f"{label}, {timeline.source}"
    if not timeline.spans:
        return f"{source} · no operations"
    makespan_s = max(span.end_s for span in timeline.spans) - first_start_s(timeline)
    workers = {span.worker for span in timeline.spans} | {sizes.worker for sizes in timeline.workers}
    busy_s = sum(span.end_s - span.start_s for span in timeline.spans if operation_of(span.worker, span.op))
    there_s = len(workers) * makespan_s - sum(absence.end_s - absence.start_s for absence in absences(timeline))
    bubbles = 1 - busy_s / there_s if there_s > 0 else 0.0
    paced = " · paced (operations stretched to the plan's durations)" if timeline.paced else ""
    ends: dict[int, float] = {}
    for span in timeline.spans:
        ends[span.iteration] = max(ends.get(span.iteration, span.end_s), span.end_s)
    if len(ends) == 1:
        pace = f"makespan {print_time(makespan_s)} (one iteration)"
    else:
        first, *_, last = (ends[iteration] for iteration in sorted(ends))
        each_s = (last - first) / (len(ends) - 1)
        pace = f"{len(ends)} iterations in {print_time(makespan_s)}, iteration time {print_time(each_s)}"
    return f"{source} · {pace} · bubbles {print_percent(max(bubbles, 0.0))}{paced}"


def print_peaks(curves: Sequence[Curve]) -> str:
    """A worker's peaks, one a timeline where they differ, and its limit."""
    peaks = " / ".join(dict.fromkeys(print_bytes(curve.peak_bytes) for curve in curves))
    limit = curves[0].limit_bytes
    return f"peak {peaks}" + (f" of {print_bytes(limit)}" if limit is not None else "")


def _first_that_fit(timelines: list[Labelled], max_bars: int) -> tuple[list[Labelled], str]:
    """The timelines cut to what may be drawn, and in words how much that is; no words where all fits."""
    total = sum(len(timeline.spans) for _, timeline in timelines)
    if total <= max_bars:
        return timelines, ""
    sizes = [Counter(span.iteration for span in timeline.spans) for _, timeline in timelines]
    longest = max(map(len, sizes))
    added = [sum(own[key] for own in sizes for key in sorted(own)[nth : nth + 1]) for nth in range(longest)]
    count = sum(size <= max_bars for size in accumulate(added))
    if count == 0:
        share = max_bars // len(timelines)
        cut = [
            (label, replace(timeline, spans=tuple(sorted(timeline.spans, key=lambda span: span.start_s)[:share])))
            for label, timeline in timelines
        ]
        return cut, f"the first {sum(len(timeline.spans) for _, timeline in cut)} of {total} operations"
    cut = []
    for (label, timeline), own in zip(timelines, sizes, strict=True):
        kept = set(sorted(own)[:count])
        cut.append((label, replace(timeline, spans=tuple(s for s in timeline.spans if s.iteration in kept))))
    return cut, f"the first {count} of {longest} iterations"


def _rows(timelines: list[Labelled]) -> tuple[Row, ...]:
    """One row for each worker and timeline, with a gap between workers that share, and between pipelines."""
    busy = [{span.worker for span in timeline.spans} for _, timeline in timelines]
    ends_s = [max((span.end_s for span in timeline.spans), default=0.0) for _, timeline in timelines]
    shared = len(timelines) > 1
    rows: list[Row] = []
    top = 0.0
    for worker in workers_of(timeline for _, timeline in timelines):
        if rows and worker_place(worker)[0] != worker_place(rows[-1].worker)[0]:
            top += PIPELINE_GAP
        for index, (label, timeline) in enumerate(timelines):
            name = f"{worker} {label}" if shared else worker
            is_busy = worker in busy[index]
            if not is_busy:
                # A timeline that says what its workers hold names those that live; so do its events.
                live = {memory.worker for memory in timeline.workers}
                has_failed = any(event.worker == worker and event.kind == "failure" for event in timeline.events)
                name += " (failed)" if has_failed or (live and worker not in live) else " (no work)"
            rows.append(Row(worker, index, name, top, ends_s[index], is_busy))
            top += 1
        top += WORKER_GAP if shared else 0
    return tuple(rows)


def _bars(timelines: list[Labelled], rows: tuple[Row, ...]) -> tuple[Bar, ...]:
    row_of = {(row.timeline, row.worker): row for row in rows}
    redone = [_redone(timeline) for _, timeline in timelines]
    return tuple(
        Bar(
            row_of[index, span.worker],
            span,
            kind_of(span),
            label_of(span),
            is_rerouted(span),
            any(span.start_s < at_s and span.iteration >= first for at_s, first in redone[index]),
        )
        for index, (_, timeline) in enumerate(timelines)
        for span in timeline.spans
    )


def _redone(timeline: Timeline) -> list[tuple[float, int]]:
    """The times at which work was broken off by a new epoch, and the first iteration that was executed then."""
    epochs_s = [event.time_s for event in timeline.events if event.kind == "epoch"]
    # Steps may follow the commit with which an epoch ends.
    computed = [(span.start_s, span.iteration) for span in timeline.spans if operation_of(span.worker, span.op)]
    later = [[iteration for start_s, iteration in computed if start_s >= at_s] for at_s in epochs_s]
    return [(at_s, min(iterations)) for at_s, iterations in zip(epochs_s, later, strict=True) if iterations]


def _marks(timelines: list[Labelled], until_s: float | None) -> tuple[Mark, ...]:
    """Events of all timelines, and of a single one the beginnings of its iterations."""
    marks = []
    for label, timeline in timelines:
        # Sorting is stable: only what follows from other events of a moment moves behind them.
        for event in sorted(timeline.events, key=lambda event: (event.time_s, event.kind in _CONSEQUENCES)):
            where = f" {event.worker}" if event.worker else ""
            what = f"{event.kind}{where}" + (f": {event.message}" if event.message else "")
            if event.time_s < 0:
                what += f" ({print_time(-event.time_s)} before the first operation)"
            said = f"{label}: {what}" if len(timelines) > 1 else what
            marks.append(Mark(max(event.time_s, 0), (said,), is_event=True))
    if len(timelines) == 1:
        starts: dict[int, float] = {}
        for span in timelines[0][1].spans:
            starts[span.iteration] = min(starts.get(span.iteration, span.start_s), span.start_s)
        if len(starts) == 1:
            iteration_starts = []
        else:
            iteration_starts = [
                Mark(start_s, (f"iteration {number}",), is_event=False) for number, start_s in starts.items()
            ]
        marks += iteration_starts
    merged: list[Mark] = []  # events of one moment are one mark: a failure and the epoch that it leads to
    for mark in sorted(marks, key=lambda mark: (mark.time_s, not mark.is_event)):
        last = merged[-1] if merged else None
        if until_s is not None and mark.time_s > until_s:
            break
        if last is not None and last.is_event and mark.is_event and last.time_s == mark.time_s:
            merged[-1] = replace(last, parts=(*last.parts, *mark.parts))
        else:
            merged.append(mark)
    return tuple(merged)


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
