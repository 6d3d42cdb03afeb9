"""The models that rtk knows by name: shapes as data, and the sizes they are measured at by default."""

from dataclasses import dataclass

from .gpt import GptConfig


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
