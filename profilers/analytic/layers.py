"""What the embedding, a block and the head do in F, I and W, on one rank of a tensor-parallel group.

Tensor parallelism is Megatron-LM's (Shoeybi et al., 2019, section 3) with sequence parallelism (Korthikanti et al.,
2022, section 4.2.2): matrices are cut by columns, then by rows, attention by heads, the vocabulary by tokens; what lies
between, norms and sums, by the sequence. So a rank does 1/t of everything, and the stream is summed over the group (as
a reduce-scatter and an all-gather, which move what an all-reduce does) twice in F and twice in I of a block, once in F
of the embedding, once in I of the head. Keys and values with fewer heads than ranks are held by several.

W is what the runner puts off: the products of linear layers, and their biases' sums. The gradients of norms and
embeddings are part of I.
"""

from collections.abc import Callable
from typing import Literal

from .elementwise import ACTIVATIONS, ADDITION, GATING, ROTATION, norm_of
from .shape import Batch, DecoderShape
from .work import LayerWork, Work, backward_of, forward_of, product, weight_gradient

Kind = Literal["embedding", "block", "head"]
Matrix = tuple[float, float, bool]  # inputs, outputs, whether there is a bias


def embedding_work(shape: DecoderShape, batch: Batch, degree: int) -> LayerWork:
    """Tokens to vectors, plus learned positions.

    I makes a gradient of the whole table: zeros, then the tokens' rows, then all of it added to what is there.
    """
    stream_bytes = batch.tokens * shape.width * batch.element_bytes / degree
    tables = 2 if shape.position_rows else 1
    table_bytes = shape.embedding_parameters * batch.element_bytes / degree
    added = forward_of(ADDITION, stream_bytes) if shape.position_rows else Work()
    return LayerWork(
        forward=Work(moved_bytes=tables * 2 * stream_bytes, kernels=tables, reductions=1) + added,
        backward_input=Work(moved_bytes=4 * table_bytes + tables * 2 * stream_bytes, kernels=3 * tables),
        backward_weight=Work(),
        parameters=shape.embedding_parameters / degree,
    )


def block_work(shape: DecoderShape, batch: Batch, degree: int) -> LayerWork:
    """Attention and the feed-forward network, with their norms and sums."""
    matrices = _matrices(shape, degree)
    products = _products(matrices, batch)
    forward, backward = _between_products(shape, batch, degree)
    return LayerWork(
        forward=products + forward + Work(reductions=2),
        backward_input=products + backward + Work(reductions=2),
        backward_weight=_weight_gradients(matrices, batch),
        parameters=shape.block_parameters / degree,
    )


def head_work(shape: DecoderShape, batch: Batch, degree: int) -> LayerWork:
    """The last norm, the logits and the cross entropy, which is computed in fp32."""
    matrices: list[Matrix] = [(shape.width, shape.vocabulary / degree, False)]
    stream_bytes = batch.tokens * shape.width / degree
    norm, logits = norm_of(shape, batch), batch.tokens * shape.vocabulary / degree
    cast_bytes = 0 if batch.dtype == "fp32" else 6  # to fp32 and back
    # log_softmax reads and writes; backward, zeros are written for the targets' places, and three tensors of fp32 pass
    forward = Work(moved_bytes=stream_bytes * norm.forward_bytes + logits * (8 + cast_bytes), kernels=norm.kernels + 2)
    backward = Work(
        moved_bytes=stream_bytes * norm.backward_bytes + logits * (16 + cast_bytes), kernels=2 * norm.kernels + 3
    )
    products = _products(matrices, batch)
    return LayerWork(
        forward=products + forward,
        backward_input=products + backward + Work(reductions=1),
        backward_weight=_weight_gradients(matrices, batch),
        parameters=shape.head_parameters / degree,
    )


WORKS: dict[Kind, Callable[[DecoderShape, Batch, int], LayerWork]] = {
    "embedding": embedding_work,
    "block": block_work,
    "head": head_work,
}


