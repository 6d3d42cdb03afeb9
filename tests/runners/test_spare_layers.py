"""Layers without their values: room for a stage, once it is loaded no different from the stage it was made like."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.spare_layers import SpareLayers

WIDTH = 4


class Masked(nn.Module):
    """Keeps a buffer that is not in its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(WIDTH), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.get_buffer("mask")


def layers() -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)]


@pytest.mark.parametrize("stage", [(0, 4), (1, 3), (3, 4), (2, 3)])
def test_a_stage_of_spare_layers_is_the_stage_once_loaded(stage: tuple[int, int]) -> None:
    """The same names, shapes and outputs, in storage of its own; the layers they were made like stay as they are."""
    real = layers()
    before = copy.deepcopy(real)
    room = SpareLayers(real).of([stage], "cpu")
    assert room is not None
    assert len(room) == len(real)
    for layer in room[slice(*stage)]:
        layer.load_state_dict(real[room.index(layer)].state_dict())
    inputs = torch.randn(3, WIDTH)
    for one, other in zip(room[slice(*stage)], before[slice(*stage)], strict=True):
        assert torch.equal(one.eval()(inputs), other.eval()(inputs))
    for one, other in zip(real, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_each_time_there_is_other_room() -> None:
    """Two stages made of one model's spare layers share nothing, and hold what a stage of real ones does."""
    spare = SpareLayers(layers())
    first, second = spare.of([(0, 2)], "cpu"), spare.of([(0, 2)], "cpu")
    assert first is not None and second is not None
    held = [HeldStage(one, (0, 2), F.mse_loss, torch.optim.SGD) for one in (first, second, layers())]
    assert len({id(parameter) for one in held for parameter in one.stage.parameters()}) == 3 * 4
    assert held[0].state().keys() == held[2].state().keys()


def test_what_its_state_does_not_say_is_made_anew() -> None:
    """No spare layer where a buffer is not part of the state."""
    assert SpareLayers([*layers(), Masked()]).of([(0, 4)], "cpu") is not None
    assert SpareLayers([*layers(), Masked()]).of([(3, 5)], "cpu") is None
