"""A user's training in double precision: what `benchmarks/own_training.py` kills. No line of it is about failures."""

import torch
import torch.nn.functional as F
from torch import nn

from rtk.train import Training, cosine

ROWS, LENGTH, VOCABULARY, WIDTH, BLOCKS = 4096, 16, 64, 32, 8


class Rows:
    """Rows of tokens whose last targets do not count, in another number in each row."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.randint(0, VOCABULARY, (LENGTH + 1,), generator=torch.Generator().manual_seed(row))
        tokens[1:] = (3 * tokens[:-1] + tokens[1:] % 3) % VOCABULARY  # something to learn
        targets = tokens[1:].clone()
        targets[LENGTH - padding_of(row) :] = -100
        return tokens[:-1], targets


def padding_of(row: int) -> int:
    """How many targets of a row do not count."""
    return row * 7 % 11


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Of shape (rows, LENGTH, WIDTH), as the inputs."""
        changed: torch.Tensor = self.dropout(self.down(F.gelu(self.up(self.norm(inputs)))))
        return inputs + changed


def layers() -> list[nn.Module]:
    """Ten layers in double precision."""
    made = [nn.Embedding(VOCABULARY, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, VOCABULARY)]
    return [layer.double() for layer in made]


def loss(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the targets that count: their sum, and their number."""
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return total, (targets != -100).sum()


training = Training(
    model=layers,
    data=Rows(),
    loss=loss,
    microbatch_size=2,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    schedule=cosine(warmup=50, steps=5_000, final=0.1),
    clip_norm=0.3,
)
