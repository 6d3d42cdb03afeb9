"""A stage's buffers, such as a batch norm's running mean: F changes them, and so they count only once a step is taken.

What an iteration has made of them that is begun anew, or committed without a step, is taken back; where an interrupted
iteration goes on, it stays. Workers of one stage see other micro-batches, and so other buffers: these go with the
gradients into the sum over all of the stage, and come back equal before each step. So whoever joins, or saves a
checkpoint, has what all have.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ..training import SharedBuffers
from .gradients import FlatGradients


class StageBuffers:
    """The buffers of a stage, as of the last step and as of now.

    Args:
        layers: the stage's.
        gradients: the stage's, with whose sums the persistent ones travel.
        shared: which values count where peers have different ones; of integers always the lowest peer's.
    """

    def __init__(self, layers: nn.ModuleList, gradients: FlatGradients, shared: SharedBuffers = "lowest") -> None:
        self._places = [
            (module, name) for module in layers.modules() for name, _ in module.named_buffers(recurse=False)
        ]
        self._gradients = gradients
        self._is_mean = shared == "mean"
        self._before: list[torch.Tensor] = []
        self._is_begun = False
        self._summed: set[int] = set()  # layers of the stage that have gone into sums

    def begin(self) -> None:
        """An iteration begins; if the one before ended without a step, its traces are gone."""
        self.reset()
        self._before = copied(self._now(), self._before)
        self._is_begun = True

    def reset(self) -> None:
        """Take back what an iteration has changed since it began, unless a step was taken."""
        if self._is_begun:
            _write(self._places, self._before)
        self._is_begun = False
        self._summed.clear()

    def commit(self) -> None:
        """The step is being taken: what this iteration has made of the buffers counts, the peers' part included."""
        for place in sorted(self._summed):
            for module, name, view in self._gradients.buffer_views[place]:
                buffer = getattr(module, name).detach()
                if buffer.is_floating_point():
                    buffer.copy_(view.view_as(buffer))
                else:
                    buffer.copy_(self._value_before(module, name).long() + view.view_as(buffer).long())
        self._summed.clear()
        self._is_begun = False

    @property
    def summed(self) -> frozenset[int]:
        """The places of the layers whose buffers have gone into sums of this iteration."""
        return frozenset(self._summed)

    def go_on(self, summed: Iterable[int]) -> None:
        """An iteration of which sums were kept goes on: the values that are here are those before it.

        Args:
            summed: as the attribute.
        """
        self._before = copied(self._now(), self._before)
        self._is_begun, self._summed = True, set(summed)

    def note_summed(self, places: Iterable[int]) -> None:
        """The sums over the buffers of these layers are where `share` puts what goes into them."""
        self._summed.update(places)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """What is done inside leaves no trace here."""
        values = [value.clone() for value in self._now()]
        try:
            yield
        finally:
            _write(self._places, values)

    def share(self, place: int, peers: int, is_lowest: bool) -> None:
        """Put the buffers of a layer where the sum over gradients takes them, which is to follow.

        Args:
            place: of the layer in the stage, from 0.
            peers: how many workers sum.
            is_lowest: whether this one is the lowest of them.
        """
        for module, name, view in self._gradients.buffer_views[place]:
            value = getattr(module, name).detach()
            is_mean = self._is_mean and value.is_floating_point()
            if not value.is_floating_point():
                # A difference is small, and so exact in the gradients' type. Before, all peers had the same.
                value = value.long() - self._value_before(module, name).long()
            if is_mean:
                view.copy_(value.reshape(-1)).div_(peers)
            elif is_lowest:
                view.copy_(value.reshape(-1))
            else:
                view.zero_()
        self._summed.add(place)

    def as_of_last_step(self) -> dict[int, torch.Tensor]:
        """The values that count, by the `id` of the buffers; while no iteration is under way these are they."""
        return dict(zip(map(id, self._now()), self._before, strict=True)) if self._is_begun else {}

    def _value_before(self, module: nn.Module, name: str) -> torch.Tensor:
        return self._before[self._places.index((module, name))]

    def _now(self) -> list[torch.Tensor]:
        return [getattr(module, name) for module, name in self._places]


def copied(values: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies, in the memory of `into` where all of that is like them."""
    if [_kind(value) for value in values] != [_kind(value) for value in into]:
        return [value.clone() for value in values]
    if into:
        torch._foreach_copy_(list(into), list(values))
    return list(into)


def take_buffers(given: nn.Module, taken: nn.Module) -> None:
    """Let a layer have the buffers of another one that is made alike."""
    for source, target in zip(given.modules(), taken.modules(), strict=True):
        values = dict(source.named_buffers(recurse=False))
        _write([(target, name) for name in values], list(values.values()))


def _write(places: Sequence[tuple[nn.Module, str]], values: Sequence[torch.Tensor]) -> None:
    for (module, name), value in zip(places, values, strict=True):
        now = getattr(module, name)
        if now is not None and _kind(now) == _kind(value):
            now.detach().copy_(value)
        else:  # a layer has put another one in its place
            module._buffers[name] = value.clone()


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
