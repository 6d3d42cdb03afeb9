"""What timelines say before they are drawn: who works, who is not there, what was in vain, what happened when."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ..schemas.columns import WORKER, TimelineColumns, columns_of, worker_place
from ..schemas.placement import placement_words
from ..schemas.plan import Layers
from ..schemas.quantities import print_bytes, print_percent, print_time
from ..schemas.text import counted, listed
from ..schemas.timeline import Event, Timeline, iteration_time_s, times_between

Drawable = Timeline | TimelineColumns
Labelled = tuple[str, Drawable]
LabelledColumns = tuple[str, TimelineColumns]

MARK_CHARACTERS = 60
MOST_SAID = 12  # events of one moment
# What follows from other events of the moment is said after them.
_AFTERWARDS = ("copy", "resend", "wait", "leave", "orphans", "replaced", "lowered", "raised")
_CONSEQUENCES = {"epoch": 1, **dict.fromkeys(_AFTERWARDS, 2)}
# The events after which a worker is not there, until it computes again, and what is said of it.
GONE_AFTER = {"failure": "failed", "fail": "failed", "stop": "stopped", "leave": "left"}
NO_PLACE = "not in the plan"


def workers_of(timelines: Iterable[Drawable]) -> list[str]:
    """All workers that the timelines name, in (pipeline, stage) order.

    A worker whose micro-batches were re-routed is named by them, even if it has failed and has no spans of its own.
    """
    found: set[str] = set()
    for columns in map(columns_of, timelines):
        found.update(memory.worker for memory in columns.workers)
        found.update(event.worker for event in columns.events if event.worker and WORKER.fullmatch(event.worker))
        found.update(columns.busy)
        rerouted = columns.is_rerouted
        owners = np.unique(
            np.stack((columns.pipeline[rerouted], columns.places[columns.worker[rerouted], 1]), axis=1), axis=0
        )
        found.update(f"{pipeline}/{stage}" for pipeline, stage in owners.tolist())
    return sorted(found, key=worker_place)


@dataclass(frozen=True, slots=True)
class Absence:
    """A worker is not there: since when, until when, and why."""

    worker: str
    start_s: float
    end_s: float
    words: str


def absences(timeline: Drawable) -> tuple[Absence, ...]:
    """The absences of workers that compute at some time.

    From its failure a worker is not there until it computes again, or to the end. In an epoch in which it does nothing
    at all, the plan has no such worker: pipelines may have other numbers of stages then.
    """
    columns = columns_of(timeline)
    if not columns.events or not len(columns):
        return ()
    begin_s, end_s = float(columns.start_s.min()), float(columns.end_s.max())
    order = np.lexsort((columns.start_s, columns.worker))
    starts_s = np.split(columns.start_s[order], np.cumsum(np.bincount(columns.worker, minlength=len(columns.names))))
    own_starts = {name: own_s.tolist() for name, own_s in zip(columns.names, starts_s, strict=False) if len(own_s)}
    found = []
    for worker in sorted(own_starts, key=worker_place):
        own_s = own_starts[worker]
        gone = []
        back_s = 0.0
        for event in sorted(columns.events, key=lambda event: event.time_s):
            if event.worker != worker or event.kind not in GONE_AFTER or event.time_s < back_s:
                continue
            back_s = next((start_s for start_s in own_s if start_s >= event.time_s), end_s)
            if back_s > event.time_s:
                gone.append(Absence(worker, event.time_s, back_s, GONE_AFTER[event.kind]))
        found += [*gone, *_without_place(columns, worker, own_s, (begin_s, end_s), gone)]
    return tuple(found)


def _without_place(
    columns: TimelineColumns, worker: str, starts_s: list[float], extent_s: tuple[float, float], gone: list[Absence]
) -> list[Absence]:
    """The epochs in which a worker begins nothing, but for those that other absences tell of."""
    begin_s, end_s = extent_s
    epochs_s = sorted({event.time_s for event in columns.events if event.kind == "epoch"})
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


def lost_of(columns: TimelineColumns) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Whether each span was done in vain: an epoch broke its iteration off, and it was executed again.

    Where the iteration was gone on with, that is what was begun again after the epoch, and all other spans of it count.
    What was run again for a message alone leaves what was there as it is.
    """
    lost = np.zeros(len(columns), dtype=bool)
    resumed_s = resumed_at_s(columns)
    if resumed_s:
        piece = _pieces(columns)
        begins = ((columns.kind == 0) | ~columns.is_computed) & ~columns.is_again
    for epoch_s, iteration in epochs_of(columns):
        broken_off = (columns.start_s < epoch_s) & (columns.iteration >= iteration)
        if epoch_s in resumed_s:
            broken_off &= np.isin(piece, piece[begins & (columns.start_s >= epoch_s)])
        lost |= broken_off
    return lost


