"""A Timeline out of traces of torch's profiler, in which a pipeline's operations are annotated.

Torch's pipelining runtime (torch 2.13, `torch/distributed/pipelining/schedules.py`, `_PipelineScheduleRuntime`) wraps
each action in `record_function("PP:<stage><action><micro-batch>")`; the actions F, I, W and B are compute. Its
schedules Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble, LoopedBFS and those from a CSV file do so;
Schedule1F1B and ScheduleGPipe do not, and the two passes inside an `OVERLAP_F_B` (DualPipeV) are not told apart.

Megatron writes no such annotations (its NVTX ranges reach Nsight only). With call stacks recorded
(`--use-pytorch-profiler`, `with_stack`) the calls of `forward_step` and `backward_step` in
`pipeline_parallel/schedules.py` serve instead, F and B, the stage being the rank's place in the group that is described
as PIPELINE_MODEL_PARALLEL_GROUP: without virtual stages, whose number no trace tells.

An annotation is not the time of its operation:

* On a GPU it is the time of launching. What counts is from the first to the last kernel that was launched inside it, by
  any thread, NCCL's kernels at both ends excepted. Kineto's own `gpu_user_annotation` misses the kernels of a backward
  pass, which autograd launches from another thread (pytorch/kineto#1022); it counts only where no kernels can be told.
* On a CPU torch waits inside F, I and B for the message they need. What counts begins with the first operation of torch
  inside; an annotation without any, where operations were recorded, is dropped.
* Torch's first stage has an empty I, and a W that is the whole backward pass: a stage that has W but no I has B here.
"""

import math
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..schemas.errors import InvalidInputError
from ..schemas.timeline import Span, Timeline
from .failslow.calls.comparison import finite, ranks_of, whole
from .failslow.calls.formats import odd, read_trace

STEP = "step"
_ACTION = re.compile(r"PP:(\d{1,5})([FIWB])(\d{1,9})")  # no pipeline has 100,000 stages
_OPTIMIZER = "Optimizer.step#"
_ITERATION = "ProfilerStep#"
_MEGATRON = re.compile(r".*pipeline_parallel/schedules\.py\(\d+\): (forward|backward)_step")
_MEGATRON_STAGES = "PIPELINE_MODEL_PARALLEL_GROUP"
_RANK = re.compile(r"\brank\W?(\d{1,9})", re.IGNORECASE)

Clock = Literal["kernels", "gpu annotations", "cpu"]
Process = int | str
Thread = tuple[Process, int | str]


class _Label(NamedTuple):
    """What is annotated: F, I, W or B of a micro-batch at a stage, or an optimizer's step (stage and micro-batch 0)."""

    kind: str
    stage: int
    microbatch: int


class _AnnotationWindow(NamedTuple):
    """An annotation, or what was measured in it, in µs of the trace's clock.

    `kernels_us` is how long any of its kernels ran, where they are told.
    """

    label: _Label
    start_us: float
    end_us: float
    thread: Thread
    kernels_us: float = 0.0


