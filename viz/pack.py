"""Timelines as compact binary data for a page: what `page.js` decodes.

The bytes are deflated (zlib). Unpacked: the length of a header (4 bytes, little-endian), the header as JSON, and the
columns of all spans one after the other. Columns of numbers are split in four planes, lowest bytes first, which packs
several times as well as the numbers themselves. Rows stand in the header's order, each with its spans by start:

    kind        1 byte: the place in the header's `kinds`
    flags       1 byte: REROUTED, LOST, AGAIN, PART, FED, STAGED, and UPPER or LOWER of two side by side
    microbatch  4 planes: the difference from the one before of this kind in the row
    gap         4 planes: from the end of the span before in the row to its start, in ticks; it may be negative
    takes       4 planes: from start to end, in ticks
    iteration   4 planes: the difference from the span before in the row
    pipeline    4 planes, of the re-routed spans only: that of the micro-batch
    suffix      4 planes, of the spans with PART only: the place in the header's `suffixes` of what stands behind the
                token, such as `:4-6` for some layers only
    chunk       4 planes, of the spans with STAGED only: the place of the virtual stage among its row's `seats`

A tick is the header's `tick_s`. Pipelines that are alike, all their times included, stand there once.
"""

import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schemas.columns import TimelineColumns, worker_place
from ..schemas.orders import KINDS, NONE
from ..schemas.quantities import print_time
from .facts import LabelledColumns, absences, chunks_of, lost_of, marks_of, resumed_at_s
from .memory import sizes_of
from .scene import Gap, Row, rows_of
from .style import LOOKS, legend_of, tint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

REROUTED, LOST, AGAIN, PART, FED, STAGED, UPPER, LOWER = 1, 2, 4, 8, 16, 32, 64, 128
MOST_TICKS = 2_000_000_000  # so that a time has 32 bits
LEVEL = 7


@dataclass(frozen=True)
class _Track:
    """A row with its spans: their places in its timeline's columns, and what the header says of it."""

    row: Row
    spans: "Ints"
    said: dict[str, Any]


@dataclass(frozen=True)
class _PackedTimeline:
    """A timeline that is drawn, with what of its spans is not in its columns."""

    columns: TimelineColumns
    kind: "Ints"
    flags: "Ints"
    suffix: "Ints"


def pack(timelines: Sequence[LabelledColumns]) -> bytes:
    """Timelines, each aligned at its first span, as deflated data."""
    drawn = [(label, columns.aligned()) for label, columns in timelines]
    names = list(dict.fromkeys(name for _, columns in drawn for name in columns.others))
    suffixes = list(dict.fromkeys(suffix for _, columns in drawn for suffix in columns.suffixes))
    parts = [
        _PackedTimeline(columns, _kinds(columns, names), _flags(columns), _suffix(columns, suffixes))
        for _, columns in drawn
    ]
    marks, chunks = marks_of(drawn), chunks_of([columns for _, columns in drawn])
    ends_s = [float(columns.end_s.max(initial=0.0)) for _, columns in drawn]
    end_s = max((*ends_s, *(mark.time_s for mark in marks)), default=0.0)
    tick_s = tick_of(end_s)
    groups = _groups(parts, list(_tracks(drawn)))
    tracks = [track for _, own in groups for track in own]
    header = {
        "tick_s": tick_s,
        "resolution": print_time(tick_s) if tick_s >= 1e-6 else f"{tick_s * 1e9:.4g} ns",
        "end_s": end_s,
        "spans": sum(len(track.spans) for track in tracks),
        "labels": [label for label, _ in drawn],
        "suffixes": suffixes,
        "chunks": chunks,
        "kinds": [_look(name, len(chunks)) for name in (*KINDS, *names)],
        "groups": [{"pipelines": pipelines, "rows": [track.said for track in own]} for pipelines, own in groups],
        "marks": [{"time_s": mark.time_s, "event": mark.is_event, "words": list(mark.said), "short": mark.short}
                  for mark in marks],
    }  # fmt: skip
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return zlib.compress(b"".join((len(text).to_bytes(4, "little"), text, *_planes(parts, tracks, tick_s))), LEVEL)


