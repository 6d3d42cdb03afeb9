"""A small GPT that says how several GPUs share it; benchmarks train it by its file's name."""

from torch import nn

from rtk.profilers.models.gpt import TENSOR_PARALLEL, gpt_layers, language_model_loss
from rtk.profilers.models.presets import GptConfig

SMALL = GptConfig(blocks=2, width=32, heads=4, vocabulary=256, positions=16)

loss = language_model_loss
tensor_parallel = TENSOR_PARALLEL


def layers() -> list[nn.Module]:
    """Four layers, in float64, so that runs of other groups of ranks can be compared."""
    return [layer.double() for layer in gpt_layers(SMALL)]
