"""Resumption: who does what is left of an iteration in which workers were lost, so that nothing is done twice.

Micro-batches have their global numbers, 0 up to those of all pipelines, which plans with other pipelines share. A
boundary b lies between the layers b - 1 and b: the activation at it is what layer b takes, the gradient at it is that
of what layer b - 1 gives.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, ClassVar, Literal, NamedTuple, cast

from .display import Displayed
from .errors import InvalidInputError
from .fields import STRICT, Index, LayerNumber, Name, Ratio, Seconds
from .orders import SUFFIX, TOKEN, Kind, Operation, print_operation
from .plan import Layers, Plan, Planner

MessageKind = Literal["activation", "gradient"]
MessageKey = tuple[MessageKind, int, int]  # a message: its kind, its boundary and its global micro-batch

# What a worker has of an iteration that is under way.


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Micro-batches, ascending, whose gradients are in a worker's own part of the sums over some layers' gradients."""

    layers: Layers
    microbatches: tuple[Index, ...]

    __pydantic_config__: ClassVar[Any] = STRICT


@dataclass(frozen=True, slots=True)
class Stash:
    """Micro-batches, ascending, that are under way at a worker, in all the layers that it holds.

    After F their activations are kept; after I what their W is made from, and a part of their gradients (those of
    norms, embeddings and biases) is in the worker's sums already.
    """

    after: Literal["F", "I"]
    microbatches: tuple[Index, ...]

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
        layers: [first, stop) that it holds; None: it has no state.
        splits: whether the F that it runs are followed by I and W; else by B.
        ledger: its own part of the sums that have not ended here; every layer in at most one entry.
        sealed: layers whose sums over their holders have ended here, ascending, neighbours joined.
        stashes: what is under way.
        messages: what it keeps.
        ties: all sets of layers that share parameters, in one order for all workers. What a layer shares is in its
            own part of the sums as its own parameters are, and it is sealed with the last of its ties.
    """

    worker: Name
    layers: Layers | None
    splits: bool = True
    ledger: tuple[LedgerEntry, ...] = ()
    sealed: tuple[Layers, ...] = ()
    stashes: tuple[Stash, ...] = ()
    messages: tuple[HeldMessages, ...] = ()
    ties: tuple[SharedLayers, ...] = ()

    __pydantic_config__: ClassVar[Any] = STRICT

    @property
    def is_empty(self) -> bool:
        """Whether the worker has nothing of the iteration."""
        return not (self.ledger or self.sealed or self.stashes or self.messages)


def layer_runs(layers: Iterable[int]) -> tuple[Layers, ...]:
    """Layers, ascending, neighbours joined."""
    numbers = sorted(set(layers))
    cuts = [place for place, (one, other) in enumerate(pairwise(numbers), start=1) if other != one + 1]
    starts = [0, *cuts, len(numbers)] if numbers else []
    return tuple((numbers[first], numbers[stop - 1] + 1) for first, stop in pairwise(starts))


def layers_in(runs: Iterable[Layers]) -> frozenset[int]:
    """The single layers of some ranges: `layer_runs` backwards."""
    return frozenset(chain.from_iterable(range(*layers) for layers in runs))


def ledger_entries(by_layer: Mapping[int, Collection[int]]) -> tuple[LedgerEntry, ...]:
    """The micro-batches of each layer as a ledger; neighbouring layers with the same ones stand together."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for layer, own in by_layer.items():
        alike.setdefault(tuple(sorted(own)), []).append(layer)
    entries = (LedgerEntry(run, own) for own, layers in alike.items() if own for run in layer_runs(layers))
    return tuple(sorted(entries, key=lambda entry: entry.layers))


def stashes_of(after: Mapping[int, Literal["F", "I"]]) -> tuple[Stash, ...]:
    """Micro-batches under way, each with what was done last, as stashes."""
    kinds: tuple[Literal["F", "I"], ...] = ("F", "I")
    own = ((kind, tuple(sorted(number for number, last in after.items() if last == kind))) for kind in kinds)
    return tuple(Stash(kind, numbers) for kind, numbers in own if numbers)


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


_REST = re.compile(TOKEN + SUFFIX)


