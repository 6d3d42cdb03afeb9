"""The operations of what is left, once it is known who does what: where their messages come from, and what they take.

Consecutive pieces of a micro-batch that one worker does alike, at one of its seats, are a **unit**: it has F, I and W
of the same layers, or F and B, or some of these. Units stand by micro-batch, then by layers; so do their operations, F
before I before W. A stash after I is a unit of W alone, behind all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .remaining import ACTIVATION, GRADIENT

if TYPE_CHECKING:
    from .costs import CrewCosts, Floats
    from .crew import Crew
    from .remaining import Flags, Ints, KeptMessages, Remaining

F, I, W, B = 0, 1, 2, 3  # noqa: E741 - the field's letters
NONE = -1


@dataclass(frozen=True, eq=False)
class Units:
    """Arrays over the units.

    Attributes:
        seat, microbatch: where what is done.
        first, stop: of which pieces.
        counts: whether it goes into the sums.
        forward, backward, weight: the number of its F, of its I or B, and of its W; NONE where it has none.
    """

    seat: Ints
    microbatch: Ints
    first: Ints
    stop: Ints
    counts: Flags
    forward: Ints
    backward: Ints
    weight: Ints


@dataclass(frozen=True, eq=False)
class Sends:
    """Messages that are sent again, arrays of as many: as `KeptMessages`, and the operation that takes it."""

    source: Ints
    kind: Ints
    boundary: Ints
    microbatch: Ints
    taker: Ints


@dataclass(frozen=True, eq=False)
class OperationTable:
    """Arrays over the operations.

    Attributes:
        units: to which they belong.
        unit, kind: of each, the unit, and F, I, W or B.
        worker: who runs it.
        maker: the operation whose message it takes; NONE where that is there, or none is needed.
        ahead: the operation of the same worker that comes first in any case; NONE.
        sends: what is sent again.
        delay_s: of the message from the maker.
        ready_s: when it can start as far as messages go that are sent again.
        duration_s: how long it takes.
        takes_bytes, leaves_bytes: what it adds to its worker's memory when it starts, and when it ends (less than 0).
    """

    units: Units
    unit: Ints
    kind: Ints
    worker: Ints
    maker: Ints
    ahead: Ints
    sends: Sends
    delay_s: Floats
    ready_s: Floats
    duration_s: Floats
    takes_bytes: Floats
    leaves_bytes: Floats


def operations_of(crew: Crew, costs: CrewCosts, left: Remaining, executor: Ints) -> OperationTable:
    """The operations.

    Args:
        crew: the workers.
        costs: theirs.
        left: what is left.
        executor: the seats at which it is done, micro-batches x pieces.
    """
    splits = np.array(crew.splits)[costs.owner]
    units, unit_at = _units(splits, costs, left, executor)
    unit, kind = _kinds(splits, units)
    seat, worker = units.seat[unit], costs.owner[units.seat[unit]]
    maker, sends = _messages(costs, left.held, units, unit_at, worker)
    share = costs.share(seat, units.first[unit], units.stop[unit])
    activation, stash = costs.bytes[seat, 0] * share, costs.bytes[seat, 1] * share
    is_alone = (kind == F) & (units.backward[unit] == NONE)
    keeps = (kind == I) & (units.weight[unit] != NONE)
    return OperationTable(
        units,
        unit,
        kind,
        worker,
        maker,
        _ahead(units, unit, kind),
        sends,
        *_times_s(costs, units, unit, kind, maker, sends),
        takes_bytes=np.where(kind == F, activation, 0.0),
        leaves_bytes=np.select(
            [is_alone, kind == F, kind == W], [-activation, 0.0, -stash], np.where(keeps, stash, 0.0) - activation
        ),
    )


def at_costs(costs: CrewCosts, table: OperationTable) -> OperationTable:
    """The same operations where they, and messages, take other times."""
    times_s = _times_s(costs, table.units, table.unit, table.kind, table.maker, table.sends)
    delay_s, ready_s, duration_s = times_s
    return replace(table, delay_s=delay_s, ready_s=ready_s, duration_s=duration_s)


def _times_s(
    costs: CrewCosts, units: Units, unit: Ints, kind: Ints, maker: Ints, sends: Sends
) -> tuple[Floats, Floats, Floats]:
    """What messages from makers take; when operations can start by what is sent again; and how long they take."""
    seat, worker = units.seat[unit], costs.owner[units.seat[unit]]
    delay_s, ready_s = np.zeros(len(unit)), np.zeros(len(unit))
    made = np.flatnonzero(maker != NONE)
    boundary = np.where(kind == F, units.first[unit], units.stop[unit])[made]
    delay_s[made] = costs.delay_s(units.microbatch[unit[made]], boundary, worker[maker[made]], worker[made])
    ready_s[sends.taker] = costs.delay_s(sends.microbatch, sends.boundary, sends.source, worker[sends.taker])
    share = costs.share(seat, units.first[unit], units.stop[unit])
    return delay_s, ready_s, costs.duration_s[seat, kind] * share


def _units(splits: Flags, costs: CrewCosts, left: Remaining, executor: Ints) -> tuple[Units, Ints]:
    """The units, and which one has each cell, micro-batches x pieces; `splits`: of each seat, whether I and W are."""
    forward, backward, counts = left.forward.T, left.backward.T, left.counts.T
    alike = np.where(forward | backward, 8 * (executor + 1) + forward + 2 * backward + 4 * counts, 0)
    begins = alike > 0
    begins[:, 1:] &= alike[:, 1:] != alike[:, :-1]
    unit_at = np.where(alike > 0, np.cumsum(begins.ravel()).reshape(begins.shape) - 1, NONE)
    microbatch, first = np.nonzero(begins)
    length = np.bincount(unit_at[unit_at != NONE], minlength=len(first))
    stashed = left.weights

    def column(own: Ints | Flags, of_stashes: Ints) -> Ints:
        return np.concatenate((own.astype(np.int64), of_stashes))

    nothing = np.zeros(len(stashed), dtype=np.int64)
    seat = column(executor[microbatch, first], stashed[:, 0])
    has_forward = column(forward[microbatch, first], nothing) > 0
    has_backward = column(backward[microbatch, first], nothing) > 0
    does_count = column(counts[microbatch, first], nothing + 1) > 0
    has_weight = does_count & splits[seat] & has_backward
    has_weight[len(first) :] = True
    stop = np.cumsum(0 + has_forward + has_backward + has_weight)
    start = stop - has_forward - has_backward - has_weight
    return Units(
        seat,
        column(microbatch, stashed[:, 1]),
        column(first, costs.first[stashed[:, 0]]),
        column(first + length, costs.stop[stashed[:, 0]]),
        does_count,
        np.where(has_forward, start, NONE),
        np.where(has_backward, start + has_forward, NONE),
        np.where(has_weight, stop - 1, NONE),
    ), unit_at


def _kinds(splits: Flags, units: Units) -> tuple[Ints, Ints]:
    """Of each operation, its unit and its kind."""
    columns = (units.forward, units.backward, units.weight)
    count = sum(int((column != NONE).sum()) for column in columns)
    unit, kind = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for letter, column in zip((F, I, W), columns, strict=True):
        has = np.flatnonzero(column != NONE)
        unit[column[has]] = has
        kind[column[has]] = letter
    return unit, np.where((kind == I) & ~splits[units.seat[unit]], B, kind)


def _ahead(units: Units, unit: Ints, kind: Ints) -> Ints:
    """What comes first at the same worker: F before I, I before W; and W of a stash before the same is done again."""
    found = np.where((kind == I) | (kind == B), units.forward[unit], NONE)
    found[kind == W] = units.backward[unit[kind == W]]
    stashes = np.flatnonzero((units.weight != NONE) & (units.backward == NONE))
    if len(stashes):
        pairs = zip(units.seat[stashes].tolist(), units.microbatch[stashes].tolist(), strict=True)
        weight_of = dict(zip(pairs, units.weight[stashes].tolist(), strict=True))
        for number in np.flatnonzero(~units.counts).tolist():
            pair = int(units.seat[number]), int(units.microbatch[number])
            found[units.forward[number]] = weight_of.get(pair, NONE)
    return found


def _messages(costs: CrewCosts, held: KeptMessages, units: Units, unit_at: Ints, worker: Ints) -> tuple[Ints, Sends]:
    """Who makes the message that each operation takes, and what is sent again instead."""
    pieces, microbatches = unit_at.shape[1], len(unit_at)
    taker = np.full((2, pieces + 1, microbatches), NONE, dtype=np.int64)
    forward = np.flatnonzero((units.forward != NONE) & (units.first > 0))
    backward = np.flatnonzero((units.backward != NONE) & (units.stop < pieces))
    taker[ACTIVATION, units.first[forward], units.microbatch[forward]] = units.forward[forward]
    taker[GRADIENT, units.stop[backward], units.microbatch[backward]] = units.backward[backward]
    takes = taker[held.kind, held.boundary, held.microbatch]
    has = np.zeros(len(worker), dtype=np.bool_)
    taken = np.flatnonzero(takes != NONE)
    has[takes[taken[worker[takes[taken]] == held.worker[taken]]]] = True
    other = taken[~has[takes[taken]]]
    columns = held.worker[other], held.kind[other], held.boundary[other], held.microbatch[other], takes[other]
    sends = _soonest(costs, Sends(*columns), worker)
    has[sends.taker] = True
    maker = np.full(len(worker), NONE, dtype=np.int64)
    below = forward[~has[units.forward[forward]]]
    maker[units.forward[below]] = units.forward[unit_at[units.microbatch[below], units.first[below] - 1]]
    above = backward[~has[units.backward[backward]]]
    maker[units.backward[above]] = units.backward[unit_at[units.microbatch[above], units.stop[above]]]
    return maker, sends


def _soonest(costs: CrewCosts, found: Sends, worker: Ints) -> Sends:
    """Of several who could send a message again, the one from whom it arrives first."""
    delay_s = costs.delay_s(found.microbatch, found.boundary, found.source, worker[found.taker])
    order = np.lexsort((found.source, delay_s, found.taker))
    _, first = np.unique(found.taker[order], return_index=True)
    best = order[first]
    return Sends(found.source[best], found.kind[best], found.boundary[best], found.microbatch[best], found.taker[best])
