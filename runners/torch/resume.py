"""Before what is left of an iteration is run: a worker has of the sums over gradients what it needs, and no more.

What it gives up is dropped, what it keeps goes into another stage where it gets one, and sums that have ended somewhere
are copied, bit for bit, to holders that lack them, as states are (checkpoint.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...schemas.resumption import Rest, SumCopy
from .checkpoint import tag_of_copy
from .held_stage import HeldStage, sha256_of
from .progress import IterationProgress, StageSums
from .transport import Transport

# Copies of states have those below it of each layer's tags.
FIRST_NUMBER = 32768


@dataclass(frozen=True, eq=False)
class SumTaker:
    """One rank of what is left of an iteration, and what it does before that.

    Args:
        rest: what is left.
        rank: this one.
        transport: reaches the others, with nothing but this under way.
        waits: called before each message that is waited for.
    """

    rest: Rest
    rank: int
    transport: Transport
    waits: Callable[[], None] = lambda: None

    def take(self, progress: IterationProgress, taken: HeldStage) -> dict[int, str]:
        """Get the sums ready in a stage that has its state already; all copies that come count together, or none.

        Args:
            progress: of the iteration; what it has of another stage goes over.
            taken: the stage that this worker is to hold.

        Returns:
            Of the layers whose sums were sent or received, the sha256 of these.

        Raises:
            RuntimeFailedError: a connection broke.
        """
        sealed = {layer for layers in self.rest.sealed for layer in range(*layers)}
        given = progress.sums
        if given is not None:
            given.unseal(sealed)
            progress.give_up(self.rest.workers[self.rank].given_up)
        sums = given if given is not None and given.held is taken else self._begun(progress, taken, sealed)
        ranks = {worker.place: number for number, worker in enumerate(self.rest.workers)}
        sent = [copy for copy in self.rest.copies if ranks[copy.source] == self.rank]
        received = [copy for copy in self.rest.copies if ranks[copy.target] == self.rank]
        for copy in sent:
            assert given is not None
            for number, view in enumerate(_views(given.held, copy)):
                self.transport.send(_tag(copy, number), ranks[copy.target], view)
        self._receive([(copy, ranks[copy.source]) for copy in received], sums)
        ends = [(taken, copy) for copy in received] + [(given.held, copy) for copy in sent if given is not None]
        if sums is not given:
            progress.move_to(sums)
        return {layer: _sha256(held, layer) for held, copy in ends for layer in range(*copy.layers)}

    def _begun(self, progress: IterationProgress, taken: HeldStage, sealed: set[int]) -> StageSums:
        """The sums of another stage than before, with what goes over."""
        taken.begin()
        sums = StageSums(taken)
        if progress.sums is not None:
            sums.take_over(progress.sums, sealed)
        return sums

    def _receive(self, copies: Sequence[tuple[SumCopy, int]], sums: StageSums) -> None:
        """Have copies, each from a rank."""
        expected = [(copy, source, _views(sums.held, copy)) for copy, source in copies]
        for copy, source, views in expected:
            for number, view in enumerate(views):
                self.transport.post_receive(_tag(copy, number), source, view)
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for copy, source, views in expected:
            for number, view in enumerate(views):
                self.waits()
                found.append((view, self.transport.receive(_tag(copy, number), source)))
        self.waits()
        self.transport.flush()
        for view, value in found:
            view.copy_(value.view_as(view))
        for copy, _ in copies:
            sums.held.note_summed(copy.layers)
            sums.seal(range(*copy.layers), copy.ties)


def _views(held: HeldStage, copy: SumCopy) -> list[torch.Tensor]:
    """What a copy is of, the same for both ends."""
    own = held.gradients.of_layers(copy.layers) if copy.layers[0] < copy.layers[1] else []
    return [*own, *(view for tie in copy.ties for view in held.gradients.of_tie(tie))]


def _tag(copy: SumCopy, number: int) -> int:
    return tag_of_copy(copy.layers, FIRST_NUMBER + number)


def _sha256(held: HeldStage, layer: int) -> str:
    views = held.gradients.of_layers((layer, layer + 1))
    return sha256_of({str(view.dtype): view for view in views})  # of each type there is one
