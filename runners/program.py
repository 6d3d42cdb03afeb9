"""A plan lowered to one program per worker: what both runners execute.

A program is a straight list of instructions: compute, send, receive, begin a sum, all-reduce, step. Receives stand
right before the operation that needs the message; a runner may post them earlier. Sends never block. Where a worker
holds a virtual stage and the one behind it, nothing is sent between them: an operation whose message is not received
takes the one that its own rank has made.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise, takewhile
from typing import Literal

from ..schemas.orders import Operation
from ..schemas.plan import Layers, Plan, Stage, Worker
from ..schemas.resumption import Rest


@dataclass(frozen=True, slots=True)
class Message:
    """What goes over a link for one micro-batch: an activation down, or a gradient up, link `link`.

    Link i lies between stages i and i+1, which are virtual ones where the plan has a placement.
    """

    kind: Literal["activation", "gradient"]
    pipeline: int
    microbatch: int
    link: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run one operation.

    Attributes:
        operation: which.
        layers: [first, stop) that it runs: of several stages that the worker holds the one that the operation names,
            or in what is left of an iteration a part of it; None: all that the worker holds.
        accumulates: whether its gradients go into the sums; else it is run for the message that comes of it.
    """

    operation: Operation
    layers: Layers | None = None
    accumulates: bool = True


