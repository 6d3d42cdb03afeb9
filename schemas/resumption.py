"""Resumption: who does what is left of an iteration in which workers were lost, so that nothing is done twice.

Micro-batches have their global numbers, 0 up to those of all pipelines, which plans with other pipelines share. A
boundary b lies between the layers b - 1 and b: the activation at it is what layer b takes, the gradient at it is that
of what layer b - 1 gives.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, cast

from .display import Displayed
from .errors import InvalidInputError
from .fields import STRICT, Index, LayerNumber, Name, Ratio, Seconds
from .orders import NUMBER, SUFFIX, TOKEN, Kind, Operation, print_operation
from .plan import Layers, Plan, Planner, Worker
from .text import listed

MessageKind = Literal["activation", "gradient"]
MessageKey = tuple[MessageKind, int, int]  # a message: its kind, its boundary and its global micro-batch
LastDone = Literal["F", "I"]  # of a micro-batch that is under way
Begun = tuple[int, Layers]  # a micro-batch, by its global number, in the layers of a stage

# What a worker has of an iteration that is under way.


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Micro-batches, ascending, whose gradients are in a worker's own part of the sums over some layers' gradients."""

    layers: Layers
    microbatches: tuple[Index, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Stash:
    """Micro-batches, ascending, that are under way at a worker.

    After F their activations are kept; after I what their W is made from, and a part of their gradients (those of
    norms, embeddings and biases) is in the worker's sums already.

    Attributes:
        after: what was done last of them.
        microbatches: their global numbers.
        layers: [first, stop), those of one of the worker's virtual stages; None: all that it holds.
    """

    after: LastDone
    microbatches: tuple[Index, ...]
    layers: Layers | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"layers"})
    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages of micro-batches, ascending, at a boundary, that a worker has sent or received, and keeps."""

    kind: MessageKind
    boundary: LayerNumber
    microbatches: tuple[Index, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class SharedLayers:
    """Layers of the model that share parameters (tied weights), and whether their sum has ended at a worker."""

    layers: tuple[LayerNumber, ...]
    is_sealed: bool = False

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Standing:
    """What a worker has of an iteration under way; one that has begun nothing of it has nothing.

    All of it belongs to the state before the iteration's step: who has stepped already goes back first, and has the
    sums still.

    Attributes:
        worker: its name, by which it was started.
        layers: [first, stop) that it holds, or the first of several such ranges; None: it has no state.
        splits: whether the F that it runs are followed by I and W; else by B.
        ledger: its own part of the sums that have not ended here; every layer in at most one entry.
        sealed: layers whose sums over their holders have ended here, ascending, neighbours joined.
        stashes: what is under way.
        messages: what it keeps.
        ties: all sets of layers that share parameters, in one order for all workers. What a layer shares is in its
            own part of the sums as its own parameters are, and it is sealed with the last of its ties.
        further: the other ranges that it holds, ascending, none next to another; None: there are none.
    """

    worker: Name
    layers: Layers | None
    splits: bool = True
    ledger: tuple[LedgerEntry, ...] = ()
    sealed: tuple[Layers, ...] = ()
    stashes: tuple[Stash, ...] = ()
    messages: tuple[HeldMessages, ...] = ()
    ties: tuple[SharedLayers, ...] = ()
    further: tuple[Layers, ...] | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"further"})
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def is_empty(self) -> bool:
        """Whether the worker has nothing of the iteration."""
        return not (self.ledger or self.sealed or self.stashes or self.messages)

    @property
    def holds(self) -> tuple[Layers, ...]:
        """All ranges of layers that it holds."""
        return () if self.layers is None else (self.layers, *(self.further or ()))

    def covers(self, other: "Standing") -> bool:
        """Whether this is the other one, of the same worker, and maybe some messages more."""
        return replace(self, messages=other.messages) == other and self.message_keys >= other.message_keys

    @property
    def message_keys(self) -> set[MessageKey]:
        """The messages that it keeps, one by one."""
        return {(one.kind, one.boundary, number) for one in self.messages for number in one.microbatches}

    def stashed(self, stash: Stash) -> Layers:
        """The layers in which micro-batches of a stash of it are under way."""
        return stash.layers or self.layers or (0, 0)


def nothing_of(worker: str, holds: Sequence[Layers] | None) -> Standing:
    """The standing of a worker that has nothing of an iteration.

    Args:
        worker: its name.
        holds: ranges of layers that it holds; None: it has no state.
    """
    first, *further = holds or (None,)
    return Standing(worker, first, further=tuple(one for one in further if one) or None)


def common_standing(told: Sequence[Standing]) -> Standing:
    """What all ranks of a worker have of an iteration, of the standings that they tell.

    They stop at the same instruction, but one may have had a message by then that another was still to receive; where
    they are unlike in anything else there is nothing that all have.
    """
    first = told[0]
    if any(replace(one, messages=first.messages) != first for one in told):
        return nothing_of(first.worker, first.holds or None)
    return replace(first, messages=held_messages(set.intersection(*(one.message_keys for one in told))))


def layer_runs(layers: Iterable[int]) -> tuple[Layers, ...]:
    """Layers, ascending, neighbours joined."""
    numbers = sorted(set(layers))
    cuts = [place for place, (one, other) in enumerate(pairwise(numbers), start=1) if other != one + 1]
    starts = [0, *cuts, len(numbers)] if numbers else []
    return tuple((numbers[first], numbers[stop - 1] + 1) for first, stop in pairwise(starts))


def layers_in(runs: Iterable[Layers]) -> frozenset[int]:
    """The single layers of some ranges: `layer_runs` backwards."""
    return frozenset(chain.from_iterable(range(*layers) for layers in runs))


def holders_by_layer(plan: Plan) -> Counter[int]:
    """Of each layer how many live workers hold it."""
    return Counter(layer for worker in plan.live_workers() for layer in layers_in(plan.layers_of(worker)))


def ledger_entries(by_layer: Mapping[int, Collection[int]]) -> tuple[LedgerEntry, ...]:
    """The micro-batches of each layer as a ledger; neighbouring layers with the same ones stand together."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for layer, own in by_layer.items():
        alike.setdefault(tuple(sorted(own)), []).append(layer)
    entries = (LedgerEntry(run, own) for own, layers in alike.items() if own for run in layer_runs(layers))
    return tuple(sorted(entries, key=lambda entry: entry.layers))


