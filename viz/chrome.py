"""Chrome trace JSON, for chrome://tracing, Perfetto (ui.perfetto.dev) and the analysers that read torch's traces.

Traces are written piece by piece, as text: one of millions of operations takes little more memory than its columns.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of, worker_place
from ..schemas.messages import messages_of
from ..schemas.orders import KINDS, NONE
from .facts import Labelled, workers_of
from .memory import curves_of
from .style import LOOKS

Record = dict[str, Any]

COMPUTE, COMMUNICATION = 0, 1
STREAMS = {COMPUTE: "compute", COMMUNICATION: "communication"}
PIECE = 20_000  # spans that are turned into text at once


def trace_pieces(timelines: Sequence[Labelled]) -> Iterator[str]:
    """Turn timelines into one trace in the Trace Event Format, as pieces of its text.

    A worker is a process, a stream a thread, an operation a complete event (`X`); arrows (`s`, `f`) lead from an
    operation to the one on the next worker that waits for it; memory is a counter (`C`), events are instants (`i`).
    Times are microseconds.

    Args:
        timelines: labels and timelines. One keeps its clock; several are aligned at their first spans and get processes
            of their own, whose names begin with the labels.
    """
    several = len(timelines) > 1
    whole = [(label, columns_of(timeline)) for label, timeline in timelines]
    sources = [
        {"label": label, "source": columns.source, "paced": columns.paced, "plan": columns.plan}
        for label, columns in whole
    ]
    # In the order of sorted keys.
    yield f'{{"displayTimeUnit":"ms","otherData":{text_of({"timelines": sources})},"traceEvents":['
    written = 0
    first_pid = 1  # 0 is the idle process in Perfetto
    for label, columns in whole:
        workers = workers_of([columns])
        pids = {worker: first_pid + index for index, worker in enumerate(workers)}
        first_pid += len(workers)
        shown = columns.aligned() if several else columns
        for record in _records(shown, pids, f"{label}: " if several else "", written):
            yield f",{record}" if written else record
            written += 1
    yield "]}"


def _records(shown: TimelineColumns, pids: dict[str, int], prefix: str, written: int) -> Iterator[str]:
    names = [text_of(record) for record in _names(pids, prefix)]
    yield from names
    yield from _operations(shown, pids)
    yield from _arrows(shown, pids, written + len(names) + len(shown))
    for worker, (times_s, held_bytes) in curves_of(shown):
        pid = pids[worker]
        for time_s, size in zip(times_s.tolist(), held_bytes.tolist(), strict=True):
            yield f'{{"args":{{"bytes":{size}}},"name":"memory","ph":"C","pid":{pid},"ts":{time_s * 1e6}}}'
    yield from map(text_of, _instants(shown, pids))


def text_of(tree: Any) -> str:
    """A record as it stands in a trace: JSON with sorted keys and no white space."""
    return json.dumps(tree, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _names(pids: dict[str, int], prefix: str) -> Iterator[Record]:
    """What the processes and threads are called, and in which order they stand."""
    for worker, pid in pids.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"{prefix}worker {worker}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
        for tid, name in STREAMS.items():
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _operations(shown: TimelineColumns, pids: dict[str, int]) -> Iterator[str]:
    """A complete event for each span."""
    pid_of = [pids.get(name, 0) for name in shown.names]  # 0: has no spans
    own_of = [worker_place(name)[0] for name in shown.names]
    categories, streams = categories_of(shown), streams_of(shown).tolist()
    for part in np.array_split(np.arange(len(shown)), len(shown) // PIECE + 1):
        suffix = np.zeros(len(shown), dtype=np.int64) if shown.suffix is None else shown.suffix
        named = np.full(len(shown), NONE) if shown.stage is None else shown.stage
        fields = (shown.worker, shown.kind, shown.pipeline, shown.microbatch, shown.iteration, suffix, named)
        times_us = (shown.start_s[part] * 1e6).tolist(), ((shown.end_s[part] - shown.start_s[part]) * 1e6).tolist()
        rows = zip(*(one[part].tolist() for one in fields), *times_us, strict=True)
        for worker, kind, pipeline, microbatch, iteration, suffix_place, stage, start_us, takes_us in rows:
            if kind < len(KINDS):
                letter = KINDS[kind]
                rerouted = pipeline != own_of[worker]
                number = f"{pipeline}.{microbatch}" if rerouted else str(microbatch)
                prefix = "" if stage == NONE else str(stage)
                name = f'"{prefix}{letter}{number}{shown.suffixes[suffix_place]}"'
                said = f',"microbatch":"{pipeline}.{microbatch}","rerouted":{"true" if rerouted else "false"}'
                said += f',"stage":{stage}' if prefix else ""
            else:
                name, said = text_of(shown.others[kind - len(KINDS)]), ""
            yield (
                f'{{"args":{{"iteration":{iteration}{said}}},"cat":"{categories[kind]}","dur":{takes_us},"name":{name},'
                f'"ph":"X","pid":{pid_of[worker]},"tid":{streams[kind]},"ts":{start_us}}}'
            )


def categories_of(shown: TimelineColumns) -> list[str]:
    """What spans of each kind are called, in the order of the kinds and behind them the others'."""
    kinds = (*KINDS, *(op if op in ("allreduce", "step") else "other" for op in shown.others))
    return [LOOKS[kind].words for kind in kinds]


def streams_of(shown: TimelineColumns) -> "np.ndarray[Any, Any]":
    """The stream of the spans of each kind, in the same order."""
    others = [COMMUNICATION if op == "allreduce" else COMPUTE for op in shown.others]
    return np.array([COMPUTE] * len(KINDS) + others)


def _arrows(shown: TimelineColumns, pids: dict[str, int], number: int) -> Iterator[str]:
    """Messages: activations from F at stage i to F at stage i+1, gradients from I or B at stage i+1 to stage i."""
    receivers, senders = messages_of(shown)
    pid_of = np.array([pids.get(name, 0) for name in shown.names], dtype=np.int64)
    for part in np.array_split(np.arange(len(receivers)), len(receivers) // PIECE + 1):
        sender, receiver = senders[part], receivers[part]
        # Half-way: viewers tie an arrow to the slice around its time, and at an end another slice may begin.
        sent_us = (shown.start_s[sender] + shown.end_s[sender]) / 2 * 1e6
        received_us = shown.start_s[receiver] * 1e6
        ends = pid_of[shown.worker[sender]], sent_us, pid_of[shown.worker[receiver]], received_us
        for from_pid, from_us, to_pid, to_us in zip(*(one.tolist() for one in ends), strict=True):
            common = f'"cat":"message","id":{number},"name":"message"'
            yield f'{{{common},"ph":"s","pid":{from_pid},"tid":{COMPUTE},"ts":{from_us}}}'
            yield f'{{"bp":"e",{common},"ph":"f","pid":{to_pid},"tid":{COMPUTE},"ts":{to_us}}}'
            number += 1


def _instants(shown: TimelineColumns, pids: dict[str, int]) -> Iterator[Record]:
    for event in shown.events:
        known = event.worker in pids
        yield {
            "ph": "i",
            "name": event.kind,
            "cat": "event",
            "s": "p" if known else "g",
            "pid": pids[event.worker] if event.worker in pids else min(pids.values(), default=1),
            "tid": COMPUTE,
            "ts": event.time_s * 1e6,
            "args": {"message": event.message},
        }
