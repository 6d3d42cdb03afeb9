"""Timelines as columns: for millions of operations, and for cutting parts out of any.

A `TimelineColumns` says the same as a `Timeline`, with an array for each field of its spans in place of an object for
each span. Pictures are drawn from columns; `columns_of` and `timeline_from` lead from the one to the other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .errors import InvalidInputError
from .orders import KINDS, NONE, SUFFIX, Operation, parse_operation, print_operation
from .plan import Layers, Prediction
from .quantities import print_time
from .timeline import Event, Span, Timeline, WorkerMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

WORKER = re.compile(r"([0-9]+)/([0-9]+)")
SPAN_FIELDS = (np.int32, np.int32, np.int32, np.float64, np.float64)  # worker, op, iteration, start_s, end_s
SORTED = 1 << 18  # spans that are sorted at once
LARGEST_KEY = 1 << 62
_SUFFIX = re.compile(rf"{SUFFIX}$")


@cache
def worker_place(worker: str) -> tuple[int, int]:
    """Pipeline and stage of a worker `k/i`.

    Raises:
        InvalidInputError: the name is of another form.
    """
    match = WORKER.fullmatch(worker)
    if match is None:
        raise InvalidInputError(f"{worker!r} is no worker", fix="name workers k/i: the pipeline and the stage")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class TimelineColumns:
    """A timeline whose spans are columns of equal length n, in the timeline's order.

    Attributes:
        source, workers, events, plan, paced: as a `Timeline` has them.
        names: the workers that may have spans.
        others: what spans do that are of no micro-batch: `allreduce`, `step`, or whatever else was recorded.
        worker: each span's place in `names`.
        kind: its place in KINDS, or behind these in `others`.
        pipeline, microbatch: what it works on; its worker's pipeline and 0 where it is of no micro-batch.
        start_s, end_s: from when until when, in s.
        iteration: its iteration.
        model, schedule: what the plan says of them; None where nobody knows.
        layers: [first, stop) of the layers of each worker's stages, ascending, where the plan says them.
        prediction: what the plan promises; None where nobody knows.
        is_cut: whether 0 is where a part was cut out, and not the first span's start.
        suffixes: what stands behind the tokens of operations of some layers only (`:4-6`), or which were run again for
            a message alone (`~`); the first one is empty.
        suffix: each span's place in `suffixes`; None: all have none.
        stage: the virtual stage of each operation, NONE where its worker holds but one; None: all hold but one.
        is_fed: whether each span begins with a message that was kept and is sent again; None: nobody knows.
        fact: what is said of it in place of how long it takes; None: that is said.
    """

    source: Literal["simulated", "measured"]
    names: tuple[str, ...]
    others: tuple[str, ...]
    worker: "Ints"
    kind: "Ints"
    pipeline: "Ints"
    microbatch: "Ints"
    start_s: "Floats"
    end_s: "Floats"
    iteration: "Ints"
    workers: tuple[WorkerMemory, ...] = ()
    events: tuple[Event, ...] = ()
    plan: str | None = None
    paced: bool = False
    model: str | None = None
    schedule: str | None = None
    layers: Mapping[str, tuple[Layers, ...]] = field(default_factory=dict)
    prediction: Prediction | None = None
    is_cut: bool = False
    suffixes: tuple[str, ...] = ("",)
    suffix: "Ints | None" = None
    stage: "Ints | None" = None
    is_fed: "Flags | None" = None
    fact: str | None = None

    def __len__(self) -> int:
        return len(self.kind)

    @cached_property
    def places(self) -> "Ints":
        """Pipeline and stage of each of `names`; array of names x 2."""
        return np.array([worker_place(name) for name in self.names], dtype=np.int64).reshape(-1, 2)

    @cached_property
    def busy(self) -> frozenset[str]:
        """The workers that have spans; `names` may hold others too, where a part was taken."""
        return frozenset(self.names[number] for number in np.flatnonzero(np.bincount(self.worker)))

    @cached_property
    def is_computed(self) -> "Flags":
        """Whether each span is an operation on a micro-batch."""
        return self.kind < len(KINDS)

    @cached_property
    def is_rerouted(self) -> "Flags":
        """Whether each span works on a micro-batch of another pipeline than its worker's."""
        found: Flags = self.is_computed & (self.pipeline != self.places[self.worker, 0])
        return found

    @cached_property
    def seats(self) -> dict[str, tuple[int, ...]]:
        """The virtual stages of each worker, ascending, as far as spans and sizes name them."""
        found: dict[str, set[int]] = {}
        for memory in self.workers:
            if memory.stage is not None:
                found.setdefault(memory.worker, set()).add(memory.stage)
        if self.stage is not None:
            named = self.stage != NONE
            pairs = np.unique(np.stack((self.worker[named], self.stage[named]), axis=1), axis=0)
            for worker, stage in pairs.tolist():
                found.setdefault(self.names[worker], set()).add(stage)
        return {worker: tuple(sorted(held)) for worker, held in found.items()}

    @cached_property
    def chunk(self) -> "Ints":
        """Which of its worker's virtual stages each span is of, counted from 0; 0 where it names none."""
        if self.stage is None:
            return np.zeros(len(self), dtype=np.int64)
        most = int(self.stage.max(initial=0)) + 1
        place = np.zeros((len(self.names), most + 1), dtype=np.int64)  # the last one is that of NONE
        for number, name in enumerate(self.names):
            held = [stage for stage in self.seats.get(name, ()) if stage < most]
            place[number, held] = range(len(held))
        found: Ints = place[self.worker, self.stage]
        return found

    @cached_property
    def virtual_stage(self) -> "Ints":
        """The stage of each operation, all of `stages_of`."""
        return self.stages_of(slice(None))

    def stages_of(self, rows: "Ints | slice") -> "Ints":
        """The stage of some operations: of each its worker's only one where it names none."""
        found: Ints = self._only_stage[self.worker[rows]]
        return found if self.stage is None else np.where(self.stage[rows] == NONE, found, self.stage[rows])

    @cached_property
    def _only_stage(self) -> "Ints":
        """The stage of each of `names`."""
        only = [self.seats.get(name, ()) for name in self.names]
        own = [held[0] if len(held) == 1 else column for held, column in zip(only, self.places[:, 1], strict=True)]
        return np.array(own, dtype=np.int64)

    @cached_property
    def half(self) -> "Ints":
        """Of a forward and a backward side by side 1 and 2: the halves of a row that they are drawn in; else 0."""
        half = np.zeros(len(self), dtype=np.int64)
        order = np.lexsort((self.kind, self.end_s, self.start_s, self.worker))
        one, other = order[:-1], order[1:]
        alike = (self.worker[one] == self.worker[other]) & (self.start_s[one] == self.start_s[other])
        alike &= (self.end_s[one] == self.end_s[other]) & (self.start_s[one] < self.end_s[one])
        alike &= (self.kind[one] == KINDS.index("F")) & (self.kind[other] == KINDS.index("B"))
        half[one[alike]], half[other[alike]] = 1, 2
        return half

    @cached_property
    def is_again(self) -> "Flags":
        """Whether each span was run again for its message alone, and added nothing to the gradients."""
        if self.suffix is None:
            return np.zeros(len(self), dtype=bool)
        return np.array([suffix.endswith("~") for suffix in self.suffixes])[self.suffix]

    def rows_of_workers(self) -> "list[NDArray[np.int32]]":
        """The rows of each of `names`, in the timeline's order."""
        ends = np.bincount(self.worker, minlength=len(self.names)).cumsum()
        free = np.concatenate(([0], ends[:-1]))
        rows = np.empty(len(self), dtype=np.int32)
        for begin in range(0, len(self), SORTED):  # a sort of all of them at once takes four times the memory
            own = self.worker[begin : begin + SORTED]
            order = np.argsort(own, kind="stable")
            counts = np.bincount(own, minlength=len(self.names))
            before = np.arange(len(own)) - np.repeat(counts.cumsum() - counts, counts)
            rows[free[own[order]] + before] = begin + order
            free += counts
        return np.split(rows, ends[:-1]) if len(self.names) else []

    @cached_property
    def first_start_s(self) -> float:
        """What is 0 in pictures: the first span's start, or where the part was cut out."""
        return 0.0 if self.is_cut else float(self.start_s.min(initial=np.inf)) if len(self) else 0.0

    def op(self, row: "int | np.integer[Any]") -> str:
        """What the n-th span does, as a Span says it."""
        kind = int(self.kind[row])
        if kind >= len(KINDS):
            return self.others[kind - len(KINDS)]
        own = int(self.places[self.worker[row], 0])
        stage = NONE if self.stage is None else int(self.stage[row])
        return _token(kind, int(self.pipeline[row]), int(self.microbatch[row]), own, stage) + self.suffix_of(row)

    def suffix_of(self, row: "int | np.integer[Any]") -> str:
        """What stands behind the token of the n-th span."""
        return "" if self.suffix is None else self.suffixes[self.suffix[row]]

    def taken(self, rows: "Flags | Ints", shift_s: float = 0.0) -> "TimelineColumns":
        """Only some of the spans, each `shift_s` earlier."""
        part = {name: getattr(self, name)[rows] for name in ("worker", "kind", "pipeline", "microbatch", "iteration")}
        extra = {"suffix": self.suffix, "stage": self.stage, "is_fed": self.is_fed}
        part |= {name: column[rows] for name, column in extra.items() if column is not None}
        start_s, end_s = self.start_s[rows], self.end_s[rows]
        if shift_s:
            start_s, end_s = start_s - shift_s, end_s - shift_s
        return replace(self, start_s=start_s, end_s=end_s, **part)

    def aligned(self) -> "TimelineColumns":
        """The same with its first span at 0."""
        shift_s = self.first_start_s
        if shift_s == 0:
            return self
        events = tuple(replace(event, time_s=event.time_s - shift_s) for event in self.events)
        return replace(self.taken(slice(None), shift_s), events=events)  # type: ignore[arg-type]


