"""A stage on a device: consecutive layers, executed micro-batch by micro-batch with F, I, W and B.

Linear layers' weight gradients can be put off: that splits a backward pass into I and W. Almost all weights of a
transformer sit in linear layers, and the gradient of a linear layer's weight is one matrix product that nothing else
waits for. So I runs the ordinary autograd graph while every linear layer queues that product instead of computing it,
and W runs the queue. Other modules' parameter gradients stay in I. Compared with two passes through the graph this
costs no second traversal and keeps nothing alive but the operands of the queued products. Deferred gradients reach
`parameter.grad` without autograd's knowledge: hooks on parameters do not fire for them.
"""

import copy
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.orders import Operation
from ...schemas.plan import Layers
from ...schemas.plan import Stage as PlannedStage
from ...schemas.text import with_article
from .staging import HostStaging, Pending


@dataclass(frozen=True, slots=True, eq=False)
class DeferredGradient:
    """One queued product: the operands from which a linear layer's weight and bias gradients follow.

    Args:
        module: the layer, whose parameters' `grad` receives the result.
        inputs: the layer's input, of shape (n, in_features).
        gradient: the gradient of its output, of shape (n, out_features).
    """

    module: nn.Linear
    inputs: torch.Tensor | None
    gradient: torch.Tensor

    def accumulate(self) -> None:
        """Add the gradients to those that are there; an existing `grad` tensor is kept and written in place."""
        with torch.no_grad():  # or the additions to `grad` build a graph that outlives the iteration
            if self.inputs is not None:
                weight = self.module.weight
                if weight.grad is None:
                    weight.grad = self.gradient.t().mm(self.inputs)
                else:
                    weight.grad.addmm_(self.gradient.t(), self.inputs)
            if self.module.bias is not None and self.module.bias.requires_grad:
                bias, gradient = self.module.bias, self.gradient.sum(0)
                bias.grad = gradient if bias.grad is None else bias.grad.add_(gradient)


class GradientStore:
    """Where the linear layers of one stage queue their weight gradients while an I runs.

    Attributes:
        queue: the queue while the store collects, else None.
        is_in_use: whether the store will collect at all; where not, its layers run at the speed of an `nn.Linear`.
    """

    def __init__(self) -> None:
        self.queue: list[DeferredGradient] | None = None
        self.is_in_use = True

    @contextmanager
    def collecting(self) -> Iterator[list[DeferredGradient]]:
        """Put weight gradients off while the context is open; yields the queue they go to."""
        self.queue = []
        try:
            yield self.queue
        finally:
            self.queue = None


class DeferredLinear(nn.Linear):
    """An `nn.Linear` that queues its weight gradient in `store` while the store collects."""

    title = "Linear"  # what it was, and is to its user
    store: GradientStore

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features), as `nn.Linear` does."""
        if not (self.store.is_in_use and _is_deferrable(self, inputs)):
            return super().forward(inputs)
        output: torch.Tensor = _Linear.apply(inputs, self.weight, self.bias, self)  # type: ignore[no-untyped-call]
        return output


def defer_linears(layers: Iterable[nn.Module], store: GradientStore) -> None:
    """Turn the linear layers among modules and their children into DeferredLinears, in place.

    Only modules whose type is exactly `nn.Linear` are turned: a subclass may compute something else. Parameters, their
    names and the state dictionary stay as they are. A layer that belongs to another store moves to this one.

    Args:
        layers: the modules to search.
        store: where the layers found are to queue their weight gradients.
    """
    for layer in layers:
        for module in layer.modules():
            if type(module) is nn.Linear:
                module.__class__ = DeferredLinear
            if isinstance(module, DeferredLinear):
                module.store = store


class _Linear(torch.autograd.Function):
    """x W^T + b, whose backward may leave the gradients of W and b to the module's store."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, module: DeferredLinear
    ) -> torch.Tensor:
        needs_inputs, needs_weight, _, _ = ctx.needs_input_grad
        ctx.module = module
        ctx.save_for_backward(inputs if needs_weight else None, weight if needs_inputs else None)
        return F.linear(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, None]:
        """The gradients of input, W and b; those of W and b are queued, and None here, while the store collects."""
        inputs, weight = ctx.saved_tensors
        _, needs_weight, needs_bias, _ = ctx.needs_input_grad
        input_gradient = None if weight is None else gradient.matmul(weight)
        if not (needs_weight or needs_bias):
            return input_gradient, None, None, None
        rows = gradient.reshape(-1, gradient.shape[-1])
        input_rows = None if inputs is None else inputs.reshape(-1, inputs.shape[-1])
        if ctx.module.store.queue is not None:
            ctx.module.store.queue.append(DeferredGradient(ctx.module, input_rows, rows))
            return input_gradient, None, None, None
        weight_gradient = None if input_rows is None else rows.t().mm(input_rows)
        return input_gradient, weight_gradient, rows.sum(0) if needs_bias else None, None


