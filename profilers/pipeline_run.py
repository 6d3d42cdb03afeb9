"""Iterations of a pipeline as they ran, out of timelines and traces: who did what, what it took, what waited.

A worker is a rank, also where it holds several virtual stages. What operations take is the median of what the workers
of a stage took (refine.py: `readings_from`), what a message takes the median of what a receiver that waited for nothing
else waited after its sender was done; of both directions of a link the mean, which clocks that disagree do not change.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from ..schemas.columns import LARGEST_KEY, TimelineColumns, columns_of, joint_key, worker_place
from ..schemas.errors import InvalidInputError
from ..schemas.files import STANDARD_STREAM
from ..schemas.messages import messages_of
from ..schemas.orders import KINDS, NONE, Operation
from ..schemas.plan import Placement
from ..schemas.profile import Layer, LayerCost, Profile
from ..schemas.text import counted
from ..schemas.timeline import IterationTime, Span, times_between
from ..schemas.timeline_file import read_columns
from .failslow.calls.formats import beginning_of
from .refine import (
    SNIFFED_BYTES,
    GivenTimeline,
    OperationReading,
    Straggler,
    WorkerHolding,
    given_timelines,
    readings_from,
)
from .refine import Operation as Timed

FORWARD = KINDS.index("F")
WEIGHT = KINDS.index("W")


@dataclass(frozen=True)
class PipelineRun:
    """Iterations of a pipeline, of which the workers stayed the same.

    Attributes:
        name: what it was read from.
        columns: its timeline, of workers `k/column`; where they hold several virtual stages, operations name theirs.
        placement: the virtual stages of each column.
        traces: that it was read from, where it was.
        ranks: by worker, where the traces say them.
    """

    name: str
    columns: TimelineColumns
    placement: Placement
    traces: tuple[Path, ...] = ()
    ranks: Mapping[str, int] | None = None

    @property
    def stages(self) -> int:
        """How many virtual stages a pipeline has."""
        return sum(map(len, self.placement))

    @property
    def clock(self) -> str:
        """What times are taken from."""
        said = self.columns.options.get("clock")
        return said if isinstance(said, str) else "spans"

    @cached_property
    def pipelines(self) -> tuple[int, ...]:
        """The numbers of those that work."""
        return tuple(sorted({worker_place(name)[0] for name in self.columns.busy}))

    @cached_property
    def microbatches(self) -> int:
        """Of the first pipeline, in an iteration."""
        columns = self.columns
        own = columns.is_computed & (columns.pipeline == self.pipelines[0])
        return len(np.unique(columns.microbatch[own]))

    @cached_property
    def is_rerouted(self) -> bool:
        """Whether a worker works on micro-batches of other pipelines."""
        return bool(self.columns.is_rerouted.any())

    @cached_property
    def times(self) -> tuple[IterationTime, ...]:
        """Of the iterations that count: all but the first, where there are others."""
        columns = self.columns
        numbers, place = np.unique(columns.iteration, return_inverse=True)
        first_s, last_s = np.full(len(numbers), np.inf), np.zeros(len(numbers))
        np.minimum.at(first_s, place, columns.start_s)
        np.maximum.at(last_s, place, columns.end_s)
        whole = list(zip(numbers.tolist(), first_s.tolist(), last_s.tolist(), strict=True))
        found = times_between(whole, ())
        return tuple(one for one in found if not one.is_first) or found

    def readings(self) -> tuple[list[OperationReading], list[Straggler]]:
        """What operations of each virtual stage take, a layer each, and which workers are slow."""
        held = {f"{k}/{c}": stages for k in self.pipelines for c, stages in enumerate(self.placement)}
        seats = {
            (f"{worker}:{stage}" if len(stages) > 1 else worker): WorkerHolding((stage, stage + 1), step_share=share)
            for worker, stages in held.items()
            for share in [1 / len(stages)]
            for stage in stages
        }
        return readings_from(self._times_s(seats), seats, 0)

    def _times_s(self, seats: Mapping[str, WorkerHolding]) -> dict[str, dict[Timed, list[float]]]:
        """What operations took, by seat; the first iteration that a worker computed left out where there are others."""
        columns = self.columns
        first, last = np.full(len(columns.names), LARGEST_KEY), np.zeros(len(columns.names), dtype=np.int64)
        computed = columns.is_computed
        np.minimum.at(first, columns.worker[computed], columns.iteration[computed])
        np.maximum.at(last, columns.worker[computed], columns.iteration[computed])
        counts = (columns.iteration > first[columns.worker]) | (first == last)[columns.worker]
        took_s = columns.end_s - columns.start_s
        found: dict[str, dict[Timed, list[float]]] = defaultdict(lambda: defaultdict(list))
        rows = np.flatnonzero(counts & computed)
        key = joint_key(columns.worker[rows], columns.stages_of(rows), columns.kind[rows])
        order = np.argsort(key, kind="stable")
        for group in np.split(rows[order], np.flatnonzero(np.diff(key[order])) + 1):
            name, stage = columns.names[columns.worker[group[0]]], int(columns.stages_of(group[:1])[0])
            seat = name if name in seats else f"{name}:{stage}"
            found[seat][KINDS[columns.kind[group[0]]]] = took_s[group].tolist()
        steps = len(KINDS) + columns.others.index("step") if "step" in columns.others else NONE
        for row in np.flatnonzero(counts & (columns.kind == steps)).tolist():
            column = int(columns.places[columns.worker[row], 1])
            name, held = columns.names[columns.worker[row]], self.placement[column]
            for seat in [name] if len(held) == 1 else [f"{name}:{stage}" for stage in held]:
                found[seat]["step"].append(float(took_s[row]) * seats[seat].step_share)
        return found

    def profile(self) -> Profile:
        """The virtual stages as layers; of full backward passes I and W are taken to be half each."""
        times: dict[int, dict[str, float]] = defaultdict(dict)
        for one in self.readings()[0]:
            times[one.layers[0]][one.operation] = one.measured_s
        layers = []
        for stage in range(self.stages):
            own = defaultdict(float, times[stage])
            half_s = own["B"] / 2
            cost = LayerCost(own["F"], own.get("I", half_s), own.get("W", half_s), own["step"])
            layers.append(Layer((cost,), name=f"stage {stage}"))
        return Profile(tuple(layers))

    @property
    def is_fused(self) -> bool:
        """Whether backward passes are whole ones."""
        return not (self.columns.kind == WEIGHT).any()

    def orders(self) -> list[list[Operation]]:
        """The order of each column in the last iteration, as pipeline 0 has it."""
        columns, first = self.columns, self.pipelines[0]
        named = len(self.placement) < self.stages
        last = columns.iteration == max(one.iteration for one in self.times)
        rows = np.flatnonzero(last & columns.is_computed & (columns.places[columns.worker, 0] == first))
        rows = rows[np.lexsort((columns.end_s[rows], columns.start_s[rows]))]
        found: list[list[Operation]] = [[] for _ in self.placement]
        for row in rows.tolist():
            column = int(columns.places[columns.worker[row], 1])
            stage = int(columns.virtual_stage[row]) if named and len(self.placement[column]) > 1 else None
            found[column].append(Operation(KINDS[columns.kind[row]], 0, int(columns.microbatch[row]), stage))
        return found

    def delays_s(self) -> dict[int, float]:
        """What a message takes over each link, by its number, in s: link i is between columns i and i + 1."""
        columns = self.columns
        receivers, senders = messages_of(columns)
        order = np.lexsort((columns.start_s, columns.worker))
        before_s = np.full(len(columns), -math.inf)
        same = columns.worker[order[1:]] == columns.worker[order[:-1]]
        before_s[order[1:][same]] = columns.end_s[order[:-1][same]]
        waited = before_s[receivers] <= columns.end_s[senders]
        receivers, senders = receivers[waited], senders[waited]
        ends = columns.places[columns.worker[senders], 1], columns.places[columns.worker[receivers], 1]
        took_s = columns.start_s[receivers] - columns.end_s[senders]
        directions: dict[tuple[int, bool], list[float]] = defaultdict(list)
        for source, target, time_s in zip(*(one.tolist() for one in (*ends, took_s)), strict=True):
            # A loop's way back is a link behind all others.
            link = min(source, target) if abs(source - target) == 1 else len(self.placement) - 1
            directions[link, source < target].append(time_s)
        found: dict[int, list[float]] = defaultdict(list)
        for (link, _), times_s in directions.items():
            found[link].append(median(times_s))
        return {link: max(sum(both) / len(both), 0.0) for link, both in sorted(found.items())}

    def sums_s(self) -> list[float]:
        """What sums of gradients take of each virtual stage in an iteration, in s: the median over iterations.

        Of the workers that sum together the last one to come counts: the others' sums also wait for it.
        """
        columns = self.columns
        reduces = len(KINDS) + columns.others.index("allreduce") if "allreduce" in columns.others else NONE
        spent_s: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        rows = np.flatnonzero(columns.kind == reduces)
        took_s = columns.end_s[rows] - columns.start_s[rows]
        fields = columns.worker[rows], columns.places[columns.worker[rows], 1], columns.iteration[rows], took_s
        for worker, column, iteration, time_s in zip(*(one.tolist() for one in fields), strict=True):
            spent_s[column, iteration][worker] += time_s
        by_column: dict[int, list[float]] = defaultdict(list)
        for (column, _), times_s in spent_s.items():
            by_column[column].append(min(times_s.values()))
        found = [0.0] * self.stages
        for column, stages in enumerate(self.placement):
            for stage in stages:
                found[stage] = median(by_column[column]) / len(stages) if by_column[column] else 0.0
        return found


def is_log(path: str) -> bool:
    """Whether a file is a log of text: neither JSON, as timelines and traces are, nor a folder."""
    if path == STANDARD_STREAM or Path(path).is_dir():
        return False
    start = beginning_of(Path(path), SNIFFED_BYTES).lstrip()
    return bool(start) and start[:1] not in b"{["


def read_run(paths: Sequence[str]) -> PipelineRun:
    """Read one run.

    Args:
        paths: a timeline; or traces of torch's profiler, a folder of them or single ones, of one job.

    Raises:
        InvalidInputError: a file is damaged; nothing in it is of a pipeline; it is of several runs, or of one that is
            not all there.
    """
    if len(paths) == 1 and not Path(paths[0]).is_dir() and (columns := read_columns(paths[0])) is not None:
        run = _run_of(paths[0], columns)
        _require_whole(run)
        return run
    given = list(given_timelines(paths))
    if len(given) > 1:
        raise InvalidInputError(
            f"these are {counted(len(given), 'run')}, and a bubble is one run's",
            where=", ".join(one.name for one in given),
            fix="give one timeline, or traces of one job's ranks",
        )
    run = _by_processes(given[0]) if given[0].traces else _run_of(given[0].name, columns_of(given[0].timeline))
    _require_whole(run)
    return run


def _run_of(name: str, whole: TimelineColumns) -> PipelineRun:
    """A run by its timeline."""
    columns = _after_changes(whole)
    if not columns.is_computed.any():
        raise InvalidInputError(
            "the timeline has no F, I, W or B", where=f"{name}, /spans", fix="give the timeline of a run"
        )
    held: dict[int, set[int]] = defaultdict(set)
    own = np.flatnonzero(columns.is_computed)
    pairs = np.stack((columns.places[columns.worker[own], 1], columns.virtual_stage[own]), axis=1)
    for column, stage in np.unique(pairs, axis=0).tolist():
        held[column].add(stage)
    placement = tuple(tuple(sorted(held[column])) for column in range(max(held) + 1))
    named = np.array([len(held) > 1 for held in placement])[columns.places[columns.worker, 1]] & columns.is_computed
    unnamed = np.flatnonzero(named if columns.stage is None else named & (columns.stage == NONE))
    if len(unnamed):
        raise InvalidInputError(
            f"{columns.op(unnamed[0])} of worker {columns.names[columns.worker[unnamed[0]]]}, which holds several "
            "stages, names none of them",
            where=f"{name}, /spans",
            fix="give the timeline of a run as rtk writes it: 1F0 is F0 of stage 1",
        )
    return PipelineRun(name, columns, placement)


def _after_changes(columns: TimelineColumns) -> TimelineColumns:
    """The iterations after the last change of workers or plan, where there are any."""
    changed_s = max((event.time_s for event in columns.events if event.kind == "epoch"), default=-math.inf)
    if changed_s == -math.inf or not len(columns):
        return columns
    _, place = np.unique(columns.iteration, return_inverse=True)
    starts_s = np.full(int(place.max()) + 1, math.inf)
    np.minimum.at(starts_s, place, columns.start_s)
    later = (starts_s >= changed_s)[place]
    return columns.taken(later) if later.any() else columns


def _by_processes(given: GivenTimeline) -> PipelineRun:
    """Traces name a worker for each stage of a process, be it a rank or not: here a process is one worker."""
    timeline = given.timeline
    told, ranks = timeline.options["processes"], timeline.options["ranks"]
    stages: dict[int, set[int]] = defaultdict(set)
    process_of = {name: told[name] for name in sorted({span.worker for span in timeline.spans})}
    for name, process in process_of.items():
        stages[process].add(worker_place(name)[1])
    placement = tuple(sorted({tuple(sorted(own)) for own in stages.values()}))
    if sum(map(len, placement)) != len(set().union(*placement)):
        raise InvalidInputError(
            "ranks hold overlapping sets of stages: they are of different jobs",
            where=given.name,
            fix="give the traces of one job, one file a rank",
        )
    several = len(placement) < sum(map(len, placement))
    new_name: dict[str, str] = {}
    for name, process in process_of.items():
        column = placement.index(tuple(sorted(stages[process])))
        new_name[name] = f"{worker_place(name)[0]}/{column}"
    spans = tuple(
        Span(
            new_name[span.worker],
            f"{worker_place(span.worker)[1]}{span.op}" if several and span.op != "step" else span.op,
            span.start_s,
            span.end_s,
            span.iteration,
        )
        for span in timeline.spans
    )
    named = {new_name[name]: rank for name, rank in ranks.items() if name in new_name}
    return PipelineRun(given.name, columns_of(replace(timeline, spans=spans)), placement, given.traces, named)


def _require_whole(run: PipelineRun) -> None:
    """Raise InvalidInputError unless all stages are there and compute the same micro-batches."""
    columns = run.columns
    there = {stage for held in run.placement for stage in held}
    missing = sorted(set(range(max(there) + 1)) - there)
    told = run.columns.options.get("world_size")
    ranks = len(set((run.ranks or {}).values()))
    if missing or (isinstance(told, int) and ranks and ranks < told):
        of = f"{ranks} of the job's {counted(told, 'rank')}" if isinstance(told, int) and ranks else "not all ranks"
        what = f"stage {missing[0]} computes nothing: " if missing else ""
        raise InvalidInputError(
            f"{what}there are {of}", where=run.name, fix="give the traces of all ranks: the folder, or a file a rank"
        )
    count: dict[tuple[int, int], set[int]] = defaultdict(set)
    last = columns.is_computed & (columns.iteration == max(one.iteration for one in run.times))
    forwards = np.flatnonzero(last & (columns.kind == FORWARD))
    fields = columns.pipeline[forwards], columns.virtual_stage[forwards], columns.microbatch[forwards]
    for pipeline, stage, microbatch in zip(*(one.tolist() for one in fields), strict=True):
        count[pipeline, stage].add(microbatch)
    for pipeline in {pipeline for pipeline, _ in count}:
        own = {stage: found for (k, stage), found in count.items() if k == pipeline}
        unlike = next((stage for stage in sorted(own) if own[stage] != own[min(own)]), None)
        if unlike is not None:
            raise InvalidInputError(
                f"in the last iteration stage {unlike} computes {counted(len(own[unlike]), 'micro-batch', 'es')} "
                f"of pipeline {pipeline}, stage {min(own)} {len(own[min(own)])}",
                where=run.name,
                fix="give traces of one job, recorded over the same whole iterations",
            )