@dataclass
class _AnnotatedEvents:
    """The events of a trace that matter.

    Attributes:
        on_cpu, on_gpu: annotations, on the CPU and as Kineto carries them over to the GPU.
        calls: of Megatron's functions: kind, start and end.
        iterations: when the profiler's iterations began.
        operations: when torch's operations began, by thread.
        launches: when calls of the GPU's runtime began, and their correlations.
        kernels: from when to when the kernels of a correlation ran, NCCL's excepted.
        names: of processes.
        has_kernels: whether there are any kernels.
    """

    on_cpu: list[_AnnotationWindow] = field(default_factory=list)
    on_gpu: list[_AnnotationWindow] = field(default_factory=list)
    calls: list[tuple[str, float, float, Thread]] = field(default_factory=list)
    iterations: list[float] = field(default_factory=list)
    operations: dict[Thread, "array[float]"] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    launches: list[tuple[float, int]] = field(default_factory=list)
    kernels: dict[int, tuple[float, float]] = field(default_factory=dict)
    names: dict[Process, str] = field(default_factory=dict)
    has_kernels: bool = False

    def note(self, event: dict[str, Any]) -> None:
        """An event of the trace."""
        if event.get("ph") == "M" and event.get("name") == "process_name":
            self.names[_thread(event)[0]] = str(event["args"]["name"])
        if event.get("ph") != "X" or "ts" not in event:
            return
        category, name = str(event.get("cat", "")), str(event.get("name", ""))
        if category == "cpu_op":
            self.operations[_thread(event)].append(finite(event["ts"]))
        elif category == "kernel":
            self._note_kernel(name, event)
        elif category.endswith(("_runtime", "_driver")):
            correlation = (event.get("args") or {}).get("correlation")
            if correlation is not None:
                self.launches.append((finite(event["ts"]), whole(correlation)))
        else:
            self._note_annotation(category, name, event)

    def _note_kernel(self, name: str, event: dict[str, Any]) -> None:
        self.has_kernels = True
        correlation = (event.get("args") or {}).get("correlation")
        if correlation is None or "nccl" in name.lower():
            return
        start_us, end_us = _extent(event)
        correlation = whole(correlation)
        before_us, after_us = self.kernels.get(correlation, (start_us, end_us))
        self.kernels[correlation] = min(start_us, before_us), max(end_us, after_us)

    def _note_annotation(self, category: str, name: str, event: dict[str, Any]) -> None:
        thread = _thread(event)
        if category == "python_function":
            if (found := _MEGATRON.fullmatch(name)) is not None:
                self.calls.append(("F" if found[1] == "forward" else "B", *_extent(event), thread))
        elif (action := _ACTION.fullmatch(name)) is not None or name.startswith(_OPTIMIZER):
            label = _Label(action[2], int(action[1]), int(action[3])) if action else _Label(STEP, 0, 0)
            windows = self.on_gpu if category == "gpu_user_annotation" else self.on_cpu
            windows.append(_AnnotationWindow(label, *_extent(event), thread))
        elif category == "user_annotation" and name.startswith(_ITERATION):
            self.iterations.append(finite(event["ts"]))


@dataclass
class _Holder:
    """A rank: what it computed, in µs of its trace's clock, and that clock's origin in ns; and how many its job has."""

    path: Path
    rank: int | None
    world_size: int | None
    windows: list[_AnnotationWindow]
    base_ns: int
    clock: Clock


def read_annotations(paths: Sequence[Path]) -> Timeline:
    """The operations of a pipeline job, out of traces of its ranks.

    Ranks that compute the same stage are its workers 0/i, 1/i, … in the order of their ranks, tensor-parallel ranks
    too. An iteration is the next time that a rank does the same. `allreduce` is not told; `step` is
    `Optimizer.step#…` of ranks that hold a single stage.

    Args:
        paths: Chrome traces, plain or gzipped, of one job: one file a rank, several of one rank
            (`distributedInfo.rank`) following one another, or one with a process for each rank.

    Returns:
        A measured timeline. Its options are `processes`, by worker's name, counted from 0: which of them one process
        computed; `ranks`, by worker's name, and `world_size`, where the traces say them; `clock`, the worst of what
        times are taken from: kernels, gpu annotations or cpu; and where that is kernels, `kernels`, the share of the
        passes in which one of them ran.

    Raises:
        InvalidInputError: a file is damaged, or has nothing of what is said above; or they are of different jobs.
    """
    holders = [holder for path in paths for holder in _holders(path)]
    if not holders:
        raise InvalidInputError(
            "no operation of a pipeline is annotated (PP:<stage><F, I, W or B><micro-batch>)",
            where=", ".join(map(str, paths)),
            fix="torch annotates the schedules Interleaved1F1B, InterleavedZeroBubble, ZBVZeroBubble and those of CSV "
            "files; elsewhere wrap the passes in torch.profiler.record_function('PP:0F3')",
        )
    _require_one_job(holders)
    # The traces of each rank, in the order of ranks; those that name none come last, each by itself.
    known: dict[int, list[_Holder]] = defaultdict(list)
    unknown = []
    for holder in holders:
        if holder.rank is None:
            unknown.append([holder])
        else:
            known[holder.rank].append(holder)
    return _timeline([*(known[rank] for rank in sorted(known)), *unknown])


def _require_one_job(holders: Sequence[_Holder]) -> None:
    """Raise InvalidInputError for traces of jobs of unlike sizes."""
    sizes = {holder.world_size: holder.path for holder in holders if holder.world_size is not None}
    if len(sizes) > 1:
        (one, there), (other, elsewhere) = list(sizes.items())[:2]
        raise InvalidInputError(
            f"the traces are of different jobs: one of {one} ranks, one of {other}",
            where=f"{there}, /distributedInfo/world_size and {elsewhere}, /distributedInfo/world_size",
            fix="give the traces of one job, one file a rank",
        )


