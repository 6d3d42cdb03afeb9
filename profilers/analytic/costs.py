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
from dataclasses import dataclass, fields, replace
from typing import Literal

from ...schemas.profile import DataType
from .software import USUAL_SOFTWARE, Software

# The shape of a decoder: all that its parameters, FLOPs and bytes follow from.


ELEMENT_BYTES: dict[DataType, int] = {"fp32": 4, "bf16": 2, "fp16": 2}


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
class MicrobatchShape:
    """One micro-batch, the numbers it is computed in, and by what kind of program."""

    microbatch_size: int
    sequence_length: int
    dtype: DataType
    software: Software = USUAL_SOFTWARE

    @property
    def tokens(self) -> int:
        """In the micro-batch."""
        return self.microbatch_size * self.sequence_length

    @property
    def element_bytes(self) -> int:
        """Of a number."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def gradient_bytes(self) -> int:
        """Of a parameter's gradient."""
        return ELEMENT_BYTES[self.software.gradients or self.dtype]

    @property
    def dropout_bytes(self) -> tuple[int, int]:
        """What dropout moves for each element: in F, fused with the sum it comes before, its mask; in I, all of it."""
        return (1, 1 + 2 * self.element_bytes) if self.software.dropout else (0, 0)

    def stream_ranks(self, degree: int) -> int:
        """How many ranks share what is between products; without sequence parallelism each does all of it."""
        return degree if self.software.sequence_parallel else 1


# What is neither a matrix product nor attention: how often it goes through memory, and what it keeps for I.
#
# Counted as torch executes our presets and transformers' models, kernel by kernel, without a compiler: `nn.LayerNorm`
# is one kernel, transformers' RMSNorm seven, in fp32 whatever the model's numbers are. A pass is one reading or writing
# of a tensor.


@dataclass(frozen=True, slots=True)
class Pointwise:
    """An operation on each element.

    Args:
        forward_passes, backward_passes: through a tensor of its input's size.
        kept: tensors of that size that autograd keeps, the result excepted.
        kernels: of the forward pass; the backward pass takes as many again.
    """

    forward_passes: float
    backward_passes: float
    kept: float
    kernels: int = 1


ONE_KERNEL = Pointwise(forward_passes=2, backward_passes=3, kept=1)
# transformers' "gelu_new" is 0.5 x (1 + tanh(a (x + b x³))), an operation at a time.
NEW_GELU = Pointwise(forward_passes=17, backward_passes=28, kept=4, kernels=8)
ACTIVATIONS = {
    "gelu": ONE_KERNEL,
    "gelu_pytorch_tanh": ONE_KERNEL,
    "silu": ONE_KERNEL,
    "swish": ONE_KERNEL,
    "relu": Pointwise(forward_passes=2, backward_passes=3, kept=0),  # keeps its result, as does what comes next
    "gelu_new": NEW_GELU,
}
GATING = Pointwise(forward_passes=3, backward_passes=6, kept=2)  # a product of two tensors
ADDITION = Pointwise(forward_passes=3, backward_passes=3, kept=0)
# x cos + (second half negated, halves swapped) sin.
ROTATION = Pointwise(forward_passes=10, backward_passes=11, kept=0, kernels=5)


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm, in bytes for each element of its input.

    Args:
        forward_bytes, backward_bytes: moved.
        kept_bytes: kept beside the input as it came and the result.
        keeps_input: whether the input as it came is kept.
        statistics_bytes: kept for each row.
        kernels: of the forward pass; the backward pass takes twice as many.
    """

    forward_bytes: float
    backward_bytes: float
    kept_bytes: float
    keeps_input: bool
    statistics_bytes: int
    kernels: int


def norm_of(shape: DecoderShape, batch: MicrobatchShape) -> Norm:
    """The norm of a model in its numbers."""
    size = batch.element_bytes
    if shape.norm == "layer":
        return Norm(2 * size, 3 * size, 0, True, 8, 1)
    if size == 4:  # power, mean, product, scale; the normalized tensor is kept for the scale's gradient
        return Norm(7 * size, 18 * size, size, True, 4, 6)
    return Norm(36, 80, 4 + size, False, 4, 8)  # and to fp32 and back, whose copy is kept instead of the input


# Megatron-LM launches about so many kernels for a block in F, and in I and W together. Where a program waits for each
# (BigScience's launch scripts set CUDA_LAUNCH_BLOCKING), a micro-batch costs a constant 6.1 ms a block, recomputation
# included, whatever its size: 47 us for each of these. Only that product was fitted.
FORWARD_KERNELS, BACKWARD_KERNELS = 30, 70
# Tensor cores take operands of 16 bits whose rows are multiples of 16 bytes (NVIDIA, Matrix Multiplication Background).
TENSOR_CORE_SIZE = 8


# What an operation does, in quantities that times are linear in.


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in one pass of one layer.

    Args:
        matrix_flops: of matrix products, two a multiply-add.
        streamed_bytes: of what a matrix product cannot begin without: in F and I rows, weights and results.
        matrix_bytes: of all operands and results of matrix products, once each.
        attention_flops: of attention's two products in F, five in I, as if it were not causal.
        scores_flops: of attention's products where each is a kernel of its own: two in F, four in I.
        misfit_flops: the same, of heads whose size fits no tensor core.
        scores_bytes: moved by such an attention.
        moved_bytes: read and written by everything else.
        kernels: how many.
        hidden_kernels: how many more that the launches ahead hide.
        reductions: of the residual stream over the tensor-parallel group.
    """

    matrix_flops: float = 0.0
    streamed_bytes: float = 0.0
    matrix_bytes: float = 0.0
    attention_flops: float = 0.0
    scores_flops: float = 0.0
    misfit_flops: float = 0.0
    scores_bytes: float = 0.0
    moved_bytes: float = 0.0
    kernels: int = 0
    hidden_kernels: int = 0
    reductions: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @property
    def flops(self) -> float:
        """Of matrix products and attention, as papers count them in F."""
        return self.matrix_flops + self.attention_flops + self.scores_flops + self.misfit_flops


