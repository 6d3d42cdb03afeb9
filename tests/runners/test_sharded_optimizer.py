"""A sharded optimizer takes the very steps of a replicated one, and each block has an owner and a buddy that agree."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import Store

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.optimizers import decay_groups
from rtk.runners.torch.runner import OptimizerFactory, PlanRunner
from rtk.schemas import blocks
from rtk.schemas.blocks import split_piece
from rtk.schemas.orders import Schedule
from rtk.schemas.plan import Plan
from rtk.schemas.profile import Layer, LayerCost, Profile

from .ranks import run_made

LAYERS, ITERATIONS = 4, 3
CUTS = ModelCuts(TENSOR_PARALLEL)
FP64 = torch.float64


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small layers have several blocks, of lengths that vectors divide."""
    monkeypatch.setattr(blocks, "BLOCK", 192)
    yield


def plan(dp: int, tensor_parallel: int = 1, schedule: Schedule = "1f1b", stages: int = 2) -> Plan:
    """Micro-batches of two for each pipeline."""
    costs = tuple(LayerCost(1.0, 1.0, 1.0, tensor_parallel=degree) for degree in (1, 2))
    profile = Profile((Layer(costs, activation_bytes=2, weight_stash_bytes=1),) * LAYERS)
    return plan_pipeline(profile, Shape(stages, dp, 2, tensor_parallel=tensor_parallel), schedule)


def model(dtype: torch.dtype = torch.float64, is_tied: bool = False) -> list[nn.Module]:
    """The same layers each time."""
    torch.manual_seed(1)
    layers = gpt_layers(GptConfig(blocks=LAYERS - 2, width=16, heads=4, vocabulary=30, positions=8))
    if is_tied:
        layers[-1].logits.weight = layers[0].token.weight  # type: ignore[union-attr]
    return [layer.to(dtype) for layer in layers]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With groups that the shapes of parameters decide on."""
    return torch.optim.AdamW(decay_groups(parameters, 0.3), lr=1e-2)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """With a momentum."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


Trained = tuple[list[float | None], dict[str, torch.Tensor]]


def train(runner: PlanRunner) -> Trained:
    """Losses, and the state after some steps."""
    total = runner.plan.total_microbatches()
    losses = []
    for number in range(ITERATIONS):
        tokens = torch.randint(30, (total, 2, 9), generator=torch.Generator().manual_seed(number))
        losses.append(runner.step([(rows[:, :-1], rows[:, 1:]) for rows in tokens]).loss)
    return losses, runner.state()


def run(asked: Plan, layers: list[nn.Module], optimizer: OptimizerFactory = adamw, **how: Any) -> list[Trained]:
    """What `train` gives on every rank."""
    size = sum(map(asked.gpus_of, asked.live_workers()))

    def make(rank: int, store: Store) -> PlanRunner:
        own = copy.deepcopy(layers)
        return PlanRunner(
            asked, own, language_model_loss, optimizer, rank=rank, world_size=size, store=store, cuts=CUTS, **how
        )

    return run_made(size, make, train)


def assert_same_steps(
    asked: Plan, layers: list[nn.Module], optimizer: OptimizerFactory = adamw, **how: Any
) -> tuple[int, int]:
    """Sharded and replicated optimizers take bit-equal steps, and all holders of an entry have the same bits of it.

    Gives how many numbers of the optimizer's state all ranks keep together: sharded and replicated.
    """
    sharded = run(asked, layers, optimizer, shard_optimizer=True, **how)
    whole = run(asked, layers, optimizer, shard_optimizer=False, **how)
    workers = asked.live_workers()
    seats = [(worker.stage, share) for worker in workers for share in range(asked.gpus_of(worker))]
    held: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for seat, (losses, state), (wanted, replicated) in zip(seats, sharded, whole, strict=True):
        assert losses == wanted
        for name, value in state.items():
            held.setdefault((seat, name), []).append(value)
            entry, span = split_piece(name)
            other = replicated[entry]
            assert torch.equal(value, other.flatten()[slice(*span)] if span and other.dim() else other), name
    is_tied = layers[-1].logits.weight is layers[0].token.weight  # type: ignore[union-attr]
    by_all = ("0.token.weight/", "3.logits.weight/") if is_tied else ()
    for (_, name), values in held.items():
        is_dealt = "/" in name and "/loss_scale" not in name and not name.startswith(by_all)
        assert len(values) == (2 if is_dealt else len(asked.pipelines)), name
        assert all(torch.equal(values[0], other) for other in values)
    return tuple(  # type: ignore[return-value]
        sum(
            value.numel()
            for _, state in ranks
            for name, value in state.items()
            if "/" in name and len(value.shape) and "/loss_scale" not in name
        )
        for ranks in (sharded, whole)
    )


@pytest.mark.parametrize(("dp", "dtype"), [(2, torch.float32), (3, torch.float32), (3, torch.float64), (4, FP64)])
def test_sharded_steps_are_replicated_ones(dp: int, dtype: torch.dtype) -> None:
    """Bit for bit, clipped too, whatever the number of peers, who have 2/DP of the state each."""
    sharded, whole = assert_same_steps(plan(dp, stages=1), model(dtype), clip_norm=0.5)
    assert sharded == pytest.approx(whole * 2 / dp, rel=1e-12)


@pytest.mark.parametrize("precision", ["bf16", "bf16-master", "fp16-master"])
def test_masters_and_twins_are_sharded_too(precision: str) -> None:
    """Of parameters of 16 bits: what is stepped is of pieces, and so is the float32 copy."""
    layers = model(torch.float32)
    sharded, whole = assert_same_steps(plan(3, stages=1), layers, precision=precision)
    assert sharded == pytest.approx(whole * 2 / 3, rel=1e-12)


def test_several_ranks_a_worker_share_out_what_each_has() -> None:
    """Slices are dealt among the peers of the same rank; stages step when they are ready, and W is apart."""
    asked = replace(plan(3, tensor_parallel=2, schedule="zero-bubble"), optimizer="staggered")
    assert_same_steps(asked, model(FP64), sgd)


def test_tied_weights_stay_whole() -> None:
    """What stages share is stepped by everybody, as without blocks."""
    assert_same_steps(plan(3), model(FP64, is_tied=True))
