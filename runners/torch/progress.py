"""What a worker has of one iteration: kept through all epochs until the iteration is committed.

So that nothing is done twice where others are lost in the middle of it ("Mid-iteration recovery",
docs/recovery.md): a ledger of the micro-batches in each layer's sum, the sums that have ended, and the messages. It is
noted with each operation; between two waits nothing interrupts, so it needs no undoing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from ...schemas.orders import Kind
from ...schemas.plan import Layers
from ...schemas.resumption import (
    Begun,
    LastDone,
    MessageKey,
    SharedLayers,
    Standing,
    held_messages,
    layer_runs,
    ledger_entries,
    nothing_of,
    stashes_within,
)
from .held_stage import HeldStage

Reduce = Callable[[torch.Tensor], None]  # sums a tensor over ranks, in place


class MessageLog:
    """Messages of an iteration, sent and received, by reference; the oldest are dropped where there is no room.

    Only those in host memory are kept: on an accelerator what was sent, of which the host has a copy anyway.

    Args:
        limit_bytes: how much memory they may hold; None: any.

    Attributes:
        held_bytes: how much memory they hold.
    """

    def __init__(self, limit_bytes: float | None = None) -> None:
        self.held_bytes = 0
        self._limit_bytes = limit_bytes
        self._messages: dict[MessageKey, torch.Tensor] = {}

    def keep(self, key: MessageKey, message: torch.Tensor) -> None:
        """Keep a message, which nobody may write to any more."""
        if message.device.type != "cpu" or key in self._messages:
            return
        if message.untyped_storage().nbytes() > message.nbytes:  # a view, which would keep all that is around it
            message = message.clone()
        self._messages[key] = message
        self.held_bytes += message.nbytes
        while self._limit_bytes is not None and self.held_bytes > self._limit_bytes:
            self.held_bytes -= self._messages.pop(next(iter(self._messages))).nbytes

    def find(self, key: MessageKey) -> torch.Tensor | None:
        """A message, if it is here."""
        return self._messages.get(key)

    def keys(self) -> Collection[MessageKey]:
        """Of all that are here, the oldest first."""
        return self._messages.keys()


class StageSums:
    """What a stage's gradients are in an iteration: this worker's part of the sums over their holders, or the sums.

    What layers share with layers elsewhere (ties) is in their parts, and the sums of these count only together. So the
    parts of layers with ties are kept aside until all ties have been summed.

    Args:
        held: the stage, whose gradients are 0.

    Attributes:
        ledger: by layer, the micro-batches whose gradients are in this worker's own part, where it has that still.
        sealed: layers whose own gradients are the sums.
        ties: the sets of layers whose shared gradients are the sums.
        losses: by micro-batch and the last layer of the operation that gave it, [sum, count].
    """

    def __init__(self, held: HeldStage) -> None:
        self.held = held
        self.ledger: dict[int, set[int]] = {}
        self.sealed: set[int] = set()
        self.ties: set[tuple[int, ...]] = set()
        self.losses: dict[tuple[int, int], torch.Tensor] = {}
        self._aside: dict[int, list[torch.Tensor]] = {}

    @property
    def left(self) -> frozenset[tuple[int, ...]]:
        """The ties that are held here and not summed."""
        return frozenset(self.held.gradients.ties) - self.ties

    def holds(self, layer: int) -> bool:
        """Whether the stage has a layer."""
        return layer in self.held.numbers

    def add(self, layers: Layers, microbatch: int, loss: torch.Tensor | None = None) -> None:
        """The gradients of a micro-batch are in those of some layers, all of them, and with them its loss counts.

        Args:
            layers: [first, stop).
            microbatch: its global number.
            loss: [sum, count]; None where there is none.
        """
        for layer in range(*layers):
            self.ledger.setdefault(layer, set()).add(microbatch)
        if loss is not None:
            self.losses[microbatch, layers[1] - 1] = loss
            if self.held.is_last and layers[1] - 1 == self.held.numbers[-1]:
                self.held.gradients.add_loss(loss)

    def give_up(self, layers: Iterable[int]) -> None:
        """Have nothing in the sums over these layers, nor over others held here that share something with them."""
        dropped, ties = set(layers), set[tuple[int, ...]]()
        while more := {tie for tie in self.left - ties if not dropped.isdisjoint(tie)}:
            ties |= more
            dropped.update(layer for tie in more for layer in tie if self.holds(layer))
        for layer in dropped:
            for view in self.held.gradients.of_layers((layer, layer + 1)):
                view.zero_()
            self.ledger.pop(layer, None)
        self.losses = {key: loss for key, loss in self.losses.items() if key[1] not in dropped}
        for view in (view for tie in ties for view in self.held.gradients.of_tie(tie)):
            view.zero_()

    def sum_part(self, layers: Layers, reduce: Reduce | None) -> None:
        """Have the sums over the own gradients of some layers; if that breaks off all is as before.

        Args:
            layers: [first, stop).
            reduce: sums over the holders; None where nobody else is one.
        """
        gradients = self.held.gradients
        tied = {layer for tie in self.left for layer in tie}.intersection(range(*layers))
        aside = {layer: [view.clone() for view in gradients.of_layers((layer, layer + 1))] for layer in tied}
        if reduce is not None:
            gradients.sum_apart([(view, reduce) for view in gradients.of_layers(layers)])
        self._aside |= aside
        self.seal(range(*layers))

    def sum_ties(self, reduces: Mapping[tuple[int, ...], Reduce | None]) -> None:
        """Have the sums over what layers share; if that breaks off all is as before.

        Args:
            reduces: as of `sum_part`, for all ties that are left.
        """
        gradients = self.held.gradients
        gradients.sum_apart(
            [(view, reduce) for tie, reduce in reduces.items() if reduce for view in gradients.of_tie(tie)]
        )
        self.seal((), reduces)

    def seal(self, layers: Iterable[int], ties: Iterable[tuple[int, ...]] = ()) -> None:
        """The gradients of these layers are the sums, those of what these ties share are, too."""
        self.sealed.update(layers)
        self.ties.update(ties)
        pending = {layer for tie in self.left for layer in tie}
        for layer in self.sealed - pending:
            self.ledger.pop(layer, None)
            self._aside.pop(layer, None)

    def unseal(self, sealed: Collection[int]) -> None:
        """Have one's own part again of all layers but those that are sealed for everybody; nothing, if it is gone.

        Args:
            sealed: these, closed under ties.
        """
        gradients = self.held.gradients
        for layer in self.sealed.difference(sealed):
            self.sealed.discard(layer)
            views = gradients.of_layers((layer, layer + 1))
            for view, own in zip(views, self._aside.pop(layer, ()) or map(torch.zeros_like, views), strict=True):
                view.copy_(own)
        for tie in [tie for tie in self.ties if tie[0] not in sealed]:
            self.ties.discard(tie)
            for view in gradients.of_tie(tie):
                view.zero_()

    def take_over(self, given: "StageSums", sealed: Collection[int]) -> None:
        """Have what another stage of this worker has of the layers in both, its own part or the sums.

        Its part of what layers share is of all of them that it holds: where one is not in both, it is of no use.

        Args:
            given: that stage's, of the same iteration, with nothing sealed but `sealed`.
            sealed: the layers that are sealed for everybody.
        """
        both = set(given.held.numbers).intersection(self.held.numbers)
        for layers in layer_runs(both):
            self.held.take_sums(layers, given.held)
        self.ledger = {layer: set(own) for layer, own in given.ledger.items() if layer in both}
        self.losses = {
            (microbatch, layer): loss
            for (microbatch, layer), loss in given.losses.items()
            if layer in both or layer in sealed
        }
        for tie in set(self.held.gradients.ties).intersection(given.held.gradients.ties):
            if tie in given.ties or all(layer in both for layer in tie if given.holds(layer)):
                for view, own in zip(self.held.gradients.of_tie(tie), given.held.gradients.of_tie(tie), strict=True):
                    view.copy_(own)
            else:
                self.give_up(layer for layer in tie if layer in both and layer not in sealed)
        self.seal(given.sealed.intersection(both), given.ties.intersection(self.held.gradients.ties))

    def losses_within(self, stages: Iterable[Layers]) -> dict[Layers, dict[int, torch.Tensor]]:
        """[sum, count] of micro-batches, by the stage that gave them; those of layers in none of these by themselves.

        Args:
            stages: the layers of each.
        """
        found: dict[Layers, dict[int, torch.Tensor]] = {}
        known = list(stages)
        for (microbatch, layer), loss in sorted(self.losses.items()):
            stage = next((own for own in known if own[0] <= layer < own[1]), (layer, layer + 1))
            losses = found.setdefault(stage, {})
            losses[microbatch] = losses[microbatch] + loss if microbatch in losses else loss
        return found


class IterationProgress:
    """What a worker has of one iteration.

    Args:
        limit_bytes: how much memory messages may hold; None: any.

    Attributes:
        log: the messages.
        sums: what the gradients are; None before the iteration has begun here.
        stages: the layers of each stage of this worker, by the plan that it executes or did last.
    """

    def __init__(self, limit_bytes: float | None = None) -> None:
        self.log = MessageLog(limit_bytes)
        self.sums: StageSums | None = None
        self.stages: tuple[Layers, ...] = ()
        # Micro-batches under way, in some layers: what was done last, and the loss.
        self._under_way: dict[Begun, tuple[LastDone, torch.Tensor | None]] = {}

    def begin(self, held: HeldStage) -> None:
        """A worker's layers, whose gradients are 0, begin with nothing of the iteration but messages."""
        self._under_way.clear()
        self.sums = StageSums(held)

    def note(self, kind: Kind, microbatch: int, layers: Layers, loss: torch.Tensor | None = None) -> None:
        """An operation has ended whose gradients count.

        Args:
            kind: F, I, W or B.
            microbatch: global number.
            layers: [first, stop) that it has run.
            loss: of an F, [sum, count]; None where there is none.
        """
        assert self.sums is not None
        if kind == "F":
            self._under_way[microbatch, layers] = "F", loss
            return
        _, loss = self._under_way.pop((microbatch, layers))
        if kind == "I":
            self._under_way[microbatch, layers] = "I", loss
        else:
            self.sums.add(layers, microbatch, loss)

    def keep_stashes(self, begun: Collection[Begun]) -> None:
        """Drop all that is under way but these micro-batches in these stages."""
        assert self.sums is not None
        held = self.sums.held
        kept = {number if held.holds == (layers,) else (number, layers) for number, layers in begun}
        for key in held.stage.held_keys():
            if key not in kept:
                held.stage.drop(key)
        self._under_way = {key: last for key, last in self._under_way.items() if key in begun}

    def give_up(self, layers: Collection[Layers]) -> None:
        """Have nothing in the sums over some layers; nor over any, if the I of a micro-batch is in them already.

        What is half in the sums is of no use then: it is dropped.

        Args:
            layers: ranges [first, stop); there may be none.
        """
        if not layers:
            return
        assert self.sums is not None
        dropped = {layer for own in layers for layer in range(*own)}
        if any(last == "I" for last, _ in self._under_way.values()):
            dropped = set(self.sums.held.numbers) - self.sums.sealed
            self.keep_stashes({key for key in self._whole() if self._under_way[key][0] == "F"})
        self.sums.give_up(dropped)

    def move_to(self, sums: StageSums) -> None:
        """Go on in another stage, into which nothing comes of what is under way."""
        if self.sums is not None:
            self.keep_stashes(())
        self.sums = sums

    @property
    def losses(self) -> dict[int, torch.Tensor]:
        """[sum, count] of the micro-batches in this worker's own part of the sums, also of those that have ended."""
        found: dict[int, torch.Tensor] = {}
        losses = {} if self.sums is None else self.sums.losses
        for microbatch, layer in sorted(losses):
            loss = losses[microbatch, layer]
            found[microbatch] = found[microbatch] + loss if microbatch in found else loss
        return found

    def standing(self, worker: str, held: HeldStage, ties: Sequence[tuple[int, ...]] = ()) -> Standing:
        """What there is, after which no micro-batch is under way in a part of the stage.

        Of one that was so after its I the W is run: a part of its gradients is in the sums, and a standing knows
        stashes of whole stages only.

        Args:
            worker: its name.
            held: its stage.
            ties: as of `lower`.
        """
        sums = self.sums
        nothing = replace(nothing_of(worker, held.holds), splits=held.stage.is_split)
        if sums is None:
            return replace(nothing, ties=tuple(SharedLayers(tie) for tie in ties))
        for (number, layers), (last, _) in list(self._under_way.items()):
            if last == "I" and layers not in self.stages:
                held.stage.backward_weight((number, layers))
                self.note("W", number, layers)
        stashes = {key: self._under_way[key][0] for key in self._whole()}
        self.keep_stashes(stashes)
        return replace(
            nothing,
            splits=nothing.splits or "I" in stashes.values(),  # it did, though what is left since then needs no I
            ledger=ledger_entries(sums.ledger),
            sealed=layer_runs(sums.sealed),
            stashes=stashes_within(held.holds, stashes),
            messages=held_messages(self.log.keys()),
            ties=tuple(SharedLayers(tie, tie in sums.ties) for tie in ties),
        )

    def _whole(self) -> set[Begun]:
        """What is under way in whole stages."""
        return {key for key in self._under_way if key[1] in self.stages}