def product(rows: int, inputs: float, outputs: float, element_bytes: int) -> Work:
    """F of a matrix: (rows, inputs) times (inputs, outputs); or its I, which is as much the other way."""
    moved_bytes = (rows * (inputs + outputs) + inputs * outputs) * element_bytes
    return Work(2 * rows * inputs * outputs, moved_bytes, moved_bytes, kernels=1)


def weight_gradient(inputs: float, outputs: float, batch: MicrobatchShape) -> Work:
    """W of a matrix: (inputs, rows) times (rows, outputs), added to the gradient, which is fetched meanwhile.

    Where the program says in what numbers gradients are kept, another kernel reads the product and adds it: 6 bytes a
    parameter in 16 bits, 10 in 32.
    """
    rows, size, weights = batch.tokens, batch.element_bytes, inputs * outputs
    row_bytes, flops = rows * (inputs + outputs) * size, 2 * rows * inputs * outputs
    if batch.software.gradients is None:
        return Work(flops, row_bytes, row_bytes + 2 * weights * size)
    added_bytes = weights * (size + 2 * batch.gradient_bytes)
    return Work(flops, row_bytes, row_bytes + weights * size, moved_bytes=added_bytes)


def forward_of(operation: Pointwise, size_bytes: float, times: int = 1) -> Work:
    """The forward pass of an operation on tensors of a size, so many times."""
    return Work(moved_bytes=times * operation.forward_passes * size_bytes, kernels=times * operation.kernels)


def backward_of(operation: Pointwise, size_bytes: float, times: int = 1) -> Work:
    """The backward pass of an operation on tensors of a size, so many times."""
    return Work(moved_bytes=times * operation.backward_passes * size_bytes, kernels=times * operation.kernels)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """What one rank does for a layer and one micro-batch.

    Args:
        forward, backward_input, backward_weight: F, I and W.
        parameters: the rank's, for the optimizer step.
        summed: for each sum in I, the weight gradients of the matrices whose I it sums: parts of W.
    """

    forward: Work
    backward_input: Work
    backward_weight: Work
    parameters: float
    summed: tuple[Work, ...] = ()


Kind = Literal["embedding", "block", "head"]
Matrix = tuple[float, float, bool]  # inputs, outputs, whether there is a bias