def _is_deferrable(module: DeferredLinear, inputs: torch.Tensor) -> bool:
    # Autocast and computed weights (weight_norm, pruning) put other operations between the product and the leaf.
    is_leaf = module.weight.is_leaf and (module.bias is None or module.bias.is_leaf)
    return is_leaf and not torch.is_autocast_enabled(inputs.device.type)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """What the backward pass of a micro-batch starts from.

    The output's place in the graph stands for the output, whose memory thus ends with its last user.
    """

    inputs: torch.Tensor
    output: GradientEdge | None


class TorchStage:
    """Executes a stage; implements the StageExecutor Protocol.

    Where the backward pass is split, the linear layers among `layers` are turned into DeferredLinears in place, and
    belong to the newest TorchStage made of them. Gradients are added to the parameters' `grad`, in place where there is
    one. Tensors given to the methods must not be written to until the micro-batch's W has ended.

    Args:
        layers: applied one after another; each maps one tensor to one tensor.
        loss: maps (output, target) to a scalar; a last stage's, and only there.
        loss_scale: multiplies the loss, and so all gradients; 1 / N averages over N micro-batches.
        is_split: whether I and W will run; B alone is cheaper without deferral, by 0.1 ms a linear layer.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        loss: Loss | None = None,
        loss_scale: float = 1.0,
        is_split: bool = True,
    ) -> None:
        self.layers = nn.ModuleList(layers)
        self.loss = loss
        self.loss_scale = loss_scale
        self._store = GradientStore()
        self._forwards: dict[Hashable, _Forward] = {}
        self._deferred: dict[Hashable, Sequence[DeferredGradient | ParkedGradient]] = {}
        self._hosting = Hosting((), HostStaging(), ())
        self.split(is_split)

    def split(self, is_split: bool) -> None:
        """Serve another plan: turn the linear layers for I and W, or let turned ones run as ordinary ones for B.

        Call it between iterations: a micro-batch whose F ran unsplit leaves nothing to its W.
        """
        if is_split:
            defer_linears(self.layers, self._store)
        self._store.is_in_use = is_split

    def host(self, keys: Collection[Hashable], staging: HostStaging) -> None:
        """Have some micro-batches wait for their backward pass on the host; call it between iterations.

        Args:
            keys: which, from now on.
            staging: of the device.
        """
        self._hosting = Hosting(keys, staging, [*self.layers.parameters(), *self.layers.buffers()] if keys else [])

    def reset(self) -> None:
        """Drop every micro-batch under way, and what it holds, after an iteration that was interrupted."""
        self._forwards.clear()
        self._deferred.clear()
        self._hosting.forget()

    def forward(
        self,
        key: Hashable,
        inputs: torch.Tensor,
        target: torch.Tensor | None = None,
        before_layer: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """F: the stage's output, or the scaled loss at a last stage; with gradients switched off nothing is kept.

        Args:
            key: names the micro-batch until its backward pass.
            inputs: what the first layer takes; gradients are taken with respect to it where it is floating.
            target: what the loss compares the output with; given exactly where the stage has a loss.
            before_layer: called before each layer with its place in the stage, from 0; for seeding.

        Returns:
            The output (or a scalar), detached from the graph.

        Raises:
            RuntimeFailedError: the key is under way already, or target and loss do not come together.
            InvalidInputError: a layer's output is not one tensor, or the loss is not a scalar.
        """
        if key in self._forwards or key in self._deferred:
            raise RuntimeFailedError(f"F of micro-batch {key!r} again, before its backward pass has ended")
        inputs = inputs.detach().requires_grad_(inputs.is_floating_point() and torch.is_grad_enabled())
        with self._hosting.forward(key, inputs):
            output = self._apply_loss(self._apply_layers(inputs, before_layer), target)
        if torch.is_grad_enabled():
            edge = get_gradient_edge(output) if output.requires_grad else None
            self._forwards[key] = _Forward(inputs, edge)
        return output.detach()

    def backward_input(self, key: Hashable, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """I: the gradient of the stage's input; the weight gradients of linear layers are put off.

        Args:
            key: a micro-batch whose F has run.
            gradient: that of the stage's output, in its shape; None at a last stage.

        Returns:
            The gradient, in the input's shape; None where the input takes none (token numbers).

        Raises:
            RuntimeFailedError: there is no F to this I, or the gradient is missing or not asked for.
        """
        with self._store.collecting() as deferred:
            input_gradient = self._run_backward(key, gradient)
        self._deferred[key] = self._hosting.put_off(key, deferred)
        return input_gradient

    def backward_weight(self, key: Hashable) -> None:
        """W: add the weight gradients that I put off; nothing where the stage has no linear layer.

        Raises:
            RuntimeFailedError: there is no I to this W.
        """
        if key not in self._deferred:
            raise RuntimeFailedError(f"W of micro-batch {key!r} without an I before it")
        for gradient in self._deferred.pop(key):
            gradient.accumulate()

    def backward(self, key: Hashable, gradient: torch.Tensor | None = None) -> torch.Tensor | None:
        """B: the gradients of the input (returned) and of all weights; arguments and errors as `backward_input`."""
        return self._run_backward(key, gradient)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The stage's parameters, each once even where layers share it."""
        return self.layers.parameters()

    def held_keys(self) -> frozenset[Hashable]:
        """The micro-batches under way: those whose backward pass has not ended."""
        return frozenset(self._forwards) | frozenset(self._deferred)

    def stash_bytes(self, key: Hashable) -> int:
        """The memory that a micro-batch holds between its I and its W: what the deferred gradients are made from."""
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for deferred in self._deferred[key]
            if isinstance(deferred, DeferredGradient)
            for tensor in (deferred.inputs, deferred.gradient)
            if tensor is not None
        }
        return sum(storages.values())

    def _apply_layers(self, value: torch.Tensor, before_layer: Callable[[int], None] | None) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            if before_layer is not None:
                before_layer(index)
            value = layer(value)
            if not isinstance(value, torch.Tensor):
                raise InvalidInputError(
                    f"a layer's output is {with_article(type(value).__name__)}, not one tensor",
                    where=f"layer {index} of the stage, {type(layer).__name__}",
                    fix="wrap the layer in a module that maps one tensor to one tensor",
                )
        return value

    def _apply_loss(self, output: torch.Tensor, target: torch.Tensor | None) -> torch.Tensor:
        if (target is None) != (self.loss is None):
            raise RuntimeFailedError("a target must be given at the stage that has the loss, and only there")
        if self.loss is None or target is None:
            return output
        loss = self.loss(output, target)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise InvalidInputError("the loss is not a scalar", fix="return its mean, a tensor of one element")
        return loss * self.loss_scale

    def _run_backward(self, key: Hashable, gradient: torch.Tensor | None) -> torch.Tensor | None:
        if key not in self._forwards:
            raise RuntimeFailedError(f"I or B of micro-batch {key!r} without an F before it")
        if (gradient is None) != (self.loss is not None):
            raise RuntimeFailedError("the output's gradient must be given except at the stage that has the loss")
        forward = self._forwards.pop(key)
        self._hosting.begin_backward(key)
        if forward.output is not None:
            torch.autograd.backward(forward.output, gradient)
        return forward.inputs.grad


