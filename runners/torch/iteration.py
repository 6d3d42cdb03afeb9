"""One iteration of one rank: the interpreter of a program's instructions.

Receives are posted ahead of need, and the optimizer's step is a part of its own, so that ranks can agree in between on
whether the iteration counts.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.orders import Kind
from ...schemas.plan import Layers
from ...schemas.resumption import LedgerEntry, MessageKey, ledger_entries
from ...schemas.text import listed
from ...schemas.timeline import Span
from ..program import (
    AllReduce,
    BeginSum,
    Compute,
    GradientBucket,
    Instruction,
    Message,
    Pair,
    Receive,
    Send,
    Step,
    TiedBucket,
    computed_in,
    made_by,
    taken_by,
)
from ..resilience.protocol import StepTerms
from .data.provider import Batch
from .progress import IterationProgress, Reduce, StageSums
from .rank import Rank, SpanTimer
from .slice_sums import Finish, SlicedVector
from .ties import fingerprint
from .transport import Transport
from .trees import (
    NOTHING,
    Gradient,
    Named,
    Tree,
    gradient_in,
    is_alike,
    kind_of,
    message_of,
    on_tensors,
    own_tensors,
    tensors_of_gradient,
    tree_in,
)

# Receives announced ahead of the one that is needed: enough to let neighbours run ahead, few enough to hold buffers.
# From ranks that are reached by delegates all are announced at once, for these know their own bounds.
LOOK_AHEAD = 4


MessageKind = Literal["activation", "gradient"]
_MADE_BY: dict[Kind, MessageKind] = {"F": "activation", "I": "gradient", "B": "gradient", "W": "gradient"}


def first_of(batch: Batch) -> tuple[Tree, Tree, Named]:
    """Inputs, targets and named inputs of the first micro-batch, which all others are like."""
    inputs, target, *named = batch[0]
    return inputs, target, named[0] if named else NOTHING


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all ranks know of an iteration once its gradients are reduced.

    Attributes:
        terms: of its step.
        loss: the mean; None where it is not finite, and where nobody has waited for the others' but at a last stage.
        is_finite: whether the gradients are, and are to be stepped.
    """

    terms: StepTerms
    loss: float | None
    is_finite: bool


