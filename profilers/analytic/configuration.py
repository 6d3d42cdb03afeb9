"""A decoder's shape from a Hugging Face config.json, without transformers: of the families whose modules we know.

Defaults are those of transformers' configuration classes, where a published config.json leaves a value out; sizes have
none. What says nothing of shapes (token numbers, rope_scaling, initial deviations) is not looked at. A sliding window
(Mistral, Qwen) makes nothing cheaper: FLOPs of attention are counted in full.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...schemas.documents import unique_keys
from ...schemas.errors import InvalidInputError
from ...schemas.fields import MOST_LAYERS
from ...schemas.files import read_bytes
from ...schemas.text import did_you_mean
from .costs import ACTIVATIONS, DecoderShape

# Models by their names: rtk's presets, and those of papers, which no one here can hold.


CONFIGURATION_SEQUENCE_LENGTH = 4096  # of a config.json's model, or its positions where these are fewer


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A shape, and the micro-batch it is computed for by default."""

    shape: DecoderShape
    microbatch_size: int
    sequence_length: int


def known_model(name: str) -> KnownModel:
    """A model by its name, or by the path of its config.json.

    Raises:
        InvalidInputError: there is none of that name, or the file does not say what it must.
    """
    if name in MODELS:
        return MODELS[name]
    if is_config(name):
        shape = read_configuration(name)
        return KnownModel(shape, 1, min(shape.positions, CONFIGURATION_SEQUENCE_LENGTH))
    if name.rpartition(":")[0].endswith(".py"):
        raise InvalidInputError(
            f"the shape of {name} cannot be told without running it",
            where="--analytic",
            fix="measure it, without --analytic, or give a config.json",
        )
    raise no_such_model(name, MODELS)


def no_such_model(name: str, models: Collection[str], *others: str) -> InvalidInputError:
    """The error for a name that is no model's.

    Args:
        name: as it was given.
        models: those with names.
        others: what else may be given, beside a config.json.
    """
    if HUB_NAME.fullmatch(name):
        fix = "nothing is downloaded: download the model's config.json yourself, and give its folder"
        return InvalidInputError(f"there is no model and no folder {name!r}", fix=fix)
    *given, last = *models, *others, "a Hugging Face config.json or its folder"
    known = f"the models are {', '.join(given)}, or {last}"
    return InvalidInputError(f"there is no model {name!r}", fix=f"{did_you_mean(name, models)} {known}".lstrip())


def _gpt(blocks: int, width: int, heads: int, vocabulary: int, positions: int, is_tied: bool) -> DecoderShape:
    return DecoderShape(
        blocks=blocks,
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=width // heads,
        inner=4 * width,
        vocabulary=vocabulary,
        positions=positions,
        position_rows=positions,
        is_fused=True,
        has_query_bias=True,
        has_output_bias=True,
        has_inner_bias=True,
        is_tied=is_tied,
    )


def _preset(
    blocks: int, width: int, heads: int, vocabulary: int, positions: int, microbatch_size: int, sequence_length: int
) -> KnownModel:
    shape = _gpt(blocks, width, heads, vocabulary, positions, is_tied=False)
    return KnownModel(shape, microbatch_size, sequence_length)


def _gpt3(blocks: int, width: int, heads: int) -> KnownModel:
    return KnownModel(_gpt(blocks, width, heads, 50257, 2048, is_tied=True), 1, 2048)


def _megatron(blocks: int, width: int, heads: int) -> KnownModel:
    return KnownModel(_gpt(blocks, width, heads, 51200, 2048, is_tied=True), 1, 2048)


def _llama3(blocks: int, width: int, heads: int, inner: int) -> KnownModel:
    shape = DecoderShape(
        blocks=blocks,
        width=width,
        heads=heads,
        key_value_heads=8,
        head_size=128,
        inner=inner,
        vocabulary=128256,
        positions=131072,
        norm="rms",
        activation="silu",
        is_gated=True,
    )
    return KnownModel(shape, 1, 8192)