def epochs_of(columns: TimelineColumns) -> Iterator[tuple[float, int]]:
    """When each epoch in which something is computed began, in s, ascending, and the iteration that was next in it."""
    # Steps may follow the commit with which an epoch ends.
    computed_s, iterations = columns.start_s[columns.is_computed], columns.iteration[columns.is_computed]
    for epoch_s in sorted(event.time_s for event in columns.events if event.kind == "epoch"):
        later = iterations[computed_s >= epoch_s]
        if len(later):
            yield epoch_s, int(later.min())


def resumed_at_s(columns: TimelineColumns) -> frozenset[float]:
    """The times of epochs that went on in the midst of an iteration, in s."""
    epochs_s = sorted(event.time_s for event in columns.events if event.kind == "epoch")
    told_s = (event.time_s for event in columns.events if event.kind == "resume")
    return frozenset(epochs_s[number - 1] for number in np.searchsorted(epochs_s, list(told_s), side="right") if number)


def _pieces(columns: TimelineColumns) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """A number for each span's micro-batch, at its stage, in its iteration; for a sum or a step, at its worker."""
    stage = columns.virtual_stage
    cell = np.where(columns.is_computed, columns.pipeline, -1 - columns.worker)
    what = np.where(columns.is_computed, columns.microbatch, columns.kind)
    _, piece = np.unique(np.stack((columns.iteration, cell, what, stage), axis=1), axis=0, return_inverse=True)
    return piece.reshape(-1)


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


def order_of(event: Event) -> int:
    """Where an event stands among those of its moment: what leads to others comes first."""
    return _CONSEQUENCES.get(event.kind, 0)


def words_of_event(event: Event) -> str:
    """What happened, and to whom: `failure 1/0: connection closed`."""
    who = f" {event.worker}" if event.worker else ""
    return f"{event.kind}{who}" + (f": {event.message}" if event.message else "")


def marks_of(timelines: Sequence[LabelledColumns], until_s: float | None = None) -> tuple[Mark, ...]:
    """Events of all timelines, and of a single one the beginnings of its iterations; none after `until_s`."""
    marks = []
    for label, columns in timelines:
        # Sorting is stable: only what follows from other events of a moment moves behind them.
        for event in sorted(columns.events, key=lambda event: (event.time_s, order_of(event))):
            what = words_of_event(event)
            if event.time_s < 0:
                what += f" ({print_time(-event.time_s)} before the first operation)"
            said = f"{label}: {what}" if len(timelines) > 1 else what
            marks.append(Mark(max(event.time_s, 0), (said,), is_event=True))
    if len(timelines) == 1:
        numbers, starts_s, _ = iterations_of(timelines[0][1])
        begun = zip(numbers, starts_s, strict=True) if len(numbers) > 1 else ()
        marks += [Mark(start_s, (f"iteration {number}",), is_event=False) for number, start_s in begun]
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


def iterations_of(columns: TimelineColumns) -> tuple[list[int], list[float], list[float]]:
    """The iterations in ascending order, with the first start and the last end of each."""
    if len(columns) and columns.iteration.min() == columns.iteration.max():
        return [int(columns.iteration[0])], [float(columns.start_s.min())], [float(columns.end_s.max())]
    numbers, place = np.unique(columns.iteration, return_inverse=True)
    starts_s, ends_s = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(starts_s, place, columns.start_s)
    np.maximum.at(ends_s, place, columns.end_s)
    return numbers.tolist(), starts_s.tolist(), ends_s.tolist()


