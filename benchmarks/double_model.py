"""gpt-tiny in double precision, so that what is left of a difference is not rounding."""

from torch import nn

from rtk.profilers.models.gpt import gpt_layers
from rtk.profilers.models.presets import PRESETS


def layers() -> list[nn.Module]:
    """The layers of gpt-tiny, in float64."""
    return [layer.double() for layer in gpt_layers(PRESETS["gpt-tiny"].config)]
