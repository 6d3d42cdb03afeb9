"""The independent checker: does a Plan keep every promise of docs/semantics.md, and does a Timeline keep the Plan?

It shares no code with the planners' evaluator (a longest path by worker sweeps) nor with the simulator (a virtual clock
over the lowered program): here the operations are a table of numpy columns, completeness is counting, and times are
topological waves over the table, as in Kahn's algorithm. Large plans in which each worker holds one stage are judged by
machine code first (sound.py); what that refuses is judged here. Tests hold all readings equal, to the last bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .documents import digest
from .errors import InvalidInputError
from .kernels import pays
from .orders import KINDS, NONE, Columns, flattened, parse_columns
from .plan import Layers, Optimizer, Plan, Prediction, Worker
from .quantities import print_apart, print_bytes, print_number, print_time
from .sound import OperationTimes, PlanArrays, follow, run_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .timeline import Span, Timeline

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

FORWARD, INPUT, WEIGHT, FULL = range(4)
# What an operation adds to the micro-batches that a worker holds whole, and to those of which it holds the stash for W;
# at last what one at another seat adds.
WHOLE, STASHED = np.array([1, -1, 0, -1, 0]), np.array([0, 1, -1, 0, 0])
ELSEWHERE = len(KINDS)
# Predictions may come from another summation order: this much relative difference is rounding, not a lie.
ROUNDING = 1e-9
MOST_NAMED = 100_000
# Up to so many operations numpy has judged while the machine code would be loaded.
NUMPY_OPERATIONS = 500_000


@dataclass(frozen=True)
class Violation:
    """One broken promise: its place as a JSON pointer, and what is wrong in words."""

    path: str
    message: str


class TimedColumns(ABC):
    """Operations as columns of equal length n, in worker order and then in order of execution.

    Attributes:
        counts: operations of each worker, which stand together; array of workers.
        is_paired: whether each begins and ends with the one behind it, which has no duration of its own; None: none do.
    """

    counts: Ints
    is_paired: Flags | None = None

    @cached_property
    def first(self) -> Ints:
        """The row of each worker's first operation, were there one; array of workers."""
        first: Ints = np.cumsum(self.counts) - self.counts
        return first

    @cached_property
    def busy(self) -> Ints:
        """The workers that have operations."""
        return np.flatnonzero(self.counts)

    @cached_property
    def worker(self) -> Ints:
        """Each operation's worker; array of n."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    @abstractmethod
    def duration_s(self) -> Floats:
        """Each operation's duration in s; array of n."""

    def place(self, row: int) -> int:
        """The place of an operation in its worker's order, from 0."""
        return int(row - self.first[self.worker[row]])

    @abstractmethod
    def name(self, row: int) -> str:
        """An operation in words, for messages."""

    def path(self, row: int) -> str:
        """The JSON pointer of the order that holds an operation."""
        return order_path(int(self.worker[row]))


def order_path(number: int) -> str:
    """The JSON pointer of a worker's order."""
    return f"/workers/{number}/order"


def durations_of(plan: Plan, workers: Sequence[Worker]) -> Floats:
    """What each kind of operation takes at each seat of some workers of a plan in s; array of seats x kinds."""
    table = [
        [stage.duration_s(kind) * (worker.slowdown or 1.0) for kind in KINDS]
        for worker in workers
        for stage in plan.stages_of(worker)
    ]
    return np.array(table, dtype=np.float64)


