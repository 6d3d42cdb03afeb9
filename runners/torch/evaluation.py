"""A model is evaluated by the plan that trains it: its F only, of held-out micro-batches, as often as that takes.

A plan of M micro-batches evaluates M at a time, each by whoever executes it in training, so that a re-routed plan
evaluates as well, and nothing has to be planned for it. No gradient is taken, nothing is dropped out, and buffers such
as running means stay as they are; so do gradients and micro-batches of the training that are under way.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch

from ...schemas.errors import InvalidInputError
from ..program import Compute, Instruction, Message, Pair, Program, Receive, Send
from .data.provider import Batch
from .iteration import Iteration
from .rank import Rank


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What a model is evaluated on, and when.

    Attributes:
        batch: its micro-batches, by their numbers.
        microbatches: how many there are.
        every: iterations between two evaluations; there is one more after the last.
        at_start: whether there is one before iteration 0.

    Raises:
        InvalidInputError: there is nothing, or never.
    """

    batch: Batch
    microbatches: int
    every: int
    at_start: bool = False

    def __post_init__(self) -> None:
        for name, number in (("microbatches", self.microbatches), ("every", self.every)):
            if number < 1:
                raise InvalidInputError(
                    f"{number} is no number to evaluate by", where=f"evaluation, {name}", fix="give 1 or more"
                )

    def is_due_before(self, iteration: int) -> bool:
        """Whether an evaluation comes before an iteration."""
        return iteration % self.every == 0 and (iteration > 0 or self.at_start)


def evaluate(rank: Rank, data: HeldOut, iteration: int) -> dict[int, tuple[float, float]]:
    """Run all held-out micro-batches forward; all ranks do it together.

    Args:
        rank: this one, between two iterations.
        data: what to evaluate on.
        iteration: before which.

    Returns:
        The losses, as (sum, count), of those whose last F this rank has run, by their numbers.

    Raises:
        InvalidInputError: a count is negative or not finite, or a micro-batch is unlike those of training.
        RuntimeFailedError: a connection to another rank broke.
    """
    total = rank.plan.total_microbatches()
    found: dict[int, tuple[float, float]] = {}
    with rank.held.buffers_untouched(), rank.held.stage.evaluating():
        for turn, first in enumerate(range(0, data.microbatches, total)):
            program = forward_only(rank, min(total, data.microbatches - first))
            alone = replace(rank, program=program, record=lambda span: None, before=None, transfers=None)
            run = HeldOutPass(alone, iteration, _Shifted(data.batch, first), turn)
            run.reduce()
            # Of two turns messages are told apart, and no queue is to hold more.
            rank.transport.flush(sum(isinstance(one, Send) for one in alone.instructions))
            found.update((first + number, loss) for number, loss in run.losses.items())
    return found


def forward_only(rank: Rank, microbatches: int) -> Program:
    """What a rank, and who sends to it, executes of the first so many micro-batches: F, and messages between them.

    Args:
        rank: which; other ranks' instructions are left out.
        microbatches: by their numbers in all pipelines.
    """
    plan, sources = rank.plan, {one.source for one in rank.instructions if isinstance(one, Receive)}
    offsets = [plan.microbatch_offset(pipeline) for pipeline in range(len(plan.pipelines))]

    def is_kept(one: Instruction) -> bool:
        """Whether it is an F of one of these micro-batches, or brings or takes an activation of one."""
        match one:
            case Compute(operation):
                is_forward, pipeline, microbatch = operation.kind == "F", operation.pipeline, operation.microbatch
            case Send(message=message) | Receive(message=message):
                is_forward, pipeline, microbatch = message.kind == "activation", message.pipeline, message.microbatch
            case _:
                return False
        return is_forward and offsets[pipeline] + microbatch < microbatches

    kept = (
        tuple(filter(is_kept, map(_forward_of, instructions))) if number in sources or number == rank.number else ()
        for number, instructions in enumerate(rank.program.instructions)
    )
    return replace(rank.program, instructions=tuple(kept))


def _forward_of(one: Instruction) -> Instruction:
    """Of a pair what there is without backward passes."""
    return one.forward if isinstance(one, Pair) else one


class HeldOutPass(Iteration):
    """The F of held-out micro-batches.

    Args:
        rank: who runs it, with a program of nothing else.
        number: of the iteration that comes next.
        batch: the micro-batches.
        turn: counts the passes of an evaluation.
    """

    def __init__(self, rank: Rank, number: int, batch: Batch, turn: int) -> None:
        self._turn = turn
        super().__init__(rank, number, batch)

    def _prepare(self) -> None:
        """There is nothing to clear: gradients are not touched."""

    def _tag(self, message: Message) -> int:
        return self.rank.tags.of_evaluation(message, self._turn)

    def _note_loss(self, number: int, loss: torch.Tensor, is_own: bool) -> None:
        self._add_loss(number, loss)

    def _stash(self, one: Compute) -> Hashable:
        """No micro-batch of the training, which may be under way."""
        return self.rank.tags.microbatch(one.operation), "held out"


class _Shifted:
    """A batch whose first micro-batch is another one's `first`."""

    def __init__(self, batch: Batch, first: int) -> None:
        self._batch, self._first = batch, first

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A micro-batch."""
        return self._batch[self._first + microbatch]
