"""A lower bound of what is left: no order and no routing takes less. What is under way stays with its worker.

Take cells: a micro-batch in a piece of layers. Whoever does it, an operation of a cell lasts no less than at the
fastest worker that holds the piece; it cannot start before its head, the longest chain of operations and delays that
must come first; and its tail is what must follow, the sums of gradients and the step included. Nothing is over before

* a head, its operation and its tail: the longest chain;
* for workers that share work: the least head of some operations, then these, divided among all who could do them, and
  the least tail of them, for all operations with a head, and a tail, of at least something;
* for n cells of a piece and k workers: the work of the least of them, of which somebody has at least n / k, rounded up;
* for one worker: what it has begun, between the least head and the least tail of that.

The argument is that of `scheduling/lower_bound.py`, where more than one worker can do an operation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..scheduling.problem import least_halves_s
from .remaining import ACTIVATION, GRADIENT, NOBODY

if TYPE_CHECKING:
    from .costs import CrewCosts, Floats
    from .crew import Crew
    from .remaining import Flags, Ints, Remaining

MOST_THRESHOLDS = 24  # of heads, and of tails


@dataclass(frozen=True, eq=False)
class _Least:
    """Of each piece, the least over the workers that hold it, in s.

    Attributes:
        forward_s, input_s, weight_s: what F, I and W take.
        backward_s: what passes until the gradient is there: I, or B.
        hop_s: what a message takes over the boundary before the piece.
        after_s: what follows its last operation.
    """

    forward_s: Floats
    input_s: Floats
    weight_s: Floats
    backward_s: Floats
    hop_s: Floats
    after_s: Floats


@dataclass(frozen=True, eq=False)
class _Table:
    """Operations of cells; arrays.

    Attributes:
        piece, microbatch: of which cell.
        seat: where it is begun, or NOBODY.
        head_s, lasts_s, tail_s: as above; the tail is what follows its end.
    """

    piece: Ints
    microbatch: Ints
    seat: Ints
    head_s: Floats
    lasts_s: Floats
    tail_s: Floats

    @classmethod
    def of(cls, costs: CrewCosts, left: Remaining, least: _Least) -> _Table:
        """All that is left."""
        heads_s, tails_s = _heads(left, least), _tails(left, least)
        alone = _cells(costs, left.weights)
        rows = []
        for kind, has in enumerate((left.forward, left.backward, left.backward & left.counts)):
            piece, microbatch = np.nonzero(has)
            at = piece, microbatch
            lasts_s = (least.forward_s, least.input_s, least.weight_s)[kind][piece]
            head_s = heads_s[1][at] + least.input_s[piece] if kind == 2 else heads_s[kind][at]
            tail_s = least.after_s[piece] if kind == 2 else tails_s[kind][at] - lasts_s
            rows.append((piece, microbatch, left.stash[at], head_s, lasts_s, tail_s))
        own_s = least.weight_s[alone[:, 0]], least.after_s[alone[:, 0]]
        rows.append((*alone.T, np.zeros(len(alone)), *own_s))
        return cls(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _cells(costs: CrewCosts, weights: Ints) -> Ints:
    """The cells of stashes after I: (piece, micro-batch, seat), an array of n x 3."""
    seat, microbatch = weights[:, 0], weights[:, 1]
    counts = (costs.stop - costs.first)[seat]
    before = np.repeat(np.cumsum(counts) - counts, counts)
    piece = np.repeat(costs.first[seat], counts) + np.arange(len(before)) - before
    return np.stack((piece, np.repeat(microbatch, counts), np.repeat(seat, counts)), axis=1)


def bound_s(crew: Crew, costs: CrewCosts, left: Remaining) -> float:
    """The bound, in s; arguments as those of `operations_of`."""
    halves_s = least_halves_s(*costs.duration_s.T[1:])  # whether backwards are split or not
    costs = replace(costs, duration_s=np.stack((costs.duration_s[:, 0], *halves_s, costs.duration_s[:, 3]), axis=1))
    least = _least(crew, costs)
    table = _Table.of(costs, left, least)
    found = [
        costs.step_s,
        float((table.head_s + table.lasts_s + table.tail_s).max(initial=0.0)),
        _begun_s(costs, table),
    ]
    for pieces in _shared(costs):
        mine = pieces[table.piece]
        speed = _speed(costs, least, pieces)
        found.append(_shared_s(table.head_s[mine], table.lasts_s[mine] / speed, table.tail_s[mine]))
    found += [_counted_s(table, piece, workers) for piece, workers in enumerate(costs.has.sum(axis=0).tolist())]
    return max(found)


def _shared(costs: CrewCosts) -> Flags:
    """Which pieces some workers share: those of each seat, of each worker, and of each component; sets x pieces."""
    components = np.zeros((int(costs.component.max()) + 1, len(costs.length)), dtype=np.bool_)
    np.logical_or.at(components, costs.component, costs.has)
    found: Flags = np.unique(np.concatenate((costs.holds, costs.has, components)), axis=0)
    return found


def _least(crew: Crew, costs: CrewCosts) -> _Least:
    holds = costs.holds
    share = costs.length / costs.held[:, None]

    def over_holders(values_s: Floats) -> Floats:
        least_s: Floats = np.where(holds, values_s, np.inf).min(axis=0)
        return least_s

    forward_s, input_s, weight_s, whole_s = (costs.duration_s[:, [kind]] * share for kind in range(4))
    joint = (costs.has[:, 1:] & costs.has[:, :-1]).any(axis=0)
    hop_s = np.minimum(costs.inside_s.min(axis=0), costs.between_s.min(axis=0))[:-1]
    hop_s[1:][joint] = 0.0
    return _Least(
        over_holders(forward_s),
        over_holders(input_s),
        over_holders(weight_s),
        over_holders(np.where(np.array(crew.splits)[costs.owner, None], input_s, whole_s)),
        hop_s,
        over_holders(np.broadcast_to(costs.following_s[costs.owner, None], holds.shape)),
    )


def _heads(left: Remaining, least: _Least) -> tuple[Floats, Floats]:
    """Before each F, and before each I or B, pieces x micro-batches."""
    kept, pieces = left.kept, len(left.forward)
    forward_s, backward_s = np.zeros(left.forward.shape), np.zeros(left.forward.shape)
    for piece in range(1, pieces):
        passed_s = forward_s[piece - 1] + least.forward_s[piece - 1] + least.hop_s[piece]
        forward_s[piece] = np.where(kept[ACTIVATION, piece], 0.0, passed_s)
    for piece in reversed(range(pieces)):
        own_s = np.where(left.forward[piece], forward_s[piece] + least.forward_s[piece], 0.0)
        if piece + 1 < pieces:
            passed_s = backward_s[piece + 1] + least.backward_s[piece + 1] + least.hop_s[piece + 1]
            own_s = np.maximum(own_s, np.where(kept[GRADIENT, piece + 1], 0.0, passed_s))
        backward_s[piece] = own_s
    return forward_s, backward_s


def _tails(left: Remaining, least: _Least) -> tuple[Floats, Floats]:
    """From the start of each F, and of each I or B, pieces x micro-batches."""
    kept, pieces = left.kept, len(left.forward)
    forward_s, backward_s = np.zeros(left.forward.shape), np.zeros(left.forward.shape)
    for piece in range(pieces):
        own_s = least.input_s[piece] + np.where(left.counts[piece], least.weight_s[piece], 0.0) + least.after_s[piece]
        if piece > 0:
            passes = left.backward[piece - 1] & ~kept[GRADIENT, piece]
            passed_s = least.backward_s[piece] + least.hop_s[piece] + backward_s[piece - 1]
            own_s = np.maximum(own_s, np.where(passes, passed_s, 0.0))
        backward_s[piece] = own_s
    for piece in reversed(range(pieces)):
        next_s = np.where(left.backward[piece], backward_s[piece], least.after_s[piece])
        if piece + 1 < pieces:
            passes = left.forward[piece + 1] & ~kept[ACTIVATION, piece + 1]
            next_s = np.maximum(next_s, np.where(passes, least.hop_s[piece + 1] + forward_s[piece + 1], 0.0))
        forward_s[piece] = least.forward_s[piece] + next_s
    return forward_s, backward_s


def _speed(costs: CrewCosts, least: _Least, pieces: Flags) -> float:
    """How many of the fastest workers all those are worth who hold any of these pieces, at most."""
    share = costs.length[pieces] / costs.held[:, None]
    fastest = np.zeros(costs.workers)
    for kind, least_s in enumerate((least.forward_s, least.input_s, least.weight_s)):
        own_s = np.maximum(costs.duration_s[:, [kind]] * share, np.finfo(np.float64).tiny)
        speed = np.where(costs.holds[:, pieces], least_s[pieces] / own_s, 0.0)
        if least_s[pieces].max() > 0:
            np.maximum.at(fastest, costs.owner, speed.max(axis=1))
    return max(float(fastest.sum()), 1.0)


def _shared_s(head_s: Floats, lasts_s: Floats, tail_s: Floats) -> float:
    """What those who share operations need, each of which takes all of them so long."""
    if not len(head_s):
        return 0.0
    heads, tails = _thresholds(head_s), _thresholds(tail_s)
    work_s = np.zeros((len(heads), len(tails)))
    at = np.searchsorted(heads, head_s, side="right") - 1, np.searchsorted(tails, tail_s, side="right") - 1
    np.add.at(work_s, at, lasts_s)
    work_s = work_s[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    return float(np.where(work_s > 0, heads[:, None] + work_s + tails, 0.0).max())


def _thresholds(values_s: Floats) -> Floats:
    """Some values from the least one on, all of them where they are few."""
    found: Floats = np.unique(values_s)
    return found if len(found) <= MOST_THRESHOLDS else found[:: len(found) // MOST_THRESHOLDS + 1]


def _counted_s(table: _Table, piece: int, workers: int) -> float:
    """What somebody needs who has at least his share of the cells of a piece."""
    mine = table.piece == piece
    if not mine.any():
        return 0.0
    _, cell = np.unique(table.microbatch[mine], return_inverse=True)
    size_s = np.sort(np.bincount(cell, weights=table.lasts_s[mine]))[::-1]
    before_s = np.concatenate(([0.0], np.cumsum(size_s)))
    count = np.arange(1, (len(size_s) - 1) // workers + 2)  # of the first (count - 1) * workers + 1, so many are one's
    last = (count - 1) * workers + 1
    most_s = float((before_s[last] - before_s[last - count]).max())
    return float(table.head_s[mine].min() + most_s + table.tail_s[mine].min())


def _begun_s(costs: CrewCosts, table: _Table) -> float:
    """What somebody needs for what he has begun, as if he were the fastest."""
    begun = table.seat != NOBODY
    if not begun.any():
        return 0.0
    worker = costs.owner[table.seat[begun]]
    work_s, head_s, tail_s = (np.zeros(costs.workers), *(np.full(costs.workers, np.inf) for _ in range(2)))
    np.add.at(work_s, worker, table.lasts_s[begun])
    np.minimum.at(head_s, worker, table.head_s[begun])
    np.minimum.at(tail_s, worker, table.tail_s[begun])
    return float((head_s + work_s + tail_s)[np.isfinite(head_s)].max())
