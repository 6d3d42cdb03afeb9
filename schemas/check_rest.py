"""The independent checker of what is left of an iteration: does a Rest do every micro-batch once, and can it?

It shares no code with the planner of rests: operations are columns (rest_columns.py), completeness is counting in a
table of layers x micro-batches, and times come in waves, as those of plans do (check.py). What the words mean is on
docs/semantics.md, "What is left of an iteration".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .check import (
    FORWARD,
    FULL,
    INPUT,
    ROUNDING,
    WEIGHT,
    RowTimes,
    Violation,
    check_plan,
    in_brief,
    is_close,
    makespan_of,
    order_path,
    propagate,
    sums_s,
)
from .check_standing import faults_of, print_ranges
from .errors import InvalidInputError
from .orders import KINDS, NONE
from .plan import Layers, Plan
from .quantities import print_apart, print_bytes, print_number, print_time
from .rest_columns import MESSAGE_KINDS, NOBODY, RestColumns, is_among, read_rest
from .resumption import Rest, RestOperation, Resumption, layer_runs, layers_in, parse_rest_order, seats_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

# Of one kind of mistake so many are named: what lacks one micro-batch often lacks it in every layer.
MOST_NAMED = 20
# Of a piece of work that is under way nothing, F or I was done last.
_NOTHING, _AFTER_F, _AFTER_I = range(3)


def check_resumption(resumption: Resumption) -> list[Violation]:
    """Check a plan and what is left of the iteration before it: `check_plan`, then `check_rest`.

    Args:
        resumption: one whose parts agree (`Resumption.validate`).
    """
    problems = [Violation(f"/plan{one.path}", one.message) for one in check_plan(resumption.plan)]
    return problems or [
        Violation(f"/rest{one.path}", one.message) for one in check_rest(resumption.plan, resumption.rest)
    ]


def require_valid_resumption(resumption: Resumption, source: str) -> None:
    """Raise InvalidInputError, naming `source` and the first problem, unless the resumption is valid."""
    problems = check_resumption(resumption)
    if problems:
        where = f"{source}, {problems[0].path}"
        raise InvalidInputError(in_brief(problems), where=where, fix="rtk verify lists every problem")


def check_rest(plan: Plan, rest: Rest) -> list[Violation]:
    """Check everything that an order of what is left promises.

    Standings that can be, and agree; the right seals, each copied to every holder that lacks it; every micro-batch
    once in the sums of every layer, be it done, sealed or to do; operations of layers that their worker holds, whose
    forward pass is there; for each its message, kept or made; no deadlock; memory under the limits; nothing computed or
    sent in vain; and that the prediction is what the orders give.

    Args:
        plan: the valid plan to follow.
        rest: of the iteration before which it could not wait.

    Returns:
        The problems found, most basic first, with JSON pointers into the rest. What builds on a broken promise is not
        judged.
    """
    rows = _read(plan, rest)
    if isinstance(rows, list):
        return rows
    case = _Case(rows)
    for judge in (_wrong_standings, _wrong_seals, _wrong_copies, _wrong_orders, _wrong_parts, _incomplete):
        problems = list(judge(case))
        if problems:
            return problems
    wiring = _wire(rows)
    if wiring.problems:
        return wiring.problems
    times = propagate(rows, wiring.maker, wiring.delay_s)
    if isinstance(times, Violation):
        return [times]
    return [*_in_vain(case, wiring), *_over_limit(case), *_wrong_prediction(case, times)]


class TimedStep(NamedTuple):
    """An operation of what is left, and when it is run.

    Attributes:
        own: the operation.
        start_s, end_s: of it, in s from the beginning of what is left.
        maker: the operation that makes its message: its live worker's number, and its place in that one's order.
        is_resent: whether its message was kept by another worker, who sends it again.
    """

    own: RestOperation
    start_s: float
    end_s: float
    maker: tuple[int, int] | None
    is_resent: bool


def timed_rest(plan: Plan, rest: Rest) -> list[list[TimedStep]]:
    """The operations of each live worker of a valid rest, with the times that `check_rest` judges by."""
    rows = read_rest(plan, rest)
    wiring = _wire(rows)
    times = propagate(rows, wiring.maker, wiring.delay_s)
    assert not isinstance(times, Violation), "what is left deadlocks"
    found: list[list[TimedStep]] = [[] for _ in rows.live]
    for row, (worker, start_s, end_s) in enumerate(
        zip(rows.worker.tolist(), times.start_s.tolist(), times.end_s.tolist(), strict=True)
    ):
        source = int(wiring.maker[row])
        maker = None if source == NONE else (int(rows.worker[source]), source - int(rows.first[rows.worker[source]]))
        found[worker].append(TimedStep(rows.operation(row), start_s, end_s, maker, bool(wiring.is_resent[row])))
    return found


@dataclass(frozen=True)
class _Case:
    """A rest and its plan, and what both together say."""

    rows: RestColumns

    @cached_property
    def sealed(self) -> frozenset[int]:
        """Layers whose sums have ended at a worker that has a place, with all sums of what they share."""
        standings = self.rows.standings
        ties = {tie.layers for standing in standings for tie in standing.ties}
        ended = {tie.layers for standing in standings for tie in standing.ties if tie.is_sealed}
        own = set(layers_in(run for standing in standings for run in standing.sealed))
        while True:
            broken = {layer for tie in ties if tie not in ended or not own.issuperset(tie) for layer in tie}
            if own.isdisjoint(broken):
                return frozenset(own)
            own -= broken

    @cached_property
    def held(self) -> tuple[frozenset[int], ...]:
        """The layers that each live worker holds."""
        return tuple(layers_in(self.rows.plan.layers_of(worker)) for worker in self.rows.live)

    def kept(self, number: int) -> frozenset[int]:
        """Layers, not sealed, whose part of the sums a live worker goes on with."""
        both = layers_in(self.rows.standings[number].holds) & self.held[number]
        return both - layers_in(self.rows.rest.workers[number].given_up) - self.sealed

    @cached_property
    def splits(self) -> Flags:
        """Whether the backward passes of each live worker are I and W, else B: of who has nothing, as in the plan."""
        return np.array([self._splits(number) for number in range(len(self.rows.live))], dtype=bool)

    def _splits(self, number: int) -> bool:
        standing = self.rows.standings[number]
        if standing.layers is not None and not standing.is_empty:
            return standing.splits
        kinds = set(self.rows.live[number].order or "") & {"I", "B"}
        return "I" in kinds if len(kinds) == 1 else standing.splits

    def stays(self, number: int, layers: Layers) -> bool:
        """Whether a live worker can go on with what is under way in some layers.

        It can if all its layers are the same, these are still a stage's, and none of them is sealed.
        """
        rows = self.rows
        if (number, layers) not in rows.seats.known or not self.sealed.isdisjoint(range(*layers)):
            return False
        return rows.standings[number].holds == rows.plan.layers_of(rows.live[number])

    @cached_property
    def groups(self) -> _Groups:
        """The pieces of work."""
        rows = self.rows
        under_way = [
            (number, microbatch, *layers, _AFTER_I if stash.after == "I" else _AFTER_F)
            for number, standing in enumerate(rows.standings)
            for stash in standing.stashes
            for layers in [standing.stashed(stash)]
            if self.stays(number, layers)
            for microbatch in stash.microbatches
        ]
        worker, microbatch, start, stop, after = np.array(under_way, dtype=np.int64).reshape(-1, 5).T
        stashed = rows.pieces(worker, microbatch, start, stop, np.ones_like(worker))
        order = np.argsort(rows.piece, kind="stable")
        piece, begins = np.unique(rows.piece[order], return_index=True)
        by = np.argsort(stashed)
        stashed, after = stashed[by], after[by]
        before = np.full(len(piece), _NOTHING)
        found = is_among(piece, stashed)
        before[found] = after[np.searchsorted(stashed, piece[found])]
        return _Groups(order, begins, np.diff(begins, append=len(order)), before)


@dataclass(frozen=True)
class _Groups:
    """The pieces of work that operations are of, with the operations of each in the order of execution.

    Attributes:
        order: rows, those of a piece together.
        begins, sizes: where each piece's rows begin in `order`, and how many they are; arrays of pieces.
        before: what was done last of each, in a stash.
    """

    order: Ints
    begins: Ints
    sizes: Ints
    before: Ints

    @cached_property
    def head(self) -> Ints:
        """The first row of each piece."""
        found: Ints = self.order[self.begins]
        return found

    def rows_of(self, group: int) -> list[int]:
        """All rows of a piece."""
        found: list[int] = self.order[self.begins[group] : self.begins[group] + self.sizes[group]].tolist()
        return found

    def code(self, kind: Ints) -> Ints:
        """What is run of each piece, as a number: its kinds of operations as digits, the first one the lowest."""
        place = np.arange(len(self.order)) - np.repeat(self.begins, self.sizes)
        digits = (kind[self.order] + 1) * _BASE ** place.clip(max=_MOST)
        return np.add.reduceat(digits, self.begins) if len(self.begins) else digits


_BASE, _MOST = len(KINDS) + 1, 3  # of more operations than that no piece consists


def _code(kinds: str) -> int:
    return sum((KINDS.index(kind) + 1) * _BASE**place for place, kind in enumerate(kinds))


# What may be run of a piece, by whether its worker splits backward passes, whether it goes into the sums, and what was
# done of it before. A new F takes the place of a stash.
_MAY_BE = [
    [
        [[_code(one) for one in which] for which in (("F", "FB"), (), ())],
        [[_code(one) for one in which] for which in (("FB",), ("B", "FB"), ("FB",))],
    ],
    [
        [[_code(one) for one in which] for which in (("F", "FI"), (), ())],
        [[_code(one) for one in which] for which in (("FIW",), ("IW", "FIW"), ("W", "FIW"))],
    ],
]


def _read(plan: Plan, rest: Rest) -> RestColumns | list[Violation]:
    """The operations of a rest, or the parts that are not of this plan, or not of each other."""
    live = plan.live_workers()
    if [one.place for one in rest.workers] != [worker.name for worker in live]:
        return [Violation("/workers", "the workers are not those that live in the plan")]
    try:
        rows = read_rest(plan, rest)
    except InvalidInputError:
        return list(_illegible(plan, rest))
    return [*_foreign(rows), *_strangers(rest)] or rows


def _illegible(plan: Plan, rest: Rest) -> Iterator[Violation]:
    """Orders with something else than operations in them."""
    for number, (worker, own) in enumerate(zip(plan.live_workers(), rest.workers, strict=True)):
        try:
            parse_rest_order(own.order, worker.pipeline, seats_in(plan, worker))
        except InvalidInputError as error:
            yield Violation(order_path(number), error.what)


def _foreign(rows: RestColumns) -> Iterator[Violation]:
    """Operations of micro-batches that do not exist, or of layers that their worker does not hold."""
    counts = np.array([pipeline.microbatches for pipeline in rows.plan.pipelines], dtype=np.int64)
    known = rows.pipeline < len(counts)
    known &= rows.number < counts[np.where(known, rows.pipeline, 0)]
    first, stop = rows.seats.layers[rows.seat].T
    at_home = (first <= rows.start) & (rows.start < rows.stop) & (rows.stop <= stop)
    for row in np.flatnonzero(~(known & at_home)).tolist():
        held = f"{first[row]}-{stop[row]}"
        why = f"is of layers that are not held there: {held} are" if known[row] else "is of no micro-batch"
        yield Violation(rows.path(row), f"{rows.name(row)} {why}")


def _strangers(rest: Rest) -> Iterator[Violation]:
    """Workers without a standing, or with two of them, or on two places."""
    standings = Counter(standing.worker for standing in rest.standings)
    for name, count in standings.items():
        if count > 1:
            yield Violation("/standings", f"worker {name} has {count} standings")
    seats = Counter(one.worker for one in rest.workers)
    for number, one in enumerate(rest.workers):
        if one.worker not in standings:
            yield Violation(f"/workers/{number}/worker", f"worker {one.worker} has no standing")
        if seats[one.worker] > 1:
            yield Violation(f"/workers/{number}/worker", f"worker {one.worker} takes two places")


def _wrong_standings(case: _Case) -> Iterator[Violation]:
    known, rows = None, case.rows
    for number, standing in enumerate(rows.rest.standings):
        for fault in faults_of(rows.layers, rows.microbatches, standing):
            message = f"worker {standing.worker}: {fault.message}"
            yield Violation(f"/standings/{number}{fault.path}", message)
        if standing.layers is not None:
            own = [tie.layers for tie in standing.ties]
            known = own if known is None else known
            if own != known:
                what = f"worker {standing.worker} knows of other shared parameters than those before it"
                yield Violation(f"/standings/{number}/ties", what)


def _wrong_seals(case: _Case) -> Iterator[Violation]:
    """Other layers than those whose sums have ended; and parts of sums that are given up for something not held."""
    found = layer_runs(case.sealed)
    if found != case.rows.rest.sealed:
        said = print_ranges(case.rows.rest.sealed)
        yield Violation("/sealed", f"the sealed layers are said to be {said}, by the standings {print_ranges(found)}")
    for number, (standing, own) in enumerate(zip(case.rows.standings, case.rows.rest.workers, strict=True)):
        for first, stop in own.given_up:
            if first >= stop or not layers_in(standing.holds).issuperset(range(first, stop)):
                what = f"worker {own.worker} gives up the layers {first}-{stop}, which it does not hold"
                yield Violation(f"/workers/{number}/given_up", what)


def _wrong_copies(case: _Case) -> Iterator[Violation]:
    rows = case.rows
    if not (rows.rest.copies or case.sealed):
        return
    layers_to: list[Counter[int]] = [Counter() for _ in rows.live]
    ties_to: list[Counter[tuple[int, ...]]] = [Counter() for _ in rows.live]
    ended = [{tie.layers for tie in standing.ties if tie.is_sealed} for standing in rows.standings]
    for place, copy in enumerate(rows.rest.copies):
        where, ends = f"/copies/{place}", (copy.source, copy.target)
        if not all(end in rows.number_at for end in ends) or copy.source == copy.target:
            yield Violation(where, f"a sum is copied from {copy.source} to {copy.target}: no two workers of the plan")
            continue
        source, target = (rows.number_at[end] for end in ends)
        layers = layers_in((copy.layers,))
        if not layers <= layers_in(rows.standings[source].sealed) or not ended[source].issuperset(copy.ties):
            yield Violation(where, f"worker {copy.source} has not all of these sums")
        if not layers and not copy.ties:
            yield Violation(where, "nothing is copied")
        layers_to[target].update(layers)
        ties_to[target].update(copy.ties)
    ties = {tie.layers for standing in rows.standings for tie in standing.ties}
    for number, worker in enumerate(rows.live):
        own = case.held[number]
        need = (own & case.sealed) - layers_in(rows.standings[number].sealed)
        need_ties = {tie for tie in ties if case.sealed.issuperset(tie) and own & set(tie)} - ended[number]
        lacks = [*(need - set(layers_to[number])), *(need_ties - set(ties_to[number]))]
        if lacks:
            what = f"worker {worker.name} lacks sums that have ended, and nobody sends them: {min(map(str, lacks))}"
            yield Violation("/copies", what)
        spare = set(ties_to[number]) - need_ties | {tie for tie, count in ties_to[number].items() if count > 1}
        spare_layers = set(layers_to[number]) - need | {one for one, count in layers_to[number].items() if count > 1}
        if spare or spare_layers:
            yield Violation("/copies", f"worker {worker.name} gets a sum that it does not lack, or twice")


def _wrong_orders(case: _Case) -> Iterator[Violation]:
    """Operations whose own forward pass, or I, is not there: neither in their order nor in a stash."""
    rows, groups = case.rows, case.groups
    code, head = groups.code(rows.kind), groups.head
    kind_of_piece = (case.splits[rows.worker[head]], rows.accumulates[head], groups.before)
    is_fine = groups.sizes <= _MOST
    for split in (0, 1):
        for accumulates in (0, 1):
            for before in (_NOTHING, _AFTER_F, _AFTER_I):
                own = (kind_of_piece[0] == split) & (kind_of_piece[1] == accumulates) & (kind_of_piece[2] == before)
                is_fine[own] &= np.isin(code[own], _MAY_BE[split][accumulates][before])
    for group in np.flatnonzero(~is_fine).tolist():
        yield _misplaced(rows, groups.rows_of(group), int(groups.before[group]), bool(kind_of_piece[0][group]))


def _misplaced(rows: RestColumns, group: list[int], before: int, splits: bool) -> Violation:
    """What is wrong with the operations of a piece."""
    done = {_NOTHING: "", _AFTER_F: "F", _AFTER_I: "I"}[before]
    for row in group:
        own = rows.operation(row)
        needed = {"W": "I", "F": done}.get(own.kind, "F")
        fault = None
        if own.kind != "F" and (own.kind == "B") == splits:
            fault = f"this worker's backward passes are {'I and W' if splits else 'B'}"
        elif own.kind == "W" and not own.accumulates:
            fault = "W makes no message that it could be run for"
        elif done != needed:
            fault = f"its {needed} is not there"
        elif own.kind == "F" and row != group[0]:
            fault = "it is under way there already"
        if fault is not None:
            return Violation(rows.path(row), f"{rows.name(row)}: {fault}")
        done = own.kind if own.kind == "F" or (own.kind == "I" and own.accumulates) else ""
    return Violation(rows.path(group[-1]), f"{rows.name(group[-1])}: its gradients never get into the sums")


def _wrong_parts(case: _Case) -> Iterator[Violation]:
    """Parts of sums that are kept, or given up, with half of something in them."""
    rows, groups = case.rows, case.groups
    after_half = (groups.before == _AFTER_I) & (groups.code(rows.kind) == _code("W"))
    head = groups.head[after_half]
    columns = rows.worker[head], rows.microbatch[head], rows.start[head]
    ends = set(zip(*(column.tolist() for column in columns), strict=True))
    for number, standing in enumerate(rows.standings):
        begun = [(standing.stashed(one)[0], one.microbatches) for one in standing.stashes if one.after == "I"]
        half = {(number, m, first) for first, microbatches in begun for m in microbatches}
        given_up = rows.rest.workers[number].given_up
        lost, kept = half - ends, case.kept(number) if half - ends else ()
        if kept:
            what = (
                f"I of micro-batch {min(lost)[1]} is in the sums of worker {standing.worker}, its W is not to come: "
                f"the layers {print_ranges(layer_runs(kept))} must be given up"
            )
            yield Violation(f"/workers/{number}/given_up", what)
        if half & ends and given_up:
            what = f"the layers given up hold what I of micro-batch {min(half & ends)[1]} has added, whose W is to come"
            yield Violation(f"/workers/{number}/given_up", what)
        if standing.ties:
            yield from _torn_ties(case, number)


def _torn_ties(case: _Case, number: int) -> Iterator[Violation]:
    """What layers share has one gradient at a worker: it is kept with all of them, or given up with all."""
    standing, kept = case.rows.standings[number], case.kept(number)
    summed = {layer for entry in standing.ledger if entry.microbatches for layer in range(*entry.layers)}
    dropped = layers_in(standing.holds) - kept - case.sealed
    for tie in standing.ties:
        own = summed & kept & set(tie.layers)
        if own and summed & dropped & set(tie.layers):
            what = f"worker {standing.worker} keeps layer {min(own)}, and drops another one that shares parameters"
            yield Violation(f"/workers/{number}/given_up", what)


def _incomplete(case: _Case) -> Iterator[Violation]:
    """Micro-batches that a layer's sum lacks or has twice, and what is computed twice."""
    rows = case.rows
    summed, forward, backward = (np.zeros((rows.layers, rows.microbatches), dtype=np.int64) for _ in range(3))
    for number, standing in enumerate(rows.standings):
        kept = case.kept(number)
        for entry in standing.ledger:
            for first, stop in layer_runs(kept & frozenset(range(*entry.layers))):
                summed[first:stop, list(entry.microbatches)] += 1
    wide = rows.stop - rows.start
    row = np.repeat(np.arange(len(rows)), wide)
    layer = rows.start[row] + np.arange(len(row)) - np.repeat(np.cumsum(wide) - wide, wide)
    for table, mine in (
        (forward, rows.kind == FORWARD),
        (backward, (rows.kind == INPUT) | (rows.kind == FULL)),
        (summed, ((rows.kind == WEIGHT) | (rows.kind == FULL)) & rows.accumulates),
    ):
        np.add.at(table, (layer[mine[row]], rows.microbatch[row[mine[row]]]), 1)
    summed[sorted(case.sealed)] += 1
    for layer_, microbatch in np.argwhere(summed != 1)[:MOST_NAMED].tolist():
        count = summed[layer_, microbatch]
        what = f"is {f'{count} times' if count else 'nowhere'} in the sum of layer {layer_}"
        yield Violation("/workers", f"micro-batch {_printed(rows.plan, microbatch)} {what}")
    for table, kind in ((forward, "forward"), (backward, "backward")):
        for layer_, microbatch in np.argwhere(table > 1)[:MOST_NAMED].tolist():
            what = f"the {kind} pass of micro-batch {_printed(rows.plan, microbatch)} in layer {layer_} is run twice"
            yield Violation("/workers", what)


