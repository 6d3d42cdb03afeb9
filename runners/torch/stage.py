"""A stage on a device: consecutive layers, executed micro-batch by micro-batch with F, I, W and B."""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...schemas.errors import InvalidInputError, RuntimeFailedError
from ...schemas.text import with_article
from .deferral import DeferredGradient, GradientStore, defer_linears
from .hosting import Hosting, ParkedGradient
from .lanes import Lanes
from .optimizers import OptimizerFactory
from .precision import Precision, autocasting, parameter_type
from .rehearsed import RehearsedStep
from .staging import HostStaging
from .trees import (
    NOTHING,
    Gradient,
    Named,
    NamedInputs,
    Tree,
    check_output,
    floating,
    on_tensors,
    own_tensors,
    tensors_of_gradient,
)

# Of a micro-batch: its mean loss, which counts 1, or (sum, count), such as (sum over tokens, tokens that count).
Loss = Callable[[Tree, Tree], torch.Tensor | tuple[torch.Tensor, torch.Tensor | float]]
Made = TypeVar("Made")  # by an F
Given = TypeVar("Given")  # by a B


@dataclass(frozen=True, slots=True, eq=False)
class _Forward:
    """What the backward pass of a micro-batch starts from.

    Places in the graph stand for tensors, whose memory thus ends with their last user.

    Attributes:
        inputs: the stage's, apart from the graph of whoever made them.
        outputs: for each floating tensor of the output, or for the loss; None for one that is no part of the graph.
        added: of what layers have added to the loss.
        ends: whether the output is the loss.
        lane: in which it ran (lanes.py).
    """

    inputs: Tree
    outputs: Sequence[GradientEdge | None]
    added: tuple[GradientEdge, ...]
    ends: bool
    lane: int


@dataclass(frozen=True, slots=True, eq=False)
class _Added:
    """What layers add to the loss during an F."""

    losses: list[torch.Tensor]
    with_gradients: bool


_added: ContextVar[_Added | None] = ContextVar("_added", default=None)


def add_loss(value: torch.Tensor) -> None:
    """Within a layer's forward: add to the loss, such as a router's balance, in whatever stage the layer is.

    It is added to the sum that the loss function gives of the same micro-batch, and is divided as that is, by what the
    loss counts in the whole iteration: the gradient is that of (all sums + all that is added) / all counts. So where
    the loss is a mean, which counts 1, add a mean; where it is (sum over tokens, tokens), add a sum over tokens. The
    iteration's loss contains it.

    Outside of a stage's F, and while a checkpoint is recomputed, it does nothing: the layer works anywhere.

    Args:
        value: a tensor of one element.

    Raises:
        InvalidInputError: it is something else; or the layer runs in a re-entrant checkpoint, which keeps no graph.
    """
    added = _added.get()
    if added is None:
        return
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
        raise InvalidInputError(
            f"add_loss is given {_described(value)}, not a scalar", where="a layer", fix="add a tensor of one element"
        )
    if added.with_gradients and not torch.is_grad_enabled():
        raise InvalidInputError(
            "add_loss is called where no gradients are computed, such as in a re-entrant checkpoint",
            where="a layer",
            fix="use torch.utils.checkpoint.checkpoint(..., use_reentrant=False)",
        )
    added.losses.append(value.reshape(()))


