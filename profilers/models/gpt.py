"""A small GPT: decoder-only, pre-norm, with learned positions, as a list of layers that can be cut anywhere."""

import torch
import torch.nn.functional as F
from torch import nn

from .presets import GptConfig
from .sharding import TensorParallelPlan

EMBEDDING_DEVIATION = 0.02  # of the initial vectors, as in GPT-2; linear layers start as torch makes them
TENSOR_PARALLEL: TensorParallelPlan = {
    "token": "vocabulary",
    "qkv": "colwise",
    "attention_out": "rowwise",
    "mlp_in": "colwise",
    "mlp_out": "rowwise",
    "logits": "vocabulary",
}


class Embedding(nn.Module):
    """Token numbers (batch, sequence) to vectors (batch, sequence, width): token plus learned position."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.positions, config.width)
        with torch.no_grad():  # torch draws them with a deviation of 1
            self.token.weight.mul_(EMBEDDING_DEVIATION)
            self.position.weight.mul_(EMBEDDING_DEVIATION)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Look up the tokens, and add the vectors of positions 0, 1, …"""
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        vectors: torch.Tensor = self.token(tokens) + self.position(places)
        return vectors


class Block(nn.Module):
    """One transformer block, (batch, sequence, width) to the same: causal attention, then a GELU network, 4 x wide."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width)
        self.mlp_in = nn.Linear(config.width, 4 * config.width)
        self.mlp_out = nn.Linear(4 * config.width, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what attention and the network make of the normalized stream."""
        x = x + self._attend(self.attention_norm(x))
        wide = F.gelu(self.mlp_in(self.mlp_norm(x)))
        out: torch.Tensor = x + self.mlp_out(wide)
        return out

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        # (batch, sequence, 3 * width) -> three of (batch, heads, sequence, width / heads); a tensor-parallel share has
        # fewer heads, and leaves so much less to the output's matrix
        query, key, value = self.qkv(x).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.attention_out(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return out


class Head(nn.Module):
    """Vectors (batch, sequence, width) to logits (batch, sequence, vocabulary); not tied to the embedding."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.logits = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize and project."""
        logits: torch.Tensor = self.logits(self.norm(x))
        return logits


def gpt_layers(config: GptConfig) -> list[nn.Module]:
    """The layers of a GPT in order: the embedding, the blocks, the head.

    Each maps one tensor to one tensor, so that any consecutive ones make a stage. The initial parameters are drawn from
    torch's global generator.
    """
    return [Embedding(config), *(Block(config) for _ in range(config.blocks)), Head(config)]


def language_model_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of logits (batch, sequence, vocabulary) against the next tokens (batch, sequence)."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())