def _printed(plan: Plan, microbatch: int) -> str:
    return ".".join(map(str, plan.microbatch_at(microbatch)))


@dataclass(frozen=True)
class _Wiring:
    """Where every operation's message comes from.

    Attributes:
        maker: the row whose message each waits for, or NONE; array of n, as are the next.
        delay_s: how long the message takes from its maker, or from the beginning where it was kept, in s.
        is_resent: whether the message is a kept one that another worker sends.
        problems: operations without a message, and messages in vain.
    """

    maker: Ints
    delay_s: Floats
    is_resent: Flags
    problems: list[Violation]


def _wire(rows: RestColumns) -> _Wiring:
    problems: list[Violation] = []
    maker, delay_s, is_resent = np.full(len(rows), NONE), np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    waits = np.flatnonzero(rows.takes != NONE)
    waits = waits[~rows.has(rows.worker[waits], rows.takes[waits])]
    # Kept messages that are sent, by who gets which.
    sends = _sends(rows, problems)
    to = np.array(sorted(sends), dtype=np.int64)
    wanted = rows.worker[waits] * rows.keys + rows.takes[waits]
    resent = is_among(wanted, to)
    source = np.array([sends[one][0] for one in wanted[resent].tolist()], dtype=np.int64)
    delay_s[waits[resent]] = rows.delay_s(rows.takes[waits[resent]], source, rows.worker[waits[resent]])
    is_resent[waits[resent]] = True
    # The others are made.
    waits = waits[~resent]
    made_by = np.full(rows.keys, NONE)
    makes = np.flatnonzero(rows.makes != NONE)
    made_by[rows.makes[makes]] = makes
    maker[waits] = made_by[rows.takes[waits]]
    has_maker = waits[maker[waits] != NONE]
    delay_s[has_maker] = rows.delay_s(rows.takes[has_maker], rows.worker[maker[has_maker]], rows.worker[has_maker])
    for row in waits[maker[waits] == NONE].tolist():
        kind = "activation" if rows.kind[row] == FORWARD else "gradient"
        problems.append(Violation(rows.path(row), f"{rows.name(row)}: its {kind} is neither kept nor made"))
    in_vain = to[~is_among(to, np.sort(wanted))].tolist()
    problems += [Violation(f"/sends/{sends[one][1]}", "nobody waits for this message") for one in in_vain]
    return _Wiring(maker, delay_s, is_resent, problems)