def embedding_work(shape: DecoderShape, batch: MicrobatchShape, degree: int) -> LayerWork:
    """Tokens to vectors, plus learned positions.

    I makes a gradient of the whole table: zeros, then the tokens' rows, then all of it added to what is there.
    """
    elements = batch.tokens * shape.width
    stream_bytes = elements * batch.element_bytes / batch.stream_ranks(degree)
    tables = 2 if shape.position_rows else 1
    table_bytes = shape.embedding_parameters * batch.element_bytes / degree
    added = forward_of(ADDITION, stream_bytes) if shape.position_rows else Work()
    dropped, dropped_back = (
        Work(moved_bytes=elements / batch.stream_ranks(degree) * one) for one in batch.dropout_bytes
    )
    made_bytes = (2 + 2 * batch.gradient_bytes / batch.element_bytes) * table_bytes
    return LayerWork(
        forward=Work(moved_bytes=tables * 2 * stream_bytes, kernels=tables, reductions=1) + added + dropped,
        backward_input=Work(moved_bytes=made_bytes + tables * 2 * stream_bytes, kernels=3 * tables) + dropped_back,
        backward_weight=Work(),
        parameters=shape.embedding_parameters / degree,
    )


def block_work(shape: DecoderShape, batch: MicrobatchShape, degree: int) -> LayerWork:
    """Attention and the feed-forward network, with their norms and sums."""
    width, queries, keys, inner = shape.width, *_attention_widths(shape, degree), shape.inner / degree
    attention: list[Matrix] = [(width, size, shape.has_query_bias) for size in (queries, keys, keys)]
    if shape.is_fused:
        attention = [(width, queries + 2 * keys, shape.has_query_bias)]
    entries: list[Matrix] = [(width, inner, shape.has_inner_bias)] * (2 if shape.is_gated else 1)
    matrices = [*attention, (queries, width, shape.has_output_bias), *entries, (inner, width, shape.has_inner_bias)]
    products = _products(matrices, batch)
    forward, backward = _between_products(shape, batch, degree)
    forward, backward = products + forward + Work(reductions=2), products + backward + Work(reductions=2)
    return LayerWork(
        forward=forward + Work(hidden_kernels=max(FORWARD_KERNELS - forward.kernels, 0)),
        backward_input=backward,
        backward_weight=_weight_gradients(matrices, batch)
        + Work(hidden_kernels=max(BACKWARD_KERNELS - backward.kernels, 0)),
        parameters=shape.block_parameters / degree,
        summed=(_weight_gradients(attention, batch), _weight_gradients(entries, batch)),
    )


def head_work(shape: DecoderShape, batch: MicrobatchShape, degree: int) -> LayerWork:
    """The last norm, the logits and the cross entropy, which is computed in fp32."""
    matrices: list[Matrix] = [(shape.width, shape.vocabulary / degree, False)]
    stream_bytes = batch.tokens * shape.width / batch.stream_ranks(degree)
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
        summed=(_weight_gradients(matrices, batch),),
    )


WORKS: dict[Kind, Callable[[DecoderShape, MicrobatchShape, int], LayerWork]] = {
    "embedding": embedding_work,
    "block": block_work,
    "head": head_work,
}


def _attention_widths(shape: DecoderShape, degree: int) -> tuple[float, float]:
    return shape.query_width / degree, max(shape.key_value_heads / degree, 1) * shape.head_size


def _products(matrices: list[Matrix], batch: MicrobatchShape) -> Work:
    """F of all matrices, and their I, which is as much."""
    works = (product(batch.tokens, inputs, outputs, batch.element_bytes) for inputs, outputs, _ in matrices)
    return sum(works, Work())


def _weight_gradients(matrices: list[Matrix], batch: MicrobatchShape) -> Work:
    """W of all matrices, and their biases' sums: a queue of kernels without overhead to speak of."""
    works = (weight_gradient(inputs, outputs, batch) for inputs, outputs, _ in matrices)
    biased = sum(outputs for _, outputs, has_bias in matrices if has_bias)
    return sum(works, Work(moved_bytes=batch.tokens * biased * batch.element_bytes))


def _between_products(shape: DecoderShape, batch: MicrobatchShape, degree: int) -> tuple[Work, Work]:
    """F and I of attention, norms, activation and sums."""
    queries, keys = (batch.tokens * width * batch.element_bytes for width in _attention_widths(shape, degree))
    elements = batch.tokens * shape.width / batch.stream_ranks(degree)
    stream, inner = elements * batch.element_bytes, batch.tokens * shape.inner * batch.element_bytes / degree
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
    dropped, dropped_back = (Work(moved_bytes=2 * elements * one) for one in batch.dropout_bytes)
    forward, backward = forward + dropped, backward + dropped_back
    if shape.is_fused:  # their gradients are put together again
        backward += Work(moved_bytes=2 * (queries + 2 * keys), kernels=1)
    return forward, backward


