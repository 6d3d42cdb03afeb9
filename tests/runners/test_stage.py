"""A stage's split backward pass is the plain one, whatever the layers and the order of the micro-batches."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.stage import TorchStage
from rtk.runners.torch.trees import Gradient

WIDTH = 6
GPT = GptConfig(blocks=2, width=8, heads=2, vocabulary=11, positions=5)


class Wrap(nn.Module):
    """Modules and a function of them and the input, as a layer."""

    def __init__(self, function: Callable[..., torch.Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.parts)


class DoubledLinear(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def tied_linears() -> list[nn.Module]:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return [first, nn.Tanh(), second]


def tied_embedding() -> list[nn.Module]:
    embedding, head = nn.Embedding(11, WIDTH), nn.Linear(WIDTH, 11, bias=False)
    head.weight = embedding.weight
    return [embedding, nn.Tanh(), head]


def shared_linear() -> list[nn.Module]:
    linear = nn.Linear(WIDTH, WIDTH)
    return [linear, nn.Tanh(), linear, Wrap(lambda x, f: f(f(x)), linear)]


def frozen(*names: str) -> list[nn.Module]:
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)]
    for name in names:
        nn.Sequential(*layers).get_parameter(name).requires_grad_(False)
    return layers


def old_weight_norm() -> list[nn.Module]:
    with pytest.warns(FutureWarning):
        return [nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))]


def numbers() -> torch.Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64)


def tokens() -> torch.Tensor:
    return torch.randint(11, (2, 5))


def residual(x: torch.Tensor, *parts: nn.Module) -> torch.Tensor:
    for part in parts:
        x = x + F.gelu(part(x))
    return x


def attend(x: torch.Tensor, attention: nn.Module) -> torch.Tensor:
    out: torch.Tensor = attention(x, x, x, need_weights=False)[0]
    return out


ZOO: dict[str, tuple[Callable[[], list[nn.Module]], Callable[[], torch.Tensor]]] = {
    "linear": (lambda: [nn.Linear(WIDTH, 3)], numbers),
    "linear without bias": (lambda: [nn.Linear(WIDTH, 3, bias=False)], numbers),
    "2-D input": (lambda: [nn.Linear(WIDTH, 3)], lambda: numbers()[0]),
    "1-D input": (lambda: [nn.Linear(WIDTH, 3)], lambda: numbers()[0, 0]),
    "transposed input": (lambda: [Wrap(lambda x, f: f(x.transpose(0, 1)), nn.Linear(WIDTH, 3))], numbers),
    "expanded gradient": (lambda: [nn.Linear(WIDTH, 3), Wrap(lambda x: x.sum().expand(4))], numbers),
    "layer norm alone": (lambda: [nn.LayerNorm(WIDTH)], numbers),
    "no parameters": (lambda: [nn.GELU()], numbers),
    "identity": (lambda: [nn.Identity()], numbers),
    "nested": (lambda: [nn.Sequential(nn.Sequential(nn.Linear(WIDTH, 9), nn.ReLU()), nn.Linear(9, WIDTH))], numbers),
    "residual": (lambda: [Wrap(residual, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))], numbers),
    "convolution": (lambda: [nn.Conv1d(5, 4, 3), nn.BatchNorm1d(4), nn.Linear(WIDTH - 2, 2)], numbers),
    "attention": (lambda: [Wrap(attend, nn.MultiheadAttention(WIDTH, 2, batch_first=True))], numbers),
    "encoder": (lambda: [nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0, batch_first=True)], numbers),
    "recurrent": (lambda: [Wrap(lambda x, f: f(x)[0], nn.LSTM(WIDTH, 4, batch_first=True))], numbers),
    "dropout": (lambda: [nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)], numbers),
    "tied linears": (tied_linears, numbers),
    "tied embedding": (tied_embedding, tokens),
    "shared linear": (shared_linear, numbers),
    "frozen weight": (lambda: frozen("0.weight"), numbers),
    "frozen weights": (lambda: frozen("0.weight", "2.weight"), numbers),
    "frozen bias": (lambda: frozen("2.bias"), numbers),
    "all frozen": (lambda: frozen("0.weight", "0.bias", "2.weight", "2.bias"), numbers),
    "checkpointed": (
        lambda: [Wrap(lambda x, f: checkpoint(f, x, use_reentrant=False), nn.Sequential(*tied_linears()))],
        numbers,
    ),
    "weight norm": (lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))], numbers),
    "old weight norm": (old_weight_norm, numbers),
    "subclass of linear": (lambda: [DoubledLinear(WIDTH, WIDTH)], numbers),
    "GPT blocks": (lambda: gpt_layers(GPT)[1:-1], lambda: torch.randn(2, 5, 8, dtype=torch.float64)),
    "GPT": (lambda: gpt_layers(GPT), tokens),
}


def make(name: str) -> tuple[list[nn.Module], list[torch.Tensor]]:
    """Layers of the zoo in float64, and three micro-batches for them."""
    torch.manual_seed(0)
    factory, example = ZOO[name]
    return [layer.double() for layer in factory()], [example() for _ in range(3)]


def plain(
    layers: list[nn.Module], inputs: list[torch.Tensor], gradients: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Input gradients of plain autograd, micro-batch by micro-batch; weight gradients add up in the layers."""
    results = []
    for number, (x, gradient) in enumerate(zip(inputs, gradients, strict=True)):
        x = x.clone().requires_grad_(x.is_floating_point())
        torch.manual_seed(number)
        output = nn.Sequential(*layers)(x)
        if output.requires_grad:
            output.backward(gradient)
        results.append(x.grad)
    return results


