"""The independent checker: does a Plan keep every promise of docs/semantics.md, and does a Timeline keep the Plan?

It shares no code with the planners' evaluator (a longest path by worker sweeps) nor with the simulator (a virtual clock
over the lowered program): here the operations are a table of numpy columns, completeness is counting, and times are
Kahn's topological waves over the table. Tests hold the three readings equal, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .documents import digest
from .errors import InvalidInputError
from .orders import parse_order
from .plan import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .timeline import Span, Timeline

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

KINDS = "FIWB"
FORWARD, INPUT, WEIGHT, FULL = range(4)
NONE = -1
# Predictions may come from another summation order: this much relative difference is rounding, not a lie.
ROUNDING = 1e-9
MOST_NAMED = 100_000


@dataclass(frozen=True)
class Problem:
    """One broken promise: its place as a JSON pointer, and what is wrong in words."""

    path: str
    message: str


@dataclass(frozen=True)
class _Table:
    """All operations as columns of equal length n, in worker order and then in order of execution."""

    plan: Plan
    worker: Ints
    place: Ints
    kind: Ints
    pipeline: Ints
    microbatch: Ints
    stage: Ints

    @cached_property
    def rows(self) -> list[slice]:
        """The rows of each worker, which stand together."""
        ends = np.searchsorted(self.worker, np.arange(len(self.plan.workers) + 1))
        return [slice(int(first), int(stop)) for first, stop in pairwise(ends)]

    def name(self, row: int) -> str:
        """An operation in words, for messages."""
        worker = self.plan.workers[int(self.worker[row])]
        what = f"{KINDS[self.kind[row]]} of micro-batch {self.pipeline[row]}.{self.microbatch[row]}"
        return f"{what} on worker {worker.name} (operation {self.place[row]})"

    def path(self, row: int) -> str:
        """The JSON pointer of the order that holds an operation."""
        return f"/workers/{self.worker[row]}/order"


@dataclass(frozen=True)
class _Cells:
    """Where each (pipeline, micro-batch, stage) runs: the row of its F, of its I or B, and of its W (or NONE)."""

    table: _Table
    first: Ints
    number: int

    def of(self, pipeline: Ints, microbatch: Ints, stage: Ints) -> Ints:
        """The cell numbers of micro-batches at stages; each (pipeline, stage) pair owns a run of cells."""
        return self.first[pipeline, stage] + microbatch

    def describe(self, cell: int) -> str:
        """A cell in words, for messages."""
        flat = self.first.ravel()
        owner = int(np.flatnonzero((flat >= 0) & (flat <= cell))[np.argmax(flat[(flat >= 0) & (flat <= cell)])])
        pipeline, stage = divmod(owner, self.first.shape[1])
        return f"micro-batch {pipeline}.{cell - flat[owner]} at stage {stage}"


def check_plan(plan: Plan) -> list[Problem]:
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
    problems = _foreign(table, cells) or _too_few(cells) or _incomplete(cells)
    if problems:
        return problems
    forward, backward, weight = _rows_by_cell(cells)
    problems = _misplaced(table, cells, forward, backward, weight)
    if problems:
        return problems
    times = _Times.propagate(table, cells, forward, backward)
    if times.deadlock is not None:
        return [times.deadlock]
    peaks = _peak_memory(table)
    return _over_limit(plan, peaks) + _wrong_prediction(table, times, peaks)


def deadlock_free_times(plan: Plan) -> tuple[Floats, Floats]:
    """Start and end of every operation of a valid plan, in worker order: what `check_plan` judged by."""
    table = _tabulate(plan)
    cells = _number_cells(table)
    forward, backward, _ = _rows_by_cell(cells)
    times = _Times.propagate(table, cells, forward, backward)
    return times.start, times.end


def _tabulate(plan: Plan) -> _Table:
    columns: list[tuple[int, int, int, int, int, int]] = []
    for number, worker in enumerate(plan.workers):
        for place, (kind, pipeline, microbatch) in enumerate(parse_order(worker.order or "", worker.pipeline)):
            columns.append((number, place, KINDS.index(kind), pipeline, microbatch, worker.stage))
    array = np.array(columns, dtype=np.int64).reshape(-1, 6)
    return _Table(plan, *(np.ascontiguousarray(column) for column in array.T))


def _number_cells(table: _Table) -> _Cells:
    plan = table.plan
    depth = max(len(template.stages) for template in plan.templates)
    first = np.full((len(plan.pipelines), depth), NONE, dtype=np.int64)
    number = 0
    for k, pipeline in enumerate(plan.pipelines):
        for i in range(len(plan.template_of(k).stages)):
            first[k, i] = number
            number += pipeline.microbatches
    return _Cells(table, first, number)


def _foreign(table: _Table, cells: _Cells) -> list[Problem]:
    """Operations on micro-batches that do not exist, or of stages that hold other layers."""
    plan = table.plan
    counts = np.array([pipeline.microbatches for pipeline in plan.pipelines], dtype=np.int64)
    known = table.pipeline < len(plan.pipelines)
    owner = np.where(known, table.pipeline, 0)
    known &= table.microbatch < counts[owner]
    for worker, mine in zip(plan.workers, table.rows, strict=True):
        layers = plan.stage_of(worker).layers
        same = [
            worker.stage < len(plan.template_of(k).stages) and plan.template_of(k).stages[worker.stage].layers == layers
            for k in range(len(plan.pipelines))
        ]
        known[mine] &= np.array(same)[owner[mine]]
    return [
        Problem(table.path(row), f"{table.name(row)} is foreign: no such micro-batch passes this stage")
        for row in map(int, np.flatnonzero(~known))
    ]


def _too_few(cells: _Cells) -> list[Problem]:
    """So few operations that to name each missing one would not fit in memory."""
    needed, found = 2 * cells.number, len(cells.table.kind)
    if needed <= found + MOST_NAMED:
        return []
    return [Problem("/pipelines", f"the micro-batches need at least {needed} operations, the orders hold {found}")]


def _incomplete(cells: _Cells) -> list[Problem]:
    """Micro-batches that lack an operation at a stage, or have one twice."""
    table = cells.table
    cell = cells.of(table.pipeline, table.microbatch, table.stage)
    count = np.stack([np.bincount(cell[table.kind == kind], minlength=cells.number) for kind in range(4)])
    whole = (count[INPUT] == 0) & (count[WEIGHT] == 0) & (count[FULL] == 1)
    split = (count[INPUT] == 1) & (count[WEIGHT] == 1) & (count[FULL] == 0)
    problems = []
    for bad in np.flatnonzero((count[FORWARD] != 1) | ~(whole | split)):
        found = ", ".join(f"{count[kind, bad]} {KINDS[kind]}" for kind in range(4) if count[kind, bad]) or "nothing"
        rows = np.flatnonzero(cell == bad)
        path = table.path(int(rows[-1])) if rows.size else "/workers"
        problems.append(
            Problem(path, f"{cells.describe(int(bad))} has {found}; it needs one F, and one B or one I and one W")
        )
    return problems


def _rows_by_cell(cells: _Cells) -> tuple[Ints, Ints, Ints]:
    table = cells.table
    cell = cells.of(table.pipeline, table.microbatch, table.stage)
    rows = np.arange(len(cell))
    found = []
    for kinds in ((FORWARD,), (INPUT, FULL), (WEIGHT,)):
        of_kind = np.isin(table.kind, kinds)
        where = np.full(cells.number, NONE, dtype=np.int64)
        where[cell[of_kind]] = rows[of_kind]
        found.append(where)
    return found[0], found[1], found[2]


def _misplaced(table: _Table, cells: _Cells, forward: Ints, backward: Ints, weight: Ints) -> list[Problem]:
    """Operations of one micro-batch on several workers, or in an impossible order on one."""
    problems = []
    for earlier, later in ((forward, backward), (backward, weight)):
        both = np.flatnonzero(later != NONE)
        a, b = earlier[both], later[both]
        for cell in both[table.worker[a] != table.worker[b]]:
            message = f"{table.name(later[cell])} runs apart from {table.name(earlier[cell])}; one worker must run both"
            problems.append(Problem(table.path(later[cell]), message))
        for cell in both[(table.worker[a] == table.worker[b]) & (table.place[a] > table.place[b])]:
            message = f"{table.name(later[cell])} comes before {table.name(earlier[cell])}, which it needs"
            problems.append(Problem(table.path(later[cell]), message))
    return problems


@dataclass(frozen=True)
class _Times:
    """Start and end of every row, or the deadlock that keeps some from ever starting."""

    start: Floats
    end: Floats
    deadlock: Problem | None

    @staticmethod
    def propagate(table: _Table, cells: _Cells, forward: Ints, backward: Ints) -> _Times:
        """Kahn's algorithm in waves: a row starts at the later of its worker's previous end and its message."""
        before = np.where(table.place > 0, np.arange(len(table.place)) - 1, NONE)
        source, delay = _messages(table, cells, forward, backward)
        duration = _durations(table)
        after, target = _inverse(before), _inverse(source)
        missing = (before != NONE).astype(np.int64) + (source != NONE)
        start, end = np.zeros(len(duration)), np.zeros(len(duration))
        wave = np.flatnonzero(missing == 0)
        done = 0
        while wave.size:
            own = np.where(before[wave] != NONE, end[before[wave]], 0.0)
            message = np.where(source[wave] != NONE, end[source[wave]] + delay[wave], 0.0)
            start[wave] = np.maximum(own, message)
            end[wave] = start[wave] + duration[wave]
            done += wave.size
            freed = np.concatenate([after[wave], target[wave]])
            freed = freed[freed != NONE]
            np.subtract.at(missing, freed, 1)
            wave = _distinct(freed[missing[freed] == 0])
        return _Times(start, end, None if done == len(duration) else _deadlock(table, missing, source))


def _distinct(rows: Ints) -> Ints:
    """Each row once, in ascending order (np.unique would import numpy's masked arrays, a tenth of the start-up)."""
    ordered = np.sort(rows)
    return ordered[np.diff(ordered, prepend=NONE) > 0]


def _messages(table: _Table, cells: _Cells, forward: Ints, backward: Ints) -> tuple[Ints, Floats]:
    """For every row, the row on another worker whose message it waits for (or NONE), and the link's delay in s."""
    plan = table.plan
    depth = np.array([len(plan.template_of(k).stages) for k in range(len(plan.pipelines))])[table.pipeline]
    source = np.full(len(table.kind), NONE, dtype=np.int64)
    is_forward = table.kind == FORWARD
    from_below = is_forward & (table.stage > 0)
    from_above = np.isin(table.kind, (INPUT, FULL)) & (table.stage < depth - 1)
    for rows, step, senders in ((from_below, -1, forward), (from_above, 1, backward)):
        neighbour = cells.of(table.pipeline[rows], table.microbatch[rows], table.stage[rows] + step)
        source[rows] = senders[neighbour]
    return source, _delays(table, source)


def _delays(table: _Table, source: Ints) -> Floats:
    plan = table.plan
    depth = max(len(template.stages) for template in plan.templates)
    shape = (len(plan.pipelines), max(depth - 1, 1))
    inside, between = np.zeros(shape), np.zeros(shape)
    for k, pipeline in enumerate(plan.pipelines):
        template = plan.template_of(k)
        for i, link in enumerate(template.links):
            between[k, i] = link.delay_s
            inside[k, i] = link.delay_s if pipeline.links is None else pipeline.links[i].delay_s
    home = np.array([worker.pipeline for worker in plan.workers], dtype=np.int64)
    delay = np.zeros(len(source))
    rows = np.flatnonzero(source != NONE)
    crossed = np.minimum(table.stage[rows], table.stage[source[rows]])
    receiver, sender = home[table.worker[rows]], home[table.worker[source[rows]]]
    delay[rows] = np.where(receiver == sender, inside[receiver, crossed], between[table.pipeline[rows], crossed])
    return delay


def _durations(table: _Table) -> Floats:
    plan = table.plan
    by_worker = np.array(
        [
            [plan.stage_of(worker).duration_s(kind) * (worker.slowdown or 1.0) for kind in KINDS]
            for worker in plan.workers
        ]
    )
    durations: Floats = by_worker[table.worker, table.kind]
    return durations


def _inverse(rows: Ints) -> Ints:
    inverse = np.full(len(rows), NONE, dtype=np.int64)
    given = np.flatnonzero(rows != NONE)
    inverse[rows[given]] = given
    return inverse


def _deadlock(table: _Table, missing: Ints, source: Ints) -> Problem:
    """Follow who waits for whom from the first blocked worker until a worker comes up twice."""
    blocked = np.flatnonzero(missing > 0)
    first_of: dict[int, int] = {}
    for row in blocked:
        first_of.setdefault(int(table.worker[row]), int(row))
    worker = int(table.worker[blocked[0]])
    chain: list[int] = []
    while worker not in chain:
        chain.append(worker)
        worker = int(table.worker[source[first_of[worker]]])
    ring = chain[chain.index(worker) :]
    waits = [f"{table.name(first_of[w])} waits for {table.name(int(source[first_of[w]]))}" for w in ring]
    return Problem(table.path(first_of[ring[0]]), "deadlock: " + "; ".join(waits))


def _peak_memory(table: _Table) -> Floats:
    """Peak activation bytes of each worker; memory peaks right after an F starts."""
    peaks = np.zeros(len(table.plan.workers))
    for number, worker in enumerate(table.plan.workers):
        kind = table.kind[table.rows[number]]
        stage = table.plan.stage_of(worker)
        whole = np.cumsum((kind == FORWARD).astype(np.int64) - np.isin(kind, (INPUT, FULL)))
        stash = np.cumsum((kind == INPUT).astype(np.int64) - (kind == WEIGHT))
        held = whole * stage.activation_bytes + stash * stage.weight_stash_bytes
        peaks[number] = held.max(initial=0.0)
    return peaks


def _over_limit(plan: Plan, peaks: Floats) -> list[Problem]:
    problems = []
    for number, worker in enumerate(plan.workers):
        limit = plan.stage_of(worker).memory_limit_bytes
        if limit is not None and peaks[number] > limit * (1 + ROUNDING):
            message = f"worker {worker.name} holds up to {peaks[number]:g} bytes, its limit is {limit:g}"
            problems.append(Problem(f"/workers/{number}/order", message))
    return problems


def _wrong_prediction(table: _Table, times: _Times, peaks: Floats) -> list[Problem]:
    prediction = table.plan.prediction
    if prediction is None:
        return []
    makespan, period = _makespan(table, times), _period(table, times)
    iteration = period if table.plan.optimizer == "staggered" else makespan
    busy = float(_durations(table).sum())
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
        Problem(f"/prediction/{key}", f"the plan predicts {said:.12g}, its orders give {found:.12g}")
        for key, said, found in wanted
        if not _close(said, found)
    ]
    return problems + _wrong_bound(table.plan, iteration)


