"""Whether a large plan is sound: what `check_plan` judges, in two passes of machine code that name no problem.

The first pass puts every operation into its cell (pipeline, stage, micro-batch) and refuses what does not belong there,
or comes too early; the second follows messages from operation to operation, as Kahn's algorithm does with a stack.
Where either refuses, check.py looks for the problems, and names them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .kernels import Floats, Ints, MutableFloats, MutableInts, compiled, kernel
from .orders import NONE, Columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD, INPUT, WEIGHT, FULL = range(4)
# Of a cell: nothing yet, its F, its I, all of it.
EMPTY, BEGUN, SPLIT, WHOLE = range(4)


class PlanArrays(NamedTuple):
    """What orders are judged by; arrays over workers, over pipelines, or over pipelines x stages (of the deepest).

    Attributes:
        home, stage: each worker's pipeline and stage.
        held: a number for the layers that it holds.
        duration_s: what F, I, W and B take, workers x 4, in s.
        activation_bytes, stash_bytes: what it holds from F on, and between I and W.
        microbatches, depth: of each pipeline.
        first: the cell of micro-batch 0.
        layers: a number for the layers that the stage holds; NONE beyond a pipeline's depth.
        inside_s, between_s: delay of the link behind the stage, inside the pipeline and to others, in s.
        cells: how many there are.
    """

    home: NDArray[np.int64]
    stage: NDArray[np.int64]
    held: NDArray[np.int64]
    duration_s: NDArray[np.float64]
    activation_bytes: NDArray[np.float64]
    stash_bytes: NDArray[np.float64]
    microbatches: NDArray[np.int64]
    depth: NDArray[np.int64]
    first: NDArray[np.int64]
    layers: NDArray[np.int64]
    inside_s: NDArray[np.float64]
    between_s: NDArray[np.float64]
    cells: int


class OperationTimes(NamedTuple):
    """Start and end of every operation in s, in worker order, and the most bytes that each worker holds at once."""

    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    peaks: NDArray[np.float64]


def run_of(columns: Columns, shape: PlanArrays) -> OperationTimes | None:
    """What orders take; None where they are incomplete, out of order, or in a deadlock.

    Args:
        columns: the orders.
        shape: whose they are.
    """
    workers, n = len(columns.counts), len(columns.kind)
    stop = np.cumsum(columns.counts)
    row = stop - columns.counts
    forward, backward, runs = (np.full(shape.cells, NONE, dtype=np.int32) for _ in range(3))
    peaks, start_s, end_s = np.zeros(workers), np.empty(n), np.empty(n)
    first, layers = shape.first.ravel(), shape.layers.ravel()
    stages = shape.first.shape[1]
    operations = columns.kind, columns.pipeline, columns.microbatch
    put: Any = compiled(place)
    placed = put(
        stages, row, stop, shape.stage, shape.held, shape.activation_bytes, shape.stash_bytes, shape.microbatches,
        first, layers, *operations, np.zeros(shape.cells, dtype=np.int8), forward, backward, runs, peaks,
    )  # fmt: skip
    if not placed:
        return None
    run: Any = compiled(follow)
    run(
        stages, row, stop, shape.home, shape.stage, shape.depth, first, shape.inside_s.ravel(),
        shape.between_s.ravel(), shape.duration_s.ravel(), *operations, forward, backward, runs,
        np.empty(workers, dtype=np.int64), np.zeros(workers), start_s, end_s,
    )  # fmt: skip
    return OperationTimes(start_s, end_s, peaks) if (row == stop).all() else None


@kernel
def place(
    stages: int,
    start: Ints,
    stop: Ints,
    stage: Ints,
    held: Ints,
    activation_bytes: Floats,
    stash_bytes: Floats,
    microbatches: Ints,
    first: Ints,
    layers: Ints,
    kind: Ints,
    pipeline: Ints,
    microbatch: Ints,
    state: MutableInts,
    forward: MutableInts,
    backward: MutableInts,
    runs: MutableInts,
    peaks: MutableFloats,
) -> bool:
    """Put operations into their cells, and add up what workers hold.

    Args:
        stages: of the deepest pipeline.
        start, stop: each worker's first row, and the one after its last.
        state: EMPTY for every cell.
        forward, backward, runs: receive the rows of each cell's F and of its I or B, and the worker that runs them.
        peaks: receive the most bytes that each worker holds; 0 at first.
        The rest is as for `PlanArrays` and `Columns`.

    Returns:
        Whether every cell has one F, and after it on the same worker one B, or one I and then one W.
    """
    whole_cells = 0
    for worker in range(len(start)):
        whole, stashed = 0, 0
        for row in range(start[worker], stop[worker]):
            k, j, what = pipeline[row], microbatch[row], kind[row]
            if k >= len(microbatches) or j >= microbatches[k] or layers[k * stages + stage[worker]] != held[worker]:
                return False
            cell = first[k * stages + stage[worker]] + j
            if what == FORWARD:
                if state[cell] != EMPTY:
                    return False
                state[cell] = BEGUN
                forward[cell] = row
                runs[cell] = worker
                whole += 1
            elif runs[cell] != worker or state[cell] != (SPLIT if what == WEIGHT else BEGUN):
                return False
            elif what == WEIGHT:
                state[cell] = WHOLE
                stashed -= 1
                whole_cells += 1
            else:
                backward[cell] = row
                state[cell] = SPLIT if what == INPUT else WHOLE
                whole -= 1
                stashed += 1 if what == INPUT else 0
                whole_cells += 1 if what == FULL else 0
            peaks[worker] = max(peaks[worker], whole * activation_bytes[worker] + stashed * stash_bytes[worker])
    return whole_cells == len(state)


@kernel
def follow(
    stages: int,
    row: MutableInts,
    stop: Ints,
    home: Ints,
    stage: Ints,
    depth: Ints,
    first: Ints,
    inside_s: Floats,
    between_s: Floats,
    duration_s: Floats,
    kind: Ints,
    pipeline: Ints,
    microbatch: Ints,
    forward: Ints,
    backward: Ints,
    runs: Ints,
    waiting: MutableInts,
    free_s: MutableFloats,
    start_s: MutableFloats,
    end_s: MutableFloats,
) -> None:
    """Times of all rows that no deadlock keeps from running: who sends a message wakes the worker that waits for it.

    Args:
        row, stop: each worker's first row, and the one after its last; `row` receives the first that never runs.
        waiting, free_s: work space over workers; when each has ended what it did, 0 at first.
        start_s, end_s: receive the times of each row in s.
        The rest is as for `place`, of which `forward`, `backward` and `runs` are.
    """
    for begin in range(len(row)):
        waiting[0] = begin
        number = 1
        while number > 0:
            number -= 1
            mine = waiting[number]
            i = stage[mine]
            at, last, now_s = row[mine], stop[mine], free_s[mine]
            while at < last:
                k, what = pipeline[at], kind[at]
                if what == WEIGHT:  # it waits for nobody, and nobody for it
                    start_s[at] = now_s
                    now_s += duration_s[4 * mine + WEIGHT]
                    end_s[at] = now_s
                    at += 1
                    continue
                here = k * stages + i
                # The neighbours of its stage: whose message it waits for, and who waits for its own.
                before, behind = (i - 1, i + 1) if what == FORWARD else (i + 1, i - 1)
                rows = forward if what == FORWARD else backward
                if 0 <= before < depth[k]:
                    sent = first[here + before - i] + microbatch[at]
                    sender = runs[sent]
                    if row[sender] <= rows[sent]:
                        break
                    link = min(i, before)
                    own = home[mine]
                    delay_s = inside_s[own * stages + link] if home[sender] == own else between_s[k * stages + link]
                    now_s = max(now_s, end_s[rows[sent]] + delay_s)
                start_s[at] = now_s
                now_s += duration_s[4 * mine + what]
                end_s[at] = now_s
                at += 1
                if 0 <= behind < depth[k]:
                    awaited = first[here + behind - i] + microbatch[at - 1]
                    if row[runs[awaited]] == rows[awaited]:
                        waiting[number] = runs[awaited]
                        number += 1
            row[mine] = at
            free_s[mine] = now_s
