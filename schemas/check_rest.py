"""The independent checker of what is left of an iteration: does a Rest do every micro-batch once, and can it?

It shares no code with the planner of rests: here completeness is counting in a table of layers x micro-batches, and
times come of running the orders, each worker until it must wait. What the words mean is on docs/semantics.md, "What is
left of an iteration".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from .check import ROUNDING, Violation, check_plan, in_brief, is_close, makespan_of, sums_s
from .check_standing import faults_of
from .errors import InvalidInputError
from .orders import KINDS
from .plan import Layers, Plan, Stage, Worker
from .quantities import print_apart, print_bytes, print_number, print_time
from .resumption import (
    MessageKind,
    Rest,
    RestOperation,
    Resumption,
    Standing,
    layer_runs,
    parse_rest_order,
    print_rest_operation,
)

Message = tuple[MessageKind, int, int]  # of a micro-batch, by its global number, at a boundary
Spot = tuple[int, int]  # a live worker, and the place of an operation in its order
ACTIVATION: MessageKind = "activation"
GRADIENT: MessageKind = "gradient"
NOBODY = -1
# Of one kind of mistake so many are named: what lacks one micro-batch often lacks it in every layer.
MOST_NAMED = 20


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
    orders: list[tuple[RestOperation, ...]] = []
    problems = list(_misfits(plan, rest, orders))
    if problems:
        return problems
    case = _Case(plan, rest, tuple(orders))
    for judge in (_wrong_standings, _wrong_seals, _wrong_copies, _wrong_orders, _incomplete):
        problems = list(judge(case))
        if problems:
            return problems
    wiring = _wire(case)
    if wiring.problems:
        return wiring.problems
    times = _run(case, wiring)
    if isinstance(times, Violation):
        return [times]
    ended_s = [run[-1].end_s if run else 0.0 for run in times]
    return [*_in_vain(case, wiring), *_over_limit(case), *_wrong_prediction(case, ended_s)]


class TimedStep(NamedTuple):
    """An operation of what is left, and when it is run.

    Attributes:
        own: the operation.
        start_s, end_s: of it, in s from the beginning of what is left.
        arrival_s: when its message is there; 0 where it needs none, or has it.
        maker: the operation that makes its message: its live worker's number, and its place in that one's order.
        is_resent: whether its message was kept by another worker, who sends it again.
    """

    own: RestOperation
    start_s: float
    end_s: float
    arrival_s: float
    maker: Spot | None
    is_resent: bool


def timed_rest(plan: Plan, rest: Rest) -> list[list[TimedStep]]:
    """The operations of each live worker of a valid rest, with the times that `check_rest` judges by."""
    case = _Case(plan, rest, tuple(rest.operations(number, plan) for number in range(len(rest.workers))))
    times = _run(case, _wire(case))
    assert not isinstance(times, Violation), "what is left deadlocks"
    return times


class _RestStep(NamedTuple):
    """An operation where it stands: the live worker's number, and the place in its order; its micro-batch's number."""

    spot: Spot
    own: RestOperation
    microbatch: int

    @property
    def piece(self) -> _Piece:
        return _Piece(self.microbatch, self.own.layers, self.own.accumulates)

    @property
    def takes(self) -> Message | None:
        """The message that it waits for."""
        first, stop = self.own.layers
        match self.own.kind:
            case "F":
                return (ACTIVATION, self.microbatch, first)
            case "W":
                return None
            case _:
                return (GRADIENT, self.microbatch, stop)

    @property
    def makes(self) -> Message | None:
        """The message that comes of it."""
        first, stop = self.own.layers
        match self.own.kind:
            case "F":
                return (ACTIVATION, self.microbatch, stop)
            case "W":
                return None
            case _:
                return (GRADIENT, self.microbatch, first)


class _Piece(NamedTuple):
    """What is under way of a micro-batch at a worker: in which layers, and whether it is to be in the sums."""

    microbatch: int
    layers: Layers
    accumulates: bool


@dataclass(frozen=True)
class _Case:
    """A plan and a rest whose parts agree, and what both together say."""

    plan: Plan
    rest: Rest
    orders: tuple[tuple[RestOperation, ...], ...]

    @cached_property
    def live(self) -> tuple[Worker, ...]:
        return self.plan.live_workers()

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        return tuple(self.plan.stage_of(worker) for worker in self.live)

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """Those of the live workers, in their order."""
        named = {standing.worker: standing for standing in self.rest.standings}
        return tuple(named[worker.worker] for worker in self.rest.workers)

    @cached_property
    def layers(self) -> int:
        return self.plan.templates[0].stages[-1].layers[1]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The global number of each pipeline's micro-batch 0, and of one behind the last."""
        return tuple(np.cumsum([0, *(pipeline.microbatches for pipeline in self.plan.pipelines)]).tolist())

    @cached_property
    def steps(self) -> tuple[tuple[_RestStep, ...], ...]:
        """The operations of each live worker, of micro-batches that there are."""
        return tuple(
            tuple(
                _RestStep((number, place), one, self.offsets[one.operation.pipeline] + one.operation.microbatch)
                for place, one in enumerate(order)
            )
            for number, order in enumerate(self.orders)
        )

    @cached_property
    def held(self) -> tuple[frozenset[Message], ...]:
        """The messages that each live worker has kept."""
        return tuple(
            frozenset((own.kind, m, own.boundary) for own in standing.messages for m in own.microbatches)
            for standing in self.standings
        )

    @cached_property
    def sealed(self) -> frozenset[int]:
        """Layers whose sums have ended at a worker that has a place, with all sums of what they share."""
        ties = {tie.layers for standing in self.standings for tie in standing.ties}
        ended = {tie.layers for standing in self.standings for tie in standing.ties if tie.is_sealed}
        own = {layer for standing in self.standings for layer in _all_of(standing.sealed)}
        while True:
            broken = {layer for tie in ties if tie not in ended or not own.issuperset(tie) for layer in tie}
            if own.isdisjoint(broken):
                return frozenset(own)
            own -= broken

    def kept(self, number: int) -> frozenset[int]:
        """Layers, not sealed, whose part of the sums a live worker goes on with."""
        before = self.standings[number].layers
        both = _all_of(() if before is None else (before,)) & _all_of((self.stages[number].layers,))
        return both - _all_of(self.rest.workers[number].given_up) - self.sealed

    def splits(self, number: int) -> bool:
        """Whether the backward passes of a live worker are I and W, else B: of who has nothing, as in the plan."""
        standing = self.standings[number]
        kinds = set(self.live[number].order or "") & {"I", "B"}
        is_new = standing.layers is None or standing.is_empty
        return "I" in kinds if is_new and len(kinds) == 1 else standing.splits

    def name(self, spot: Spot) -> str:
        """An operation in words, for messages."""
        number, place = spot
        worker = self.live[number]
        token = print_rest_operation(self.steps[number][place].own, NOBODY, self.stages[number].layers)
        return f"{token} on worker {worker.name} (operation {place})"

    def duration_s(self, step: _RestStep) -> float:
        number = step.spot[0]
        return self.stages[number].duration_s(step.own.kind) * (self.live[number].slowdown or 1.0) * self.share(step)

    def share(self, step: _RestStep) -> float:
        """What part of its worker's layers an operation computes."""
        (first, stop), own = step.own.layers, self.stages[step.spot[0]].layers
        return (stop - first) / (own[1] - own[0])

    def delay_s(self, message: Message, source: int, target: int) -> float:
        """What a message takes between two live workers."""
        if source == target:
            return 0.0
        _, microbatch, boundary = message
        origin = bisect_right(self.offsets, microbatch) - 1
        sender, receiver = self.live[source], self.live[target]
        pipeline = sender.pipeline if sender.pipeline == receiver.pipeline else origin
        stages = self.plan.template_of(pipeline).stages
        if len(stages) == 1:
            return 0.0
        below = next(i for i, stage in enumerate(stages) if boundary <= stage.layers[1])
        return self.plan.hop_delay_s(origin, min(below, len(stages) - 2), sender, receiver)


