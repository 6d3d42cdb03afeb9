"""A stage's optimizer: made by the user's factory, tried out first, and stepped on float32 gradients or masters."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...schemas.blocks import HOLDERS
from ...schemas.errors import InvalidInputError
from ...schemas.slices import Span
from ...schemas.text import with_article
from .precision import Precision, has_masters

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

MASTER = "master"  # under this name a parameter's float32 master is a part of the optimizer's state
_WHERE = "the optimizer factory"
_TRIED = 4  # of each dimension of a parameter: enough to see whether an optimizer steps


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimizer: matrices decay; biases and norms, which have one dimension at most, do not.

    In a factory: `lambda parameters: torch.optim.AdamW(decay_groups(parameters, 0.1), lr=3e-4)`.

    Args:
        parameters: a stage's.
        weight_decay: of those with two dimensions or more.

    Returns:
        One group, or two, none of them empty.
    """
    held = list(parameters)
    groups = [
        {"params": [one for one in held if one.ndim >= 2], "weight_decay": weight_decay},
        {"params": [one for one in held if one.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


@dataclass(slots=True, eq=False)
class _SteppedPart:
    """One parameter of the inner optimizer: all of a parameter of the stage, or a piece of it.

    Attributes:
        parameter: the stage's.
        span: which of its numbers; None: all.
        stepped: what the inner optimizer has for them.
        is_twin: whether it has a gradient of its type only while it steps.
        masters: the entry of a float32 master; nothing where there is none.
        source: the parameter's gradient, of which `stepped` has its part.
    """

    parameter: nn.Parameter
    span: Span | None
    stepped: nn.Parameter
    is_twin: bool
    masters: dict[str, Any]
    source: torch.Tensor | None = None

    @property
    def value(self) -> torch.Tensor:
        """The numbers of the parameter that are stepped, as a view."""
        return part_of(self.parameter.detach(), self.span)

    @property
    def gradient(self) -> torch.Tensor | None:
        """Theirs, as a view."""
        return None if self.parameter.grad is None else part_of(self.parameter.grad, self.span)

    def attach(self) -> None:
        """Let what is stepped have the gradient that its parameter has."""
        if self.stepped is self.parameter or self.is_twin:
            return
        if self.source is not self.parameter.grad or self.stepped.grad is None:
            self.source, self.stepped.grad = self.parameter.grad, self.gradient


class StageOptimizer:
    """The optimizer of a stage's trainable parameters.

    Of parameters of less than float32, whose gradients are summed in float32 (gradients.py), it steps on twins: on
    parameters of the same memory, with a gradient in their type while it steps, or on float32 masters that begin equal
    to the parameters, with the float32 sums themselves. From the masters the parameters are rounded after each step.

    Of parameters that are cut it steps on pieces only, those that `hold` says. Each has a state of its own, and stays
    in the group of the inner optimizer into which the factory has put its parameter.

    Args:
        factory: the user's; asked for small optimizers too, which are tried out and forgotten. Not called where nothing
            is to be trained.
        parameters: the stage's, with their gradients in place.
        precision: whether there are masters.
        cut: those of which pieces are stepped, none to begin with; each contiguous.

    Attributes:
        inner: the optimizer that the factory has made; one of nothing where there is nothing to train.
        is_idle: whether there is nothing to train.

    Raises:
        InvalidInputError: the factory's optimizer is none, cannot step without a closure, keeps what is no state or
            other parameters than it was given, or keeps masters itself.
    """

    def __init__(
        self,
        factory: OptimizerFactory,
        parameters: Iterable[nn.Parameter],
        precision: Precision,
        cut: Collection[nn.Parameter] = frozenset(),
    ) -> None:
        trainable = [one for one in parameters if one.requires_grad]
        self._with_masters = has_masters(precision)
        self._units: dict[nn.Parameter, dict[Span | None, _SteppedPart]] = {}
        for parameter in trainable:
            self._units[parameter] = {} if parameter in cut else {None: self._unit(parameter, None)}
        given = {self._given(parameter): parameter for parameter in trainable}
        self.is_idle = not trainable
        self.inner = _nothing() if self.is_idle else _made(factory, list(given), precision)
        # Of each group its parameters, where pieces take their places.
        groups = self.inner.param_groups if cut else []
        self._groups = [[given[one] for one in group["params"]] for group in groups]
        self._seat()

    def hold(self, pieces: Mapping[nn.Parameter, Sequence[Span | None]]) -> None:
        """Step on these pieces from now on: those that were stepped so far keep their state, others have none.

        Args:
            pieces: of parameters that are cut, numbers [first, stop) in row-major order, or None for all of them.
        """
        for parameter, spans in pieces.items():
            before = self._units[parameter]
            self._units[parameter] = {
                span: before.pop(span) if span in before else self._unit(parameter, span) for span in spans
            }
            for unit in before.values():
                self.inner.state.pop(unit.stepped, None)
        self._seat()

    def stepped(self) -> list[nn.Parameter]:
        """What the optimizer steps on, in the parameters' order."""
        return [unit.stepped for unit in self._every()]

    def step(self) -> None:
        """Step on the gradients as they are."""
        twins = [unit for unit in self._every() if unit.is_twin]
        for twin in twins:
            gradient = twin.gradient
            twin.stepped.grad = None if gradient is None else gradient.to(twin.stepped.dtype)
        self.inner.step()
        for twin in twins:
            twin.stepped.grad = None
        mastered = [unit for unit in self._every() if unit.masters]
        if mastered:
            with torch.no_grad():
                torch._foreach_copy_([one.value for one in mastered], [one.stepped.detach() for one in mastered])

    def attach(self) -> None:
        """Let what is stepped have the gradients that their parameters have, where these have others than before."""
        for unit in self._every():
            unit.attach()

    def entries(self, parameter: nn.Parameter) -> list[tuple[Span | None, str, dict[str, Any]]]:
        """Everything that is kept of a parameter.

        Returns:
            By pieces (None: all of it), the keys in alphabetical order, each with the dictionary that it is in.
        """
        found = []
        for span, unit in self._units.get(parameter, {}).items():
            places = (self.inner.state.get(unit.stepped, {}), unit.masters)
            own = [(span, key, entries) for entries in places for key in entries if entries[key] is not None]
            found += sorted(own, key=lambda one: one[1])
        return found

    def drop_empty(self, parameter: nn.Parameter) -> None:
        """Forget the inner optimizer's state of a parameter if nothing is left of it."""
        for unit in self._units[parameter].values():
            if all(entry is None for entry in self.inner.state.get(unit.stepped, {}).values()):
                self.inner.state.pop(unit.stepped, None)

    def _every(self) -> Iterator[_SteppedPart]:
        return itertools.chain.from_iterable(units.values() for units in self._units.values())

    def _unit(self, parameter: nn.Parameter, span: Span | None) -> _SteppedPart:
        value = part_of(parameter.detach(), span)
        if parameter.grad is None or parameter.grad.dtype == parameter.dtype:
            unit = _SteppedPart(parameter, span, parameter if span is None else nn.Parameter(value), False, {})
        elif self._with_masters:
            master = nn.Parameter(value.float())
            unit = _SteppedPart(parameter, span, master, False, {MASTER: master})
        else:
            unit = _SteppedPart(parameter, span, nn.Parameter(value), True, {})
        unit.attach()
        return unit

    def _given(self, parameter: nn.Parameter) -> nn.Parameter:
        """What the factory is given for a parameter: of one that is cut what takes no memory, but has its shape."""
        if self._units[parameter]:
            return self._units[parameter][None].stepped
        dtype = torch.float32 if self._with_masters and parameter.grad is not None else parameter.dtype
        return nn.Parameter(torch.zeros((), dtype=dtype, device=parameter.device).expand(parameter.shape))

    def _seat(self) -> None:
        for group, parameters in zip(self.inner.param_groups, self._groups, strict=False):
            group["params"] = [unit.stepped for one in parameters for unit in self._units[one].values()]


def part_of(tensor: torch.Tensor, span: Span | None) -> torch.Tensor:
    """Numbers [first, stop) of a contiguous tensor in a row, as a view; itself where the span is None."""
    return tensor if span is None else tensor.view(-1)[slice(*span)]


def _nothing() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.empty(0))], lr=0.0)


