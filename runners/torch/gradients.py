"""The gradients of a stage in one flat buffer a type, so that they are summed over their holders in one go."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn

from ...schemas.errors import InvalidInputError
from ...schemas.plan import Layers
from ...schemas.slices import TensorCut
from .held_layers import HeldLayers
from .precision import gradient_type

_CHUNK = 1 << 16  # numbers that are squared in float64 at a time: what a core's cache holds


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a flat vector.

    Attributes:
        start: where it begins.
        shape: of the tensor that it is.
        cut: how that is divided among the ranks of a worker; None for what all of them have whole.
    """

    start: int
    shape: tuple[int, ...]
    cut: TensorCut | None = None

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """It as a view of the vector, in its shape."""
        return flat[self.start : self.start + self.size].view(self.shape)


class FlatGradients:
    """Lets every parameter's `grad` be a view into a flat buffer; what else is summed goes with them.

    That is the loss, two numbers, its sum and its count, behind the last layer's gradients; and each layer's persistent
    buffers, such as a batch norm's running mean (buffers.py), behind its own. What layers share with layers of other
    stages too stands in flat buffers of its own, after those of the layers.

    Parameters stand in the layers' order, so consecutive layers are a view into each buffer. Workers whose stages begin
    or end elsewhere have equal views of the layers that both hold, as types come in one order everywhere. Gradients are
    summed in float32 at least. The loss is so too, or stands alone in float64 where the last layer has no gradients. A
    buffer of float64 for it in any case would be another message. In float32 counts are exact up to 16 million, and
    beyond that off by 6e-8 of themselves: so is every gradient. What gradients are divided by does not come from here,
    for only the last layer's holders have it (`StepTerms`).

    Args:
        layers: the stage's; a parameter or buffer that several share belongs to the first, a parameter that takes no
            gradient is left alone.
        held: which of the model these are.
        device: where the loss is kept.
        with_loss: whether the model ends here, and so has a loss.
        ties: by the layers of the model that share them, parameters whose gradients stand by themselves, for others
            sum them as well.
        uncounted: parameters that norms leave out, for another rank counts them.
        cuts: how parameters of which this rank has a slice are divided.

    Attributes:
        buffers: the flat buffers.
        buffer_views: of each layer's persistent buffers the module and name, and the view that sums them.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        held: HeldLayers,
        device: torch.device,
        *,
        with_loss: bool,
        ties: Mapping[tuple[int, ...], Sequence[nn.Parameter]] = MappingProxyType({}),
        uncounted: Collection[nn.Parameter] = frozenset(),
        cuts: Mapping[nn.Parameter, TensorCut] = MappingProxyType({}),
    ) -> None:
        self._held = held
        self._ties = ties
        self._cuts = cuts
        self._uncounted = uncounted
        self.buffers: list[torch.Tensor] = []
        self.buffer_views: list[list[tuple[nn.Module, str, torch.Tensor]]] = [[] for _ in layers]
        self._starts: list[list[int]] = []
        self._gradients: list[list[torch.Tensor]] = [[] for _ in layers]  # of each layer: one view a type
        self._views: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._scratch: dict[torch.dtype, torch.Tensor] = {}
        own = _owned(layers, itertools.chain.from_iterable(ties.values()))
        self._parameters = [layer.parameters for layer in own]
        loss_type = own[-1].carrier(torch.float64) if with_loss else None
        types = {dtype for layer in own for dtype in layer.types()} | ({loss_type} if loss_type is not None else set())
        for dtype in sorted(types, key=str):
            self._add_buffer(dtype, own, device, 2 * (dtype == loss_type))
        self._tied = {shared: self._flat(parameters, device) for shared, parameters in ties.items()}

    def _add_buffer(self, dtype: torch.dtype, own: "Sequence[_Owned]", device: torch.device, behind: int) -> None:
        parameters = [[one for one in layer.parameters if gradient_type(one.dtype) == dtype] for layer in own]
        others = [[one for one in layer.buffers if layer.type_of(one[2]) == dtype] for layer in own]
        size = sum(one.numel() for layer in parameters for one in layer)
        size += sum(one.numel() for layer in others for *_, one in layer) + behind
        flat = torch.zeros(size, dtype=dtype, device=device)
        starts, start = [0], 0
        for place, (held, beside) in enumerate(zip(parameters, others, strict=True)):
            for parameter in held:
                self._let_be_view(parameter, flat[start : start + parameter.numel()])
                start += parameter.numel()
            if start > starts[-1]:
                self._gradients[place].append(flat[starts[-1] : start])
            for module, name, value in beside:
                self.buffer_views[place].append((module, name, flat[start : start + value.numel()]))
                start += value.numel()
            starts.append(start)
        if behind:
            self._loss = flat[start:]
            starts[-1] += behind
        self.buffers.append(flat)
        self._starts.append(starts)

    def _flat(self, parameters: Sequence[nn.Parameter], device: torch.device) -> list[torch.Tensor]:
        """Gradients of parameters, one flat buffer a type."""
        flats = []
        for dtype in sorted({gradient_type(parameter.dtype) for parameter in parameters}, key=str):
            held = [parameter for parameter in parameters if gradient_type(parameter.dtype) == dtype]
            sizes = [parameter.numel() for parameter in held]
            flats.append(torch.zeros(sum(sizes), dtype=dtype, device=device))
            for parameter, view in zip(held, torch.split(flats[-1], sizes), strict=True):
                self._let_be_view(parameter, view)
        self.buffers += flats
        return flats

    def _let_be_view(self, parameter: nn.Parameter, flat: torch.Tensor) -> None:
        view = flat.view_as(parameter)
        parameter.grad = None
        if flat.dtype != parameter.dtype:
            parameter.grad_dtype = flat.dtype
        parameter.grad = view
        self._views.append((parameter, view))

    def attach(self) -> None:
        """Let every parameter's `grad` be its view, also where somebody has taken that away (`zero_grad`)."""
        for parameter, view in self._views:
            if parameter.grad is not view:
                parameter.grad = view

    def clear(self) -> None:
        """Set the gradients and the loss to zero, every parameter's `grad` its view."""
        self.attach()
        for buffer in self.buffers:
            buffer.zero_()

    def require_attached(self) -> None:
        """Raise InvalidInputError if a parameter's `grad` is no view any more: what it has is not in the sums."""
        for number, (parameter, view) in enumerate(self._views):
            if parameter.grad is not view:
                raise InvalidInputError(
                    f"the gradient of parameter {number} of the stage, of shape {list(parameter.shape)}, was "
                    f"{'taken away' if parameter.grad is None else 'replaced'} in the middle of an iteration",
                    where="zero_grad() or the like in a layer, a hook or the loss",
                    fix="leave `grad` alone: gradients are set to zero before each iteration",
                )

    def of_layers(self, layers: Layers) -> list[torch.Tensor]:
        """The flat gradients of the model's layers [first, stop), all of them held here: one view a type."""
        places = self._held.places(layers)
        views = [
            buffer[starts[places.start] : starts[places.stop]]
            for buffer, starts in zip(self.buffers, self._starts, strict=False)
        ]  # the buffers of ties come last
        return [view for view in views if len(view)]

    def segments(self, layers: Layers) -> list[list[Segment]]:
        """What each view of `of_layers` is made of, in its order."""
        places = self._held.places(layers)
        found = []
        for buffer, starts in zip(self.buffers, self._starts, strict=False):
            size = starts[places.stop] - starts[places.start]
            held = {one for place in places for one in self._parameters[place] if one in self._cuts}
            begins = {
                one: int(view.storage_offset()) - starts[places.start]
                for one, view in self._views
                if one in held and view.dtype == buffer.dtype
            }
            if size:
                found.append(self._with_what_is_whole(begins, size))
        return found

    @property
    def ties(self) -> Collection[tuple[int, ...]]:
        """The sets of layers that share something with each other, of those some are held here."""
        return self._tied.keys()

    def of_tie(self, layers: tuple[int, ...]) -> list[torch.Tensor]:
        """The flat gradients of what these layers share, and only they: one tensor a type."""
        return self._tied[layers]

    def segments_of_tie(self, layers: tuple[int, ...]) -> list[list[Segment]]:
        """What each vector of `of_tie` is made of."""
        views = dict(self._views)
        found = []
        for flat in self._tied[layers]:
            cut = {
                one: views[one] for one in self._ties[layers] if one in self._cuts and views[one].dtype == flat.dtype
            }
            begins = {one: int(view.storage_offset() - flat.storage_offset()) for one, view in cut.items()}
            found.append(self._with_what_is_whole(begins, flat.numel()))
        return found

    def _with_what_is_whole(self, begins: Mapping[nn.Parameter, int], size: int) -> list[Segment]:
        """The segments of a vector of some size, of which parameters that are cut begin at these places."""
        found, end = [], 0
        for one, start in begins.items():
            if start > end:
                found.append(Segment(end, (start - end,)))
            found.append(Segment(start, tuple(one.shape), self._cuts[one]))
            end = start + one.numel()
        return [*found, Segment(end, (size - end,))] if size > end else found

    def parameters_of_tie(self, layers: tuple[int, ...]) -> Sequence[nn.Parameter]:
        """What these layers share, and only they."""
        return self._ties[layers]

    def values_of_tie(self, layers: tuple[int, ...]) -> list[torch.Tensor]:
        """The values of what these layers share, and only they, as their gradients stand in `of_tie`."""
        held = [(one.detach().flatten(), gradient_type(one.dtype)) for one in self._ties[layers]]
        flats = self._tied[layers]
        return [torch.cat([value for value, dtype in held if dtype == flat.dtype]) for flat in flats]

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add [sum, count] to the loss that travels with the last layer's gradients."""
        self._loss += loss.to(self._loss.dtype)

    def loss(self) -> tuple[float, float]:
        """(sum, count): of this worker, or after the all-reduce of all workers of the last layer together."""
        total, count = self._loss.tolist()
        return total, count

    def sum_apart(self, sums: Sequence[tuple[torch.Tensor, Callable[[torch.Tensor], None]]]) -> None:
        """Sum views over their holders, and replace none before the last sum has ended.

        A sum in place that breaks off leaves neither what was there nor the sum: it is made of copies, whose memory is
        kept for the next ones. That of one which breaks off is not, for somebody may still write to it.

        Args:
            sums: each view with what sums a tensor in place.
        """
        sizes = Counter[torch.dtype]()
        for view, _ in sums:
            sizes[view.dtype] += view.numel()
        scratch, self._scratch = self._scratch, {}
        for dtype, size in sizes.items():
            if dtype not in scratch or scratch[dtype].numel() < size:
                scratch[dtype] = torch.empty(size, dtype=dtype, device=sums[0][0].device)
        copies = []
        for view, reduce in sums:
            sizes[view.dtype] -= view.numel()
            copies.append(scratch[view.dtype][sizes[view.dtype] :][: view.numel()].copy_(view))
            reduce(copies[-1])
        for (view, _), copy in zip(sums, copies, strict=True):
            view.copy_(copy)
        self._scratch = scratch

    def scale(self, factor: float) -> None:
        """Multiply all gradients, but nothing else; one pass, and none where the factor is 1."""
        views = list(itertools.chain.from_iterable((*self._gradients, *self._tied.values())))
        if factor != 1.0 and views:
            torch._foreach_mul_(views, factor)

    def squared_norms(self, layers: Iterable[int]) -> dict[int, float]:
        """Of some of the model's layers, all of them held here: the sum of their gradients' squares, in float64.

        Finite exactly where all gradients of the layer are, as long as none is beyond 1e150. Waits for the device once.
        What layers share counts with the first of them.
        """
        squares = {layer: [_squared_norm(view) for view in self._of_layer(layer)] for layer in layers}
        together = [square for layer in squares.values() for square in layer]
        values = iter(torch.stack(together).tolist() if together else [])
        return {layer: sum(next(values) for _ in found) for layer, found in squares.items()}

    def _of_layer(self, layer: int) -> list[torch.Tensor]:
        """The gradients of one of the model's layers, and of what it is the first to share."""
        place = self._held.place(layer)
        if self._uncounted:
            shared = (self._ties[layers] for layers in self._tied if layers[0] == layer)
            parameters = itertools.chain(self._parameters[place], *shared)
            views = dict(self._views)
            return [views[one].flatten() for one in parameters if one not in self._uncounted]
        tied = (flats for layers, flats in self._tied.items() if layers[0] == layer)
        return [*self._gradients[place], *itertools.chain.from_iterable(tied)]


