"""Learning rates are a function of the steps taken: torch's own and transformers' are the judges."""

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler
from transformers import optimization

from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.schedules import LearningRates, RateCurve, constant, cosine, linear, wsd
from rtk.schemas.errors import InvalidInputError

from .pipes import cut

JUDGES: Any = optimization  # which has no types
Judge = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def two_groups() -> torch.optim.Optimizer:
    first, second = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    groups: list[dict[str, Any]] = [{"params": [first]}, {"params": [second], "lr": 0.3}]
    return torch.optim.AdamW(groups, lr=0.01)


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def judged(judge: Judge, steps: int) -> list[list[float]]:
    """The learning rates of the first so many steps, as a loop of one's own has them."""
    optimizer = two_groups()
    scheduler = judge(optimizer)
    found = []
    for _ in range(steps):
        found.append(rates_of(optimizer))
        optimizer.step()
        scheduler.step()
    return found


@given(
    warmup=st.integers(0, 6), falls=st.integers(1, 8), stays=st.integers(0, 5), final=st.sampled_from([0.0, 0.1, 1.0])
)
def test_they_are_those_of_transformers(warmup: int, falls: int, stays: int, final: float) -> None:
    """constant, linear, cosine and wsd, to the end of the schedule; from there on the last value stays."""
    steps = warmup + stays + falls
    cases: list[tuple[RateCurve, Judge]] = [
        (constant(warmup=warmup), lambda o: JUDGES.get_constant_schedule_with_warmup(o, warmup)),
        (linear(warmup=warmup, steps=steps), lambda o: JUDGES.get_linear_schedule_with_warmup(o, warmup, steps)),
        (
            cosine(warmup=warmup, steps=steps, final=final),
            lambda o: JUDGES.get_cosine_with_min_lr_schedule_with_warmup(o, warmup, steps, min_lr_rate=final),
        ),
        (
            wsd(warmup=warmup, steps=steps, decay=falls),
            lambda o: JUDGES.get_wsd_schedule(o, warmup, falls, num_stable_steps=stays),
        ),
    ]
    for curve, judge in cases:
        optimizer = two_groups()
        rates = LearningRates(optimizer, curve)
        for taken, wanted in enumerate(judged(judge, steps + 1)):
            rates.set(taken)
            assert rates_of(optimizer) == pytest.approx(wanted, abs=1e-15)
        assert curve(steps + 7) == curve(steps)


SCHEDULERS: dict[str, Judge] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "one cycle, momentum too": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
    "chain": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1, 4), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=6))
def test_torch_schedulers_go_to_any_step(name: str, order: list[int]) -> None:
    """Whatever steps are asked for, in whatever order, all settings are bit for bit those of a loop that went there."""
    wanted, optimizer = judged(SCHEDULERS[name], 12), two_groups()
    rates = LearningRates(optimizer, SCHEDULERS[name])
    for taken in order:
        rates.set(taken)
        assert rates_of(optimizer) == wanted[taken]


def test_one_cycle_moves_momentum() -> None:
    """Settings beside the learning rate follow, and go back when the schedule begins anew."""
    optimizer, other = two_groups(), two_groups()
    rates, scheduler = LearningRates(optimizer, SCHEDULERS["one cycle, momentum too"]), None
    rates.set(9)
    rates.set(4)
    scheduler = lr_scheduler.OneCycleLR(other, 0.5, total_steps=20)
    for _ in range(4):
        other.step()
        scheduler.step()
    assert [one["betas"] for one in optimizer.param_groups] == [one["betas"] for one in other.param_groups]


class Hungry(lr_scheduler.StepLR):
    def step(self, loss: float) -> None:  # type: ignore[override]
        super().step()

    def _initial_step(self) -> None:
        self._step_count = 0


REFUSED: dict[str, tuple[Any, str]] = {
    "nan": (lambda step: math.nan, "gives nan at step 0"),
    "negative": (lambda step: -0.5, "gives -0.5 at step 0"),
    "infinite": (lambda step: math.inf, "gives inf at step 0"),
    "a list": (lambda step: [1.0], "gives a list at step 0"),
    "nothing": (lambda step: None, "gives a NoneType at step 0"),
    "plateau": (lr_scheduler.ReduceLROnPlateau, "ReduceLROnPlateau makes the learning rate depend on metrics"),
    "losses": (lambda o: Hungry(o, 2), "Hungry makes the learning rate depend on loss"),
    "neither": (lambda one: one.steps, "given step 0, AttributeError.*given the optimizer, AttributeError"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_schedules_that_cannot_be_used_are_refused_at_once(name: str) -> None:
    """When the optimizer is made, in words."""
    schedule, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=message):
        LearningRates(two_groups(), schedule)


def test_a_schedule_that_goes_wrong_later_is_told_with_its_step() -> None:
    """A NaN at step 3 is told at step 3, and nothing has been stepped with it."""
    (held,) = cut(
        [nn.Linear(2, 2)], (), nn.MSELoss(), schedule=lambda step: math.sqrt(2.5 - step) if step < 3 else math.nan
    )
    for taken in range(3):
        held.begin()
        held.step(StepTerms(1.0, None, taken))
    before = held.checksums()
    with pytest.raises(InvalidInputError, match="gives nan at step 3"):
        held.step(StepTerms(1.0, None, 3))
    assert held.checksums() == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: cosine(warmup=5, steps=5),
        lambda: linear(steps=0),
        lambda: wsd(steps=5, decay=6),
        lambda: wsd(steps=5, decay=0),
        lambda: cosine(steps=5, final=1.5),
        lambda: cosine(steps=5, final=math.nan),
        lambda: constant(warmup=-1),
        lambda: cosine(steps=5.0),  # type: ignore[arg-type]
    ],
)
def test_curves_that_make_no_sense_are_refused(make: Callable[[], RateCurve]) -> None:
    """Where they are made."""
    with pytest.raises(InvalidInputError):
        make()


def test_stages_with_other_groups_share_a_schedule() -> None:
    """A stage with nothing to train has no learning rate, and needs none; the others have theirs."""

    def groups(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)

    stages = cut(
        [nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)], (1, 2), nn.MSELoss(), optimizer=groups, schedule=linear(steps=4)
    )
    for taken, stage in itertools.product((0, 2), stages):
        stage.begin()
        stage.step(StepTerms(1.0, None, taken))
        assert stage.learning_rate == (None if stage.layers_range == (1, 2) else 0.5 * (1 - taken / 4))