def tick_of(end_s: float) -> float:
    """The shortest power of ten, in s and not under a nanosecond, of which times up to `end_s` have 32 bits."""
    return float(10.0 ** max(math.ceil(math.log10(end_s / MOST_TICKS)), -9)) if end_s > 0 else 1e-9


def _look(name: str, chunks: int) -> dict[str, Any]:
    known = name if name in LOOKS else "other"
    look = LOOKS[known]
    legend = legend_of(known) if name in LOOKS else name
    colours = [tint(look.colour, chunk, chunks) for chunk in range(max(chunks, 1) if name in KINDS else 1)]
    return {"name": name, "words": look.words, "legend": legend, "colours": colours, "height": look.height}


def _kinds(columns: TimelineColumns, names: list[str]) -> "Ints":
    """The kinds of a timeline's spans as places among those of all timelines."""
    places = [*range(len(KINDS)), *(len(KINDS) + names.index(name) for name in columns.others)]
    found: Ints = np.array(places, dtype=np.int64)[columns.kind]
    return found


def _suffix(columns: TimelineColumns, suffixes: list[str]) -> "Ints":
    """What stands behind the tokens of a timeline's spans as places among the suffixes of all timelines."""
    if columns.suffix is None:
        return np.zeros(len(columns), dtype=np.int64)
    found: Ints = np.array([suffixes.index(suffix) for suffix in columns.suffixes])[columns.suffix]
    return found


def _flags(columns: TimelineColumns) -> "Ints":
    flags: Ints = REROUTED * columns.is_rerouted + LOST * lost_of(columns) + AGAIN * columns.is_again
    flags += UPPER * (columns.half == 1) + LOWER * (columns.half == 2)
    flags += 0 if columns.suffix is None else PART * (columns.suffix > 0)
    flags += 0 if columns.stage is None else STAGED * (columns.stage != NONE)
    return flags if columns.is_fed is None else flags + FED * columns.is_fed


def _tracks(drawn: Sequence[LabelledColumns]) -> Iterator[_Track]:
    """All rows, with their spans by start."""
    places = []
    for _, columns in drawn:
        order = np.lexsort((columns.end_s, columns.start_s, columns.worker))
        rows = np.split(order, np.cumsum(np.bincount(columns.worker, minlength=len(columns.names))))
        places.append(dict(zip(columns.names, rows, strict=False)))
    sizes = [sizes_of(columns) for _, columns in drawn]
    gone = [_by_worker(columns) for _, columns in drawn]
    drops = [  # when epochs drop what is under way, and whether only what they do not go on with
        [[event.time_s, event.time_s in resumed_s] for event in columns.events if event.kind == "epoch"]
        for _, columns in drawn
        for resumed_s in [resumed_at_s(columns)]
    ]
    nothing = np.zeros(0, dtype=np.int64)
    for row in rows_of(drawn):
        columns = drawn[row.timeline][1]
        said: dict[str, Any] = {"stage": worker_place(row.worker)[1], "timeline": row.timeline, "end_s": row.end_s}
        spans = places[row.timeline].get(row.worker, nothing)
        said |= {"spans": len(spans)} | ({"note": row.note} if row.note else {})
        memory = sizes[row.timeline].get(row.worker, [])
        if any(one.activation_bytes > 0 for one in memory):
            of_stage = {one.stage: [one.activation_bytes, one.weight_stash_bytes] for one in memory}
            each = [of_stage.get(stage, [0.0, 0.0]) for stage in columns.seats.get(row.worker, of_stage)]
            said["memory"] = {"sizes": each, "limit": memory[0].memory_limit_bytes}
        if row.worker in columns.seats:
            said["seats"] = columns.seats[row.worker]
        if row.worker in columns.layers:
            said["layers"] = columns.layers[row.worker]
        gaps = [Gap(row, one.start_s, one.end_s, one.words) for one in gone[row.timeline].get(row.worker, ())]
        if gaps:
            said["gaps"] = [[gap.start_s, gap.end_s, gap.words, gap.tip] for gap in gaps]
        if drops[row.timeline] and "memory" in said:
            said["drops"] = drops[row.timeline]
        yield _Track(row, spans, said)