# What flows between layers: shape and type at every boundary, found without computing and without asking anybody.


@dataclass(frozen=True, slots=True)
class Boundary:
    """The tensor that flows over a boundary between two layers: its shape and its type."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def like(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this shape and type, with arbitrary values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def zeros(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """A tensor of this shape and type, all zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


def boundary_samples(layers: Sequence[nn.Module], example_input: torch.Tensor) -> list[Boundary]:
    """What flows into every layer, and out of the last.

    Runs a copy of one layer after the other on the meta device, which computes shapes only; a layer that does not work
    there runs on zeros, on its own device. The layers themselves and the random generators stay as they are.

    Args:
        layers: all layers of the model; each maps one tensor to one tensor.
        example_input: a micro-batch's input; only its shape and type count.

    Returns:
        One more than there are layers: the i-th flows into layer i, the last out of the last layer.

    Raises:
        InvalidInputError: a layer's output is not one tensor.
    """
    found = [_boundary(example_input)]
    for index, layer in enumerate(layers):
        found.append(_boundary(_output(index, layer, found[-1])))
    return found


def _boundary(tensor: torch.Tensor) -> Boundary:
    return Boundary(tuple(tensor.shape), tensor.dtype)


def _output(index: int, layer: nn.Module, inputs: Boundary) -> torch.Tensor:
    try:
        output = _run(layer, inputs, torch.device("meta"))
    except Exception:  # whatever a layer that needs values raises; one that is broken raises again
        some = next(itertools.chain(layer.parameters(), layer.buffers()), None)
        output = _run(layer, inputs, torch.device("cpu") if some is None else some.device)
    if not isinstance(output, torch.Tensor):
        raise InvalidInputError(
            f"a layer's output is {with_article(type(output).__name__)}, not one tensor",
            where=f"layer {index} of the model, {type(layer).__name__}",
            fix="wrap the layer in a module that maps one tensor to one tensor",
        )
    return output