@dataclass(frozen=True, slots=True)
class Pair:
    """Run a forward and a full backward of two micro-batches side by side.

    Both begin when the messages of both are there, which are received before; what both send stands behind it.
    """

    forward: Compute
    backward: Compute


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a rank; it arrives delay_s later.

    Where it `is_kept`, it is one that was sent, or came, before this program began; else what was computed last, of a
    pair the activation of its forward, or the gradient of its backward.
    """

    message: Message
    to: int
    delay_s: float
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a message from a rank."""

    message: Message
    source: int


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """Consecutive layers [first, stop) of a stage that the same ranks hold; the gradients are summed over these.

    It takes `duration_s` once all of them are there: of each stage's all-reduce its share of the layers, the longest.
    """

    layers: Layers
    ranks: tuple[int, ...]
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TiedBucket:
    """What layers share with each other (tied weights); its gradients are summed over all ranks that hold one of them.

    A rank that holds several has one parameter for them, and gives the gradient of all its uses.
    """

    layers: tuple[int, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the gradients of a worker's layers over all that hold them.

    A sum over holders needs no weights: every gradient is one of micro-batches' losses, each divided by the number of
    micro-batches of all pipelines, so who has executed more of them counts for more by itself.

    Attributes:
        parts: what is to be summed with whom, one after the other, the last layers first, for backward passes end with
            the first: so who has ended does not wait for somebody who still computes. All ranks go through the layers
            in this order, so none wait for each other. One part for each stage where all cut alike.
        ties: what the layers share, also with layers of other stages, after all parts, for it is there when the
            earliest of these layers' backward passes have ended; in one order for all ranks.
        sealed: in what is left of an iteration, parts whose sums, those of their ties too, are there already.
    """

    parts: tuple[GradientBucket, ...]
    ties: tuple[TiedBucket, ...] = ()
    sealed: tuple[GradientBucket, ...] = ()

    @property
    def duration_s(self) -> float:
        """All parts, without waiting for anybody."""
        return sum(part.duration_s for part in self.parts)

    @property
    def groups(self) -> frozenset[tuple[int, ...]]:
        """All groups of ranks that something is summed over."""
        return frozenset({*(part.ranks for part in self.parts), *(tie.ranks for tie in self.ties)})


@dataclass(frozen=True, slots=True)
class BeginSum:
    """Begin to sum a part of a worker's gradients that is whole, though the worker has other stages' still to compute.

    Nobody waits for it before the all-reduce: where chunks are re-routed, holders end their chunks in unlike orders,
    and to wait amid an order for who waits for a message of ours would be a deadlock. All ranks begin the sums that
    they have in common in one order, that of `AllReduce`, so a part is begun once those before it are whole as well.
    All workers of such a plan begin their sums, those of one stage behind all else: sums that are begun, and others,
    need not go the same way (`Transport`).

    A plan does not promise it: in its prediction, and for the simulator, all sums begin when the window ends.
    """

    part: GradientBucket


@dataclass(frozen=True, slots=True)
class Step:
    """Step the optimizer; with `everyone`, only after all ranks' gradients are reduced (synchronous optimizer)."""

    everyone: bool
    duration_s: float


Instruction = Compute | Pair | Send | Receive | BeginSum | AllReduce | Step


def computed_by(one: Instruction) -> tuple[Compute, ...]:
    """The operations that an instruction runs: two of a pair, none of most."""
    match one:
        case Compute():
            return (one,)
        case Pair(forward, backward):
            return forward, backward
        case _:
            return ()


def computed_in(instructions: Iterable[Instruction]) -> Iterator[Compute]:
    """The operations that instructions run, in their order; of a pair the forward first."""
    return chain.from_iterable(map(computed_by, instructions))


@dataclass(frozen=True)
class Program:
    """The programs of all live workers: rank r is `workers[r]` and runs `instructions[r]`.

    Of what is left of an iteration (`rest`) messages have boundaries of layers (schemas/resumption.py) for links, and
    an operation whose message is not received takes the one that its rank has kept, or made itself.
    """

    plan: Plan
    workers: tuple[Worker, ...]
    instructions: tuple[tuple[Instruction, ...], ...]
    rest: Rest | None = None

    def layers_of(self, rank: int, one: Compute) -> Layers:
        """[first, stop) that an operation of a rank runs."""
        return one.layers or self.plan.stage_of(self.workers[rank]).layers

    def at_boundary(self, message: Message) -> Message:
        """A message, with the boundary of layers that it flows over for a link."""
        if self.rest is not None:
            return message
        stages = self.plan.template_of(message.pipeline).stages
        return replace(message, link=stages[message.link].layers[1])

    def own_messages(self, rank: int) -> frozenset[Message]:
        """Those that operations of a rank take without receiving them, with boundaries of layers for links.

        The rank has made them itself, or kept them (`rest`).
        """
        instructions, total = self.instructions[rank], self.plan.total_layers()
        received = {self.at_boundary(one.message) for one in instructions if isinstance(one, Receive)}
        computed = computed_in(instructions)
        taken = (taken_by(one.operation, self.layers_of(rank, one), total) for one in computed)
        return frozenset(message for message in taken if message is not None and message not in received)

    def reduction(self, rank: int) -> AllReduce:
        """The all-reduce of a rank."""
        return next(one for one in self.instructions[rank] if isinstance(one, AllReduce))

    def peers(self, rank: int) -> tuple[int, ...]:
        """The other ranks that a rank sums its layers' gradients with, ascending; not those with a tied layer only."""
        return tuple(sorted({peer for part in self.reduction(rank).parts for peer in part.ranks} - {rank}))


def lower(plan: Plan, ties: Sequence[tuple[int, ...]] = ()) -> Program:
    """Lower a valid plan (schemas/check.py) to programs.

    Args:
        plan: says nothing of parameters that layers share.
        ties: the sets of layers that share some, ascending each, in the same order for all workers.
    """
    workers = plan.live_workers()
    rank = {worker.name: number for number, worker in enumerate(workers)}
    executor = {
        (op.pipeline, op.microbatch, only if op.stage is None else op.stage): worker
        for worker in workers
        for only in plan.seats_of(worker)[:1]
        for op in worker.operations()
        if op.kind == "F"
    }
    sums = list(reductions(plan, workers, ties))
    exchanges = (_exchanges(plan, worker, executor, rank) for worker in workers)
    own = exchanges if not plan.is_placed else map(_with_sums_begun, exchanges, sums)
    return Program(plan, workers, _ended(plan, own, sums))


def lower_rest(plan: Plan, rest: Rest, ties: Sequence[tuple[int, ...]] = ()) -> Program:
    """Lower what is left of an iteration to programs, good for that iteration.

    A message is taken from one's own log where it is there, else from who sends a kept one, else from who makes it.

    Args:
        plan: the one to follow.
        rest: what is left, valid for it (schemas/check_rest.py).
        ties: as of `lower`.
    """
    workers = plan.live_workers()
    boundaries = _Boundaries(plan, workers, rest)
    exchanges = map(boundaries.exchanges, range(len(workers)))
    return Program(plan, workers, _ended(plan, exchanges, reductions(plan, workers, ties, rest.sealed)), rest)


def _ended(
    plan: Plan, exchanges: Iterable[Iterable[Instruction]], sums: Iterable[AllReduce]
) -> tuple[tuple[Instruction, ...], ...]:
    """What each live worker does: its operations with their exchanges, and then its part of the sums and its step."""
    everyone = plan.optimizer == "synchronous"
    return tuple(
        (*own, reduction, Step(everyone, step_s(plan, worker)))
        for worker, own, reduction in zip(plan.live_workers(), exchanges, sums, strict=True)
    )


def _with_sums_begun(own: Iterable[Instruction], reduction: AllReduce) -> Iterator[Instruction]:
    """A worker's operations and exchanges; the sums that others take part in begin among them, or behind them."""
    instructions = list(own)
    last: dict[Layers | None, int] = {}  # where the gradients of each stage are whole, and have been sent on
    for place, one in enumerate(instructions):
        sent = sum(
            1 for _ in takewhile(lambda then: isinstance(then, Send), islice(instructions, place + 1, place + 3))
        )
        last |= {done.layers: place + sent for done in computed_by(one) if done.operation.kind in ("B", "W")}
    begun: dict[int, list[BeginSum]] = {}
    whole = -1
    for part in reduction.parts:
        ends = (place for layers, place in last.items() if layers is None or _is_in(part.layers[0], [layers]))
        whole = max(whole, *ends, -1)
        if len(part.ranks) > 1:
            begun.setdefault(whole, []).append(BeginSum(part))
    yield from begun.get(-1, ())
    for place, one in enumerate(instructions):
        yield one
        yield from begun.get(place, ())


def step_s(plan: Plan, worker: Worker) -> float:
    """What the optimizer's step of all that a worker holds takes, in s."""
    return sum(stage.optimizer_s for stage in plan.stages_of(worker))


def posting_order(program: Program, rank: int) -> tuple[Receive, ...]:
    """The receives of a rank, by need, but those from one source in the order in which that source sends.

    Transports without tags match messages in the order of sending, so receives must be posted in this order. Where
    orders are FIFO between stages it is just the order of need.
    """
    receives = {one.message: one for one in program.instructions[rank] if isinstance(one, Receive)}
    coming = {
        source: iter(
            [receives[one.message] for one in program.instructions[source] if isinstance(one, Send) and one.to == rank]
        )
        for source in {one.source for one in receives.values()}
    }
    posted: dict[Message, Receive] = {}
    for needed in receives.values():
        while needed.message not in posted:
            earlier = next(coming[needed.source])
            posted[earlier.message] = earlier
    return tuple(posted.values())


def _exchanges(
    plan: Plan, worker: Worker, executor: dict[tuple[int, int, int], Worker], rank: dict[str, int]
) -> Iterator[Instruction]:
    """A worker's operations and what it receives and sends for them; it does neither to itself."""
    stages, only = plan.template_of(worker.pipeline).stages, plan.seats_of(worker)[0]
    pairs = worker.pairs()
    # The forward of a pair, with what goes before and after.
    ahead: tuple[list[Receive], Compute, list[Send]] | None = None
    for place, operation in enumerate(worker.operations()):
        kind, pipeline, microbatch, named = operation
        stage, layers = (only, None) if named is None else (named, stages[named].layers)
        before, after = (stage - 1, stage + 1) if kind == "F" else (stage + 1, stage - 1)
        exchanges = kind != "W"
        source = executor.get((pipeline, microbatch, before)) if exchanges else None
        target = executor.get((pipeline, microbatch, after)) if exchanges else None
        received, sent = list[Receive](), list[Send]()
        if source is not None and source is not worker:
            received.append(Receive(_message(operation, min(stage, before)), rank[source.name]))
        if target is not None and target is not worker:
            link = min(stage, after)
            delay_s = plan.hop_delay_s(pipeline, link, worker, target)
            sent.append(Send(_message(operation, link), rank[target.name], delay_s))
        own = Compute(operation, layers)
        if place in pairs:  # goes with the operation behind it
            ahead = received, own, sent
        elif ahead is None:
            yield from received
            yield own
            yield from sent
        else:
            needed, forward, then = ahead
            yield from needed
            yield from received
            yield Pair(forward, own)
            yield from then
            yield from sent
            ahead = None


def _message(operation: Operation, link: int) -> Message:
    kind: Literal["activation", "gradient"] = "activation" if operation.kind == "F" else "gradient"
    return Message(kind, operation.pipeline, operation.microbatch, link)


def taken_by(operation: Operation, layers: Layers, total: int) -> Message | None:
    """The message that an operation of some layers needs, its boundary for a link; None where there is none.

    Args:
        operation: which.
        layers: [first, stop).
        total: the layers of the model.
    """
    kind, pipeline, microbatch, _ = operation
    if kind == "F":
        return Message("activation", pipeline, microbatch, layers[0]) if layers[0] > 0 else None
    return Message("gradient", pipeline, microbatch, layers[1]) if kind != "W" and layers[1] < total else None


def made_by(operation: Operation, layers: Layers, total: int) -> Message | None:
    """The message that comes of an operation; arguments as of `taken_by`."""
    kind, pipeline, microbatch, _ = operation
    if kind == "F":
        return Message("activation", pipeline, microbatch, layers[1]) if layers[1] < total else None
    return Message("gradient", pipeline, microbatch, layers[0]) if kind != "W" and layers[0] > 0 else None


class _Boundaries:
    """Who gets which message from whom in what is left of an iteration, and the operations with their exchanges."""

    def __init__(self, plan: Plan, workers: Sequence[Worker], rest: Rest) -> None:
        self._plan, self._workers, self._rest = plan, workers, rest
        self._layers = plan.templates[0].stages[-1].layers[1]
        self._orders = [rest.operations(number, plan) for number in range(len(workers))]
        rank = {worker.name: number for number, worker in enumerate(workers)}
        self._kept: dict[int, list[tuple[Message, int]]] = {}
        self._sources: dict[tuple[int, Message], int] = {}  # by who takes it
        self._targets: dict[tuple[int, Message], int] = {}  # by who makes it
        for one in rest.sends:
            message = Message(one.kind, *plan.microbatch_at(one.microbatch), one.boundary)
            self._kept.setdefault(rank[one.source], []).append((message, rank[one.target]))
            self._sources[rank[one.target], message] = rank[one.source]
        self._match()

    def exchanges(self, number: int) -> Iterator[Instruction]:
        """What a rank sends of what it has kept, and then its operations, with what it receives and sends for them."""
        for message, to in self._kept.get(number, ()):
            yield Send(message, to, self._delay_s(message, number, to), is_kept=True)
        whole = self._plan.layers_of(self._workers[number])
        for one in self._orders[number]:
            taken, made = taken_by(*one[:2], self._layers), made_by(*one[:2], self._layers)
            if taken is not None and (number, taken) in self._sources:
                yield Receive(taken, self._sources[number, taken])
            yield Compute(one.operation, None if whole == (one.layers,) else one.layers, one.accumulates)
            if made is not None and (number, made) in self._targets:
                to = self._targets[number, made]
                yield Send(made, to, self._delay_s(made, number, to))

    def _match(self) -> None:
        """Find for each message that its taker neither has nor gets from a log who makes it."""
        makers = {made_by(*one[:2], self._layers): number for number, order in enumerate(self._orders) for one in order}
        for number, order in enumerate(self._orders):
            own = {
                Message(one.kind, *self._plan.microbatch_at(microbatch), one.boundary)
                for one in self._rest.standing_of(number).messages
                for microbatch in one.microbatches
            }
            for one in order:
                message = taken_by(*one[:2], self._layers)
                if message is None or message in own or (number, message) in self._sources:
                    continue
                maker = makers.get(message, number)
                if maker != number:
                    self._sources[number, message] = maker
                    self._targets[maker, message] = number

    def _delay_s(self, message: Message, number: int, to: int) -> float:
        return self._plan.boundary_delay_s(message.pipeline, message.link, self._workers[number], self._workers[to])


def reductions(
    plan: Plan,
    workers: Sequence[Worker],
    ties: Sequence[tuple[int, ...]] = (),
    sealed: Sequence[Layers] = (),
) -> Iterator[AllReduce]:
    """The all-reduce of each rank.

    Args:
        plan: the one that is lowered.
        workers: its live ones.
        ties: as of `lower`.
        sealed: layers whose sums are there already, those of their ties too.
    """
    held = [plan.stages_of(worker) for worker in workers]
    runs = _runs_of_layers(held, sealed)
    at = {run.layers[0]: place for place, run in enumerate(runs)}
    left = [tie for tie in ties if not _is_in(tie[0], sealed)]
    tied = [TiedBucket(tie, tuple(n for n, stages in enumerate(held) if _holds(stages, tie))) for tie in left]
    for rank, stages in enumerate(held):
        ranges = ((at[stage.layers[0]], at.get(stage.layers[1], len(runs))) for stage in reversed(stages))
        own = tuple(chain.from_iterable(reversed(runs[first:stop]) for first, stop in ranges))
        parts = tuple(part for part in own if not _is_in(part.layers[0], sealed))
        done = tuple(part for part in own if _is_in(part.layers[0], sealed))
        yield AllReduce(parts, tuple(one for one in tied if rank in one.ranks), done)


def _is_in(layer: int, ranges: Iterable[Layers]) -> bool:
    return any(first <= layer < stop for first, stop in ranges)


def _holds(stages: Sequence[Stage], tie: tuple[int, ...]) -> bool:
    return any(_is_in(layer, (stage.layers for stage in stages)) for layer in tie)


def _runs_of_layers(held: Sequence[Sequence[Stage]], sealed: Sequence[Layers]) -> list[GradientBucket]:
    """The layers in ascending order, with the ranks that hold them, cut wherever some stage begins or ends, and where
    some that are sealed do."""
    layers_of_all = (*(stage.layers for stages in held for stage in stages), *sealed)
    cuts = sorted({boundary for layers in layers_of_all for boundary in layers})
    at = {boundary: place for place, boundary in enumerate(cuts)}
    holders: list[list[tuple[int, Stage]]] = [[] for _ in cuts]
    for rank, stages in enumerate(held):
        for stage in stages:
            for place in range(at[stage.layers[0]], at[stage.layers[1]]):
                holders[place].append((rank, stage))
    return [_part(layers, there) for layers, there in zip(pairwise(cuts), holders, strict=False)]


def _part(layers: Layers, holders: Sequence[tuple[int, Stage]]) -> GradientBucket:
    """The layers that ranks hold, in these stages of theirs, and how long the slowest of them needs for its share."""
    length = layers[1] - layers[0]
    shares_s = (stage.allreduce_s * (length / (stage.layers[1] - stage.layers[0])) for _, stage in holders)
    return GradientBucket(layers, tuple(rank for rank, _ in holders), max(shares_s, default=0.0))


# Pairs of ranks, the ways in which messages may be sent, and which of them are measured.


# direct: a send holds its worker for the link's delay. delegated: it holds nobody. auto: delegated on links of which
# the running plan says a delay, or which were found to be slow (docs/semantics.md).
Sending = Literal["auto", "direct", "delegated"]
RankPair = tuple[int, int]  # two ranks, ascending

MOST_SAMPLES = 8  # messages of one worker to another that are measured in an iteration


def rank_pair(one: int, other: int) -> RankPair:
    """Two ranks as the ends of a link."""
    return (one, other) if one < other else (other, one)


def sends_of(program: Program, ranks: Iterable[int] | None = None) -> Iterator[tuple[int, Send]]:
    """The sends of some ranks, or of all, each with the rank whose it is."""
    for rank in range(len(program.instructions)) if ranks is None else ranks:
        for one in program.instructions[rank]:
            if isinstance(one, Send):
                yield rank, one


def pairs_of(program: Program) -> frozenset[RankPair]:
    """The pairs of ranks that exchange messages."""
    return frozenset(rank_pair(rank, one.to) for rank, one in sends_of(program))


def delegated_pairs(
    transport: Sending, sends: Iterable[tuple[int, Send]], found: Iterable[RankPair], detoured: Iterable[RankPair]
) -> frozenset[RankPair]:
    """The pairs of ranks that send to each other by delegates.

    Args:
        transport: auto: links of which the plan says a delay, or which were found slow; direct: none; delegated: all.
        sends: of the plan that is executed, with the delays that it says.
        found: pairs whose links are slow, though the plan may not say so.
        detoured: pairs whose messages a third rank passes on, which always takes delegates.
    """
    if transport == "direct":
        return frozenset(detoured)
    reckoned = (rank_pair(rank, one.to) for rank, one in sends if transport == "delegated" or one.delay_s > 0)
    return frozenset({*reckoned, *found, *detoured})


def sampled(program: Program, rank: int | None = None) -> dict[tuple[int, int], tuple[Message, ...]]:
    """The messages to measure, by sender and receiver: at most MOST_SAMPLES each, spread evenly over those it sends.

    Args:
        program: what is executed.
        rank: only what this one sends or receives; None: of all.
    """
    sent: dict[tuple[int, int], list[Message]] = {}
    for source, one in sends_of(program):
        if rank is None or rank in (source, one.to):
            sent.setdefault((source, one.to), []).append(one.message)
    counts = {way: min(len(messages), MOST_SAMPLES) for way, messages in sent.items()}
    return {
        way: tuple(messages[number * len(messages) // counts[way]] for number in range(counts[way]))
        for way, messages in sent.items()
    }
