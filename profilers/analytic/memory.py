"""What layers hold, in bytes of the whole layer: with tensor parallelism each of t ranks holds 1/t of it.

Counted as autograd keeps it when our presets or transformers' models run in torch, without dropout: attention keeps no
scores (FlashAttention), so of the (34 + 5 a s / h) s b h bytes of Korthikanti et al. (2022, section 4.1) the second
part is gone, and so are the masks of dropout (5 s b h); what is left for a GPT in bf16 is 32 s b h with torch's GELU.
"""

from dataclasses import dataclass

from .elementwise import ACTIVATIONS, GATING, norm_of
from .shape import Batch, DecoderShape


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What a layer keeps for one micro-batch: from F to I, and of that from I to W; `input` is in it."""

    activation: float
    weight_stash: float
    input: float


def stream_bytes(shape: DecoderShape, batch: Batch) -> float:
    """What one layer gives to the next."""
    return batch.tokens * shape.width * batch.element_bytes


def embedding_bytes(shape: DecoderShape, batch: Batch) -> LayerBytes:
    """The numbers of tokens, and of places."""
    places = batch.sequence_length if shape.position_rows else 0
    return LayerBytes(8 * (batch.tokens + places), 0, 8 * batch.tokens)


def block_bytes(shape: DecoderShape, batch: Batch) -> LayerBytes:
    """A block's inputs of matrices, norms and activation, and attention's operands and result."""
    stash = _block_stash(shape) * batch.element_bytes
    kept = _kept_by_norms(shape, batch) + _kept_between(shape) * batch.element_bytes + 4 * shape.heads
    return LayerBytes(batch.tokens * max(kept, stash), batch.tokens * stash, stream_bytes(shape, batch))


def head_bytes(shape: DecoderShape, batch: Batch) -> LayerBytes:
    """The norm's result, and log-probabilities in fp32; W needs the logits' gradient instead, in their own numbers."""
    norm, size = norm_of(shape, batch), batch.element_bytes
    kept = shape.width * (2 * size + norm.kept_bytes) + norm.statistics_bytes + 4 * shape.vocabulary + 8
    stash = size * (shape.width + shape.vocabulary)
    return LayerBytes(batch.tokens * max(kept, stash), batch.tokens * stash, stream_bytes(shape, batch))


def _block_stash(shape: DecoderShape) -> float:
    """Elements a token: what goes into the matrices, and the gradients of what comes out."""
    queries, keys, inner = shape.query_width, shape.key_width, shape.inner
    inputs = 2 * shape.width + queries + inner
    gradients = queries + 2 * keys + shape.width + (2 if shape.is_gated else 1) * inner
    # Where both branches join the stream at once, their gradients are one tensor.
    return inputs + gradients + (0 if shape.is_parallel else shape.width)


def _kept_between(shape: DecoderShape) -> float:
    """Elements a token beside those of norms: attention's operands and result, and the feed-forward network's."""
    queries, keys = shape.query_width, shape.key_width
    inner = ACTIVATIONS[shape.activation].kept + (GATING.kept if shape.is_gated else 0) + 1
    # Where fused ones are rotated, queries and keys are tensors of their own, the values keep the fused one, and what
    # attention makes of them is copied into another layout.
    rotated = 2 * queries + keys if shape.is_fused and not shape.position_rows else 0
    return 2 * queries + 2 * keys + rotated + inner * shape.inner + 2 * shape.width


def _kept_by_norms(shape: DecoderShape, batch: Batch) -> float:
    """Bytes a token: the block's input, that of its second norm where it is another tensor, and what norms add."""
    norm, size = norm_of(shape, batch), batch.element_bytes
    second = size if norm.keeps_input and not shape.is_parallel else 0
    stream = shape.width * (size + second + 2 * norm.kept_bytes) + 2 * norm.statistics_bytes
    if not shape.has_head_norms:
        return stream
    heads = shape.query_width + shape.key_width
    own = size if norm.keeps_input else 0  # what comes out of the matrices, which rotation would not keep
    return stream + heads * (norm.kept_bytes + own) + norm.statistics_bytes * (shape.heads + shape.key_value_heads)
