"""Optimizers and schedules that options name: torch's own steps, on the parameters that each is for."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rtk.profilers.models.gpt import gpt_layers
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.named import Together, optimizer_of, schedule_of
from rtk.runners.training import TrainingConfig

GPT = GptConfig(blocks=1, width=8, heads=2, vocabulary=11, positions=5)
CONFIG = TrainingConfig("m", learning_rate=0.01)


def layers() -> list[nn.Module]:
    torch.manual_seed(1)
    return list(gpt_layers(GPT))


def parameters(model: list[nn.Module]) -> list[nn.Parameter]:
    found = [one for layer in model for one in layer.parameters()]
    generator = torch.Generator().manual_seed(2)
    for one in found:
        one.grad = torch.randn(one.shape, generator=generator)
    return found


def after_two_steps(optimizer: torch.optim.Optimizer, held: list[nn.Parameter]) -> list[torch.Tensor]:
    optimizer.step()
    optimizer.step()
    return [one.detach().clone() for one in held]


@pytest.mark.parametrize(
    ("options", "kind", "given"),
    [
        ({}, torch.optim.AdamW, {}),
        ({"betas": "0.9,0.95"}, torch.optim.AdamW, {"betas": (0.9, 0.95)}),
        ({"optimizer": "sgd"}, torch.optim.SGD, {}),
        ({"weight_decay": 0.3, "decay_all": True}, torch.optim.AdamW, {"weight_decay": 0.3}),
        ({"optimizer": "sgd", "weight_decay": 0.3, "decay_all": True}, torch.optim.SGD, {"weight_decay": 0.3}),
    ],
)
def test_optimizers_are_those_of_torch(options: dict[str, Any], kind: Any, given: dict[str, Any]) -> None:
    """A step is torch's to the bit; where nothing is said, with torch's defaults."""
    model, other = layers(), layers()
    ours, theirs = parameters(model), parameters(other)
    made = optimizer_of(replace(CONFIG, **options), model)(ours)
    found = after_two_steps(made, ours)
    assert all(map(torch.equal, found, after_two_steps(kind(theirs, lr=0.01, **given), theirs)))


def test_vectors_do_not_decay() -> None:
    """With weight decay and zero gradients matrices shrink, and biases and norms stay as they are."""
    model = layers()
    held = parameters(model)
    for one in held:
        assert one.grad is not None
        one.grad.zero_()
    before = [one.detach().clone() for one in held]
    for now, then in zip(
        after_two_steps(optimizer_of(replace(CONFIG, weight_decay=0.5), model)(held), held), before, strict=True
    ):
        assert torch.equal(now, then) == (now.dim() < 2 or not then.any())


def test_muon_is_for_matrices_inside() -> None:
    """Embeddings, the output layer and vectors are AdamW's; all others are as torch's Muon makes them."""
    model, other = layers(), layers()
    ours, theirs = parameters(model), parameters(other)
    outer = {id(one) for layer in (other[0], other[-1]) for one in layer.parameters()}
    inner = [one for one in theirs if one.dim() == 2 and id(one) not in outer]
    rest = [one for one in theirs if one.dim() != 2 or id(one) in outer]
    assert len(inner) == 4
    found = after_two_steps(optimizer_of(replace(CONFIG, optimizer="muon", betas="0.8,0.9"), model)(ours), ours)
    after_two_steps(torch.optim.Muon(inner, lr=0.01, adjust_lr_fn="match_rms_adamw"), inner)
    after_two_steps(torch.optim.AdamW(rest, lr=0.01, betas=(0.8, 0.9)), rest)
    assert all(map(torch.equal, found, theirs))


def test_optimizers_together_are_one() -> None:
    """Their groups, and so their learning rates, and their state are one's; what is loaded is found by the parts."""
    model, other = layers(), layers()
    ours, theirs = parameters(model), parameters(other)
    factory = optimizer_of(replace(CONFIG, optimizer="muon"), model)
    made, again = factory(ours), factory(theirs)
    assert isinstance(made, Together)
    for optimizer in (made, again):
        optimizer.step()
    assert set(made.state) == set(ours)
    again.load_state_dict(copy.deepcopy(made.state_dict()))
    for optimizer in (made, again):
        for group in optimizer.param_groups:
            group["lr"] = 0.5
        optimizer.step()
    assert all(map(torch.equal, ours, theirs))
    assert max(float(one.detach().abs().max()) for one in ours) > 0.3
    with pytest.raises(TypeError):
        made.step(lambda: 1.0)


@pytest.mark.parametrize(
    ("options", "factors"),
    [
        ({"warmup": 4}, {0: 0.0, 1: 0.25, 4: 1.0, 90: 1.0}),
        ({"lr_schedule": "linear", "lr_steps": 20}, {0: 1.0, 10: 0.5, 20: 0.0}),
        (
            {"lr_schedule": "cosine", "lr_steps": 20, "warmup": 10, "min_lr_ratio": 0.1},
            {5: 0.5, 10: 1, 15: 0.55, 20: 0.1},
        ),
        ({"lr_schedule": "wsd", "lr_steps": 20, "warmup": 2, "min_lr_ratio": 0.2}, {1: 0.5, 16: 1.0, 18: 0.6, 20: 0.2}),
    ],
)
def test_schedules_are_what_their_names_say(options: dict[str, Any], factors: dict[int, float]) -> None:
    """Factors of the learning rate by the number of steps taken."""
    schedule = schedule_of(replace(CONFIG, **options))
    assert schedule is not None
    assert {taken: schedule(taken) for taken in factors} == pytest.approx(factors)


def test_without_a_schedule_there_is_none() -> None:
    """A constant rate without a warm-up is the optimizer's own."""
    assert schedule_of(CONFIG) is None
