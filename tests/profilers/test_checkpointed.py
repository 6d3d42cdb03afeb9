"""Layers that keep their input only: the same training, and what is held when."""

import copy

import torch
from torch import nn

from rtk.profilers.models.gpt import gpt_layers, language_model_loss
from rtk.profilers.models.load import load_model
from rtk.profilers.models.presets import GptConfig
from rtk.profilers.models.skeleton import title_of, with_checkpoints
from rtk.runners.torch.stage import TorchStage
from rtk.schemas.profile import ModelForm


def dropping() -> list[nn.Module]:
    """A small GPT with dropout in its blocks."""
    torch.manual_seed(0)
    layers = gpt_layers(GptConfig(blocks=2, width=8, heads=2, vocabulary=11, positions=6))
    return [nn.Sequential(layer, nn.Dropout(0.5)) if 0 < n < 3 else layer for n, layer in enumerate(layers)]


def seed_layer(place: int) -> None:
    torch.manual_seed(place)


def trained(layers: list[nn.Module]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The loss, and the gradients, of two micro-batches under way at once, I and W apart."""
    stage = TorchStage(layers, language_model_loss)
    inputs, targets = torch.arange(12).view(2, 6) % 11, torch.arange(12).view(2, 6) * 5 % 11
    losses = [stage.forward(key, inputs, targets, seed_layer) for key in range(2)]
    torch.manual_seed(99)
    for key in range(2):
        stage.backward_input(key)
    for key in range(2):
        stage.backward_weight(key)
    return torch.stack(losses), [one.grad for one in stage.parameters() if one.grad is not None]


def test_gradients_are_the_same() -> None:
    """With dropout, I and W apart, the loss is that without checkpoints, to the last bit, and so are all gradients but
    for rounding."""
    layers = dropping()
    loss, expected = trained(copy.deepcopy(layers))
    again, found = trained(with_checkpoints(layers, range(1, 3)))
    assert torch.equal(loss, again)
    assert len(found) == len(expected) > 0
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, expected, strict=True))


def held_bytes(layer: nn.Module, inputs: torch.Tensor) -> tuple[int, int]:
    """What autograd saves in F beside the parameters, and what is put off from I to W."""
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    stage = TorchStage([layer])
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = stage.forward(0, inputs)
    stage.backward_input(0, torch.ones_like(output))
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    return sum(size for address, size in saved.items() if address not in own), stage.stash_bytes(0)


def test_only_the_input_is_kept() -> None:
    """From F to I a checkpointed block holds its input and no more, and from I to W nothing, unlike any other block."""
    model = load_model("gpt-tiny", 1, 16, 0, ModelForm(checkpointing=True))
    usual = load_model("gpt-tiny", 1, 16, 0)
    inputs = torch.randn(1, 16, 128)
    held, stash = held_bytes(model.layers[1], inputs)
    held_usual, stash_usual = held_bytes(usual.layers[1], inputs)
    assert held <= inputs.nbytes < held_usual
    assert stash == 0 < stash_usual


def test_ends_keep_all() -> None:
    """The embedding and the head are left as they are, and titles stay."""
    layers = load_model("gpt-tiny", 1, 16, 0, ModelForm(checkpointing=True)).layers
    assert [title_of(layer) for layer in layers] == ["Embedding", *["Block"] * 8, "Head"]
    assert [type(layer).__name__ for layer in layers] == ["Embedding", *["Checkpointed"] * 8, "Head"]