def _made(factory: OptimizerFactory, parameters: Sequence[nn.Parameter], precision: Precision) -> torch.optim.Optimizer:
    """The factory's optimizer, after a small one of its kind has shown that it can step and what it keeps."""
    shapes = {parameter.ndim: parameter for parameter in parameters}
    tried = [_small(parameter) for parameter in shapes.values()]
    optimizer = _called(factory, tried)
    _refuse_two_passes(optimizer)
    try:
        optimizer.step()
    except Exception as error:
        raise InvalidInputError(
            f"{type(optimizer).__name__} cannot step with gradients alone: {type(error).__name__}: {error}",
            where=_WHERE,
            fix="use an optimizer whose step() needs no closure and one backward pass, such as AdamW",
        ) from error
    for parameter in tried:
        for key, entry in optimizer.state.get(parameter, {}).items():
            if entry is not None:
                as_tensor(entry)
            if has_masters(precision) and MASTER in key:
                raise _masters_twice(optimizer, f"a {key!r} of each parameter", precision)
    if has_masters(precision) and getattr(optimizer, "master_weights", False):
        raise _masters_twice(optimizer, "master_weights", precision)
    return _called(factory, parameters)


def shards_optimizer(
    asked: bool | None, fewest_peers: int, factory: OptimizerFactory, layers: Iterable[nn.Module]
) -> bool:
    """Whether workers keep only blocks of the optimizer's state: as asked, where it can be.

    Args:
        asked: for; None: where it saves memory, which with two holders it does from three peers on, and the optimizer
            is elementwise.
        fewest_peers: of all layers the least number of workers that hold one.
        factory: makes the optimizer.
        layers: all of the model.

    Raises:
        InvalidInputError: it is asked for, and one worker alone holds a layer, or the optimizer is not elementwise.
    """
    if asked and fewest_peers < HOLDERS:
        raise InvalidInputError(
            "a sharded optimizer needs two workers for each layer, one to own a block of its state and one to save it, "
            "and the plan has a layer that one worker holds alone",
            where="--shard-optimizer",
            fix="plan with --dp 2 or more (it saves memory from 3 on), or leave --shard-optimizer out",
        )
    if asked is None:
        return fewest_peers > HOLDERS and is_elementwise(factory, layers)
    if asked:
        require_elementwise(factory, layers)
    return asked


