"""The gradients of a stage in one flat buffer a type, so that they are summed over their holders in one go."""

import itertools
from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import nn

from ...schemas.plan import Layers


class FlatGradients:
    """Lets every parameter's `grad` be a view into a flat buffer; with the gradients of the last layer goes the loss.

    The loss is two numbers, its sum and its count.

    Parameters stand in the layers' order, so consecutive layers are a view into each buffer. Workers whose stages begin
    or end elsewhere have equal views of the layers that both hold: types come in one order everywhere, and the loss
    stands behind the last layer's last gradient, in float32 at least, or alone in float64 where that layer has none of
    its own. A buffer of float64 for it alone would be another message. In float32 counts are exact up to 16 million,
    and beyond that off by 6e-8 of themselves: so is every gradient. What gradients are divided by does not come from
    here, for only the last layer's holders have it (`StepTerms`).

    Args:
        layers: the stage's; a parameter that several share belongs to the first, one that takes no gradient is left
            alone.
        first: the number of the first layer in the model.
        device: where the loss is kept.
        with_loss: whether the model ends here, and so has a loss.

    Attributes:
        buffers: the flat buffers.
    """

    def __init__(self, layers: Sequence[nn.Module], first: int, device: torch.device, *, with_loss: bool) -> None:
        self._first = first
        own = _own_parameters(layers)
        types = {parameter.dtype for layer in own for parameter in layer}
        loss_type = None
        if with_loss:
            # In bfloat16 a sum of losses would have two digits.
            loss_type = torch.promote_types(own[-1][-1].dtype, torch.float32) if own[-1] else torch.float64
            types.add(loss_type)
        self.buffers: list[torch.Tensor] = []
        self._starts: list[list[int]] = []
        self._own: list[torch.Tensor] = []  # the buffers without the loss
        self._views_of: dict[nn.Parameter, torch.Tensor] = {}
        for dtype in sorted(types, key=str):
            held = [[parameter for parameter in layer if parameter.dtype == dtype] for layer in own]
            sizes = [sum(parameter.numel() for parameter in layer) for layer in held]
            sizes[-1] += 2 * (dtype == loss_type)
            flat = torch.zeros(sum(sizes), dtype=dtype, device=device)
            start = 0
            for parameter in itertools.chain.from_iterable(held):
                self._views_of[parameter] = flat[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
            self.buffers.append(flat)
            self._starts.append([0, *accumulate(sizes)])
            self._own.append(flat[:start])
            if dtype == loss_type:
                self._loss = flat[start:]

        self.attach()

    def attach(self) -> None:
        """Let every parameter's `grad` be its view, also where somebody has taken that away (`zero_grad`)."""
        for parameter, view in self._views_of.items():
            parameter.grad = view

    def clear(self) -> None:
        """Set the gradients and the loss to zero."""
        for buffer in self.buffers:
            buffer.zero_()

    def of_layers(self, layers: Layers) -> list[torch.Tensor]:
        """The flat gradients of the model's layers [first, stop), all of them held here: one view a type."""
        first, stop = layers[0] - self._first, layers[1] - self._first
        views = [
            buffer[starts[first] : starts[stop]] for buffer, starts in zip(self.buffers, self._starts, strict=True)
        ]
        return [view for view in views if len(view)]

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add [sum, count] to the loss that travels with the last layer's gradients."""
        self._loss += loss.to(self._loss.dtype)

    def loss(self) -> tuple[float, float]:
        """(sum, count): of this worker, or after the all-reduce of all workers of the last layer together."""
        total, count = self._loss.tolist()
        return total, count

    def scale(self, factor: float) -> None:
        """Multiply all gradients, but not the loss."""
        if factor != 1.0:
            for buffer in self._own:
                buffer.mul_(factor)

    def squared_norms(self, layers: Iterable[int]) -> dict[int, float]:
        """Of some of the model's layers, all of them held here: the sum of their gradients' squares, in float64.

        Finite exactly where all gradients of the layer are, as long as none is beyond 1e150. Waits for the device once.
        """
        wanted = list(layers)
        norms = [
            torch.linalg.vector_norm(view, dtype=torch.float64)
            for layer in wanted
            for view in self._views(layer - self._first)
        ]
        values = iter(torch.stack(norms).square().tolist() if norms else [])
        return {layer: sum(next(values) for _ in self._views(layer - self._first)) for layer in wanted}

    def _views(self, place: int) -> list[torch.Tensor]:
        """The gradients of one layer of the stage: one view a type."""
        views = [own[starts[place] : starts[place + 1]] for own, starts in zip(self._own, self._starts, strict=True)]
        return [view for view in views if len(view)]


def _own_parameters(layers: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """The parameters of each layer that take a gradient, without those that an earlier layer has as well."""
    seen: set[nn.Parameter] = set()
    found = []
    for layer in layers:
        own = [parameter for parameter in layer.parameters() if parameter.requires_grad and parameter not in seen]
        seen.update(own)
        found.append(own)
    return found
