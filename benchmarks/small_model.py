"""Models so small that a dozen workers keep any pace on two cores: `--model benchmarks/small_model.py:layers`.

`layers` has 12 of them, `eight` 8, and `eight_double` the same 8 in double precision.
"""

from torch import nn

LAYERS = 12


def layers() -> list[nn.Module]:
    """Bytes to vectors, some linear layers, vectors to logits."""
    return _layers(LAYERS)


def eight() -> list[nn.Module]:
    """As `layers`, but 8 of them."""
    return _layers(8)


def eight_double() -> list[nn.Module]:
    """As `eight`, in double precision."""
    return [layer.double() for layer in eight()]


def _layers(count: int) -> list[nn.Module]:
    inner = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(count - 2)]
    return [nn.Embedding(256, 32), *inner, nn.Linear(32, 256)]