def staged(
    layers: list[nn.Module], inputs: list[torch.Tensor], gradients: list[torch.Tensor], order: list[str]
) -> list[torch.Tensor | None]:
    """Input gradients of a stage that executes the operations of an order."""
    stage = TorchStage(layers)
    results: dict[int, torch.Tensor | None] = {}
    for kind, number in ((operation[0], int(operation[1:])) for operation in order):
        if kind == "F":
            torch.manual_seed(number)
            stage.forward(number, inputs[number])
        elif kind == "W":
            stage.backward_weight(number)
        else:
            backward = stage.backward_input if kind == "I" else stage.backward
            found = backward(number, gradients[number])
            assert not isinstance(found, tuple)
            results[number] = found
    assert not stage.held_keys()
    return [results[number] for number in range(len(inputs))]


def assert_same_as_plain(name: str, order: str) -> None:
    """Compare input and weight gradients for an order such as `F0 F1 I0 B1 W0`."""
    (layers, inputs), (expected_layers, _), (other_layers, _) = make(name), make(name), make(name)
    with torch.no_grad():
        gradients = [torch.randn_like(nn.Sequential(*other_layers)(x)) for x in inputs]
    expected = plain(expected_layers, inputs, gradients)
    found = staged(layers, inputs, gradients, order.split())
    for theirs, ours in zip(expected, found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    pairs = zip(
        nn.ModuleList(expected_layers).named_parameters(), nn.ModuleList(layers).named_parameters(), strict=True
    )
    for (their_name, theirs), (our_name, ours) in pairs:
        assert our_name == their_name
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ZOO)
def test_split_is_plain(name: str) -> None:
    """I and W give the gradients of plain autograd, with three micro-batches under way at once."""
    assert_same_as_plain(name, "F0 F1 I0 F2 I1 W0 I2 W2 W1")


@pytest.mark.parametrize("name", ZOO)
def test_coupled_is_plain(name: str) -> None:
    """B gives the gradients of plain autograd."""
    assert_same_as_plain(name, "F0 F1 B0 F2 B1 B2")


@st.composite
def orders(draw: st.DrawFn) -> str:
    """Any interleaving of three micro-batches, each with a split or a coupled backward pass."""
    programs = {number: draw(st.sampled_from(["FIW", "FB"])) for number in range(3)}
    turns = draw(st.permutations([number for number, program in programs.items() for _ in program]))
    rest = {number: iter(program) for number, program in programs.items()}
    return " ".join(f"{next(rest[number])}{number}" for number in turns)


@settings(max_examples=20, deadline=None)
@given(orders(), st.sampled_from(["GPT", "tied linears", "shared linear", "tied embedding", "checkpointed"]))
def test_any_order_is_plain(order: str, name: str) -> None:
    """The gradients do not depend on the order in which micro-batches are executed."""
    assert_same_as_plain(name, order)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_types(dtype: torch.dtype) -> None:
    """In float32 and bfloat16 split gradients equal coupled ones, and have the parameters' type."""
    torch.manual_seed(0)
    layers = [layer.to(dtype) for layer in gpt_layers(GPT)]
    other = copy.deepcopy(layers)
    x, target = tokens(), tokens()
    split, coupled = TorchStage(layers, language_model_loss), TorchStage(other, language_model_loss)
    torch.testing.assert_close(split.forward(0, x, target), coupled.forward(0, x, target), rtol=0, atol=0)
    split.backward_input(0)
    split.backward_weight(0)
    coupled.backward(0)
    for ours, theirs in zip(split.parameters(), coupled.parameters(), strict=True):
        assert ours.grad is not None
        assert ours.grad.dtype == dtype
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-6)


def test_autocast() -> None:
    """Under autocast the gradients are those of plain autograd, though nothing is put off."""
    torch.manual_seed(0)
    layer, x = nn.Linear(WIDTH, WIDTH), torch.randn(2, WIDTH)
    plain_layer = copy.deepcopy(layer)
    stage = TorchStage([layer])
    with torch.autocast("cpu", torch.bfloat16):
        plain_layer(x).float().sum().backward()
        output = stage.forward(0, x)
    stage.backward_input(0, torch.ones_like(output))
    stage.backward_weight(0)
    torch.testing.assert_close(layer.weight.grad, plain_layer.weight.grad)