def _order_of(number: int) -> str:
    return f"/workers/{number}/order"


def _all_of(ranges: Iterable[Layers]) -> frozenset[int]:
    return frozenset(chain.from_iterable(range(*layers) for layers in ranges))


def _printed(plan: Plan, microbatch: int) -> str:
    return ".".join(map(str, plan.microbatch_at(microbatch)))


def _print_ranges(ranges: Sequence[Layers]) -> str:
    return ", ".join(f"{first}-{stop}" for first, stop in ranges) or "none"


# The parts of a rest.


def _misfits(plan: Plan, rest: Rest, orders: list[tuple[RestOperation, ...]]) -> Iterator[Violation]:
    """Parts that are not of this plan, or not of each other; and all orders, read."""
    live = plan.live_workers()
    if [one.place for one in rest.workers] != [worker.name for worker in live]:
        yield Violation("/workers", "the workers are not those that live in the plan")
        return
    for number, (worker, own) in enumerate(zip(live, rest.workers, strict=True)):
        layers = plan.stage_of(worker).layers
        try:
            operations = parse_rest_order(own.order, worker.pipeline, layers)
        except InvalidInputError as error:
            yield Violation(_order_of(number), error.what)
        else:
            orders.append(operations)
            yield from _foreign(plan, number, worker, operations)
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


