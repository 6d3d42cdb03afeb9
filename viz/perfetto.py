"""Perfetto's own traces (protobuf), for ui.perfetto.dev and trace_processor: for timelines of millions of operations.

They say what `chrome.py` says, as track events (https://perfetto.dev/docs/reference/synthetic-track-event). A worker is
a process; computation, communication and memory are tracks of it, and spans that overlap on one get tracks of their
own, for slices of a track must nest. Names are interned. An arrow is a flow that ends at the operation that waits for
it. Packets stand compressed in the file (`TracePacket.compressed_packets`, as in Android's traces), block by block, so
that no more than a block is held beside the columns.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of, joint_key
from ..schemas.messages import message_parts
from ..schemas.orders import NONE
from ..schemas.timeline import Event
from .chrome import STREAMS, categories_of, streams_of
from .facts import Labelled, workers_of
from .memory import curves_of
from .protobuf import MessageRows, data, fixed64, joined, message, number, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .memory import Steps

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

BLOCK = 50_000  # spans or points whose packets are compressed at once
PACKETS = 5_000  # spans whose packets are made at once: more of them would not fit into a processor's cache
QUICKLY = 1  # of zlib: less than a tenth larger than the usual level, in a third of the time
NANOSECONDS = 1e9

# Numbers of fields and values: protos/perfetto/trace/{trace,trace_packet}.proto, and track_event/*.proto beside them.
PACKET, COMPRESSED = 1, 50
TIMESTAMP, SEQUENCE, SEQUENCE_FLAGS, TRACK_EVENT, INTERNED, DESCRIPTOR = 8, 10, 13, 11, 12, 60
CLEARED, NEEDED = 1, 2  # SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE
ANNOTATION, CATEGORY, TYPE, NAME, TRACK, ENDING_FLOW, FLOW, DOUBLE, NAME_TEXT = 4, 3, 9, 10, 11, 48, 47, 44, 23
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
BOOL_VALUE, UINT_VALUE, STRING_VALUE, ANNOTATION_NAME = 2, 3, 6, 10
CATEGORIES, NAMES, ANNOTATION_NAMES = 1, 2, 3  # of InternedData; in each entry 1 is the number, 2 the text
UUID, TRACK_NAME, PROCESS, PARENT, COUNTER_TRACK, CHILD_ORDERING, RANK = 1, 2, 3, 5, 8, 11, 12
EXPLICIT, SIZE_BYTES, UNIT = 3, 3, 3
PID, SORT_INDEX, PROCESS_NAME, LABELS = 1, 3, 6, 8
SAID = ("iteration", "pipeline", "microbatch", "stage", "rerouted")  # of an operation; numbered from 1


def perfetto_pieces(timelines: Sequence[Labelled]) -> Iterator[bytes]:
    """Turn timelines into one Perfetto trace, as pieces of its bytes.

    Args:
        timelines: labels and timelines; clocks and names are those of `chrome.trace_pieces`.
    """
    several = len(timelines) > 1
    uuids = count(1)
    for sequence, (label, timeline) in enumerate(timelines, start=1):
        columns = columns_of(timeline)
        shown = columns.aligned() if several else columns
        yield from _PacketWriter(shown, f"{label}: " if several else "", sequence, uuids).pieces()


@dataclass(frozen=True)
class _Lane:
    """Spans of a stream that do not overlap: their rows, by start."""

    stream: int
    number: int
    rows: "Ints"


@dataclass(frozen=True)
class _Tracks:
    """Tracks: their numbers, and the packets that describe them."""

    uuids: "Ints"
    described: MessageRows


@dataclass(frozen=True)
class _PacketWriter:
    """Writes one timeline, in a sequence of packets of its own."""

    shown: TimelineColumns
    prefix: str
    sequence: int
    uuids: "count[int]"

    def pieces(self) -> Iterator[bytes]:
        """All of it: what the tracks are called, then what happens on them."""
        processes = {worker: next(self.uuids) for worker in workers_of([self.shown])}
        if processes:
            yield self._block(self._processes(processes))
        if len(self.shown):
            yield from self._slices(processes)
        yield from self._memory(processes)
        if self.shown.events:
            yield self._block(*self._instants(self.shown.events, processes))

    def _block(self, *packets: MessageRows) -> bytes:
        return self._packed([one.encoded() for one in packets])

    def _packed(self, packets: Sequence[bytes]) -> bytes:
        return message(PACKET, data(COMPRESSED, zlib.compress(b"".join(packets), QUICKLY))).encoded()

    def _packets(self, *parts: MessageRows, flags: int = NEEDED) -> MessageRows:
        return message(PACKET, *parts, number(SEQUENCE, self.sequence), number(SEQUENCE_FLAGS, flags))

    def _processes(self, processes: dict[str, int]) -> MessageRows:
        uuids = np.array(list(processes.values()))
        names = text(PROCESS_NAME, [f"{self.prefix}worker {worker}" for worker in processes])
        label = text(LABELS, [self.shown.source + (", paced" if self.shown.paced else "")])
        process = message(PROCESS, number(PID, uuids), number(SORT_INDEX, uuids), names, label)
        return self._packets(message(DESCRIPTOR, number(UUID, uuids), process, number(CHILD_ORDERING, EXPLICIT)))

    def _tracks(
        self, parents: Sequence[int], names: Sequence[str], ranks: Sequence[int], *more: MessageRows
    ) -> _Tracks:
        """New tracks of processes; a parent of 0 is nobody."""
        uuids, above = np.array([next(self.uuids) for _ in names]), np.array(parents)
        said = number(UUID, uuids), number(PARENT, above, above > 0), text(TRACK_NAME, names)
        return _Tracks(uuids, self._packets(message(DESCRIPTOR, *said, number(RANK, np.array(ranks)), *more)))

    def _slices(self, processes: dict[str, int]) -> Iterator[bytes]:
        shown = self.shown
        names, name = _names(shown)
        yield from self._interned(names, categories_of(shown))
        lanes = list(_lanes(shown))
        called = [STREAMS[one.stream] + (f" {one.number + 1}" if one.number else "") for one in lanes]
        parents = [processes[shown.names[shown.worker[one.rows[0]]]] for one in lanes]
        tracks = self._tracks(parents, called, [one.stream for one in lanes])
        yield self._block(tracks.described)
        rows, ends = np.concatenate([one.rows for one in lanes]), np.cumsum([len(one.rows) for one in lanes])
        lanes.clear()  # they hold as much as `rows` does
        sends, waits_for = np.zeros(len(shown), dtype=bool), np.full(len(shown), NONE, dtype=np.int32)
        for receivers, senders in message_parts(shown):
            sends[senders], waits_for[receivers] = True, senders
        for begin in range(0, len(rows), BLOCK):
            packets = []
            for at in range(begin, min(begin + BLOCK, len(rows)), PACKETS):
                part = rows[at : at + PACKETS].astype(np.int64)
                track = tracks.uuids[np.searchsorted(ends, at + np.arange(len(part)), side="right")]
                spans = self._spans(part, track, name[part], sends[part], waits_for[part].astype(np.int64))
                packets.append(spans.encoded())
            yield self._packed(packets)

    def _interned(self, names: Sequence[str], categories: Sequence[str]) -> Iterator[bytes]:
        """The texts that packets name by numbers, each counted from 1."""
        flags = CLEARED
        for field, texts in ((CATEGORIES, categories), (ANNOTATION_NAMES, SAID), (NAMES, names)):
            for begin in range(0, len(texts), BLOCK):
                part = texts[begin : begin + BLOCK]
                entries = message(field, number(1, begin + 1 + np.arange(len(part))), text(2, part))
                whole = np.frombuffer(entries.encoded(), dtype=np.uint8)[None]
                interned = message(INTERNED, MessageRows(whole, np.ones(whole.shape, dtype=bool)))
                yield self._block(self._packets(interned, flags=flags))
                flags = NEEDED

    def _spans(
        self, rows: "Ints", track: "Ints", name: "NDArray[np.int32]", sends: "Flags", waits_for: "Ints"
    ) -> MessageRows:
        """For each span a packet that begins a slice and one that ends it."""
        shown = self.shown
        computed = shown.is_computed[rows]
        said = [_said("iteration", shown.iteration[rows]), _said("pipeline", shown.pipeline[rows], computed)]
        said.append(_said("microbatch", shown.microbatch[rows], computed))
        if shown.stage is not None:
            said.append(_said("stage", shown.stage[rows].clip(0), shown.stage[rows] != NONE))
        if (again := shown.is_rerouted[rows]).any():
            said.append(_said("rerouted", np.ones_like(rows), again, BOOL_VALUE))
        first = self.sequence << 40  # a message bears the number of the row that sends it
        begins = message(
            TRACK_EVENT, number(TYPE, BEGIN), number(TRACK, track), number(CATEGORY, shown.kind[rows] + 1),
            number(NAME, name), *said,
            fixed64(FLOW, first + rows, sends), fixed64(ENDING_FLOW, first + waits_for, waits_for != NONE),
        )  # fmt: skip
        ends = message(TRACK_EVENT, number(TYPE, END), number(TRACK, track))
        return joined(self._at(shown.start_s[rows], begins), self._at(shown.end_s[rows], ends))

    def _at(self, times_s: "Floats", event: MessageRows) -> MessageRows:
        return self._packets(number(TIMESTAMP, _nanoseconds(times_s)), event)

    def _memory(self, processes: dict[str, int]) -> Iterator[bytes]:
        """How much each worker holds, as counters; those of several workers together."""
        held: list[tuple[str, Steps]] = []
        for one in curves_of(self.shown):
            held.append(one)
            if sum(len(times_s) for _, (times_s, _) in held) >= BLOCK:
                yield self._counters(held, processes)
                held = []
        if held:
            yield self._counters(held, processes)

    def _counters(self, curves: "Sequence[tuple[str, Steps]]", processes: dict[str, int]) -> bytes:
        parents, unit = [processes[worker] for worker, _ in curves], message(COUNTER_TRACK, number(UNIT, SIZE_BYTES))
        tracks = self._tracks(parents, ["memory"] * len(curves), [len(STREAMS)] * len(curves), unit)
        times_s, held_bytes = (np.concatenate(parts) for parts in zip(*(steps for _, steps in curves), strict=True))
        if not len(times_s):
            return self._block(tracks.described)
        track = np.repeat(tracks.uuids, [len(own_s) for _, (own_s, _) in curves])
        event = message(TRACK_EVENT, number(TYPE, COUNTER), number(TRACK, track), fixed64(DOUBLE, held_bytes))
        return self._block(tracks.described, self._at(times_s, event))

    def _instants(self, events: Sequence[Event], processes: dict[str, int]) -> tuple[MessageRows, MessageRows]:
        """Events, on a track of their worker's, or on one of nobody's."""
        parents = [processes.get(event.worker or "", 0) for event in events]
        owners, track_of = np.unique(parents, return_inverse=True)
        names = ["events" if owner else f"{self.prefix}events" for owner in owners]
        tracks = self._tracks(owners.tolist(), names, [len(STREAMS) + 1] * len(owners))
        messages = text(STRING_VALUE, [event.message for event in events])
        event = message(
            TRACK_EVENT, number(TYPE, INSTANT), number(TRACK, tracks.uuids[track_of]),
            text(NAME_TEXT, [event.kind for event in events]),
            message(ANNOTATION, text(ANNOTATION_NAME, ["message"]), messages),
        )  # fmt: skip
        return tracks.described, self._at(np.array([event.time_s for event in events]), event)


def _said(what: str, values: "Ints", where: "Flags | None" = None, kind: int = UINT_VALUE) -> MessageRows:
    """A number that is said of some operations."""
    return message(ANNOTATION, number(1, SAID.index(what) + 1), number(kind, values), where=where)


def _nanoseconds(seconds: "Floats") -> "Ints":
    return np.rint(seconds * NANOSECONDS).astype(np.int64)


def _names(shown: TimelineColumns) -> "tuple[list[str], NDArray[np.int32]]":
    """The names of spans, and for each span the number of its own, from 1."""
    number_of = np.empty(len(shown), dtype=np.int32)
    row_of: dict[tuple[int, ...], int] = {}
    found: list[list[tuple[int, ...]]] = []
    for begin in range(0, len(shown), BLOCK):
        part = slice(begin, begin + BLOCK)
        own = np.where(shown.is_rerouted[part], shown.pipeline[part], NONE)
        told = [shown.kind[part], own + 1, shown.microbatch[part]]
        told += [column[part] + 1 for column in (shown.stage, shown.suffix) if column is not None]
        _, first, number_of[part] = np.unique(joint_key(*told), return_index=True, return_inverse=True)
        found.append(list(zip(*(column[first].tolist() for column in told), strict=True)))
        row_of |= dict(zip(found[-1], (begin + first).tolist(), strict=True))
    place = {key: number for number, key in enumerate(sorted(row_of), start=1)}
    for begin, keys in zip(range(0, len(shown), BLOCK), found, strict=True):
        part = slice(begin, begin + BLOCK)
        number_of[part] = np.array([place[key] for key in keys])[number_of[part]]
    return [shown.op(row_of[key]) for key in place], number_of


def _lanes(shown: TimelineColumns) -> Iterator[_Lane]:
    """The spans of each worker's streams by start, in as many lanes as it takes for none to overlap in one."""
    stream_of = streams_of(shown)
    for own in shown.rows_of_workers():
        streams = stream_of[shown.kind[own]]
        for stream in np.unique(streams).tolist():
            rows = own[streams == stream]
            yield from _apart(shown, stream, rows[np.argsort(shown.start_s[rows], kind="stable")])


def _apart(shown: TimelineColumns, stream: int, rows: "Ints") -> Iterator[_Lane]:
    """A worker's spans of a stream, by start, in lanes."""
    starts, ends = _nanoseconds(shown.start_s[rows]), _nanoseconds(shown.end_s[rows])
    if (starts[1:] >= np.maximum.accumulate(ends)[:-1]).all():
        yield _Lane(stream, 0, rows)
        return
    free_ns: list[int] = []
    lane_of = np.empty(len(rows), dtype=np.int64)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        lane = next((lane for lane, free in enumerate(free_ns) if free <= start), len(free_ns))
        free_ns[lane:] = [end, *free_ns[lane + 1 :]]
        lane_of[row] = lane
    yield from (_Lane(stream, lane, rows[lane_of == lane]) for lane in range(len(free_ns)))
