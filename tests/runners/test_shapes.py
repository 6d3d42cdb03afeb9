"""What flows between layers is known without computing, and without leaving a trace in the layers."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rtk.profilers.models.gpt import gpt_layers
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.boundaries import Boundary, boundary_samples
from rtk.schemas.errors import InvalidInputError


class LargestFirst(nn.Module):
    """Needs values: takes a number out of a tensor, counts its calls in a buffer, draws at random."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.abs().max().item() >= 0
        self.calls.add_(1)
        return (x + torch.rand_like(x)).to(torch.float64)


class Sized(nn.Module):
    """Puts out a tensor and a number."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x, len(x)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
def test_shapes_are_those_of_a_real_run(batch: int, heads: int, blocks: int, sequence: int) -> None:
    """For any size of a GPT, the shapes and types are those that really flow."""
    layers = gpt_layers(GptConfig(blocks, 4 * heads, heads, vocabulary=7, positions=6))
    value = torch.zeros(batch, sequence, dtype=torch.int64)
    wanted = [Boundary(tuple(value.shape), value.dtype)]
    for layer in layers:
        value = layer(value)
        wanted.append(Boundary(tuple(value.shape), value.dtype))
    assert boundary_samples(layers, torch.ones(batch, sequence, dtype=torch.int64)) == wanted


def test_layers_and_generators_stay() -> None:
    """Dropout draws nothing, batch norm counts nothing, and no parameter moves, even where a layer needs values."""
    layers = [nn.Linear(3, 5), nn.Dropout(), nn.BatchNorm1d(5), LargestFirst()]
    before = copy.deepcopy(nn.ModuleList(layers).state_dict())
    random = torch.get_rng_state()
    found = boundary_samples(layers, torch.randn(2, 3, generator=torch.Generator()))
    assert found[-2:] == [Boundary((2, 5), torch.float32), Boundary((2, 5), torch.float64)]
    after = nn.ModuleList(layers).state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_large_model_costs_nothing() -> None:
    """A layer whose output would take a terabyte is no trouble: nothing is computed."""
    found = boundary_samples([nn.Linear(8, 2)], torch.empty(1, 8).expand(2**37, 8).to("meta"))
    assert found[1] == Boundary((2**37, 2), torch.float32)


def test_samples_have_the_shape() -> None:
    """A boundary gives tensors of its shape and type."""
    boundary = Boundary((2, 3), torch.bfloat16)
    assert (boundary.like().shape, boundary.like().dtype) == ((2, 3), torch.bfloat16)
    assert torch.equal(boundary.zeros(), torch.zeros(2, 3, dtype=torch.bfloat16))


def test_numbers_are_refused() -> None:
    """A layer that puts out something else than tensors is refused, by its place in the model."""
    with pytest.raises(InvalidInputError, match="holds an int; it must be a tensor") as caught:
        boundary_samples([nn.Identity(), Sized()], torch.zeros(1))
    assert caught.value.where == "layer 1 of the model, Sized"


def test_a_layer_that_does_not_fit_says_so() -> None:
    """A layer that does not take what flows into it raises torch's own error."""
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        boundary_samples([nn.Linear(3, 4), nn.Linear(3, 4)], torch.zeros(2, 3))
