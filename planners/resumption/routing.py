"""Who does what is left that is free: nobody has begun it, or its work was lost.

Whoever has least left takes it (water-filling), but for who takes it in the plan that follows, as long as he has no
more than his fair share. Of neighbouring pieces that one worker can do, it does both unless that costs it more than
another one would need: every cut costs a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form
from .remaining import NOBODY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .costs import CrewCosts
    from .crew import Crew
    from .remaining import Ints as IntArray
    from .remaining import Remaining

INFINITY = float("inf")
TINY = 1e-300  # of what takes no time


class Free(NamedTuple):
    """Work to be given away; what is said of cells stands at `micro-batch * pieces + piece`.

    Attributes:
        pieces: how many there are.
        kinds: of each cell, 1 for F, 2 for I and 4 for what counts; 0 where nothing is free.
        holders, holders_start: who holds piece n: `holders[holders_start[n]:holders_start[n + 1]]`.
        home: who takes each cell in the plan that follows, or NOBODY.
        length: layers of each piece.
        layer_s: of each worker, F, I and W of a layer, at `3 * worker`.
        fair_s: up to so much work each worker keeps its own.
    """

    pieces: int
    kinds: Ints
    holders_start: Ints
    holders: Ints
    home: Ints
    length: Ints
    layer_s: Floats
    fair_s: Floats


@kernel
def needs_s(free: Free, worker: int, piece: int, kinds: int) -> float:
    """How long a worker needs for a cell."""
    at = 3 * worker
    per_layer_s = 0.0
    if kinds & 1:
        per_layer_s += free.layer_s[at]
    if kinds & 2:
        per_layer_s += free.layer_s[at + 1]
    if kinds & 2 and kinds & 4:
        per_layer_s += free.layer_s[at + 2]
    return per_layer_s * free.length[piece]


@kernel
def pour(given: tuple, load_s: MutableFloats, executor: MutableInts) -> None:  # type: ignore[type-arg]
    """Give all free work away.

    Args:
        given: `Free` as a plain tuple.
        load_s: what each worker has to do already; what it gets comes on top.
        executor: receives who does each cell.
    """
    free = Free(*given)
    for cell in range(len(free.kinds)):
        kinds = free.kinds[cell]
        if kinds == 0:
            continue
        piece = cell % free.pieces
        begin, end = free.holders_start[piece], free.holders_start[piece + 1]
        best = free.home[cell]
        if best == NOBODY or load_s[best] + needs_s(free, best, piece, kinds) > free.fair_s[best]:
            least_s = INFINITY
            for at in range(begin, end):
                worker = free.holders[at]
                after_s = load_s[worker] + needs_s(free, worker, piece, kinds)
                if after_s < least_s:
                    best = worker
                    least_s = after_s
            before = executor[cell - 1] if piece > 0 and free.kinds[cell - 1] > 0 else NOBODY
            if before != NOBODY:
                for at in range(begin, end):
                    if free.holders[at] == before and load_s[before] <= least_s:
                        best = before
        load_s[best] += needs_s(free, best, piece, kinds)
        executor[cell] = best


def route(crew: Crew, costs: CrewCosts, left: Remaining, form: Form) -> IntArray:
    """Who does what: micro-batches x pieces, NOBODY where nothing is left."""
    executor = np.ascontiguousarray(left.stash.T)
    active = (left.forward | left.backward).T
    kinds = (left.forward + 2 * left.backward + 4 * left.counts).T * (active & (executor == NOBODY))
    layer_s = costs.duration_s[:, :3] / costs.held[:, None]
    load_s = _begun_s(costs, left, layer_s)
    holders = [np.flatnonzero((costs.first <= n) & (n < costs.stop)) for n in range(len(costs.length))]
    free = Free(
        len(costs.length),
        form.ints(kinds.ravel()),
        form.ints(np.cumsum([0, *map(len, holders)])),
        form.ints(np.concatenate(holders)),
        form.ints(homes(crew, costs).ravel()),
        form.ints(costs.length),
        form.floats(layer_s.ravel()),
        form.floats(_fair_s(costs, kinds, load_s, layer_s)),
    )
    found = form.ints(executor.ravel())
    form.kernel(pour)(tuple(free), form.floats(load_s), found)
    return np.asarray(found, dtype=np.int64).reshape(executor.shape)


def _begun_s(costs: CrewCosts, left: Remaining, layer_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each worker has to do for what it has begun."""
    begun = left.stash[left.backward & (left.stash != NOBODY)]
    layers = np.zeros(len(costs.held))
    piece = np.nonzero(left.backward & (left.stash != NOBODY))[0]
    np.add.at(layers, begun, costs.length[piece])
    whole = np.bincount(left.weights[:, 0], minlength=len(costs.held))
    found: NDArray[np.float64] = layers * layer_s[:, 1:].sum(axis=1) + whole * costs.duration_s[:, 2]
    return found


def _fair_s(
    costs: CrewCosts, kinds: NDArray[np.int64], load_s: NDArray[np.float64], layer_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Up to how much work of each worker all workers of a component have the same, if work could be cut at will."""
    component = costs.component
    usual_s = np.maximum(layer_s.mean(axis=0), TINY)
    share = np.stack((kinds & 1 > 0, kinds & 2 > 0, kinds & 6 == 6), axis=-1) @ (usual_s / usual_s.sum())
    layers = np.zeros(component.max() + 1)
    np.add.at(layers, component[costs.any_holder], (share * costs.length).sum(axis=0))
    each_s = np.maximum(layer_s.sum(axis=1), TINY)
    speed, begun = np.zeros(len(layers)), np.zeros(len(layers))
    np.add.at(speed, component, 1 / each_s)
    np.add.at(begun, component, load_s / each_s)
    found: NDArray[np.float64] = ((layers + begun) / speed)[component]
    return found


def homes(crew: Crew, costs: CrewCosts) -> NDArray[np.int64]:
    """Who does what in the plan that follows: micro-batches x pieces, NOBODY where it says nothing."""
    from ...schemas.orders import parse_columns

    columns = parse_columns([worker.order or "" for worker in crew.workers], costs.pipeline.tolist())
    worker = np.repeat(np.arange(len(crew.workers)), columns.counts)[columns.kind == 0]
    offset = np.searchsorted(costs.origin, np.arange(len(crew.plan.pipelines)))
    microbatch = offset[columns.pipeline] + columns.microbatch
    found = np.full((crew.microbatches, len(costs.length)), NOBODY, dtype=np.int64)
    microbatch = microbatch[columns.kind == 0]
    for piece in range(len(costs.length)):
        here = (costs.first[worker] <= piece) & (piece < costs.stop[worker])
        found[microbatch[here], piece] = worker[here]
    return found
