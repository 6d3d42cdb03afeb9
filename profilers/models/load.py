"""From a model's name to its layers, its loss, and examples to feed it with."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ...schemas.errors import InfeasibleError, InvalidInputError
from .factory import UserModel, describe, load_user_model
from .gpt import GptConfig, gpt_layers, gpt_parameters, language_model_loss
from .presets import PRESETS, Preset

DEFAULT_MICROBATCH_SIZE = 4
DEFAULT_SEQUENCE_LENGTH = 128
TRAINING_BYTES_PER_PARAMETER = 16  # float32: the parameter, its gradient and AdamW's two moments

Example = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model ready to be cut into stages.

    Args:
        name: as it was asked for.
        layers: in order; each maps one tensor to one tensor.
        loss: maps (the last layer's output, targets) to a scalar, a mean over the micro-batch.
        microbatch_size: samples in one micro-batch, the first dimension of inputs and targets.
        sequence_length: tokens of one sample; None for models that read no sequences.
        vocabulary: number of distinct tokens; None for models that read none.
        example: makes one random micro-batch (inputs, targets) of these sizes, the same for the same seed.
    """

    name: str
    layers: list[nn.Module]
    loss: Loss
    microbatch_size: int
    sequence_length: int | None
    vocabulary: int | None
    example: Example


def load_model(
    name: str, microbatch_size: int | None = None, sequence_length: int | None = None, seed: int = 0
) -> Model:
    """Make a model with parameters that follow from the seed; torch's global generator stays as it was.

    Args:
        name: a preset, or `file.py:factory`: `factory()` returns the layers; the file may also define
            `example(microbatch_size, sequence_length)` and `loss(output, target)`.
        microbatch_size: samples in a micro-batch; None for the model's default.
        sequence_length: tokens in a sample; None for the model's default.
        seed: of the initial parameters.

    Returns:
        The model, on the CPU.

    Raises:
        InvalidInputError: the name or a size means nothing, or the user's file does not work.
        InfeasibleError: a preset does not fit into this machine's free memory; nothing has been allocated.
    """
    for value, option in ((microbatch_size, "--microbatch-size"), (sequence_length, "--sequence-length")):
        if value is not None and value < 1:
            raise InvalidInputError(f"{value} is no size", where=option, fix="give a whole number of at least 1")
    if name in PRESETS:
        return _load_preset(name, PRESETS[name], microbatch_size, sequence_length, seed)
    if ":" in name or name.endswith(".py"):
        return _load_file(name, microbatch_size or DEFAULT_MICROBATCH_SIZE, sequence_length, seed)
    near = get_close_matches(name, PRESETS, n=1)
    known = f"{', '.join(PRESETS)}, or file.py:factory"
    raise InvalidInputError(
        f"there is no model {name!r}", fix=f"did you mean {near[0]}?" if near else f"the models are {known}"
    )


def _load_preset(
    name: str, preset: Preset, microbatch_size: int | None, sequence_length: int | None, seed: int
) -> Model:
    microbatch_size = microbatch_size or preset.microbatch_size
    sequence_length = sequence_length or preset.sequence_length
    if sequence_length > preset.config.positions:
        raise InvalidInputError(
            f"{name} has {preset.config.positions} positions, fewer than a sequence of {sequence_length}",
            where="--sequence-length",
            fix=f"give at most {preset.config.positions}",
        )
    _check_memory(name, preset.config, microbatch_size * sequence_length)
    with _seeded(seed):
        layers = gpt_layers(preset.config)
    vocabulary = preset.config.vocabulary
    example = _token_example(microbatch_size, sequence_length, vocabulary)
    return Model(name, layers, language_model_loss, microbatch_size, sequence_length, vocabulary, example)


def _load_file(name: str, microbatch_size: int, sequence_length: int | None, seed: int) -> Model:
    with _seeded(seed):
        user = load_user_model(name)
    vocabulary = _vocabulary(user.layers)
    if vocabulary is not None:
        sequence_length = sequence_length or DEFAULT_SEQUENCE_LENGTH
    example = _file_example(name, user, microbatch_size, sequence_length)
    model = Model(name, user.layers, user.loss or _default_loss, microbatch_size, sequence_length, vocabulary, example)
    _try_out(model)
    return model