MODELS: Mapping[str, KnownModel] = {
    # The presets, as in models/gpt.py (a test compares); their heads have a matrix of their own.
    "gpt-tiny": _preset(8, 128, 4, 256, 512, 4, 128),
    "gpt-small": _preset(12, 768, 12, 50257, 1024, 1, 128),
    "gpt3-medium": _preset(24, 1024, 16, 50257, 2048, 8, 2048),
    "gpt3-2.7b": _preset(32, 2560, 32, 50257, 2048, 2, 2048),
    "gpt3-3.35b": _preset(28, 3072, 24, 50257, 2048, 1, 2048),
    "gpt3-6.7b": _preset(32, 4096, 32, 50257, 2048, 1, 2048),
    # Brown et al., "Language Models are Few-Shot Learners", 2020, table 2.1; 13B has heads of 128, so a width of 5120.
    "gpt3-13b": _gpt3(40, 5120, 40),
    "gpt3-175b": _gpt3(96, 12288, 96),
    # Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021, table
    # 1.
    "megatron-1.7b": _megatron(24, 2304, 24),
    "megatron-3.6b": _megatron(30, 3072, 32),
    "megatron-7.5b": _megatron(36, 4096, 32),
    "megatron-18.4b": _megatron(40, 6144, 48),
    "megatron-39.1b": _megatron(48, 8192, 64),
    "megatron-76.1b": _megatron(60, 10240, 80),
    "megatron-145.6b": _megatron(80, 12288, 96),
    "megatron-310b": _megatron(96, 16384, 128),
    "megatron-530b": _megatron(105, 20480, 128),
    "megatron-1t": _megatron(128, 25600, 160),
    # Llama team, "The Llama 3 Herd of Models", 2024, table 3.
    "llama3-8b": _llama3(32, 4096, 32, 14336),
    "llama3-70b": _llama3(80, 8192, 64, 28672),
    "llama3-405b": _llama3(126, 16384, 128, 53248),
}


MOST = 10**9  # of any size: beyond it something is a mistake


def read_configuration(name: str) -> DecoderShape:
    """Read the shape from a config.json, or from a folder that has one.

    A config may name code of its own (auto_map): shapes are told by model_type, and no code is executed.

    Raises:
        InvalidInputError: there is no such file, it is no config (analytic/configuration.py), its architecture is not
        one
            of ours, or a size is missing, absurd, or at odds with another; with the JSON pointer.
    """
    return shape_of(*read_config(name))


def shape_of(values: Mapping[str, Any], where: str) -> DecoderShape:
    """The shape that a configuration describes.

    Args:
        values: its keys.
        where: the file, for messages.
    """
    kind = values.get("model_type")
    if kind not in FAMILIES:
        raise unsupported(str(kind), where, "/model_type", str(kind))
    shape = FAMILIES[kind](Keys(values, where))
    if shape.heads % shape.key_value_heads:
        raise Keys(values, where).error(
            "num_key_value_heads",
            f"{shape.key_value_heads} heads of keys and values do not divide {shape.heads} of queries",
        )
    return shape


class Keys:
    """A configuration's values, checked as they are taken.

    Args:
        values: by key.
        where: the file, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self.where = values, where

    def size(self, key: str, default: int | None = None, most: int = MOST) -> int:
        """A whole number from 1 to `most`; one that is missing or null is the default's, where there is one."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.error(key, f"the configuration has no {key}", "add it: every size must be given")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise self.error(key, f"{key} is {value!r}, and must be a whole number from 1 to {most}")
        return value

    def has(self, key: str) -> bool:
        """Whether the configuration gives a value."""
        return self._values.get(key) is not None

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, f"{key} is {value!r}, and must be true or false")
        return default if value is None else value

    def activation(self, key: str, default: str) -> str:
        """The name of an activation whose cost we know."""
        value = self._values.get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.error(key, f"the activation {value!r} is not supported", f"known are {', '.join(ACTIVATIONS)}")
        return str(value)

    def must_be(self, key: str, expected: object) -> None:
        """Refuse a variant of the architecture whose shape we do not know."""
        value = self._values.get(key, expected)
        if value != expected:
            raise self.error(key, f"models with {key} {json.dumps(value)} are not supported")

    def error(self, key: str, what: str, fix: str | None = None) -> InvalidInputError:
        """What is wrong with a key."""
        return InvalidInputError(what, where=f"{self.where}, /{key}", fix=fix or "check the configuration")