class Iteration:
    """One iteration of one rank under way; making one clears the gradients and announces the first messages.

    Or what is left of one, where the rank's program says so: it goes on with what there is. What an interrupted one
    leaves in the stage is dropped by `HeldStage.reset`.

    Args:
        rank: who runs it.
        number: the iteration's number.
        batch: the iteration's micro-batches by global number: pipeline k's j-th is `plan.microbatch_offset(k) + j`.
        progress: where to note what is done, so that it outlives an interruption; for what is left, what there is of it
            (resume.py). None: of an interrupted iteration nothing is of use.
        taken: steps taken before it; None: as many as iterations.

    Attributes:
        loss: the iteration's mean loss, once reduced; None except at a last stage.
        reduction_s: when the sums over gradients began and ended; None where there are none, and before they end.
        begun_s: when it was made.
        taken: steps taken before it.
        ledger: of what is left of an iteration, once reduced, the micro-batches in this rank's part of the sums that
            were made in it; where the rank has several stages, those of each; else None.
    """

    def __init__(
        self,
        rank: Rank,
        number: int,
        batch: Batch,
        progress: IterationProgress | None = None,
        taken: int | None = None,
    ) -> None:
        self.rank = rank
        self.number = number
        self.taken = number if taken is None else taken
        self.batch = batch
        self.progress = progress
        self.loss: float | None = None
        self.reduction_s: tuple[float, float] | None = None
        self.begun_s = rank.now_s()
        self.ledger: tuple[LedgerEntry, ...] | None = None
        self._at = 0  # the place of the instruction under way
        self._computed = 0
        self._spent_s = self._planned_s = 0.0
        self._losses: dict[int, torch.Tensor] = {}
        self._backward: list[tuple[int, Layers]] = []
        self._messages: dict[Message, torch.Tensor] = {}  # at hand, by boundaries
        self._own = rank.own_messages  # what this rank makes for itself
        self._output: dict[MessageKind, torch.Tensor] = {}  # of what was computed last
        self._begun: dict[Layers, list[Finish]] = {}  # sums under way, or made
        self._to_post = deque(rank.receives)
        self._posted: set[Message] = set()
        self._prepare()
        for one in rank.fetched:
            self._post(one)
        for _ in range(LOOK_AHEAD):
            self._post_next()

    def run(self) -> Agreement:
        """Run the whole iteration as the plan says, until every message sent has been taken."""
        self.reduce()
        agreed = self.agree()
        if agreed.is_finite:
            self.step(agreed.terms)
            if self.rank.gathering is not None:
                self.rank.gathering.run(self.rank.transport, self.taken + 1)
        self.rank.transport.flush()
        return agreed

    def reduce(self) -> None:
        """Run everything up to and including the all-reduce: parameters and optimizer stay as they are.

        Messages sent may still be on their way; `transport.flush` waits for them.
        """
        for place, instruction in enumerate(self.rank.instructions):
            self._at = place
            if self.rank.executing is not None:
                self.rank.executing(instruction)
            self._execute(instruction)

    def go_on_alone(self, takes_all: Callable[[Instruction], bool]) -> None:
        """A message has failed: run what needs nobody, until something comes that all ranks of the worker take part in.

        So all ranks of a worker have done the same when they stop there (team.py).
        """
        for instruction in self.rank.instructions[self._at + 1 :]:
            if takes_all(instruction):
                return
            if isinstance(instruction, Compute):
                self._execute(instruction)

    def agree(self) -> Agreement:
        """Let all ranks know the terms of the step, without a coordinator: by a sum over everybody.

        With a staggered optimizer nobody waits for the others, unless the step needs it: to be clipped, or divided by
        what the loss counts, or for the loss scale. Where it does not, nor is it skipped for a gradient that is not
        finite.
        """
        rank, total = self.rank, self.rank.plan.total_microbatches()
        is_needed = rank.held.clip_norm is not None or rank.held.waits_for_all or rank.does_count
        if not (self._step.everyone or is_needed):
            return Agreement(StepTerms(float(total), None, self.taken), self.loss, True)
        # Each number is told by one rank, so that the sum adds zeros to it: all have the same bits, however it is made.
        # But squares of layers that are cut are told in parts, by all ranks of a worker.
        told = torch.zeros(2 * total + rank.model_layers, dtype=torch.float64)
        for number, (loss, count) in self.losses.items() if rank.share == 0 else ():
            told[2 * number], told[2 * number + 1] = loss, count
        for layer, square in rank.held.squared_norms(rank.first_held).items():
            told[2 * total + layer] = square
        rank.transport.all_reduce(rank.everyone, told)
        numbers = told.tolist()
        losses, squares = numbers[: 2 * total], numbers[2 * total :]
        return _agreement(losses[::2], losses[1::2], squares, self.taken)

    def step(self, terms: StepTerms) -> None:
        """Step the optimizer, without waiting for anybody."""
        with self._timed("step", self._step.duration_s):
            self.rank.held.step(terms)

    @property
    def losses(self) -> dict[int, tuple[float, float]]:
        """Every micro-batch's loss as (sum, count), by global number: those whose F this rank ran at the last stage.

        At another stage: what layers add to the sum (`add_loss`), which counts 0; nothing where they do not. Where
        progress is kept: of those whose gradients are in this rank's part of the sums, from before an interruption too.

        Reading it waits for the device.

        Raises:
            InvalidInputError: a count is negative or not finite.
        """
        return self._told(self._losses if self.progress is None else self.progress.losses)

    @property
    def stage_losses(self) -> dict[Layers, dict[int, tuple[float, float]]] | None:
        """The same for each stage of this rank, by its layers; None where it has but one, or keeps no progress."""
        stages = self.rank.plan.stages_of(self.rank.worker)
        if self._sums is None or len(stages) == 1:
            return None
        found = self._sums.losses_within([stage.layers for stage in stages])
        return {layers: self._told(losses) for layers, losses in found.items()}

    def _told(self, losses: Mapping[int, torch.Tensor]) -> dict[int, tuple[float, float]]:
        """Losses as numbers."""
        values = torch.stack(list(losses.values())).tolist() if losses else []
        for number, (_, count) in zip(losses, values, strict=True):
            if not 0 <= count < math.inf:
                raise InvalidInputError(
                    f"the loss of micro-batch {number} counts {count:g}",
                    where=f"the loss function, iteration {self.number}",
                    fix="return (sum, count): a count of 0 or more, such as that of the targets that are not ignored",
                )
        return {number: (total, count) for number, (total, count) in zip(losses, values, strict=True)}

    @property
    def pace(self) -> float | None:
        """How many times as long as planned, where no worker is slow, the operations took; None if that is at once."""
        return self._spent_s / self._planned_s if self._planned_s else None

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The global numbers of the micro-batches whose backward pass (B or W) this rank has run, in that order."""
        return tuple(dict.fromkeys(number for number, _ in self._backward))

    def _prepare(self) -> None:
        """Before anything is announced."""
        if self.progress is not None:
            self.progress.stages = tuple(stage.layers for stage in self.rank.plan.stages_of(self.rank.worker))
        self.rank.held.scale_loss(self.number, self.taken)
        if self.progress is not None and self.rank.program.rest is not None:
            self.rank.held.attach()
            self._gather(self.progress)
        else:
            self.rank.held.begin()
            if self.progress is not None:
                self.progress.begin(self.rank.held)
        if self.rank.transfers is not None:
            self.rank.transfers.begin(self.number)

    def _gather(self, progress: IterationProgress) -> None:
        """Have at hand what the program takes from the log, whatever that drops meanwhile; drop unused stashes."""
        rank, wanted = self.rank, self.rank.own_messages
        computed = list(computed_in(rank.instructions))
        made = {made_by(one.operation, rank.layers_of(one), rank.model_layers) for one in computed}
        for message in wanted.union(one.message for one in rank.instructions if isinstance(one, Send) and one.is_kept):
            found = progress.log.find(self._key_of(message))
            if found is not None:
                self._messages[message] = found
            elif message not in made:
                raise RuntimeFailedError(f"the {message.kind} {message} is to be taken from the log, which lacks it")
        self._own = wanted.difference(self._messages)
        begun = {self._stash(one) for one in computed if one.operation.kind == "F"}
        progress.keep_stashes(
            {
                (rank.tags.microbatch(one.operation), rank.layers_of(one))
                for one in computed
                if one.accumulates and self._stash(one) not in begun
            }
        )

    def _stash(self, one: Compute) -> Hashable:
        """By which the stage knows a micro-batch under way: its global number, in all its layers.

        What is computed again for its message may be under way there already.
        """
        number = self.rank.tags.microbatch(one.operation)
        if not one.accumulates:
            return number, self.rank.layers_of(one), "again"
        return number if one.layers is None else (number, one.layers)

    def _key_of(self, message: Message) -> MessageKey:
        """By which the log knows a message, its boundary for a link."""
        return message.kind, message.link, self.rank.tags.microbatch(message)

    def _tag(self, message: Message) -> int:
        """By which a message is known."""
        return self.rank.tags.of(message, self.number)

    def _execute(self, instruction: Instruction) -> None:
        rank = self.rank
        match instruction:
            case Receive():
                self._receive(instruction)
            case Compute():
                self._run_operation(instruction)
            case Pair():
                self._run_pair(instruction)
            case Send(message, to):
                output = self._messages.pop(message) if instruction.is_kept else self._output[message.kind]
                if rank.transfers is not None:
                    rank.transfers.handed_over(message, to)
                rank.transport.send(self._tag(message), to, output)
            case BeginSum(part):
                self._begin_sum(part)
            case AllReduce():
                self._all_reduce(instruction)
            case Step():
                pass  # the caller's to take

    def _receive(self, wanted: Receive) -> None:
        rank, message = self.rank, wanted.message
        while message not in self._posted:
            self._post_next()
        asked_s = rank.now_s()
        known = rank.boundary_of[message]
        self._messages[known] = rank.transport.receive(self._tag(message), wanted.source)
        if self.progress is not None:
            self.progress.log.keep(self._key_of(known), self._messages[known])
        if rank.transfers is not None:
            rank.transfers.received(message, wanted.source, asked_s)
        self._post_next()

    def _run_operation(self, one: Compute) -> None:
        rank, planned = self.rank, self.rank.planned(one)
        if rank.before is not None:
            rank.before(self._computed)
        with self._timed(planned.name, rank.duration_s(one), rank.slowdown) as timed:
            output = self._computed_message(one, planned.layers)
        self._output = {_MADE_BY[one.operation.kind]: output}
        self._note_operation(one, planned.layers)
        self._spent_s += timed.end_s - timed.start_s
        self._planned_s += planned.seconds

    def _run_pair(self, pair: Pair) -> None:
        """Run a pair's passes side by side; the spans of both are those of the pair."""
        rank, passes = self.rank, (pair.forward, pair.backward)
        planned = [rank.planned(one) for one in passes]
        if rank.before is not None:
            for place in range(self._computed, self._computed + 2):
                rank.before(place)
        forward, backward = (
            partial(self._computed_message, one, own.layers) for one, own in zip(passes, planned, strict=True)
        )
        planned_s = rank.pair_s(pair)
        with self._timed(planned[0].name, planned_s * rank.own_slowdown, rank.slowdown) as timed:
            outputs = rank.held.stage.side_by_side(forward, backward, self._stash(pair.backward))
        rank.record(Span(rank.worker.name, planned[1].name, timed.start_s, timed.end_s, self.number))
        self._output = {"activation": outputs[0], "gradient": outputs[1]}
        for one, own in zip(passes, planned, strict=True):
            self._note_operation(one, own.layers)
        self._spent_s += timed.end_s - timed.start_s
        self._planned_s += planned_s

    def _computed_message(self, one: Compute, layers: Layers) -> torch.Tensor:
        """Run an operation; gives what of it may be sent, in one piece."""
        return message_of(self._compute(one, layers))

    def _note_operation(self, one: Compute, layers: Layers) -> None:
        """An operation has ended, and what came of it is at hand."""
        rank, operation = self.rank, one.operation
        if self.progress is not None or self._own:
            self._keep_output(made_by(operation, layers, rank.model_layers))
        self._computed += 1
        if operation.kind in ("B", "W") and one.accumulates:
            self._backward.append((rank.tags.microbatch(operation), layers))

    def _keep_output(self, message: Message | None) -> None:
        """Log what was computed, as it is sent: on the host, in one piece; have it at hand where this rank takes it."""
        if message is None:
            return
        if self.progress is not None:
            self._output[message.kind] = self._output[message.kind].detach().to("cpu").contiguous()
            self.progress.log.keep(self._key_of(message), self._output[message.kind])
        if message in self._own:
            self._messages[message] = self._output[message.kind]

    def _compute(self, one: Compute, layers: Layers) -> Sequence[torch.Tensor]:
        """Run an operation; gives what of it may be sent."""
        operation, key = one.operation, self._stash(one)
        stage, microbatch = self.rank.held.stage, self.rank.tags.microbatch(one.operation)
        if operation.kind == "F":
            return own_tensors(self._forward(one, layers) if one.accumulates else self._forward_again(one, layers))
        made: Gradient | None = None
        if operation.kind == "W":
            stage.backward_weight(key)
        else:
            received = self._taken(one, layers)
            gradient = None if received is None else gradient_in(received, self.rank.like(layers[1]))
            split, full = stage.backward_input, stage.backward
            run = stage.backward_message if not one.accumulates else split if operation.kind == "I" else full
            made = run(key, gradient)
        if self.progress is not None and one.accumulates:
            self.progress.note(operation.kind, microbatch, layers)
        return tensors_of_gradient(made)

    def _taken(self, one: Compute, layers: Layers) -> torch.Tensor | None:
        """The message that an operation needs, on the stage's device."""
        message = taken_by(one.operation, layers, self.rank.model_layers)
        return None if message is None else self._messages.pop(message).to(self.rank.held.device)

    def _forward(self, one: Compute, layers: Layers) -> Tree:
        rank, held = self.rank, self.rank.held
        number = rank.tags.microbatch(one.operation)
        received = self._taken(one, layers)
        like, ends = rank.like(layers[0]), held.is_last and layers[1] == rank.model_layers
        inputs = self._of_batch(number, 0, like) if received is None else tree_in(received, like)
        target = self._target(number) if ends else None
        named: Named = self._of_batch(number, 2, dict(held.named_like)) if held.named_like else NOTHING

        def seed(place: int) -> None:  # before a layer of the stage computes
            seed_randomness(held.device, rank.seed, self.number, number, held.numbers[place])

        part = None if one.layers is None else held.places(layers)
        output = held.stage.forward(self._stash(one), inputs, target, seed, named, part)
        if one.accumulates:
            self._note_forward(number, layers, output if ends else None)
        return output

    def _forward_again(self, one: Compute, layers: Layers) -> Tree:
        """An F for the messages alone, which leaves no trace; if it is for its own only, nothing is kept of it."""
        key = self._stash(one)
        with self.rank.held.buffers_untouched():
            output = self._forward(one, layers)
        others = (other for other in computed_in(self.rank.instructions) if other is not one)
        if all(self._stash(other) != key for other in others):
            self.rank.held.stage.drop(key)
        return output

    def _note_forward(self, number: int, layers: Layers, loss: torch.Tensor | None) -> None:
        """An F has ended; `loss` is [sum, count] of the model's."""
        is_own, added = loss is not None, self.rank.held.stage.added
        if loss is None and added is not None:  # a part of the sum, which counts at the last stage
            loss = torch.stack([added, torch.zeros_like(added)])
        if self.progress is not None:
            self.progress.note("F", number, layers, loss)
        elif loss is not None:
            self._note_loss(number, loss, is_own)

    def _note_loss(self, number: int, loss: torch.Tensor, is_own: bool) -> None:
        """A micro-batch's [sum, count] is there; it `is_own` where the stage has the model's loss."""
        if is_own:
            self.rank.held.gradients.add_loss(loss)
        self._add_loss(number, loss)

    def _add_loss(self, number: int, loss: torch.Tensor) -> None:
        """What layers of another stage of this rank have added to the loss of a micro-batch may be there already."""
        before = self._losses.get(number)
        self._losses[number] = loss if before is None else before + loss

    def _of_batch(self, number: int, place: int, like: Tree | None) -> Tree:
        """Inputs (0), targets (1) or named inputs (2) of a micro-batch, which are to be like the first ones."""
        row = self.batch[number]
        given = row[place] if place < len(row) else {}
        if like is not None and not is_alike(given, like):
            raise InvalidInputError(
                f"the {('inputs', 'targets', 'named inputs')[place]} of micro-batch {number} are {kind_of(given)}, "
                f"those of the first one {kind_of(like)}",
                where=f"the batch of iteration {self.number}",
                fix="make all micro-batches alike: drop an incomplete last one (drop_last=True), pad to one length",
            )
        device = self.rank.held.device
        return on_tensors(lambda one: one.to(device), given)

    def _target(self, number: int) -> Tree:
        held = self.rank.held
        target = self._of_batch(number, 1, held.target_like)
        held.target_like = target if held.target_like is None else held.target_like
        return target

    def _begin_sum(self, part: GradientBucket) -> None:
        """Begin to sum a part, in place where nothing goes on after an error.

        Else in copies, for a sum that breaks off may still be written to when the gradients begin anew.
        """
        rank, held = self.rank, self.rank.held
        held.gradients.require_attached()
        if self._sums is not None and rank.before_sums is not None:
            rank.before_sums(self)
        held.share_buffers(part.layers, len(part.ranks), rank.number == min(part.ranks))
        views = held.gradients.of_layers(part.layers)
        begin, sliced = rank.transport.begin_sum, rank.sliced(part)
        if sliced is not None:
            self._begun[part.layers] = [vector.begin(view, begin) for vector, view in zip(sliced, views, strict=True)]
            return
        summed = views if rank.before_sums is None else [view.clone() for view in views]
        for one in summed:
            begin(part.ranks, one)
        self._begun[part.layers] = [partial(_put, one) for one in summed]

    def _all_reduce(self, reduction: AllReduce) -> None:
        """Sum each part over its holders, as soon as they all are there (program.py says in which order)."""
        held = self.rank.held
        held.gradients.require_attached()
        if self._sums is not None:
            if self.rank.program.rest is not None or len(self.rank.plan.seats_of(self.rank.worker)) > 1:
                self.ledger = ledger_entries(self._sums.ledger)
            if self.rank.before_sums is not None:
                self.rank.before_sums(self)
        elif len(self.rank.plan.seats_of(self.rank.worker)) > 1:
            self.ledger = ledger_entries(self._numbers_by_layer())
        if any(len(part.ranks) > 1 for part in reduction.parts):
            with self._timed("allreduce", reduction.duration_s) as timed:
                self._sum_parts(reduction.parts)
            self.reduction_s = timed.start_s, timed.end_s
        else:
            self._sum_parts(reduction.parts)
        shared = [tie for tie in reduction.ties if len(tie.ranks) > 1]
        if shared:  # a span of its own: here stages wait for each other, which says nothing of links and peers
            with self._timed("allreduce", 0.0):
                self._sum_ties(reduction.ties)
                for tie in shared if self.number.bit_count() == 1 else ():
                    self._compare_copies(tie)
        else:
            self._sum_ties(reduction.ties)
        if held.is_last:
            total, count = held.gradients.loss()
            self.loss = total / count if count else math.nan

    def _numbers_by_layer(self) -> dict[int, set[int]]:
        """By layer, the micro-batches whose backward pass this rank has run there."""
        found: dict[int, set[int]] = {}
        for number, layers in self._backward:
            for layer in range(*layers):
                found.setdefault(layer, set()).add(number)
        return found

    def _sum_parts(self, parts: Sequence[GradientBucket]) -> None:
        if self._begun:
            self.rank.transport.end_sums()
        for part in parts:
            reduce = self._reduce_of(part)
            if self._sums is not None:
                self._sums.sum_part(part.layers, reduce)
            elif reduce is not None:
                for view in self.rank.held.gradients.of_layers(part.layers):
                    reduce(view)

    def _reduce_of(self, part: GradientBucket) -> Reduce | None:
        """What makes the sum of each view of a part of it, in their order; None where nobody else holds it."""
        if part.layers in self._begun:
            return partial(_take_next, iter(self._begun.pop(part.layers)))
        size, is_lowest = len(part.ranks), self.rank.number == min(part.ranks)
        if size > 1 or self._sums is not None:  # to be copied, though nobody else has the layers now
            self.rank.held.share_buffers(part.layers, size, is_lowest)
        return self._summing(part.ranks, self.rank.sliced(part))

    def _summing(self, ranks: tuple[int, ...], sliced: Sequence[SlicedVector] | None) -> Reduce | None:
        """What sums each view over ranks, in their order; None where nobody else has any of it."""
        reduce = self.rank.transport.all_reduce
        if sliced is None:
            return partial(reduce, ranks) if len(ranks) > 1 else None
        following = iter(sliced)

        def reduce_next(view: torch.Tensor) -> None:
            next(following).begin(view, reduce)(view)

        return reduce_next

    def _sum_ties(self, ties: Sequence[TiedBucket]) -> None:
        reduces = {tie.layers: self._summing(tie.ranks, self.rank.sliced_tie(tie)) for tie in ties}
        if self._sums is not None:
            self._sums.sum_ties(reduces)
            return
        for layers, reduce in reduces.items():
            if reduce is not None:
                for view in self.rank.held.gradients.of_tie(layers):
                    reduce(view)

    def _compare_copies(self, tie: TiedBucket) -> None:
        """Raise InvalidInputError where the optimizer has made different values of the copies of tied weights.

        In iterations 1, 2, 4, 8 and so on, for it takes a message and a pass over the parameters. All holders add up a
        number of their bits: if not all have the same, then whoever has the largest one finds less than its multiple.
        """
        copies: list[tuple[tuple[int, ...], Sequence[torch.Tensor]]]
        gradients, sliced = self.rank.held.gradients, self.rank.sliced_tie(tie)
        if sliced is None:
            copies = [(tie.ranks, gradients.parameters_of_tie(tie.layers))]
        else:
            values = zip(sliced, gradients.values_of_tie(tie.layers), strict=True)
            shared = [zip(vector.groups, vector.messages(flat), strict=True) for vector, flat in values]
            copies = [(ranks, [message]) for messages in shared for ranks, message in messages]
        for ranks, held in copies:
            self._compare_copy(tie, ranks, fingerprint(held))

    def _compare_copy(self, tie: TiedBucket, ranks: tuple[int, ...], own: int) -> None:
        total = torch.tensor([own], dtype=torch.float64, device=self.rank.held.device)
        self.rank.transport.all_reduce(ranks, total)
        if int(total) != own * len(ranks):
            raise InvalidInputError(
                f"the weights that layers {listed(map(str, tie.layers))} share (tied weights) are no longer the same "
                "in all stages",
                where=f"iteration {self.number}",
                fix="let the optimizer treat a parameter by its shape or name, not by its place among a stage's "
                "parameters, and without randomness of its own",
            )

    def _post_next(self) -> None:
        if self._to_post:
            self._post(self._to_post.popleft())

    def _post(self, one: Receive) -> None:
        rank = self.rank
        like = rank.message_like(rank.boundary_of[one.message])
        rank.transport.post_receive(self._tag(one.message), one.source, like)
        self._posted.add(one.message)

    @property
    def _sums(self) -> StageSums | None:
        """What the gradients are, where progress is kept."""
        return None if self.progress is None else self.progress.sums

    @property
    def _step(self) -> Step:
        return next(one for one in self.rank.instructions if isinstance(one, Step))

    def _timed(self, name: str, duration_s: float, slowdown: float = 1.0) -> "SpanTimer":
        return SpanTimer(self.rank, self.number, name, duration_s, slowdown)


