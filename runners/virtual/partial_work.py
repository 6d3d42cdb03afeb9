"""What a worker on the virtual clock has of an iteration under way, by what it has executed of it.

Real workers keep the tensors (runners/torch/progress.py); here it is known which they would be.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...schemas.plan import Layers, Plan
from ...schemas.resumption import (
    Begun,
    LastDone,
    MessageKey,
    Rest,
    Standing,
    held_messages,
    layer_runs,
    layers_in,
    ledger_entries,
    nothing_of,
    stashes_within,
)
from ..program import Compute, Program, computed_in, made_by, taken_by
from ..resilience.membership import layers_of
from ..simulator import Execution


@dataclass(frozen=True)
class PartialWork:
    """What a worker has of an iteration; nothing, where it has begun nothing of it.

    Attributes:
        splits: whether its F are followed by I and W; None: it has run none.
        ledger: by layer, the micro-batches in its own part of the sum, which a sealed layer may have as well.
        sealed: layers whose sums have ended here.
        stashes: what was done last of micro-batches that are under way in stages of the worker.
        messages: that it has sent or taken, in this order.
        halves: micro-batches whose I was run in a part of a stage, and these layers: their W must be run
            before the ledger is told, for a standing knows stashes of whole stages only.
        losses: micro-batches whose losses it has, as their gradients of the last layer are, or were, in its own part.
    """

    splits: bool | None = None
    ledger: Mapping[int, frozenset[int]] = field(default_factory=dict)
    sealed: frozenset[int] = frozenset()
    stashes: Mapping[Begun, LastDone] = field(default_factory=dict)
    messages: tuple[MessageKey, ...] = ()
    halves: tuple[Begun, ...] = ()
    losses: frozenset[int] = frozenset()

    def finished(self, plan: Plan) -> "PartialWork":
        """It, with W of all halves run; the plan is that of the worker's program."""
        ledger = {layer: set(own) for layer, own in self.ledger.items()}
        for number, layers in self.halves:
            for layer in range(*layers):
                ledger.setdefault(layer, set()).add(number)
        last = layers_of(plan)
        losses = self.losses.union(number for number, layers in self.halves if layers[1] == last)
        frozen = {layer: frozenset(own) for layer, own in ledger.items()}
        return replace(self, ledger=frozen, halves=(), losses=losses)

    def resumed(self, rest: Rest, plan: Plan, rank: int) -> "PartialWork":
        """What it has when what is left begins, with the sums that were copied to it.

        Args:
            rest: what is left, with what the worker has told of this.
            plan: that follows.
            rank: its own there.
        """
        held = layers_in(plan.layers_of(plan.live_workers()[rank]))
        sealed = layers_in(rest.sealed) & held
        dropped = {*layers_in(rest.workers[rank].given_up), *sealed}
        kept = {layer: numbers for layer, numbers in self.ledger.items() if layer in held and layer not in dropped}
        return replace(self, ledger=kept, sealed=sealed, stashes=rest.taken_up(rank, plan))

    def standing(self, worker: str, holds: Sequence[Layers] | None, splits: bool) -> Standing:
        """It, as the worker tells it.

        Args:
            worker: its name.
            holds: the ranges of layers that it holds.
            splits: whether F that it may run would be followed by I and W.
        """
        return replace(
            nothing_of(worker, holds),
            splits=splits if self.splits is None else self.splits,
            ledger=ledger_entries({layer: own for layer, own in self.ledger.items() if layer not in self.sealed}),
            sealed=layer_runs(self.sealed),
            stashes=stashes_within(holds or (), self.stashes),
            messages=held_messages(self.messages),
        )


NOTHING = PartialWork()


@dataclass(frozen=True)
class LogLimit:
    """How much of the messages of an iteration each worker keeps.

    Attributes:
        limit_bytes: the newest that fit into it; None: all.
        output_bytes: of each layer, the size of a message behind it.
    """

    limit_bytes: float | None = None
    output_bytes: Sequence[float] = ()

    def newest(self, messages: Iterable[MessageKey]) -> tuple[MessageKey, ...]:
        """Those that are kept of all that were sent or taken, in their order."""
        kept = list(messages)
        if self.limit_bytes is None:
            return tuple(kept)
        room_bytes = self.limit_bytes
        for place in reversed(range(len(kept))):
            room_bytes -= self.output_bytes[kept[place][1] - 1]
            if room_bytes < 0:
                return tuple(kept[place + 1 :])
        return tuple(kept)


def worked(
    before: PartialWork,
    program: Program,
    execution: Execution,
    rank: int,
    start_s: float = 0.0,
    until_s: float = math.inf,
    called_s: float = math.inf,
    log: LogLimit = LogLimit(),
) -> PartialWork:
    """What a worker has once it has executed so much more.

    Args:
        before: what it had when the program began.
        program: of an iteration, or of what was left of it.
        execution: of the program.
        rank: the worker's.
        start_s: when it was begun.
        until_s: until when, on the clock of the start; operations that end at that moment are done.
        called_s: when it was told to leave; sums that have not ended by then never do.
        log: what it keeps of messages.
    """
    work = _Work(before, program.plan, rank)
    # Operations come before all sums.
    for one, span in zip(computed_in(program.instructions[rank]), execution.spans[rank], strict=False):
        if start_s + span.end_s <= until_s:
            work.run(one)
    for layers, end_s in execution.sums_s[rank]:
        if start_s + end_s <= called_s:
            work.sealed.update(range(*layers))
    return replace(work.so_far(), messages=log.newest(work.messages))


class _Work:
    """The part of a worker in an iteration, operation by operation."""

    def __init__(self, before: PartialWork, plan: Plan, rank: int) -> None:
        self._plan = plan
        worker = plan.live_workers()[rank]
        self._stages = [stage.layers for stage in plan.stages_of(worker)]
        self._layers = layers_of(plan)
        kinds = {one.kind for one in worker.operations()}
        self._splits = bool(kinds & {"I", "W"}) if before.splits is None and kinds else before.splits
        self._ledger = {layer: set(own) for layer, own in before.ledger.items()}
        # Micro-batches under way, in some layers: what was done last.
        self._under_way = dict(before.stashes)
        self.messages = dict.fromkeys(before.messages)
        self._losses = set(before.losses)
        self.sealed = set(before.sealed)

    def run(self, one: Compute) -> None:
        """An operation is done."""
        kind, pipeline, microbatch, _ = one.operation
        number = self._plan.microbatch_offset(pipeline) + microbatch
        layers = one.layers or self._stages[0]
        for exchanged in (taken_by, made_by):
            message = exchanged(one.operation, layers, self._layers)
            if message is not None:
                self.messages[message.kind, message.link, number] = None
        if not one.accumulates:
            return
        if kind == "F" or kind == "I":
            self._under_way[number, layers] = kind
            return
        self._under_way.pop((number, layers), None)
        for layer in range(*layers):
            self._ledger.setdefault(layer, set()).add(number)
        if layers[1] == self._layers:
            self._losses.add(number)

    def _is_whole(self, begun: Begun) -> bool:
        """Whether a micro-batch is under way in a whole stage."""
        return begun[1] in self._stages

    def so_far(self) -> PartialWork:
        """What has come of all that was run, but for messages."""
        return PartialWork(
            splits=self._splits,
            ledger={layer: frozenset(own) for layer, own in self._ledger.items()},
            sealed=frozenset(self.sealed),
            stashes={key: last for key, last in self._under_way.items() if self._is_whole(key)},
            halves=tuple(
                sorted(key for key, last in self._under_way.items() if last == "I" and not self._is_whole(key))
            ),
            losses=frozenset(self._losses),
        )