def _foreign(plan: Plan, number: int, worker: Worker, operations: Sequence[RestOperation]) -> Iterator[Violation]:
    """Operations of micro-batches that do not exist, or of layers that their worker does not hold."""
    first, stop = plan.stage_of(worker).layers
    for place, one in enumerate(operations):
        _, pipeline, microbatch = one.operation
        is_known = pipeline < len(plan.pipelines) and microbatch < plan.pipelines[pipeline].microbatches
        if is_known and first <= one.layers[0] < one.layers[1] <= stop:
            continue
        why = f"is of layers that are not held there: {first}-{stop} are" if is_known else "is of no micro-batch"
        name = f"{print_rest_operation(one, NOBODY, (first, stop))} on worker {worker.name} (operation {place})"
        yield Violation(_order_of(number), f"{name} {why}")


def _wrong_standings(case: _Case) -> Iterator[Violation]:
    known = None
    for number, standing in enumerate(case.rest.standings):
        for fault in faults_of(case.layers, case.offsets[-1], standing):
            message = f"worker {standing.worker}: {fault.message}"
            yield Violation(f"/standings/{number}{fault.path}", message)
        if standing.layers is not None:
            own = [tie.layers for tie in standing.ties]
            known = own if known is None else known
            if own != known:
                what = f"worker {standing.worker} knows of other shared parameters than those before it"
                yield Violation(f"/standings/{number}/ties", what)


def _wrong_seals(case: _Case) -> Iterator[Violation]:
    found = layer_runs(case.sealed)
    if found != case.rest.sealed:
        said = _print_ranges(case.rest.sealed)
        yield Violation("/sealed", f"the sealed layers are said to be {said}, by the standings {_print_ranges(found)}")
    for number, standing in enumerate(case.standings):
        kept, given_up = case.kept(number), case.rest.workers[number].given_up
        held = standing.layers or (0, 0)
        for first, stop in given_up:
            if not held[0] <= first < stop <= held[1]:
                what = f"worker {standing.worker} gives up the layers {first}-{stop}, which it does not hold"
                yield Violation(f"/workers/{number}/given_up", what)
        half = {m for stash in standing.stashes if stash.after == "I" for m in stash.microbatches}
        used = {step.microbatch for step in case.steps[number] if step.own.kind == "W" and step.own.accumulates}
        made = {step.microbatch for step in case.steps[number] if step.own.kind == "I" and step.own.accumulates}
        lost = half - (used - made) if held == case.stages[number].layers else half
        if lost and kept:
            what = (
                f"I of micro-batch {min(lost)} is in the sums of worker {standing.worker}, its W is not to come: the "
                f"layers {_print_ranges(layer_runs(kept))} must be given up"
            )
            yield Violation(f"/workers/{number}/given_up", what)
        if half - lost and _all_of(given_up):
            what = f"the layers given up hold what I of micro-batch {min(half - lost)} has added, whose W is to come"
            yield Violation(f"/workers/{number}/given_up", what)
        yield from _torn_ties(case, number)


