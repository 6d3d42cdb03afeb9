"""The loss scale of fp16: a function of which iterations were skipped, and a part of every layer's state."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._C._distributed_c10d import HashStore

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch import loss_scale
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.loss_scale import FIRST_SCALE, LEAST_SCALE, LossScale, scale_at
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import add_loss
from rtk.schemas.errors import InvalidInputError
from rtk.schemas.profile import Layer, LayerCost, Profile

from .pipes import Batch, adamw, compute, cut

INTERVAL = 3
HISTORIES = st.lists(st.booleans(), max_size=30)


def torchs(history: list[bool]) -> float:
    """The scale of torch's GradScaler after iterations of which some had infinite gradients."""
    scale, tracker = torch.tensor(FIRST_SCALE), torch.tensor(0, dtype=torch.int32)
    for is_skipped in history:
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(is_skipped)), 2.0, 0.5, INTERVAL)
        scale.clamp_(min=LEAST_SCALE)
    return float(scale)


def after(history: list[bool], known: tuple[int, ...]) -> LossScale:
    """The scale of a worker that has begun some of the iterations, and the one after the last."""
    scale = LossScale([4, 5])
    for iteration in [*known, len(history)]:
        scale.begin(iteration, iteration - sum(history[:iteration]))
    return scale


@given(HISTORIES)
def test_the_scale_is_that_of_torch(history: list[bool]) -> None:
    """Whatever is skipped, the scale before each iteration is that of torch's GradScaler, but no less than 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROWS_AFTER", INTERVAL)
        assert after(history, tuple(range(len(history)))).now == torchs(history)


@given(HISTORIES, st.data())
def test_beginning_again_changes_nothing(history: list[bool], data: st.DataObject) -> None:
    """An iteration that is begun several times, or once, leaves the same numbers in every layer's state."""
    times = data.draw(st.lists(st.integers(1, 3), min_size=len(history), max_size=len(history)))
    again = after(history, tuple(n for n, count in enumerate(times) for _ in range(count))).state()
    once = after(history, tuple(range(len(history)))).state()
    assert list(once) == ["4./loss_scale", "5./loss_scale"]
    assert all(torch.equal(again[name], once[name]) for name in once)


@given(HISTORIES.filter(bool))
def test_who_has_not_heard_of_a_skip_catches_up(history: list[bool]) -> None:
    """A state from before an iteration began, and one from after, are the same once the next one begins."""
    last = len(history)
    early, late = after(history[:-1], tuple(range(last - 1))), after(history, tuple(range(last)))
    early.begin(last, last - sum(history))
    assert all(torch.equal(early.state()[name], late.state()[name]) for name in late.state())


def test_the_scale_has_a_floor() -> None:
    """Gradients that are never finite halve it down to 1, and no further."""
    assert scale_at((4.0, 0.0, 0.0), 50, 0)[0] == LEAST_SCALE


def line(weight: float) -> nn.Linear:
    """One weight, to be trained."""
    made = nn.Linear(1, 1, bias=False)
    nn.init.constant_(made.weight, weight)
    return made


def mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.float().mean()