def _gpt2(keys: Keys) -> DecoderShape:
    width, heads = keys.size("n_embd"), keys.size("n_head")
    _check_divides(keys, "n_head", heads, "n_embd", width)
    keys.must_be("add_cross_attention", False)
    positions = keys.size("n_positions")
    return DecoderShape(
        blocks=keys.size("n_layer", most=MOST_LAYERS),
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=width // heads,
        inner=keys.size("n_inner", 4 * width),
        vocabulary=keys.size("vocab_size"),
        positions=positions,
        position_rows=positions,
        activation=keys.activation("activation_function", "gelu_new"),
        is_fused=True,
        has_query_bias=True,
        has_output_bias=True,
        has_inner_bias=True,
        is_tied=keys.flag("tie_word_embeddings", True),
    )


def _gpt_neox(keys: Keys) -> DecoderShape:
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    _check_divides(keys, "num_attention_heads", heads, "hidden_size", width)
    has_bias = keys.flag("attention_bias", True)
    return DecoderShape(
        blocks=keys.size("num_hidden_layers", most=MOST_LAYERS),
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=width // heads,
        inner=keys.size("intermediate_size"),
        vocabulary=keys.size("vocab_size"),
        positions=keys.size("max_position_embeddings", 2048),
        activation=keys.activation("hidden_act", "gelu"),
        is_fused=True,
        is_parallel=keys.flag("use_parallel_residual", True),
        has_query_bias=has_bias,
        has_output_bias=has_bias,
        has_inner_bias=True,
        is_tied=keys.flag("tie_word_embeddings", False),
    )


def _opt(keys: Keys) -> DecoderShape:
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    _check_divides(keys, "num_attention_heads", heads, "hidden_size", width)
    for key in ("do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"):
        keys.must_be(key, True)
    keys.must_be("_remove_final_layer_norm", False)
    keys.must_be("word_embed_proj_dim", width)
    positions = keys.size("max_position_embeddings")
    return DecoderShape(
        blocks=keys.size("num_hidden_layers", most=MOST_LAYERS),
        width=width,
        heads=heads,
        key_value_heads=heads,
        head_size=width // heads,
        inner=keys.size("ffn_dim"),
        vocabulary=keys.size("vocab_size"),
        positions=positions,
        position_rows=positions + 2,  # positions are counted from 2
        activation=keys.activation("activation_function", "relu"),
        has_query_bias=True,
        has_output_bias=True,
        has_inner_bias=True,
        is_tied=keys.flag("tie_word_embeddings", True),
    )


def _llama_like(
    keys: Keys,
    *,
    key_value_heads: int | None = None,
    head_size: int | None = None,
    has_bias: bool = False,
    output_bias: bool | None = None,
    inner_bias: bool = False,
    has_head_norms: bool = False,
) -> DecoderShape:
    """RMS norms, rotary positions, and a gated network of SiLU; separate matrices for queries, keys and values."""
    width, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if head_size is None and not keys.has("head_dim"):
        _check_divides(keys, "num_attention_heads", heads, "hidden_size", width)
        head_size = width // heads
    return DecoderShape(
        blocks=keys.size("num_hidden_layers", most=MOST_LAYERS),
        width=width,
        heads=heads,
        key_value_heads=keys.size("num_key_value_heads", key_value_heads or heads),
        head_size=keys.size("head_dim", head_size),
        inner=keys.size("intermediate_size"),
        vocabulary=keys.size("vocab_size"),
        positions=keys.size("max_position_embeddings", 2048),
        norm="rms",
        activation=keys.activation("hidden_act", "silu"),
        is_gated=True,
        has_query_bias=has_bias,
        has_output_bias=has_bias if output_bias is None else output_bias,
        has_inner_bias=inner_bias,
        has_head_norms=has_head_norms,
        is_tied=keys.flag("tie_word_embeddings", False),
    )


