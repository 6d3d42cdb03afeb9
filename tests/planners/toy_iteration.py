"""Iterations of toy models whose values are whole numbers modulo a prime, so that sums are exact in whatever order.

A worker executes operations, keeps what `schemas/resumption.py` says of a standing, and sums gradients with its peers;
everything that the real workers do about a lost worker, without processes, time or torch. Layer l makes of x the output
a x + b; the gradient of its output g becomes a g. Of its parameters' gradients that of a (g x) is made by W, that of b
(g) by I, as those of norms and biases are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from rtk.schemas.plan import Layers, Plan, Worker
from rtk.schemas.resumption import (
    Rest,
    RestOperation,
    SharedLayers,
    Standing,
    held_messages,
    layer_runs,
    layers_in,
    ledger_entries,
    nothing_of,
    stashes_within,
)

from ..strategies import number_of

PRIME = (1 << 61) - 1
Message = tuple[str, int, int]  # kind, boundary, global micro-batch
Gradient = tuple[int, int]  # of a and of b


@dataclass(frozen=True)
class ToyModel:
    """So many layers, and the sets of those that share parameters."""

    layers: int
    ties: tuple[tuple[int, ...], ...] = ()

    def factor(self, layer: int) -> int:
        """What a layer multiplies with."""
        return 1_000_003 * (layer + 1) + 17

    def forward(self, layer: int, value: int) -> int:
        """The output."""
        return (self.factor(layer) * value + layer) % PRIME

    def backward(self, layer: int, gradient: int) -> int:
        """The gradient of the input."""
        return self.factor(layer) * gradient % PRIME

    def sample(self, microbatch: int) -> int:
        """What the first layer takes."""
        return 7_919 * microbatch + 1

    def loss_gradient(self, value: int) -> int:
        """The gradient of the last layer's output."""
        return (3 * value + 5) % PRIME

    def gradients(self, microbatches: int) -> list[Gradient]:
        """What the sums must be: of each layer."""
        sums = [(0, 0)] * self.layers
        for microbatch in range(microbatches):
            values = [self.sample(microbatch)]
            for layer in range(self.layers):
                values.append(self.forward(layer, values[-1]))
            gradient = self.loss_gradient(values[-1])
            for layer in reversed(range(self.layers)):
                sums[layer] = added(sums[layer], (gradient * values[layer] % PRIME, gradient))
                gradient = self.backward(layer, gradient)
        return sums


def added(one: Gradient, other: Gradient) -> Gradient:
    """The sum of two gradients."""
    return (one[0] + other[0]) % PRIME, (one[1] + other[1]) % PRIME


def total_of(gradients: Iterable[Gradient]) -> Gradient:
    """The sum of them."""
    total = (0, 0)
    for one in gradients:
        total = added(total, one)
    return total


@dataclass
class UnderWay:
    """A micro-batch in some layers, between its F and the end of its backward pass."""

    layers: Layers
    after: str
    values: list[int]
    gradients: list[int] = field(default_factory=list)


class ToyWorker:
    """What a worker has; `own` are its parts of the sums, `sums` those that have ended."""

    def __init__(self, name: str) -> None:
        self.name, self.splits = name, True
        self.stages: tuple[Layers, ...] = ()
        self.clear()

    @property
    def held(self) -> frozenset[int]:
        """The layers of all its stages."""
        return layers_in(self.stages)

    def clear(self) -> None:
        """Nothing of the iteration."""
        self.own: dict[int, Gradient] = {}
        self.ledger: dict[int, set[int]] = {}
        self.sums: dict[int, Gradient] = {}
        self.tie_sums: dict[tuple[int, ...], int] = {}
        self.log: dict[Message, int] = {}
        self.under_way: dict[tuple[int, Layers, bool], UnderWay] = {}

    def standing(self, model: ToyModel) -> Standing:
        """What it tells. Of parts of its layers W is run first, for what their I has added could not be told."""
        for (m, layers, counts), one in list(self.under_way.items()):
            if counts and layers not in self.stages and one.after == "I":
                weigh(self, m, one)
                del self.under_way[m, layers, counts]
        whole = {
            (m, layers): one.after
            for (m, layers, counts), one in self.under_way.items()
            if counts and layers in self.stages
        }
        holds = layer_runs(self.held)
        return replace(
            nothing_of(self.name, holds or None),
            splits=self.splits,
            ledger=ledger_entries(self.ledger),
            sealed=layer_runs(self.sums),
            stashes=stashes_within(holds, whole),  # type: ignore[arg-type]
            messages=held_messages(self.log),  # type: ignore[arg-type]
            ties=tuple(SharedLayers(tie, tie in self.tie_sums) for tie in model.ties) if holds else (),
        )


@dataclass(frozen=True)
class Part:
    """Layers that the same workers hold, which are summed at once; or those of a tie."""

    layers: tuple[int, ...]
    holders: frozenset[int]
    is_tie: bool = False


