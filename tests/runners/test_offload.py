"""Activations that wait on the host: which, and that nothing changes but where they are."""

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.planners.adaptra.plan import plan_adaptra
from rtk.planners.pipeline import plan_pipeline
from rtk.planners.scheduling.solve import Effort
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.hosting import Key, hosted
from rtk.runners.torch.stage import TorchStage
from rtk.runners.torch.staging import HostStaging
from rtk.schemas.orders import Operation
from rtk.schemas.plan import Plan
from rtk.schemas.plan import Stage as PlannedStage
from rtk.schemas.profile import Layer, LayerCost, Profile

from ..placed_plans import placed_plans
from .test_staging import FakeStreams

PLANNED = PlannedStage((0, 1), 1.0, 1.0, 1.0, activation_bytes=2, weight_stash_bytes=1)
PROFILE = Profile((Layer((LayerCost(1.0, 1.0, 1.0),), activation_bytes=2, weight_stash_bytes=1),) * 4)


def test_plans_within_the_limit_host_nothing() -> None:
    """A plan that was made for a memory limit never holds more than the device does; without a limit nobody knows."""
    for plan in (
        plan_pipeline(PROFILE, Shape(4, 1, 8, memory_limit_bytes=[8.0]), "1f1b"),
        plan_pipeline(PROFILE, Shape(4, 2, 6, memory_limit_bytes=[10.0]), "zero-bubble"),
        plan_pipeline(PROFILE, Shape(4, 1, 5), "gpipe"),
    ):
        assert all(not those for those in hosted_in(plan).values())


def hosted_in(plan: Plan, limit_bytes: float | None = None) -> dict[str, frozenset[Key]]:
    found = {}
    for worker in plan.workers:
        stage = plan.stage_of(worker)
        limit = stage.memory_limit_bytes if limit_bytes is None else limit_bytes
        found[worker.name] = hosted(tuple(worker.operations()), partial(plan.stage_at, worker), limit)
    return found


@settings(max_examples=30, deadline=None)
@given(placed_plans())
def test_nothing_of_a_placed_plan_waits_that_fits(plan: Plan) -> None:
    """A valid plan keeps its limits; where one chunk less has room, some chunk of the worker's waits."""
    for worker in plan.live_workers():
        orders, stage_at = tuple(worker.operations()), partial(plan.stage_at, worker)
        assert not hosted(orders, stage_at, plan.limit_bytes(worker))
        if orders and all(stage_at(one).activation_bytes > 0 for one in orders):
            waiting = hosted(orders, stage_at, min(stage_at(one).activation_bytes for one in orders) / 2)
            assert waiting == {one[1:] for one in orders}


def test_a_smaller_device_hosts_more_of_an_adapted_plan() -> None:
    """Of the forwards that a slow link has all stages run ahead, fewer fit on smaller devices; on large ones all do."""
    plan = plan_adaptra(PROFILE, Shape(4, 1, 12, link_delay_s={(None, 2): 3.0}), "adapted", Effort())
    counts = [[len(those) for those in hosted_in(plan, limit).values()] for limit in (24.0, 12.0, 6.0, 2.0)]
    assert counts[0] == [0] * 4
    assert counts[3] == [12] * 4
    assert all(one <= other for less, more in pairwise(counts) for one, other in zip(less, more, strict=True))
    assert all(0 < sum(some) < 48 for some in counts[1:3])


@given(st.permutations([(kind, n) for n in range(4) for kind in "FIW"]), st.integers(0, 9))
def test_the_device_never_holds_more(order: list[tuple[str, int]], limit_bytes: int) -> None:
    """In any order, what is not hosted fits, with room for one that is brought back; and nothing waits without need."""
    ranks = {"F": 0, "I": 1, "W": 2}
    kinds = {n: iter(sorted((kind for kind, m in order if m == n), key=ranks.__getitem__)) for n in range(4)}
    operations = [Operation(next(kinds[n]), 0, n) for _, n in order]  # type: ignore[arg-type]
    waiting = hosted(operations, lambda one: PLANNED, limit_bytes)
    assert peak_bytes(operations, waiting) <= max(0, limit_bytes - 2 if waiting else limit_bytes)
    assert bool(waiting) == (peak_bytes(operations, frozenset()) > limit_bytes)