def parse_rest_order(text: str, pipeline: int, layers: Layers) -> tuple[RestOperation, ...]:
    """Read the order of a worker.

    Operations are as in a plan; `F1.3:4-6` is of some of its layers only, `I2~` for the message alone.

    Args:
        text: operations separated by single spaces.
        pipeline: the worker's own one, that of operations without a prefix.
        layers: those it holds, of operations that say none.

    Raises:
        InvalidInputError: a token is no operation.
    """
    found = []
    for token in text.split(" ") if text else ():
        match = _REST.fullmatch(token)
        if match is None:
            raise InvalidInputError(
                f"{token!r} is not an operation of what is left",
                fix="write F1.3, F1.3:4-6 of the layers 4 and 5 only, or I1.3~ for the message alone",
            )
        kind, other, microbatch, first, stop, again = match.groups()
        operation = Operation(cast(Kind, kind), pipeline if other is None else int(other), int(microbatch))
        found.append(RestOperation(operation, layers if first is None else (int(first), int(stop)), again is None))
    return tuple(found)


def print_rest_operation(one: RestOperation, pipeline: int, layers: Layers) -> str:
    """The token of an operation that `parse_rest_order` reads; pipeline and layers as there."""
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
        return parse_rest_order(self.workers[number].order, worker.pipeline, plan.stage_of(worker).layers)

    def standing_of(self, number: int) -> Standing:
        """What the live worker `number` of the plan has."""
        return self._standing_by_worker[self.workers[number].worker]

    @cached_property
    def _standing_by_worker(self) -> dict[str, Standing]:
        return {standing.worker: standing for standing in self.standings}

    def kept(self, number: int, plan: Plan) -> dict[int, tuple[Layers, ...]]:
        """The micro-batches whose gradients the live worker `number` keeps in its part of the sums, and the layers."""
        stage = plan.stage_of(plan.live_workers()[number]).layers
        mine = set(range(*stage)) - layers_in((*self.workers[number].given_up, *self.sealed))
        layers_of: dict[int, set[int]] = {}
        for entry in self.standing_of(number).ledger:
            layers = mine.intersection(range(*entry.layers))
            for microbatch in entry.microbatches if layers else ():
                layers_of.setdefault(microbatch, set()).update(layers)
        return {microbatch: layer_runs(layers) for microbatch, layers in sorted(layers_of.items())}

    def taken_up(self, number: int, plan: Plan) -> dict[int, Literal["F", "I"]]:
        """The micro-batches under way with which the live worker `number` goes on, and what of them was done last."""
        stashes = self.standing_of(number).stashes
        if not stashes:
            return {}
        stage = plan.stage_of(plan.live_workers()[number]).layers
        begun: set[int] = set()
        gone_on: set[int] = set()
        for one in self.operations(number, plan):
            if one.accumulates and one.layers == stage:
                microbatch = plan.microbatch_offset(one.operation.pipeline) + one.operation.microbatch
                (begun if one.kind == "F" else gone_on).add(microbatch)
        taken = gone_on - begun
        return {m: stash.after for stash in stashes for m in stash.microbatches if m in taken}

    def passes_kept(self, plan: Plan) -> int:
        """Forward and backward passes of a micro-batch at a worker that stay done, all together.

        They are in parts of sums, or in sums of whole stages that have ended, or under way and gone on with.
        """
        sealed, count = layers_in(self.sealed), 0
        for number, worker in enumerate(plan.live_workers()):
            count += 2 * sum(map(len, self.kept(number, plan).values()))
            count += sum(1 if last == "F" else 2 for last in self.taken_up(number, plan).values())
            if sealed.issuperset(range(*plan.stage_of(worker).layers)):
                count += sum(one.kind != "W" for one in worker.operations())
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

    def validate(self) -> None:
        """Raise InvalidInputError where the parts contradict each other; what they mean is the checker's to judge."""
        self.plan.validate()
        if self.plan.is_placed:
            raise InvalidInputError(
                "the plan has a placement: nothing is left of an iteration before it, which is done anew",
                where="/plan/templates",
                fix="take the plan alone",
            )
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
