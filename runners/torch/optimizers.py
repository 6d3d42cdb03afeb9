"""A stage's optimizer: made by the user's factory, tried out first, and stepped on float32 gradients or masters."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...schemas.errors import InvalidInputError
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


class StageOptimizer:
    """The optimizer of a stage's trainable parameters.

    Of parameters of less than float32, whose gradients are summed in float32 (gradients.py), it steps on twins: on
    parameters of the same memory, with a gradient in their type while it steps, or on float32 masters that begin equal
    to the parameters, with the float32 sums themselves. From the masters the parameters are rounded after each step.

    Args:
        factory: the user's; asked for small optimizers too, which are tried out and forgotten. Not called where nothing
            is to be trained.
        parameters: the stage's, with their gradients in place.
        precision: whether there are masters.

    Attributes:
        inner: the optimizer that the factory has made; one of nothing where there is nothing to train.
        is_idle: whether there is nothing to train.

    Raises:
        InvalidInputError: the factory's optimizer is none, cannot step without a closure, keeps what is no state or
            other parameters than it was given, or keeps masters itself.
    """

    def __init__(self, factory: OptimizerFactory, parameters: Iterable[nn.Parameter], precision: Precision) -> None:
        trainable = [one for one in parameters if one.requires_grad]
        with_masters = has_masters(precision)
        self._stepped: dict[nn.Parameter, nn.Parameter] = {}
        self._twins: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._masters: dict[nn.Parameter, dict[str, Any]] = {}
        for parameter in trainable:
            stepped = parameter
            if parameter.grad is not None and parameter.grad.dtype != parameter.dtype:
                stepped = nn.Parameter(parameter.detach().float() if with_masters else parameter.detach())
                if with_masters:
                    stepped.grad = parameter.grad
                    self._masters[parameter] = {MASTER: stepped}
                else:
                    self._twins.append((parameter, stepped))
            self._stepped[parameter] = stepped
        self.is_idle = not trainable
        self.inner = _nothing() if self.is_idle else _made(factory, list(self._stepped.values()), precision)

    def stepped(self) -> list[nn.Parameter]:
        """What the optimizer steps on, in the parameters' order."""
        return list(self._stepped.values())

    def step(self) -> None:
        """Step on the gradients as they are."""
        for parameter, twin in self._twins:
            twin.grad = None if parameter.grad is None else parameter.grad.to(twin.dtype)
        self.inner.step()
        for _, twin in self._twins:
            twin.grad = None
        if self._masters:
            masters = [entries[MASTER].detach() for entries in self._masters.values()]
            with torch.no_grad():
                torch._foreach_copy_([parameter.detach() for parameter in self._masters], masters)

    def attach(self) -> None:
        """Let masters have the gradients that their parameters have, where these have others than before."""
        for parameter, entries in self._masters.items():
            if entries[MASTER].grad is not parameter.grad:
                entries[MASTER].grad = parameter.grad

    def entries(self, parameter: nn.Parameter) -> list[tuple[str, dict[str, Any]]]:
        """Everything that is kept of a parameter: keys in alphabetical order, each with the dictionary it is in."""
        stepped = self._stepped.get(parameter)
        if stepped is None:
            return []
        places = (self.inner.state.get(stepped, {}), self._masters.get(parameter, {}))
        found = [(key, entries) for entries in places for key in entries if entries[key] is not None]
        return sorted(found, key=lambda one: one[0])

    def drop_empty(self, parameter: nn.Parameter) -> None:
        """Forget the inner optimizer's state of a parameter if nothing is left of it."""
        stepped = self._stepped[parameter]
        if all(entry is None for entry in self.inner.state.get(stepped, {}).values()):
            self.inner.state.pop(stepped, None)


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