class ToyEpoch:
    """Workers that run operations until all sums have ended, or somebody interrupts them.

    Args:
        model: what they train.
        plan: whose live workers they are.
        workers: in their order.
        orders: what each runs.
        sealed: layers that are not summed any more.
        rng: chooses who goes on, and when what was sent arrives.
    """

    def __init__(
        self,
        model: ToyModel,
        plan: Plan,
        workers: Sequence[ToyWorker],
        orders: Sequence[Sequence[RestOperation]],
        sealed: Sequence[Layers],
        rng: Random,
    ) -> None:
        self.model, self.plan, self.workers, self.rng = model, plan, workers, rng
        self.orders = [list(order) for order in orders]
        self.next = [0] * len(workers)
        self.coming: list[tuple[int, Message, int]] = []
        self.taker: dict[Message, int] = {}
        for number, order in enumerate(self.orders):
            for one in order:
                message = self.input_of(one)
                if message is not None:
                    assert message not in self.taker
                    self.taker[message] = number
        self.parts = list(self._parts(sealed))
        self.joined: dict[Part, dict[int, Gradient]] = {part: {} for part in self.parts}
        self.summed: list[set[Part]] = [set() for _ in workers]

    def input_of(self, one: RestOperation) -> Message | None:
        """The message that an operation takes."""
        (first, stop), number = one.layers, number_of(self.plan, one.operation)
        if one.kind == "F":
            return ("activation", first, number) if first > 0 else None
        return ("gradient", stop, number) if one.kind != "W" and stop < self.model.layers else None

    def resend(self, rest: Rest) -> None:
        """Send what is kept."""
        place = {worker.place: number for number, worker in enumerate(rest.workers)}
        for one in rest.sends:
            message = one.kind, one.boundary, one.microbatch
            self.coming.append((place[one.target], message, self.workers[place[one.source]].log[message]))

    def run(self, steps: int | None = None) -> bool:
        """Go on for so many steps; gives whether it is all done."""
        while steps is None or steps > 0:
            choices = [*self._choices()]
            if not choices:
                assert all(place == len(order) for place, order in zip(self.next, self.orders, strict=True)), "deadlock"
                return True
            what, number = self.rng.choice(choices)
            what(number)
            steps = None if steps is None else steps - 1
        return False

    def _choices(self) -> Iterator[tuple[Callable[[int], None], int]]:
        for number in range(len(self.coming)):
            yield self._arrive, number
        for number, worker in enumerate(self.workers):
            if self.next[number] < len(self.orders[number]):
                message = self.input_of(self.orders[number][self.next[number]])
                if message is None or message in worker.log:
                    yield self._operate, number
            elif (part := self._next_part(number)) is not None and (
                number not in self.joined[part] or len(self.joined[part]) == len(part.holders)
            ):
                yield self._sum, number

    def _arrive(self, number: int) -> None:
        target, message, value = self.coming.pop(number)
        self.workers[target].log[message] = value

    def _operate(self, number: int) -> None:
        worker, one = self.workers[number], self.orders[number][self.next[number]]
        self.next[number] += 1
        message = run_operation(self.model, worker, one, number_of(self.plan, one.operation))
        if message is not None and self.taker.get(message, number) != number:
            target = self.taker[message]
            if message not in self.workers[target].log and all(one[:2] != (target, message) for one in self.coming):
                self.coming.append((target, message, worker.log[message]))

    def _parts(self, sealed: Sequence[Layers]) -> Iterator[Part]:
        done = {layer for first, stop in sealed for layer in range(first, stop)}
        held = [worker.held for worker in self.workers]
        holders = [frozenset(n for n, own in enumerate(held) if layer in own) for layer in range(self.model.layers)]
        for layer in reversed(range(self.model.layers)):
            if layer not in done:
                yield Part((layer,), holders[layer])
        for tie in self.model.ties:
            if not done.issuperset(tie):
                yield Part(tie, frozenset(n for n, own in enumerate(held) if own.intersection(tie)), is_tie=True)

    def _next_part(self, number: int) -> Part | None:
        return next((one for one in self.parts if number in one.holders and one not in self.summed[number]), None)

    def _sum(self, number: int) -> None:
        """Give the own part; once all have, take the sum."""
        part, worker = self._next_part(number), self.workers[number]
        assert part is not None
        if number not in self.joined[part]:
            self.joined[part][number] = total_of(worker.own.get(layer, (0, 0)) for layer in part.layers)
            return
        self.summed[number].add(part)
        total = total_of(self.joined[part].values())
        if part.is_tie:
            worker.tie_sums[part.layers] = total[0]
        else:
            worker.sums[part.layers[0]] = total
        for layer in list(worker.sums):
            if all(tie in worker.tie_sums for tie in self.model.ties if layer in tie):
                worker.own.pop(layer, None)
                worker.ledger.pop(layer, None)