FAMILIES: dict[str, Callable[[Keys], DecoderShape]] = {
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "llama": lambda keys: _llama_like(
        keys, has_bias=keys.flag("attention_bias", False), inner_bias=keys.flag("mlp_bias", False)
    ),
    "mistral": lambda keys: _llama_like(keys, key_value_heads=8),
    "opt": _opt,
    "qwen2": lambda keys: _llama_like(keys, has_bias=True, output_bias=False),
    "qwen3": lambda keys: _llama_like(
        keys, has_bias=keys.flag("attention_bias", False), head_size=128, has_head_norms=True
    ),
}


def _check_divides(keys: Keys, divisor_key: str, divisor: int, key: str, value: int) -> None:
    if value % divisor:
        raise keys.error(divisor_key, f"{divisor_key} {divisor} does not divide {key} {value}")


# Reading a Hugging Face `config.json`: what it says, before anybody makes or computes anything of it.
#
# Imports no torch: `rtk profile --analytic` reads by it, too.


# A model_type this much like another's name is a slip of the pen; mamba is no llama.
MISSPELT = 0.7
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")  # of a model on the Hugging Face hub
MODEL_FAMILIES = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "olmo2", "mixtral")


def is_config(name: str) -> bool:
    """Whether a model's name means a config, or a folder that should have one."""
    return name.endswith(".json") or Path(name).is_dir()


def read_config(name: str) -> tuple[dict[str, Any], str]:
    """What a config says, and its file.

    Args:
        name: the file, or the folder that its `config.json` is in.

    Raises:
        InvalidInputError: there is none, it is no JSON object, a key stands twice, or it says no model_type.
    """
    file = name
    if Path(name).is_dir():
        file = str(Path(name) / "config.json")
        if not Path(file).is_file():
            raise InvalidInputError(
                "the folder has no config.json", where=name, fix="give a Hugging Face model's folder"
            )
    try:
        told = json.loads(read_bytes(file).decode("utf-8"), object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        where = f"{file}, line {error.lineno} column {error.colno}"
        raise InvalidInputError(f"the config is not valid JSON: {error.msg}", where=where) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the config is not valid JSON: {error}", where=file) from error
    if not isinstance(told, dict):
        raise InvalidInputError("the config is no JSON object", where=f"{file}, /", fix="give a Hugging Face config")
    if str(told.get("format")).startswith("rtk."):
        raise InvalidInputError(f"this is an {told['format']}, no model's config", where=file, fix="give a config.json")
    if not isinstance(told.get("model_type"), str):
        raise InvalidInputError(
            "the config does not say its model_type", where=f"{file}, /model_type", fix="give a Hugging Face config"
        )
    return told, file


def unsupported(what: str, file: str, place: str, kind: str = "") -> InvalidInputError:
    """The error for a config that says something sensible which rtk cannot make or compute.

    Args:
        what: it is.
        file: the config's.
        place: in it.
        kind: the model_type, where that may be misspelt.
    """
    families = [*MODEL_FAMILIES, *(family for family in FAMILIES if family not in MODEL_FAMILIES)]
    known = f"rtk measures {', '.join(MODEL_FAMILIES)} and decoders like them, and computes {', '.join(FAMILIES)}"
    return InvalidInputError(
        f"unsupported architecture: {what}",
        where=f"{file}, {place}",
        fix=f"{did_you_mean(kind, families, least=MISSPELT)} {known} (--analytic)".lstrip(),
    )