def stashes_of(after: Mapping[int, LastDone], layers: Layers | None = None) -> tuple[Stash, ...]:
    """Micro-batches under way, each with what was done last, as stashes in some layers, or in all that are held."""
    kinds: tuple[LastDone, ...] = ("F", "I")
    own = ((kind, tuple(sorted(number for number, last in after.items() if last == kind))) for kind in kinds)
    return tuple(Stash(kind, numbers, layers) for kind, numbers in own if numbers)


def stashes_within(holds: Sequence[Layers], begun: Mapping[Begun, LastDone]) -> tuple[Stash, ...]:
    """Micro-batches under way in stages of a worker, each with what was done last, as stashes.

    Args:
        holds: the ranges of layers that it holds.
        begun: what is under way.
    """
    whole = holds[0] if len(holds) == 1 else None
    by_layers: dict[Layers, dict[int, LastDone]] = {}
    for (number, layers), last in begun.items():
        by_layers.setdefault(layers, {})[number] = last
    own = (stashes_of(after, None if layers == whole else layers) for layers, after in sorted(by_layers.items()))
    return tuple(chain.from_iterable(own))


def held_messages(messages: Iterable[MessageKey]) -> tuple[HeldMessages, ...]:
    """Messages as a standing has them."""
    held: dict[tuple[MessageKind, int], set[int]] = {}
    for kind, boundary, number in messages:
        held.setdefault((kind, boundary), set()).add(number)
    return tuple(HeldMessages(*way, tuple(sorted(numbers))) for way, numbers in sorted(held.items()))


# Who does what is left.


class RestOperation(NamedTuple):
    """An operation of what is left.

    Attributes:
        operation: with the pipeline and the number in it that the plan to follow gives the micro-batch.
        layers: [first, stop) that it computes, all of them held by its worker.
        accumulates: whether its gradients go into the sums; False for what is only computed again for the messages that
            come of it.
    """

    operation: Operation
    layers: Layers
    accumulates: bool = True

    @property
    def kind(self) -> Kind:
        """F, I, W or B."""
        return self.operation.kind


_REST = re.compile(rf"({NUMBER})?{TOKEN}{SUFFIX}")
SeatLayers = Mapping[int | None, Layers]  # the layers of each virtual stage of a worker; of its only one by None


def seats_in(plan: Plan, worker: Worker) -> SeatLayers:
    """What a worker of a plan holds."""
    numbers, stages = plan.seats_of(worker), plan.stages_of(worker)
    return {number if len(numbers) > 1 else None: one.layers for number, one in zip(numbers, stages, strict=True)}