def _sends(rows: RestColumns, problems: list[Violation]) -> dict[int, tuple[int, int]]:
    """The kept messages that are sent, by who gets which: from whom, and the place in the list."""
    wanted = [
        (
            rows.number_at.get(send.source, NOBODY),
            rows.number_at.get(send.target, NOBODY),
            MESSAGE_KINDS.index(send.kind),
            send.boundary,
            send.microbatch,
        )
        for send in rows.rest.sends
    ]
    source, target, kind, boundary, microbatch = np.array(wanted, dtype=np.int64).reshape(-1, 5).T
    key = rows.key(kind, boundary, microbatch)
    is_there = (boundary <= rows.layers) & (microbatch < rows.microbatches)
    has = [is_there & rows.has(worker, key) for worker in (source, target)]
    sends: dict[int, tuple[int, int]] = {}
    for place, (one, own_key, its, at_target) in enumerate(
        zip(wanted, key.tolist(), has[0].tolist(), has[1].tolist(), strict=True)
    ):
        send, where = rows.rest.sends[place], f"/sends/{place}"
        to = one[1] * rows.keys + own_key
        if NOBODY in one[:2] or one[0] == one[1]:
            what = f"a message is sent from {send.source} to {send.target}: no two workers of the plan"
            problems.append(Violation(where, what))
        elif not its:
            problems.append(Violation(where, f"worker {send.source} has not kept this message"))
        elif at_target or to in sends:
            problems.append(Violation(where, f"worker {send.target} has this message, or gets it twice"))
        else:
            sends[to] = (one[0], place)
    return sends


