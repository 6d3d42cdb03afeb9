"""The GPTs that rtk knows by name: shapes as data. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GptConfig:
    """The shape of a GPT.

    Args:
        blocks: number of transformer blocks; with the embedding and the head there are two layers more.
        width: size of the residual stream.
        heads: attention heads; must divide the width.
        vocabulary: number of distinct tokens.
        positions: the longest sequence.
    """

    blocks: int
    width: int
    heads: int
    vocabulary: int
    positions: int


def gpt_parameters(config: GptConfig) -> int:
    """The number of parameters `gpt_layers` will make, without making them."""
    d = config.width
    block = 12 * d * d + 13 * d  # four linear layers with biases: 12 d^2 + 9 d; two norms: 4 d
    return config.blocks * block + (2 * config.vocabulary + config.positions) * d + 2 * d


@dataclass(frozen=True, slots=True)
class Preset:
    """A GPT's shape, with the micro-batch size and sequence length it is measured at unless others are asked for."""

    config: GptConfig
    microbatch_size: int
    sequence_length: int


def _gpt3(blocks: int, width: int, heads: int, microbatch_size: int) -> Preset:
    return Preset(GptConfig(blocks, width, heads, vocabulary=50257, positions=2048), microbatch_size, 2048)


# gpt-tiny reads bytes, and is sized so that F, I and W of a block take some milliseconds each on one CPU core; its
# eight equal blocks cut well into 1, 2, 4 or 8 stages. The GPT-3 sizes and their micro-batches are those of the
# SlipStream (section 7) and Oobleck (table 1) papers. SlipStream names its 3.35B model by its size alone: 28 x 3072
# is the shape that gives it, and heads of 128 are our choice.
PRESETS: dict[str, Preset] = {
    "gpt-tiny": Preset(GptConfig(8, 128, 4, vocabulary=256, positions=512), microbatch_size=4, sequence_length=128),
    "gpt-small": Preset(GptConfig(12, 768, 12, vocabulary=50257, positions=1024), 1, 128),
    "gpt3-medium": _gpt3(24, 1024, 16, microbatch_size=8),
    "gpt3-2.7b": _gpt3(32, 2560, 32, microbatch_size=2),
    "gpt3-3.35b": _gpt3(28, 3072, 24, microbatch_size=1),
    "gpt3-6.7b": _gpt3(32, 4096, 32, microbatch_size=1),
}
