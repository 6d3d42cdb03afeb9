"""A Hugging Face decoder from its `config.json`: random weights, nothing from the network, transformers' code alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...schemas.errors import InvalidInputError, require_package
from ...schemas.profile import ModelForm
from ...schemas.text import joined
from ..analytic.configuration import read_config, unsupported
from .cut import cut_module
from .gpt import language_model_loss
from .model import (
    DEFAULT_MICROBATCH_SIZE,
    DEFAULT_SEQUENCE_LENGTH,
    TORCH_TYPES,
    Model,
    ModelSize,
    describe,
    loss_in_float32,
    require_memory,
    seeded,
    token_example,
)
from .sharding import transformers_plan
from .skeleton import with_checkpoints

# What a config must say itself: transformers would fill in the sizes of some model of the family.
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def load_config(
    name: str, microbatch_size: int | None, sequence_length: int | None, seed: int, form: ModelForm
) -> Model:
    """Make the model of a `config.json`, or of the folder that it is in; arguments as `load_model`.

    Attention is torch's `scaled_dot_product_attention`, dropout is as the config says, and the layers are the decoder's
    unless `form.cut` names others. GPT-2's transposed linear layers become ordinary ones, which compute the same, so
    that their weight gradients can be put off.

    Raises:
        InvalidInputError: transformers is missing, the config is no causal language model's, or its values do not fit.
        InfeasibleError: the model does not fit into this machine's free memory; nothing has been allocated.
    """
    told, file = read_config(name)
    with _offline():
        config = _config(told, file)
        width, vocabulary = config.hidden_size, config.vocab_size
        microbatch_size = microbatch_size or DEFAULT_MICROBATCH_SIZE
        sequence_length = _sequence_length(config, sequence_length, file)
        parameters = _count(config, file)
        size = ModelSize(parameters, width, vocabulary)
        require_memory(name, size, microbatch_size * sequence_length, form.dtype)
        with seeded(seed):
            root = _with_linears(_make(config, TORCH_TYPES[form.dtype]))
    example = token_example(microbatch_size, sequence_length, vocabulary)
    cut = form.cut or _decoder(root, config.num_hidden_layers, file)
    layers, blocks = cut_module(root, cut, lambda seed: example(seed)[0], name)
    return Model(
        name=name,
        layers=with_checkpoints(layers, blocks) if form.checkpointing else layers,
        loss=loss_in_float32(language_model_loss),
        microbatch_size=microbatch_size,
        sequence_length=sequence_length,
        vocabulary=vocabulary,
        example=example,
        form=form,
        tensor_parallel=transformers_plan(config.model_type, config.base_model_tp_plan),
    )


@contextmanager
def _offline() -> Iterator[None]:
    """Import transformers so that it asks nobody for anything, and make it say errors only."""
    require_package("transformers", "a Hugging Face config.json")
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported first
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _config(told: dict[str, Any], file: str) -> Any:
    """The config as transformers understands it, checked for what makes a decoder."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    kind = told["model_type"]
    if kind not in CAUSAL or kind not in CONFIG_MAPPING:
        what = f"{kind} is no causal language model that transformers knows"
        raise unsupported(what, file, "/model_type", kind)
    # How a checkpoint's numbers are packed does not matter to random ones.
    plain = {name: value for name, value in told.items() if name not in ("quantization_config", "torch_dtype", "dtype")}
    try:
        config = CONFIG_MAPPING[kind].from_dict(plain)
    except Exception as error:
        # The key that the message names first, if it names one.
        key = next((word for word in str(error).split("'")[1::2] if word in told), None)
        where = f"{file}, /{key}" if key else file
        raise InvalidInputError(f"the config is not valid: {_reason(error)}", where=where) from error
    if config.is_encoder_decoder or config.get_text_config() is not config:
        raise unsupported(f"{kind} is no plain decoder", file, "/model_type")
    lacking = [size for size in SIZES if not hasattr(config, size)]
    if lacking:
        raise unsupported(f"a config of {kind} has no {joined(lacking)}", file, "/model_type")
    for size in SIZES:
        key = config.attribute_map.get(size, size)
        if not {key, size} & told.keys():
            raise InvalidInputError(f"the config does not say {key}", where=f"{file}, /{key}", fix=f"add {key}")
        value = getattr(config, size)
        if not isinstance(value, int) or value < 1:
            raise InvalidInputError(f"{key} is {value}", where=f"{file}, /{key}", fix="give a whole number from 1 on")
    config.use_cache = False
    return config


def _sequence_length(config: Any, asked: int | None, file: str) -> int:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return asked or DEFAULT_SEQUENCE_LENGTH
    if asked is not None and asked > positions:
        raise InvalidInputError(
            f"{file} has {positions} positions, fewer than a sequence of {asked}",
            where="--sequence-length",
            fix=f"give at most {positions}",
        )
    return asked or min(DEFAULT_SEQUENCE_LENGTH, positions)


def _count(config: Any, file: str) -> int:
    """The parameters, tied ones once, of a model that takes no memory; finds out whether transformers can make it."""
    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in _make(config, torch.float32).parameters())
    except Exception as error:
        raise InvalidInputError(
            f"transformers cannot make this model: {_reason(error)}", where=file, fix="correct the config"
        ) from error


def _make(config: Any, dtype: torch.dtype) -> nn.Module:
    from transformers import AutoModelForCausalLM

    make: Any = AutoModelForCausalLM
    try:
        model: nn.Module = make.from_config(config, dtype=dtype, attn_implementation="sdpa")
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        model = make.from_config(config, dtype=dtype, attn_implementation="eager")
    return model.train()


def _with_linears(root: nn.Module) -> nn.Module:
    """The model with each of transformers' Conv1D, a linear layer whose matrix is transposed, as an nn.Linear."""
    from transformers.pytorch_utils import Conv1D

    for name, module in list(root.named_modules()):
        if type(module) is Conv1D:
            linear = nn.Linear(module.nx, module.nf, device="meta")
            linear.weight = nn.Parameter(module.weight.detach().t().contiguous())
            linear.bias = module.bias
            root.set_submodule(name, linear)
    return root


def _decoder(root: nn.Module, count: int, file: str) -> str:
    """The pattern of the decoder's layers: the outermost list of as many modules as the config says."""
    for name, module in sorted(root.named_modules(), key=lambda one: one[0].count(".")):
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return f"{name}.*"
    raise unsupported(f"{type(root).__name__} has no list of {count} layers", file, "/model_type")


def _reason(error: Exception) -> str:
    """What transformers' validation says, which stands in the last of several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) < 2:
        return describe(error)
    return lines[-1].partition(": ")[2] or lines[-1]