def _wrong_bound(plan: Plan, iteration: float) -> list[Problem]:
    prediction = plan.prediction
    assert prediction is not None
    bound = prediction.lower_bound_s
    problems = []
    if iteration < bound * (1 - ROUNDING):
        message = f"the iteration takes {iteration:.12g} s, less than its “lower bound” {bound:.12g} s"
        problems.append(Problem("/prediction/lower_bound_s", message))
    gap = iteration / bound - 1 if bound else 0.0
    if not _close(prediction.gap, gap):
        problems.append(Problem("/prediction/gap", f"the plan states a gap of {prediction.gap:.6g}, it is {gap:.6g}"))
    if prediction.proof == "optimal" and iteration > bound * (1 + ROUNDING):
        message = f"“optimal” is claimed, but {iteration:.12g} s lies above the bound of {bound:.12g} s"
        problems.append(Problem("/prediction/proof", message))
    return problems


def _stage_windows(table: _Table, times: _Times) -> tuple[Floats, Floats, Floats, Floats]:
    """For each stage, over all its live workers: first start, last end, and slowest all-reduce and optimizer, in s."""
    plan = table.plan
    live = [number for number, worker in enumerate(plan.workers) if not worker.failed]
    stages = [plan.stage_of(plan.workers[number]) for number in live]
    layers = {held: number for number, held in enumerate({stage.layers for stage in stages})}
    group = np.full(len(plan.workers), NONE, dtype=np.int64)
    group[live] = [layers[stage.layers] for stage in stages]
    first, last = np.full(len(layers), np.inf), np.zeros(len(layers))
    np.minimum.at(first, group[table.worker], times.start)
    np.maximum.at(last, group[table.worker], times.end)
    allreduce, optimizer = np.zeros(len(layers)), np.zeros(len(layers))
    np.maximum.at(allreduce, group[live], [stage.allreduce_s for stage in stages])
    np.maximum.at(optimizer, group[live], [stage.optimizer_s for stage in stages])
    return first, last, allreduce, optimizer