@dataclass(frozen=True, slots=True, eq=False)
class _Owned:
    """What a layer brings to the sums, without what an earlier one has as well."""

    parameters: list[nn.Parameter]
    buffers: list[tuple[nn.Module, str, torch.Tensor]]

    def carrier(self, otherwise: torch.dtype = torch.float32) -> torch.dtype:
        """The type for what has none of its own: no other message for it where there is one already."""
        return gradient_type(self.parameters[-1].dtype) if self.parameters else otherwise

    def type_of(self, buffer: torch.Tensor) -> torch.dtype:
        """In which a buffer is summed."""
        return gradient_type(buffer.dtype) if buffer.is_floating_point() else self.carrier()

    def types(self) -> set[torch.dtype]:
        """Of all."""
        of_buffers = {self.type_of(buffer) for *_, buffer in self.buffers}
        return of_buffers | {gradient_type(parameter.dtype) for parameter in self.parameters}


def _owned(layers: Sequence[nn.Module], others: Iterable[nn.Parameter]) -> list[_Owned]:
    """What each layer brings, without `others`."""
    seen: set[object] = set(others)
    found = []
    for layer in layers:
        parameters = [one for one in layer.parameters() if one.requires_grad and one not in seen]
        seen.update(parameters)
        buffers = [
            (module, name, buffer)
            for module in layer.modules()
            if module not in seen
            for name, buffer in module.named_buffers(recurse=False)
            if name not in module._non_persistent_buffers_set
        ]
        seen.update(layer.modules())
        found.append(_Owned(parameters, buffers))
    return found


def _squared_norm(view: torch.Tensor) -> torch.Tensor:
    """The sum of squares, a float64 scalar.

    On a CPU torch's norm with a dtype is 8 times as slow as chunks that are converted in the cache.
    """
    if view.device.type != "cpu":
        norm: torch.Tensor = torch.linalg.vector_norm(view, dtype=torch.float64)
        return norm.square()
    total = torch.zeros((), dtype=torch.float64)
    for chunk in torch.split(view, _CHUNK):
        numbers = chunk.double()
        total += torch.dot(numbers, numbers)
    return total