def joint_key(*columns: "NDArray[Any]") -> "Ints":
    """A number for each row of columns of numbers from 0 on: equal where all are, and in the order of the columns."""
    key, most = np.zeros(len(columns[0]), dtype=np.int64), 1
    for column in columns:
        several = int(column.max(initial=0)) + 1
        if most * several > LARGEST_KEY:
            key, most = np.unique(key, return_inverse=True)[1], len(key)
        key *= several
        key += column
        most *= several
    return key


@cache
def _token(kind: int, pipeline: int, microbatch: int, own: int, stage: int) -> str:
    return print_operation(Operation(KINDS[kind], pipeline, microbatch, None if stage == NONE else stage), own)


def columns_of(timeline: Timeline | TimelineColumns) -> TimelineColumns:
    """A timeline as columns.

    Raises:
        InvalidInputError: a worker's name is none.
    """
    if isinstance(timeline, TimelineColumns):
        return timeline
    spans, reading = timeline.spans, SpanReading()
    reading.add(
        [reading.workers[span.worker] for span in spans], [reading.ops[span.op] for span in spans],
        [span.start_s for span in spans], [span.end_s for span in spans], [span.iteration for span in spans],
    )  # fmt: skip
    return reading.columns(timeline)


class SpanReading:
    """Makes columns of spans that come part by part.

    Attributes:
        workers, ops: the number of each name, which is given to whoever asks first; a worker that is none raises
            InvalidInputError.
    """

    def __init__(self) -> None:
        self.workers = _Workers()
        self.ops = _Ops()
        # Bytes that grow where they are: pieces of arrays that are let go leave holes.
        self._fields = [bytearray() for _ in SPAN_FIELDS]

    def add(
        self,
        workers: "Sequence[int]",
        ops: "Sequence[int]",
        starts_s: "Sequence[float] | Floats",
        ends_s: "Sequence[float] | Floats",
        iterations: "Sequence[int] | Ints",
    ) -> None:
        """Take the next spans: the fields of each, workers and ops by their numbers."""
        columns = workers, ops, iterations, starts_s, ends_s
        for grown, column, kind in zip(self._fields, columns, SPAN_FIELDS, strict=True):
            grown += np.asarray(column, dtype=kind).data

    def columns(self, timeline: Timeline) -> TimelineColumns:
        """All that came, as the spans of a timeline that says the rest."""
        fields: list[NDArray[Any]] = [np.frombuffer(*one) for one in zip(self._fields, SPAN_FIELDS, strict=True)]
        self._fields = [bytearray() for _ in SPAN_FIELDS]
        end_s, start_s = fields.pop(), fields.pop()
        iteration, op, worker = _wide(fields.pop()), fields.pop(), _wide(fields.pop())
        kind, pipeline, microbatch, stage, suffix = np.array(self.ops.read, dtype=np.int64).reshape(-1, 5).T
        own = np.array([worker_place(name)[0] for name in self.workers], dtype=np.int64)
        suffixes, is_placed, is_told = tuple(self.ops.suffixes), (stage != NONE).any(), (pipeline != NONE).any()
        own_of = own[worker]
        return TimelineColumns(
            timeline.source, tuple(self.workers), tuple(self.ops.others), worker, kind[op],
            np.where(pipeline[op] == NONE, own_of, pipeline[op]) if is_told else own_of, microbatch[op],
            start_s, end_s, iteration, timeline.workers, timeline.events, timeline.plan, timeline.paced,
            suffixes=suffixes, suffix=suffix[op] if len(suffixes) > 1 else None,
            stage=stage[op] if is_placed else None,
        )  # fmt: skip


