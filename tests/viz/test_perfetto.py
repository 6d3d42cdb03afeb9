"""Perfetto traces, read back by the parser that Perfetto's own package generates from its proto files."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

from rtk.runners.simulator import simulate
from rtk.schemas.columns import columns_of
from rtk.schemas.messages import messages_of
from rtk.schemas.plan import Plan
from rtk.schemas.timeline import Event, Span, Timeline
from rtk.viz.facts import Labelled
from rtk.viz.memory import memory_curves
from rtk.viz.perfetto import perfetto_pieces
from rtk.viz.protobuf import MessageRows, fixed64, joined, message, number, text

MakePlan = Callable[..., Plan]
ENTRIES = ("event_categories", "event_names", "debug_annotation_names")


@dataclass
class Read:
    """What a viewer makes of a trace: times in nanoseconds, tracks by their names."""

    slices: list[dict[str, Any]] = field(default_factory=list)
    instants: list[tuple[str, str, int, str]] = field(default_factory=list)
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)
    flows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


def read(timelines: Sequence[Labelled]) -> Read:
    """Reads as trace_processor does: interned names by sequence, an end closes what began last on its track."""
    found = Read()
    names: dict[tuple[int, str, int], str] = {}
    tracks: dict[int, str] = {}
    begun: dict[int, list[dict[str, Any]]] = {}
    ending: list[tuple[int, dict[str, Any]]] = []
    for packet in packets(b"".join(perfetto_pieces(timelines))):
        sequence = packet.trusted_packet_sequence_id
        for kind in ENTRIES:
            names |= {(sequence, kind, one.iid): one.name for one in getattr(packet.interned_data, kind)}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            own = track.process.process_name or track.name
            tracks[track.uuid] = f"{tracks[track.parent_uuid]}, {own}" if track.parent_uuid else own
            found.processes += [own] if track.HasField("process") else []
        if not packet.HasField("track_event"):
            continue
        event, at_ns = packet.track_event, packet.timestamp
        track_name = tracks[event.track_uuid]
        if event.type == event.TYPE_COUNTER:
            found.counters.setdefault(track_name, []).append((at_ns, event.double_counter_value))
        elif event.type == event.TYPE_INSTANT:
            found.instants.append((track_name, event.name, at_ns, event.debug_annotations[0].string_value))
        elif event.type == event.TYPE_SLICE_END:
            begun[event.track_uuid].pop()["end_ns"] = at_ns
        else:
            said = {
                names[sequence, ENTRIES[2], one.name_iid]: getattr(one, str(one.WhichOneof("value")))
                for one in event.debug_annotations
            }
            category = names[sequence, ENTRIES[0], event.category_iids[0]]
            name = names[sequence, ENTRIES[1], event.name_iid]
            one = {"track": track_name, "name": name, "start_ns": at_ns, "category": category, **said}
            found.slices.append(one)
            begun.setdefault(event.track_uuid, []).append(one)
            found.flows |= {flow: [one] for flow in event.flow_ids}
            ending += [(flow, one) for flow in event.terminating_flow_ids]
    for flow, one in ending:
        found.flows[flow].append(one)
    assert not any(begun.values())
    return found


def packets(data: bytes) -> "list[Any]":
    """All packets, those that stand compressed in others among them."""
    found = []
    trace = protos.Trace.FromString(data)
    trace.DiscardUnknownFields()
    assert trace.ByteSize() == len(data)  # all fields are known ones, and none is longer than it has to be
    for packet in trace.packet:
        found += packets(zlib.decompress(packet.compressed_packets)) if packet.compressed_packets else [packet]
    return found


def ns(time_s: float) -> int:
    return round(time_s * 1e9)


@given(pipelines=st.integers(1, 3), stages=st.integers(1, 4), microbatches=st.integers(1, 4), split=st.booleans())
def test_slices_are_the_spans(make_plan: MakePlan, pipelines: int, stages: int, microbatches: int, split: bool) -> None:
    """Every span is one slice of its worker's stream, from and until its times to the nanosecond, and nothing else is.

    Slices of a track never overlap, and flows lead from who sends a message to who waits for it, as in Chrome traces.
    """
    timeline = simulate(make_plan(pipelines, stages, microbatches, split)).timeline
    trace = read([("simulated", timeline)])
    found = sorted((s["track"], s["start_ns"], s["name"], s["end_ns"], s["iteration"]) for s in trace.slices)
    stream = {"allreduce": "communication"}
    expected = sorted(
        (f"worker {s.worker}, {stream.get(s.op, 'compute')}", ns(s.start_s), s.op, ns(s.end_s), s.iteration)
        for s in timeline.spans
    )
    assert found == expected
    columns = columns_of(timeline)
    receivers, senders = messages_of(columns)
    arrows = sorted(
        (ns(columns.start_s[a]), columns.op(a), ns(columns.start_s[b]), columns.op(b))
        for a, b in zip(senders, receivers, strict=True)
    )
    assert arrows == sorted((a["start_ns"], a["name"], b["start_ns"], b["name"]) for a, b in trace.flows.values())


def test_rerouted_micro_batches_say_so(rerouted: Timeline) -> None:
    """What a slice works on stands in its annotations; re-routed ones name the pipeline they came from."""
    slices = {(one["track"], one["name"]): one for one in read([("simulated", rerouted)]).slices}
    moved = slices["worker 2/1, compute", "F1.2"]
    assert (moved["pipeline"], moved["microbatch"], moved["rerouted"], moved["category"]) == (1, 2, True, "forward")
    assert "rerouted" not in slices["worker 2/1, compute", "F2"]
    assert "microbatch" not in slices["worker 0/0, compute", "step"]


def test_memory_and_events(small: Timeline) -> None:
    """Memory is a counter with the very points that pictures draw, an event an instant of its worker's process."""
    trace = read([("simulated", small)])
    ((worker, points),) = memory_curves(small).items()
    assert trace.counters == {f"worker {worker}, memory": [(ns(at_s), size) for at_s, size in points]}
    assert trace.instants == [("worker 0/0, events", "slow_compute", ns(2.5), "factor 2 <since> now")]


