"""From a model's name to its layers, its loss, and examples to feed it with."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map

from ...schemas.errors import InvalidInputError
from ...schemas.profile import AS_USUAL, ModelForm
from ...schemas.text import with_article
from ..analytic.configuration import is_config
from .cut import cut_module, first_tensor
from .gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from .huggingface import load_config
from .model import (
    DEFAULT_MICROBATCH_SIZE,
    DEFAULT_SEQUENCE_LENGTH,
    TORCH_TYPES,
    Example,
    LossInFloat32,
    ModelSize,
    UserModel,
    apply,
    describe,
    failed_in_file,
    free_bytes,
    in_type,
    line_in_file,
    load_user_model,
    require_memory,
    seeded,
    token_example,
)
from .model import Model as Model
from .names import require_model
from .presets import PRESETS, Preset, gpt_parameters
from .skeleton import with_checkpoints


def load_model(
    name: str,
    microbatch_size: int | None = None,
    sequence_length: int | None = None,
    seed: int = 0,
    form: ModelForm = AS_USUAL,
    *,
    weights: str | None = None,
    random_weights: bool = False,
    filled: bool = True,
) -> Model:
    """Make a model with parameters that follow from the seed; torch's global generator stays as it was.

    Args:
        name: a preset; `file.py:factory`, whose `factory()` returns the layers, or a module that `form.cut` cuts (the
            file may also define `example(microbatch_size, sequence_length)`, `loss(output, target)` and
            `tensor_parallel`); or a Hugging Face `config.json`, or the folder it is in.
        microbatch_size: samples in a micro-batch; None for the model's default.
        sequence_length: tokens in a sample; None for the model's default.
        seed: of the initial parameters.
        form: which of its modules are layers, in which numbers, and whether they keep their inputs only.
        weights: of a Hugging Face model: a file of safetensors, an index of several, or the folder of either; None:
            those beside its config, where there are any, else random ones.
        random_weights: take random ones, whatever there is.
        filled: whether all layers have values; else those of a Hugging Face model have none until `Model.fill`.

    Returns:
        The model, on the CPU.

    Raises:
        InvalidInputError: the name or a size means nothing, the model cannot be cut, the user's file does not work, or
            the weights do not fit the model.
        InfeasibleError: the model does not fit into this machine's free memory; nothing has been allocated.
    """
    require_model(name)
    for value, option in ((microbatch_size, "--microbatch-size"), (sequence_length, "--sequence-length")):
        if value is not None and value < 1:
            raise InvalidInputError(f"{value} is no size", where=option, fix="give a whole number of at least 1")
    if is_config(name):
        return load_config(name, microbatch_size, sequence_length, seed, form, weights, random_weights, filled)
    if weights is not None:
        raise InvalidInputError(
            f"weights can be given for a Hugging Face model only, and {name} is none",
            where=weights,
            fix="leave them away",
        )
    if name in PRESETS:
        return _load_preset(name, PRESETS[name], microbatch_size, sequence_length, seed, form)
    return load_file(name, microbatch_size, sequence_length, seed, form)


def _load_preset(
    name: str, preset: Preset, microbatch_size: int | None, sequence_length: int | None, seed: int, form: ModelForm
) -> Model:
    microbatch_size = microbatch_size or preset.microbatch_size
    sequence_length = sequence_length or preset.sequence_length
    if sequence_length > preset.config.positions:
        raise InvalidInputError(
            f"{name} has {preset.config.positions} positions, fewer than a sequence of {sequence_length}",
            where="--sequence-length",
            fix=f"give at most {preset.config.positions}",
        )
    if form.cut is not None:
        raise InvalidInputError(f"{name} is a list of layers already", where="--cut", fix="leave --cut away")
    sizes = {
        other: ModelSize(gpt_parameters(one.config), one.config.width, one.config.vocabulary)
        for other, one in PRESETS.items()
    }
    tokens, free = microbatch_size * sequence_length, free_bytes()
    fitting = [other for other, size in sizes.items() if size.needed_bytes(tokens, form.dtype) <= free]
    require_memory(name, sizes[name], tokens, form.dtype, fitting)
    with seeded(seed):
        layers = gpt_layers(preset.config)
    in_type(layers, form.dtype)
    return Model(
        name=name,
        layers=with_checkpoints(layers, range(1, len(layers) - 1)) if form.checkpointing else layers,
        loss=LossInFloat32(language_model_loss),
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        vocabulary=preset.config.vocabulary,
        example=token_example(microbatch_size, sequence_length, preset.config.vocabulary),
        form=form,
        tensor_parallel=TENSOR_PARALLEL,
    )


# A model from a user's own file: its layers as they are, or those that its module is cut into.


def load_file(name: str, microbatch_size: int | None, sequence_length: int | None, seed: int, form: ModelForm) -> Model:
    """Make the model of `file.py:factory`; arguments as `load_model`.

    Raises:
        InvalidInputError: the file does not work, or what it makes cannot be cut.
    """
    with seeded(seed):
        user = load_user_model(name, form.cut is not None)
    return model_of(name, user, microbatch_size or DEFAULT_MICROBATCH_SIZE, sequence_length, form)


def model_of(
    name: str,
    user: UserModel,
    microbatch_size: int,
    sequence_length: int | None,
    form: ModelForm,
    example: Example | None = None,
) -> Model:
    """The model of what a user has made, tried on an example.

    Args:
        name: says where, in errors.
        user: the layers or the module, and what came with them.
        microbatch_size: samples in a micro-batch.
        sequence_length: tokens in a sample; None: the usual number where the model reads tokens.
        form: which of its modules are layers, in which numbers, and whether they keep their inputs only.
        example: micro-batches such as the model will read; None: the user's, or random ones of the first layer's kind.

    Raises:
        InvalidInputError: the modules cannot be cut, or do not work on an example.
    """
    in_type(user.modules, form.dtype)
    first, vocabulary = _first(user.modules), vocabulary_of(user.modules)
    if vocabulary is not None:
        sequence_length = sequence_length or DEFAULT_SEQUENCE_LENGTH
    fix = SUIT_FILE if example is None else SUIT_DATA
    reads = example or _example(name, user, first, microbatch_size, sequence_length)
    if form.dtype != AS_USUAL.dtype:
        reads = _in_type(reads, TORCH_TYPES[form.dtype])
    layers, blocks = user.modules, range(1, len(user.modules) - 1)
    if form.cut is not None:
        layers, blocks = cut_module(user.modules[0], form.cut, lambda seed: reads(seed)[0], name)
    model = Model(
        name=name,
        layers=with_checkpoints(layers, blocks) if form.checkpointing else layers,
        loss=LossInFloat32(user.loss or default_loss),
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        vocabulary=vocabulary,
        example=reads,
        form=form,
        tensor_parallel=user.tensor_parallel,
    )
    try:
        with torch.no_grad(), seeded(0):
            inputs, targets, *named = model.example(0)
            found = model.loss(apply(model.layers, inputs, *named), targets)
            _require_loss(found, name)
    except Exception as error:
        raise _does_not_work(model.name, error, fix) from error
    return model


def _require_loss(found: object, name: str) -> None:
    """Raise InvalidInputError unless a loss function has returned a scalar, or one and its count."""
    loss = found[0] if isinstance(found, tuple) and len(found) == 2 else found
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return
    told = f"is {with_article(type(loss).__name__)}"
    if isinstance(loss, torch.Tensor):
        told = f"has the shape {tuple(loss.shape)}"
    raise InvalidInputError(
        f"the loss {told}, and must be a scalar",
        where=f"the loss function of {name}",
        fix="return its mean over the micro-batch, a tensor of one element, or (its sum, how many it sums over)",
    )


def _first(modules: Iterable[nn.Module]) -> nn.Module | None:
    """The first module with parameters of its own."""
    inner = (module for layer in modules for module in layer.modules())
    return next((module for module in inner if any(True for _ in module.parameters(recurse=False))), None)


def vocabulary_of(modules: Iterable[nn.Module]) -> int | None:
    """How many tokens layers, or a whole module, read that begin with an embedding; None where others do."""
    first = _first(modules)
    return first.num_embeddings if isinstance(first, nn.Embedding) else None


def _example(
    name: str, user: UserModel, first: nn.Module | None, microbatch_size: int, sequence_length: int | None
) -> Example:
    if user.example is not None:
        return _user_example(user.example, microbatch_size, sequence_length)
    if isinstance(first, nn.Embedding):
        return token_example(microbatch_size, sequence_length or DEFAULT_SEQUENCE_LENGTH, first.num_embeddings)
    if isinstance(first, nn.Linear):
        sequence = () if sequence_length is None else (sequence_length,)
        return _vector_example(name, user.modules, (microbatch_size, *sequence, first.in_features))
    found = "no layer has parameters" if first is None else f"the first is {with_article(type(first).__name__)}"
    raise InvalidInputError(
        f"what the model reads cannot be told from its layers: {found}",
        where=name,
        fix="define example(microbatch_size, sequence_length) in the file, returning (inputs, targets)",
    )


def _vector_example(name: str, modules: list[nn.Module], shape: tuple[int, ...]) -> Example:
    """Random vectors; the targets have the shape that the model gives them."""
    try:
        with torch.no_grad(), seeded(0):
            inputs = torch.zeros(shape, dtype=next(modules[0].parameters()).dtype)
            given = (apply(modules, inputs) if len(modules) > 1 else first_tensor(modules[0](inputs))).shape
    except Exception as error:
        raise _does_not_work(name, error) from error

    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        with seeded(seed):
            return torch.randn(shape), torch.randn(given)

    return example


def _user_example(function: Callable[..., Any], microbatch_size: int, sequence_length: int | None) -> Example:
    def example(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        with seeded(seed):
            inputs, targets = function(microbatch_size, sequence_length)
            return inputs, targets

    return example


def _in_type(example: Example, dtype: torch.dtype) -> Example:
    """The example with vectors of the parameters' type; targets stay as they are."""

    def converted(seed: int) -> tuple[Any, ...]:
        inputs, *others = example(seed)
        return tree_map(lambda one: one.to(dtype) if one.dtype == torch.float32 else one, inputs), *others

    return converted


def default_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits against whole numbers, mean squared error against others."""
    return F.mse_loss(output, target) if target.is_floating_point() else language_model_loss(output, target)


SUIT_FILE = "define example(microbatch_size, sequence_length) and loss(output, target) in the file to suit it"
SUIT_DATA = "have model, loss and data suit each other: the example is the data's first micro-batch"


def _does_not_work(name: str, error: Exception, fix: str = SUIT_FILE) -> InvalidInputError:
    if isinstance(error, InvalidInputError):
        return error  # of the data, which says what is wrong there
    path, what = name.rpartition(":")[0], "the model does not work on an example"
    if "does not require grad and does not have a grad_fn" in str(error):
        return InvalidInputError(
            "a layer or the loss calls backward(), and the passes backward are the plan's",
            where=line_in_file(error, path) or name,
            fix="return the loss, and leave backward(), step() and zero_grad() to rtk",
        )
    if line_in_file(error, path) is None:
        return InvalidInputError(f"{what}: {describe(error)}", where=name, fix=fix)
    return failed_in_file(what, error, path, f"correct the file, or {fix}")