def _torn_ties(case: _Case, number: int) -> Iterator[Violation]:
    """What layers share has one gradient at a worker: it is kept with all of them, or given up with all."""
    standing = case.standings[number]
    summed = {layer for entry in standing.ledger if entry.microbatches for layer in range(*entry.layers)}
    dropped = _all_of(() if standing.layers is None else (standing.layers,)) - case.kept(number) - case.sealed
    for tie in standing.ties:
        kept = summed & case.kept(number) & set(tie.layers)
        if kept and summed & dropped & set(tie.layers):
            what = f"worker {standing.worker} keeps layer {min(kept)}, and drops another one that shares parameters"
            yield Violation(f"/workers/{number}/given_up", what)


def _wrong_copies(case: _Case) -> Iterator[Violation]:
    numbers = {worker.name: number for number, worker in enumerate(case.live)}
    layers_to: list[Counter[int]] = [Counter() for _ in case.live]
    ties_to: list[Counter[tuple[int, ...]]] = [Counter() for _ in case.live]
    ended = [{tie.layers for tie in standing.ties if tie.is_sealed} for standing in case.standings]
    for place, copy in enumerate(case.rest.copies):
        where, ends = f"/copies/{place}", (copy.source, copy.target)
        if not all(end in numbers for end in ends) or copy.source == copy.target:
            yield Violation(where, f"a sum is copied from {copy.source} to {copy.target}: no two workers of the plan")
            continue
        source, target = (numbers[end] for end in ends)
        layers = _all_of((copy.layers,))
        if not layers <= _all_of(case.standings[source].sealed) or not ended[source].issuperset(copy.ties):
            yield Violation(where, f"worker {copy.source} has not all of these sums")
        if not layers and not copy.ties:
            yield Violation(where, "nothing is copied")
        layers_to[target].update(layers)
        ties_to[target].update(copy.ties)
    ties = {tie.layers for standing in case.standings for tie in standing.ties}
    for number, worker in enumerate(case.live):
        own = _all_of((case.stages[number].layers,))
        need = (own & case.sealed) - _all_of(case.standings[number].sealed)
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
    for number, steps in enumerate(case.steps):
        where, splits = _order_of(number), case.splits(number)
        under_way = _stashes(case, number)
        opened: dict[_Piece, Spot] = {}
        for step in steps:
            kind, before = step.own.kind, under_way.pop(step.piece, None)
            fault = _misplaced(step, before, splits)
            if fault is not None:
                yield Violation(where, f"{case.name(step.spot)}: {fault}")
            if kind == "F":
                opened[step.piece] = step.spot
            if kind == "F" or (kind == "I" and step.own.accumulates):
                under_way[step.piece] = kind
            else:
                opened.pop(step.piece, None)
        for piece, spot in opened.items():
            if piece.accumulates:
                yield Violation(where, f"{case.name(spot)}: its gradients never get into the sums")


def _misplaced(step: _RestStep, before: str | None, splits: bool) -> str | None:
    """Why an operation cannot follow what was done last of its piece at its worker; None where it can."""
    kind = step.own.kind
    if kind == "F":
        return None  # it takes the place of a stash
    if (kind == "B") == splits:
        return f"this worker's backward passes are {'I and W' if splits else 'B'}"
    if kind == "W" and not step.own.accumulates:
        return "W makes no message that it could be run for"
    needed = "I" if kind == "W" else "F"
    return None if before == needed else f"its {needed} is not there"


def _stashes(case: _Case, number: int) -> dict[_Piece, str]:
    """What of a live worker's stashes may be gone on with: that of layers which are the same, and all to do."""
    standing, own = case.standings[number], case.stages[number].layers
    if standing.layers != own or case.sealed & set(range(*own)):
        return {}
    return {_Piece(m, own, True): stash.after for stash in standing.stashes for m in stash.microbatches}


