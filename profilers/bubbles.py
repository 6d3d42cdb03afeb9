"""Where the time of a pipeline's iterations goes, stage by stage: computing, steps, and the bubble in three parts.

* The **bubble ratio** is the share of the iteration time in which the average worker computes nothing, as plans promise
  it (docs/glossary.md): what is left for sums, steps, messages and waits.
* **Idle over computing** is what Megatron-LM's papers call the bubble time fraction (Narayanan et al., "Efficient
  large-scale language model training on GPU clusters using Megatron-LM", SC 2021, section 2.2): (p - 1) / m of an ideal
  pipeline with p stages and m micro-batches, (p - 1) / (v m) with v virtual stages a worker.
* **Exposed communication** is how long a stream of communication is busy and none of computing: of a timeline its
  all-reduces, of a trace NCCL's kernels (sums and messages, which spin while they wait), as HolisticTraceAnalysis
  counts communication that is not overlapped (`get_comm_comp_overlap`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from ..schemas.bubble import StageBubble
from ..schemas.columns import TimelineColumns
from ..schemas.errors import InvalidInputError
from ..schemas.orders import KINDS
from ..schemas.quantities import print_percent
from .analytic.step_trace import read_step_trace
from .pipeline_run import PipelineRun

LAUNCHED = 0.95  # of the time of passes in which kernels run: with less it is worth a word
ROUNDING = 1e-9  # of an iteration, by which the next may begin before its end


@dataclass(frozen=True)
class IterationParts:
    """What iterations of a run were made of.

    Attributes:
        iteration_time_s: the mean of those that count.
        iterations: how many those are.
        stages: what workers did, by column.
        remarks: what could not be told, and why.
    """

    iteration_time_s: float
    iterations: int
    stages: tuple[StageBubble, ...]
    remarks: tuple[str, ...] = ()


def parts_of(run: PipelineRun) -> IterationParts:
    """Divide the iterations of a run, stage by stage.

    Where iterations overlap, as with a staggered optimizer, each worker's begins where its own last one ended.
    """
    columns = run.columns
    exposed, remarks = _exposed_in_traces(run) if run.traces else (None, ())
    if run.traces and "step" not in columns.others:
        remarks = (*remarks, "the traces tell no optimizer's step: what one takes counts as idle, or as after the end")
    share = run.timeline.options.get("kernels", 1.0)
    if isinstance(share, float) and share < LAUNCHED:
        launching = f"kernels run in {print_percent(share)} of the time that passes take"
        remarks = (*remarks, f"{launching}: between them the GPU waits for the next one to be launched")
    found: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    for worker, begin_s, end_s, rows in _windows(run):
        found[int(columns.places[worker, 1])].append(_parts(columns, rows, begin_s, end_s))
    workers = {column: len({name for name in columns.busy if _column(name) == column}) for column in found}
    stages = []
    for column, parts in sorted(found.items()):
        compute_s, step_s, before_s, between_s, after_s, own_s = map(fmean, zip(*parts, strict=True))
        seen_s: float | None = own_s
        if run.traces:
            of_ranks = [exposed[name] for name in columns.busy if exposed and _column(name) == column]
            seen_s = fmean(of_ranks) if of_ranks else None
        stages.append(StageBubble(column, workers[column], compute_s, step_s, before_s, between_s, after_s, seen_s))
    whole_s = [sum(parts[:5]) for own in found.values() for parts in own]
    return IterationParts(fmean(whole_s), len(run.times), tuple(stages), tuple(remarks))


def _column(worker: str) -> int:
    return int(worker.partition("/")[2])


def _windows(run: PipelineRun) -> Iterator[tuple[int, float, float, "np.ndarray[tuple[int], np.dtype[np.int64]]"]]:
    """Each worker's share of each iteration that counts: when it begins and ends, and its spans."""
    columns = run.columns
    order = np.lexsort((columns.start_s, columns.iteration, columns.worker))
    change = np.flatnonzero(np.diff(columns.worker[order]) | np.diff(columns.iteration[order])) + 1
    last_s = {int(n): float(columns.end_s[columns.iteration == n].max()) for n in np.unique(columns.iteration)}
    begun_s = {one.iteration: last_s[one.iteration] - one.seconds for one in run.times}
    groups = np.split(order, change)
    least_s = {one.iteration: begun_s[one.iteration] - ROUNDING * one.seconds for one in run.times}
    overlap = any(
        float(columns.start_s[rows[0]]) < least_s.get(int(columns.iteration[rows[0]]), -np.inf) for rows in groups
    )
    own_end_s: dict[int, float] = {}
    for rows in groups:
        worker, iteration = int(columns.worker[rows[0]]), int(columns.iteration[rows[0]])
        end_s = float(columns.end_s[rows].max())
        if iteration in begun_s:
            own_s = own_end_s.get(worker, float(columns.start_s[rows[0]])), end_s
            begin_s, until_s = own_s if overlap else (begun_s[iteration], last_s[iteration])
            yield worker, begin_s, until_s, rows
        own_end_s[worker] = end_s