def _makespan(table: _Table, times: _Times) -> float:
    _, last, allreduce, optimizer = _stage_windows(table, times)
    return float((last + allreduce).max() + optimizer.max())


def _period(table: _Table, times: _Times) -> float:
    first, last, allreduce, optimizer = _stage_windows(table, times)
    return float((last - first + allreduce + optimizer).max())


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(abs(a), abs(b), 1e-3)


def require_valid(plan: Plan, source: str) -> None:
    """Raise InvalidInputError, naming `source` and the first problem, unless the plan is valid."""
    problems = check_plan(plan)
    if problems:
        where = f"{source}, {problems[0].path}"
        raise InvalidInputError(in_brief(problems), where=where, fix="rtk verify lists every problem")


def in_brief(problems: Sequence[Problem]) -> str:
    """The first of some problems, and how many more there are."""
    return problems[0].message + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")


def check_timeline(plan: Plan, timeline: Timeline) -> list[Problem]:
    """Check that a timeline keeps a valid plan: every operation once an iteration, in order, none overlapping another
    of its worker, none before what it depends on.

    A measured message takes what it takes, so link delays are required of simulated timelines only.

    Args:
        plan: a plan that `check_plan` finds valid.
        timeline: simulated or measured, of any number of iterations.
    """
    problems = [] if timeline.plan in (None, digest(plan)) else [Problem("/plan", "the timeline is of another plan")]
    iterations = sorted({span.iteration for span in timeline.spans})
    if not iterations:
        problems.append(Problem("/spans", "the timeline holds no iteration"))
    for iteration in iterations:
        problems += _check_iteration(plan, timeline, iteration)
    return problems


