"""What people's models do trains as one process of plain torch trains it, however it is cut, or is refused in words."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from rtk.runners.torch.checkpoint import write_part
from rtk.runners.torch.held_stage import HeldStage
from rtk.runners.torch.optimizers import decay_groups
from rtk.runners.torch.stage import TorchStage, add_loss
from rtk.schemas.errors import InvalidInputError

from .pipes import adamw, compute, cut, train

WIDTH = 6


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Transposed(nn.Linear):
    """Gives what is not in one piece."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().forward(x).transpose(0, 1)
        return found


class LowRank(nn.Module):
    """LoRA: a frozen matrix and two small ones."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base(x) + self.up(self.down(x))
        return found


class Balanced(nn.Module):
    """Adds to the loss, as a router does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        add_loss(self.extra(x))
        return x + torch.tanh(y)

    def extra(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = 0.3 * self.linear(x).square().sum()
        return found


def trainable_only(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return adamw([one for one in parameters if one.requires_grad])


def in_groups(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(decay_groups(parameters, 0.5), lr=0.05)


def frozen(*layers: nn.Module) -> list[nn.Module]:
    return [layer.requires_grad_(False) for layer in layers]


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def counted(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum"), (target != -100).sum()


@dataclass(frozen=True)
class Snag:
    """Layers, where to cut them, and how to optimize them."""

    layers: Callable[[], list[nn.Module]]
    cuts: tuple[int, ...] = (1, 2)
    optimizer: Any = field(default=adamw)


SNAGS = {
    "output not in one piece": Snag(lambda: [Transposed(WIDTH, WIDTH), nn.Tanh(), Transposed(WIDTH, WIDTH)]),
    "no parameters": Snag(lambda: [linear(), nn.Tanh(), linear()]),
    "no parameters at the end": Snag(lambda: [linear(), nn.Tanh(), linear(), nn.Identity()], (2, 3)),
    "no parameters at the start": Snag(lambda: [nn.Tanh(), linear()], (1,)),
    "in place": Snag(lambda: [nn.ReLU(inplace=True), linear(), nn.ReLU(inplace=True), linear()], (1, 2, 3)),
    "frozen first": Snag(lambda: [*frozen(linear()), linear(), linear()]),
    "frozen middle": Snag(lambda: [linear(), *frozen(linear()), linear()]),
    "frozen last": Snag(lambda: [linear(), *frozen(linear(), linear())]),
    "frozen part": Snag(lambda: [nn.Sequential(*frozen(linear()), linear()), linear()], (1,), trainable_only),
    "low rank": Snag(lambda: [LowRank(), nn.Tanh(), LowRank()], (1, 2), trainable_only),
    "groups": Snag(lambda: [linear(), nn.LayerNorm(WIDTH), linear()], (1, 2), in_groups),
    "added losses": Snag(lambda: [Balanced(), Balanced(), linear(), Balanced()], (1, 3)),
    "checkpoint": Snag(lambda: [checkpoint_wrapper(Balanced()), nn.Tanh(), checkpoint_wrapper(linear())]),
    "SGD": Snag(
        lambda: [linear(), linear()], (1,), lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True)
    ),
    "Muon": Snag(
        lambda: [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)], (1,), lambda ps: torch.optim.Muon(ps, lr=0.1)
    ),
}


def batch(number: int, kept: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of 5 x 5 rows (as many either way), of which some targets are ignored."""
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(len(kept), 5, 5, WIDTH, generator=generator, dtype=torch.float64)
    targets = torch.randint(WIDTH, (len(kept), 5, 5), generator=generator)
    for one, keep in zip(targets, kept, strict=True):
        one.view(-1)[keep:] = -100
    return list(zip(inputs, targets, strict=True))


def extras(module: nn.Module) -> list[Balanced]:
    return [one for one in module.modules() if isinstance(one, Balanced)]


def train_plainly(
    whole: nn.Sequential, optimizer: torch.optim.Optimizer, data: list[tuple[torch.Tensor, torch.Tensor]]
) -> float:
    """One step of plain torch on all micro-batches at once; the mean loss."""
    total, count, seen = torch.zeros((), dtype=torch.float64), 0, list[torch.Tensor]()
    hooks = [one.register_forward_pre_hook(lambda m, given: seen.append(m.extra(given[0]))) for one in extras(whole)]
    for inputs, target in data:
        loss, counts = counted(whole(inputs.clone()), target)
        total, count = total + loss, count + int(counts)
    total = (total + sum(seen)) / count
    optimizer.zero_grad()
    torch.autograd.backward(total)
    optimizer.step()
    for hook in hooks:  # not before a checkpoint's recomputation
        hook.remove()
    return total.item()


@pytest.mark.parametrize("name", SNAGS)
@settings(max_examples=2, deadline=None)
@given(st.lists(st.integers(0, 25), min_size=2, max_size=3).filter(any), st.booleans(), st.booleans())
def test_stages_train_as_plain_torch(name: str, kept: list[int], is_split: bool, is_cut: bool) -> None:
    """Three iterations in stages, or in one, give the losses and parameters of plain torch, to rounding."""
    torch.manual_seed(7)
    snag = SNAGS[name]
    layers = [layer.double() for layer in snag.layers()]
    whole = nn.Sequential(*copy.deepcopy(layers))
    stages = cut(layers, snag.cuts if is_cut else (), counted, optimizer=snag.optimizer)
    optimizer = snag.optimizer([one for one in whole.parameters() if one.requires_grad])
    for number in range(3):
        data = batch(number, kept)
        before = [inputs.clone() for inputs, _ in data]
        assert train(stages, data, number, is_split) == pytest.approx(
            train_plainly(whole, optimizer, data), rel=1e-11, abs=1e-11
        )
        assert all(torch.equal(inputs, value) for (inputs, _), value in zip(data, before, strict=True))
    ours = [one for stage in stages for one in stage.stage.parameters()]
    for one, other in zip(ours, whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


def test_a_stage_of_nothing_has_a_state_of_nothing(tmp_path: Any) -> None:
    """A stage without parameters can be kept, primed, loaded, compared and saved like any other."""
    (held,) = cut([nn.Tanh()], (), lambda output, target: F.mse_loss(output, target))
    train([held], [(torch.randn(2, 2), torch.randn(2, 2))], 0)
    held.prime_optimizer()
    held.keep()
    held.restore()
    assert held.state() == {} and list(held.checksums()) == [0] and held.learning_rate is None
    held.load({})
    file = write_part(tmp_path, 1, (0, 1), held.state())
    assert file.size_bytes > 0


def test_what_comes_between_stages_lies_in_one_piece() -> None:
    """Outputs and gradients can be sent as they are."""
    stage = TorchStage([Transposed(WIDTH, WIDTH)])
    output = stage.forward(0, torch.randn(3, 4, WIDTH))
    assert output.is_contiguous() and output.shape == (4, 3, WIDTH)
    gradient = stage.backward(0, torch.randn(3, 4, WIDTH).transpose(0, 1))
    assert isinstance(gradient, torch.Tensor) and gradient.is_contiguous()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_between_iterations_changes_nothing(set_to_none: bool) -> None:
    """A user's zero_grad() takes gradients out of the sums; the next iteration brings them back."""
    stages, others = (cut([linear(), linear()], (1,), counted_mean) for _ in range(2))
    for one, other in zip(others, stages, strict=True):
        one.load(other.state())
    for number in range(3):
        data = [(torch.randn(4, WIDTH), torch.randn(4, WIDTH)) for _ in range(2)]
        assert train(stages, data, number) == train(others, data, number)
        for stage in stages:
            stage.optimizer.zero_grad(set_to_none)
            nn.Module.zero_grad(stage.stage.layers, set_to_none)
    assert [one.checksums() for one in stages] == [one.checksums() for one in others]


def counted_mean(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(output, target)


def test_zero_grad_within_an_iteration_is_refused() -> None:
    """Gradients that are in no sum are never silently left out."""
    stages = cut([linear()], (), counted_mean)
    compute(stages, [(torch.randn(4, WIDTH), torch.randn(4, WIDTH))])
    next(stages[0].stage.parameters()).grad = None
    with pytest.raises(InvalidInputError, match=r"shape \[6, 6\], was taken away in the middle of an iteration"):
        stages[0].gradients.require_attached()


def test_a_loss_without_a_gradient_is_refused() -> None:
    """Where it counts something; a micro-batch that counts nothing has gradients of 0, and they are sent."""
    inputs, target = torch.randn(2, WIDTH), torch.randn(2, WIDTH)
    stage = TorchStage([linear()], lambda output, target: counted_mean(output.detach(), target))
    with pytest.raises(InvalidInputError, match="no gradient comes from the loss"):
        stage.forward(0, inputs, target)
    empty = TorchStage([linear()], lambda output, target: (torch.zeros(()), 0))
    assert empty.forward(0, inputs, target).tolist() == [0.0, 0.0]
    gradient = empty.backward(0)
    assert isinstance(gradient, torch.Tensor)
    assert torch.equal(gradient, torch.zeros_like(inputs))


def test_names_are_those_of_plain_layers() -> None:
    """A state of compiled and of checkpointed layers fits one of plain layers, and the other way round."""
    torch.manual_seed(1)
    plain: list[nn.Module] = [nn.Sequential(linear(), nn.BatchNorm1d(WIDTH)), linear()]
    twins = copy.deepcopy(plain)
    wrapped: list[Any] = [torch.compile(twins[0], backend="eager"), checkpoint_wrapper(twins[1])]
    one, other = (HeldStage(layers, (0, 2), counted_mean, adamw, is_last=True) for layers in (plain, wrapped))
    for held in (one, other):
        held.prime_optimizer()
    assert list(one.state()) == list(other.state())
    assert one.checksums() == other.checksums()
    other.load({name: torch.ones_like(value) for name, value in one.state().items()})
    assert all(bool((value == 1).all()) for value in other.state().values())


class Sam(torch.optim.SGD):
    def first_step(self) -> None: ...


class Remembering(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["history"] = [1]
        return super().step(closure)


OTHER = nn.Parameter(torch.zeros(2))

REFUSED: dict[str, tuple[Any, str]] = {
    "LBFGS": (torch.optim.LBFGS, "LBFGS cannot step with gradients alone: TypeError"),
    "SAM": (lambda ps: Sam(ps, lr=0.1), "Sam needs two backward passes a step"),
    "other parameters": (lambda ps: torch.optim.SGD([*ps, OTHER], lr=0.1), "keeps 1 parameters that it was not given"),
    "no optimizer": (lambda ps: "adamw", "it returns a str"),
    "no such setting": (lambda ps: torch.optim.AdamW(list(ps), lr=-1.0), "no optimizer can be made: ValueError"),
    "none of its parameters": (lambda ps: adamw([]), "optimizer got an empty parameter list"),
    "a history": (lambda ps: Remembering(ps, lr=0.1), "the optimizer keeps a list"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_optimizers_that_cannot_be_used_are_refused_at_once(name: str) -> None:
    """When the factory is called, not in the first step, and in words."""
    factory, message = REFUSED[name]
    with pytest.raises(InvalidInputError, match=message):
        cut([linear()], (), counted_mean, optimizer=factory)


class Reentrant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Balanced()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = checkpoint(self.inner, x, use_reentrant=True)
        return found


def test_added_losses_are_checked() -> None:
    """Outside of a stage nothing is added; what is no scalar, or has lost its graph, is refused."""
    add_loss(torch.ones(3))
    with pytest.raises(InvalidInputError, match="re-entrant checkpoint"):
        TorchStage([Reentrant()]).forward(0, torch.randn(2, WIDTH))
    stage = TorchStage([nn.Sequential(linear())])
    stage.layers[0].register_forward_pre_hook(lambda module, given: add_loss(given[0]))
    with pytest.raises(InvalidInputError, match="a tensor of float32 of shape"):
        stage.forward(0, torch.randn(2, WIDTH))


def test_evaluation_leaves_no_trace() -> None:
    """F without gradients, in evaluation mode, gives plain torch's output, and changes nothing."""
    torch.manual_seed(3)
    layers = [linear(), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), linear()]
    (held,) = cut(layers, (), counted_mean)
    train([held], [(torch.randn(4, WIDTH), torch.randn(4, WIDTH))], 0)
    before, whole = held.checksums(), nn.Sequential(*copy.deepcopy(held.stage.layers)).eval()
    inputs, target = torch.randn(4, WIDTH), torch.randn(4, WIDTH)
    held.stage.layers.eval()
    with torch.no_grad():
        found = held.stage.forward(0, inputs, target)
        assert found.tolist() == [counted_mean(whole(inputs), target).item(), 1.0]
    assert held.checksums() == before and held.stage.held_keys() == frozenset()


def test_decay_is_for_matrices() -> None:
    """Of a stage of vectors there is one group, without decay, and none that is empty."""
    groups = decay_groups(nn.Sequential(linear(), nn.LayerNorm(WIDTH)).parameters(), 0.1)
    assert [(len(one["params"]), one["weight_decay"]) for one in groups] == [(1, 0.1), (3, 0.0)]
    assert [one["weight_decay"] for one in decay_groups(nn.LayerNorm(WIDTH).parameters(), 0.1)] == [0.0]
