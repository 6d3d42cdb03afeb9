"""Modules cut by name: what the layers compute, what they hold, and what cannot be cut."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from rtk.profilers.models.cut import cut_module
from rtk.profilers.models.gpt import language_model_loss
from rtk.profilers.models.model import apply, tied
from rtk.profilers.models.skeleton import title_of
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.errors import InvalidInputError

WIDTH, WORDS, TOKENS = 8, 11, 5


class Layer(nn.Module):
    """A layer that wants positions and a mask, and gives a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *, places: tuple[torch.Tensor, int]) -> tuple[Any, None]:
        """Mix tokens under the mask."""
        mixed = mask @ self.mix(x) + places[0]
        return x + self.out(torch.relu(mixed)), None


class Body(nn.Module):
    """Positions of its own, layers, and a norm."""

    scale: torch.Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.full((), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Everything, with a slice in between as transformers has it."""
        x = (x + self.places) * self.scale
        mask = torch.ones(TOKENS, TOKENS).tril()
        for layer in self.layers[:]:
            x, _ = layer(x, mask, places=(torch.arange(TOKENS)[:, None] / TOKENS, 1))
        out: torch.Tensor = self.norm(x)[:, slice(0, None)]
        return out


class Whole(nn.Module):
    """A language model: an embedding, a body, a head that may share the embedding's matrix."""

    def __init__(self, layers: int = 3, is_tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.body = Body(layers)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, str]:
        """Logits, soft-capped."""
        return torch.tanh(self.head(self.body(self.words(tokens)))) * 3, "beside"


class Straight(nn.Module):
    """One module after another; subclasses do something wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.steps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop = nn.Dropout()
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> Any:
        """Straight through."""
        x = self.words(tokens)
        for step in self.steps:
            x = step(x)
        return self.out(x)


class Skipping(Straight):
    """The last step's output is not all that goes on."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """With a connection round the steps."""
        return super().forward(tokens) + self.out(self.words(tokens))


class Computing(Straight):
    """Something is computed between steps."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """With a factor between the steps."""
        x = self.words(tokens)
        for step in self.steps:
            x = step(x) * 2
        return self.out(x)


class Dropping(Straight):
    """A module that is no layer stands between steps."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """With dropout between the steps, which shows in training only."""
        x = self.words(tokens)
        for step in self.steps:
            x = self.drop(step(x))
        return self.out(x)


class Twice(Straight):
    """A step is taken twice."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """The first step at the end again."""
        return self.out(self.steps[0](self.steps[2](self.steps[1](self.steps[0](self.words(tokens))))))


class Early(Straight):
    """A step is left out."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """Two steps."""
        return self.out(self.steps[1](self.steps[0](self.words(tokens))))


class Choosing(Straight):
    """The data say what is called."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """The steps in an order of the data."""
        x = self.words(tokens)
        for place in tokens.flatten()[:3].argsort():
            x = self.steps[int(place)](x)
        return self.out(x)


class Failing(Straight):
    """A model that does not work."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """It raises."""
        raise ValueError("not today")


class Second(nn.Module):
    """A step that takes more than one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """A step, and something else."""
        out: torch.Tensor = self.step(x)
        return out if other is None else out + other


class Passing(Straight):
    """Each step takes the embedding as well."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Second() for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> Any:
        """With the embedding beside the stream."""
        x = first = self.words(tokens)
        for step in self.steps:
            x = step(x, other=first * 2 if step is self.steps[0] else first)
        return self.out(x)


class Learning(Passing):
    """Each step takes a parameter that is not its own."""

    def forward(self, tokens: torch.Tensor) -> Any:
        """With a learned bias beside the stream."""
        x = self.words(tokens)
        for step in self.steps:
            x = step(x, self.bias * 2)
        return self.out(x)


class Shared(Straight):
    """The embedding's matrix is also the head's, without a module for it, and its norm comes first and last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor) -> Any:
        """The matrix, and the norm, at both ends."""
        x = self.norm(self.words(tokens))
        for step in self.steps:
            x = step(x)
        return self.norm(x) @ self.words.weight.t()


def tokens_of(seed: int) -> torch.Tensor:
    return torch.randint(WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(seed))


def cut(module: nn.Module, pattern: str) -> tuple[list[nn.Module], range]:
    return cut_module(module, pattern, tokens_of, "mine.py:factory")


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.grad for name, one in module.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("is_tied", [False, True])
def test_layers_train_as_the_module(is_tied: bool) -> None:
    """F, I and W of the layers, each a stage of its own, give the module's loss and gradients to the last bit."""
    torch.manual_seed(0)
    whole = Whole(is_tied=is_tied)
    twin = copy.deepcopy(whole)
    loss = language_model_loss(twin(tokens_of(7))[0], tokens_of(8))
    torch.autograd.backward(loss)
    layers, _ = cut(whole, "body.layers.*")
    stages = [TorchStage([layer]) for layer in layers[:-1]] + [TorchStage([layers[-1]], language_model_loss)]
    value, gradient = tokens_of(7), None
    for stage in stages:
        value = stage.forward(0, value, tokens_of(8) if stage.loss else None)
    for stage in reversed(stages):
        gradient = stage.backward_input(0, gradient)
        stage.backward_weight(0)
    assert value.tolist() == [loss.item(), 1.0]
    expected = gradients(twin)
    assert gradients(whole).keys() == expected.keys()
    for name, found in gradients(whole).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-5, atol=1e-7)


