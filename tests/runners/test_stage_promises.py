"""What a stage promises beside its gradients: names, places, memory, and errors that say what went wrong."""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig
from rtk.runners.torch.deferral import DeferredLinear
from rtk.runners.torch.stage import TorchStage, loss_and_count
from rtk.schemas.errors import InvalidInputError, RuntimeFailedError

WIDTH = 6
GPT = GptConfig(blocks=2, width=8, heads=2, vocabulary=11, positions=5)

weak_storage: Any = StorageWeakRef  # knows whether a storage has been freed


def tokens() -> torch.Tensor:
    return torch.randint(11, (2, 5))


def test_conversion_keeps_names_and_values() -> None:
    """Turning linear layers changes their type alone: the state dictionary and the parameters stay the same objects."""
    layers = gpt_layers(GPT)
    before = {name: id(value) for name, value in nn.ModuleList(layers).named_parameters()}
    values = copy.deepcopy(nn.ModuleList(layers).state_dict())
    stage = TorchStage(layers)
    assert {name: id(value) for name, value in stage.layers.named_parameters()} == before
    assert all(torch.equal(values[name], value) for name, value in stage.layers.state_dict().items())
    assert sum(type(module) is DeferredLinear for module in stage.layers.modules()) == 4 * GPT.blocks + 1


def test_subclasses_with_a_forward_of_their_own_are_not_converted() -> None:
    """They may compute something else."""

    class Doubled(nn.Linear):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(inputs)

    layer = Doubled(2, 2)
    TorchStage([layer])
    assert type(layer) is Doubled


def test_weights_of_other_subclasses_wait_for_w() -> None:
    """Those that leave `forward` alone, such as torchtitan's linear layers, still are of their class."""

    class Named(nn.Linear):
        name = "one"

    layer = Named(WIDTH, 3)
    stage = TorchStage([layer])
    assert isinstance(layer, Named)
    assert type(layer).__name__ == "Named"
    output = stage.forward(0, torch.randn(2, WIDTH))
    stage.backward_input(0, torch.ones_like(output))
    assert layer.weight.grad is None
    stage.backward_weight(0)
    assert layer.weight.grad is not None


def test_parameters_once() -> None:
    """A parameter that two layers share is listed once."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    assert len(list(TorchStage([first, second]).parameters())) == 3


def test_weights_wait_for_w() -> None:
    """After I a linear layer's weight and bias have no gradient yet, after W they have."""
    stage = TorchStage([nn.Linear(WIDTH, 3)])
    output = stage.forward(0, torch.randn(2, WIDTH))
    stage.backward_input(0, torch.ones_like(output))
    assert all(parameter.grad is None for parameter in stage.parameters())
    stage.backward_weight(0)
    assert all(parameter.grad is not None for parameter in stage.parameters())


def test_existing_gradients_are_written_in_place() -> None:
    """Gradients that are views into one buffer stay so, and are added to by I, W and B."""
    layers = gpt_layers(GPT)
    stage = TorchStage(layers, language_model_loss)
    flat = torch.zeros(sum(parameter.numel() for parameter in stage.parameters()))
    start = 0
    for parameter in stage.parameters():
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    views = [parameter.grad for parameter in stage.parameters()]
    x, target = tokens(), tokens()
    for number in range(2):
        stage.forward(number, x, target)
    stage.backward(0)
    coupled = flat.clone()
    stage.backward_input(1)
    stage.backward_weight(1)
    assert all(parameter.grad is view for parameter, view in zip(stage.parameters(), views, strict=True))
    torch.testing.assert_close(flat, 2 * coupled)


def gradients_of(stage: TorchStage) -> list[torch.Tensor]:
    return [parameter.grad for parameter in stage.parameters() if parameter.grad is not None]


def live_tensors() -> int:
    gc.collect()
    return sum(type(thing) in (torch.Tensor, nn.Parameter) for thing in gc.get_objects())


def test_nothing_leaks() -> None:
    """Iterations leave no tensors behind, and gradients carry no graph."""
    stage = TorchStage(gpt_layers(GPT), language_model_loss)
    x, target = tokens(), tokens()
    counts = []
    for _ in range(4):
        for number in range(2):
            stage.forward(number, x, target)
        for number in range(2):
            stage.backward_input(number)
            stage.backward_weight(number)
        counts.append(live_tensors())
    # Fewer may be: threads of tests before this one may still be letting go of theirs.
    assert max(counts[2:]) <= counts[1]
    assert all(not gradient.requires_grad and gradient.grad_fn is None for gradient in gradients_of(stage))


def remember_storages(layer: nn.Module) -> list[Any]:
    """Weak references to what the layer puts out from now on."""
    seen: list[Any] = []
    layer.register_forward_hook(lambda _module, _inputs, output: seen.append(weak_storage(output.untyped_storage())))
    return seen


def test_memory_ends_with_its_last_user() -> None:
    """The stash keeps a linear layer's input until W; other activations end with I; outputs belong to the caller."""
    first, middle, last = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
    stage = TorchStage([first, middle, last, nn.Softmax(dim=-1)])
    between, stashed = remember_storages(first), remember_storages(middle)
    output = stage.forward(0, torch.randn(2, WIDTH))
    assert between[0].expired(), "tanh saves its output only"
    stage.backward_input(0, torch.ones_like(output))
    assert stage.held_keys() == {0}
    assert not stashed[0].expired()
    stage.backward_weight(0)
    assert stashed[0].expired()