def run_operation(model: ToyModel, worker: ToyWorker, one: RestOperation, microbatch: int) -> Message | None:
    """Run an operation at a worker; gives the message that comes of it, which is in its log then."""
    first, stop = one.layers
    assert first < stop and any(own[0] <= first and stop <= own[1] for own in worker.stages)
    key = microbatch, one.layers, one.accumulates
    if one.kind == "F":
        values = [model.sample(microbatch) if first == 0 else worker.log["activation", first, microbatch]]
        for layer in range(first, stop):
            values.append(model.forward(layer, values[-1]))
        assert key not in worker.under_way
        worker.under_way[key] = UnderWay(one.layers, "F", values)
        message: Message = ("activation", stop, microbatch)
        if stop == model.layers:
            return None
        worker.log[message] = values[-1]
        return message
    under_way = worker.under_way[key]
    if one.kind in "IB":
        assert under_way.after == "F" and (one.kind == "I") == worker.splits
        last = stop == model.layers
        gradient = model.loss_gradient(under_way.values[-1]) if last else worker.log["gradient", stop, microbatch]
        under_way.gradients = [gradient]
        for layer in reversed(range(first, stop)):
            if one.accumulates:
                worker.own[layer] = added(worker.own.get(layer, (0, 0)), (0, gradient))
            gradient = model.backward(layer, gradient)
            under_way.gradients.insert(0, gradient)
        under_way.after = "I"
    if one.kind in "WB" and one.accumulates:
        assert under_way.after == "I"
        weigh(worker, microbatch, under_way)
    if one.kind in "WB" or not one.accumulates:
        del worker.under_way[key]
    if one.kind == "W" or first == 0:
        return None
    worker.log["gradient", first, microbatch] = under_way.gradients[0]
    return "gradient", first, microbatch


def weigh(worker: ToyWorker, microbatch: int, one: UnderWay) -> None:
    """What W does."""
    for place, layer in enumerate(range(*one.layers)):
        weight = one.gradients[place + 1] * one.values[place] % PRIME
        worker.own[layer] = added(worker.own.get(layer, (0, 0)), (weight, 0))
        assert microbatch not in worker.ledger.setdefault(layer, set())
        worker.ledger[layer].add(microbatch)


def stages_of(plan: Plan, worker: Worker) -> tuple[Layers, ...]:
    """The layers of each stage of a worker."""
    return tuple(stage.layers for stage in plan.stages_of(worker))


def take_over(plan: Plan, rest: Rest, workers: Sequence[ToyWorker]) -> None:
    """What workers do before they go on with a rest: drop what is given up, copy sums, take their new layers."""
    sealed = {layer for first, stop in rest.sealed for layer in range(first, stop)}
    place = {one.place: workers[number] for number, one in enumerate(rest.workers)}
    copied = [
        (place[copy.target], {n: place[copy.source].sums[n] for n in range(*copy.layers)},
         {tie: place[copy.source].tie_sums[tie] for tie in copy.ties})
        for copy in rest.copies
    ]  # fmt: skip
    for number, (worker, one) in enumerate(zip(plan.live_workers(), rest.workers, strict=True)):
        who, stages = workers[number], stages_of(plan, worker)
        held = layers_in(stages)
        kept = who.held & held - layers_in(one.given_up)
        who.own = {layer: own for layer, own in who.own.items() if layer in kept - sealed}
        who.ledger = {layer: own for layer, own in who.ledger.items() if layer in kept - sealed}
        who.sums = {layer: own for layer, own in who.sums.items() if layer in sealed & held}
        who.tie_sums = {tie: own for tie, own in who.tie_sums.items() if sealed.issuperset(tie)}
        who.stages = stages
        kinds: dict[tuple[int, Layers, bool], set[str]] = {}
        for own in rest.operations(number, plan):
            kinds.setdefault((number_of(plan, own.operation), own.layers, own.accumulates), set()).add(own.kind)
        goes_on = {key for key, found in kinds.items() if key[2] and "F" not in found}
        who.under_way = {key: under_way for key, under_way in who.under_way.items() if key in goes_on}
    for target, sums, tie_sums in copied:
        target.sums |= sums
        target.tie_sums |= tie_sums


def check_done(model: ToyModel, workers: Sequence[ToyWorker], microbatches: int) -> None:
    """Every worker has the whole sums of its layers, and of what these share."""
    wanted = model.gradients(microbatches)
    for worker in workers:
        assert worker.stages
        for layer in worker.held:
            assert worker.sums[layer] == wanted[layer], (worker.name, layer)
        for tie in model.ties:
            if worker.held.intersection(tie):
                assert worker.tie_sums[tie] == total_of(wanted[layer] for layer in tie)[0]