def _matrices(shape: DecoderShape, degree: int) -> list[Matrix]:
    width, queries, keys, inner = shape.width, *_attention_widths(shape, degree), shape.inner / degree
    attention = [(width, size, shape.has_query_bias) for size in (queries, keys, keys)]
    if shape.is_fused:
        attention = [(width, queries + 2 * keys, shape.has_query_bias)]
    entries = [(width, inner, shape.has_inner_bias)] * (2 if shape.is_gated else 1)
    return [*attention, (queries, width, shape.has_output_bias), *entries, (inner, width, shape.has_inner_bias)]


def _attention_widths(shape: DecoderShape, degree: int) -> tuple[float, float]:
    return shape.query_width / degree, max(shape.key_value_heads / degree, 1) * shape.head_size


def _products(matrices: list[Matrix], batch: Batch) -> Work:
    """F of all matrices, and their I, which is as much."""
    works = (product(batch.tokens, inputs, outputs, batch.element_bytes) for inputs, outputs, _ in matrices)
    return sum(works, Work())


def _weight_gradients(matrices: list[Matrix], batch: Batch) -> Work:
    """W of all matrices, and their biases' sums: a queue of kernels without overhead to speak of."""
    works = (weight_gradient(batch.tokens, inputs, outputs, batch.element_bytes) for inputs, outputs, _ in matrices)
    biased = sum(outputs for _, outputs, has_bias in matrices if has_bias)
    return sum(works, Work(moved_bytes=batch.tokens * biased * batch.element_bytes))


def _between_products(shape: DecoderShape, batch: Batch, degree: int) -> tuple[Work, Work]:
    """F and I of attention, norms, activation and sums."""
    queries, keys = (batch.tokens * width * batch.element_bytes for width in _attention_widths(shape, degree))
    stream, inner = (batch.tokens * width * batch.element_bytes / degree for width in (shape.width, shape.inner))
    activation = ACTIVATIONS[shape.activation]
    forward, backward = _attention(shape, batch, degree)
    forward += _norms(shape, batch, degree, is_forward=True) + forward_of(ADDITION, stream, 2)
    forward += forward_of(activation, inner)
    backward += _norms(shape, batch, degree, is_forward=False) + backward_of(ADDITION, stream, 2)
    backward += backward_of(activation, inner)
    if shape.is_gated:
        forward, backward = forward + forward_of(GATING, inner), backward + backward_of(GATING, inner)
    if not shape.position_rows:
        forward += forward_of(ROTATION, (queries + keys) / 2, 2)
        backward += backward_of(ROTATION, (queries + keys) / 2, 2)
    if shape.is_fused:  # their gradients are put together again
        backward += Work(moved_bytes=2 * (queries + 2 * keys), kernels=1)
    return forward, backward


def _attention(shape: DecoderShape, batch: Batch, degree: int) -> tuple[Work, Work]:
    """One kernel each, which keeps no scores (FlashAttention): I computes them again, so five products for F's two."""
    query_width, key_width = _attention_widths(shape, degree)
    queries, keys = (batch.tokens * width * batch.element_bytes for width in (query_width, key_width))
    flops = 4 * batch.tokens * batch.sequence_length * query_width
    forward = Work(attention_flops=flops, moved_bytes=2 * queries + 2 * keys, kernels=1)
    return forward, Work(attention_flops=2.5 * flops, moved_bytes=4 * queries + 4 * keys, kernels=1)


def _norms(shape: DecoderShape, batch: Batch, degree: int, is_forward: bool) -> Work:
    norm = norm_of(shape, batch)
    elements, count = 2 * batch.tokens * shape.width / degree, 2
    if shape.has_head_norms:
        elements, count = elements + batch.tokens * sum(_attention_widths(shape, degree)), 4
    if is_forward:
        return Work(moved_bytes=elements * norm.forward_bytes, kernels=count * norm.kernels)
    return Work(moved_bytes=elements * norm.backward_bytes, kernels=2 * count * norm.kernels)
