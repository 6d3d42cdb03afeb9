"""Models by their names: rtk's presets, and those of papers, which no one here can hold."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...schemas.errors import InvalidInputError
from ...schemas.text import did_you_mean
from .configuration import is_config, read_configuration
from .costs import DecoderShape

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
    known = f"known are {', '.join(MODELS)}, and a config.json's path"
    raise InvalidInputError(f"there is no model {name!r}", fix=f"{did_you_mean(name, MODELS)} {known}".lstrip())


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
