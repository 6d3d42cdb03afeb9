"""A plan lowered to one program per worker: what both runners execute.

A program is a straight list of instructions: compute, send, receive, all-reduce, step. Receives stand right before the
operation that needs the message; a runner may post them earlier. Sends never block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..schemas.errors import InvalidInputError
from ..schemas.orders import Operation
from ..schemas.plan import Plan, Worker


@dataclass(frozen=True, slots=True)
class Message:
    """What goes over a link for one micro-batch: an activation down, or a gradient up, link `link`."""

    kind: Literal["activation", "gradient"]
    pipeline: int
    microbatch: int
    link: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run one operation."""

    operation: Operation


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a rank; it arrives delay_s later."""

    message: Message
    to: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for a message from a rank."""

    message: Message
    source: int


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum the gradients of a stage over the ranks of `group`, all its peers; takes duration_s once all are there."""

    group: tuple[int, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class Step:
    """Step the optimizer; with `everyone`, only after all ranks' gradients are reduced (synchronous optimizer)."""

    everyone: bool
    duration_s: float


Instruction = Compute | Send | Receive | AllReduce | Step


@dataclass(frozen=True)
class Program:
    """The programs of all live workers: rank r is `workers[r]` and runs `instructions[r]`."""

    plan: Plan
    workers: tuple[Worker, ...]
    instructions: tuple[tuple[Instruction, ...], ...]


def lower(plan: Plan) -> Program:
    """Lower a valid plan (schemas/check.py) to programs.

    Raises:
        InvalidInputError: pipelines cut the layers at different places, whose gradients no group of peers shares.
    """
    _refuse_unlike_cuts(plan)
    workers = plan.live_workers()
    rank = {worker.name: number for number, worker in enumerate(workers)}
    executor = {
        (op.pipeline, op.microbatch, worker.stage): worker
        for worker in workers
        for op in worker.operations()
        if op.kind == "F"
    }
    peers: dict[tuple[int, int], tuple[int, ...]] = {}
    for number, worker in enumerate(workers):
        layers = plan.stage_of(worker).layers
        peers[layers] = (*peers.get(layers, ()), number)
    instructions = tuple(tuple(_instructions(plan, worker, executor, rank, peers)) for worker in workers)
    return Program(plan, workers, instructions)


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


def _instructions(
    plan: Plan,
    worker: Worker,
    executor: dict[tuple[int, int, int], Worker],
    rank: dict[str, int],
    peers: dict[tuple[int, int], tuple[int, ...]],
) -> Iterator[Instruction]:
    for operation in worker.operations():
        down, up = _neighbours(plan, worker, operation, executor)
        source, target = (down, up) if operation.kind == "F" else (up, down)
        exchanges = operation.kind != "W"
        if exchanges and source is not None:
            yield Receive(_message(operation, worker, source), rank[source.name])
        yield Compute(operation)
        if exchanges and target is not None:
            delay_s = plan.hop_delay_s(operation.pipeline, min(worker.stage, target.stage), worker, target)
            yield Send(_message(operation, worker, target), rank[target.name], delay_s)
    stage = plan.stage_of(worker)
    yield AllReduce(peers[stage.layers], stage.allreduce_s)
    yield Step(plan.optimizer == "synchronous", stage.optimizer_s)


def _neighbours(
    plan: Plan, worker: Worker, operation: Operation, executor: dict[tuple[int, int, int], Worker]
) -> tuple[Worker | None, Worker | None]:
    """Who executes the operation's micro-batch at the stage before and at the stage after."""
    _, pipeline, microbatch = operation
    last = len(plan.template_of(pipeline).stages) - 1
    before = executor[pipeline, microbatch, worker.stage - 1] if worker.stage > 0 else None
    after = executor[pipeline, microbatch, worker.stage + 1] if worker.stage < last else None
    return before, after


def _message(operation: Operation, worker: Worker, other: Worker) -> Message:
    kind: Literal["activation", "gradient"] = "activation" if operation.kind == "F" else "gradient"
    return Message(kind, operation.pipeline, operation.microbatch, min(worker.stage, other.stage))


def _refuse_unlike_cuts(plan: Plan) -> None:
    cuts = [tuple(stage.layers for stage in template.stages) for template in plan.templates]
    for number, cut in enumerate(cuts):
        if cut != cuts[0]:
            raise InvalidInputError(
                f"template {plan.templates[number].name!r} cuts the layers elsewhere than "
                f"{plan.templates[0].name!r}; pipelines of unlike cuts are not executed yet",
                where=f"/templates/{number}/stages",
                fix="use templates with the same layers a stage",
            )
