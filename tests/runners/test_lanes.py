"""Passes side by side: what they compute, in which stream, and what waits for what."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.runners.torch.lanes import Lanes
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.errors import RuntimeFailedError

from .test_staging import FakeStreams, needs_gpu

GPU = torch.device("cuda", 0)


def test_passes_of_a_pair_run_in_unlike_streams() -> None:
    """The backward pass runs where its forward pass did, the forward pass in the other stream; both begin once all
    before is done, and what follows waits for both."""
    for lane, launched in ((0, ["on side", "F 1", "off side", "B"]), (1, ["F 0", "on side", "B", "off side"])):
        said: list[str] = []
        lanes = Lanes(lambda device, said=said: FakeStreams(said))  # type: ignore[misc]
        made = lanes.run(GPU, lambda: said.append(f"F {lanes.now}"), lambda: said.append("B"), lane)  # noqa: B023
        assert made == (None, None)
        assert said == ["side waits for current", *launched, "current waits for side"]
        assert lanes.now == 0


def test_a_pass_that_fails_leaves_the_lane() -> None:
    """After an error the next forward pass runs in the thread's own stream."""
    lanes = Lanes(lambda device: FakeStreams([]))
    with pytest.raises(ZeroDivisionError):
        lanes.run(GPU, lambda: 1 // 0, lambda: None, 0)
    assert lanes.now == 0


def chains(device: str, paired: list[bool], dropout: float) -> list[torch.Tensor]:
    """Losses and gradients after micro-batches whose F, but the first one's, runs beside the B before it, or alone."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 6), nn.Dropout(dropout), nn.Linear(6, 1)]
    stage = TorchStage([layer.double().to(device) for layer in layers], lambda output, target: (output - target).mean())
    data = torch.randn(len(paired) + 1, 4, 6, dtype=torch.float64).to(device)
    target = torch.zeros(4, 1, dtype=torch.float64, device=device)
    losses = [stage.forward(0, data[0], target)]
    for number, is_paired in enumerate(paired):

        def forward(number: int = number) -> torch.Tensor:
            made: torch.Tensor = stage.forward(number + 1, data[number + 1], target)
            return made

        def backward(number: int = number) -> None:
            stage.backward(number)

        losses.append(stage.side_by_side(forward, backward, number)[0] if is_paired else forward())
        if not is_paired:
            backward()
    stage.backward(len(paired))
    assert not stage.held_keys()
    return [*losses, *(parameter.grad for parameter in stage.parameters() if parameter.grad is not None)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.booleans(), max_size=5), st.sampled_from([0.0, 0.5]))
def test_pairs_compute_what_passes_alone_do(paired: list[bool], dropout: float) -> None:
    """To the bit, with random numbers too, wherever pairs lie among the passes."""
    alone = chains("cpu", [False] * len(paired), dropout)
    assert all(map(torch.equal, alone, chains("cpu", paired, dropout)))


@needs_gpu
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_pairs_compute_the_same_on_a_gpu(dropout: float) -> None:
    """On a GPU, in two streams, as well."""
    alone = chains("cuda", [False] * 6, dropout)
    for paired in ([True] * 6, [True, False, True, True, False, True]):
        assert all(
            torch.allclose(a, b, rtol=1e-12) for a, b in zip(alone, chains("cuda", paired, dropout), strict=True)
        )


def test_a_pair_without_a_forward_before_it_is_refused() -> None:
    """A B whose F has not run has nothing to run on."""
    with pytest.raises(RuntimeFailedError, match="without an F"):
        TorchStage([nn.Linear(1, 1)]).side_by_side(lambda: None, lambda: None, 7)