def _incomplete(case: _Case) -> Iterator[Violation]:
    """Micro-batches that a layer's sum lacks or has twice, and what is computed twice."""
    summed, forward, backward = (np.zeros((case.layers, case.offsets[-1]), dtype=np.int64) for _ in range(3))
    for number, standing in enumerate(case.standings):
        kept = case.kept(number)
        for entry in standing.ledger:
            own = sorted(kept & set(range(*entry.layers)))
            summed[np.ix_(own, entry.microbatches)] += 1
    rows = [
        (layer, step.microbatch, KINDS.index(step.own.kind), step.own.accumulates)
        for step in chain.from_iterable(case.steps)
        for layer in range(*step.own.layers)
    ]
    layer, microbatch, kind, accumulates = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    for table, kinds, counts in (
        (forward, "F", np.ones_like(kind)), (backward, "IB", np.ones_like(kind)), (summed, "WB", accumulates)
    ):  # fmt: skip
        own = np.isin(kind, [KINDS.index(one) for one in kinds])
        np.add.at(table, (layer[own], microbatch[own]), counts[own])
    summed[sorted(case.sealed)] += 1
    for layer, microbatch in np.argwhere(summed != 1)[:MOST_NAMED].tolist():
        count = summed[layer, microbatch]
        what = f"is {f'{count} times' if count else 'nowhere'} in the sum of layer {layer}"
        yield Violation("/workers", f"micro-batch {_printed(case.plan, microbatch)} {what}")
    for table, kind in ((forward, "forward"), (backward, "backward")):
        for layer, microbatch in np.argwhere(table > 1)[:MOST_NAMED].tolist():
            what = f"the {kind} pass of micro-batch {_printed(case.plan, microbatch)} in layer {layer} is run twice"
            yield Violation("/workers", what)


@dataclass(frozen=True)
class _Wiring:
    """Where every operation's message comes from.

    Attributes:
        maker: the operation that each of those which wait for another one takes its message from.
        resent: when the message of each of those that get a kept one from another worker arrives, in s.
        problems: operations without a message, and messages in vain.
    """

    maker: dict[Spot, Spot]
    resent: dict[Spot, float]
    problems: list[Violation]


def _wire(case: _Case) -> _Wiring:
    wiring = _Wiring({}, {}, [])
    sends = _sends(case, wiring.problems)
    makers = {step.makes: step.spot for step in chain.from_iterable(case.steps) if step.makes is not None}
    taken = set()
    for step in chain.from_iterable(case.steps):
        message, number = step.takes, step.spot[0]
        if message is None or message[2] == (0 if message[0] == ACTIVATION else case.layers):
            continue
        if message in case.held[number]:
            continue
        if (number, message) in sends:
            taken.add((number, message))
            wiring.resent[step.spot] = case.delay_s(message, sends[number, message][0], number)
        elif message in makers:
            wiring.maker[step.spot] = makers[message]
        else:
            what = f"{case.name(step.spot)}: its {message[0]} is neither kept nor made"
            wiring.problems.append(Violation(_order_of(number), what))
    for key in sends.keys() - taken:
        wiring.problems.append(Violation(f"/sends/{sends[key][1]}", "nobody waits for this message"))
    return wiring


def _sends(case: _Case, problems: list[Violation]) -> dict[tuple[int, Message], tuple[int, int]]:
    """The kept messages that are sent, by who gets which: from whom, and the place in the list."""
    numbers = {worker.name: number for number, worker in enumerate(case.live)}
    sends: dict[tuple[int, Message], tuple[int, int]] = {}
    for place, send in enumerate(case.rest.sends):
        message, where = (send.kind, send.microbatch, send.boundary), f"/sends/{place}"
        source, target = numbers.get(send.source, NOBODY), numbers.get(send.target, NOBODY)
        if NOBODY in (source, target) or source == target:
            what = f"a message is sent from {send.source} to {send.target}: no two workers of the plan"
            problems.append(Violation(where, what))
        elif message not in case.held[source]:
            problems.append(Violation(where, f"worker {send.source} has not kept this message"))
        elif message in case.held[target] or (target, message) in sends:
            problems.append(Violation(where, f"worker {send.target} has this message, or gets it twice"))
        else:
            sends[target, message] = (source, place)
    return sends