def _parts(
    columns: TimelineColumns, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]", begin_s: float, end_s: float
) -> tuple[float, ...]:
    """Computing, step, before, between and after, which are all of a window; and exposed sums, in s."""
    kind, starts_s, ends_s = columns.kind[rows], columns.start_s[rows], columns.end_s[rows]
    computed = kind < len(KINDS)

    def of(name: str) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        number = len(KINDS) + columns.others.index(name) if name in columns.others else -1
        return np.asarray(kind == number)

    def covered_s(chosen: "np.ndarray[tuple[int], np.dtype[np.bool_]]", since_s: float, until_s: float) -> float:
        return _length_s(starts_s[chosen].clip(since_s, until_s), ends_s[chosen].clip(since_s, until_s))

    compute_s, busy = covered_s(computed, begin_s, end_s), computed | of("step")
    first_s = float(starts_s[computed].min(initial=end_s))
    done_s = float(ends_s[computed].max(initial=first_s))
    idle = [
        max(until_s - since_s - covered_s(busy, since_s, until_s), 0.0)
        for since_s, until_s in ((begin_s, first_s), (first_s, done_s), (done_s, end_s))
    ]
    step_s = covered_s(busy, begin_s, end_s) - compute_s
    exposed_s = covered_s(computed | of("allreduce"), begin_s, end_s) - compute_s
    return compute_s, max(step_s, 0.0), *idle, max(exposed_s, 0.0)


def _length_s(
    starts_s: "np.ndarray[tuple[int], np.dtype[np.float64]]", ends_s: "np.ndarray[tuple[int], np.dtype[np.float64]]"
) -> float:
    """How long stretches last together; what several cover counts once."""
    order = np.argsort(starts_s, kind="stable")
    starts_s, ends_s = starts_s[order], ends_s[order]
    reached_s = np.concatenate((starts_s[:1], np.maximum.accumulate(ends_s)[:-1]))
    return float(np.maximum(ends_s - np.maximum(starts_s, reached_s), 0.0).sum())


def _exposed_in_traces(run: PipelineRun) -> tuple[Mapping[str, float] | None, tuple[str, ...]]:
    """What communication each worker shows beside no computing in an iteration, in s, by its trace; or why not."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, rank in (run.ranks or {}).items():
        names[rank].append(name)
    found: dict[str, list[float]] = defaultdict(list)
    for path in run.traces:
        try:
            trace = read_step_trace(str(path))
        except InvalidInputError as error:
            return None, (f"exposed communication is not told: {error.what}",)
        iterations = 1 if trace.steps[0].time_s is not None else len(run.times)
        for name in names.get(trace.rank if trace.rank is not None else -1, []):
            found[name] += [step.sums_s / iterations for step in trace.steps]
    if set(found) != set(run.columns.busy):
        return None, ("exposed communication is not told: the traces do not say of which rank they are",)
    return {name: fmean(times_s) for name, times_s in found.items()}, ()
