"""A sharded optimizer takes the very steps of a replicated one, and each block has an owner and a buddy that agree."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._C._distributed_c10d import Store

from rtk.planners.pipeline import plan_pipeline
from rtk.planners.shape import Shape
from rtk.profilers.models.gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from rtk.profilers.models.joint import ModelCuts
from rtk.profilers.models.presets import GptConfig
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.optimizers import decay_groups, require_elementwise, shards_optimizer
from rtk.runners.torch.runner import OptimizerFactory, PlanRunner
from rtk.schemas import blocks
from rtk.schemas.blocks import split_piece
from rtk.schemas.errors import InvalidInputError
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


def model(dtype: torch.dtype = FP64, is_tied: bool = False) -> list[nn.Module]:
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


def run(
    asked: Plan,
    layers: list[nn.Module],
    optimizer: OptimizerFactory = adamw,
    body: Callable[[PlanRunner], Trained] = train,
    **how: Any,
) -> list[Trained]:
    """What `train`, or something else, gives on every rank."""
    size = sum(map(asked.gpus_of, asked.live_workers()))

    def make(rank: int, store: Store) -> PlanRunner:
        own = copy.deepcopy(layers)
        return PlanRunner(
            asked, own, language_model_loss, optimizer, rank=rank, world_size=size, store=store, cuts=CUTS, **how
        )

    return run_made(size, make, body)


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


def test_all_peers_states_together_are_loaded() -> None:
    """Who goes on with them, holding whichever blocks, takes the steps of those who never stopped."""
    asked, layers = plan(3, stages=1), model(FP64)
    once = run(asked, layers, shard_optimizer=True)
    together = {name: value.clone() for _, state in once for name, value in state.items()}

    def go_on(runner: PlanRunner) -> Trained:
        runner.load([together], ITERATIONS)
        return train(runner)

    def twice(runner: PlanRunner) -> Trained:
        train(runner)
        return train(runner)

    found = run(asked, layers, shard_optimizer=True, body=go_on)
    wanted = run(asked, layers, shard_optimizer=True, body=twice)
    for (losses, state), (other_losses, other) in zip(found, wanted, strict=True):
        assert losses == other_losses and state.keys() == other.keys()
        assert all(torch.equal(value, other[name]) for name, value in state.items())


def held(optimizer: OptimizerFactory = adamw, is_sharded: bool = True) -> HeldStage:
    """All layers of a model on one worker."""
    layers = model(FP64)
    return HeldStage(layers, (0, LAYERS), language_model_loss, optimizer, is_last=True, is_sharded=is_sharded)


def step(stage: HeldStage, number: int) -> None:
    """With gradients that are the same for every stage."""
    stage.begin()
    for buffer in stage.gradients.buffers:
        buffer.copy_(torch.sin(torch.arange(len(buffer)) * 0.1 + number))
    stage.step(StepTerms(1.0, None, number))


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The values of now."""
    return {name: value.clone() for name, value in state.items()}


