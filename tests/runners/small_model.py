"""A model of ten layers that computes next to nothing, for jobs of which something else is to be seen."""

from torch import nn


def layers() -> list[nn.Module]:
    """Predict the next byte from one."""
    return [nn.Embedding(256, 16), *(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(8)), nn.Linear(16, 256)]
