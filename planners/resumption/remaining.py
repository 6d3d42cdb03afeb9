"""What is left of an iteration: per layer and micro-batch, whatever worker does it (notes/midway.md, section 3).

Workers have a seat for each virtual stage that they hold. Layers that no stage, no sealed sum and nothing that somebody
has tells apart are a **piece**. Arrays are of pieces x micro-batches, or of boundaries x micro-batches, where boundary
n is before piece n.

Every layer is to see every micro-batch once. What is in a part of a sum that is kept is done, and so is what a sealed
sum has. Of the rest some is under way at a worker (a stash), which finishes it. Everything else needs F and I, and
whatever these need: the activation before it and the gradient behind it, of which somebody has kept a copy, or which is
computed again by layers that are done already. That is the **stretch**: one pass upwards, for who needs a gradient
needs I of the layers above, and then one downwards, for I needs F, and F needs the layers below.

Where we deviate from the note: a stash after F whose output nobody has kept is given up once somebody needs that, for
its F is to be done again anyway; and what is needed again of layers whose stash is after I is computed apart from it.
What a worker has of layers that share parameters is in one sum: it keeps all of it, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers
from ...schemas.resumption import MessageKind, layer_runs, layers_in
from .crew import Crew

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

NOBODY = -1
ACTIVATION, GRADIENT = 0, 1
MESSAGE_KINDS: tuple[MessageKind, MessageKind] = ("activation", "gradient")


@dataclass(frozen=True, eq=False)
class KeptMessages:
    """All messages that somebody keeps, in the order of the workers: arrays of as many entries.

    Attributes:
        worker: who has it.
        kind: ACTIVATION or GRADIENT.
        boundary: before which piece.
        microbatch: its global number.
    """

    worker: Ints
    kind: Ints
    boundary: Ints
    microbatch: Ints


@dataclass(frozen=True, eq=False)
class Remaining:
    """What is left.

    Attributes:
        cuts: the layers at which pieces begin, ascending, and the number of layers.
        forward, backward: where F, and I, are needed.
        counts: where what is computed goes into the sums; elsewhere it is computed again, for the messages.
        stash: the seat that has a stash after F, from which its I and W follow; else NOBODY.
        weights: of stashes after I, of which W is left: (seat, micro-batch), an array of n x 2.
        given_up: of each worker, the layers whose own part of the sums it drops.
        held: the messages that there are.
        kept: which ones these are: kinds x boundaries x micro-batches.
    """

    cuts: tuple[int, ...]
    forward: Flags
    backward: Flags
    counts: Flags
    stash: Ints
    weights: Ints
    given_up: tuple[tuple[Layers, ...], ...]
    held: KeptMessages
    kept: Flags


def remaining(crew: Crew, sealed: Sequence[Layers]) -> Remaining:
    """What is left once some layers are sealed.

    Raises:
        InvalidInputError: a standing has what its worker cannot have, or what another one has, too.
    """
    torn = _torn(crew, layers_in(sealed))
    cuts = _cuts(crew, (*sealed, *layer_runs(chain.from_iterable(torn.values()))))
    place = {layer: number for number, layer in enumerate(cuts)}
    left = np.ones((len(cuts) - 1, crew.microbatches), dtype=np.bool_)
    for first, stop in sealed:
        left[place[first] : place[stop]] = False
    ledger, stashes, held = _Ledger(crew, place), _Stashes(crew, place), _held(crew, place)
    drops = np.zeros((len(crew.workers), len(left)), dtype=np.bool_)
    for number, layers in torn.items():
        drops[number] = np.isin(cuts[:-1], list(layers))
    drops[stashes.polluted(~stashes.stays)] = True
    fits = stashes.fit(left & ~ledger.done(drops), drops)
    drops[stashes.polluted(~fits)] = True  # more is left of these, so what fits still does
    todo = left & ~ledger.done(drops)
    fits[stashes.after_input & _any(drops)[stashes.worker]] = False
    return _stretched(cuts, todo, stashes.only(fits), held, _given_up(crew, cuts, drops, sealed))


def _given_up(
    crew: Crew, cuts: Sequence[int], drops: Flags, sealed: Sequence[Layers]
) -> tuple[tuple[Layers, ...], ...]:
    """The layers of each worker whose own part of the sums it drops, of those that it goes on with."""
    found: list[tuple[Layers, ...]] = [()] * len(crew.workers)
    ended = layers_in(sealed)
    for number in np.flatnonzero(_any(drops)).tolist():
        dropped = layers_in((cuts[n], cuts[n + 1]) for n in np.flatnonzero(drops[number]).tolist())
        found[number] = layer_runs((dropped & crew.kept[number]) - ended)
    return tuple(found)


def _torn(crew: Crew, sealed: frozenset[int]) -> dict[int, set[int]]:
    """Layers that workers keep, but not others which share parameters with them: in their sums is a part of those."""
    found = {}
    for number, standing in enumerate(crew.standings):
        if standing.layers is None or not standing.ties or crew.stays(number):
            continue
        kept = crew.kept[number] - sealed
        lost = layers_in(standing.holds) - sealed - kept
        torn, before = set(lost), -1
        while len(torn) != before:
            before = len(torn)
            torn.update(chain.from_iterable(tie.layers for tie in standing.ties if torn.intersection(tie.layers)))
        if torn & kept:
            found[number] = torn & kept
    return found


def _cuts(crew: Crew, sealed: Sequence[Layers]) -> tuple[int, ...]:
    """Where pieces begin, and the number of layers."""
    found = {0, crew.layers}
    found.update(chain.from_iterable({seat.costs.layers for seat in crew.seats}))
    found.update(chain.from_iterable(sealed))
    for standing in crew.standings:
        found.update(chain.from_iterable([entry.layers for entry in standing.ledger]))
        found.update([one.boundary for one in standing.messages])
    if min(found) < 0 or max(found) > crew.layers:
        raise InvalidInputError(f"a standing has layers that a model of {crew.layers} has not", where="/standings")
    return tuple(sorted(found))


def _spread(crew: Crew, heads: Sequence[tuple[int, ...]], numbers: Sequence[tuple[int, ...]]) -> tuple[Ints, ...]:
    """Columns of heads, each as often as there are micro-batches that go with it, and these.

    Args:
        crew: whose standings they are from.
        heads: of equal length.
        numbers: the micro-batches that go with each head.
    """
    counts = [len(own) for own in numbers]
    flat = np.fromiter(chain.from_iterable(numbers), dtype=np.int64, count=sum(counts))
    if flat.size and (flat.min() < 0 or flat.max() >= crew.microbatches):
        raise InvalidInputError(f"a standing has micro-batches beyond {crew.microbatches}", where="/standings")
    columns = np.repeat(np.array(heads, dtype=np.int64).reshape(len(heads), -1), counts, axis=0)
    return (*columns.T, flat)


class _Ledger:
    """The own parts of the sums over layers that their workers keep."""

    def __init__(self, crew: Crew, place: dict[int, int]) -> None:
        heads, numbers = [], []
        for worker, standing in enumerate(crew.standings):
            is_same = crew.stays(worker)
            for entry in standing.ledger:
                _check_held(crew, worker, entry.layers)
                own = range(*entry.layers)
                for first, stop in (entry.layers,) if is_same else layer_runs(crew.kept[worker].intersection(own)):
                    for piece in range(place[first], place[stop]):
                        heads.append((worker, piece))
                        numbers.append(entry.microbatches)
        self._shape = len(place) - 1, crew.microbatches
        if heads:
            self._worker, self._piece, microbatch = _spread(crew, heads, numbers)
            self._cell = self._piece * crew.microbatches + microbatch
            if np.bincount(self._cell).max() > 1:
                raise InvalidInputError("two parts of a sum have the same micro-batch", where="/standings")
        else:
            self._worker = self._piece = self._cell = np.zeros(0, dtype=np.int64)

    def done(self, drops: Flags) -> Flags:
        """What is done, where some workers drop their parts of some pieces."""
        found = np.zeros(self._shape, dtype=np.bool_)
        found.ravel()[self._cell[~drops[self._worker, self._piece]]] = True
        return found


def _check_held(crew: Crew, worker: int, layers: Layers) -> None:
    if not any(first <= layers[0] and layers[1] <= stop for first, stop in crew.standings[worker].holds):
        raise InvalidInputError(
            f"{crew.standings[worker].worker} has gradients of layers {list(layers)}, of which it does not hold all",
            where="/standings",
        )


def _any(drops: Flags) -> Flags:
    """Which workers drop something."""
    found: Flags = drops.sum(axis=1) > 0
    return found


class _Stashes:
    """What is under way at workers; arrays with an entry for each micro-batch of a worker.

    Attributes:
        worker, microbatch: which.
        after_input: whether I is done, too, and with it a part of the gradients in the worker's sums.
        seat: of the worker, of whose layers it is, if it `stays`.
        first, stop: the pieces of these.
        stays: whether the worker will hold what it held, cut as it was there.
    """

    def __init__(self, crew: Crew, place: dict[int, int]) -> None:
        heads, numbers = [], []
        for worker, standing in enumerate(crew.standings):
            is_same = crew.stays(worker)
            for stash in standing.stashes:
                seat = crew.seat_of.get((worker, standing.stashed(stash))) if is_same else None
                first, stop = (0, 0) if seat is None else crew.seats[seat].costs.layers
                flags = int(stash.after == "I"), int(seat is not None)
                heads.append((worker, seat or 0, place[first], place[stop], *flags))
                numbers.append(stash.microbatches)
        columns = _spread(crew, heads, numbers) if heads else (np.zeros(0, dtype=np.int64),) * 7
        self.worker, self.seat, self.first, self.stop, after_input, stays, self.microbatch = columns
        self.after_input: Flags = after_input > 0
        self.stays: Flags = stays > 0
        self._workers = len(crew.workers)

    def polluted(self, dropped: Flags) -> Flags:
        """The workers whose sums have a part of what is not finished where some stashes are dropped."""
        found = np.zeros(self._workers, dtype=np.bool_)
        found[self.worker[dropped & self.after_input]] = True
        return found

    def fit(self, todo: Flags, drops: Flags) -> Flags:
        """Which of them can be finished: all their layers are still to do, and nobody else finishes them.

        Args:
            todo: what is to be done.
            drops: of which pieces workers drop their parts of the sums, and with these what their I have done.
        """
        before = np.zeros((len(todo) + 1, todo.shape[1]), dtype=np.int64)
        np.cumsum(todo, axis=0, out=before[1:])
        there = before[self.stop, self.microbatch] - before[self.first, self.microbatch]
        fits: Flags = self.stays & (there == self.stop - self.first)
        fits[self.after_input & _any(drops)[self.worker]] = False
        taken = np.zeros_like(before)
        np.add.at(taken, (self.first[fits], self.microbatch[fits]), 1)
        np.add.at(taken, (self.stop[fits], self.microbatch[fits]), -1)
        if (np.cumsum(taken, axis=0) > 1).any():
            self._leave_one(fits)
        return fits

    def _leave_one(self, fits: Flags) -> None:
        """Of stashes of the same, leave that which is furthest, or that of the first worker."""
        taken: set[tuple[int, int]] = set()
        for number in sorted(np.flatnonzero(fits).tolist(), key=lambda at: (not self.after_input[at], at)):
            own = {(piece, int(self.microbatch[number])) for piece in range(self.first[number], self.stop[number])}
            fits[number] = taken.isdisjoint(own)
            if fits[number]:
                taken |= own

    def only(self, fits: Flags) -> _Fitting:
        """Those that are finished."""
        columns = self.seat, self.microbatch, self.first, self.stop
        seat, microbatch, first, stop = (column[fits] for column in columns)
        return _Fitting(seat, microbatch, first, stop, self.after_input[fits])


@dataclass(frozen=True, eq=False)
class _Fitting:
    """Stashes that are finished; arrays as those of `_Stashes`."""

    seat: Ints
    microbatch: Ints
    first: Ints
    stop: Ints
    after_input: Flags

    def table(self, shape: tuple[int, ...], after_input: bool) -> Ints:
        """Who has a stash after I, or after F; else NOBODY. Pieces x micro-batches."""
        found = np.full(shape, NOBODY, dtype=np.int64)
        mine = self.after_input == after_input
        columns = self.seat[mine], self.microbatch[mine], self.first[mine], self.stop[mine]
        seat, microbatch, first, stop = columns
        for piece in range(shape[0]):
            here = (first <= piece) & (piece < stop)
            found[piece, microbatch[here]] = seat[here]
        return found

    @property
    def weights(self) -> Ints:
        """(seat, micro-batch) of those after I."""
        return np.stack((self.seat, self.microbatch), axis=1)[self.after_input]


def _held(crew: Crew, place: dict[int, int]) -> KeptMessages:
    rows = [(worker, one) for worker, standing in enumerate(crew.standings) for one in standing.messages]
    heads = [(worker, int(one.kind == "gradient"), place[one.boundary]) for worker, one in rows]
    numbers = [one.microbatches for _, one in rows]
    if not heads:
        nothing = np.zeros(0, dtype=np.int64)
        return KeptMessages(nothing, nothing, nothing, nothing)
    return KeptMessages(*_spread(crew, heads, numbers))


def _stretched(
    cuts: tuple[int, ...], todo: Flags, stashes: _Fitting, held: KeptMessages, given_up: tuple[tuple[Layers, ...], ...]
) -> Remaining:
    """All that has to be computed so that what is to do can be done."""
    pieces = len(todo)
    kept = np.zeros((2, pieces + 1, todo.shape[1]), dtype=np.bool_)
    kept[held.kind, held.boundary, held.microbatch] = True
    waits_for_weight = stashes.table(todo.shape, after_input=True) != NOBODY
    stash = stashes.table(todo.shape, after_input=False)
    counts = todo & ~waits_for_weight
    backward = counts.copy()
    for piece in range(pieces - 1):
        backward[piece + 1] |= backward[piece] & ~kept[GRADIENT, piece + 1]
    forward = backward & (stash == NOBODY)
    for piece in range(pieces - 1, 0, -1):
        needed = forward[piece] & ~kept[ACTIVATION, piece]
        lost = np.flatnonzero(needed & (stash[piece - 1] != NOBODY))
        for microbatch in lost.tolist():
            own = stash[:, microbatch] == stash[piece - 1, microbatch]
            stash[own, microbatch] = NOBODY
            forward[own, microbatch] = True
        forward[piece - 1] |= needed
    return Remaining(cuts, forward, backward, counts, stash, stashes.weights, given_up, held, kept)