def test_layers_hold_their_own_parameters() -> None:
    """Each parameter that is used is in one layer, what is not used in none, and titles say what is where."""
    whole = Whole()
    layers, blocks = cut(whole, "body.layers.*")
    held = [{id(one) for one in layer.parameters()} for layer in layers]
    used = {id(one) for name, one in whole.named_parameters() if "unused" not in name}
    assert set().union(*held) == used
    assert sum(map(len, held)) == len(used)
    assert id(whole.body.places) in held[0]
    assert blocks == range(1, 4)
    assert [title_of(layer) for layer in layers] == ["Embedding", "Layer", "Layer", "Layer", "LayerNorm+Linear"]
    assert all("body.scale" not in name for layer in layers[1:-1] for name in layer.state_dict())


def test_ties_are_found() -> None:
    """A head with the embedding's matrix is tied to the first layer by that matrix's bytes; others are not."""
    layers, _ = cut(Whole(is_tied=True), "body.layers.*")
    assert tied(layers) == {4: (0, 4 * WORDS * WIDTH)}
    assert tied(cut(Whole(), "body.layers.*")[0]) == {}
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    both = nn.Sequential(one, other)
    assert tied([one, other, nn.ReLU(), both, one]) == {3: (0, 2 * 4 * 6), 4: (0, 4 * 6)}


def test_matrix_and_module_at_both_ends() -> None:
    """What is used before and after the layers is in both ends, whether called or only looked up, and tied."""
    torch.manual_seed(0)
    whole = Shared()
    expected = whole.eval()(tokens_of(5))
    layers, _ = cut(whole, "steps.*")
    assert torch.equal(apply(layers, tokens_of(5)), expected)
    assert tied(layers) == {4: (0, 4 * (WORDS * WIDTH + 2 * WIDTH))}


def test_what_is_frozen_stays() -> None:
    """Parameters that take no gradient are where they are needed, as buffers are."""
    whole = Whole().requires_grad_(False)
    whole.body.layers.requires_grad_(True)
    expected = whole(tokens_of(5))[0]
    assert torch.equal(apply(cut(whole, "body.layers.*")[0], tokens_of(5)), expected)


def test_plain_ends() -> None:
    """Where modules follow one another after the layers, they keep their names, and nothing is around them."""
    torch.manual_seed(0)
    whole = Straight()
    expected = whole(tokens_of(5))
    layers, _ = cut(whole, "steps.[01]")
    assert torch.equal(apply(layers, tokens_of(5)), expected)
    assert [name for name, _ in layers[-1].named_children()] == ["2", "out"]
    assert title_of(layers[-1]) == "Linear"


def test_no_ends() -> None:
    """A module that only calls its layers gives these and no more."""
    whole = nn.Sequential(nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS))
    layers, blocks = cut(whole, "*")
    assert [title_of(layer) for layer in layers] == ["Embedding", "Linear", "Linear"]
    assert blocks == range(3)


def test_layers_can_be_copied() -> None:
    """A deep copy gives the same without the first, and the layers stay in training as the module was."""
    whole = Whole()
    whole.body.norm.eval()
    layers, _ = cut(whole, "body.layers.*")
    copies = copy.deepcopy(layers)
    assert torch.equal(apply(copies, tokens_of(3)), apply(layers, tokens_of(3)))
    assert not {id(p) for one in copies for p in one.parameters()} & {id(p) for p in whole.parameters()}
    assert all(layer.training for layer in layers)
    assert not whole.body.norm.training


def test_types_and_devices_are_followed() -> None:
    """Layers moved to another device take their constants along; on the meta device shapes stay."""
    layers = [layer.to("meta") for layer in cut(Whole(), "body.layers.*")[0]]
    shapes = [value.shape for value in _values(layers, torch.empty(2, TOKENS, dtype=torch.long, device="meta"))]
    assert shapes[-1] == (2, TOKENS, WORDS)
    assert all(one == (2, TOKENS, WIDTH) for one in shapes[:-1])


def _values(layers: list[nn.Module], value: torch.Tensor) -> list[torch.Tensor]:
    found = [value]
    for layer in layers:
        found.append(layer(found[-1]))
    assert all(one.device == other.device for one, other in pairwise(found))
    return found[1:]


@pytest.mark.parametrize(
    ("module", "pattern", "message"),
    [
        (Whole(), "layers.*", r"no module of Whole is called layers\.\*\n.*\n.*body\.layers\.\* \(3\)"),
        (nn.Linear(2, 2), "layers.*", "name some of its modules"),
        (Skipping(), "steps.*", r"what comes after steps\.2 takes more than its output"),
        (Computing(), "steps.*", r"steps\.1 does not take what steps\.0 gave"),
        (Dropping(), "steps.*", r"drop is called between steps\.0 and steps\.2"),
        (Twice(), "steps.*", r"steps\.0 is called 2 times"),
        (Early(), "steps.*", r"steps\.2 is not called"),
        (Choosing(), "steps.*", "what it calls depends on the data"),
        (Passing(), "steps.*", r"steps\.0 takes other, which depends on the data, as well"),
        (Passing(), "steps.[12]", r"steps\.1 takes other, which is what words gave, as well"),
        (Learning(), "steps.*", r"steps\.0 takes other, which is computed from parameters outside of it"),
        (Failing(), "steps.*", "does not work on an example: ValueError: not today"),
        (Straight(), "bias", "no module of Straight"),
    ],
)
def test_what_cannot_be_cut(module: nn.Module, pattern: str, message: str) -> None:
    """A module that is no chain there is refused, and the error says where it is none."""
    with pytest.raises(InvalidInputError, match=message) as raised:
        cut(module, pattern)
    assert "mine.py:factory" in str(raised.value)