def _run(layer: nn.Module, inputs: Boundary, device: torch.device) -> object:
    generators = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=generators):
        return copy.deepcopy(layer).to(device)(inputs.zeros(device))


# The gradients of a stage in one flat buffer a type, so that they are summed over their holders in one go.


class FlatGradients:
    """Lets every parameter's `grad` be a view into a flat buffer; with the gradients of the last layer goes the loss.

    Parameters stand in the layers' order, so consecutive layers are a view into each buffer. Workers whose stages begin
    or end elsewhere have equal views of the layers that both hold: types come in one order everywhere, and the loss
    stands behind the last layer's last gradient, in float32 at least, or alone where that layer has none of its own.

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
        for dtype in sorted(types, key=str):
            held = [[parameter for parameter in layer if parameter.dtype == dtype] for layer in own]
            sizes = [sum(parameter.numel() for parameter in layer) for layer in held]
            sizes[-1] += dtype == loss_type
            flat = torch.zeros(sum(sizes), dtype=dtype, device=device)
            start = 0
            for parameter in itertools.chain.from_iterable(held):
                parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
            self.buffers.append(flat)
            self._starts.append([0, *accumulate(sizes)])
            if dtype == loss_type:
                self._loss = flat[-1]

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
        """Add to the loss that travels with the last layer's gradients."""
        self._loss += loss.to(self._loss.dtype)

    def loss(self) -> float:
        """The loss: this worker's own, or after the all-reduce that of all workers of the last layer together."""
        return float(self._loss)


def _own_parameters(layers: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """The parameters of each layer that take a gradient, without those that an earlier layer has as well."""
    seen: set[nn.Parameter] = set()
    found = []
    for layer in layers:
        own = [parameter for parameter in layer.parameters() if parameter.requires_grad and parameter not in seen]
        seen.update(own)
        found.append(own)
    return found


# Activations that wait for their backward pass on the host, where a plan wants more than the device holds.
#
# Plans that adapt to slow links run more forwards ahead ("Adaptra" section 5.2 has "virtually no memory constraint" for
# them, with activations in host memory). A forward whose activations have no room on the device runs under autograd's
# hooks for saved tensors: what it saves is copied to the host, and back when its backward pass begins. So are the
# operands of weight gradients that I puts off. Parameters stay, and so does a micro-batch's input, one tensor at the
# boundary of two stages, which autograd keeps whatever the hooks do.


ROUNDING = 1e-9  # sums of bytes may be float sums

Key = tuple[int, int]  # (pipeline, micro-batch)


def hosted(operations: Sequence[Operation], stage: PlannedStage, limit_bytes: float | None) -> frozenset[Key]:
    """The micro-batches whose activations a device has no room for.

    Memory is counted as docs/semantics.md does. Where not everything fits, room for one micro-batch is left free: that
    into which one is brought back for its backward pass.

    Args:
        operations: a worker's, in order.
        stage: its stage in the plan.
        limit_bytes: what the device holds; None where that is not known, and taken to be enough.

    Returns:
        Their (pipeline, micro-batch).
    """
    if limit_bytes is None:
        return frozenset()
    limit_bytes *= 1 + ROUNDING
    if not _without_room(operations, stage, limit_bytes):
        return frozenset()
    return _without_room(operations, stage, limit_bytes - stage.activation_bytes)


def _without_room(operations: Iterable[Operation], stage: PlannedStage, limit_bytes: float) -> frozenset[Key]:
    more_bytes = {
        "F": stage.activation_bytes,
        "I": stage.weight_stash_bytes - stage.activation_bytes,
        "W": -stage.weight_stash_bytes,
        "B": -stage.activation_bytes,
    }
    used_bytes, found = 0.0, set[Key]()
    for kind, *key in operations:
        place = (key[0], key[1])
        if kind == "F" and used_bytes + stage.activation_bytes > limit_bytes:
            found.add(place)
        if place not in found:
            used_bytes += more_bytes[kind]
    return frozenset(found)


class _Parked:
    """The memory of some tensors on the host; brought back once for all of them."""

    def __init__(self, memory: torch.UntypedStorage, staging: HostStaging) -> None:
        flat = torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)
        self._staging = staging
        self._on_host = staging.to_host(flat if flat.is_cuda else flat.clone())
        self._on_device: Pending | None = None
        self.users = 0

    def bring(self) -> None:
        """Begin to copy it back."""
        if self._on_device is None:
            self._on_device = self._staging.to_device(self._on_host())

    def memory(self) -> torch.UntypedStorage:
        """It, for one of its tensors; the last one leaves no reference here."""
        self.bring()
        assert self._on_device is not None
        flat = self._on_device()
        self.users -= 1
        if self.users <= 0:
            self._on_device = None
        return flat.untyped_storage()