def _wide(numbers: "NDArray[np.int32]") -> "Ints":
    """Numbers for calculating; where all are one, as iterations of a simulation are, they take no room."""
    if len(numbers) and (numbers == numbers[0]).all():
        return np.broadcast_to(np.int64(numbers[0]), numbers.shape)
    return numbers.astype(np.int64)


class _Workers(dict[str, int]):
    """The number of each worker, in the order in which they are asked for."""

    def __missing__(self, worker: str) -> int:
        worker_place(worker)
        self[worker] = found = len(self)
        return found


class _Ops(dict[str, int]):
    """The number of what each span does.

    Attributes:
        read: of each: kind, pipeline (NONE: its worker's), micro-batch, virtual stage and suffix, as numbers.
        others, suffixes: as a TimelineColumns has them, with their numbers.
    """

    def __init__(self) -> None:
        self.read: list[tuple[int, ...]] = []
        self.others: dict[str, int] = {}
        self.suffixes: dict[str, int] = {"": 0}

    def __missing__(self, op: str) -> int:
        self[op] = found = len(self)
        self.read.append(self._read(op))
        return found

    def _read(self, op: str) -> tuple[int, ...]:
        try:
            (kind, pipeline, microbatch, stage), suffix = parse_span(op, NONE)
        except InvalidInputError:
            return len(KINDS) + self.others.setdefault(op, len(self.others)), NONE, 0, NONE, 0
        number = self.suffixes.setdefault(suffix, len(self.suffixes))
        return KINDS.index(kind), pipeline, microbatch, NONE if stage is None else stage, number