def test_output_is_not_held() -> None:
    """A stage lets go of its output, which the next stage may free."""
    stage = TorchStage([nn.Linear(WIDTH, WIDTH)])
    output = stage.forward(0, torch.randn(2, WIDTH))
    storage = weak_storage(output.untyped_storage())
    del output
    assert storage.expired()


def test_stash_bytes() -> None:
    """The stash is each linear layer's input and output gradient."""
    stage = TorchStage([nn.Linear(WIDTH, 3)])
    output = stage.forward(0, torch.randn(4, WIDTH))
    stage.backward_input(0, torch.ones_like(output))
    assert stage.stash_bytes(0) == 4 * (4 * WIDTH + 4 * 3)


def test_no_linear_layer() -> None:
    """Without a linear layer I is the full backward pass, and W does nothing."""
    stage = TorchStage([nn.LayerNorm(WIDTH)])
    output = stage.forward(0, torch.randn(2, WIDTH))
    stage.backward_input(0, torch.ones_like(output))
    gradients = [gradient.clone() for gradient in gradients_of(stage)]
    assert stage.stash_bytes(0) == 0
    stage.backward_weight(0)
    assert len(gradients) == 2
    assert all(map(torch.equal, gradients_of(stage), gradients))


def test_evaluation() -> None:
    """With gradients switched off a stage computes, and keeps nothing."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5)]
    stage = TorchStage(layers)
    stage.layers.eval()
    x = torch.randn(2, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(stage.forward(0, x), layers[0](x))
    assert not stage.held_keys()


def test_inputs_stay_untouched() -> None:
    """The tensor given to F is not marked, and takes no gradient itself."""
    x = torch.randn(2, WIDTH)
    TorchStage([nn.Linear(WIDTH, WIDTH)]).forward(0, x)
    assert not x.requires_grad


def used(*operations: str) -> Callable[[], object]:
    """Executes operations on micro-batch 0 of a fresh stage."""

    def run() -> None:
        stage = TorchStage([nn.Linear(WIDTH, 1)])
        x, gradient = torch.randn(2, WIDTH), torch.ones(2, 1)
        methods: dict[str, Callable[[], object]] = {
            "F": lambda: stage.forward(0, x),
            "I": lambda: stage.backward_input(0, gradient),
            "W": lambda: stage.backward_weight(0),
            "B": lambda: stage.backward(0, gradient),
        }
        for operation in operations:
            methods[operation]()

    return run


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("FF", "F of micro-batch 0 again"),
        ("FIF", "F of micro-batch 0 again"),
        ("I", "without an F"),
        ("B", "without an F"),
        ("FBB", "without an F"),
        ("FIB", "without an F"),
        ("W", "without an I"),
        ("FW", "without an I"),
        ("FIWW", "without an I"),
        ("FBW", "without an I"),
    ],
)
def test_wrong_orders(order: str, message: str) -> None:
    """An operation without the one it needs, or one that comes twice, is an error that names the micro-batch."""
    with pytest.raises(RuntimeFailedError, match=message):
        used(*order)()


def test_right_orders() -> None:
    """A key may be used again once its backward pass has ended."""
    used(*"FIWFBFIW")()


def missing_gradient() -> None:
    stage = TorchStage([nn.Linear(WIDTH, 1)])
    stage.forward(0, torch.randn(2, WIDTH))
    stage.backward_input(0)


def missing_target() -> None:
    TorchStage([nn.Linear(WIDTH, 1)], F.mse_loss).forward(0, torch.randn(2, WIDTH))


def unexpected_target() -> None:
    TorchStage([nn.Linear(WIDTH, 1)]).forward(0, torch.randn(2, WIDTH), torch.randn(2, 1))


@pytest.mark.parametrize("misuse", [missing_gradient, missing_target, unexpected_target])
def test_missing_arguments(misuse: Callable[[], None]) -> None:
    """Targets and gradients must come exactly where they are needed."""
    with pytest.raises(RuntimeFailedError):
        misuse()


class Wordy(nn.Module):
    """Gives what is no tensor."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x, "a word"


def test_layers_must_return_tensors() -> None:
    """A layer that returns something else among them is named in the error."""
    with pytest.raises(InvalidInputError, match="layer 1 of the stage"):
        TorchStage([nn.Identity(), Wordy()]).forward(0, torch.randn(2, 3, WIDTH))


def test_loss_must_be_a_scalar() -> None:
    """A loss that is not reduced is refused."""
    stage = TorchStage([nn.Linear(WIDTH, 2)], lambda output, target: (output - target) ** 2)
    with pytest.raises(InvalidInputError, match="not a scalar"):
        stage.forward(0, torch.randn(2, WIDTH), torch.randn(2, 2))


@pytest.mark.parametrize("returned", [torch.tensor(3), (torch.ones(2), 1), (torch.ones(()), torch.ones(2)), "no", None])
def test_a_loss_is_a_scalar_or_a_sum_and_a_count(returned: object) -> None:
    """Whatever else a loss returns is refused in words."""
    with pytest.raises(InvalidInputError, match="the loss"):
        loss_and_count(returned)


def test_failed_backward_leaves_the_store_closed() -> None:
    """After an I that failed, a later B computes its weight gradients at once."""
    stage = TorchStage([nn.Linear(WIDTH, 1)])
    for key in range(2):
        stage.forward(key, torch.randn(2, WIDTH))
    with pytest.raises(RuntimeError):
        stage.backward_input(0, torch.ones(3, 3))
    stage.backward(1, torch.ones(2, 1))
    assert all(parameter.grad is not None for parameter in stage.parameters())
