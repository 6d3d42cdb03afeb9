"""What a toy worker has of an iteration: micro-batches instead of tensors, so that it shows what is lost or double.

It executes the programs of real workers (runners/program.py), one instruction after the other, and each may be its
last. A gradient is the micro-batch that it is of, and the state; a sum is all that is in it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from rtk.runners.program import (
    AllReduce,
    Compute,
    GradientBucket,
    Message,
    Program,
    Receive,
    Send,
    Step,
    lower,
    lower_rest,
)
from rtk.runners.resilience.protocol import Epoch, RankAssignment
from rtk.runners.resilience.worker_rules import plan_of
from rtk.schemas.plan import Layers, Plan
from rtk.schemas.resumption import (
    MessageKind,
    Rest,
    Standing,
    SumCopy,
    held_messages,
    layer_runs,
    ledger_entries,
    stashes_of,
)

from ...strategies import number_of


@dataclass(frozen=True, order=True)
class ToyGradient:
    """Of a layer, in an iteration, from a state in which so many steps were taken."""

    microbatch: int
    iteration: int
    steps: int


ToySum = tuple[ToyGradient, ...]
Kept = tuple[MessageKind, int, int]  # kind, boundary, micro-batch


@dataclass
class ToyOffice:
    """What is on its way between workers: messages, and parts of sums, each by the epoch that it is of.

    Attributes:
        done: all gradients so far: iteration, layer, micro-batch, and the worker that has it in its part of the sum.
    """

    messages: set[tuple[int, int, Message, int]] = field(default_factory=set)
    parts: dict[tuple[int, int, Layers], dict[int, dict[int, ToySum]]] = field(default_factory=dict)
    sums: dict[tuple[int, SumCopy], dict[int, ToySum]] = field(default_factory=dict)
    done: list[tuple[int, int, int, str]] = field(default_factory=list)


@dataclass
class ToyProgress:
    """What a worker has of an iteration.

    Attributes:
        iteration: its number.
        own: by layer, its own part of the sums.
        sums: by layer, those that have ended here.
        stashes: micro-batches under way in the whole stage, and what was done last.
        kept: messages.
        polluted: layers with gradients in them of something that is not counted.
    """

    iteration: int
    own: dict[int, list[ToyGradient]] = field(default_factory=dict)
    sums: dict[int, ToySum] = field(default_factory=dict)
    stashes: dict[int, Literal["F", "I"]] = field(default_factory=dict)
    kept: set[Kept] = field(default_factory=set)
    polluted: set[int] = field(default_factory=set)

    def standing(self, worker: str, layers: Layers, splits: bool, keeps: Callable[[Kept], bool]) -> Standing:
        """What it says of itself; messages that it does not keep are gone."""
        self.kept = {one for one in sorted(self.kept) if keeps(one)}
        unsealed = {layer: [g.microbatch for g in own] for layer, own in self.own.items() if layer not in self.sums}
        ledger, sealed = ledger_entries(unsealed), layer_runs(self.sums)
        return Standing(worker, layers, splits, ledger, sealed, stashes_of(self.stashes), held_messages(self.kept))

    def take_over(self, rest: Rest, plan: Plan, rank: int, before: Layers | None, copied: Mapping[int, ToySum]) -> None:
        """Go over to a place of the plan to follow, with what it is to do there, and sums from others."""
        after = plan.stage_of(plan.live_workers()[rank]).layers
        given_up = {layer for layers in rest.workers[rank].given_up for layer in range(*layers)}
        sealed = {layer for layers in rest.sealed for layer in range(*layers)}
        order = rest.operations(rank, plan)
        anew = {number_of(plan, one.operation) for one in order if one.kind == "F" and one.accumulates}
        used = {number_of(plan, one.operation) for one in order if one.kind != "F" and one.accumulates} - anew
        dropped = {m: kind for m, kind in self.stashes.items() if before != after or m not in used}
        if "I" in dropped.values():
            self.polluted |= {*range(*before)} if before is not None else set()
        self.stashes = {m: kind for m, kind in self.stashes.items() if m not in dropped}
        stays = {*range(*after)} - given_up - sealed
        self.own = {layer: own for layer, own in self.own.items() if layer in stays}
        self.polluted &= stays
        self.sums = {layer: one for layer, one in {**self.sums, **copied}.items() if layer in {*range(*after)}}
        assert self.sums.keys() == sealed & {*range(*after)}, "the sums of all sealed layers are there, and no others"


class ToyRun:
    """One worker's execution of an iteration, or what is left of it.

    Args:
        epoch: that it is in.
        rank: its own.
        progress: what it has of it, which changes.
        office: between the workers.
        others: those of other ranks of the peers, which this one serves as well.
        steps: by layer, how many its state has taken.
    """

    def __init__(
        self,
        epoch: Epoch,
        rank: int,
        progress: ToyProgress,
        office: ToyOffice,
        others: Sequence[ToyOffice],
        steps: Mapping[int, int],
    ) -> None:
        is_rest = epoch.rest is not None and epoch.rest.iteration == progress.iteration
        self.program = _rest_program(epoch.plan, epoch.rest) if is_rest else _program(epoch.plan)
        self.epoch, self.rank, self.progress, self.office, self.steps = epoch, rank, progress, office, steps
        self._served = [office, *others]
        self.layers = self.program.plan.stage_of(self.program.workers[rank]).layers
        self.done: list[int] = []
        self._ahead = list(self._pieces())
        self._again: dict[tuple[int, Layers], str] = {}  # what is under way in parts of the stage, or for messages only
        self._sealed_before = {*progress.sums}

    def _pieces(self) -> Iterator[Any]:
        """Instructions, sums part by part: first to arrive with one's own part, then to take the sum."""
        for one in self.program.instructions[self.rank]:
            if isinstance(one, AllReduce):
                for number, part in enumerate(one.parts):
                    yield (number == 0, part)
                    yield part
            elif not isinstance(one, Step):
                yield one

    @property
    def is_done(self) -> bool:
        """Whether no instruction is left."""
        return not self._ahead

    @property
    def is_about_to_sum(self) -> bool:
        """Whether the next thing is to give its part to the first sum."""
        return bool(self._ahead) and isinstance(self._ahead[0], tuple) and self._ahead[0][0]

    def can_go_on(self) -> bool:
        """Whether the next instruction waits for nobody."""
        match self._ahead[:1]:
            case [Receive(message)]:
                return (*self._key, message, self.rank) in self.office.messages
            case [GradientBucket(layers, ranks)]:
                return self.office.parts[*self._key, layers].keys() == {*ranks}
        return True

    def go_on(self) -> None:
        """Execute the next instruction."""
        match self._ahead.pop(0):
            case Receive(message):
                self.progress.kept.add(self._kept(message))
            case Send(message, to, is_kept=is_kept):
                assert not is_kept or self._kept(message) in self.progress.kept, (
                    "what was not kept cannot be sent again"
                )
                for office in self._served:
                    office.messages.add((*self._key, message, to))
            case Compute(operation, layers, accumulates):
                self._compute(operation, layers or self.layers, accumulates)
            case (_, GradientBucket(layers, _)):
                own = {layer: tuple(self.progress.own.get(layer, ())) for layer in range(*layers)}
                assert not self.progress.polluted & own.keys(), "there is more in its part than it says"
                for office in self._served:
                    office.parts.setdefault((*self._key, layers), {})[self.rank] = own
            case GradientBucket(layers, _):
                parts = self.office.parts[*self._key, layers].values()
                for layer in range(*layers):
                    self.progress.sums[layer] = tuple(sorted(one for part in parts for one in part[layer]))

    def ledger(self) -> dict[int, list[int]]:
        """What is in its own part of the sums of this epoch, by layer."""
        own = self.progress.own.items()
        return {layer: [g.microbatch for g in part] for layer, part in own if layer not in self._sealed_before}

    @property
    def _key(self) -> tuple[int, int]:
        return self.epoch.epoch, self.progress.iteration

    def _kept(self, message: Message) -> Kept:
        """A message by its boundary; in a whole iteration it has the number of a link."""
        plan, boundary = self.program.plan, message.link
        if self.program.rest is None:
            boundary = plan.template_of(message.pipeline).stages[message.link].layers[1]
        return message.kind, boundary, number_of(plan, message)

    def _compute(self, operation: Any, layers: Layers, accumulates: bool) -> None:
        progress, number = self.progress, number_of(self.program.plan, operation)
        (first, stop), model = layers, self.program.plan.templates[0].stages[-1].layers[1]
        is_whole = layers == self.layers and accumulates
        under_way: dict[Any, Any] = progress.stashes if is_whole else self._again
        at = number if is_whole else (number, layers)
        match operation.kind:
            case "F":
                assert first == 0 or ("activation", first, number) in progress.kept, "its input is not there"
                assert at not in under_way, "F twice"
                under_way[at] = "F"
                if stop < model:
                    progress.kept.add(("activation", stop, number))
            case "I" | "B":
                assert stop == model or ("gradient", stop, number) in progress.kept, "its gradient is not there"
                assert under_way.get(at) == "F", "its F is not there"
                if first > 0:
                    progress.kept.add(("gradient", first, number))
                under_way[at] = "I"
            case "W":
                assert under_way.get(at) == "I", "its I is not there"
        if operation.kind in "BW" or (operation.kind == "I" and not accumulates):
            del under_way[at]
        if operation.kind in "BW" and accumulates:
            self.done.append(number)
            worker = self.epoch.seats[self.rank].worker
            for layer in range(first, stop):
                assert layer not in progress.sums, "a sum has ended already"
                gradient = ToyGradient(number, progress.iteration, self.steps[layer])
                progress.own.setdefault(layer, []).append(gradient)
                self.office.done.append((progress.iteration, layer, number, worker))


def is_exact(one: ToySum, iteration: int, steps: int, microbatches: int) -> bool:
    """Whether a sum has every micro-batch once, of this state."""
    return one == tuple(ToyGradient(number, iteration, steps) for number in range(microbatches))


def seats_in(seats: Sequence[RankAssignment]) -> Iterator[tuple[RankAssignment, int]]:
    """All processes of some workers: each with its worker's seat, and which of its ranks it is."""
    return ((seat, share) for seat in seats for share in range(1 + len(seat.further)))


@lru_cache(maxsize=64)
def _program(plan: str) -> Program:
    return lower(plan_of(plan))


@lru_cache(maxsize=64)
def _rest_program(plan: str, rest: Rest) -> Program:
    return lower_rest(plan_of(plan), rest)
