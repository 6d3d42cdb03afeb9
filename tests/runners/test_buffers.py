"""Buffers are part of the state as of the last step, and equal on all peers."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.held_stage import HeldStage

from .pipes import compute, cut, sum_over, train

WIDTH = 4


class Counter(nn.Module):
    """Counts its calls in integers, and in something that is no part of the state; puts new tensors in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(WIDTH), persistent=False)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.calls: torch.Tensor
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen[1] = True
        self.last = x.detach().mean(0)
        return x


def layers(dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    torch.manual_seed(11)
    parts = [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), Counter(), nn.BatchNorm1d(WIDTH, momentum=None)]
    return [part.to(dtype) for part in (*parts, nn.Linear(WIDTH, WIDTH))]


def batch(number: int, size: int = 2, dtype: torch.dtype = torch.float32) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(number)
    rows = torch.randn(size, 2, 5, WIDTH, generator=generator).to(dtype) + number
    return [(inputs, target) for inputs, target in rows]


def all_buffers(held: HeldStage) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in held.stage.layers.named_buffers()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_one_worker_has_the_buffers_of_plain_torch() -> None:
    """Micro-batch by micro-batch, as a loop of one's own has them."""
    (held,) = cut(layers(), (), nn.MSELoss())
    whole = nn.Sequential(*layers())
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.05, weight_decay=0.3)
    for number in range(3):
        train([held], batch(number), number)
        optimizer.zero_grad()
        for inputs, target in batch(number):
            torch.autograd.backward(nn.MSELoss()(whole(inputs), target) / 2)
        optimizer.step()
    for (name, ours), theirs in zip(held.stage.layers.named_buffers(), whole.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@settings(deadline=None, max_examples=10)
@given(st.lists(st.sampled_from(["interrupted", "skipped", "committed"]), min_size=1, max_size=5))
def test_only_committed_iterations_count(story: list[str]) -> None:
    """Whatever is interrupted (`reset`) or committed without a step leaves the buffers as they were."""
    (held,), (plain,) = cut(layers(), (), nn.MSELoss()), cut(layers(), (), nn.MSELoss())
    taken = 0
    for what in story:
        if what == "committed":
            train([held], batch(taken), taken)
            train([plain], batch(taken), taken)
            taken += 1
            assert equal(all_buffers(held), all_buffers(plain))
        else:
            compute([held], batch(50 + taken, 1))
            if what == "interrupted":
                held.reset()
                assert equal(all_buffers(held), all_buffers(plain))
                assert held.checksums() == plain.checksums()
    held.begin()
    assert equal(all_buffers(held), all_buffers(plain)) and held.checksums() == plain.checksums()


@pytest.mark.parametrize("is_next_begun", [True, False])
def test_an_undone_step_is_undone_with_its_iteration(is_next_begun: bool) -> None:
    """A staggered step that is taken back takes its buffers along, also when the next iteration has begun."""
    (held,) = cut(layers(), (), nn.MSELoss())
    train([held], batch(0), 0)
    before = held.checksums()
    found = []
    for _ in range(2):
        _, count = compute([held], batch(1))
        assert held.checksums() == before, "the state is that of the last step"
        held.keep()
        held.step(StepTerms(count, None, 1))
        assert held.checksums() != before
        if is_next_begun:
            compute([held], batch(2))
        held.restore()
        assert held.checksums() == before
        train([held], batch(3), 1)
        found.append(held.checksums())
        held.restore()
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", ["lowest", "mean"])
def test_peers_have_equal_buffers_after_each_step(shared: str, dtype: torch.dtype) -> None:
    """With other micro-batches each: the lowest peer's, or the mean; integers are the lowest peer's."""
    pipes = [cut(layers(dtype), (2,), nn.MSELoss(), buffers=shared) for _ in range(3)]
    for taken in range(3):
        totals = [compute(pipe, batch(10 * taken + place, 1 + place, dtype)) for place, pipe in enumerate(pipes)]
        own = [[all_buffers(held) for held in pipe] for pipe in pipes]
        sum_over(pipes)
        count = sum(counts for _, counts in totals)
        for pipe in pipes:
            for held in pipe:
                held.step(StepTerms(count, None, taken))
        assert pipes[0][0].checksums() == pipes[1][0].checksums() == pipes[2][0].checksums()
        assert pipes[0][1].checksums() == pipes[1][1].checksums() == pipes[2][1].checksums()
        for stage in range(2):
            for name, value in all_buffers(pipes[2][stage]).items():
                values = [own[place][stage][name] for place in range(3)]
                if name.endswith("last"):  # no part of the state
                    assert torch.equal(value, values[2])
                elif shared == "lowest" or not value.is_floating_point():
                    assert torch.equal(value, values[0]), name
                else:
                    torch.testing.assert_close(value, torch.stack(values).mean(0))


def test_a_layer_alone_shares_nothing() -> None:
    """Buffers that are not put into a sum stay a worker's own, also beside layers that are."""
    (held,) = cut(layers(), (), nn.MSELoss())
    twin = copy.deepcopy(held.stage.layers)
    compute([held], batch(0))
    held.share_buffers((0, 2), 2, is_lowest=False)
    held.step(StepTerms(2.0, None, 0))
    ours, theirs = dict(held.stage.layers.named_buffers()), dict(twin.named_buffers())
    assert not ours["1.running_mean"].any(), "the lowest peer's were zeros"
    assert ours["3.num_batches_tracked"] == theirs["3.num_batches_tracked"] + 2