def _file_example(name: str, user: UserModel, microbatch_size: int, sequence_length: int | None) -> Example:
    first = _first_with_parameters(user.layers)
    if user.example is not None:
        return _user_example(user.example, microbatch_size, sequence_length)
    if isinstance(first, nn.Embedding):
        return _token_example(microbatch_size, sequence_length or DEFAULT_SEQUENCE_LENGTH, first.num_embeddings)
    if isinstance(first, nn.Linear):
        sequence = () if sequence_length is None else (sequence_length,)
        return _vector_example(user.layers, (microbatch_size, *sequence, first.in_features))
    found = "no layer has parameters" if first is None else f"the first is a {type(first).__name__}"
    raise InvalidInputError(
        f"what the model reads cannot be told from its layers: {found}",
        where=name,
        fix="define example(microbatch_size, sequence_length) in the file, returning (inputs, targets)",
    )


def _token_example(microbatch_size: int, sequence_length: int, vocabulary: int) -> Example:
    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(vocabulary, (microbatch_size, sequence_length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return example


def _vector_example(layers: list[nn.Module], shape: tuple[int, ...]) -> Example:
    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        with _seeded(seed), torch.no_grad():
            inputs = torch.randn(shape)
            return inputs, torch.randn_like(_apply(layers, inputs))

    return example


def _user_example(function: Callable[..., Any], microbatch_size: int, sequence_length: int | None) -> Example:
    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        with _seeded(seed):
            inputs, targets = function(microbatch_size, sequence_length)
            return inputs, targets

    return example


def _default_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits against whole numbers, mean squared error against others."""
    return F.mse_loss(output, target) if target.is_floating_point() else language_model_loss(output, target)


def _try_out(model: Model) -> None:
    try:
        with torch.no_grad(), _seeded(0):
            inputs, targets = model.example(0)
            loss = model.loss(_apply(model.layers, inputs), targets)
            if loss.numel() != 1:
                raise ValueError(f"the loss has the shape {tuple(loss.shape)}, and must be a scalar")
    except Exception as error:
        raise InvalidInputError(
            f"the model does not work on an example: {describe(error)}",
            where=model.name,
            fix="define example(microbatch_size, sequence_length) and loss(output, target) in the file to suit it",
        ) from error


def _apply(layers: list[nn.Module], value: torch.Tensor) -> torch.Tensor:
    for layer in layers:
        value = layer(value)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{type(layer).__name__} returns a {type(value).__name__}, and must return one tensor")
    return value


def _vocabulary(layers: list[nn.Module]) -> int | None:
    first = _first_with_parameters(layers)
    return first.num_embeddings if isinstance(first, nn.Embedding) else None


def _first_with_parameters(layers: list[nn.Module]) -> nn.Module | None:
    modules = (module for layer in layers for module in layer.modules())
    return next((module for module in modules if any(True for _ in module.parameters(recurse=False))), None)


def _check_memory(name: str, config: GptConfig, tokens: int) -> None:
    needed, free = _needed_bytes(config, tokens), _free_bytes()
    if needed <= free:
        return
    fitting = [other for other, preset in PRESETS.items() if _needed_bytes(preset.config, tokens) <= free]
    raise InfeasibleError(
        f"{name} needs {needed / 1e9:.1f} GB of memory for float32 parameters, gradients, AdamW's moments and one "
        f"layer's activations; {free / 1e9:.1f} GB are free",
        fix=f"take a smaller preset ({', '.join(fitting)})" if fitting else "take a machine with more memory",
    )


def _needed_bytes(config: GptConfig, tokens: int) -> int:
    # Twice a block's activations (16 widths per token), or logits with their softmax and gradient, in float32.
    activations = 4 * tokens * max(32 * config.width, 3 * config.vocabulary)
    return TRAINING_BYTES_PER_PARAMETER * gpt_parameters(config) + activations


def _free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