def _in_vain(case: _Case, wiring: _Wiring) -> Iterator[Violation]:
    """What is run for the message alone, and nobody waits for the message."""
    rows = case.rows
    is_wanted = np.zeros(len(rows), dtype=bool)
    is_wanted[wiring.maker[wiring.maker != NONE]] = True
    followed = _followed(rows)
    for row in np.flatnonzero(~(rows.accumulates | is_wanted | ((rows.kind == FORWARD) & followed))).tolist():
        yield Violation(rows.path(row), f"{rows.name(row)} is run for a message that nobody waits for")


def _followed(rows: RestColumns) -> Flags:
    """Whether there is a backward pass of each operation's piece."""
    return is_among(rows.piece, np.unique(rows.piece[rows.kind != FORWARD]))


def _over_limit(case: _Case) -> Iterator[Violation]:
    peaks = _peak_bytes(case)
    for number, (worker, peak) in enumerate(zip(case.rows.live, peaks.tolist(), strict=True)):
        limit = case.rows.plan.limit_bytes(worker)
        if limit is not None and peak > limit * (1 + ROUNDING):
            shown, most = print_apart(peak, limit, print_bytes)
            what = f"worker {worker.name} holds up to {shown}, its limit is {most}"
            yield Violation(order_path(number), what)