def parse_span(op: str, pipeline: int) -> tuple[Operation, str]:
    """What a span of a worker in `pipeline` does: an operation, and what stands behind its token (`suffixes`).

    Raises:
        InvalidInputError: it is an all-reduce, a step, or whatever else was recorded.
    """
    token = _SUFFIX.sub("", op)
    return parse_operation(token, pipeline), op[len(token) :]


def timeline_from(columns: TimelineColumns) -> Timeline:
    """Columns as a timeline, with an object for each span."""
    fields = (columns.worker, columns.start_s, columns.end_s, columns.iteration)
    spans = tuple(
        Span(columns.names[worker], columns.op(row), start_s, end_s, iteration)
        for row, (worker, start_s, end_s, iteration) in enumerate(zip(*(one.tolist() for one in fields), strict=True))
    )
    return Timeline(columns.source, spans, columns.workers, columns.events, columns.plan, columns.paced)


# Cutting a part out.


@dataclass(frozen=True)
class Selection:
    """A part of a timeline; None: all of it.

    Attributes:
        pipelines: these only.
        workers: these only, by their names.
        from_s, until_s: operations between these times, in s from the first operation on, or, of chosen iterations,
            from their first one on; what is cut through is shown as far as it lies between.
        iterations: the first and the last.
    """

    pipelines: frozenset[int] | None = None
    workers: frozenset[str] | None = None
    from_s: float | None = None
    until_s: float | None = None
    iterations: tuple[int, int] | None = None


