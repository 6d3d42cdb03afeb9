"""Schedules of learning rates: functions of how many steps have been taken, so that whoever joins knows them.

Each gives a factor of the learning rates that the optimizer was made with. The first step has taken 0 steps before it:
with a warm-up its factor is 0, as in transformers.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from numbers import Real
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ...schemas.errors import InvalidInputError
from ...schemas.text import with_article

# Steps taken -> factor of the learning rates given to the optimizer; or optimizer -> torch's LRScheduler.
Schedule = Callable[[int], float] | Callable[[torch.optim.Optimizer], LRScheduler]


@dataclass(frozen=True, slots=True)
class RateCurve:
    """A factor that rises to 1 over a warm-up, then falls to `final`; called with the number of steps taken.

    Made by `constant`, `linear`, `cosine` and `wsd`.

    Attributes:
        shape: how it falls: not at all, in a line, or along half a cosine.
        warmup: steps of the rise, linear from 0.
        falls: the step at which it begins to fall.
        steps: the step from which it is `final`.
        final: the factor at the end.
    """

    shape: Literal["constant", "linear", "cosine"]
    warmup: int = 0
    falls: int = 0
    steps: int = 0
    final: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("warmup", self.warmup), ("steps", self.steps)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInputError(
                    f"{name} is {value!r}", where="the schedule", fix="give a number of steps, 0 or more"
                )
        if isinstance(self.final, bool) or not isinstance(self.final, int | float) or not 0 <= self.final <= 1:
            raise InvalidInputError(
                f"final is {self.final!r}", where="the schedule", fix="give a part of the learning rate, from 0 to 1"
            )
        if self.shape != "constant" and not self.warmup <= self.falls < self.steps:
            raise InvalidInputError(
                f"warm-up and decay leave {self.falls - self.warmup} of {self.steps} steps between them",
                where="the schedule",
                fix="give more steps in all, or fewer for warm-up and decay",
            )

    def __call__(self, taken: int) -> float:
        """The factor of a step, `taken` steps after the first."""
        if taken < self.warmup:
            return taken / self.warmup
        if self.shape == "constant" or taken < self.falls:
            return 1.0
        progress = min(1.0, (taken - self.falls) / (self.steps - self.falls))
        left = 1 - progress if self.shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        return left * (1 - self.final) + self.final


def constant(*, warmup: int = 0) -> RateCurve:
    """1, after a linear rise over `warmup` steps; transformers' `get_constant_schedule_with_warmup`."""
    return RateCurve("constant", warmup)


def linear(*, warmup: int = 0, steps: int, final: float = 0.0) -> RateCurve:
    """A linear rise, then a line down to `final` at step `steps`, and `final` from there on.

    With `final` 0 it is transformers' `get_linear_schedule_with_warmup`.
    """
    return RateCurve("linear", warmup, warmup, steps, final)


def cosine(*, warmup: int = 0, steps: int, final: float = 0.0) -> RateCurve:
    """A linear rise, then half a cosine down to `final` at step `steps`, and `final` from there on.

    Up to `steps` it is transformers' `get_cosine_with_min_lr_schedule_with_warmup`, which rises again after that.
    """
    return RateCurve("cosine", warmup, warmup, steps, final)


def wsd(*, warmup: int = 0, steps: int, decay: int, final: float = 0.0) -> RateCurve:
    """Warm-up, stable, decay: a linear rise, 1, and over the last `decay` of `steps` steps half a cosine to `final`.

    It is transformers' `get_wsd_schedule` as that is by default, but for the rise, which begins at 0 and not at
    `final` ("MiniCPM", section 4.2, has a rise from 0).
    """
    if isinstance(decay, bool) or not isinstance(decay, int) or decay <= 0:
        raise InvalidInputError(
            f"decay is {decay!r}", where="the schedule", fix="give the steps of the fall, 1 or more; or use constant()"
        )
    return RateCurve("cosine", warmup, steps - decay, steps, final)