@dataclass(frozen=True)
class _OrderColumns(TimedColumns):
    """All operations of a plan.

    Attributes:
        plan: the plan whose orders these are.
        counts: operations of each worker; array of workers.
        kind, pipeline, microbatch, stage: what each operation does; arrays of n.
    """

    plan: Plan
    counts: Ints
    kind: Ints
    pipeline: Ints
    microbatch: Ints
    stage: Ints
    is_paired: Flags | None = None

    @property
    def columns(self) -> Columns:
        """The same without the plan."""
        return Columns(self.counts, self.kind, self.pipeline, self.microbatch, self.stage, self.is_paired)

    @cached_property
    def seats(self) -> list[tuple[int, int]]:
        """The seats of a plan: a worker's number and a stage that it holds, in this order."""
        return [(n, stage) for n, worker in enumerate(self.plan.workers) for stage in self.plan.seats_of(worker)]

    @cached_property
    def seat(self) -> Ints:
        """Each operation's place in `seats`; array of n."""
        if not self.plan.is_placed:
            return self.worker
        depth = _deepest(self.plan)
        number = np.full(len(self.counts) * depth, NONE, dtype=np.int64)
        worker, stage = np.array(self.seats).T
        number[worker * depth + stage] = np.arange(len(self.seats))
        return number.take(self.worker * depth + self.stage)

    @cached_property
    def own_seat(self) -> Ints:
        """The place of each operation's stage among those of its worker; array of n."""
        counts = list(map(len, map(self.plan.seats_of, self.plan.workers)))
        return self.seat - np.repeat(np.cumsum(counts) - counts, self.counts)

    @cached_property
    def duration_s(self) -> Floats:
        """Each operation's duration in s; array of n. The forward of a pair has that of both, the backward none."""
        alone_s = self.durations_s.ravel().take(self.seat * len(KINDS) + self.kind)
        if self.is_paired is None:
            return alone_s
        forward = np.flatnonzero(self.is_paired)
        alone_s[forward], alone_s[forward + 1] = self._pairs_s(forward), 0.0
        return alone_s

    def _pairs_s(self, forward: Ints) -> Floats:
        """What the pairs of these forwards take in s."""
        plan = self.plan
        usual_s = np.array([[plan.template_of(plan.workers[n].pipeline).stages[v].duration_s(kind) for kind in KINDS]
                            for n, v in self.seats])  # fmt: skip
        f_s, b_s = (usual_s[self.seat[rows], self.kind[rows]] for rows in (forward, forward + 1))
        factors = [(plan.template_of(one.pipeline).overlap or 1.0, one.slowdown or 1.0) for one in plan.workers]
        overlap, slowdown = np.array(factors)[self.worker[forward]].T
        found: Floats = np.maximum(np.maximum(f_s, b_s), overlap * (f_s + b_s)) * slowdown
        return found

    @cached_property
    def durations_s(self) -> Floats:
        """What each kind of operation takes at each seat in s; array of seats x kinds."""
        return durations_of(self.plan, self.plan.workers)

    def name(self, row: int) -> str:
        """An operation in words, for messages."""
        worker = self.plan.workers[int(self.worker[row])]
        what = f"{KINDS[self.kind[row]]} of micro-batch {self.pipeline[row]}.{self.microbatch[row]}"
        if self.plan.is_placed:
            what += f" at virtual stage {self.stage[row]}"
        return f"{what} on worker {worker.name} (operation {self.place(row)})"


@dataclass(frozen=True)
class _Cells:
    """The (pipeline, stage, micro-batch) triples that need operations, numbered in this order.

    Attributes:
        table: operations, on micro-batches that exist.
        first: the cell of micro-batch 0; array of pipelines x stages, NONE beyond a pipeline's depth.
        number: how many cells there are.
    """

    table: _OrderColumns
    first: Ints
    number: int

    @cached_property
    def slot(self) -> Ints:
        """For each operation, kind x `number` + the cell it belongs to; array of n."""
        table = self.table
        at = table.pipeline * self.first.shape[1]
        at += table.stage
        slot = table.kind * self.number
        slot += self.first.ravel().take(at)
        slot += table.microbatch
        return slot

    def blocks(self, by_cell: Ints) -> Iterator[Ints]:
        """What stands at the cells, one array of stages x micro-batches for each pipeline."""
        counts = [pipeline.microbatches for pipeline in self.table.plan.pipelines]
        for first, count in zip(self.first, counts, strict=True):
            depth = np.count_nonzero(first != NONE)
            yield by_cell[first[0] : first[0] + depth * count].reshape(depth, count)

    def describe(self, cell: int) -> str:
        """A cell in words, for messages."""
        flat = self.first.ravel()
        owner = int(np.flatnonzero((flat >= 0) & (flat <= cell))[np.argmax(flat[(flat >= 0) & (flat <= cell)])])
        pipeline, stage = divmod(owner, self.first.shape[1])
        place = "virtual stage" if self.table.plan.is_placed else "stage"
        return f"micro-batch {pipeline}.{cell - flat[owner]} at {place} {stage}"


