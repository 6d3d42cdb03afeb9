"""Chrome trace JSON, for chrome://tracing, Perfetto (ui.perfetto.dev) and the analysers that read torch's traces."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..schemas.timeline import Span, Timeline
from .scene import (
    Labelled,
    aligned,
    is_rerouted,
    kind_of,
    memory_curves,
    operation_of,
    worker_place,
    workers_of,
)
from .style import LOOKS

Record = dict[str, Any]

COMPUTE, COMMUNICATION = 0, 1
STREAMS = {COMPUTE: "compute", COMMUNICATION: "communication"}


def chrome_trace(timelines: Sequence[Labelled]) -> dict[str, Any]:
    """Turn timelines into one trace in the Trace Event Format.

    A worker is a process, a stream a thread, an operation a complete event (`X`); arrows (`s`, `f`) lead from an
    operation to the one on the next worker that waits for it; memory is a counter (`C`), events are instants (`i`).
    Times are microseconds.

    Args:
        timelines: labels and timelines. One keeps its clock; several are aligned at their first spans and get processes
            of their own, whose names begin with the labels.
    """
    several = len(timelines) > 1
    records: list[Record] = []
    first_pid = 1  # 0 is the idle process in Perfetto
    for label, timeline in timelines:
        workers = workers_of([timeline])
        pids = {worker: first_pid + index for index, worker in enumerate(workers)}
        first_pid += len(workers)
        shown = aligned(timeline) if several else timeline
        records += _names(pids, f"{label}: " if several else "")
        records += [_operation(span, pids[span.worker]) for span in shown.spans]
        records += _arrows(shown, pids, len(records))
        records += [
            {"ph": "C", "name": "memory", "pid": pids[worker], "ts": _us(time_s), "args": {"bytes": size}}
            for worker, points in memory_curves(shown).items()
            for time_s, size in points
        ]
        records += _instants(shown, pids)
    sources = [
        {"label": label, "source": timeline.source, "paced": timeline.paced, "plan": timeline.plan}
        for label, timeline in timelines
    ]
    return {"traceEvents": records, "displayTimeUnit": "ms", "otherData": {"timelines": sources}}


def _names(pids: dict[str, int], prefix: str) -> Iterator[Record]:
    """What the processes and threads are called, and in which order they stand."""
    for worker, pid in pids.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{prefix}worker {worker}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid, name in STREAMS.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _operation(span: Span, pid: int) -> Record:
    kind = kind_of(span)
    operation = operation_of(span.worker, span.op)
    arguments: Record = {"iteration": span.iteration}
    if operation is not None:
        arguments["microbatch"] = f"{operation.pipeline}.{operation.microbatch}"
        arguments["rerouted"] = is_rerouted(span)
    return {
        "ph": "X",
        "name": span.op,
        "cat": LOOKS[kind].words,
        "pid": pid,
        "tid": COMMUNICATION if kind_of(span) == "allreduce" else COMPUTE,
        "ts": _us(span.start_s),
        "dur": _us(span.end_s - span.start_s),
        "args": arguments,
    }


def _arrows(timeline: Timeline, pids: dict[str, int], first_id: int) -> Iterator[Record]:
    """Messages: activations from F at stage i to F at stage i+1, gradients from I or B at stage i+1 to stage i."""
    holders: dict[tuple[str, int, tuple[int, int, int]], Span] = {}
    for span in timeline.spans:
        operation = operation_of(span.worker, span.op)
        if operation is not None and operation.kind != "W":
            direction = "forward" if operation.kind == "F" else "backward"
            microbatch = (span.iteration, operation.pipeline, operation.microbatch)
            holders[direction, worker_place(span.worker)[1], microbatch] = span
    number = first_id
    for (direction, stage, microbatch), receiver in holders.items():
        sender = holders.get((direction, stage - 1 if direction == "forward" else stage + 1, microbatch))
        if sender is None:
            continue
        common = {"name": "message", "cat": "message", "id": number, "tid": COMPUTE}
        # Half-way: viewers tie an arrow to the slice around its time, and at an end another slice may begin.
        sent_us = _us((sender.start_s + sender.end_s) / 2)
        yield {**common, "ph": "s", "pid": pids[sender.worker], "ts": sent_us}
        yield {**common, "ph": "f", "bp": "e", "pid": pids[receiver.worker], "ts": _us(receiver.start_s)}
        number += 1


def _instants(timeline: Timeline, pids: dict[str, int]) -> Iterator[Record]:
    for event in timeline.events:
        known = event.worker in pids
        yield {
            "ph": "i",
            "name": event.kind,
            "cat": "event",
            "s": "p" if known else "g",
            "pid": pids[event.worker] if event.worker in pids else min(pids.values(), default=1),
            "tid": COMPUTE,
            "ts": _us(event.time_s),
            "args": {"message": event.message},
        }


def _us(seconds: float) -> float:
    return seconds * 1e6