def test_stages_make_the_model() -> None:
    """A model cut into two stages gives the gradients of the whole, and its loss, which counts 1."""
    torch.manual_seed(0)
    layers = gpt_layers(GPT)
    whole = copy.deepcopy(nn.Sequential(*layers)).double()
    x, target = tokens(), tokens()
    loss = language_model_loss(whole(x), target)
    torch.autograd.backward(loss)
    first = TorchStage([layer.double() for layer in layers[:2]])
    last = TorchStage([layer.double() for layer in layers[2:]], language_model_loss)
    found = last.forward("m", first.forward("m", x), target)
    gradient = last.backward_input("m")
    assert first.backward_input("m", gradient) is None, "token numbers take no gradient"
    first.backward_weight("m")
    last.backward_weight("m")
    assert found.tolist() == [loss.item(), 1.0]
    for theirs, ours in zip(whole.parameters(), (*first.parameters(), *last.parameters()), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("name", ZOO)
@given(is_split=st.booleans(), data=st.data())
@settings(max_examples=3)
def test_parts_of_a_stage_are_the_stage(name: str, is_split: bool, data: st.DataObject) -> None:
    """Its layers run part by part, each with its own F, I and W or B, give what they give together."""
    (layers, inputs), (others, _) = make(name), make(name)
    whole, cut = TorchStage(layers, None, is_split), TorchStage(others, None, is_split)
    place = data.draw(st.integers(0, len(layers)))
    parts = [part for part in (range(place), range(place, len(layers))) if part]
    torch.manual_seed(7)
    output = whole.forward(0, inputs[0])
    torch.manual_seed(7)
    value = inputs[0]
    for part in parts:
        value = cut.forward((0, part), value, part=part)
    assert torch.equal(value, output)
    gradient: Gradient | None = torch.randn_like(output)
    wanted = run_backward(whole, 0, gradient, is_split)
    for part in reversed(parts):
        gradient = run_backward(cut, (0, part), gradient, is_split)
    assert (gradient is None) == (wanted is None)
    assert gradient is None or torch.equal(some(gradient), some(wanted))
    for one, other in zip(nn.ModuleList(layers).parameters(), nn.ModuleList(others).parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        assert one.grad is None or torch.allclose(one.grad, some(other.grad), rtol=1e-13, atol=1e-14)


def run_backward(stage: TorchStage, key: object, gradient: Gradient | None, is_split: bool) -> Gradient | None:
    """B, or I and W; the gradient of the input."""
    found = stage.backward_input(key, gradient) if is_split else stage.backward(key, gradient)
    if is_split:
        stage.backward_weight(key)
    return found


def some(gradient: Gradient | None) -> torch.Tensor:
    """A gradient that is there, of one tensor."""
    assert isinstance(gradient, torch.Tensor)
    return gradient


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("is_split", [False, True])
def test_a_backward_pass_for_the_message_alone_leaves_gradients_as_they_are(name: str, is_split: bool) -> None:
    """It gives the gradient of the input, and nothing is added to parameters, which keep their tensors, or put off."""
    layers, inputs = make(name)
    stage = TorchStage(layers, None, is_split)
    gradients: list[Gradient | None] = []
    for key in (0, 1, 2):
        torch.manual_seed(7)
        output = stage.forward(key, inputs[0])
        gradient = torch.ones_like(output)
        if key == 1:
            before = [(one.grad, None if one.grad is None else one.grad.clone()) for one in stage.parameters()]
            gradients.append(stage.backward_message(key, gradient))
            for one, (tensor, value) in zip(stage.parameters(), before, strict=True):
                assert one.grad is tensor
                assert value is None or torch.equal(some(tensor), value)
        else:
            gradients.append(run_backward(stage, key, gradient, is_split))
    assert not stage.held_keys()
    assert all((one is None) == (gradients[0] is None) for one in gradients)
    assert gradients[0] is None or torch.equal(some(gradients[0]), some(gradients[1]))


def test_a_reentrant_checkpoint_can_be_run_for_the_message_alone() -> None:
    """Though torch refuses to give the gradients of some tensors alone there."""
    layers = [nn.Linear(WIDTH, WIDTH), Wrap(lambda x, f: checkpoint(f, x, use_reentrant=True), nn.Linear(WIDTH, WIDTH))]
    stage = TorchStage([layer.double() for layer in layers])
    output = stage.forward(0, numbers())
    assert stage.backward_message(0, torch.ones_like(output)) is not None
    assert all(one.grad is None for one in stage.parameters())
