"""What is neither a matrix product nor attention: how often it goes through memory, and what it keeps for I.

Counted as torch executes our presets and transformers' models, kernel by kernel, without a compiler: `nn.LayerNorm` is
one kernel, transformers' RMSNorm seven, in fp32 whatever the model's numbers are. A pass is one reading or writing of a
tensor.
"""

from dataclasses import dataclass

from .shape import Batch, DecoderShape


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


def norm_of(shape: DecoderShape, batch: Batch) -> Norm:
    """The norm of a model in its numbers."""
    size = batch.element_bytes
    if shape.norm == "layer":
        return Norm(2 * size, 3 * size, 0, True, 8, 1)
    if size == 4:  # power, mean, product, scale; the normalized tensor is kept for the scale's gradient
        return Norm(7 * size, 18 * size, size, True, 4, 6)
    return Norm(36, 80, 4 + size, False, 4, 8)  # and to fp32 and back, whose copy is kept instead of the input