def facts_of_all(timelines: Sequence[Labelled]) -> tuple[str, ...]:
    """Each timeline in one line; where one has a placement, also of each its placement, and what its plan promises."""
    drawn = [(label, columns_of(timeline)) for label, timeline in timelines]
    if not any(columns.seats for _, columns in drawn):
        return tuple(facts_of(*one) for one in drawn)
    return tuple(" · ".join((facts_of(*one), *_promised(one[1]))) for one in drawn)


def _promised(columns: TimelineColumns) -> Iterator[str]:
    """The placement, and what the plan promises: the largest peak memory of a worker, and what is proven."""
    if placement := placement_of(columns):
        yield placement
    if columns.prediction is not None:
        if peak := max(columns.prediction.peak_memory_bytes, default=0.0):
            yield f"peak memory {print_bytes(peak)}"
        yield columns.prediction.quality


def facts_of(label: str, timeline: Drawable) -> str:
    """A timeline in one line: where it came from, how long it takes, and its bubbles.

    Bubbles are the share of time without computation, while workers are there.
    """
    columns = columns_of(timeline)
    source = label if columns.source in label else f"{label}, {columns.source}"
    if not len(columns):
        return f"{source} · no operations"
    if columns.fact is not None:
        return f"{source} · {columns.fact}"
    makespan_s = float(columns.end_s.max()) - columns.first_start_s
    workers = {*columns.busy, *(sizes.worker for sizes in columns.workers)}
    # One after the other, as a loop would: numpy's own order of summing gives other last digits.
    once = columns.is_computed & (columns.half != 2)  # of two side by side one
    busy_s = float(np.add.accumulate((columns.end_s - columns.start_s)[once])[-1:].sum())
    there_s = len(workers) * makespan_s - sum(absence.end_s - absence.start_s for absence in absences(columns))
    bubbles = 1 - busy_s / there_s if there_s > 0 else 0.0
    paced = " · paced (operations stretched to the plan's durations)" if columns.paced else ""
    numbers, starts_s, ends_s = iterations_of(columns)
    if len(numbers) == 1:
        pace = f"makespan {print_time(makespan_s)} (one iteration)"
    else:
        changes_s = [event.time_s for event in columns.events if event.kind == "epoch"]
        each_s = iteration_time_s(times_between(list(zip(numbers, starts_s, ends_s, strict=True)), changes_s)) or 0.0
        pace = f"{len(ends_s)} iterations in {print_time(makespan_s)}, iteration time {print_time(each_s)}"
    return f"{source} · {pace} · bubbles {print_percent(max(bubbles, 0.0))}{paced}"


MOST_STAGES = 24  # whose layers are said
NTH = ("first", "second", "third", "fourth")
# Schedules as the field writes them.
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe"}


def title_of(timelines: Sequence[LabelledColumns]) -> str:
    """Model, schedule and shape, as far as they are known, such as `llama3-70b · 1F1B · 8 pipelines of 16 stages`."""
    known = [columns for _, columns in timelines]
    models = dict.fromkeys(one.model for one in known if one.model)
    schedules = dict.fromkeys(_SCHEDULES.get(one.schedule, one.schedule) for one in known if one.schedule)
    placed = any(one.seats for one in known)
    shapes = dict.fromkeys(_shape_of(one, "worker" if placed else "stage") for one in known)
    placements = dict.fromkeys(placement_of(one) for one in known) if placed else ()
    parts = [" and ".join(filter(None, some)) for some in (models, schedules, shapes, placements)]
    return " · ".join(filter(None, parts)) or "no operations"


