"""The stage that a worker holds serves plan after plan, and its state can be named, moved, kept and compared."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.resilience.protocol import StepTerms
from rtk.runners.torch.held_stage import HeldStage, OptimizerFactory
from rtk.schemas.errors import InvalidInputError, RuntimeFailedError

WIDTH = 4
GPT = GptConfig(blocks=1, width=8, heads=2, vocabulary=11, positions=5)


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.3)


def small_layers() -> list[nn.Module]:
    torch.manual_seed(3)
    return [nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)]


def small(optimizer: OptimizerFactory = adamw) -> HeldStage:
    return HeldStage(small_layers(), (0, 3), F.mse_loss, optimizer, is_last=True)


def data(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3, WIDTH, generator=generator), torch.randn(3, WIDTH, generator=generator)


def train(held: HeldStage, number: int) -> float:
    """One iteration of one micro-batch; its loss."""
    held.gradients.clear()
    loss = held.stage.forward(number, *data(number))
    held.stage.backward(number)
    held.optimizer.step()
    return float(loss[0])


def trained(steps: int, optimizer: OptimizerFactory = adamw) -> HeldStage:
    held = small(optimizer)
    for number in range(steps):
        train(held, number)
    return held


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


class Counting(torch.optim.Optimizer):
    """Plain descent that keeps a Python number, and something empty, as some optimizers do."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["count"], state["rate"], state["nothing"] = 0, 0.5, None
                state["count"] += 1
                parameter.data -= 0.1 * parameter.grad * state["rate"] / state["count"]


OPTIMIZERS: dict[str, OptimizerFactory] = {
    "adamw": adamw,
    "adamw, one by one": lambda ps: torch.optim.AdamW(ps, lr=0.1, weight_decay=0.3, foreach=False, amsgrad=True),
    "adam with decay": lambda ps: torch.optim.Adam(ps, lr=0.1, weight_decay=0.3),
    "nadam": lambda ps: torch.optim.NAdam(ps, lr=0.1),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.3),
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.1, initial_accumulator_value=0.2),
    "rprop": lambda ps: torch.optim.Rprop(ps, lr=0.1),
    "counting": Counting,
}


@settings(max_examples=15)
@given(st.lists(st.booleans(), min_size=1, max_size=4))
def test_any_sequence_of_plans_gives_the_gradients(plans: list[bool]) -> None:
    """Whatever plans a stage served before, split or not, its gradients are autograd's."""
    torch.manual_seed(5)
    layers = gpt_layers(GPT)
    whole = nn.Sequential(*copy.deepcopy(layers))
    held = HeldStage(layers, (0, 3), language_model_loss, adamw, is_last=True)
    inputs, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 5))
    language_model_loss(whole(inputs), target).backward()  # type: ignore[no-untyped-call]
    for is_split in plans:
        held.adapt(is_split)
        held.gradients.clear()
        held.stage.forward(0, inputs, target)
        if is_split:
            held.stage.backward_input(0)
            held.stage.backward_weight(0)
        else:
            held.stage.backward(0)
        for parameter, wanted in zip(held.stage.parameters(), whole.parameters(), strict=True):
            assert parameter.grad is not None and wanted.grad is not None
            torch.testing.assert_close(parameter.grad, wanted.grad)


def test_unsplit_again_is_ordinary() -> None:
    """After a split plan, an unsplit one runs torch's own linear layer, not the one that can put gradients off."""
    held = HeldStage([nn.Linear(WIDTH, WIDTH)], (0, 1), F.mse_loss, adamw, is_split=True)
    layer = held.stage.layers[0]
    split = layer(torch.randn(1, WIDTH)).grad_fn
    held.adapt(is_split=False)
    unsplit = layer(torch.randn(1, WIDTH)).grad_fn
    assert (split.name(), unsplit.name()) == ("_LinearBackward", "AddmmBackward0")


def test_reset_drops_what_is_under_way() -> None:
    """After an iteration interrupted in the middle the same micro-batches run again, with the same gradients."""
    held = HeldStage(small_layers(), (0, 3), F.mse_loss, adamw, is_last=True, is_split=True)

    def iterate() -> torch.Tensor:
        for number in range(3):
            held.stage.forward(number, *data(number))
        for number in range(3):
            held.stage.backward_input(number)
            held.stage.backward_weight(number)
        return held.gradients.buffers[0].clone()

    wanted = iterate()
    held.reset()
    for number in range(3):
        held.stage.forward(number, *data(number))
    held.stage.backward_input(0)
    held.stage.backward_input(1)
    held.stage.backward_weight(1)
    held.reset()
    assert held.stage.held_keys() == frozenset()
    assert torch.equal(iterate(), wanted)