def check_plan(plan: Plan) -> list[Violation]:
    """Check everything a plan promises.

    Completeness (every micro-batch has, at every stage of its pipeline, one F and one B, or one F, I and W, on one
    worker), order, dependencies without a deadlock, memory under the limits, and that the prediction is what the
    orders give and lies on or above its lower bound.

    Args:
        plan: a plan whose parts agree (`Plan.validate`).

    Returns:
        The problems found, most basic first; a plan with none is valid. What builds on a broken promise is not
        judged: an incomplete plan is not searched for deadlocks.
    """
    table = _tabulate(plan)
    cells = _number_cells(table)
    run = _run(cells)
    if run is not None:
        return _over_limit(plan, run.peaks) + _wrong_prediction(table, RowTimes(run.start_s, run.end_s), run.peaks)
    problems = _foreign(table, cells) or _incomplete(cells)
    if problems:
        return problems
    forward, backward, weight = _rows_by_cell(cells)
    # Operations of one micro-batch on several workers, or in an impossible order on one.
    problems = []
    for earlier, later in ((forward, backward), (backward, weight)):
        both = np.flatnonzero(later != NONE)
        a, b = earlier[both], later[both]
        apart = table.worker[a] != table.worker[b]
        for cell in both[apart]:
            message = f"{table.name(later[cell])} runs apart from {table.name(earlier[cell])}; one worker must run both"
            problems.append(Violation(table.path(later[cell]), message))
        for cell in both[~apart & (a > b)]:
            message = f"{table.name(later[cell])} comes before {table.name(earlier[cell])}, which it needs"
            problems.append(Violation(table.path(later[cell]), message))
    problems += _against_the_stages(table) if plan.is_placed else []
    problems += _beside_itself(table)
    if problems:
        return problems
    times = propagate(table, *_messages(cells, forward, backward))
    if isinstance(times, Violation):
        return [times]
    peaks = _peak_memory(table)
    return _over_limit(plan, peaks) + _wrong_prediction(table, times, peaks)


def deadlock_free_times(plan: Plan) -> tuple[Floats, Floats]:
    """Start and end of every operation of a valid plan, in worker order: what `check_plan` judged by."""
    table = _tabulate(plan)
    times = _times_in_waves(table, _number_cells(table))
    return times.start_s, times.end_s


def makespan_of(plan: Plan) -> float:
    """The makespan of a valid plan in s, whatever it predicts."""
    table = _tabulate(plan)
    return _makespan_and_period(table, _times(table))[0]


def timed_operations(plan: Plan) -> tuple[Columns, Floats, Floats]:
    """The operations of a valid plan as columns, in worker order, with start and end of each in s."""
    table = _tabulate(plan)
    times = _times(table)
    return table.columns, times.start_s, times.end_s


def _times(table: _OrderColumns) -> RowTimes:
    cells = _number_cells(table)
    run = _run(cells)
    return _times_in_waves(table, cells) if run is None else RowTimes(run.start_s, run.end_s)


def _times_in_waves(table: _OrderColumns, cells: _Cells) -> RowTimes:
    forward, backward, _ = _rows_by_cell(cells)
    times = propagate(table, *_messages(cells, forward, backward))
    assert isinstance(times, RowTimes), "the plan deadlocks"
    return times


def _tabulate(plan: Plan) -> _OrderColumns:
    texts = [worker.order or "" for worker in plan.workers]
    seats = list(map(plan.seats_of, plan.workers))
    return _OrderColumns(plan, *parse_columns(texts, [worker.pipeline for worker in plan.workers], seats))


def _run(cells: _Cells) -> OperationTimes | None:
    """What the orders of a large plan take, if they are sound; none of one with a placement."""
    table, plan = cells.table, cells.table.plan
    if plan.is_placed or table.is_paired is not None or not pays(follow, len(table.kind), NUMPY_OPERATIONS):
        return None
    stages = [plan.stage_of(worker) for worker in plan.workers]
    home, stage = np.array([worker.place for worker in plan.workers]).T
    layers, (inside_s, between_s) = _layers(plan), _link_delays(plan)
    shape = PlanArrays(
        home=home,
        stage=stage,
        held=layers[home, stage],
        duration_s=table.durations_s,
        activation_bytes=np.array([own.activation_bytes for own in stages], dtype=np.float64),
        stash_bytes=np.array([own.weight_stash_bytes for own in stages], dtype=np.float64),
        microbatches=np.array([own.microbatches for own in plan.pipelines], dtype=np.int64),
        depth=np.count_nonzero(cells.first != NONE, axis=1),
        first=cells.first,
        layers=layers,
        inside_s=inside_s,
        between_s=between_s,
        cells=cells.number,
    )
    return run_of(table.columns, shape)