def is_elementwise(factory: OptimizerFactory, layers: Iterable[nn.Module]) -> bool:
    """Whether pieces of parameters, stepped apart, become what the whole ones become; as `require_elementwise`."""
    try:
        require_elementwise(factory, layers)
    except Exception:  # what else is wrong with it is told by whoever makes the stage's
        return False
    return True


def require_elementwise(factory: OptimizerFactory, layers: Iterable[nn.Module]) -> None:
    """Raise InvalidInputError unless pieces of parameters, stepped apart, become what the whole ones become.

    What looks at shapes (Muon, Adafactor), at norms of whole parameters (LAMB) or at all of them at once does not. Two
    steps of small parameters show it.

    Args:
        factory: the user's.
        layers: all of the model, so that every worker comes to the same answer; their values are not looked at.
    """
    trainable = [one for layer in layers for one in layer.parameters() if one.requires_grad]
    shapes = {one.ndim: tuple(min(size, _TRIED) for size in one.shape) for one in trainable if one.numel()}
    if not shapes:
        return
    name = type(_made(factory, [nn.Parameter(torch.zeros(shape)) for shape in shapes.values()], "fp32")).__name__
    whole = _stepped_twice(factory, shapes.values(), None)
    try:
        halves = [_stepped_twice(factory, shapes.values(), half) for half in ((0.0, 0.5), (0.5, 1.0))]
    except InvalidInputError:
        raise
    except Exception as error:
        raise _not_elementwise(name, f"it cannot step pieces of one ({type(error).__name__}: {error})") from error
    for number, (before, after) in enumerate(whole):
        found = torch.cat([half[number][1] for half in halves])
        if not torch.allclose(found - before, after - before, rtol=1e-3, atol=1e-6):
            raise _not_elementwise(name, "pieces that are stepped apart become something else")