def _peak_bytes(case: _Case) -> Floats:
    """The most bytes that each live worker holds of what is under way; of its stashes those that are gone on with."""
    rows, groups = case.rows, case.groups
    whole = np.array([stage.activation_bytes for stage in rows.seats.stages], dtype=np.float64)
    stash = np.array([stage.weight_stash_bytes for stage in rows.seats.stages], dtype=np.float64)
    begun = np.zeros(len(rows.live))
    goes_on = rows.kind[groups.head] != FORWARD
    for before, size in ((_AFTER_F, whole), (_AFTER_I, stash)):
        seat = rows.seat[groups.head[goes_on & (groups.before == before)]]
        np.add.at(begun, rows.seats.owner, np.bincount(seat, minlength=len(size)) * size)
    all_, half = whole[rows.seat] * rows.share, stash[rows.seat] * rows.share
    added = np.where(rows.kind == FORWARD, all_, 0.0)
    # What an operation frees at its end: of what is run for its message alone all that it holds.
    alone = (rows.kind == FORWARD) & ~_followed(rows) & ~rows.accumulates
    freed = np.select(
        [alone | (rows.kind == FULL), rows.kind == INPUT, rows.kind == WEIGHT],
        [all_, np.where(rows.accumulates, all_ - half, all_), half],
    )
    held = np.cumsum(added - freed)
    base = np.concatenate(([0.0], held))[rows.first]
    peaks = begun.copy()
    if len(rows.busy):
        most = np.maximum.reduceat(held + freed, rows.first[rows.busy])
        peaks[rows.busy] = np.maximum(peaks[rows.busy], begun[rows.busy] + most - base[rows.busy])
    return peaks


