"""Workers that hold several virtual stages train as a single process does, whatever the placement and the orders."""

import copy
import threading
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.runners.program import Receive, Send, Sending, lower
from rtk.runners.torch.evaluation import HeldOut
from rtk.runners.torch.runner import PlanRunner
from rtk.runners.torch.stage import TorchStage, add_loss
from rtk.schemas.check import check_timeline
from rtk.schemas.plan import Placement, Plan
from rtk.schemas.timeline import Timeline

from ..placed_plans import any_placed_plans, folded, looped
from .placed import placed_plan
from .ranks import run_ranks

WIDTH, ROWS, STEPS = 5, 3, 2
V = folded(4, 2)
LOOP = looped(4, 2)


class Adding(nn.Module):
    """A layer that adds to the loss, and draws no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.inner(value))
        add_loss(found.square().mean())
        return found


def layers_of(depth: int, is_tied: bool = False, adds: bool = False) -> list[nn.Module]:
    torch.manual_seed(1)
    kinds = [lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH))]
    found: list[nn.Module] = [Adding() if adds and n % 3 == 1 else kinds[n % 2]() for n in range(depth)]
    if is_tied and depth > 1:
        found[0], found[-1] = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        found[-1].weight = found[0].weight
    return [layer.double() for layer in found]


def batch(iteration: int, microbatches: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rows = torch.randn(microbatches, 2, ROWS, WIDTH, generator=torch.Generator().manual_seed(iteration)).double()
    return [(inputs, target) for inputs, target in rows]


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def alone(
    layers: list[nn.Module], microbatches: int, clip_norm: float | None = None
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses of one process that does all, and its parameters at the end, by their names in the model."""
    whole, losses = nn.Sequential(*layers), list[float]()
    optimizer = sgd(list(whole.parameters()))
    for iteration in range(STEPS):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for inputs, target in batch(iteration, microbatches):
            added = list[torch.Tensor]()
            value = inputs
            for layer in layers:
                value = layer(value)
                added += [value.square().mean()] if isinstance(layer, Adding) else []
            total = total + (F.mse_loss(value, target) + sum(added)) / microbatches
        total.backward()  # type: ignore[no-untyped-call]
        losses.append(total.item())
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(whole.parameters(), clip_norm)
        optimizer.step()
    return losses, {name: one.detach() for name, one in whole.named_parameters(remove_duplicate=False)}


def check_equal(
    plan: Plan, layers: list[nn.Module], transport: Sending = "direct", clip_norm: float | None = None
) -> list[PlanRunner]:
    """All ranks know the losses of one process to 1e-12, and have its parameters, after some iterations."""
    total = plan.total_microbatches()

    def train(runner: PlanRunner) -> tuple[PlanRunner, list[float | None]]:
        return runner, [runner.step(batch(n, total)).loss for n in range(STEPS)]

    ranks = run_ranks(plan, layers, F.mse_loss, sgd, train, transport=transport, clip_norm=clip_norm)
    losses, parameters = alone(copy.deepcopy(layers), total, clip_norm)
    knowing = [found for _, found in ranks if None not in found]
    assert knowing
    if plan.optimizer == "synchronous" or not any(isinstance(layer, Adding) for layer in layers):
        # Else nobody waits to hear what other stages add to the loss.
        for found in knowing:
            assert found == pytest.approx(losses, abs=1e-12)
    seen = set()
    for runner, _ in ranks:
        for name, value in runner._held.state().items():
            if "/" not in name:
                seen.add(name)
                assert torch.allclose(value, parameters[name], atol=1e-12, rtol=0), name
    assert seen == set(parameters)
    return [runner for runner, _ in ranks]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_placed_plans(), st.booleans(), st.booleans())
def test_any_placed_plan_trains_as_one_process_does(plan: Plan, is_tied: bool, adds: bool) -> None:
    """Loops, Vs, odd placements, unlike pipelines, chunks that went to peers, full and split backward passes, a
    synchronous or a staggered optimizer, tied weights and losses that layers add: 1e-12 in float64."""
    check_equal(plan, layers_of(plan.total_layers(), is_tied, adds))