class TorchStage:
    """Executes a stage; implements the StageExecutor Protocol.

    Where the backward pass is split, the linear layers among `layers` are turned into DeferredLinears in place, and
    belong to the newest TorchStage made of them. Gradients are added to the parameters' `grad`, in place where there is
    one. Tensors given to the methods must not be written to until the micro-batch's W has ended.

    Args:
        layers: applied one after another; each maps a tensor, or a tuple or dict of some, to another (trees.py).
        loss: maps (output, target) to a scalar, or (sum, count); a last stage's, and only there. Gradients are those
            of the sum: whoever knows the counts of all micro-batches divides by them (`HeldStage.step`).
        is_split: whether I and W will run; B alone is cheaper without deferral, by 0.1 ms a linear layer.
        precision: whether layers compute under autocast, and in which type they take floating inputs of the model.
        is_first: whether the model begins here.

    Attributes:
        added: what `add_loss` added in the last F, detached, in float64; None where it did not, or the stage has a
            loss, which contains it.
        does_count: whether the loss has said how much it counts; False before it was first asked.
        loss_scale: by what gradients are to be larger than those of the loss; a power of 2.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        loss: Loss | None = None,
        is_split: bool = True,
        precision: Precision = "fp32",
        is_first: bool = False,
    ) -> None:
        self.layers = nn.ModuleList(layers)
        self.loss = loss
        self.does_count = False
        self.loss_scale = 1.0
        self.added: torch.Tensor | None = None
        self.named_inputs = NamedInputs(layers)
        self._precision = precision
        self._input_type = parameter_type(precision) if is_first else None
        self._copies_inputs = False
        self._store = GradientStore()
        self._forwards: dict[Hashable, _Forward] = {}
        self._deferred: dict[Hashable, Sequence[DeferredGradient | ParkedGradient]] = {}
        self._hosting = Hosting((), HostStaging(), ())
        self._lanes = Lanes()
        self.split(is_split)

    @property
    def is_split(self) -> bool:
        """Whether the F that it runs are followed by I and W."""
        return self._store.is_in_use

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
            keys: which, from now on; those that wait already go on to.
            staging: of the device.
        """
        self._hosting = Hosting(keys, staging, [*self.layers.parameters(), *self.layers.buffers()] if keys else [])

    def drop(self, key: Hashable) -> None:
        """Drop a micro-batch under way, and what it holds."""
        self._forwards.pop(key, None)
        self._deferred.pop(key, None)
        self._hosting.forget(key)

    def reset(self) -> None:
        """Drop every micro-batch under way, and what it holds, after an iteration that was interrupted."""
        for key in self.held_keys():
            self.drop(key)

    def forward(
        self,
        key: Hashable,
        inputs: Tree,
        target: Tree | None = None,
        before_layer: Callable[[int], None] | None = None,
        named: Named = NOTHING,
        part: range | None = None,
    ) -> Tree:
        """F: the stage's output, or the loss at a last stage; with gradients switched off nothing is kept.

        Args:
            key: names the micro-batch until its backward pass.
            inputs: what the first layer takes; gradients are taken with respect to what is floating of it.
            target: what the loss compares the output with; given exactly where the stage has a loss.
            before_layer: called before each layer with its place in the stage, from 0; for seeding.
            named: more that belongs to the micro-batch: each layer gets what its `forward` names.
            part: the places of the layers to run, where that is not the whole stage: what is said of the stage is
                meant of these, and there is a loss only where the last layer is one of them.

        Returns:
            The output, detached from the graph; at a last stage the two numbers [sum, count] of the loss, in float64.

        Raises:
            RuntimeFailedError: the key is under way already, or target and loss do not come together.
            InvalidInputError: a layer's output holds something else than tensors, or the loss is neither a scalar nor
                (sum, count).
        """
        if key in self._forwards or key in self._deferred:
            raise RuntimeFailedError(f"F of micro-batch {key!r} again, before its backward pass has ended")
        part = range(len(self.layers)) if part is None else part
        loss = self.loss if part.stop == len(self.layers) else None
        if (target is None) != (loss is None):
            raise RuntimeFailedError("a target must be given at the stage that has the loss, and only there")
        inputs = on_tensors(self._leaf if part.start == 0 else _leaf, inputs)
        leaves = own_tensors(inputs)
        added = _Added([], torch.is_grad_enabled())
        with self._hosting.forward(key, leaves), autocasting(self._precision, leaves[0].device), _taking(added):
            output = self._apply_layers(inputs, before_layer, named, added, part)
            # What is sent lies in one piece.
            given = on_tensors(lambda one: one.detach().contiguous(), output)
            if loss is not None and target is not None:
                told = loss(output, target)
                self.does_count = isinstance(told, tuple)
                is_trained = any(one.requires_grad for one in floating(output))
                output, count = loss_and_count(told)
                if is_trained and not output.requires_grad and float(count):
                    raise InvalidInputError(
                        "no gradient comes from the loss: it is not computed from the model's output, or detached",
                        where="the loss function",
                        fix="return a tensor computed from the output, without detach(), item() or no_grad()",
                    )
                for one in added.losses:
                    output = output + one
                given = torch.stack([output.detach().reshape(()).double(), count.to(output.device)])
                added.losses.clear()
        if torch.is_grad_enabled():
            ends = [_edge(one) for one in floating(output if loss is None else self._scaled(output))]
            also = tuple(filter(None, (_edge(self._scaled(one)) for one in added.losses)))
            self._forwards[key] = _Forward(inputs, ends, also, loss is not None, self._lanes.now)
        values = [one.detach().double() for one in added.losses]
        self.added = torch.stack(values).sum() if values else None
        return given

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within the context F computes what evaluation wants: without gradients, and as `eval()` has it."""
        modes = [(module, module.training) for module in self.layers.modules()]
        self.layers.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    def backward_input(self, key: Hashable, gradient: Gradient | None = None) -> Gradient | None:
        """I: the gradient of the stage's input; the weight gradients of linear layers are put off.

        Args:
            key: a micro-batch whose F has run.
            gradient: that of the stage's output (trees.py); None at a last stage.

        Returns:
            The gradient of the input; None where that is one tensor and takes none (token numbers).

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

    def backward_message(self, key: Hashable, gradient: Gradient | None = None) -> Gradient | None:
        """I or B for the gradient of the input alone: the parameters' gradients stay as they are, and no W follows.

        They are out of the way meanwhile: what torch has for it (`backward(inputs=...)`) refuses re-entrant
        checkpoints. Arguments, what it gives and errors as `backward_input`.
        """
        gradients = [(parameter, parameter.grad) for parameter in self.parameters()]
        for parameter, _ in gradients:
            parameter.grad = None
        try:
            with self._store.collecting():
                return self._run_backward(key, gradient)
        finally:
            for parameter, found in gradients:
                parameter.grad = found

    def backward(self, key: Hashable, gradient: Gradient | None = None) -> Gradient | None:
        """B: the gradients of the input (returned) and of all weights; arguments and errors as `backward_input`."""
        return self._run_backward(key, gradient)

    def side_by_side(
        self, forward: Callable[[], Made], backward: Callable[[], Given], key: Hashable
    ) -> tuple[Made, Given]:
        """Run F of a micro-batch beside B of another one, as far as the device can (lanes.py).

        Args:
            forward: calls `forward`.
            backward: calls `backward`.
            key: the micro-batch of the backward pass.

        Returns:
            What they return.

        Raises:
            RuntimeFailedError: there is no F to this B.
        """
        before = self._forward_of(key)
        return self._lanes.run(own_tensors(before.inputs)[0].device, forward, backward, before.lane)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The stage's parameters, each once even where layers share it."""
        return self.layers.parameters()

    def stepper(self, optimizer: OptimizerFactory) -> RehearsedStep | None:
        """What steps this stage where it is profiled; None where nothing in it is trained.

        Args:
            optimizer: makes the optimizer of the stage's parameters.

        Raises:
            InvalidInputError: as of `StageOptimizer`.
        """
        is_idle = not any(one.requires_grad for one in self.parameters())
        return None if is_idle else RehearsedStep(list(self.layers), optimizer, self._precision)

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

    def _leaf(self, given: torch.Tensor) -> torch.Tensor:
        """A tensor of the stage's own input, in the type that the model takes."""
        is_converted = self._input_type is not None and given.is_floating_point()
        return _leaf(given.to(self._input_type) if is_converted else given)

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss as gradients are taken of it."""
        return loss if self.loss_scale == 1.0 else loss * self.loss_scale

    def _apply_layers(
        self, inputs: Tree, before_layer: Callable[[int], None] | None, named: Named, added: _Added, part: range
    ) -> Tree:
        if not self._copies_inputs:
            try:
                return self._layers_of(inputs, before_layer, named, part)
            except RuntimeError as error:
                if _WRITTEN not in str(error):
                    raise
                # From now on the first layer, which writes into its input, has one of its own.
                self._copies_inputs = True
                added.losses.clear()
        return self._layers_of(on_tensors(torch.Tensor.clone, inputs), before_layer, named, part)

    def _layers_of(self, value: Tree, before_layer: Callable[[int], None] | None, named: Named, part: range) -> Tree:
        for index in part:
            layer = self.layers[index]
            if before_layer is not None:
                before_layer(index)
            value = layer(value, **self.named_inputs.of(index, named)) if named else layer(value)
            check_output(value, layer, f"layer {index} of the stage")
        return value

    def _forward_of(self, key: Hashable) -> _Forward:
        if key not in self._forwards:
            raise RuntimeFailedError(f"I or B of micro-batch {key!r} without an F before it")
        return self._forwards[key]

    def _run_backward(self, key: Hashable, gradient: Gradient | None) -> Gradient | None:
        forward = self._forward_of(key)
        if (gradient is None) != forward.ends:
            raise RuntimeFailedError("the output's gradient must be given except at the stage that has the loss")
        del self._forwards[key]
        self._hosting.begin_backward(key)
        gradients = (None,) if forward.ends else tensors_of_gradient(gradient)
        starts = [(edge, given) for edge, given in zip(forward.outputs, gradients, strict=True) if edge is not None]
        starts += [(edge, None) for edge in forward.added]
        if starts:
            torch.autograd.backward([edge for edge, _ in starts], [given for _, given in starts])
        if isinstance(forward.inputs, torch.Tensor):
            found = forward.inputs.grad
            if found is None and forward.inputs.requires_grad:  # a layer detaches, or the micro-batch counts nothing
                return torch.zeros_like(forward.inputs)
            return None if found is None else found.contiguous()
        takers = floating(forward.inputs)
        return tuple(torch.zeros_like(one) if one.grad is None else one.grad.contiguous() for one in takers)


def _leaf(given: torch.Tensor) -> torch.Tensor:
    """A tensor of the input, where a graph begins."""
    leaf = given.detach()
    return leaf.requires_grad_(torch.is_grad_enabled()) if leaf.is_floating_point() else leaf


_WRITTEN = "leaf Variable that requires grad"  # what torch says of a leaf, or a view of one, that is written into


@contextmanager
def _taking(added: _Added) -> Iterator[None]:
    token = _added.set(added)
    try:
        yield
    finally:
        _added.reset(token)


def _edge(tensor: torch.Tensor) -> GradientEdge | None:
    return get_gradient_edge(tensor) if tensor.requires_grad else None


def loss_and_count(given: object) -> tuple[torch.Tensor, torch.Tensor]:
    """What a loss function has returned, as a sum that can be differentiated and how many it counts.

    Args:
        given: a scalar, which is a mean and counts 1, or (sum, count).

    Returns:
        The sum, and the count as a float64 scalar; its value is not looked at, for that would wait for the device.

    Raises:
        InvalidInputError: it is something else.
    """
    total, count = given if isinstance(given, tuple) and len(given) == 2 else (given, 1.0)
    if not isinstance(total, torch.Tensor) or total.numel() != 1 or not total.is_floating_point():
        raise InvalidInputError(
            f"the loss is {_described(total)}, not a scalar",
            fix="return its mean over the micro-batch, a tensor of one element, or (its sum, how many it sums over)",
        )
    if isinstance(count, torch.Tensor) and count.numel() == 1 and not count.is_complex():
        return total, count.detach().reshape(()).double()
    if isinstance(count, int | float):
        return total, torch.tensor(float(count), dtype=torch.float64)
    raise InvalidInputError(
        f"the loss's count is {_described(count)}, not one number",
        fix="return (sum, count), the count a number or a tensor of one element",
    )


def _described(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} of shape {list(value.shape)}"
    return with_article(type(value).__name__)