def placement_of(columns: TimelineColumns) -> str:
    """Which of its stages each worker holds, in words; empty where nobody knows."""
    if not columns.seats:
        return "plain"
    by_pipeline: dict[int, dict[int, tuple[int, ...]]] = {}
    of_column = {worker_place(worker)[1]: held for worker, held in columns.seats.items()}  # of those without a name
    for worker in workers_of([columns]):
        pipeline, column = worker_place(worker)
        by_pipeline.setdefault(pipeline, {})[column] = columns.seats.get(worker) or of_column.get(column, ())
    found = [tuple(held for _, held in sorted(columns.items())) for columns in by_pipeline.values()]
    complete = [one for one in found if {*range(sum(map(len, one)))} == {stage for held in one for stage in held}]
    return " and ".join(dict.fromkeys(map(placement_words, complete)))


def chunks_of(timelines: Sequence[TimelineColumns]) -> tuple[str, ...]:
    """What the first, the second … of a worker's virtual stages are called; empty where each holds but one.

    Their numbers are said, in the order of the columns, where all timelines have the same.
    """
    by_column: dict[int, set[tuple[int, ...]]] = {}
    for columns in timelines:
        for worker, held in columns.seats.items():
            by_column.setdefault(worker_place(worker)[1], set()).add(held)
    most = max((len(held) for own in by_column.values() for held in own), default=0)
    if most < 2:
        return ()
    alike = all(len(own) == 1 for own in by_column.values())
    words = []
    for chunk in range(most):
        stages = [str(held[chunk]) for _, (held, *_) in sorted(by_column.items()) if chunk < len(held)]
        told = f": virtual stages {listed(stages, MOST_STAGES)}" if alike else ""
        words.append(f"{NTH[chunk] if chunk < len(NTH) else f'{chunk + 1}th'} chunk{told}")
    return tuple(words)


def _shape_of(columns: TimelineColumns, noun: str) -> str:
    """How many pipelines of how many stages, or workers, there are, and how many micro-batches an iteration has."""
    if not len(columns):
        return ""
    places = [worker_place(worker) for worker in {*workers_of([columns]), *columns.layers}]
    pipelines, stages = np.unique([pipeline for pipeline, _ in places], return_counts=True)
    computed = columns.is_computed
    numbers = columns.microbatch[computed]
    owned = np.unique(columns.pipeline[computed] * (numbers.max(initial=0) + 1) + numbers)
    _, microbatches = np.unique(owned // (numbers.max(initial=0) + 1), return_counts=True)
    shape = f"{counted(len(pipelines), 'pipeline')} of {_from_to(stages, noun)}"
    if not len(microbatches):
        return shape
    return f"{shape} · {_from_to(microbatches, 'micro-batch', 'es')}{' each' if len(pipelines) > 1 else ''}"


def _from_to(counts: "np.ndarray[tuple[int], np.dtype[np.int64]]", noun: str, plural: str = "s") -> str:
    """`4 stages`, or `3 to 5 stages` where they are not all the same."""
    least, most = int(counts.min()), int(counts.max())
    return counted(most, noun, plural) if least == most else f"{least} to {counted(most, noun, plural)}"


def layers_of(timelines: Sequence[LabelledColumns]) -> str:
    """Which layers the stages hold, in a line, of pipelines that are cut alike once; empty where nobody knows."""
    found: dict[tuple[Layers, ...], list[int]] = {}
    for _, columns in timelines:
        of_pipeline: dict[int, list[Layers]] = {}
        for worker, layers in columns.layers.items():
            of_pipeline.setdefault(worker_place(worker)[0], []).extend(layers)
        for pipeline, stages in of_pipeline.items():
            found.setdefault(tuple(sorted(stages)), []).append(pipeline)
        if found:
            break
    said = []
    for cut, pipelines in found.items():
        of = f" of pipeline{'' if len(pipelines) == 1 else 's'} {listed(map(str, pipelines))}" if len(found) > 1 else ""
        parts = [f"{first}" if stop == first + 1 else f"{first}-{stop - 1}" for first, stop in cut]
        said.append(f"layers of the stages{of}: {listed(parts, MOST_STAGES)}")
    return listed(said, 3, "; ")