def test_warm_up_leaves_no_trace() -> None:
    """Warming up changes neither parameters nor buffers nor gradients."""
    held = small()
    before = held.checksums()
    held.warm_up(*data(0))
    assert held.checksums() == before
    assert not any(buffer.any() for buffer in held.gradients.buffers)
    assert held.stage.held_keys() == frozenset()


def test_names_count_layers_of_the_model() -> None:
    """The state has each parameter, persistent buffer and optimizer entry by the model's numbers; shared ones twice."""
    layers = [nn.Linear(1, 1), *small_layers()]
    layers[3].weight = layers[1].weight
    layers[2].register_buffer("scratch", torch.zeros(1), persistent=False)
    held = HeldStage(layers, (1, 4), F.mse_loss, adamw, is_last=True)
    parameters = ["1.weight", "1.bias", "2.weight", "2.bias", "3.weight"]
    buffers = ["2.running_mean", "2.running_var", "2.num_batches_tracked"]
    assert list(held.state()) == parameters + buffers
    train(held, 0)
    kept = [f"{name}/{key}" for name in parameters for key in ("exp_avg", "exp_avg_sq", "step")]
    assert list(held.state()) == parameters + buffers + kept


def test_state_refers() -> None:
    """The state's tensors are the stage's own: they follow the training, and take no gradient."""
    held = trained(1)
    state = held.state()
    train(held, 1)
    later = held.state()
    assert all(later[name].data_ptr() == value.data_ptr() for name, value in state.items())
    assert not any(value.requires_grad for value in state.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_priming_changes_nothing(name: str) -> None:
    """A primed optimizer trains as one that was not: losses and the whole state are equal bit for bit."""
    plain, primed = small(OPTIMIZERS[name]), small(OPTIMIZERS[name])
    before = copied(primed.state())
    primed.prime_optimizer()
    assert all(torch.equal(primed.state()[key], value) for key, value in before.items())
    for number in range(4):
        assert train(primed, number) == train(plain, number)
        assert primed.checksums() == plain.checksums()


def test_primed_adamw_is_zero() -> None:
    """Priming AdamW leaves steps and moments at 0, whatever gradients there were and whatever its weight decay."""
    held = small()
    for buffer in held.gradients.buffers:
        buffer.fill_(7.0)
    held.prime_optimizer()
    optimizer = {name: value for name, value in held.state().items() if "/" in name}
    assert len(optimizer) == 3 * len(list(held.stage.parameters()))
    assert not any(value.any() for value in optimizer.values())
    assert held.optimizer.param_groups[0]["weight_decay"] == 0.3


def test_priming_spares_what_has_stepped() -> None:
    """Priming an optimizer that has its state leaves it as it is, also where only some parameters have."""
    held = trained(2)
    before = held.checksums()
    held.prime_optimizer()
    assert held.checksums() == before
    first = next(held.stage.parameters())
    state, gradient = held.optimizer.state.pop(first), first.grad
    others = {name: value.clone() for name, value in held.state().items()}
    held.prime_optimizer()
    assert set(held.optimizer.state[first]) == set(state)
    assert all(torch.equal(held.state()[name], value) for name, value in others.items())
    assert first.grad is gradient and all(one.grad is not None for one in held.stage.parameters())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 3])
def test_a_loaded_stage_goes_on_as_the_first(name: str, steps: int) -> None:
    """A fresh stage, primed and loaded with a peer's state, has the peer's names and trains as it does, bit for bit."""
    peer, fresh = trained(steps, OPTIMIZERS[name]), small(OPTIMIZERS[name])
    fresh.prime_optimizer()
    shapes = [(key, value.shape, value.dtype) for key, value in peer.state().items()]
    assert [(key, value.shape, value.dtype) for key, value in fresh.state().items()] == shapes
    fresh.load(copied(peer.state()))
    for number in range(steps, steps + 3):
        assert fresh.checksums() == peer.checksums()
        assert train(fresh, number) == train(peer, number)


def test_numbers_of_an_optimizer_travel() -> None:
    """A Python number in the optimizer's state is given as a float64 tensor, and set back in its own type."""
    peer, fresh = trained(3, Counting), small(Counting)
    assert peer.state()["0.weight/count"].dtype == torch.float64
    fresh.prime_optimizer()
    fresh.load(peer.state())
    entries = fresh.optimizer.state[next(fresh.stage.parameters())]
    assert (entries["count"], type(entries["count"]), entries["rate"]) == (3, int, 0.5)