def _run(case: _Case, wiring: _Wiring) -> list[list[TimedStep]] | Violation:
    """The operations of each live worker with their times, or the deadlock that keeps some from it."""
    done: dict[Spot, TimedStep] = {}
    runs: list[list[TimedStep]] = [[] for _ in case.live]
    waiting: dict[Spot, list[int]] = defaultdict(list)
    ready = list(range(len(case.live)))
    while ready:
        number = ready.pop()
        run = runs[number]
        while len(run) < len(case.steps[number]):
            step = case.steps[number][len(run)]
            maker = wiring.maker.get(step.spot)
            if maker is not None and maker not in done:
                waiting[maker].append(number)
                break
            arrival_s = wiring.resent.get(step.spot, 0.0)
            if maker is not None:
                message = step.takes
                assert message is not None
                arrival_s = done[maker].end_s + case.delay_s(message, maker[0], number)
            start_s = max(run[-1].end_s if run else 0.0, arrival_s)
            is_resent = step.spot in wiring.resent
            run.append(TimedStep(step.own, start_s, start_s + case.duration_s(step), arrival_s, maker, is_resent))
            done[step.spot] = run[-1]
            ready += waiting.pop(step.spot, ())
    next_of = list(map(len, runs))
    blocked = {number: (number, place) for number, place in enumerate(next_of) if place < len(case.steps[number])}
    if not blocked:
        return runs
    chained = [next(iter(blocked))]
    while (before := wiring.maker[blocked[chained[-1]]][0]) not in chained:
        chained.append(before)
    ring = [blocked[number] for number in chained[chained.index(before) :]]
    waits = [f"{case.name(spot)} waits for {case.name(wiring.maker[spot])}" for spot in ring]
    return Violation(_order_of(ring[0][0]), "deadlock: " + "; ".join(waits))


def _in_vain(case: _Case, wiring: _Wiring) -> Iterator[Violation]:
    """What is run for the message alone, and nobody waits for the message."""
    wanted = set(wiring.maker.values())
    for number, steps in enumerate(case.steps):
        followed = {step.piece for step in steps if step.own.kind in "IB"}
        for step in steps:
            if step.own.accumulates or step.spot in wanted or (step.own.kind == "F" and step.piece in followed):
                continue
            yield Violation(_order_of(number), f"{case.name(step.spot)} is run for a message that nobody waits for")


def _over_limit(case: _Case) -> Iterator[Violation]:
    for number, stage in enumerate(case.stages):
        limit, peak = stage.memory_limit_bytes, _peak_bytes(case, number)
        if limit is not None and peak > limit * (1 + ROUNDING):
            shown, most = print_apart(peak, limit, print_bytes)
            yield Violation(
                _order_of(number), f"worker {case.live[number].name} holds up to {shown}, its limit is {most}"
            )


def _peak_bytes(case: _Case, number: int) -> float:
    """The most bytes that a live worker holds of what is under way; of its stashes those that are gone on with."""
    stage, steps = case.stages[number], case.steps[number]
    whole, stash = stage.activation_bytes, stage.weight_stash_bytes
    begun = {step.piece for step in steps if step.own.kind == "F"}
    followed = {step.piece for step in steps if step.own.kind != "F"}
    used = {piece: after for piece, after in _stashes(case, number).items() if piece in followed - begun}
    held = peak = sum(whole if after == "F" else stash for after in used.values())
    for step in steps:
        share = case.share(step)
        match step.own.kind:
            case "F":
                held += whole * share
                peak = max(peak, held)
                held -= 0.0 if step.piece in followed else whole * share
            case "I":
                held -= (whole - stash if step.own.accumulates else whole) * share
            case "W":
                held -= stash * share
            case "B":
                held -= whole * share
    return peak


def _wrong_prediction(case: _Case, ended_s: list[float]) -> Iterator[Violation]:
    said = case.rest.prediction
    if said is None:
        return
    begun_s, last_s = sums_s(case.plan, np.array(ended_s), layer_runs(case.sealed))
    makespan_s = float((begun_s + last_s).max()) + max(stage.optimizer_s for stage in case.stages)
    of_plan = case.plan.prediction
    redo_s = of_plan.makespan_s if of_plan is not None else makespan_of(case.plan)
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
