"""A small Llama from a Hugging Face folder, as a user would train it: what benchmarks/trainer_equal.py runs under rtk.

The folder, the rows and the number of steps are in the environment, for the benchmark makes them.
"""

import os

import torch
import torch.nn.functional as F

from rtk.runners.torch.optimizers import decay_groups
from rtk.runners.torch.schedules import cosine
from rtk.train import HuggingFace, Training

FOLDER, ROWS, STEPS = "TRAINER_EQUAL_FOLDER", "TRAINER_EQUAL_ROWS", "TRAINER_EQUAL_STEPS"
SIZE, MICROBATCHES = 2, 8  # rows of a micro-batch, micro-batches of a step
RATE, WARMUP, DECAY, CLIP = 3e-3, 10, 0.1, 1.0


def loss(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(sum, count) over the targets that count."""
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum")
    return total, (targets != -100).sum()


class FixedRows:
    """Rows in their order: step, micro-batch, row."""

    def __init__(self, file: str) -> None:
        self.tokens, self.labels = torch.load(file)

    def batch(self, iteration: int) -> "FixedBatch":
        """The micro-batches of an iteration."""
        return FixedBatch(self, iteration * MICROBATCHES * SIZE)


class FixedBatch:
    """The micro-batches of an iteration, from a row on."""

    def __init__(self, rows: FixedRows, first: int) -> None:
        self.rows, self.first = rows, first

    def __getitem__(self, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens, and what is to follow each."""
        own = slice(self.first + microbatch * SIZE, self.first + (microbatch + 1) * SIZE)
        return self.rows.tokens[own], F.pad(self.rows.labels[own, 1:], (0, 1), value=-100)


training = Training(
    model=HuggingFace(os.environ[FOLDER]),
    loss=loss,
    data=FixedRows(os.environ[ROWS]),
    microbatch_size=SIZE,
    optimizer=lambda parameters: torch.optim.AdamW(decay_groups(parameters, DECAY), lr=RATE),
    schedule=cosine(warmup=WARMUP, steps=int(os.environ[STEPS])),
    clip_norm=CLIP,
)