def _number_cells(table: _OrderColumns) -> _Cells:
    plan = table.plan
    first = np.full((len(plan.pipelines), _deepest(plan)), NONE, dtype=np.int64)
    number = 0
    for k, pipeline in enumerate(plan.pipelines):
        for i in range(len(plan.template_of(k).stages)):
            first[k, i] = number
            number += pipeline.microbatches
    return _Cells(table, first, number)


def _deepest(plan: Plan) -> int:
    """The stages of the deepest template."""
    return max(len(template.stages) for template in plan.templates)


def _foreign(table: _OrderColumns, cells: _Cells) -> list[Violation]:
    """Operations on micro-batches that do not exist, or of stages that hold other layers, or are placed otherwise."""
    plan = table.plan
    counts = np.array([pipeline.microbatches for pipeline in plan.pipelines], dtype=np.int64)
    layers = _layers(plan)
    known = table.pipeline < len(counts)
    owner = np.where(known, table.pipeline, 0)
    known &= table.microbatch < counts[owner]
    mine = np.array([layers[plan.workers[number].pipeline, stage] for number, stage in table.seats])
    owner *= layers.shape[1]
    owner += table.stage
    known &= layers.ravel().take(owner) == mine.take(table.seat)
    return [
        Violation(table.path(row), f"{table.name(row)} is foreign: no such micro-batch passes this stage")
        for row in map(int, np.flatnonzero(~known))
    ]


def _layers(plan: Plan) -> Ints:
    """A number for the layers that a stage holds; array of pipelines x stages, NONE beyond a pipeline's depth.

    Virtual stages have one number only where all of their pipelines' layers are cut and placed alike.
    """
    numbers: dict[tuple[object, ...], int] = {}
    layers = np.full((len(plan.pipelines), _deepest(plan)), NONE)
    for k in range(len(plan.pipelines)):
        template = plan.template_of(k)
        cut = [stage.layers for stage in template.stages]
        shape = () if template.placement is None else (template.placement, *cut)
        layers[k, : len(cut)] = [numbers.setdefault((*held, *shape), len(numbers)) for held in cut]
    return layers


def _incomplete(cells: _Cells) -> list[Violation]:
    """Micro-batches that lack an operation at a stage, or have one twice."""
    table, needed = cells.table, 2 * cells.number
    if needed > len(table.kind) + MOST_NAMED:  # to name each that is missing would not fit in memory
        what = f"the micro-batches need at least {needed} operations, the orders hold {len(table.kind)}"
        return [Violation("/pipelines", what)]
    count = np.bincount(cells.slot, minlength=len(KINDS) * cells.number).reshape(len(KINDS), -1)
    whole = (count[INPUT] == 0) & (count[WEIGHT] == 0) & (count[FULL] == 1)
    split = (count[INPUT] == 1) & (count[WEIGHT] == 1) & (count[FULL] == 0)
    broken = np.flatnonzero((count[FORWARD] != 1) | ~(whole | split))
    if not broken.size:
        return []
    last = np.full(cells.number, NONE, dtype=np.int64)
    np.maximum.at(last, cells.slot % cells.number, np.arange(len(cells.slot)))
    problems = []
    for bad in map(int, broken):
        found = ", ".join(f"{count[kind, bad]} {KINDS[kind]}" for kind in range(4) if count[kind, bad]) or "nothing"
        path = "/workers" if last[bad] == NONE else table.path(int(last[bad]))
        problems.append(
            Violation(path, f"{cells.describe(bad)} has {found}; it needs one F, and one B or one I and one W")
        )
    return problems


def _rows_by_cell(cells: _Cells) -> tuple[Ints, Ints, Ints]:
    """The row of each cell's F, of its I or B, and of its W (or NONE); arrays of cells of a complete plan."""
    row = np.full(len(KINDS) * cells.number, NONE, dtype=np.int64)
    row[cells.slot] = np.arange(len(cells.slot))
    forward, split, weight, full = row.reshape(len(KINDS), -1)
    return forward, np.maximum(split, full), weight