@dataclass(frozen=True, slots=True, eq=False)
class _Absent:
    """A tensor whose memory is parked."""

    parked: _Parked
    dtype: torch.dtype
    offset: int
    shape: torch.Size
    strides: tuple[int, ...]

    def tensor(self) -> torch.Tensor:
        memory = self.parked.memory()
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory, self.offset, self.shape, self.strides)


class _Park:
    """Parks tensors; memory that several share, unchanged in between, goes once."""

    def __init__(self, staging: HostStaging, staying: frozenset[int] = frozenset()) -> None:
        self._staging, self._staying = staging, staying
        # A weak reference keeps the number of a memory that is freed meanwhile from being given to another.
        self._known: dict[tuple[int, int], tuple[StorageWeakRef, _Parked]] = {}

    @property
    def parked(self) -> list[_Parked]:
        """What is parked, in that order."""
        return [parked for _, parked in self._known.values()]

    def take(self, tensor: torch.Tensor) -> torch.Tensor | _Absent:
        """Park a tensor; itself where it stays."""
        if tensor.layout != torch.strided or number_of(tensor) in self._staying:
            return tensor
        memory = tensor.untyped_storage()
        key = number_of(tensor), tensor._version
        if key not in self._known:
            weak = StorageWeakRef(memory)  # type: ignore[no-untyped-call]
            self._known[key] = weak, _Parked(memory, self._staging)
        parked = self._known[key][1]
        parked.users += 1
        return _Absent(parked, tensor.dtype, int(tensor.storage_offset()), tensor.shape, tensor.stride())


@dataclass(frozen=True, slots=True, eq=False)
class ParkedGradient:
    """A weight gradient that is put off, its operands on the host."""

    module: nn.Linear
    inputs: torch.Tensor | _Absent | None
    gradient: torch.Tensor | _Absent

    def accumulate(self) -> None:
        """Bring the operands back, and add the gradients to those that are there."""
        inputs = None if self.inputs is None else _present(self.inputs)
        DeferredGradient(self.module, inputs, _present(self.gradient)).accumulate()


class Hosting:
    """Has some micro-batches of a stage wait on the host.

    Args:
        keys: which.
        staging: to the host and back.
        staying: tensors that are held on the device in any case: parameters and buffers.
    """

    def __init__(self, keys: Iterable[Hashable], staging: HostStaging, staying: Iterable[torch.Tensor]) -> None:
        self.keys = frozenset(keys)
        self._staging = staging
        self._staying = frozenset(map(number_of, staying))
        self._waiting: dict[Hashable, list[_Parked]] = {}

    @contextmanager
    def forward(self, key: Hashable, inputs: torch.Tensor) -> Iterator[None]:
        """Within the context the stage runs a forward; what autograd saves for one of `keys` goes to the host."""
        if key not in self.keys or not torch.is_grad_enabled():
            yield
            return
        park = _Park(self._staging, self._staying | {number_of(inputs)})
        unpack: Callable[[torch.Tensor | _Absent], torch.Tensor] = _present
        with saved_tensors_hooks(park.take, unpack):
            yield
        self._waiting[key] = park.parked

    def begin_backward(self, key: Hashable) -> None:
        """Begin to bring back what a micro-batch saved, the last first, for that is needed first."""
        for parked in reversed(self._waiting.pop(key, [])):
            parked.bring()

    def put_off(self, key: Hashable, deferred: list[DeferredGradient]) -> Sequence[DeferredGradient | ParkedGradient]:
        """What a W is to do; its operands on the host if the micro-batch is one of `keys`."""
        if key not in self.keys:
            return deferred
        park = _Park(self._staging)
        return [
            ParkedGradient(one.module, None if one.inputs is None else park.take(one.inputs), park.take(one.gradient))
            for one in deferred
        ]

    def forget(self) -> None:
        """Drop what waits."""
        self._waiting.clear()


def number_of(tensor: torch.Tensor) -> int:
    """What tells a tensor's memory from all other memory, while it lives."""
    return int(tensor.untyped_storage()._cdata)


def _present(tensor: torch.Tensor | _Absent) -> torch.Tensor:
    return tensor.tensor() if isinstance(tensor, _Absent) else tensor