@settings(max_examples=20)
@given(st.integers(0, 3), st.data())
def test_a_block_can_change_hands(steps: int, data: st.DataObject) -> None:
    """Whoever takes over a block's values and state goes on as if it had held it always; what it gives up is gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", 192)
        giver, taker = held(), held()
    assert giver.blocks is not None and taker.blocks is not None
    every = sorted(giver.blocks.sizes)
    before = data.draw(st.sets(st.sampled_from(every)), label="held before")
    after = data.draw(st.sets(st.sampled_from(every)), label="held after")
    giver.blocks.hold(every)
    taker.blocks.hold(before)
    for number in range(steps):
        step(giver, number)
        step(taker, number)
    taker.blocks.hold(after)
    giver.prime_optimizer()
    taker.prime_optimizer()
    new = after - before
    values, state = giver.blocks.values_of(every), giver.blocks.state_of(new)
    taker.blocks.load(values | state, every)
    taker.blocks.set_version(every, steps)
    step(giver, steps)
    step(taker, steps)
    assert taker.blocks.held == after
    assert {block for block, version in taker.blocks.versions.items() if version == steps + 1} == after
    wanted = giver.state()
    own = taker.blocks.state_of(every)
    assert own.keys() == giver.blocks.state_of(after).keys()
    assert all(torch.equal(value, wanted[name]) for name, value in own.items())
    values = giver.blocks.values_of(after)
    assert all(torch.equal(value, values[name]) for name, value in taker.blocks.values_of(after).items())


def test_a_step_is_undone_in_the_blocks_that_took_it() -> None:
    """Their values, state and versions are as before, also where the optimizer had not stepped yet."""
    stage = held()
    assert stage.blocks is not None
    mine = sorted(stage.blocks.sizes)[::2]
    stage.blocks.hold(mine)
    for number in range(2):
        before, versions = copied(stage.state()), dict(stage.blocks.versions)
        stage.keep(with_sums=True)
        step(stage, number)
        after = copied(stage.state())
        stage.restore()
        found = stage.state()
        assert found.keys() == before.keys() and all(torch.equal(found[name], before[name]) for name in before)
        assert stage.blocks.versions == versions
        step(stage, number)
        assert all(torch.equal(value, after[name]) for name, value in stage.state().items())


def test_a_state_is_loaded_and_layers_are_compared_without_blocks() -> None:
    """A whole state goes into a stage that holds the same blocks; checksums are of what all peers have."""
    one, other, third = held(), held(), held(is_sharded=False)
    assert one.blocks is not None and other.blocks is not None
    for stage in (one, other):
        assert stage.blocks is not None
        stage.blocks.hold(sorted(stage.blocks.sizes)[::3])
    step(one, 0)
    other.prime_optimizer()
    other.load(one.state())
    step(one, 1)
    step(other, 1)
    assert all(torch.equal(value, one.state()[name]) for name, value in other.state().items())
    checksums = one.checksums()
    assert checksums == other.checksums()
    other.blocks.hold(())
    assert checksums == other.checksums()
    assert not any("/" in name for name in other.state_of((0, LAYERS)))
    third.load(other.state())  # it has not stepped yet, and is as large
    with pytest.raises(InvalidInputError, match="not of these blocks"):
        other.blocks.load({"0.nothing": torch.zeros(1)}, [])


def lamb_like(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Steps as long as the whole parameter is."""
    return ByNorm(parameters, {"lr": 0.1})


class ByNorm(torch.optim.Optimizer):
    """Looks at norms of whole parameters."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step."""
        for group in self.param_groups:
            for one in group["params"]:
                one.data -= group["lr"] * one.data.norm() * one.grad / one.grad.norm()


REFUSED: dict[str, OptimizerFactory] = {
    "Muon": lambda ones: torch.optim.Muon([one for one in ones if one.ndim == 2]),
    "Adafactor": torch.optim.Adafactor,
    "Adagrad": torch.optim.Adagrad,
    "ByNorm": lamb_like,
}
TAKEN: list[OptimizerFactory] = [adamw, sgd, torch.optim.RMSprop, torch.optim.NAdam]


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_look_at_shapes_are_refused(name: str) -> None:
    """With the optimizer's name, and why."""
    with pytest.raises(InvalidInputError, match=f"^{name} does not treat each number of a parameter by itself"):
        require_elementwise(REFUSED[name], model())


@pytest.mark.parametrize("factory", TAKEN)
def test_optimizers_that_look_at_numbers_are_taken(factory: OptimizerFactory) -> None:
    """Where it is asked for, and from three peers on where nobody says anything."""
    assert shards_optimizer(True, 2, factory, model())
    assert not shards_optimizer(False, 4, factory, model())
    assert [shards_optimizer(None, peers, factory, model()) for peers in (1, 2, 3, 8)] == [False, False, True, True]


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_look_at_shapes_stay_whole(name: str) -> None:
    """Where nobody asks for anything else."""
    assert not shards_optimizer(None, 4, REFUSED[name], model())


def test_who_holds_a_layer_alone_cannot_share_its_state() -> None:
    """One pipeline has nobody to hold a block as well."""
    with pytest.raises(InvalidInputError, match="a layer that one worker holds alone"):
        run(plan(1), model(FP64), shard_optimizer=True)