def _against_the_stages(table: _OrderColumns) -> list[Violation]:
    """F of a later virtual stage ahead of that of an earlier one, of the same micro-batch on one worker; I reversed."""
    problems = []
    micro_batch = (table.worker * len(table.plan.pipelines) + table.pipeline) * (int(table.microbatch.max()) + 1)
    micro_batch += table.microbatch
    for kinds, step in (((FORWARD,), 1), ((INPUT, FULL), -1)):
        rows = np.flatnonzero(np.isin(table.kind, kinds))
        rows = rows[np.argsort(micro_batch[rows], kind="stable")]
        ahead, behind = rows[:-1], rows[1:]
        wrong = (micro_batch[ahead] == micro_batch[behind]) & (step * table.stage[ahead] > step * table.stage[behind])
        for a, b in zip(ahead[wrong], behind[wrong], strict=True):
            message = f"{table.name(a)} comes before {table.name(b)}, which it needs"
            problems.append(Violation(table.path(a), message))
    return problems


def _beside_itself(table: _OrderColumns) -> list[Violation]:
    """Pairs of a forward and the backward of the same micro-batch, which waits for it."""
    if table.is_paired is None:
        return []
    rows = np.flatnonzero(table.is_paired)
    alike = (table.microbatch[rows] == table.microbatch[rows + 1]) & (table.pipeline[rows] == table.pipeline[rows + 1])
    return [
        Violation(table.path(row), f"{table.name(row + 1)} runs beside {table.name(row)}, which it needs")
        for row in map(int, rows[alike])
    ]


@dataclass(frozen=True)
class RowTimes:
    """Start and end of every row, in s."""

    start_s: Floats
    end_s: Floats


def propagate(table: TimedColumns, source: Ints, delay_s: Floats) -> RowTimes | Violation:
    """When each row starts and ends if none waits for longer than it must, or the deadlock that keeps some from it.

    As Kahn's algorithm goes, in waves: each starts the next row of every worker whose message has been sent.

    Args:
        table: all operations.
        source, delay_s: the row whose message each row waits for (or NONE), and how long that takes in s.
    """
    start_s, end_s = np.zeros(len(source)), np.full(len(source) + 1, np.nan)  # NaN: not known yet
    end_s[NONE] = 0.0  # stands behind the last row: who waits for no message could start at 0
    paired = table.is_paired
    row, stop = table.first[table.busy], (table.first + table.counts)[table.busy]
    free_s = np.zeros(len(row))
    while row.size:
        arrival_s = end_s.take(source.take(row)) + delay_s.take(row)
        if paired is not None:
            other = row + paired.take(row)
            arrival_s = np.maximum(arrival_s, end_s.take(source.take(other)) + delay_s.take(other))
        ready = np.flatnonzero(~np.isnan(arrival_s))
        if not ready.size:
            waits = row if paired is None else np.where(np.isnan(end_s.take(source.take(row))), row, other)
            return _deadlock(table, waits, source)
        now = row.take(ready)
        from_s = np.maximum(free_s.take(ready), arrival_s.take(ready))
        until_s = from_s + table.duration_s.take(now)
        start_s[now], end_s[now], free_s[ready] = from_s, until_s, until_s
        if paired is not None:
            now = now + paired.take(now)
            start_s[now], end_s[now] = from_s, until_s
        row[ready] = now + 1
        left = row < stop
        if not left.all():
            row, stop, free_s = row[left], stop[left], free_s[left]
    return RowTimes(start_s, end_s[:-1])


def _messages(cells: _Cells, forward: Ints, backward: Ints) -> tuple[Ints, Floats]:
    """For every row, the row at another stage whose message it waits for (or NONE), and the link's delay in s."""
    table = cells.table
    source, delay_s = np.full(len(table.kind), NONE, dtype=np.int64), np.zeros(len(table.kind))
    inside_s, between_s = _link_delays(table.plan)
    home = np.array([worker.pipeline for worker in table.plan.workers])[table.worker[forward]]
    blocks = zip(cells.blocks(forward), cells.blocks(backward), cells.blocks(home), strict=True)
    for k, (down, up, pipelines) in enumerate(blocks):
        here, above, links = pipelines[:-1], pipelines[1:], np.arange(len(pipelines) - 1)[:, None]
        hop_s = np.where(here == above, inside_s[here, links], between_s[k, links])  # of each micro-batch, both ways
        source[down[1:]], source[up[:-1]] = down[:-1], up[1:]
        delay_s[down[1:]] = delay_s[up[:-1]] = hop_s
    return source, delay_s