def _wrong_prediction(case: _Case, times: RowTimes) -> Iterator[Violation]:
    rows = case.rows
    said = rows.rest.prediction
    if said is None:
        return
    ended_s = np.zeros(len(rows.live))
    ended_s[rows.busy] = times.end_s[(rows.first + rows.counts)[rows.busy] - 1]
    begun_s, last_s = sums_s(rows.plan, ended_s, layer_runs(case.sealed))
    steps_s = (sum(stage.optimizer_s for stage in rows.plan.stages_of(worker)) for worker in rows.live)
    makespan_s = float((begun_s + last_s).max()) + max(steps_s)
    of_plan = rows.plan.prediction
    redo_s = of_plan.makespan_s if of_plan is not None else makespan_of(rows.plan)
    for key, stated, found in (("makespan_s", said.makespan_s, makespan_s), ("redo_s", said.redo_s, redo_s)):
        if not is_close(stated, found):
            shown, is_s = print_apart(stated, found, print_time)
            yield Violation(f"/prediction/{key}", f"{shown} is predicted, the orders give {is_s}")
    bound = said.lower_bound_s
    if makespan_s < bound * (1 - ROUNDING):
        takes, least = print_apart(makespan_s, bound, print_time)
        what = f"what is left takes {takes}, less than its “lower bound” {least}"
        yield Violation("/prediction/lower_bound_s", what)
    gap = makespan_s / bound - 1 if bound else 0.0
    if not is_close(said.gap, gap):
        stated_gap, found_gap = print_apart(said.gap, gap, print_number)
        yield Violation("/prediction/gap", f"a gap of {stated_gap} is stated, it is {found_gap}")