def test_events_of_no_worker_are_on_a_track_of_nobody(small: Timeline) -> None:
    """One event says a worker, one a node, one nothing; without spans there still are events, and nothing is empty."""
    events = (replace(small.events[0], worker=None), Event(3.0, "fail", "node7", "gone"), *small.events)
    instants = read([("simulated", replace(small, events=events))]).instants
    assert [one[0] for one in instants] == ["events", "events", "worker 0/0, events"]
    assert read([("measured", Timeline("measured", (), events=events[:1]))]).instants[0][1] == "slow_compute"
    assert b"".join(perfetto_pieces([("measured", Timeline("measured", ()))])) == b""


def test_spans_that_overlap_have_tracks_of_their_own() -> None:
    """F and B side by side, one within another, and one of no length: each slice ends when its span does."""
    rows = [("F0", 0, 4), ("B1", 0, 4), ("F2", 1, 2), ("F3", 4, 4), ("F4", 4, 6), ("B5", 5, 7)]
    spans = tuple(Span("0/0", op, float(start), float(end)) for op, start, end in rows)
    slices = read([("measured", Timeline("measured", spans))]).slices
    assert sorted((s["name"], s["start_ns"], s["end_ns"]) for s in slices) == sorted(
        (op, ns(start), ns(end)) for op, start, end in rows
    )
    assert {s["track"] for s in slices} == {f"worker 0/0, compute{lane}" for lane in ("", " 2", " 3")}


def test_several_timelines_are_aligned(small: Timeline) -> None:
    """Each begins at 0, in processes named by its label, with flows and names of its own."""
    late = replace(small, spans=tuple(replace(s, start_s=s.start_s + 5, end_s=s.end_s + 5) for s in small.spans))
    assert read([("late", late)]).slices[0]["start_ns"] == ns(5)
    both = read([("simulated", small), ("measured", late)])
    assert both.processes == ["simulated: worker 0/0", "measured: worker 0/0"]
    assert [one["start_ns"] for one in both.slices if one["name"] == "F0"] == [0, 0]


def test_virtual_stages_are_named(rerouted: Timeline) -> None:
    """A worker of several stages says of which each operation is."""
    spans = (Span("0/0", "0F0", 0.0, 1.0), Span("0/0", "3F0", 1.0, 2.0))
    slices = read([("measured", Timeline("measured", spans))]).slices
    assert [(one["name"], one["stage"]) for one in slices] == [("0F0", 0), ("3F0", 3)]


# The encoder.

NUMBERS = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8)


@given(NUMBERS, st.data())
def test_rows_are_the_bytes_that_protobuf_writes(values: list[int], draw: st.DataObject) -> None:
    """Numbers, texts, messages and left out fields are read as they were written, in as few bytes as there can be."""
    told = [draw.draw(st.text(max_size=4)) for _ in values]
    said = [draw.draw(st.booleans()) for _ in values]
    column, where = np.array(values, dtype=np.int64), np.array(said)
    event = message(11, number(11, column), text(23, told), fixed64(47, column, where))
    rows: MessageRows = message(1, number(8, column), joined(number(10, 7), event))
    trace = protos.Trace()
    for value, words, flows in zip(values, told, said, strict=True):
        packet = trace.packet.add(timestamp=value, trusted_packet_sequence_id=7)
        packet.track_event.track_uuid, packet.track_event.name = value, words
        packet.track_event.flow_ids.extend([value] if flows else [])
    parsed = protos.Trace.FromString(rows.encoded())
    assert parsed == trace
    assert len(rows.encoded()) == trace.ByteSize()


def test_a_large_trace_is_a_tenth_of_the_json(make_plan: MakePlan) -> None:
    """A plan of 4,096 operations: file against Chrome trace, neither with .gz."""
    from rtk.viz.chrome import trace_pieces

    timeline = simulate(make_plan(4, 4, 64, True)).timeline
    packed = sum(map(len, perfetto_pieces([("simulated", timeline)])))
    assert packed < sum(map(len, trace_pieces([("simulated", timeline)]))) / 10