def _link_delays(plan: Plan) -> tuple[Floats, Floats]:
    """Delay of each link inside a pipeline, and to others: arrays of pipelines x stages of the deepest, in s."""
    inside_s = np.zeros((len(plan.pipelines), max(len(template.stages) for template in plan.templates)))
    between_s = np.zeros_like(inside_s)
    for k in range(len(plan.pipelines)):
        for delay_s, links in ((inside_s, plan.links_of(k)), (between_s, plan.template_of(k).links)):
            delay_s[k, : len(links)] = [link.delay_s for link in links]
    return inside_s, between_s


def _deadlock(table: TimedColumns, blocked: Ints, source: Ints) -> Violation:
    """Follow who waits for whom from the first blocked row (one of each worker) until a worker comes up twice."""
    first_of = {int(table.worker[row]): int(row) for row in blocked}
    worker = int(table.worker[blocked[0]])
    chain: list[int] = []
    while worker not in chain:
        chain.append(worker)
        worker = int(table.worker[source[first_of[worker]]])
    ring = chain[chain.index(worker) :]
    waits = [f"{table.name(first_of[w])} waits for {table.name(int(source[first_of[w]]))}" for w in ring]
    return Violation(table.path(first_of[ring[0]]), "deadlock: " + "; ".join(waits))


def _peak_memory(table: _OrderColumns) -> Floats:
    """Peak activation bytes of each worker of a complete plan; memory peaks right after an F starts."""
    held = list(map(table.plan.stages_of, table.plan.workers))
    held_bytes = np.zeros(len(table.kind))
    for number in range(max(map(len, held))):  # seat by seat: what is held is counted, sums of bytes would drift
        stages = [own[min(number, len(own) - 1)] for own in held]  # who has fewer seats has no operations there
        activation = np.array([stage.activation_bytes for stage in stages], dtype=np.float64)
        stash = np.array([stage.weight_stash_bytes for stage in stages], dtype=np.float64)
        kind = table.kind if not table.plan.is_placed else np.where(table.own_seat == number, table.kind, ELSEWHERE)
        # Every seat ends with nothing held, so what all before it have added up to does not count against it.
        whole, stashed = np.cumsum(WHOLE.take(kind)), np.cumsum(STASHED.take(kind))
        held_bytes += whole * np.repeat(activation, table.counts) + stashed * np.repeat(stash, table.counts)
    peaks = np.zeros(len(table.counts))
    peaks[table.busy] = np.maximum.reduceat(held_bytes, table.first[table.busy])
    return peaks


def _over_limit(plan: Plan, peaks: Floats) -> list[Violation]:
    problems = []
    for number, worker in enumerate(plan.workers):
        limit = plan.limit_bytes(worker)
        if limit is not None and peaks[number] > limit * (1 + ROUNDING):
            peak, most = print_apart(peaks[number], limit, print_bytes)
            message = f"worker {worker.name} holds up to {peak}, its limit is {most}"
            problems.append(Violation(f"/workers/{number}/order", message))
    return problems


def _wrong_prediction(table: _OrderColumns, times: RowTimes, peaks: Floats) -> list[Violation]:
    prediction = table.plan.prediction
    if prediction is None:
        return []
    makespan, period = _makespan_and_period(table, times)
    iteration = period if table.plan.optimizer == "staggered" else makespan
    busy = float(table.duration_s.sum())
    room = len(table.plan.live_workers()) * iteration
    wanted: list[tuple[str, float, float]] = [
        ("makespan_s", prediction.makespan_s, makespan),
        ("period_s", prediction.period_s, period),
        ("iteration_time_s", prediction.iteration_time_s, iteration),
        ("bubble_ratio", prediction.bubble_ratio, 1 - busy / room if room else 0.0),
        *(
            (f"peak_memory_bytes/{number}", peak, found)
            for number, (peak, found) in enumerate(zip(prediction.peak_memory_bytes, peaks, strict=True))
        ),
    ]
    problems = [
        Violation(f"/prediction/{key}", "the plan predicts {}, its orders give {}".format(*_apart(key, said, found)))
        for key, said, found in wanted
        if not is_close(said, found)
    ]
    return problems + _wrong_bound(prediction, iteration)


