"""Traces of a timeline of 3 million operations: `python benchmarks/perfetto_traces.py [-o FILE] [--operations N]`.

What `rtk viz TIMELINE -o trace.perfetto-trace` takes beside `-o trace.json`, the whole command with the reading of the
file: wall-clock seconds, most memory, sizes. And what the `protobuf` package takes for the packets alone, which is why
viz/protobuf.py makes them by numpy. One run each. Needs the package `perfetto`.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rtk.benchmarks.common import write_result
from rtk.benchmarks.pages import RTK, measured
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.undisturbed import columns_of_plan
from rtk.schemas.columns import TimelineColumns
from rtk.schemas.documents import canonical
from rtk.schemas.profile import Layer, LayerCost, Profile
from rtk.schemas.timeline import Timeline

STAGES, MICROBATCHES, PASSES = 64, 256, 3  # F, I and W
SAMPLE = 100_000  # spans that protobuf is tried with
ENDINGS = (".perfetto-trace", ".json", ".json.gz")


def simulated(operations: int) -> TimelineColumns:
    """An iteration of zero-bubble pipelines, as many as it takes."""
    layers = tuple(
        Layer((LayerCost(0.025, 0.03, 0.02, optimizer_s=0.01),), activation_bytes=3e9) for _ in range(STAGES)
    )
    pipelines = -(-operations // (STAGES * MICROBATCHES * PASSES))
    shape = Shape(STAGES, pipelines, MICROBATCHES)
    return columns_of_plan(plan_pipeline(Profile(layers, {"name": "64 equal layers"}), shape, "zero-bubble"))


def pieces(columns: TimelineColumns) -> Iterator[bytes]:
    """The file that `rtk simulate --timeline` writes of it, span by span."""
    empty = Timeline(columns.source, (), columns.workers, columns.events, columns.plan, columns.paced)
    head, tail = canonical(empty).split(b'\n  "spans": [],\n')
    yield head + b'\n  "spans": [\n'
    fields = (columns.worker, columns.start_s, columns.end_s, columns.iteration)
    for row, (worker, start_s, end_s, iteration) in enumerate(zip(*(one.tolist() for one in fields), strict=True)):
        between = ",\n" if row else ""
        yield (
            f'{between}    {{\n      "end_s": {end_s!r},\n      "iteration": {iteration},\n'
            f'      "op": "{columns.op(row)}",\n      "start_s": {start_s!r},\n'
            f'      "worker": "{columns.names[worker]}"\n    }}'
        ).encode()
    yield b"\n  ],\n" + tail


def protobuf_s(operations: int) -> float:
    """CPU seconds of the protobuf package for two packets a span, with the same fields; without names and numbers."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    trace = Trace()
    start_s = time.process_time()
    for row in range(SAMPLE):
        begin = trace.packet.add(timestamp=row * 1000, trusted_packet_sequence_id=1, sequence_flags=2)
        event = begin.track_event
        event.type, event.track_uuid, event.name_iid = event.TYPE_SLICE_BEGIN, row % 500, row % 500
        event.category_iids.append(1)
        event.flow_ids.append(row)
        for number in range(3):
            said = event.debug_annotations.add()
            said.name_iid, said.uint_value = number, row % 500
        end = trace.packet.add(timestamp=row * 1000 + 500, trusted_packet_sequence_id=1, sequence_flags=2)
        end.track_event.type, end.track_event.track_uuid = end.track_event.TYPE_SLICE_END, row % 500
    trace.SerializeToString()
    return (time.process_time() - start_s) / SAMPLE * operations


def main() -> None:
    """Make the timeline, write its traces and the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", default="-")
    parser.add_argument("--operations", type=int, default=3_000_000)
    asked = parser.parse_args()
    columns = simulated(asked.operations)
    result: dict[str, Any] = {"operations": len(columns), "protobuf_packets_cpu_s": protobuf_s(len(columns))}
    with tempfile.TemporaryDirectory() as folder:
        timeline = Path(folder, "timeline.json")
        with timeline.open("wb") as stream:
            stream.writelines(pieces(columns))
        del columns
        result["timeline_bytes"] = timeline.stat().st_size
        for ending in ENDINGS:
            trace = Path(folder, f"trace{ending}")
            seconds, peak_bytes = measured(str(RTK), "viz", str(timeline), "-o", str(trace))
            result[ending] = {
                "seconds": seconds,
                "peak_memory_bytes": peak_bytes,
                "size_bytes": trace.stat().st_size,
            }
            trace.unlink()
    write_result(result, asked.output)


if __name__ == "__main__":
    main()