def peak_bytes(operations: list[Operation], waiting: frozenset[Key]) -> float:
    used, most = 0.0, 0.0
    for operation in operations:
        if operation[1:] not in waiting:
            used += {"F": 2.0, "I": -1.0, "W": -1.0}[operation.kind]
        most = max(most, used)
    return most


# What a stage computes


class Sharing(nn.Module):
    """Saves views of one memory, and changes another in place between two uses."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        low, high = torch.stack([value, value * 2]).unbind(0)
        product = self.left(low) * torch.sigmoid(self.right(high).t()).t()
        return torch.relu_((product * 2).add_(1.0))


def models() -> list[list[nn.Module]]:
    torch.manual_seed(3)
    gpt = gpt_layers(GptConfig(blocks=2, width=16, heads=2, vocabulary=64, positions=8))
    return [list(gpt), [Sharing(), Sharing()]]


def gradients(number: int, waiting: set[int], staging: HostStaging, is_split: bool) -> list[torch.Tensor]:
    """After two micro-batches, some of them hosted, whose I and W lie apart."""
    layers = models()[number]
    stage = TorchStage(layers[:-1], is_split=is_split)
    stage.host(waiting, staging)
    generator = torch.Generator().manual_seed(4)
    found = []
    for key in (0, 1):
        tokens = torch.randint(0, 64, (2, 8), generator=generator)
        inputs = torch.randn(5, 16, generator=generator) if number else tokens
        found.append(stage.forward(key, inputs))
    for key in (0, 1):
        backward = stage.backward_input if is_split else stage.backward
        found += [one for one in [backward(key, torch.ones_like(found[key]))] if one is not None]
    for key in (0, 1):
        if is_split:
            stage.backward_weight(key)
    assert not stage.held_keys()
    return found + [parameter.grad for parameter in stage.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("is_split", [True, False])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("streams", [False, True])
def test_gradients_are_the_same_bits(number: int, is_split: bool, streams: bool) -> None:
    """Outputs and all gradients of hosted micro-batches equal those that stay, with the backward pass split or not."""
    staging = HostStaging(FakeStreams([]), FakeStreams([])) if streams else HostStaging()
    wanted = gradients(number, set(), HostStaging(), is_split)
    for waiting in ({0}, {0, 1}):
        got = gradients(number, waiting, staging, is_split)
        assert len(got) == len(wanted)
        assert all(torch.equal(mine, its) for mine, its in zip(got, wanted, strict=True))


class Watched(nn.Module):
    """Remembers the memory of what it saved."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[weakref.ref[torch.UntypedStorage]] = []

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        middle = torch.sigmoid(value)
        self.saved.append(weakref.ref(middle.untyped_storage()))
        return torch.tanh(middle)


def test_what_waits_is_gone_from_the_device() -> None:
    """What autograd saved of a hosted micro-batch is freed after its F, that of another one is kept until its I."""
    watched = Watched()
    stage = TorchStage([watched, nn.Linear(4, 4)])
    stage.host({1}, HostStaging())
    for key in (0, 1):
        stage.forward(key, torch.ones(3, 4))
    assert alive(watched) == [True, False]
    for key in (0, 1):
        stage.backward_input(key, torch.ones(3, 4))
        stage.backward_weight(key)
    assert alive(watched) == [False, False]


def alive(watched: Watched) -> list[bool]:
    gc.collect()
    return [one() is not None for one in watched.saved]


def test_reset_drops_what_waits() -> None:
    """After an iteration that was interrupted, the same micro-batch can be hosted anew."""
    stage = TorchStage([nn.Linear(4, 4)])
    stage.host({0}, HostStaging())
    for _ in range(2):
        stage.reset()
        stage.forward(0, torch.ones(3, 4))
    stage.backward(0, torch.ones(3, 4))


def test_a_loss_may_wait_too() -> None:
    """A last stage's loss and targets are saved like all else."""
    tokens, found = torch.arange(16).reshape(2, 8), []
    for waiting in (set[int](), {0}):
        stage = TorchStage(models()[0], language_model_loss)
        stage.host(waiting, HostStaging())
        stage.forward(0, tokens, tokens + 1)
        stage.backward(0)
        found.append([parameter.grad for parameter in stage.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True) if one is not None)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
