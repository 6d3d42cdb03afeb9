"""What benchmarks/midway.py trains, in double precision, so that what differs was lost or done twice.

Plain SGD, whose momentum of 1e-30 leaves of each step's gradients an exact copy in the optimizer's state: so every
checkpoint shows the gradients that were stepped last. Every micro-batch's loss counts another number of targets.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from rtk.train import Training

WIDTH, DEPTH, ROWS, VOCABULARY = 64, 6, 4, 64  # ROWS: of a micro-batch
Kind = Literal["rows", "tied", "buffers"]


class Mixing(nn.Module):
    """A layer with matrices, whose gradients come with W, and a norm, whose gradients come with I."""

    def __init__(self, has_buffers: bool = False) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH) if has_buffers else nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of shape (ROWS, WIDTH), as the inputs."""
        return inputs + torch.tanh(self.linear(self.norm(inputs)))


def layers(kind: Kind = "rows") -> list[nn.Module]:
    """The layers, the same in every process; of `tied` the last one has the first one's matrix."""
    torch.manual_seed(0)
    inner: list[nn.Module] = [Mixing(kind == "buffers") for _ in range(DEPTH)]
    if kind == "tied":
        inner[0], inner[-1] = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        shared = nn.Parameter(0.05 * torch.randn(VOCABULARY, WIDTH))  # so small that rounding does not grow
        inner[0].weight = inner[-1].weight = shared
    return [layer.double() for layer in inner]


def counted(iteration: int, microbatch: int) -> int:
    """How many targets of a row of a micro-batch count; no two micro-batches of an iteration are alike."""
    return 3 + (7 * microbatch + iteration) % 61


def rows(kind: Kind, iteration: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs and the targets of a micro-batch, by its number; what does not count is not a number, or -100."""
    generator = torch.Generator().manual_seed(iteration * 1_000 + microbatch)
    if kind == "tied":
        inputs = torch.randint(0, VOCABULARY, (16 * ROWS,), generator=generator)
        targets = (3 * inputs + 1) % VOCABULARY
        targets[counted(iteration, microbatch) :] = -100
        return inputs, targets
    numbers = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
    targets = numbers.roll(1, 1) * 0.1
    targets[:, counted(iteration, microbatch) :] = torch.nan
    return numbers, targets


def loss(output: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the targets that count: their sum, and their number."""
    if not targets.is_floating_point():
        return F.cross_entropy(output, targets, ignore_index=-100, reduction="sum"), (targets != -100).sum()
    counts = ~targets.isnan()
    return torch.where(counts, output - targets, 0.0).square().sum(), counts.sum()


class NumberedMicrobatches:
    """The micro-batches of an iteration."""

    def __init__(self, kind: Kind, iteration: int) -> None:
        self.kind, self.iteration = kind, iteration

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One of them."""
        return rows(self.kind, self.iteration, microbatch)


class NumberedData:
    """Rows that are drawn from their numbers."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def batch(self, iteration: int) -> NumberedMicrobatches:
        """The micro-batches of an iteration."""
        return NumberedMicrobatches(self.kind, iteration)


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Steps, and keeps the gradients of the last step."""
    return torch.optim.SGD(parameters, lr=1e-2, momentum=1e-30)


def training(kind: Kind = "rows", clip_norm: float | None = None, fuses: str | None = None) -> Training:
    """A script's training.

    Args:
        kind: of the layers.
        clip_norm: as of `Training`.
        fuses: a folder; a worker whose process finds a file of its number there kills itself in its next sum, after so
            many seconds as the file says, and leaves beside it when.
    """
    if fuses is not None:
        _lay_fuses(Path(fuses))
    data = NumberedData(kind)
    return Training(
        model=lambda: layers(kind), data=data, loss=loss, optimizer=optimizer, microbatch_size=ROWS, clip_norm=clip_norm
    )


def _lay_fuses(folder: Path) -> None:
    from rtk.runners.torch.gloo import GlooTransport

    inner: Callable[..., None] = GlooTransport.all_reduce

    def die(fuse: Path) -> None:
        fuse.with_suffix(".dead").write_text(str(time.perf_counter()))
        os.kill(os.getpid(), signal.SIGKILL)

    def all_reduce(self: GlooTransport, group: tuple[int, ...], tensor: torch.Tensor) -> None:
        fuse = folder / str(os.getpid())
        if len(group) > 1 and fuse.exists():
            threading.Timer(float(fuse.read_text()), die, (fuse,)).start()
        inner(self, group, tensor)

    GlooTransport.all_reduce = all_reduce  # type: ignore[method-assign]