def seat_at(seats: SeatLayers, layers: Layers) -> int | None:
    """The virtual stage of a worker that some layers are of, which are of one; None: its only one."""
    return next(seat for seat, (first, stop) in seats.items() if first <= layers[0] and layers[1] <= stop)


def parse_rest_order(text: str, pipeline: int, seats: SeatLayers) -> tuple[RestOperation, ...]:
    """Read the order of a worker.

    Operations are as in a plan; `F1.3:4-6` is of some of its layers only, `I2~` for the message alone.

    Args:
        text: operations separated by single spaces.
        pipeline: the worker's own one, that of operations without a prefix.
        seats: what it holds; operations that say no layers are of all those of their stage.

    Raises:
        InvalidInputError: a token is no operation of the worker.
    """
    found = []
    for token in text.split(" ") if text else ():
        match = _REST.fullmatch(token)
        stage = None if match is None or match[1] is None else int(match[1])
        if match is None or stage not in seats:
            held = [number for number in seats if number is not None]
            shown = "F1.3" if not held else f"{held[0]}F1.3 (the virtual stages here are {listed(map(str, held))})"
            raise InvalidInputError(
                f"{token!r} is not an operation of what is left",
                fix=f"write {shown}, F1.3:4-6 of the layers 4 and 5 only, or I1.3~ for the message alone",
            )
        _, kind, other, microbatch, first, stop, again = match.groups()
        operation = Operation(cast(Kind, kind), pipeline if other is None else int(other), int(microbatch), stage)
        layers = seats[stage] if first is None else (int(first), int(stop))
        found.append(RestOperation(operation, layers, again is None))
    return tuple(found)


def print_rest_operation(one: RestOperation, pipeline: int, layers: Layers) -> str:
    """The token of an operation that `parse_rest_order` reads.

    Args:
        one: the operation.
        pipeline: its worker's own one.
        layers: all those of its stage.
    """
    part = "" if one.layers == layers else f":{one.layers[0]}-{one.layers[1]}"
    return f"{print_operation(one.operation, pipeline)}{part}{'' if one.accumulates else '~'}"


