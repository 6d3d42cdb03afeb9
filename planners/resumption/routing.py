"""Who does what is left that is free: nobody has begun it, or its work was lost.

Whoever has least left takes it (water-filling), but for who holds it in the micro-batch's own pipeline, as long as he
has no more than his fair share. Of neighbouring pieces that one worker can do, it does both unless that costs it more
than another one would need: every cut costs a message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...schemas.kernels import Floats, Ints, MutableFloats, MutableInts, kernel
from ..scheduling.forms import Form
from ..scheduling.problem import ROUNDING
from .remaining import NOBODY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .costs import CrewCosts
    from .crew import Crew
    from .remaining import Ints as IntArray
    from .remaining import Remaining

INFINITY = float("inf")
TINY = 1e-300  # of what takes no time


class FreeWork(NamedTuple):
    """Work to be given away; what is said of cells stands at `micro-batch * pieces + piece`.

    Attributes:
        pieces: how many there are.
        owner: who has each seat.
        kinds: of each cell, 1 for F, 2 for I and 4 for what counts; 0 where nothing is free.
        holders, holders_start: the seats of piece n: `holders[holders_start[n]:holders_start[n + 1]]`.
        home: the seat of each cell in the micro-batch's own pipeline, or NOBODY.
        length: layers of each piece.
        layer_s: at each seat, F, I and W of a layer, at `3 * seat`.
        fair_s: up to so much work each worker keeps its own.
    """

    pieces: int
    owner: Ints
    kinds: Ints
    holders_start: Ints
    holders: Ints
    home: Ints
    length: Ints
    layer_s: Floats
    fair_s: Floats


@kernel
def needs_s(free: FreeWork, seat: int, piece: int, kinds: int) -> float:
    """How long a cell takes at a seat."""
    at = 3 * seat
    per_layer_s = 0.0
    if kinds & 1:
        per_layer_s += free.layer_s[at]
    if kinds & 2:
        per_layer_s += free.layer_s[at + 1]
    if kinds & 2 and kinds & 4:
        per_layer_s += free.layer_s[at + 2]
    return per_layer_s * free.length[piece]


@kernel
def stay_home(free: FreeWork, load_s: MutableFloats, executor: MutableInts) -> None:
    """Give cells to their own pipelines' workers, as long as these have no more than their share."""
    for cell in range(len(free.kinds)):
        kinds, home = free.kinds[cell], free.home[cell]
        if kinds > 0 and home != NOBODY:
            worker = free.owner[home]
            after_s = load_s[worker] + needs_s(free, home, cell % free.pieces, kinds)
            if after_s <= free.fair_s[worker]:
                executor[cell] = home
                load_s[worker] = after_s


@kernel
def least_loaded(free: FreeWork, load_s: MutableFloats, cell: int, before: int) -> int:
    """Whose seat ends first with a cell on top of what its worker has; that of the worker of the seat `before` if it
    has no more than that already."""
    piece = cell % free.pieces
    best = NOBODY
    least_s = INFINITY
    for at in range(free.holders_start[piece], free.holders_start[piece + 1]):
        seat = free.holders[at]
        worker = free.owner[seat]
        after_s = load_s[worker] + needs_s(free, seat, piece, free.kinds[cell])
        if before != NOBODY and worker == free.owner[before]:
            after_s = min(after_s, load_s[worker])
        if after_s < least_s:
            best = seat
            least_s = after_s
    return best


@kernel
def pour(given: tuple[Any, ...], load_s: MutableFloats, executor: MutableInts) -> None:
    """Give all free work away.

    Args:
        given: `FreeWork` as a plain tuple.
        load_s: what each worker has to do already; what it gets comes on top.
        executor: the seat of each cell, or NOBODY; receives those of what is free.
    """
    free = FreeWork(*given)
    stay_home(free, load_s, executor)
    for cell in range(len(free.kinds)):
        if free.kinds[cell] > 0 and executor[cell] == NOBODY:
            before = executor[cell - 1] if cell % free.pieces > 0 else NOBODY
            seat = least_loaded(free, load_s, cell, before)
            load_s[free.owner[seat]] += needs_s(free, seat, cell % free.pieces, free.kinds[cell])
            executor[cell] = seat


def route(crew: Crew, costs: CrewCosts, left: Remaining, form: Form) -> IntArray:
    """Who does what: seats, micro-batches x pieces, NOBODY where nothing is left."""
    executor = np.ascontiguousarray(left.stash.T)
    active = (left.forward | left.backward).T
    kinds = (left.forward + 2 * left.backward + 4 * left.counts).T * (active & (executor == NOBODY))
    layer_s = costs.duration_s[:, :3] / costs.held[:, None]
    load_s = _begun_s(costs, left, layer_s)
    holders = [np.flatnonzero(held) for held in costs.holds.T]
    free = FreeWork(
        len(costs.length),
        form.ints(costs.owner),
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
    found = np.zeros(costs.workers)
    np.add.at(found, costs.owner, layers * layer_s[:, 1:].sum(axis=1) + whole * costs.duration_s[:, 2])
    return found


def _fair_s(
    costs: CrewCosts, kinds: NDArray[np.int64], load_s: NDArray[np.float64], layer_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Up to how much work of each worker all workers of a component have the same, if work could be cut at will."""
    component, seats = costs.component, np.bincount(costs.owner)
    usual_s = np.maximum(layer_s.mean(axis=0), TINY)
    share = np.stack((kinds & 1 > 0, kinds & 2 > 0, kinds & 6 == 6), axis=-1) @ (usual_s / usual_s.sum())
    layers = np.zeros(component.max() + 1)
    np.add.at(layers, component[costs.has.argmax(axis=0)], (share * costs.length).sum(axis=0))
    each_s = np.zeros(costs.workers)
    np.add.at(each_s, costs.owner, layer_s.sum(axis=1))
    each_s = np.maximum(each_s / seats, TINY)
    speed, begun = np.zeros(len(layers)), np.zeros(len(layers))
    np.add.at(speed, component, 1 / each_s)
    np.add.at(begun, component, load_s / each_s)
    found: NDArray[np.float64] = ((layers + begun) / speed)[component] * (1 + ROUNDING)
    return found


def homes(crew: Crew, costs: CrewCosts) -> NDArray[np.int64]:
    """The seat of what a micro-batch's own pipeline holds: micro-batches x pieces, NOBODY where its worker is dead."""
    found = np.full((len(crew.plan.pipelines), len(costs.length)), NOBODY, dtype=np.int64)
    for seat, worker in enumerate(costs.owner.tolist()):
        found[costs.pipeline[worker], costs.first[seat] : costs.stop[seat]] = seat
    own: NDArray[np.int64] = found[costs.origin]
    return own