def _holders(path: Path) -> Iterator[_Holder]:
    """The ranks of a trace."""
    seen = _AnnotatedEvents()
    rest = read_trace(path, seen.note)
    job = rest["distributedInfo"]
    if seen.calls and not any(window.label.kind != STEP for window in seen.on_cpu + seen.on_gpu):
        seen.on_cpu += _megatron_windows(seen, job, path)
    if not any(window.label.kind != STEP for window in seen.on_cpu + seen.on_gpu):
        return
    windows, clock = _measured(seen, bool(rest.get("deviceProperties")), path)
    try:
        base_ns = whole(rest.get("baseTimeNanoseconds") or 0)
    except (TypeError, ValueError) as error:
        raise odd(f"the trace lacks {error}", f"{path}, /baseTimeNanoseconds") from error
    processes: dict[Process, list[_AnnotationWindow]] = defaultdict(list)
    for window in windows:
        processes[window.thread[0]].append(window)
    for process, own in sorted(processes.items(), key=lambda item: str(item[0]).zfill(20)):
        named = _RANK.search(seen.names.get(process, ""))
        rank = job.get("rank") if len(processes) == 1 else int(named[1]) if named else process
        spent_us: dict[Thread, float] = defaultdict(float)
        for window in own:
            spent_us[window.thread] += window.end_us - window.start_us
        main = max(spent_us, key=lambda thread: spent_us[thread])
        mine = [window for window in own if window.thread == main]
        world_size = job.get("world_size")
        of = world_size if isinstance(world_size, int) else None
        yield _Holder(path, rank if isinstance(rank, int) else None, of, mine, base_ns, clock)


def _extent(event: dict[str, Any]) -> tuple[float, float]:
    start_us, lasts_us = finite(event["ts"]), finite(event["dur"])
    if lasts_us < 0:
        raise ValueError("a duration of 0 or more")
    return start_us, start_us + lasts_us


def _thread(event: dict[str, Any]) -> Thread:
    """The process and the thread of an event; a trace of one may leave them out."""
    process, thread = event.get("pid", 0), event.get("tid", 0)
    if not isinstance(process, int | str) or not isinstance(thread, int | str):
        raise TypeError("a process and a thread that are numbers or names")
    return process, thread


def _megatron_windows(seen: _AnnotatedEvents, job: dict[str, Any], path: Path) -> Iterator[_AnnotationWindow]:
    """Megatron's calls, numbered within each of the profiler's iterations."""
    groups = [one for one in job.get("pg_config") or [] if isinstance(one, dict)]
    stages = next((ranks_of(one.get("ranks")) for one in groups if one.get("pg_desc") == _MEGATRON_STAGES), ())
    if job.get("rank") not in stages:
        raise InvalidInputError(
            "the trace does not say which stage of Megatron's pipeline the rank holds",
            where=f"{path}, /distributedInfo",
            fix="wrap forward_step and backward_step in torch.profiler.record_function('PP:<stage>F<micro-batch>')",
        )
    begins, counts = sorted(seen.iterations), Counter[tuple[str, int]]()
    for kind, start_us, end_us, thread in sorted(seen.calls, key=lambda call: call[1]):
        place = kind, bisect_right(begins, start_us)
        yield _AnnotationWindow(_Label(kind, stages.index(job["rank"]), counts[place]), start_us, end_us, thread)
        counts[place] += 1


def _measured(seen: _AnnotatedEvents, is_on_gpu: bool, path: Path) -> tuple[list[_AnnotationWindow], Clock]:
    """What the operations took, and by what that was told."""
    if seen.has_kernels or is_on_gpu:
        found = list(_by_kernels(seen)) if len({window.thread[0] for window in seen.on_cpu}) == 1 else []
        if found:
            return found, "kernels"
    if seen.on_gpu:
        return seen.on_gpu, "gpu annotations"
    if seen.has_kernels or is_on_gpu:
        raise InvalidInputError(
            "the trace is of a GPU, and does not say which kernels belong to which annotation",
            where=str(path),
            fix="record with the activities CPU and CUDA, and give one file a rank",
        )
    return list(_by_operations(seen)), "cpu"


