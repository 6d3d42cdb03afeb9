"""What workers hold of activations over time, from the spans of a timeline and the sizes that it says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schemas.columns import TimelineColumns, columns_of, joint_key
from ..schemas.orders import KINDS, NONE
from ..schemas.timeline import WorkerMemory
from .facts import Drawable, lost_of, resumed_at_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Flags = NDArray[np.bool_]
    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Steps = tuple[Floats, Floats]

Points = tuple[tuple[float, float], ...]

FORWARD, INPUT = KINDS.index("F"), KINDS.index("I")
ENDED = len(KINDS)  # the end of what was run again for its message alone
DROPPED = ENDED + 1  # the beginning of an epoch


def memory_curves(timeline: Drawable) -> dict[str, Points]:
    """The activation memory of each worker as points, all of `curves_of`."""
    return {
        worker: tuple(zip(times_s.tolist(), held_bytes.tolist(), strict=True))
        for worker, (times_s, held_bytes) in curves_of(columns_of(timeline))
    }


def peak_bytes(points: Points) -> float:
    """The largest value of a curve."""
    return max((size for _, size in points), default=0.0)


def sizes_of(columns: TimelineColumns) -> dict[str, list[WorkerMemory]]:
    """What each worker holds for a micro-batch: of a plan with a placement, for each of its virtual stages."""
    found: dict[str, list[WorkerMemory]] = {}
    for memory in columns.workers:
        found.setdefault(memory.worker, []).append(memory)
    return found


def curves_of(columns: TimelineColumns) -> "Iterator[tuple[str, Steps]]":
    """The activation memory of each worker as steps, one worker after the other.

    F adds activation_bytes when it starts; I leaves weight_stash_bytes when it ends; W or B frees the rest when it
    ends, each those of its virtual stage. A new epoch drops what was under way; if it goes on in the midst of an
    iteration, what is not gone on with. What is run again for its message alone is freed at its end, by its I if that
    follows.

    Args:
        columns: its `workers` say the sizes; a worker without sizes gets no curve.

    Returns:
        For each worker times in s, ascending, and the bytes held from each on. Of several at one time each was true for
        a moment, so the largest value of all is the worker's peak.
    """
    sizes = {
        worker: seats
        for worker, seats in sizes_of(columns).items()
        if any(memory.activation_bytes > 0 for memory in seats)
    }
    if not sizes:
        return
    resumed_s = resumed_at_s(columns)
    lost = lost_of(columns) if resumed_s else np.zeros(len(columns), dtype=bool)
    rows = dict(zip(columns.names, columns.rows_of_workers(), strict=True))
    for worker, seats in sizes.items():
        yield worker, _steps(columns, rows.get(worker, np.zeros(0, dtype=np.int32)), seats, lost, resumed_s)


def _steps(
    columns: TimelineColumns,
    own_rows: "NDArray[np.int32]",
    sizes: Sequence[WorkerMemory],
    lost: "Flags",
    resumed_s: frozenset[float],
) -> "Steps":
    """The curve of one worker, of which these are the rows."""
    placed = sizes[0].stage is not None
    rows = own_rows[columns.is_computed[own_rows]].astype(np.int64)
    if placed:
        rows = rows[np.isin(columns.stages_of(rows), [memory.stage or 0 for memory in sizes])]
    rows = rows[np.lexsort((columns.end_s[rows], columns.start_s[rows]))]
    own = columns.taken(rows)
    stage = columns.stages_of(rows) if placed else np.zeros(len(own), dtype=np.int64)
    piece = joint_key(own.iteration, own.pipeline, own.microbatch, own.is_again, stage)
    epochs_s = np.array([event.time_s for event in columns.events if event.kind == "epoch"], dtype=np.float64)
    alone = np.flatnonzero(own.is_again)
    alone = alone[~np.isin(piece[alone], piece[own.kind != FORWARD])]
    # F changes it at its start, the others at their end. What comes at one time stays in this order.
    times_s = np.concatenate((epochs_s, np.where(own.kind == FORWARD, own.start_s, own.end_s), own.end_s[alone]))
    order = np.argsort(times_s, kind="stable")

    def merged(of_epochs: int, of_spans: "NDArray[Any]", of_alone: "NDArray[Any]") -> "NDArray[Any]":
        return np.concatenate((np.full(len(epochs_s), of_epochs), of_spans, of_alone))[order]

    is_vain = np.isin(piece, piece[lost[rows]])
    changes = _HeldChanges(
        merged(DROPPED, own.kind, np.full(len(alone), ENDED)),
        merged(NONE, piece, piece[alone]),
        merged(NONE, stage, stage[alone]),
        merged(0, own.is_again, own.is_again[alone]) > 0,
        np.isin(times_s[order], list(resumed_s)),
        merged(0, is_vain, is_vain[alone]) > 0,
    )
    held_bytes = np.zeros(len(order))
    counted = changes.counted([memory.stage or 0 for memory in sizes])
    for memory, (whole, stash) in zip(sizes, counted, strict=True):
        held_bytes = held_bytes + (whole * memory.activation_bytes + stash * memory.weight_stash_bytes)
    return times_s[order], held_bytes


@dataclass(frozen=True)
class _HeldChanges:
    """What changes how much a worker holds, by time, each with the piece (a micro-batch at a stage) that it is of.

    Attributes:
        kind: place in KINDS, ENDED or DROPPED.
        piece, stage: numbers; NONE of what is DROPPED.
        is_again: whether it is of what was run again for its message alone.
        is_resumed: of what is DROPPED, whether it is only what is there in vain.
        is_vain: whether its piece is.
    """

    kind: "Ints"
    piece: "Ints"
    stage: "Ints"
    is_again: "Flags"
    is_resumed: "Flags"
    is_vain: "Flags"

    def counted(self, stages: Sequence[int]) -> "Iterator[tuple[Floats, Floats]]":
        """How many pieces of each stage are held whole, and how many as what W needs, after each change.

        After F a piece is held whole, after an I that follows its F what W needs, and after all else nothing: so what a
        change adds and takes follows from it and the one before it of the same piece since the last drop. Counts are
        summed, and not bytes, so that a curve ends at zero and not at a rounding error.
        """
        drops = self.kind == DROPPED
        whole_drops = drops & ~self.is_resumed
        order = np.argsort(self.piece, kind="stable")
        since = np.where(self.is_vain, np.cumsum(drops), np.cumsum(whole_drops))[order]
        kind, piece = self.kind[order], self.piece[order]
        goes_on = np.append((piece[1:] == piece[:-1]) & (since[1:] == since[:-1]), False)
        whole = kind == FORWARD
        stash = (kind == INPUT) & _before(whole & goes_on) & ~self.is_again[order]
        at, stage = order, self.stage[order]
        added = [held.astype(np.float64) - _before(held & goes_on) for held in (whole, stash)]
        if drops.any():  # what is held then goes
            last = np.flatnonzero(~goes_on & (whole | stash))
            of = order[last]
            dropped_at = np.where(self.is_vain[of], _next(drops, of), _next(whole_drops, of))
            last, dropped_at = last[dropped_at < len(drops)], dropped_at[dropped_at < len(drops)]
            at, stage = np.append(at, dropped_at), np.append(stage, stage[last])
            added = [np.append(one, -held[last].astype(float)) for one, held in zip(added, (whole, stash), strict=True)]
        for number in stages:
            own = stage == number
            whole_count, stash_count = (np.bincount(at[own], one[own], minlength=len(drops)) for one in added)
            yield whole_count.cumsum(), stash_count.cumsum()


def _before(flags: "Flags") -> "Flags":
    """Of each place the flag of the one before it."""
    return np.append(False, flags[:-1])


def _next(flags: "Flags", places: "Ints") -> "Ints":
    """The first place behind each of these that has the flag; how many there are where none has."""
    found = np.append(np.flatnonzero(flags), len(flags))
    return found[np.searchsorted(found, places)]