def _agreement(sums: Sequence[float], counts: Sequence[float], squares: Sequence[float], taken: int) -> Agreement:
    """As the coordinator of a resilient run reckons it (resilience/membership.py)."""
    count, whole = math.fsum(counts), sum(squares)
    is_finite = math.isfinite(whole) and all(map(math.isfinite, sums))
    norm = math.sqrt(whole) / count if is_finite and count > 0 else None
    loss = math.fsum(sums) / count if is_finite and count > 0 else None
    return Agreement(StepTerms(count, norm, taken), loss, is_finite)


def splits_backward(instructions: Iterable[Instruction]) -> bool:
    """Whether a rank's instructions split the backward pass into I and W."""
    return any(isinstance(one, Compute) and one.operation.kind in ("I", "W") for one in instructions)


def groups_of(instructions: Iterable[Instruction]) -> set[tuple[int, ...]]:
    """The groups of ranks that a rank's instructions sum over."""
    return {group for one in instructions if isinstance(one, AllReduce) for group in one.groups}


def meet(transport: Transport, group: tuple[int, ...]) -> None:
    """Wait until all ranks of a group are here."""
    transport.all_reduce(group, torch.zeros(1))


def _put(summed: torch.Tensor, into: torch.Tensor) -> None:
    into.copy_(summed)


def _take_next(sums: Iterator[Finish], view: torch.Tensor) -> None:
    next(sums)(view)


def seed_randomness(device: torch.device, seed: int, iteration: int, microbatch: int, layer: int) -> None:
    """Seed the device's generators for one micro-batch at one layer, whoever executes it, in whatever stage."""
    # A product of large odd numbers keeps neighbouring places apart; the generator itself mixes the bits.
    mixed = seed * 0x9E3779B97F4A7C15 + iteration * 0xBF58476D1CE4E5B9 + microbatch * 0x94D049BB133111EB + layer
    # torch.manual_seed looks at every kind of accelerator, which takes 100 times as long as seeding one generator.
    torch.default_generator.manual_seed(mixed % 2**63)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed % 2**63)