def _by_kernels(seen: _AnnotatedEvents) -> Iterator[_AnnotationWindow]:
    """From the first to the last kernel that was launched in each annotation."""
    launches = sorted(seen.launches)
    for window in seen.on_cpu:
        first = bisect_left(launches, (window.start_us, -1))
        stop = bisect_left(launches, (window.end_us, -1))
        ran = [seen.kernels[c] for _, c in launches[first:stop] if c in seen.kernels]
        if ran:
            ran.sort()
            done_us = list(accumulate((one[1] for one in ran), max, initial=ran[0][0]))
            kernels_us = sum(max(one[1] - max(one[0], us), 0.0) for one, us in zip(ran, done_us[:-1], strict=True))
            yield window._replace(start_us=ran[0][0], end_us=done_us[-1], kernels_us=kernels_us)


def _by_operations(seen: _AnnotatedEvents) -> Iterator[_AnnotationWindow]:
    """From the first operation in each annotation to its end."""
    begins = {thread: sorted(own) for thread, own in seen.operations.items()}
    for window in seen.on_cpu:
        own = begins.get(window.thread)
        if own is None:
            yield window
            continue
        first = bisect_left(own, window.start_us)
        if first < len(own) and own[first] < window.end_us:
            yield window._replace(start_us=own[first])


def _timeline(ranks: list[list[_Holder]]) -> Timeline:
    base_ns = min(holder.base_ns for holders in ranks for holder in holders)
    spans: list[Span] = []
    rank_of: dict[str, int] = {}
    process_of: dict[str, int] = {}
    seats = Counter[int]()  # workers of each stage so far
    for process, holders in enumerate(ranks):
        own = [
            (window.label, offset_s + window.start_us / 1e6, offset_s + window.end_us / 1e6)
            for holder in holders
            for offset_s in [(holder.base_ns - base_ns) / 1e9]
            for window in sorted(holder.windows, key=lambda one: one.start_us)
        ]
        stages = {label.stage for label, _, _ in own if label.kind != STEP}
        names = {stage: f"{seats[stage]}/{stage}" for stage in sorted(stages)}
        seats.update(stages)
        process_of.update((name, process) for name in names.values())
        rank_of.update((name, holders[0].rank) for name in names.values() if holders[0].rank is not None)
        spans += _spans(own, names)
    origin_s = min(span.start_s for span in spans)
    moved = (Span(s.worker, s.op, s.start_s - origin_s, s.end_s - origin_s, s.iteration) for s in spans)
    ordered = tuple(sorted(moved, key=lambda span: (span.start_s, span.worker)))
    options: dict[str, Any] = {"ranks": rank_of, "processes": process_of}
    clocks = {holder.clock for holders in ranks for holder in holders}
    worst = next(clock for clock in ("gpu annotations", "cpu", "kernels") if clock in clocks)
    if worst == "kernels":
        passes = [one for holders in ranks for holder in holders for one in holder.windows if one.label.kind != STEP]
        in_all_us = math.fsum(one.end_us - one.start_us for one in passes)
        options["kernels"] = math.fsum(one.kernels_us for one in passes) / in_all_us if in_all_us else 1.0
    sizes = {one.world_size for holders in ranks for one in holders if one.world_size is not None}
    options |= {"clock": worst, **({"world_size": max(sizes)} if sizes else {})}
    return Timeline("measured", ordered, options=options)


def _spans(own: Sequence[tuple[_Label, float, float]], names: dict[int, str]) -> Iterator[Span]:
    """A rank's spans; the n-th time that it does the same is iteration n."""
    labels = [label for label, _, _ in own]
    kinds: dict[str, set[int]] = defaultdict(set)
    for label in labels:
        kinds[label.kind].add(label.stage)
    fused = kinds["W"] - kinds["I"]
    iterations = max(Counter(label for label in labels if label.kind != STEP).values())
    steps = sum(label.kind == STEP for label in labels)
    tells_steps = len(names) == 1 and steps == iterations
    seen = Counter[_Label]()
    for label, start_s, end_s in own:
        kind = "B" if label.kind == "W" and label.stage in fused else label.kind
        op = STEP if kind == STEP else f"{kind}{label.microbatch}"
        worker = next(iter(names.values())) if kind == STEP else names[label.stage]
        if kind != STEP or tells_steps:
            yield Span(worker, op, start_s, end_s, seen[label])
        seen[label] += 1
