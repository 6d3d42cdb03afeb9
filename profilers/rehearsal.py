"""An iteration rehearsed: every layer as a stage of its own, one after the other, with a mark between any two."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import nn

from ..schemas.protocols import StageExecutor, StageFactory
from .clocks import ClockStopwatch, Stopwatch
from .models.model import Loss

OperationName = Literal["move", "F", "I", "W", "step"]
OPERATIONS: dict[OperationName, str] = {
    "move": "its parameters",
    "F": "forward",
    "I": "backward-input",
    "W": "backward-weight",
    "step": "the optimizer's step",
}
Times = tuple[float, float, float, float]
NO_WATCH: Stopwatch = ClockStopwatch(lambda: 0.0)


class Held(NamedTuple):
    """What a layer holds for one micro-batch, in bytes, and between what it stands.

    Attributes:
        activation_bytes: from F's start to I's end.
        stash_bytes: of these, until W's end.
        output_bytes: what it passes on; 0 where the loss takes it.
        takes: shape and type of its input.
        is_last: whether the loss follows.
    """

    activation_bytes: int
    stash_bytes: int
    output_bytes: int
    takes: tuple[torch.Size, torch.dtype]
    is_last: bool

    @property
    def stream_bytes(self) -> int:
        """What flows between layers here: the output, at the end of the model the input."""
        shape, dtype = self.takes
        return shape.numel() * dtype.itemsize if self.is_last else self.output_bytes


class OutOfMemory(Exception):  # noqa: N818  # an answer, caught by who asked
    """The device had no more memory when a layer ran an operation."""

    def __init__(self, layer: int, operation: OperationName) -> None:
        super().__init__(layer, operation)
        self.layer, self.operation = layer, operation


@dataclass(slots=True, eq=False)
class _Part:
    """One layer of a rehearsal: the layer, a stage of its own, and its optimizer, where it learns."""

    layer: nn.Module
    stage: StageExecutor
    optimizer: torch.optim.Optimizer | None


class Rehearsal:
    """Runs one micro-batch through layers as a training process does: F of all, I and W of all backwards, the steps.

    Each layer takes what the one before it has just made, and the gradient that the one after it has just made, while
    all others hold their activations: caches and the allocator are as in an iteration. Gradients are added to those
    that are there. The optimizer is AdamW with a learning rate of 0, which leaves parameters as they are and takes as
    long as any other.

    Args:
        layers: on one device, each fed with the output of the one before it.
        make_stage: makes of one layer what a runner would execute.
        loss: of the last layer; None: the model goes on behind it.
        inputs: of the first layer, on the device.
        target: of the loss, on the device.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        make_stage: StageFactory,
        loss: Loss | None,
        inputs: torch.Tensor,
        target: torch.Tensor | None,
    ) -> None:
        self._loss, self._inputs, self._target = loss, inputs, target
        losses = [None] * (len(layers) - 1) + [loss]
        self._parts = [
            _Part(layer, make_stage([layer], own), _optimizer(layer)) for layer, own in zip(layers, losses, strict=True)
        ]
        self._value = inputs
        self._gradient: torch.Tensor | None = None
        self._at: tuple[int, OperationName] = (0, "F")

    def run(self, watch: Stopwatch) -> list[Times]:
        """One round: for each layer the times of F, I, W and step, with the zeroing of its gradients, in s.

        Raises:
            OutOfMemory: at which layer and operation.
        """
        with self._naming():
            watch.mark()
            self._forward(watch)
            self._backward_input(watch)
            self._backward_weight(watch)
            self._step(watch)
            laps_s = watch.laps_s()
        count = len(self._parts)
        forward_s, input_s, weight_s, step_s = (laps_s[n * count : (n + 1) * count] for n in range(4))
        return list(zip(forward_s, reversed(input_s), reversed(weight_s), step_s, strict=True))

    def holdings(self) -> list[Held]:
        """What each layer holds, from one F, I and W.

        Activations are the storages that autograd saves in F, parameters and buffers excepted, and the layer's input.
        An output that a layer saves is left to the next one, whose input it is: a stage holds it once. The stash also
        holds gradients that did not exist when F ended: where it comes to more than the activations, these are given
        as equal to it, so that a plan never promises too much room.

        Raises:
            OutOfMemory: as `run`.
        """
        with self._naming():
            self._value = self._inputs
            held = [self._saved(place) for place in range(len(self._parts))]
            stashes = self._stashes()
        return [
            one._replace(activation_bytes=max(one.activation_bytes, stash_bytes), stash_bytes=stash_bytes)
            for one, stash_bytes in zip(held, stashes, strict=True)
        ]

    def _forward(self, watch: Stopwatch) -> None:
        self._value = self._inputs
        for place in range(len(self._parts)):
            self._run_forward(place)
            watch.mark()
        if self._loss is None and self._gradient is None:
            self._gradient = torch.randn_like(self._value)

    def _run_forward(self, place: int) -> None:
        self._at = place, "F"
        is_last = place == len(self._parts) - 1
        self._value = self._parts[place].stage.forward(0, self._value, self._target if is_last else None)

    def _saved(self, place: int) -> Held:
        """Runs a layer's F; what it holds then."""
        layer, inputs = self._parts[place].layer, self._value
        storages = {_address(inputs): _size(inputs)}

        def remember(tensor: torch.Tensor) -> torch.Tensor:
            storages[_address(tensor)] = _size(tensor)
            return tensor.detach()  # a tensor that the graph both makes and keeps would keep the graph

        with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
            self._run_forward(place)
        is_last = self._loss is not None and place == len(self._parts) - 1
        elsewhere = {_address(tensor) for tensor in (*layer.parameters(), *layer.buffers())}
        if not is_last:
            elsewhere.add(_address(self._value))
        activation_bytes = sum(size for address, size in storages.items() if address not in elsewhere)
        return Held(activation_bytes, 0, 0 if is_last else self._value.nbytes, (inputs.shape, inputs.dtype), is_last)

    def _stashes(self) -> list[int]:
        """Runs I and W of all layers; the bytes held in between."""
        if self._loss is None:
            self._gradient = torch.randn_like(self._value)
        self._backward_input(NO_WATCH)
        stashes = [part.stage.stash_bytes(0) for part in self._parts]
        self._backward_weight(NO_WATCH)
        return stashes

    def _backward_input(self, watch: Stopwatch) -> None:
        gradient = self._gradient
        for place in reversed(range(len(self._parts))):
            self._at = place, "I"
            gradient = self._parts[place].stage.backward_input(0, gradient)
            watch.mark()

    def _backward_weight(self, watch: Stopwatch) -> None:
        for place in reversed(range(len(self._parts))):
            self._at = place, "W"
            self._parts[place].stage.backward_weight(0)
            watch.mark()

    def _step(self, watch: Stopwatch) -> None:
        for place, part in enumerate(self._parts):
            self._at = place, "step"
            if part.optimizer is not None:
                part.optimizer.step()
                part.optimizer.zero_grad(set_to_none=False)  # as a runner does, whose gradients live in one buffer
            watch.mark()

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Says at which layer the memory ended, if it does."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise OutOfMemory(*self._at) from None  # the traceback would hold what is to be freed
            raise


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch or Python found no memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _optimizer(layer: nn.Module) -> torch.optim.Optimizer | None:
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=0.0) if trained else None


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _size(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()