def _attention(shape: DecoderShape, batch: MicrobatchShape, degree: int) -> tuple[Work, Work]:
    """One kernel each, which keeps no scores (FlashAttention): I computes them again, so five products for F's two."""
    query_width, key_width = _attention_widths(shape, degree)
    queries, keys = (batch.tokens * width * batch.element_bytes for width in (query_width, key_width))
    flops = 4 * batch.tokens * batch.sequence_length * query_width
    if batch.software.attention == "unfused":
        return _unfused(shape, batch, degree, flops)
    forward = Work(attention_flops=flops, moved_bytes=2 * queries + 2 * keys, kernels=1)
    return forward, Work(attention_flops=2.5 * flops, moved_bytes=4 * queries + 4 * keys, kernels=1)


def _unfused(shape: DecoderShape, batch: MicrobatchShape, degree: int, flops: float) -> tuple[Work, Work]:
    """A kernel for each product, softmax and dropout, as Megatron-LM's: scores go through memory from one to the next.

    Of n matrices of s x s scores, F writes and reads them for its products, for softmax and for dropout with its mask;
    I makes two products more, and passes softmax's three and dropout's two again. Queries, keys, values and the result
    are copied from layout to layout: 6 and 8 passes. All is computed that the mask throws away.
    """
    query_width, key_width = _attention_widths(shape, degree)
    operands = batch.tokens * (query_width + key_width) * batch.element_bytes
    copied = batch.tokens * query_width * batch.element_bytes
    size, scores = batch.element_bytes, batch.tokens * batch.sequence_length * shape.heads / degree
    dropped = 1 + 2 * size if batch.software.dropout else 0
    forward_bytes = scores * (4 * size + dropped) + 2 * operands + 6 * copied
    # Where queries, keys and values come out of one matrix, putting their gradients together is six of the passes.
    backward_bytes = scores * (7 * size + dropped) + 4 * operands + (2 if shape.is_fused else 8) * copied
    fits = batch.dtype == "fp32" or shape.head_size % TENSOR_CORE_SIZE == 0
    computed = ((Work(scores_flops=one) if fits else Work(misfit_flops=one)) for one in (flops, 2 * flops))
    kernels = batch.software.dropout + 5
    forward, backward = computed
    return (
        forward + Work(scores_bytes=forward_bytes, kernels=kernels),
        backward + Work(scores_bytes=backward_bytes, kernels=kernels + 2),
    )


def _norms(shape: DecoderShape, batch: MicrobatchShape, degree: int, is_forward: bool) -> Work:
    norm = norm_of(shape, batch)
    elements, count = 2 * batch.tokens * shape.width / batch.stream_ranks(degree), 2
    if shape.has_head_norms:
        elements, count = elements + batch.tokens * sum(_attention_widths(shape, degree)), 4
    if is_forward:
        return Work(moved_bytes=elements * norm.forward_bytes, kernels=count * norm.kernels)
    return Work(moved_bytes=elements * norm.backward_bytes, kernels=2 * count * norm.kernels)


# What layers hold, in bytes of the whole layer: with tensor parallelism each of t ranks holds 1/t of it.
#
# Counted as autograd keeps it when our presets or transformers' models run in torch, without dropout: attention keeps
# no scores (FlashAttention), so of the (34 + 5 a s / h) s b h bytes of Korthikanti et al. (2022, section 4.1) the
# second part is gone, and so are the masks of dropout (5 s b h); what is left for a GPT in bf16 is 32 s b h with
# torch's GELU.


@dataclass(frozen=True, slots=True)
class StashBytes:
    """What a layer keeps for one micro-batch: from F to I, and of that from I to W; `input` is in it.

    `replicated` is what of it each rank of a tensor-parallel group keeps whole, without sequence parallelism.
    """

    activation: float
    weight_stash: float
    input: float
    replicated: float


