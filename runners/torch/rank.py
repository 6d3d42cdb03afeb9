"""What an iteration knows of the rank that runs it, and how it times what that runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ...schemas.plan import Layers, Plan, Worker
from ...schemas.timeline import Span
from ..program import (
    Compute,
    GradientBucket,
    Instruction,
    Message,
    Pair,
    Program,
    Receive,
    TiedBucket,
    computed_in,
    posting_order,
)
from ..simulator import name_of_operation, share_of
from .gathering import Gathering
from .held_stage import HeldStage
from .layout import RankLayout, RankTuple
from .slice_sums import SlicedVector, SliceSums
from .transport import Tags, Transfers, Transport
from .trees import Tree, floating, message_like, own_tensors

if TYPE_CHECKING:
    from .iteration import Iteration


@dataclass(frozen=True, slots=True)
class _Planned:
    """What a rank needs to know of an operation, the same in every iteration.

    Attributes:
        layers: [first, stop) that it runs.
        name: of its span.
        seconds: that the plan gives it on a worker that is not slow.
    """

    layers: Layers
    name: str
    seconds: float


@dataclass(frozen=True, eq=False)
class Rank:
    """Everything an iteration needs to know about the rank that runs it.

    Args:
        program: the lowered plan.
        number: this rank, which runs `program.instructions[number]`.
        held: the layers to run it on, adapted to the plan (`splits_backward`).
        transport: reaches the other ranks of the program; knows the groups of `groups_of` and `everyone`.
        like_at: of the shapes and types of what flows over a boundary of layers, on the device: into and out of each
            stage held here, and in what is left of an iteration, where operations may be of a part of a stage, inside.
        now_s: the clock of the spans, in seconds.
        record: takes the span of everything that was run.
        paced: whether every operation lasts what the plan says, sleeping out the rest.
        seed: of dropout and the like in the layers, which depend on (seed, iteration, micro-batch, layer) only.
        slowdown: makes operations last this many times as long as they do (paced: as the plan says, whose own slowdown
            counts as well); for tests of slow workers. Change it with `dataclasses.replace`.
        true_slowdown: of a paced worker, instead of the plan's, which may be only what its planner reckons with.
        before: called before each compute operation with its place in the order, from 0; what it raises ends the
            iteration.
        executing: called before each instruction.
        before_sums: called before sums, where progress is kept: the losses of the micro-batches in them are known by
            then, and sums outlive whoever knows them. With it, training may go on where an iteration breaks off.
        delegated: the ranks that `transport` reaches by delegates.
        does_count: whether the loss says itself how much it counts, which most ranks cannot know before they agree.
        transfers: is told of all messages; it begins each iteration before the messages are announced.
        share: which of its worker's ranks it is; rank 0 tells what all of them know.
        layout: of all ranks, where workers are several; `number` and those in messages are workers' then.
        gathering: of parameters after a step, where the optimizer is sharded and `Iteration.run` steps.
        sums: how its gradients are summed where workers are several ranks.
    """

    program: Program
    number: int
    held: HeldStage
    transport: Transport
    like_at: Callable[[int], Tree]
    now_s: Callable[[], float]
    record: Callable[[Span], None]
    paced: bool = False
    seed: int = 0
    slowdown: float = 1.0
    true_slowdown: float | None = None
    before: Callable[[int], None] | None = None
    executing: Callable[[Instruction], None] | None = None
    before_sums: Callable[["Iteration"], None] | None = None
    delegated: frozenset[int] = frozenset()
    does_count: bool = False
    transfers: Transfers | None = None
    share: int = 0
    layout: RankLayout | None = None
    gathering: Gathering | None = None
    sums: SliceSums | None = None

    @property
    def plan(self) -> Plan:
        """The plan that is executed."""
        return self.program.plan

    @property
    def worker(self) -> Worker:
        """The worker of the plan that this rank is."""
        return self.program.workers[self.number]

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        """What this rank executes."""
        return self.program.instructions[self.number]

    @property
    def everyone(self) -> tuple[int, ...]:
        """The group of all ranks."""
        return RankTuple(range(len(self.program.workers) if self.layout is None else self.layout.size))

    def sliced(self, part: GradientBucket) -> Sequence[SlicedVector] | None:
        """How each view of a part's gradients is summed; None where it is summed as it is."""
        return None if self.sums is None else self.sums.of_layers(part.layers, part.ranks)

    def sliced_tie(self, tie: TiedBucket) -> Sequence[SlicedVector] | None:
        """The same of what layers share."""
        return None if self.sums is None else self.sums.of_tie(tie.layers, tie.ranks)

    @cached_property
    def fetched(self) -> tuple[Receive, ...]:
        """The messages to come by delegates, in the order in which to announce them."""
        return tuple(one for one in self._receives if one.source in self.delegated)

    @cached_property
    def receives(self) -> tuple[Receive, ...]:
        """The messages to come directly, in the order in which to announce them."""
        return tuple(one for one in self._receives if one.source not in self.delegated)

    def like(self, boundary: int) -> Tree:
        """Of the shapes and types of what flows over a boundary of layers."""
        if boundary not in self._likes:
            self._likes[boundary] = self.like_at(boundary)
        return self._likes[boundary]

    def message_like(self, message: Message) -> torch.Tensor:
        """Of the shape and type of a message, its boundary for a link."""
        way = message.kind, message.link
        if way not in self._messages_like:
            tensors = (own_tensors if message.kind == "activation" else floating)(self.like(message.link))
            self._messages_like[way] = message_like(tensors)
        return self._messages_like[way]

    def layers_of(self, one: Compute) -> Layers:
        """[first, stop) that an operation runs."""
        return self.held.layers_range if one.layers is None else one.layers

    def planned(self, one: Compute) -> _Planned:
        """What the plan says of an operation."""
        known = self._planned.get(one)
        if known is None:
            stage = self.plan.stage_at(self.worker, one.operation)
            name = name_of_operation(one, self.worker.pipeline, stage)
            seconds = share_of(one, stage) * stage.duration_s(one.operation.kind)
            known = self._planned[one] = _Planned(self.layers_of(one), name, seconds)
        return known

    def pair_s(self, pair: Pair) -> float:
        """Seconds that the plan gives two passes side by side on a worker that is not slow."""
        stages = (self.plan.virtual_stage(self.worker, one.operation) for one in (pair.forward, pair.backward))
        return self.plan.template_of(self.worker.pipeline).pair_s(*stages)

    @cached_property
    def boundary_of(self) -> Mapping[Message, Message]:
        """The messages to come, each with the boundary of layers that it flows over for a link."""
        return {one.message: self.program.at_boundary(one.message) for one in self._receives}

    @cached_property
    def own_messages(self) -> frozenset[Message]:
        """What operations of this rank take that it does not receive, with boundaries for links."""
        return self.program.own_messages(self.number)

    @cached_property
    def model_layers(self) -> int:
        """How many the model has."""
        return self.plan.total_layers()

    @cached_property
    def first_held(self) -> tuple[int, ...]:
        """Its layers that no lower rank holds: this rank tells the norms of their gradients."""
        reduction = self.program.reduction(self.number)
        parts = (*reduction.parts, *reduction.sealed)
        return tuple(layer for part in parts if part.ranks[0] == self.number for layer in range(*part.layers))

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The micro-batches of which this rank needs something of the data, by global number, in the order of need."""
        return reads_of(self.program, self.number, bool(self.held.named_like))

    @cached_property
    def _likes(self) -> dict[int, Tree]:
        return {}

    @cached_property
    def _planned(self) -> dict[Compute, _Planned]:
        return {}

    @cached_property
    def _messages_like(self) -> dict[tuple[str, int], torch.Tensor]:
        return {}

    @cached_property
    def tags(self) -> "Tags":
        """The messages' numbers."""
        return Tags(self.plan, self.program.rest is not None)

    @property
    def own_slowdown(self) -> float:
        """How many times as long as planned operations last on this worker in a paced run, without faults."""
        return (self.worker.slowdown if self.true_slowdown is None else self.true_slowdown) or 1.0

    def duration_s(self, one: Compute) -> float:
        """Seconds that an operation lasts on this worker in a paced run."""
        return self.planned(one).seconds * self.own_slowdown

    @cached_property
    def _receives(self) -> tuple[Receive, ...]:
        return posting_order(self.program, self.number)