@pytest.mark.parametrize("is_split", [False, True])
def test_small_gradients_do_not_vanish(is_split: bool) -> None:
    """Gradients that 16 bits round to zero come through, in the middle of the model as at its end, divided again."""
    small = 2.0**-30
    batch: Batch = [(torch.ones(1, 1), torch.zeros(1))] * 2

    def tiny(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mean(output, target) * small

    stages = cut([line(1.0), line(1.0)], (1,), tiny, precision="fp16-master")
    for stage in stages:
        stage.scale_loss(0, 0)
    compute(stages, batch, is_split)
    for stage in stages:
        (square,) = stage.squared_norms(stage.numbers).values()
        assert math.sqrt(square) == 2 * small
        (weight,) = stage.stage.parameters()
        before = stage.state()[f"{stage.numbers[0]}.weight/master"].clone()
        stage.step(StepTerms(2.0, None, 0))
        assert weight.grad is not None and weight.grad.item() == small
        assert not torch.equal(stage.state()[f"{stage.numbers[0]}.weight/master"], before)


def test_overflow_is_seen_and_the_scale_falls() -> None:
    """A gradient beyond 65504 is not finite; after the skipped iteration the scale is half as large, until it fits."""
    (held,) = cut([line(1.0)], (), mean, precision="fp16-master")
    seen, taken = [], 0
    for iteration in range(4):
        held.scale_loss(iteration, taken)
        compute([held], [(torch.full((1, 1), 4.0), torch.zeros(1))])
        is_finite = math.isfinite(*held.squared_norms([0]).values())
        seen.append((held.loss_scale, is_finite))
        taken += is_finite
    assert seen == [(65536.0, False), (32768.0, False), (16384.0, False), (8192.0, True)]


def test_what_a_layer_adds_to_the_loss_is_scaled_too() -> None:
    """The gradients of add_loss in an early stage are as large, after division, as those of the loss itself."""

    class Adding(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            add_loss(self.weight.float().sum() * 0.25)
            return super().forward(x) * 0

    stages = cut([Adding(1, 1, bias=False), line(1.0)], (1,), lambda *given: mean(*given) / 8, precision="fp16-master")
    for stage in stages:
        stage.scale_loss(0, 0)
    total, count = compute(stages, [(torch.ones(1, 1), torch.zeros(1))])
    assert (total, count) == (stages[0].state()["0.weight"].item() * 0.25, 1.0)
    assert stages[0].squared_norms([0])[0] == 0.25**2


def test_the_scale_goes_with_the_state() -> None:
    """It is kept and restored, and what another stage loads of it is what it goes on with; bf16 has none."""

    def made(precision: Any) -> HeldStage:
        return cut([line(1.0), line(2.0)], (), mean, precision=precision, optimizer=adamw)[0]

    held, other = made("fp16-master"), made("fp16-master")
    held.scale_loss(3, 1)
    held.keep()
    held.scale_loss(4, 1)
    assert held.loss_scale == FIRST_SCALE / 8
    held.restore()
    assert held.loss_scale == FIRST_SCALE / 4
    for layer in (0, 1):
        other.load_layers((layer, layer + 1), held.state_of((layer, layer + 1)))
    assert other.loss_scale == FIRST_SCALE / 4
    without = {name: value for name, value in held.state().items() if not name.endswith("/loss_scale")}
    with pytest.raises(InvalidInputError, match=r"lacks 0\./loss_scale\n.*--precision"):
        held.load(without)
    assert made("bf16-master").loss_scale == 1.0


@pytest.mark.parametrize("is_staggered", [False, True])
def test_a_plain_run_skips_until_the_scale_fits(is_staggered: bool) -> None:
    """Without a coordinator, too, nobody steps on what is not finite, whatever the optimizer waits for; then all do."""
    profile = Profile((Layer((LayerCost(1.0, 1.0, 1.0),)),) * 2)
    plan = plan_pipeline(profile, Shape(1, 1, 2), "gpipe")
    plan = replace(plan, optimizer="staggered", prediction=None) if is_staggered else plan
    runner = PlanRunner(
        plan, [line(1.0), line(1.0)], mean, adamw, rank=0, world_size=1, store=HashStore(), precision="fp16-master"
    )
    batch = [(torch.full((1, 1), 4.0), torch.zeros(1))] * 2
    values = []
    for number in range(5):
        result = runner.step(batch)
        assert result.skipped == (number < 3)
        values.append([one.item() for one in runner.stage.parameters()])
    assert values[0] == values[2] == [1.0, 1.0] != values[3] != values[4]
    with pytest.raises(InvalidInputError, match="scaled loss"):
        runner.reduce(batch)
