"""A net of your own: `rtk profile net.py:net` measures what each layer costs, and `rtk plan` cuts it into stages."""

import torch
from torch import nn

WIDTH, CLASSES = 256, 10


def net() -> list[nn.Module]:
    """The layers, in order; a stage is some that follow each other."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(6)]
    return [*blocks, nn.Linear(WIDTH, CLASSES)]


def example(microbatch_size: int, sequence_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A micro-batch: inputs and targets. This net has no sequences."""
    return torch.randn(microbatch_size, WIDTH), torch.randint(CLASSES, (microbatch_size,))


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How wrong an output is."""
    return nn.functional.cross_entropy(output, target)