def _apart(key: str, said: float, found: float) -> tuple[str, str]:
    """Two values of a prediction's field that differ, in its unit."""
    shown = print_bytes if "bytes" in key else print_time if key.endswith("_s") else print_number
    return print_apart(said, found, shown)


def check_promise(prediction: Prediction, optimizer: Optimizer) -> list[Violation]:
    """Check that the times of a prediction agree with each other, without the orders that they are of."""
    name = "period_s" if optimizer == "staggered" else "makespan_s"
    iteration = prediction.iteration_time_s
    if not is_close(iteration, getattr(prediction, name)):
        takes, stated = print_apart(iteration, getattr(prediction, name), print_time)
        message = f"the iteration takes {takes}, its {name} is {stated}"
        return [Violation("/prediction/iteration_time_s", message)]
    return _wrong_bound(prediction, iteration)


def _wrong_bound(prediction: Prediction, iteration: float) -> list[Violation]:
    bound = prediction.lower_bound_s
    problems = []
    takes, least = print_apart(iteration, bound, print_time)
    if iteration < bound * (1 - ROUNDING):
        message = f"the iteration takes {takes}, less than its “lower bound” {least}"
        problems.append(Violation("/prediction/lower_bound_s", message))
    gap = iteration / bound - 1 if bound else 0.0
    if not is_close(prediction.gap, gap):
        stated, found = print_apart(prediction.gap, gap, print_number)
        problems.append(Violation("/prediction/gap", f"the plan states a gap of {stated}, it is {found}"))
    if prediction.proof == "optimal" and iteration > bound * (1 + ROUNDING):
        message = f"“optimal” is claimed, but {takes} lies above the bound of {least}"
        problems.append(Violation("/prediction/proof", message))
    return problems


def _makespan_and_period(table: _OrderColumns, times: RowTimes) -> tuple[float, float]:
    """When all gradients are summed and all have stepped; and the longest window."""
    plan = table.plan
    live = np.array([not worker.failed for worker in plan.workers])
    first_s, ended_s = np.full(len(live), np.inf), np.zeros(len(live))
    rows = table.first[table.busy]
    first_s[table.busy] = np.minimum.reduceat(times.start_s, rows)
    ended_s[table.busy] = np.maximum.reduceat(times.end_s, rows)
    begun_s, sum_s = sums_s(plan, ended_s[live])
    step_s = np.array([sum(stage.optimizer_s for stage in plan.stages_of(worker)) for worker in plan.live_workers()])
    numbers: dict[tuple[Layers, ...], int] = {}
    alike = np.array([numbers.setdefault(plan.layers_of(worker), len(numbers)) for worker in plan.live_workers()])
    groups = len(numbers)
    began_s, steps_s, done_s, lasts_s = np.full(groups, np.inf), *(np.zeros(groups) for _ in range(3))
    np.minimum.at(began_s, alike, first_s[live])
    np.maximum.at(steps_s, alike, step_s)
    done_s[alike], lasts_s[alike] = begun_s, sum_s
    makespan = float((done_s + lasts_s).max() + steps_s.max())
    return makespan, float((done_s - began_s + lasts_s + steps_s).max())


def sums_s(plan: Plan, ended_s: Floats, sealed: Sequence[Layers] = ()) -> tuple[Floats, Floats]:
    """When the last sum of each live worker begins and how long it takes in s: layer by layer from the last on.

    Where nobody's stage begins or ends there is nothing between two layers: they are summed as one.

    Args:
        plan: whose workers sum their gradients.
        ended_s: when each live worker ends its last operation.
        sealed: layers whose sums there are already, as ranges that do not touch each other.
    """
    held = [(n, stage) for n, worker in enumerate(plan.live_workers()) for stage in plan.stages_of(worker)]
    worker = np.array([n for n, _ in held])
    layers = np.array([stage.layers for _, stage in held])
    reduce_s = np.array([stage.allreduce_s for _, stage in held], dtype=np.float64)
    begun_s, sum_s = ended_s.copy(), np.zeros(len(ended_s))
    boundaries = np.unique(np.append(layers, np.array(sealed, dtype=layers.dtype)))
    for start, stop in zip(boundaries[-2::-1], boundaries[:0:-1], strict=True):
        rows = np.flatnonzero((layers[:, 0] <= start) & (stop <= layers[:, 1]))
        if len(rows) and not any(first <= start and stop <= end for first, end in sealed):
            holders, length = worker[rows], layers[rows, 1] - layers[rows, 0]
            begun_s[holders] = (begun_s[holders] + sum_s[holders]).max()
            sum_s[holders] = (reduce_s[rows] * ((stop - start) / length)).max()
    return begun_s, sum_s