def change(name: str, value: torch.Tensor | None) -> Callable[[dict[str, torch.Tensor]], None]:
    def apply(state: dict[str, torch.Tensor]) -> None:
        state.pop(name, None)
        if value is not None:
            state[name] = value

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("1.running_var", None), "the state lacks 1.running_var"),
        (change("9.weight", torch.zeros(1)), "the state has 9.weight, which is not held here"),
        (change("2.weight", torch.zeros(3)), r"2.weight is float32 of shape \[3\] in the state, float32 of shape"),
        (change("0.bias", torch.zeros(WIDTH, dtype=torch.float64)), r"0.bias is float64 of shape \[4\]"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(spoil: Callable[[dict[str, torch.Tensor]], None], message: str) -> None:
    """Loading refuses a missing, unknown or misshapen name, says which, and changes nothing."""
    held = trained(1)
    before = held.checksums()
    state = {name: torch.full_like(value, 7) for name, value in held.state().items()}
    spoil(state)
    with pytest.raises(InvalidInputError, match=message):
        held.load(state)
    assert held.checksums() == before


def test_an_optimizer_that_keeps_more_is_refused() -> None:
    """A state that is neither tensor nor number cannot be named, and says so."""
    held = small()
    held.optimizer.state[next(held.stage.parameters())]["history"] = [1, 2]
    with pytest.raises(InvalidInputError, match="keeps a list"):
        held.state()


@pytest.mark.parametrize("name", OPTIMIZERS)
@given(before=st.integers(0, 2), after=st.integers(1, 3))
def test_restore_undoes_steps(name: str, before: int, after: int) -> None:
    """Steps taken after `keep` are undone bit for bit, the first step too, and training repeats them exactly."""
    held = trained(before, OPTIMIZERS[name])
    checksum = held.checksums()
    held.keep()
    losses = [train(held, number) for number in range(after)]
    stepped = held.checksums()
    held.restore()
    assert held.checksums() == checksum
    assert [train(held, number) for number in range(after)] == losses
    assert held.checksums() == stepped
    held.restore()
    assert held.checksums() == checksum


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sums_that_were_kept_make_the_same_step_again(name: str) -> None:
    """A step that is undone is taken again from the sums that were kept with the state, whatever began meanwhile."""
    held = small(OPTIMIZERS[name])
    held.begin()
    held.stage.forward(0, *data(0))
    held.stage.backward(0)
    held.share_buffers((0, 3), 1, is_lowest=True)
    held.keep(with_sums=True)
    checksum, sums = held.checksums(), [buffer.clone() for buffer in held.gradients.buffers]
    steps = []
    for number in (1, 2):
        held.step(StepTerms(7.0, None, 0))
        steps.append(held.checksums())
        held.begin()
        held.stage.forward(number, *data(number))
        held.stage.backward(number)
        held.restore()
        assert held.checksums() == checksum
        assert all(map(torch.equal, held.gradients.buffers, sums))
    assert steps[0] == steps[1]


def test_keeping_again_takes_no_new_memory() -> None:
    """Every `keep` after the first writes into the storage of the one before; before it there is nothing to restore."""
    held = trained(1)
    with pytest.raises(RuntimeFailedError, match="no state was kept"):
        held.restore()
    held.keep()
    assert held._kept is not None
    places = {name: value.data_ptr() for name, value in held._kept.items()}
    train(held, 1)
    held.keep()
    assert {name: value.data_ptr() for name, value in held._kept.items()} == places


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_checksum_sees_one_bit(dtype: torch.dtype) -> None:
    """Equal states have equal checksums; the sign of a zero, or two values in each other's place, change them."""
    layers = [nn.Linear(2, 1, bias=False, dtype=dtype)]
    held = HeldStage(layers, (0, 1), F.mse_loss, adamw)
    weight = held.state()["0.weight"]
    found = []
    for values in ([0.0, 1.0], [-0.0, 1.0], [1.0, 0.0], [0.0, 1.0]):
        weight.copy_(torch.tensor([values]))
        found.append(held.checksums()[0])
    assert found[0] == found[3] and len(set(found)) == 3


def cut_out(first: int, stop: int) -> HeldStage:
    """A fresh stage of some of the small layers, with its optimizer primed."""
    held = HeldStage(small_layers(), (first, stop), F.mse_loss, adamw, is_last=stop == 3)
    held.prime_optimizer()
    return held


@pytest.mark.parametrize("cut", [1, 2])
def test_a_stage_can_be_put_together_from_others(cut: int) -> None:
    """A stage loaded layer by layer from stages cut elsewhere goes on with what they held, bit for bit."""
    whole, parts, fresh = trained(2), [cut_out(0, cut), cut_out(cut, 3)], cut_out(0, 3)
    for part in parts:
        assert list(part.state()) == list(whole.state_of(part.layers_range))
        part.load(copied(whole.state_of(part.layers_range)))
        fresh.load_layers(part.layers_range, part.state())
    assert fresh.checksums() == whole.checksums()
    assert parts[0].checksums() | parts[1].checksums() == fresh.checksums() == whole.checksums()
    for number in range(2, 4):
        assert train(fresh, number) == train(whole, number)
    assert fresh.checksums() == whole.checksums()


def test_loading_layers_leaves_the_others() -> None:
    """Of a partial load only the named layers change; a name of another layer is refused, and nothing changes."""
    held, other = trained(1), trained(3)
    before = held.checksums()
    with pytest.raises(InvalidInputError, match=r"the state has 0.weight, which is not held here"):
        held.load_layers((1, 3), other.state())
    with pytest.raises(InvalidInputError, match=r"the state lacks 2.weight"):
        held.load_layers((1, 3), other.state_of((1, 2)))
    assert held.checksums() == before
    held.load_layers((1, 2), other.state_of((1, 2)))
    assert held.checksums() == {**before, 1: other.checksums()[1]}
    assert held.state_of((3, 9)) == {}


def test_a_shared_parameter_is_state_of_each_of_its_layers() -> None:
    """Tied weights are named by every layer that has them, wherever the stage is cut."""
    tied = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    tied[1].weight = tied[0].weight
    held = HeldStage([nn.ReLU(), *tied], (1, 3), F.mse_loss, adamw)
    assert list(held.state()) == ["1.weight", "2.weight"]
    assert list(held.state_of((1, 2))) == ["1.weight"]
    assert list(held.state_of((2, 3))) == ["2.weight"]
    assert list(held.checksums()) == [1, 2]


@given(st.sampled_from([0.0, 3e38, float("nan"), float("inf"), -float("inf")]), st.integers(0, 99), st.booleans())
def test_finite(value: float, place: int, is_double: bool) -> None:
    """One value that is not finite anywhere among the gradients, in any type, is noticed; large ones are not one."""
    layers = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, dtype=torch.float64)]
    held = HeldStage(layers, (0, 2), F.mse_loss, adamw)
    buffer = held.gradients.buffers[is_double]
    if value == 3e38:
        buffer.fill_(value)
    buffer[place % len(buffer)] = value
    assert math.isfinite(sum(held.squared_norms(range(2)).values())) == (abs(value) < float("inf"))


