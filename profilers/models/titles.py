"""What a layer is called in tables."""

from torch import nn


def title_of(layer: nn.Module) -> str:
    """What the layer says itself, else its class."""
    title = getattr(layer, "title", None)
    return title if isinstance(title, str) else type(layer).__name__