def _stepped_twice(
    factory: OptimizerFactory, shapes: Iterable[tuple[int, ...]], part: tuple[float, float] | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Small parameters before and after two steps, each in a row: whole ones, or a part of each."""
    given = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimizer = _called(factory, given)
    if optimizer.state:
        raise _not_elementwise(type(optimizer).__name__, "it has a state before it steps")
    stepped: dict[nn.Parameter, nn.Parameter] = {}
    for one in given:
        value = torch.sin(torch.arange(1.0, one.numel() + 1)).view_as(one)
        span = None if part is None else (round(part[0] * one.numel()), round(part[1] * one.numel()))
        stepped[one] = nn.Parameter(part_of(value, span))
    for group in optimizer.param_groups:
        group["params"] = [stepped[one] for one in group["params"]]
        group["lr"] = 0.1 if isinstance(group.get("lr"), float) else group.get("lr")
    before = [one.detach().flatten().clone() for one in stepped.values()]
    for scale in (1.0, 0.5):
        for one in stepped.values():
            one.grad = scale * torch.cos(7 * one.detach())  # of each number by itself, like what it is a part of
        optimizer.step()
    for one in stepped.values():
        for entry in optimizer.state.get(one, {}).values():
            if isinstance(entry, torch.Tensor) and entry.dim() and entry.shape != one.shape:
                raise _not_elementwise(type(optimizer).__name__, f"it keeps a tensor of shape {list(entry.shape)}")
    return list(zip(before, (one.detach().flatten() for one in stepped.values()), strict=True))


def _not_elementwise(name: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"{name} does not treat each number of a parameter by itself: {why}",
        where=f"{_WHERE}, with a sharded optimizer",
        fix="use AdamW, SGD or the like, or keep its state whole on every peer (--no-shard-optimizer)",
    )


def _called(factory: OptimizerFactory, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    try:
        optimizer = factory(parameters)
    except InvalidInputError:
        raise
    except Exception as error:
        raise InvalidInputError(
            f"no optimizer can be made: {type(error).__name__}: {error}",
            where=_WHERE,
            fix="give a function of a stage's parameters, all of one kind or some, that returns a torch optimizer",
        ) from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidInputError(
            f"it returns {with_article(type(optimizer).__name__)}", where=_WHERE, fix="return a torch.optim.Optimizer"
        )
    given = {id(parameter) for parameter in parameters}
    kept = [one for group in optimizer.param_groups for one in group["params"]]
    foreign = sum(id(one) not in given for one in kept)
    if foreign:
        raise InvalidInputError(
            f"the optimizer keeps {foreign} parameters that it was not given",
            where=_WHERE,
            fix="make it of the parameters that the factory is called with: they are those of this worker's stage",
        )
    return optimizer


def _small(parameter: nn.Parameter) -> nn.Parameter:
    shape = [min(size, _TRIED) for size in parameter.shape]
    small = nn.Parameter(torch.zeros(shape, dtype=parameter.dtype, device=parameter.device))
    small.grad = torch.zeros_like(small)
    return small


def _refuse_two_passes(optimizer: torch.optim.Optimizer) -> None:
    """Those like SAM ("Sharpness-Aware Minimization", section 2) compute gradients twice a step."""
    if hasattr(optimizer, "first_step") or hasattr(optimizer, "second_step"):
        raise InvalidInputError(
            f"{type(optimizer).__name__} needs two backward passes a step (first_step, second_step)",
            where=_WHERE,
            fix="use an optimizer of one backward pass a step, such as AdamW",
        )


def _masters_twice(optimizer: torch.optim.Optimizer, what: str, precision: Precision) -> InvalidInputError:
    return InvalidInputError(
        f"{type(optimizer).__name__} keeps masters itself ({what}), and {precision} would keep them again",
        where="precision",
        fix="switch its masters off" + (", or use the precision bf16" if precision == "bf16-master" else ""),
    )


def as_tensor(entry: Any) -> torch.Tensor:
    """An entry of an optimizer's state: itself, or a number as a float64 tensor of no dimension.

    Raises:
        InvalidInputError: it is neither tensor nor number.
    """
    if isinstance(entry, torch.Tensor):
        return entry.detach()
    if isinstance(entry, int | float):
        return torch.tensor(entry, dtype=torch.float64)
    raise InvalidInputError(
        f"the optimizer keeps {with_article(type(entry).__name__)}, which cannot be handed over",
        fix="use an optimizer whose state is tensors and numbers, such as AdamW",
    )


def set_entry(entries: dict[str, Any], key: str, value: torch.Tensor) -> None:
    """Have another value in an entry of an optimizer's state, in place: `as_tensor` backwards."""
    entry = entries[key]
    if isinstance(entry, torch.Tensor):
        entry.detach().copy_(value)
    else:
        entries[key] = type(entry)(value.item())