def stream_bytes(shape: DecoderShape, batch: MicrobatchShape) -> float:
    """What one layer gives to the next."""
    return batch.tokens * shape.width * batch.element_bytes


def embedding_bytes(shape: DecoderShape, batch: MicrobatchShape) -> StashBytes:
    """The numbers of tokens, and of places."""
    places = batch.sequence_length if shape.position_rows else 0
    masks = batch.tokens * shape.width * batch.software.dropout
    return StashBytes(8 * (batch.tokens + places) + masks, 0, 8 * batch.tokens, 8 * (batch.tokens + places) + masks)


def block_bytes(shape: DecoderShape, batch: MicrobatchShape) -> StashBytes:
    """A block's inputs of matrices, norms and activation, and attention's operands and result."""
    # Elements a token: what goes into the matrices, and the gradients of what comes out.
    queries, keys, inner = shape.query_width, shape.key_width, shape.inner
    inputs = 2 * shape.width + queries + inner
    gradients = queries + 2 * keys + shape.width + (2 if shape.is_gated else 1) * inner
    # Where both branches join the stream at once, their gradients are one tensor.
    stash = (inputs + gradients + (0 if shape.is_parallel else shape.width)) * batch.element_bytes
    kept = _kept_by_norms(shape, batch) + _kept_between(shape) * batch.element_bytes + _kept_of_scores(shape, batch)
    masks = 2 * shape.width * batch.software.dropout
    # Of the stream: the inputs of both norms, what comes out of them, and masks (Korthikanti et al., section 4.2.1).
    of_stream = _kept_by_norms(replace(shape, has_head_norms=False), batch)
    replicated = of_stream + 2 * shape.width * batch.element_bytes + masks
    return StashBytes(
        batch.tokens * max(kept + masks, stash),
        batch.tokens * stash,
        stream_bytes(shape, batch),
        batch.tokens * replicated,
    )


def head_bytes(shape: DecoderShape, batch: MicrobatchShape) -> StashBytes:
    """The norm's result, and log-probabilities in fp32; W needs the logits' gradient instead, in their own numbers."""
    norm, size = norm_of(shape, batch), batch.element_bytes
    kept = shape.width * (2 * size + norm.kept_bytes) + norm.statistics_bytes + 4 * shape.vocabulary + 8
    stash = size * (shape.width + shape.vocabulary)
    replicated = shape.width * (2 * size + norm.kept_bytes) + norm.statistics_bytes
    return StashBytes(
        batch.tokens * max(kept, stash), batch.tokens * stash, stream_bytes(shape, batch), batch.tokens * replicated
    )


def _kept_between(shape: DecoderShape) -> float:
    """Elements a token beside those of norms: attention's operands and result, and the feed-forward network's."""
    queries, keys = shape.query_width, shape.key_width
    inner = ACTIVATIONS[shape.activation].kept + (GATING.kept if shape.is_gated else 0) + 1
    # Where fused ones are rotated, queries and keys are tensors of their own, the values keep the fused one, and what
    # attention makes of them is copied into another layout.
    rotated = 2 * queries + keys if shape.is_fused and not shape.position_rows else 0
    return 2 * queries + 2 * keys + rotated + inner * shape.inner + 2 * shape.width


def _kept_of_scores(shape: DecoderShape, batch: MicrobatchShape) -> float:
    """Bytes a token: a number for each head (FlashAttention), or all scores, with their mask and what it leaves."""
    if batch.software.attention == "flash":
        return 4 * shape.heads
    dropped = 1 + batch.element_bytes if batch.software.dropout else 0
    return shape.heads * batch.sequence_length * (batch.element_bytes + dropped)


def _kept_by_norms(shape: DecoderShape, batch: MicrobatchShape) -> float:
    """Bytes a token: the block's input, that of its second norm where it is another tensor, and what norms add."""
    norm, size = norm_of(shape, batch), batch.element_bytes
    second = size if norm.keeps_input and not shape.is_parallel else 0
    stream = shape.width * (size + second + 2 * norm.kept_bytes) + 2 * norm.statistics_bytes
    if not shape.has_head_norms:
        return stream
    heads = shape.query_width + shape.key_width
    own = size if norm.keeps_input else 0  # what comes out of the matrices, which rotation would not keep
    return stream + heads * (norm.kept_bytes + own) + norm.statistics_bytes * (shape.heads + shape.key_value_heads)
