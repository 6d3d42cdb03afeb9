"""A model so small that a dozen workers keep any pace on two cores: `--model benchmarks/small_model.py:layers`."""

from torch import nn

LAYERS = 12


def layers() -> list[nn.Module]:
    """Bytes to vectors, some linear layers, vectors to logits."""
    inner = [nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(LAYERS - 2)]
    return [nn.Embedding(256, 32), *inner, nn.Linear(32, 256)]