class LearningRates:
    """Sets the learning rates of an optimizer, whatever step it is at.

    Args:
        optimizer: whose learning rates, as they are now, are those that factors multiply.
        schedule: of them; None leaves them alone.

    Raises:
        InvalidInputError: the schedule is neither a function of the step nor makes an LRScheduler, or one whose
            learning rates are no function of the step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule | None) -> None:
        self._optimizer = optimizer
        self._schedule: Callable[[Any], Any] | None = schedule
        self._initial = [
            {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if key not in ("params", "initial_lr")
            }
            for group in optimizer.param_groups
        ]
        self._scheduler: LRScheduler | None = None
        self._made_for = 0  # the step that the scheduler is at
        self._is_function = schedule is None or self._gives_factors()

    def set(self, taken: int) -> None:
        """Set them for the step before which `taken` steps were taken.

        A torch scheduler goes there step by step, so that its learning rates are the same to the last bit whether this
        optimizer has taken the steps before or not.

        Raises:
            InvalidInputError: the schedule gives something else than a number of 0 or more.
        """
        if self._schedule is None:
            return
        if not self._is_function:
            self._follow(taken)
            return
        factor = _checked(self._schedule(taken), f"at step {taken}")
        for group, initial in zip(self._optimizer.param_groups, self._initial, strict=True):
            _set_rate(group, float(initial["lr"]) * factor)

    def _gives_factors(self) -> bool:
        """Whether the schedule is a function of the step; where not, the scheduler it makes is ready for step 0."""
        assert self._schedule is not None
        try:
            found = self._schedule(0)
        except Exception as error:  # as a scheduler does that is given no optimizer
            failed = error
        else:
            if not isinstance(found, LRScheduler):
                _checked(found, "at step 0")
                return True
            failed = TypeError("it makes a scheduler of a number")
        try:
            self._make()
        except InvalidInputError:
            raise
        except Exception as error:
            raise InvalidInputError(
                f"the schedule fails: given step 0, {_in_words(failed)}; given the optimizer, {_in_words(error)}",
                where="the schedule",
                fix="give a function of the steps taken, from 0, or one that makes a torch LRScheduler of an optimizer",
            ) from error
        return False

    def _make(self) -> None:
        assert self._schedule is not None
        for group, initial in zip(self._optimizer.param_groups, self._initial, strict=True):
            group.pop("initial_lr", None)
            for key, value in initial.items():
                if key == "lr":
                    _set_rate(group, value)
                else:
                    group[key] = value
        made = self._schedule(self._optimizer)
        if not isinstance(made, LRScheduler):
            raise InvalidInputError(
                f"the schedule makes {with_article(type(made).__name__)} of the optimizer",
                where="the schedule",
                fix="let it return a torch.optim.lr_scheduler.LRScheduler",
            )
        needed = [
            one.name
            for one in signature(made.step).parameters.values()
            if one.default is Parameter.empty
            and one.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        ]
        if isinstance(made, ReduceLROnPlateau) or needed:
            raise InvalidInputError(
                f"{type(made).__name__} makes the learning rate depend on {', '.join(needed) or 'the losses'}, "
                "and not on the step alone: who joins later could not know it",
                where="the schedule",
                fix="use cosine, linear, wsd or constant, or a scheduler that only counts steps",
            )
        self._scheduler, self._made_for = made, 0

    def _follow(self, taken: int) -> None:
        if self._scheduler is None or taken < self._made_for:
            self._make()
        assert self._scheduler is not None
        with warnings.catch_warnings():
            # Of a scheduler that steps before the optimizer: steps that others took are skipped here.
            warnings.simplefilter("ignore", UserWarning)
            while self._made_for < taken:
                self._scheduler.step()
                self._made_for += 1


def _set_rate(group: dict[str, Any], rate: float | torch.Tensor) -> None:
    if isinstance(group["lr"], torch.Tensor):  # which a captured graph refers to
        group["lr"].fill_(rate)
    else:
        group["lr"] = float(rate)


def _checked(factor: object, when: str) -> float:
    value = factor.item() if isinstance(factor, torch.Tensor) and factor.numel() == 1 else factor
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) < math.inf:
        return float(value)
    shown = f"{float(value):g}" if isinstance(value, Real) else with_article(type(value).__name__)
    raise InvalidInputError(
        f"the schedule gives {shown} {when}",
        where="the schedule",
        fix="let it return one number, 0 or more: the factor of the learning rate",
    )


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