def _check_iteration(plan: Plan, timeline: Timeline, iteration: int) -> list[Problem]:
    spans: dict[str, list[tuple[int, Span]]] = {worker.name: [] for worker in plan.workers}
    for index, span in enumerate(timeline.spans):
        if span.iteration == iteration and span.op not in ("allreduce", "step"):
            if span.worker not in spans:
                return [Problem(f"/spans/{index}/worker", f"the plan has no worker {span.worker}")]
            spans[span.worker].append((index, span))
    start: list[float] = []
    end: list[float] = []
    for worker in plan.workers:
        found = sorted(spans[worker.name], key=lambda item: (item[1].start_s, item[1].end_s))
        done = " ".join(span.op for _, span in found)
        if done != (worker.order or ""):
            return [Problem("/spans", f"iteration {iteration}: worker {worker.name} ran {done!r}, not its order")]
        start += (span.start_s for _, span in found)
        end += (span.end_s for _, span in found)
    return _check_times(plan, timeline, iteration, np.array(start), np.array(end))


def _check_times(plan: Plan, timeline: Timeline, iteration: int, start: Floats, end: Floats) -> list[Problem]:
    table = _tabulate(plan)
    cells = _number_cells(table)
    forward, backward, _ = _rows_by_cell(cells)
    source, delay = _messages(table, cells, forward, backward)
    if timeline.source == "measured":
        delay = np.zeros_like(delay)
    rows = np.arange(len(start))
    before = np.where(table.place > 0, rows - 1, NONE)
    slack = ROUNDING * max(float(end.max(initial=0.0)), 1e-3)
    late = (before != NONE) & (start < end[before] - slack)
    early = (source != NONE) & (start < end[source] + delay - slack)
    overlaps = [
        Problem("/spans", f"iteration {iteration}: {table.name(row)} starts before the operation ahead of it ends")
        for row in map(int, np.flatnonzero(late))
    ]
    return overlaps + [
        Problem(
            "/spans", f"iteration {iteration}: {table.name(row)} starts before {table.name(int(source[row]))} is there"
        )
        for row in map(int, np.flatnonzero(early))
    ]