@pytest.mark.parametrize("kinds", ["FIW", "FB"])
@pytest.mark.parametrize(
    "placement", [V, LOOP, folded(2, 3), ((0, 5), (1, 3), (2, 4))], ids=["v", "loop", "zigzag", "odd"]
)
def test_a_placement_trains_as_one_process_does(placement: Placement, kinds: str) -> None:
    """With orders as published ones look, in two pipelines of which one has lost a worker, and clipped gradients."""
    depth = 2 * sum(map(len, placement))
    plan = placed_plan(placement, depth, (6, 5), kinds, dead=[(1, 1)])
    check_equal(plan, layers_of(depth), transport="auto", clip_norm=0.01)


def test_two_stages_of_one_worker_send_each_other_nothing() -> None:
    """At the turn of a V activations and gradients are handed over: the worker exchanges messages with one other."""
    program = lower(placed_plan(V, 8, (6,), "FIW"))
    links = {
        one.message.link: (rank, one.to)
        for rank, mine in enumerate(program.instructions)
        for one in mine
        if isinstance(one, Send)
    }
    assert sorted(links) == [0, 1, 2, 4, 5, 6]
    others = {one.source for one in program.instructions[3] if isinstance(one, Receive)}
    assert others == {2}


def test_tied_ends_of_a_model_are_one_parameter_in_a_v() -> None:
    """Embedding and head lie on the first worker of a V, which has one copy and sums it with nobody."""
    runners = check_equal(placed_plan(V, 8, (6,), "FIW"), layers_of(8, is_tied=True))
    first = runners[0]._held
    assert first.holds == ((0, 1), (7, 8))
    assert first.stage.layers[0].weight is first.stage.layers[1].weight
    assert len(list(first.stage.parameters())) == 3
    assert runners[0]._program.reduction(0).ties[0].ranks == (0,)


def test_a_placed_plan_evaluates() -> None:
    """Held-out micro-batches run forward through all virtual stages, more and fewer of them than the plan has."""
    plan, layers = placed_plan(V, 8, (3, 2), "FIW", dead=[(0, 3)]), layers_of(8)
    rows = batch(9, 7)
    wanted = sum(F.mse_loss(nn.Sequential(*layers)(inputs), target).item() for inputs, target in rows) / len(rows)
    found = run_ranks(plan, layers, F.mse_loss, sgd, lambda runner: runner.evaluate(HeldOut(rows, len(rows), 1)))
    assert [loss for loss, _ in found] == pytest.approx([wanted] * 7, abs=1e-12)
    assert [count for _, count in found] == [7.0] * 7


def test_the_measured_timeline_names_virtual_stages() -> None:
    """The independent checker finds every operation of a placed plan in a real run's timeline."""
    plan = placed_plan(LOOP, 8, (4,), "FIW")

    def train(runner: PlanRunner) -> Timeline | None:
        for n in range(2):
            runner.step(batch(n, 4))
        return runner.timeline()

    timeline, *_ = run_ranks(plan, layers_of(8), F.mse_loss, sgd, train)
    assert timeline is not None
    assert {span.op for span in timeline.spans if span.worker == "0/1"} >= {"1F0", "5F0", "1W3", "5I2"}
    assert check_timeline(plan, timeline) == []


def test_dropout_is_the_same_under_another_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a layer draws depends on its number in the model, wherever it lies: a V and a loop lose alike."""
    lock, forward = threading.Lock(), TorchStage.forward

    def locked(*arguments: Any, **named: Any) -> Any:  # ranks are threads here that share a random generator
        with lock:
            return forward(*arguments, **named)

    monkeypatch.setattr(TorchStage, "forward", locked)
    layers = [nn.Sequential(layer, nn.Dropout(0.3)) for layer in layers_of(8)]

    def train(runner: PlanRunner) -> list[float | None]:
        return [runner.step(batch(n, 3)).loss for n in range(STEPS)]

    v, loop = (run_ranks(placed_plan(placement, 8, (3,)), layers, F.mse_loss, sgd, train)[0] for placement in (V, LOOP))
    without, _ = alone(layers_of(8), 3)
    assert v == pytest.approx(loop, abs=1e-12)
    assert v != pytest.approx(without, abs=1e-3)