def reads_of(program: Program, number: int, takes_named: bool) -> tuple[int, ...]:
    """The micro-batches of which a rank needs something of the data, by global number, in the order of need.

    Args:
        program: of all ranks.
        number: of this one.
        takes_named: whether its layers take inputs by name; else only first stages need inputs, and last ones targets.
    """
    tags, total = Tags(program.plan), program.plan.total_layers()

    def needs(one: Compute) -> bool:
        first, stop = program.layers_of(number, one)
        return one.operation.kind == "F" and (takes_named or first == 0 or stop == total)

    computed = computed_in(program.instructions[number])
    return tuple(dict.fromkeys(tags.microbatch(one.operation) for one in computed if needs(one)))


class SpanTimer:
    """Times what runs inside it and records the span; sleeps until a paced, or slowed, operation is over.

    Args:
        rank: who runs it.
        iteration: the iteration's number.
        name: what the span is called.
        duration_s: seconds that it lasts in a paced run.
        slowdown: makes it last this many times as long, paced or not.

    Attributes:
        start_s, end_s: by the rank's clock.
    """

    def __init__(self, rank: Rank, iteration: int, name: str, duration_s: float, slowdown: float = 1.0) -> None:
        self._rank, self._iteration, self._name = rank, iteration, name
        self._duration_s, self._slowdown = duration_s, slowdown

    def __enter__(self) -> "SpanTimer":
        self.start_s = self.end_s = self._rank.now_s()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            return
        rank = self._rank
        if rank.held.device.type == "cuda":
            torch.cuda.current_stream(rank.held.device).synchronize()  # copies on other streams may go on
        if rank.paced or self._slowdown > 1.0:  # a sleep of 0 s takes time as well
            now_s = rank.now_s()
            least_s = self._duration_s if rank.paced else now_s - self.start_s
            time.sleep(max(0.0, self.start_s + least_s * self._slowdown - now_s))
        self.end_s = rank.now_s()
        rank.record(Span(rank.worker.name, self._name, self.start_s, self.end_s, self._iteration))