def is_close(a: float, b: float) -> bool:
    """Whether two values of a prediction differ by rounding only."""
    return abs(a - b) <= ROUNDING * max(abs(a), abs(b), 1e-3)


def require_valid(plan: Plan, source: str) -> None:
    """Raise InvalidInputError, naming `source` and the first problem, unless the plan is valid."""
    problems = check_plan(plan)
    if problems:
        where = f"{source}, {problems[0].path}"
        raise InvalidInputError(in_brief(problems), where=where, fix="rtk verify lists every problem")


def in_brief(problems: Sequence[Violation]) -> str:
    """The first of some problems, and how many more there are."""
    return problems[0].message + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def check_timeline(plan: Plan, timeline: Timeline) -> list[Violation]:
    """Check that a timeline keeps a valid plan: every operation once an iteration, in order, none overlapping another
    of its worker, none before what it depends on.

    A measured message takes what it takes, so link delays are required of simulated timelines only.

    Args:
        plan: a plan that `check_plan` finds valid.
        timeline: simulated or measured, of any number of iterations.
    """
    problems = [] if timeline.plan in (None, digest(plan)) else [Violation("/plan", "the timeline is of another plan")]
    iterations = sorted({span.iteration for span in timeline.spans})
    if not iterations:
        problems.append(Violation("/spans", "the timeline holds no iteration"))
    for iteration in iterations:
        problems += _check_iteration(plan, timeline, iteration)
    return problems


def _check_iteration(plan: Plan, timeline: Timeline, iteration: int) -> list[Violation]:
    spans: dict[str, list[tuple[int, Span]]] = {worker.name: [] for worker in plan.workers}
    for index, span in enumerate(timeline.spans):
        if span.iteration == iteration and span.op not in ("allreduce", "step"):
            if span.worker not in spans:
                return [Violation(f"/spans/{index}/worker", f"the plan has no worker {span.worker}")]
            spans[span.worker].append((index, span))
    start: list[float] = []
    end: list[float] = []
    for worker in plan.workers:
        found = sorted(spans[worker.name], key=lambda item: (item[1].start_s, item[1].end_s))
        for place in worker.pairs():  # which of the two begins first means nothing
            found[place : place + 2] = sorted(found[place : place + 2], key=lambda item: "B" in item[1].op)
        done = " ".join(span.op for _, span in found)
        if done != flattened(worker.order or ""):
            return [Violation("/spans", f"iteration {iteration}: worker {worker.name} ran {done!r}, not its order")]
        start += (span.start_s for _, span in found)
        end += (span.end_s for _, span in found)
    return _check_times(plan, timeline, iteration, np.array(start), np.array(end))


def _check_times(plan: Plan, timeline: Timeline, iteration: int, start: Floats, end: Floats) -> list[Violation]:
    table = _tabulate(plan)
    cells = _number_cells(table)
    forward, backward, _ = _rows_by_cell(cells)
    source, delay = _messages(cells, forward, backward)
    if timeline.source == "measured":
        delay = np.zeros_like(delay)
    rows = np.arange(len(start))
    before = rows - 1
    before[table.first[table.busy]] = NONE
    slack = ROUNDING * max(float(end.max(initial=0.0)), 1e-3)
    if table.is_paired is not None:  # a backward comes after what is ahead of the pair; what follows, after both
        forward = np.flatnonzero(table.is_paired)
        before[forward + 1] = before[forward]
        end = end.copy()
        end[forward] = end[forward + 1] = np.maximum(end[forward], end[forward + 1])
    late = (before != NONE) & (start < end[before] - slack)
    early = (source != NONE) & (start < end[source] + delay - slack)
    overlaps = [
        Violation("/spans", f"iteration {iteration}: {table.name(row)} starts before the operation ahead of it ends")
        for row in map(int, np.flatnonzero(late))
    ]
    return overlaps + [
        Violation(
            "/spans", f"iteration {iteration}: {table.name(row)} starts before {table.name(int(source[row]))} is there"
        )
        for row in map(int, np.flatnonzero(early))
    ]