def counted(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over targets that are not ignored, and how many these are."""
    return F.cross_entropy(output, target, reduction="sum"), (target != -100).sum()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any),
    st.sampled_from([None, 1e-3, 0.3, 1e3]),
    st.booleans(),
)
def test_a_step_is_that_of_one_batch_of_unlike_parts(kept: list[int], clip: float | None, is_split: bool) -> None:
    """Micro-batches of unlike counts give the mean over all they count, clipped as torch does, in three steps."""
    torch.manual_seed(6)
    layers = [nn.Linear(WIDTH, WIDTH).double(), nn.Linear(WIDTH, 3).double()]
    whole = nn.Sequential(*copy.deepcopy(layers))
    held = HeldStage(layers, (0, 2), counted, adamw, is_last=True, is_split=is_split, clip_norm=clip)
    optimizer = adamw(whole.parameters())
    for taken in range(3):
        inputs, targets = torch.randn(len(kept), 5, WIDTH).double(), torch.randint(3, (len(kept), 5))
        for number, keep in enumerate(kept):
            targets[number, keep:] = -100
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(whole(inputs).flatten(0, 1), targets.flatten()))
        norm = nn.utils.clip_grad_norm_(whole.parameters(), clip or math.inf).item()
        optimizer.step()
        held.gradients.clear()
        for number, _ in enumerate(kept):
            held.gradients.add_loss(held.stage.forward(number, inputs[number], targets[number]))
            if is_split:
                held.stage.backward_input(number)
                held.stage.backward_weight(number)
            else:
                held.stage.backward(number)
        count = held.gradients.loss()[1]
        assert count == sum(kept)
        squares = held.squared_norms(range(2))
        assert math.sqrt(sum(squares.values())) / count == pytest.approx(norm, rel=1e-12)
        held.step(StepTerms(count, norm, taken))
        for ours, theirs in zip(held.stage.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("count", [0.0, math.nan, -1.0, math.inf])
def test_a_loss_that_counts_nothing_is_refused(count: float) -> None:
    """There is no mean over nothing."""
    with pytest.raises(InvalidInputError, match=r"counts .* in all micro-batches of iteration 4"):
        small().step(StepTerms(count, None, 4))