def _by_worker(columns: TimelineColumns) -> dict[str, list[Any]]:
    gone: dict[str, list[Any]] = {}
    for absence in absences(columns):
        gone.setdefault(absence.worker, []).append(absence)
    return gone


def _groups(parts: list[_PackedTimeline], tracks: list[_Track]) -> list[tuple[list[int], list[_Track]]]:
    """Pipelines that are alike, with the rows of the first of them."""
    of_pipeline: dict[int, list[_Track]] = {}
    for track in tracks:
        of_pipeline.setdefault(worker_place(track.row.worker)[0], []).append(track)
    alike: dict[bytes, tuple[list[int], list[_Track]]] = {}
    for pipeline, own in of_pipeline.items():
        mark = blake2b()
        for track in own:
            part = parts[track.row.timeline]
            mark.update(json.dumps(track.said).encode())
            columns, spans = part.columns, track.spans
            owner = np.where(part.flags[spans] & REROUTED, columns.pipeline[spans], -1)
            for column in (part.kind[spans], part.flags[spans], columns.microbatch[spans], columns.iteration[spans],
                           columns.start_s[spans], columns.end_s[spans], owner, part.suffix[spans],
                           columns.chunk[spans]):  # fmt: skip
                mark.update(column.tobytes())
        alike.setdefault(mark.digest(), ([], own))[0].append(pipeline)
    return list(alike.values())


def _planes(parts: list[_PackedTimeline], tracks: list[_Track], tick_s: float) -> Iterator[bytes]:
    """The columns of all spans."""
    if not tracks:
        return

    def joined(column: str) -> "NDArray[Any]":
        return np.concatenate([getattr(parts[track.row.timeline].columns, column)[track.spans] for track in tracks])

    kind = np.concatenate([parts[track.row.timeline].kind[track.spans] for track in tracks])
    flags = np.concatenate([parts[track.row.timeline].flags[track.spans] for track in tracks])
    row = np.repeat(np.arange(len(tracks)), [len(track.spans) for track in tracks])
    start, end = (np.rint(joined(column) / tick_s).astype(np.int64) for column in ("start_s", "end_s"))
    yield kind.astype(np.uint8).tobytes()
    yield flags.astype(np.uint8).tobytes()
    by_kind = np.lexsort((kind, row))  # stable: in the row's order
    microbatch = np.empty_like(kind)
    microbatch[by_kind] = _differences(joined("microbatch")[by_kind], row[by_kind] * len(kind) + kind[by_kind])
    yield _split(microbatch)
    before = np.concatenate(([0], end[:-1])) if len(end) else end
    before[np.concatenate(([True], row[1:] != row[:-1]))[: len(row)]] = 0
    yield _split(start - before)
    yield _split(end - start)
    yield _split(_differences(joined("iteration"), row))
    yield _split(joined("pipeline")[flags & REROUTED > 0])
    suffix = np.concatenate([parts[track.row.timeline].suffix[track.spans] for track in tracks])
    yield _split(suffix[flags & PART > 0])
    yield _split(joined("chunk")[flags & STAGED > 0])


def _differences(values: "Ints", group: "Ints") -> "Ints":
    """Each value less the one before it in its group, which stands together; the first as it is."""
    found: Ints = values.copy()
    found[1:] -= np.where(group[1:] == group[:-1], values[:-1], 0)
    return found


def _split(values: "Ints") -> bytes:
    return values.astype("<i4").view(np.uint8).reshape(-1, 4).T.tobytes()