@dataclass(frozen=True, slots=True)
class SumCopy:
    """The worker at the place `source` sends the sums over the gradients of some layers, which have ended there.

    With them go those of `ties`, sets of layers that share parameters.
    """

    source: Name
    target: Name
    layers: Layers
    ties: tuple[tuple[LayerNumber, ...], ...] = ()

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Resend:
    """The worker at the place `source` sends a message that it has kept; places `k/i` are those of the plan."""

    source: Name
    target: Name
    kind: MessageKind
    microbatch: Index
    boundary: LayerNumber

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class RestWorker:
    """A live worker of the plan to follow.

    Attributes:
        place: k/i.
        worker: the name of who takes it.
        order: what it runs (`parse_rest_order`).
        given_up: of what its standing has, layers whose part of the sums it drops.
    """

    place: Name
    worker: Name
    order: str = ""
    given_up: tuple[Layers, ...] = ()

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class RestPrediction:
    """What is left takes `makespan_s`, and no order and no routing could take less than `lower_bound_s`.

    `redo_s` is what the whole iteration takes by the plan to follow; `gap` is makespan_s / lower_bound_s - 1.
    """

    makespan_s: Seconds
    lower_bound_s: Seconds
    gap: Ratio
    redo_s: Seconds

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True)
class Rest:
    """What is left of an iteration.

    Attributes:
        iteration: its number.
        standings: what everybody has who is there, in the order of the workers.
        workers: the plan's live workers, in its order.
        sealed: layers whose sums have ended somewhere: nothing is left of them but copies. Neighbours joined.
        copies: of these sums, to holders that lack them.
        sends: of kept messages, each before its sender's first operation, in this order.
        prediction: how long it takes.
    """

    iteration: Index
    standings: tuple[Standing, ...]
    workers: tuple[RestWorker, ...]
    sealed: tuple[Layers, ...] = ()
    copies: tuple[SumCopy, ...] = ()
    sends: tuple[Resend, ...] = ()
    prediction: RestPrediction | None = None

    OPTIONAL: ClassVar[frozenset[str]] = frozenset({"prediction"})
    __pydantic_config__: ClassVar[Any] = STRICT

    def operations(self, number: int, plan: Plan) -> tuple[RestOperation, ...]:
        """What the live worker `number` of the plan runs."""
        worker = plan.live_workers()[number]
        return parse_rest_order(self.workers[number].order, worker.pipeline, seats_in(plan, worker))

    def standing_of(self, number: int) -> Standing:
        """What the live worker `number` of the plan has."""
        return self._standing_by_worker[self.workers[number].worker]

    @cached_property
    def _standing_by_worker(self) -> dict[str, Standing]:
        return {standing.worker: standing for standing in self.standings}

    def kept(self, number: int, plan: Plan) -> dict[int, tuple[Layers, ...]]:
        """The micro-batches whose gradients the live worker `number` keeps in its part of the sums, and the layers.

        These are cut where a stage ends.
        """
        stages = seats_in(plan, plan.live_workers()[number]).values()
        mine = layers_in(stages) - layers_in((*self.workers[number].given_up, *self.sealed))
        layers_of: dict[int, set[int]] = {}
        for entry in self.standing_of(number).ledger:
            layers = mine.intersection(range(*entry.layers))
            for microbatch in entry.microbatches if layers else ():
                layers_of.setdefault(microbatch, set()).update(layers)
        return {
            microbatch: tuple(run for stage in stages for run in layer_runs(layers.intersection(range(*stage))))
            for microbatch, layers in sorted(layers_of.items())
        }

    def taken_up(self, number: int, plan: Plan) -> dict[Begun, LastDone]:
        """The micro-batches under way with which the live worker `number` goes on, and what of them was done last."""
        standing = self.standing_of(number)
        if not standing.stashes:
            return {}
        begun: set[Begun] = set()
        gone_on: set[Begun] = set()
        for one in self.operations(number, plan):
            if one.accumulates:
                microbatch = plan.microbatch_offset(one.operation.pipeline) + one.operation.microbatch
                (begun if one.kind == "F" else gone_on).add((microbatch, one.layers))
        taken = gone_on - begun
        own = [((m, standing.stashed(stash)), stash.after) for stash in standing.stashes for m in stash.microbatches]
        return {key: after for key, after in own if key in taken}

    def passes_kept(self, plan: Plan) -> int:
        """Forward and backward passes of a micro-batch at a worker that stay done, all together.

        They are in parts of sums, or in sums of whole stages that have ended, or under way and gone on with.
        """
        sealed, count = layers_in(self.sealed), 0
        for number, worker in enumerate(plan.live_workers()):
            count += 2 * sum(map(len, self.kept(number, plan).values()))
            count += sum(1 if last == "F" else 2 for last in self.taken_up(number, plan).values())
            ended = {seat for seat, layers in seats_in(plan, worker).items() if sealed.issuperset(range(*layers))}
            count += sum(one.kind != "W" and one.stage in ended for one in worker.operations()) if ended else 0
        return count


@dataclass(frozen=True)
class Resumption(Displayed):
    """A plan, and what is left of the iteration before which it could not wait; good for that one iteration."""

    planner: Planner
    plan: Plan
    rest: Rest
    inputs: dict[str, str] = field(default_factory=dict)

    FORMAT: ClassVar[str] = "rtk.resumption"
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()
    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def has_degrees(self) -> bool:
        """Whether its plan does."""
        return self.plan.has_degrees

    @property
    def shards_optimizer(self) -> bool:
        """Whether its plan does."""
        return self.plan.shards_optimizer

    @property
    def is_placed(self) -> bool:
        """Whether some worker holds, or did, several virtual stages; then it is a document of format version 2.0."""
        told = self.rest.standings
        return self.plan.is_placed or any(one.further or any(stash.layers for stash in one.stashes) for one in told)

    @property
    def may_pair(self) -> bool:
        """Whether its plan says what pairs of passes take; then it is a document of format version 3.0."""
        return self.plan.may_pair

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other; what they mean is the checker's to judge."""
        self.plan.validate()
        live = self.plan.live_workers()
        places = [worker.name for worker in live]
        if [one.place for one in self.rest.workers] != places:
            raise InvalidInputError(
                "the workers are not those that live in the plan",
                where="/rest/workers",
                fix=f"list {', '.join(places[:8])}{', …' if len(places) > 8 else ''} in this order",
            )
        for number in range(len(live)):
            try:
                self.rest.operations(number, self.plan)
            except InvalidInputError as error:
                raise InvalidInputError(error.what, where=f"/rest/workers/{number}/order", fix=error.fix) from None
