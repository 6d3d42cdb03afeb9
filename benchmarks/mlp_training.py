"""Eight layers of 512 by 512 on numbered rows: what benchmarks/kill_to_commit.py trains with rtk and with torchft."""

import torch
from torch import nn

from rtk.train import Training

WIDTH, DEPTH, ROWS = 512, 8, 32  # ROWS: of a micro-batch


def layers() -> list[nn.Module]:
    """The layers, the same in every process."""
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)]


def rows(iteration: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a micro-batch, by number: (inputs, targets), each of shape (ROWS, WIDTH)."""
    generator = torch.Generator().manual_seed(iteration * 1_000 + microbatch)
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    return inputs, inputs.roll(1, 1) * 0.1


class NumberedBatch:
    """The micro-batches of an iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One of them."""
        return rows(self.iteration, microbatch)


class NumberedRows:
    """Rows that are drawn from their numbers."""

    def batch(self, iteration: int) -> NumberedBatch:
        """The micro-batches of an iteration."""
        return NumberedBatch(iteration)


training = Training(
    model=layers,
    data=NumberedRows(),
    loss=nn.functional.mse_loss,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    microbatch_size=ROWS,
)
