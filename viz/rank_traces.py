"""A timeline as one Chrome trace a rank, in the form of torch's profiler, for analysers that read a folder of these.

HolisticTraceAnalysis (https://hta.readthedocs.io) and TraceLens take the rank from `distributedInfo`, computing and
communication from kernels (`cat`: kernel, with a stream; NCCL's by their names), iterations from `ProfilerStep#n`.
`rtk bubble`, `rtk detect` and `rtk profile refine` read the same: passes are annotated as torch's schedules do
(`PP:<stage><kind><micro-batch>`), and a call launches the kernel of each at the moment when it begins. The host is done
with it in half of the kernel's time.

A rank is a worker, counted pipeline after pipeline. A micro-batch of another pipeline is named by its number alone.
What takes no time is left out: readers tell by their launches which kernels are an annotation's, and the next one
begins at the same moment.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np

from ..schemas.columns import TimelineColumns
from ..schemas.orders import KINDS
from .chrome import COMMUNICATION, streams_of, text_of

HOST, DEVICE = 1000, 0  # processes of each trace
STREAMS = {0: 7, COMMUNICATION: 20}  # as CUDA's and NCCL's usually are


def rank_traces(columns: TimelineColumns) -> Iterator[tuple[str, Iterator[str]]]:
    """The trace of each worker that has spans: its file's name, and the pieces of its text.

    Args:
        columns: the timeline.
    """
    order = np.lexsort((columns.start_s, columns.worker))
    counts = np.bincount(columns.worker, minlength=len(columns.names))
    rows_of = dict(zip(columns.names, np.split(order, np.cumsum(counts)[:-1]), strict=True))
    ranked = sorted(columns.busy, key=lambda name: tuple(columns.places[columns.names.index(name)]))
    for rank, name in enumerate(ranked):
        yield f"rank-{rank}.json.gz", _pieces(columns, rows_of[name], rank, len(ranked))


def _pieces(
    columns: TimelineColumns, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]", rank: int, ranks: int
) -> Iterator[str]:
    job = {"backend": "nccl", "rank": rank, "world_size": ranks}
    device = {"id": 0, "name": f"rtk, {columns.source}"}
    # HolisticTraceAnalysis looks for `"rank": ` with a blank, line by line.
    head = json.dumps({"schemaVersion": 1, "deviceProperties": [device], "distributedInfo": job})
    yield f'{head[:-1]}, "traceEvents": [\n'
    between = ""
    for iteration in np.unique(columns.iteration).tolist():
        own = rows[columns.iteration[rows] == iteration]
        if len(own):
            begin_s, end_s = float(columns.start_s[own].min()), float(columns.end_s[own].max())
            yield between + _event("user_annotation", f"ProfilerStep#{iteration}", begin_s, end_s, HOST, HOST, {})
            between = ",\n"
    numbers, streams = count(1), [STREAMS[one] for one in streams_of(columns).tolist()]
    for row in rows[columns.end_s[rows] > columns.start_s[rows]].tolist():
        yield between + ",\n".join(_operation(columns, row, next(numbers), streams))
        between = ",\n"
    yield "]}"


def _operation(columns: TimelineColumns, row: int, correlation: int, streams: Sequence[int]) -> Iterator[str]:
    """A span: its annotation, torch's operation in it, the call that launches its kernel, and that."""
    start_s, end_s, kind = float(columns.start_s[row]), float(columns.end_s[row]), int(columns.kind[row])
    if kind < len(KINDS):
        stage, number = int(columns.virtual_stage[row]), int(columns.microbatch[row])
        name, kernel = f"PP:{stage}{KINDS[kind]}{number}", f"{KINDS[kind]}_of_stage_{stage}"
    else:
        other = columns.others[kind - len(KINDS)]
        name = "Optimizer.step#rtk" if other == "step" else other
        kernel = "ncclDevKernel_AllReduce" if other == "allreduce" else other
    told_s = (start_s + end_s) / 2  # so that no rounding puts the next launch into it
    yield _event("user_annotation", name, start_s, told_s, HOST, HOST, {})
    yield _event("cpu_op", f"rtk::{kernel}", start_s, told_s, HOST, HOST, {"External id": correlation})
    tie = {"External id": correlation, "correlation": correlation}
    yield _event("cuda_runtime", "cudaLaunchKernel", start_s, start_s, HOST, HOST, tie)
    said = {**tie, "device": DEVICE, "stream": streams[kind]}
    yield _event("kernel", kernel, start_s, end_s, DEVICE, streams[kind], said)


def _event(category: str, name: str, start_s: float, end_s: float, pid: int, tid: int, said: dict[str, int]) -> str:
    times = {"ts": start_s * 1e6, "dur": (end_s - start_s) * 1e6}
    return text_of({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "args": said, **times})