ALL = Selection()


def select(timeline: Timeline | TimelineColumns, part: Selection) -> TimelineColumns:
    """Cut a part out of a timeline.

    A timeline of one iteration, as a simulation is, is that iteration whatever its number: so it can be laid over any
    iteration of a run. A part that is cut out by iterations or times begins at 0.

    Raises:
        InvalidInputError: there is nothing in that part.
    """
    columns = columns_of(timeline)
    if part == ALL:
        return columns
    whole = _iterations_of(columns, part)
    if part.from_s is not None or part.until_s is not None:
        whole = _between(whole.aligned(), part.from_s or 0.0, np.inf if part.until_s is None else part.until_s)
    kept = _workers_of(whole, part)
    if len(columns) and not len(kept):
        what = "nothing happens in the part that is to be drawn"
        raise InvalidInputError(what, where=_options(part), fix=_has(columns))
    return kept


def _iterations_of(columns: TimelineColumns, part: Selection) -> TimelineColumns:
    if part.iterations is None or not len(columns) or columns.iteration.min() == columns.iteration.max():
        return columns
    first, last = part.iterations
    kept = columns.taken((columns.iteration >= first) & (columns.iteration <= last))
    begin_s, end_s = (kept.start_s.min(), kept.end_s.max()) if len(kept) else (0.0, 0.0)
    events = tuple(event for event in columns.events if begin_s <= event.time_s <= end_s)
    # Who works in others only, and is not lost in these, has no place in them.
    elsewhere = columns.busy - kept.busy - {event.worker for event in events}
    workers = tuple(memory for memory in columns.workers if memory.worker not in elsewhere)
    return replace(kept, events=events, workers=workers).aligned()


def _between(columns: TimelineColumns, from_s: float, until_s: float) -> TimelineColumns:
    kept = columns.taken((columns.end_s > from_s) & (columns.start_s < until_s))
    start_s, end_s = kept.start_s.clip(from_s, until_s) - from_s, kept.end_s.clip(from_s, until_s) - from_s
    events = tuple(
        replace(event, time_s=event.time_s - from_s) for event in columns.events if from_s <= event.time_s <= until_s
    )
    return replace(kept, start_s=start_s, end_s=end_s, events=events, is_cut=True)


def _workers_of(columns: TimelineColumns, part: Selection) -> TimelineColumns:
    def wanted(name: str) -> bool:
        pipelines, workers = part.pipelines, part.workers
        return (pipelines is None or worker_place(name)[0] in pipelines) and (workers is None or name in workers)

    if part.pipelines is None and part.workers is None:
        return columns
    columns = columns.aligned()  # 0 stays the first span of all
    mine = np.array([wanted(name) for name in columns.names], dtype=bool)
    shown = columns.taken(mine[columns.worker]) if len(columns) else columns
    return replace(
        shown,
        workers=tuple(memory for memory in columns.workers if wanted(memory.worker)),
        events=tuple(
            event
            for event in columns.events
            if event.worker is None or not WORKER.fullmatch(event.worker) or wanted(event.worker)
        ),
        is_cut=True,
    )


def _options(part: Selection) -> str:
    """The options that say a part."""
    said = {
        "--pipelines": part.pipelines, "--workers": part.workers, "--from": part.from_s, "--until": part.until_s,
        "--iterations": part.iterations,
    }  # fmt: skip
    return ", ".join(option for option, value in said.items() if value is not None)


def _has(columns: TimelineColumns) -> str:
    first, last = int(columns.iteration.min()), int(columns.iteration.max())
    iterations = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    lasts = print_time(float(columns.end_s.max() - columns.first_start_s))
    workers = f"{len(columns.names)} workers, {columns.names[0]} to {columns.names[-1]}"
    return f"choose among {workers}, and {iterations} in {lasts}"
