"""The shape of a decoder: all that its parameters, FLOPs and bytes follow from."""

from dataclasses import dataclass
from typing import Literal

from ...schemas.form import DataType

ELEMENT_BYTES: dict[DataType, int] = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """A decoder-only transformer, pre-norm, with a causal attention.

    Args:
        blocks: transformer blocks; the embedding and the head are layers of their own.
        width: size of the residual stream.
        heads: of the queries.
        key_value_heads: of keys and values; fewer than `heads` in grouped-query attention.
        head_size: of one head.
        inner: width of the feed-forward network.
        vocabulary: distinct tokens.
        positions: the longest sequence.
        position_rows: of the learned table of positions; 0 where positions are rotary.
        norm: "layer" has scale and shift, "rms" a scale only.
        activation: of the feed-forward network, in transformers' words.
        is_gated: the activation is multiplied with a second matrix's output.
        is_fused: queries, keys and values come out of one matrix.
        is_parallel: attention and feed-forward network read the same stream (GPT-NeoX).
        has_query_bias, has_output_bias, has_inner_bias: biases of queries, keys and values; of attention's output; of
            the feed-forward network.
        has_head_norms: queries and keys are normalized (Qwen3).
        is_tied: the head's matrix is the embedding's.
    """

    blocks: int
    width: int
    heads: int
    key_value_heads: int
    head_size: int
    inner: int
    vocabulary: int
    positions: int
    position_rows: int = 0
    norm: Literal["layer", "rms"] = "layer"
    activation: str = "gelu"
    is_gated: bool = False
    is_fused: bool = False
    is_parallel: bool = False
    has_query_bias: bool = False
    has_output_bias: bool = False
    has_inner_bias: bool = False
    has_head_norms: bool = False
    is_tied: bool = False

    @property
    def query_width(self) -> int:
        """Of all heads together."""
        return self.heads * self.head_size

    @property
    def key_width(self) -> int:
        """Of the keys, or of the values."""
        return self.key_value_heads * self.head_size

    @property
    def norm_parameters(self) -> int:
        """Of one norm of the stream."""
        return (2 if self.norm == "layer" else 1) * self.width

    @property
    def embedding_parameters(self) -> int:
        """Tokens, and positions where they are learned."""
        return (self.vocabulary + self.position_rows) * self.width

    @property
    def block_matrices(self) -> int:
        """The weights of a block's matrices."""
        attention = self.width * (2 * self.query_width + 2 * self.key_width)
        return attention + (3 if self.is_gated else 2) * self.width * self.inner

    @property
    def block_parameters(self) -> int:
        """Matrices, biases and norms of a block."""
        biases = (self.query_width + 2 * self.key_width) * self.has_query_bias + self.width * self.has_output_bias
        inner_biases = ((2 if self.is_gated else 1) * self.inner + self.width) * self.has_inner_bias
        norms = 2 * self.norm_parameters + 2 * self.head_size * self.has_head_norms
        return self.block_matrices + biases + inner_biases + norms

    @property
    def head_parameters(self) -> int:
        """The last norm, and the matrix to the vocabulary, which is the embedding's where they are tied."""
        return self.norm_parameters + self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """Of the whole model, a tied matrix once."""
        whole = self.embedding_parameters + self.blocks * self.block_parameters + self.head_parameters
        return whole - self.vocabulary * self.width * self.is_tied


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch, and the numbers it is computed in."""

    microbatch_size: int
    sequence_length: int
    dtype: DataType

    @property
    def tokens(self) -> int:
        """In the micro-batch."""
        return self.microbatch_size * self.sequence_length

    @property
    def element_bytes(self) -> int:
        """Of a number."""
        return ELEMENT_BYTES[self.dtype]
